//! What was read is compared with its checksums, piece by piece, while it waits in the scratch.

use std::ops::Range;
use std::sync::Arc;

use super::bad::{BadSample, bad_rows, mismatch};
use super::blocks::BlockSpan;
use super::feed::Failure;
use super::settings::Checksum;
use crate::error::ErrorKind;
use crate::log::{BlockRef, BlockSums, PIECE_BYTES, column_at, crc32c};
use crate::plan::Run;
use crate::reader::{ReadFile, Region};

/// Whole checksummed pieces of one column buffer that wait in the scratch.
pub(super) struct Check {
    /// Index into the segment's columns, and bytes of a row there.
    pub(super) stored_at: usize,
    pub(super) row_bytes: usize,
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) first_piece: usize,
    pub(super) block: BlockSpan,
    /// Samples of the unit that lie in this block.
    pub(super) samples: Range<u64>,
}

/// Says which parts of blocks are compared. One per reader thread.
pub(super) struct Sampler {
    checksum: Checksum,
    /// Parts read so far in this epoch, plus the epoch's number.
    parts: u64,
}

impl Sampler {
    pub(super) fn new(checksum: Checksum) -> Self {
        Self { checksum, parts: 0 }
    }

    /// Begins an epoch: each begins with another part, so that epochs of the same data do not look at the same places.
    pub(super) fn begin(&mut self, epoch: u64) {
        self.parts = epoch;
    }

    /// Whether every part is compared.
    pub(super) fn takes_all(&self) -> bool {
        self.checksum == Checksum::Always
    }

    /// Whether the part that is read next is compared: of all, or every [`Checksum::SAMPLE`]th, in epoch 0 from the first on.
    pub(super) fn next(&mut self) -> bool {
        let part = self.parts;
        self.parts = part.wrapping_add(1);
        match self.checksum {
            Checksum::Always => true,
            Checksum::Sampled => part.is_multiple_of(Checksum::SAMPLE),
            Checksum::Off => false,
        }
    }
}

/// Compares pieces. One per reader thread.
#[derive(Default)]
pub(super) struct Checker {
    /// A checksummed piece, as memory of this thread alone.
    piece: Vec<u8>,
    /// The checksums used last: the columns of a block are checked one after the other.
    sums: Option<(Arc<ReadFile>, BlockRef, BlockSums)>,
}

impl Checker {
    /// Compares the pieces of `check`, which wait in `scratch`. Those of `spans` that are not what was written come back in
    /// `bad`; samples whose checksums cannot be read, in `failed`.
    pub(super) fn check(
        &mut self,
        check: &Check,
        spans: &[Run],
        scratch: &Region,
        bad: &mut Vec<BadSample>,
        failed: &mut Vec<(Range<u64>, Failure)>,
    ) {
        let Check { block, .. } = check;
        let known = self.sums.take().filter(|(file, of, _)| *of == block.block && Arc::ptr_eq(file, &block.file));
        let sums =
            match known.map_or_else(|| block.segment.sums(block.file.file(), &block.block), |(_, _, sums)| Ok(sums)) {
                Ok(sums) => sums,
                // Without its header nothing can be said of a block's rows: all are as bad as those with a wrong checksum.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let why = error.report();
                    return spans.iter().for_each(|span| bad_rows(span, check.samples.clone(), &why, bad));
                }
                Err(error) => return failed.push((check.samples.clone(), Failure::of(&error))),
            };
        let (schema, row_bytes) = (block.segment.schema(), check.row_bytes as u64);
        for (piece, at) in (check.first_piece..).zip((0..check.bytes).step_by(PIECE_BYTES)) {
            self.piece.resize(PIECE_BYTES.min(check.bytes - at), 0);
            scratch.read(check.at + at, &mut self.piece);
            if sums.column(check.stored_at).get(piece) == Some(&crc32c(&self.piece)) {
                continue;
            }
            let (start, length) = ((piece * PIECE_BYTES) as u64, self.piece.len() as u64);
            let rows = start / row_bytes..(start + length).div_ceil(row_bytes);
            let column = block.block.body + column_at(schema, block.block.rows, check.stored_at);
            for span in spans {
                for index in span.index..span.end() {
                    if check.samples.contains(&index) && rows.contains(&block.row_of(index)) {
                        let name = &schema.columns()[check.stored_at].name;
                        let error = mismatch(block, name, column + start, self.piece.len());
                        bad.push(BadSample { index, span: *span, error });
                    }
                }
            }
        }
        self.sums = Some((block.file.clone(), block.block, sums));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_in_so_many_is_compared_and_another_one_in_each_epoch() {
        let taken = |checksum, epoch| -> Vec<usize> {
            let mut sampler = Sampler::new(checksum);
            sampler.begin(epoch);
            (0..2 * Checksum::SAMPLE as usize).filter(|_| sampler.next()).collect()
        };
        assert_eq!(taken(Checksum::Sampled, 0), [0, 64]);
        assert_eq!(taken(Checksum::Sampled, 1), [63, 127]);
        assert_eq!(taken(Checksum::Sampled, 65), [63, 127]);
        // All of the same data is compared once in so many epochs, the last ones that there are included.
        let mut all: Vec<usize> =
            (0..Checksum::SAMPLE).map(|back| taken(Checksum::Sampled, u64::MAX - back)[0]).collect();
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..64));
        assert_eq!((taken(Checksum::Always, 7).len(), taken(Checksum::Off, 7).len()), (128, 0));
    }
}
