//! Rows on their way into a topic: one contiguous little-endian buffer per column.
//!
//! Decoders make them, writers take them. Buffers are shared, so slicing and handing on copies nothing. Valid by
//! construction: every buffer has exactly `count * row_bytes` bytes.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, FixedSizeListArray, RecordBatch, make_array};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field};

use crate::error::{Error, Result};
use crate::schema::{Column, Schema};

/// See the module.
#[derive(Clone, Debug)]
pub struct Rows {
    schema: Arc<Schema>,
    count: usize,
    columns: Vec<Buffer>,
}

impl Rows {
    /// Takes one buffer per column of `schema`, each `count * row_bytes` long.
    pub fn new(schema: Arc<Schema>, count: usize, columns: Vec<Buffer>) -> Result<Self> {
        if columns.len() != schema.columns().len() {
            return Err(Error::invalid(format!(
                "rows and schema have different numbers of columns: rows={} schema={}",
                columns.len(),
                schema.columns().len()
            )));
        }
        for (column, buffer) in schema.columns().iter().zip(&columns) {
            if Some(buffer.len()) != column.row_bytes().checked_mul(count) {
                return Err(Error::invalid(format!(
                    "a column's bytes do not match its rows: column={:?} rows={count} row_bytes={} bytes={}",
                    column.name,
                    column.row_bytes(),
                    buffer.len()
                )));
            }
        }
        Ok(Self { schema, count, columns })
    }

    /// No rows.
    pub fn empty(schema: Arc<Schema>) -> Self {
        let columns = schema.columns().iter().map(|_| Buffer::from_vec(Vec::<u8>::new())).collect();
        Self { schema, count: 0, columns }
    }

    /// The schema.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes over all columns.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Buffer::len).sum()
    }

    /// The bytes of a column, row after row.
    pub fn column(&self, at: usize) -> &Buffer {
        &self.columns[at]
    }

    /// Rows `from..from + count`, sharing the buffers. Panics if they are not there.
    #[must_use]
    pub fn slice(&self, from: usize, count: usize) -> Self {
        assert!(from + count <= self.count, "slice {from}+{count} of {} rows", self.count);
        let columns = self.schema.columns().iter().zip(&self.columns);
        let columns = columns
            .map(|(column, buffer)| buffer.slice_with_length(from * column.row_bytes(), count * column.row_bytes()));
        Self { schema: self.schema.clone(), count, columns: columns.collect() }
    }

    /// One batch of all the rows, in order. Copies unless there is just one part.
    pub fn concat(schema: &Arc<Schema>, parts: &[Rows]) -> Result<Self> {
        if let [one] = parts {
            return Ok(one.clone());
        }
        let count = parts.iter().map(Rows::count).sum();
        let columns = (0..schema.columns().len())
            .map(|at| {
                let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.columns[at].len()).sum());
                parts.iter().for_each(|part| bytes.extend_from_slice(&part.columns[at]));
                Buffer::from_vec(bytes)
            })
            .collect();
        Self::new(schema.clone(), count, columns)
    }

    /// Takes a record batch whose columns are those of `schema` by name, in any order, with the same storage. Nulls are
    /// refused with column and row.
    pub fn from_arrow(batch: &RecordBatch, schema: &Arc<Schema>) -> Result<Self> {
        let columns = schema
            .columns()
            .iter()
            .map(|column| {
                let array = batch
                    .column_by_name(&column.name)
                    .ok_or_else(|| Error::invalid(format!("the data have no such column: column={:?}", column.name)))?;
                column_bytes(column, array)
            })
            .collect::<Result<_>>()?;
        Self::new(schema.clone(), batch.num_rows(), columns)
    }

    /// The rows as an Arrow record batch, sharing the buffers.
    pub fn to_arrow(&self) -> Result<RecordBatch> {
        let arrays = self.schema.columns().iter().zip(&self.columns).map(|(column, buffer)| self.array(column, buffer));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        RecordBatch::try_new(Arc::new(self.schema.to_arrow()), arrays)
            .map_err(|error| Error::invalid("rows do not form an arrow batch").with_source(error))
    }

    fn array(&self, column: &Column, buffer: &Buffer) -> Result<ArrayRef> {
        let wrong = |error| Error::invalid(format!("not an arrow column: column={:?}", column.name)).with_source(error);
        let data = arrow_array::ArrayRef::from(make_array(
            arrow_data::ArrayData::builder(column.dtype.storage())
                .len(self.count * column.elements())
                .add_buffer(buffer.clone())
                .align_buffers(true)
                .build()
                .map_err(wrong)?,
        ));
        if column.shape.is_empty() {
            return Ok(data);
        }
        let item = Arc::new(Field::new("item", column.dtype.storage(), false));
        Ok(Arc::new(FixedSizeListArray::try_new(item, column.elements() as i32, data, None).map_err(wrong)?))
    }
}

/// The bytes of one Arrow array that is stored as `column` says.
fn column_bytes(column: &Column, array: &ArrayRef) -> Result<Buffer> {
    let mismatch = || {
        Error::invalid(format!(
            "a column has another type than its topic: column={:?} topic={} data={}",
            column.name,
            column.dtype.storage(),
            array.data_type()
        ))
    };
    refuse_nulls(column, array)?;
    let values = match array.data_type() {
        DataType::FixedSizeList(_, length) => {
            if usize::try_from(*length) != Ok(column.elements()) || column.shape.is_empty() {
                return Err(mismatch());
            }
            let list = array.as_any().downcast_ref::<FixedSizeListArray>().ok_or_else(mismatch)?;
            let values = list.values().slice(list.value_offset_at(0), list.len() * column.elements());
            if values.null_count() > 0 {
                refuse_nulls(column, &values)?;
            }
            values
        }
        _ if column.shape.is_empty() => array.clone(),
        _ => return Err(mismatch()),
    };
    if *values.data_type() != column.dtype.storage() {
        return Err(mismatch());
    }
    let data = values.to_data();
    let bytes = column.dtype.bytes();
    Ok(data.buffers()[0].slice_with_length(data.offset() * bytes, data.len() * bytes))
}

fn refuse_nulls(column: &Column, array: &ArrayRef) -> Result<()> {
    match (0..array.len()).find(|&row| array.null_count() > 0 && array.is_null(row)) {
        None => Ok(()),
        Some(row) => Err(Error::invalid(format!(
            "a value is null, topics hold values only: column={:?} row={row} nulls={}",
            column.name,
            array.null_count()
        ))
        .with_hint("fill the nulls, or drop these rows, before ingesting")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Rows {
        let schema = Arc::new(Schema::parse("id:int64, x:uint16[2x3]").unwrap());
        let id: Vec<i64> = (0..count as i64).collect();
        let x: Vec<u16> = (0..count as u16 * 6).collect();
        Rows::new(schema, count, vec![Buffer::from_vec(id), Buffer::from_vec(x)]).unwrap()
    }

    #[test]
    fn arrow_round_trip_of_slices() {
        let all = rows(10);
        for (from, count) in [(0, 10), (3, 4), (9, 1), (5, 0)] {
            let part = all.slice(from, count);
            let back = Rows::from_arrow(&part.to_arrow().unwrap(), all.schema()).unwrap();
            assert_eq!(back.column(0), part.column(0));
            assert_eq!(back.column(1), part.column(1));
        }
        let sliced = all.to_arrow().unwrap().slice(2, 5);
        let back = Rows::from_arrow(&sliced, all.schema()).unwrap();
        assert_eq!(back.column(1), all.slice(2, 5).column(1));
    }

    #[test]
    fn concat_is_in_order() {
        let all = rows(7);
        let joined = Rows::concat(all.schema(), &[all.slice(0, 3), all.slice(3, 0), all.slice(3, 4)]).unwrap();
        assert_eq!(joined.column(1), all.column(1));
    }

    #[test]
    fn wrong_lengths_and_nulls_are_refused() {
        let good = rows(2);
        let wrong = Rows::new(good.schema().clone(), 3, vec![good.column(0).clone(), good.column(1).clone()]);
        assert!(wrong.unwrap_err().to_string().contains("row_bytes=8"));
        let schema = Arc::new(Schema::parse("id:int64").unwrap());
        let nulls = arrow_array::Int64Array::from(vec![Some(1), None]);
        let batch = RecordBatch::try_from_iter([("id", Arc::new(nulls) as ArrayRef)]).unwrap();
        let error = Rows::from_arrow(&batch, &schema).unwrap_err().to_string();
        assert!(error.contains("row=1"), "{error}");
    }
}
