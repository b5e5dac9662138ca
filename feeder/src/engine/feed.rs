//! The order of work: the plan's units in the order of need, a slot for every step, publication in step order.
//!
//! Held by all reader threads of a loader; one short lock per unit taken and per drained batch of completions, under
//! which the finished units' rows are counted, nothing per row. Steps are numbered by `seq`, counted through from the last seek, across epochs. A seek (`restart`) makes a new
//! generation: no further unit of the old one is taken, those on their way come back, unpublished slots are reclaimed, and
//! only then filling starts at the new cursor; so no slot is ever written by two generations.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use cursorstore::{Cursor, PlanKey};
use slab::{Filled, Filler};

use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Line, Run, Schedule, Share, Unit};

/// Value of [`Filled::code`] for a step whose rows could not all be read.
pub(super) const CODE_FAILED: u32 = 1;

/// Value of [`Filled::code`] for a step some of whose rows are masked or stand in for others.
pub(super) const CODE_INCIDENTS: u32 = 2;

/// What fixes the steps: the plan, the spans' ends, this rank's share.
#[derive(Clone)]
pub(super) struct Course {
    pub(super) key: PlanKey,
    pub(super) ends: Arc<[u64]>,
    pub(super) share: Share,
    /// Most samples of a unit where the order is the topic's own.
    pub(super) in_order_samples: u32,
    /// Most chunks of a unit where it is shuffled.
    pub(super) chunks_together: u32,
    /// Steps that are scheduled together: all of an epoch, if memory allows.
    pub(super) stretch_steps: u64,
}

impl Course {
    /// The units from `cursor` on, of one stretch.
    pub(super) fn schedule(&self, cursor: Cursor) -> Result<Schedule> {
        let line = Line::new(&self.key, self.ends.clone(), cursor.epoch)?;
        let (piece, steps) = (self.in_order_samples, self.stretch_steps);
        Ok(Schedule::stretch(line, self.share, cursor.n, piece, steps)?.joining(self.chunks_together))
    }
}

/// Why a step cannot be delivered, kept until the trainer asks for it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    kind: ErrorKind,
    report: String,
    hint: Option<String>,
}

impl Failure {
    pub(super) fn of(error: &Error) -> Self {
        Self { kind: error.kind(), report: error.report(), hint: error.hint().map(str::to_owned) }
    }

    pub(super) fn error(&self) -> Error {
        let error = Error::new(self.kind, self.report.clone());
        match &self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

/// A row that does not hold what was written, since that is damaged.
#[derive(Clone, Debug)]
pub(super) struct Incident {
    pub(super) row: u32,
    /// The damaged sample's index on the line.
    pub(super) index: u64,
    pub(super) reason: String,
    /// Whether the row is to be masked; else another sample stands in.
    pub(super) masked: bool,
}

/// A unit handed to a reader thread, with the slots that its steps fill. Buffers are reused.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) unit: Unit,
    /// Slot of step `unit.first_step + i`.
    pub(super) slots: Vec<u32>,
    /// The `seq` of `unit.first_step`.
    pub(super) first_seq: u64,
    /// The epoch that it is of.
    pub(super) epoch: u64,
    /// Rows that the unit brings to each of these slots.
    rows: Vec<u32>,
}

impl Taken {
    /// The slot that a run of the unit goes to.
    pub(super) fn slot_of(&self, run: &Run) -> usize {
        self.slots[self.step_of(run)] as usize
    }

    /// The `seq` of the step that a run of the unit belongs to.
    pub(super) fn seq_of(&self, run: &Run) -> u64 {
        self.first_seq + self.step_of(run) as u64
    }

    /// The step of a run, counted from the unit's first one.
    pub(super) fn step_of(&self, run: &Run) -> usize {
        (run.step - self.unit.first_step) as usize
    }

    /// Counts the rows, which is cheaper here than under the feed's lock.
    pub(super) fn count_rows(&mut self) {
        self.rows.clear();
        self.rows.resize(self.slots.len(), 0);
        for run in &self.unit.runs {
            let step = self.step_of(run);
            self.rows[step] += run.count;
        }
    }
}

/// Answer of [`Feed::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// The unit was written to the argument.
    Unit,
    /// All slots are filled or leased: come back when one is returned.
    NoRoom,
    /// A seek waits for other threads' units: come back when they are done.
    Restarting,
    /// The loader is closing.
    Stop,
}

/// See the module.
pub(super) struct Feed {
    /// Grows with every seek, restart and stop: what threads without work wait for besides slots.
    orders: AtomicU64,
    lock_waits: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Rows still missing, per slot.
    missing: Vec<u32>,
    filler: Filler,
    course: Course,
    generation: u64,
    /// A seek not yet carried out.
    wanted: Option<(u64, Cursor)>,
    stop: bool,
    epoch: u64,
    schedule: Schedule,
    /// The `seq` of the schedule's step 0.
    base: u64,
    unit: Unit,
    unit_ready: bool,
    /// Slots with their rows, of the steps `published..`.
    open: VecDeque<(u32, u32)>,
    published: u64,
    spare: Vec<u32>,
    units_out: usize,
    failures: HashMap<u64, Failure>,
    /// Rows that do not hold what was written, per step.
    incidents: HashMap<u64, Vec<Incident>>,
    fatal: Option<Failure>,
}

impl Feed {
    /// Starts at `cursor` in generation 0.
    pub(super) fn new(filler: Filler, slots: u32, course: Course, cursor: Cursor) -> Result<Self> {
        let schedule = course.schedule(cursor)?;
        let inner = Inner {
            missing: vec![0; slots as usize],
            filler,
            course,
            generation: 0,
            wanted: None,
            stop: false,
            epoch: cursor.epoch,
            schedule,
            base: 0,
            unit: Unit::default(),
            unit_ready: false,
            open: VecDeque::with_capacity(slots as usize),
            published: 0,
            spare: Vec::with_capacity(slots as usize),
            units_out: 0,
            failures: HashMap::new(),
            incidents: HashMap::new(),
            fatal: None,
        };
        Ok(Self { orders: AtomicU64::new(1), lock_waits: AtomicU64::new(0), inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whatever panicked left counts that still add up or a step that never becomes ready; both are seen elsewhere.
        match self.inner.try_lock() {
            Ok(inner) => return inner,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_waits.fetch_add(1, Ordering::Relaxed),
        };
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Times that a thread found the lock held by another one.
    pub(super) fn lock_waits(&self) -> u64 {
        self.lock_waits.load(Ordering::Relaxed)
    }

    /// The next unit and its slots.
    pub(super) fn take(&self, taken: &mut Taken) -> Result<Take> {
        let inner = &mut *self.lock();
        if inner.stop {
            return Ok(Take::Stop);
        }
        if let Some((generation, cursor)) = inner.wanted {
            if inner.units_out > 0 {
                return Ok(Take::Restarting);
            }
            inner.restart(generation, cursor)?;
        }
        while !inner.unit_ready {
            inner.unit_ready = inner.schedule.next_into(&mut inner.unit);
            if !inner.unit_ready {
                let end = inner.base + inner.schedule.steps();
                if !inner.open_steps(end) {
                    return Ok(Take::NoRoom);
                }
                // Steps of which this rank has no rows are whole as they are: no unit brings the wake-up for them.
                inner.publish_and_wake();
                inner.next_stretch()?;
            }
        }
        let first_seq = inner.base + inner.unit.first_step;
        let end = inner.base + inner.unit.last_step + 1;
        if !inner.open_steps(end) {
            return Ok(Take::NoRoom);
        }
        let from = (first_seq - inner.published) as usize;
        let steps = (end - first_seq) as usize;
        taken.slots.clear();
        taken.slots.extend(inner.open.range(from..from + steps).map(|(slot, _)| *slot));
        taken.first_seq = first_seq;
        taken.epoch = inner.epoch;
        std::mem::swap(&mut taken.unit, &mut inner.unit);
        inner.unit_ready = false;
        inner.units_out += 1;
        Ok(Take::Unit)
    }

    /// Notes that the step `seq` of the current generation cannot be delivered.
    pub(super) fn fail(&self, seq: u64, failure: &Failure) {
        self.lock().failures.entry(seq).or_insert_with(|| failure.clone());
    }

    /// Notes that a row of step `seq` of the current generation does not hold its sample.
    pub(super) fn note(&self, seq: u64, incident: Incident) {
        self.lock().incidents.entry(seq).or_default().push(incident);
    }

    /// What was noted about step `seq`.
    pub(super) fn incidents(&self, seq: u64) -> Vec<Incident> {
        self.lock().incidents.get(&seq).cloned().unwrap_or_default()
    }

    /// Ends everything with an error that `next` reports: a reader thread cannot go on.
    pub(super) fn fail_all(&self, failure: Failure) {
        let inner = &mut *self.lock();
        inner.fatal.get_or_insert(failure);
        inner.stop = true;
        self.order();
        inner.filler.close();
    }

    /// Gives back finished units, whose rows are all there and [counted](Taken::count_rows), publishes what is ready, and
    /// wakes the trainer once. True when threads that wait for a restart can go on: the caller wakes them.
    pub(super) fn done<'a>(&self, units: impl Iterator<Item = &'a Taken>) -> bool {
        // Whoever publishes a slot has seen every thread's writes to it: they happened before its rows were counted here.
        let inner = &mut *self.lock();
        for taken in units {
            inner.units_out -= 1;
            for (&slot, &rows) in taken.slots.iter().zip(&taken.rows) {
                let missing = &mut inner.missing[slot as usize];
                debug_assert!(*missing >= rows, "slot {slot} counted below zero");
                *missing -= rows;
            }
        }
        inner.publish_and_wake();
        let restart = inner.wanted.is_some() && inner.units_out == 0;
        if restart {
            self.order();
        }
        restart
    }

    /// Units handed out and not yet given back.
    pub(super) fn units_out(&self) -> usize {
        self.lock().units_out
    }

    /// The orders given so far; see [`FreeWaiter`](slab::FreeWaiter).
    pub(super) fn orders(&self) -> u64 {
        self.orders.load(Ordering::SeqCst)
    }

    fn order(&self) {
        self.orders.fetch_add(1, Ordering::SeqCst);
    }

    /// Asks for everything to go on at `cursor` in a new generation, whose number is returned. The caller wakes the
    /// reader threads.
    pub(super) fn seek(&self, cursor: Cursor) -> u64 {
        let inner = &mut *self.lock();
        let generation = inner.wanted.map_or(inner.generation, |(generation, _)| generation) + 1;
        inner.wanted = Some((generation, cursor));
        self.order();
        generation
    }

    /// Asks the reader threads to end. The caller wakes them.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.order();
    }

    /// Whether nothing more will be filled: asked to stop, or failed as a whole.
    pub(super) fn is_stopped(&self) -> bool {
        self.lock().stop
    }

    /// Whether a step was noted that cannot be delivered.
    pub(super) fn has_failures(&self) -> bool {
        !self.lock().failures.is_empty()
    }

    /// The failure of step `seq`, or of everything.
    pub(super) fn failure(&self, seq: u64) -> Option<Failure> {
        let inner = self.lock();
        inner.failures.get(&seq).or(inner.fatal.as_ref()).cloned()
    }
}

impl Inner {
    /// Gives every step before `end` a slot; false if slots ran out.
    fn open_steps(&mut self, end: u64) -> bool {
        while self.published + (self.open.len() as u64) < end {
            let Some(slot) = self.spare.pop().or_else(|| self.filler.take_free()) else { return false };
            let rows = self.schedule.rows(self.published + self.open.len() as u64 - self.base);
            self.missing[slot as usize] = rows;
            self.open.push_back((slot, rows));
        }
        true
    }

    /// Publishes the steps that are whole, in order, and wakes the trainer once if there was any.
    fn publish_and_wake(&mut self) {
        let before = self.published;
        while self.wanted.is_none()
            && let Some(&(slot, rows)) = self.open.front()
            && self.missing[slot as usize] == 0
        {
            let tag = self.published;
            let code = match (self.failures.contains_key(&tag), self.incidents.contains_key(&tag)) {
                (true, _) => CODE_FAILED,
                (_, true) => CODE_INCIDENTS,
                _ => 0,
            };
            self.filler.publish(Filled { slot, tag, generation: self.generation, rows, code });
            self.open.pop_front();
            self.published += 1;
        }
        if self.published > before {
            self.filler.wake();
        }
    }

    fn restart(&mut self, generation: u64, cursor: Cursor) -> Result<()> {
        self.spare.extend(self.open.drain(..).map(|(slot, _)| slot));
        self.wanted = None;
        self.generation = generation;
        self.epoch = cursor.epoch;
        self.schedule = self.course.schedule(cursor)?;
        self.base = 0;
        self.published = 0;
        self.unit_ready = false;
        self.failures.clear();
        self.incidents.clear();
        Ok(())
    }

    /// Goes on after the last step of a schedule: in the same epoch, if that was cut to a stretch, else in the next one.
    fn next_stretch(&mut self) -> Result<()> {
        let n = self.schedule.rest();
        self.epoch += u64::from(n.is_none());
        let schedule = self.course.schedule(Cursor { epoch: self.epoch, n: n.unwrap_or(0) })?;
        self.base += std::mem::replace(&mut self.schedule, schedule).steps();
        Ok(())
    }
}
