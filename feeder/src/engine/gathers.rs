//! The rows of a pool on their way from the scratch to their batches, worked out once and not once for each column.
//!
//! A lane's samples stand side by side in a batch. What one chunk brings of them is strewn; what all chunks of a pool bring
//! together is not: it makes runs. So a column of narrow rows goes out run by run, in whole cache lines, each run put
//! together of rows from all over the chunks. Where a unit's rows come from and go to is one list, in the order of the
//! runs, and the same for each column that has rows in the same parts of the unit.

use std::ops::Range;

use super::assemble::Job;
use crate::reader::Gather;

/// Runs as the plan gives them of more rows than this on average are copied as they are.
const RUN_ROWS_MAX: u64 = 8;
/// Runs are put together if they are so long on average that it pays.
const RUN_ROWS_MIN: usize = 4;
/// At most so many places are looked at for each row: a unit whose rows stand far apart in their batches makes no runs.
const PLACES_MAX: usize = 4;
/// Marks a place that no row of the unit goes to, and the end of a list.
const NONE: u32 = u32::MAX;

/// A row of the unit: in which of its parts, and the how manieth sample there.
#[derive(Clone, Copy)]
struct Source {
    part: u32,
    row: u32,
}

/// Rows that follow each other in a batch.
#[derive(Clone, Copy)]
struct Place {
    /// First byte of the slot.
    slot_at: usize,
    row: u32,
    rows: u32,
}

/// The rows of one step, those between that are not the unit's included, and where the table has them.
#[derive(Clone, Copy)]
struct StepRows {
    first: u32,
    end: u32,
    table_at: usize,
}

/// Rows of one width, by their places in the scratch from the foremost part's first row on.
#[derive(Default)]
struct Width {
    row_bytes: usize,
    /// Where the parts begin, from the foremost one on; none if this is of another unit.
    parts: Vec<usize>,
    gather: Gather,
}

/// See the module. Of the unit that [`Gathers::begin`] was called for.
#[derive(Default)]
pub(super) struct Gathers {
    /// The first copy of each column and, for each copy, the next of its column.
    heads: Vec<u32>,
    next: Vec<u32>,
    /// The spans of each part of the list below.
    parts: Vec<Range<usize>>,
    /// Whether the rows make runs.
    pays: bool,
    sources: Vec<Source>,
    places: Vec<Place>,
    widths: Vec<Width>,
    /// Where the parts of the column at hand begin.
    begins: Vec<usize>,
    /// One past the last row of any part.
    rows_end: u32,
    /// For building the list: the rows of each step, and where each of them comes from.
    steps: Vec<StepRows>,
    table: Vec<Source>,
}

impl Gathers {
    /// Starts with another unit. False if its rows are not such that anything is to be gained.
    pub(super) fn begin(&mut self, job: &Job, columns: usize) -> bool {
        self.parts.clear();
        self.widths.iter_mut().for_each(|width| width.parts.clear());
        if job.copies.len() < 2 {
            return false;
        }
        let rows: u64 = job.taken.unit.runs.iter().map(|span| u64::from(span.count)).sum();
        if rows > RUN_ROWS_MAX * job.taken.unit.runs.len() as u64 {
            return false;
        }
        self.heads.clear();
        self.heads.resize(columns, NONE);
        self.next.clear();
        self.next.resize(job.copies.len(), NONE);
        for (number, copy) in job.copies.iter().enumerate().rev() {
            self.next[number] = std::mem::replace(&mut self.heads[copy.column], number as u32);
        }
        true
    }

    /// The first copy of `column`.
    pub(super) fn first(&self, column: usize) -> Option<usize> {
        Some(self.heads[column]).filter(|&copy| copy != NONE).map(|copy| copy as usize)
    }

    /// The next copy of the same column.
    pub(super) fn after(&self, copy: usize) -> Option<usize> {
        Some(self.next[copy]).filter(|&copy| copy != NONE).map(|copy| copy as usize)
    }

    /// The rows of `column`, by their places from the first of its copies in the scratch on and from the column in the first slot;
    /// `None` where they are to be copied one by one.
    pub(super) fn of(&mut self, column: usize, job: &Job, slot_bytes: usize) -> Option<(usize, &Gather)> {
        let first = self.first(column)?;
        let row_bytes = job.copies[first].row_bytes;
        let (mut same, mut next, mut from) = (true, Some(first), usize::MAX);
        self.begins.clear();
        while let Some(at) = next {
            let copy = &job.copies[at];
            if copy.widen.is_some() {
                return None;
            }
            same &= self.parts.get(self.begins.len()) == Some(&copy.spans);
            self.begins.push(copy.at);
            // Parts that are compared with their checksums may lie behind those that follow them.
            from = from.min(copy.at);
            next = self.after(at);
        }
        self.begins.iter_mut().for_each(|begin| *begin -= from);
        if !same || self.parts.len() != self.begins.len() {
            self.list(column, job, slot_bytes);
        }
        let end = self.begins.iter().max().map_or(0, |begin| begin + self.rows_end as usize * row_bytes);
        if !self.pays || u32::try_from(end).is_err() {
            return None;
        }
        let number = match self.widths.iter().position(|width| width.row_bytes == row_bytes) {
            Some(number) => number,
            None => {
                self.widths.push(Width { row_bytes, ..Width::default() });
                self.widths.len() - 1
            }
        };
        let width = &mut self.widths[number];
        if width.parts != self.begins {
            width.parts.clone_from(&self.begins);
            width.gather.reset(row_bytes);
            let mut sources = &self.sources[..];
            for place in &self.places {
                let (now, later) = sources.split_at(place.rows as usize);
                sources = later;
                let from =
                    |source: &Source| (self.begins[source.part as usize] + source.row as usize * row_bytes) as u32;
                width.gather.push(place.slot_at + place.row as usize * row_bytes, now.iter().map(from));
            }
        }
        Some((from, &width.gather))
    }

    /// Lists the rows of the parts that `column` has.
    fn list(&mut self, column: usize, job: &Job, slot_bytes: usize) {
        self.parts.clear();
        let mut next = self.first(column);
        while let Some(at) = next {
            self.parts.push(job.copies[at].spans.clone());
            next = self.after(at);
        }
        self.widths.iter_mut().for_each(|width| width.parts.clear());
        self.sources.clear();
        self.places.clear();
        self.steps.clear();
        self.steps.resize(job.taken.slots.len(), StepRows { first: NONE, end: 0, table_at: 0 });
        let mut rows = 0;
        for span in self.parts.iter().flat_map(|spans| &job.taken.unit.runs[spans.clone()]) {
            let step = &mut self.steps[job.taken.step_of(span)];
            (step.first, step.end) = (step.first.min(span.row), step.end.max(span.row + span.count));
            rows += span.count as usize;
        }
        let mut room = 0;
        for step in &mut self.steps {
            step.table_at = room;
            room += step.end.saturating_sub(step.first) as usize;
        }
        self.pays = room <= PLACES_MAX * rows;
        if !self.pays {
            return;
        }
        self.table.clear();
        self.table.resize(room, Source { part: NONE, row: 0 });
        self.rows_end = 0;
        for (part, spans) in (0u32..).zip(&self.parts) {
            let spans = &job.taken.unit.runs[spans.clone()];
            let lo = spans.first().map_or(0, |span| span.index);
            for span in spans {
                let step = &self.steps[job.taken.step_of(span)];
                let at = step.table_at + (span.row - step.first) as usize;
                let row = (span.index - lo) as u32;
                for (source, row) in self.table[at..at + span.count as usize].iter_mut().zip(row..) {
                    *source = Source { part, row };
                }
                self.rows_end = self.rows_end.max(row + span.count);
            }
        }
        self.make_runs(job, slot_bytes);
        self.pays = rows >= RUN_ROWS_MIN * self.places.len();
    }

    /// Makes runs of the rows that follow each other in a step.
    fn make_runs(&mut self, job: &Job, slot_bytes: usize) {
        for (step, &slot) in self.steps.iter().zip(&job.taken.slots) {
            let rows = step.end.saturating_sub(step.first) as usize;
            if rows == 0 {
                continue;
            }
            let sources = &self.table[step.table_at..step.table_at + rows];
            let slot_at = slot as usize * slot_bytes;
            let mut passed = 0;
            for sources in sources.split(|source| source.part == NONE) {
                if !sources.is_empty() {
                    self.sources.extend_from_slice(sources);
                    let row = step.first + passed as u32;
                    self.places.push(Place { slot_at, row, rows: sources.len() as u32 });
                }
                passed += sources.len() + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scatters::CopyOut;
    use super::*;
    use crate::plan::{Run, Unit};

    const SLOT_BYTES: usize = 4096;

    /// A job of two chunks, in one part each, whose rows are those of step 7 in turn from row 3 on, of slot 2; and one row of
    /// step 9, of slot 5.
    fn job(columns: &[usize]) -> Job {
        let run = |index, step, row| Run { index, count: 1, step, row };
        let even = (0..8u64).map(|at| run(100 + at, 7, 3 + 2 * at as u32));
        let odd = (0..8u64).map(|at| run(500 + at, 7, 4 + 2 * at as u32));
        let runs: Vec<Run> = even.chain([run(108, 9, 0)]).chain(odd).collect();
        let unit = Unit { first_step: 7, last_step: 9, runs, cuts: vec![9], ..Unit::default() };
        let mut job = Job::default();
        (job.taken.unit, job.taken.slots) = (unit, vec![2, 4, 5]);
        for (part, spans) in [(0, 0..9), (1, 9..17)] {
            for (column, &row_bytes) in columns.iter().enumerate() {
                let at = 1000 * part + 100 * column;
                let lo = job.taken.unit.runs[spans.start].index;
                job.copies.push(CopyOut { column, at, lo, spans: spans.clone(), row_bytes, widen: None });
            }
        }
        job
    }

    #[test]
    fn what_two_chunks_strew_is_one_run() {
        let job = job(&[4, 4, 8]);
        let mut gathers = Gathers::default();
        assert!(gathers.begin(&job, 4));
        for (column, row_bytes) in [(0, 4), (1, 4), (2, 8), (0, 4)] {
            let (from, gather) = gathers.of(column, &job, SLOT_BYTES).unwrap();
            assert_eq!(from, 100 * column);
            assert_eq!(gather.bytes(), 17 * row_bytes);
        }
        assert_eq!(gathers.places.len(), 2);
        let Place { slot_at, row, rows } = gathers.places[0];
        assert_eq!((slot_at, row, rows), (2 * SLOT_BYTES, 3, 16));
        let sources: Vec<_> = gathers.sources.iter().map(|source| (source.part, source.row)).collect();
        let turns = (0..8).flat_map(|row| [(0, row), (1, row)]);
        assert_eq!(sources, turns.chain([(0, 8)]).collect::<Vec<_>>());
        assert!(gathers.of(3, &job, SLOT_BYTES).is_none(), "nothing of it is read");
        assert_eq!((gathers.first(1), gathers.after(1), gathers.after(4)), (Some(1), Some(4), None));
    }

    #[test]
    fn a_first_part_that_waits_behind_the_others_is_as_good() {
        let mut job = job(&[4, 8]);
        job.copies[..2].iter_mut().for_each(|copy| copy.at += 2000);
        let mut gathers = Gathers::default();
        assert!(gathers.begin(&job, 2));
        for (column, row_bytes) in [(0, 4), (1, 8)] {
            let (from, gather) = gathers.of(column, &job, SLOT_BYTES).unwrap();
            assert_eq!((from, gather.bytes()), (1000 + 100 * column, 17 * row_bytes));
            assert_eq!(gathers.begins, [1000, 0]);
        }
    }

    #[test]
    fn rows_that_make_no_runs_are_left_alone() {
        let mut gathers = Gathers::default();
        let mut alone = job(&[4]);
        alone.copies.truncate(1);
        assert!(!gathers.begin(&alone, 1), "one copy");
        let mut long = job(&[4, 4]);
        long.taken.unit.runs.iter_mut().for_each(|span| span.count = 9);
        assert!(!gathers.begin(&long, 2), "they are runs already");
        let mut strewn = job(&[4, 4]);
        strewn.copies.retain(|copy| copy.spans.start == 0);
        assert!(gathers.begin(&strewn, 2));
        assert!(gathers.of(0, &strewn, SLOT_BYTES).is_none(), "every second row");
        let mut far = job(&[4, 4]);
        far.taken.unit.runs[0].row = 1 << 20;
        assert!(gathers.begin(&far, 2));
        assert!(gathers.of(0, &far, SLOT_BYTES).is_none(), "far apart");
        let mut large = job(&[4, 4]);
        large.copies[2].at = 1 << 33;
        assert!(gathers.begin(&large, 2));
        assert!(gathers.of(0, &large, SLOT_BYTES).is_none() && gathers.of(1, &large, SLOT_BYTES).is_some());
    }
}
