//! The suite over direct reads on a real file system, with every fallback; and what only they do.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Mutex;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::cold::{ASK_READS, SHORT_BYTES};
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

/// Reads that tile a range with gaps here and there, all submitted at once: `(offset, bytes)` of each.
fn splits(cuts: &[(u32, u32)], room: u64) -> Vec<(u64, u32)> {
    let mut at = 0;
    let tile = |&(gap, bytes): &(u32, u32)| {
        let offset = at + u64::from(gap);
        at = offset + u64::from(bytes);
        (at <= room).then_some((offset, bytes))
    };
    cuts.iter().map_while(tile).collect()
}

/// Reads all of `tiles` at once, each to a place of its own, and gives what came back in the order of tokens.
fn all_at_once(reader: &mut DirectReader, file: &Arc<ReadFile>, tiles: &[(u64, u32)]) -> Vec<Done> {
    for (token, &(offset, bytes)) in (0..).zip(tiles) {
        let (at, half) = (offset as usize + 3, bytes / 2);
        // Halves change places.
        let parts = vec![
            Part { region: 0, at: at + (bytes - half) as usize, bytes: half },
            Part { region: 0, at, bytes: bytes - half },
        ];
        reader.submit(Read { token, ..read(file, offset, parts) });
    }
    let mut done = Vec::new();
    for back in 1..=tiles.len() {
        reader.wait(usize::from(done.len() < back), &mut done).unwrap();
        assert_eq!(reader.in_flight(), tiles.len() - done.len());
    }
    done.sort_by_key(|done| done.read.token);
    assert!((0..).zip(&done).all(|(token, done)| done.read.token == token), "a read came back twice or not at all");
    done
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn reads_that_follow_one_another_bring_the_same_bytes_however_they_are_cut(
        cuts in vec((prop_oneof![Just(0u32), 0..3 * GAP_BYTES as u32 / 2], 0u32..400_000), 1..24),
        depth in 1usize..5,
        short in prop_oneof![Just(usize::MAX), 3000usize..200_000],
    ) {
        let data = contents(3 * LOAN_BYTES + 77);
        let (file, _) = final_file(&data);
        let memory = regions(1, data.len() + 100);
        let script = Script::default().short_all(short);
        let scripted =
            |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
        let setup = Setup { ask: COLD, ..Setup::default() };
        let mut reader = reader_over(scripted, DirectReads::On, setup, depth, memory.clone());
        let tiles = splits(&cuts, data.len() as u64);
        for done in all_at_once(&mut reader, &file, &tiles) {
            prop_assert!(done.result.is_ok(), "{:?}", done.result);
            assert_landed(&memory, &done.read, &data);
        }
        prop_assert_eq!(reader.stats().reads, tiles.len() as u64);
        prop_assert_eq!(reader.memory.grains(), reader.memory.free_grains());
    }
}

#[test]
fn reads_that_follow_one_another_are_one_request_as_long_as_a_buffer() {
    if !disk_has_direct_reads() {
        return;
    }
    let block = 256 << 10;
    let data = contents(8 * (block + 4096));
    let (file, _) = final_file(&data);
    let memory = regions(1, data.len() + 100);
    // Of one block each, with a page between them.
    let tiles = splits(&[(4096, block as u32); 8], data.len() as u64);
    let mut reader = direct(8, memory.clone());
    for done in all_at_once(&mut reader, &file, &tiles) {
        assert!(done.result.is_ok(), "{:?}", done.result);
        assert_landed(&memory, &done.read, &data);
    }
    assert_eq!((reader.inner.stats().reads, reader.stats().reads), (2, 8));
    // What lies apart, or backwards, is not joined.
    let gap = GAP_BYTES as u32;
    for (tiles, requests) in
        [(splits(&[(0, 100), (gap, 100)], 1 << 20), 1), (splits(&[(0, 100), (gap + 1, 100)], 1 << 20), 2)]
    {
        for (tiles, requests) in [(tiles.clone(), requests), (tiles.into_iter().rev().collect(), 2)] {
            let mut reader = direct(8, memory.clone());
            assert!(all_at_once(&mut reader, &file, &tiles).iter().all(|done| done.result.is_ok()));
            assert_eq!(reader.inner.stats().reads, requests, "{tiles:?}");
        }
    }
}

#[test]
fn of_joined_reads_only_the_one_that_cannot_be_read_fails() {
    if !disk_has_direct_reads() {
        return;
    }
    let data = contents(5 * 8192);
    let (file, _) = final_file(&data);
    let tiles = splits(&[(0, 8192); 5], data.len() as u64);
    // Request 0 is all of them and fails inside the third; then come the last three, of which the first fails again.
    let script = Script::default().fail_after(0, libc::EIO, 20_000).short(0, 4096).fail(1, libc::EIO);
    let scripted =
        |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
    let memory = regions(1, data.len() + 100);
    let setup = Setup { ask: COLD, ..Setup::default() };
    let mut reader = reader_over(scripted, DirectReads::On, setup, 4, memory.clone());
    for (nth, done) in all_at_once(&mut reader, &file, &tiles).into_iter().enumerate() {
        match done.result {
            Ok(()) => assert_landed(&memory, &done.read, &data),
            Err(ReadError::Io { offset: 16_384, ref source, .. }) => {
                assert_eq!((nth, source.raw_os_error()), (2, Some(libc::EIO)));
            }
            other => panic!("nth={nth} {other:?}"),
        }
    }
    assert_eq!((reader.stats().reads, reader.stats().copied_bytes), (4, 2 * 8192));
}

#[test]
fn joined_reads_over_the_end_of_a_file_that_was_cut_fail_from_there_on() {
    let data = contents(6 * 8192);
    let (file, handle) = final_file(&data);
    // The length of the file is known from before.
    let known = file.direct().is_ok();
    handle.set_len(3 * 8192 + 100).unwrap();
    let memory = regions(1, data.len() + 100);
    let mut reader = direct(2, memory.clone());
    let tiles = splits(&[(0, 8192); 6], data.len() as u64);
    for (nth, done) in all_at_once(&mut reader, &file, &tiles).into_iter().enumerate() {
        match (nth, done.result) {
            (0..3, Ok(())) => assert_landed(&memory, &done.read, &data),
            (3, Err(ReadError::UnexpectedEnd { got: 100, .. }))
            | (4.., Err(ReadError::UnexpectedEnd { got: 0, .. })) => {}
            other => panic!("known={known} {other:?}"),
        }
    }
}

#[test]
fn joined_reads_that_are_cancelled_come_back_once_each() {
    let data = contents(8 * 8192);
    let (file, _) = final_file(&data);
    let script = Script::default().hold(0);
    let scripted =
        |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
    let setup = Setup { ask: COLD, ..Setup::default() };
    let mut reader = reader_over(scripted, DirectReads::On, setup, 1, regions(1, data.len()));
    let mut done = Vec::new();
    for started in [true, false] {
        for token in 0..4 {
            let part = Part { region: 0, at: 0, bytes: 8192 };
            reader.submit(Read { token, ..read(&file, token * 8192, vec![part]) });
        }
        if started {
            reader.wait(0, &mut done).unwrap();
        }
    }
    assert_eq!((done.len(), reader.in_flight()), (0, 8));
    reader.cancel();
    reader.wait(8, &mut done).unwrap();
    assert_eq!((done.len(), reader.in_flight()), (8, 0));
    assert!(done.iter().all(|done| matches!(done.result, Err(ReadError::Cancelled))));
    // And the reader goes on.
    assert!(one(&mut reader, read(&file, 0, vec![Part { region: 0, at: 0, bytes: 8192 }])).result.is_ok());
}

/// A reader that lands all at once, and tells for each wait how many it was to wait for and how many reads it then had.
struct Told {
    inner: ScriptedReader,
    waits: Arc<Mutex<Vec<(usize, usize)>>>,
    kept: Arc<Mutex<Vec<(Keep, bool)>>>,
    prepared: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl BlockReader for Told {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, read: Read) {
        self.inner.submit(read);
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        self.waits.lock().unwrap().push((at_least, self.inner.in_flight()));
        self.inner.wait(at_least, done)
    }

    fn keep_in_cache(&mut self, keep: Keep, again: bool) {
        self.kept.lock().unwrap().push((keep, again));
    }

    fn prepare(&mut self, _file: &ReadFile, offset: u64, bytes: u64) {
        self.prepared.lock().unwrap().push((offset, bytes));
    }

    fn cancel(&mut self) {
        self.inner.cancel();
    }

    fn stats(&self) -> ReaderStats {
        self.inner.stats()
    }
}

#[test]
fn who_reads_through_the_cache_is_told_what_is_to_stay_there() {
    let (kept, prepared) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let told = |depth, regions| -> Box<dyn BlockReader> {
        let inner = ScriptedReader::new(depth, regions, Script::default());
        Box::new(Told { inner, waits: Arc::default(), kept: kept.clone(), prepared: prepared.clone() })
    };
    let taken = || std::mem::take(&mut *kept.lock().unwrap());
    let over = |mode, ask| reader_over(told, mode, Setup { ask, ..Setup::default() }, 2, regions(1, 1 << 15));
    let (file, _) = final_file(&contents(1 << 15));
    let all = || vec![Part { region: 0, at: 0, bytes: 1 << 15 }];

    // A first epoch goes past the cache, later ones do not.
    let mut reader = over(DirectReads::Auto, COLD);
    reader.keep_in_cache(Keep::Around, false);
    reader.keep_in_cache(Keep::Around, true);
    reader.keep_in_cache(Keep::Read, true);
    assert_eq!(taken(), [(Keep::Nothing, false), (Keep::Around, true), (Keep::Read, true)]);
    reader.prepare(&file, 3, 5);
    assert_eq!(*prepared.lock().unwrap(), [(3, 5)]);

    // Unless it turns out that it cannot: at once, and in every epoch from then on.
    let mut reader = over(DirectReads::Auto, REFUSED);
    reader.keep_in_cache(Keep::Around, false);
    assert_eq!(taken(), [(Keep::Nothing, false)]);
    for _ in 0..2 {
        assert!(one(&mut reader, read(&file, 0, all())).result.is_ok());
    }
    assert_eq!(taken(), [(Keep::Around, false)]);
    reader.keep_in_cache(Keep::Around, false);
    assert_eq!(taken(), [(Keep::Around, false)]);

    // Where all is read past it nothing stays there.
    let mut reader = over(DirectReads::On, COLD);
    reader.keep_in_cache(Keep::Around, true);
    assert_eq!(taken(), []);
}

#[test]
fn new_reads_get_on_their_way_before_the_next_of_those_landed_is_copied() {
    if !disk_has_direct_reads() {
        return;
    }
    let data = contents(8 << 16);
    let (file, _) = final_file(&data);
    let (waits, memory) = (Arc::new(Mutex::new(Vec::new())), regions(1, data.len()));
    let told = |depth, regions| -> Box<dyn BlockReader> {
        let inner = ScriptedReader::new(depth, regions, Script::default());
        Box::new(Told { inner, waits: waits.clone(), kept: Arc::default(), prepared: Arc::default() })
    };
    let setup = Setup { ask: COLD, ..Setup::default() };
    let mut reader = reader_over(told, DirectReads::On, setup, 8, memory.clone());
    // Too far from one another to be joined.
    let far = |token: u64| {
        let offset = token << 16;
        Read { token, ..read(&file, offset, vec![Part { region: 0, at: offset as usize, bytes: 4096 }]) }
    };
    let mut done = Vec::new();
    (0..3).for_each(|token| reader.submit(far(token)));
    for copied in 1..=3 {
        reader.wait(1, &mut done).unwrap();
        assert_eq!((done.len(), reader.stats().copied_bytes), (copied, 4096 * copied as u64));
        if copied < 3 {
            reader.submit(far(2 + copied as u64));
        }
    }
    reader.wait(2, &mut done).unwrap();
    assert_eq!((done.len(), reader.in_flight()), (5, 0));
    done.iter().for_each(|done| assert_landed(&memory, &done.read, &data));
    // Three at once, which are waited for; then each new one on its own, not waited for while others have landed.
    assert_eq!(*waits.lock().unwrap(), [(1, 3), (0, 1), (0, 1)]);
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
    assert_eq!(reader.cold.asked, 2);
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
        for (keep, bytes) in
            [(Keep::Nothing, 1 << 14), (Keep::Read, kept), (Keep::Around, kept), (Keep::Nothing, 1 << 14)]
        {
            reader.keep_in_cache(keep, true);
            let done = one(&mut reader, read(&file, 0, part()));
            assert_landed(&memory, &done.read, &data);
            copied += if direct { bytes } else { 0 };
            assert_eq!(reader.stats().copied_bytes, copied, "{mode:?} {keep:?}");
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
        said.extend(reader.take_notice().map(|notice| notice.line));
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
        said.extend(reader.take_notice().map(|notice| notice.line));
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
        let Notice { way, line } = reader.take_notice().unwrap();
        assert!(way == "refused" && line.starts_with("direct=off reason="), "{line}");
        let later = std::iter::from_fn(|| reader.take_notice()).all(|notice| notice.way == "refused");
        assert!(later, "the direct way never worked");
    }
}

#[test]
fn a_way_that_is_given_up_later_is_told_too() {
    if !disk_has_direct_reads() {
        return;
    }
    let data = contents(20_000);
    let ((first, _), (second, _)) = (final_file(&data), final_file(&data));
    let memory = regions(1, 20_000);
    let script = Script::default().fail(1, libc::EINVAL);
    let scripted =
        |depth, regions| -> Box<dyn BlockReader> { Box::new(ScriptedReader::new(depth, regions, script.clone())) };
    let setup = Setup { ask: COLD, ..Setup::default() };
    let mut reader = reader_over(scripted, DirectReads::On, setup, 2, memory.clone());
    let mut done = Vec::new();
    for file in [&first, &second] {
        reader.submit(read(file, 0, vec![Part { region: 0, at: 0, bytes: 10_000 }]));
    }
    while reader.in_flight() > 0 {
        reader.wait(1, &mut done).unwrap();
    }
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    let ways: Vec<_> = std::iter::from_fn(|| reader.take_notice()).map(|notice| notice.way).collect();
    assert_eq!(ways, ["direct", "refused"], "both, though nobody asked in between");
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
            said.extend(reader.take_notice().map(|notice| notice.line));
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
