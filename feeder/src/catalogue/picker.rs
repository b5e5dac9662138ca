//! Filter and split together: which rows of a block a version takes.

use std::fs::File;

use cursorstore::records::dataset::Selection;

use super::filter;
use super::split::Split;
use crate::error::Result;
use crate::log::{BlockRef, SegmentView};
use crate::schema::Schema;

/// See the module. Without either all rows are taken.
#[derive(Debug, Default)]
pub(super) struct Picker {
    filter: Option<filter::Bound>,
    split: Option<Split>,
    /// The column that the split goes by: its number.
    by: Option<usize>,
}

impl Picker {
    /// Reads filter and split of a selection and leaves them there in their canonical forms.
    pub(super) fn new(selection: &mut Selection, schema: &Schema) -> Result<Self> {
        let mut picker = Self::default();
        if let Some(text) = &mut selection.filter {
            let expr = filter::parse(text)?;
            picker.filter = Some(filter::Bound::new(&expr, schema)?);
            *text = expr.to_string();
        }
        if let Some(text) = &mut selection.split {
            let split = Split::parse(text)?;
            picker.by = split.by().map(|by| schema.index_of(by)).transpose()?;
            *text = split.to_string();
            picker.split = Some(split);
        }
        Ok(picker)
    }

    /// Which rows of a block are taken; `None`: all. `read` counts bytes that had to be read.
    pub(super) fn taken(
        &self,
        segment: &SegmentView,
        file: &File,
        block: &BlockRef,
        read: &mut u64,
    ) -> Result<Option<Vec<bool>>> {
        if self.filter.is_none() && self.split.is_none() {
            return Ok(None);
        }
        let mut taken = match &self.filter {
            None => vec![true; block.rows as usize],
            Some(filter) => {
                let columns = segment.read_columns(file, block, filter.columns())?;
                *read += columns.iter().map(|column| column.len() as u64).sum::<u64>();
                filter.eval(&columns, block.rows as usize)
            }
        };
        match (&self.split, self.by) {
            (None, _) => {}
            (Some(split), None) => {
                for (row, taken) in taken.iter_mut().enumerate().filter(|(_, taken)| **taken) {
                    *taken = split.takes_position(segment.partition, block.base + row as u64);
                }
            }
            (Some(split), Some(by)) => {
                let column = &segment.schema().columns()[by];
                let cells = segment.read_columns(file, block, &[by])?;
                *read += cells[0].len() as u64;
                for (taken, cell) in taken.iter_mut().zip(cells[0].chunks_exact(column.row_bytes())) {
                    *taken = *taken && split.takes_value(column.dtype, column.shape.is_empty(), cell);
                }
            }
        }
        Ok(Some(taken))
    }
}
