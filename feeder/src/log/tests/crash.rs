//! Processes killed while they append lose nothing acknowledged and give no offset twice.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use super::support::*;
use crate::log::{Fsync, Origin, Topic, TopicOptions};

const THREADS: u64 = 3;

/// Row `seq` of a thread.
fn number(thread: u64, seq: u64) -> u64 {
    (thread + 1) << 24 | seq
}

/// Every acknowledged row is there under its offset, and every thread's rows are there in order, once, without a gap.
fn check(topic: &Topic, acks: &HashMap<u64, u64>) -> u64 {
    let view = topic.view().unwrap().partitions.remove(0);
    assert_eq!(view.first, 0);
    let wanted: HashMap<Vec<u8>, (u64, u64)> = (0..THREADS)
        .flat_map(|thread| (0..view.end).map(move |seq| (thread, seq)))
        .map(|(thread, seq)| {
            let row = numbered(topic.schema(), std::iter::once(number(thread, seq)));
            (row.column(0).to_vec(), (thread, seq))
        })
        .collect();
    let mut next = [0; THREADS as usize];
    if view.end > 0 {
        let all = view.read(0..view.end).unwrap();
        for offset in 0..view.end {
            let row = all.slice(offset as usize, 1);
            let &(thread, seq) = wanted.get(&row.column(0).to_vec()).expect("a row that nobody wrote");
            assert_same(&row, &numbered(topic.schema(), std::iter::once(number(thread, seq))));
            assert_eq!(seq, next[thread as usize], "thread={thread} offset={offset}");
            next[thread as usize] += 1;
            if let Some(&acked) = acks.get(&offset) {
                assert_eq!(acked, number(thread, seq), "offset={offset}");
            }
        }
    }
    assert!(acks.keys().all(|&offset| offset < view.end), "acknowledged rows are missing");
    view.end
}

#[test]
fn a_killed_writer_loses_nothing_it_acknowledged() {
    for (fsync, rounds) in [("always", 5), ("never", 3)] {
        let place = Place::new("x:uint8[48], id:int64", &small(1024, 150_000));
        let (mut acks, mut end) = (HashMap::new(), 0);
        for round in 0..rounds {
            let mut writing = child("crash::child_appends", place.dir.path());
            writing.env("FSYNC", fsync).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut writing = Killed(writing.spawn().unwrap());
            let mut lines = BufReader::new(writing.0.stdout.take().unwrap());
            let wanted = 1 + mix(round) % 60;
            let mut seen = 0;
            let mut line = String::new();
            let mut note = |line: &str| -> bool {
                let Some(rest) = line.trim_end().strip_prefix("ack ") else { return false };
                let numbers: Vec<u64> = rest.split(' ').map(|n| n.parse().unwrap()).collect();
                let [offset, first, count] = numbers[..] else { panic!("{line}") };
                (0..count).for_each(|at| assert_eq!(acks.insert(offset + at, first + at), None, "offset given twice"));
                true
            };
            while seen < wanted {
                line.clear();
                assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended early");
                seen += u64::from(note(&line));
            }
            writing.0.kill().unwrap();
            let mut rest = String::new();
            lines.read_to_string(&mut rest).unwrap();
            rest.split_inclusive('\n').filter(|line| line.ends_with('\n')).for_each(|line| {
                note(line);
            });
            drop(writing);
            let seen = check(&place.fresh(), &acks);
            assert!(seen >= end);
            let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
            assert_eq!(writer.recovery().damage, []);
            assert_eq!(writer.end(), seen, "what a reader saw is what the writer keeps");
            drop(writer);
            end = check(&place.fresh(), &acks);
        }
    }
}

/// Appends until it is killed, and says what was acknowledged.
#[test]
fn child_appends() {
    let Some(dir) = child_dir() else { return };
    let topic = crate::log::Root::open(dir).unwrap().topic(&"digits".parse().unwrap()).unwrap();
    let fsync = if std::env::var("FSYNC").unwrap() == "never" { Fsync::Never } else { Fsync::Always };
    let writer = topic.writer(0, policy(fsync)).unwrap();
    std::io::stdout().write_all(b"\n").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (writer, topic) = (&writer, &topic);
            scope.spawn(move || {
                let source = u128::from(thread);
                let mut seq = writer.origin_next(source).unwrap_or(0);
                loop {
                    let count = 1 + mix(seq) % 30;
                    let rows = numbered(topic.schema(), number(thread, seq)..number(thread, seq + count));
                    let offsets = writer.append_from(Origin { source, first: seq }, &rows).unwrap();
                    assert_eq!(offsets.end - offsets.start, count);
                    let line = format!("ack {} {} {count}\n", offsets.start, number(thread, seq));
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                    seq += count;
                }
            });
        }
    });
}

#[test]
fn leftovers_of_sealing_are_cleared_up() {
    let place = Place::new("x:uint8[64]", &small(1024, u64::MAX));
    let schema = place.topic.schema().clone();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    for at in 0..40 {
        writer.append(&rows(&schema, at..at + 1)).unwrap();
    }
    drop(writer);
    let at = |name: &str| place.partition().join(name);
    let (open, sealed) = (at("00000000000000000000.open"), at("00000000000000000000.arrow"));
    let unsealed = std::fs::read(&open).unwrap();
    place.topic.writer(0, policy(Fsync::Always)).unwrap().seal().unwrap();
    let gathered = std::fs::read(&sealed).unwrap();
    let next = at("00000000000000000040.open");

    // Before the new file has its name.
    std::fs::remove_file(&next).unwrap();
    std::fs::rename(&sealed, at("00000000000000000000.arrow.tmp")).unwrap();
    std::fs::write(&open, &unsealed).unwrap();
    assert_eq!(assert_numbered(&place.fresh(), 0), 40);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!((writer.end(), writer.recovery().removed.len(), writer.recovery().cut_bytes), (40, 1, 0));
    assert_eq!(place.segments(), ["00000000000000000000.open"]);
    drop(writer);

    // After that, before the old one is gone.
    std::fs::write(&sealed, &gathered).unwrap();
    assert_eq!(assert_numbered(&place.fresh(), 0), 40);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!((writer.end(), writer.recovery().removed.as_slice()), (40, &[open.clone()][..]));
    assert_eq!(place.segments(), ["00000000000000000000.arrow", "00000000000000000040.open"]);
    drop(writer);

    // After that, before there is a new active one.
    std::fs::remove_file(&next).unwrap();
    assert_eq!(assert_numbered(&place.fresh(), 0), 40);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.append(&rows(&schema, 40..41)).unwrap(), 40..41);
    drop(writer);
    assert_eq!(assert_numbered(&place.fresh(), 0), 41);
}

#[test]
fn a_half_written_footer_is_a_torn_tail() {
    let place = Place::new("x:uint8[64]", &small(1024, u64::MAX));
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    writer.append(&rows(place.topic.schema(), 0..40)).unwrap();
    drop(writer);
    let (open, sealed) =
        (place.partition().join("00000000000000000000.open"), place.partition().join("00000000000000000000.arrow"));
    let blocks = std::fs::metadata(&open).unwrap().len();
    place.topic.writer(0, policy(Fsync::Always)).unwrap().seal().unwrap();
    std::fs::remove_file(place.partition().join("00000000000000000040.open")).unwrap();
    let bytes = std::fs::read(&sealed).unwrap();
    std::fs::remove_file(&sealed).unwrap();
    let footer = bytes.len() as u64 - blocks;
    for kept in [1, 7, 8, 9, footer / 2, footer - 1, footer] {
        std::fs::write(&open, &bytes[..(blocks + kept) as usize]).unwrap();
        assert_eq!(assert_numbered(&place.fresh(), 0), 40);
        let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
        let recovery = writer.recovery();
        assert_eq!((writer.end(), recovery.cut_bytes, recovery.cut_rows), (40, kept, 0));
        assert_eq!(recovery.damage, []);
    }
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    writer.append(&rows(place.topic.schema(), 40..50)).unwrap();
    assert_eq!(assert_numbered(&place.fresh(), 0), 50);
}

#[test]
fn creation_is_all_or_nothing() {
    let place = Place::new("x:int64", &TopicOptions::default());
    let parent = place.topic.dir().parent().unwrap().to_path_buf();
    let half = parent.join(".other.0123.new");
    std::fs::create_dir_all(half.join("p0000")).unwrap();
    std::fs::create_dir_all(parent.join("empty")).unwrap();
    assert_eq!(place.root.topics().unwrap().len(), 1);
    let other = place.root.create_topic(&"other".parse().unwrap(), place.topic.schema(), &TopicOptions::default());
    assert_eq!(other.unwrap().view().unwrap().rows(), 0);
    assert!(!half.exists());
}
