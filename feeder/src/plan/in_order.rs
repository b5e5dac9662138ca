//! Units of a line without shuffle: pieces of the rank's consecutive samples.

use std::ops::Range;

use super::schedule::{Run, Unit};
use super::step::Steps;

#[derive(Clone, Debug)]
pub(super) struct InOrder {
    piece: u64,
    step: u64,
    /// Next position of this rank in the step, and the end of its part.
    at: u64,
    end: u64,
}

impl InOrder {
    pub(super) fn new(steps: &Steps, piece: u32) -> Self {
        let part = if steps.count > 0 { steps.part(0) } else { 0..0 };
        Self { piece: u64::from(piece), step: 0, at: part.start, end: part.end }
    }

    /// See [`Schedule::next_into`](super::Schedule::next_into); gives the samples of the unit.
    pub(super) fn next_into(&mut self, steps: &Steps, unit: &mut Unit) -> Option<Range<u64>> {
        while self.at == self.end {
            if !self.enter_next(steps) {
                return None;
            }
        }
        let first_step = self.step;
        let first = steps.place(first_step) + self.at;
        let limit = first - first % self.piece + self.piece;
        let mut index = first;
        unit.clear();
        loop {
            let count = (self.end - self.at).min(limit - index);
            let row = (self.at - steps.part(self.step).start) as u32;
            unit.runs.push(Run { index, count: count as u32, step: self.step, row });
            index += count;
            self.at += count;
            // With several ranks the samples of others lie before the next step's.
            if index == limit || !steps.alone() || !self.enter_next(steps) {
                break;
            }
        }
        let last_step = unit.runs[unit.runs.len() - 1].step;
        unit.span_runs(first_step, last_step);
        Some(first..index)
    }

    fn enter_next(&mut self, steps: &Steps) -> bool {
        if self.step + 1 >= steps.count {
            return false;
        }
        self.step += 1;
        (self.at, self.end) = (steps.part(self.step).start, steps.part(self.step).end);
        true
    }

    pub(super) fn span_steps(&self, steps: &Steps, piece: u32) -> u64 {
        if steps.alone() { u64::from(piece - 1).div_ceil(steps.batch) + 1 } else { 1 }
    }
}
