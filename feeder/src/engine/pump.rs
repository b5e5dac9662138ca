//! One reader thread: takes units, submits their reads, drains all completions, publishes, wakes the trainer once.
//!
//! Threads share the feed and nothing else. A thread ends when the loader closes; it never holds a slot then that the
//! kernel may still write to, as it first takes back every read.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slab::{FreeWaiter, Level, Slab};

use super::Dataset;
use super::assemble::{Assembler, JUNK_BYTES, Job};
use super::bad::BadSample;
use super::blocks::BlockSpan;
use super::budget::keep;
use super::dataset::Sample;
use super::feed::{Failure, Feed, Incident, Take};
use super::layout::{SlotLayout, UnitSize};
use super::reads::parse_token;
use super::runner::no_slab;
use super::settings::{OnBadRecord, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{self, BlockReader, Done, Keep, MAX_DEPTH, Notice, Read, ReaderStats, Region};

/// How far a good sample may stand behind the damaged one that it stands in for, in samples of the topic. Damage is found by
/// checksummed pieces, each of which may hold thousands of small rows.
const SUBSTITUTE_REACH: u64 = 1 << 16;
/// Reads of a unit, mostly no more: a round of all units on their way then is one call.
const UNIT_READS: usize = 4;
/// How long a thread without work sleeps before it looks again, if nothing wakes it.
const IDLE_MS: u64 = 200;
/// Running counts of one loader, over all its threads.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) syscalls: AtomicU64,
    pub(super) units: AtomicU64,
    pub(super) checked_units: AtomicU64,
    pub(super) checked_bytes: AtomicU64,
}

/// The same of one thread, since it last added them.
#[derive(Default)]
struct Tally {
    reads: u64,
    read_bytes: u64,
    copied_bytes: u64,
    syscalls: u64,
    units: u64,
    checked_units: u64,
    checked_bytes: u64,
}

impl Counts {
    /// Once per drained batch of completions: threads that count by the read would pull the counts to and fro.
    fn add(&self, tally: Tally) {
        for (count, more) in [
            (&self.reads, tally.reads),
            (&self.read_bytes, tally.read_bytes),
            (&self.copied_bytes, tally.copied_bytes),
            (&self.syscalls, tally.syscalls),
            (&self.units, tally.units),
            (&self.checked_units, tally.checked_units),
            (&self.checked_bytes, tally.checked_bytes),
        ] {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

/// What the reader threads of one loader share.
pub(super) struct Shared {
    pub(super) dataset: Arc<Dataset>,
    pub(super) layout: Arc<SlotLayout>,
    pub(super) feed: Feed,
    pub(super) waiter: FreeWaiter,
    /// What a thread without slots sleeps for.
    pub(super) level: Level,
    /// Held by the thread that waits: one at a time may.
    pub(super) turn: Mutex<()>,
    pub(super) slab: Region,
    /// The same memory, to make more of it present.
    pub(super) memory: Slab,
    pub(super) settings: Settings,
    pub(super) unit: UnitSize,
    /// What an epoch reads, over all ranks and over those of this machine, and the memory that there was.
    pub(super) data_bytes: u64,
    pub(super) here_bytes: u64,
    pub(super) available_bytes: u64,
    pub(super) counts: Counts,
    /// The ways of reading that were told of.
    pub(super) told: Mutex<Vec<String>>,
    pub(super) notices: Mutex<Vec<String>>,
    /// Whether there are any.
    pub(super) noticed: AtomicBool,
}

impl Shared {
    /// Notes something that the user should read once.
    pub(super) fn notice(&self, text: &str) {
        self.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(text.to_string());
        self.noticed.store(true, Ordering::Release);
    }

    /// The same about a way of reading, which any thread may have told of before.
    fn notice_once(&self, way: &str, line: &str) {
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !told.iter().any(|known| known == way) {
            told.push(way.to_string());
            self.notice(line);
        }
    }
}

/// Reads that one thread has in flight at most for `depth` units.
pub(super) fn reads_in_flight(depth: usize) -> usize {
    (depth * UNIT_READS).min(MAX_DEPTH)
}

fn memory(bytes: usize) -> Result<Region> {
    Region::alloc(bytes).map_err(|error| {
        Error::io(format!("cannot get memory for reading: bytes={bytes}"), error)
            .with_hint("lower depth, reader_threads or chunk, or give this process more memory")
    })
}

/// The body of a reader thread. An error or a panic ends the whole loader and is reported by its `next`.
pub(super) fn run(shared: &Shared) {
    let body = AssertUnwindSafe(|| Pump::new(shared).and_then(|mut pump| pump.run()));
    let result = catch_unwind(body).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Io, "a reader thread panicked, which is a fault of forebay: the panic was printed"))
    });
    if let Err(error) = result {
        shared.feed.fail_all(Failure::of(&error));
    }
}

pub(super) struct Pump<'a> {
    shared: &'a Shared,
    assembler: Assembler,
    reader: Box<dyn BlockReader>,
    jobs: Vec<Job>,
    /// Jobs not in use.
    idle: Vec<usize>,
    reads: Vec<Read>,
    done: Vec<Done>,
    /// Jobs whose units are to be given back.
    finished: Vec<usize>,
    stand_in: StandIn,
    /// What this thread has counted since it last told the others.
    tally: Tally,
    /// The reader's counts as told so far.
    told: ReaderStats,
    /// The feed's orders as this thread last acted on them.
    orders: u64,
    /// The epoch of the last unit.
    epoch: Option<u64>,
}

impl<'a> Pump<'a> {
    fn new(shared: &'a Shared) -> Result<Self> {
        Self::over(shared, |regions| {
            let mut log = |line: &str| shared.notice_once(line, line);
            let Settings { reader, direct, depth, .. } = shared.settings;
            Ok(reader::open_direct(reader, direct, reads_in_flight(depth), regions, &mut log)?)
        })
    }

    /// With the reader that `open` makes for the regions that it gets.
    pub(super) fn over(
        shared: &'a Shared,
        open: impl FnOnce(Vec<Region>) -> Result<Box<dyn BlockReader>>,
    ) -> Result<Self> {
        // As many units as keep so many reads in flight, and one more to finish meanwhile.
        let depth = shared.settings.depth;
        let count = (depth.div_ceil(shared.unit.chunks as usize) + 1).min(depth);
        let scratch = memory(Assembler::scratch_bytes(&shared.layout, shared.unit) * count)?;
        let junk = memory(JUNK_BYTES)?;
        let regions = vec![shared.slab.clone(), scratch.clone(), junk];
        let reader = open(regions)?;
        let (dataset, layout) = (shared.dataset.clone(), shared.layout.clone());
        let (slab, checksum) = (shared.slab.clone(), shared.settings.checksum);
        let assembler = Assembler::new(dataset, layout, slab, scratch, shared.unit, checksum);
        let jobs = (0..count).map(|_| Job::default()).collect();
        let idle = (0..count).rev().collect();
        Ok(Self {
            shared,
            assembler,
            reader,
            jobs,
            idle,
            reads: vec![],
            done: vec![],
            finished: vec![],
            stand_in: StandIn::default(),
            tally: Tally::default(),
            told: ReaderStats::default(),
            orders: 0,
            epoch: None,
        })
    }

    fn run(&mut self) -> Result<()> {
        loop {
            let take = self.fill()?;
            if self.reader.in_flight() > 0 {
                self.drain()?;
                continue;
            }
            match take {
                Take::Stop => return Ok(()),
                Take::Unit => {}
                Take::NoRoom | Take::Restarting => {
                    let _turn = self.shared.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let orders = self.orders;
                    let idle = Duration::from_millis(IDLE_MS);
                    self.shared.waiter.wait(idle, self.shared.level, || self.shared.feed.orders() != orders);
                }
            }
        }
    }

    /// One round: new units as far as there is room, then what has completed. False when there was nothing to do.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn turn(&mut self) -> Result<bool> {
        self.fill()?;
        let busy = self.reader.in_flight() > 0;
        if busy {
            self.drain()?;
        }
        Ok(busy)
    }

    /// Takes units until every job is in use or the feed has none to give. Where it is slots that lack, and nothing else is to
    /// be done, the slab grows first, until it is whole.
    fn fill(&mut self) -> Result<Take> {
        let shared = self.shared;
        while let Some(&number) = self.idle.last() {
            self.orders = shared.feed.orders();
            let take = shared.feed.take(&mut self.jobs[number].taken)?;
            if take == Take::NoRoom && self.reader.in_flight() == 0 && shared.memory.grow().map_err(no_slab)? {
                continue;
            }
            if take != Take::Unit {
                return Ok(take);
            }
            self.idle.pop();
            self.begin(self.jobs[number].taken.epoch)?;
            let job = &mut self.jobs[number];
            let built = self.assembler.build(job, number, &mut self.reads);
            self.tally.units += 1;
            self.tally.checked_units += u64::from(job.checked_bytes > 0);
            self.tally.checked_bytes += job.checked_bytes;
            if built.is_err() || job.reads_left == 0 {
                match built {
                    Err(error) => {
                        self.reads.clear();
                        Assembler::give_up(job, &error, &shared.feed);
                    }
                    // Nothing of it is on disk any more.
                    Ok(()) => finish(shared, &mut self.assembler, job, &mut self.stand_in),
                }
                if shared.feed.done(std::iter::once(&job.taken)) {
                    shared.waiter.wake();
                }
                self.idle.push(number);
                continue;
            }
            self.reads.drain(..).for_each(|read| self.reader.submit(read));
        }
        Ok(Take::Unit)
    }

    /// The units to come are of `epoch`: returns once what this thread still reads of the one before has landed, where it is to
    /// fill the page cache.
    fn begin(&mut self, epoch: u64) -> Result<()> {
        if self.epoch.replace(epoch) == Some(epoch) {
            return Ok(());
        }
        let Shared { data_bytes, here_bytes, available_bytes, .. } = *self.shared;
        let keep = keep(data_bytes, here_bytes, self.shared.dataset.stored_bytes(), available_bytes);
        // Filling the cache blocks this thread, and with it the reads that it still has of the epoch before.
        while keep == Keep::Around && self.reader.in_flight() > 0 {
            self.drain()?;
        }
        self.reader.keep_in_cache(keep, epoch > 0);
        self.assembler.begin(epoch);
        Ok(())
    }

    /// Takes back everything that has completed, at least one read.
    fn drain(&mut self) -> Result<()> {
        let outcome = self.reader.wait(1, &mut self.done);
        let stats = self.reader.stats();
        self.tally.reads += stats.reads - self.told.reads;
        self.tally.read_bytes += stats.bytes - self.told.bytes;
        self.tally.syscalls += stats.syscalls - self.told.syscalls;
        self.tally.copied_bytes += stats.copied_bytes - self.told.copied_bytes;
        self.told = stats;
        while let Some(Notice { way, line }) = self.reader.take_notice() {
            self.shared.notice_once(way, &line);
        }
        self.shared.counts.add(std::mem::take(&mut self.tally));
        for Done { read, result } in self.done.drain(..) {
            let (number, read_number) = parse_token(read.token);
            let job = &mut self.jobs[number];
            self.assembler.returned(job, read_number, result);
            self.assembler.reuse(read.parts);
            if job.reads_left == 0 {
                let checked = job.checks.iter().map(|check| &check.block);
                for BlockSpan { file, block, .. } in checked.chain(job.apart.iter().map(|apart| &apart.block)) {
                    self.reader.prepare(file, block.header, block.body - block.header);
                }
                finish(self.shared, &mut self.assembler, job, &mut self.stand_in);
                self.tally.copied_bytes += job.copied_bytes();
                self.finished.push(number);
            }
        }
        if !self.finished.is_empty() {
            let jobs = &self.jobs;
            if self.shared.feed.done(self.finished.iter().map(|&number| &jobs[number].taken)) {
                self.shared.waiter.wake();
            }
            self.idle.append(&mut self.finished);
        }
        outcome.map_err(Error::from)
    }
}

/// Checks and moves the rows of a unit whose reads are all back.
fn finish(shared: &Shared, assembler: &mut Assembler, job: &mut Job, stand_in: &mut StandIn) {
    let mut bad = Vec::new();
    assembler.finish(job, &mut bad);
    bad.sort_by_key(|sample| sample.index);
    bad.dedup_by_key(|sample| sample.index);
    for sample in bad {
        if let Err(error) = heal(shared, assembler, job, &sample, stand_in) {
            shared.feed.fail(job.taken.seq_of(&sample.span), &Failure::of(&error));
        }
    }
    Assembler::fail_steps(job, &shared.feed);
}

/// Does with a bad sample what the policy says.
fn heal(shared: &Shared, assembler: &Assembler, job: &Job, sample: &BadSample, stand_in: &mut StandIn) -> Result<()> {
    let masked = match shared.settings.on_bad_record {
        OnBadRecord::Raise => return Err(Error::corrupt(sample.error.report())),
        OnBadRecord::Mask => {
            assembler.replace(job, sample, None);
            true
        }
        OnBadRecord::Substitute => {
            if !stand_in.of.contains(&sample.index) {
                *stand_in = substitute(shared, sample.index)?;
            }
            assembler.replace(job, sample, Some(&stand_in.columns));
            false
        }
    };
    let incident = Incident { row: sample.row(), index: sample.index, reason: sample.error.report(), masked };
    shared.feed.note(job.taken.seq_of(&sample.span), incident);
    Ok(())
}

/// The good sample found last, and the bad ones, from one on up to it, that it stands in for: they are often many together.
#[derive(Default)]
struct StandIn {
    of: Range<u64>,
    columns: Vec<Vec<u8>>,
}

/// The first good sample after `index` in the topic's order, within [`SUBSTITUTE_REACH`] and around the end of the line: the same
/// one whatever the ranks and batches are.
fn substitute(shared: &Shared, index: u64) -> Result<StandIn> {
    let total = shared.dataset.line().total();
    let reach = SUBSTITUTE_REACH.min(total - 1);
    let mut last = Error::corrupt(format!("no good sample to put in a bad one's place: index={index} reach={reach}"));
    let mut step = 1;
    while step <= reach {
        match shared.dataset.read_sample((index + step) % total, &shared.layout)? {
            Sample::Good(columns) => return Ok(StandIn { of: index..index + step, columns }),
            Sample::Bad { error, rows } => {
                last = error;
                step += rows.max(1);
            }
        }
    }
    Err(last)
}
