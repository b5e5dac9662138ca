//! The checksum of an extent: of its records' payloads and of nothing else.
//!
//! `xxh3-64` over the number of records (8 bytes, little-endian), then for every column in order the CRC32C (4 bytes,
//! little-endian) of each piece of 64 KiB of the column's bytes of these records, the last piece shorter.
//!
//! For an extent that is a whole block these CRCs are those that the block's header keeps, so the checksum is made without
//! reading the payload. It does not depend on blocks: when small blocks are gathered into larger ones, it is the same.

use std::ops::Range;

use crate::log::{BlockSums, PIECE_BYTES, crc32c};
use crate::rows::Rows;

/// The checksum of rows `rows` of `all`. Panics if they are not there.
pub fn checksum(all: &Rows, rows: Range<usize>) -> u64 {
    let columns = all.schema().columns();
    let mut bytes = begin(rows.len() as u64, columns.len());
    for (at, column) in columns.iter().enumerate() {
        let row_bytes = column.row_bytes();
        let buffer = &all.column(at)[rows.start * row_bytes..rows.end * row_bytes];
        buffer.chunks(PIECE_BYTES).for_each(|piece| bytes.extend_from_slice(&crc32c(piece).to_le_bytes()));
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// The checksum of a whole block of so many rows and columns, from what its header keeps.
pub(super) fn of_sums(sums: &BlockSums, rows: u32, columns: usize) -> u64 {
    let mut bytes = begin(rows.into(), columns);
    for column in 0..columns {
        sums.column(column).iter().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

fn begin(count: u64, columns: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + 4 * columns);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_buffer::Buffer;

    use super::*;
    use crate::schema::Schema;

    #[test]
    fn golden_values() {
        let schema = Arc::new(Schema::parse("id:int64, x:uint8[20000]").unwrap());
        let ids: Vec<u8> = (0..10i64).flat_map(i64::to_le_bytes).collect();
        let x: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 251) as u8).collect();
        let rows = Rows::new(schema, 10, vec![Buffer::from_vec(ids), Buffer::from_vec(x)]).unwrap();
        assert_eq!(format!("{:016x}", checksum(&rows, 0..10)), "ca3a5d035903c3dc");
        assert_eq!(format!("{:016x}", checksum(&rows, 3..4)), "6f132f3d1fd3431f");
        assert_eq!(checksum(&rows, 3..4), checksum(&rows.slice(2, 3), 1..2));
        assert_ne!(checksum(&rows, 0..0), checksum(&rows, 0..1));
    }
}
