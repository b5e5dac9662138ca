//! For tests: a reader that follows a script of faults, files in memory, and the suite that every reader passes.
//!
//! [`ScriptedReader`] completes reads in rounds: in each round every read it works on either waits, lands some bytes or
//! ends. So completion order, short reads and failures are exactly those of the script, whatever the machine does.

pub mod conformance;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::transfer;
use super::{BlockReader, Done, Part, Read, ReadError, ReadFile, ReaderStats, Region, RingError};

pub use super::cachestat::cached_bytes;
pub use conformance::conformance;

const PAGE_BYTES: usize = 4096;

/// A file of `bytes` in memory, and a handle to write it or cut it.
pub fn file(bytes: &[u8]) -> (Arc<ReadFile>, File) {
    let memory = memfd_create("test", MFdFlags::MFD_CLOEXEC).expect("no memory for a test's file");
    let mut memory = File::from(memory);
    memory.write_all(bytes).expect("cannot write a test's file");
    let shared = memory.try_clone().expect("no descriptor for a test's file");
    (Arc::new(ReadFile::from_file(shared, "memory/test")), memory)
}

/// What shall go wrong. Reads are numbered from 0 in the order of `submit`.
#[derive(Clone, Debug, Default)]
pub struct Script {
    faults: Vec<(u64, Fault)>,
    short_all: Option<usize>,
    blank: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Fail { code: i32, after: u64 },
    Short(usize),
    Delay(u32),
    Hold,
}

impl Script {
    /// Read number `nth` fails with `code` (for example `libc::EIO`).
    #[must_use]
    pub fn fail(self, nth: u64, code: i32) -> Self {
        self.fail_after(nth, code, 0)
    }

    /// As [`fail`](Self::fail), once at least `bytes` bytes have landed.
    #[must_use]
    pub fn fail_after(self, nth: u64, code: i32, bytes: u64) -> Self {
        self.with(nth, Fault::Fail { code, after: bytes })
    }

    /// Read number `nth` lands at most `bytes` (at least 1) in a round.
    #[must_use]
    pub fn short(self, nth: u64, bytes: usize) -> Self {
        self.with(nth, Fault::Short(bytes.max(1)))
    }

    /// Reads end well and land nothing: for counting the work around them.
    #[must_use]
    pub fn blank(mut self) -> Self {
        self.blank = true;
        self
    }

    /// Every read lands at most `bytes` (at least 1) in a round.
    #[must_use]
    pub fn short_all(mut self, bytes: usize) -> Self {
        self.short_all = Some(bytes.max(1));
        self
    }

    /// Read number `nth` does nothing for `rounds` rounds, so that later ones overtake it.
    #[must_use]
    pub fn delay(self, nth: u64, rounds: u32) -> Self {
        self.with(nth, Fault::Delay(rounds))
    }

    /// Read number `nth` does not end before it is cancelled.
    #[must_use]
    pub fn hold(self, nth: u64) -> Self {
        self.with(nth, Fault::Hold)
    }

    fn with(mut self, nth: u64, fault: Fault) -> Self {
        self.faults.push((nth, fault));
        self
    }
}

/// The double; see the module. A `wait` that only held reads could end gives [`RingError::Stuck`].
pub struct ScriptedReader {
    regions: Vec<Region>,
    depth: usize,
    script: Script,
    submitted: u64,
    queue: VecDeque<Work>,
    /// At most `depth`.
    working: Vec<Work>,
    ready: Vec<Done>,
    buffer: Vec<u8>,
    stats: ReaderStats,
}

struct Work {
    read: Read,
    got: u64,
    delay: u32,
    short: usize,
    hold: bool,
    fail: Option<(i32, u64)>,
}

/// How a read stands after a round.
enum Turn {
    Idle,
    Moved,
    Ended(Result<(), ReadError>),
}

impl ScriptedReader {
    /// A reader with faults; without any it is an ordinary reader.
    pub fn new(depth: usize, regions: Vec<Region>, script: Script) -> Self {
        Self {
            regions,
            depth: depth.max(1),
            script,
            submitted: 0,
            queue: VecDeque::new(),
            working: Vec::new(),
            ready: Vec::new(),
            buffer: Vec::new(),
            stats: ReaderStats::default(),
        }
    }

    fn work(&self, read: Read, nth: u64) -> Work {
        let short = self.script.short_all.unwrap_or(usize::MAX);
        let mut work = Work { read, got: 0, delay: 0, short, hold: false, fail: None };
        for (_, fault) in self.script.faults.iter().filter(|(of, _)| *of == nth) {
            match *fault {
                Fault::Fail { code, after } => work.fail = Some((code, after)),
                Fault::Short(bytes) => work.short = bytes,
                Fault::Delay(rounds) => work.delay = rounds,
                Fault::Hold => work.hold = true,
            }
        }
        work
    }

    /// Gives every read being worked on one turn; false: none of them can move.
    fn round(&mut self) -> bool {
        while self.working.len() < self.depth {
            let Some(work) = self.queue.pop_front() else { break };
            self.working.push(work);
        }
        let mut moved = false;
        for mut work in std::mem::take(&mut self.working) {
            let turn = self.turn(&mut work);
            moved |= !matches!(turn, Turn::Idle);
            match turn {
                Turn::Ended(result) => {
                    self.stats.reads += u64::from(result.is_ok());
                    self.ready.push(Done { read: work.read, result });
                }
                Turn::Idle | Turn::Moved => self.working.push(work),
            }
        }
        moved
    }

    fn turn(&mut self, work: &mut Work) -> Turn {
        if work.hold {
            return Turn::Idle;
        }
        if work.delay > 0 {
            work.delay -= 1;
            return Turn::Moved;
        }
        if let Some((code, after)) = work.fail
            && work.got >= after
        {
            let source = std::io::Error::from_raw_os_error(code);
            let (path, offset) = (work.read.file.path().to_owned(), work.read.offset + work.got);
            return Turn::Ended(Err(ReadError::Io { path, offset, source }));
        }
        self.land(work)
    }

    /// Reads the next piece and puts it where the parts say.
    fn land(&mut self, work: &mut Work) -> Turn {
        if self.script.blank {
            return Turn::Ended(Ok(()));
        }
        let wanted: u64 = work.read.parts.iter().map(|part| u64::from(part.bytes)).sum();
        let piece = usize::try_from(wanted - work.got).unwrap_or(usize::MAX).min(work.short);
        // On a border of pages, as reads past the page cache need it.
        self.buffer.resize(piece + PAGE_BYTES, 0);
        let border = self.buffer.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
        let buffer = &mut self.buffer[border..border + piece];
        self.stats.syscalls += u64::from(piece > 0);
        let got = match work.read.file.file().read_at(buffer, work.read.offset + work.got) {
            Ok(0) if piece > 0 => {
                let (path, offset) = (work.read.file.path().to_owned(), work.read.offset);
                return Turn::Ended(Err(ReadError::UnexpectedEnd { path, offset, wanted, got: work.got }));
            }
            Ok(got) => got,
            Err(source) => {
                let (path, offset) = (work.read.file.path().to_owned(), work.read.offset + work.got);
                return Turn::Ended(Err(ReadError::Io { path, offset, source }));
            }
        };
        self.scatter(&work.read.parts, work.got, border..border + got);
        work.got += got as u64;
        self.stats.bytes += got as u64;
        if work.got == wanted {
            return Turn::Ended(Ok(()));
        }
        self.stats.short_reads += 1;
        Turn::Moved
    }

    /// Writes these bytes of the buffer to the parts, of which `skip` bytes are full.
    fn scatter(&self, parts: &[Part], mut skip: u64, bytes: Range<usize>) {
        let mut rest = &self.buffer[bytes];
        for part in parts {
            let full = skip.min(u64::from(part.bytes)) as usize;
            skip -= full as u64;
            let (now, later) = rest.split_at(rest.len().min(part.bytes as usize - full));
            self.regions[part.region as usize].write(part.at + full, now);
            rest = later;
        }
    }
}

impl BlockReader for ScriptedReader {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.working.len() + self.ready.len()
    }

    fn submit(&mut self, read: Read) {
        let nth = self.submitted;
        self.submitted += 1;
        match transfer::check(&read, &self.regions) {
            Ok(()) => self.queue.push_back(self.work(read, nth)),
            Err(error) => self.ready.push(Done { read, result: Err(error) }),
        }
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        let at_least = at_least.min(self.in_flight());
        loop {
            let moved = self.round();
            if self.ready.len() >= at_least {
                done.append(&mut self.ready);
                return Ok(());
            }
            if !moved {
                done.append(&mut self.ready);
                return Err(RingError::Stuck { in_flight: self.in_flight() });
            }
        }
    }

    fn cancel(&mut self) {
        let cancelled = self.working.drain(..).chain(self.queue.drain(..));
        self.ready.extend(cancelled.map(|work| Done { read: work.read, result: Err(ReadError::Cancelled) }));
    }

    fn stats(&self) -> ReaderStats {
        self.stats
    }
}
