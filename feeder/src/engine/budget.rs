//! What a loader may take of this machine: the slab's slots, the steps that are scheduled together, reader threads and
//! reads in flight.
//!
//! Where memory and processors suffice these are what the plan and the settings ask for. Where they do not, everything
//! works with less, in the same order: first steps are read ahead less far, then an epoch is read in stretches of as many
//! steps as there are slots, so that a chunk that several stretches need is read once for each. A line for the log says
//! which. Refused is only memory for fewer than [`SLOTS_MIN`] batches. All of this is arithmetic over plain numbers.

use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Schedule;

/// Slots beyond those that the plan keeps open, for batches that the trainer holds.
pub(super) const LEASE_SLOTS: u64 = 4;
/// Steps read ahead where the order is the topic's own.
const IN_ORDER_STEPS: u64 = 16;
/// Fewest slots: one that is filled, one that is ready, and two that the trainer holds while it goes on to the next batch.
const SLOTS_MIN: u64 = 4;
/// The slab takes one part in so many of the memory available, unless its limit is named.
const SLAB_PART: u64 = 2;
/// Memory for reading takes no more than one part in so many of it.
const READING_PART: u64 = 4;
/// A slab of a named limit leaves at least one part in so many of the memory available: some goes meanwhile.
const SPARE_PART: u64 = 8;
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
        Some(format!(
            "memory is short, {way} slab_bytes={} needed_bytes={} limit_bytes={} limit={}",
            u64::from(slots.count) * slot_bytes,
            self.slots().saturating_mul(slot_bytes),
            limit.bytes,
            limit.name
        ))
    }
}

/// Most bytes of a slab, and what says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) bytes: u64,
    pub(super) name: &'static str,
}

impl Limit {
    /// `named` is the caller's own limit, `available` the memory that there is.
    pub(super) fn new(named: Option<u64>, available: u64) -> Self {
        match (named, available - available / SPARE_PART) {
            (Some(bytes), most) if bytes <= most => Self { bytes, name: "memory_limit_bytes" },
            (Some(_), bytes) => Self { bytes, name: "memory available" },
            (None, _) => Self { bytes: available / SLAB_PART, name: "half of the memory available" },
        }
    }
}

/// The slots that a slab of at most `limit` gets, and a line for the log where they are fewer than wanted.
pub(super) fn slots(want: Want, limit: Limit, slot_bytes: usize) -> Result<(Slots, Option<String>)> {
    let slot_bytes = slot_bytes.next_multiple_of(slab::PAGE_BYTES) as u64;
    let most = limit.bytes / slot_bytes.max(1);
    let slots = want.fit(most).ok_or_else(|| {
        Error::new(
            ErrorKind::NoSpace,
            format!(
                "there is not even memory for {SLOTS_MIN} batches: needed_bytes={} limit_bytes={} limit={} batch_bytes={slot_bytes}",
                slot_bytes.saturating_mul(SLOTS_MIN),
                limit.bytes,
                limit.name
            ),
        )
        .with_hint("raise memory_limit_bytes, or lower the batch")
    })?;
    Ok((slots, want.notice(slots, &limit, slot_bytes)))
}

/// Reader threads and reads in flight on each, where one read in flight takes `read_bytes`: fewer of first the one, then
/// the other, until they take a small part of the memory available.
pub(super) fn reading(threads: usize, depth: usize, read_bytes: usize, available: u64) -> (usize, usize) {
    let (mut threads, mut depth) = (threads, depth);
    while (threads * depth) as u64 * read_bytes as u64 > available / READING_PART && threads * depth > 1 {
        if threads > 1 { threads /= 2 } else { depth /= 2 }
    }
    (threads, depth)
}

/// What the user should know of what this machine does not have: `short` is the line about the slab, `given` are threads and
/// depth as [`reading`] made them.
pub(super) fn notices(
    short: Option<String>,
    settings: &Settings,
    given: (usize, usize),
    available: u64,
) -> Vec<String> {
    let (threads, depth) = given;
    let mut lines = Vec::from_iter(short);
    if given != (settings.threads(), settings.depth) {
        let less = format!("reader_threads={threads} depth={depth}");
        match lines.pop() {
            Some(line) => lines.push(format!("{line} {less}")),
            None => lines.push(format!("memory is short, less is read at a time: {less} available_bytes={available}")),
        }
    } else if settings.reader_threads.is_none()
        && std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1)
    {
        lines.push(
            "reader_threads=1 reason=this process may use only one processor, which reading shares with training"
                .into(),
        );
    }
    lines
}

/// Whether cold data of `epoch` is to be read through the page cache, so that it is there for the epochs to come, rather
/// than past it. A first epoch is often the only one, and what does not fit pushes out what others need.
pub(super) fn keeps_in_cache(epoch: u64, data_bytes: u64, available: u64) -> bool {
    epoch > 0 && data_bytes <= available / CACHE_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANT: Want = Want { open: 64, ahead: 16, chunk: 64 };

    #[test]
    fn where_memory_suffices_slots_are_what_the_plan_wants() {
        let all = Slots { count: 84, open: 64, stretch: u64::MAX, ahead: 16 };
        assert_eq!(WANT.fit(84), Some(all));
        assert_eq!(WANT.fit(u64::MAX), Some(all));
        assert_eq!(slots(WANT, Limit { bytes: 84 << 20, name: "x" }, 1 << 20).unwrap(), (all, None));
        let huge = Want { open: u64::MAX, ..WANT };
        assert_eq!(huge.fit(u64::MAX).unwrap().count, u32::MAX);
    }

    #[test]
    fn with_less_memory_steps_are_read_ahead_less_far() {
        assert_eq!(WANT.fit(83), Some(Slots { count: 83, open: 64, stretch: u64::MAX, ahead: 15 }));
        assert_eq!(WANT.fit(69), Some(Slots { count: 69, open: 64, stretch: u64::MAX, ahead: 1 }));
        let (_, line) = slots(WANT, Limit { bytes: 69 << 20, name: "x" }, 1 << 20).unwrap();
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
        let limit = Limit { bytes: 32 << 20, name: "memory_limit_bytes" };
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
        let error = slots(WANT, Limit::new(Some(10_000), u64::MAX), 5000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("needed_bytes=32768 limit_bytes=10000"), "{error}");
        assert!(error.hint().unwrap().contains("memory_limit_bytes"));
    }

    #[test]
    fn a_slab_takes_half_of_what_there_is_or_what_is_named_but_not_everything() {
        assert_eq!(Limit::new(None, 1000).bytes, 500);
        assert_eq!(Limit::new(Some(800), 1000), Limit { bytes: 800, name: "memory_limit_bytes" });
        assert_eq!(Limit::new(Some(876), 1000), Limit { bytes: 875, name: "memory available" });
        assert_eq!(Limit::new(Some(7), u64::MAX).bytes, 7);
    }

    #[test]
    fn threads_and_then_depth_shrink_with_memory() {
        const READ: usize = 1 << 20;
        assert_eq!(reading(2, 8, READ, 64 << 20), (2, 8));
        assert_eq!(reading(2, 8, READ, 63 << 20), (1, 8));
        assert_eq!(reading(2, 8, READ, 31 << 20), (1, 4));
        assert_eq!(reading(2, 8, READ, 0), (1, 1));
        assert_eq!(reading(16, 256, READ, u64::MAX), (16, 256));
    }

    #[test]
    fn data_is_kept_in_the_cache_from_the_second_epoch_on_if_it_fits() {
        assert!(!keeps_in_cache(0, 1, 1000));
        assert!(keeps_in_cache(1, 500, 1000));
        assert!(keeps_in_cache(9, 500, 1000));
        assert!(!keeps_in_cache(1, 501, 1000));
    }
}
