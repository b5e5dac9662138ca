//! Which sample comes when, and into which row of which step: pure arithmetic that every rank computes alike.
//!
//! A [`Line`] is one epoch: spans of samples one after the other, and a key. It maps places (where a sample comes in
//! training) to samples, one to one within each span, and costs the same at any place. Without shuffle place n is sample n.
//! With shuffle a span's place i is sample `i / L` of lane `i % L`; chunks of c consecutive samples are visited in a keyed
//! order and dealt to the lanes in turn, what is left over is one shorter chunk per lane; a lane's samples are permuted
//! inside pools of G chunks, the first pool of lane l having `1 + l*G/L`, so that lanes need new chunks at different steps.
//! The shorter chunks come last; where they lie in the span is keyed too, so that these, and what `drop_last` leaves out,
//! are other samples each epoch. They take whole chunks from there, and what is less than one from the span's end: so every
//! full chunk begins at a multiple of c, as blocks do. (Version 1 of the order took all from there.)
//!
//! A step takes the next B places. Ordered by (span, lane, place) they are cut into W equal parts, one per rank: any W that
//! divides B gives the same global batches. A [`Share`] says whose part is meant and how the line's end is treated, and
//! a [`Schedule`] turns it round: not "which samples are in this step", but "what must be read next, and where does each
//! sample of it go", every chunk once, in the order of first need.
//!
//! [`Cost`] and [`Quality`] say what a plan costs and how well it mixes; [`default_key`] chooses L, c and G. The order
//! is pinned by [`PLAN_VERSION`]: equal keys, spans and epochs give equal orders in every build that knows it.

mod cost;
mod defaults;
mod in_order;
mod line;
mod permute;
mod quality;
mod schedule;
mod shuffled;
mod step;

#[cfg(test)]
mod tests;

pub use cost::Cost;
pub use cursorstore::PlanKey;
pub use defaults::{CHUNK_BYTES, CHUNK_SAMPLES_MAX, LANE_CHUNKS_MIN, LANES, POOL_CHUNKS, chunk_samples, default_key};
pub use line::{Line, Placed};
pub use quality::Quality;
pub use schedule::{Run, Schedule, Unit};
pub use step::{Share, Tail};

use crate::error::{Error, ErrorKind};

/// Version of the order: a change of any permutation, key or cut makes a new one.
pub const PLAN_VERSION: u32 = 2;
/// The first version, which is still known: jobs that began with it go on with it.
pub const PLAN_VERSION_MIN: u32 = 1;
/// Most samples on a line.
pub const LINE_SAMPLES_MAX: u64 = i64::MAX as u64;
/// Most lanes.
pub const LANES_MAX: u32 = 1 << 20;
/// Most samples in the open pools of all lanes together, L*G*c; a schedule may need 8 bytes for each.
pub const WINDOW_SAMPLES_MAX: u64 = 1 << 28;

/// Why there is no such plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PlanError {
    #[error(
        "the order was made by another version of the plan: version={found} known={PLAN_VERSION_MIN} to {PLAN_VERSION}"
    )]
    Version { found: u32 },
    #[error("lanes, chunk and pool are at least 1: lanes={lanes} chunk={chunk} pool={pool}")]
    Empty { lanes: u32, chunk: u32, pool: u32 },
    #[error("too many lanes: lanes={lanes} lanes_max={LANES_MAX}")]
    Lanes { lanes: u32 },
    #[error("the pools of all lanes are too large: samples={samples} samples_max={WINDOW_SAMPLES_MAX}")]
    TooWide { samples: u128 },
    #[error("the spans' ends do not grow: span={span}")]
    Ends { span: usize },
    #[error("the line is too long: samples={samples} samples_max={LINE_SAMPLES_MAX}")]
    TooLong { samples: u64 },
    #[error("no such rank: rank={rank} world={world}")]
    Rank { rank: u32, world: u32 },
    #[error("the global batch does not divide by the number of ranks: batch={batch} world={world}")]
    Batch { batch: u32, world: u32 },
    #[error("the cursor is past the end of the epoch: n={n} samples={samples}")]
    Cursor { n: u64, samples: u64 },
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        let kind = match error {
            PlanError::Version { .. } | PlanError::Cursor { .. } => ErrorKind::StateMismatch,
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}
