//! Reads past the page cache, for data that is not in it: one aligned read into a bounce buffer, then a copy to the parts.
//!
//! A wrapper over another reader. A read of a file with [final](super::ReadFile::into_final) contents is widened to borders
//! of [`ALIGN_BYTES`], cut into equal pieces if it is very long, read with `O_DIRECT` into [buffers](super::bounces) on huge
//! pages, and copied out with stores that bypass the caches. That costs a tenth of the processor time of reading cold data
//! through the page cache, and leaves the page cache as it is. Waiting reads that follow one another in a file are joined
//! into one request as long as a buffer, which counts as one towards the depth: a disk gives more by few long ones. Each is
//! still answered on its own. Pieces that land together are copied one by one, new reads first: the disk rests meanwhile else.
//!
//! Going past the cache is only ever a faster way: whatever goes wrong with a direct read, its end at a file's end
//! included, the reads whose bytes it did not bring are made again, one by one, by the wrapped reader in the ordinary way,
//! whose result counts. So results are those of the wrapped reader, and a file system without direct reads costs a line in
//! the log.
//!
//! What is [cold](super::cold) is read so.

use std::collections::VecDeque;
use std::sync::Arc;

use super::bounces::{Alloc, Bounces, LOAN_BYTES};
use super::cachestat::cached_bytes;
use super::cold::{Ask, Cold};
use super::{
    BlockReader, DirectReads, Done, Keep, Notice, Part, Read, ReadError, ReadFile, ReaderStats, Region, RingError,
};
use super::{fence, transfer};

/// Offsets and lengths of direct reads are multiples of this; enough for all usual devices.
const ALIGN_BYTES: u64 = 4096;
/// Reads are joined over gaps up to this size.
const GAP_BYTES: u64 = 16 << 10;
/// Copies from this size on bypass the caches.
const STREAMING_BYTES: usize = 256;
/// Marks the wrapped reader's reads that fill bounce buffers.
const BOUNCE_TOKEN: u64 = 1 << 63;

/// What tests set by hand.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) ask: Ask,
    pub(super) alloc: Alloc,
}

impl Default for Setup {
    fn default() -> Self {
        Self { ask: cached_bytes, alloc: Region::alloc_advised }
    }
}

/// A range of a file on its way. Its place is used again.
#[derive(Default)]
struct Work {
    /// The caller's reads of it in order, while it is read by pieces, or by one piece if there are several; none: the
    /// wrapped reader has the read.
    reads: Vec<Read>,
    /// The caller's token, while the wrapped reader has the read.
    token: u64,
    file: Option<Arc<ReadFile>>,
    /// File offsets: where the next piece begins, where the last one ends.
    next: u64,
    end: u64,
    piece_bytes: u64,
    pieces_out: usize,
    /// Reads that end at or before this file offset have not failed.
    good: u64,
    cancelled: bool,
}

/// The piece that is read into some grains of the bounce buffers; kept under the number of the first one.
#[derive(Default)]
struct Bounce {
    work: usize,
    /// The piece in the file, not yet widened.
    from: u64,
    end: u64,
    /// What was lent.
    bytes: usize,
    parts: Vec<Part>,
}

pub(super) struct DirectReader {
    /// Dropped first: it waits until nothing lands in the bounce buffers any more.
    inner: Box<dyn BlockReader>,
    regions: Vec<Region>,
    memory: Bounces,
    cold: Cold,
    /// What was asked for, and whether it turned out that not everything can be read past the cache.
    wanted: Keep,
    gave_up: bool,
    bounces: Vec<Bounce>,
    works: Vec<Work>,
    idle: Vec<usize>,
    /// Reads of works.
    started: usize,
    queue: VecDeque<Read>,
    /// The work whose pieces are not all in flight yet.
    begun: Option<usize>,
    ready: Vec<Done>,
    landed: VecDeque<Done>,
    fetched: Vec<Done>,
    stats: ReaderStats,
    /// Lines for the log, not yet taken.
    notices: VecDeque<Notice>,
    /// The one that says that direct reads are made, until the first has succeeded.
    greeting: Option<Notice>,
}

impl DirectReader {
    /// `inner` has the regions of the caller, `regions`, and then that of `bounces`.
    pub(super) fn new(
        inner: Box<dyn BlockReader>,
        mode: DirectReads,
        memory: Bounces,
        regions: Vec<Region>,
        setup: Setup,
    ) -> Self {
        let huge = memory.small().map_or("asked".into(), |why| format!("no, which is slower: {why}"));
        let line = format!(
            "direct=on cold data is read past the page cache: buffer_bytes={} huge_pages={huge}",
            memory.region().len()
        );
        Self {
            inner,
            regions,
            bounces: (0..memory.grains()).map(|_| Bounce::default()).collect(),
            memory,
            cold: Cold::new((mode == DirectReads::Auto).then_some(setup.ask)),
            wanted: Keep::Nothing,
            gave_up: false,
            works: Vec::new(),
            idle: Vec::new(),
            started: 0,
            queue: VecDeque::new(),
            begun: None,
            ready: Vec::new(),
            landed: VecDeque::new(),
            fetched: Vec::new(),
            stats: ReaderStats::default(),
            notices: VecDeque::new(),
            greeting: Some(Notice { way: "direct", line }),
        }
    }

    /// Hands reads over in order, as long as there are buffers for pieces.
    fn start(&mut self) {
        loop {
            while let Some(number) = self.begun {
                if self.works[number].next == self.works[number].end {
                    self.begun = None;
                } else {
                    let work = &self.works[number];
                    let start = work.next / ALIGN_BYTES * ALIGN_BYTES;
                    let end = work.end.min(start + work.piece_bytes);
                    let bytes = (end - start).next_multiple_of(ALIGN_BYTES) as usize;
                    let Some(bounce) = self.memory.lend(bytes) else { return };
                    self.submit_piece(number, bounce, start, end, bytes);
                }
            }
            let Some(read) = self.queue.pop_front() else { return };
            let number = self.place();
            let mut reads = std::mem::take(&mut self.works[number].reads);
            let (next, end) = self.join(read, &mut reads);
            self.started += reads.len();
            // What is not inside our regions is left to the wrapped reader to refuse.
            let file = self.direct_file(&reads[0].file, next, end - next);
            match file.filter(|_| reads.iter().all(|read| transfer::check(read, &self.regions).is_ok())) {
                None => {
                    reads.drain(..).for_each(|read| self.submit_cached(read));
                    self.works[number].reads = reads;
                    self.idle.push(number);
                }
                Some(file) => {
                    let span = end - next / ALIGN_BYTES * ALIGN_BYTES;
                    let piece_bytes = span.div_ceil(span.div_ceil(LOAN_BYTES as u64)).next_multiple_of(ALIGN_BYTES);
                    let file = Some(file);
                    self.works[number] =
                        Work { reads, file, next, end, piece_bytes, good: u64::MAX, ..Work::default() };
                    self.begun = Some(number);
                }
            }
        }
    }

    /// A free place for a work.
    fn place(&mut self) -> usize {
        self.idle.pop().unwrap_or_else(|| {
            self.works.push(Work::default());
            self.works.len() - 1
        })
    }

    /// Puts `read` into `reads`, and the waiting ones that follow it in its file as far as a buffer has room: where they
    /// begin and end.
    fn join(&mut self, read: Read, reads: &mut Vec<Read>) -> (u64, u64) {
        let (start, mut end) = (read.offset, end_of(&read));
        let room_end = (start / ALIGN_BYTES * ALIGN_BYTES).saturating_add(LOAN_BYTES as u64);
        let file = read.file.id();
        reads.push(read);
        while let Some(next) = self.queue.front()
            && next.file.id() == file
            && (end..=end.saturating_add(GAP_BYTES)).contains(&next.offset)
            && end_of(next) <= room_end
        {
            end = end_of(next);
            reads.extend(self.queue.pop_front());
        }
        (start, end)
    }

    /// The file to read past the page cache from, if that is how `bytes` bytes at `offset` are to be read.
    fn direct_file(&mut self, file: &Arc<ReadFile>, offset: u64, bytes: u64) -> Option<Arc<ReadFile>> {
        if bytes == 0 || !file.is_final() || !self.is_cold(file, offset, bytes) {
            return None;
        }
        match file.direct() {
            Ok(direct) if offset + bytes > direct.bytes => None,
            Ok(direct) => Some(direct.file.clone()),
            Err(reason) => {
                self.notices.push_back(refusal(&reason, file));
                // Not said again before the file is asked about again, nor when all goes well later.
                self.cold.refuse(file);
                self.give_up();
                None
            }
        }
    }

    fn is_cold(&mut self, file: &ReadFile, offset: u64, bytes: u64) -> bool {
        self.cold.is_cold(file, offset, bytes).unwrap_or_else(|error| {
            let line = format!("direct=off reason=cannot ask what is in the page cache: {error}");
            self.notices.push_back(Notice { way: "unknown", line });
            self.give_up();
            false
        })
    }

    /// What cannot be read past the cache goes through it, and is to be found there again.
    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.gave_up, true) {
            self.inner.keep_in_cache(self.wanted, false);
        }
    }

    fn submit_cached(&mut self, mut read: Read) {
        let number = self.place();
        self.works[number].token = std::mem::replace(&mut read.token, number as u64);
        self.inner.submit(read);
    }

    /// Reads the file from `start` to `end` into the grains from `bounce` on, in which `bytes` were lent.
    fn submit_piece(&mut self, number: usize, bounce: usize, start: u64, end: u64, bytes: usize) {
        let work = &mut self.works[number];
        let Some(file) = work.file.clone() else { return };
        let place = &mut self.bounces[bounce];
        (place.work, place.from, place.end, place.bytes) = (number, work.next, end, bytes);
        let mut parts = std::mem::take(&mut place.parts);
        parts.clear();
        parts.push(Part { region: self.regions.len() as u32, at: Bounces::at(bounce), bytes: bytes as u32 });
        work.next = end;
        work.pieces_out += 1;
        self.inner.submit(Read { file, offset: start, parts, token: BOUNCE_TOKEN | bounce as u64 });
    }

    /// Takes what the wrapped reader brought, up to a piece, which is copied.
    fn take_landed(&mut self) {
        while let Some(Done { read, result }) = self.landed.pop_front() {
            if read.token & BOUNCE_TOKEN != 0 {
                return self.take_piece(read, result);
            }
            let number = read.token as usize;
            self.idle.push(number);
            self.finish(Read { token: self.works[number].token, ..read }, result);
        }
    }

    fn take_piece(&mut self, read: Read, result: Result<(), ReadError>) {
        let bounce = (read.token & !BOUNCE_TOKEN) as usize;
        let Bounce { work: number, end, bytes, .. } = self.bounces[bounce];
        let got = match &result {
            Ok(()) => u64::MAX,
            Err(ReadError::UnexpectedEnd { got, .. }) => *got,
            // Where it failed: behind the end of a file that does not end on a border, say.
            Err(ReadError::Io { offset, .. }) => offset - read.offset,
            Err(_) => 0,
        };
        if got < end - read.offset {
            let work = &mut self.works[number];
            work.good = work.good.min(read.offset + got);
            work.cancelled |= matches!(result, Err(ReadError::Cancelled));
            work.next = work.end;
            self.refuse(number, &result);
        } else {
            self.notices.extend(self.greeting.take());
        }
        self.scatter(number, bounce, read.offset);
        fence();
        self.bounces[bounce].parts = read.parts;
        self.memory.take_back(bounce, bytes);
        self.works[number].pieces_out -= 1;
        self.end_pieces(number);
    }

    /// Once all pieces are back: hands the reads out, or has those that failed made in the ordinary way.
    fn end_pieces(&mut self, number: usize) {
        let work = &mut self.works[number];
        if work.pieces_out > 0 || work.next < work.end {
            return;
        }
        let (good, cancelled) = (work.good, work.cancelled);
        let mut reads = std::mem::take(&mut work.reads);
        if reads.is_empty() {
            // It has failed and ended before its last piece was on its way.
            return;
        }
        work.file = None;
        for read in reads.drain(..) {
            match (end_of(&read) <= good, cancelled) {
                (true, _) => self.finish(read, Ok(())),
                (false, true) => self.finish(read, Err(ReadError::Cancelled)),
                (false, false) => self.submit_cached(read),
            }
        }
        self.works[number].reads = reads;
        self.idle.push(number);
    }

    /// If the file system has no direct reads after all, none is tried again on this file.
    fn refuse(&mut self, number: usize, result: &Result<(), ReadError>) {
        if let (Some(read), Err(ReadError::Io { source, .. })) = (self.works[number].reads.first(), result)
            && matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
        {
            read.file.refuse_direct();
            self.notices.push_back(refusal(source, &read.file));
        }
    }

    /// Copies a piece to the parts that it belongs to, except of reads that have failed. The buffer holds the file from
    /// `start` on.
    fn scatter(&mut self, number: usize, bounce: usize, start: u64) {
        let (Bounce { from, end, .. }, work) = (&self.bounces[bounce], &self.works[number]);
        for read in work.reads.iter().filter(|read| end_of(read) <= work.good) {
            let mut at = read.offset;
            for part in &read.parts {
                let (first, last) = (at.max(*from), (at + u64::from(part.bytes)).min(*end));
                if first < last {
                    let source = Bounces::at(bounce) + (first - start) as usize;
                    let (into, bytes) = (part.at + (first - at) as usize, (last - first) as usize);
                    let region = &self.regions[part.region as usize];
                    if bytes >= STREAMING_BYTES {
                        region.copy_from_streaming(into, self.memory.region(), source, bytes);
                    } else {
                        region.copy_from(into, self.memory.region(), source, bytes);
                    }
                    self.stats.copied_bytes += last - first;
                }
                at += u64::from(part.bytes);
            }
        }
    }

    fn finish(&mut self, read: Read, result: Result<(), ReadError>) {
        self.started -= 1;
        self.stats.reads += u64::from(result.is_ok());
        self.stats.bytes += match &result {
            Ok(()) => wanted(&read),
            Err(ReadError::UnexpectedEnd { got, .. }) => *got,
            Err(_) => 0,
        };
        self.ready.push(Done { read, result });
    }
}

fn refusal(reason: &dyn std::fmt::Display, file: &ReadFile) -> Notice {
    let path = file.path().display();
    let line = format!(
        "direct=off reason=the file system reads only through the page cache, which takes more of the processor: {reason} path={path}"
    );
    Notice { way: "refused", line }
}

fn wanted(read: &Read) -> u64 {
    read.parts.iter().map(|part| u64::from(part.bytes)).sum()
}

/// Where a read ends in its file.
fn end_of(read: &Read) -> u64 {
    read.offset.saturating_add(wanted(read))
}

impl BlockReader for DirectReader {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.started + self.ready.len()
    }

    fn submit(&mut self, read: Read) {
        // All else that it may refuse the wrapped reader would refuse, but the bounce buffers are not the caller's.
        if read.parts.iter().any(|part| part.region as usize >= self.regions.len())
            && let Err(error) = transfer::check(&read, &self.regions)
        {
            return self.ready.push(Done { read, result: Err(error) });
        }
        self.queue.push_back(read);
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        let until = done.len() + at_least.min(self.in_flight());
        loop {
            let before = self.inner.in_flight();
            self.start();
            let inside = self.inner.in_flight();
            if inside > 0 && (inside > before || self.landed.is_empty()) {
                // One request may bring all that is missing.
                let missing = self.landed.is_empty() && done.len() + self.ready.len() < until;
                let outcome = self.inner.wait(usize::from(missing), &mut self.fetched);
                self.landed.extend(self.fetched.drain(..));
                if outcome.is_err() {
                    while !self.landed.is_empty() {
                        self.take_landed();
                    }
                    done.append(&mut self.ready);
                    return outcome;
                }
            }
            self.take_landed();
            done.append(&mut self.ready);
            if done.len() >= until {
                return Ok(());
            }
        }
    }

    fn cancel(&mut self) {
        transfer::cancel_waiting(&mut self.queue, &mut self.ready);
        self.works.iter_mut().for_each(|work| work.cancelled = true);
        if let Some(number) = self.begun.take() {
            let work = &mut self.works[number];
            work.good = work.good.min(if work.next < work.end { work.next } else { u64::MAX });
            work.next = work.end;
            self.end_pieces(number);
        }
        self.inner.cancel();
    }

    fn stats(&self) -> ReaderStats {
        let ReaderStats { syscalls, short_reads, .. } = self.inner.stats();
        ReaderStats { syscalls: self.cold.asked + syscalls, short_reads, ..self.stats }
    }

    fn keep_in_cache(&mut self, keep: Keep, again: bool) {
        self.wanted = keep;
        self.cold.keep = if again { keep } else { Keep::Nothing };
        if self.cold.depends() {
            // What goes through the cache for being short does not bring in what is read past it.
            self.inner.keep_in_cache(if again || self.gave_up { keep } else { Keep::Nothing }, again);
        }
    }

    fn prepare(&mut self, file: &ReadFile, offset: u64, bytes: u64) {
        self.inner.prepare(file, offset, bytes);
    }

    fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front().or_else(|| self.inner.take_notice())
    }
}

#[cfg(test)]
#[path = "tests_direct.rs"]
mod tests;
