//! Parquet files, row group after row group, in batches.
//!
//! The crate that decodes parquet is careful with damaged files, but not everywhere: what it does runs behind one seam
//! that turns a panic into an error, and offsets and counts of the footer are checked against the file first.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;

use super::arrow_type::{Place, bytes_of, found};
use super::choose::{Found, Take, choose};
use super::{Decoder, Given, check_forward};
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::schema::Schema;

/// Reads a parquet file.
pub(super) struct ParquetDecoder {
    path: Box<Path>,
    file: File,
    meta: ArrowReaderMetadata,
    schema: Arc<Schema>,
    takes: Vec<Take>,
    rows: u64,
    at: u64,
    reader: Option<Batches>,
}

/// A reader made for batches of some size, and what is left of its last one.
struct Batches {
    reader: ParquetRecordBatchReader,
    rows_max: usize,
    pending: Option<RecordBatch>,
}

impl ParquetDecoder {
    pub(super) fn open(path: &Path, file: File, given: &Given) -> Result<Self> {
        let bytes = file
            .metadata()
            .map_err(|error| Error::io(format!("cannot read file: path={}", path.display()), error))?
            .len();
        let meta = contained(path, || {
            ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|error| damaged(path, error))
        })?;
        let rows = check_footer(path, &meta, bytes)?;
        let columns: Vec<Found> = meta.schema().fields().iter().map(|field| found(field)).collect();
        let (schema, takes) = choose(path, &columns, given).map_err(|error| {
            // A file that does not say how long its lists are shows it in its first row.
            match given.schema.is_none()
                && given.growing.is_none()
                && error.hint().is_some_and(|hint| hint.contains("[N"))
            {
                true => with_first_row(path, &file, &meta, &columns, given, error),
                false => error,
            }
        })?;
        Ok(Self { path: path.into(), file, meta, schema, takes, rows, at: 0, reader: None })
    }

    /// The next batch from the crate, of at most `rows_max` rows.
    fn batch(&mut self, rows_max: usize) -> Result<Option<RecordBatch>> {
        let path = self.path.clone();
        contained(&path, || {
            let fits = |batches: &Batches| batches.pending.is_some() || batches.rows_max >= rows_max;
            if !self.reader.as_ref().is_some_and(fits) {
                let reader = self.reader_at(rows_max)?;
                self.reader = Some(Batches { reader, rows_max, pending: None });
            }
            let Some(batches) = &mut self.reader else { return Ok(None) };
            let batch = match batches.pending.take() {
                Some(batch) => Some(batch),
                None => batches.reader.next().transpose().map_err(|error| damaged(&path, error))?,
            };
            Ok(batch.map(|batch| match batch.num_rows() > rows_max {
                false => batch,
                true => {
                    batches.pending = Some(batch.slice(rows_max, batch.num_rows() - rows_max));
                    batch.slice(0, rows_max)
                }
            }))
        })
    }

    /// A reader that begins at the row where this decoder stands, without touching row groups before it.
    fn reader_at(&self, rows_max: usize) -> Result<ParquetRecordBatchReader> {
        let (mut before, mut first) = (0, 0);
        let groups = self.meta.metadata().row_groups();
        while first < groups.len() && before + groups[first].num_rows() as u64 <= self.at {
            before += groups[first].num_rows() as u64;
            first += 1;
        }
        let file = self
            .file
            .try_clone()
            .map_err(|error| Error::io(format!("cannot read file: path={}", self.path.display()), error))?;
        let roots = self.takes.iter().map(|take| take.from);
        let mask = ProjectionMask::roots(self.meta.metadata().file_metadata().schema_descr(), roots);
        ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.meta.clone())
            .with_projection(mask)
            .with_row_groups((first..groups.len()).collect())
            .with_offset((self.at - before) as usize)
            .with_batch_size(rows_max)
            .build()
            .map_err(|error| damaged(&self.path, error))
    }
}

impl Decoder for ParquetDecoder {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn rows_total(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn next(&mut self, rows_max: usize) -> Result<Option<Rows>> {
        if self.at == self.rows {
            return Ok(None);
        }
        let left = usize::try_from(self.rows - self.at).unwrap_or(usize::MAX);
        let batch = self.batch(rows_max.max(1).min(left))?.filter(|batch| batch.num_rows() > 0);
        let Some(batch) = batch.filter(|batch| batch.num_rows() <= left) else {
            return Err(Error::corrupt(format!(
                "the rows of a parquet file are not as many as its footer says: path={} row={} expected={}",
                self.path.display(),
                self.at,
                self.rows
            )));
        };
        let mut columns = Vec::with_capacity(self.takes.len());
        for (take, column) in self.takes.iter().zip(self.schema.columns()) {
            let place = Place { path: &self.path, column, row: self.at };
            // The reader keeps the file's order of columns, whatever order they were asked for in.
            let from = self.takes.iter().filter(|other| other.from < take.from).count();
            columns.push(bytes_of(&place, take, batch.column(from))?);
        }
        let count = batch.num_rows();
        self.at += count as u64;
        Rows::new(self.schema.clone(), count, columns).map(Some)
    }

    fn skip_to(&mut self, row: u64) -> Result<()> {
        check_forward(&self.path, self.at, row, self.rows)?;
        if row != self.at {
            self.at = row;
            self.reader = None;
        }
        Ok(())
    }
}

/// Refuses counts and places in the footer that the file cannot have; gives the number of rows.
fn check_footer(path: &Path, meta: &ArrowReaderMetadata, bytes: u64) -> Result<u64> {
    let wrong = |what: &str, group: usize| {
        Error::corrupt(format!("{what}: path={} row_group={group} bytes={bytes}", path.display()))
    };
    let mut rows = 0u64;
    for (group, meta) in meta.metadata().row_groups().iter().enumerate() {
        let here = u64::try_from(meta.num_rows()).map_err(|_| wrong("a row group has a negative count", group))?;
        rows = rows
            .checked_add(here)
            .filter(|rows| *rows <= i64::MAX as u64)
            .ok_or_else(|| wrong("too many rows", group))?;
        for column in meta.columns() {
            let from = column.dictionary_page_offset().filter(|&at| at > 0).unwrap_or(column.data_page_offset());
            let end = from.checked_add(column.compressed_size());
            let inside = from >= 0 && end.is_some_and(|end| end >= from && end as u64 <= bytes);
            if !inside || column.num_values() < 0 {
                return Err(wrong("a column chunk is not inside the file", group));
            }
        }
    }
    Ok(rows)
}

/// Puts the lengths of the first row's lists into the hint of `error`.
fn with_first_row(
    path: &Path,
    file: &File,
    meta: &ArrowReaderMetadata,
    columns: &[Found],
    given: &Given,
    error: Error,
) -> Error {
    let names: Vec<&str> = match &given.columns {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => columns.iter().map(|column| column.name.as_str()).collect(),
    };
    let row = contained(path, || {
        let file = file.try_clone().map_err(|error| Error::io("cannot read file", error))?;
        let mut reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, meta.clone())
            .with_batch_size(1)
            .with_limit(1)
            .build()
            .map_err(|error| damaged(path, error))?;
        reader.next().transpose().map_err(|error| damaged(path, error))
    });
    let Ok(Some(row)) = row else { return error };
    let column = |name: &&str| {
        let at = columns.iter().position(|column| column.name == **name)?;
        super::arrow_type::first_row(&columns[at], row.column(at))
    };
    match names.iter().map(column).collect::<Option<Vec<_>>>() {
        Some(columns) => {
            let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
            error.with_hint(format!("if all are as long as the first one, say so: --schema '{}'", columns.join(", ")))
        }
        None => error,
    }
}

/// Runs what may panic on damaged files.
fn contained<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Error::corrupt(format!(
            "the parquet file is damaged, {}: path={}",
            text.unwrap_or("its decoder gave up").replace('\n', " "),
            path.display()
        )))
    })
}

fn damaged(path: &Path, error: impl Into<ReaderError>) -> Error {
    let error = error.into().0;
    let text = error.to_string();
    // A ragged list is the user's data, not damage; all else is.
    if text.contains("misaligned row") {
        return Error::invalid(format!("a list is not as long as its type says: path={}", path.display()))
            .with_source(error)
            .with_hint("pad or cut the lists to one length before ingesting");
    }
    Error::corrupt(format!("the parquet file is damaged or not finished: path={}", path.display())).with_source(error)
}

/// The two error types that the crate's readers have.
struct ReaderError(Box<dyn std::error::Error + Send + Sync>);

impl From<ParquetError> for ReaderError {
    fn from(error: ParquetError) -> Self {
        Self(error.into())
    }
}

impl From<arrow_schema::ArrowError> for ReaderError {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn panics_become_errors() {
        let error = contained::<()>(Path::new("x.parquet"), || panic!("index {} out\nof range", 7)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.to_string(), "the parquet file is damaged, index 7 out of range: path=x.parquet");
        assert_eq!(contained(Path::new("x"), || Ok(3)).unwrap(), 3);
    }
}
