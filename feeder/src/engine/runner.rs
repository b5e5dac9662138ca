//! The part of a loader that runs ahead: the slab, the reader threads, and the step that comes next.
//!
//! A loader starts it with its first iteration, seeks it when training goes on elsewhere, and stops it when it ends or its
//! plan changes. The slot of the coming step stays pending until the loader says that it was handed out: a step that
//! failed, or for which there was no room, is not skipped by asking again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cursorstore::{Cursor, PlanKey};
use slab::{Filled, Level, Shape, Slab, SlabError, Taken as SlabTaken, Taker};

use super::Dataset;
use super::assemble::Assembler;
use super::batch::{MASK, shape_of};
use super::budget::{Budget, Machine, Want};
use super::feed::{Course, Feed};
use super::layout::{SlotLayout, UnitSize};
use super::pump::{Counts, Shared, run};
use super::settings::{Checksum, Settings};
use super::stats::Stats;
use crate::error::{Error, ErrorKind, MORE_DESCRIPTORS, Result, out_of_descriptors};
use crate::plan::Share;
use crate::reader::Region;

/// Bytes of a slab that are made present before the first read in order.
const GROWN_FIRST_BYTES: usize = 8 << 20;

/// Most slots that a sleeping reader thread waits for: by then a wake-up costs next to nothing.
const WAKE_SLOTS_MAX: u32 = 8;
/// What helps a process that may not start a thread.
const MORE_THREADS: &str =
    "give this process more memory or address space (ulimit -v), or allow more threads (ulimit -u, pids.max)";
/// How long the end of a loader waits for its reader threads. One that a dead disk holds longer is left behind: it owns
/// what it writes to, and ends when the disk answers.
const STOP_MS: u64 = 3000;

/// See the module.
pub(super) struct Runner {
    pub(super) shared: Arc<Shared>,
    pub(super) slab: Slab,
    pub(super) taker: Taker,
    threads: Vec<JoinHandle<()>>,
    /// Closed by the end of the last thread.
    ended: Receiver<()>,
    generation: u64,
    /// The step that comes next, counted from the last seek, and where that is.
    seq: u64,
    pub(super) at: Cursor,
    /// Taken, not yet handed out: a step that failed, or for which there was no room, is not skipped by asking again.
    pending: Option<Filled>,
    /// Slots that the trainer may hold while the plan still has those that it needs.
    pub(super) lease_limit: u32,
    pub(super) slot_bytes: usize,
    /// The shape of each column in a full batch, and the mask's name: most batches share them.
    pub(super) shapes: Vec<Arc<[i64]>>,
    pub(super) mask_name: Arc<str>,
    /// Bytes of overflow batches alive.
    pub(super) held: Arc<AtomicU64>,
}

impl Runner {
    /// Makes the slab and starts the threads, at `cursor`.
    pub(super) fn start(
        dataset: &Arc<Dataset>,
        layout: &SlotLayout,
        key: &PlanKey,
        share: Share,
        settings: &Settings,
        cursor: Cursor,
    ) -> Result<Self> {
        let (mut runner, alive) = Self::prepare(dataset, layout, key, share, settings, cursor)?;
        // Shuffled rows go to nearly all slots before a first batch is whole. In order the first few are enough, and the rest is
        // made present when it is lacked: of large batches it takes long.
        let first_bytes = if key.shuffle { usize::MAX } else { GROWN_FIRST_BYTES };
        while runner.slab.present_bytes() < first_bytes && runner.slab.grow().map_err(no_slab)? {}
        runner.spawn(runner.shared.settings.threads(), &alive)?;
        Ok(runner)
    }

    /// As [`start`](Self::start) without threads; with what they hold while they run.
    pub(super) fn prepare(
        dataset: &Arc<Dataset>,
        layout: &SlotLayout,
        key: &PlanKey,
        share: Share,
        settings: &Settings,
        cursor: Cursor,
    ) -> Result<(Self, Sender<()>)> {
        let in_order_samples = dataset.in_order_rows();
        let ends: Arc<[u64]> = dataset.line().ends().into();
        let (samples, chunks, part) = match key.shuffle {
            true => (key.chunk, layout.chunks_together(key.chunk, key.pool), key.chunk),
            false => (in_order_samples, 1, dataset.block_rows().min(in_order_samples)),
        };
        let part = if settings.checksum == Checksum::Sampled { part } else { 0 };
        let unit = UnitSize { samples, chunks, part };
        let (stretch_steps, chunks_together) = (u64::MAX, unit.chunks);
        let course = Course { key: key.clone(), ends, share, in_order_samples, chunks_together, stretch_steps };
        let want = Want::of(&course.schedule(Cursor { epoch: 0, n: 0 })?, settings);
        let machine = Machine::here();
        let sizes = (layout.slot_bytes, Assembler::scratch_bytes(layout, unit));
        let Budget { slots, threads, depth, direct, notices } = Budget::of(want, settings, sizes, machine)?;
        let (samples, reader_threads) = (dataset.line().total(), Some(threads));
        let data_bytes = (layout.row_bytes as u64).saturating_mul(samples);
        let ranks_here = u64::from(settings.local_world.unwrap_or(share.world).clamp(1, share.world.max(1)));
        let here_bytes = (data_bytes / u64::from(share.world.max(1))).saturating_mul(ranks_here);
        let course = Course { stretch_steps: slots.stretch, ..course };
        let slab =
            Slab::create_growing(Shape { slots: slots.count, slot_bytes: layout.slot_bytes }).map_err(no_slab)?;
        let slot_bytes = slab.shape().slot_bytes;
        let rows = share.rows_max(samples) as usize;
        let shapes = layout.columns.iter().map(|placed| shape_of(rows, &placed.column)).collect();
        let layout = Arc::new(SlotLayout { slot_bytes, ..layout.clone() });
        let (filler, taker) = slab.clone().split();
        let waiter = filler.waiter();
        let feed = Feed::new(filler, slots.count, course, cursor)?;
        let shared = Arc::new(Shared {
            dataset: dataset.clone(),
            layout,
            feed,
            waiter,
            level: level(slots.ahead),
            turn: Mutex::default(),
            slab: Region::of_slab(&slab),
            memory: slab.clone(),
            settings: Settings { reader_threads, depth, direct, ..settings.clone() },
            unit,
            data_bytes,
            here_bytes,
            available_bytes: machine.available_bytes,
            counts: Counts::default(),
            told: Mutex::default(),
            noticed: AtomicBool::new(!notices.is_empty()),
            notices: Mutex::new(notices),
        });
        let (alive, ended) = channel();
        let runner = Self {
            shared,
            slab,
            taker,
            threads: Vec::new(),
            ended,
            generation: 0,
            seq: 0,
            at: cursor,
            pending: None,
            lease_limit: (u64::from(slots.count) - slots.open - 1) as u32,
            slot_bytes,
            shapes,
            mask_name: Arc::from(MASK),
            held: Arc::default(),
        };
        Ok((runner, alive))
    }

    fn spawn(&mut self, threads: usize, alive: &Sender<()>) -> Result<()> {
        for number in 0..threads {
            let (shared, alive) = (self.shared.clone(), alive.clone());
            let thread = std::thread::Builder::new().name(format!("forebay-read-{number}"));
            let body = move || {
                let _alive = alive;
                run(&shared);
            };
            match thread.spawn(body) {
                Ok(handle) => self.threads.push(handle),
                Err(error) if number == 0 => {
                    return Err(Error::io("cannot start a reader thread", error).with_hint(MORE_THREADS));
                }
                Err(error) => self.shared.notice(&format!("fewer reader threads than asked for: {error}")),
            }
        }
        Ok(())
    }

    /// Goes on at `cursor`. What was read ahead is given back as it comes.
    pub(super) fn seek(&mut self, cursor: Cursor) {
        if let Some(filled) = self.pending.take() {
            drop(self.taker.lease(filled.slot));
        }
        self.generation = self.shared.feed.seek(cursor);
        self.seq = 0;
        self.at = cursor;
        self.shared.waiter.wake();
    }

    /// The filled slot of the coming step, `None` if it is not there in time. It stays pending until [`Engine::advance`].
    pub(super) fn next(&mut self, wait: Duration, stall_ns: &mut u64) -> Result<Option<Filled>> {
        let mut deadline = None;
        loop {
            let filled = match self.pending.or_else(|| self.taker.try_take()) {
                Some(filled) => filled,
                None => {
                    let now = Instant::now();
                    let end = *deadline.get_or_insert(now + wait);
                    let taken = self.taker.wait_take(Some(end.saturating_duration_since(now)));
                    *stall_ns += now.elapsed().as_nanos() as u64;
                    match taken {
                        SlabTaken::Filled(filled) => filled,
                        SlabTaken::TimedOut => return Ok(None),
                        SlabTaken::PeerDied | SlabTaken::Closed => {
                            let failure = self.shared.feed.failure(self.seq);
                            return Err(failure
                                .map_or_else(|| Error::new(ErrorKind::Closed, "the loader is closed"), |f| f.error()));
                        }
                    }
                }
            };
            if filled.generation != self.generation {
                drop(self.taker.lease(filled.slot));
                continue;
            }
            if filled.tag != self.seq {
                return Err(Error::corrupt(format!(
                    "slots came out of order: step={} expected={}",
                    filled.tag, self.seq
                )));
            }
            self.pending = Some(filled);
            return Ok(Some(filled));
        }
    }

    /// The pending slot was handed out; `at` is where training stands now.
    pub(super) fn advance(&mut self, at: Cursor) {
        self.pending = None;
        self.seq += 1;
        self.at = at;
    }

    pub(super) fn check_overflow(&self, bytes: u64, bytes_max: u64) -> Result<()> {
        let held = self.held.load(Ordering::Relaxed);
        if held + bytes <= bytes_max {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the program holds more batches than there is memory for: slots_held={} overflow_bytes={held} overflow_bytes_max={bytes_max}",
                self.taker.leased()
            ),
        )
        .with_hint("let go of batches once they are used, or raise overflow_bytes"))
    }

    pub(super) fn stats(&self, totals: Stats) -> Stats {
        let counts = &self.shared.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            overflow_bytes: self.held.load(Ordering::Relaxed),
            leased_slots: u64::from(self.taker.leased()),
            slots: u64::from(self.slab.shape().slots),
            slab_bytes: self.slab.bytes() as u64,
            reads: totals.reads + read(&counts.reads),
            read_bytes: totals.read_bytes + read(&counts.read_bytes),
            copied_bytes: totals.copied_bytes + read(&counts.copied_bytes),
            syscalls: totals.syscalls + read(&counts.syscalls),
            units: totals.units + read(&counts.units),
            checked_units: totals.checked_units + read(&counts.checked_units),
            checked_bytes: totals.checked_bytes + read(&counts.checked_bytes),
            lock_waits: totals.lock_waits + self.shared.feed.lock_waits(),
            ..totals
        }
    }

    pub(super) fn notices(&self) -> Vec<String> {
        let noticed = &self.shared.noticed;
        if !noticed.load(Ordering::Relaxed) || !noticed.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.shared.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Ends the threads. False if the system holds one of them, which was left behind.
    pub(super) fn stop(mut self) -> bool {
        self.shared.feed.stop();
        self.shared.waiter.wake();
        if self.ended.recv_timeout(Duration::from_millis(STOP_MS)) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
        true
    }
}

/// What a reader thread without slots sleeps for: so much of the read-ahead given back at once that few batches pay for a
/// wake-up, or any slot when less than a quarter of it is left to take. What is given back is read by one call and published
/// after it, so more than as much must be left to take: with half given back, a trainer at nine tenths of the reader's rate
/// came to wait.
fn level(ahead: u32) -> Level {
    Level { returned: (ahead / 4).clamp(1, WAKE_SLOTS_MAX), ready: ahead / 4 }
}

/// The error of a slab that cannot be made, or not be made whole.
pub(super) fn no_slab(error: SlabError) -> Error {
    if let SlabError::Os { call, source, .. } = &error {
        let errno = source.raw_os_error();
        if out_of_descriptors(source) {
            return Error::new(ErrorKind::Io, error.to_string()).with_hint(MORE_DESCRIPTORS).with_source(error);
        }
        if matches!(errno, Some(libc::EPERM | libc::EACCES | libc::ENOSYS)) {
            let text = format!("the system does not let this process make memory for batches, {error}");
            let hint = format!("allow {call} in the sandbox that this runs in: the container's seccomp profile, say");
            return Error::new(ErrorKind::Permission, text).with_hint(hint).with_source(error);
        }
        if errno != Some(libc::ENOMEM) {
            return Error::new(ErrorKind::Io, error.to_string()).with_source(error);
        }
    }
    Error::new(ErrorKind::NoSpace, error.to_string())
        .with_hint("lower the batch, chunk, pool or read_ahead_steps, or give this process more memory")
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn what_a_slab_lacks_is_named() {
        let error = |errno: Errno| no_slab(SlabError::Os { call: "memfd_create", bytes: 4096, source: errno.into() });
        for errno in [Errno::EMFILE, Errno::ENFILE] {
            let error = error(errno);
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(
                error.hint().unwrap().contains("open files") && error.report().contains("memfd_create"),
                "{error:?}"
            );
        }
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            let error = error(errno);
            assert_eq!(
                (error.kind(), error.report().contains("memfd_create")),
                (ErrorKind::Permission, true),
                "{error:?}"
            );
        }
        assert_eq!(error(Errno::EIO).kind(), ErrorKind::Io);
        assert_eq!(error(Errno::ENOMEM).kind(), ErrorKind::NoSpace);
        assert!(error(Errno::ENOMEM).hint().unwrap().contains("more memory"));
    }
}
