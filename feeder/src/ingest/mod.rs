//! From files to topics: decoders, the plan of an ingest, and its execution.
//!
//! A [`Decoder`] reads one file as [`Rows`] of fixed-shape columns, in the file's order, in bounded memory. [`open`]
//! picks it by the file's first bytes. What a file holds and what a topic takes meet in [`Given`]: without it the schema
//! is inferred, with it only equal types, wider numbers and other shapes of as many elements are accepted. A topic that is
//! there takes what it can hold, and [grows](Growing) by what is wider or declared.
//!
//! Files come from outside: a truncated or altered one is an error that names file and place, never a panic, and no
//! buffer is allocated by a size that a file merely declares. Nothing is guessed: nulls, ragged lists, text and pickled
//! objects are refused by column and type. Supported are
//!
//! - npy (versions 1 to 3, both orders, both endiannesses; fields of a structured array are columns) and npz (stored and
//!   deflated; arrays are columns);
//! - parquet (all codecs but LZO);
//! - Arrow IPC, file and stream, uncompressed, LZ4 or Zstandard.

mod arrow_type;
mod cast;
mod choose;
mod grow;
mod ipc;
mod ipc_buffers;
mod ipc_layout;
mod npy;
mod npy_header;
mod npz;
mod parquet;
mod plan;
mod progress;
mod raw;
mod runner;
mod source;
mod zip_directory;

#[cfg(test)]
mod arrow_tests;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod npy_tests;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::schema::Schema;

pub use grow::Growing;
pub use npy::DEFAULT_COLUMN;
pub use plan::{Grown, Plan, PlannedFile};
pub use progress::{Event, Progress, Stage};
pub use runner::{Request, Runner, Summary};
pub use source::FILES_MAX;

/// What the caller says about the columns of a file.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The schema that the rows shall have; its names choose the columns.
    pub schema: Option<Schema>,
    /// The columns to take, in this order. With a schema: the same names.
    pub columns: Option<Vec<String>>,
    /// The topic that is there, where there is one.
    pub growing: Option<Arc<Growing>>,
}

/// Reads one file as rows.
pub trait Decoder: Send {
    /// The schema of the rows.
    fn schema(&self) -> &Arc<Schema>;

    /// Rows in the file, where the format says so before everything is read.
    fn rows_total(&self) -> Option<u64>;

    /// The next rows, at most `rows_max` (0 counts as 1), or `None` behind the last one. Fewer than asked for is normal.
    fn next(&mut self, rows_max: usize) -> Result<Option<Rows>>;

    /// Goes to `row`, counted from 0; the number of rows is the furthest place. Going back is an error.
    fn skip_to(&mut self, row: u64) -> Result<()>;
}

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One NumPy array.
    Npy,
    /// A zip of NumPy arrays.
    Npz,
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC, the file form (also called Feather 2).
    ArrowFile,
    /// Arrow IPC, the stream form.
    ArrowStream,
}

impl Format {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Parquet => "parquet",
            Self::ArrowFile => "arrow file",
            Self::ArrowStream => "arrow stream",
        }
    }

    /// The format of a file, by its first bytes; extensions only help to say what an unknown file is.
    pub fn of(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(|error| cannot_open(path, error))?;
        let meta = file.metadata().map_err(|error| cannot_open(path, error))?;
        if !meta.is_file() {
            let what = if meta.is_dir() { "a directory" } else { "not a regular file" };
            return Err(Error::invalid(format!("{what}, files are ingested: path={}", path.display()))
                .with_hint(format!("name its files, for example '{}/*.parquet'", path.display())));
        }
        let mut head = Vec::with_capacity(8);
        file.by_ref().take(8).read_to_end(&mut head).map_err(|error| cannot_open(path, error))?;
        match head.as_slice() {
            [] => Err(Error::corrupt(format!("the file is empty: path={}", path.display()))),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Ok(Self::Npy),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Ok(Self::Npz),
            [b'P', b'A', b'R', b'1', ..] => Ok(Self::Parquet),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Ok(Self::ArrowFile),
            [0xff, 0xff, 0xff, 0xff, ..] => Ok(Self::ArrowStream),
            head => Err(unknown(path, head)),
        }
    }
}

/// Opens a file for reading: checks its header or footer, chooses the columns and says what is wrong with them.
pub fn open(path: &Path, given: &Given) -> Result<Box<dyn Decoder>> {
    let format = Format::of(path)?;
    let file = File::open(path).map_err(|error| cannot_open(path, error))?;
    Ok(match format {
        Format::Npy => Box::new(npy::NpyDecoder::open(path, file, given)?),
        Format::Npz => Box::new(npz::NpzDecoder::open(path, file, given)?),
        Format::Parquet => Box::new(parquet::ParquetDecoder::open(path, file, given)?),
        Format::ArrowFile => Box::new(ipc::IpcDecoder::open_file(path, file, given)?),
        Format::ArrowStream => Box::new(ipc::IpcDecoder::open_stream(path, file, given)?),
    })
}

fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("cannot read file: path={}", path.display()), error)
}

/// The error for a file of no known format, with what it looks like.
fn unknown(path: &Path, head: &[u8]) -> Error {
    let known = "known are npy, npz, parquet and arrow ipc";
    let extension = path.extension().and_then(|text| text.to_str()).unwrap_or_default().to_lowercase();
    let (what, hint) = match (head, extension.as_str()) {
        ([0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [b'B', b'Z', b'h', ..], _) => {
            ("the file is compressed as a whole", "decompress it first; parquet, npz and arrow compress inside")
        }
        ([b'P', b'A', b'R', b'E', ..], _) => ("encrypted parquet cannot be read", "write it without encryption"),
        ([b'F', b'E', b'A', b'1', ..], _) => ("feather version 1 cannot be read", "write it as feather 2 or parquet"),
        ([0x80, 2..=5, ..], _) | (_, "pkl" | "pickle") => (
            "pickled objects are refused: loading them can run any code",
            "save arrays with numpy.savez, or as parquet",
        ),
        (_, "npy" | "npz" | "parquet" | "arrow" | "feather") => {
            ("the file does not start as its name says", "write it again, it may be damaged")
        }
        _ => ("unknown file format", "convert it to parquet, for example with pyarrow or polars"),
    };
    Error::invalid(format!("{what}, {known}: path={} first_bytes={head:02x?}", path.display())).with_hint(hint)
}

/// Refuses to go back; decoders only read forwards.
fn check_forward(path: &Path, at: u64, row: u64, total: u64) -> Result<()> {
    if row < at || row > total {
        return Err(Error::invalid(format!(
            "cannot go to that row of a file: path={} row={row} at={at} rows={total}",
            path.display()
        )));
    }
    Ok(())
}
