//! The reader over io_uring: one ring, used by one thread, with a fixed number of slots for reads in the kernel.
//!
//! A slot owns everything the kernel may look at or write to until the completion has arrived: the read with its file,
//! the list of buffers, and (through the reader's regions) the memory they point to. That holds also when the reader is
//! dropped: it cancels what is in the kernel and waits for it before it frees anything.
//!
//! `wait` is the only place where the kernel is entered in the ordinary course: one call hands over all new reads and
//! waits for completions. Reads from the page cache end inside that call.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};

use super::table::{FileTable, Lookup};
use super::transfer::{self, Transfer};
use super::{BlockReader, Done, Read, ReadError, ReaderError, ReaderStats, Region, RingError};

/// Most files registered with one ring.
const REGISTERED_FILES: u32 = 64;
/// `user_data` of requests whose completion means nothing: no slot has this index.
const NO_SLOT: u64 = u32::MAX as u64;
/// Times in a row that the kernel may answer "busy" before it counts as refusing.
const MAX_BUSY: u32 = 10_000;

/// A ring that has shown that it works, and its table of files (empty where files cannot be registered).
pub(super) struct Ring {
    ring: IoUring,
    files: FileTable,
    /// Why the table is empty.
    unregistered: Option<io::Error>,
}

impl Ring {
    /// Makes a ring on this thread for `depth` reads at a time, if the kernel lets us and has what we need.
    pub(super) fn new(depth: usize) -> Result<Self, ReaderError> {
        Self::with_files(depth, REGISTERED_FILES)
    }

    pub(super) fn with_files(depth: usize, files: u32) -> Result<Self, ReaderError> {
        // Every slot has at most one read and one cancellation waiting to be handed over.
        let entries = (2 * depth).next_power_of_two() as u32;
        let mut ring = set_up(entries).map_err(|error| refusal("io_uring_setup", error))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|error| refusal("asking for its operations", error))?;
        if !probe.is_supported(opcode::Readv::CODE) || !probe.is_supported(opcode::AsyncCancel::CODE) {
            return Err(refusal("looking for READV", io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        round_trip(&mut ring).map_err(|error| refusal("io_uring_enter", error))?;
        // Without a table files are read by their descriptors, a little slower.
        let unregistered = ring.submitter().register_files_sparse(files).err();
        let files = FileTable::new(if unregistered.is_none() { files as usize } else { 0 });
        Ok(Self { ring, files, unregistered })
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "registered_files={}", self.files.len())?;
        self.unregistered.as_ref().map_or(Ok(()), |error| write!(f, " because={error}"))
    }
}

/// Tries the cheapest way of completing first: kernels of different age know different flags.
fn set_up(entries: u32) -> io::Result<IoUring> {
    let deferred = IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_submit_all().build(entries);
    deferred
        .or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => IoUring::builder().setup_coop_taskrun().setup_submit_all().build(entries),
            _ => Err(error),
        })
        .or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => IoUring::builder().build(entries),
            _ => Err(error),
        })
}

/// A request that does nothing, there and back: some sandboxes let a ring be made and then forbid its use.
fn round_trip(ring: &mut IoUring) -> io::Result<()> {
    let nothing = opcode::Nop::new().build().user_data(NO_SLOT);
    // SAFETY: the request refers to no memory.
    unsafe { ring.submission().push(&nothing) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
            Ok(_) if ring.completion().next().is_some() => return Ok(()),
            Ok(_) => {}
        }
    }
}

fn refusal(step: &'static str, source: io::Error) -> ReaderError {
    let why = match source.raw_os_error() {
        Some(libc::ENOSYS) => ", the kernel or sandbox has none",
        Some(libc::EPERM | libc::EACCES) => ", forbidden by seccomp or kernel.io_uring_disabled",
        Some(libc::ENOMEM) => ", not enough lockable memory (ulimit -l)",
        _ => "",
    };
    ReaderError::Unavailable { step, why, source }
}

/// Where one read lives while it is in the kernel.
#[derive(Default)]
struct Slot {
    read: Option<Read>,
    transfer: Transfer,
    /// Index in the table of registered files; none: by descriptor.
    file: Option<u32>,
    /// Counts the requests made from this slot, so that a late cancellation cannot hit the next read.
    generation: u32,
    in_kernel: bool,
    cancelled: bool,
}

pub(super) struct UringReader {
    ring: IoUring,
    files: FileTable,
    regions: Vec<Region>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose read must be handed to the kernel: new ones and those that go on after a short read.
    to_push: Vec<u32>,
    queue: VecDeque<Read>,
    ready: Vec<Done>,
    in_kernel: usize,
    busy: u32,
    stats: ReaderStats,
    pid: u32,
}

// SAFETY: the raw pointers are the slots' buffers, into regions whose memory may be used from any thread. The ring itself
// refuses other threads than its maker's by an error where it was set up so.
unsafe impl Send for UringReader {}

impl UringReader {
    pub(super) fn new(ring: Ring, depth: usize, regions: Vec<Region>) -> Self {
        Self {
            ring: ring.ring,
            files: ring.files,
            regions,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth as u32).rev().collect(),
            to_push: Vec::with_capacity(depth),
            queue: VecDeque::with_capacity(depth),
            ready: Vec::with_capacity(depth),
            in_kernel: 0,
            busy: 0,
            stats: ReaderStats::default(),
            pid: std::process::id(),
        }
    }

    /// Moves waiting reads into free slots and their requests into the submission queue.
    fn start(&mut self) {
        while let Some(&index) = self.free.last() {
            let Some(read) = self.queue.pop_front() else { break };
            let slot = &mut self.slots[index as usize];
            let begun = slot.transfer.begin(&read, &self.regions);
            if slot.transfer.rest().is_empty() {
                self.stats.reads += u64::from(begun.is_ok());
                self.ready.push(Done { read, result: begun });
                continue;
            }
            self.free.pop();
            slot.cancelled = false;
            slot.read = Some(read);
            self.choose_file(index);
            self.to_push.push(index);
        }
        while let Some(&index) = self.to_push.last() {
            if !self.push(index) {
                break;
            }
            self.to_push.pop();
        }
    }

    /// Finds the slot's file in the table, or registers it, or leaves it to its descriptor.
    fn choose_file(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(read) = &slot.read else { return };
        slot.file = match self.files.lookup(&read.file) {
            Lookup::Plain => None,
            Lookup::Hit(entry) => Some(entry),
            Lookup::Put(entry) => {
                let fd = read.file.as_fd().as_raw_fd();
                let registered = self.ring.submitter().register_files_update(entry, &[fd]);
                self.stats.syscalls += 1;
                let registered = matches!(registered, Ok(1));
                self.files.set(entry, registered.then_some(&read.file));
                while let Some(dead) = self.files.dead() {
                    // Whether or not this succeeds, nothing refers to the entry until it is set again.
                    let _ = self.ring.submitter().register_files_update(dead, &[-1]);
                    self.stats.syscalls += 1;
                    self.files.set(dead, None);
                }
                registered.then_some(entry)
            }
        };
        if let Some(entry) = slot.file {
            self.files.pin(entry);
        }
    }

    /// Puts the request for the rest of a slot's read into the submission queue; false: no room.
    fn push(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        let Some(read) = &slot.read else { return true };
        let (buffers, count) = (slot.transfer.rest().as_ptr(), slot.transfer.rest().len() as u32);
        let offset = slot.transfer.offset(read);
        let request = match slot.file {
            Some(entry) => opcode::Readv::new(types::Fixed(entry), buffers, count).offset(offset).build(),
            None => {
                let fd = types::Fd(read.file.as_fd().as_raw_fd());
                opcode::Readv::new(fd, buffers, count).offset(offset).build()
            }
        };
        slot.generation = slot.generation.wrapping_add(1);
        let request = request.user_data(tag(index, slot.generation));
        // SAFETY: the list of buffers belongs to the slot and is not changed before the completion has arrived
        // (`in_kernel`); the buffers lie inside regions (checked by `begin`) that this reader holds, and no reference to
        // their bytes exists, by the regions' rules; the file is open while the slot holds its read, and its entry in
        // the table is pinned. `drop` keeps all of it until the kernel is done.
        let pushed = unsafe { self.ring.submission().push(&request) }.is_ok();
        if pushed {
            slot.in_kernel = true;
            self.in_kernel += 1;
        }
        pushed
    }

    /// Hands over what is in the submission queue and waits until `at_least` completions are there. May come back early
    /// (signals, a busy kernel): callers look at what they have and call again.
    fn enter(&mut self, at_least: usize) -> Result<(), RingError> {
        let submitted = self.ring.submission().len() as u32;
        self.stats.syscalls += 1;
        // SAFETY: the arguments are counts of entries in our own queues, and there is no extra argument.
        let entered = unsafe {
            let flags = EnterFlags::GETEVENTS.bits();
            self.ring.submitter().enter::<libc::sigset_t>(submitted, at_least as u32, flags, None)
        };
        let Err(source) = entered else {
            self.busy = 0;
            return Ok(());
        };
        match source.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            // No memory for requests, or completions to be fetched first: both pass as reads end.
            Some(libc::EAGAIN | libc::EBUSY) if self.busy < MAX_BUSY => {
                self.busy += 1;
                std::thread::yield_now();
                Ok(())
            }
            Some(libc::EEXIST) => Err(RingError::WrongThread),
            _ => Err(RingError::Refused { call: "io_uring_enter", source }),
        }
    }

    /// Takes all completions that are there.
    fn reap(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else { break };
            let (user_data, result) = (completion.user_data(), completion.result());
            if user_data & NO_SLOT != NO_SLOT {
                self.complete((user_data & NO_SLOT) as u32, result);
            }
        }
    }

    fn complete(&mut self, index: u32, result: i32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.in_kernel, "a completion for a slot that has nothing in the kernel");
        slot.in_kernel = false;
        self.in_kernel -= 1;
        let Some(read) = &slot.read else { return };
        let before = slot.transfer.got();
        let answer = usize::try_from(result).map_err(|_| -result);
        let end = slot.transfer.answer(read, answer);
        let landed = slot.transfer.got() - before;
        self.stats.bytes += landed;
        match end {
            Some(Err(ReadError::Io { source, .. })) if source.raw_os_error() == Some(libc::ECANCELED) => {
                self.finish(index, Err(ReadError::Cancelled));
            }
            Some(result) => self.finish(index, result),
            None if slot.cancelled => self.finish(index, Err(ReadError::Cancelled)),
            None => {
                self.stats.short_reads += u64::from(landed > 0);
                self.to_push.push(index);
            }
        }
    }

    /// Empties a slot that has nothing in the kernel.
    fn finish(&mut self, index: u32, result: Result<(), ReadError>) {
        let slot = &mut self.slots[index as usize];
        if let Some(entry) = slot.file.take() {
            self.files.unpin(entry);
        }
        self.free.push(index);
        if let Some(read) = slot.read.take() {
            self.stats.reads += u64::from(result.is_ok());
            self.ready.push(Done { read, result });
        }
    }

    /// Asks the kernel to cancel what it has; what it does not have ends here.
    fn cancel_all(&mut self) {
        transfer::cancel_waiting(&mut self.queue, &mut self.ready);
        while let Some(index) = self.to_push.pop() {
            self.finish(index, Err(ReadError::Cancelled));
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if !slot.in_kernel || slot.cancelled {
                continue;
            }
            slot.cancelled = true;
            let target = tag(index as u32, slot.generation);
            let request: squeue::Entry = opcode::AsyncCancel::new(target).build().user_data(NO_SLOT);
            // A full queue only means that this read is left to end by itself.
            // SAFETY: the request refers to no memory.
            let _ = unsafe { self.ring.submission().push(&request) };
        }
    }

    /// Waits until the kernel has nothing of ours any more.
    fn drain(&mut self) -> Result<(), RingError> {
        while self.in_kernel > 0 {
            self.enter(1)?;
            self.reap();
        }
        Ok(())
    }
}

impl BlockReader for UringReader {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.ready.len() + self.slots.len() - self.free.len()
    }

    fn submit(&mut self, read: Read) {
        self.queue.push_back(read);
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        let until = done.len() + at_least.min(self.in_flight());
        loop {
            self.start();
            if self.in_kernel > 0 {
                let missing = until.saturating_sub(done.len() + self.ready.len());
                self.enter(missing.min(self.in_kernel))?;
                self.reap();
            }
            done.append(&mut self.ready);
            if done.len() >= until {
                return Ok(());
            }
        }
    }

    fn cancel(&mut self) {
        self.cancel_all();
        if self.in_kernel > 0 {
            // If the kernel refuses, the next `wait` meets the same refusal and reports it.
            let _ = self.enter(0);
            self.reap();
        }
    }

    fn stats(&self) -> ReaderStats {
        self.stats
    }
}

impl Drop for UringReader {
    fn drop(&mut self) {
        // In a forked child the ring is still the parent's: to wait here would take the parent's completions.
        let ours = std::process::id() == self.pid;
        if ours {
            self.cancel_all();
        }
        if self.in_kernel > 0 && (!ours || self.drain().is_err()) {
            // The kernel may still write into these buffers at any time (the ring was dropped on a thread that it does
            // not belong to, or is broken). Freed memory would be somebody else's by then, so it is never freed.
            mem::forget(mem::take(&mut self.slots));
            mem::forget(mem::take(&mut self.regions));
        }
    }
}

fn tag(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

#[cfg(test)]
#[path = "tests_uring.rs"]
pub(super) mod tests;
