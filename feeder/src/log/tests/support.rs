//! Rows whose every byte follows from their number, and topics to put them in.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::Buffer;
use tempfile::TempDir;

use crate::log::{Fsync, Root, Topic, TopicOptions, WriterOptions};
use crate::rows::Rows;
use crate::schema::Schema;

/// Names the directory that a child process of a test works in; tests for children do nothing without it.
pub(super) const CHILD_ENV: &str = "FOREBAY_LOG_TEST_CHILD";

pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Rows with these numbers.
pub(crate) fn numbered(schema: &Arc<Schema>, numbers: impl Iterator<Item = u64> + Clone) -> Rows {
    let count = numbers.clone().count();
    let columns = schema.columns().iter().enumerate().map(|(at, column)| {
        let mut bytes = Vec::with_capacity(count * column.row_bytes());
        for number in numbers.clone() {
            let words =
                (0..column.row_bytes().div_ceil(8) as u64).map(|word| mix(number << 20 ^ (at as u64) << 12 ^ word));
            bytes.extend(words.flat_map(u64::to_le_bytes).take(column.row_bytes()));
        }
        Buffer::from_vec(bytes)
    });
    Rows::new(schema.clone(), count, columns.collect()).unwrap()
}

/// Rows whose numbers are their offsets.
pub(crate) fn rows(schema: &Arc<Schema>, offsets: std::ops::Range<u64>) -> Rows {
    numbered(schema, offsets)
}

pub(crate) fn assert_same(got: &Rows, wanted: &Rows) {
    assert_eq!(got.count(), wanted.count());
    for column in 0..wanted.schema().columns().len() {
        assert!(got.column(column) == wanted.column(column), "column {column} differs");
    }
}

/// All rows of a partition are those of their offsets.
pub(crate) fn assert_numbered(topic: &Topic, partition: u32) -> u64 {
    let view = topic.view_partition(partition).unwrap();
    if view.first < view.end {
        let got = view.read(view.first..view.end).unwrap();
        assert_same(&got, &rows(topic.schema(), view.first..view.end));
    }
    view.end
}

pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) root: Root,
    pub(crate) topic: Topic,
}

impl Place {
    pub(crate) fn new(schema: &str, options: &TopicOptions) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), schema, options)
    }

    /// In memory where the system has a place for that: for tests that do a thing very often.
    pub(crate) fn quick(schema: &str, options: &TopicOptions) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self::in_dir(dir, schema, options)
    }

    fn in_dir(dir: TempDir, schema: &str, options: &TopicOptions) -> Self {
        let root = Root::create(dir.path()).unwrap();
        let schema = Schema::parse(schema).unwrap();
        let topic = root.create_topic(&"digits".parse().unwrap(), &schema, options).unwrap();
        Self { dir, root, topic }
    }

    /// The topic as another process sees it: nothing remembered.
    pub(crate) fn fresh(&self) -> Topic {
        self.root.topic(self.topic.name()).unwrap()
    }

    pub(crate) fn partition(&self) -> PathBuf {
        self.topic.dir().join("p0000")
    }

    /// Names of segment files, sorted.
    pub(crate) fn segments(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.partition()).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.map(|name| name.into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.contains('.')).collect();
        names.sort();
        names
    }
}

/// Small segments and blocks: of rows of `row_bytes`, `block_rows` a block.
pub(crate) fn small(block_bytes: usize, segment_bytes: u64) -> TopicOptions {
    TopicOptions { block_bytes, segment_bytes, ..TopicOptions::default() }
}

pub(crate) fn policy(fsync: Fsync) -> WriterOptions {
    WriterOptions { fsync, ..WriterOptions::default() }
}

/// A clock that tests turn.
#[derive(Clone, Default)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::SeqCst);
    }

    pub(crate) fn options(&self, fsync: Fsync) -> WriterOptions {
        let time = self.0.clone();
        WriterOptions { fsync, clock: Arc::new(move || time.load(Ordering::SeqCst)) }
    }
}

/// The command that runs one test of this binary as a child working in `dir`.
pub(crate) fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("log::tests::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(CHILD_ENV, dir).stdin(Stdio::null());
    command
}

/// Where a child is to work; `None` in a normal run of the tests.
pub(crate) fn child_dir() -> Option<PathBuf> {
    std::env::var_os(CHILD_ENV).map(PathBuf::from)
}

/// Kills a child at the latest when the test ends.
pub(crate) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
