//! Who may open, write, read and remove a topic: one writer, permissions, newer formats.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use super::support::*;
use crate::error::ErrorKind;
use crate::log::{Fsync, Root, TopicOptions};
use crate::schema::Schema;

const NOBODY: u32 = 65534;

#[test]
fn a_partition_has_one_writer() {
    let place = Place::new("x:int64", &TopicOptions { partitions: 2, ..TopicOptions::default() });
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    let error = place.fresh().writer(0, policy(Fsync::Never)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&format!("pid={}", std::process::id())), "{error}");
    place.fresh().writer(1, policy(Fsync::Never)).unwrap();
    let error = place.root.remove_topic(place.topic.name()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("somebody writes it"), "{error}");
    // In another process just the same.
    let output = child("access::child_finds_it_busy", place.dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    drop(writer);
    place.fresh().writer(0, policy(Fsync::Interval { ms: 5 })).unwrap().close().unwrap();
    place.fresh().writer(0, policy(Fsync::Never)).unwrap();
}

#[test]
fn child_finds_it_busy() {
    let Some(dir) = child_dir() else { return };
    let topic = Root::open(dir).unwrap().topic(&"digits".parse().unwrap()).unwrap();
    assert_eq!(topic.writer(0, policy(Fsync::Never)).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn topics_are_made_found_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let error = Root::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let root = Root::create(dir.path().join("deep/er")).unwrap();
    let root = Root::create(root.path()).unwrap();
    let schema = Schema::parse("x:int64").unwrap();
    let names = ["digits", "corpus", "persistent://a/b/digits"].map(|name| name.parse().unwrap());
    let made = names.each_ref().map(|name| root.create_topic(name, &schema, &TopicOptions::default()).unwrap());
    let error = root.create_topic(&names[0], &schema, &TopicOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    let mut sorted = names.to_vec();
    sorted.sort();
    assert_eq!(root.topics().unwrap(), sorted);
    let error = root.topic(&"digist".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("did you mean digits?"), "{error}");
    let text = root.topic(&"zzzzzz".parse().unwrap()).unwrap_err().to_string();
    assert!(text.contains("there are persistent://a/b/digits, corpus, digits"), "{text}");

    let incarnation = made[0].incarnation();
    made[0].writer(0, policy(Fsync::Never)).unwrap().append(&rows(made[0].schema(), 0..5)).unwrap();
    assert_eq!(made[0].view().unwrap().rows(), 5);
    root.remove_topic(&names[0]).unwrap();
    assert_eq!(root.remove_topic(&names[0]).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(made[0].view().unwrap_err().kind(), ErrorKind::StateMismatch);
    let again = root.create_topic(&names[0], &schema, &TopicOptions::default()).unwrap();
    again.writer(0, policy(Fsync::Never)).unwrap().append(&rows(again.schema(), 0..3)).unwrap();
    assert_ne!(again.incarnation(), incarnation);
    // Whoever still has the old one must not read, let alone cut, the new one's data.
    assert_eq!(made[0].view().unwrap_err().kind(), ErrorKind::StateMismatch);
    assert_eq!(made[0].writer(0, policy(Fsync::Never)).unwrap_err().kind(), ErrorKind::StateMismatch);
    assert_eq!(assert_numbered(&again, 0), 3);
    for bad in [
        TopicOptions { partitions: 0, ..TopicOptions::default() },
        TopicOptions { block_bytes: 0, ..TopicOptions::default() },
        TopicOptions { segment_bytes: 0, ..TopicOptions::default() },
    ] {
        let error = root.create_topic(&"bad".parse().unwrap(), &schema, &bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(root.topics().unwrap().len(), 3);
}

#[test]
fn newer_formats_are_refused_with_the_version_needed() {
    let place = Place::new("x:int64", &TopicOptions::default());
    let raise = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let changed = text.replacen(": 1", ": 7", 1).replacen(":1", ":7", 1);
        assert_ne!(text, changed);
        std::fs::write(path, changed).unwrap();
    };
    raise(&place.topic.dir().join("topic.json"));
    let error = place.root.topic(place.topic.name()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("format=7 supported=2"), "{error}");
    raise(&place.dir.path().join("forebay.json"));
    let error = Root::open(place.dir.path()).unwrap_err();
    assert!(error.to_string().contains("format=7 supported=1"), "{error}");
}

#[test]
fn without_permission_one_reads_or_is_told() {
    let place = Place::new("x:int64", &TopicOptions::default());
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    writer.append(&rows(place.topic.schema(), 0..5)).unwrap();
    writer.seal().unwrap();
    writer.append(&rows(place.topic.schema(), 5..9)).unwrap();
    drop(writer);
    let mode = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(place.dir.path(), 0o755);
    if !is_root() {
        // What others are refused by ownership, the owner is refused by mode.
        mode(&place.partition().join("lock"), 0o444);
        mode(&place.dir.path().join("lock"), 0o444);
        mode(&place.topic.dir().join("guards/lock"), 0o444);
    }
    // A child needs to reach this binary: a copy where everybody may.
    let binary = place.dir.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    mode(&binary, 0o755);
    let run = |test: &str| {
        let own = child(test, place.dir.path());
        let mut command = std::process::Command::new(&binary);
        command.args(own.get_args()).env(CHILD_ENV, place.dir.path()).stdin(Stdio::null()).current_dir("/");
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    };
    run("access::child_may_read_only");
    mode(&place.partition().join("00000000000000000000.arrow"), 0);
    run("access::child_may_not_read_a_segment");
    mode(place.topic.dir(), 0);
    run("access::child_may_not_open");
    mode(place.topic.dir(), 0o755);
}

#[test]
fn child_may_read_only() {
    let Some(dir) = child_dir() else { return };
    let root = Root::open(dir).unwrap();
    let topic = root.topic(&"digits".parse().unwrap()).unwrap();
    assert_eq!(assert_numbered(&topic, 0), 9);
    let kinds = [
        topic.writer(0, policy(Fsync::Always)).unwrap_err(),
        topic.guard(&[0]).unwrap_err(),
        root.create_topic(&"other".parse().unwrap(), topic.schema(), &TopicOptions::default()).unwrap_err(),
        root.remove_topic(topic.name()).unwrap_err(),
        topic.retain(&crate::log::Retention::default(), 0, &|_| Ok(None)).unwrap_err(),
    ];
    for error in kinds {
        assert_eq!(error.kind(), ErrorKind::Permission, "{}", error.report());
        assert!(error.to_string().contains("path="), "{error}");
    }
}

#[test]
fn child_may_not_read_a_segment() {
    let Some(dir) = child_dir() else { return };
    let topic = Root::open(dir).unwrap().topic(&"digits".parse().unwrap()).unwrap();
    let view = topic.view().unwrap().partitions.remove(0);
    assert_eq!(view.read(0..1).unwrap_err().kind(), ErrorKind::Permission);
    assert_same(&view.read(5..9).unwrap(), &rows(topic.schema(), 5..9));
}

#[test]
fn child_may_not_open() {
    let Some(dir) = child_dir() else { return };
    let error = Root::open(dir).unwrap().topic(&"digits".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission);
}
