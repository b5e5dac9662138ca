//! Rows of one machine word, from places of one region to places of another: a column's share of a chunk on its way to
//! the rows that a shuffle gave it.
//!
//! Such a copy costs a load and a store for each row and nothing else: where rows come from and go to was worked out once,
//! in a [`Scatter`], for all columns of the same width. Loads and stores are relaxed atomics, which are plain moves, since
//! others may write there at the same time (see [`Region`]).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::{Region, copy};

/// Where rows of one width come from and go to.
#[derive(Debug, Default)]
pub struct Scatter {
    row_bytes: usize,
    places: Vec<Place>,
    /// One past the last byte of all rows, at either end.
    from_end: usize,
    into_end: usize,
    /// All positions together, by "or": whether each is a multiple of a power of two.
    any: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    from: usize,
    into: usize,
}

impl Scatter {
    /// Forgets all rows; those to come have `row_bytes` bytes.
    pub fn reset(&mut self, row_bytes: usize) {
        self.places.clear();
        (self.row_bytes, self.from_end, self.into_end, self.any) = (row_bytes, 0, 0, 0);
    }

    /// Adds `rows` rows from byte `from` of the source on, which go to byte `into` on.
    pub fn push(&mut self, from: usize, into: usize, rows: usize) {
        let bytes = self.row_bytes;
        self.any |= from | into;
        self.from_end = self.from_end.max(from + rows * bytes);
        self.into_end = self.into_end.max(into + rows * bytes);
        self.places.extend((0..rows).map(|row| Place { from: from + row * bytes, into: into + row * bytes }));
    }

    /// Puts the rows into the order of where they go: those of one batch then follow each other, and its pages' addresses
    /// are looked up once. Where rows come from is a few KiB that are near in any order.
    pub fn sort(&mut self) {
        self.places.sort_unstable_by_key(|place| place.into);
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.places.len() * self.row_bytes
    }
}

impl Region {
    /// Copies the rows of `scatter`, whose positions count from `from` in `source` and from `at` here. Panics if any of them
    /// is not inside its region.
    pub fn scatter(&self, at: usize, source: &Region, from: usize, scatter: &Scatter) {
        let into = self.checked(at, scatter.into_end);
        let from = source.checked(from, scatter.from_end);
        let aligned = (into.addr() | from.addr() | scatter.any).is_multiple_of(scatter.row_bytes.max(1));
        macro_rules! words {
            ($word:ty) => {
                for place in &scatter.places {
                    // SAFETY: both words end before the ends checked above, in mapped memory; they are on borders of
                    // their size, as the regions' pointers and all positions are; nobody holds references there.
                    unsafe {
                        let (into, from) = (into.add(place.into), from.add(place.from));
                        let word = <$word>::from_ptr(from.cast()).load(Ordering::Relaxed);
                        <$word>::from_ptr(into.cast()).store(word, Ordering::Relaxed);
                    }
                }
            };
        }
        match (scatter.row_bytes, aligned) {
            (1, true) => words!(AtomicU8),
            (2, true) => words!(AtomicU16),
            (4, true) => words!(AtomicU32),
            (8, true) => words!(AtomicU64),
            (bytes, _) => {
                for place in &scatter.places {
                    // SAFETY: both rows end before the ends checked above, in mapped memory.
                    unsafe { copy::copy_plain(into.add(place.into), from.add(place.from), bytes) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_width_and_alignment_go_where_they_belong() {
        for bytes in [1, 2, 3, 4, 5, 8, 12] {
            for (at, from) in [(0, 0), (8, 16), (1, 0), (0, 1), (7, 9)] {
                let (source, target) = (Region::alloc(4096).unwrap(), Region::alloc(4096).unwrap());
                let data: Vec<u8> = (0..4096).map(|i| (i * 7 + i / 256 + 1) as u8).collect();
                source.write(0, &data);
                let mut expected = vec![0; 4096];
                let mut scatter = Scatter::default();
                scatter.reset(99);
                scatter.push(0, 0, 3);
                scatter.reset(bytes);
                for (row, to, rows) in [(0, 70, 1), (1, 3, 2), (5, 0, 1), (6, 40, 5), (11, 20, 0)] {
                    scatter.push(row * bytes, to * bytes, rows);
                    let (to, row, rows) = (at + to * bytes, from + row * bytes, rows * bytes);
                    expected[to..to + rows].copy_from_slice(&data[row..row + rows]);
                }
                assert_eq!(scatter.bytes(), 9 * bytes);
                scatter.sort();
                target.scatter(at, &source, from, &scatter);
                let mut got = vec![0; 4096];
                target.read(0, &mut got);
                assert_eq!(got, expected, "bytes={bytes} at={at} from={from}");
            }
        }
    }

    #[test]
    fn a_row_outside_is_refused_before_anything_is_copied() {
        let (source, target) = (Region::alloc(4096).unwrap(), Region::alloc(4096).unwrap());
        let mut scatter = Scatter::default();
        scatter.reset(4);
        scatter.push(0, 4092, 1);
        target.scatter(0, &source, 0, &scatter);
        for (at, from) in [(4, 0), (0, 4096)] {
            let outside = std::panic::AssertUnwindSafe(|| target.scatter(at, &source, from, &scatter));
            assert!(std::panic::catch_unwind(outside).is_err());
        }
    }
}
