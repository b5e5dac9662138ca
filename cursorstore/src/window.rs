//! Extents and windows: which records are trained on, in which order, and how many.
//!
//! A window is an immutable ordered list of extents; a list of windows keeps running totals, so that the record at any
//! index of the line is found in O(log n), and a line that grows keeps its past.

use serde::{Deserialize, Serialize};

use crate::position::Incarnation;

/// Consecutive records of one segment: offsets `from..to` of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// The partition, which is the segment id of an embedded topic.
    pub segment: u32,
    /// The life of the topic that the offsets belong to.
    pub incarnation: Incarnation,
    /// First offset.
    pub from: u64,
    /// One past the last offset.
    pub to: u64,
}

impl Extent {
    /// Number of records.
    pub fn count(&self) -> u64 {
        self.to - self.from
    }
}

/// An immutable, ordered list of extents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// In reading order.
    pub extents: Vec<Extent>,
}

impl Window {
    /// Number of records.
    pub fn count(&self) -> u64 {
        self.extents.iter().map(Extent::count).sum()
    }
}

/// Windows one after the other on one line, with running totals.
#[derive(Clone, Debug)]
pub struct WindowList {
    /// Each extent with the line index one past its last record.
    extents: Vec<(u64, Extent)>,
    /// Line index one past the last record of each window.
    ends: Vec<u64>,
}

/// Part of one extent that a range of the line falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRange {
    /// Partition.
    pub segment: u32,
    /// First offset in the partition.
    pub from: u64,
    /// Number of records.
    pub count: u64,
}

impl WindowList {
    /// Lays the windows out on a line. Empty extents are dropped; empty windows are kept as empty spans.
    pub fn new(windows: &[Window]) -> Self {
        let (mut extents, mut ends, mut total) = (Vec::new(), Vec::new(), 0);
        for window in windows {
            for extent in window.extents.iter().filter(|extent| extent.count() > 0) {
                total += extent.count();
                extents.push((total, extent.clone()));
            }
            ends.push(total);
        }
        Self { extents, ends }
    }

    /// Records on the line.
    pub fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Running totals: the line index one past each window.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// All extents in order.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter().map(|(_, extent)| extent)
    }

    /// The extent that holds line index `index`, from there on: at most `count` records, fewer at the extent's end.
    /// `None` past the line's end.
    pub fn locate(&self, index: u64, count: u64) -> Option<ExtentRange> {
        let at = self.extents.partition_point(|(end, _)| *end <= index);
        let (end, extent) = self.extents.get(at)?;
        let left = end - index;
        Some(ExtentRange { segment: extent.segment, from: extent.to - left, count: left.min(count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(segment: u32, from: u64, to: u64) -> Extent {
        Extent { segment, incarnation: Incarnation(1), from, to }
    }

    #[test]
    fn every_index_is_found_once_and_in_order() {
        let windows = [
            Window { extents: vec![extent(0, 10, 13), extent(1, 0, 0), extent(1, 5, 7)] },
            Window { extents: vec![] },
            Window { extents: vec![extent(0, 13, 14)] },
        ];
        let list = WindowList::new(&windows);
        assert_eq!(list.ends(), [5, 5, 6]);
        let found: Vec<_> = (0..7).map(|i| list.locate(i, 1).map(|r| (r.segment, r.from, r.count))).collect();
        let at = |segment, from| Some((segment, from, 1));
        assert_eq!(found, [at(0, 10), at(0, 11), at(0, 12), at(1, 5), at(1, 6), at(0, 13), None]);
        assert_eq!(list.locate(1, 100), Some(ExtentRange { segment: 0, from: 11, count: 2 }));
    }
}
