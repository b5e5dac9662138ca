//! What the file system refuses: each case has its own error, and nothing acknowledged is lost.

use nix::errno::Errno;

use super::super::faults::Step;
use super::*;
use crate::store::{Batch, StoreError, StoreErrorKind, StoreExt, Writer};

fn fail(step: Step, nth: u32, errno: Errno, bytes: usize) -> Fault {
    Fault::Fail { step, nth, errno, bytes }
}

/// A store with one record, and its writer.
fn with_record() -> (TempDir, Embedded, Writer) {
    let dir = fast_dir();
    let store = Embedded::open(dir.path()).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    writer.put("a", "1").unwrap();
    (dir, store, writer)
}

fn set(pairs: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.as_bytes().to_vec())).collect()
}

#[test]
fn a_durable_append_costs_one_sync() {
    let (_dir, store, mut writer) = with_record();
    let syncs = |nth, act: &mut dyn FnMut()| with(fail(Step::Sync, nth, Errno::EIO, 0), act).1;
    assert!(!syncs(1, &mut || drop(writer.put("a", "2"))), "no second one");
    assert!(syncs(0, &mut || drop(writer.put("a", "3"))));
    writer.put("a", "4").unwrap();
    assert!(syncs(0, &mut || drop(store.fact(&job(), "f", b"1"))));
    store.fact(&job(), "f", b"1").unwrap();
    assert!(!syncs(0, &mut || store.fact(&job(), "f", b"1").unwrap()), "none for what is there already");
}

#[test]
fn nothing_counts_before_the_names_on_the_way_to_it_are_durable() {
    let (dir, _store, _writer) = with_record();
    let names = 1 + "job/vision store root".split([' ', '/']).count();
    for nth in 0..names as u32 {
        // Another process made them, and may have died before it synced them.
        let store = Embedded::open(dir.path()).unwrap();
        let (result, failed) = with(fail(Step::SyncDir, nth, Errno::EIO, 0), || store.acquire(&job()).map(|_| ()));
        assert_eq!((result.is_err(), failed), (nth < 4, nth < 4), "nth={nth}");
        let again = with(fail(Step::SyncDir, 0, Errno::EIO, 0), || store.fact(&job(), "f", b"1").is_ok());
        assert_eq!(again, if nth < 4 { (false, true) } else { (true, false) }, "nth={nth}");
    }
}

#[test]
fn a_full_disk_loses_nothing_and_the_writer_goes_on() {
    for bytes in [0, 1, 15, 16, 30, 40] {
        let (dir, _store, mut writer) = with_record();
        let (result, _) = with(fail(Step::Write, 0, Errno::ENOSPC, bytes), || writer.put("a", "2222"));
        let error = result.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains(".log"), "the file is named: {error}");
        assert_eq!(state(dir.path()).unwrap(), set(&[("a", "1")]), "bytes={bytes}");
        writer.put("b", "3").expect("the same writer goes on");
        assert_eq!(state(dir.path()).unwrap(), set(&[("a", "1"), ("b", "3")]), "bytes={bytes}");
    }
}

#[test]
fn a_full_disk_that_cannot_cut_either_loses_nothing() {
    let (dir, _store, mut writer) = with_record();
    // The write gets half through; then this process can do nothing more.
    let (result, died) = with(Fault::Die { after: 20 }, || writer.put("a", "2222"));
    assert!(died && result.is_err());
    writer.put("b", "3").unwrap();
    assert_eq!(state(dir.path()).unwrap(), set(&[("a", "1"), ("b", "3")]));
}

#[test]
fn after_a_failed_sync_the_log_is_copied_before_anything_counts() {
    let (dir, store, mut writer) = with_record();
    let (result, failed) = with(fail(Step::Sync, 0, Errno::EIO, 0), || writer.put("a", "2"));
    assert!(failed);
    assert_eq!(result.unwrap_err().kind(), StoreErrorKind::Io);
    assert_eq!(state(dir.path()).unwrap(), set(&[("a", "1")]), "not acknowledged, and taken back");
    assert_eq!(files(dir.path()).len(), 2, "the log is barred");
    assert_eq!(store.get(&job(), "a").unwrap().unwrap().value[..], *b"1");
    let (result, _) = with(Fault::FailAll { step: Step::Sync, errno: Errno::EIO }, || writer.put("a", "3"));
    assert_eq!(result.unwrap_err().kind(), StoreErrorKind::Io, "a copy that cannot be synced does not count either");
    writer.put("a", "4").expect("the disk is well again");
    assert_eq!(state(dir.path()).unwrap(), set(&[("a", "4")]));
    assert_eq!(files(dir.path()), ["00000000000000000001.log"]);
}

#[test]
fn every_single_failure_leaves_what_was_acknowledged() {
    let steps = [Step::CreateDir, Step::Create, Step::Open, Step::Write, Step::Sync, Step::Cut, Step::Link];
    let more = [Step::Remove, Step::SyncDir, Step::Lock];
    for step in steps.into_iter().chain(more) {
        for nth in 0.. {
            let dir = fast_dir();
            let store = Embedded::open_with(dir.path(), EAGER).unwrap();
            let mut acknowledged = Vec::new();
            let mut writes = 0;
            let (_, failed) = with(fail(step, nth, Errno::EIO, 7), || {
                for attempt in 0..3 {
                    let Ok(mut writer) = store.acquire(&job()) else { continue };
                    for key in ["a", "b"] {
                        writes += 1;
                        if writer.put(key, attempt.to_string()).is_ok() {
                            acknowledged.retain(|(old, _)| *old != key);
                            acknowledged.push((key, attempt.to_string()));
                        }
                    }
                }
            });
            let found = state(dir.path()).unwrap();
            for (key, value) in &acknowledged {
                let (_, found) = found.iter().find(|(found, _)| found == key).expect("acknowledged");
                assert!(str::from_utf8(found).unwrap() >= &**value, "step={step:?} nth={nth}");
            }
            let mut writer = store.acquire(&job()).expect("one failure does not last");
            writer.put("a", "x").unwrap();
            if !failed {
                assert_eq!((writes, acknowledged.len()), (6, 2));
                break;
            }
        }
    }
}

#[test]
fn a_failed_rewrite_does_not_fail_the_append() {
    let dir = fast_dir();
    let settings = Settings { rewrite_bytes_min: 0, rewrite_live_share: 20, ..EAGER };
    let store = Embedded::open_with(dir.path(), settings).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    let begin = files(dir.path());
    with(Fault::FailAll { step: Step::Create, errno: Errno::ENOSPC }, || {
        (0..30).for_each(|step| writer.put("a", format!("{step}")).map(|_| ()).expect("no copy, but appended"));
    });
    assert_eq!(files(dir.path()), begin);
    let until = |writer: &mut Writer| {
        (0..1000).any(|_| {
            writer.put("a", "x").unwrap();
            files(dir.path()) != begin
        })
    };
    assert!(until(&mut writer), "it is tried again when the log has grown");
    assert_eq!(state(dir.path()).unwrap(), set(&[("a", "x")]));
}

#[test]
fn a_read_only_store_is_read_and_not_written() {
    let (dir, _store, mut writer) = with_record();
    let store = Embedded::open(dir.path()).unwrap();
    let read_only = |step| Fault::FailAll { step, errno: Errno::EROFS };
    let (errors, _) = with(read_only(Step::Open), || {
        assert_eq!(store.get(&job(), "a").unwrap().unwrap().value[..], *b"1");
        [writer.put("a", "2").err(), store.acquire(&job()).err(), store.fact(&job(), "f", b"1").err()]
    });
    let (new, _) = with(read_only(Step::CreateDir), || store.acquire(&Scope::catalogue()).err());
    for error in errors.into_iter().chain([new]) {
        let error = error.expect("refused");
        assert_eq!(error.kind(), StoreErrorKind::Permission, "{error}");
    }
    writer.put("a", "2").expect("it is no longer read-only");
}

#[test]
fn a_file_system_without_locks_is_refused_by_name() {
    let (dir, store, mut writer) = with_record();
    for errno in [Errno::ENOLCK, Errno::EOPNOTSUPP, Errno::ENOSYS] {
        let (result, _) = with(Fault::FailAll { step: Step::Lock, errno }, || writer.put("a", "2"));
        let error = result.unwrap_err();
        assert!(matches!(&error, StoreError::NoLocks { .. }), "{error}");
        assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    }
    let no_locks = Fault::FailAll { step: Step::Lock, errno: Errno::ENOLCK };
    let (result, _) = with(no_locks, || store.acquire(&Scope::catalogue()).err());
    assert_eq!(result.unwrap().kind(), StoreErrorKind::Unsupported);
    assert_eq!(state(dir.path()).unwrap(), set(&[("a", "1")]));
}

#[test]
fn a_file_system_without_links_is_refused_by_name() {
    let dir = fast_dir();
    let store = Embedded::open(dir.path()).unwrap();
    let no_links = Fault::FailAll { step: Step::Link, errno: Errno::EPERM };
    let (result, _) = with(no_links, || store.acquire(&job()).err());
    assert!(matches!(result, Some(StoreError::NoLinks { .. })));
    assert_eq!(store.scopes().unwrap(), []);
    store.acquire(&job()).unwrap();
}

#[test]
fn a_store_needs_its_root() {
    let dir = fast_dir();
    let error = Embedded::open(dir.path().join("missing")).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound);
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert_eq!(Embedded::open(dir.path().join("file")).unwrap_err().kind(), StoreErrorKind::Io);
    // Reading makes nothing.
    let store = Embedded::open(dir.path()).unwrap();
    store.fold(&job(), "").unwrap();
    store.watch(&job(), crate::store::Mark::START, Duration::ZERO).unwrap();
    assert!(!dir.path().join("store").exists());
}

#[test]
fn a_batch_fails_as_a_whole() {
    let (dir, _store, mut writer) = with_record();
    let batch = Batch::new().put("a", [5; 200]).put("b", [6; 200]).delete("c");
    for bytes in (0..450).step_by(9) {
        let _ = with(fail(Step::Write, 0, Errno::EDQUOT, bytes), || writer.append(&batch).unwrap_err());
        assert_eq!(state(dir.path()).unwrap(), set(&[("a", "1")]), "bytes={bytes}");
    }
}
