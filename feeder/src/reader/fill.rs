//! Fills the page cache in pieces of 2 MiB with data that are to stay there.
//!
//! A wrapper over another reader. Reads that jump about in a file bring single pages of 4 KiB into the cache, and later epochs
//! would copy out of these at half the speed. So under [`Keep::Around`], before the first read in an epoch of a
//! stretch of 2 MiB is handed over, the stretch is brought in whole by [`populate`] unless most of it is there. That takes as long
//! as the disk does, and saves the reads of all that lies around. Files whose contents are not final are left alone.
//!
//! It is only ever a faster way: whatever goes wrong with it, the read is made as it would have been.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;

use rustix::fs::{Advice, fadvise};

use super::cachestat::cached_bytes;
use super::populate::populate;
use super::{BlockReader, Done, Keep, Notice, Read, ReadFile, ReaderStats, RingError, transfer};

/// What is brought in at once: a huge page of x86 and most others.
const STRETCH_BYTES: u64 = 2 << 20;
/// What is looked at first, and the next as well: if all of it is there, its stretches are. If little is, it is cleared of
/// that: the kernel reads ahead by itself, in small pieces from the first page on that is there already.
const REGION_BYTES: u64 = 32 << 20;
/// What a kernel, a sandbox or a file system without such calls answers, or one where there is no room for a mapping.
const REFUSALS: [i32; 7] =
    [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EACCES, libc::ENODEV, libc::EOPNOTSUPP, libc::ENOMEM];
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

/// Whether an error says that there are no such calls here.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| REFUSALS.contains(&code))
}

pub(super) struct FillingReader {
    inner: Box<dyn BlockReader>,
    cache: Cache,
    fills: bool,
    /// Stretches looked at since the last call of `keep_in_cache`, and the last one that was found here.
    seen: HashSet<Place>,
    last: Option<Place>,
    /// Regions looked at since then.
    regions: HashMap<Place, Looked>,
    waiting: VecDeque<Read>,
    /// What is to be brought in for the first of those that wait: offsets and lengths.
    lacking: Vec<(u64, u64)>,
    ready: Vec<Done>,
    syscalls: u64,
    notice: Option<Notice>,
    /// The kernel has no such calls.
    refused: bool,
}

/// A file, and a number within it.
type Place = ((u64, u64), u64);

/// Whether all of a region was there, and whether the one behind it was looked at as well.
#[derive(Clone, Copy)]
struct Looked {
    whole: bool,
    entered: bool,
}

/// Fewer bytes cached of a range are little: less than half of a stretch, or of what the file's end leaves of one.
fn little_of(bytes: u64) -> u64 {
    (STRETCH_BYTES / 2).min(bytes.div_ceil(2))
}

/// What the file has of a range. One that cannot even be asked for its length has nothing: that is the read's own matter.
fn within(file: &ReadFile, offset: u64, bytes: u64) -> (u64, u64) {
    let file_bytes = file.file().metadata().map_or(0, |about| about.len());
    (offset, file_bytes.saturating_sub(offset).min(bytes))
}

impl FillingReader {
    pub(super) fn new(inner: Box<dyn BlockReader>, cache: Cache) -> Self {
        Self {
            inner,
            cache,
            fills: false,
            seen: HashSet::new(),
            last: None,
            regions: HashMap::new(),
            waiting: VecDeque::new(),
            lacking: Vec::new(),
            ready: Vec::new(),
            syscalls: 0,
            notice: None,
            refused: false,
        }
    }

    /// Finds what lacks of the stretches that a range of a file lies in.
    fn find(&mut self, file: &ReadFile, offset: u64, bytes: u64) {
        if !self.fills || bytes == 0 || !file.is_final() {
            return;
        }
        for stretch in offset / STRETCH_BYTES..=offset.saturating_add(bytes - 1) / STRETCH_BYTES {
            let place = (file.inode(), stretch);
            if self.last.replace(place) == Some(place) || self.is_whole(file, stretch * STRETCH_BYTES / REGION_BYTES) {
                continue;
            }
            if self.seen.insert(place) {
                let range = within(file, stretch * STRETCH_BYTES, STRETCH_BYTES);
                self.syscalls += 1;
                if self.look(file.file(), range).is_none_or(|cached| cached < little_of(range.1)) && range.1 > 0 {
                    self.lacking.push(range);
                }
            }
        }
    }

    /// Whether all of a region was cached when it was first looked at. The next one is looked at when it is entered.
    fn is_whole(&mut self, file: &ReadFile, region: u64) -> bool {
        let place = (file.inode(), region);
        if let Some(&Looked { whole, entered: true }) = self.regions.get(&place) {
            return whole;
        }
        let [here, next] = [region, region + 1].map(|region| {
            let place = (file.inode(), region);
            self.regions.get(&place).copied().unwrap_or_else(|| {
                let range = within(file, region.saturating_mul(REGION_BYTES), REGION_BYTES);
                self.syscalls += 1;
                let whole = self.look(file.file(), range).is_some_and(|cached| cached >= range.1);
                Looked { whole, entered: false }
            })
        });
        self.regions.insert(place, Looked { entered: true, ..here });
        self.regions.insert((file.inode(), region + 1), next);
        here.whole
    }

    /// How much of a range is cached; `None`: nobody can tell. Drops it if it is little: mostly single pages such as those of
    /// headers, which would leave no room for a whole piece.
    fn look(&mut self, file: &File, (offset, bytes): (u64, u64)) -> Option<u64> {
        let length = NonZeroU64::new(bytes)?;
        self.syscalls += 1;
        let cached = (self.cache.cached)(file, offset, bytes).ok()?;
        if cached > 0 && cached < little_of(bytes) {
            self.syscalls += 1;
            (self.cache.drop)(file, offset, length);
        }
        Some(cached)
    }

    /// Brings in what lacks of a file; whether that took the disk's time.
    fn bring(&mut self, file: &File) -> bool {
        let mut brought = false;
        for at in 0..self.lacking.len() {
            let (offset, bytes) = self.lacking[at];
            if !self.fills {
                break;
            }
            self.syscalls += POPULATE_CALLS;
            brought = true;
            // All else, the file's end above all, is the read's own matter.
            if let Err(error) = (self.cache.populate)(file, offset, bytes as usize)
                && is_refusal(&error)
            {
                let line = format!(
                    "fill=off the page cache is filled by small pages, which later epochs read slower: {error}"
                );
                self.notice = Some(Notice { way: "fill", line });
                (self.fills, self.refused) = (false, true);
            }
        }
        self.lacking.clear();
        brought
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
            if self.lacking.is_empty() {
                let bytes = read.parts.iter().map(|part| u64::from(part.bytes)).sum();
                self.find(&read.file, read.offset, bytes);
            }
            // Nobody waits for a stretch who can go on with what is there, or on its way.
            if !self.lacking.is_empty() && self.inner.in_flight() > 0 {
                let outcome = self.inner.wait(usize::from(done.len() < until), done);
                if outcome.is_err() || done.len() >= until {
                    self.waiting.push_front(read);
                    return outcome;
                }
            }
            let brought = self.bring(read.file.file());
            self.inner.submit(read);
            if brought {
                self.inner.wait(usize::from(done.len() < until), done)?;
                if done.len() >= until {
                    return Ok(());
                }
            }
        }
        self.inner.wait(until.saturating_sub(done.len()), done)
    }

    fn cancel(&mut self) {
        self.lacking.clear();
        transfer::cancel_waiting(&mut self.waiting, &mut self.ready);
        self.inner.cancel();
    }

    fn stats(&self) -> ReaderStats {
        let stats = self.inner.stats();
        ReaderStats { syscalls: stats.syscalls + self.syscalls, ..stats }
    }

    fn keep_in_cache(&mut self, keep: Keep, _again: bool) {
        self.fills = keep == Keep::Around && !self.refused;
        self.seen.clear();
        self.regions.clear();
        self.last = None;
    }

    fn prepare(&mut self, file: &ReadFile, offset: u64, bytes: u64) {
        // What lacks for the first of those that wait stays for it.
        let lacking = std::mem::take(&mut self.lacking);
        self.find(file, offset, bytes);
        self.bring(file.file());
        self.lacking = lacking;
    }

    fn take_notice(&mut self) -> Option<Notice> {
        self.notice.take().or_else(|| self.inner.take_notice())
    }
}

#[cfg(test)]
#[path = "tests_fill.rs"]
mod tests;
