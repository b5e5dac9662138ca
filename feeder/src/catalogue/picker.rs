//! Filter and split together: which rows of a block a version takes.

use std::fs::File;
use std::sync::Arc;

use arrow_buffer::Buffer;
use cursorstore::records::dataset::Selection;

use super::filter;
use super::split::Split;
use crate::error::Result;
use crate::log::{BlockRef, SegmentView, TopicView};
use crate::schema::Schema;
use crate::versions::{Schemas, Source};

/// See the module. Without either all rows are taken.
#[derive(Debug)]
pub(super) struct Picker {
    filter: Option<filter::Bound>,
    split: Option<Split>,
    /// The column that the split goes by: its number.
    by: Option<usize>,
    /// The newest schema of the topic, in which columns have these numbers.
    schema: Arc<Schema>,
    schemas: Arc<Schemas>,
}

impl Picker {
    /// Reads filter and split of a selection and leaves them there in their canonical forms.
    pub(super) fn new(selection: &mut Selection, view: &TopicView) -> Result<Self> {
        let (schema, schemas) = (view.schema.clone(), view.schemas.clone());
        let mut picker = Self { filter: None, split: None, by: None, schema: schema.clone(), schemas };
        if let Some(text) = &mut selection.filter {
            let expr = filter::parse(text)?;
            picker.filter = Some(filter::Bound::new(&expr, &schema)?);
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
                let columns = self.columns(segment, file, block, filter.columns(), read)?;
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
                let column = &self.schema.columns()[by];
                let cells = self.columns(segment, file, block, &[by], read)?;
                for (taken, cell) in taken.iter_mut().zip(cells[0].chunks_exact(column.row_bytes())) {
                    *taken = *taken && split.takes_value(column.dtype, cell);
                }
            }
        }
        Ok(Some(taken))
    }

    /// Columns of the newest schema, as the rows of a block have them: stored so, narrower, or by their default.
    fn columns(
        &self,
        segment: &SegmentView,
        file: &File,
        block: &BlockRef,
        numbers: &[usize],
        read: &mut u64,
    ) -> Result<Vec<Buffer>> {
        let upgrade = match **segment.schema() == *self.schema {
            true => None,
            false => Some(self.schemas.upgrade(segment.schema(), &self.schema)?),
        };
        let mut stored = |at: usize| {
            let buffer = segment.read_columns(file, block, &[at])?.remove(0);
            *read += buffer.len() as u64;
            Ok(buffer)
        };
        let column = |&number: &usize| match upgrade.as_ref().map(|upgrade| upgrade.source(number)) {
            None => stored(number),
            Some(Source::Same { at }) => stored(*at),
            Some(Source::Wider { at, widen }) => {
                let mut wide = Vec::new();
                widen.append(&stored(*at)?, &mut wide);
                Ok(Buffer::from_vec(wide))
            }
            Some(Source::Default(element)) => {
                let elements = self.schema.columns()[number].elements() * block.rows as usize;
                Ok(Buffer::from_vec(element.bytes().repeat(elements)))
            }
        };
        numbers.iter().map(column).collect()
    }
}
