//! The numbers that a job starts with when nobody names them: L, c and G from the data's size alone.
//!
//! They are chosen once, when a job starts, and kept in its state: a pure function of the bytes of a row, the samples there
//! are then, and the first number of ranks. c follows the bytes that a device likes to read at once, as long as there are
//! chunks enough to mix. A small topic gets smaller chunks: [`LANE_CHUNKS_MIN`] full ones in each lane, and when even
//! chunks of one sample are too few, fewer lanes. So 256 KiB are reached from 256 MiB of data on; what is smaller stays in
//! memory, where small reads cost little. Rows below 256 bytes stop at [`CHUNK_SAMPLES_MAX`]: their cost is by row, and
//! more would only keep more steps open. Where there are chunks enough, c is the rows of a block, a power of two
//! ([`block_rows`](crate::log::block_rows)): a chunk is then one read. Last, c shrinks by up to a half where that
//! leaves fewer samples over: the shorter chunks come last, all from one stretch of the topic.

use super::{LANES_MAX, PLAN_VERSION, PlanKey, WINDOW_SAMPLES_MAX};
use crate::log::{BLOCK_BYTES, rows_within};

/// L, unless there are more ranks or very few samples.
pub const LANES: u32 = 64;
/// G.
pub const POOL_CHUNKS: u32 = 4;
/// Bytes of a chunk: a block's, which reads of warm data are fast with.
pub const CHUNK_BYTES: u64 = BLOCK_BYTES as u64;
/// Most samples of a chunk.
pub const CHUNK_SAMPLES_MAX: u64 = 1024;
/// Least full chunks in a lane, where there are samples enough: four pools.
pub const LANE_CHUNKS_MIN: u64 = 4 * POOL_CHUNKS as u64;
/// c is not changed for leftovers below this part of all samples.
const LEFT_OVER_PART: u64 = 64;
/// The same for a power of two, which is worth more.
const LEFT_OVER_ALIGNED_PART: u64 = 32;

/// The key of a new job over `total` samples of `row_bytes` each, first trained on by `world` ranks.
pub fn default_key(row_bytes: u64, total: u64, world: u32, shuffle: bool, seed: u64) -> PlanKey {
    let few = u32::try_from(total / LANE_CHUNKS_MIN).unwrap_or(u32::MAX).max(1);
    let lanes = LANES.max(world).min(few).min(LANES_MAX);
    let chunk = chunk_samples(CHUNK_BYTES, row_bytes, total, lanes);
    PlanKey { version: PLAN_VERSION, shuffle, seed, lanes, chunk, pool: POOL_CHUNKS }
}

/// c for chunks of about `chunk_bytes` ([`CHUNK_BYTES`], or 1 MiB where seeking is dear): at least one sample, otherwise
/// at most half more than these bytes, no more than [`CHUNK_SAMPLES_MAX`], and [`LANE_CHUNKS_MIN`] chunks for each lane; a power
/// of two where there are more chunks than that.
pub fn chunk_samples(chunk_bytes: u64, row_bytes: u64, total: u64, lanes: u32) -> u32 {
    let lanes = u64::from(lanes.max(1));
    let by_bytes = rows_within(chunk_bytes, row_bytes);
    let by_mixing = total / (lanes * LANE_CHUNKS_MIN);
    let by_memory = CHUNK_SAMPLES_MAX.min(WINDOW_SAMPLES_MAX / (lanes * u64::from(POOL_CHUNKS)));
    let most = by_bytes.min(by_mixing).min(by_memory).max(1);
    let left_over = |chunk: &u64| total % (lanes * chunk);
    let aligned = 1 << most.ilog2();
    if most < by_mixing && left_over(&aligned) <= total / LEFT_OVER_ALIGNED_PART {
        return aligned as u32;
    }
    let candidates = || (most / 2 + 1..=most).rev();
    let chunk = candidates()
        .find(|chunk| left_over(chunk) <= total / LEFT_OVER_PART)
        .or_else(|| candidates().min_by_key(left_over))
        .unwrap_or(most);
    chunk as u32
}
