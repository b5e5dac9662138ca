//! From ranges to extents: what filter and split leave of them, with checksums, in parts as they are stored.
//!
//! An extent never reaches beyond the block that it lay in when it was pinned. A block that is taken whole gets its checksum
//! from its header, without a look at its payload; only blocks that are taken in part are read. Of those that a filter looks
//! at, the filter's columns are read first, and the rest only if some record passes.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use cursorstore::Extent;
use cursorstore::records::dataset::PartRef;
use cursorstore::records::extent::SummedExtent;
use cursorstore::records::manifest::PART_EXTENTS_MAX;
use cursorstore::records::{ManifestPart, Record};

use super::checksum::{checksum, of_sums};
use super::picker::Picker;
use crate::error::{Error, Result};
use crate::log::{BlockRef, PartitionView, SegmentView, TopicView};
use crate::rows::Rows;

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
pub(super) struct Scan<'a> {
    dataset: &'a str,
    view: &'a TopicView,
    picker: &'a Picker,
    pending: Vec<SummedExtent>,
    found: Scanned,
    open: Option<(Arc<SegmentView>, Arc<File>)>,
    block: Option<(u64, u32, Rows)>,
}

/// Takes all records of the ranges, in order, that the picker leaves.
pub(super) fn scan(
    dataset: &str,
    view: &TopicView,
    ranges: &[Extent],
    picker: &Picker,
    progress: &mut dyn FnMut(ScanProgress),
) -> Result<Scanned> {
    let mut scan =
        Scan { dataset, view, picker, pending: Vec::new(), found: Scanned::default(), open: None, block: None };
    let row_bytes = view.schema.row_bytes() as u64;
    let bytes_total = ranges.iter().map(Extent::count).sum::<u64>() * row_bytes;
    for range in ranges {
        let partition = view.partitions.get(range.segment as usize);
        let partition = partition.ok_or_else(|| Error::invalid(format!("no such partition: {}", range.segment)))?;
        let mut at = range.from;
        while at < range.to {
            at = scan.block(partition, at..range.to)?;
            progress(ScanProgress { bytes: scan.found.looked_at * row_bytes, bytes_total });
        }
    }
    scan.seal_part();
    Ok(scan.found)
}

impl Scan<'_> {
    /// Looks at the block that holds the first of these records; returns the offset to go on at.
    fn block(&mut self, partition: &PartitionView, wanted: Range<u64>) -> Result<u64> {
        let (segment, file) = self.segment(partition, wanted.start)?;
        let block = segment.block_of(wanted.start)?;
        let clip = wanted.start..wanted.end.min(block.end());
        let rows = (clip.start - block.base) as usize..(clip.end - block.base) as usize;
        self.found.looked_at += clip.end - clip.start;
        let runs = self.picker.runs(&segment, &file, &block, rows, &mut self.found.read_bytes)?;
        if runs.is_empty() {
            return Ok(clip.end);
        }
        let schema = segment.schema();
        let (sums, time) = segment.about(&file, &block)?;
        self.found.time_ms = Some(self.found.time_ms.map_or(time, |all| (all.0.min(time.0), all.1.max(time.1))));
        for run in runs {
            let whole = run == (0..block.rows as usize);
            let checksum = match whole {
                true => of_sums(&sums, block.rows, schema.columns().len()),
                false => checksum(self.rows(&segment, &file, &block)?, run.clone()),
            };
            let (from, to) = (block.base + run.start as u64, block.base + run.end as u64);
            let (segment, incarnation) = (partition.partition, self.view.incarnation);
            let bytes = (to - from) * schema.row_bytes() as u64;
            self.take(SummedExtent { segment, incarnation, from, to, bytes, checksum });
        }
        Ok(clip.end)
    }

    fn segment(&mut self, partition: &PartitionView, offset: u64) -> Result<(Arc<SegmentView>, Arc<File>)> {
        match &self.open {
            Some((segment, file))
                if segment.partition == partition.partition && (segment.base..segment.end).contains(&offset) =>
            {
                Ok((segment.clone(), file.clone()))
            }
            _ => {
                let segment = partition.segment_of(offset)?;
                let file = segment.file()?;
                self.block = None;
                self.open = Some((segment.clone(), file.clone()));
                Ok((segment, file))
            }
        }
    }

    /// The block's rows, read once.
    fn rows(&mut self, segment: &SegmentView, file: &File, block: &BlockRef) -> Result<&Rows> {
        if !matches!(&self.block, Some((base, ..)) if *base == block.base) {
            let rows = segment.read_from(file, block)?;
            self.found.read_bytes += rows.bytes() as u64;
            self.block = Some((block.base, block.rows, rows));
        }
        match &self.block {
            Some((_, _, rows)) => Ok(rows),
            None => Err(Error::invalid("no block")),
        }
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
