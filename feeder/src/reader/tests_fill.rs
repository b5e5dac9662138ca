//! What is brought into the page cache when, by a cache that takes down what is asked of it; and once into the real one.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::sync::Arc;

use super::super::testing::conformance::{assert_landed, conformance_on, contents, regions};
use super::super::testing::{Script, ScriptedReader};
use super::super::{Part, ReaderKind, open};
use super::*;

const MIB: u64 = 1 << 20;

thread_local! {
    /// Bytes cached by stretch of the only file, and what was done.
    static CACHED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static REFUSAL: Cell<i32> = const { Cell::new(0) };
    static DONE: RefCell<Vec<(&'static str, u64, u64)>> = const { RefCell::new(Vec::new()) };
}

fn stretches(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    (offset / STRETCH_BYTES) as usize..(offset + bytes).div_ceil(STRETCH_BYTES) as usize
}

fn note(what: &'static str, offset: u64, bytes: u64) {
    DONE.with_borrow_mut(|done| done.push((what, offset / MIB, bytes)));
}

const NOTED: Cache = Cache {
    cached: |_, offset, bytes| Ok(CACHED.with_borrow(|cached| cached[stretches(offset, bytes)].iter().sum())),
    drop: |_, offset, bytes| {
        note("drop", offset, bytes.get());
        CACHED.with_borrow_mut(|cached| cached[stretches(offset, bytes.get())].fill(0));
    },
    populate: |_, offset, bytes| {
        note("populate", offset, bytes as u64);
        CACHED.with_borrow_mut(|cached| cached[stretches(offset, 1)].fill(bytes as u64));
        Ok(())
    },
};

/// What was done since the last call.
fn done() -> Vec<(&'static str, u64, u64)> {
    DONE.take()
}

fn disk_file(bytes: &[u8]) -> (Arc<ReadFile>, File) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    (Arc::new(ReadFile::from_file(file.try_clone().unwrap(), "disk/test").into_final()), file)
}

/// A file of zeros of which `cached` bytes are there by stretch, and a reader of 8 KiB that keeps what it reads.
fn noted(file_bytes: u64, cached: &[u64]) -> (Arc<ReadFile>, FillingReader) {
    let (file, handle) = disk_file(&[]);
    handle.set_len(file_bytes).unwrap();
    CACHED.set(cached.iter().copied().chain(std::iter::repeat(0)).take(64).collect());
    DONE.take();
    let mut reader = FillingReader::new(open(ReaderKind::Preadv, 4, regions(1, 8192), &mut |_| {}).unwrap(), NOTED);
    reader.keep_in_cache(Keep::Around, true);
    (file, reader)
}

fn read(file: &Arc<ReadFile>, offset: u64) -> Read {
    Read { file: file.clone(), offset, parts: vec![Part { region: 0, at: 0, bytes: 8192 }], token: offset }
}

fn read_all(reader: &mut dyn BlockReader, file: &Arc<ReadFile>, offsets: &[u64]) {
    offsets.iter().for_each(|offset| reader.submit(read(file, *offset)));
    let mut done = Vec::new();
    reader.wait(offsets.len(), &mut done).unwrap();
    assert_eq!(done.len(), offsets.len());
    done.iter().for_each(|done| assert!(done.result.is_ok(), "{:?}", done.result));
}

#[test]
fn conforms_while_it_fills() {
    for keep in [Keep::Nothing, Keep::Around] {
        conformance_on(disk_file, |depth, regions| {
            let inner = open(ReaderKind::Auto, depth, regions, &mut |_| {}).unwrap();
            let mut reader = FillingReader::new(inner, Cache::default());
            reader.keep_in_cache(keep, true);
            Box::new(reader)
        });
    }
}

#[test]
fn a_stretch_is_brought_in_once_an_epoch_if_little_of_it_is_there() {
    let (file, mut reader) = noted(16 * MIB, &[]);
    read_all(&mut reader, &file, &[5 * MIB, 4 * MIB, 6 * MIB - 8192, 9 * MIB]);
    assert_eq!(done(), [("populate", 4, STRETCH_BYTES), ("populate", 8, STRETCH_BYTES)]);
    // Across a border: both.
    read_all(&mut reader, &file, &[2 * MIB - 4096, 5 * MIB]);
    assert_eq!(done(), [("populate", 0, STRETCH_BYTES), ("populate", 2, STRETCH_BYTES)]);
    // What went away meanwhile comes back with the next epoch, and nothing else does.
    CACHED.with_borrow_mut(|cached| cached[2] = 0);
    read_all(&mut reader, &file, &[5 * MIB, 9 * MIB]);
    assert_eq!(done(), []);
    reader.keep_in_cache(Keep::Around, true);
    read_all(&mut reader, &file, &[5 * MIB, 9 * MIB]);
    assert_eq!(done(), [("populate", 4, STRETCH_BYTES)]);
}

#[test]
fn the_little_that_is_there_makes_room_and_the_much_stays() {
    let half = STRETCH_BYTES / 2;
    let (file, mut reader) = noted(80 * MIB, &[4096, half - 4096, half]);
    // Together more than a little: the region stays as it is.
    read_all(&mut reader, &file, &[0, 3 * MIB, 5 * MIB]);
    let brought = |at| ("populate", at, STRETCH_BYTES);
    assert_eq!(done(), [("drop", 0, STRETCH_BYTES), brought(0), ("drop", 2, STRETCH_BYTES), brought(2)]);

    // Headers alone, here and in the region that follows; the file ends in the one after that.
    let (file, mut reader) = noted(80 * MIB, &[]);
    CACHED.with_borrow_mut(|cached| [9, 20, 33].map(|stretch| cached[stretch] = 4096));
    read_all(&mut reader, &file, &[0]);
    assert_eq!(done(), [("drop", 0, REGION_BYTES), ("drop", 32, REGION_BYTES), brought(0)]);
    read_all(&mut reader, &file, &[40 * MIB]);
    assert_eq!(done(), [("drop", 64, 16 * MIB), brought(40)]);
}

#[test]
fn the_end_of_a_file_that_is_there_is_not_brought_in_again_however_short() {
    for start in [0, 2 * MIB] {
        let (file, mut reader) = noted(start + 9000, &[]);
        CACHED.with_borrow_mut(|cached| cached[(start / STRETCH_BYTES) as usize] = 4096);
        read_all(&mut reader, &file, &[0, start]);
        let mut what = done();
        assert_eq!((what.remove(0), what.pop()), (("drop", 0, start + 9000), Some(("populate", start / MIB, 9000))));
        for _ in 0..2 {
            reader.keep_in_cache(Keep::Around, true);
            read_all(&mut reader, &file, &[start]);
            assert_eq!(done(), []);
        }
    }
}

#[test]
fn what_is_not_to_stay_or_may_still_change_is_left_alone() {
    let (file, mut reader) = noted(4 * MIB, &[]);
    for keep in [Keep::Nothing, Keep::Read] {
        reader.keep_in_cache(keep, true);
        read_all(&mut reader, &file, &[0]);
    }
    reader.keep_in_cache(Keep::Around, true);
    let growing = Arc::new(ReadFile::from_file(file.file().try_clone().unwrap(), "disk/growing"));
    read_all(&mut reader, &growing, &[0]);
    assert_eq!(done(), []);
    reader.prepare(&growing, 0, 4096);
    assert_eq!(done(), []);
    reader.prepare(&file, 3 * MIB, 4096);
    assert_eq!(done(), [("populate", 2, STRETCH_BYTES)]);
    // Past its end, and where no file has bytes.
    reader.prepare(&file, 4 * MIB, 4096);
    reader.prepare(&file, u64::MAX, 4096);
    assert_eq!(done(), []);
}

#[test]
fn who_waits_for_one_read_waits_for_one_stretch() {
    let (file, mut reader) = noted(16 * MIB, &[]);
    (0..4).for_each(|at| reader.submit(read(&file, at * 4 * MIB)));
    let mut ended = Vec::new();
    for count in 1..=4 {
        reader.wait(1, &mut ended).unwrap();
        assert_eq!((ended.len(), done().len(), reader.in_flight()), (count, 1, 4 - count));
    }
    // And for none if there is something else to wait for: the first and the last one's stretches are there.
    [0, 6 * MIB, 12 * MIB].iter().for_each(|&offset| reader.submit(read(&file, offset)));
    ended.clear();
    reader.wait(1, &mut ended).unwrap();
    assert_eq!((ended.len(), done().len(), reader.in_flight()), (1, 0, 2));
    reader.wait(2, &mut ended).unwrap();
    assert_eq!((ended.len(), done(), reader.in_flight()), (3, vec![("populate", 6, STRETCH_BYTES)], 0));
    // Those that wait can be cancelled.
    reader.keep_in_cache(Keep::Around, true);
    CACHED.with_borrow_mut(|cached| cached.fill(0));
    (0..4).for_each(|at| reader.submit(read(&file, at * 4 * MIB)));
    ended.clear();
    reader.wait(1, &mut ended).unwrap();
    reader.cancel();
    reader.wait(4, &mut ended).unwrap();
    let cancelled = ended.iter().filter(|done| matches!(done.result, Err(super::super::ReadError::Cancelled))).count();
    assert_eq!((ended.len(), cancelled, reader.in_flight()), (4, 3, 0));
}

#[test]
fn a_kernel_without_such_calls_is_asked_once_and_the_reads_are_made() {
    for (code, refuse) in [
        (libc::EINVAL, (|| libc::EINVAL) as fn() -> i32),
        (libc::EACCES, || libc::EACCES),
        (libc::ENODEV, || libc::ENODEV),
        (libc::ENOMEM, || libc::ENOMEM),
    ] {
        REFUSAL.set(refuse());
        let (file, mut reader) = noted(16 * MIB, &[]);
        reader.cache.populate = |_, offset, _| {
            note("populate", offset, 0);
            Err(io::Error::from_raw_os_error(REFUSAL.get()))
        };
        for _ in 0..2 {
            // One read over a border: two stretches.
            read_all(&mut reader, &file, &[2 * MIB - 4096, 4 * MIB]);
            reader.keep_in_cache(Keep::Around, true);
        }
        assert_eq!(done().len(), 1, "code={code}");
        let line = reader.take_notice().unwrap().line;
        assert!(line.starts_with("fill=off") && line.contains(&format!("os error {code}")), "{line}");
        assert_eq!(reader.take_notice(), None);
    }
}

#[test]
fn what_nobody_can_tell_is_brought_in_and_nothing_is_dropped() {
    let (file, mut reader) = noted(4 * MIB, &[]);
    reader.cache.cached = |_, _, _| Err(io::Error::from_raw_os_error(libc::EPERM));
    for _ in 0..2 {
        read_all(&mut reader, &file, &[0, 4096, 2 * MIB]);
        assert_eq!(done(), [("populate", 0, STRETCH_BYTES), ("populate", 2, STRETCH_BYTES)]);
        reader.keep_in_cache(Keep::Around, true);
    }
    assert_eq!(reader.take_notice(), None);
}

#[test]
fn a_file_that_was_closed_and_opened_again_is_the_same() {
    let (file, mut reader) = noted(4 * MIB, &[]);
    for _ in 0..100 {
        let again = Arc::new(ReadFile::from_file(file.file().try_clone().unwrap(), "disk/test").into_final());
        read_all(&mut reader, &again, &[0, 2 * MIB]);
    }
    assert_eq!((reader.seen.len(), reader.regions.len(), done().len()), (2, 2, 2));
}

#[test]
fn a_stretch_that_cannot_be_brought_in_is_the_reads_own_matter() {
    let (file, mut reader) = noted(4 * MIB, &[]);
    reader.cache.populate = |_, _, _| Err(io::Error::from_raw_os_error(libc::EIO));
    read_all(&mut reader, &file, &[0]);
    assert_eq!(reader.take_notice(), None);
    // And a read that fails by itself still does.
    let inner = ScriptedReader::new(1, regions(1, 8192), Script::default().fail(0, libc::EIO));
    let mut reader = FillingReader::new(Box::new(inner), NOTED);
    reader.keep_in_cache(Keep::Around, true);
    reader.submit(read(&file, 0));
    let mut ended = Vec::new();
    reader.wait(1, &mut ended).unwrap();
    assert!(ended[0].result.is_err());
}

#[test]
fn one_short_read_brings_all_around_it_into_the_real_cache() {
    let data = contents(6 << 20);
    let (file, handle) = disk_file(&data);
    let whole = NonZeroU64::new(data.len() as u64).unwrap();
    (Cache::default().drop)(&handle, 0, whole);
    let cached = |offset, bytes| cached_bytes(&handle, offset, bytes);
    let memory = regions(1, 8192);
    let inner = open(ReaderKind::Auto, 2, memory.clone(), &mut |_| {}).unwrap();
    let mut reader = FillingReader::new(inner, Cache::default());
    reader.keep_in_cache(Keep::Around, true);
    reader.submit(read(&file, 3 * MIB));
    let mut ended = Vec::new();
    reader.wait(1, &mut ended).unwrap();
    assert_landed(&memory, &ended[0].read, &data);
    if reader.take_notice().is_none() {
        assert_eq!(cached(2 * MIB, 2 * MIB).unwrap(), 2 * MIB);
    }
}
