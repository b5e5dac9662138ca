//! Disks that are full for real: a file-size limit, and a tiny file system of its own where that may be mounted.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::support::*;
use crate::error::ErrorKind;
use crate::log::guard::Folder;
use crate::log::{Fsync, Origin, Root, Topic, Writer};
use crate::schema::Schema;

/// Appends until there is no room, and checks that nothing is lost or half there. Returns the rows stored.
fn fill(topic: &Topic, writer: &Writer, mut end: u64, count: u64) -> u64 {
    loop {
        match writer.append_from(Origin { source: 3, first: end }, &rows(topic.schema(), end..end + count)) {
            Ok(offsets) => {
                assert_eq!(offsets, end..end + count);
                end += count;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.report());
                assert!(error.report().contains("nothing of it was stored"), "{}", error.report());
                assert_eq!((writer.end(), writer.origin_next(3)), (end, Some(end)));
                assert_eq!(assert_numbered(topic, 0), end);
                return end;
            }
        }
    }
}

fn make(dir: &std::path::Path, block_bytes: usize) -> Topic {
    let root = Root::create(dir).unwrap();
    let schema = Schema::parse("x:uint8[1000], id:int64").unwrap();
    root.create_topic(&"digits".parse().unwrap(), &schema, &small(block_bytes, u64::MAX)).unwrap()
}

/// Runs a child test in a shell command that ends with `"$@"`.
fn in_shell(prelude: &str, test: &str, dir: &std::path::Path) -> std::process::Output {
    let child = child(test, dir);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{prelude} exec \"$@\""), "sh"]).arg(child.get_program()).args(child.get_args());
    shell.env(CHILD_ENV, dir).stdin(Stdio::null()).output().unwrap()
}

fn assert_passed(output: &std::process::Output) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_file_that_may_not_grow_fails_cleanly_and_goes_on_when_it_may() {
    let dir = tempfile::tempdir().unwrap();
    // Shells count in units of 512 or 1024 bytes.
    assert_passed(&in_shell("trap '' XFSZ; ulimit -S -f 300;", "space::child_meets_a_limit", dir.path()));
}

/// Readers never see any of an append that failed, however far it was written.
fn follow_failures(topic: &Topic, writer: &Writer, end: u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let fresh = topic.view_partition(0).unwrap();
                assert_eq!(fresh.end, end);
                assert_same(&fresh.read(end - 1..end).unwrap(), &rows(topic.schema(), end - 1..end));
            }
        });
        for count in (1..60).chain(1..60) {
            let error = writer.append(&rows(topic.schema(), end..end + 4 * count)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
}

#[test]
fn child_meets_a_limit() {
    let Some(dir) = child_dir() else { return };
    for (name, fsync) in [("a", Fsync::Always), ("b", Fsync::Never)] {
        let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        let topic = make(&dir.join(name), 4096);
        let writer = topic.writer(0, policy(fsync)).unwrap();
        let end = fill(&topic, &writer, 0, 7);
        assert!(end > 0);
        // A smaller append may still fit, and nothing is spoilt by trying again.
        let end = fill(&topic, &writer, end, 1);
        let end = fill(&topic, &writer, end, 1);
        follow_failures(&topic, &writer, end);
        setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
        assert_eq!(writer.append(&rows(topic.schema(), end..end + 50)).unwrap(), end..end + 50);
        writer.seal().unwrap();
        assert_eq!(assert_numbered(&topic, 0), end + 50);
        assert!(topic.verify(&mut |_| {}).unwrap().is_good());
        setrlimit(Resource::RLIMIT_FSIZE, 0, hard).unwrap();
        let guard = topic.guard(&[end]).unwrap();
        let held: Vec<Vec<u64>> = Folder::open(topic.dir()).unwrap().live().unwrap().collect();
        assert_eq!(held, [Vec::<u64>::new()], "one that says nothing holds everything");
        drop(guard);
        setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
    }
}

#[test]
fn a_full_disk_fails_cleanly_and_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=3m none '{}'", dir.path().display());
    let mut probe = Command::new("unshare");
    probe.args(["-m", "sh", "-c", &mount]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !is_root() || !probe.status().is_ok_and(|status| status.success()) {
        // No right to mount a file system here: the file-size limit above is the test then.
        return;
    }
    let child = child("space::child_fills_a_disk", dir.path());
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    shell.arg(child.get_program()).args(child.get_args()).env(CHILD_ENV, dir.path());
    assert_passed(&shell.stdin(Stdio::null()).output().unwrap());
}

#[test]
fn child_fills_a_disk() {
    let Some(dir) = child_dir() else { return };
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let topic = make(&dir.join("root"), 4096);
    let writer = topic.writer(0, policy(Fsync::Always)).unwrap();
    let end = fill(&topic, &writer, 0, 5);
    // No room to gather, perhaps not even for the footer: whatever comes of it, nothing is lost.
    if let Err(error) = writer.seal() {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.report());
    }
    assert_eq!(assert_numbered(&topic, 0), end);
    let end = fill(&topic, &writer, end, 1);
    drop(writer);
    let writer = topic.writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!((writer.end(), writer.recovery().cut_bytes), (end, 0));
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(writer.append(&rows(topic.schema(), end..end + 20)).unwrap(), end..end + 20);
    writer.seal().unwrap();
    assert_eq!(writer.append(&rows(topic.schema(), end + 20..end + 21)).unwrap(), end + 20..end + 21);
    assert_eq!(assert_numbered(&topic, 0), end + 21);
    assert!(topic.verify(&mut |_| {}).unwrap().is_good());
    let mut text = String::new();
    std::fs::File::open(topic.dir().join("topic.json")).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("incarnation"));
}
