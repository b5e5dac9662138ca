//! What is appended is there: any types, many threads, any fsync policy, read while it grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::support::*;
use crate::error::ErrorKind;
use crate::log::{Fsync, Origin, TopicOptions};
use crate::schema::{Column, Dtype, Schema};

fn schemas() -> impl Strategy<Value = Schema> {
    let column = (0..Dtype::ALL.len(), prop::collection::vec(1u32..5, 0..4));
    prop::collection::vec(column, 1..5).prop_map(|columns| {
        let columns = columns.into_iter().enumerate();
        let columns = columns.map(|(at, (dtype, shape))| Column::new(format!("c{at}"), Dtype::ALL[dtype], shape));
        Schema::new(columns.collect()).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_appended_is_read_back(
        schema in schemas(),
        counts in prop::collection::vec(0u64..300, 1..8),
        block_bytes in 1usize..4000,
        segment_bytes in prop_oneof![Just(u64::MAX), 20_000u64..200_000],
        sealed in any::<bool>(),
    ) {
        let place = Place::quick(&schema.to_string(), &small(block_bytes, segment_bytes));
        let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
        let schema = Arc::new(schema);
        let mut end = 0;
        for count in counts {
            let offsets = end..end + count;
            prop_assert_eq!(writer.append(&rows(&schema, offsets.clone())).unwrap(), offsets.clone());
            end = offsets.end;
        }
        if sealed {
            writer.seal().unwrap();
        }
        prop_assert_eq!(writer.end(), end);
        prop_assert_eq!(assert_numbered(&place.topic, 0), end);
        prop_assert_eq!(assert_numbered(&place.fresh(), 0), end);
        let report = place.topic.verify(&mut |_| {}).unwrap();
        prop_assert!(report.is_good());
        prop_assert_eq!(report.rows, end);
        drop(writer);
        let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
        prop_assert_eq!(writer.recovery(), &Default::default());
        prop_assert_eq!(writer.end(), end);
    }
}

#[test]
fn blocks_are_cut_at_their_full_size_and_gathered_when_sealed() {
    let place = Place::new("x:uint8[64]", &small(1024, u64::MAX));
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    assert_eq!((writer.block_rows(), place.topic.block_rows()), (16, 16));
    for (from, to) in [(0, 40), (40, 41), (41, 44), (44, 90)] {
        writer.append(&rows(place.topic.schema(), from..to)).unwrap();
    }
    let sizes = |topic: &crate::log::Topic| {
        let view = topic.view().unwrap();
        let blocks = view.partitions[0].segments()[0].blocks().unwrap();
        blocks.iter().map(|block| block.rows).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&place.topic), [16, 16, 8, 1, 3, 16, 16, 14]);
    let before = place.topic.view().unwrap();
    writer.seal().unwrap();
    assert_eq!(sizes(&place.topic), [16, 16, 16, 16, 16, 10]);
    assert_eq!(place.segments(), ["00000000000000000000.arrow", "00000000000000000090.open"]);
    // The old snapshot still reads the file that was replaced.
    assert_same(&before.partitions[0].read(0..90).unwrap(), &rows(place.topic.schema(), 0..90));
    assert_numbered(&place.topic, 0);
}

#[test]
fn full_blocks_are_sealed_in_place() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new("x:uint8[64]", &small(1024, u64::MAX));
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    writer.append(&rows(place.topic.schema(), 0..50)).unwrap();
    let before = place.topic.view().unwrap();
    let inode = |name: &str| std::fs::metadata(place.partition().join(name)).unwrap().ino();
    let open = inode("00000000000000000000.open");
    writer.seal().unwrap();
    assert_eq!(inode("00000000000000000000.arrow"), open);
    let (old, new) = (&before.partitions[0].segments()[0], place.topic.view().unwrap());
    assert_eq!(old.blocks().unwrap(), new.partitions[0].segments()[0].blocks().unwrap());
    assert!(!old.is_sealed() && new.partitions[0].segments()[0].is_sealed());
}

#[test]
fn segments_are_sealed_by_size_and_by_age() {
    let place = Place::new("x:uint8[64]", &small(1024, 30_000));
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    for at in 0..10 {
        writer.append(&rows(place.topic.schema(), at * 16..at * 16 + 16)).unwrap();
    }
    // 4 KiB before the first block, 8 KiB a block: the fourth reaches the limit.
    let names = ["00000000000000000000.arrow", "00000000000000000064.arrow", "00000000000000000128.open"];
    assert_eq!(place.segments(), names);
    assert_numbered(&place.topic, 0);

    let options = TopicOptions { segment_age_ms: Some(1000), ..TopicOptions::default() };
    let (place, clock) = (Place::new("x:int64", &options), Clock::default());
    let writer = place.topic.writer(0, clock.options(Fsync::Never)).unwrap();
    clock.set(5_000);
    writer.append(&rows(place.topic.schema(), 0..3)).unwrap();
    clock.set(5_999);
    writer.append(&rows(place.topic.schema(), 3..4)).unwrap();
    writer.maintain().unwrap();
    assert_eq!(place.segments(), ["00000000000000000000.open"]);
    clock.set(6_000);
    writer.append(&rows(place.topic.schema(), 4..5)).unwrap();
    assert_eq!(place.segments(), ["00000000000000000000.arrow", "00000000000000000004.open"]);
    let sealed = place.topic.view().unwrap().partitions[0].segments()[0].clone();
    assert_eq!(sealed.time_ms().unwrap(), Some((5_000, 5_999)));
    clock.set(7_000);
    writer.maintain().unwrap();
    assert_eq!(place.segments().last().unwrap(), "00000000000000000005.open");
    // An empty segment has no age.
    clock.set(70_000);
    writer.maintain().unwrap();
    writer.seal().unwrap();
    assert_eq!(place.segments().len(), 3);
}

#[test]
fn the_age_survives_a_new_writer() {
    let options = TopicOptions { segment_age_ms: Some(1000), ..TopicOptions::default() };
    let (place, clock) = (Place::new("x:int64", &options), Clock::default());
    let writer = place.topic.writer(0, clock.options(Fsync::Always)).unwrap();
    clock.set(10);
    writer.append(&rows(place.topic.schema(), 0..3)).unwrap();
    drop(writer);
    let writer = place.topic.writer(0, clock.options(Fsync::Always)).unwrap();
    clock.set(1010);
    writer.maintain().unwrap();
    assert_eq!(place.segments()[0], "00000000000000000000.arrow");
}

#[test]
fn appends_of_many_threads_get_dense_offsets_in_their_own_order() {
    const THREADS: u64 = 6;
    const APPENDS: u64 = 60;
    for fsync in [Fsync::Always, Fsync::Interval { ms: 1 }, Fsync::Never] {
        let place = Place::new("x:uint8[100], y:int64", &small(4096, 300_000));
        let writer = place.topic.writer(0, policy(fsync)).unwrap();
        let schema = place.topic.schema();
        let appended: Vec<Vec<(u64, std::ops::Range<u64>)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let writer = &writer;
                    scope.spawn(move || {
                        let appends = (0..APPENDS).map(|append| {
                            let first = thread * 1_000_000 + append * 1_000;
                            let count = 1 + mix(first) % 50;
                            (first, writer.append(&numbered(schema, first..first + count)).unwrap())
                        });
                        appends.collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for own in &appended {
            assert!(own.windows(2).all(|pair| pair[0].1.end <= pair[1].1.start), "a thread's own order");
        }
        let mut all: Vec<_> = appended.into_iter().flatten().collect();
        all.sort_by_key(|(_, offsets)| offsets.start);
        assert_eq!(all[0].1.start, 0);
        assert!(all.windows(2).all(|pair| pair[0].1.end == pair[1].1.start), "dense and disjoint");
        assert_eq!(all.last().unwrap().1.end, writer.end());
        writer.close().unwrap();
        let view = place.topic.view().unwrap();
        for (first, offsets) in all {
            let count = offsets.end - offsets.start;
            assert_same(&view.partitions[0].read(offsets).unwrap(), &numbered(schema, first..first + count));
        }
        assert!(place.topic.verify(&mut |_| {}).unwrap().is_good());
    }
}

#[test]
fn rows_of_a_source_are_stored_once() {
    let place = Place::new("x:int64", &small(1 << 20, u64::MAX));
    let schema = place.topic.schema().clone();
    let from = |first: u64| Origin { source: 0xfeed << 64, first };
    let mut writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.origin_next(from(0).source), None);
    assert_eq!(writer.append_from(from(0), &numbered(&schema, 0..10)).unwrap(), 0..10);
    assert_eq!(writer.append_from(from(0), &numbered(&schema, 0..10)).unwrap(), 10..10);
    assert_eq!(writer.append_from(from(5), &numbered(&schema, 5..13)).unwrap(), 10..13);
    assert_eq!(writer.append_from(Origin { source: 2, first: 0 }, &numbered(&schema, 100..101)).unwrap(), 13..14);
    let error = writer.append_from(from(14), &numbered(&schema, 14..15)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("first=14 stored=13"), "{error}");
    for sealed in [false, true] {
        if sealed {
            writer.seal().unwrap();
        }
        drop(writer);
        writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
        assert_eq!(writer.origin_next(from(0).source), Some(13), "sealed={sealed}");
        assert_eq!(writer.origin_next(2), Some(1));
        assert_eq!(writer.append_from(from(3), &numbered(&schema, 3..13)).unwrap(), 14..14);
    }
    // A later footer knows the sources of earlier ones.
    writer.append(&numbered(&schema, 200..201)).unwrap();
    writer.seal().unwrap();
    std::fs::remove_file(place.partition().join("00000000000000000000.arrow")).unwrap();
    drop(writer);
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.origin_next(from(0).source), Some(13));
    let error = writer.append_from(from(u64::MAX), &numbered(&schema, 0..2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn sources_survive_a_damaged_footer() {
    let place = Place::new("x:int64", &small(32, u64::MAX));
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    let rows = numbered(place.topic.schema(), 0..30);
    writer.append_from(Origin { source: 7, first: 0 }, &rows).unwrap();
    writer.seal().unwrap();
    drop(writer);
    std::fs::remove_file(place.partition().join("00000000000000000030.open")).unwrap();
    let path = place.partition().join("00000000000000000000.arrow");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 200;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!((writer.end(), writer.origin_next(7)), (30, Some(30)));
    writer.append(&rows).unwrap();
    let view = place.fresh().view().unwrap();
    assert!(view.partitions[0].segments()[0].footer_damage().unwrap().is_some());
    for stored in [0..30, 30..60] {
        assert_same(&view.partitions[0].read(stored).unwrap(), &rows);
    }
}

#[test]
fn rows_of_another_schema_are_refused() {
    let place = Place::new("x:int64", &TopicOptions::default());
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    let other = Arc::new(Schema::parse("x:uint64").unwrap());
    let error = writer.append(&numbered(&other, 0..1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("column=\"x\" topic=int64 rows=uint64"), "{error}");
    assert_eq!(writer.append(&numbered(place.topic.schema(), 0..0)).unwrap(), 0..0);
    assert_eq!(place.topic.writer(1, policy(Fsync::Never)).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn partitions_count_for_themselves() {
    let place = Place::new("x:int64", &TopicOptions { partitions: 3, ..TopicOptions::default() });
    let writers: Vec<_> = (0..3).map(|at| place.topic.writer(at, policy(Fsync::Never)).unwrap()).collect();
    for (at, writer) in writers.iter().enumerate() {
        writer.append(&rows(place.topic.schema(), 0..at as u64 * 5)).unwrap();
    }
    let view = place.topic.view().unwrap();
    let ends: Vec<u64> = view.partitions.iter().map(|partition| partition.end).collect();
    assert_eq!((ends, view.rows()), (vec![0, 5, 10], 15));
    assert_eq!(view.partitions[1].read(5..6).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn readers_follow_while_segments_are_sealed() {
    let place = Place::new("x:uint8[40], id:int64", &small(2048, 60_000));
    let done = AtomicBool::new(false);
    let schema = place.topic.schema();
    std::thread::scope(|scope| {
        let reader = |fresh: bool| {
            let (place, done) = (&place, &done);
            move || {
                let topic = place.fresh();
                let (mut looks, mut end, mut kept) = (0u64, 0, None);
                loop {
                    let last = done.load(Ordering::SeqCst);
                    let topic = if fresh { place.fresh() } else { topic.clone() };
                    let view = topic.view().unwrap().partitions.remove(0);
                    assert!(view.end >= end && view.first == 0, "end={end} then {}", view.end);
                    end = view.end;
                    if end > 0 {
                        let from = mix(looks) % end;
                        let to = end.min(from + 1 + mix(looks + 1) % 100);
                        assert_same(&view.read(from..to).unwrap(), &rows(schema, from..to));
                        assert_same(&view.read(end - 1..end).unwrap(), &rows(schema, end - 1..end));
                    }
                    if looks % 16 == 3 {
                        kept = Some(view);
                    }
                    looks += 1;
                    if last {
                        let kept = kept.unwrap_or_else(|| topic.view().unwrap().partitions.remove(0));
                        assert_same(&kept.read(0..kept.end).unwrap(), &rows(schema, 0..kept.end));
                        return end;
                    }
                }
            }
        };
        let readers = [scope.spawn(reader(false)), scope.spawn(reader(true))];
        let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
        let mut at = 0;
        for append in 0..400 {
            let count = 1 + mix(append) % 40;
            writer.append(&rows(schema, at..at + count)).unwrap();
            at += count;
        }
        done.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), at));
    });
    assert!(place.segments().len() > 10);
}
