//! Machines that lack something: everything works there, with the same batches in the same order, and one line says which
//! way was taken and why. What is lacking is really taken away, from the thread that runs the loader and those it starts.

mod corpus;
#[path = "corpus/sandbox.rs"]
mod sandbox;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use corpus::{WAIT, compare, drop_from_cache, expected, files, name, next, topic};
use cursorstore::{Cursor, State};
use feeder::engine::testing::assemble;
use feeder::engine::{Checksum, Dataset, Loader, Settings};
use feeder::reader::testing::{Script, ScriptedReader};
use feeder::reader::{BlockReader, DirectReads, Done, Keep, Notice, Read, ReaderKind, ReaderStats, RingError};
use feeder::{Error, ErrorKind};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sandbox::{When, keep_one_processor, refuse, without};

/// Bytes of a slot of the topics here: a page.
const SLOT_BYTES: u64 = 4096;
const WIDTH: usize = 40;

fn settings() -> Settings {
    Settings {
        global_batch: 12,
        seed: 7,
        shuffle: true,
        lanes: Some(8),
        chunk: Some(10),
        pool: Some(3),
        ..Settings::default()
    }
}

/// A loader over `root` with nothing that differs from machine to machine: no line but the reader's.
fn plain() -> Settings {
    Settings { reader_threads: Some(2), direct: DirectReads::Off, ..settings() }
}

/// Trains for two epochs, each batch compared with the plan; gives the lines for the log.
fn train(root: &Path, settings: Settings) -> Vec<String> {
    let mut loader = Loader::open(root, &name(), settings).unwrap();
    compare(&mut loader, 2, WIDTH);
    loader.take_notices()
}

/// The error of a loader that cannot start.
fn fails(root: &Path, settings: Settings) -> Error {
    let mut loader = Loader::open(root, &name(), settings).unwrap();
    loader.begin().and_then(|()| loader.poll_next(WAIT)).map(|_| ()).expect_err("started")
}

fn corpus() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[301, 0, 64, 200], WIDTH, 2048, 17);
    folder
}

#[test]
fn without_io_uring_files_are_read_by_preadv() {
    let folder = corpus();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let take = || refuse(libc::SYS_io_uring_setup, &When::Always, errno);
        let Some(lines) = without(take, || train(folder.path(), plain())) else { return };
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("reader=preadv reason=") && lines[0].contains("io_uring"), "{lines:?}");
    }
}

#[test]
fn io_uring_that_was_asked_for_and_is_forbidden_is_refused_with_the_next_step() {
    let folder = corpus();
    for (errno, why) in [(libc::EPERM, "forbidden"), (libc::ENOSYS, "has none")] {
        let take = || refuse(libc::SYS_io_uring_setup, &When::Always, errno);
        let settings = Settings { reader: ReaderKind::Uring, ..plain() };
        let Some(error) = without(take, || fails(folder.path(), settings)) else { return };
        let hint = error.hint().unwrap_or_default();
        for word in ["reader=\"auto\"", "/proc/sys/kernel/io_uring_disabled", "seccomp"] {
            assert!(hint.contains(word), "no {word} in {hint:?}");
        }
        assert!(error.report().contains("io_uring_setup") && error.report().contains(why), "{}", error.report());
    }
}

#[test]
fn without_direct_reads_cold_data_is_read_through_the_page_cache() {
    let folder = corpus();
    for reader in [ReaderKind::Auto, ReaderKind::Preadv] {
        let settings = Settings { direct: DirectReads::On, reader, ..plain() };
        let take = || refuse(libc::SYS_openat, &When::Has(2, libc::O_DIRECT as u32), libc::EINVAL);
        let Some(lines) = without(take, || train(folder.path(), settings)) else { return };
        let direct: Vec<_> = lines.iter().filter(|line| line.contains("direct=")).collect();
        assert_eq!((lines.len(), direct.len()), (2, 1), "{lines:?}");
        assert!(direct[0].starts_with("direct=off") && direct[0].contains("path="), "{lines:?}");
    }
}

#[test]
fn without_huge_pages_small_ones_serve() {
    let folder = corpus();
    let settings = Settings { direct: DirectReads::On, ..plain() };
    let take = || refuse(libc::SYS_madvise, &When::Is(2, libc::MADV_HUGEPAGE as u32), libc::EINVAL);
    let Some(lines) = without(take, || train(folder.path(), settings)) else { return };
    let direct: Vec<_> = lines.iter().filter(|line| line.contains("direct=")).collect();
    assert_eq!((lines.len(), direct.len()), (2, 1), "{lines:?}");
    // On a file system without direct reads that is what is said.
    assert!(direct[0].contains("huge_pages=no") || direct[0].starts_with("direct=off"), "{lines:?}");
}

#[test]
fn without_memory_for_its_buffers_no_direct_reads_are_made() {
    let folder = corpus();
    let settings = Settings { direct: DirectReads::On, reader_threads: Some(1), ..plain() };
    let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
    // Nothing else here is as large: the slab and the stacks of threads are smaller.
    let take = || refuse(libc::SYS_mmap, &When::AtLeast(1, 4 << 20), libc::ENOMEM);
    let Some(lines) = without(take, || {
        compare(&mut loader, 2, WIDTH);
        loader.take_notices()
    }) else {
        return;
    };
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("direct=off") && lines[0].contains("no memory for its buffers"), "{lines:?}");
}

#[test]
fn a_sandbox_without_memory_files_or_bells_is_named_with_what_to_allow() {
    let folder = corpus();
    for (number, call) in [(libc::SYS_memfd_create, "memfd_create"), (libc::SYS_eventfd2, "eventfd")] {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let Some(error) = without(|| refuse(number, &When::Always, errno), || fails(folder.path(), plain())) else {
                return;
            };
            assert_eq!(error.kind(), ErrorKind::Permission, "{}", error.report());
            for word in [call, &format!("os error {errno}")] {
                assert!(error.report().contains(word), "no {word} in {}", error.report());
            }
            let hint = error.hint().unwrap_or_default();
            assert!(hint.contains(&format!("allow {call}")) && hint.contains("seccomp"), "{hint}");
        }
    }
}

#[test]
fn without_memory_for_reading_the_error_says_what_helps() {
    let folder = corpus();
    let settings = Settings { shuffle: false, reader_threads: Some(1), ..plain() };
    // More than the stack of a thread, and less than its scratch.
    let take = || refuse(libc::SYS_mmap, &When::AtLeast(1, 2_500_000), libc::ENOMEM);
    let Some(error) = without(take, || fails(folder.path(), settings)) else { return };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.report().contains("cannot get memory for reading: bytes="), "{}", error.report());
    assert!(error.hint().unwrap_or_default().contains("lower depth"), "{error:?}");
}

#[test]
fn buffers_of_direct_reads_count_with_a_named_limit() {
    let folder = corpus();
    let slots = |direct, memory_limit_bytes| {
        let settings = Settings { direct, memory_limit_bytes, ..plain() };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        compare(&mut loader, 1, WIDTH);
        let lines = loader.take_notices().into_iter();
        (loader.stats().slots, lines.filter(|line| !line.starts_with("reader=")).collect())
    };
    // Two threads have 6 MiB each.
    let whole = slots_of(folder.path(), plain());
    let (all, lines): (_, Vec<String>) = slots(DirectReads::On, Some(13 << 20));
    assert!(all == whole && lines.iter().all(|line| line.starts_with("direct=o")), "slots={all} {lines:?}");
    // Here only one of the two has room: no direct read is made.
    let (all, lines) = slots(DirectReads::On, Some(12 << 20));
    assert_eq!((all, lines.len()), (whole, 1), "{lines:?}");
    assert!(lines[0].contains("direct=off buffer_bytes=12582912 limit_bytes=12582912"), "{lines:?}");
    assert_eq!(slots(DirectReads::Off, Some(12 << 20)), (whole, vec![]));
}

/// A reader that tells of ways of reading: one more each time that it hands out reads, then the last ones again. And whenever it
/// is told what is to stay in the page cache, how many reads it has, and has had at most since it was told last.
struct Telling {
    inner: ScriptedReader,
    ways: Vec<&'static str>,
    times: usize,
    most: usize,
    told: Arc<Mutex<Vec<Told>>>,
}

/// What a reader was told, with the reads that it had.
struct Told {
    keep: Keep,
    again: bool,
    reads: usize,
    most: usize,
}

impl BlockReader for Telling {
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
        self.most = self.most.max(self.in_flight());
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Done>) -> Result<(), RingError> {
        self.ways.extend(["direct", "refused", "unknown"].get(self.times));
        self.ways.push("refused");
        self.times += 1;
        self.inner.wait(at_least, done)
    }

    fn cancel(&mut self) {
        self.inner.cancel();
    }

    fn stats(&self) -> ReaderStats {
        self.inner.stats()
    }

    fn keep_in_cache(&mut self, keep: Keep, again: bool) {
        let (reads, most) = (self.in_flight(), std::mem::take(&mut self.most));
        self.told.lock().unwrap().push(Told { keep, again, reads, most });
    }

    fn take_notice(&mut self) -> Option<Notice> {
        let way = (!self.ways.is_empty()).then(|| self.ways.remove(0))?;
        Some(Notice { way, line: format!("{way} times={}", self.times) })
    }
}

#[test]
fn each_change_of_the_way_to_read_is_told_once() {
    let folder = corpus();
    let dataset = Arc::new(Dataset::all_of(folder.path(), &name()).unwrap());
    let told = assemble(&dataset, &settings(), 20, |regions| {
        let inner = ScriptedReader::new(1, regions, Script::default());
        Box::new(Telling { inner, ways: Vec::new(), times: 0, most: 0, told: Arc::default() })
    });
    assert_eq!(told.unwrap(), ["direct times=1", "refused times=1", "unknown times=3"]);
}

#[test]
fn an_epoch_is_read_to_its_end_before_the_next_one_fills_the_cache() {
    let folder = corpus();
    let dataset = Arc::new(Dataset::all_of(folder.path(), &name()).unwrap());
    let (settings, told) = (Settings { shuffle: true, depth: 8, ..plain() }, Arc::new(Mutex::new(Vec::new())));
    let steps = dataset.line().total() / settings.global_batch as u64;
    assemble(&dataset, &settings, 2 * steps + 1, |regions| {
        // One read lands at a time: others are on their way whenever there is room for a unit.
        let inner = ScriptedReader::new(1, regions, Script::default());
        Box::new(Telling { inner, ways: Vec::new(), times: 0, most: 0, told: told.clone() })
    })
    .unwrap();
    let told = told.lock().unwrap();
    for (epoch, &Told { keep, again, reads, most }) in told[..3].iter().enumerate() {
        assert_eq!((keep, again, reads), (Keep::Around, epoch > 0, 0), "epoch={epoch}");
        assert_eq!(most > 1, epoch > 0, "epoch={epoch} most={most}");
    }
}

#[test]
fn on_one_processor_one_thread_reads() {
    let folder = corpus();
    let settings = Settings { reader_threads: None, ..plain() };
    let Some(lines) = without(keep_one_processor, || train(folder.path(), settings)) else { return };
    let about: Vec<_> = lines.iter().filter(|line| line.contains("reader_threads=1")).collect();
    assert_eq!((lines.len(), about.len()), (2, 1), "{lines:?}");
    assert!(about[0].contains("one processor"), "{lines:?}");
}

#[test]
fn the_order_does_not_depend_on_memory() {
    let folder = corpus();
    let whole = slots_of(folder.path(), settings());
    assert!(whole > 26, "the shuffle keeps many steps open: slots={whole}");
    for (shuffle, world, slots) in [false, true]
        .into_iter()
        .flat_map(|shuffle| [1, 2].map(|world| (shuffle, world)))
        .flat_map(|(shuffle, world)| [4, 5, 6, 7, 9, 13, 20, 26, whole - 1, whole].map(|slots| (shuffle, world, slots)))
    {
        for rank in 0..world {
            let checksum = if slots % 2 == 0 { Checksum::Always } else { Checksum::Sampled };
            let memory_limit_bytes = Some(slots * SLOT_BYTES);
            let settings = Settings { shuffle, world, rank, checksum, memory_limit_bytes, ..plain() };
            let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
            compare(&mut loader, 2, WIDTH);
            let lines = loader.take_notices();
            let short = lines.iter().filter(|line| line.starts_with("memory is short")).count();
            let wanted = slots_of(folder.path(), Settings { shuffle, world, rank, ..plain() });
            assert_eq!(short, usize::from(slots < wanted), "slots={slots} wanted={wanted} {lines:?}");
            assert!(loader.stats().slots <= slots && loader.stats().overflow_batches == 0);
        }
    }
}

#[test]
fn with_little_memory_a_job_goes_on_anywhere() {
    let folder = corpus();
    for (slots, n, world) in
        [4, 5, 11].into_iter().flat_map(|slots| [1, 12, 250, 564].map(|n| (slots, n, 1 + n as u32 % 2)))
    {
        for rank in 0..world {
            let settings = Settings { world, rank, memory_limit_bytes: Some(slots * SLOT_BYTES), ..plain() };
            let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
            let state = State { cursor: Cursor { epoch: 1, n }, ..loader.state(None).unwrap() };
            loader.load(&state).unwrap();
            loader.begin().unwrap();
            loop {
                let want = expected(&loader, loader.cursor());
                let Some(batch) = next(&mut loader) else { break };
                assert_eq!(corpus::checked_ids(&batch, WIDTH)[..want.len()], want, "slots={slots} n={n}");
            }
            compare(&mut loader, 1, WIDTH);
        }
    }
}

/// Slots that a slab has where memory suffices.
fn slots_of(root: &Path, settings: Settings) -> u64 {
    let mut loader = Loader::open(root, &name(), settings).unwrap();
    loader.begin().unwrap();
    loader.stats().slots
}

/// Address space beyond what the process has when it begins to train, in KiB.
const ROOM_KIB: &str = "FOREBAY_TEST_ROOM_KIB";

#[test]
#[ignore = "run by another, as a process of its own"]
#[allow(clippy::print_stdout, reason = "so the other process learns how it ended")]
fn a_process_of_little_address_space() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let room_kib: u64 = std::env::var(ROOM_KIB).unwrap().parse().unwrap();
    let mut loader = Loader::open(Path::new(&root), &name(), settings()).unwrap();
    let pages: u64 = fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = pages * 4096 + (room_kib << 10);
    setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
    match loader.begin().and_then(|()| loader.poll_next(WAIT)) {
        Ok(_) => {
            compare(&mut loader, 1, WIDTH);
            println!("\n{LINE}trained");
        }
        Err(error) => println!("\n{LINE}{:?}: {} (try: {})", error.kind(), error.report(), error.hint().unwrap_or("?")),
    }
}

#[test]
fn little_address_space_is_enough_or_gives_an_error_that_says_so() {
    let folder = corpus();
    let mut ends = Vec::new();
    for room_kib in [0, 1, 4, 8, 12, 13, 16, 24, 32, 64, 256, 1024].map(|mib| mib << 10) {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "a_process_of_little_address_space", "--ignored", "--nocapture"]);
        let output = program.env(ROOT, folder.path()).env(ROOM_KIB, room_kib.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "room_kib={room_kib} {:?}\n{text}\n{errors}", output.status);
        let end = text.lines().find_map(|line| line.strip_prefix(LINE)).expect("an end").to_owned();
        let is_clear = end == "trained" || (end.contains("memory") && !end.contains("try: ?"));
        assert!(is_clear, "room_kib={room_kib} {end}");
        ends.push(end);
    }
    assert!(ends[0] != "trained" && ends[ends.len() - 1] == "trained", "{ends:?}");
}

/// Names the root for a test that is a process of its own.
const ROOT: &str = "FOREBAY_TEST_ROOT";
/// Set where the slab's limit is to be named.
const NAMED: &str = "FOREBAY_TEST_NAMED";
/// Before each line for the log, on standard output.
const LINE: &str = "line: ";
/// Samples of 4 KiB.
const LARGE_WIDTH: usize = 2048;
const SMALL_BYTES: u64 = 64 << 20;

/// A topic that is larger than what its shuffle keeps open, 64 MiB, and cold.
fn large() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[20_480], LARGE_WIDTH, 1 << 20, 1024);
    files(folder.path()).iter().for_each(drop_from_cache);
    folder
}

#[test]
#[ignore = "run by others, as a process of its own"]
#[allow(clippy::print_stdout, reason = "so the other process learns what was logged")]
fn a_small_process() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    // Here it may be lower already.
    let lockable = SMALL_BYTES.min(getrlimit(Resource::RLIMIT_MEMLOCK).unwrap().1);
    setrlimit(Resource::RLIMIT_MEMLOCK, lockable, lockable).unwrap();
    let memory_limit_bytes = std::env::var_os(NAMED).map(|_| SMALL_BYTES);
    let (lanes, chunk, pool) = (Some(64), Some(64), Some(4));
    let settings =
        Settings { global_batch: 256, shuffle: true, lanes, chunk, pool, memory_limit_bytes, ..Settings::default() };
    let mut loader = Loader::open(Path::new(&root), &name(), settings).unwrap();
    compare(&mut loader, 1, LARGE_WIDTH);
    assert!(loader.stats().slab_bytes <= SMALL_BYTES);
    loader.take_notices().iter().for_each(|line| println!("\n{LINE}{line}"));
}

/// Runs [`a_small_process`] and gives the lines that say memory is short.
fn run_small(program: &mut Command, root: &Path) -> Vec<String> {
    let output = program.env(ROOT, root).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(LINE)).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{text}");
    lines.into_iter().filter(|line| line.contains("memory is short")).collect()
}

/// This program, to run [`a_small_process`].
fn small_process() -> [PathBuf; 4] {
    let program = std::env::current_exe().unwrap();
    [program, "--exact".into(), "a_small_process".into(), "--ignored".into()]
}

#[test]
fn sixty_four_mebibytes_are_enough_for_an_order_that_wants_more() {
    let folder = large();
    let [program, arguments @ ..] = small_process();
    let mut program = Command::new(program);
    program.args(arguments).arg("--nocapture").env(NAMED, "1");
    let lines = run_small(&mut program, folder.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("limit=memory_limit_bytes") && lines[0].contains("chunks are read about"), "{lines:?}");
}

/// A memory control group below this process's own, for one process.
struct Group(PathBuf);

impl Group {
    /// With that limit; why not, where this process may not make one.
    fn new(limit_bytes: u64) -> Result<Self, String> {
        let mine = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let paths = mine.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            match (fields.next()?, fields.next()?) {
                ("", path) => Some((format!("/sys/fs/cgroup{path}"), "memory.max")),
                ("memory", path) => Some((format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes")),
                _ => None,
            }
        });
        let mut why = "no control groups with memory".to_owned();
        for (parent, limit) in paths {
            let group = Self(Path::new(&parent).join(format!("forebay-test-{}", std::process::id())));
            let made = fs::create_dir(&group.0).and_then(|()| fs::write(group.0.join(limit), limit_bytes.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{}: {error}", group.0.display()),
            }
        }
        Err(why)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nobody is in it any more; what cannot be removed is an empty folder of the kernel's.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "a test that did nothing says why")]
fn a_control_group_of_sixty_four_mebibytes_is_enough() {
    let group = match Group::new(SMALL_BYTES) {
        Ok(group) => group,
        Err(why) => return eprintln!("skipped, no group can be made here: {why}"),
    };
    let folder = large();
    let mut program = Command::new("sh");
    program.args(["-c", r#"echo $$ > "$0"/cgroup.procs && exec "$@""#].map(OsStr::new)).arg(&group.0);
    program.args(small_process()).arg("--nocapture");
    let lines = run_small(&mut program, folder.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("limit=half of the memory available"), "{lines:?}");
}
