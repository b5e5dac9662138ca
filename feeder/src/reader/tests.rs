//! The suite over every reader, random reads against slices, the choice of a reader, and the regions' copies.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;

use super::testing::conformance::{assert_landed, conformance_on, contents, landed, regions};
use super::testing::{self, Script, ScriptedReader, conformance};
use super::*;

fn make(kind: ReaderKind, depth: usize, regions: Vec<Region>) -> Box<dyn BlockReader> {
    open(kind, depth, regions, &mut |_| {}).unwrap()
}

/// A file on a real file system, already without a name.
fn disk_file(bytes: &[u8]) -> (Arc<ReadFile>, File) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    (Arc::new(ReadFile::from_file(file.try_clone().unwrap(), "disk/test")), file)
}

fn read(file: &Arc<ReadFile>, offset: u64, parts: Vec<Part>, token: u64) -> Read {
    Read { file: file.clone(), offset, parts, token }
}

#[test]
fn uring_conforms() {
    conformance(|depth, regions| make(ReaderKind::Uring, depth, regions));
    conformance_on(disk_file, |depth, regions| make(ReaderKind::Uring, depth, regions));
}

#[test]
fn preadv_conforms() {
    conformance(|depth, regions| make(ReaderKind::Preadv, depth, regions));
    conformance_on(disk_file, |depth, regions| make(ReaderKind::Preadv, depth, regions));
}

#[test]
fn the_double_conforms() {
    conformance(|depth, regions| Box::new(ScriptedReader::new(depth, regions, Script::default())));
}

#[test]
fn the_double_conforms_with_short_reads() {
    for bytes in [7, 64, 1000] {
        conformance(|depth, regions| Box::new(ScriptedReader::new(depth, regions, Script::default().short_all(bytes))));
    }
}
