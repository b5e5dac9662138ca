//! A topic whose samples say which they are, and batches of it held against the plan's reference form.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_buffer::Buffer;
use cursorstore::{Cursor, TopicName};
use feeder::engine::{Batch, Loader, Step};
use feeder::log::{Root, Topic, TopicOptions, WriterOptions};
use feeder::plan::Line;
use feeder::{Rows, Schema};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

pub const WAIT: Duration = Duration::from_secs(120);

pub fn name() -> TopicName {
    "corpus".parse().unwrap()
}

/// Value `k` of column `x` of sample `id`.
pub fn x_of(id: u64, k: usize) -> u16 {
    (id as u16).wrapping_mul(31).wrapping_add(k as u16)
}

pub fn rows(schema: &Arc<Schema>, ids: std::ops::Range<u64>, width: usize) -> Rows {
    let id: Vec<i64> = ids.clone().map(|id| id as i64).collect();
    let x: Vec<u16> = ids.clone().flat_map(|id| (0..width).map(move |k| x_of(id, k))).collect();
    let y: Vec<f32> = ids.clone().flat_map(|id| [id as f32, -(id as f32), 0.5]).collect();
    let columns = vec![Buffer::from_vec(id), Buffer::from_vec(x), Buffer::from_vec(y)];
    Rows::new(schema.clone(), (ids.end - ids.start) as usize, columns).unwrap()
}

/// A topic whose samples, in the line's order, have the ids 0, 1, 2, ...: `parts` samples per partition.
pub fn topic(root: &Path, parts: &[u64], width: usize, block_bytes: usize, appends: u64) -> Topic {
    let schema = Schema::parse(&format!("id:int64, x:uint16[{width}], y:float32[3]")).unwrap();
    let options = TopicOptions { partitions: parts.len() as u32, block_bytes, ..TopicOptions::default() };
    let topic = Root::create(root).unwrap().create_topic(&name(), &schema, &options).unwrap();
    let mut id = 0;
    for (partition, &count) in parts.iter().enumerate() {
        let writer = topic.writer(partition as u32, WriterOptions::default()).unwrap();
        let end = id + count;
        while id < end {
            let next = (id + appends).min(end);
            writer.append(&rows(topic.schema(), id..next, width)).unwrap();
            id = next;
        }
        if partition % 2 == 0 {
            writer.seal().unwrap();
        }
        writer.close().unwrap();
    }
    topic
}

pub fn bytes(batch: &Batch, column: &str) -> Vec<u8> {
    let column = batch.columns.iter().find(|c| &*c.name == column).unwrap();
    assert_eq!(column.address % 64, 0);
    // SAFETY: the batch holds the owner of the column's `bytes` bytes.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(column.address), column.bytes) }.to_vec()
}

pub fn ids(batch: &Batch) -> Vec<u64> {
    bytes(batch, "id").chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u64).collect()
}

/// The ids of a batch, after looking at every value of it.
pub fn checked_ids(batch: &Batch, width: usize) -> Vec<u64> {
    let ids = ids(batch);
    let x: Vec<u16> = bytes(batch, "x").chunks(2).map(|b| u16::from_le_bytes(b.try_into().unwrap())).collect();
    let y: Vec<f32> = bytes(batch, "y").chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    for (row, &id) in ids.iter().enumerate() {
        assert!((0..width).all(|k| x[row * width + k] == x_of(id, k)), "row {row} is not sample {id}");
        assert_eq!(y[row * 3..row * 3 + 3], [id as f32, -(id as f32), 0.5]);
    }
    ids
}

pub fn next(loader: &mut Loader) -> Option<Batch> {
    match loader.poll_next(WAIT).unwrap() {
        Step::Batch(batch) => Some(batch),
        Step::End => None,
        Step::Pending => panic!("no batch within {WAIT:?}"),
    }
}

pub fn expected(loader: &Loader, cursor: Cursor) -> Vec<u64> {
    let settings = loader.settings();
    let ends: Arc<[u64]> = loader.dataset().line().ends().into();
    Line::new(loader.key(), ends, cursor.epoch).unwrap().step(
        cursor.n,
        settings.global_batch,
        settings.rank,
        settings.world,
    )
}

/// Runs `epochs` epochs and compares every batch with the reference.
pub fn compare(loader: &mut Loader, epochs: u64, width: usize) {
    for _ in 0..epochs {
        loader.begin().unwrap();
        let mut steps = 0;
        loop {
            let cursor = loader.cursor();
            let Some(batch) = next(loader) else { break };
            let got = checked_ids(&batch, width);
            let want = expected(loader, cursor);
            assert_eq!(got[..want.len()], want, "at {cursor:?}");
            assert_eq!(batch.rows as usize, got.len());
            if loader.settings().masked() {
                let mask = bytes(&batch, "mask");
                let valid = mask.iter().filter(|&&flag| flag == 1).count();
                assert_eq!(valid, want.len());
            } else {
                assert_eq!(got.len(), want.len());
            }
            steps += 1;
        }
        assert_eq!(steps, loader.steps());
    }
}

/// All files below a folder, open for reading.
pub fn files(folder: &Path) -> Vec<File> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .flat_map(|entry| match entry.file_type().unwrap().is_dir() {
            true => files(&entry.path()),
            false => vec![File::open(entry.path()).unwrap()],
        })
        .collect()
}

/// Takes a file out of the page cache, where its file system does not live there.
pub fn drop_from_cache(file: &File) {
    file.sync_all().unwrap();
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}
