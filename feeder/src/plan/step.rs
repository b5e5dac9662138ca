//! Steps: which part of a step is whose, and at which row a place stands. All in O(1) a step and lane.
//!
//! A step's places are a range of the line, so within a span they are `i0..i1`, and lane l has those with `i % L == l`. How many
//! places of lanes below l lie before `i = q*L + r` is `q*l + min(r, l)`: two such counts give the position of a lane in a
//! step, and no step is ever sorted.

use std::ops::Range;

use super::{Line, PlanError};

/// How the last step of a line is filled when places run out and several ranks share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// All ranks get equally many rows; a rank with fewer repeats its own first row or, with none, the step's first
    /// sample.
    #[default]
    Pad,
    /// Ranks may get fewer rows, or none.
    Short,
}

/// One rank's share of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// This rank.
    pub rank: u32,
    /// W: ranks.
    pub world: u32,
    /// B: places in a step, over all ranks. W divides it.
    pub batch: u32,
    /// How the last step is filled.
    pub tail: Tail,
    /// Leaves out a last step that is not full.
    pub drop_last: bool,
}

impl Share {
    /// Refuses shares that do not exist.
    pub fn check(&self) -> Result<(), PlanError> {
        let Self { rank, world, batch, .. } = *self;
        if rank >= world {
            return Err(PlanError::Rank { rank, world });
        }
        if batch == 0 || !batch.is_multiple_of(world) {
            return Err(PlanError::Batch { batch, world });
        }
        Ok(())
    }

    /// Rows of each rank in a full step.
    pub fn rows(&self) -> u32 {
        self.batch / self.world
    }

    /// Most rows that a rank gets of any step of a line of `total` samples, repeats included.
    pub fn rows_max(&self, total: u64) -> u32 {
        u64::from(self.batch).min(total).div_ceil(u64::from(self.world)) as u32
    }

    /// Rows of this rank that are no repeats, in a step of which `left` places are there before the line's end.
    pub fn valid_rows(&self, left: u64) -> u32 {
        let part = Self::part_of(left.min(u64::from(self.batch)), self.rank, self.world);
        (part.end - part.start) as u32
    }

    /// The part of `rank` in a step of `places`: positions in the step's order.
    pub(super) fn part_of(places: u64, rank: u32, world: u32) -> Range<u64> {
        let (rank, world) = (u128::from(rank), u128::from(world));
        let cut = |rank: u128| (u128::from(places) * rank / world) as u64;
        cut(rank)..cut(rank + 1)
    }
}

/// The steps of a share from a cursor to the line's end.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    /// The cursor.
    pub(super) from: u64,
    /// B.
    pub(super) batch: u64,
    /// Number of steps.
    pub(super) count: u64,
    /// Whether further steps follow before the line's end.
    goes_on: bool,
    share: Share,
    /// Places of the last step when it is short, else 0.
    short: u64,
    /// This rank's part of a full step, and of the short one.
    whole_part: Range<u64>,
    short_part: Range<u64>,
}

impl Steps {
    /// The first ones from place `n` on, `count_max` at most.
    pub(super) fn new(share: Share, n: u64, total: u64, count_max: u64) -> Result<Self, PlanError> {
        share.check()?;
        let batch = u64::from(share.batch);
        let left = total.checked_sub(n).ok_or(PlanError::Cursor { n, samples: total })?;
        let short = if share.drop_last { 0 } else { left % batch };
        let all = left / batch + u64::from(short > 0);
        let (count, goes_on) = (all.min(count_max), all > count_max);
        let short = if goes_on { 0 } else { short };
        let part = |places| Share::part_of(places, share.rank, share.world);
        Ok(Self { from: n, batch, count, goes_on, share, short, whole_part: part(batch), short_part: part(short) })
    }

    /// The place after the last of these steps, if further ones follow.
    pub(super) fn rest(&self) -> Option<u64> {
        self.goes_on.then(|| self.place(self.count))
    }

    /// Whether `step` is the short one at the line's end.
    fn is_short(&self, step: u64) -> bool {
        self.short > 0 && step + 1 == self.count
    }

    /// How many steps, from the first on, are full and end at or before place `end`.
    pub(super) fn whole_until(&self, end: u64) -> u64 {
        let full = self.count - u64::from(self.short > 0);
        full.min(end.saturating_sub(self.from) / self.batch)
    }

    /// Whether there is one rank only.
    pub(super) fn alone(&self) -> bool {
        self.share.world == 1
    }

    /// First place of a step.
    pub(super) fn place(&self, step: u64) -> u64 {
        self.from + step * self.batch
    }

    /// Places of a step.
    pub(super) fn places(&self, step: u64) -> Range<u64> {
        let place = self.place(step);
        place..place + if self.is_short(step) { self.short } else { self.batch }
    }

    /// This rank's positions in a step's order.
    pub(super) fn part(&self, step: u64) -> Range<u64> {
        if self.is_short(step) { self.short_part.clone() } else { self.whole_part.clone() }
    }

    /// Rows of this rank in a step, repeats included.
    pub(super) fn rows(&self, step: u64) -> u32 {
        let part = self.part(step);
        let padded = self.is_short(step) && self.share.tail == Tail::Pad;
        let rows = if padded { self.short.div_ceil(u64::from(self.share.world)) } else { part.end - part.start };
        rows as u32
    }

    /// The row of the last step that this rank repeats, with the position that it repeats.
    pub(super) fn pad(&self) -> Option<(u32, u64)> {
        let valid = (self.short_part.end - self.short_part.start) as u32;
        let last = self.count.checked_sub(1)?;
        // Parts differ by one place at most, so there is never a second row to repeat.
        (self.rows(last) > valid && self.is_short(last))
            .then_some((valid, if valid > 0 { self.short_part.start } else { 0 }))
    }

    /// The place at `position` of a step's order.
    pub(super) fn place_at(&self, line: &Line, step: u64, position: u64) -> u64 {
        let places = self.places(step);
        if !line.key().shuffle {
            return places.start + position;
        }
        let span = line.span_range(line.span_of(places.start + position));
        let slice = Slice::new(&places, &span, u64::from(line.key().lanes));
        let position = position - (places.start.max(span.start) - places.start);
        let lane = slice.lane_at(position);
        span.start + (slice.first(lane) + position - slice.before(lane)) * slice.lanes + lane
    }
}

/// A place of a shuffled span: sample x of a lane, or any border between places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) x: u64,
    pub(super) lane: u64,
}

impl Mark {
    pub(super) fn new(i: u64, lanes: u64) -> Self {
        Self { x: i / lanes, lane: i % lanes }
    }

    /// The mark as many places further on as `far` is from the span's start.
    pub(super) fn plus(self, far: Self, lanes: u64) -> Self {
        let (x, lane) = (self.x + far.x, self.lane + far.lane);
        if lane < lanes { Self { x, lane } } else { Self { x: x + 1, lane: lane - lanes } }
    }

    /// Places of the span before this one and in lanes below `lane`.
    fn before(self, lane: u64) -> u64 {
        self.x * lane + self.lane.min(lane)
    }

    /// The lane's first sample at or after this place.
    pub(super) fn next(self, lane: u64) -> u64 {
        self.x + u64::from(self.lane > lane)
    }
}

/// The places of one step within one shuffled span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) lanes: u64,
    pub(super) from: Mark,
    pub(super) to: Mark,
}

impl Slice {
    /// `places` of the line as far as they lie within `span`.
    pub(super) fn new(places: &Range<u64>, span: &Range<u64>, lanes: u64) -> Self {
        let (from, to) = (places.start.max(span.start) - span.start, places.end.min(span.end) - span.start);
        Self { lanes, from: Mark::new(from, lanes), to: Mark::new(to, lanes) }
    }

    /// Places in lanes below `lane`: the position of the lane's first place in the slice's order.
    pub(super) fn before(&self, lane: u64) -> u64 {
        self.to.before(lane) - self.from.before(lane)
    }

    /// The lane's first sample.
    pub(super) fn first(&self, lane: u64) -> u64 {
        self.from.next(lane)
    }

    /// Places of a lane.
    pub(super) fn count(&self, lane: u64) -> u64 {
        self.to.next(lane) - self.from.next(lane)
    }

    /// One past the last of the lanes from `lane` on that all have places.
    pub(super) fn neighbours_end(&self, lane: u64) -> u64 {
        match self.to.x - self.from.x {
            0 => self.to.lane,
            // The slice goes round the last lane: lanes from `to` up to `from` have none.
            1 if lane < self.from.lane && self.to.lane < self.from.lane => self.to.lane.max(lane),
            _ => self.lanes,
        }
    }

    /// The lane that holds `position` of the slice's order.
    pub(super) fn lane_at(&self, position: u64) -> u64 {
        if position == 0 && self.count(0) > 0 {
            return 0;
        }
        let (mut low, mut high) = (0, self.lanes);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.before(middle) <= position { low = middle } else { high = middle }
        }
        low
    }
}
