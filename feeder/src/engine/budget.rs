//! What a loader may take of this machine: the slab's slots, the steps that are scheduled together, reader threads, reads
//! in flight and buffers for direct reads.
//!
//! Where memory and processors suffice these are what the plan and the settings ask for. Where they do not, everything
//! works with less, in the same order: first steps are read ahead less far, then an epoch is read in stretches of as many
//! steps as there are slots, so that a chunk that several stretches need is read once for each. A line for the log says
//! which. Refused is only memory for fewer than [`SLOTS_MIN`] batches, or next to none. All of this is arithmetic over plain
//! numbers.
//!
//! A limit that the caller names is for the slab and the buffers of direct reads together. Where these would take more than
//! a small part of it from a slab that has use for it, or of the memory available, there are none, and cold data is read
//! through the page cache.

use super::pump::reads_in_flight;
use super::settings::{Settings, cores};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Schedule;
use crate::reader::{self, DirectReads, Keep};

/// Slots beyond those that the plan keeps open, for batches that the trainer holds.
pub(super) const LEASE_SLOTS: u64 = 4;
/// Steps read ahead where the order is the topic's own.
const IN_ORDER_STEPS: u64 = 16;
/// Fewest slots: one that is filled, one that is ready, and two that the trainer holds while it goes on to the next batch.
const SLOTS_MIN: u64 = 4;
/// The slab takes one part in so many of the memory available, unless its limit is named.
const SLAB_PART: u64 = 2;
/// Memory for reading takes no more than one part in so many of it, or of a limit that is named.
const READING_PART: u64 = 4;
/// A reader thread's stack, and what its ring and its objects take.
const THREAD_BYTES: usize = 3 << 20;
/// Least memory available to begin with. With less some small allocation would fail, which ends a process.
const AVAILABLE_MIN: u64 = 12 << 20;
/// A slab of a named limit leaves at least one part in so many of the memory available: some goes meanwhile.
const SPARE_PART: u64 = 8;
/// Files are brought into the page cache whole if no more than so many times what is read of them lies there.
const AROUND_FACTOR: u64 = 2;
/// Data that is to stay in the page cache takes no more than one part in so many of the memory available.
const CACHE_PART: u64 = 2;

/// What a whole epoch wants, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    /// Steps that the plan keeps open at once.
    pub(super) open: u64,
    /// Steps read ahead beyond them.
    pub(super) ahead: u64,
    /// Most times that a chunk can be needed: its samples, or 1 where every sample is read for its own step alone.
    pub(super) chunk: u64,
}

/// The slots of a slab, and what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) count: u32,
    /// Steps open at once.
    pub(super) open: u64,
    /// Steps that are scheduled together: the largest number where an epoch is not cut.
    pub(super) stretch: u64,
    /// Slots beyond those open, read ahead or held by the trainer.
    pub(super) ahead: u32,
}

impl Want {
    /// Of the epoch of which `epoch` is the whole schedule.
    pub(super) fn of(epoch: &Schedule, settings: &Settings) -> Self {
        let key = epoch.line().key();
        let ahead = match settings.read_ahead_steps {
            Some(steps) => u64::from(steps),
            None if !key.shuffle => IN_ORDER_STEPS,
            // What one G-th of the lanes opens at once.
            None => {
                let samples = u64::from(key.chunk) * u64::from(key.lanes);
                samples.div_ceil(u64::from(settings.global_batch)).min(epoch.steps())
            }
        };
        let chunk = if key.shuffle { u64::from(key.chunk) } else { 1 };
        Self { open: epoch.span_steps(), ahead: ahead.max(1), chunk }
    }

    fn slots(self) -> u64 {
        self.open.saturating_add(self.ahead).saturating_add(LEASE_SLOTS)
    }

    /// What it gets where no more than `most` slots fit; `None` if that is too few for anything.
    pub(super) fn fit(self, most: u64) -> Option<Slots> {
        let most = most.min(u64::from(u32::MAX));
        let whole = |count: u64| Slots {
            count: count as u32,
            open: self.open,
            stretch: u64::MAX,
            ahead: (count - self.open - LEASE_SLOTS) as u32,
        };
        if self.slots() <= most {
            return Some(whole(self.slots()));
        }
        if self.open.saturating_add(LEASE_SLOTS) < most {
            return Some(whole(most));
        }
        if most < SLOTS_MIN {
            return None;
        }
        // A quarter is read ahead: the more steps a stretch has, the fewer times a chunk is read.
        let leases = LEASE_SLOTS.min(most - 2);
        let ahead = ((most - leases) / 4).max(1);
        let open = most - leases - ahead;
        Some(Slots { count: most as u32, open, stretch: open, ahead: ahead as u32 })
    }

    /// About how many times a chunk is read whose samples lie anywhere in the steps open, if they are cut into stretches.
    fn times(self, slots: Slots) -> f64 {
        (1.0 + (self.open - 1) as f64 / slots.open as f64).min(self.chunk as f64)
    }

    /// The line for the log, if the slots are fewer than wanted.
    fn notice(self, slots: Slots, limit: &Limit, slot_bytes: u64) -> Option<String> {
        if u64::from(slots.count) == self.slots() {
            return None;
        }
        let way = match (slots.stretch, self.chunk) {
            (u64::MAX, _) => {
                format!("fewer steps are read ahead: ahead_steps={} instead_of={}", slots.ahead, self.ahead)
            }
            (stretch, 1) => format!("less is read at once: steps={stretch} instead_of={}", self.open),
            (stretch, _) => format!(
                "chunks are read about {:.1} times, which is slower, in the same order: open_steps={stretch} instead_of={}",
                self.times(slots),
                self.open
            ),
        };
        let buffers = match limit.buffer_bytes {
            0 => String::new(),
            bytes => format!(" buffer_bytes={bytes}"),
        };
        Some(format!(
            "memory is short, {way} slab_bytes={}{buffers} needed_bytes={} limit_bytes={} limit={}",
            u64::from(slots.count) * slot_bytes,
            self.slots().saturating_mul(slot_bytes).saturating_add(limit.buffer_bytes),
            limit.bytes,
            limit.name
        ))
    }
}

/// The caller's own limit.
const NAMED: &str = "memory_limit_bytes";

/// Most bytes of a slab and of the buffers that count with it, and what says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    bytes: u64,
    /// Of these, what buffers of direct reads take.
    buffer_bytes: u64,
    name: &'static str,
}

impl Limit {
    /// `named` is the caller's own limit, `available` the memory that there is.
    pub(super) fn new(named: Option<u64>, available: u64) -> Self {
        let (bytes, name) = match (named, available - available / SPARE_PART) {
            (Some(bytes), most) if bytes <= most => (bytes, NAMED),
            (Some(_), bytes) => (bytes, "memory available"),
            (None, _) => (available / SLAB_PART, "half of the memory available"),
        };
        Self { bytes, buffer_bytes: 0, name }
    }

    /// With `buffer_bytes` of buffers for direct reads inside of it, if it is a named one; `None` where they leave too little.
    fn with_buffers(self, want: Want, slot_bytes: u64, buffer_bytes: u64) -> Option<Self> {
        if self.name != NAMED {
            return Some(self);
        }
        let limit = Self { buffer_bytes, ..self };
        let most = limit.most_slots(slot_bytes);
        let is_small = buffer_bytes <= self.bytes / READING_PART && most >= SLOTS_MIN;
        (is_small || want.slots() <= most).then_some(limit)
    }

    fn most_slots(self, slot_bytes: u64) -> u64 {
        self.bytes.saturating_sub(self.buffer_bytes) / slot_bytes.max(1)
    }

    fn hint(self) -> &'static str {
        match self.name {
            NAMED => "raise memory_limit_bytes, or lower the batch",
            "memory available" => "lower the batch, or give this process more memory",
            _ => "lower the batch, give this process more memory, or name more of what there is as memory_limit_bytes",
        }
    }
}

/// What the machine has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) available_bytes: u64,
    pub(super) cores: usize,
}

impl Machine {
    /// This one, as this process may use it.
    pub(super) fn here() -> Self {
        Self { available_bytes: slab::available_bytes(), cores: cores() }
    }
}

/// What a loader takes of it.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) slots: Slots,
    pub(super) threads: usize,
    pub(super) depth: usize,
    pub(super) direct: DirectReads,
    /// Lines for the log: what this machine does not have, and what is done about it.
    pub(super) notices: Vec<String>,
}

impl Budget {
    /// For a loader with slots of `slot_bytes`, of which each unit in flight takes `scratch_bytes`.
    pub(super) fn of(
        want: Want,
        settings: &Settings,
        (slot_bytes, scratch_bytes): (usize, usize),
        machine: Machine,
    ) -> Result<Self> {
        let Machine { available_bytes, cores } = machine;
        let slot_bytes = slot_bytes.next_multiple_of(slab::PAGE_BYTES) as u64;
        check_available(available_bytes)?;
        let whole = Limit::new(settings.memory_limit_bytes, available_bytes);
        let buffers = |depth| reader::bounce_bytes(settings.direct, reads_in_flight(depth));
        let bare = |depth: usize| THREAD_BYTES + scratch_bytes * (depth + 1);
        let reading = |bytes: &dyn Fn(usize) -> usize| {
            reading((settings.threads(), settings.depth), bytes, available_bytes / READING_PART)
        };
        let (threads, depth, is_enough) = reading(&|depth| bare(depth) + buffers(depth));
        let buffer_bytes = (threads * buffers(depth)) as u64;
        let limit = whole.with_buffers(want, slot_bytes, buffer_bytes).filter(|_| is_enough || buffer_bytes == 0);
        let direct = if limit.is_some() { settings.direct } else { DirectReads::Off };
        let (threads, depth, _) = if limit.is_some() { (threads, depth, true) } else { reading(&bare) };
        let (slots, short) = slots(want, limit.unwrap_or(whole), slot_bytes)?;
        let mut notices = Vec::from_iter(short);
        if direct != settings.direct {
            let values = format!("direct=off buffer_bytes={buffer_bytes}");
            let limit = format!("limit_bytes={} limit={}", whole.bytes, whole.name);
            less(&mut notices, "cold data is read through the page cache, which is slower", &values, &limit);
        }
        if (threads, depth) != (settings.threads(), settings.depth) {
            let values = format!("reader_threads={threads} depth={depth}");
            less(&mut notices, "less is read at a time", &values, &format!("available_bytes={available_bytes}"));
        }
        if settings.reader_threads.is_none() && cores == 1 {
            notices.push(
                "reader_threads=1 reason=this process may use only one processor, which reading shares with training"
                    .into(),
            );
        }
        Ok(Self { slots, threads, depth, direct, notices })
    }
}

/// Refuses to begin with next to nothing.
fn check_available(bytes: u64) -> Result<()> {
    if bytes >= AVAILABLE_MIN {
        return Ok(());
    }
    let text = format!("there is too little memory to begin to read: available_bytes={bytes} least={AVAILABLE_MIN}");
    Err(Error::new(ErrorKind::NoSpace, text).with_hint("give this process more memory or address space (ulimit -v)"))
}

/// Adds to the line that says memory is short, or begins it with `what` is done and what `limit` there is.
fn less(lines: &mut Vec<String>, what: &str, values: &str, limit: &str) {
    match lines.pop() {
        Some(line) => lines.push(format!("{line} {values}")),
        None => lines.push(format!("memory is short, {what}: {values} {limit}")),
    }
}

/// The slots that a slab of at most `limit` gets, and a line for the log where they are fewer than wanted.
fn slots(want: Want, limit: Limit, slot_bytes: u64) -> Result<(Slots, Option<String>)> {
    let slots = want.fit(limit.most_slots(slot_bytes)).ok_or_else(|| {
        Error::new(
            ErrorKind::NoSpace,
            format!(
                "there is not even memory for {SLOTS_MIN} batches: needed_bytes={} limit_bytes={} limit={} batch_bytes={slot_bytes}",
                slot_bytes.saturating_mul(SLOTS_MIN),
                limit.bytes,
                limit.name
            ),
        )
        .with_hint(limit.hint())
    })?;
    Ok((slots, want.notice(slots, &limit, slot_bytes)))
}

/// Reader threads and units in flight on each, where a thread with so many takes `bytes`: fewer of first the one, then the
/// other, until all take no more than `most`; and whether they do.
fn reading(
    (mut threads, mut depth): (usize, usize),
    bytes: &dyn Fn(usize) -> usize,
    most: u64,
) -> (usize, usize, bool) {
    let is_enough = |threads: usize, depth| (threads * bytes(depth)) as u64 <= most;
    while !is_enough(threads, depth) && threads * depth > 1 {
        if threads > 1 { threads /= 2 } else { depth /= 2 }
    }
    (threads, depth, is_enough(threads, depth))
}

/// What is to stay in the page cache of data that lie in files of `stored_bytes`, all of them together, and of which this
/// machine reads `here_bytes`. What does not fit pushes out what others need, and where little of the files is read here,
/// what lies around that would be read for nothing.
pub(super) fn keep(data_bytes: u64, here_bytes: u64, stored_bytes: u64, available: u64) -> Keep {
    let most = available / CACHE_PART;
    match (data_bytes <= most, stored_bytes <= most.min(here_bytes.saturating_mul(AROUND_FACTOR))) {
        (false, _) => Keep::Nothing,
        (true, false) => Keep::Read,
        (true, true) => Keep::Around,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANT: Want = Want { open: 64, ahead: 16, chunk: 64 };
    const MIB: u64 = 1 << 20;
    const PLENTY: Machine = Machine { available_bytes: 1 << 40, cores: 2 };

    fn named(bytes: u64) -> Limit {
        Limit { bytes, buffer_bytes: 0, name: NAMED }
    }

    /// With one thread and slots of 1 MiB.
    fn budget(limit_bytes: Option<u64>, direct: DirectReads, machine: Machine) -> Budget {
        let settings = Settings {
            memory_limit_bytes: limit_bytes,
            reader_threads: (machine.cores > 1).then_some(1),
            local_world: Some(1 << 20),
            direct,
            ..Settings::default()
        };
        Budget::of(WANT, &settings, (MIB as usize, 4096), machine).unwrap()
    }

    #[test]
    fn where_memory_suffices_slots_are_what_the_plan_wants() {
        let all = Slots { count: 84, open: 64, stretch: u64::MAX, ahead: 16 };
        assert_eq!(WANT.fit(84), Some(all));
        assert_eq!(WANT.fit(u64::MAX), Some(all));
        assert_eq!(slots(WANT, named(84 << 20), 1 << 20).unwrap(), (all, None));
        let huge = Want { open: u64::MAX, ..WANT };
        assert_eq!(huge.fit(u64::MAX).unwrap().count, u32::MAX);
    }

    #[test]
    fn with_less_memory_steps_are_read_ahead_less_far() {
        assert_eq!(WANT.fit(83), Some(Slots { count: 83, open: 64, stretch: u64::MAX, ahead: 15 }));
        assert_eq!(WANT.fit(69), Some(Slots { count: 69, open: 64, stretch: u64::MAX, ahead: 1 }));
        let (_, line) = slots(WANT, named(69 << 20), 1 << 20).unwrap();
        assert!(line.unwrap().contains("fewer steps are read ahead: ahead_steps=1 instead_of=16"));
    }

    #[test]
    fn with_still_less_an_epoch_is_cut_into_stretches() {
        for most in 4..69 {
            let slots = WANT.fit(most).unwrap();
            assert_eq!((u64::from(slots.count), slots.open), (most, slots.stretch));
            assert!(slots.open >= 1 && slots.ahead >= 1 && slots.open + u64::from(slots.ahead) < most, "{slots:?}");
        }
        assert_eq!(WANT.fit(68), Some(Slots { count: 68, open: 48, stretch: 48, ahead: 16 }));
        assert_eq!(WANT.fit(4), Some(Slots { count: 4, open: 1, stretch: 1, ahead: 1 }));
        assert_eq!(WANT.fit(3), None);
    }

    #[test]
    fn the_line_says_how_often_chunks_are_read_and_what_would_be_needed() {
        let limit = named(32 << 20);
        let (slots, line) = slots(WANT, limit, 1 << 20).unwrap();
        assert_eq!(slots.open, 21);
        let line = line.unwrap();
        assert!(line.contains("read about 4.0 times") && line.contains("open_steps=21 instead_of=64"), "{line}");
        assert!(line.contains("needed_bytes=88080384 limit_bytes=33554432 limit=memory_limit_bytes"), "{line}");
        // Never more often than it has samples; in order not more often than once.
        assert_eq!(Want { chunk: 2, ..WANT }.times(slots), 2.0);
        let in_order = Want { chunk: 1, ..WANT };
        assert!(in_order.notice(slots, &limit, 1).unwrap().contains("less is read at once: steps=21 instead_of=64"));
    }

    #[test]
    fn memory_for_no_batch_is_refused_with_what_is_needed() {
        let error = slots(WANT, Limit::new(Some(10_000), u64::MAX), 8192).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("needed_bytes=32768 limit_bytes=10000"), "{error}");
        assert!(error.hint().unwrap().contains("raise memory_limit_bytes"));
        // What is not the cause is not to be raised.
        let error = slots(WANT, Limit::new(Some(10_000), 10_000), 8192).unwrap_err();
        assert!(error.to_string().contains("limit=memory available"), "{error}");
        assert!(!error.hint().unwrap().contains("memory_limit_bytes"), "{error:?}");
    }

    #[test]
    fn a_slab_takes_half_of_what_there_is_or_what_is_named_but_not_everything() {
        assert_eq!(Limit::new(None, 1000).bytes, 500);
        assert_eq!(Limit::new(Some(800), 1000), named(800));
        assert_eq!(Limit::new(Some(876), 1000), Limit { bytes: 875, buffer_bytes: 0, name: "memory available" });
        assert_eq!(Limit::new(Some(7), u64::MAX).bytes, 7);
    }

    #[test]
    fn buffers_of_direct_reads_are_inside_a_named_limit() {
        let buffers = reader::bounce_bytes(DirectReads::Auto, reads_in_flight(8)) as u64;
        assert_eq!(buffers, 6 * MIB);
        let budget = |limit| budget(limit, DirectReads::Auto, PLENTY);
        // Everything fits beside them.
        let all = budget(Some(84 * MIB + buffers));
        assert_eq!((all.slots.count, all.direct, all.notices), (84, DirectReads::Auto, vec![]));
        // They take a small part of what the slab has use for.
        let less = budget(Some(84 * MIB));
        assert_eq!((less.slots.count, less.direct, less.notices.len()), (78, DirectReads::Auto, 1));
        for part in ["slab_bytes=81788928 buffer_bytes=6291456", "needed_bytes=94371840 limit_bytes=88080384"] {
            assert!(less.notices[0].contains(part), "no {part} in {:?}", less.notices);
        }
        // Too large a part: the slab gets it all, and the line says so.
        let none = budget(Some(4 * buffers - 1));
        assert_eq!((none.slots.count, none.direct, none.notices.len()), (23, DirectReads::Off, 1));
        assert!(none.notices[0].ends_with("limit=memory_limit_bytes direct=off buffer_bytes=6291456"), "{none:?}");
        // No limit is named: they are in the half that the slab leaves.
        let unnamed = budget(None);
        assert_eq!((unnamed.slots.count, unnamed.direct, unnamed.notices), (84, DirectReads::Auto, vec![]));
    }

    #[test]
    fn buffers_that_only_the_slab_has_no_room_for_are_left_out() {
        // The slab fits without them, so nothing else is short.
        let small = Want { open: 1, ahead: 1, chunk: 1 };
        let settings = Settings { memory_limit_bytes: Some(7 * MIB), reader_threads: Some(1), ..Settings::default() };
        let given = Budget::of(small, &settings, (MIB as usize, 4096), PLENTY).unwrap();
        assert_eq!((given.slots.count, given.direct), (6, DirectReads::Off));
        let line = "memory is short, cold data is read through the page cache, which is slower: direct=off \
                    buffer_bytes=6291456 limit_bytes=7340032 limit=memory_limit_bytes";
        assert_eq!(given.notices, [line]);
        let off = Settings { direct: DirectReads::Off, ..settings };
        assert!(Budget::of(small, &off, (MIB as usize, 4096), PLENTY).unwrap().notices.is_empty());
    }

    #[test]
    fn short_memory_and_one_processor_are_both_told() {
        // A quarter of this is enough for a thread, but not for buffers too.
        let poor = Machine { available_bytes: 24 * MIB, cores: 1 };
        let notices = budget(None, DirectReads::Auto, poor).notices;
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[0].contains("memory is short") && notices[0].contains("direct=off"), "{notices:?}");
        assert!(notices[1].contains("only one processor"), "{notices:?}");
        let settings = Settings { direct: DirectReads::Off, ..Settings::default() };
        let notices = Budget::of(WANT, &settings, (4096, MIB as usize), poor).unwrap().notices;
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[0].ends_with("reader_threads=1 depth=2 available_bytes=25165824"), "{notices:?}");
        assert!(notices[1].contains("only one processor"), "{notices:?}");
        let rich = budget(None, DirectReads::Auto, Machine { cores: 1, ..PLENTY }).notices;
        assert!(rich.len() == 1 && rich[0].contains("only one processor"), "{rich:?}");
    }

    #[test]
    fn next_to_no_memory_is_refused_at_once() {
        let machine = |available_bytes| Machine { available_bytes, cores: 2 };
        let of = |available| Budget::of(WANT, &Settings::default(), (4096, 4096), machine(available));
        of(AVAILABLE_MIN).unwrap();
        let error = of(AVAILABLE_MIN - 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().ends_with("available_bytes=12582911 least=12582912"), "{error}");
        assert!(error.hint().unwrap().contains("ulimit -v"));
    }

    #[test]
    fn threads_and_then_depth_shrink_with_memory() {
        let reading = |threads, depth, most_mib: u64| reading((threads, depth), &|depth| depth << 20, most_mib << 20);
        assert_eq!(reading(2, 8, 16), (2, 8, true));
        assert_eq!(reading(2, 8, 15), (1, 8, true));
        assert_eq!(reading(2, 8, 7), (1, 4, true));
        assert_eq!(reading(2, 8, 0), (1, 1, false));
        assert_eq!(reading(16, 256, 1 << 20), (16, 256, true));
    }

    #[test]
    fn data_that_fit_stay_in_the_cache_with_their_files_if_these_fit_too_and_hold_little_else() {
        assert_eq!(keep(500, 500, 500, 1000), Keep::Around);
        assert_eq!(keep(250, 250, 500, 1000), Keep::Around);
        assert_eq!(keep(249, 249, 500, 1000), Keep::Read);
        assert_eq!(keep(499, 499, 501, 1000), Keep::Read);
        assert_eq!(keep(501, 501, 501, 1000), Keep::Nothing);
        // Other machines read the most of it.
        assert_eq!(keep(500, 249, 500, 1000), Keep::Read);
    }
}
