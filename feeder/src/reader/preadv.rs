//! The reader for where io_uring is forbidden: plain `preadv`, one call per read, inside `wait`.
//!
//! As fast as the ring from the page cache, where a read is a copy that somebody must make; from a cold disk it has one
//! read outstanding instead of many. `wait` makes up to `depth` reads before it returns, so that callers gather as much
//! per wake-up as they do with the ring.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::transfer::{self, Transfer};
use super::{BlockReader, Done, Read, ReadError, ReaderStats, Region, RingError};

pub(super) struct PreadvReader {
    regions: Vec<Region>,
    depth: usize,
    queue: VecDeque<Read>,
    /// Ended without a call: cancelled.
    ready: Vec<Done>,
    transfer: Transfer,
    stats: ReaderStats,
}

// SAFETY: the raw pointers are the transfer's buffers, which are set, used and forgotten inside one `wait`, and point
// into regions, whose memory may be used from any thread.
unsafe impl Send for PreadvReader {}

impl PreadvReader {
    pub(super) fn new(depth: usize, regions: Vec<Region>) -> Self {
        let (queue, ready) = (VecDeque::with_capacity(depth), Vec::with_capacity(depth));
        Self { regions, depth, queue, ready, transfer: Transfer::default(), stats: ReaderStats::default() }
    }

    fn execute(&mut self, read: &Read) -> Result<(), ReadError> {
        self.transfer.begin(read, &self.regions)?;
        if self.transfer.rest().is_empty() {
            return Ok(());
        }
        loop {
            let before = self.transfer.got();
            let answer = preadv(read, &self.transfer);
            self.stats.syscalls += 1;
            let end = self.transfer.answer(read, answer);
            let landed = self.transfer.got() - before;
            self.stats.bytes += landed;
            match end {
                Some(result) => return result,
                None => self.stats.short_reads += u64::from(landed > 0),
            }
        }
    }
}

impl BlockReader for PreadvReader {
    fn name(&self) -> &'static str {
        "preadv"
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.ready.len()
    }

    fn submit(&mut self, read: Read) {
        self.queue.push_back(read);
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        let missing = at_least.saturating_sub(self.ready.len());
        done.append(&mut self.ready);
        for _ in 0..missing.max(self.depth) {
            let Some(read) = self.queue.pop_front() else { break };
            let result = self.execute(&read);
            self.stats.reads += u64::from(result.is_ok());
            done.push(Done { read, result });
        }
        Ok(())
    }

    fn cancel(&mut self) {
        transfer::cancel_waiting(&mut self.queue, &mut self.ready);
    }

    fn stats(&self) -> ReaderStats {
        self.stats
    }
}

fn preadv(read: &Read, transfer: &Transfer) -> Result<usize, i32> {
    let buffers = transfer.rest();
    let fd = read.file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while `read` lives; the buffers are at most `MAX_PARTS`, lie inside regions (checked
    // by `begin`) that this reader keeps alive, and no reference to their bytes exists, by the region's rules. The offset
    // fits: checked by `begin`.
    let got = unsafe {
        libc::preadv(fd, buffers.as_ptr(), buffers.len() as libc::c_int, transfer.offset(read) as libc::off_t)
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
