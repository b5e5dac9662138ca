//! The filled ring: which slots are ready, in the order in which they were published.
//!
//! One producer, one consumer. Two counters that only grow, and descriptors of four words: `[tag, generation, slot |
//! rows << 32, code]`. The producer writes a descriptor and then raises `published` (release); the consumer sees the
//! counter (acquire) and then reads the descriptor and the slot's memory.
//!
//! The producer never looks at `taken`, because the ring cannot overflow: it has at least as many descriptors as there
//! are slots, and a slot is in it at most once. If descriptor i were overwritten by i + n before it was read, the n
//! descriptors from i on and the new one would be n + 1 different slots that have not come back. `taken` is for whoever
//! wants to know how many are ready.
//!
//! Each end keeps its own counter in its own memory ([`WriteEnd`], [`ReadEnd`]): what a hostile peer writes into the
//! shared ones costs the peer its batches and nothing else.

use crate::error::Fault;
use crate::sync::{AtomicU64, Entry, Ordering};

/// A slot that is ready, and what travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// The slot.
    pub slot: u32,
    /// The filler's own number of what is in it.
    pub tag: u64,
    /// Which of the filler's runs it belongs to: a taker passes over what is from before a rewind.
    pub generation: u64,
    /// Rows in it.
    pub rows: u32,
    /// 0: good. Anything else: it failed, and the filler can say why.
    pub code: u32,
}

impl Filled {
    fn pack(self) -> [u64; 4] {
        [self.tag, self.generation, u64::from(self.slot) | u64::from(self.rows) << 32, u64::from(self.code)]
    }

    fn unpack([tag, generation, slot_rows, code]: [u64; 4]) -> Self {
        Self { slot: slot_rows as u32, tag, generation, rows: (slot_rows >> 32) as u32, code: code as u32 }
    }
}

/// The ring in shared memory; see the module.
#[derive(Clone, Copy)]
pub(crate) struct FilledRing<'a> {
    pub(crate) published: &'a AtomicU64,
    pub(crate) taken: &'a AtomicU64,
    /// A power of two.
    pub(crate) entries: &'a [Entry],
    pub(crate) slots: u32,
}

/// The producer's place.
#[derive(Debug)]
pub(crate) struct WriteEnd {
    next: u64,
}

/// The consumer's place, and how far it knows the producer to be.
#[derive(Debug)]
pub(crate) struct ReadEnd {
    next: u64,
    seen: u64,
}

impl FilledRing<'_> {
    /// The producer's place in a ring that others may have written before.
    pub(crate) fn write_end(&self) -> WriteEnd {
        WriteEnd { next: self.published.load(Ordering::Acquire) }
    }

    /// The consumer's place in a ring that others may have read before.
    pub(crate) fn read_end(&self) -> ReadEnd {
        let next = self.taken.load(Ordering::Acquire);
        ReadEnd { next, seen: next }
    }

    /// Makes one slot visible, with everything written to it before.
    pub(crate) fn push(&self, end: &mut WriteEnd, filled: Filled) {
        for (word, value) in self.entry(end.next).iter().zip(filled.pack()) {
            word.store(value, Ordering::Relaxed);
        }
        end.next = end.next.wrapping_add(1);
        self.published.store(end.next, Ordering::Release);
    }

    /// The next slot, if one is ready.
    pub(crate) fn pop(&self, end: &mut ReadEnd) -> Result<Option<Filled>, Fault> {
        if end.next == end.seen {
            let published = self.published.load(Ordering::Acquire);
            if published.wrapping_sub(end.next) > u64::from(self.slots) {
                return Err(Fault::Published { published, taken: end.next, slots: self.slots });
            }
            end.seen = published;
            if end.next == end.seen {
                return Ok(None);
            }
        }
        let [tag, generation, slot_rows, code] = self.entry(end.next);
        let filled = Filled::unpack([tag, generation, slot_rows, code].map(|word| word.load(Ordering::Relaxed)));
        end.next = end.next.wrapping_add(1);
        self.taken.store(end.next, Ordering::Release);
        if filled.slot >= self.slots {
            return Err(Fault::Slot { slot: filled.slot, slots: self.slots });
        }
        Ok(Some(filled))
    }

    /// Slots published and not yet taken, as far as the shared counters tell; never more than there are.
    pub(crate) fn ready(&self) -> u32 {
        let taken = self.taken.load(Ordering::Acquire);
        let ready = self.published.load(Ordering::Acquire).wrapping_sub(taken);
        ready.min(u64::from(self.slots)) as u32
    }

    fn entry(&self, counter: u64) -> &Entry {
        &self.entries[(counter & (self.entries.len() as u64 - 1)) as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::array;

    use super::*;

    struct Memory {
        published: AtomicU64,
        taken: AtomicU64,
        entries: Vec<Entry>,
        slots: u32,
    }

    impl Memory {
        fn new(slots: u32, start: u64) -> Self {
            let entries = (0..slots.next_power_of_two()).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect();
            Self { published: AtomicU64::new(start), taken: AtomicU64::new(start), entries, slots }
        }

        fn ring(&self) -> FilledRing<'_> {
            FilledRing { published: &self.published, taken: &self.taken, entries: &self.entries, slots: self.slots }
        }
    }

    fn filled(slot: u32, tag: u64) -> Filled {
        Filled { slot, tag, generation: !tag, rows: u32::MAX - slot, code: slot ^ 0x8000_0001 }
    }

    #[test]
    fn every_field_arrives_in_order() {
        for (slots, start) in [(1, 0), (3, 0), (4, u64::MAX - 2)] {
            let memory = Memory::new(slots, start);
            let (mut write, mut read) = (memory.ring().write_end(), memory.ring().read_end());
            let mut next = 0u64;
            for burst in (1..=slots).cycle().take(20) {
                let sent: Vec<_> = (0..burst).map(|slot| filled(slot, next + u64::from(slot))).collect();
                next += u64::from(burst);
                sent.iter().for_each(|&filled| memory.ring().push(&mut write, filled));
                assert_eq!(memory.ring().ready(), burst);
                for &wanted in &sent {
                    assert_eq!(memory.ring().pop(&mut read), Ok(Some(wanted)));
                }
                assert_eq!(memory.ring().pop(&mut read), Ok(None));
                assert_eq!(memory.ring().ready(), 0);
            }
        }
    }

    #[test]
    fn a_later_producer_goes_on_where_the_earlier_stood() {
        let memory = Memory::new(2, 0);
        let mut read = memory.ring().read_end();
        memory.ring().push(&mut memory.ring().write_end(), filled(0, 1));
        memory.ring().push(&mut memory.ring().write_end(), filled(1, 2));
        assert_eq!(memory.ring().pop(&mut read), Ok(Some(filled(0, 1))));
        let mut read = memory.ring().read_end();
        assert_eq!(memory.ring().pop(&mut read), Ok(Some(filled(1, 2))));
    }

    #[test]
    fn impossible_counters_and_slots_are_faults() {
        let memory = Memory::new(3, 10);
        let mut read = memory.ring().read_end();
        for published in [9, 14, 0, u64::MAX] {
            memory.published.store(published, Ordering::Relaxed);
            let fault = Fault::Published { published, taken: 10, slots: 3 };
            assert_eq!(memory.ring().pop(&mut read), Err(fault));
        }
        memory.published.store(10, Ordering::Relaxed);
        memory.ring().push(&mut memory.ring().write_end(), filled(3, 0));
        assert_eq!(memory.ring().pop(&mut read), Err(Fault::Slot { slot: 3, slots: 3 }));
    }
}
