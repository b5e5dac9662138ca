//! A version as one parquet file, which is there whole or not at all.
//!
//! It is written beside its place, synced and renamed. Columns keep their Arrow types: tensors are fixed-size lists marked as
//! `arrow.fixed_shape_tensor`, booleans one byte marked as `arrow.bool8`, bfloat16 is stored as uint16 and marked. The file's
//! metadata name version and fingerprint.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cursorstore::records::DatasetVersion;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::blocks::Blocks;
use super::pin::check_there;
use super::verify::CheckProgress;
use super::{Catalogue, checksum, fingerprint, schema_of};
use crate::error::{Error, ErrorKind, Result};
use crate::rows::Rows;

/// Bytes of rows handed to the encoder at once.
const BATCH_BYTES: usize = 8 << 20;
/// Bytes of rows, before compression, of one row group.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// What an export made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Records written.
    pub records: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Removes the unfinished file unless it got its name.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

impl Catalogue {
    /// Writes all records of a version, compared with their checksums, to a new parquet file. One that is there already is
    /// replaced only if `replace`.
    pub fn export(
        &self,
        version: &DatasetVersion,
        path: &Path,
        replace: bool,
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Result<Exported> {
        let failed = |error| Error::io(format!("cannot write the file: path={}", path.display()), error);
        if !replace && path.exists() {
            return Err(Error::new(ErrorKind::Exists, format!("the file is there already: path={}", path.display()))
                .with_hint("name another file, or give --replace"));
        }
        let name = path.file_name().ok_or_else(|| Error::invalid(format!("not a file: path={}", path.display())))?;
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.unfinished", std::process::id()));
        let beside = path.with_file_name(beside);
        let file = File::create(&beside).map_err(failed)?;
        let mut unfinished = Unfinished(Some(beside.clone()));
        let records = self.write_parquet(version, &file, path, progress)?;
        file.sync_all().map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        fs::rename(&beside, path).map_err(failed)?;
        unfinished.0 = None;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(Exported { records, file_bytes })
    }

    fn write_parquet(
        &self,
        version: &DatasetVersion,
        file: &File,
        path: &Path,
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Result<u64> {
        let view = self.root.topic(&version.topic)?.view()?;
        let schema = schema_of(version, &view)?.schema;
        let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some((ROW_GROUP_BYTES / schema.row_bytes()).max(1)))
            .set_created_by(concat!("forebay ", env!("CARGO_PKG_VERSION")).into())
            .set_key_value_metadata(Some(vec![
                pair("forebay.version", version.reference().to_string()),
                pair("forebay.fingerprint", fingerprint(version)),
                pair("forebay.schema", schema.to_string()),
            ]))
            .build();
        let failed = |error| write_error(path, error);
        let out = BufWriter::with_capacity(1 << 20, file);
        let mut writer = ArrowWriter::try_new(out, Arc::new(schema.to_arrow()), Some(properties)).map_err(failed)?;
        let mut blocks = Blocks::new(&view);
        let (mut pending, mut pending_bytes, mut records) = (Vec::new(), 0, 0);
        let mut at = CheckProgress { bytes: 0, bytes_total: version.totals.bytes };
        self.extents(version, &mut |extent| {
            check_there(&view, &extent.extent())?;
            let rows = blocks.rows(extent.segment, extent.from..extent.to)?;
            if checksum(&rows, 0..rows.count()) != extent.checksum {
                let place = format!("partition={} offset={}", extent.segment, extent.from);
                let text =
                    format!("the records are not those that were pinned: version={} {place}", version.reference());
                return Err(Error::corrupt(text).with_hint(format!("forebay dataset verify {}", version.reference())));
            }
            let rows = match rows.schema() == &schema {
                true => rows,
                false => view.schemas.upgrade(rows.schema(), &schema)?.rows(&rows)?,
            };
            records += rows.count() as u64;
            pending_bytes += rows.bytes();
            pending.push(rows);
            if pending_bytes >= BATCH_BYTES {
                let batch = Rows::concat(&schema, &pending)?.to_arrow()?;
                writer.write(&batch).map_err(failed)?;
                pending.clear();
                pending_bytes = 0;
            }
            at.bytes += extent.bytes;
            progress(at);
            Ok(())
        })?;
        if !pending.is_empty() {
            writer.write(&Rows::concat(&schema, &pending)?.to_arrow()?).map_err(failed)?;
        }
        let mut out = writer.into_inner().map_err(failed)?;
        out.flush().map_err(|error| failed(ParquetError::from(error)))?;
        Ok(records)
    }
}

/// A failed write, with the system's own reason where there is one.
fn write_error(path: &Path, error: ParquetError) -> Error {
    let what = format!("cannot write the file: path={}", path.display());
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => Error::io(what, *error),
            Err(source) => Error::new(ErrorKind::Io, what).with_source(source),
        },
        error => Error::new(ErrorKind::Io, what).with_source(error),
    }
}
