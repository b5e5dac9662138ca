//! The engine against the plan's own reference form: every batch of every rank holds the samples it should, row for row,
//! whatever the shape of the topic, the order, the reader, the number of threads, and wherever it starts.

mod corpus;

use std::sync::Arc;

use arrow_buffer::Buffer;
use corpus::{WAIT, bytes, checked_ids, compare, expected, ids, name, next, rows, topic};
use cursorstore::{Cursor, PlanKey, State};
use feeder::engine::testing::growth;
use feeder::engine::{Checksum, Dataset, Loader, OnBadRecord, Settings, Step};
use feeder::log::{Root, Topic, TopicOptions, WriterOptions};
use feeder::plan::{Line, Tail};
use feeder::reader::ReaderKind;
use feeder::reader::testing::{Script, ScriptedReader};
use feeder::{ErrorKind, Rows, Schema};

fn settings() -> Settings {
    Settings { global_batch: 12, seed: 7, ..Settings::default() }
}

/// In order, the row that fills up a rank's last batch repeats the first sample of a run of many.
#[test]
fn a_row_that_repeats_a_sample_takes_nothing_from_those_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[2047], 516, 256 << 10, 2047);
    for (checksum, world) in
        [Checksum::Always, Checksum::Sampled].into_iter().flat_map(|sum| [(sum, 2), (sum, 3), (sum, 6)])
    {
        for rank in 0..world {
            let settings = Settings { global_batch: 240, rank, world, checksum, reader_threads: Some(1), ..settings() };
            let mut loader = Loader::open(folder.path(), &name(), settings.clone()).unwrap();
            compare(&mut loader, 1, 516);
            // The first unit of a thread is always checked: from the last step on, and the one before, it is theirs.
            for n in [1920, 1680] {
                let mut late = Loader::open(folder.path(), &name(), settings.clone()).unwrap();
                let state = late.state(None).unwrap();
                late.load(&State { cursor: Cursor { epoch: 0, n }, ..state }).unwrap();
                late.begin().unwrap();
                while let (want, Some(batch)) = (expected(&late, late.cursor()), next(&mut late)) {
                    assert_eq!(checked_ids(&batch, 516)[..want.len()], want);
                }
            }
        }
    }
}

#[test]
fn every_batch_is_the_reference_s_for_orders_readers_and_worlds() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[301, 0, 64, 200], 40, 2048, 17);
    for (shuffle, world, drop_last) in
        [(false, 1, false), (false, 3, false), (false, 4, true), (true, 1, false), (true, 3, false), (true, 12, true)]
    {
        for (reader, threads, checksum) in [
            (ReaderKind::Auto, 2, Checksum::Sampled),
            (ReaderKind::Preadv, 1, Checksum::Always),
            (ReaderKind::Preadv, 3, Checksum::Off),
        ] {
            for rank in [0, world - 1] {
                let settings = Settings {
                    shuffle,
                    world,
                    rank,
                    drop_last,
                    reader,
                    reader_threads: Some(threads),
                    checksum,
                    lanes: Some(8),
                    chunk: Some(10),
                    pool: Some(3),
                    ..settings()
                };
                let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
                compare(&mut loader, 3, 40);
            }
        }
    }
}

#[test]
fn large_rows_and_columns_are_read_straight_and_leased() {
    let folder = tempfile::tempdir().unwrap();
    let width = 3000;
    topic(folder.path(), &[90, 50], width, 64 << 10, 9);
    for shuffle in [false, true] {
        for checksum in [Checksum::Off, Checksum::Always] {
            let settings = Settings { shuffle, checksum, chunk: Some(6), lanes: Some(4), ..settings() };
            let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
            compare(&mut loader, 3, width);
            let stats = loader.stats();
            assert!(stats.leased_slots == 0 && stats.overflow_batches == 0, "{stats:?}");
        }
    }
}

#[test]
fn a_program_that_keeps_all_batches_gets_them_intact() {
    let folder = tempfile::tempdir().unwrap();
    let width = 3000;
    topic(folder.path(), &[400], width, 64 << 10, 50);
    let mut loader = Loader::open(folder.path(), &name(), Settings { shuffle: true, ..settings() }).unwrap();
    loader.begin().unwrap();
    let (mut kept, mut wanted) = (Vec::new(), Vec::new());
    loop {
        wanted.push(expected(&loader, loader.cursor()));
        let Some(batch) = next(&mut loader) else { break };
        kept.push(batch);
    }
    assert!(loader.stats().overflow_batches > 0);
    loader.close();
    for (batch, want) in kept.iter().zip(&wanted) {
        assert_eq!(&checked_ids(batch, width), want);
    }
}

#[test]
fn a_full_overflow_is_an_error_that_loses_no_batch() {
    let folder = tempfile::tempdir().unwrap();
    let width = 3000;
    topic(folder.path(), &[400], width, 64 << 10, 50);
    let mut loader = Loader::open(folder.path(), &name(), Settings { overflow_bytes: 100_000, ..settings() }).unwrap();
    loader.begin().unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match loader.poll_next(WAIT) {
            Ok(Step::Batch(batch)) => kept.push(batch),
            Ok(_) => panic!("the epoch ended"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("overflow_bytes"), "{error}");
    let got = kept.len();
    drop(kept);
    assert_eq!(checked_ids(&next(&mut loader).unwrap(), width)[0], got as u64 * 12);
}

#[test]
fn resumed_anywhere_with_other_batches_and_worlds_it_is_one_straight_run() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[257, 100], 8, 1024, 31);
    let shuffled = Settings { shuffle: true, lanes: Some(6), chunk: Some(7), ..settings() };
    for base in [settings(), shuffled] {
        let reference = Loader::open(folder.path(), &name(), base.clone()).unwrap();
        let ends: Arc<[u64]> = reference.dataset().line().ends().into();
        let mut state = reference.state(None).unwrap();
        let mut random = 12345u64;
        for _ in 0..30 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pick = |n: u64| (random >> 33) % n;
            let world = [1, 2, 3, 4][pick(4) as usize];
            let global_batch = world * (1 + pick(9) as u32);
            let steps = 1 + pick(13);
            let mut cursors = Vec::new();
            for rank in 0..world {
                let settings = Settings { world, rank, global_batch, ..base.clone() };
                let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
                loader.load(&state).unwrap();
                assert_eq!(loader.state(None).unwrap(), state);
                loader.begin().unwrap();
                for _ in 0..steps {
                    let at = loader.cursor();
                    let Some(batch) = next(&mut loader) else {
                        loader.begin().unwrap();
                        continue;
                    };
                    let line = Line::new(loader.key(), ends.clone(), at.epoch).unwrap();
                    let want = line.step(at.n, global_batch, rank, world);
                    assert_eq!(checked_ids(&batch, 8)[..want.len()], want);
                }
                cursors.push(loader.state(None).unwrap());
            }
            assert!(cursors.iter().all(|state| *state == cursors[0]), "ranks disagree on the state");
            state = cursors.pop().unwrap();
        }
    }
}

#[test]
fn iter_and_set_epoch_follow_their_rules() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let mut loader = Loader::open(folder.path(), &name(), Settings { shuffle: true, ..settings() }).unwrap();
    let at = |loader: &Loader| (loader.cursor().epoch, loader.cursor().n);
    let drain = |loader: &mut Loader| {
        let mut count = 0;
        while let Some(batch) = next(loader) {
            assert_eq!(batch.epoch, loader.cursor().epoch);
            count += 1;
        }
        count
    };
    loader.begin().unwrap();
    let first = ids(&next(&mut loader).unwrap());
    next(&mut loader).unwrap();
    loader.begin().unwrap(); // after a break the epoch starts again
    assert_eq!(ids(&next(&mut loader).unwrap()), first);
    assert_eq!(drain(&mut loader), 4);
    assert_eq!(at(&loader), (0, 50));
    let end = loader.state(None).unwrap();
    loader.begin().unwrap(); // after the end, the next epoch
    assert_eq!(at(&loader), (1, 0));
    assert_eq!(drain(&mut loader), 5);
    loader.set_epoch(1).unwrap(); // asked for once more
    loader.begin().unwrap();
    assert_eq!((at(&loader), drain(&mut loader)), ((1, 0), 5));
    loader.set_epoch(7).unwrap();
    loader.begin().unwrap();
    assert_eq!((at(&loader), drain(&mut loader)), ((7, 0), 5));

    loader.load(&end).unwrap(); // a state at an epoch's end: plainly, the next epoch
    loader.begin().unwrap();
    assert_eq!((at(&loader), drain(&mut loader)), ((1, 0), 5));
    loader.load(&end).unwrap(); // with the epoch named, nothing is left of it
    loader.set_epoch(0).unwrap();
    loader.begin().unwrap();
    assert_eq!((at(&loader), drain(&mut loader)), ((0, 50), 0));
    loader.set_epoch(1).unwrap();
    loader.begin().unwrap();
    assert_eq!((at(&loader), drain(&mut loader)), ((1, 0), 5));

    let middle = cursorstore::State { cursor: Cursor { epoch: 3, n: 24 }, ..end };
    loader.load(&middle).unwrap();
    loader.begin().unwrap();
    assert!(loader.is_untouched());
    loader.begin().unwrap(); // nobody drew from that one: it was none
    assert_eq!((at(&loader), loader.handed_out()), ((3, 24), 0));
    loader.set_epoch(3).unwrap(); // keeps the cursor
    assert_eq!(loader.state(None).unwrap(), middle);
    loader.begin().unwrap();
    assert_eq!(drain(&mut loader), 3);
    loader.begin().unwrap(); // later epochs have their full length
    assert_eq!((at(&loader), drain(&mut loader)), ((4, 0), 5));
}

#[test]
fn epochs_follow_each_other_without_a_gap_and_nothing_is_read_twice() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[1000], 8, 1024, 250);
    for shuffle in [false, true] {
        let settings = Settings { shuffle, lanes: Some(4), chunk: Some(25), read_ahead_steps: Some(4), ..settings() };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        loader.begin().unwrap();
        while next(&mut loader).is_some() {}
        let one = loader.stats().units;
        for _ in 0..4 {
            loader.begin().unwrap(); // goes on with what was read ahead: a restart would read it once more
            while next(&mut loader).is_some() {}
        }
        let ahead = loader.stats().slots * 12 / 8;
        let five = loader.stats().units;
        // Pools of four chunks in each of four lanes, the first ones of 1, 2, 3 and 4; or blocks.
        let least = if shuffle { 13 } else { 1 };
        assert!(five <= 5 * one.max(least) + ahead && five >= 5 * least, "one={one} five={five} ahead={ahead}");
        let batches = loader.stats().batches;
        loader.begin().unwrap();
        next(&mut loader).unwrap();
        loader.begin().unwrap(); // a break: this one has to read again, and does
        next(&mut loader).unwrap();
        assert_eq!(loader.stats().batches, batches + 2);
    }
}

#[test]
fn a_job_that_began_with_the_former_version_of_the_order_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[1003], 8, 1024, 250);
    let settings = Settings { shuffle: true, lanes: Some(4), chunk: Some(20), ..settings() };
    let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
    let order = |loader: &Loader| expected(loader, Cursor { epoch: 0, n: 600 });
    let new = order(&loader);
    let now = loader.state(None).unwrap();
    let began_with = |version| {
        let plan = PlanKey { version, ..now.plan.clone() };
        let state = State::new(now.topic.clone(), now.windows.clone(), plan, Cursor { epoch: 0, n: 120 });
        State { schema: now.schema, ..state }
    };
    loader.load(&began_with(1)).unwrap();
    assert_eq!(loader.state(None).unwrap(), began_with(1));
    assert_ne!(order(&loader), new, "they differ behind the shorter chunks");
    loader.begin().unwrap();
    let want = expected(&loader, Cursor { epoch: 0, n: 120 });
    assert_eq!(checked_ids(&next(&mut loader).unwrap(), 8), want);
    for version in [0, 3] {
        assert_eq!(loader.load(&began_with(version)).unwrap_err().kind(), ErrorKind::StateMismatch);
    }
}

#[test]
fn states_of_earlier_batches_of_this_iteration() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let mut loader = Loader::open(folder.path(), &name(), settings()).unwrap();
    loader.begin().unwrap();
    for _ in 0..4 {
        next(&mut loader).unwrap();
    }
    assert_eq!(loader.state(Some(3)).unwrap().cursor.n, 36);
    assert_eq!(loader.state(Some(0)).unwrap().cursor.n, 0);
    assert!(loader.state(Some(5)).unwrap_err().to_string().contains("handed_out=4"));
}

#[test]
fn states_that_cannot_be_honoured_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let open = |settings: Settings| Loader::open(folder.path(), &name(), settings).unwrap();
    let shuffled = Settings { shuffle: true, ..settings() };
    let state = open(shuffled.clone()).state(None).unwrap();
    let refusal = |mut loader: Loader, state: &cursorstore::State| {
        let before = loader.state(None).unwrap();
        let error = loader.load(state).unwrap_err();
        assert_eq!(loader.state(None).unwrap(), before);
        (error.kind(), error.to_string())
    };
    let (kind, text) = refusal(open(settings()), &state);
    assert!(kind == ErrorKind::StateMismatch && text.contains("shuffle"), "{text}");
    let (_, text) = refusal(open(Settings { seed: 8, ..shuffled.clone() }), &state);
    assert!(text.contains("state=7 loader=8"), "{text}");
    let (_, text) = refusal(open(Settings { lanes: Some(5), ..shuffled.clone() }), &state);
    assert!(text.contains("lanes"), "{text}");
    let mut other = state.clone();
    other.topic = "elsewhere".parse().unwrap();
    assert!(refusal(open(shuffled.clone()), &other).1.contains("another topic"));
    let mut more = state.clone();
    more.windows[0].extents[0].to = 60;
    let (kind, text) = refusal(open(shuffled.clone()), &more);
    assert!(kind == ErrorKind::NotRetained && text.contains("missing=10"), "{text}");

    let key = |change: fn(&mut cursorstore::PlanKey)| {
        let mut key = state.plan.clone();
        change(&mut key);
        cursorstore::State::new(state.topic.clone(), state.windows.clone(), key, state.cursor)
    };
    assert!(refusal(open(shuffled.clone()), &key(|key| key.lanes = u32::MAX)).1.contains("lanes=4294967295"));
    assert!(refusal(open(shuffled.clone()), &key(|key| key.pool = u32::MAX)).1.contains("pool=4294967295"));
    let late = cursorstore::State { cursor: Cursor { epoch: u64::MAX, n: 0 }, ..state.clone() };
    assert!(refusal(open(shuffled.clone()), &late).1.contains("epoch="));
    let mut few = state.windows.clone();
    few[0].extents[0].to = 30;
    let few = cursorstore::State::new(state.topic.clone(), few, state.plan.clone(), state.cursor);
    let large = Settings { global_batch: 40, drop_last: true, ..shuffled.clone() };
    let (kind, text) = refusal(open(large), &few);
    assert!(kind == ErrorKind::Invalid && text.contains("samples=30"), "{text}");

    Root::open(folder.path()).unwrap().remove_topic(&name()).unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let (kind, text) = refusal(open(shuffled), &state);
    assert!(kind == ErrorKind::StateMismatch && text.contains("made again"), "{text}");
}

#[test]
fn an_epoch_ends_with_its_last_batch_whether_or_not_the_end_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let open = || Loader::open(folder.path(), &name(), Settings { shuffle: true, ..settings() }).unwrap();
    let mut straight = open();
    for epoch in 0..3 {
        straight.begin().unwrap();
        for _ in 0..straight.steps() {
            assert_eq!(next(&mut straight).unwrap().epoch, epoch);
        }
        let mut resumed = open();
        resumed.load(&straight.state(None).unwrap()).unwrap();
        resumed.begin().unwrap();
        assert_eq!(resumed.cursor(), Cursor { epoch: epoch + 1, n: 0 });
    }
    straight.set_epoch(2).unwrap(); // ended, so it is asked for once more
    straight.begin().unwrap();
    assert_eq!(next(&mut straight).unwrap().epoch, 2);
}

#[test]
fn an_iteration_that_cannot_begin_moves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let state = Loader::open(folder.path(), &name(), settings()).unwrap().state(None).unwrap();
    let tight = Settings { memory_limit_bytes: Some(1000), ..settings() };
    for n in [0, 24, 50] {
        let state = cursorstore::State { cursor: Cursor { epoch: 3, n }, ..state.clone() };
        let mut loader = Loader::open(folder.path(), &name(), tight.clone()).unwrap();
        loader.load(&state).unwrap();
        for _ in 0..2 {
            assert_eq!(loader.begin().unwrap_err().kind(), ErrorKind::NoSpace);
            assert_eq!(loader.state(None).unwrap(), state);
        }
    }
}

#[test]
fn the_order_does_not_depend_on_the_columns_delivered() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[9000], 300, 64 << 10, 1000);
    let order = |columns: Option<Vec<String>>| {
        let settings = Settings { shuffle: true, columns, ..settings() };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        loader.begin().unwrap();
        (0..5).flat_map(|_| ids(&next(&mut loader).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(order(None), order(Some(vec!["id".into()])));
}

#[test]
fn growth_of_the_topic_does_not_touch_a_running_or_resumed_job() {
    let folder = tempfile::tempdir().unwrap();
    let made = topic(folder.path(), &[60], 8, 1024, 31);
    let mut loader = Loader::open(folder.path(), &name(), Settings { shuffle: true, ..settings() }).unwrap();
    loader.begin().unwrap();
    next(&mut loader).unwrap();
    let state = loader.state(None).unwrap();
    let writer = made.writer(0, WriterOptions::default()).unwrap();
    writer.append(&rows(made.schema(), 60..90, 8)).unwrap();
    writer.seal().unwrap();
    let mut resumed = Loader::open(folder.path(), &name(), Settings { shuffle: true, ..settings() }).unwrap();
    assert_eq!(resumed.samples(), 90);
    resumed.load(&state).unwrap();
    assert_eq!(resumed.samples(), 60);
    resumed.begin().unwrap();
    while let Some(batch) = next(&mut loader) {
        assert_eq!(checked_ids(&next(&mut resumed).unwrap(), 8), checked_ids(&batch, 8));
    }
    assert!(next(&mut resumed).is_none());
}

/// Flips one byte in the data of sample `id`'s column `x`.
fn damage(topic: &Topic, id: u64, width: usize) {
    let view = topic.view().unwrap();
    let partition = &view.partitions[0];
    let segment = partition.segment_of(id).unwrap();
    let block = segment.block_of(id).unwrap();
    let column = feeder::log::column_at(topic.schema(), block.rows, 1);
    let at = block.body + column + (id - block.base) * width as u64 * 2;
    let mut bytes = std::fs::read(&segment.path).unwrap();
    bytes[at as usize] ^= 0x40;
    std::fs::write(&segment.path, bytes).unwrap();
}

#[test]
fn a_damaged_record_is_raised_masked_or_replaced_as_asked_and_the_same_way_on_replay() {
    let folder = tempfile::tempdir().unwrap();
    let width = 65_536; // a row is two checksummed pieces
    let made = topic(folder.path(), &[30], width, 1 << 20, 30);
    damage(&made, 17, width);
    let open = |on_bad_record, shuffle| {
        let settings =
            Settings { checksum: Checksum::Always, on_bad_record, shuffle, global_batch: 5, ..Settings::default() };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        loader.begin().unwrap();
        loader
    };
    let mut loader = open(OnBadRecord::Raise, false);
    for _ in 0..3 {
        next(&mut loader).unwrap();
    }
    for _ in 0..2 {
        let error = loader.poll_next(WAIT).err().expect("the damaged step must fail, and again when asked again");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(text.contains("block=") && text.contains("offset=") && text.contains(".arrow"), "{text}");
    }
    assert_eq!(loader.cursor().n, 15, "a step that failed is not consumed");

    for shuffle in [false, true] {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut loader = open(OnBadRecord::Mask, shuffle);
            let mut seen = Vec::new();
            while let Some(batch) = next(&mut loader) {
                seen.extend(ids(&batch).into_iter().zip(bytes(&batch, "mask")));
            }
            let holes: Vec<_> = seen.iter().filter(|(_, flag)| *flag == 0).collect();
            assert_eq!(holes, [&(0, 0)], "the row is zeroed and marked");
            assert_eq!(loader.stats().bad_records, 1);
            assert!(loader.bad_records()[&17].contains("checksum"));
            runs.push(seen);

            let mut loader = open(OnBadRecord::Substitute, shuffle);
            let mut seen = Vec::new();
            while let Some(batch) = next(&mut loader) {
                seen.extend(checked_ids(&batch, width).into_iter().map(|id| (id, 1)));
            }
            assert_eq!(seen.iter().filter(|(id, _)| *id == 18).count(), 2, "the next good sample stands in");
            assert!(seen.iter().all(|(id, _)| *id != 17));
            runs.push(seen);
        }
        assert_eq!(runs[0], runs[2]);
        assert_eq!(runs[1], runs[3]);
    }
}

#[test]
fn sampled_checks_compare_single_blocks_of_units_and_the_same_share_of_the_data() {
    let width = 2046; // a block is 64 rows of 4 KiB and a few bytes, and in order four of them are read together
    let folder = tempfile::tempdir().unwrap();
    let made = topic(folder.path(), &[64 * 200], width, 256 << 10, 64 * 200);
    let view = made.view().unwrap();
    let block = view.partitions[0].segment_of(0).unwrap().block_of(0).unwrap();
    assert_eq!(block.rows, 64);
    let open = |shuffle| {
        let (lanes, chunk, pool) = (Some(4), Some(64), Some(2));
        let settings =
            Settings { shuffle, global_batch: 256, reader_threads: Some(1), lanes, chunk, pool, ..settings() };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        loader.begin().unwrap();
        loader
    };
    for shuffle in [false, true] {
        let mut loader = open(shuffle);
        while let Some(batch) = next(&mut loader) {
            checked_ids(&batch, width);
        }
        let stats = loader.stats();
        // Four of 200: more, once threads are in the next epoch, which may begin before this one's last batch is taken.
        let rows = stats.checked_bytes / made.schema().row_bytes() as u64;
        assert!((4 * 64..=6 * 64).contains(&rows) && rows.is_multiple_of(64), "shuffle={shuffle} {stats:?}");
        assert_eq!(stats.checked_units, rows / 64, "shuffle={shuffle} {stats:?}");
    }
    // The 65th block is the second one that is compared: the damage of the one before it is not looked for.
    damage(&made, 63 * 64 + 5, width);
    damage(&made, 64 * 64 + 5, width);
    let mut loader = open(false);
    for _ in 0..16 {
        next(&mut loader).unwrap();
    }
    let error = loader.poll_next(WAIT).err().expect("the damage was not seen");
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("block="), "{error}");
}

#[test]
fn in_order_the_first_batch_waits_for_its_own_memory_and_not_for_the_slab_s() {
    let (width, portion) = (65_536, 2 << 20); // a batch of 16 is a portion of the slab
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[256], width, 256 << 10, 256);
    let dataset = Arc::new(Dataset::all_of(folder.path(), &name()).unwrap());
    for shuffle in [false, true] {
        let (lanes, chunk, pool, read_ahead_steps) = (Some(4), Some(2), Some(2), Some(6));
        let settings = Settings { shuffle, global_batch: 16, lanes, chunk, pool, read_ahead_steps, ..settings() };
        let [first, last, whole] =
            growth(&dataset, &settings, |regions| Box::new(ScriptedReader::new(8, regions, Script::default())))
                .unwrap();
        assert!(whole > 10 * portion, "whole={whole}");
        assert_eq!(last, whole, "read ahead as far as memory reaches, shuffle={shuffle}");
        assert!(first < whole, "shuffle={shuffle} first={first} whole={whole}");
        // The header, and a slot that is not on the borders of portions.
        assert!(shuffle || first <= 2 * portion, "first={first}");
    }
}

/// Overwrites a byte of the header of the block that holds sample `id`; of its segment's footer as well if asked to.
/// Returns the block's samples.
fn damage_header(topic: &Topic, id: u64, footer: bool) -> std::ops::Range<u64> {
    let view = topic.view().unwrap();
    let segment = view.partitions[0].segment_of(id).unwrap();
    let block = segment.block_of(id).unwrap();
    let mut bytes = std::fs::read(&segment.path).unwrap();
    bytes[block.header as usize + 40] ^= 0x10;
    if footer {
        *bytes.last_mut().unwrap() ^= 1;
    }
    std::fs::write(&segment.path, bytes).unwrap();
    block.base..block.end()
}

#[test]
fn the_rows_of_a_block_with_a_damaged_header_are_bad_records() {
    let width = 100;
    for footer in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let made = topic(folder.path(), &[200, 3], width, 4096, 200);
        let bad = damage_header(&made, 60, footer);
        // With the footer gone, nothing but the block itself said where its rows are: they are lost.
        let why = if footer { "lost to damage" } else { "header's checksum" };
        let open = |on_bad_record, shuffle, global_batch| {
            let checksum = Checksum::Always;
            let settings = Settings { checksum, on_bad_record, shuffle, global_batch, ..Settings::default() };
            let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
            loader.begin().unwrap();
            loader
        };
        let mut loader = open(OnBadRecord::Raise, false, 5);
        let mut good = 0;
        let error = loop {
            match loader.poll_next(WAIT) {
                Ok(Step::Batch(batch)) => good += checked_ids(&batch, width).len() as u64,
                Ok(_) => panic!("the damage was not seen"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(why) && error.to_string().contains(".arrow"), "{error}");
        assert_eq!(good, bad.start / 5 * 5, "every step before the damage is good");

        for shuffle in [false, true] {
            // The same records whatever the batches are, in the same places when run again.
            let mut found = Vec::new();
            for batch in [5, 29, 29] {
                let mut loader = open(OnBadRecord::Mask, shuffle, batch);
                let mut seen = Vec::new();
                while let Some(batch) = next(&mut loader) {
                    seen.extend(ids(&batch).into_iter().zip(bytes(&batch, "mask")));
                }
                let holes = seen.iter().filter(|(_, flag)| *flag == 0);
                assert_eq!(holes.count() as u64, bad.end - bad.start);
                let mut whole: Vec<u64> = seen.iter().filter(|(_, flag)| *flag == 1).map(|(id, _)| *id).collect();
                whole.sort_unstable();
                assert_eq!(whole, (0..203).filter(|id| !bad.contains(id)).collect::<Vec<u64>>());
                let records = loader.bad_records();
                assert_eq!(records.keys().copied().collect::<Vec<u64>>(), bad.clone().collect::<Vec<u64>>());
                assert!(records.values().all(|reason| reason.contains(why)), "{records:?}");
                found.push(seen);
                let notices = loader.take_notices();
                assert_eq!(notices.iter().any(|line| line.contains("footer is damaged")), footer, "{notices:?}");

                let mut loader = open(OnBadRecord::Substitute, shuffle, batch);
                let mut seen = Vec::new();
                while let Some(batch) = next(&mut loader) {
                    seen.extend(checked_ids(&batch, width).into_iter().map(|id| (id, 1)));
                }
                assert_eq!(seen.len(), 203);
                assert_eq!(seen.iter().filter(|(id, _)| *id == bad.end).count() as u64, bad.end - bad.start + 1);
                found.push(seen);
            }
            assert_eq!((&found[2], &found[3]), (&found[4], &found[5]));
        }
    }
}

#[test]
fn damage_to_more_rows_than_a_pool_holds_is_healed_too() {
    let folder = tempfile::tempdir().unwrap();
    let width = 100; // a checksummed piece holds more than 300 rows
    let made = topic(folder.path(), &[3000], width, 1 << 20, 3000);
    damage(&made, 1000, width);
    let settings = Settings {
        checksum: Checksum::Always,
        on_bad_record: OnBadRecord::Substitute,
        bad_records_max: 1000,
        shuffle: true,
        chunk: Some(2),
        pool: Some(2),
        global_batch: 50,
        ..Settings::default()
    };
    let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
    loader.begin().unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = next(&mut loader) {
        seen.extend(checked_ids(&batch, width));
    }
    let bad: Vec<u64> = loader.bad_records().keys().copied().collect();
    assert!(bad.len() > 300 && bad.contains(&1000), "{} rows", bad.len());
    assert!(bad.windows(2).all(|pair| pair[0] + 1 == pair[1]), "one piece");
    let stand_in = bad[bad.len() - 1] + 1;
    assert_eq!(seen.iter().filter(|id| **id == stand_in).count(), bad.len() + 1);
    assert_eq!(seen.len(), 3000);
}

#[test]
fn a_truncated_segment_is_an_error_and_the_steps_before_it_are_good() {
    let folder = tempfile::tempdir().unwrap();
    let width = 3000;
    let made = topic(folder.path(), &[2000], width, 256 << 10, 50);
    let path = made.view().unwrap().partitions[0].segment_of(0).unwrap().path.clone();
    let mut loader =
        Loader::open(folder.path(), &name(), Settings { read_ahead_steps: Some(1), ..settings() }).unwrap();
    let block = made.view().unwrap().partitions[0].segment_of(1990).unwrap().block_of(1990).unwrap();
    loader.begin().unwrap();
    next(&mut loader).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(block.body).unwrap();
    let mut good = 0;
    let error = loop {
        match loader.poll_next(WAIT) {
            Ok(Step::Batch(batch)) => good += checked_ids(&batch, width).len(),
            Ok(_) => panic!("the damage was not seen"),
            Err(error) => break error,
        }
    };
    assert_eq!((good as u64 + 12) / 12, block.base / 12, "every step before the damage is good");
    assert!(error.to_string().contains("ends too early"), "{error}");
}

#[test]
fn a_topic_made_anew_under_a_reader_without_a_guard_is_not_read_for_the_former_one() {
    let (folder, parts) = (tempfile::tempdir().unwrap(), [4; 140]);
    let made = topic(folder.path(), &parts, 8, 4096, 4);
    // More segments than are held open at once, and blocks known from the first epoch.
    let mut loader = Loader::open(folder.path(), &name(), Settings { checksum: Checksum::Off, ..settings() }).unwrap();
    loader.begin().unwrap();
    while next(&mut loader).is_some() {}
    std::fs::rename(made.dir(), folder.path().join("aside")).unwrap();
    topic(folder.path(), &parts, 8, 4096, 4);
    // What was read ahead before is still handed out, which can be an epoch or two.
    let error = (0..20).find_map(|_| {
        loader.begin().unwrap();
        loop {
            match loader.poll_next(WAIT) {
                Ok(Step::Batch(_)) => {}
                Ok(_) => break None,
                Err(error) => break Some(error),
            }
        }
    });
    let error = error.expect("another topic was read").to_string();
    assert!(error.contains("belongs to another topic"), "{error}");
}

#[test]
fn bad_requests_are_refused_with_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[50], 8, 1024, 31);
    let refused =
        |settings: Settings| Loader::open(folder.path(), &name(), settings).err().expect("refused").to_string();
    let column = refused(Settings { columns: Some(vec!["idd".into()]), ..settings() });
    assert!(column.contains("did you mean \"id\""), "{column}");
    let batch = refused(Settings { global_batch: 51, drop_last: true, ..Settings::default() });
    assert!(batch.contains("samples=50"), "{batch}");
    let unknown = Loader::open(folder.path(), &"corpse".parse().unwrap(), settings()).err().unwrap();
    assert!(unknown.kind() == ErrorKind::NotFound && unknown.to_string().contains("corpus"), "{unknown}");
    let tight = Settings { memory_limit_bytes: Some(1000), ..settings() };
    let mut loader = Loader::open(folder.path(), &name(), tight).unwrap();
    let error = loader.begin().unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && error.to_string().contains("needed_bytes="), "{error}");
}

#[test]
fn a_batch_larger_than_the_data_takes_the_memory_of_one_that_holds_it_all() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[20, 9], 8, 1024, 31);
    let huge = 3 << 20;
    for (world, shuffle) in [(1, false), (1, true), (3, false), (3, true), (48, true)] {
        for (rank, tail) in [0, world - 1].into_iter().flat_map(|rank| [(rank, Tail::Pad), (rank, Tail::Short)]) {
            let slab_bytes = |global_batch| {
                let settings = Settings { global_batch, world, rank, shuffle, tail: Some(tail), ..settings() };
                let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
                compare(&mut loader, 3, 8);
                // A step of which this rank has no rows is waited for no longer than others.
                assert!(u128::from(loader.stats().stall_ns) < WAIT.as_nanos(), "world={world} rank={rank} {tail:?}");
                loader.stats().slab_bytes
            };
            let (huge, whole) = (slab_bytes(huge), slab_bytes(29_u32.next_multiple_of(world)));
            assert_eq!(huge, whole, "world={world} rank={rank} shuffle={shuffle} {tail:?}");
        }
    }
}

#[test]
fn ranks_at_the_tail_get_equal_shapes_or_short_parts() {
    let folder = tempfile::tempdir().unwrap();
    topic(folder.path(), &[29], 8, 1024, 31);
    for (tail, shapes) in [(Tail::Pad, [2, 2, 2]), (Tail::Short, [1, 2, 2])] {
        let mut union = Vec::new();
        for rank in 0..3 {
            let settings = Settings { world: 3, rank, tail: Some(tail), shuffle: true, ..settings() };
            let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
            loader.begin().unwrap();
            let mut last = None;
            while let Some(batch) = next(&mut loader) {
                let valid = match loader.settings().masked() {
                    true => bytes(&batch, "mask").iter().filter(|&&flag| flag == 1).count(),
                    false => batch.rows as usize,
                };
                union.extend_from_slice(&ids(&batch)[..valid]);
                last = Some(batch.rows);
            }
            assert_eq!(last, Some(shapes[rank as usize]));
        }
        union.sort_unstable();
        assert_eq!(union, (0..29).collect::<Vec<_>>());
    }
}

/// Columns of one word each beside rows of 3, 5 and 12 bytes, whose values tell the sample and the column.
#[test]
fn many_narrow_columns_hold_what_the_reference_says() {
    const COLUMNS: [(&str, usize); 7] =
        [("uint8", 1), ("int16", 2), ("float32", 4), ("int64", 8), ("uint8[3]", 3), ("uint8[5]", 5), ("int32[3]", 12)];
    let value =
        |id: u64, column: usize, byte: usize| (id * 131 + column as u64 * 17 + byte as u64 * 7 + id / 256) as u8;
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<(String, usize)> = (0..28).map(|at| (format!("c{at}"), COLUMNS[at % 7].1)).collect();
    let typed = names.iter().enumerate().map(|(at, (name, _))| format!(", {name}:{}", COLUMNS[at % 7].0));
    let schema = Schema::parse(&format!("id:int64{}", typed.collect::<String>())).unwrap();
    let options = TopicOptions { block_bytes: 64 << 10, ..TopicOptions::default() };
    let made = Root::create(folder.path()).unwrap().create_topic(&name(), &schema, &options).unwrap();
    let writer = made.writer(0, WriterOptions::default()).unwrap();
    for from in (0..1400u64).step_by(700) {
        let mut columns = vec![Buffer::from_vec((from..from + 700).map(|id| id as i64).collect::<Vec<_>>())];
        columns.extend(names.iter().enumerate().map(|(at, (_, bytes))| {
            Buffer::from_vec(
                (from..from + 700).flat_map(|id| (0..*bytes).map(move |byte| value(id, at, byte))).collect::<Vec<u8>>(),
            )
        }));
        writer.append(&Rows::new(made.schema().clone(), 700, columns).unwrap()).unwrap();
    }
    writer.close().unwrap();
    for (shuffle, checksum) in [
        (true, Checksum::Sampled),
        (true, Checksum::Always),
        (true, Checksum::Off),
        (false, Checksum::Always),
        (false, Checksum::Off),
    ] {
        let (lanes, chunk) = (Some(4), Some(50));
        let settings = Settings { global_batch: 60, shuffle, checksum, lanes, chunk, ..settings() };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        loader.begin().unwrap();
        loop {
            let cursor = loader.cursor();
            let Some(batch) = next(&mut loader) else { break };
            let ids = ids(&batch);
            assert_eq!(ids, expected(&loader, cursor), "at {cursor:?}");
            for (at, (name, width)) in names.iter().enumerate() {
                let want: Vec<u8> =
                    ids.iter().flat_map(|&id| (0..*width).map(move |byte| value(id, at, byte))).collect();
                assert_eq!(bytes(&batch, name), want, "{name} at {cursor:?}");
            }
        }
    }
}
