//! Checksums of a block: CRC32C of every column's buffer in pieces of 64 KiB, so that a part of a block can be verified
//! with what was read of it.

use crc_fast::{CrcAlgorithm, Digest};

use super::layout::{PIECE_BYTES, pieces};
use crate::schema::Schema;

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksums of one block, per column one for each piece of [`PIECE_BYTES`] of its buffer (the last may be shorter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSums {
    columns: Vec<Vec<u32>>,
}

impl BlockSums {
    pub(super) fn new(columns: Vec<Vec<u32>>) -> Self {
        Self { columns }
    }

    /// One checksum per piece of that column.
    pub fn column(&self, column: usize) -> &[u32] {
        &self.columns[column]
    }

    /// The first piece of a whole column buffer that does not have its checksum.
    pub fn first_bad_piece(&self, column: usize, buffer: &[u8]) -> Option<usize> {
        let sums = self.column(column);
        if buffer.len().div_ceil(PIECE_BYTES) != sums.len() {
            return Some(0);
        }
        buffer.chunks(PIECE_BYTES).zip(sums).position(|(piece, &sum)| crc32c(piece) != sum)
    }

    /// All of them as hex digits, column after column.
    pub(super) fn to_hex(&self) -> String {
        use std::fmt::Write;
        let mut text = String::with_capacity(8 * self.columns.iter().map(Vec::len).sum::<usize>());
        for sum in self.columns.iter().flatten() {
            let _ = write!(text, "{sum:08x}");
        }
        text
    }

    /// Reads what [`to_hex`](Self::to_hex) wrote for a block of `rows` rows.
    pub(super) fn from_hex(text: &str, schema: &Schema, rows: u32) -> Option<Self> {
        let counts = schema.columns().iter().map(|column| pieces(column.row_bytes(), rows));
        if text.len() != 8 * counts.clone().sum::<usize>() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut digits = text;
        let columns = counts.map(|count| {
            let (own, rest) = digits.split_at(8 * count);
            digits = rest;
            (0..count).map(|piece| u32::from_str_radix(&own[8 * piece..8 * piece + 8], 16).ok()).collect()
        });
        columns.collect::<Option<Vec<Vec<u32>>>>().map(Self::new)
    }
}

/// Makes the checksums of one column's buffer that comes in parts.
pub(super) struct Summer {
    digest: Digest,
    filled: usize,
    sums: Vec<u32>,
}

impl Summer {
    pub(super) fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc32Iscsi), filled: 0, sums: Vec::new() }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let take = bytes.len().min(PIECE_BYTES - self.filled);
            let (now, later) = bytes.split_at(take);
            if take == PIECE_BYTES {
                self.sums.push(crc32c(now));
            } else {
                self.digest.update(now);
                self.filled += take;
                if self.filled == PIECE_BYTES {
                    self.end_piece();
                }
            }
            bytes = later;
        }
    }

    pub(super) fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.end_piece();
        }
        self.sums
    }

    fn end_piece(&mut self) {
        self.sums.push(self.digest.finalize_reset() as u32);
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn parts_give_the_sums_of_the_whole(cuts in prop::collection::vec(0usize..200_000, 0..6), total in 1usize..200_000) {
            let bytes: Vec<u8> = (0..total).map(|at| (at * 31 % 251) as u8).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(total)).chain([0, total]).collect();
            cuts.sort_unstable();
            let mut summer = Summer::new();
            cuts.windows(2).for_each(|cut| summer.push(&bytes[cut[0]..cut[1]]));
            let sums = summer.finish();
            let whole: Vec<u32> = bytes.chunks(PIECE_BYTES).map(crc32c).collect();
            prop_assert_eq!(&sums, &whole);
            prop_assert_eq!(BlockSums::new(vec![sums]).first_bad_piece(0, &bytes), None);
        }
    }

    #[test]
    fn hex_round_trip_and_bad_piece() {
        let schema = Schema::parse("a:uint8[70000], b:int64").unwrap();
        let sums = BlockSums::new(vec![vec![1, 2, 0xffff_ffff], vec![4]]);
        assert_eq!(BlockSums::from_hex(&sums.to_hex(), &schema, 2), Some(sums.clone()));
        assert_eq!(BlockSums::from_hex(&sums.to_hex(), &schema, 1), None);
        assert_eq!(BlockSums::from_hex(&"é".repeat(16), &schema, 2), None);
        let buffer = vec![7u8; PIECE_BYTES + 5];
        let good = BlockSums::new(vec![buffer.chunks(PIECE_BYTES).map(crc32c).collect()]);
        let mut bad = buffer;
        bad[PIECE_BYTES + 1] ^= 1;
        assert_eq!(good.first_bad_piece(0, &bad), Some(1));
        assert_eq!(good.first_bad_piece(0, &bad[..PIECE_BYTES]), Some(0));
    }
}
