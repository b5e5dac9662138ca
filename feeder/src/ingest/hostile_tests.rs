//! Damaged files: cut at any place, with any byte changed, or made up. They may be refused or, where a change does not
//! matter, read; they never panic, hang or take memory that they do not have.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, FixedSizeListArray, RecordBatch, UInt8Array, UInt32Array};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;

use super::fixtures::{file, npy, npz, rest};
use super::{Given, open};

const ROWS: usize = 40;

fn batch() -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let pixels = Arc::new(UInt8Array::from_iter_values((0..ROWS * 6).map(|n| n as u8)));
    RecordBatch::try_from_iter([
        ("id", Arc::new(UInt32Array::from_iter_values(0..ROWS as u32)) as ArrayRef),
        ("image", Arc::new(FixedSizeListArray::new(item, 6, pixels, None))),
        ("ok", Arc::new(BooleanArray::from((0..ROWS).map(|n| n % 3 == 0).collect::<Vec<_>>()))),
    ])
    .unwrap()
}

/// A sound file of each kind.
fn sound() -> Vec<(&'static str, Vec<u8>)> {
    let batch = batch();
    let halves = [batch.slice(0, 25), batch.slice(25, ROWS - 25)];
    let options = |codec| IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let mut files = Vec::new();
    for codec in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options(codec)).unwrap();
        halves.iter().for_each(|half| writer.write(half).unwrap());
        files.push(("arrow file", writer.into_inner().unwrap()));
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options(codec)).unwrap();
        halves.iter().for_each(|half| writer.write(half).unwrap());
        files.push(("arrow stream", writer.into_inner().unwrap()));
    }
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW] {
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        halves.iter().for_each(|half| writer.write(half).unwrap());
        files.push(("parquet", writer.into_inner().unwrap()));
    }
    let image = npy("'|u1'", "(40, 6)", &(0..240).collect::<Vec<u8>>());
    files.push(("npy", npy("[('a', '<u2'), ('b', '|u1', (2, 2))]", "(40,)", &(0..240).collect::<Vec<u8>>())));
    for deflated in [false, true] {
        files.push(("npz", npz(&[("image", image.clone()), ("id", npy("'>u4'", "(40,)", &[7; 160]))], deflated)));
    }
    files
}

/// Reads as much as there is; gives the rows, or the error's text.
fn outcome(bytes: &[u8]) -> Result<usize, String> {
    thread_local!(static FILE: super::fixtures::OneFile = file("x.bin", b""));
    FILE.with(|file| {
        std::fs::write(&file.path, bytes).unwrap();
        outcome_of(&file.path)
    })
}

fn outcome_of(path: &std::path::Path) -> Result<usize, String> {
    let rows = open(path, &Given::default()).and_then(|mut decoder| {
        let rows = rest(decoder.as_mut(), 16)?;
        assert_eq!(decoder.rows_total(), Some(rows.count() as u64));
        Ok(rows.count())
    });
    rows.map_err(|error| {
        let text = error.report();
        assert!(text.contains("x.bin"), "an error does not name its file: {text}");
        text
    })
}

#[test]
fn sound_files_are_read() {
    for (kind, bytes) in sound() {
        assert_eq!(outcome(&bytes), Ok(ROWS), "{kind}");
    }
}

#[test]
fn every_truncation_is_an_error() {
    for (kind, bytes) in sound() {
        // Every place near both ends, and a share of those between.
        for cut in (0..bytes.len()).filter(|at| *at < 64 || at % 37 == 0 || bytes.len() - at < 64) {
            assert!(outcome(&bytes[..cut]).is_err(), "{kind} cut at {cut} of {}", bytes.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        for (_, mut bytes) in sound() {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Ok(rows) = outcome(&bytes) {
                prop_assert!(rows <= 1 << 20);
            }
        }
    }

    #[test]
    fn changed_ends_never_panic(changes in prop::collection::vec((0usize..400, any::<u8>()), 1..4)) {
        for (_, mut bytes) in sound() {
            let last = bytes.len() - 1;
            changes.iter().for_each(|(at, byte)| bytes[last - at.min(&last)] = *byte);
            let _ = outcome(&bytes);
        }
    }

    #[test]
    fn made_up_files_never_panic(head in 0usize..6, tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let heads: [&[u8]; 6] =
            [b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"PAR1", b"ARROW1\x00\x00", b"\xff\xff\xff\xff", b""];
        let _ = outcome(&[heads[head], &tail].concat());
        let _ = outcome(&[heads[head], &tail, heads[head]].concat());
    }
}

#[test]
fn unknown_files_say_what_they_look_like() {
    for (name, bytes, why) in [
        ("a.csv", b"id,label\n1,2\n".as_slice(), "unknown file format"),
        ("a.npy.gz", b"\x1f\x8b\x08\x00", "compressed as a whole"),
        ("a.pkl", b"\x80\x04\x95", "pickled objects are refused"),
        ("a.npy", b"hello", "does not start as its name says"),
        ("a.feather", b"FEA1....", "feather version 1"),
        ("a.parquet", b"PARE....", "encrypted parquet"),
        ("a.npy", b"", "the file is empty"),
    ] {
        let file = file(name, bytes);
        let Err(error) = open(&file.path, &Given::default()) else { panic!("{name}") };
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.hint().is_some() || bytes.is_empty());
    }
    let Err(error) = open(std::path::Path::new("/no/such/file"), &Given::default()) else { panic!() };
    assert_eq!(error.kind(), crate::ErrorKind::NotFound);
    let Err(error) = open(std::path::Path::new("/"), &Given::default()) else { panic!() };
    assert!(error.to_string().contains("a directory"), "{error}");
}
