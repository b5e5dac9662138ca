//! A topic's records by position, read block by block, each block once while reading goes forward.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::{BlockRef, SegmentView, TopicView};
use crate::rows::Rows;

/// The segment last read from, and its last block.
pub(super) struct Blocks<'a> {
    view: &'a TopicView,
    open: Option<(Arc<SegmentView>, Arc<File>)>,
    block: Option<(u64, Rows)>,
    /// Bytes of payload read.
    pub(super) read_bytes: u64,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(view: &'a TopicView) -> Self {
        Self { view, open: None, block: None, read_bytes: 0 }
    }

    /// The segment that holds an offset, and its file.
    pub(super) fn segment(&mut self, partition: u32, offset: u64) -> Result<(Arc<SegmentView>, Arc<File>)> {
        match &self.open {
            Some((segment, file))
                if segment.partition == partition && (segment.base..segment.end).contains(&offset) =>
            {
                Ok((segment.clone(), file.clone()))
            }
            _ => {
                let view = self.view.partitions.get(partition as usize);
                let view = view.ok_or_else(|| Error::invalid(format!("no such partition: partition={partition}")))?;
                let segment = view.segment_of(offset)?;
                let file = segment.file()?;
                (self.block, self.open) = (None, Some((segment.clone(), file.clone())));
                Ok((segment, file))
            }
        }
    }

    /// All rows of a block, verified.
    pub(super) fn block(&mut self, segment: &SegmentView, file: &File, block: &BlockRef) -> Result<Rows> {
        if let Some((base, rows)) = &self.block
            && *base == block.base
        {
            return Ok(rows.clone());
        }
        let rows = segment.read_from(file, block)?;
        self.read_bytes += rows.bytes() as u64;
        self.block = Some((block.base, rows.clone()));
        Ok(rows)
    }

    /// Records of a partition, verified.
    pub(super) fn rows(&mut self, partition: u32, offsets: Range<u64>) -> Result<Rows> {
        let (mut parts, mut at) = (Vec::new(), offsets.start);
        while at < offsets.end {
            let (segment, file) = self.segment(partition, at)?;
            let block = segment.block_of(at)?;
            let end = offsets.end.min(block.end());
            let rows = self.block(&segment, &file, &block)?;
            parts.push(rows.slice((at - block.base) as usize, (end - at) as usize));
            at = end;
        }
        match parts.first() {
            Some(first) => Rows::concat(&first.schema().clone(), &parts),
            None => Ok(Rows::empty(self.view.schema.clone())),
        }
    }
}
