//! The hand-off over process borders: forks, another process as filler, dying peers, limits.

mod common;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{bells_of, filled, is_stamped, slab, stamp};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, dup, fork};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use slab::{Bells, Shape, Slab, SlabError, Taken};

/// Names the descriptors that a helper inherits: memfd and two bells.
const FDS: &str = "SLAB_TEST_FDS";

/// Runs one of the ignored tests below in a process of its own.
fn helper(name: &str, fds: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(FDS, fds)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn pidfd_of(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_raw(child.id() as i32).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Reads a helper's output up to the line `wanted`.
fn until_told(output: &mut BufReader<ChildStdout>, wanted: &str) {
    let mut seen = String::new();
    while !seen.lines().any(|line| line.ends_with(wanted)) {
        assert_ne!(output.read_line(&mut seen).unwrap(), 0, "the helper ended: {seen}");
    }
}

#[test]
fn a_fork_knows_its_own_number() {
    let parent = slab::process::id();
    assert_eq!(parent, std::process::id());
    // SAFETY: the child only compares numbers and leaves by _exit.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let own = (slab::process::id(), slab::process::id());
            let good = own == (std::process::id(), std::process::id()) && own.0 != parent;
            // SAFETY: ends the child at once, without the test harness's exit handlers.
            unsafe { nix::libc::_exit(if good { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
    assert_eq!(slab::process::id(), parent);
}

#[test]
fn a_forked_child_returns_and_closes_nothing() {
    let memory = slab(2);
    let (mut filler, mut taker) = memory.clone().split();
    let slot = filler.take_free().unwrap();
    stamp(memory.slot(slot), 3);
    filler.publish(filled(slot, 3));
    let got = taker.try_take().unwrap();
    let lease = taker.lease(got.slot);
    filler.take_free().unwrap();
    let (closer, other) = (filler.closer(), taker.closer());

    // SAFETY: the child only runs this crate's drops, reads memory and leaves by _exit.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let good = lease.slot() == slot && is_stamped(lease.memory(), 3) && taker.is_forked() && filler.is_forked();
            closer.close();
            other.close();
            filler.close();
            taker.close();
            drop((lease, taker, filler, memory));
            // SAFETY: ends the child at once, without the test harness's exit handlers.
            unsafe { nix::libc::_exit(if good { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }

    assert!(!filler.is_forked() && !taker.is_forked());
    assert_eq!((filler.free_slots(), taker.leased(), filler.taker_closed()), (0, 1, false));
    assert!(is_stamped(lease.memory(), 3));
    assert_eq!(taker.wait_take(Some(Duration::from_micros(1))), Taken::TimedOut);
    drop(lease);
    assert_eq!((filler.take_free(), taker.leased(), filler.stray_returns()), (Some(slot), 0, 0));
}

#[test]
fn a_dying_peer_wakes_the_sleeping_taker() {
    let memory = slab(1);
    let (_filler, mut taker) = memory.clone().split();
    let mut peer = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    taker.watch(pidfd_of(&peer));
    assert_eq!(taker.wait_take(Some(Duration::from_micros(50))), Taken::TimedOut);
    let waiting = thread::spawn(move || (taker.wait_take(None), taker));
    common::until_raised(memory.fd(), common::TAKER_WAITS_AT);
    peer.kill().unwrap();
    let (taken, mut taker) = waiting.join().unwrap();
    assert_eq!(taken, Taken::PeerDied);
    assert_eq!(taker.wait_take(None), Taken::PeerDied);
    peer.wait().unwrap();
}

#[test]
fn a_dying_peer_wakes_the_sleeping_filler() {
    let memory = slab(1);
    let (mut filler, _taker) = memory.clone().split();
    let mut peer = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    filler.watch(pidfd_of(&peer));
    filler.take_free().unwrap();
    assert!(!filler.taker_gone());
    let waiting = thread::spawn(move || (filler.wait_free(Duration::MAX), filler));
    common::until_raised(memory.fd(), common::FILLER_WAITS_AT);
    peer.kill().unwrap();
    let (came_back, filler) = waiting.join().unwrap();
    assert!(!came_back && filler.taker_gone() && !filler.taker_closed());
    peer.wait().unwrap();
}

/// Another process fills; in the middle it is killed. All that it published is good, then its death is told.
#[test]
fn another_process_fills_until_it_is_killed() {
    let memory = slab(4);
    let bells = bells_of(&memory);
    // Copies that are inherited.
    let inherited = [dup(memory.fd()).unwrap(), dup(&bells.filled).unwrap(), dup(&bells.returned).unwrap()];
    let fds: Vec<String> = inherited.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let (mut child, _output) = helper("as_filler", &fds.join(","));
    drop(inherited);

    let mut taker = memory.taker().unwrap();
    taker.watch(pidfd_of(&child));
    let mut next = 0;
    let ended = loop {
        match taker.wait_take(None) {
            Taken::Filled(got) => {
                let lease = taker.lease(got.slot);
                assert_eq!(got, filled(got.slot, next));
                assert!(is_stamped(lease.memory(), next), "batch {next} is damaged");
                next += 1;
                if next == 2000 {
                    child.kill().unwrap();
                }
            }
            ended => break ended,
        }
    };
    assert_eq!(ended, Taken::PeerDied);
    assert!((2000..=2004).contains(&next), "{next}");
    child.wait().unwrap();
}

#[test]
#[ignore = "started by another test, as another process"]
fn as_filler() {
    let fds: Vec<i32> = std::env::var(FDS).unwrap().split(',').map(|fd| fd.parse().unwrap()).collect();
    // SAFETY: inherited for this process alone to own.
    let [fd, filled_bell, returned] = [0, 1, 2].map(|index| unsafe { OwnedFd::from_raw_fd(fds[index]) });
    let memory = Slab::from_parts(fd, Bells { filled: filled_bell, returned }).unwrap();
    let mut filler = memory.filler().unwrap();
    for tag in 0.. {
        while filler.free_slots() == 0 {
            if !filler.wait_free(Duration::from_secs(60)) {
                return;
            }
        }
        let slot = filler.take_free().unwrap();
        stamp(memory.slot(slot), tag);
        filler.publish(filled(slot, tag));
        filler.wake();
    }
}

/// After SIGKILL nothing is left that a next start could trip over, and it can start at once.
#[test]
fn a_killed_process_leaves_nothing_behind() {
    let named = || {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains("forebay")).count()
    };
    for _ in 0..3 {
        let (mut child, mut output) = helper("as_owner", "");
        until_told(&mut output, "slab is there");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        assert!(maps.contains("/memfd:forebay-slab (deleted)"), "{maps}");
        assert_eq!(named(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(named(), 0);
    }
}

#[test]
#[ignore = "started by another test, as another process"]
fn as_owner() {
    use std::io::Write;
    let _memory = Slab::create(Shape { slots: 8, slot_bytes: 1 << 20 }).unwrap();
    writeln!(std::io::stdout(), "\nslab is there").unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn limits_refuse_with_the_bytes_needed() {
    let (mut child, mut output) = helper("as_limited", "");
    until_told(&mut output, "limits were told");
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "started by another test, as another process: it lowers its own limits"]
fn as_limited() {
    use std::io::Write;
    let refused = |slot_bytes: usize| {
        let error = Slab::create(Shape { slots: 2, slot_bytes }).unwrap_err();
        assert!(matches!(error, SlabError::NoRoom { needed_bytes, .. } if needed_bytes > 2 * slot_bytes as u64));
        error.to_string()
    };
    // Without a look at the limit first, the kernel would answer with SIGXFSZ.
    setrlimit(Resource::RLIMIT_FSIZE, 1 << 20, 1 << 30).unwrap();
    let text = refused(1 << 20);
    assert!(text.contains("ulimit -f") && text.contains("available_bytes=1048576"), "{text}");
    setrlimit(Resource::RLIMIT_FSIZE, 1 << 30, 1 << 30).unwrap();
    setrlimit(Resource::RLIMIT_AS, 1 << 28, 1 << 28).unwrap();
    let text = refused(1 << 27);
    assert!(text.contains("needed_bytes=268439552"), "{text}");
    // What is small enough still goes.
    Slab::create(Shape { slots: 2, slot_bytes: 4096 }).unwrap();
    writeln!(std::io::stdout(), "\nlimits were told").unwrap();
}
