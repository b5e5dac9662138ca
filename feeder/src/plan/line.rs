//! A line: one epoch's places mapped to samples, at any place for the same cost.
//!
//! This is the plan in its reference form, one place at a time; [`Schedule`](super::Schedule) is the same plan in the
//! order of reading. Both stand on [`Span`], the shape of one shuffled span.

use std::ops::Range;
use std::sync::Arc;

use super::permute::{ChunkOrder, mix, shuffle};
use super::step::Share;
use super::{LANES_MAX, LINE_SAMPLES_MAX, PLAN_VERSION, PLAN_VERSION_MIN, PlanError, PlanKey, WINDOW_SAMPLES_MAX};

/// What a key is for: keeps the keys of pools, chunk orders and leftovers' places apart.
const POOL_KEY: u64 = 1;
const CHUNK_KEY: u64 = 2;
const REST_KEY: u64 = 3;

/// Where a place's sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// Span that holds place and sample.
    pub span: usize,
    /// Lane of the span; 0 without shuffle.
    pub lane: u32,
    /// Index of the sample on the line.
    pub index: u64,
}

/// One epoch: spans one after the other, each in its own order. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Line {
    key: PlanKey,
    ends: Arc<[u64]>,
    epoch: u64,
}

impl Line {
    /// The line of `epoch` over spans that end at `ends` (running totals; equal neighbours are empty spans).
    pub fn new(key: &PlanKey, ends: Arc<[u64]>, epoch: u64) -> Result<Self, PlanError> {
        let PlanKey { lanes, chunk, pool, .. } = *key;
        if !(PLAN_VERSION_MIN..=PLAN_VERSION).contains(&key.version) {
            return Err(PlanError::Version { found: key.version });
        }
        if lanes == 0 || chunk == 0 || pool == 0 {
            return Err(PlanError::Empty { lanes, chunk, pool });
        }
        if lanes > LANES_MAX {
            return Err(PlanError::Lanes { lanes });
        }
        let samples = u128::from(lanes) * u128::from(chunk) * u128::from(pool);
        if samples > u128::from(WINDOW_SAMPLES_MAX) {
            return Err(PlanError::TooWide { samples });
        }
        if let Some(before) = ends.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(PlanError::Ends { span: before + 1 });
        }
        match ends.last() {
            Some(&samples) if samples > LINE_SAMPLES_MAX => Err(PlanError::TooLong { samples }),
            _ => Ok(Self { key: key.clone(), ends, epoch }),
        }
    }

    /// The numbers that fix the order.
    pub fn key(&self) -> &PlanKey {
        &self.key
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Running totals of the spans.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// Samples on the line, which are as many places.
    pub fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The sample of `place`, which is below [`total`](Self::total). With shuffle its pool is opened for it, so this
    /// is for single samples: a [`Schedule`](super::Schedule) opens each pool once.
    pub fn sample(&self, place: u64) -> Placed {
        let (number, lane) = self.lane(place);
        if !self.key.shuffle {
            return Placed { span: number, lane: 0, index: place };
        }
        let span = self.span(number);
        let x = (place - span.start) / span.lanes;
        let pool = span.pool(u64::from(lane), x);
        let mut order = Vec::new();
        shuffle(&mut order, (pool.end - pool.start) as u32, span.pool_key(u64::from(lane), pool.start));
        let x = pool.start + u64::from(order[(x - pool.start) as usize]);
        Placed { span: number, lane, index: span.index(u64::from(lane), x) }
    }

    /// Samples of one rank in the step that begins at place `n`, in the order of its rows: the ranks' parts in turn are
    /// the global batch. Short at the line's end; nothing is repeated here.
    pub fn step(&self, n: u64, batch: u32, rank: u32, world: u32) -> Vec<u64> {
        let mut places: Vec<_> = (n..self.total().min(n.saturating_add(u64::from(batch)))).collect();
        places.sort_by_cached_key(|&place| (self.lane(place), place));
        let part = Share::part_of(places.len() as u64, rank, world);
        places[part.start as usize..part.end as usize].iter().map(|&place| self.sample(place).index).collect()
    }

    /// Span and lane of a place.
    fn lane(&self, place: u64) -> (usize, u32) {
        let span = self.span_of(place);
        let start = self.span_range(span).start;
        (span, if self.key.shuffle { ((place - start) % u64::from(self.key.lanes)) as u32 } else { 0 })
    }

    /// The span that holds `place`.
    pub(super) fn span_of(&self, place: u64) -> usize {
        self.ends.partition_point(|&end| end <= place)
    }

    /// Places, and samples, of a span.
    pub(super) fn span_range(&self, span: usize) -> Range<u64> {
        let start = if span == 0 { 0 } else { self.ends[span - 1] };
        start..self.ends[span]
    }

    /// The shape of a shuffled span.
    pub(super) fn span(&self, number: usize) -> Span {
        let Range { start, end } = self.span_range(number);
        let (lanes, chunk) = (u64::from(self.key.lanes), u64::from(self.key.chunk));
        let (least, more) = ((end - start) / lanes, (end - start) % lanes);
        let rounds = least / chunk;
        let key = [self.key.seed, self.epoch, number as u64];
        let key_of = |what| mix(&[key[0], key[1], key[2], what]);
        let order = ChunkOrder::new(rounds * lanes, key_of(CHUNK_KEY));
        let rest = ((u128::from(key_of(REST_KEY)) * u128::from(rounds * lanes + 1)) >> u64::BITS) as u64;
        let pool = u64::from(self.key.pool);
        let left = (end - start) - rounds * chunk * lanes;
        let moved = if self.key.version > 1 { left - left % chunk } else { left };
        Span {
            number,
            start,
            size: end - start,
            lanes,
            chunk,
            pool,
            least,
            more,
            full: rounds * chunk,
            rest,
            moved,
            key,
            order,
        }
    }
}

/// The shape of one shuffled span. A lane's samples are counted 0.. as they are dealt to it ("dealt"), and 0.. as they come
/// in training ("x"); pools are the same ranges of both.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) number: usize,
    /// First place and sample.
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) lanes: u64,
    pub(super) chunk: u64,
    /// Chunks in a pool.
    pool: u64,
    /// Samples in every lane; the first `more` lanes have one more.
    pub(super) least: u64,
    pub(super) more: u64,
    /// Samples of each lane in full chunks.
    full: u64,
    /// Full chunks that lie before the shorter ones.
    rest: u64,
    /// Samples of the shorter chunks that lie there, not at the span's end.
    moved: u64,
    key: [u64; 3],
    order: ChunkOrder,
}

impl Span {
    /// The pool of `lane` that holds its sample x.
    pub(super) fn pool(&self, lane: u64, x: u64) -> Range<u64> {
        let (first, width) = ((1 + lane * self.pool / self.lanes) * self.chunk, self.pool * self.chunk);
        let pool = match x.checked_sub(first) {
            None => 0..first,
            Some(past) => x - past % width..x - past % width + width,
        };
        pool.start..pool.end.min(self.least + u64::from(lane < self.more))
    }

    /// The key of a pool's permutation.
    pub(super) fn pool_key(&self, lane: u64, base: u64) -> u64 {
        let [seed, epoch, span] = self.key;
        mix(&[seed, epoch, span, POOL_KEY, lane, base])
    }

    /// Line index of the sample that is dealt to `lane` as number `dealt`.
    pub(super) fn index(&self, lane: u64, dealt: u64) -> u64 {
        let rest = self.start + self.rest * self.chunk;
        if dealt >= self.full {
            let left = self.left(lane) + (dealt - self.full);
            return if left < self.moved { rest + left } else { self.start + self.full * self.lanes + left };
        }
        let chunk = self.order.at(dealt / self.chunk * self.lanes + lane);
        let past = if chunk < self.rest { 0 } else { self.moved };
        self.start + chunk * self.chunk + past + dealt % self.chunk
    }

    /// The lane's number of the sample at which its shorter chunk goes on elsewhere, at the span's end; if it does.
    pub(super) fn break_of(&self, lane: u64) -> Option<u64> {
        let (from, to) = (self.left(lane), self.left(lane + 1));
        (from < self.moved && self.moved < to).then(|| self.full + self.moved - from)
    }

    /// Whether the shorter chunk of any lane is in two pieces.
    pub(super) fn is_broken(&self) -> bool {
        let shorter = self.least - self.full;
        let longer = self.more * (shorter + 1);
        let (at, width) = match self.moved.checked_sub(longer) {
            Some(at) => (at, shorter),
            None => (self.moved, shorter + 1),
        };
        width > 0 && !at.is_multiple_of(width)
    }

    /// Samples in shorter chunks of lanes before `lane`.
    fn left(&self, lane: u64) -> u64 {
        lane * (self.least - self.full) + lane.min(self.more)
    }
}
