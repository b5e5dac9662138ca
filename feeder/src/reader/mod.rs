//! Reads ranges of files into scattered places of memory: one vectored read per chunk, many of them in flight.
//!
//! What goes in comes out: a [`Read`] moves into the reader by [`BlockReader::submit`] and always moves back by
//! [`BlockReader::wait`], whole, failed or cancelled, exactly once and with its `Vec`, so a caller that reuses reads
//! allocates nothing. Order of completion is free. From `submit` until its [`Done`] the parts of a read belong to the
//! reader: nobody else touches those bytes, and their contents are undefined if the read does not succeed.
//!
//! Two implementations give the same results: io_uring (the default) and `preadv`, for kernels and containers that
//! forbid the former. [`open`] chooses. The third, in `testing`, follows a script of faults. One conformance suite
//! runs over all three. A file that ends too early is an error, never a signal: no mapping of a file is touched.
//!
//! [`open_direct`] puts two more over the first two: one reads cold data past the page cache, the other fills the cache with
//! data that are to stay there.
//!
//! The failure of one read ([`ReadError`]) and the failure of the reader itself ([`RingError`]) are different things.
//! After the latter nothing more can be had from the reader than to drop it.

mod bounces;
mod cachestat;
mod cold;
mod copy;
mod direct;
mod error;
mod file;
mod fill;
mod gather;
mod populate;
mod preadv;
mod region;
mod scatter;
mod table;
mod transfer;
mod uring;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

pub use copy::fence;
pub use error::{ReadError, ReaderError, RingError};
pub use file::ReadFile;
pub use gather::Gather;
pub use region::Region;
pub use scatter::Scatter;

use bounces::Bounces;
use direct::{DirectReader, Setup};
use fill::{Cache, FillingReader};
use preadv::PreadvReader;
use uring::{Ring, UringReader};

use crate::error::Error;

/// Most parts of one read: the kernel takes no more buffers in one call (`IOV_MAX`).
pub const MAX_PARTS: usize = 1024;
/// Most reads that one reader keeps in the kernel at a time.
pub const MAX_DEPTH: usize = 256;
/// Reads in flight that keep a page cache or a disk busy; more buys nothing.
pub const DEFAULT_DEPTH: usize = 8;

/// A destination: `bytes` bytes at `at` in region number `region` of those given to [`open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index into the reader's regions.
    pub region: u32,
    /// First byte inside the region.
    pub at: usize,
    /// How many bytes.
    pub bytes: u32,
}

/// One vectored read: consecutive bytes of `file` from `offset` fill the parts one after the other.
#[derive(Debug)]
pub struct Read {
    /// What to read from.
    pub file: Arc<ReadFile>,
    /// Where the first part's bytes begin in the file.
    pub offset: u64,
    /// Where the bytes go, at most [`MAX_PARTS`]; the vector travels back for reuse.
    pub parts: Vec<Part>,
    /// The caller's own number; comes back unchanged.
    pub token: u64,
}

/// A read that has come back. `Ok` means that every byte of every part is there.
#[derive(Debug)]
pub struct Done {
    /// The read as it was submitted.
    pub read: Read,
    /// How it ended.
    pub result: Result<(), ReadError>,
}

/// Running totals of one reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Reads that came back whole.
    pub reads: u64,
    /// Bytes that landed, also those of reads that failed later.
    pub bytes: u64,
    /// System calls made for reading (entering the ring, registering a file, `preadv`) and around it (asking what is in the
    /// page cache, filling it).
    pub syscalls: u64,
    /// Times that the kernel gave fewer bytes than asked for and the rest was read again from there.
    pub short_reads: u64,
    /// Bytes that were read past the page cache and copied to their parts.
    pub copied_bytes: u64,
}

/// Reads blocks of files into regions; see the module for the contract.
pub trait BlockReader: Send {
    /// `"uring"`, `"preadv"` or `"memory"`, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Most reads that are worked on at the same time; further ones wait inside in the order of their submission.
    fn depth(&self) -> usize;

    /// Reads submitted and not yet returned.
    fn in_flight(&self) -> usize;

    /// Takes a read. Makes no system call and never fails: whatever is wrong with it comes back in its [`Done`].
    fn submit(&mut self, read: Read);

    /// Hands out every read that has ended, after waiting until `at_least` of them have (or all in flight, if those
    /// are fewer). Reads begin here, so `wait(0)` starts what was submitted and fetches what is there without waiting
    /// for devices any longer than a read of its own takes (where a read is one that fills the cache, it starts no more
    /// than that one).
    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError>;

    /// Asks everything in flight to end soon. Each read still comes back by [`wait`](Self::wait), as cancelled or, if
    /// it was quicker, as it ended. Later reads are not touched.
    fn cancel(&mut self);

    /// Totals so far.
    fn stats(&self) -> ReaderStats;

    /// What is to become of data, from now on, that are not in the page cache: `again` if they have been read before. For
    /// readers that have the choice.
    fn keep_in_cache(&mut self, _keep: Keep, _again: bool) {}

    /// Does to the page cache what a read of these bytes would do first, for a caller that goes on to read them by itself.
    fn prepare(&mut self, _file: &ReadFile, _offset: u64, _bytes: u64) {}

    /// What the log should say of a way of reading that was taken or given up since the last call; the oldest first.
    fn take_notice(&mut self) -> Option<Notice> {
        None
    }
}

/// A line for the log about how files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The way of reading: lines of the same one, about other files or by other readers, need not be told again.
    pub way: &'static str,
    /// What to tell.
    pub line: String,
}

/// Which implementation to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaderKind {
    /// io_uring where the kernel allows it, else `preadv`.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// `preadv`.
    Preadv,
}

/// What becomes of data that a read does not find in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nobody needs them again: they may be read past it.
    #[default]
    Nothing,
    /// They are read through it, so that later reads find them there.
    Read,
    /// The same, and so are those around them, in pieces that later reads copy fastest.
    Around,
}

/// Whether files with [final](ReadFile::into_final) contents are read past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectReads {
    /// Where less than half of what is to be read is cached and it is not very short, unless it is read again and is to
    /// [stay there](Keep): a first time is often the only one.
    #[default]
    Auto,
    /// Always, if the file system has such reads.
    On,
    /// Never.
    Off,
}

/// As [`open`], for reads that go past the page cache where `direct` says so and the system lets them; everything else
/// goes through it. Where there is no memory for the buffers that this needs, the line in `log` says so.
pub fn open_direct(
    kind: ReaderKind,
    direct: DirectReads,
    depth: usize,
    regions: Vec<Region>,
    log: &mut dyn FnMut(&str),
) -> Result<Box<dyn BlockReader>, ReaderError> {
    if direct == DirectReads::Off || !(1..=MAX_DEPTH).contains(&depth) {
        return open_filling(kind, depth, regions, log);
    }
    let bounces = Bounces::new(depth, Setup::default().alloc);
    open_with(kind, direct, depth, regions, bounces, log)
}

/// Bytes of buffers that [`open_direct`] takes at most for `depth` reads in flight.
pub(crate) fn bounce_bytes(direct: DirectReads, depth: usize) -> usize {
    if direct == DirectReads::Off { 0 } else { Bounces::bytes(depth) }
}

/// As [`open_direct`] with these buffers, or without them.
fn open_with(
    kind: ReaderKind,
    direct: DirectReads,
    depth: usize,
    regions: Vec<Region>,
    bounces: io::Result<Bounces>,
    log: &mut dyn FnMut(&str),
) -> Result<Box<dyn BlockReader>, ReaderError> {
    let bounces = match bounces {
        Ok(bounces) => bounces,
        Err(error) => {
            let mut log = |line: &str| log(&format!("{line}, direct=off reason=no memory for its buffers: {error}"));
            return open_filling(kind, depth, regions, &mut log);
        }
    };
    let all = regions.iter().cloned().chain([bounces.region().clone()]).collect();
    let inner = open_filling(kind, depth, all, log)?;
    Ok(Box::new(DirectReader::new(inner, direct, bounces, regions, Setup::default())))
}

/// As [`open`], for reads of data that are to [stay in the page cache](Keep).
fn open_filling(
    kind: ReaderKind,
    depth: usize,
    regions: Vec<Region>,
    log: &mut dyn FnMut(&str),
) -> Result<Box<dyn BlockReader>, ReaderError> {
    Ok(Box::new(FillingReader::new(open(kind, depth, regions, log)?, Cache::default())))
}

/// Makes a reader whose parts lie in `regions`; writes one line to `log`: which implementation, and why.
///
/// An io_uring belongs to the thread that made it: call this on the thread that will read.
pub fn open(
    kind: ReaderKind,
    depth: usize,
    regions: Vec<Region>,
    log: &mut dyn FnMut(&str),
) -> Result<Box<dyn BlockReader>, ReaderError> {
    if !(1..=MAX_DEPTH).contains(&depth) {
        return Err(ReaderError::Depth { depth });
    }
    let reason = match kind {
        ReaderKind::Preadv => "asked for".to_owned(),
        ReaderKind::Auto | ReaderKind::Uring => match Ring::new(depth) {
            Ok(ring) => {
                log(&format!("reader=uring depth={depth} {ring}"));
                return Ok(Box::new(UringReader::new(ring, depth, regions)));
            }
            Err(refusal) if kind == ReaderKind::Uring => return Err(refusal),
            Err(refusal) => Error::from(refusal).report(),
        },
    };
    log(&format!("reader=preadv reason={reason}"));
    Ok(Box::new(PreadvReader::new(depth, regions)))
}
