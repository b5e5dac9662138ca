//! The loader: the cursor and its rules, and the engine that runs ahead of it.
//!
//! - A cursor `(epoch, n)` counts places handed out, never those read ahead.
//! - [`Loader::begin`] is `iter()`: after a state was loaded (or at first) it goes on at the cursor; after an epoch's last
//!   batch it is the next epoch; after a break the epoch starts again. At a loaded cursor with no whole step left it is the
//!   next epoch, unless `set_epoch` named this one, which then yields nothing. If it fails, nothing has moved; what could not
//!   be read before is read anew.
//! - [`Loader::set_epoch`] of the current epoch keeps the cursor; after that epoch's end it asks for the epoch once more.
//! - An epoch has ended when its last batch is handed out, whether or not the end was asked for: a run that goes on and
//!   one that resumes from the state then do the same.
//! - [`Loader::load`] then [`Loader::state`] gives the state loaded.
//! - An iteration of which no batch was handed out is none: `begin` once more starts where it did, also at a loaded cursor.
//!
//! The engine (threads, slab) starts at the first `begin` and is sought, not restarted, while the plan stays the same.

mod progress;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cursorstore::{Cursor, PlanKey, State, TopicName};
use slab::Filled;

use super::Dataset;
use super::batch::{Batch, MASK, columns, large_bytes, least_large_bytes};
use super::feed::{CODE_FAILED, CODE_INCIDENTS};
use super::layout::SlotLayout;
use super::runner::Runner;
use super::settings::{self, Settings};
use super::stats::Stats;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{PLAN_VERSION, PLAN_VERSION_MIN, Share};

/// Last epoch that there is.
pub const EPOCH_MAX: u64 = 1 << 63;

/// Answer of [`Loader::poll_next`].
pub enum Step {
    /// The next batch; the cursor has moved past it.
    Batch(Batch),
    /// The epoch's end.
    End,
    /// Not there within the time given.
    Pending,
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
    runner: Option<Runner>,
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
    /// An iteration was begun; the epoch has ended if no step is left of it.
    Running,
}

impl Loader {
    /// A loader over all records now in `topic`.
    pub fn open(root: &Path, topic: &TopicName, settings: Settings) -> Result<Self> {
        Self::new(Arc::new(Dataset::all_of(root, topic)?), settings)
    }

    /// A loader over `dataset`.
    pub fn new(dataset: Arc<Dataset>, settings: Settings) -> Result<Self> {
        settings.check()?;
        let total = dataset.line().total();
        let rows = settings.share().rows_max(total);
        let layout = SlotLayout::new(dataset.schema(), settings.columns.as_deref(), rows)?;
        let row_bytes = dataset.schema().row_bytes() as u64;
        let key = settings.plan(row_bytes, total);
        let cursor = Cursor { epoch: 0, n: 0 };
        let loader = Self {
            settings,
            dataset,
            layout: Arc::new(layout),
            key,
            cursor,
            begun: cursor,
            phase: Phase::Fresh { named: false },
            runner: None,
            totals: Stats::default(),
            bad_records: BTreeMap::new(),
            overflowed: false,
            notices: Vec::new(),
            closed: false,
            pid: slab::process::id(),
        };
        loader.check_size(total, &loader.layout)?;
        Ok(loader)
    }

    /// Refuses a batch that `total` samples can never fill, and a `mask` beside a column of that name.
    fn check_size(&self, total: u64, layout: &SlotLayout) -> Result<()> {
        if self.steps_in(total) == 0 {
            return Err(Error::invalid(format!(
                "the batch is larger than the data, and drop_last leaves out what does not fill one: global_batch_size={} samples={total}",
                self.settings.global_batch
            ))
            .with_hint(format!("use a batch of at most {total}, or drop_last=False")));
        }
        let taken = layout.columns.iter().any(|placed| placed.column.name == MASK);
        if self.settings.masked() && taken {
            return Err(Error::invalid(
                "a column is named 'mask', as is what marks repeated rows: leave it out by columns=, or use drop_last=True or tail='short'",
            ));
        }
        Ok(())
    }

    fn share(&self) -> Share {
        self.settings.share()
    }

    /// Steps that `samples` samples make.
    fn steps_in(&self, samples: u64) -> u64 {
        let batch = u64::from(self.settings.global_batch);
        if self.settings.drop_last { samples / batch } else { samples.div_ceil(batch) }
    }

    /// Steps from place `n` of an epoch to its end.
    fn steps_from(&self, n: u64) -> u64 {
        self.steps_in(self.samples().saturating_sub(n))
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

    /// Takes a state: the next `begin` goes on there. Refused, with nothing changed, if it cannot be honoured.
    pub fn load(&mut self, state: &State) -> Result<()> {
        self.check_alive()?;
        let mismatch = |what: &str, state: &dyn std::fmt::Display, here: &dyn std::fmt::Display| {
            Err(Error::new(
                ErrorKind::StateMismatch,
                format!("the state is of another {what} than this loader: state={state} loader={here}"),
            ))
        };
        self.dataset.check_state(state)?;
        if !(PLAN_VERSION_MIN..=PLAN_VERSION).contains(&state.plan.version) {
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
        check_epoch(state.cursor.epoch)?;
        settings::check_plan(Some(state.plan.lanes), Some(state.plan.chunk), Some(state.plan.pool))?;
        // That of a version stands in the version.
        let same_schema = state.dataset.is_some() || state.schema == self.dataset.schema_number();
        if state.windows != self.dataset.windows() || state.plan != self.key || !same_schema {
            if state.dataset.is_none() {
                self.take_records(state)?;
            }
            self.key = state.plan.clone();
            self.stop();
        }
        self.cursor = state.cursor;
        self.begun = state.cursor;
        self.phase = Phase::Fresh { named: false };
        Ok(())
    }

    /// Takes the records of a topic that a state is over, and reads them as the state's job did.
    fn take_records(&mut self, state: &State) -> Result<()> {
        let dataset = self.dataset.of_state(state)?;
        let (names, rows) = (self.settings.columns.as_deref(), self.share().rows_max(dataset.line().total()));
        let layout = SlotLayout::new(dataset.schema(), names, rows).map_err(|error| {
            let text = format!("the state is of schema version {} of its topic: {error}", state.schema);
            Error::new(ErrorKind::StateMismatch, text)
                .with_hint("take the columns that the job began with, or begin a new one")
        })?;
        self.check_size(dataset.line().total(), &layout)?;
        self.layout = Arc::new(layout);
        self.dataset = Arc::new(dataset);
        Ok(())
    }

    /// Names the epoch that the next `begin` is of.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        self.check_alive()?;
        check_epoch(epoch)?;
        match self.phase {
            Phase::Fresh { .. } if epoch == self.cursor.epoch => self.phase = Phase::Fresh { named: true },
            Phase::Running if epoch == self.cursor.epoch && !self.has_ended() => {}
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
        let Cursor { epoch, n } = self.cursor;
        let cursor = match self.phase {
            Phase::Fresh { named: false } | Phase::Running if self.has_ended() => Cursor { epoch: epoch + 1, n: 0 },
            Phase::Fresh { .. } => Cursor { epoch, n },
            // Nobody drew from that iteration: it was none.
            Phase::Running if self.is_untouched() => Cursor { epoch, n },
            Phase::Running => Cursor { epoch, n: 0 },
        };
        if self.steps_from(cursor.n) > 0 {
            self.run_from(cursor)?;
        }
        (self.cursor, self.begun, self.phase) = (cursor, cursor, Phase::Running);
        Ok(())
    }

    /// Sees to it that the engine's coming step is the one at `cursor`.
    fn run_from(&mut self, cursor: Cursor) -> Result<()> {
        if self.runner.as_ref().is_some_and(|runner| runner.shared.feed.is_stopped()) {
            // It failed as a whole, perhaps for want of something that is there by now.
            self.stop();
        }
        match &mut self.runner {
            // What failed is read anew: the disk may be well again.
            Some(runner) if runner.at == cursor && !runner.shared.feed.has_failures() => {}
            Some(runner) => runner.seek(cursor),
            None => {
                let (share, settings) = (self.share(), &self.settings);
                let runner = Runner::start(&self.dataset, &self.layout, &self.key, share, settings, cursor)?;
                self.runner = Some(runner);
            }
        }
        Ok(())
    }

    /// Waits at most `wait` until [`Loader::poll_next`] has an answer: a batch, the end or an error.
    pub fn wait_ready(&mut self, wait: Duration) -> bool {
        if self.check_alive().is_err() || self.phase != Phase::Running || self.has_ended() {
            return true;
        }
        let runner = self.runner.as_mut();
        runner.is_none_or(|runner| !matches!(runner.next(wait, &mut self.totals.stall_ns), Ok(None)))
    }

    /// Whether [`Loader::poll_next`] has an answer at once.
    pub fn is_ready(&mut self) -> bool {
        self.wait_ready(Duration::ZERO)
    }

    /// The next batch of this iteration, waiting at most `wait` for it.
    pub fn poll_next(&mut self, wait: Duration) -> Result<Step> {
        self.check_alive()?;
        if self.phase != Phase::Running || self.has_ended() {
            return Ok(Step::End);
        }
        let global = u64::from(self.settings.global_batch);
        let runner = self.runner.as_mut().ok_or_else(not_iterating)?;
        let Some(filled) = runner.next(wait, &mut self.totals.stall_ns)? else { return Ok(Step::Pending) };
        let batch = self.hand_out(filled)?;
        self.cursor.n = (self.cursor.n + global).min(self.samples());
        let next = if self.has_ended() { Cursor { epoch: self.cursor.epoch + 1, n: 0 } } else { self.cursor };
        self.runner.as_mut().ok_or_else(not_iterating)?.advance(next);
        self.totals.batches += 1;
        self.totals.samples += u64::from(batch.rows);
        Ok(Step::Batch(batch))
    }

    /// Makes a batch of a filled slot. An error leaves the slot pending.
    fn hand_out(&mut self, filled: Filled) -> Result<Batch> {
        let left = self.samples() - self.cursor.n;
        let valid = self.share().valid_rows(left).min(filled.rows);
        let runner = self.runner.as_mut().ok_or_else(not_iterating)?;
        if filled.code == CODE_FAILED {
            let failure = runner.shared.feed.failure(filled.tag);
            return Err(failure.map_or_else(|| Error::corrupt("a step failed for an unknown reason"), |f| f.error()));
        }
        let incidents = match filled.code {
            CODE_INCIDENTS => runner.shared.feed.incidents(filled.tag),
            _ => Vec::new(),
        };
        for incident in &incidents {
            self.bad_records.entry(incident.index).or_insert_with(|| incident.reason.clone());
        }
        check_bad_records(&self.bad_records, self.settings.bad_records_max)?;
        let least = least_large_bytes(&self.layout, filled.rows);
        let large_bytes = large_bytes(&self.layout, filled.rows, least);
        let crowded = large_bytes > 0 && runner.taker.leased() >= runner.lease_limit;
        if crowded {
            runner.check_overflow(large_bytes as u64, self.settings.overflow_bytes)?;
            self.totals.overflow_batches += 1;
            if !std::mem::replace(&mut self.overflowed, true) {
                self.notices.push(format!(
                    "the program holds {} batches, all that the slab has room for: further ones are copied to ordinary memory, up to overflow_bytes={}",
                    runner.lease_limit, self.settings.overflow_bytes
                ));
            }
        }
        let mask = self.settings.masked().then_some((valid, &incidents[..]));
        let columns = columns(runner, &self.layout, filled, (least, crowded), mask);
        self.totals.bytes += columns.iter().map(|column| column.bytes as u64).sum::<u64>();
        Ok(Batch { epoch: self.cursor.epoch, place: self.cursor.n, rows: filled.rows, columns })
    }

    /// Ends the engine; what the trainer holds stays valid.
    fn stop(&mut self) {
        let Some(runner) = self.runner.take() else { return };
        if self.pid != slab::process::id() {
            // A forked child has none of the threads, and the slab's flags are its parent's.
            std::mem::forget(runner);
            return;
        }
        self.totals = runner.stats(self.totals);
        self.notices.extend(runner.notices());
        if !runner.stop() {
            self.notices.push("a read does not come back from the system, its thread was left behind".into());
        }
    }

    /// What a batch that does not come waits for, in words.
    pub fn late(&self) -> &'static str {
        match &self.runner {
            None => "the engine was not started",
            Some(runner) if runner.shared.feed.units_out() > 0 => "files are being read",
            Some(_) => "no slot is free to read into",
        }
    }

    /// Ends the loader: threads are gone and files closed when this returns, unless the system holds a read for seconds.
    /// Batches already handed out stay valid. What the loader kept from being deleted may be deleted.
    pub fn close(&mut self) {
        self.stop();
        self.closed = true;
        // Unless others read it too.
        if let Some(dataset) = Arc::get_mut(&mut self.dataset) {
            dataset.release();
        }
    }

    /// Running counts.
    pub fn stats(&self) -> Stats {
        let stats = self.runner.as_ref().map_or(self.totals, |runner| runner.stats(self.totals));
        Stats { bad_records: self.bad_records.len() as u64, ..stats }
    }

    /// Lines that the user should read once: how files are read, overflow, a missing guard, damage. Taken, not kept.
    pub fn take_notices(&mut self) -> Vec<String> {
        let mut notices = self.dataset.take_notices();
        notices.extend(self.late_notices());
        notices
    }

    /// Those of them that came up since the iteration began. Costs next to nothing when there are none.
    pub fn late_notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.extend(self.runner.iter().flat_map(Runner::notices));
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
        let here = slab::process::id();
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

fn check_epoch(epoch: u64) -> Result<()> {
    if epoch <= EPOCH_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("an epoch is 0 to {EPOCH_MAX}: epoch={epoch}")))
}

fn not_iterating() -> Error {
    Error::new(ErrorKind::Closed, "the loader is not iterating, call iter() on it")
}
