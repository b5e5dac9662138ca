//! What only a ring can show: reads that truly are in the kernel (on pipes, where they end when we want), counts of system
//! calls, the table of files, threads, signals, and sandboxes that forbid io_uring.

use std::io::{PipeWriter, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::testing::conformance::{assert_landed, conformance_on, contents, landed, regions};
use super::super::{Part, ReadFile, ReaderKind, open, testing};
use super::*;

/// Whether this machine lets us have a ring at all. Where a sandbox forbids it there is nothing here to test.
pub(in crate::reader) fn io_uring_works() -> bool {
    Ring::new(1).is_ok()
}

fn reader(depth: usize, files: u32, regions: Vec<Region>) -> UringReader {
    UringReader::new(Ring::with_files(depth, files).unwrap(), depth, regions)
}

/// A file that has nothing to read until something is written to the other end.
fn slow_file() -> (Arc<ReadFile>, PipeWriter) {
    let (read, write) = pipe().unwrap();
    let read = std::os::fd::OwnedFd::from(read);
    (Arc::new(ReadFile::from_file(read.into(), "pipe")), write)
}

fn read(file: &Arc<ReadFile>, at: usize, bytes: u32, token: u64) -> Read {
    Read { file: file.clone(), offset: 0, parts: vec![Part { region: 0, at, bytes }], token }
}

fn all_in_kernel(reader: &mut UringReader, reads: usize) {
    let mut done = Vec::new();
    reader.wait(0, &mut done).unwrap();
    assert!(done.is_empty());
    assert_eq!(reader.in_kernel, reads);
}

#[test]
fn conforms_with_a_small_table_and_without_one() {
    if !io_uring_works() {
        return;
    }
    for files in [0, 1, 3] {
        conformance_on(testing::file, |depth, regions| Box::new(reader(depth, files, regions)));
    }
}

#[test]
fn a_ring_without_a_table_says_why() {
    if !io_uring_works() {
        return;
    }
    assert_eq!(Ring::with_files(4, 7).unwrap().to_string(), "registered_files=7");
    let without = Ring::with_files(4, 0).unwrap().to_string();
    assert_eq!(without, "registered_files=0 because=Invalid argument (os error 22)");
}

#[test]
fn a_batch_is_one_system_call() {
    if !io_uring_works() {
        return;
    }
    let data = contents(4096 * 8);
    let (file, _) = testing::file(&data);
    let mut reader = reader(8, 4, regions(1, 4096 * 8));
    let mut done = Vec::new();
    for round in 1..=3 {
        for token in 0..8 {
            reader.submit(read(&file, 4096 * token, 4096, token as u64));
        }
        reader.wait(8, &mut done).unwrap();
        assert_eq!(done.len(), 8);
        done.clear();
        // One more to register the file.
        assert_eq!(reader.stats().syscalls, round + 1);
    }
}

#[test]
fn nothing_in_the_kernel_needs_no_call() {
    if !io_uring_works() {
        return;
    }
    let (file, _) = testing::file(&[0; 64]);
    let mut reader = reader(2, 4, regions(1, 64));
    reader.submit(read(&file, 64, 1, 0));
    reader.submit(read(&file, 0, 0, 1));
    let mut done = Vec::new();
    reader.wait(2, &mut done).unwrap();
    reader.wait(2, &mut done).unwrap();
    assert_eq!((done.len(), reader.stats().syscalls), (2, 0));
}

#[test]
fn a_short_read_goes_on_at_the_exact_byte() {
    if !io_uring_works() {
        return;
    }
    let data = contents(3000);
    let memory = regions(1, 4096);
    let (file, mut write) = slow_file();
    let mut reader = reader(2, 4, memory.clone());
    let parts = [(2000, 100), (0, 1900), (3000, 1000)].map(|(at, bytes)| Part { region: 0, at, bytes });
    reader.submit(Read { file, offset: 0, parts: parts.to_vec(), token: 5 });
    let mut done = Vec::new();
    let pieces = [1, 99, 1, 1899, 700, 300];
    let mut at = 0;
    for (nth, piece) in pieces.into_iter().enumerate() {
        write.write_all(&data[at..at + piece]).unwrap();
        at += piece;
        while reader.stats().bytes < at as u64 {
            reader.wait(0, &mut done).unwrap();
        }
        assert_eq!(reader.stats().short_reads, (nth + 1).min(pieces.len() - 1) as u64);
    }
    reader.wait(1, &mut done).unwrap();
    assert!(done[0].result.is_ok());
    assert_landed(&memory, &done[0].read, &data);
}

#[test]
fn an_end_after_a_short_read_says_how_much_was_there() {
    if !io_uring_works() {
        return;
    }
    let (file, mut write) = slow_file();
    let mut reader = reader(2, 4, regions(1, 4096));
    reader.submit(read(&file, 0, 100, 0));
    all_in_kernel(&mut reader, 1);
    write.write_all(&[1; 10]).unwrap();
    drop(write);
    let mut done = Vec::new();
    reader.wait(1, &mut done).unwrap();
    assert!(matches!(done[0].result, Err(ReadError::UnexpectedEnd { wanted: 100, got: 10, .. })), "{:?}", done[0]);
}

#[test]
fn cancel_ends_reads_in_the_kernel() {
    if !io_uring_works() {
        return;
    }
    let memory = regions(1, 4096);
    let (file, mut write) = slow_file();
    let mut reader = reader(4, 4, memory.clone());
    for token in 0..10 {
        reader.submit(read(&file, 100 * token, 100, token as u64));
    }
    all_in_kernel(&mut reader, 4);
    reader.cancel();
    // The slots of cancelled reads serve again at once.
    reader.submit(read(&file, 2000, 10, 10));
    let mut done = Vec::new();
    reader.wait(10, &mut done).unwrap();
    assert!(done.iter().all(|done| matches!(done.result, Err(ReadError::Cancelled))), "{done:?}");
    assert_eq!((done.len(), reader.in_flight()), (10, 1));
    write.write_all(&contents(10)[..4]).unwrap();
    while reader.stats().short_reads == 0 {
        reader.wait(0, &mut done).unwrap();
    }
    write.write_all(&contents(10)[4..]).unwrap();
    reader.wait(1, &mut done).unwrap();
    assert!(done[10].result.is_ok(), "{:?}", done[10]);
    assert_landed(&memory, &done[10].read, &contents(10));
}

#[test]
fn a_read_cut_short_by_cancel_does_not_go_on() {
    if !io_uring_works() {
        return;
    }
    let (file, mut write) = slow_file();
    let mut reader = reader(1, 4, regions(1, 4096));
    reader.submit(read(&file, 0, 100, 0));
    all_in_kernel(&mut reader, 1);
    // As if the kernel had been asked and the first bytes had been quicker.
    reader.slots[0].cancelled = true;
    write.write_all(&[1; 10]).unwrap();
    drop(write);
    let mut done = Vec::new();
    reader.wait(1, &mut done).unwrap();
    assert!(matches!(done[0].result, Err(ReadError::Cancelled)), "{:?}", done[0]);
}

#[test]
fn drop_takes_reads_back_from_the_kernel() {
    if !io_uring_works() {
        return;
    }
    let memory = regions(1, 4096);
    let (file, mut write) = slow_file();
    let mut reader = reader(4, 4, memory.clone());
    for token in 0..8 {
        reader.submit(read(&file, 100 * token, 100, token as u64));
    }
    all_in_kernel(&mut reader, 4);
    reader.cancel_all();
    reader.drain().unwrap();
    assert_eq!(reader.in_kernel, 0);
    for token in 0..4 {
        reader.submit(read(&file, 100 * token, 100, token as u64));
    }
    reader.start();
    assert_eq!(reader.in_kernel, 4, "queued for the kernel and not handed over yet");
    drop(reader);
    assert_eq!((memory[0].holders(), Arc::strong_count(&file)), (1, 1));
    write.write_all(&[7; 100]).unwrap();
    assert_eq!(landed(&memory, Part { region: 0, at: 0, bytes: 4096 }), [0xEE; 4096], "written after the drop");
}

#[test]
fn another_thread_is_refused_and_leaks_rather_than_frees() {
    if !io_uring_works() {
        return;
    }
    let memory = regions(1, 4096);
    let (file, _write) = slow_file();
    let mut reader = reader(4, 4, memory.clone());
    reader.submit(read(&file, 0, 100, 0));
    all_in_kernel(&mut reader, 1);
    let refused = thread::spawn(move || reader.wait(1, &mut Vec::new())).join().unwrap();
    assert!(matches!(refused, Err(RingError::WrongThread)), "{refused:?}");
    assert_eq!(memory[0].holders(), 2, "memory that the kernel may write to was freed");
}

#[test]
fn an_idle_reader_may_be_dropped_anywhere() {
    if !io_uring_works() {
        return;
    }
    let memory = regions(1, 4096);
    let (file, _) = testing::file(&[1; 100]);
    let mut reader = reader(4, 4, memory.clone());
    let mut done = Vec::new();
    reader.submit(read(&file, 0, 100, 0));
    reader.wait(1, &mut done).unwrap();
    reader.submit(read(&file, 0, 100, 0));
    thread::spawn(move || drop(reader)).join().unwrap();
    assert_eq!(memory[0].holders(), 1);
}

#[test]
fn the_table_does_not_keep_files_that_are_gone() {
    if !io_uring_works() {
        return;
    }
    let (file, mut write) = slow_file();
    let (other, _) = testing::file(&[1; 100]);
    let mut reader = reader(4, 4, regions(1, 4096));
    let mut done = Vec::new();
    write.write_all(&[1; 10]).unwrap();
    reader.submit(read(&file, 0, 10, 0));
    reader.wait(1, &mut done).unwrap();
    assert_eq!(reader.files.lookup(&file), Lookup::Hit(0));
    done.clear();
    drop(file);
    reader.submit(read(&other, 0, 100, 1));
    reader.wait(1, &mut done).unwrap();
    assert!(done[0].result.is_ok());
    // With no reading end left the pipe is broken. (A test that starts a process may hold a copy for a moment.)
    let mut end = [PollFd::new(write.as_fd(), PollFlags::empty())];
    assert_eq!(poll(&mut end, PollTimeout::from(10_000u16)), Ok(1), "the ring still holds the file");
    assert_eq!(end[0].revents(), Some(PollFlags::POLLERR));
}

#[test]
fn signals_do_not_disturb_a_wait() {
    if !io_uring_works() {
        return;
    }
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: the handler does nothing; no other test uses this signal. Without SA_RESTART it interrupts calls.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    let memory = regions(1, 4096);
    let (file, mut write) = slow_file();
    let mut reader = reader(4, 4, memory.clone());
    reader.submit(read(&file, 0, 100, 0));
    // SAFETY: no preconditions.
    let target = unsafe { libc::pthread_self() };
    let disturber = thread::spawn(move || {
        for _ in 0..2000 {
            // SAFETY: the thread lives: it waits for what is written below.
            unsafe { libc::pthread_kill(target, libc::SIGUSR2) };
            thread::yield_now();
        }
        write.write_all(&contents(100)).unwrap();
    });
    let mut done = Vec::new();
    reader.wait(1, &mut done).unwrap();
    assert_eq!(done.len(), 1);
    assert_landed(&memory, &done[0].read, &contents(100));
    disturber.join().unwrap();
}

/// Set in the sandboxed child: the reason it must be given.
const EXPECTED: &str = "FOREBAY_TEST_EXPECTED_REASON";

/// Runs the test `name` of this program again, with [`EXPECTED`] set, where system call `number` fails with `code`.
fn run_sandboxed(name: &str, number: libc::c_long, code: i32, expected: &str) {
    const BPF_LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const BPF_JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const BPF_RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        step(BPF_LOAD_NUMBER, 0, 0, 0),
        step(BPF_JUMP_EQUAL, 0, 1, number as u32),
        step(BPF_RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | code as u32),
        step(BPF_RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--test-threads=1"]).env(EXPECTED, expected);
    // SAFETY: between fork and exec only two system calls are made, on memory that the closure owns.
    unsafe {
        child.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, mode, &program) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    };
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn forbidden_io_uring_falls_back_to_preadv() {
    if let Ok(reason) = std::env::var(EXPECTED) {
        return assert_falls_back(&reason);
    }
    if !io_uring_works() {
        return;
    }
    let (_, here) = module_path!().split_once("::").unwrap();
    let here = format!("{here}::forbidden_io_uring_falls_back_to_preadv");
    let forbidden = "forbidden by seccomp or kernel.io_uring_disabled";
    for (number, code, reason) in [
        (libc::SYS_io_uring_setup, libc::EPERM, format!("io_uring_setup, {forbidden}: Operation not permitted")),
        (
            libc::SYS_io_uring_setup,
            libc::ENOSYS,
            "io_uring_setup, the kernel or sandbox has none: Function not implemented".into(),
        ),
        (
            libc::SYS_io_uring_setup,
            libc::ENOMEM,
            "io_uring_setup, not enough lockable memory (ulimit -l): Cannot allocate memory".into(),
        ),
        (libc::SYS_io_uring_enter, libc::EPERM, format!("io_uring_enter, {forbidden}: Operation not permitted")),
        (
            libc::SYS_io_uring_register,
            libc::EACCES,
            format!("asking for its operations, {forbidden}: Permission denied"),
        ),
    ] {
        run_sandboxed(&here, number, code, &format!("io_uring cannot be used: {reason} (os error {code})"));
    }
}

/// `Auto` reads by `preadv` and says why in one line; `Uring` refuses with the same words.
fn assert_falls_back(reason: &str) {
    let data = contents(100);
    let (file, _) = testing::file(&data);
    let memory = regions(1, 100);
    let mut lines = Vec::new();
    let mut reader = open(ReaderKind::Auto, 8, memory.clone(), &mut |line| lines.push(line.to_owned())).unwrap();
    assert_eq!(reader.name(), "preadv");
    assert_eq!(lines, [format!("reader=preadv reason={reason}")]);
    let mut done = Vec::new();
    reader.submit(read(&file, 0, 100, 0));
    reader.wait(1, &mut done).unwrap();
    assert_landed(&memory, &done[0].read, &data);
    let refused = open(ReaderKind::Uring, 8, memory, &mut |_| panic!("nothing was opened")).map(|_| ()).unwrap_err();
    assert_eq!(crate::Error::from(refused).report(), reason);
}
