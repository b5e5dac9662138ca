//! What an ingest will do: files, their schema, rows and bytes. Made before anything is written.
//!
//! Every file is opened; columns and shapes are chosen and must agree. What can be known from headers and footers is
//! known then; the rest (nulls, ragged lists, damage inside) shows when files are checked, see [`Runner`](super::Runner).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::progress::{Event, Progress, Stage};
use super::source::{Stamp, identify, resolve};
use super::{Decoder, Format, Given, Growing, open};
use crate::error::{Error, Result};
use crate::schema::{Column, Schema};
use crate::versions::{Growth, SchemaVersion, describe_growth};

/// One file to ingest.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub format: Format,
    /// Its size.
    pub file_bytes: u64,
    /// Rows in it, if known before reading.
    pub rows: Option<u64>,
    /// Its identity: name, size and content.
    pub source: u128,
    pub(super) stamp: Stamp,
    /// What its rows are read as; the topic takes them.
    pub(super) schema: Arc<Schema>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    schema: Arc<Schema>,
    files: Vec<PlannedFile>,
    growth: Option<Grown>,
}

/// How a topic's schema grows by an ingest.
#[derive(Clone, Debug)]
pub struct Grown {
    /// The next schema version.
    pub version: SchemaVersion,
    /// What changes, for people.
    pub changes: String,
}

impl Plan {
    /// Opens all files that the patterns name. With a schema given, files are read as it says; without, they must all
    /// have the same columns, in any order. For a topic that is there each must fit it, or be what it can grow by.
    pub fn new(patterns: &[String], given: &Given, progress: &mut dyn Progress) -> Result<Self> {
        let (paths, notes) = resolve(patterns)?;
        notes.iter().for_each(|note| progress.report(Event::Note(note)));
        let Some(first) = paths.first() else { return Err(Error::invalid("no files are named")) };
        let first_schema = open(first, given)?.schema().clone();
        let mut growth = given.growing.as_deref().map(|growing| (growing, growing.schemas.growth()));
        let mut opened = Vec::with_capacity(paths.len());
        for path in &paths {
            let decoder = open(path, given)?;
            let mut schema = decoder.schema().clone();
            if let Some((growing, growth)) = &mut growth {
                growth.take(&schema, &growing.defaults).map_err(|error| at(path, error))?;
            } else if schema != first_schema {
                agree((first, &first_schema), (path, &schema))?;
                // Columns in the first file's order for all.
                schema = first_schema.clone();
            }
            opened.push(Opened { format: Format::of(path)?, rows: decoder.rows_total(), schema });
        }
        let (schema, growth) = match growth {
            None => (first_schema, None),
            Some((growing, growth)) => grown(growing, growth)?,
        };
        let files = identify_all(&paths, &opened, progress)?;
        Ok(Self { schema, files, growth })
    }

    /// How the topic's schema grows, if it does.
    pub fn growth(&self) -> Option<&Grown> {
        self.growth.as_ref()
    }

    /// The schema that the topic has then.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The files in the order in which they are stored.
    pub fn files(&self) -> &[PlannedFile] {
        &self.files
    }

    /// Rows of all files, if all say so.
    pub fn rows(&self) -> Option<u64> {
        self.files.iter().try_fold(0u64, |rows, file| rows.checked_add(file.rows?))
    }

    /// Bytes of all rows, if known.
    pub fn bytes(&self) -> Option<u64> {
        self.rows()?.checked_mul(self.schema.row_bytes() as u64)
    }

    /// A decoder of one file that gives rows as the topic takes them.
    pub fn open(&self, file: &PlannedFile) -> Result<Box<dyn Decoder>> {
        let given = Given { schema: Some((*file.schema).clone()), ..Given::default() };
        let decoder = open(&file.path, &given)?;
        file.stamp.check(&file.path)?;
        Ok(decoder)
    }
}

/// What opening a file told.
struct Opened {
    format: Format,
    rows: Option<u64>,
    schema: Arc<Schema>,
}

/// The schema that a topic has in the end, and how it comes to that.
fn grown(growing: &Growing, growth: Growth<'_>) -> Result<(Arc<Schema>, Option<Grown>)> {
    growth.check_defaults(&growing.defaults)?;
    let newest = growing.schemas.newest();
    let Some(version) = growth.version(0)? else { return Ok((newest.schema.clone(), None)) };
    let changes = describe_growth(&newest.schema, &version);
    Ok((version.schema.clone(), Some(Grown { version, changes })))
}

/// The error with the file that it is about.
fn at(path: &Path, error: Error) -> Error {
    let hint = error.hint().map(str::to_owned);
    let error = Error::new(error.kind(), format!("{error} path={}", path.display()));
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Hashes the files and leaves out those that are the same as one before.
fn identify_all(paths: &[PathBuf], opened: &[Opened], progress: &mut dyn Progress) -> Result<Vec<PlannedFile>> {
    let bytes = paths.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
    progress.report(Event::Begin { stage: Stage::Identify, bytes });
    let mut files: Vec<PlannedFile> = Vec::with_capacity(paths.len());
    let mut known = std::collections::HashMap::new();
    let mut notes = Vec::new();
    for (path, opened) in paths.iter().zip(opened) {
        let (source, file_bytes, stamp) = identify(path, &mut |bytes| progress.report(Event::Advance { bytes }))?;
        match known.insert(source, path) {
            Some(same) => {
                let (path, same) = (path.display(), same.display());
                notes.push(format!(
                    "two files of the same name and content, taken once (rename one to have both): path={path} same={same}"
                ));
            }
            None => files.push(PlannedFile {
                path: path.clone(),
                format: opened.format,
                file_bytes,
                rows: opened.rows,
                source,
                stamp,
                schema: opened.schema.clone(),
            }),
        }
    }
    progress.report(Event::End);
    notes.iter().for_each(|note| progress.report(Event::Warning(note)));
    Ok(files)
}

/// Whether two files have the same columns, apart from their order; else an error that shows the first difference.
fn agree(first: (&Path, &Schema), other: (&Path, &Schema)) -> Result<()> {
    let differ = |column: &str, one: String, two: String| {
        Err(Error::invalid(format!(
            "two files have different columns: column={column:?} path={} type={one} path={} type={two}",
            first.0.display(),
            other.0.display()
        ))
        .with_hint(
            "ingest them into different topics, choose common columns with --columns, or say how to read them with --schema",
        ))
    };
    let find = |schema: &Schema, name: &str| schema.columns().iter().find(|column| column.name == name).cloned();
    let text = |column: &Column| Column::new("", column.dtype, column.shape.clone()).to_string().split_off(1);
    for column in first.1.columns() {
        match find(other.1, &column.name) {
            Some(two) if two == *column => {}
            Some(two) => return differ(&column.name, text(column), text(&two)),
            None => return differ(&column.name, text(column), "none".into()),
        }
    }
    match other.1.columns().iter().find(|column| find(first.1, &column.name).is_none()) {
        Some(more) => differ(&more.name, "none".into(), text(more)),
        None => Ok(()),
    }
}
