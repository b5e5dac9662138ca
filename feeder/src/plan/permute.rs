//! The two permutations of a plan, and the keys that choose them.
//!
//! [`ChunkOrder`] is a keyed bijection that can be asked at any index: a balanced Feistel network of eight rounds whose
//! round function multiplies, folds and multiplies again in 32 bits, walking cycles back into range. It orders chunks, once
//! per chunk. [`shuffle`] is a Fisher–Yates shuffle driven by splitmix64: exact for every size and about a nanosecond an
//! element, for pools, which are opened whole anyway.
//!
//! Every constant and the order of the draws are part of the plan's version: a change here is a new
//! [`PLAN_VERSION`](super::PLAN_VERSION).

/// Rounds of the Feistel network: fewer are measurably not random below a few hundred elements.
const ROUNDS: usize = 8;
/// Least bits in half an index: eight rounds on fewer are measurably not random, so few elements walk longer cycles.
const HALF_BITS_MIN: u32 = 5;
/// Step of splitmix64: the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// splitmix64's output function.
fn scramble(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    h ^ (h >> 31)
}

/// splitmix64 folded over the words.
pub(super) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0, |h: u64, &word| scramble(h.wrapping_add(GOLDEN).wrapping_add(word)))
}

/// A keyed bijection on `0..n`.
#[derive(Clone, Debug)]
pub(super) struct ChunkOrder {
    n: u64,
    /// Bits in half an index: at most 32.
    half: u32,
    keys: [u32; ROUNDS],
}

impl ChunkOrder {
    pub(super) fn new(n: u64, key: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let half = bits.div_ceil(2).max(HALF_BITS_MIN);
        let keys = std::array::from_fn(|round| (mix(&[key, round as u64]) >> 32) as u32);
        Self { n, half, keys }
    }

    /// The image of `i`, which is below `n`. At most four walks in expectation, more only below 256 elements.
    pub(super) fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        let mut i = i;
        loop {
            i = self.network(i);
            if i < self.n {
                return i;
            }
        }
    }

    fn network(&self, i: u64) -> u64 {
        let low = (1u64 << self.half) - 1;
        let (mut left, mut right) = ((i >> self.half) as u32, (i & low) as u32);
        for key in self.keys {
            let mut h = (right ^ key).wrapping_mul(0x7FEB_352D);
            h = (h ^ (h >> 15)).wrapping_mul(0x846C_A68B);
            // The high bits of a product depend on all of its input, the low ones do not.
            (left, right) = (right, left ^ (h >> (32 - self.half)));
        }
        u64::from(left) << self.half | u64::from(right)
    }
}

/// 32-bit draws, two from each word of splitmix64, low half first.
struct Draws {
    state: u64,
    word: u64,
    halves: u32,
}

impl Draws {
    fn next(&mut self) -> u32 {
        if self.halves == 0 {
            self.state = self.state.wrapping_add(GOLDEN);
            self.word = scramble(self.state);
            self.halves = 2;
        }
        let draw = self.word as u32;
        self.word >>= 32;
        self.halves -= 1;
        draw
    }

    /// What [`below`](Self::below) would give for `bound`, then for `bound - 1`, at least 1; `None`, and nothing is drawn, if it
    /// might refuse a draw, which happens to one in 2^32 / `bound`. Only between words.
    fn two_below(&mut self, bound: u32) -> Option<(u32, u32)> {
        let state = self.state.wrapping_add(GOLDEN);
        let word = scramble(state);
        let (first, second) = (word & u64::from(u32::MAX), word >> 32);
        let (first, second) = (first * u64::from(bound), second * u64::from(bound - 1));
        if (first as u32) < bound || (second as u32) < bound {
            return None;
        }
        self.state = state;
        Some(((first >> 32) as u32, (second >> 32) as u32))
    }

    /// A number below `bound`, each equally likely (Lemire's method).
    fn below(&mut self, bound: u32) -> u32 {
        let mut product = u64::from(self.next()) * u64::from(bound);
        if (product as u32) < bound {
            let least = bound.wrapping_neg() % bound;
            while (product as u32) < least {
                product = u64::from(self.next()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }
}

/// Makes `order` the permutation of `0..n` that belongs to `key`, reusing its memory.
pub(super) fn shuffle(order: &mut Vec<u32>, n: u32, key: u64) {
    #[cfg(test)]
    count::add(n);
    order.clear();
    order.extend(0..n);
    let mut draws = Draws { state: key, word: 0, halves: 0 };
    let mut bound = n;
    while bound > 1 {
        // Two elements from a word, which is the same as one after the other.
        while bound > 2
            && let Some((last, before)) = draws.two_below(bound)
        {
            order.swap(bound as usize - 1, last as usize);
            order.swap(bound as usize - 2, before as usize);
            bound -= 2;
        }
        // The last one, or a draw that might be refused: one by one up to the next whole word.
        while bound > 1 {
            let j = draws.below(bound);
            order.swap(bound as usize - 1, j as usize);
            bound -= 1;
            if draws.halves == 0 {
                break;
            }
        }
    }
}

/// What shuffling has cost this thread, for tests that compare costs without a clock.
#[cfg(test)]
pub(super) mod count {
    use std::cell::Cell;

    thread_local!(static WORK: Cell<(u64, u64)> = const { Cell::new((0, 0)) });

    pub(super) fn add(n: u32) {
        WORK.with(|work| work.set((work.get().0 + 1, work.get().1 + u64::from(n))));
    }

    /// Pools shuffled and elements in them since the last call.
    pub(in crate::plan) fn take() -> (u64, u64) {
        WORK.with(|work| work.replace((0, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_elements_from_a_word_are_as_one_after_the_other() {
        // In the large ones draws are met that might be refused, which take the other way.
        for n in [0, 1, 2, 3, 4, 5, 255, 256, 70_000, 300_000] {
            for key in [1, 99, u64::MAX] {
                let mut expected: Vec<u32> = (0..n).collect();
                let mut draws = Draws { state: key, word: 0, halves: 0 };
                for i in (1..n).rev() {
                    let j = draws.below(i + 1);
                    expected.swap(i as usize, j as usize);
                }
                let mut order = Vec::new();
                shuffle(&mut order, n, key);
                assert!(order == expected, "n={n} key={key}");
            }
        }
    }
}
