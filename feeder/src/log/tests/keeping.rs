//! What retention removes, and what guards and holds keep from it.

use super::support::*;
use crate::error::ErrorKind;
use crate::log::{Fsync, Retention, Topic, TopicOptions};

/// Five sealed segments of 16 rows at times 1000, 2000, ..., and an empty active one.
fn five(partitions: u32) -> Place {
    let place = Place::new("x:uint8[64]", &TopicOptions { partitions, ..small(1024, u64::MAX) });
    let clock = Clock::default();
    for partition in 0..partitions {
        let writer = place.topic.writer(partition, clock.options(Fsync::Never)).unwrap();
        for at in 0..5 {
            clock.set(1000 * (at + 1) + u64::from(partition));
            writer.append(&rows(place.topic.schema(), at * 16..at * 16 + 16)).unwrap();
            writer.seal().unwrap();
        }
    }
    place
}

fn bytes(topic: &Topic) -> u64 {
    let view = topic.view().unwrap();
    let segments = view.partitions.iter().flat_map(|partition| partition.segments());
    segments.map(|segment| std::fs::metadata(&segment.path).unwrap().len()).sum()
}

const NO_HOLDS: crate::log::Holds<'static> = &|_| Ok(None);

#[test]
fn segments_go_by_age() {
    let place = five(1);
    let rule = Retention { age_ms: Some(1000), bytes: None };
    let report = place.topic.retain(&rule, 3000, NO_HOLDS).unwrap();
    assert_eq!((report.segments, report.rows, report.held_bytes), (1, 16, 0));
    assert_eq!(report.first, [16]);
    let report = place.topic.retain(&rule, 3001, NO_HOLDS).unwrap();
    assert_eq!((report.segments, report.first), (1, vec![32]));
    assert_numbered(&place.topic, 0);
    let view = place.topic.view().unwrap();
    let error = view.partitions[0].segment_of(31).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRetained);
    assert!(error.to_string().contains("first=32"), "{error}");
    assert_eq!(place.topic.retain(&Retention::default(), u64::MAX, NO_HOLDS).unwrap().segments, 0);
}

#[test]
fn segments_go_by_bytes_oldest_of_all_partitions_first() {
    let place = five(2);
    let total = bytes(&place.topic);
    let one = total / 10;
    let rule = Retention { bytes: Some(total - 3 * one + 1), age_ms: None };
    let report = place.topic.retain(&rule, 0, NO_HOLDS).unwrap();
    assert_eq!((report.segments, report.first), (3, vec![32, 16]));
    assert!(bytes(&place.topic) <= total - 3 * one + 1);
    assert_eq!(place.topic.retain(&rule, 0, NO_HOLDS).unwrap().segments, 0);
}

#[test]
fn offsets_go_on_after_everything_was_deleted() {
    let place = five(1);
    let everything = Retention { bytes: Some(0), age_ms: Some(0) };
    let report = place.topic.retain(&everything, u64::MAX, NO_HOLDS).unwrap();
    assert_eq!((report.segments, report.first), (5, vec![80]));
    let view = place.fresh().view().unwrap();
    assert_eq!((view.partitions[0].first, view.partitions[0].end), (80, 80));
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.append(&rows(place.topic.schema(), 80..81)).unwrap(), 80..81);

    // Without an active segment the last sealed one stays, so that offsets never begin again.
    let place = five(1);
    std::fs::remove_file(place.partition().join("00000000000000000080.open")).unwrap();
    assert_eq!(place.topic.retain(&everything, u64::MAX, NO_HOLDS).unwrap().first, [64]);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.end(), 80);
}

#[test]
fn holds_and_guards_keep_what_they_need() {
    let place = five(2);
    let everything = Retention { bytes: Some(0), age_ms: Some(0) };
    let guard = place.topic.guard(&[40, 16]).unwrap();
    let report = place.fresh().retain(&everything, u64::MAX, &|partition| Ok((partition == 1).then_some(50))).unwrap();
    assert_eq!((report.segments, report.first.clone()), (3, vec![32, 16]));
    assert!(report.held_bytes > 0);
    let error = place.topic.guard(&[31, 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRetained);
    assert!(error.to_string().contains("offset=31 first=32"), "{error}");
    let mut guard = guard;
    guard.advance(&[48, 16]).unwrap();
    assert_eq!(guard.advance(&[47, 16]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(place.topic.retain(&everything, u64::MAX, NO_HOLDS).unwrap().first, [48, 16]);
    let error = place.root.remove_topic(place.topic.name()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("guard"), "{error}");
    drop(guard);
    let guards = std::fs::read_dir(place.topic.dir().join("guards")).unwrap();
    assert_eq!(guards.count(), 1, "only the lock is left");
    assert_eq!(place.topic.retain(&everything, u64::MAX, NO_HOLDS).unwrap().first, [80, 80]);
    assert_eq!(place.topic.guard(&[0]).unwrap_err().kind(), ErrorKind::Invalid);
    place.root.remove_topic(place.topic.name()).unwrap();
    assert!(!place.topic.dir().exists());
}

#[test]
fn a_guard_of_a_dead_process_holds_nothing() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let place = five(1);
    let mut guarding = child("keeping::child_holds_a_guard", place.dir.path());
    let mut guarding = Killed(guarding.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(guarding.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("guarding")), "the child made its guard");
    let everything = Retention { bytes: Some(0), age_ms: None };
    assert_eq!(place.topic.retain(&everything, 0, NO_HOLDS).unwrap().first, [16]);
    guarding.0.kill().unwrap();
    guarding.0.wait().unwrap();
    assert_eq!(place.topic.retain(&everything, 0, NO_HOLDS).unwrap().first, [80]);
    assert_eq!(std::fs::read_dir(place.topic.dir().join("guards")).unwrap().count(), 1);
}

/// Holds a guard until it is killed.
#[test]
fn child_holds_a_guard() {
    use std::io::Write;
    let Some(dir) = child_dir() else { return };
    let topic = crate::log::Root::open(dir).unwrap().topic(&"digits".parse().unwrap()).unwrap();
    let _guard = topic.guard(&[20]).unwrap();
    std::io::stdout().write_all(b"\nguarding\n").unwrap();
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_snapshot_says_when_its_segment_was_deleted() {
    let place = five(1);
    let view = place.topic.view().unwrap();
    place.topic.retain(&Retention { bytes: Some(0), age_ms: None }, 0, NO_HOLDS).unwrap();
    assert_eq!(view.partitions[0].read(0..1).unwrap_err().kind(), ErrorKind::NotRetained);
}
