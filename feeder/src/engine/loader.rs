//! The loader: the cursor and its rules, and the engine that runs ahead of it.
//!
//! - A cursor `(epoch, n)` counts places handed out, never those read ahead.
//! - [`Loader::begin`] is `iter()`: after a state was loaded (or at first) it goes on at the cursor; after an epoch's end
//!   it is the next epoch; after a break the epoch starts again. At a loaded cursor with no whole step left it is the next
//!   epoch, unless `set_epoch` named this one, which then yields nothing.
//! - [`Loader::set_epoch`] of the current epoch keeps the cursor; after that epoch's end it asks for the epoch once more.
//! - [`Loader::load`] then [`Loader::state`] gives the state loaded.
//!
//! The engine (threads, slab) starts at the first `begin` and is sought, not restarted, while the plan stays the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cursorstore::{Cursor, PlanKey, State, TopicName};
use slab::{Filled, Shape, Slab, SlabError, Taken as SlabTaken, Taker};

use super::Dataset;
use super::batch::{Batch, BatchColumn, Ordinary, Owner};
use super::feed::{CODE_FAILED, CODE_INCIDENTS, Course, Feed};
use super::layout::{COLUMN_ALIGN_BYTES, SlotLayout};
use super::pump::{Counts, Shared, run};
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{self, PLAN_VERSION, Share};
use crate::reader::Region;
use crate::schema::Dtype;

/// Columns of fewer bytes a batch are handed out as ordinary memory: a copy of that size costs less than holding a slot.
pub const SMALL_COLUMN_BYTES: usize = 64 << 10;
/// Slots beyond those that the plan keeps open, for batches that the trainer holds.
const LEASE_SLOTS: u64 = 4;
/// Steps read ahead where the order is the topic's own.
const IN_ORDER_STEPS: u64 = 16;
/// Name of the column that marks rows which are samples, not repeats or holes.
pub const MASK: &str = "mask";

/// Answer of [`Loader::poll_next`].
pub enum Step {
    /// The next batch; the cursor has moved past it.
    Batch(Batch),
    /// The epoch's end.
    End,
    /// Not there within the time given.
    Pending,
}

/// Running counts of a loader.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Batches handed out.
    pub batches: u64,
    /// Rows handed out.
    pub samples: u64,
    /// Bytes handed out.
    pub bytes: u64,
    /// Time spent waiting in `next`, in ns.
    pub stall_ns: u64,
    /// Batches copied to ordinary memory because the program held the slots.
    pub overflow_batches: u64,
    /// Bytes of such batches alive now.
    pub overflow_bytes: u64,
    /// Slots leased now.
    pub leased_slots: u64,
    /// Slots of the slab.
    pub slots: u64,
    /// Bytes of the slab.
    pub slab_bytes: u64,
    /// Reads made.
    pub reads: u64,
    /// Bytes read, gaps included.
    pub read_bytes: u64,
    /// System calls of the readers.
    pub syscalls: u64,
    /// Units (chunks) read.
    pub units: u64,
    /// Units compared with their checksums.
    pub checked_units: u64,
    /// Records masked or replaced.
    pub bad_records: u64,
}

impl Stats {
    /// The counts by name.
    pub fn named(&self) -> [(&'static str, u64); 15] {
        let Self {
            batches,
            samples,
            bytes,
            stall_ns,
            overflow_batches,
            overflow_bytes,
            leased_slots,
            slots,
            slab_bytes,
            reads,
            read_bytes,
            syscalls,
            units,
            checked_units,
            bad_records,
        } = *self;
        [
            ("batches", batches),
            ("samples", samples),
            ("bytes", bytes),
            ("stall_ns", stall_ns),
            ("overflow_batches", overflow_batches),
            ("overflow_bytes", overflow_bytes),
            ("leased_slots", leased_slots),
            ("slots", slots),
            ("slab_bytes", slab_bytes),
            ("reads", reads),
            ("read_bytes", read_bytes),
            ("syscalls", syscalls),
            ("units", units),
            ("checked_units", checked_units),
            ("bad_records", bad_records),
        ]
    }
}

/// See the module.
pub struct Loader {
    settings: Settings,
    dataset: Arc<Dataset>,
    layout: Arc<SlotLayout>,
    key: PlanKey,
    cursor: Cursor,
    /// Where the iteration began, for states of earlier batches.
    begun: Cursor,
    phase: Phase,
    engine: Option<Engine>,
    totals: Stats,
    bad_records: BTreeMap<u64, String>,
    overflowed: bool,
    notices: Vec<String>,
    closed: bool,
    pid: u32,
}

/// Where the loader stands between and within iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next `begin` goes on at the cursor; `named`: the epoch was asked for by `set_epoch`.
    Fresh { named: bool },
    /// Within an epoch.
    Running,
    /// The epoch was handed out to its end.
    Finished,
}

/// The part that reads ahead.
struct Engine {
    shared: Arc<Shared>,
    slab: Slab,
    taker: Taker,
    threads: Vec<JoinHandle<()>>,
    generation: u64,
    /// The step that comes next, counted from the last seek, and where that is.
    seq: u64,
    at: Cursor,
    /// Taken, not yet handed out: a step that failed, or for which there was no room, is not skipped by asking again.
    pending: Option<Filled>,
    /// Slots that the trainer may hold while the plan still has those that it needs.
    lease_limit: u32,
    slot_bytes: usize,
    /// Bytes of overflow batches alive.
    held: Arc<AtomicU64>,
}

impl Loader {
    /// A loader over all records now in `topic`.
    pub fn open(root: &Path, topic: &TopicName, settings: Settings) -> Result<Self> {
        Self::new(Arc::new(Dataset::all_of(root, topic)?), settings)
    }

    /// A loader over `dataset`.
    pub fn new(dataset: Arc<Dataset>, settings: Settings) -> Result<Self> {
        settings.check()?;
        let layout = SlotLayout::new(dataset.schema(), settings.columns.as_deref(), settings.rank_batch())?;
        let total = dataset.line().total();
        let default =
            plan::default_key(layout.row_bytes as u64, total, settings.world, settings.shuffle, settings.seed);
        let key = PlanKey {
            lanes: settings.lanes.unwrap_or(default.lanes),
            chunk: settings.chunk.unwrap_or(default.chunk),
            pool: settings.pool.unwrap_or(default.pool),
            ..default
        };
        let cursor = Cursor { epoch: 0, n: 0 };
        let loader = Self {
            settings,
            dataset,
            layout: Arc::new(layout),
            key,
            cursor,
            begun: cursor,
            phase: Phase::Fresh { named: false },
            engine: None,
            totals: Stats::default(),
            bad_records: BTreeMap::new(),
            overflowed: false,
            notices: Vec::new(),
            closed: false,
            pid: std::process::id(),
        };
        loader.check_size()?;
        Ok(loader)
    }

    /// Refuses a batch that the data can never fill, and a `mask` beside a column of that name.
    fn check_size(&self) -> Result<()> {
        let total = self.dataset.line().total();
        if self.steps_from(0) == 0 {
            return Err(Error::invalid(format!(
                "the batch is larger than the data, and drop_last leaves out what does not fill one: global_batch_size={} samples={total}",
                self.settings.global_batch
            ))
            .with_hint(format!("use a batch of at most {total}, or drop_last=False")));
        }
        let taken = self.layout.columns.iter().any(|placed| placed.column.name == MASK);
        if self.settings.masked() && taken {
            return Err(Error::invalid(
                "a column is named 'mask', as is what marks repeated rows: leave it out by columns=, or use drop_last=True or tail='short'",
            ));
        }
        Ok(())
    }

    fn share(&self) -> Share {
        Share {
            rank: self.settings.rank,
            world: self.settings.world,
            batch: self.settings.global_batch,
            tail: self.settings.tail(),
            drop_last: self.settings.drop_last,
        }
    }

    /// Steps from place `n` of an epoch to its end.
    fn steps_from(&self, n: u64) -> u64 {
        let (left, batch) = (self.dataset.line().total() - n, u64::from(self.settings.global_batch));
        if self.settings.drop_last { left / batch } else { left.div_ceil(batch) }
    }

    /// Steps of a whole epoch, the same on every rank.
    pub fn steps(&self) -> u64 {
        self.steps_from(0)
    }

    /// Samples of a whole epoch over all ranks.
    pub fn samples(&self) -> u64 {
        self.dataset.line().total()
    }

    /// The records trained on.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The numbers that fix the order.
    pub fn key(&self) -> &PlanKey {
        &self.key
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How far the trainer has come.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The state at the cursor, or after `consumed` batches of this iteration.
    pub fn state(&self, consumed: Option<u64>) -> Result<State> {
        let cursor = match consumed {
            None => self.cursor,
            Some(batches) => {
                let n = batches.checked_mul(u64::from(self.settings.global_batch));
                let n = n.and_then(|n| n.checked_add(self.begun.n)).map(|n| n.min(self.samples()));
                match n {
                    Some(n) if n <= self.cursor.n && self.begun.epoch == self.cursor.epoch => {
                        Cursor { epoch: self.begun.epoch, n }
                    }
                    _ => {
                        return Err(Error::invalid(format!(
                            "consumed counts batches that this iteration has handed out: consumed={batches} handed_out={}",
                            (self.cursor.n - self.begun.n.min(self.cursor.n))
                                .div_ceil(u64::from(self.settings.global_batch))
                        )));
                    }
                }
            }
        };
        let windows = self.dataset.windows().to_vec();
        Ok(State::new(self.dataset.name().clone(), windows, self.key.clone(), cursor))
    }

    /// Sets the cursor back to after `consumed` batches of this iteration, as if the others had never been taken.
    pub fn give_back(&mut self, consumed: u64) -> Result<()> {
        let cursor = self.state(Some(consumed))?.cursor;
        if cursor != self.cursor {
            self.cursor = cursor;
            self.phase = Phase::Running;
        }
        Ok(())
    }

    /// Takes a state: the next `begin` goes on there. Refused, with nothing changed, if it cannot be honoured.
    pub fn load(&mut self, state: &State) -> Result<()> {
        self.check_alive()?;
        let mismatch = |what: &str, state: &dyn std::fmt::Display, here: &dyn std::fmt::Display| {
            Err(Error::new(
                ErrorKind::StateMismatch,
                format!("the state is of another {what} than this loader: state={state} loader={here}"),
            ))
        };
        if state.topic != *self.dataset.name() {
            return mismatch("topic", &state.topic, self.dataset.name());
        }
        if state.plan.version != PLAN_VERSION {
            return mismatch("version of the order", &state.plan.version, &PLAN_VERSION);
        }
        if state.plan.shuffle != self.settings.shuffle {
            return mismatch("order (shuffle)", &state.plan.shuffle, &self.settings.shuffle);
        }
        if state.plan.shuffle && state.plan.seed != self.settings.seed {
            return mismatch("seed", &state.plan.seed, &self.settings.seed);
        }
        let numbers = [
            ("lanes", state.plan.lanes, self.settings.lanes),
            ("chunk", state.plan.chunk, self.settings.chunk),
            ("pool", state.plan.pool, self.settings.pool),
        ];
        for (name, theirs, ours) in numbers {
            if let Some(ours) = ours.filter(|ours| state.plan.shuffle && *ours != theirs) {
                return mismatch(name, &theirs, &ours);
            }
        }
        let same = state.windows == self.dataset.windows() && state.plan == self.key;
        if !same {
            self.dataset = Arc::new(self.dataset.of_state(state)?);
            self.key = state.plan.clone();
            self.stop();
        }
        self.check_size()?;
        self.cursor = state.cursor;
        self.begun = state.cursor;
        self.phase = Phase::Fresh { named: false };
        Ok(())
    }

    /// Names the epoch that the next `begin` is of.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        self.check_alive()?;
        match self.phase {
            Phase::Fresh { .. } if epoch == self.cursor.epoch => self.phase = Phase::Fresh { named: true },
            Phase::Running if epoch == self.cursor.epoch => {}
            _ => {
                self.cursor = Cursor { epoch, n: 0 };
                self.begun = self.cursor;
                self.phase = Phase::Fresh { named: true };
            }
        }
        Ok(())
    }

    /// Starts an iteration; see the module for where.
    pub fn begin(&mut self) -> Result<()> {
        self.check_alive()?;
        self.cursor = match self.phase {
            Phase::Fresh { named: false } if self.steps_from(self.cursor.n) == 0 => {
                Cursor { epoch: self.cursor.epoch + 1, n: 0 }
            }
            Phase::Fresh { .. } => self.cursor,
            Phase::Running => Cursor { epoch: self.cursor.epoch, n: 0 },
            Phase::Finished => Cursor { epoch: self.cursor.epoch + 1, n: 0 },
        };
        self.begun = self.cursor;
        self.phase = Phase::Running;
        if self.steps_from(self.cursor.n) == 0 {
            return Ok(());
        }
        match &mut self.engine {
            Some(engine) if engine.at == self.cursor => {}
            Some(engine) => engine.seek(self.cursor),
            None => self.engine = Some(self.start()?),
        }
        Ok(())
    }

    /// The next batch of this iteration, waiting at most `wait` for it.
    pub fn poll_next(&mut self, wait: Duration) -> Result<Step> {
        self.check_alive()?;
        if self.phase != Phase::Running {
            return Ok(Step::End);
        }
        let global = u64::from(self.settings.global_batch);
        if self.steps_from(self.cursor.n) == 0 {
            self.phase = Phase::Finished;
            return Ok(Step::End);
        }
        let engine = self.engine.as_mut().ok_or_else(not_iterating)?;
        let Some(filled) = engine.next(wait, &mut self.totals.stall_ns)? else { return Ok(Step::Pending) };
        let batch = self.hand_out(filled)?;
        self.cursor.n = (self.cursor.n + global).min(self.samples());
        let next = match self.steps_from(self.cursor.n) {
            0 => Cursor { epoch: self.cursor.epoch + 1, n: 0 },
            _ => self.cursor,
        };
        self.engine.as_mut().ok_or_else(not_iterating)?.advance(next);
        self.totals.batches += 1;
        self.totals.samples += u64::from(batch.rows);
        Ok(Step::Batch(batch))
    }

    /// Rows of the coming step that are no repeats.
    fn valid_rows(&self, rows: u32) -> u32 {
        let left = self.dataset.line().total() - self.cursor.n;
        self.share().valid_rows(left).min(rows)
    }

    /// Makes a batch of a filled slot: large columns in place, small ones (or all, when the trainer holds too many slots)
    /// copied to ordinary memory.
    fn hand_out(&mut self, filled: Filled) -> Result<Batch> {
        let valid = self.valid_rows(filled.rows);
        let Some(engine) = &mut self.engine else { return Err(not_iterating()) };
        if filled.code == CODE_FAILED {
            let failure = engine.shared.feed.failure(filled.tag);
            return Err(failure.map_or_else(|| Error::corrupt("a step failed for an unknown reason"), |f| f.error()));
        }
        let incidents = match filled.code {
            CODE_INCIDENTS => engine.shared.feed.incidents(filled.tag),
            _ => Vec::new(),
        };
        for incident in &incidents {
            self.bad_records.entry(incident.index).or_insert_with(|| incident.reason.clone());
        }
        check_bad_records(&self.bad_records, self.settings.bad_records_max)?;
        let rows = filled.rows as usize;
        let large = |bytes: usize| bytes >= SMALL_COLUMN_BYTES;
        let sizes = self.layout.columns.iter().map(|placed| placed.row_bytes * rows);
        let large_bytes: usize = sizes.clone().filter(|&bytes| large(bytes)).sum();
        let crowded = large_bytes > 0 && engine.taker.leased() >= engine.lease_limit;
        if crowded {
            engine.check_overflow(large_bytes as u64, self.settings.overflow_bytes)?;
            self.totals.overflow_batches += 1;
            if !std::mem::replace(&mut self.overflowed, true) {
                self.notices.push(format!(
                    "the program holds {} batches, all that the slab has room for: further ones are copied to ordinary memory, up to overflow_bytes={}",
                    engine.lease_limit, self.settings.overflow_bytes
                ));
            }
        }
        let mask_bytes = if self.settings.masked() { rows } else { 0 };
        let copied = sizes.filter(|&bytes| crowded || !large(bytes)).map(aligned).sum::<usize>() + mask_bytes;
        let mut ordinary = Ordinary::new(copied, crowded.then_some(&engine.held));
        let (base, memory) = (filled.slot as usize * engine.slot_bytes, ordinary.address());
        let mut at = 0;
        // Where each column stands: its address, and whether that is in the slot.
        let mut places = Vec::with_capacity(self.layout.columns.len());
        for placed in &self.layout.columns {
            let bytes = placed.row_bytes * rows;
            if large(bytes) && !crowded {
                places.push((engine.slab.slot(filled.slot).0.expose_provenance() + placed.offset, true));
                continue;
            }
            engine.shared.slab.read(base + placed.offset, &mut ordinary.bytes()[at..at + bytes]);
            places.push((memory + at, false));
            at += aligned(bytes);
        }
        let mask = &mut ordinary.bytes()[at..at + mask_bytes];
        mask.iter_mut().take(valid as usize).for_each(|flag| *flag = 1);
        for incident in &incidents {
            if let Some(flag) = mask.get_mut(incident.row as usize).filter(|_| incident.masked) {
                *flag = 0;
            }
        }
        let lease: Owner = Arc::new(engine.taker.lease(filled.slot));
        let ordinary: Owner = Arc::new(ordinary);
        let mut columns: Vec<BatchColumn> = self
            .layout
            .columns
            .iter()
            .zip(places)
            .map(|(placed, (address, in_slot))| BatchColumn {
                name: placed.name.clone(),
                dtype: placed.column.dtype,
                shape: std::iter::once(rows as i64).chain(placed.column.shape.iter().map(|&n| i64::from(n))).collect(),
                address,
                bytes: placed.row_bytes * rows,
                owner: if in_slot { lease.clone() } else { ordinary.clone() },
            })
            .collect();
        if self.settings.masked() {
            let address = memory + at;
            let (name, shape) = (Arc::from(MASK), vec![rows as i64]);
            columns.push(BatchColumn { name, dtype: Dtype::Bool, shape, address, bytes: rows, owner: ordinary });
        }
        self.totals.bytes += columns.iter().map(|column| column.bytes as u64).sum::<u64>();
        Ok(Batch { epoch: self.cursor.epoch, place: self.cursor.n, rows: filled.rows, columns })
    }

    fn start(&self) -> Result<Engine> {
        let settings = &self.settings;
        let shuffle = self.key.shuffle;
        let in_order_samples = self.dataset.block_rows();
        let ends: Arc<[u64]> = self.dataset.line().ends().into();
        let course = Course { key: self.key.clone(), ends, share: self.share(), in_order_samples };
        let open_steps = course.schedule(Cursor { epoch: 0, n: 0 })?.span_steps();
        let ahead = match (settings.read_ahead_steps, shuffle) {
            (Some(steps), _) => u64::from(steps),
            (None, false) => IN_ORDER_STEPS,
            // What one G-th of the lanes opens at once.
            (None, true) => {
                let samples = u64::from(self.key.chunk) * u64::from(self.key.lanes);
                samples.div_ceil(u64::from(settings.global_batch)).min(self.steps())
            }
        };
        let slots = open_steps + ahead.max(1) + LEASE_SLOTS;
        let slot_bytes = self.layout.slot_bytes;
        let needed = slots.saturating_mul(slot_bytes as u64);
        let limit = settings.memory_limit_bytes.unwrap_or_else(|| memory_available_bytes() / 2);
        let slots_fit = u32::try_from(slots).ok().filter(|_| needed <= limit);
        let Some(slots) = slots_fit else {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the slab does not fit the memory limit: needed_bytes={needed} limit_bytes={limit} slots={slots} slot_bytes={slot_bytes} open_steps={open_steps} ahead_steps={ahead}"
                ),
            )
            .with_hint("raise memory_limit_bytes, or lower the batch, chunk, pool or read_ahead_steps"));
        };
        let slab = Slab::create(Shape { slots, slot_bytes }).map_err(no_slab)?;
        let slot_bytes = slab.shape().slot_bytes;
        let layout = Arc::new(SlotLayout { slot_bytes, ..(*self.layout).clone() });
        let (filler, taker) = slab.clone().split();
        let waiter = filler.waiter();
        let feed = Feed::new(filler, slots, layout.row_bytes, course, self.cursor)?;
        let shared = Arc::new(Shared {
            dataset: self.dataset.clone(),
            layout,
            feed,
            waiter,
            turn: Mutex::default(),
            slab: Region::of_slab(&slab),
            settings: settings.clone(),
            unit_samples: if shuffle { self.key.chunk } else { in_order_samples },
            reach: u64::from(self.key.chunk) * u64::from(self.key.pool),
            counts: Counts::default(),
            reported: AtomicBool::new(false),
            notices: Mutex::default(),
        });
        let mut engine = Engine {
            shared,
            slab,
            taker,
            threads: Vec::new(),
            generation: 0,
            seq: 0,
            at: self.cursor,
            pending: None,
            lease_limit: (u64::from(slots) - open_steps - 1) as u32,
            slot_bytes,
            held: Arc::default(),
        };
        engine.spawn(settings.threads())?;
        Ok(engine)
    }

    /// Ends the engine; what the trainer holds stays valid.
    fn stop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        if self.pid != std::process::id() {
            // A forked child has none of the threads, and the slab's flags are its parent's.
            std::mem::forget(engine);
            return;
        }
        self.totals = engine.stats(self.totals);
        self.notices.extend(engine.notices());
        engine.stop();
    }

    /// What a batch that does not come waits for, in words.
    pub fn late(&self) -> &'static str {
        match &self.engine {
            None => "the engine was not started",
            Some(engine) if engine.shared.feed.units_out() > 0 => "files are being read",
            Some(_) => "no slot is free to read into",
        }
    }

    /// Ends the loader: threads are gone and files closed when this returns. Batches already handed out stay valid.
    pub fn close(&mut self) {
        self.stop();
        self.closed = true;
    }

    /// Running counts.
    pub fn stats(&self) -> Stats {
        let stats = self.engine.as_ref().map_or(self.totals, |engine| engine.stats(self.totals));
        Stats { bad_records: self.bad_records.len() as u64, ..stats }
    }

    /// Lines that the user should read once: how files are read, that batches overflow. Taken, not kept.
    pub fn take_notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.extend(self.engine.iter().flat_map(Engine::notices));
        notices
    }

    /// The records that were masked or replaced in batches handed out: index on the line, and why.
    pub fn bad_records(&self) -> &BTreeMap<u64, String> {
        &self.bad_records
    }

    fn check_alive(&self) -> Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed, "the loader is closed"));
        }
        let here = std::process::id();
        if here != self.pid {
            return Err(Error::new(
                ErrorKind::Closed,
                format!(
                    "the loader was made by another process and cannot be used in a fork of it: made_by={} here={here}",
                    self.pid
                ),
            )
            .with_hint("make a loader in the child process"));
        }
        Ok(())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check_bad_records(found: &BTreeMap<u64, String>, most: u64) -> Result<()> {
    match found.last_key_value() {
        Some((_, reason)) if found.len() as u64 > most => Err(Error::corrupt(format!(
            "more bad records than allowed: bad_records={} bad_records_max={most}, one of them: {reason}",
            found.len()
        ))),
        _ => Ok(()),
    }
}

fn not_iterating() -> Error {
    Error::new(ErrorKind::Closed, "the loader is not iterating, call iter() on it")
}

fn no_slab(error: SlabError) -> Error {
    Error::new(ErrorKind::NoSpace, error.to_string())
        .with_hint("lower the batch, chunk, pool or read_ahead_steps, or give this process more memory")
        .with_source(error)
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(COLUMN_ALIGN_BYTES)
}

/// Memory that this process may still take: the least of what the machine has available and its control groups allow.
fn memory_available_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse::<u64>().ok());
    machine.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX))
}

impl Engine {
    fn spawn(&mut self, threads: usize) -> Result<()> {
        for number in 0..threads {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(format!("forebay-read-{number}"));
            match thread.spawn(move || run(&shared)) {
                Ok(handle) => self.threads.push(handle),
                Err(error) if number == 0 => return Err(Error::io("cannot start a reader thread", error)),
                Err(error) => self.shared.notice(&format!("fewer reader threads than asked for: {error}")),
            }
        }
        Ok(())
    }

    /// Goes on at `cursor`. What was read ahead is given back as it comes.
    fn seek(&mut self, cursor: Cursor) {
        if let Some(filled) = self.pending.take() {
            drop(self.taker.lease(filled.slot));
        }
        self.generation = self.shared.feed.seek(cursor);
        self.seq = 0;
        self.at = cursor;
        self.shared.waiter.wake();
    }

    /// The filled slot of the coming step, `None` if it is not there in time. It stays pending until [`Engine::advance`].
    fn next(&mut self, wait: Duration, stall_ns: &mut u64) -> Result<Option<Filled>> {
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
    fn advance(&mut self, at: Cursor) {
        self.pending = None;
        self.seq += 1;
        self.at = at;
    }

    fn check_overflow(&self, bytes: u64, bytes_max: u64) -> Result<()> {
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

    fn stats(&self, totals: Stats) -> Stats {
        let counts = &self.shared.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            overflow_bytes: self.held.load(Ordering::Relaxed),
            leased_slots: u64::from(self.taker.leased()),
            slots: u64::from(self.slab.shape().slots),
            slab_bytes: self.slab.bytes() as u64,
            reads: totals.reads + read(&counts.reads),
            read_bytes: totals.read_bytes + read(&counts.read_bytes),
            syscalls: totals.syscalls + read(&counts.syscalls),
            units: totals.units + read(&counts.units),
            checked_units: totals.checked_units + read(&counts.checked_units),
            ..totals
        }
    }

    fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn stop(mut self) {
        self.shared.feed.stop();
        self.shared.waiter.wake();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}
