//! What a plan costs one rank, from arithmetic on its numbers: nothing is simulated, so any line is answered at once.
//!
//! Counts are exact, or upper bounds where it says "at most". Only [`Cost::reads_per_byte`] is an expectation: whether two ranks
//! need the same chunk depends on B, L and W, and how much of it on chance.

use std::collections::HashMap;

use super::step::Slice;
use super::{Line, PlanError, Schedule, Share, Tail};

/// Most (phase, lane) pairs looked at; beyond, phases are sampled evenly.
const PAIRS_MAX: u64 = 1 << 20;

/// The cost of one epoch for one rank of a share, from the line's beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Samples of the line, over all ranks.
    pub samples: u64,
    /// Steps.
    pub steps: u64,
    /// Samples left out by `drop_last`.
    pub dropped: u64,
    /// Rows that repeat a sample in the last step, over all ranks.
    pub padded: u64,
    /// Rows of a rank in a full step.
    pub rows: u32,
    /// Chunks of the line, shorter ones included; pieces in order.
    pub chunks: u64,
    /// Lanes that one rank draws on: the most that any does, if spans are long. 1 in order.
    pub lanes: u32,
    /// Chunks that a rank has partly delivered between two steps: at most so many.
    pub chunks_open: u64,
    /// Steps that must be open at once: at most so many.
    pub steps_open: u64,
    /// Steps of read-ahead beyond these that keep a reader busy while lanes change their chunks.
    pub steps_ahead: u64,
    /// Memory of a rank for both, in bytes of rows.
    pub slab_bytes: u64,
    /// Bytes that all ranks together read for one byte trained on; 1 when no two ranks need the same chunk.
    pub reads_per_byte: f64,
}

impl Cost {
    /// The cost of `line` in `share`, with rows of `row_bytes`. `piece` is as in [`Schedule::new`].
    pub fn of(line: &Line, share: Share, row_bytes: u64, piece: u32) -> Result<Self, PlanError> {
        let schedule = Schedule::new(line.clone(), Share { tail: Tail::Short, ..share }, 0, piece)?;
        let (samples, steps, batch) = (line.total(), schedule.steps(), u64::from(share.batch));
        let (world, left, key) = (u64::from(share.world), samples % batch, line.key());
        let lanes = if key.shuffle { LaneShares::new(line, &share) } else { LaneShares::in_order() };
        let (chunks, chunks_open, ahead) = if key.shuffle {
            let open = u64::from(lanes.most) * u64::from(key.pool);
            (chunks(line), open, u64::from(key.chunk) * u64::from(key.lanes))
        } else {
            let piece = u64::from(piece.max(1));
            (samples.div_ceil(piece), u64::from(world == 1), piece)
        };
        let steps_open = schedule.span_steps();
        let steps_ahead = ahead.div_ceil(batch).min(steps - steps_open);
        let padded = !share.drop_last && share.tail == Tail::Pad;
        Ok(Self {
            samples,
            steps,
            dropped: if share.drop_last { left } else { 0 },
            padded: if padded { left.next_multiple_of(world) - left } else { 0 },
            rows: share.rows(),
            chunks,
            lanes: lanes.most,
            chunks_open: chunks_open.min(chunks),
            steps_open,
            steps_ahead,
            slab_bytes: (steps_open + steps_ahead)
                .saturating_mul(u64::from(share.rows_max(samples)))
                .saturating_mul(row_bytes),
            reads_per_byte: lanes.reads_per_byte(key.chunk),
        })
    }
}

/// Chunks of a shuffled line.
fn chunks(line: &Line) -> u64 {
    let (lanes, chunk) = (u64::from(line.key().lanes), u64::from(line.key().chunk));
    let of_span = |span| {
        let places = line.span_range(span);
        let (least, more) = ((places.end - places.start) / lanes, (places.end - places.start) % lanes);
        let shorter = if least % chunk > 0 { lanes } else { more };
        least / chunk * lanes + shorter + u64::from(line.span(span).is_broken())
    };
    (0..line.ends().len()).map(of_span).sum()
}

/// Which part of each lane goes to which rank, in the long run.
struct LaneShares {
    /// Most lanes of one rank.
    most: u32,
    lanes: u32,
    /// For each lane and rank that meet: the rank's part of the lane's samples.
    parts: Vec<f64>,
}

impl LaneShares {
    fn in_order() -> Self {
        Self { most: 1, lanes: 1, parts: vec![1.0] }
    }

    /// A step's lanes depend on where it begins among them, which repeats after `L / gcd(B, L)` steps.
    fn new(line: &Line, share: &Share) -> Self {
        let (lanes, batch, rows) = (u64::from(line.key().lanes), u64::from(share.batch), u64::from(share.rows()));
        let period = lanes / gcd(lanes, batch);
        let phases = period.min(PAIRS_MAX / (lanes + u64::from(share.world))).max(1);
        let mut samples: HashMap<(u64, u64), u64> = HashMap::new();
        for phase in 0..phases {
            let from = (phase * period / phases) * batch % lanes;
            let slice = Slice::new(&(from..from + batch), &(0..from + batch), lanes);
            for lane in 0..lanes {
                let (mut at, end) = (slice.before(lane), slice.before(lane) + slice.count(lane));
                while at < end {
                    let stop = (at - at % rows + rows).min(end);
                    *samples.entry((lane, at / rows)).or_default() += stop - at;
                    at = stop;
                }
            }
        }
        let (mut of_lane, mut of_rank) = (HashMap::<u64, u64>::new(), HashMap::<u64, u32>::new());
        for (&(lane, rank), &count) in &samples {
            *of_lane.entry(lane).or_default() += count;
            *of_rank.entry(rank).or_default() += 1;
        }
        let most = of_rank.into_values().max().unwrap_or(0);
        let parts = samples.iter().map(|((lane, _), &count)| count as f64 / of_lane[lane] as f64).collect();
        Self { most, lanes: lanes as u32, parts }
    }

    /// A rank reads a chunk from its first sample in it to its last. Of c samples, each the rank's with probability p, this
    /// is `c - 2 * sum(q^j, j = 1..c) + c * q^c` on average, with q = 1 - p.
    fn reads_per_byte(&self, chunk: u32) -> f64 {
        let c = f64::from(chunk);
        let read = |p: f64| {
            let (q, none) = (1.0 - p, (1.0 - p).powf(c));
            c - 2.0 * q * (1.0 - none) / p + c * none
        };
        self.parts.iter().map(|&part| read(part)).sum::<f64>() / (c * f64::from(self.lanes))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
