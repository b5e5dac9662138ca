//! A topic made for measuring, in a folder of its own that goes away with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_buffer::Buffer;
use cursorstore::TopicName;

use crate::error::{Error, Result};
use crate::log::{Fsync, Root, TopicOptions, WriterOptions};
use crate::rows::Rows;
use crate::schema::Schema;

/// Bytes of a sample's main column.
const SAMPLE_BYTES: usize = 4096;
const SCHEMA: &str = "id:int64, x:uint8[4096]";
const NAME: &str = "generated";
/// Rows that are made and appended at a time.
const STRIPE_ROWS: usize = 4096;
/// Largest topic that is made.
const BYTES_MAX: u64 = 1 << 40;
/// Times that a folder is tried to be removed.
const REMOVALS: usize = 100;

/// See the module.
#[derive(Debug)]
pub struct Generated {
    root: PathBuf,
    topic: TopicName,
}

impl Generated {
    /// Makes about `bytes` of samples under `parent`, durable and sealed.
    pub fn make(parent: &Path, bytes: u64) -> Result<Self> {
        if !(SAMPLE_BYTES as u64..=BYTES_MAX).contains(&bytes) {
            return Err(Error::invalid(format!(
                "a topic to measure on has {SAMPLE_BYTES} to {BYTES_MAX} bytes: size={bytes}"
            )));
        }
        let topic = NAME.parse().map_err(|error| Error::invalid(format!("{error}")))?;
        let made = Self { root: folder(parent)?, topic };
        made.fill((bytes / SAMPLE_BYTES as u64) as usize)?;
        Ok(made)
    }

    /// Removes what this process has made in `parent` and not removed, for a program that is ended in the middle of it.
    pub fn remove_all(parent: &Path) -> std::io::Result<()> {
        let prefix = prefix();
        for entry in std::fs::read_dir(parent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Folder of the topic.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Name of the topic.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    fn fill(&self, samples: usize) -> Result<()> {
        let schema = Schema::parse(SCHEMA)?;
        let topic = Root::create(&self.root)?.create_topic(&self.topic, &schema, &TopicOptions::default())?;
        let writer = topic.writer(0, WriterOptions { fsync: Fsync::Never, ..WriterOptions::default() })?;
        let (schema, mut random) = (Arc::new(schema), 1_u64);
        for first in (0..samples).step_by(STRIPE_ROWS) {
            let count = STRIPE_ROWS.min(samples - first);
            let ids: Vec<i64> = (first as i64..(first + count) as i64).collect();
            let values: Vec<u64> = (0..count * SAMPLE_BYTES / 8).map(|_| scrambled(&mut random)).collect();
            writer.append(&Rows::new(schema.clone(), count, vec![Buffer::from_vec(ids), Buffer::from_vec(values)])?)?;
        }
        writer.seal()?;
        writer.close()
    }
}

impl Drop for Generated {
    fn drop(&mut self) {
        // Nobody can be told; it lies among temporary files.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Removes a folder, also while somebody still writes there, but for one who never stops.
fn remove(folder: &Path) -> std::io::Result<()> {
    for _ in 1..REMOVALS {
        if std::fs::remove_dir_all(folder).is_ok() {
            return Ok(());
        }
    }
    std::fs::remove_dir_all(folder)
}

/// How the folders of this process begin.
fn prefix() -> String {
    format!("forebay-bench-{}-", std::process::id())
}

/// A new folder in `parent`, named for this process.
fn folder(parent: &Path) -> Result<PathBuf> {
    let mut number = 0;
    loop {
        let folder = parent.join(format!("{}{number}", prefix()));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => {
                let what = format!("cannot make a folder for a topic to measure on: path={}", folder.display());
                return Err(Error::io(what, error).with_hint("set TMPDIR to a folder with room for it"));
            }
        }
    }
}

/// Bytes that no file system makes smaller (xorshift64*).
fn scrambled(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}
