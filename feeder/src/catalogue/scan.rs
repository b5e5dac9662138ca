//! From ranges to extents: what filter and split leave of them, with checksums, in parts as they are stored.
//!
//! An extent never reaches beyond the block that it lay in when it was pinned. A block that is taken whole gets its checksum
//! from its header, without a look at its payload; only blocks that are taken in part are read. Of those that a filter looks
//! at, the filter's columns are read first, and the rest only if some record passes.

use std::ops::Range;

use cursorstore::Extent;
use cursorstore::records::dataset::PartRef;
use cursorstore::records::extent::SummedExtent;
use cursorstore::records::manifest::PART_EXTENTS_MAX;
use cursorstore::records::{ManifestPart, Record};

use super::blocks::Blocks;
use super::checksum::{checksum, of_sums};
use super::picker::Picker;
use crate::error::Result;
use crate::log::{BlockRef, BlockSums, TopicView};

/// A part as it is stored.
pub(super) struct SealedPart {
    pub(super) of: PartRef,
    pub(super) key: String,
    pub(super) bytes: Vec<u8>,
}

/// What a scan found.
#[derive(Default)]
pub(super) struct Scanned {
    pub(super) parts: Vec<SealedPart>,
    /// Lowest offset and end of what was taken, per partition in the order of first use.
    pub(super) hulls: Vec<Extent>,
    /// Times of the first and last append among the blocks taken from.
    pub(super) time_ms: Option<(u64, u64)>,
    /// Records looked at.
    pub(super) looked_at: u64,
    /// Bytes of payload that had to be read for checksums and filter.
    pub(super) read_bytes: u64,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanProgress {
    /// Bytes of the records looked at; not all of them need be read.
    pub bytes: u64,
    /// Bytes of the records to look at.
    pub bytes_total: u64,
}

/// Goes over ranges of a snapshot.
struct Scan<'a> {
    dataset: &'a str,
    view: &'a TopicView,
    picker: &'a Picker,
    pending: Vec<SummedExtent>,
    found: Scanned,
    blocks: Blocks<'a>,
    at: Option<Seen>,
}

/// What is known of the block looked at, which may be asked for again by the next range.
struct Seen {
    partition: u32,
    block: BlockRef,
    sums: BlockSums,
    time_ms: (u64, u64),
    /// Which rows are taken; `None`: all.
    taken: Option<Vec<bool>>,
}

/// Takes all records of the ranges, in order, that the picker leaves.
pub(super) fn scan(
    dataset: &str,
    view: &TopicView,
    ranges: &[Extent],
    picker: &Picker,
    progress: &mut dyn FnMut(ScanProgress),
) -> Result<Scanned> {
    let (found, blocks) = (Scanned::default(), Blocks::new(view));
    let mut scan = Scan { dataset, view, picker, pending: Vec::new(), found, blocks, at: None };
    let row_bytes = view.schema.row_bytes() as u64;
    let bytes_total = ranges.iter().map(Extent::count).sum::<u64>() * row_bytes;
    for range in ranges {
        let mut at = range.from;
        while at < range.to {
            at = scan.block(range.segment, at..range.to)?;
            progress(ScanProgress { bytes: scan.found.looked_at * row_bytes, bytes_total });
        }
    }
    scan.seal_part();
    scan.found.read_bytes += scan.blocks.read_bytes;
    Ok(scan.found)
}

impl Scan<'_> {
    /// Looks at the block that holds the first of these records; returns the offset to go on at.
    fn block(&mut self, partition: u32, wanted: Range<u64>) -> Result<u64> {
        let (segment, file) = self.blocks.segment(partition, wanted.start)?;
        let seen = match self.at.take() {
            Some(seen)
                if seen.partition == partition && (seen.block.base..seen.block.end()).contains(&wanted.start) =>
            {
                seen
            }
            _ => {
                let block = segment.block_of(wanted.start)?;
                let (sums, time_ms) = segment.about(&file, &block)?;
                let taken = self.picker.taken(&segment, &file, &block, &mut self.found.read_bytes)?;
                Seen { partition, block, sums, time_ms, taken }
            }
        };
        let (block, columns) = (seen.block, segment.schema().columns().len());
        let end = wanted.end.min(block.end());
        self.found.looked_at += end - wanted.start;
        for run in runs(seen.taken.as_deref(), (wanted.start - block.base) as usize..(end - block.base) as usize) {
            let time = seen.time_ms;
            self.found.time_ms = Some(self.found.time_ms.map_or(time, |all| (all.0.min(time.0), all.1.max(time.1))));
            let checksum = match run == (0..block.rows as usize) {
                true => of_sums(&seen.sums, block.rows, columns),
                false => checksum(&self.blocks.block(&segment, &file, &block)?, run.clone()),
            };
            let (from, to) = (block.base + run.start as u64, block.base + run.end as u64);
            let bytes = (to - from) * segment.schema().row_bytes() as u64;
            let incarnation = self.view.incarnation;
            self.take(SummedExtent { segment: partition, incarnation, from, to, bytes, checksum });
        }
        self.at = Some(seen);
        Ok(end)
    }

    fn take(&mut self, extent: SummedExtent) {
        match self.found.hulls.iter_mut().find(|hull| hull.segment == extent.segment) {
            Some(hull) => (hull.from, hull.to) = (hull.from.min(extent.from), hull.to.max(extent.to)),
            None => self.found.hulls.push(extent.extent()),
        }
        self.pending.push(extent);
        if self.pending.len() == PART_EXTENTS_MAX {
            self.seal_part();
        }
    }

    fn seal_part(&mut self) {
        if !self.pending.is_empty() {
            let part = ManifestPart { dataset: self.dataset.into(), extents: std::mem::take(&mut self.pending) };
            self.found.parts.push(SealedPart { of: PartRef::of(&part), key: part.key(), bytes: part.encode() });
        }
    }
}

/// The stretches of `rows` that are taken, none of which touch.
fn runs(taken: Option<&[bool]>, rows: Range<usize>) -> Vec<Range<usize>> {
    let Some(taken) = taken else { return vec![rows] };
    let (mut runs, mut at) = (Vec::new(), rows.start);
    while let Some(start) = (at..rows.end).find(|&row| taken[row]) {
        let end = (start..rows.end).find(|&row| !taken[row]).unwrap_or(rows.end);
        runs.push(start..end);
        at = end;
    }
    runs
}
