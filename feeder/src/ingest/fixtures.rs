//! Files for tests, made byte by byte or with the writers of other crates.

use std::io::Write;
use std::path::PathBuf;

use super::{Decoder, Given, open};
use crate::error::Result;
use crate::rows::Rows;
use crate::schema::Schema;

/// A directory with one file.
pub(super) struct OneFile {
    pub(super) path: PathBuf,
    _dir: tempfile::TempDir,
}

pub(super) fn file(name: &str, bytes: &[u8]) -> OneFile {
    // In memory where that is possible: hostile tests write thousands of files.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    OneFile { path, _dir: dir }
}

/// An npy file with that header text.
pub(super) fn npy_bytes(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

/// An npy file of that dtype and shape, in C order.
pub(crate) fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy_bytes(1, &format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

/// An npz of npy files.
pub(crate) fn npz(members: &[(&str, Vec<u8>)], deflated: bool) -> Vec<u8> {
    let method = if deflated { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let options = zip::write::SimpleFileOptions::default().compression_method(method).large_file(true);
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(format!("{name}.npy"), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

pub(super) fn given(schema: &str) -> Given {
    Given { schema: Some(Schema::parse(schema).unwrap()), ..Given::default() }
}

pub(super) fn columns(names: &str) -> Given {
    Given { columns: Some(names.split(',').map(str::to_owned).collect()), ..Given::default() }
}

/// Everything in a file, read in parts of `rows_max` rows.
pub(super) fn read_all(path: &std::path::Path, given: &Given, rows_max: usize) -> Result<Rows> {
    rest(open(path, given)?.as_mut(), rows_max)
}

/// Everything that a decoder still has.
pub(super) fn rest(decoder: &mut dyn Decoder, rows_max: usize) -> Result<Rows> {
    let mut parts = Vec::new();
    while let Some(rows) = decoder.next(rows_max)? {
        assert!(rows.count() > 0 && rows.count() <= rows_max.max(1));
        parts.push(rows);
    }
    Rows::concat(decoder.schema(), &parts)
}

/// Asserts that a file is read as `expected`, whatever the size of parts and wherever one begins.
pub(super) fn assert_reads(path: &std::path::Path, given: &Given, expected: &Rows) {
    assert_eq!(open(path, given).unwrap().rows_total(), Some(expected.count() as u64));
    for rows_max in [0, 3, 1000] {
        assert_same(&read_all(path, given, rows_max).unwrap(), expected);
    }
    for from in 0..=expected.count() {
        let mut decoder = open(path, given).unwrap();
        if from > 2 {
            decoder.next(2).unwrap();
        }
        decoder.skip_to(from as u64).unwrap();
        assert_same(&rest(decoder.as_mut(), 2).unwrap(), &expected.slice(from, expected.count() - from));
        if from > 0 {
            assert!(decoder.skip_to(0).is_err());
        }
        assert!(decoder.skip_to(expected.count() as u64 + 1).is_err());
    }
}

pub(super) fn assert_same(got: &Rows, expected: &Rows) {
    assert_eq!(got.schema(), expected.schema());
    assert_eq!(got.count(), expected.count());
    for (at, column) in expected.schema().columns().iter().enumerate() {
        assert_eq!(got.column(at).as_slice(), expected.column(at).as_slice(), "column {}", column.name);
    }
}
