//! Fills the page cache in pieces of 2 MiB with data that are to stay there.
//!
//! A wrapper over another reader. Reads that jump about in a file bring single pages of 4 KiB into the cache, and later epochs
//! would copy out of these at half the speed. So under [`Keep::Around`], before the first read in an epoch of a
//! stretch of 2 MiB is handed over, the stretch is brought in whole by [`populate`] unless most of it is there. That takes as long
//! as the disk does, and saves the reads of all that lies around. Files whose contents are not final are left alone.
//!
//! It is only ever a faster way: whatever goes wrong with it, the read is made as it would have been.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;

use rustix::fs::{Advice, fadvise};

use super::cachestat::cached_bytes;
use super::populate::populate;
use super::{BlockReader, Done, Keep, Notice, Read, ReadFile, ReaderStats, RingError, transfer};

/// What is brought in at once: a huge page of x86 and most others.
const STRETCH_BYTES: u64 = 2 << 20;
/// Fewer bytes cached of a range are little, and so is less than half of one that the file's end makes shorter.
const LITTLE_BYTES: u64 = STRETCH_BYTES / 2;
/// What is cleared of single pages at once, and the next as well: the kernel reads ahead by itself, in small pieces from
/// the first page on that is there already.
const REGION_BYTES: u64 = 32 << 20;
/// System calls that bring a stretch in.
const POPULATE_CALLS: u64 = 4;

/// The page cache, as far as a file's ranges are concerned. Tests have others.
#[derive(Clone, Copy)]
pub(super) struct Cache {
    cached: fn(&File, u64, u64) -> io::Result<u64>,
    drop: fn(&File, u64, NonZeroU64),
    populate: fn(&File, u64, usize) -> io::Result<()>,
}

impl Default for Cache {
    fn default() -> Self {
        let drop = |file: &File, offset, length| {
            // Advice: pages in use stay.
            let _ = fadvise(file, offset, Some(length), Advice::DontNeed);
        };
        Self { cached: cached_bytes, drop, populate }
    }
}

pub(super) struct FillingReader {
    inner: Box<dyn BlockReader>,
    cache: Cache,
    fills: bool,
    /// Stretches looked at since the last call of `keep_in_cache`, by file and number, and the last one that was found here.
    seen: HashSet<(u64, u64)>,
    last: Option<(u64, u64)>,
    /// Regions cleared since then, in the same way.
    cleared: HashSet<(u64, u64)>,
    waiting: VecDeque<Read>,
    ready: Vec<Done>,
    syscalls: u64,
    notice: Option<Notice>,
    /// The kernel has no such calls.
    refused: bool,
}

impl FillingReader {
    pub(super) fn new(inner: Box<dyn BlockReader>, cache: Cache) -> Self {
        Self {
            inner,
            cache,
            fills: false,
            seen: HashSet::new(),
            last: None,
            cleared: HashSet::new(),
            waiting: VecDeque::new(),
            ready: Vec::new(),
            syscalls: 0,
            notice: None,
            refused: false,
        }
    }

    /// Sees to it that the stretches which a range of a file lies in are cached; whether that took the disk's time.
    fn bring(&mut self, file: &ReadFile, offset: u64, bytes: u64) -> bool {
        if !self.fills || bytes == 0 || !file.is_final() {
            return false;
        }
        let last = offset.saturating_add(bytes - 1) / STRETCH_BYTES;
        (offset / STRETCH_BYTES..=last).fold(false, |brought, stretch| {
            let key = (file.id(), stretch);
            let is_new = self.last.replace(key) != Some(key) && self.seen.insert(key);
            (is_new && self.bring_stretch(file, stretch)) || brought
        })
    }

    fn bring_stretch(&mut self, file: &ReadFile, stretch: u64) -> bool {
        let outcome = self.look(file, stretch * STRETCH_BYTES);
        // All else, the file's end above all, is the read's own matter.
        let unknown = [libc::EINVAL, libc::ENOSYS, libc::EPERM].map(Some);
        if let Err(error) = &outcome
            && unknown.contains(&error.raw_os_error())
        {
            let line =
                format!("fill=off the page cache is filled by small pages, which later epochs read slower: {error}");
            self.notice = Some(Notice { way: "fill", line });
            (self.fills, self.refused) = (false, true);
        }
        outcome.unwrap_or(true)
    }

    /// Brings in the stretch at `offset` if little of it is there: whether it was brought in.
    fn look(&mut self, file: &ReadFile, offset: u64) -> io::Result<bool> {
        let (id, file, region) = (file.id(), file.file(), offset / REGION_BYTES);
        self.syscalls += 1;
        let file_bytes = file.metadata()?.len();
        if offset >= file_bytes {
            return Ok(false);
        }
        let within = |offset: u64, bytes: u64| (offset, file_bytes.saturating_sub(offset).min(bytes));
        for region in [region, region + 1] {
            if self.cleared.insert((id, region)) {
                self.clear(file, within(region * REGION_BYTES, REGION_BYTES))?;
            }
        }
        let (offset, bytes) = within(offset, STRETCH_BYTES);
        let lacks = self.clear(file, (offset, bytes))?;
        if lacks {
            self.syscalls += POPULATE_CALLS;
            (self.cache.populate)(file, offset, bytes as usize)?;
        }
        Ok(lacks)
    }

    /// Drops what is cached of a range if that is little: mostly single pages such as those of headers, which would leave no
    /// room for a whole piece. Returns whether it was little.
    fn clear(&mut self, file: &File, (offset, bytes): (u64, u64)) -> io::Result<bool> {
        let Some(length) = NonZeroU64::new(bytes) else { return Ok(false) };
        self.syscalls += 1;
        let cached = (self.cache.cached)(file, offset, bytes)?;
        let little = cached < LITTLE_BYTES.min(bytes.div_ceil(2));
        if little && cached > 0 {
            self.syscalls += 1;
            (self.cache.drop)(file, offset, length);
        }
        Ok(little)
    }
}

impl BlockReader for FillingReader {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.inner.in_flight() + self.ready.len()
    }

    fn submit(&mut self, read: Read) {
        if self.fills { self.waiting.push_back(read) } else { self.inner.submit(read) }
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        let until = done.len() + at_least.min(self.in_flight());
        done.append(&mut self.ready);
        while let Some(read) = self.waiting.pop_front() {
            let bytes = read.parts.iter().map(|part| u64::from(part.bytes)).sum();
            let brought = self.bring(&read.file, read.offset, bytes);
            self.inner.submit(read);
            if brought {
                // Nobody waits for the next stretch who can go on with this one.
                self.inner.wait(usize::from(done.len() < until), done)?;
                if done.len() >= until {
                    return Ok(());
                }
            }
        }
        self.inner.wait(until.saturating_sub(done.len()), done)
    }

    fn cancel(&mut self) {
        transfer::cancel_waiting(&mut self.waiting, &mut self.ready);
        self.inner.cancel();
    }

    fn stats(&self) -> ReaderStats {
        let stats = self.inner.stats();
        ReaderStats { syscalls: stats.syscalls + self.syscalls, ..stats }
    }

    fn keep_in_cache(&mut self, keep: Keep) {
        self.fills = keep == Keep::Around && !self.refused;
        self.seen.clear();
        self.cleared.clear();
        self.last = None;
    }

    fn prepare(&mut self, file: &ReadFile, offset: u64, bytes: u64) {
        self.bring(file, offset, bytes);
    }

    fn take_notice(&mut self) -> Option<Notice> {
        self.notice.take().or_else(|| self.inner.take_notice())
    }
}

#[cfg(test)]
#[path = "tests_fill.rs"]
mod tests;
