//! What a caller asks of a loader, as plain values. [`Settings::check`] refuses what cannot be, with the values allowed.

use cursorstore::PlanKey;

use crate::error::{Error, Result};
use crate::plan::{self, Share, Tail};
use crate::reader::{DirectReads, ReaderKind};

/// Most samples of one global batch.
pub const BATCH_MAX: u32 = 1 << 24;
/// Most ranks.
pub const WORLD_MAX: u32 = 1 << 20;
/// Most lanes of a plan.
pub const LANES_MAX: u32 = 1 << 20;
/// Most samples of a plan's chunk.
pub const CHUNK_MAX: u32 = 1 << 30;
/// Most chunks of a plan's pool.
pub const POOL_MAX: u32 = 1 << 10;
/// Most reader threads of one loader.
pub const READER_THREADS_MAX: usize = 16;
/// Most reads in flight on one reader thread.
pub const DEPTH_MAX: usize = 256;

/// Which blocks are compared with their checksums when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Every byte.
    Always,
    /// Of what is read, one block in [`Checksum::SAMPLE`]; of a block read in parts, one part.
    Sampled,
    /// None.
    Off,
}

impl Checksum {
    /// One block in so many is checked under [`Checksum::Sampled`].
    pub const SAMPLE: u64 = 64;
    /// Names, for arguments.
    pub const NAMES: [&str; 3] = ["always", "sampled", "off"];

    /// The policy of that name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "always" => Ok(Self::Always),
            "sampled" => Ok(Self::Sampled),
            "off" => Ok(Self::Off),
            _ => Err(unknown("checksum", name, &Self::NAMES)),
        }
    }
}

/// What happens to a record whose bytes do not match their checksum, or cannot be compared with it or found any more because
/// the header of its block is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBadRecord {
    /// The step that needs it fails.
    Raise,
    /// Its row is zeroed and marked false in the batch's `mask`.
    Mask,
    /// Its row holds another sample instead: the nearest good one that follows in the topic.
    Substitute,
}

impl OnBadRecord {
    /// Names, for arguments.
    pub const NAMES: [&str; 3] = ["raise", "mask", "substitute"];

    /// The policy of that name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "raise" => Ok(Self::Raise),
            "mask" => Ok(Self::Mask),
            "substitute" => Ok(Self::Substitute),
            _ => Err(unknown("on_bad_record", name, &Self::NAMES)),
        }
    }
}

/// The tail policy of that name.
pub fn parse_tail(name: &str) -> Result<Tail> {
    match name {
        "pad" => Ok(Tail::Pad),
        "short" => Ok(Tail::Short),
        _ => Err(unknown("tail", name, &["pad", "short"])),
    }
}

/// The reader of that name.
pub fn parse_reader(name: &str) -> Result<ReaderKind> {
    match name {
        "auto" => Ok(ReaderKind::Auto),
        "io_uring" => Ok(ReaderKind::Uring),
        "preadv" => Ok(ReaderKind::Preadv),
        _ => Err(unknown("reader", name, &["auto", "io_uring", "preadv"])),
    }
}

/// The way to read cold data of that name.
pub fn parse_direct(name: &str) -> Result<DirectReads> {
    match name {
        "auto" => Ok(DirectReads::Auto),
        "on" => Ok(DirectReads::On),
        "off" => Ok(DirectReads::Off),
        _ => Err(unknown("direct", name, &["auto", "on", "off"])),
    }
}

/// Refuses numbers of a plan, a caller's or a state's, that nobody means.
pub(crate) fn check_plan(lanes: Option<u32>, chunk: Option<u32>, pool: Option<u32>) -> Result<()> {
    let tops = [("lanes", lanes, LANES_MAX), ("chunk", chunk, CHUNK_MAX), ("pool", pool, POOL_MAX)];
    for (name, value, top) in tops {
        if let Some(value) = value.filter(|value| !(1..=top).contains(value)) {
            return Err(Error::invalid(format!("{name} is 1 to {top}: {name}={value}")));
        }
    }
    Ok(())
}

/// Refuses steps that cannot be cut into equal parts for all ranks.
pub(crate) fn check_step(global_batch: u32, world: u32) -> Result<()> {
    if !(1..=WORLD_MAX).contains(&world) {
        return Err(Error::invalid(format!("world_size is 1 to {WORLD_MAX}: world_size={world}")));
    }
    if !(1..=BATCH_MAX).contains(&global_batch) {
        return Err(Error::invalid(format!(
            "a global batch has 1 to {BATCH_MAX} samples: global_batch_size={global_batch}"
        )));
    }
    if !global_batch.is_multiple_of(world) {
        let below = global_batch / world * world;
        let (near, above) = (if below == 0 { world } else { below }, below + world);
        let or = if near == above { String::new() } else { format!(" or {above}") };
        return Err(Error::invalid(format!(
            "the global batch does not divide by the ranks: global_batch_size={global_batch} world_size={world}"
        ))
        .with_hint(format!("use a multiple of {world}, such as {near}{or}")));
    }
    Ok(())
}

fn unknown(argument: &str, given: &str, allowed: &[&str]) -> Error {
    Error::invalid(format!("unknown value, allowed are {}: {argument}={given:?}", allowed.join(", ")))
}

/// What a caller asks of a loader.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Samples of one step over all ranks.
    pub global_batch: u32,
    /// This process's part of every step.
    pub rank: u32,
    /// Number of parts.
    pub world: u32,
    /// Ranks that share this machine's processors; `None`: all.
    pub local_world: Option<u32>,
    /// Columns to deliver, in this order; `None`: all.
    pub columns: Option<Vec<String>>,
    /// Whether samples come in a shuffled order.
    pub shuffle: bool,
    /// Seed of the shuffle.
    pub seed: u64,
    /// L of the plan; `None`: chosen when the job starts.
    pub lanes: Option<u32>,
    /// c of the plan, in samples; `None`: chosen when the job starts.
    pub chunk: Option<u32>,
    /// G of the plan; `None`: chosen when the job starts.
    pub pool: Option<u32>,
    /// Leave out the last, short step of an epoch.
    pub drop_last: bool,
    /// What the ranks get of a short step; `None`: padded when there are several.
    pub tail: Option<Tail>,
    /// See [`Checksum`].
    pub checksum: Checksum,
    /// See [`OnBadRecord`].
    pub on_bad_record: OnBadRecord,
    /// Different bad records that are tolerated under `mask` and `substitute` before a step fails.
    pub bad_records_max: u64,
    /// How files are read.
    pub reader: ReaderKind,
    /// Whether sealed segments are read past the page cache.
    pub direct: DirectReads,
    /// Reader threads; `None`: two where each rank of this machine has at least two processors, else one.
    pub reader_threads: Option<usize>,
    /// Units, of a read or a few each, in flight on one reader thread.
    pub depth: usize,
    /// Steps read ahead of the trainer, beyond those that the shuffle keeps open; `None`: by the plan.
    pub read_ahead_steps: Option<u32>,
    /// Most bytes of the slab, and of buffers for reads past the page cache; `None`: half of the memory available, for the slab.
    pub memory_limit_bytes: Option<u64>,
    /// Most bytes of batches that are handed out as ordinary memory because the program holds all slots.
    pub overflow_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            global_batch: 1,
            rank: 0,
            world: 1,
            local_world: None,
            columns: None,
            shuffle: false,
            seed: 0,
            lanes: None,
            chunk: None,
            pool: None,
            drop_last: false,
            tail: None,
            checksum: Checksum::Sampled,
            on_bad_record: OnBadRecord::Raise,
            bad_records_max: 100,
            reader: ReaderKind::Auto,
            direct: DirectReads::Auto,
            reader_threads: None,
            depth: 8,
            read_ahead_steps: None,
            memory_limit_bytes: None,
            overflow_bytes: 1 << 30,
        }
    }
}

impl Settings {
    /// Refuses settings that cannot be honoured whatever the topic holds.
    pub fn check(&self) -> Result<()> {
        let Self { global_batch, rank, world, .. } = *self;
        check_step(global_batch, world)?;
        if rank >= world {
            return Err(Error::invalid(format!("rank is 0 to world_size-1: rank={rank} world_size={world}")));
        }
        check_plan(self.lanes, self.chunk, self.pool)?;
        if let Some(threads) = self.reader_threads.filter(|threads| !(1..=READER_THREADS_MAX).contains(threads)) {
            return Err(Error::invalid(format!(
                "reader_threads is 1 to {READER_THREADS_MAX}: reader_threads={threads}"
            )));
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return Err(Error::invalid(format!("depth is 1 to {DEPTH_MAX}: depth={}", self.depth)));
        }
        if self.on_bad_record != OnBadRecord::Raise && self.checksum != Checksum::Always {
            return Err(Error::invalid(
                "on_bad_record='mask' and 'substitute' need checksum='always': only then a replay finds the same bad records",
            ));
        }
        Ok(())
    }

    /// The order of `total` samples of `row_bytes` in all columns, whatever is delivered: ranks and runs that take other columns
    /// see the same order.
    pub(super) fn plan(&self, row_bytes: u64, total: u64) -> PlanKey {
        let default = plan::default_key(row_bytes, total, self.world, self.shuffle, self.seed);
        PlanKey {
            lanes: self.lanes.unwrap_or(default.lanes),
            chunk: self.chunk.unwrap_or(default.chunk),
            pool: self.pool.unwrap_or(default.pool),
            ..default
        }
    }

    /// This rank's share of the steps.
    pub fn share(&self) -> Share {
        let Self { rank, world, global_batch: batch, drop_last, .. } = *self;
        Share { rank, world, batch, tail: self.tail(), drop_last }
    }

    /// The tail policy in force.
    pub fn tail(&self) -> Tail {
        self.tail.unwrap_or(if self.world > 1 { Tail::Pad } else { Tail::Short })
    }

    /// Whether batches carry a `mask`: when rows may be repeats or holes.
    pub fn masked(&self) -> bool {
        let padded = !self.drop_last && self.tail() == Tail::Pad;
        padded || self.on_bad_record == OnBadRecord::Mask
    }

    /// Reader threads in force.
    pub fn threads(&self) -> usize {
        let ranks = self.local_world.unwrap_or(self.world).max(1) as usize;
        self.reader_threads.unwrap_or(if cores() / ranks >= 2 { 2 } else { 1 })
    }
}

/// Processors that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn ranks_of_one_machine_share_its_processors() {
        let threads = |local_world, reader_threads| {
            Settings { world: 1 << 20, local_world, reader_threads, ..Settings::default() }.threads()
        };
        let alone = if cores() >= 2 { 2 } else { 1 };
        assert_eq!((threads(Some(1), None), threads(None, None), threads(None, Some(3))), (alone, 1, 3));
    }

    #[test]
    fn impossible_settings_are_refused_with_their_values() {
        assert!(refused(|s| s.rank = 1).contains("rank=1 world_size=1"));
        assert!(refused(|s| s.world = 0).contains("world_size is 1 to 1048576: world_size=0"));
        assert!(refused(|s| s.global_batch = 0).contains("global_batch_size=0"));
        assert!(refused(|s| (s.global_batch, s.world) = (10, 4)).contains("does not divide"));
        assert!(refused(|s| s.lanes = Some(0)).contains("lanes=0"));
        assert!(refused(|s| s.reader_threads = Some(17)).contains("1 to 16: reader_threads=17"));
        assert!(refused(|s| s.depth = 0).contains("1 to 256: depth=0"));
        assert!(refused(|s| s.on_bad_record = OnBadRecord::Mask).contains("checksum='always'"));
        assert!(parse_direct("maybe").unwrap_err().to_string().contains("auto, on, off"));
        assert!(Checksum::parse("sometimes").unwrap_err().to_string().contains("always, sampled, off"));
        Settings::default().check().unwrap();
    }
}
