//! Units of a shuffled line.
//!
//! Steps are walked in turn. In each, of the lanes with places of this rank only those are visited that are due: one of their
//! chunks is first needed there, or their pool ends. A lane has at most one pool open: when a step reaches past it the next one
//! is opened, that is, permuted once, and every row that this rank has in it is written down by chunk ([`Pool::cells`]). A
//! chunk is given out with all its rows at the first step that needs it, or [beside](Shuffled::next_beside) another of its
//! pool; a pool whose chunks are all given out gives its memory back. So at a time only pools with chunks still to come are
//! held, and starting anywhere opens one pool a lane, whole, of which only rows at or after the cursor are kept.

use std::ops::Range;

use super::Line;
use super::line::Span;
use super::permute::shuffle;
use super::schedule::{Run, Unit};
use super::step::{Mark, Slice, Steps};

/// A sample of the pool that this rank does not need.
const NONE: u64 = u64::MAX;
/// No pool.
const CLOSED: usize = usize::MAX;

#[derive(Clone, Debug)]
pub(super) struct Shuffled {
    /// Per lane, see there.
    lanes: Vec<LaneState>,
    /// Per lane of the span walked on, the first step in which it must be visited, or an earlier one. Apart from the rest, so
    /// that the many lanes that are not due are passed by quickly.
    due: Vec<u64>,
    pools: Vec<Pool>,
    /// Pools that are not open.
    free: Vec<usize>,
    /// The permutation of the pool just opened, and which of its chunks were come upon.
    order: Vec<u32>,
    seen: Vec<bool>,
    /// Where the walk stands: the step with its places, this rank's next position in it and the end of its part.
    step: u64,
    places: Range<u64>,
    at: u64,
    end: u64,
    /// The span walked on, the step's places in it, and the position of the first of them and after the last of them.
    span: Option<Span>,
    slice: Slice,
    slice_at: u64,
    slice_end: u64,
    /// The lane that holds `at`, and the position of its first place; and the lane after the last one that this rank has.
    lane: u64,
    lane_at: u64,
    lane_end: u64,
    /// Samples x of `visiting` that this rank has in the step and that are not yet looked after.
    visit: Range<u64>,
    visiting: u64,
}

/// What the walk must know of a lane to pass it by.
#[derive(Clone, Debug)]
struct LaneState {
    /// Span and end of the lane's last opened pool: samples below are looked after.
    span: usize,
    end: u64,
    /// First step that needs another chunk of the open pool; the largest number when there is none.
    next_step: u64,
    /// First step with samples at or after `end`, or an earlier one.
    end_step: u64,
    /// The open pool, while chunks of it are still to be given out.
    pool: usize,
}

/// A pool with chunks still to be given out.
#[derive(Clone, Debug, Default)]
struct Pool {
    /// Its samples.
    range: Range<u64>,
    /// The step that `cells` count from.
    step: u64,
    /// Per dealt sample of the pool: step and row that it goes to, as `step << 32 | row`, or `NONE`.
    cells: Vec<u64>,
    /// Chunks that this rank needs as (first cell value, first cell), by first need; the first `given` are given out.
    chunks: Vec<(u64, u32)>,
    /// The cell at which a chunk goes on elsewhere, and so is two; the largest number if none does.
    broken: usize,
    given: usize,
}

impl Pool {
    /// Writes down that the samples `x`, in the order of training, go to the cells' values from `first` on. `order` is the
    /// pool's permutation.
    fn write(&mut self, order: &[u32], first: u64, x: Range<u64>) {
        if x.is_empty() {
            return;
        }
        let start = self.range.start;
        for (cell, &dealt) in (first..).zip(&order[(x.start - start) as usize..(x.end - start) as usize]) {
            self.cells[dealt as usize] = cell;
        }
    }

    /// Writes down the turns that follow the samples `x`, which go to the cells' values from `first` on.
    fn write_again(&mut self, order: &[u32], first: u64, x: Range<u64>, again: &Again) {
        let &Again { turns, samples, stride } = again;
        let Range { start, end } = self.range;
        if x.end - x.start == 1 {
            // One row a turn, as where lanes are many.
            let later = order.iter().skip((x.start - start) as usize).step_by(samples as usize).skip(1);
            for (turn, &dealt) in (1..=turns).zip(later) {
                self.cells[dealt as usize] = first + ((turn * stride) << 32);
            }
            return;
        }
        for turn in 1..=turns {
            let x = x.start + turn * samples..(x.end + turn * samples).min(end);
            self.write(order, first + ((turn * stride) << 32), x);
        }
    }

    /// Lists the chunks, of `chunk` cells, by the first of their cells that is given out. `order` is what is left of the
    /// permutation: cells are given out in this order.
    fn find_chunks(&mut self, order: &[u32], chunk: usize, seen: &mut Vec<bool>) {
        self.chunks.clear();
        let (whole, broken) = (self.cells.len().div_ceil(chunk), self.broken);
        let is_broken = broken < self.cells.len() && !broken.is_multiple_of(chunk);
        let chunks = whole + usize::from(is_broken);
        seen.clear();
        seen.resize(chunks, false);
        for &dealt in order {
            let dealt = dealt as usize;
            let number = dealt / chunk;
            let beyond = is_broken && number == broken / chunk && dealt >= broken;
            // The part of a broken chunk behind its break counts as the last one.
            let (number, at) = if beyond { (whole, broken) } else { (number, number * chunk) };
            if self.cells[dealt] != NONE && !std::mem::replace(&mut seen[number], true) {
                self.chunks.push((self.cells[dealt], at as u32));
                if self.chunks.len() == chunks {
                    return;
                }
            }
        }
    }

    /// Where the chunk of `chunk` cells ends that begins at cell `at`.
    fn chunk_end(&self, at: usize, chunk: usize) -> usize {
        let end = (at - at % chunk + chunk).min(self.cells.len());
        if (at + 1..end).contains(&self.broken) { self.broken } else { end }
    }
}

impl Shuffled {
    pub(super) fn new(line: &Line, steps: &Steps) -> Self {
        let lane = LaneState { span: usize::MAX, end: 0, next_step: u64::MAX, end_step: 0, pool: CLOSED };
        let mark = Mark::new(0, 1);
        let mut this = Self {
            lanes: vec![lane; line.key().lanes as usize],
            due: vec![0; line.key().lanes as usize],
            pools: Vec::new(),
            free: Vec::new(),
            order: Vec::new(),
            seen: Vec::new(),
            step: 0,
            places: 0..0,
            at: 0,
            end: 0,
            span: None,
            slice: Slice { lanes: 1, from: mark, to: mark },
            slice_at: 0,
            slice_end: 0,
            lane: 0,
            lane_at: 0,
            lane_end: 0,
            visit: 0..0,
            visiting: 0,
        };
        if steps.count > 0 {
            this.enter_step(steps);
        }
        this
    }

    /// See [`Schedule::next_into`](super::Schedule::next_into); gives the samples of the whole chunk.
    pub(super) fn next_into(&mut self, line: &Line, steps: &Steps, unit: &mut Unit) -> Option<Range<u64>> {
        loop {
            while !self.visit.is_empty() {
                let lane = &self.lanes[self.visiting as usize];
                if lane.next_step == self.step {
                    unit.clear();
                    return Some(self.give_out(unit));
                }
                let span = self.span.as_ref().expect("the walk is in a span");
                if lane.span == span.number && self.visit.start < lane.end {
                    self.visit.start = lane.end;
                } else {
                    self.open(steps);
                }
            }
            if !self.walk(line, steps) {
                return None;
            }
        }
    }

    /// Adds another chunk of the pool that the last one is of, also one that only a later step needs: that is soon, and together
    /// they lie in the same steps (single samples do not, each of which is in one). Gives its samples.
    pub(super) fn next_beside(&mut self, unit: &mut Unit) -> Option<Range<u64>> {
        let (lane, singles) =
            (&self.lanes[self.visiting as usize], self.span.as_ref().is_some_and(|span| span.chunk == 1));
        if self.visit.is_empty() || lane.pool == CLOSED || (singles && lane.next_step != self.step) {
            return None;
        }
        unit.cuts.push(unit.runs.len());
        Some(self.give_out(unit))
    }

    /// Goes on to the next lane, and step, that needs looking after.
    fn walk(&mut self, line: &Line, steps: &Steps) -> bool {
        loop {
            while self.at == self.end {
                self.step += 1;
                if self.step >= steps.count {
                    (self.step, self.at, self.end) = (steps.count, 0, 0);
                    return false;
                }
                self.enter_step(steps);
            }
            if self.at >= self.slice_end {
                self.enter_slice(line);
            }
            self.pass_lanes();
            if self.at >= self.slice_end.min(self.end) {
                continue;
            }
            let count = self.slice.count(self.lane);
            if count == 0 {
                // Between the lanes of a step that wraps round; the next one used is the first place's own.
                self.lane = (self.lane + 1).max(self.slice.from.lane);
                continue;
            }
            let lane = self.lane;
            let x = self.slice.first(lane) + (self.at - self.lane_at);
            let taken = (self.lane_at + count).min(self.end) - self.at;
            self.at += taken;
            self.lane_at += count;
            self.lane += 1;
            (self.visiting, self.visit) = (lane, x..x + taken);
            return true;
        }
    }

    /// Goes on to the next lane that is due, or past the last one of those that have places side by side.
    fn pass_lanes(&mut self) {
        let end = self.slice.neighbours_end(self.lane).min(self.lane_end);
        let due = &self.due[self.lane as usize..end as usize];
        let passed = due.iter().position(|&due| due <= self.step).unwrap_or(due.len());
        if passed > 0 {
            self.lane += passed as u64;
            self.lane_at = self.slice_at + self.slice.before(self.lane);
            self.at = self.lane_at.min(self.end);
        }
    }

    fn enter_step(&mut self, steps: &Steps) {
        self.places = steps.places(self.step);
        (self.at, self.end) = (steps.part(self.step).start, steps.part(self.step).end);
        self.slice_end = 0;
    }

    /// Finds span and lane of the position `at`.
    fn enter_slice(&mut self, line: &Line) {
        let place = self.places.start + self.at;
        if self.span.as_ref().is_none_or(|span| place >= span.start + span.size) {
            let span = self.span.insert(line.span(line.span_of(place)));
            // No further lane has samples there.
            self.due[..span.lanes.min(span.size) as usize].fill(0);
        }
        let span = self.span.as_ref().expect("just entered");
        let range = span.start..span.start + span.size;
        self.slice = Slice::new(&self.places, &range, span.lanes);
        self.slice_at = self.places.start.max(range.start) - self.places.start;
        self.slice_end = self.places.end.min(range.end) - self.places.start;
        self.lane = self.slice.lane_at(self.at - self.slice_at);
        self.lane_at = self.slice_at + self.slice.before(self.lane);
        self.lane_end = match self.end < self.slice_end {
            true => self.slice.lane_at(self.end - 1 - self.slice_at) + 1,
            false => self.slice.lanes,
        };
    }

    /// Opens the pool that holds the first sample of the visit.
    fn open(&mut self, steps: &Steps) {
        let span = self.span.as_ref().expect("the walk is in a span");
        let lane = self.visiting;
        let range = span.pool(lane, self.visit.start);
        let (size, key) = ((range.end - range.start) as usize, span.pool_key(lane, range.start));
        shuffle(&mut self.order, size as u32, key);
        let number = self.free.pop().unwrap_or_else(|| {
            self.pools.push(Pool::default());
            self.pools.len() - 1
        });
        let pool = &mut self.pools[number];
        (pool.range, pool.step, pool.given) = (range.clone(), self.step, 0);
        pool.cells.clear();
        pool.cells.resize(size, NONE);
        let mut rows = Rows::new(span, steps, lane, self.visit.start, self.step);
        let mut last = self.step;
        while rows.x < range.end && rows.step < steps.count {
            let (samples, row) = rows.next(span, steps);
            let start = samples.start.max(self.visit.start);
            let end = samples.end.min(range.end);
            let first = (rows.took - pool.step) << 32 | row;
            pool.write(&self.order, first + start.saturating_sub(samples.start), start..end);
            // From here on the lane's samples go to the same rows of steps that are equally far apart, while steps are whole.
            let again = rows.again(span, steps, range.end);
            pool.write_again(&self.order, first, samples, &again);
            last = rows.took + again.turns * again.stride;
            rows.skip(&again);
        }
        // The last of these steps may have reached beyond the pool.
        let end_step = if rows.x > range.end { last } else { rows.step };
        pool.broken = span.break_of(lane).map_or(usize::MAX, |at| at.saturating_sub(range.start) as usize);
        pool.find_chunks(&self.order[(self.visit.start - range.start) as usize..], span.chunk as usize, &mut self.seen);
        let next_step = pool.step + (pool.chunks[0].0 >> 32);
        self.lanes[lane as usize] = LaneState { span: span.number, end: range.end, next_step, end_step, pool: number };
        self.due[lane as usize] = next_step.min(end_step);
    }

    /// Gives out the next chunk of the visited lane's pool, behind what the unit holds already.
    fn give_out(&mut self, unit: &mut Unit) -> Range<u64> {
        let span = self.span.as_ref().expect("the walk is in a span");
        let lane = &mut self.lanes[self.visiting as usize];
        let pool = &mut self.pools[lane.pool];
        let (first, at) = pool.chunks[pool.given];
        let cells = &pool.cells[at as usize..pool.chunk_end(at as usize, span.chunk as usize)];
        let start = span.index(self.visiting, pool.range.start + u64::from(at));
        let last = collect(cells, start, pool.step, &mut unit.runs);
        unit.span_runs(pool.step + (first >> 32), pool.step + last);
        pool.given += 1;
        match pool.chunks.get(pool.given) {
            Some((first, _)) => lane.next_step = pool.step + (first >> 32),
            None => {
                self.free.push(lane.pool);
                (lane.next_step, lane.pool) = (u64::MAX, CLOSED);
            }
        }
        self.due[self.visiting as usize] = lane.next_step.min(lane.end_step);
        start..start + cells.len() as u64
    }

    #[cfg(test)]
    pub(super) fn pools(&self) -> usize {
        self.pools.len()
    }

    pub(super) fn span_steps(line: &Line, steps: &Steps) -> u64 {
        let key = line.key();
        if key.chunk == 1 {
            return 1;
        }
        // A chunk's samples lie in one pool of one lane.
        let ends = line.ends();
        let largest = (0..ends.len()).map(|span| line.span_range(span)).map(|range| range.end - range.start).max();
        let longest = largest.unwrap_or(0).div_ceil(u64::from(key.lanes));
        let samples = (u64::from(key.pool) * u64::from(key.chunk)).min(longest).max(1);
        ((samples - 1) * u64::from(key.lanes)).div_ceil(steps.batch) + 1
    }
}

/// Adds runs of a chunk's cells; gives the last step among them, relative as in the cells.
fn collect(cells: &[u64], start: u64, step: u64, runs: &mut Vec<Run>) -> u64 {
    let (mut following, mut last) = (NONE, 0);
    runs.reserve(cells.len());
    for (index, &cell) in (start..).zip(cells) {
        if cell == NONE {
            following = NONE;
            continue;
        }
        match runs.last_mut() {
            // The one that these cells began.
            Some(run) if cell == following => run.count += 1,
            _ => runs.push(Run { index, count: 1, step: step + (cell >> 32), row: cell as u32 }),
        }
        last = last.max(cell);
        following = cell + 1;
    }
    last >> 32
}

/// Walks the steps that a lane's samples fall into, from one sample on, and says which rows of this rank they are.
struct Rows {
    lane: u64,
    /// How far on a step goes.
    batch: Mark,
    /// The lane's first sample in `step`, and how far into the step its place is.
    x: u64,
    step: u64,
    offset: u64,
    /// The step of the samples given last.
    took: u64,
}

/// How often the same rows come again, and how much further on samples and steps are each time.
struct Again {
    turns: u64,
    samples: u64,
    stride: u64,
}

impl Again {
    const NEVER: Self = Self { turns: 0, samples: 1, stride: 1 };
}

impl Rows {
    /// Begins at the first sample that lane `lane` has in `step`, which is the one that holds its sample `x`.
    fn new(span: &Span, steps: &Steps, lane: u64, x: u64, step: u64) -> Self {
        let offset = span.start + x * span.lanes + lane - steps.place(step);
        let back = (offset / span.lanes).min(x);
        let batch = Mark::new(steps.batch, span.lanes);
        Self { lane, batch, x: x - back, step, offset: offset - back * span.lanes, took: step }
    }

    /// The lane's samples in the step that belong to this rank, with the row of the first; goes on to the next step.
    fn next(&mut self, span: &Span, steps: &Steps) -> (Range<u64>, u64) {
        let (lane, x, lanes) = (self.lane, self.x, span.lanes);
        // Where the step begins and ends within the span. Except where the span begins inside it, its first place is less than
        // a round of lanes before the lane's first sample in it.
        let (from, before) = match lane.checked_sub(self.offset) {
            Some(lane) => (Mark { x, lane }, 0),
            None if x > 0 => (Mark { x: x - 1, lane: lane + lanes - self.offset }, 0),
            None => (Mark { x: 0, lane: 0 }, self.offset - lane),
        };
        let whole = if before == 0 { self.batch } else { Mark::new(steps.batch - before, lanes) };
        let to = from.plus(whole, lanes).min(Mark { x: span.least, lane: span.more });
        let slice = Slice { lanes, from, to };
        let (first, end) = (before + slice.before(lane), to.next(lane));
        let part = steps.part(self.step);
        let (start, stop) = (first.max(part.start), (first + (end - x)).min(part.end));
        let samples = if start < stop { x + (start - first)..x + (stop - first) } else { x..x };
        self.took = self.step;
        self.go_on(end, to, lanes, steps.batch);
        (samples, start.saturating_sub(part.start))
    }

    /// What follows after [`next`](Self::next) in the same rows, as far as it begins before sample `end`.
    fn again(&self, span: &Span, steps: &Steps, end: u64) -> Again {
        let (batch, lanes) = (steps.batch, span.lanes);
        let (samples, stride) = match (batch.is_multiple_of(lanes), lanes.is_multiple_of(batch)) {
            (true, _) => (batch / lanes, 1),
            (false, true) => (1, lanes / batch),
            (false, false) => return Again::NEVER,
        };
        if steps.place(self.took) < span.start {
            return Again::NEVER;
        }
        let whole = steps.whole_until(span.start + span.size);
        let turns = (whole.saturating_sub(self.took + 1) / stride).min(end.saturating_sub(self.x).div_ceil(samples));
        Again { turns, samples, stride }
    }

    /// Passes these turns by.
    fn skip(&mut self, again: &Again) {
        self.step += again.turns * again.stride;
        self.x += again.turns * again.samples;
    }

    /// Goes on to sample `x`, the lane's first at or after the end `to` of the step.
    fn go_on(&mut self, x: u64, to: Mark, lanes: u64, batch: u64) {
        let gap = if self.lane >= to.lane { self.lane - to.lane } else { self.lane + lanes - to.lane };
        self.x = x;
        if gap < batch {
            (self.step, self.offset) = (self.step + 1, gap);
        } else {
            (self.step, self.offset) = (self.step + 1 + gap / batch, gap % batch);
        }
    }
}
