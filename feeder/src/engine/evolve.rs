//! Rows that are stored under another schema than they are read under.
//!
//! A dataset reads under one schema version; a segment is of the version that was written then. Where they differ, a
//! column of a block is one of three: as it is, which is read like any other; narrower, which waits in the scratch and is
//! widened on its way to the slot; or not there, and then it is its default. Checksums are those of the stored bytes.

use std::ops::Range;

use super::feed::Taken;
use super::layout::{Placed, SlotLayout};
use crate::reader::Region;
use crate::versions::{Element, Source, Upgrade};
use crate::widen::Widen;

/// How a delivered column stands in the blocks of a segment.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    /// Index in the segment's schema.
    pub(super) at: usize,
    /// Bytes of one row there.
    pub(super) row_bytes: usize,
    /// What is to be done with its elements.
    pub(super) widen: Option<Widen>,
}

/// How the column stands in the blocks of a segment whose rows become those of the dataset by `upgrade`; without one they
/// are those. The default, if it does not stand there at all.
pub(super) fn stored<'a>(upgrade: Option<&'a Upgrade>, placed: &Placed) -> Result<Stored, &'a Element> {
    let Some(upgrade) = upgrade else {
        return Ok(Stored { at: placed.at, row_bytes: placed.row_bytes, widen: None });
    };
    match upgrade.source(placed.at) {
        Source::Same { at } => Ok(Stored { at: *at, row_bytes: placed.row_bytes, widen: None }),
        Source::Wider { at, widen } => {
            let row_bytes = placed.row_bytes / widen.to().bytes() * widen.from().bytes();
            Ok(Stored { at: *at, row_bytes, widen: Some(*widen) })
        }
        Source::Default(element) => Err(element),
    }
}

/// Rows of a column that are its default.
pub(super) struct DefaultRows {
    /// Index into the layout's columns.
    pub(super) column: usize,
    /// One row.
    pub(super) row: Vec<u8>,
    pub(super) spans: Range<usize>,
}

impl DefaultRows {
    pub(super) fn new(column: usize, placed: &Placed, element: &Element, spans: Range<usize>) -> Self {
        Self { column, row: element.bytes().repeat(placed.column.elements()), spans }
    }

    /// Writes them to their slots.
    pub(super) fn write(&self, slab: &Region, layout: &SlotLayout, taken: &Taken) {
        let placed = &layout.columns[self.column];
        for span in &taken.unit.runs[self.spans.clone()] {
            let at = taken.slot_of(span) * layout.slot_bytes + placed.offset;
            for row in span.row..span.row + span.count {
                slab.write(at + row as usize * placed.row_bytes, &self.row);
            }
        }
    }
}

/// Memory for elements on their way, used again.
#[derive(Default)]
pub(super) struct Widener {
    narrow: Vec<u8>,
    wide: Vec<u8>,
}

impl Widener {
    /// Widens `bytes` bytes of the scratch from `from` on, and writes them to the slab from `at` on.
    pub(super) fn turn(&mut self, widen: Widen, scratch: &Region, from: usize, bytes: usize, slab: &Region, at: usize) {
        self.narrow.resize(bytes, 0);
        scratch.read(from, &mut self.narrow);
        self.wide.clear();
        widen.append(&self.narrow, &mut self.wide);
        slab.write(at, &self.wide);
    }
}

#[cfg(test)]
mod tests;
