//! The suite over every reader, random reads against slices, the choice of a reader, and the regions' copies.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;

use super::testing::conformance::{assert_landed, conformance_on, contents, landed, regions};
use super::testing::{self, Script, ScriptedReader, conformance};
use super::uring::tests::io_uring_works;
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
    if !io_uring_works() {
        return;
    }
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Random reads, some beyond the end or the regions, against slices of what was written.
    #[test]
    fn random_reads_are_exact(
        bytes in 1usize..60_000,
        depth in 1usize..10,
        reads in prop::collection::vec((0u64..70_000, prop::collection::vec(0u32..3000, 0..20)), 1..20),
        seed in any::<u64>(),
        short in 1usize..5000,
    ) {
        let data = contents(bytes);
        let (file, _handle) = disk_file(&data);
        let script = Script::default().short_all(short).delay(seed % 20, 3).delay(seed % 7, 1);
        let readers: [&dyn Fn(Vec<Region>) -> Box<dyn BlockReader>; 3] = [
            &|regions| make(ReaderKind::Auto, depth, regions),
            &|regions| make(ReaderKind::Preadv, depth, regions),
            &|regions| Box::new(ScriptedReader::new(depth, regions, script.clone())),
        ];
        for open in readers {
            check_random(&open, &file, &data, &reads, seed)?;
        }
    }
}

/// Lays the reads' parts out over two regions without overlap, in an order that `seed` chooses, and checks each result.
fn check_random(
    open: &dyn Fn(Vec<Region>) -> Box<dyn BlockReader>,
    file: &Arc<ReadFile>,
    data: &[u8],
    reads: &[(u64, Vec<u32>)],
    seed: u64,
) -> Result<(), TestCaseError> {
    let room: usize = reads.iter().flat_map(|(_, parts)| parts).map(|bytes| *bytes as usize).sum();
    let memory = regions(2, room + 1);
    let mut reader = open(memory.clone());
    let mut ends = [0, room];
    for (token, (offset, sizes)) in reads.iter().enumerate() {
        let mut parts = Vec::new();
        for (index, &bytes) in sizes.iter().enumerate() {
            // Region 0 grows upwards, region 1 downwards.
            let region = (seed >> ((token + index) % 64) & 1) as usize;
            let at = if region == 0 { ends[0] } else { ends[1] - bytes as usize };
            ends[region] = if region == 0 { at + bytes as usize } else { at };
            parts.push(Part { region: region as u32, at, bytes });
        }
        reader.submit(read(file, *offset, parts, token as u64));
    }
    let mut done = Vec::new();
    while reader.in_flight() > 0 {
        reader.wait(1, &mut done).unwrap();
    }
    prop_assert_eq!(done.len(), reads.len());
    let mut seen = vec![false; reads.len()];
    for done in &done {
        prop_assert!(!std::mem::replace(&mut seen[done.read.token as usize], true));
        let (offset, sizes) = &reads[done.read.token as usize];
        let wanted: u64 = sizes.iter().map(|bytes| u64::from(*bytes)).sum();
        let there = (data.len() as u64).saturating_sub(*offset).min(wanted);
        match &done.result {
            Ok(()) => {
                prop_assert_eq!(there, wanted);
                if wanted > 0 {
                    assert_landed(&memory, &done.read, data);
                }
            }
            Err(ReadError::UnexpectedEnd { got, wanted: asked, .. }) => {
                prop_assert_eq!((*got, *asked), (there, wanted));
                prop_assert!(there < wanted);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
    Ok(())
}

fn one_part_reads(file: &Arc<ReadFile>, count: u64, reader: &mut dyn BlockReader) {
    for token in 0..count {
        let part = Part { region: 0, at: 100 * token as usize, bytes: 100 };
        reader.submit(read(file, 100 * token, vec![part], token));
    }
}

fn tokens(done: &[Done]) -> Vec<u64> {
    done.iter().map(|done| done.read.token).collect()
}

#[test]
fn a_scripted_failure_hits_one_read() {
    let data = contents(500);
    let (file, _) = testing::file(&data);
    let memory = regions(1, 500);
    let script = Script::default().fail(1, libc::EIO).fail_after(3, libc::ENODEV, 40).short(3, 30);
    let mut reader = ScriptedReader::new(8, memory.clone(), script);
    one_part_reads(&file, 5, &mut reader);
    let mut done = Vec::new();
    reader.wait(5, &mut done).unwrap();
    for done in &done {
        match (done.read.token, &done.result) {
            (1, Err(ReadError::Io { offset: 100, source, .. })) => {
                assert_eq!(source.raw_os_error(), Some(libc::EIO));
            }
            // Two pieces of 30 bytes landed before.
            (3, Err(ReadError::Io { offset: 360, source, .. })) => {
                assert_eq!(source.raw_os_error(), Some(libc::ENODEV));
            }
            (0 | 2 | 4, Ok(())) => assert_landed(&memory, &done.read, &data),
            (token, result) => panic!("token={token} result={result:?}"),
        }
    }
    assert_eq!(landed(&memory, Part { region: 0, at: 300, bytes: 60 }), data[300..360]);
    assert_eq!(reader.stats().reads, 3);
}

#[test]
fn scripted_short_reads_resume_at_the_exact_byte() {
    let data = contents(1000);
    let (file, _) = testing::file(&data);
    for short in (1..12).chain([63, 100, 299, 300, 301]) {
        let memory = regions(1, 1000);
        let mut reader = ScriptedReader::new(2, memory.clone(), Script::default().short(0, short));
        let parts = [(500, 3), (0, 7), (7, 0), (100, 190), (600, 100)].map(|(at, bytes)| Part { region: 0, at, bytes });
        reader.submit(read(&file, 321, parts.to_vec(), 0));
        let mut done = Vec::new();
        reader.wait(1, &mut done).unwrap();
        assert!(done[0].result.is_ok());
        assert_landed(&memory, &done[0].read, &data);
        assert_eq!(reader.stats().short_reads, 300_u64.div_ceil(short as u64) - 1);
    }
}

#[test]
fn scripted_delays_reorder() {
    let (file, _) = testing::file(&contents(400));
    let script = Script::default().delay(0, 3).delay(1, 1);
    let mut reader = ScriptedReader::new(4, regions(1, 400), script);
    one_part_reads(&file, 4, &mut reader);
    let mut done = Vec::new();
    for expected in [vec![2, 3], vec![1], vec![0]] {
        reader.wait(1, &mut done).unwrap();
        assert_eq!(tokens(&done), expected);
        // The third round passes without an end.
        done.clear();
    }
}

#[test]
fn a_held_read_ends_by_cancel_only() {
    let (file, _) = testing::file(&contents(400));
    let mut reader = ScriptedReader::new(2, regions(1, 400), Script::default().hold(1));
    one_part_reads(&file, 4, &mut reader);
    let mut done = Vec::new();
    reader.wait(3, &mut done).unwrap();
    assert_eq!(tokens(&done), [0, 2, 3], "one held read leaves the rest of the depth to others");
    done.clear();
    reader.wait(0, &mut done).unwrap();
    assert!(done.is_empty());
    assert!(matches!(reader.wait(1, &mut done), Err(RingError::Stuck { in_flight: 1 })));
    reader.cancel();
    reader.wait(1, &mut done).unwrap();
    assert!(matches!(done[..], [Done { result: Err(ReadError::Cancelled), .. }]));
}

#[test]
fn the_line_says_which_reader_and_why() {
    if !io_uring_works() {
        return;
    }
    let mut lines = Vec::new();
    let mut log = |line: &str| lines.push(line.to_owned());
    assert_eq!(open(ReaderKind::Preadv, 8, Vec::new(), &mut log).unwrap().name(), "preadv");
    assert_eq!(open(ReaderKind::Uring, 5, Vec::new(), &mut log).unwrap().name(), "uring");
    assert_eq!(open(ReaderKind::Auto, MAX_DEPTH, Vec::new(), &mut log).unwrap().name(), "uring");
    assert_eq!(
        lines,
        [
            "reader=preadv reason=asked for",
            "reader=uring depth=5 registered_files=64",
            "reader=uring depth=256 registered_files=64"
        ]
    );
}

#[test]
fn a_depth_out_of_range_is_refused() {
    for depth in [0, MAX_DEPTH + 1, usize::MAX] {
        for kind in [ReaderKind::Auto, ReaderKind::Uring, ReaderKind::Preadv] {
            let refused = open(kind, depth, Vec::new(), &mut |_| {}).map(|_| ());
            assert!(matches!(refused, Err(ReaderError::Depth { depth: given }) if given == depth));
        }
    }
}

#[test]
fn errors_name_the_file_and_the_kind() {
    let missing = ReadFile::open("/no/such/folder/segment-7").unwrap_err();
    assert_eq!(missing.to_string(), "cannot open file: path=/no/such/folder/segment-7");
    let public = crate::Error::from(missing);
    assert_eq!(public.kind(), crate::ErrorKind::NotFound);
    assert!(public.report().contains("No such file"), "{}", public.report());

    let beneath_a_file = ReadFile::open("/dev/null/segment").unwrap_err();
    assert!(matches!(beneath_a_file, ReadError::Open { .. }));

    let end = ReadError::UnexpectedEnd { path: "a/b".into(), offset: 4096, wanted: 100, got: 7 };
    assert_eq!(end.to_string(), "file ends too early: path=a/b offset=4096 wanted_bytes=100 got_bytes=7");
    assert_eq!(crate::Error::from(end).kind(), crate::ErrorKind::Corrupt);
}

mod region {
    use super::*;

    #[test]
    fn own_memory_is_zeroed_and_aligned() {
        for bytes in [0, 1, 4095, 4096, 3 << 20] {
            for (region, align) in [(Region::alloc(bytes), 4096), (Region::alloc_huge(bytes), 2 << 20)] {
                let region = region.unwrap();
                assert_eq!(region.len(), bytes);
                assert_eq!(region.address() as usize % align, 0);
                let mut contents = vec![1; bytes];
                region.read(0, &mut contents);
                assert!(contents.iter().all(|byte| *byte == 0));
                // The last byte is ours to write.
                region.write(0, &contents);
            }
        }
        assert!(Region::alloc(usize::MAX).is_err());
        assert!(Region::alloc_huge(usize::MAX - 4096).is_err());
    }

    #[test]
    fn copies_land_where_they_are_told() {
        let data = contents(5000);
        let (a, b) = (Region::alloc(8192).unwrap(), Region::alloc(8192).unwrap());
        a.write(17, &data);
        b.write_streaming(3, &data);
        fence();
        let part = |at, bytes| Part { region: 0, at, bytes };
        assert_eq!(landed(std::slice::from_ref(&a), part(17, 5000)), data);
        assert_eq!(landed(std::slice::from_ref(&b), part(3, 5000)), data);
        a.copy_from(6000, &b, 3 + 100, 2000);
        a.copy_from_streaming(2, &b, 3 + 1234, 999);
        fence();
        assert_eq!(landed(std::slice::from_ref(&a), part(6000, 2000)), data[100..2100]);
        assert_eq!(landed(std::slice::from_ref(&a), part(2, 999)), data[1234..2233]);
        assert_eq!(landed(&[a], part(1001, 3000)), data[984..3984]);
    }

    #[test]
    fn ranges_outside_panic() {
        let region = Region::alloc(100).unwrap();
        let outside: [fn(&Region); 6] = [
            |region| region.write(96, &[0; 5]),
            |region| region.write_streaming(usize::MAX, &[0; 2]),
            |region| region.read(101, &mut []),
            |region| region.copy_from(0, region, 1, 100),
            |region| region.copy_from(1, region, 0, 100),
            |region| region.copy_from_streaming(0, region, usize::MAX, 1),
        ];
        for call in outside {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&region))).is_err());
        }
    }
}
