//! Where a batch's columns stand inside a slot. Pure.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::schema::{Column, Schema};

/// Columns begin on this border in a slot: what AVX-512 loads and most tensor libraries want.
pub(super) const COLUMN_ALIGN_BYTES: usize = 128;

/// Rows up to this size are narrow: chunks of one pool are read together, so that their rows go out side by side.
const NARROW_ROW_BYTES: usize = 512;
/// Chunks are read together up to so many bytes of rows: what stays in a core's caches until it goes out.
const CHUNKS_JOINED_BYTES: usize = 2 << 20;
/// Columns begin on this border in the scratch.
pub(super) const SCRATCH_ALIGN_BYTES: usize = 64;

/// One delivered column: which one of the topic, and where its rows stand in a slot.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// Index in the topic's schema.
    pub(super) at: usize,
    /// Name, dtype and shape.
    pub(super) column: Column,
    /// The name again, shared by all batches.
    pub(super) name: Arc<str>,
    /// First byte in the slot.
    pub(super) offset: usize,
    /// Bytes of one row.
    pub(super) row_bytes: usize,
}

/// The layout of every slot of one loader.
#[derive(Clone, Debug)]
pub(super) struct SlotLayout {
    /// Delivered columns in the caller's order.
    pub(super) columns: Vec<Placed>,
    /// The same, by their order in the files: reads go through a block front to back.
    pub(super) by_file: Vec<usize>,
    /// Bytes of one slot.
    pub(super) slot_bytes: usize,
    /// Bytes of one row over all delivered columns.
    pub(super) row_bytes: usize,
}

impl SlotLayout {
    /// Lays out `rows` rows of the columns named, all if `None`.
    pub(super) fn new(schema: &Schema, names: Option<&[String]>, rows: u32) -> Result<Self> {
        let chosen: Vec<usize> = match names {
            None => (0..schema.columns().len()).collect(),
            Some([]) => return Err(Error::invalid("columns is empty, name at least one or leave it out")),
            Some(names) => names.iter().map(|name| schema.index_of(name)).collect::<Result<_>>()?,
        };
        let (mut columns, mut offset, mut row_bytes) = (Vec::with_capacity(chosen.len()), 0usize, 0);
        for (i, &at) in chosen.iter().enumerate() {
            let column = schema.columns()[at].clone();
            if chosen[..i].contains(&at) {
                return Err(Error::invalid(format!("a column is named twice: column={:?}", column.name)));
            }
            let bytes = column.row_bytes();
            columns.push(Placed { at, offset, row_bytes: bytes, name: column.name.as_str().into(), column });
            offset = (offset + bytes * rows as usize).next_multiple_of(COLUMN_ALIGN_BYTES);
            row_bytes += bytes;
        }
        let mut by_file: Vec<usize> = (0..columns.len()).collect();
        by_file.sort_by_key(|&i| columns[i].at);
        Ok(Self { columns, by_file, slot_bytes: offset.max(1), row_bytes })
    }

    /// Whether rows are so narrow that they are to go out side by side.
    pub(super) fn is_narrow(&self) -> bool {
        self.row_bytes <= NARROW_ROW_BYTES
    }

    /// How many chunks of a pool are read together: one, or as many as fit where rows are narrow.
    pub(super) fn chunks_together(&self, chunk: u32, pool: u32) -> u32 {
        if !self.is_narrow() {
            return 1;
        }
        let fitting = CHUNKS_JOINED_BYTES / (self.row_bytes * chunk as usize).max(1);
        u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, pool.max(1))
    }

    /// Where each column has its place in the scratch for `samples` samples, and the bytes of all of them.
    pub(super) fn scratch(&self, samples: u32) -> (Vec<usize>, usize) {
        let mut at = 0;
        let places = self.columns.iter().map(|placed| {
            let place = at;
            at += (placed.row_bytes * samples as usize).next_multiple_of(SCRATCH_ALIGN_BYTES);
            place
        });
        (places.collect(), at)
    }
}

/// How large units are.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitSize {
    /// Most samples of a chunk or piece.
    pub(super) samples: u32,
    /// Most chunks of a unit.
    pub(super) chunks: u32,
    /// Most samples of a part that is checked by itself; 0 where all parts are, or none.
    pub(super) part: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_rows_are_read_by_pools_as_far_as_they_fit() {
        let schema = |elements: usize| Schema::parse(&format!("id:int64, x:uint8[{elements}]")).unwrap();
        let together = |bytes: usize, chunk, pool| {
            SlotLayout::new(&schema(bytes - 8), None, 64).unwrap().chunks_together(chunk, pool)
        };
        assert_eq!(together(320, 1024, 4), 4);
        assert_eq!((together(320, 1024, 1), together(320, 1024, 16)), (1, 6), "2 MiB hold 6");
        assert_eq!((together(512, 1024, 4), together(513, 1, 4)), (4, 1), "wide rows");
        assert_eq!((together(320, 1 << 20, 4), together(9, 1, 0)), (1, 1));
        let id = ["id".to_string()];
        let layout = SlotLayout::new(&schema(4096), Some(&id), 64).unwrap();
        assert_eq!((layout.is_narrow(), layout.chunks_together(64, 4)), (true, 4), "by what is delivered");
    }

    #[test]
    fn columns_stand_apart_on_borders_in_the_callers_order() {
        let schema = Schema::parse("id:int64, x:uint16[5], y:bool").unwrap();
        let names = ["y".to_string(), "id".to_string()];
        let layout = SlotLayout::new(&schema, Some(&names), 3).unwrap();
        let places: Vec<_> = layout.columns.iter().map(|c| (c.at, c.offset, c.row_bytes)).collect();
        assert_eq!(places, [(2, 0, 1), (0, 128, 8)]);
        assert_eq!((layout.by_file.clone(), layout.slot_bytes, layout.row_bytes), (vec![1, 0], 256, 9));
        assert_eq!(layout.scratch(10), (vec![0, 64], 64 + 128));
        for bad in [vec![], vec!["z".to_string()], vec!["id".into(), "id".into()]] {
            assert!(SlotLayout::new(&schema, Some(&bad), 3).is_err());
        }
    }
}
