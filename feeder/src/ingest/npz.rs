//! NumPy archives: a zip of npy arrays, each a column.
//!
//! Every array has a reader of its own, so that rows come out of all of them side by side in bounded memory, also
//! deflated ones. Sums of the zip are checked at each member's end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use flate2::bufread::DeflateDecoder;

use super::choose::{Element, Found, Take, choose};
use super::npy::{ArrayReader, ArrayShape, ArraySource, found, header_error};
use super::npy_header::{Fields, Header};
use super::raw::{FileRange, Input, Raw};
use super::zip_directory::{Member, Method, members};
use super::{Decoder, Given, check_forward};
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::schema::Schema;

/// A deflated array in Fortran order is held in memory, up to this size.
const HELD_BYTES_MAX: u64 = 1 << 30;

/// Reads an npz file.
pub(super) struct NpzDecoder {
    input: Input,
    members: Vec<ArrayMember>,
    takes: Vec<Take>,
    schema: Arc<Schema>,
    rows: u64,
    at: u64,
    /// One per column; made when the first rows are asked for, because sums may have to be checked then.
    readers: Vec<ArrayReader>,
}

/// A member that holds an array.
struct ArrayMember {
    name: String,
    member: Member,
    header: Header,
}

impl NpzDecoder {
    pub(super) fn open(path: &Path, file: File, given: &Given) -> Result<Self> {
        let input = Input::new(path, file)?;
        let wanted = |name: &str| match (&given.schema, &given.columns) {
            (Some(schema), _) => schema.columns().iter().any(|column| column.name == name),
            (None, Some(columns)) => columns.iter().any(|column| column == name),
            (None, None) => true,
        };
        let mut arrays = Vec::new();
        let mut others = Vec::new();
        for member in members(&input)? {
            match member.name.strip_suffix(".npy").map(str::to_owned) {
                Some(name) if wanted(&name) => arrays.push(ArrayMember::read(&input, name, member)?),
                Some(name) => others.push(name),
                None => refuse_foreign(path, &member)?,
            }
        }
        let rows = common_rows(path, &arrays)?;
        let mut columns: Vec<Found> = Vec::with_capacity(arrays.len());
        for array in &arrays {
            columns.extend(array.found(path)?);
        }
        // Nobody wants these, but who looks for a name sees them.
        columns.extend(others.into_iter().map(|name| Found {
            name,
            element: Element::Other(String::new()),
            dims: Vec::new(),
            shape: None,
            swap: false,
        }));
        let (schema, takes) = choose(path, &columns, given)?;
        takes.iter().try_for_each(|take| arrays[take.from].shape(path).map(drop))?;
        Ok(Self { input, members: arrays, takes, schema, rows, at: 0, readers: Vec::new() })
    }

    /// Readers of all columns, at the present row.
    fn start(&mut self) -> Result<()> {
        let readers = self.takes.iter().zip(self.schema.columns()).map(|(take, column)| {
            let one = Schema::new(vec![column.clone()])?;
            let mut reader = self.members[take.from].reader(&self.input, take, &one)?;
            reader.skip_to(self.at)?;
            Ok(reader)
        });
        self.readers = readers.collect::<Result<_>>()?;
        Ok(())
    }
}

impl Decoder for NpzDecoder {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn rows_total(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn next(&mut self, rows_max: usize) -> Result<Option<Rows>> {
        if self.readers.is_empty() {
            self.start()?;
        }
        let count = self.readers.first().map_or(0, |reader| reader.left(rows_max));
        if count == 0 {
            self.readers.iter_mut().try_for_each(ArrayReader::finish)?;
            return Ok(None);
        }
        let mut columns = Vec::with_capacity(self.readers.len());
        for reader in &mut self.readers {
            columns.extend(reader.next(count)?);
        }
        self.at += count as u64;
        Rows::new(self.schema.clone(), count, columns).map(Some)
    }

    fn skip_to(&mut self, row: u64) -> Result<()> {
        check_forward(self.input.path(), self.at, row, self.rows)?;
        self.readers.iter_mut().try_for_each(|reader| reader.skip_to(row))?;
        self.at = row;
        Ok(())
    }
}

impl ArrayMember {
    fn read(input: &Input, name: String, member: Member) -> Result<Self> {
        let range = FileRange::new(input, member.at, member.packed_bytes)?;
        let header = match member.method {
            Method::Stored => Header::read(&mut { range }),
            Method::Deflated => Header::read(&mut DeflateDecoder::new(io::BufReader::new(range))),
        };
        let header = header.map_err(|error| header_error(input.path(), Some(&name), error))?;
        Ok(Self { name, member, header })
    }

    /// The column that the array is.
    fn found(&self, path: &Path) -> Result<Vec<Found>> {
        if let Fields::Named(_) = self.header.fields {
            return Err(Error::invalid(format!(
                "structured arrays are read from npy files, in an npz each array is one column: path={} array={:?}",
                path.display(),
                self.name
            ))
            .with_hint("take the others: --columns a,b"));
        }
        found(path, &self.name, &self.header)
    }

    /// Sizes of the array, agreeing with those of its member.
    fn shape(&self, path: &Path) -> Result<ArrayShape> {
        let shape = ArrayShape::new(path, Some(&self.name), &self.header)?;
        match self.header.bytes.checked_add(shape.bytes) {
            Some(bytes) if bytes == self.member.bytes => Ok(shape),
            bytes => Err(Error::corrupt(format!(
                "an array's shape and its size in the zip disagree: path={} array={:?} bytes={} expected={}",
                path.display(),
                self.name,
                self.member.bytes,
                bytes.unwrap_or(u64::MAX)
            ))),
        }
    }

    fn reader(&self, input: &Input, take: &Take, schema: &Schema) -> Result<ArrayReader> {
        let take = Take { from: 0, ..take.clone() };
        let shape = self.shape(input.path())?;
        let mut raw = self.raw(input)?;
        let source = if !shape.fortran {
            raw.skip(self.header.bytes)?;
            ArraySource::Ordered(raw)
        } else if self.member.method == Method::Stored {
            // Rows will be picked from all over the array, so its sum is checked first.
            raw.skip(self.member.bytes)?;
            raw.finish()?;
            ArraySource::Scattered(input.clone(), self.member.at + self.header.bytes)
        } else {
            if shape.bytes > HELD_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "a deflated array in Fortran order must fit in memory: path={} array={:?} bytes={} most={HELD_BYTES_MAX}",
                    input.path().display(),
                    self.name,
                    shape.bytes
                ))
                .with_hint("save numpy.ascontiguousarray(array), or use numpy.savez, which does not compress"));
            }
            let mut held = Vec::new();
            raw.skip(self.header.bytes)?;
            raw.fill(shape.bytes as usize, &mut held)?;
            raw.finish()?;
            ArraySource::Held(held)
        };
        Ok(ArrayReader::new(source, &self.header, shape, &[take], schema))
    }

    /// The member's bytes, unpacked and summed up.
    fn raw(&self, input: &Input) -> Result<Raw> {
        let (method, crc) = (self.member.method, self.member.crc);
        Raw::packed(input, self.member.at, self.member.packed_bytes, |range| {
            Ok(match method {
                Method::Stored => Box::new(Summed::new(range, crc)),
                Method::Deflated => Box::new(Summed::new(DeflateDecoder::new(range), crc)),
            })
        })
    }
}

/// Passes bytes on and compares their CRC-32 at the end.
struct Summed<R> {
    inner: R,
    digest: Digest,
    crc: u32,
}

impl<R: Read> Summed<R> {
    fn new(inner: R, crc: u32) -> Self {
        Self { inner, digest: Digest::new(CrcAlgorithm::Crc32IsoHdlc), crc }
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(out)?;
        if got == 0 && !out.is_empty() && self.digest.finalize() as u32 != self.crc {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the array does not have the sum that the zip says",
            ));
        }
        self.digest.update(&out[..got]);
        Ok(got)
    }
}

/// An npz holds arrays only; what else is in it tells what the file really is.
fn refuse_foreign(path: &Path, member: &Member) -> Result<()> {
    let what = match member.name.ends_with(".pkl") {
        true => "pickled objects are refused: loading them can run any code; this looks like a file of torch.save",
        false => "the zip holds other things than npy arrays",
    };
    Err(Error::invalid(format!("{what}: path={} member={:?}", path.display(), member.name))
        .with_hint("save the arrays with numpy.savez, or as parquet"))
}

/// The first dimension of all arrays, or an error that tells them apart.
fn common_rows(path: &Path, arrays: &[ArrayMember]) -> Result<u64> {
    let rows_of = |array: &ArrayMember| array.header.shape.first().copied();
    let Some(first) = arrays.first() else { return Ok(0) };
    match rows_of(first) {
        Some(rows) if arrays.iter().all(|array| rows_of(array) == Some(rows)) => return Ok(rows),
        _ => {}
    }
    let list: Vec<String> = arrays
        .iter()
        .map(|array| format!("{}={}", array.name, rows_of(array).map_or("scalar".to_owned(), |rows| rows.to_string())))
        .collect();
    // Most probably the columns are those that agree with most others.
    let agreeing = |rows| arrays.iter().filter(move |array| rows_of(array) == Some(rows));
    let rows = arrays.iter().filter_map(rows_of).max_by_key(|&rows| (agreeing(rows).count(), rows));
    let columns: Vec<&str> = agreeing(rows.unwrap_or_default())
        .filter(|array| matches!(&array.header.fields, Fields::One(kind) if !matches!(kind.element, Element::Other(_))))
        .map(|array| array.name.as_str())
        .collect();
    Err(Error::invalid(format!(
        "the arrays of an npz have different numbers of rows, columns need the same: path={} {}",
        path.display(),
        list.join(" ")
    ))
    .with_hint(format!("choose the arrays that belong together: --columns {}", columns.join(","))))
}
