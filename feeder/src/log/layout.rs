//! Where things stand in a segment file: pure arithmetic, shared by writer, scan and readers.
//!
//! Every message (header and body) begins on a page border, every body too, and every column's buffer inside a body. So
//! a block's body needs no description beyond its rows: [`column_at`] gives a column's place for any schema.

use crate::schema::Schema;

/// Border on which headers, bodies and column buffers begin.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a column's buffer that one checksum covers.
pub const PIECE_BYTES: usize = 65536;
/// Bytes of a block, unless its topic was made with another size: those of a chunk that a shuffled reader takes at once.
pub const BLOCK_BYTES: usize = 256 << 10;
/// Most rows of one block, whatever their size.
pub const BLOCK_ROWS_MAX: u32 = 1 << 20;

/// `bytes` rounded up to a page border.
pub(super) fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// Offset of a column's buffer inside the body of a block of `rows` rows. Row i of the column begins `i * row_bytes`
/// further on. Panics if there is no such column.
pub fn column_at(schema: &Schema, rows: u32, column: usize) -> u64 {
    schema.columns()[..column].iter().map(|column| page_up(column.row_bytes() as u64 * u64::from(rows))).sum()
}

/// [`column_at`] of every column, in one go.
pub fn columns_at(schema: &Schema, rows: u32, places: &mut Vec<u64>) {
    let mut at = 0;
    places.clear();
    places.extend(schema.columns().iter().map(|column| {
        let place = at;
        at += page_up(column.row_bytes() as u64 * u64::from(rows));
        place
    }));
}

/// Bytes of the body of a block of `rows` rows, padding of its last column included.
pub fn body_bytes(schema: &Schema, rows: u32) -> u64 {
    column_at(schema, rows, schema.columns().len())
}

/// Rows of a full block: the power of two whose rows come nearest to `block_bytes`, between three quarters and three
/// halves of it, so that chunks of a power of two rows divide blocks; at least one row.
pub fn block_rows(schema: &Schema, block_bytes: usize) -> u32 {
    let fitting = rows_within(block_bytes as u64, schema.row_bytes() as u64).clamp(1, u64::from(BLOCK_ROWS_MAX)) as u32;
    1 << fitting.ilog2()
}

/// Rows that still count as `bytes`, half more included: the power of two at or below is the one that comes nearest. Blocks
/// and a plan's chunks both go by it, so that a chunk is a block.
pub(crate) fn rows_within(bytes: u64, row_bytes: u64) -> u64 {
    bytes.saturating_mul(3) / 2 / row_bytes.max(1)
}

/// Pieces of a column's buffer that have a checksum of their own.
pub(super) fn pieces(row_bytes: usize, rows: u32) -> usize {
    (row_bytes * rows as usize).div_ceil(PIECE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_on_borders_one_after_the_other() {
        let schema = Schema::parse("id:int64, image:uint8[3x50], y:float32").unwrap();
        for rows in [1, 27, 28, 512, 513, 4096] {
            let (mut at, mut places) = (0, vec![7]);
            columns_at(&schema, rows, &mut places);
            for (number, column) in schema.columns().iter().enumerate() {
                assert_eq!((column_at(&schema, rows, number), places[number]), (at, at));
                assert_eq!(at % PAGE_BYTES, 0);
                let bytes = column.row_bytes() as u64 * u64::from(rows);
                at += bytes + (PAGE_BYTES - bytes % PAGE_BYTES) % PAGE_BYTES;
            }
            assert_eq!(body_bytes(&schema, rows), at);
        }
    }

    #[test]
    fn full_blocks_have_a_power_of_two_rows() {
        for (schema, rows) in [
            ("x:uint8", 1 << 20),
            ("x:uint8[4096]", 256),
            ("x:uint8[3000]", 512),
            ("x:uint8[150528]", 8),
            ("x:uint8[1048576]", 1),
            ("x:uint8[1048577]", 1),
            ("x:uint16[2048], id:int64", 256),
        ] {
            assert_eq!(block_rows(&Schema::parse(schema).unwrap(), 1 << 20), rows, "{schema}");
        }
    }
}
