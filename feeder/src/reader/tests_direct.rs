//! The suite over direct reads on a real file system, with every fallback; and what only they do.

use std::io::Write;

use super::super::testing::conformance::{assert_landed, conformance_on, contents, landed, regions};
use super::super::testing::{self, Script, ScriptedReader};
use super::super::uring::tests::io_uring_works;
use super::super::{ReaderKind, open, open_direct, open_with};
use super::*;

/// Nothing is cached.
const COLD: Ask = |_, _, _| Ok(0);
/// Everything is.
const WARM: Ask = |_, _, bytes| Ok(bytes);
const REFUSED: Ask = |_, _, _| Err(io::Error::from_raw_os_error(libc::ENOSYS));

/// Without huge pages.
const SMALL_PAGES: Alloc = |bytes| Ok((Region::alloc(bytes)?, Err(io::Error::from_raw_os_error(libc::EINVAL))));

fn reader_over(
    make: impl Fn(usize, Vec<Region>) -> Box<dyn BlockReader>,
    mode: DirectReads,
    setup: Setup,
    depth: usize,
    regions: Vec<Region>,
) -> DirectReader {
    let bounces = Bounces::new(depth, setup.alloc).unwrap();
    let inner = make(depth, regions.iter().cloned().chain([bounces.region().clone()]).collect());
    DirectReader::new(inner, mode, bounces, regions, setup)
}

fn kind(kind: ReaderKind) -> impl Fn(usize, Vec<Region>) -> Box<dyn BlockReader> {
    move |depth, regions| open(kind, depth, regions, &mut |_| {}).unwrap()
}

fn reader(ask: Ask, depth: usize, regions: Vec<Region>) -> DirectReader {
    reader_over(kind(ReaderKind::Preadv), DirectReads::Auto, Setup { ask, ..Setup::default() }, depth, regions)
}

/// Everything cold, also what is short.
fn direct(depth: usize, regions: Vec<Region>) -> DirectReader {
    reader_over(kind(ReaderKind::Preadv), DirectReads::On, Setup::default(), depth, regions)
}

fn final_file(bytes: &[u8]) -> (Arc<ReadFile>, File) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    (Arc::new(ReadFile::from_file(file.try_clone().unwrap(), "disk/test").into_final()), file)
}

/// A file of memory, where direct reads are the kernel's choice to have or to refuse.
fn memory_file(bytes: &[u8]) -> (Arc<ReadFile>, File) {
    let (file, handle) = testing::file(bytes);
    let file = file.file().try_clone().unwrap();
    (Arc::new(ReadFile::from_file(file, "memory/test").into_final()), handle)
}

/// Whether the file system of temporary files has direct reads: elsewhere only the way back is tested.
fn disk_has_direct_reads() -> bool {
    let (file, _) = final_file(&contents(8192));
    let mut reader = direct(1, regions(1, 4096));
    one(&mut reader, read(&file, 0, vec![Part { region: 0, at: 0, bytes: 4096 }]));
    reader.stats().copied_bytes > 0
}

fn read(file: &Arc<ReadFile>, offset: u64, parts: Vec<Part>) -> Read {
    Read { file: file.clone(), offset, parts, token: 9 }
}

fn one(reader: &mut DirectReader, read: Read) -> Done {
    let mut done = Vec::new();
    reader.submit(read);
    reader.wait(1, &mut done).unwrap();
    assert_eq!((done.len(), reader.in_flight()), (1, 0));
    done.remove(0)
}

#[test]
fn direct_reads_conform_over_preadv() {
    for alloc in [Region::alloc_advised as Alloc, SMALL_PAGES] {
        let setup = Setup { ask: COLD, alloc };
        for mode in [DirectReads::On, DirectReads::Auto] {
            conformance_on(final_file, |depth, regions| {
                Box::new(reader_over(kind(ReaderKind::Preadv), mode, setup, depth, regions))
            });
        }
    }
}

#[test]
fn direct_reads_conform_over_uring() {
    if io_uring_works() {
        let setup = Setup { ask: COLD, ..Setup::default() };
        for files in [final_file, memory_file] {
            conformance_on(files, |depth, regions| {
                Box::new(reader_over(kind(ReaderKind::Uring), DirectReads::On, setup, depth, regions))
            });
        }
    }
}

#[test]
fn files_in_memory_and_files_that_still_grow_conform() {
    conformance_on(memory_file, |depth, regions| Box::new(direct(depth, regions)));
    conformance_on(testing::file, |depth, regions| Box::new(direct(depth, regions)));
}

#[test]
fn short_reads_below_conform() {
    for bytes in [512, 4096, 5000] {
        let script = Script::default().short_all(bytes);
        let scripted =
            |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
        let setup = Setup { ask: COLD, ..Setup::default() };
        conformance_on(final_file, |depth, regions| {
            Box::new(reader_over(scripted, DirectReads::On, setup, depth, regions))
        });
    }
}

/// Reads longer than a buffer, over borders of pages and up to a ragged end, through fewer buffers than there are pieces.
#[test]
fn long_reads_are_cut_into_pieces_and_arrive_whole() {
    let has_direct = disk_has_direct_reads();
    let data = contents(5 * LOAN_BYTES + 777);
    let (file, _) = final_file(&data);
    for depth in [1, 3] {
        for (offset, bytes) in [(0, data.len()), (4095, data.len() - 4095), (1, LOAN_BYTES), (data.len() - 1, 1)] {
            let memory = regions(1, data.len() + 100);
            let mut reader = direct(depth, memory.clone());
            let cut = (bytes / 3) as u32;
            let parts = vec![
                Part { region: 0, at: 2 * cut as usize + 50, bytes: bytes as u32 - 2 * cut },
                Part { region: 0, at: 0, bytes: cut },
                Part { region: 0, at: cut as usize + 7, bytes: cut },
            ];
            let done = one(&mut reader, read(&file, offset as u64, parts));
            assert!(done.result.is_ok(), "{:?}", done.result);
            assert_eq!(done.read.token, 9);
            assert_landed(&memory, &done.read, &data);
            assert_eq!(reader.stats().copied_bytes, if has_direct { bytes as u64 } else { 0 });
        }
    }
}

#[test]
fn what_is_cached_or_not_final_is_read_through_the_cache() {
    let data = contents(100_000);
    let (file, handle) = final_file(&data);
    let open_file = Arc::new(ReadFile::from_file(handle, "disk/open"));
    for (ask, file) in [(WARM, &file), (COLD, &open_file)] {
        let memory = regions(1, 1 << 17);
        let mut reader = reader(ask, 2, memory.clone());
        let done = one(&mut reader, read(file, 5, vec![Part { region: 0, at: 3, bytes: 99_000 }]));
        assert_landed(&memory, &done.read, &data);
        assert_eq!((reader.stats().copied_bytes, reader.take_notice()), (0, None));
    }
}

#[test]
fn one_read_in_some_asks_and_the_answer_changes_the_way() {
    let (file, _) = final_file(&contents(1 << 16));
    let direct = disk_has_direct_reads();
    // The first half of the file is cached.
    let half: Ask = |_, offset, bytes| Ok(if offset < 1 << 15 { bytes } else { 0 });
    let mut reader = reader(half, 1, regions(1, 1 << 14));
    let part = || vec![Part { region: 0, at: 0, bytes: SHORT_BYTES as u32 }];
    for offset in [0, 1 << 15] {
        // What is short asks nothing.
        let short = vec![Part { region: 0, at: 0, bytes: SHORT_BYTES as u32 - 1 }];
        assert!(one(&mut reader, read(&file, 1 << 15, short)).result.is_ok());
        for _ in 0..ASK_READS {
            assert!(one(&mut reader, read(&file, offset, part())).result.is_ok());
        }
    }
    assert_eq!(reader.stats.syscalls, 2);
    assert_eq!(reader.stats().copied_bytes, if direct { u64::from(ASK_READS) * SHORT_BYTES } else { 0 });
}

#[test]
fn what_is_to_stay_in_the_cache_is_read_through_it_unless_all_is_direct() {
    let data = contents(1 << 14);
    let (file, _) = final_file(&data);
    let memory = regions(1, 1 << 14);
    let part = || vec![Part { region: 0, at: 0, bytes: 1 << 14 }];
    let direct = disk_has_direct_reads();
    for (mode, kept) in [(DirectReads::Auto, 0), (DirectReads::On, 1 << 14)] {
        let setup = Setup { ask: COLD, ..Setup::default() };
        let mut reader = reader_over(kind(ReaderKind::Preadv), mode, setup, 2, memory.clone());
        let mut copied = 0;
        for (keep, bytes) in [(false, 1 << 14), (true, kept), (false, 1 << 14)] {
            reader.keep_in_cache(keep);
            let done = one(&mut reader, read(&file, 0, part()));
            assert_landed(&memory, &done.read, &data);
            copied += if direct { bytes } else { 0 };
            assert_eq!(reader.stats().copied_bytes, copied, "{mode:?} keep={keep}");
        }
    }
}

#[test]
fn a_kernel_that_cannot_be_asked_reads_through_the_cache_and_says_so_once() {
    let data = contents(1 << 14);
    let (file, _) = final_file(&data);
    let memory = regions(1, 1 << 14);
    let mut reader = reader(REFUSED, 2, memory.clone());
    let mut said = Vec::new();
    for _ in 0..3 * ASK_READS {
        let done = one(&mut reader, read(&file, 0, vec![Part { region: 0, at: 0, bytes: 1 << 14 }]));
        assert_landed(&memory, &done.read, &data);
        said.extend(reader.take_notice());
    }
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("direct=off reason=cannot ask") && said[0].contains("os error 38"), "{said:?}");
    assert_eq!(reader.stats().copied_bytes, 0);
}

#[test]
fn a_file_system_without_direct_reads_is_read_through_the_cache_and_says_so_once() {
    // Files of /proc cannot be opened for direct reads.
    let file = Arc::new(ReadFile::open("/proc/version").unwrap().into_final());
    let text = std::fs::read("/proc/version").unwrap();
    let memory = regions(1, 64);
    let setup = Setup { ask: COLD, ..Setup::default() };
    let mut reader = reader_over(kind(ReaderKind::Preadv), DirectReads::On, setup, 2, memory.clone());
    let mut said = Vec::new();
    for _ in 0..3 * ASK_READS {
        let done = one(&mut reader, read(&file, 2, vec![Part { region: 0, at: 0, bytes: 10 }]));
        assert!(done.result.is_ok(), "{:?}", done.result);
        assert_eq!(landed(&memory, done.read.parts[0]), text[2..12]);
        said.extend(reader.take_notice());
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("direct=off reason=") && said[0].ends_with("path=/proc/version"), "{said:?}");
}

#[test]
fn a_refused_direct_read_is_made_again_and_no_further_one_is_tried() {
    if !disk_has_direct_reads() {
        return;
    }
    for code in [libc::EINVAL, libc::EOPNOTSUPP] {
        let data = contents(20_000);
        let (file, _) = final_file(&data);
        let memory = regions(1, 20_000);
        let script = Script::default().fail(0, code);
        let scripted =
            |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
        let setup = Setup { ask: COLD, ..Setup::default() };
        let mut reader = reader_over(scripted, DirectReads::On, setup, 2, memory.clone());
        for nth in 0..2 {
            let done = one(&mut reader, read(&file, 100, vec![Part { region: 0, at: 0, bytes: 15_000 }]));
            assert!(done.result.is_ok(), "nth={nth} {:?}", done.result);
            assert_landed(&memory, &done.read, &data);
        }
        assert!(file.direct().is_err(), "the file is still read past the cache");
        assert_eq!(reader.stats().copied_bytes, 0);
        assert!(reader.take_notice().unwrap().starts_with("direct=off reason="));
    }
}

#[test]
fn an_error_that_stays_is_that_of_the_ordinary_read() {
    let (file, _) = final_file(&contents(20_000));
    let script = Script::default().fail(0, libc::EIO).fail(1, libc::EIO);
    let scripted =
        |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
    let setup = Setup { ask: COLD, ..Setup::default() };
    let mut reader = reader_over(scripted, DirectReads::On, setup, 2, regions(1, 20_000));
    let done = one(&mut reader, read(&file, 100, vec![Part { region: 0, at: 0, bytes: 15_000 }]));
    match done.result {
        Err(ReadError::Io { offset: 100, source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::EIO)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_direct_read_says_how() {
    if !disk_has_direct_reads() {
        return;
    }
    let (file, _) = final_file(&contents(8192));
    for (alloc, word) in
        [(Region::alloc_advised as Alloc, "huge_pages="), (SMALL_PAGES, "huge_pages=no, which is slower: Invalid")]
    {
        let setup = Setup { ask: COLD, alloc };
        let mut reader = reader_over(kind(ReaderKind::Preadv), DirectReads::On, setup, 3, regions(1, 4096));
        let mut said = Vec::new();
        for _ in 0..3 {
            one(&mut reader, read(&file, 0, vec![Part { region: 0, at: 0, bytes: 4096 }]));
            said.extend(reader.take_notice());
        }
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("direct=on") && said[0].contains("buffer_bytes=3342336") && said[0].contains(word),
            "{said:?}"
        );
    }
}

#[test]
fn without_memory_for_buffers_data_is_read_through_the_cache_and_the_line_says_so() {
    let data = contents(8192);
    let (file, _) = final_file(&data);
    let memory = regions(1, 8192);
    let mut lines = Vec::new();
    let mut log = |line: &str| lines.push(line.to_owned());
    let none = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
    let mut reader = open_with(ReaderKind::Preadv, DirectReads::On, 2, memory.clone(), none(), &mut log).unwrap();
    reader.submit(read(&file, 0, vec![Part { region: 0, at: 0, bytes: 8192 }]));
    let mut done = Vec::new();
    reader.wait(1, &mut done).unwrap();
    assert_landed(&memory, &done[0].read, &data);
    assert_eq!(reader.stats().copied_bytes, 0);
    open_direct(ReaderKind::Preadv, DirectReads::Off, 2, regions(1, 10), &mut log).unwrap();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("direct=off reason=no memory for its buffers"), "{lines:?}");
    assert!(!lines[1].contains("direct"), "{lines:?}");
}
