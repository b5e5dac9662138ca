//! Narrow rows, which are read by pools and go out in runs: every batch holds what the reference says, byte for byte, for
//! schemas, sizes, orders and shares of all kinds, and the same as rows that are moved one by one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_buffer::Buffer;
use feeder::engine::{Batch, Checksum, Loader, Settings, Step};
use feeder::log::{Root, TopicOptions, WriterOptions};
use feeder::plan::{Line, Tail};
use feeder::{Rows, Schema};
use proptest::prelude::*;

const WAIT: Duration = Duration::from_secs(120);
/// Columns as they are written in a schema, with the bytes of a row.
const KINDS: [(&str, usize); 10] = [
    ("uint8", 1),
    ("bool", 1),
    ("int16", 2),
    ("float32", 4),
    ("int64", 8),
    ("uint8[3]", 3),
    ("int32[3]", 12),
    ("float32[16]", 64),
    ("int64[7]", 56),
    ("uint8[200]", 200),
];

/// Byte `byte` of column `column` of sample `id`; a bool is 0 or 1.
fn value(id: u64, column: usize, byte: usize, kind: usize) -> u8 {
    let value = (id * 131 + column as u64 * 17 + byte as u64 * 7 + id / 256) as u8;
    if KINDS[kind].0 == "bool" { value & 1 } else { value }
}

/// A topic of `total` samples in a column `id` and one column of each of `kinds`, appended `appended` at a time.
fn topic(root: &Path, kinds: &[usize], total: u64, appended: u64, block_bytes: usize) {
    let columns = kinds.iter().enumerate().map(|(at, &kind)| format!(", c{at}:{}", KINDS[kind].0));
    let schema = Schema::parse(&format!("id:int64{}", columns.collect::<String>())).unwrap();
    let options = TopicOptions { block_bytes, ..TopicOptions::default() };
    let topic = Root::create(root).unwrap().create_topic(&"corpus".parse().unwrap(), &schema, &options).unwrap();
    let writer = topic.writer(0, WriterOptions::default()).unwrap();
    for from in (0..total).step_by(appended as usize) {
        let ids = from..total.min(from + appended);
        let mut columns = vec![Buffer::from_vec(ids.clone().map(|id| id as i64).collect::<Vec<_>>())];
        for (at, &kind) in kinds.iter().enumerate() {
            let bytes = |id| (0..KINDS[kind].1).map(move |byte| value(id, at, byte, kind));
            columns.push(Buffer::from_vec(ids.clone().flat_map(bytes).collect::<Vec<u8>>()));
        }
        let rows = Rows::new(topic.schema().clone(), (ids.end - ids.start) as usize, columns).unwrap();
        writer.append(&rows).unwrap();
    }
    writer.close().unwrap();
}

fn bytes(batch: &Batch, column: &str) -> Vec<u8> {
    let column = batch.columns.iter().find(|c| &*c.name == column).unwrap();
    // SAFETY: the batch holds the owner of the column's `bytes` bytes.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(column.address), column.bytes) }.to_vec()
}

/// One epoch against the reference; gives how many units it took.
fn check(root: &Path, kinds: &[usize], settings: Settings) -> u64 {
    let mut loader = Loader::open(root, &"corpus".parse().unwrap(), settings).unwrap();
    loader.begin().unwrap();
    loop {
        let (cursor, settings) = (loader.cursor(), loader.settings());
        let ends: Arc<[u64]> = loader.dataset().line().ends().into();
        let line = Line::new(loader.key(), ends, cursor.epoch).unwrap();
        let want = line.step(cursor.n, settings.global_batch, settings.rank, settings.world);
        let batch = match loader.poll_next(WAIT).unwrap() {
            Step::Batch(batch) => batch,
            Step::End => break,
            Step::Pending => panic!("no batch within {WAIT:?}"),
        };
        let ids: Vec<u64> =
            bytes(&batch, "id").chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u64).collect();
        assert_eq!(ids[..want.len()], want, "at {cursor:?}");
        assert_eq!(batch.rows as usize, ids.len());
        for (at, &kind) in kinds.iter().enumerate() {
            let row = |&id: &u64| (0..KINDS[kind].1).map(move |byte| value(id, at, byte, kind));
            let want: Vec<u8> = ids.iter().flat_map(row).collect();
            assert!(bytes(&batch, &format!("c{at}")) == want, "column {at} of {} at {cursor:?}", KINDS[kind].0);
        }
    }
    loader.stats().units
}

fn settings() -> Settings {
    Settings { shuffle: true, seed: 7, reader_threads: Some(2), ..Settings::default() }
}

#[test]
fn a_pool_is_one_unit_and_its_rows_are_those_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let kinds: Vec<usize> = (0..24).map(|at| [3, 4, 0, 2][at % 4]).collect();
    topic(folder.path(), &kinds, 20_000, 7_000, 1 << 20);
    for (world, batch) in [(1, 512), (1, 500), (2, 512), (4, 64)] {
        for checksum in [Checksum::Off, Checksum::Sampled, Checksum::Always] {
            let (lanes, chunk, pool) = (Some(8), Some(256), Some(4));
            let settings =
                Settings { global_batch: batch, world, rank: world - 1, lanes, chunk, pool, checksum, ..settings() };
            let units = check(folder.path(), &kinds, settings);
            // 79 chunks; some of the next epoch's are read ahead.
            assert!(world > 1 || units < 60, "units={units}");
        }
    }
}

/// Blocks of any size, chunks that lie across them, rows of other ranks between, repeated rows at the end.
fn cases() -> impl Strategy<Value = (Vec<usize>, (u64, u64, usize), Settings)> {
    let kinds = prop::collection::vec(0..KINDS.len(), 0..14);
    let topic =
        (1u64..1500, prop_oneof![1u64..60, 60u64..1500], prop_oneof![Just(1 << 11), Just(1 << 14), Just(1 << 20)]);
    let plan = (1u32..9, prop_oneof![1u32..10, 10u32..200], 1u32..6);
    let share = (1u32..5, any::<u32>(), 1u32..130, any::<bool>());
    let checksum = prop_oneof![Just(Checksum::Off), Just(Checksum::Sampled), Just(Checksum::Always)];
    (kinds, topic, plan, share, checksum, any::<bool>()).prop_map(|(kinds, topic, plan, share, checksum, shuffle)| {
        let (world, rank, rows, pads) = share;
        let settings = Settings {
            global_batch: rows * world,
            world,
            rank: rank % world,
            tail: Some(if pads { Tail::Pad } else { Tail::Short }),
            lanes: Some(plan.0),
            chunk: Some(plan.1),
            pool: Some(plan.2),
            checksum,
            shuffle,
            ..settings()
        };
        (kinds, topic, settings)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_batch_is_the_reference_s((kinds, (total, appended, block_bytes), settings) in cases()) {
        let folder = tempfile::tempdir().unwrap();
        topic(folder.path(), &kinds, total, appended, block_bytes);
        check(folder.path(), &kinds, settings);
    }
}
