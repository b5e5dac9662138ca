//! What every reader promises, as a suite of cases. A case that fails panics.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::super::{BlockReader, Done, MAX_PARTS, Part, Read, ReadError, ReadFile, Region};

type Make<'a> = &'a dyn Fn(usize, Vec<Region>) -> Box<dyn BlockReader>;
type Files<'a> = &'a dyn Fn(&[u8]) -> (Arc<ReadFile>, File);

/// Runs the suite over readers made by `make(depth, regions)`, on files in memory.
pub fn conformance(make: impl Fn(usize, Vec<Region>) -> Box<dyn BlockReader>) {
    conformance_on(super::file, make);
}

/// As [`conformance`] on files made by `files(contents)`, which also returns a handle for writing.
pub fn conformance_on(
    files: impl Fn(&[u8]) -> (Arc<ReadFile>, File),
    make: impl Fn(usize, Vec<Region>) -> Box<dyn BlockReader>,
) {
    let cases: [fn(Files<'_>, Make<'_>); 16] = [
        parts_fill_in_order,
        single_bytes_and_the_most_parts,
        too_many_parts_are_refused,
        parts_outside_are_refused,
        empty_reads_end_well,
        bytes_around_the_parts_stay,
        reading_past_the_end_fails,
        offsets_beyond_any_file_fail,
        a_cut_file_fails_and_a_grown_one_does_not,
        unreadable_files_fail_alone,
        every_read_comes_back_once_beyond_depth,
        at_least_is_kept_and_capped,
        many_files_take_turns,
        reads_travel_back_unchanged,
        cancelled_reads_all_come_back,
        dropping_frees_the_regions,
    ];
    for case in cases {
        case(&files, &make);
    }
}

/// Contents that differ at every place within reach of a wrong offset.
pub fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// `count` regions of `bytes` bytes each, every byte 0xEE.
pub fn regions(count: usize, bytes: usize) -> Vec<Region> {
    let region = || {
        let region = Region::alloc(bytes).expect("no memory for a test's region");
        region.write(0, &vec![0xEE; bytes]);
        region
    };
    (0..count).map(|_| region()).collect()
}

/// What stands in a part now.
pub fn landed(regions: &[Region], part: Part) -> Vec<u8> {
    let mut bytes = vec![0; part.bytes as usize];
    regions[part.region as usize].read(part.at, &mut bytes);
    bytes
}

/// Asserts that the parts of `read` hold what the file held, `contents`, at its offset.
pub fn assert_landed(regions: &[Region], read: &Read, contents: &[u8]) {
    let mut at = read.offset as usize;
    for part in &read.parts {
        let end = at + part.bytes as usize;
        assert_eq!(landed(regions, *part), contents[at..end], "token={} part={part:?}", read.token);
        at = end;
    }
}

fn part(region: u32, at: usize, bytes: u32) -> Part {
    Part { region, at, bytes }
}

fn read(file: &Arc<ReadFile>, offset: u64, parts: Vec<Part>, token: u64) -> Read {
    Read { file: file.clone(), offset, parts, token }
}

fn all(reader: &mut dyn BlockReader) -> Vec<Done> {
    let mut done = Vec::new();
    reader.wait(usize::MAX, &mut done).expect("the reader itself failed");
    assert_eq!(reader.in_flight(), 0);
    done
}

fn one(reader: &mut dyn BlockReader, read: Read) -> Done {
    reader.submit(read);
    assert_eq!(reader.in_flight(), 1);
    let mut done = all(reader);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

fn parts_fill_in_order(files: Files<'_>, make: Make<'_>) {
    let data = contents(100_000);
    let (file, _) = files(&data);
    let memory = regions(3, 1 << 16);
    let mut reader = make(4, memory.clone());
    // Backwards in memory, over regions, touching neighbours, with sizes that fit nothing.
    let parts = vec![part(1, 5000, 777), part(1, 0, 5000), part(0, 1, 1), part(2, 40_000, 4096), part(2, 44_096, 10)];
    let done = one(&mut *reader, read(&file, 12_345, parts, 7));
    assert!(done.result.is_ok(), "{:?}", done.result);
    assert_landed(&memory, &done.read, &data);
    let stats = reader.stats();
    assert_eq!((stats.reads, stats.bytes), (1, 777 + 5000 + 1 + 4096 + 10));
    assert!(stats.syscalls > 0);
}

fn single_bytes_and_the_most_parts(files: Files<'_>, make: Make<'_>) {
    let data = contents(MAX_PARTS + 10);
    let (file, _) = files(&data);
    let memory = regions(1, 4 * MAX_PARTS);
    let mut reader = make(1, memory.clone());
    let parts = (0..MAX_PARTS).map(|i| part(0, 4 * (MAX_PARTS - 1 - i), 1)).collect();
    let done = one(&mut *reader, read(&file, 10, parts, 0));
    assert!(done.result.is_ok(), "{:?}", done.result);
    assert_landed(&memory, &done.read, &data);
}

fn too_many_parts_are_refused(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(8192));
    let memory = regions(1, 8192);
    let mut reader = make(1, memory.clone());
    let done = one(&mut *reader, read(&file, 0, (0..=MAX_PARTS).map(|i| part(0, i, 1)).collect(), 0));
    assert!(matches!(done.result, Err(ReadError::TooManyParts { parts }) if parts == MAX_PARTS + 1));
    assert_eq!(landed(&memory, part(0, 0, 8192)), [0xEE; 8192]);
}

fn parts_outside_are_refused(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(8192));
    let memory = regions(2, 4096);
    let mut reader = make(2, memory.clone());
    let outside = [
        part(0, 4096, 1),
        part(1, 4000, 97),
        part(0, usize::MAX, 2),
        part(0, 0, u32::MAX),
        part(2, 0, 1),
        part(u32::MAX, 0, 0),
        part(0, 4097, 0),
    ];
    for bad in outside {
        let done = one(&mut *reader, read(&file, 0, vec![part(0, 0, 64), bad], 1));
        match done.result {
            Err(ReadError::OutOfBounds { part, region, at, .. }) => {
                assert_eq!((part, region, at), (1, bad.region, bad.at));
            }
            other => panic!("part={bad:?} result={other:?}"),
        }
    }
    assert_eq!(landed(&memory, part(0, 0, 4096)), [0xEE; 4096], "a refused read touched memory");
    assert!(one(&mut *reader, read(&file, 0, vec![part(1, 0, 4096)], 2)).result.is_ok());
}

fn empty_reads_end_well(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(10));
    let memory = regions(1, 64);
    let mut reader = make(2, memory.clone());
    for parts in [vec![], vec![part(0, 64, 0)], vec![part(0, 3, 0), part(0, 0, 0)]] {
        // Also where the file has nothing: nothing was asked for.
        assert!(one(&mut *reader, read(&file, 10_000, parts, 0)).result.is_ok());
    }
    let parts = vec![part(0, 0, 0), part(0, 8, 4), part(0, 3, 0), part(0, 0, 4), part(0, 64, 0)];
    let done = one(&mut *reader, read(&file, 2, parts, 0));
    assert!(done.result.is_ok());
    assert_landed(&memory, &done.read, &contents(10));
}

fn bytes_around_the_parts_stay(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(4096));
    let memory = regions(1, 1024);
    let mut reader = make(2, memory.clone());
    let parts = vec![part(0, 100, 50), part(0, 200, 50), part(0, 300, 1)];
    assert!(one(&mut *reader, read(&file, 0, parts, 0)).result.is_ok());
    for (at, bytes) in [(0, 100), (150, 50), (250, 50), (301, 723)] {
        assert!(landed(&memory, part(0, at, bytes)).iter().all(|byte| *byte == 0xEE), "at={at}");
    }
}

fn reading_past_the_end_fails(files: Files<'_>, make: Make<'_>) {
    let data = contents(5000);
    let (file, _) = files(&data);
    let memory = regions(1, 8192);
    let mut reader = make(2, memory.clone());
    for (offset, there) in [(4990, 10), (5000, 0), (5001, 0), (4999, 1), (0, 5000)] {
        let parts = vec![part(0, 4096, 4), part(0, 0, 4096), part(0, 4100, 901)];
        let done = one(&mut *reader, read(&file, offset, parts, 0));
        match done.result {
            Err(ReadError::UnexpectedEnd { ref path, offset: from, wanted, got }) => {
                assert_eq!((from, wanted, got), (offset, 5001, there));
                assert_eq!(path, file.path());
            }
            other => panic!("offset={offset} result={other:?}"),
        }
    }
    let done = one(&mut *reader, read(&file, 4000, vec![part(0, 0, 1000)], 0));
    assert!(done.result.is_ok(), "up to the last byte: {:?}", done.result);
    assert_landed(&memory, &done.read, &data);
}

fn offsets_beyond_any_file_fail(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(100));
    let mut reader = make(2, regions(1, 64));
    for offset in [u64::MAX, u64::MAX - 64, i64::MAX as u64 + 1, i64::MAX as u64] {
        let done = one(&mut *reader, read(&file, offset, vec![part(0, 0, 64)], 0));
        assert!(matches!(done.result, Err(ReadError::UnexpectedEnd { got: 0, .. })), "{:?}", done.result);
    }
}

fn a_cut_file_fails_and_a_grown_one_does_not(files: Files<'_>, make: Make<'_>) {
    let data = contents(20_000);
    let (file, handle) = files(&data);
    let memory = regions(1, 20_000);
    let mut reader = make(2, memory.clone());
    let whole = || read(&file, 0, vec![part(0, 0, 20_000)], 0);
    assert!(one(&mut *reader, whole()).result.is_ok());
    handle.set_len(9_999).expect("cannot cut a test's file");
    let done = one(&mut *reader, whole());
    assert!(matches!(done.result, Err(ReadError::UnexpectedEnd { got: 9_999, .. })), "{:?}", done.result);
    handle.write_all_at(&data[9_999..], 9_999).expect("cannot write a test's file");
    let done = one(&mut *reader, whole());
    assert!(done.result.is_ok());
    assert_landed(&memory, &done.read, &data);
}

fn unreadable_files_fail_alone(files: Files<'_>, make: Make<'_>) {
    let data = contents(100);
    let (file, _) = files(&data);
    let folder = ReadFile::open("/").expect("the root folder opens");
    let memory = regions(1, 300);
    let mut reader = make(4, memory.clone());
    reader.submit(read(&file, 0, vec![part(0, 0, 100)], 0));
    reader.submit(read(&Arc::new(folder), 0, vec![part(0, 100, 100)], 1));
    reader.submit(read(&file, 0, vec![part(0, 200, 100)], 2));
    for done in all(&mut *reader) {
        match (done.read.token, done.result) {
            (1, Err(ReadError::Io { path, offset: 0, source })) => {
                assert_eq!(path.to_str(), Some("/"));
                assert_eq!(source.kind(), std::io::ErrorKind::IsADirectory);
            }
            (0 | 2, Ok(())) => assert_landed(&memory, &done.read, &data),
            (token, result) => panic!("token={token} result={result:?}"),
        }
    }
}

fn every_read_comes_back_once_beyond_depth(files: Files<'_>, make: Make<'_>) {
    const READS: u64 = 100;
    let data = contents(64 * READS as usize + 17);
    let (file, _) = files(&data);
    for depth in [1, 3, 8] {
        let memory = regions(2, 64 * READS as usize);
        let mut reader = make(depth, memory.clone());
        assert_eq!(reader.depth(), depth);
        for token in 0..READS {
            let at = 64 * (READS - 1 - token) as usize;
            let parts = vec![part((token % 2) as u32, at, 60), part((token % 2) as u32, at + 60, 4)];
            reader.submit(read(&file, 64 * token + 17, parts, token));
        }
        assert_eq!(reader.in_flight(), READS as usize);
        let mut done = Vec::new();
        let mut tokens = Vec::new();
        while reader.in_flight() > 0 {
            let before = reader.in_flight();
            reader.wait(1, &mut done).expect("the reader itself failed");
            assert!(!done.is_empty());
            assert_eq!(reader.in_flight(), before - done.len());
            for done in done.drain(..) {
                assert!(done.result.is_ok(), "{:?}", done.result);
                assert_landed(&memory, &done.read, &data);
                tokens.push(done.read.token);
            }
        }
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq(0..READS));
        assert_eq!(reader.stats().reads, READS);
        assert_eq!(reader.stats().bytes, 64 * READS);
    }
}

fn at_least_is_kept_and_capped(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(4096));
    let mut reader = make(4, regions(1, 4096));
    let mut done = Vec::new();
    for at_least in [0, 1, usize::MAX] {
        reader.wait(at_least, &mut done).expect("nothing to wait for");
        assert!(done.is_empty());
    }
    for token in 0..10 {
        reader.submit(read(&file, 0, vec![part(0, 100 * token as usize, 100)], token));
    }
    reader.wait(7, &mut done).expect("the reader itself failed");
    assert!(done.len() >= 7, "asked for 7, got {}", done.len());
    // What is in `done` already does not count.
    reader.wait(10 - done.len(), &mut done).expect("the reader itself failed");
    assert_eq!((done.len(), reader.in_flight()), (10, 0));
    // Polling alone gets everything done in the end.
    for token in 0..10 {
        reader.submit(read(&file, 0, vec![part(0, 100 * token as usize, 100)], token));
    }
    while reader.in_flight() > 0 {
        reader.wait(0, &mut done).expect("the reader itself failed");
    }
    assert_eq!(done.len(), 20);
}

fn many_files_take_turns(files: Files<'_>, make: Make<'_>) {
    const FILES: usize = 80;
    let data: Vec<Vec<u8>> = (0..FILES).map(|i| contents(100 + i)[i..].to_vec()).collect();
    let open: Vec<_> = data.iter().map(|data| files(data)).collect();
    let memory = regions(1, 100 * FILES);
    let mut reader = make(8, memory.clone());
    // One file often, so that the others become idle; each of them again and again.
    for round in 0..6 {
        for i in 0..FILES {
            for which in [i, (i * 7 + round) % 3] {
                reader.submit(read(&open[which].0, 0, vec![part(0, 100 * i, 100)], (which * FILES + i) as u64));
                let done = all(&mut *reader);
                assert!(done[0].result.is_ok(), "{:?}", done[0].result);
                assert_landed(&memory, &done[0].read, &data[which]);
            }
        }
        for (i, (file, _)) in open.iter().enumerate() {
            reader.submit(read(file, 0, vec![part(0, 100 * i, 100)], i as u64));
        }
        for done in all(&mut *reader) {
            assert!(done.result.is_ok());
            assert_landed(&memory, &done.read, &data[done.read.token as usize]);
        }
    }
}

fn reads_travel_back_unchanged(files: Files<'_>, make: Make<'_>) {
    let (file, handle) = files(&contents(1000));
    let mut reader = make(2, regions(1, 4096));
    handle.set_len(500).expect("cannot cut a test's file");
    let ways: [(u64, Part); 3] = [(0, part(0, 0, 10)), (490, part(0, 0, 100)), (0, part(0, 4096, 1))];
    for (token, (offset, part)) in ways.into_iter().enumerate() {
        let mut parts = Vec::with_capacity(321);
        parts.push(part);
        let address = parts.as_ptr();
        let done = one(&mut *reader, read(&file, offset, parts, u64::MAX - token as u64));
        assert_eq!(done.result.is_ok(), token == 0);
        assert_eq!(done.read.token, u64::MAX - token as u64);
        assert_eq!((done.read.offset, &done.read.parts[..]), (offset, &[part][..]));
        assert_eq!((done.read.parts.as_ptr(), done.read.parts.capacity()), (address, 321), "another vector came back");
        assert!(Arc::ptr_eq(&done.read.file, &file));
    }
}

fn cancelled_reads_all_come_back(files: Files<'_>, make: Make<'_>) {
    let data = contents(1 << 16);
    let (file, _) = files(&data);
    for waited in [false, true] {
        let memory = regions(1, 1 << 16);
        let mut reader = make(4, memory.clone());
        let mut done = Vec::new();
        // Backwards: what follows in a file may begin together with the one before.
        for token in 0..20 {
            reader.submit(read(&file, 2000 - 100 * token, vec![part(0, 100 * token as usize, 100)], token));
        }
        if waited {
            reader.wait(1, &mut done).expect("the reader itself failed");
        }
        reader.cancel();
        assert_eq!(reader.in_flight(), 20 - done.len());
        // A read that comes after is not touched.
        reader.submit(read(&file, 5000, vec![part(0, 5000, 100)], 20));
        reader.wait(usize::MAX, &mut done).expect("the reader itself failed");
        let mut results = BTreeMap::new();
        for done in done {
            match &done.result {
                Ok(()) => assert_landed(&memory, &done.read, &data),
                Err(ReadError::Cancelled) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(results.insert(done.read.token, done.result.is_ok()).is_none(), "a read came back twice");
        }
        assert!(results.keys().copied().eq(0..=20));
        assert!(results[&20]);
        assert!(!results[&19], "a read that had not begun was not cancelled");
        reader.cancel();
        assert!(all(&mut *reader).is_empty());
    }
}

fn dropping_frees_the_regions(files: Files<'_>, make: Make<'_>) {
    let (file, _) = files(&contents(1 << 20));
    for begun in [false, true] {
        let memory = regions(1, 1 << 20);
        let mut reader = make(8, memory.clone());
        for token in 0..20 {
            reader.submit(read(&file, 0, vec![part(0, 50_000 * token as usize, 50_000)], token));
        }
        if begun {
            reader.wait(0, &mut Vec::new()).expect("the reader itself failed");
        }
        drop(reader);
        assert_eq!(Arc::strong_count(&file), 1, "a dropped reader still holds reads");
        assert_eq!(memory[0].holders(), 1, "a dropped reader still holds its regions");
    }
}
