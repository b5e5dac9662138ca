//! Where things stand in a segment file: pure arithmetic, shared by writer, scan and readers.
//!
//! Every message (header and body) begins on a page border, every body too, and every column's buffer inside a body. So
//! a block's body needs no description beyond its rows: [`column_at`] gives a column's place for any schema.

use crate::schema::Schema;

/// Border on which headers, bodies and column buffers begin.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a column's buffer that one checksum covers.
pub const PIECE_BYTES: usize = 65536;
/// Bytes of a block that nobody asked for otherwise.
pub(super) const BLOCK_BYTES: usize = 1 << 20;
/// Rows of a block of many narrow columns: as many as fill whole pages where values have 4 bytes or more.
const NARROW_BLOCK_ROWS: u32 = 1024;
/// Fewer columns are not many: pieces of them are read as well one by one.
const NARROW_COLUMNS_MIN: usize = 16;
/// Bytes of a row of narrow columns. Below, a block's header would weigh too much; above, so would a chunk.
const NARROW_ROW_BYTES: std::ops::RangeInclusive<usize> = 128..=384;
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

/// The power of two whose rows come nearest to `block_bytes`, between three quarters and three halves of it, so that chunks
/// of a power of two rows divide blocks; at least one row. What is read at once in order.
pub fn piece_rows(schema: &Schema, block_bytes: usize) -> u32 {
    let fitting = (block_bytes.saturating_mul(3) / 2 / schema.row_bytes()).clamp(1, BLOCK_ROWS_MAX as usize) as u32;
    1 << fitting.ilog2()
}

/// Rows of a full block: [`piece_rows`], or fewer.
///
/// Of many narrow columns a chunk would need a small piece each, strewn over a block of the usual size. Unless larger blocks
/// than [`BLOCK_BYTES`] are asked for, their blocks have [`NARROW_BLOCK_ROWS`] rows at most: a chunk is then a block, and
/// one read brings it.
pub fn block_rows(schema: &Schema, block_bytes: usize) -> u32 {
    let rows = piece_rows(schema, block_bytes);
    let narrow = schema.columns().len() >= NARROW_COLUMNS_MIN && NARROW_ROW_BYTES.contains(&schema.row_bytes());
    if narrow && block_bytes <= BLOCK_BYTES { NARROW_BLOCK_ROWS.min(rows) } else { rows }
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

    #[test]
    fn blocks_of_many_narrow_columns_are_small() {
        let schema = |floats: usize, ints: usize| {
            let floats = (0..floats).map(|at| format!("f{at}:float32"));
            let columns: Vec<_> = floats.chain((0..ints).map(|at| format!("i{at}:int64"))).collect();
            Schema::parse(&columns.join(", ")).unwrap()
        };
        let rows = |floats, ints, bytes| block_rows(&schema(floats, ints), bytes);
        assert_eq!(rows(64, 8, 1 << 20), 1024);
        assert_eq!(piece_rows(&schema(64, 8), 1 << 20), 4096);
        assert_eq!(rows(64, 8, 1 << 18), 1024);
        assert_eq!(rows(64, 8, 1 << 16), 256, "smaller ones were asked for");
        assert_eq!(rows(64, 8, 4 << 20), 16384, "larger ones were asked for");
        assert_eq!(rows(31, 0, 1 << 20), 8192, "a header of a page would weigh too much");
        assert_eq!((rows(32, 0, 1 << 20), rows(96, 0, 1 << 20)), (1024, 1024));
        assert_eq!(rows(97, 0, 1 << 20), 2048);
        assert_eq!(rows(1, 15, 1 << 20), 8192, "124 bytes");
        assert_eq!(rows(0, 15, 1 << 20), 8192);
        let wide = Schema::parse("f:float32[64], i:int64[7], id:int64").unwrap();
        assert_eq!(block_rows(&wide, 1 << 20), 4096, "few columns");
    }
}
