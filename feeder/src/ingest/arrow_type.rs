//! Arrow types as columns, and Arrow arrays as their bytes; shared by parquet and Arrow IPC.
//!
//! Lists nest: each level is a dimension, of known length (fixed-size lists and binaries) or not. The extension types
//! `arrow.fixed_shape_tensor` and `arrow.bool8` and the mark of a topic's own segment files are understood.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{ArrowNativeType, Buffer, OffsetBuffer};
use arrow_schema::{DataType, Field};

use super::choose::{Element, Found, Take};
use crate::error::{Error, Result};
use crate::schema::{Column, Dtype, Schema};

/// Deepest nesting of lists that is looked at.
const DEPTH_MAX: usize = 16;

/// A field as a column.
pub(super) fn found(field: &Field) -> Found {
    let mut dims = Vec::new();
    let mut inner = field;
    let element = loop {
        if dims.len() > DEPTH_MAX {
            break Element::Other("lists nested too deeply".into());
        }
        match inner.data_type() {
            DataType::FixedSizeList(item, length) => {
                dims.push(u32::try_from(*length).ok());
                inner = item;
            }
            DataType::List(item) | DataType::LargeList(item) => {
                dims.push(None);
                inner = item;
            }
            DataType::FixedSizeBinary(length) => {
                dims.push(u32::try_from(*length).ok());
                break Element::Known(Dtype::UInt8);
            }
            DataType::Boolean => break Element::Known(Dtype::Bool),
            other => match Dtype::of_storage(other) {
                Some(dtype) => break Element::Known(marked(field, dtype).or(marked(inner, dtype)).unwrap_or(dtype)),
                None => break Element::Other(text_of(field, other, dims.is_empty())),
            },
        }
    };
    // A tensor's shape is one of its list's length.
    let shape = match dims[..] {
        [Some(_)] if matches!(element, Element::Known(_)) => tensor_shape(field),
        _ => None,
    };
    Found { name: field.name().clone(), element, dims, shape, swap: false }
}

fn text_of(field: &Field, element: &DataType, scalar: bool) -> String {
    if scalar { format!("{element}") } else { format!("{} of {element}", field.data_type()).replace('\n', " ") }
}

/// The dtype that the field's metadata say, where it fits the storage.
fn marked(field: &Field, storage: Dtype) -> Option<Dtype> {
    let scalar = Field::new("x", storage.storage(), false).with_metadata(field.metadata().clone());
    let schema = Schema::from_arrow(&arrow_schema::Schema::new(vec![scalar])).ok()?;
    Some(schema.columns()[0].dtype).filter(|dtype| *dtype != storage)
}

fn tensor_shape(field: &Field) -> Option<Vec<u32>> {
    let schema = Schema::from_arrow(&arrow_schema::Schema::new(vec![field.clone()])).ok()?;
    Some(schema.columns()[0].shape.clone()).filter(|shape| shape.len() > 1)
}

/// Where a value is, for errors: rows are counted from the file's first.
pub(super) struct Place<'a> {
    pub(super) path: &'a Path,
    pub(super) column: &'a Column,
    /// Row of the file at which the array begins.
    pub(super) row: u64,
}

impl Place<'_> {
    /// A null in that row.
    pub(super) fn null(&self, row: u64) -> Error {
        Error::invalid(format!(
            "a value is null, topics hold values only: path={} column={:?} row={row}",
            self.path.display(),
            self.column.name
        ))
        .with_hint("fill the nulls, or drop these rows, before ingesting")
    }

    /// A list of another length in that row.
    pub(super) fn ragged(&self, row: u64, length: u64, expected: u32) -> Error {
        Error::invalid(format!(
            "a list is not as long as the others, topics hold values of one shape: path={} column={:?} row={row} \
             length={length} expected={expected}",
            self.path.display(),
            self.column.name
        ))
        .with_hint("pad or cut the lists to one length before ingesting")
    }

    fn unexpected(&self, array: &ArrayRef) -> Error {
        Error::corrupt(format!(
            "a column is not of the type that its file declares: path={} column={:?} type={}",
            self.path.display(),
            self.column.name,
            array.data_type()
        ))
    }
}

/// The bytes of a whole array as the topic stores them.
pub(super) fn bytes_of(place: &Place<'_>, take: &Take, array: &ArrayRef) -> Result<Buffer> {
    let mut array = array.clone();
    // Elements of the present level in one row.
    let mut per_row = 1u64;
    let mut dims = take.dims.iter();
    loop {
        if array.null_count() > 0
            && let Some(null) = (0..array.len()).find(|&at| array.is_null(at))
        {
            return Err(place.null(place.row + null as u64 / per_row));
        }
        let mut dim = || dims.next().copied().ok_or_else(|| place.unexpected(&array));
        let (inner, length) = match array.data_type() {
            DataType::FixedSizeList(_, _) => {
                let (list, length) = (array.as_fixed_size_list(), dim()?);
                if i64::from(list.value_length()) != i64::from(length) {
                    return Err(place.ragged(place.row, list.value_length() as u64, length));
                }
                let from = list.value_offset_at(0);
                (list.values().slice(from, list.len() * length as usize), length)
            }
            DataType::List(_) => {
                let (list, length) = (array.as_list::<i32>(), dim()?);
                (even_values(place, list.offsets(), list.values(), length, per_row)?, length)
            }
            DataType::LargeList(_) => {
                let (list, length) = (array.as_list::<i64>(), dim()?);
                (even_values(place, list.offsets(), list.values(), length, per_row)?, length)
            }
            _ => break,
        };
        per_row = per_row.saturating_mul(u64::from(length));
        array = inner;
    }
    leaf_bytes(place, take, &array)
}

/// The values of lists that all have `length` elements.
fn even_values<T: ArrowNativeType>(
    place: &Place<'_>,
    offsets: &OffsetBuffer<T>,
    values: &ArrayRef,
    length: u32,
    per_row: u64,
) -> Result<ArrayRef> {
    let lengths = offsets.windows(2).map(|pair| pair[1].as_usize() - pair[0].as_usize());
    if let Some((at, odd)) = lengths.enumerate().find(|(_, got)| *got != length as usize) {
        return Err(place.ragged(place.row + at as u64 / per_row, odd as u64, length));
    }
    let from = offsets[0].as_usize();
    Ok(values.slice(from, offsets[offsets.len() - 1].as_usize() - from))
}

fn leaf_bytes(place: &Place<'_>, take: &Take, array: &ArrayRef) -> Result<Buffer> {
    let data = array.to_data();
    let width = match array.data_type() {
        DataType::Boolean => {
            let bits = array.as_boolean().values();
            let bytes: Vec<u8> = bits.iter().map(u8::from).collect();
            return Ok(Buffer::from_vec(bytes));
        }
        DataType::FixedSizeBinary(length) => *length as usize,
        other => match Dtype::of_storage(other) {
            Some(dtype) if dtype.bytes() == take.cast.bytes_before() => dtype.bytes(),
            _ => return Err(place.unexpected(array)),
        },
    };
    let bytes = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
    Ok(match take.cast.is_identity() {
        true => bytes,
        false => Buffer::from_vec(take.cast.apply(bytes.to_vec())),
    })
}

/// The column that the one row in `array` would be, if its values are of supported types.
pub(super) fn first_row(found: &Found, array: &ArrayRef) -> Option<Column> {
    let Element::Known(dtype) = found.element else { return None };
    let mut array = array.clone();
    let mut dims = Vec::new();
    for known in &found.dims {
        let length = known.map_or_else(
            || match array.data_type() {
                DataType::List(_) => u32::try_from(array.as_list::<i32>().value(0).len()).ok(),
                DataType::LargeList(_) => u32::try_from(array.as_list::<i64>().value(0).len()).ok(),
                _ => None,
            },
            Some,
        );
        dims.push(length.filter(|&length| length > 0)?);
        array = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().value(0),
            DataType::LargeList(_) => array.as_list::<i64>().value(0),
            DataType::FixedSizeList(_, _) => array.as_fixed_size_list().value(0),
            _ => array,
        };
    }
    Some(Column::new(&found.name, dtype, found.shape.clone().unwrap_or(dims)))
}
