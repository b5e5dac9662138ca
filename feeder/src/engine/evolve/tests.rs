//! The assembler over segments of two schema versions, with a reader that follows a script: short reads, late ones and
//! failed ones. What needed a failed read fails, all else is what a naive upgrade makes of it.

use std::sync::Arc;

use arrow_buffer::Buffer;
use cursorstore::Cursor;
use slab::{Shape, Slab};

use crate::engine::Checksum;
use crate::engine::Dataset;
use crate::engine::assemble::{Assembler, JUNK_BYTES, Job};
use crate::engine::feed::{CODE_FAILED, Course, Feed, Take};
use crate::engine::layout::{SlotLayout, UnitSize};
use crate::engine::reads::parse_token;
use crate::log::{Root, TopicOptions, WriterOptions};
use crate::plan::{self, Line, PlanKey, Share, Tail};
use crate::reader::testing::{Script, ScriptedReader};
use crate::reader::{BlockReader, Region};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::Defaults;

const OLD: u64 = 70;
const SAMPLES: u64 = 100;
const BATCH: u32 = 10;
const WIDE: usize = 5000;
/// Orders tried to meet a rare one.
const SEEDS: u64 = 2_000;

/// In blocks of so many old samples.
fn topic(root: &std::path::Path, block_rows: usize) -> Dataset {
    let name = "corpus".parse().unwrap();
    let old = Arc::new(Schema::parse(&format!("id:int16, kept:uint8[{WIDE}], x:float16[3]")).unwrap());
    let options = TopicOptions { block_bytes: block_rows * WIDE, ..TopicOptions::default() };
    let topic = Root::create(root).unwrap().create_topic(&name, &old, &options).unwrap();
    let writer = topic.writer(0, WriterOptions::default()).unwrap();
    let rows = |schema: &Arc<Schema>, ids: std::ops::Range<u64>| {
        let wide = schema.columns().len() > 3;
        let columns = (0..schema.columns().len())
            .map(|at| Buffer::from_vec(ids.clone().flat_map(|id| element(id, at, wide)).collect::<Vec<u8>>()));
        Rows::new(schema.clone(), (ids.end - ids.start) as usize, columns.collect()).unwrap()
    };
    writer.append(&rows(&old, 0..OLD)).unwrap();
    let new = Arc::new(Schema::parse(&format!("id:int64, kept:uint8[{WIDE}], x:float32[3], y:int16[2]")).unwrap());
    writer.grow(&new, &Defaults::parse(&["y=-2".into()]).unwrap()).unwrap();
    writer.append(&rows(&new, OLD..SAMPLES)).unwrap();
    Dataset::all_of(root, &name).unwrap()
}

/// The bytes of a sample's column, before or after the change.
fn element(id: u64, at: usize, wide: bool) -> Vec<u8> {
    let x = (0..3).map(|k| half::f16::from_f32(id as f32 / 8.0 + k as f32));
    match (at, wide) {
        (0, false) => (-(id as i16)).to_le_bytes().to_vec(),
        (0, true) => (-(id as i64)).to_le_bytes().to_vec(),
        (1, _) => (0..WIDE).map(|k| (id as usize * 13 + k) as u8).collect(),
        (2, false) => x.flat_map(|x| x.to_le_bytes()).collect(),
        (2, true) => x.flat_map(|x| x.to_f32().to_le_bytes()).collect(),
        _ => [if id < OLD { -2 } else { id as i16 }; 2].into_iter().flat_map(i16::to_le_bytes).collect(),
    }
}

/// Runs one epoch with that script; gives the steps that failed, after comparing all others.
fn run(columns: Option<&[String]>, shuffle: bool, checksum: Checksum, script: Script) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Arc::new(topic(folder.path(), 20));
    let key = PlanKey { lanes: 3, chunk: 7, pool: 2, ..plan::default_key(1, SAMPLES, 1, shuffle, 5) };
    let share = Share { rank: 0, world: 1, batch: BATCH, tail: Tail::Pad, drop_last: false };
    run_rank(dataset, columns, &key, share, checksum, script)
}

/// The same for one rank of several.
fn run_rank(
    dataset: Arc<Dataset>,
    columns: Option<&[String]>,
    key: &PlanKey,
    share: Share,
    checksum: Checksum,
    script: Script,
) -> Vec<u64> {
    let Share { rank, world, batch, .. } = share;
    let rows_max = batch / world;
    let layout = SlotLayout::new(dataset.schema(), columns, rows_max).unwrap();
    let total = dataset.line().total();
    let ends: Arc<[u64]> = dataset.line().ends().into();
    let (stretch_steps, chunks_together) = (u64::MAX, 2);
    let course =
        Course { key: key.clone(), ends: ends.clone(), share, in_order_samples: 16, chunks_together, stretch_steps };
    let slots = total.div_ceil(u64::from(batch)) as u32;
    let slab = Slab::create(Shape { slots, slot_bytes: layout.slot_bytes }).unwrap();
    let layout = Arc::new(SlotLayout { slot_bytes: slab.shape().slot_bytes, ..layout });
    let (filler, mut taker) = slab.clone().split();
    let feed = Feed::new(filler, slots, course, Cursor { epoch: 0, n: 0 }).unwrap();
    let part = if checksum == Checksum::Sampled { 16 } else { 0 };
    let unit = UnitSize { samples: 16, chunks: 2, part };
    let (memory, scratch) = (Region::of_slab(&slab), Region::alloc(Assembler::scratch_bytes(&layout, unit)).unwrap());
    let regions = vec![memory.clone(), scratch.clone(), Region::alloc(JUNK_BYTES).unwrap()];
    let mut reader = ScriptedReader::new(4, regions, script);
    let mut assembler = Assembler::new(dataset, layout.clone(), memory.clone(), scratch, unit, checksum);
    let mut job = Job::default();
    let (mut reads, mut done, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    while feed.take(&mut job.taken).unwrap() == Take::Unit {
        assembler.build(&mut job, 0, &mut reads).unwrap();
        assert!(job.reads_left > 0, "a unit without a read never comes back");
        reads.drain(..).for_each(|read| reader.submit(read));
        while job.reads_left > 0 {
            reader.wait(1, &mut done).unwrap();
            for done in done.drain(..) {
                assembler.returned(&mut job, parse_token(done.read.token).1, done.result);
                assembler.reuse(done.read.parts);
            }
        }
        assembler.finish(&mut job, &mut bad);
        assert!(bad.is_empty());
        Assembler::fail_steps(&mut job, &feed);
        feed.done(std::iter::once(&job.taken));
    }
    let line = Line::new(key, ends, 0).unwrap();
    let mut failed = Vec::new();
    for step in 0..u64::from(slots) {
        let filled = taker.try_take().expect("a step was not published");
        if filled.code == CODE_FAILED {
            failed.push(step);
            continue;
        }
        let valid = line.step(step * u64::from(batch), batch, rank, world);
        // In a short last step a rank repeats its first row, if others have one more.
        let most = line.step(step * u64::from(batch), batch, world - 1, world).len();
        let repeated = valid.first().copied().filter(|_| valid.len() < most);
        for (row, id) in valid.into_iter().chain(repeated).enumerate() {
            for placed in &layout.columns {
                let mut got = vec![0; placed.row_bytes];
                let at = filled.slot as usize * layout.slot_bytes + placed.offset + row * placed.row_bytes;
                memory.read(at, &mut got);
                assert!(got == element(id, placed.at, true), "step={step} id={id} column={}", placed.name);
            }
        }
    }
    failed
}

#[test]
fn short_and_late_reads_change_nothing() {
    for (shuffle, checksum) in [false, true]
        .into_iter()
        .flat_map(|shuffle| [Checksum::Off, Checksum::Sampled, Checksum::Always].map(|sum| (shuffle, sum)))
    {
        for script in [Script::default(), Script::default().short_all(3001).delay(0, 3).delay(2, 5).short(4, 1)] {
            assert!(run(None, shuffle, checksum, script).is_empty());
        }
    }
}

/// Its sample may begin a run over two blocks, of which the first one's rows stand closer to each other than wide ones.
#[test]
fn a_row_that_repeats_a_sample_stored_narrower_has_a_place_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Arc::new(topic(folder.path(), 4));
    assert_eq!(dataset.block_rows(), 4);
    let ends: Arc<[u64]> = dataset.line().ends().into();
    let mut met = 0;
    for seed in 0..SEEDS {
        let key = PlanKey { lanes: 1, chunk: 5, pool: 1, ..plan::default_key(1, SAMPLES, 1, true, seed) };
        let line = Line::new(&key, ends.clone(), 0).unwrap();
        // The last step has 25 samples, of which rank 0 has the first 8 and a row that repeats its first one: here of a chunk of
        // five, whose second sample begins a run over the border of a block.
        let valid = line.step(75, 75, 0, 3);
        let first = valid[0];
        if first % 20 != 6 || first > OLD - 3 || valid[1..3] != [first + 1, first + 2] {
            continue;
        }
        met += 1;
        let share = Share { rank: 0, world: 3, batch: 75, tail: Tail::Pad, drop_last: false };
        let checksum = [Checksum::Off, Checksum::Sampled][met % 2];
        assert!(run_rank(dataset.clone(), None, &key, share, checksum, Script::default()).is_empty());
    }
    assert!(met > 0);
}

#[test]
fn a_failed_read_fails_what_needed_it_and_nothing_else() {
    for (shuffle, checksum) in [(false, Checksum::Off), (false, Checksum::Sampled), (true, Checksum::Always)] {
        for read in 0..6 {
            let failed = run(None, shuffle, checksum, Script::default().short(read, 8).fail_after(read, libc::EIO, 10));
            assert!(!failed.is_empty() && failed.len() < 10, "read={read} failed={failed:?}");
        }
    }
}

#[test]
fn columns_that_nothing_is_stored_of_still_need_their_segment() {
    let columns = ["y".to_owned()];
    for (shuffle, checksum) in [(false, Checksum::Off), (true, Checksum::Sampled), (true, Checksum::Always)] {
        assert!(run(Some(&columns), shuffle, checksum, Script::default()).is_empty());
        let failed = run(Some(&columns), shuffle, checksum, Script::default().fail(0, libc::EIO));
        assert!(!failed.is_empty() && failed.len() < 10, "{failed:?}");
    }
}
