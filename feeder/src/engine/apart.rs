//! Checked rows for which a job's scratch has no room.
//!
//! To be checked, rows are read with all of the checksummed pieces that they touch. Where a line is made of many small extents
//! these pieces can be many times the rows, so only as many as fit are read by the block reader, like everything else. The
//! others are read here, a piece at a time, by plain calls. Each piece is read once for neighbouring extents.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::bad::{BadSample, bad_rows, mismatch};
use super::blocks::BlockSpan;
use super::evolve::Stored;
use super::feed::{Failure, Taken};
use super::layout::SlotLayout;
use crate::error::{Error, ErrorKind};
use crate::log::{PIECE_BYTES, column_at, crc32c};
use crate::plan::Run;
use crate::reader::{ReadFile, Region};

/// Rows of one column of a block that are read here.
pub(super) struct Apart {
    /// Index into the layout's columns.
    pub(super) column: usize,
    /// How it stands in the block.
    pub(super) stored: Stored,
    pub(super) block: BlockSpan,
    /// The job's spans that these are.
    pub(super) spans: Range<usize>,
}

/// A piece in memory, and whether its bytes are what was written.
struct Piece {
    file: Arc<ReadFile>,
    at: u64,
    bytes: Vec<u8>,
    is_good: bool,
}

/// Reads the rows of `list`, which are some of those of `taken`, into the slab. What is damaged comes back in `bad`, what
/// cannot be read in `failed`.
pub(super) fn fill(
    list: &[Apart],
    taken: &Taken,
    (layout, slab): (&SlotLayout, &Region),
    bad: &mut Vec<BadSample>,
    failed: &mut Vec<(Range<u64>, Failure)>,
) {
    let mut held: Option<Piece> = None;
    for apart in list {
        for span in &taken.unit.runs[apart.spans.clone()] {
            let samples = span.index..span.end();
            let slot_at = taken.slot_of(span) * layout.slot_bytes;
            match fill_span(apart, span, slot_at, (layout, slab), &mut held, bad) {
                Ok(()) => {}
                // The header of the block: see where rows are checked that had room.
                Err(error) if error.kind() == ErrorKind::Corrupt => bad_rows(span, samples, &error.report(), bad),
                Err(error) => failed.push((samples, Failure::of(&error))),
            }
        }
    }
}

fn fill_span(
    apart: &Apart,
    span: &Run,
    slot_at: usize,
    (layout, slab): (&SlotLayout, &Region),
    held: &mut Option<Piece>,
    bad: &mut Vec<BadSample>,
) -> Result<(), Error> {
    let (placed, block) = (&layout.columns[apart.column], &apart.block);
    let Stored { at: stored_at, row_bytes, widen } = apart.stored;
    let buffer = block.block.body + column_at(block.segment.schema(), block.block.rows, stored_at);
    let start = block.row_of(span.index) as usize * row_bytes;
    let end = start + span.count as usize * row_bytes;
    let to = slot_at + placed.offset + span.row as usize * placed.row_bytes;
    for number in start / PIECE_BYTES..end.div_ceil(PIECE_BYTES) {
        let from = number * PIECE_BYTES;
        let at = buffer + from as u64;
        if !held.as_ref().is_some_and(|held| held.at == at && Arc::ptr_eq(&held.file, &block.file)) {
            let mut bytes = held.take().map(|held| held.bytes).unwrap_or_default();
            bytes.resize(PIECE_BYTES.min(block.block.rows as usize * row_bytes - from), 0);
            block.file.file().read_exact_at(&mut bytes, at).map_err(|error| {
                Error::io(format!("cannot read: file={} offset={at}", block.segment.path.display()), error)
            })?;
            let sums = block.segment.sums(block.file.file(), &block.block)?;
            let is_good = sums.column(stored_at).get(number) == Some(&crc32c(&bytes));
            *held = Some(Piece { file: block.file.clone(), at, bytes, is_good });
        }
        let Some(piece) = held else { continue };
        let (low, high) = (start.max(from), end.min(from + piece.bytes.len()));
        let found = &piece.bytes[low - from..high - from];
        match widen {
            None => slab.write(to + low - start, found),
            Some(widen) => {
                // Pieces part no element.
                let mut wide = Vec::new();
                widen.append(found, &mut wide);
                slab.write(to + (low - start) / widen.from().bytes() * widen.to().bytes(), &wide);
            }
        }
        if !piece.is_good {
            for row in (low - start) / row_bytes..(high - start).div_ceil(row_bytes) {
                let error = mismatch(block, &placed.column.name, at, piece.bytes.len());
                bad.push(BadSample { index: span.index + row as u64, span: *span, error });
            }
        }
    }
    Ok(())
}
