//! The returned slots: one bit each, set by whoever lets a slot go, swept by the filler.
//!
//! A return is one atomic OR: any thread, any order, never waits, and doing it twice is doing it once. The filler
//! swaps whole words to zero. Release on the OR and acquire on the swap put everything that the returning thread did
//! with the slot before everything that the filler will do with it.

use crate::sync::{AtomicU64, Ordering};

/// The bitmap in shared memory; see the module.
#[derive(Clone, Copy)]
pub(crate) struct Returned<'a> {
    pub(crate) words: &'a [AtomicU64],
}

impl Returned<'_> {
    /// Marks `slot` as returned.
    pub(crate) fn give_back(&self, slot: u32) {
        self.words[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::Release);
    }

    /// Takes every returned slot out of the bitmap. Numbers beyond the slab's slots may come from a hostile peer.
    pub(crate) fn sweep(&self, mut each: impl FnMut(u32)) {
        for (index, word) in self.words.iter().enumerate() {
            // Most words are empty most of the time; a load keeps their cache line shared.
            if word.load(Ordering::Relaxed) != 0 {
                bits(index, word.swap(0, Ordering::Acquire), &mut each);
            }
        }
    }

    /// How many slots have come back and not been swept.
    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Visits every returned slot and leaves it there.
    pub(crate) fn peek(&self, mut each: impl FnMut(u32)) {
        for (index, word) in self.words.iter().enumerate() {
            bits(index, word.load(Ordering::Relaxed), &mut each);
        }
    }
}

fn bits(index: usize, mut word: u64, each: &mut impl FnMut(u32)) {
    while word != 0 {
        each(index as u32 * 64 + word.trailing_zeros());
        word &= word - 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn swept(returned: &Returned<'_>) -> Vec<u32> {
        let mut slots = Vec::new();
        returned.sweep(|slot| slots.push(slot));
        slots
    }

    #[test]
    fn what_is_given_back_is_swept_once() {
        let words: Vec<_> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let returned = Returned { words: &words };
        assert!(swept(&returned).is_empty());
        for slot in [130, 0, 63, 64, 127, 64, 191] {
            returned.give_back(slot);
        }
        let mut peeked = Vec::new();
        returned.peek(|slot| peeked.push(slot));
        assert_eq!(returned.count(), 6);
        assert_eq!(peeked, [0, 63, 64, 127, 130, 191]);
        assert_eq!(swept(&returned), peeked);
        assert!(swept(&returned).is_empty());
    }
}
