//! The plan in the order of reading: what to read next, and where each sample of it goes.
//!
//! A [`Unit`] is one stretch of consecutive samples to be read at once: what one rank needs of a chunk or, in order, of
//! a piece of the line. Where it is [asked for](Schedule::joining), it is a few such stretches: the chunks of one pool,
//! whose samples go side by side into the steps to come. Its [`Run`]s say which step and row each sample belongs to.
//! Units come by non-decreasing first step, every chunk in one unit only, and all rows at or after the cursor. So a
//! reader that takes units in turn, and keeps [`span_steps`](Schedule::span_steps) steps open, never waits for itself
//! and reads nothing twice.
//!
//! With fewer steps open than that, a line is read in [stretches](Schedule::stretch), each a schedule of its own: what
//! several of them need of a chunk is then read once for each.
//!
//! A schedule costs the same wherever its cursor stands, a few nanoseconds a sample, and no allocation once it runs.

use std::ops::Range;

use super::in_order::InOrder;
use super::shuffled::Shuffled;
use super::step::Steps;
use super::{Line, PlanError, Share};

/// Consecutive samples that go to consecutive rows of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First sample, as index on the line.
    pub index: u64,
    /// Samples.
    pub count: u32,
    /// The step, counted from the schedule's cursor.
    pub step: u64,
    /// Row of the first sample in this rank's batch.
    pub row: u32,
}

impl Run {
    /// One past the last sample.
    pub fn end(&self) -> u64 {
        self.index + u64::from(self.count)
    }
}

/// Samples to be read together: of one chunk or piece consecutive ones. Made empty by `default` and filled by
/// [`Schedule::next_into`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// First step that needs the unit.
    pub first_step: u64,
    /// Last step that needs the unit.
    pub last_step: u64,
    /// First sample of the last chunk: one that is needed.
    pub from: u64,
    /// Its samples up to the last that is needed. Those between that no run names belong to other ranks or lie before the
    /// cursor.
    pub count: u32,
    /// Where they go, chunk after chunk and by index in each; a sample that is repeated has two runs.
    pub runs: Vec<Run>,
    /// Where in `runs` each chunk but the first begins.
    pub cuts: Vec<usize>,
}

impl Unit {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.cuts.clear();
    }

    /// Where the runs of the last chunk begin.
    fn last_cut(&self) -> usize {
        self.cuts.last().copied().unwrap_or(0)
    }

    /// Sets steps and samples from the runs, which are not empty and sorted by index. Steps of earlier chunks count as well.
    pub(super) fn span_runs(&mut self, first_step: u64, last_step: u64) {
        let (first, last) = (self.runs[self.last_cut()], self.runs[self.runs.len() - 1]);
        let others = if self.cuts.is_empty() { (first_step, last_step) } else { (self.first_step, self.last_step) };
        (self.first_step, self.last_step) = (first_step.min(others.0), last_step.max(others.1));
        self.from = first.index;
        self.count = (last.index - first.index) as u32 + last.count;
    }

    /// Adds the row that repeats a sample of the last chunk.
    fn pad(&mut self, run: Run) {
        let cut = self.last_cut();
        let at = self.runs[cut..].partition_point(|other| other.index <= run.index);
        self.runs.insert(cut + at, run);
        let end = (self.from + u64::from(self.count)).max(run.index + 1);
        self.from = self.from.min(run.index);
        self.count = (end - self.from) as u32;
        self.last_step = self.last_step.max(run.step);
    }
}

/// What one rank must read from a cursor to the end of a line.
#[derive(Clone, Debug)]
pub struct Schedule {
    line: Line,
    steps: Steps,
    order: Order,
    /// Most samples of a unit in order.
    piece: u32,
    /// Most chunks of a unit of a shuffled line.
    chunks: u32,
    /// The row that repeats a sample, until it is given out.
    pad: Option<Run>,
}

#[derive(Clone, Debug)]
enum Order {
    InOrder(InOrder),
    Shuffled(Box<Shuffled>),
}

impl Schedule {
    /// The schedule of `share` from cursor `n` on. Without shuffle a unit has at most `piece` samples and ends where the
    /// line index divides by `piece` (at least 1), so that blocks of that size are read whole.
    pub fn new(line: Line, share: Share, n: u64, piece: u32) -> Result<Self, PlanError> {
        Self::stretch(line, share, n, piece, u64::MAX)
    }

    /// As [`new`](Self::new), but of the first `steps_max` steps at most (at least 1): for who cannot keep as many steps open
    /// as the whole line wants. Units name only rows in these steps, so a chunk that later ones need too is in a unit of
    /// the next stretch again, which begins at [`rest`](Self::rest). The order is the same.
    pub fn stretch(line: Line, share: Share, n: u64, piece: u32, steps_max: u64) -> Result<Self, PlanError> {
        let steps = Steps::new(share, n, line.total(), steps_max.max(1))?;
        let piece = piece.max(1);
        let order = if line.key().shuffle {
            Order::Shuffled(Box::new(Shuffled::new(&line, &steps)))
        } else {
            Order::InOrder(InOrder::new(&steps, piece))
        };
        let pad = steps.pad().map(|(row, position)| {
            let step = steps.count - 1;
            let index = line.sample(steps.place_at(&line, step, position)).index;
            Run { index, count: 1, step, row }
        });
        Ok(Self { line, steps, order, piece, chunks: 1, pad })
    }

    /// The same with up to `chunks` chunks (at least 1) of one pool in a unit, which comes at the first step that needs any.
    #[must_use]
    pub fn joining(self, chunks: u32) -> Self {
        Self { chunks: chunks.max(1), ..self }
    }

    /// Fills `unit`, whose memory is reused, with what must be read next. False at the end, where `unit` is left as it is.
    pub fn next_into(&mut self, unit: &mut Unit) -> bool {
        let chunk = match &mut self.order {
            Order::InOrder(order) => order.next_into(&self.steps, unit),
            Order::Shuffled(order) => order.next_into(&self.line, &self.steps, unit),
        };
        match (chunk, self.pad) {
            (Some(chunk), _) => self.repeat(&chunk, unit),
            (None, None) => return false,
            // The repeated sample belongs to another rank's part of a chunk that this rank has no other use for.
            (None, Some(run)) => {
                unit.clear();
                unit.runs.push(run);
                unit.span_runs(run.step, run.step);
                self.pad = None;
                return true;
            }
        }
        for _ in 1..self.chunks {
            let Order::Shuffled(order) = &mut self.order else { break };
            let Some(chunk) = order.next_beside(unit) else { break };
            self.repeat(&chunk, unit);
        }
        true
    }

    /// Adds the row that repeats a sample, if it is one of `chunk`, the unit's last.
    fn repeat(&mut self, chunk: &Range<u64>, unit: &mut Unit) {
        if let Some(run) = self.pad.take_if(|run| chunk.contains(&run.index)) {
            unit.pad(run);
        }
    }

    /// The line.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Steps from the cursor to the line's, or the stretch's, end; a short last step counts, a dropped one does not.
    pub fn steps(&self) -> u64 {
        self.steps.count
    }

    /// The place where the line goes on after this stretch; `None` if no step follows.
    pub fn rest(&self) -> Option<u64> {
        self.steps.rest()
    }

    /// Places that `step` consumes, over all ranks: B, or fewer in a short last step.
    pub fn places(&self, step: u64) -> u64 {
        let places = self.steps.places(step);
        places.end - places.start
    }

    /// Rows of this rank in `step`, repeats included.
    pub fn rows(&self, step: u64) -> u32 {
        self.steps.rows(step)
    }

    /// Rows of this rank in `step` that are no repeats: the first ones.
    pub fn valid_rows(&self, step: u64) -> u32 {
        let part = self.steps.part(step);
        (part.end - part.start) as u32
    }

    /// The place of a row: where its sample comes in training. `row` is below [`valid_rows`](Self::valid_rows).
    pub fn place(&self, step: u64, row: u32) -> u64 {
        self.steps.place_at(&self.line, step, self.steps.part(step).start + u64::from(row))
    }

    /// Most steps from a unit's first to its last, both counted: as many must be open at once. 0 when there are no steps.
    pub fn span_steps(&self) -> u64 {
        let most = match &self.order {
            Order::InOrder(order) => order.span_steps(&self.steps, self.piece),
            Order::Shuffled(_) => Shuffled::span_steps(&self.line, &self.steps),
        };
        most.min(self.steps.count)
    }

    /// Pools that have memory.
    #[cfg(test)]
    pub(super) fn pools(&self) -> usize {
        match &self.order {
            Order::InOrder(_) => 0,
            Order::Shuffled(order) => order.pools(),
        }
    }
}
