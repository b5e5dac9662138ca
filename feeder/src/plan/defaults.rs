//! The numbers that a job starts with, when nobody names them: L, c and G from the data's size alone.
//!
//! They are chosen once, when a job starts, and kept in its state: a pure function of the bytes of a row, the samples there
//! are then, and the first number of ranks. c follows the bytes that a device likes to read at once, as long as there are
//! chunks enough to mix: with fewer than [`LANE_CHUNKS_MIN`] full chunks in each lane, chunks get smaller instead. So
//! 256 KiB are reached from 256 MiB of data on; what is smaller stays in memory, where small reads cost little.

use super::{PLAN_VERSION, PlanKey, WINDOW_SAMPLES_MAX};

/// L, unless there are more ranks.
pub const LANES: u32 = 64;
/// G.
pub const POOL_CHUNKS: u32 = 4;
/// Bytes of a chunk: what reads of warm data are fast with. Rows that do not divide it leave more than half of it.
pub const CHUNK_BYTES: u64 = 256 << 10;
/// Least full chunks in a lane, where there are samples enough. Several times G, so that a topic is more than a few
/// pools, and the shorter chunks at its end, which always come last, are less than a sixteenth of it.
pub const LANE_CHUNKS_MIN: u64 = 16;

/// The key of a new job over `total` samples of `row_bytes` each, first trained on by `world` ranks.
pub fn default_key(row_bytes: u64, total: u64, world: u32, shuffle: bool, seed: u64) -> PlanKey {
    let lanes = LANES.max(world);
    let chunk = chunk_samples(CHUNK_BYTES, row_bytes, total, lanes);
    PlanKey { version: PLAN_VERSION, shuffle, seed, lanes, chunk, pool: POOL_CHUNKS }
}

/// c for chunks of about `chunk_bytes` ([`CHUNK_BYTES`], or 1 MiB where seeking is dear): at least one sample, never more
/// bytes unless one row is, and no more samples than leave [`LANE_CHUNKS_MIN`] chunks to each of `lanes`.
pub fn chunk_samples(chunk_bytes: u64, row_bytes: u64, total: u64, lanes: u32) -> u32 {
    let lanes = u64::from(lanes.max(1));
    let by_bytes = chunk_bytes / row_bytes.max(1);
    let by_mixing = total / (lanes * LANE_CHUNKS_MIN);
    let by_memory = WINDOW_SAMPLES_MAX / (lanes * u64::from(POOL_CHUNKS));
    by_bytes.min(by_mixing).min(by_memory).max(1) as u32
}
