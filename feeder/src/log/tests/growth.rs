//! Topics whose schema grows: what is written, what is refused, what readers see, and what a crash leaves.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::Arc;

use super::support::*;
use crate::error::ErrorKind;
use crate::log::{Fsync, Origin, Root, Topic, TopicOptions, Writer};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::Defaults;

const STEPS: [(&str, &[&str]); 4] = [
    ("id:int16, x:uint8[5]", &[]),
    ("id:int32, x:uint8[5]", &[]),
    ("id:int32, x:uint8[5], label:int8[2]", &["label=-1"]),
    ("id:int64, x:uint16[5], label:int16[2], w:float32", &["w=0.5"]),
];

fn schema(step: usize) -> Arc<Schema> {
    Arc::new(Schema::parse(STEPS[step].0).unwrap())
}

fn defaults(step: usize) -> Defaults {
    Defaults::parse(&STEPS[step].1.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// Rows of a step's schema: everything follows from their numbers, below 4000.
fn of_step(step: usize, numbers: std::ops::Range<u64>) -> Rows {
    let schema = schema(step);
    let count = (numbers.end - numbers.start) as usize;
    let columns = schema.columns().iter().map(|column| {
        let mut bytes = Vec::new();
        for number in numbers.clone() {
            for at in 0..column.elements() as u64 {
                let value = match &*column.name {
                    "id" => number,
                    "x" => (number + at) % 251,
                    "label" => (number + at) % 100,
                    _ => u64::from((number as f32).to_bits()),
                };
                bytes.extend_from_slice(&value.to_le_bytes()[..column.dtype.bytes()]);
            }
        }
        arrow_buffer::Buffer::from_vec(bytes)
    });
    Rows::new(schema.clone(), count, columns.collect()).unwrap()
}

/// Under the newest schema, row by row and without the code under test: what rows of a step are worth under step `to`.
fn naive(step: usize, to: usize, number: u64) -> Vec<Vec<f64>> {
    let wide = of_step(to, number..number + 1);
    let columns = wide.schema().columns().iter().enumerate().map(|(at, column)| {
        let there = schema(step).columns().iter().any(|old| old.name == column.name);
        let elements = wide.column(at).chunks_exact(column.dtype.bytes());
        match (there, &*column.name) {
            (true, _) => elements.map(|element| number_of(column.dtype.name(), element)).collect(),
            (false, "label") => vec![-1.0; column.elements()],
            (false, _) => vec![0.5; column.elements()],
        }
    });
    columns.collect()
}

fn number_of(dtype: &str, bytes: &[u8]) -> f64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        "int8" => f64::from(bits as i8),
        "int16" => f64::from(bits as i16),
        "int32" => f64::from(bits as i32),
        "int64" => bits as i64 as f64,
        "float32" => f64::from(f32::from_bits(bits as u32)),
        _ => bits as f64,
    }
}

fn values(rows: &Rows, row: usize) -> Vec<Vec<f64>> {
    let one = rows.slice(row, 1);
    let columns = one.schema().columns().iter().enumerate();
    columns
        .map(|(at, column)| {
            one.column(at)
                .chunks_exact(column.dtype.bytes())
                .map(|bytes| number_of(column.dtype.name(), bytes))
                .collect()
        })
        .collect()
}

/// Rows of a partition are those of their offsets, written under these steps from these offsets on.
fn assert_grown(topic: &Topic, begun: &[(u64, usize)]) -> u64 {
    let view = topic.view_partition(0).unwrap();
    let newest = topic.schemas().unwrap().newest().schema.clone();
    let to = (0..STEPS.len()).find(|&step| schema(step) == newest).unwrap();
    if view.end > view.first {
        let got = view.read(view.first..view.end).unwrap();
        assert_eq!(*got.schema(), newest);
        for offset in view.first..view.end {
            let step = begun.iter().rev().find(|(from, _)| *from <= offset).unwrap().1;
            assert_eq!(
                values(&got, (offset - view.first) as usize),
                naive(step, to, offset),
                "offset={offset} step={step}"
            );
        }
    }
    view.end
}

fn place() -> Place {
    Place::new(STEPS[0].0, &small(256, u64::MAX))
}

fn append(writer: &Writer, step: usize, count: u64) {
    let end = writer.end();
    assert_eq!(writer.append(&of_step(step, end..end + count)).unwrap(), end..end + count);
}

#[test]
fn a_topic_grows_with_its_rows_and_older_producers_go_on() {
    let place = place();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    let reader = place.fresh();
    let mut begun = vec![(0, 0)];
    append(&writer, 0, 7);
    assert_grown(&reader, &begun);
    // Wider rows make the next version by themselves.
    append(&writer, 1, 5);
    begun.push((7, 1));
    assert_eq!(writer.schemas().newest().number, 2);
    assert_eq!(place.segments(), ["00000000000000000000.arrow", "00000000000000000007.s2.open"]);
    assert_grown(&reader, &begun);
    // A new column needs a default, which is said once.
    let refused = writer.append(&of_step(2, 12..13)).unwrap_err();
    assert!(
        refused.report().contains("needs a default for the rows before it: column=\"label\""),
        "{}",
        refused.report()
    );
    assert_eq!((writer.end(), place.segments().len()), (12, 2));
    writer.grow(&schema(2), &defaults(2)).unwrap();
    assert_eq!(place.segments().len(), 2, "rows of the new version seal, not the version");
    assert_grown(&reader, &begun);
    append(&writer, 2, 3);
    begun.push((12, 2));
    assert_eq!(place.segments().len(), 3);
    // One that was not upgraded: widened and filled as it is stored.
    append(&writer, 0, 4);
    begun.push((15, 0));
    assert_eq!(place.segments().len(), 3);
    append(&writer, 2, 2);
    begun.push((19, 2));
    writer.grow(&schema(3), &defaults(3)).unwrap();
    append(&writer, 3, 2);
    begun.push((21, 3));
    writer.seal().unwrap();
    assert_eq!(assert_grown(&reader, &begun), 23);
    assert_eq!(assert_grown(&place.fresh(), &begun), 23);
    let report = reader.verify(&mut |_| {}).unwrap();
    assert!(report.is_good() && report.rows == 23);
    let numbers: Vec<u32> = reader.view().unwrap().partitions[0].segments().iter().map(|s| s.schema_number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    drop(writer);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    append(&writer, 3, 1);
    assert_eq!(assert_grown(&reader, &begun), 24);
}

#[test]
fn refused_rows_leave_nothing_behind() {
    let place = place();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    append(&writer, 1, 7);
    let files = |place: &Place| {
        let dirs = [place.topic.dir().to_path_buf(), place.partition()];
        let mut files: Vec<_> =
            dirs.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap()).map(|f| f.unwrap().path()).collect();
        files.retain(|path| path.is_file());
        files.sort();
        files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let before = files(&place);
    for (text, why) in [
        ("id:int32", "missing: column=\"x\""),
        ("id:int32, x:uint8[6]", "another shape"),
        ("id:uint32, x:uint8[5]", "column=\"id\" topic=int32 rows=uint32"),
        ("id:int32, x:int8[5]", "column=\"x\""),
        ("id:int32, x:uint8[5], y:bool", "needs a default"),
    ] {
        let schema = Arc::new(Schema::parse(text).unwrap());
        let error = writer.append(&numbered(&schema, 0..3)).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.report().contains(why), "{text}: {}", error.report());
        assert!(error.hint().is_some());
        let grown = writer.grow(&schema, &Defaults::default()).unwrap_err();
        assert_eq!(grown.report(), error.report());
    }
    assert_eq!(files(&place), before);
    append(&writer, 1, 1);
}

#[test]
fn partitions_grow_each_in_its_time() {
    let options = TopicOptions { partitions: 2, ..small(256, u64::MAX) };
    let place = Place::new(STEPS[0].0, &options);
    let (one, two) = (
        place.topic.writer(0, policy(Fsync::Always)).unwrap(),
        place.fresh().writer(1, policy(Fsync::Always)).unwrap(),
    );
    append(&one, 0, 3);
    append(&two, 0, 3);
    one.grow(&schema(2), &defaults(2)).unwrap();
    append(&one, 2, 3);
    // This one has not heard of it: its rows are of the version that it knows.
    append(&two, 0, 3);
    assert_eq!(two.schemas().newest().number, 1);
    // Until rows come that are of a version that is there already.
    append(&two, 2, 1);
    assert_eq!(two.schemas().newest().number, 2);
    let view = place.fresh().view().unwrap();
    let numbers =
        |partition: usize| view.partitions[partition].segments().iter().map(|s| s.schema_number).collect::<Vec<_>>();
    assert_eq!((numbers(0), numbers(1)), (vec![1, 2], vec![1, 2]));
    assert_eq!((view.rows(), view.schemas.versions().len()), (13, 2));
    for row in 0..7 {
        let step = if row < 6 { 0 } else { 2 };
        assert_eq!(values(&view.partitions[1].read(row..row + 1).unwrap(), 0), naive(step, 2, row));
    }
}

#[test]
fn an_empty_segment_makes_room_for_the_next_version() {
    let place = place();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    let old = place.partition().join("00000000000000000000.open");
    let empty = std::fs::read(&old).unwrap();
    append(&writer, 1, 5);
    assert_eq!(place.segments(), ["00000000000000000000.s2.open"]);
    drop(writer);
    // A crash before the old one was gone.
    std::fs::write(&old, &empty).unwrap();
    assert_eq!(assert_grown(&place.fresh(), &[(0, 1)]), 5);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.recovery().removed.as_slice(), std::slice::from_ref(&old));
    append(&writer, 1, 5);
    drop(writer);
    // With rows in it, it is no leftover.
    std::fs::write(&old, [empty.clone(), empty].concat()).unwrap();
    let error = place.fresh().writer(0, policy(Fsync::Always)).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.report().contains("same offsets"), "{}", error.report());
}

#[test]
fn every_moment_of_a_change_can_be_the_last() {
    // Files as a crash between any two of the change's steps leaves them.
    let place = place();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    append(&writer, 0, 9);
    let json = place.topic.dir().join("topic.json");
    let (before, beside) = (std::fs::read(&json).unwrap(), place.topic.dir().join("topic.json.tmp"));
    writer.grow(&schema(1), &Defaults::default()).unwrap();
    let after = std::fs::read(&json).unwrap();
    drop(writer);
    let open_ready = |begun: &[(u64, usize)], end: u64| {
        assert_eq!(assert_grown(&place.fresh(), begun), end);
        let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
        assert_eq!((writer.end(), writer.recovery().damage.len()), (end, 0));
    };
    // The description cut at every byte, beside the old one that still stands.
    std::fs::write(&json, &before).unwrap();
    for cut in (0..after.len()).step_by(37).chain([after.len()]) {
        std::fs::write(&beside, &after[..cut]).unwrap();
        assert_eq!(place.fresh().schemas().unwrap().versions().len(), 1);
    }
    open_ready(&[(0, 0)], 9);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    writer.grow(&schema(1), &Defaults::default()).unwrap();
    assert!(!beside.exists());
    drop(writer);
    // In its place, and nothing of it yet; then the first segment sealed, and no active one.
    open_ready(&[(0, 0)], 9);
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    writer.seal().unwrap();
    drop(writer);
    let active = place.partition().join("00000000000000000009.s2.open");
    let whole = std::fs::read(&active).unwrap();
    std::fs::remove_file(&active).unwrap();
    open_ready(&[(0, 0)], 9);
    // Its file half made, at every byte.
    let half = place.partition().join("00000000000000000009.s2.open.tmp");
    for cut in (0..whole.len()).step_by(101) {
        std::fs::remove_file(&active).unwrap();
        std::fs::write(&half, &whole[..cut]).unwrap();
        open_ready(&[(0, 0)], 9);
    }
    // Its first block, at every byte.
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    append(&writer, 1, 4);
    drop(writer);
    let (full, begun) = (std::fs::read(&active).unwrap(), [(0, 0), (9, 1)]);
    std::fs::remove_file(place.partition().join("synced")).unwrap();
    for cut in (whole.len()..full.len()).step_by(53).chain([full.len()]) {
        std::fs::write(&active, &full[..cut]).unwrap();
        open_ready(&begun, if cut == full.len() { 13 } else { 9 });
        std::fs::remove_file(place.partition().join("synced")).unwrap();
    }
}

#[test]
fn a_segment_of_an_unknown_version_is_named() {
    let place = place();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    append(&writer, 0, 3);
    writer.seal().unwrap();
    drop(writer);
    let open = place.partition().join("00000000000000000003.open");
    std::fs::rename(open, place.partition().join("00000000000000000003.s9.open")).unwrap();
    for error in [place.fresh().view().map(drop), place.fresh().writer(0, policy(Fsync::Always)).map(drop)] {
        let error = error.unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.report().contains("schema=9"), "{}", error.report());
    }
}

#[test]
fn a_writer_killed_while_its_topic_grows_loses_nothing_it_acknowledged() {
    for round in 0..6 {
        // Small segments, which are sealed for their size as well.
        let place = Place::new(STEPS[0].0, &small(256, 60_000));
        let mut writing = child("growth::child_grows", place.dir.path());
        writing.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut writing = Killed(writing.spawn().unwrap());
        let mut lines = BufReader::new(writing.0.stdout.take().unwrap());
        let (mut begun, mut end, mut seen) = (Vec::new(), 0, 0);
        let mut note = |line: &str| {
            let Some(rest) = line.trim_end().strip_prefix("ack ") else { return false };
            let numbers: Vec<u64> = rest.split(' ').map(|n| n.parse().unwrap()).collect();
            begun.push((numbers[0], numbers[1] as usize));
            end = numbers[2];
            true
        };
        while seen < 2 + mix(round) % 12 {
            let mut line = String::new();
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
        // At most one append came after the last that was acknowledged, of the step whose turn it was.
        begun.push((end, step_of(begun.len() as u64)));
        let found = assert_grown(&place.fresh(), &begun);
        assert!(found >= end, "acknowledged rows are missing");
        let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
        assert_eq!((writer.end(), writer.recovery().damage.len()), (found, 0));
        writer.grow(&schema(3), &Defaults::parse(&["label=-1".into(), "w=0.5".into()]).unwrap()).unwrap();
        append(&writer, 3, 2);
        begun.push((found, 3));
        assert_eq!(assert_grown(&place.fresh(), &begun), found + 2);
        assert!(place.fresh().verify(&mut |_| {}).unwrap().is_good());
    }
}

/// The step whose schema the child's append number `at` has: every one in turn, and older ones in between.
fn step_of(at: u64) -> usize {
    let newest = (at / 3).min(3) as usize;
    if at % 3 == 1 { newest.saturating_sub(1) } else { newest }
}

#[test]
fn child_grows() {
    let Some(dir) = child_dir() else { return };
    let topic = Root::open(dir).unwrap().topic(&"digits".parse().unwrap()).unwrap();
    let writer = topic.writer(0, policy(Fsync::Always)).unwrap();
    std::io::stdout().write_all(b"\n").unwrap();
    for at in 0..200 {
        let (step, end) = (step_of(at), writer.end());
        if at % 3 == 0 && at <= 9 {
            writer.grow(&schema(step), &defaults(step)).unwrap();
        }
        let count = 1 + mix(at) % 9;
        let origin = Origin { source: 1, first: end };
        assert_eq!(writer.append_from(origin, &of_step(step, end..end + count)).unwrap(), end..end + count);
        let line = format!("ack {end} {step} {}\n", end + count);
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
    std::thread::park();
}

#[test]
fn appends_of_many_threads_meet_a_change_in_any_order() {
    let place = place();
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    writer.grow(&schema(2), &defaults(2)).unwrap();
    // Older, newer and newest rows, whose numbers are those of their source.
    let of_thread = |thread: u64| (thread as usize, 0..100u64);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (writer, (step, numbers)) = (&writer, of_thread(thread));
            scope.spawn(move || {
                for number in numbers {
                    let origin = Origin { source: u128::from(thread), first: number };
                    writer.append_from(origin, &of_step(step, number..number + 1)).unwrap();
                }
            });
        }
        scope.spawn(|| {
            // In the middle of it, whenever that is.
            writer.grow(&schema(3), &Defaults::parse(&["w=0.5".into()]).unwrap()).unwrap();
            writer.append(&of_step(3, 7..8)).unwrap();
        });
    });
    let view = place.fresh().view().unwrap();
    assert_eq!((view.rows(), view.schemas.versions().len()), (301, 3));
    let numbers: Vec<u32> = view.partitions[0].segments().iter().map(|segment| segment.schema_number).collect();
    assert!(numbers.is_sorted() && numbers.last() == Some(&3), "{numbers:?}");
    let all = view.partitions[0].read(0..301).unwrap();
    let mut got: Vec<Vec<Vec<f64>>> = (0..301).map(|row| values(&all, row)).collect();
    let mut wanted: Vec<Vec<Vec<f64>>> =
        (0..3).flat_map(|thread| of_thread(thread).1.map(move |number| naive(thread as usize, 3, number))).collect();
    wanted.push(naive(3, 3, 7));
    let order = |a: &Vec<Vec<f64>>, b: &Vec<Vec<f64>>| a.partial_cmp(b).unwrap();
    got.sort_by(order);
    wanted.sort_by(order);
    assert!(got == wanted);
}
