//! NumPy arrays: the first dimension counts rows, the others are the shape of a value.
//!
//! An [`ArrayReader`] reads one array, alone in its file (npy) or one of an archive (npz). The fields of a structured
//! array are columns; an array without fields is one column. Arrays in Fortran order have their rows scattered over
//! the file and are gathered in strips of rows.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_buffer::Buffer;

use super::choose::{Found, Take, choose};
use super::npy_header::{Fields, Header, HeaderError};
use super::raw::{FileRange, Input, Raw};
use super::{Decoder, Given, Growing, check_forward};
use crate::error::{Error, ErrorKind, Result};
use crate::rows::Rows;
use crate::schema::Schema;

/// Name of an array that has none, unless a schema or a choice of one column names it.
pub const DEFAULT_COLUMN: &str = "data";
/// Rows of an array in Fortran order are gathered in strips of about so many bytes.
const STRIP_BYTES: usize = 64 << 20;

/// Reads an npy file.
pub(super) struct NpyDecoder {
    array: ArrayReader,
    schema: Arc<Schema>,
    path: Box<Path>,
}

impl NpyDecoder {
    pub(super) fn open(path: &Path, file: File, given: &Given) -> Result<Self> {
        let input = Input::new(path, file)?;
        let header = Header::read(&mut FileRange::new(&input, 0, input.bytes())?)
            .map_err(|error| header_error(path, None, error))?;
        let shape = ArrayShape::new(path, None, &header)?;
        let there = input.bytes() - header.bytes;
        if there != shape.bytes {
            let what =
                if there < shape.bytes { "the file ends before its array does" } else { "more follows the array" };
            return Err(Error::corrupt(format!(
                "{what}: path={} bytes={there} expected={}",
                path.display(),
                shape.bytes
            ))
            .with_hint("a truncated file must be written again; arrays appended to one file go into an npz"));
        }
        let topic = given.growing.as_deref().and_then(Growing::only_column);
        let name = match (&given.schema, &given.columns) {
            (Some(schema), _) if schema.columns().len() == 1 => &schema.columns()[0].name,
            (None, Some(columns)) if columns.len() == 1 => &columns[0],
            (None, None) => topic.unwrap_or(DEFAULT_COLUMN),
            _ => DEFAULT_COLUMN,
        };
        let (schema, takes) = choose(path, &found(path, name, &header)?, given)?;
        let source = match shape.fortran {
            true => ArraySource::Scattered(input, header.bytes),
            false => ArraySource::Ordered(Raw::range(&input, header.bytes, shape.bytes)?),
        };
        let array = ArrayReader::new(source, &header, shape, &takes, &schema);
        Ok(Self { array, schema, path: path.into() })
    }
}

impl Decoder for NpyDecoder {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn rows_total(&self) -> Option<u64> {
        Some(self.array.shape.rows)
    }

    fn next(&mut self, rows_max: usize) -> Result<Option<Rows>> {
        let count = self.array.left(rows_max);
        if count == 0 {
            self.array.finish()?;
            return Ok(None);
        }
        let columns = self.array.next(count)?;
        Rows::new(self.schema.clone(), count, columns).map(Some)
    }

    fn skip_to(&mut self, row: u64) -> Result<()> {
        check_forward(&self.path, self.array.at, row, self.array.shape.rows)?;
        self.array.skip_to(row)
    }
}

/// Sizes of an array, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayShape {
    pub(super) rows: u64,
    /// Bytes of one row of the file.
    pub(super) row_bytes: usize,
    /// Bytes of all rows.
    pub(super) bytes: u64,
    /// Rows are scattered.
    pub(super) fortran: bool,
}

impl ArrayShape {
    pub(super) fn new(path: &Path, member: Option<&str>, header: &Header) -> Result<Self> {
        let [rows, value @ ..] = header.shape.as_slice() else {
            return Err(Error::invalid(format!(
                "the array is a scalar, its first dimension must count rows: {}",
                place(path, member)
            )));
        };
        let row_bytes = value.iter().try_fold(header.fields.item_bytes(), |product, &n| product.checked_mul(n));
        let bytes = row_bytes.and_then(|bytes| bytes.checked_mul(*rows));
        match (row_bytes.and_then(|bytes| usize::try_from(bytes).ok()), bytes) {
            (Some(row_bytes), Some(bytes)) => {
                let fortran = header.fortran && value.iter().any(|&n| n > 1);
                Ok(Self { rows: *rows, row_bytes, bytes, fortran })
            }
            _ => Err(Error::corrupt(format!("the array's size overflows: {}", place(path, member)))),
        }
    }
}

/// Where an array's bytes are.
pub(super) enum ArraySource {
    /// Row after row.
    Ordered(Raw),
    /// Fortran order, from that offset of the file.
    Scattered(Input, u64),
    /// Fortran order, in memory.
    Held(Vec<u8>),
}

/// Reads the chosen columns of one array.
pub(super) struct ArrayReader {
    source: ArraySource,
    pub(super) shape: ArrayShape,
    columns: Vec<ColumnOf>,
    element_bytes: usize,
    /// Dimensions of one row's value.
    value_dims: Vec<usize>,
    pub(super) at: u64,
    strip: Strip,
}

/// A column's place in a row of the file.
struct ColumnOf {
    at: usize,
    bytes: usize,
    cast: super::cast::Cast,
}

/// Gathered rows of an array in Fortran order.
#[derive(Default)]
struct Strip {
    from: u64,
    bytes: Vec<u8>,
}

impl ArrayReader {
    pub(super) fn new(
        source: ArraySource,
        header: &Header,
        shape: ArrayShape,
        takes: &[Take],
        schema: &Schema,
    ) -> Self {
        let columns = takes.iter().zip(schema.columns()).map(|(take, column)| {
            let bytes = take.cast.bytes_before() * column.elements();
            let at = match &header.fields {
                Fields::One(_) => 0,
                Fields::Named(fields) => {
                    fields.iter().filter(|field| !field.name.is_empty()).nth(take.from).map_or(0, |field| field.at)
                }
            };
            ColumnOf { at: at as usize, bytes, cast: take.cast }
        });
        let element_bytes = header.fields.item_bytes() as usize;
        let value_dims = header.shape.iter().skip(1).map(|&n| n as usize).collect();
        Self { source, shape, columns: columns.collect(), element_bytes, value_dims, at: 0, strip: Strip::default() }
    }

    /// Rows still to come, at most `rows_max`.
    pub(super) fn left(&self, rows_max: usize) -> usize {
        usize::try_from(self.shape.rows - self.at).unwrap_or(usize::MAX).min(rows_max.max(1))
    }

    /// The next `count` rows, a buffer per column. They must be there.
    pub(super) fn next(&mut self, count: usize) -> Result<Vec<Buffer>> {
        let mut items = Vec::new();
        let bytes = count
            .checked_mul(self.shape.row_bytes)
            .ok_or_else(|| Error::invalid(format!("too many rows at once: rows={count}")))?;
        match &mut self.source {
            ArraySource::Ordered(raw) => raw.fill(bytes, &mut items)?,
            _ => self.gather(count, &mut items)?,
        }
        self.at += count as u64;
        if let [column] = self.columns.as_slice()
            && column.bytes == self.shape.row_bytes
        {
            return Ok(vec![Buffer::from_vec(column.cast.apply(items))]);
        }
        let column_of = |column: &ColumnOf| {
            let mut bytes = Vec::with_capacity(count * column.bytes);
            for item in items.chunks_exact(self.shape.row_bytes) {
                bytes.extend_from_slice(&item[column.at..column.at + column.bytes]);
            }
            Buffer::from_vec(column.cast.apply(bytes))
        };
        Ok(self.columns.iter().map(column_of).collect())
    }

    pub(super) fn skip_to(&mut self, row: u64) -> Result<()> {
        if let ArraySource::Ordered(raw) = &mut self.source {
            raw.skip((row - self.at) * self.shape.row_bytes as u64)?;
        }
        self.at = row;
        Ok(())
    }

    /// To be called behind the last row: checks what can only be checked there.
    pub(super) fn finish(&mut self) -> Result<()> {
        match &mut self.source {
            ArraySource::Ordered(raw) => raw.finish(),
            _ => Ok(()),
        }
    }

    /// Rows `at..at + count` of an array in Fortran order.
    fn gather(&mut self, count: usize, out: &mut Vec<u8>) -> Result<()> {
        let row_bytes = self.shape.row_bytes;
        for row in self.at..self.at + count as u64 {
            let held = (self.strip.bytes.len() / row_bytes) as u64;
            if row < self.strip.from || row >= self.strip.from + held {
                let most = (STRIP_BYTES / row_bytes).max(count) as u64;
                self.strip = self.read_strip(row, most.min(self.shape.rows - row) as usize)?;
            }
            let at = (row - self.strip.from) as usize * row_bytes;
            out.extend_from_slice(&self.strip.bytes[at..at + row_bytes]);
        }
        Ok(())
    }

    /// Reads the same rows of every position of the value and turns them over.
    fn read_strip(&self, from: u64, rows: usize) -> Result<Strip> {
        let (row_bytes, width) = (self.shape.row_bytes, self.element_bytes);
        let mut bytes = vec![0; rows * row_bytes];
        let run_bytes = rows * width;
        let (positions, places) = self.c_order();
        for (position, place) in (0..positions).zip(places) {
            let at = (position as u64 * self.shape.rows + from) * width as u64;
            let read;
            let run = match &self.source {
                ArraySource::Scattered(input, data) => {
                    read = input.read(data + at, run_bytes)?;
                    read.as_slice()
                }
                ArraySource::Held(held) => &held[at as usize..at as usize + run_bytes],
                ArraySource::Ordered(_) => &[],
            };
            for (row, element) in run.chunks_exact(width).enumerate() {
                let to = row * row_bytes + place * width;
                bytes[to..to + width].copy_from_slice(element);
            }
        }
        Ok(Strip { from, bytes })
    }

    /// Number of positions in a value, and for each in Fortran order its place in C order.
    fn c_order(&self) -> (usize, impl Iterator<Item = usize> + use<>) {
        let dims = self.value_dims.clone();
        let positions = self.shape.row_bytes / self.element_bytes;
        let places = (0..positions).map(move |mut position| {
            let mut index = Vec::with_capacity(dims.len());
            for &n in &dims {
                index.push(position % n);
                position /= n;
            }
            index.iter().zip(&dims).fold(0, |place, (i, n)| place * n + i)
        });
        (positions, places)
    }
}

/// The columns of an array: its named fields, or itself under `name`.
pub(super) fn found(path: &Path, name: &str, header: &Header) -> Result<Vec<Found>> {
    let dims =
        |shape: &[u64]| {
            shape.iter().map(|&n| u32::try_from(n).map(Some)).collect::<Result<Vec<_>, _>>().map_err(|_| {
                Error::invalid(format!("a dimension is too large: path={} shape={shape:?}", path.display()))
            })
        };
    let value = header.shape.get(1..).unwrap_or_default();
    match &header.fields {
        Fields::One(kind) => {
            let (name, element) = (name.to_owned(), kind.element.clone());
            Ok(vec![Found { name, element, dims: dims(value)?, shape: None, swap: kind.swap }])
        }
        Fields::Named(_) if !value.is_empty() => Err(Error::invalid(format!(
            "a structured array has one dimension, of rows: path={} shape={:?}",
            path.display(),
            header.shape
        ))
        .with_hint("give its fields the other dimensions, or save each field as an array of an npz")),
        Fields::Named(fields) => fields
            .iter()
            .filter(|field| !field.name.is_empty())
            .map(|field| {
                let (name, element) = (field.name.clone(), field.kind.element.clone());
                Ok(Found { name, element, dims: dims(&field.shape)?, shape: None, swap: field.kind.swap })
            })
            .collect(),
    }
}

/// The error of a header with file and member.
pub(super) fn header_error(path: &Path, member: Option<&str>, error: HeaderError) -> Error {
    let (kind, hint) = match &error {
        HeaderError::Pickled => (ErrorKind::Invalid, Some("save arrays of numbers, one per column")),
        HeaderError::Nested(_) | HeaderError::Version(..) => (ErrorKind::Invalid, None),
        _ => (ErrorKind::Corrupt, None),
    };
    let error = Error::new(kind, format!("{error}: {}", place(path, member)));
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn place(path: &Path, member: Option<&str>) -> String {
    match member {
        None => format!("path={}", path.display()),
        Some(member) => format!("path={} array={member:?}", path.display()),
    }
}
