//! Guards: what live readers need is not deleted.
//!
//! A guard is a file in the topic's `guards` directory, held under a lock by the process that made it, which names the
//! lowest offset needed of every partition. When its process ends, however it ends, the kernel frees the lock; a file
//! that nobody locks is stale and removed. Making a guard and deleting data exclude each other, so a guard that was made
//! protects, or making it says what is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{self, Held};
use super::topic::Topic;
use super::{FORMAT, LOCK_NAME};
use crate::error::{Error, ErrorKind, Result};

/// Name of the directory inside a topic's.
pub(super) const GUARDS_DIR: &str = "guards";
/// Most bytes of a guard's file: a thousand partitions.
const GUARD_BYTES_MAX: u64 = 1 << 16;
const ENDING: &str = "guard";
/// Times a guard's file is made again when a clean-up took it before it was locked.
const TRIES_MAX: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct GuardFile {
    format: u32,
    pid: u32,
    /// Lowest offset needed, per partition.
    from: Vec<u64>,
}

/// Holds a topic's rows from an offset on per partition, until it is dropped or its process ends.
#[derive(Debug)]
pub struct Guard {
    path: PathBuf,
    dir: PathBuf,
    file: Held,
    from: Vec<u64>,
}

impl Guard {
    /// The lowest offset held, per partition.
    pub fn from(&self) -> &[u64] {
        &self.from
    }

    /// Lets go of rows before these offsets. A partition's offset never goes back.
    pub fn advance(&mut self, from: &[u64]) -> Result<()> {
        if from.len() != self.from.len() || from.iter().zip(&self.from).any(|(new, old)| new < old) {
            return Err(Error::invalid(format!("a guard only moves forward: from={:?} to={from:?}", self.from)));
        }
        let file = write_locked(&self.dir, &self.path, from)?;
        self.file = file;
        self.from = from.to_vec();
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A forked child leaves the guard to its parent.
        if self.file.is_ours() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Topic {
    /// Keeps retention from deleting rows at and after these offsets, one per partition. Refused when some are gone
    /// already, with what is missing.
    pub fn guard(&self, from: &[u64]) -> Result<Guard> {
        if from.len() != self.partitions() as usize {
            return Err(Error::invalid(format!(
                "a guard names an offset for every partition: offsets={} partitions={}",
                from.len(),
                self.partitions()
            )));
        }
        let folder = Folder::open(self.dir())?;
        // What killed processes left behind goes with the next reader, so that it never piles up.
        drop(folder.live()?);
        let path = folder.dir.join(format!("{}.{ENDING}", files::unique()?));
        let file = write_locked(&folder.dir, &path, from)?;
        let guard = Guard { path, dir: folder.dir.clone(), file, from: from.to_vec() };
        for (partition, &from) in from.iter().enumerate() {
            let first = self.first(partition as u32)?;
            if from < first {
                return Err(Error::new(
                    ErrorKind::NotRetained,
                    format!(
                        "rows are no longer retained: topic={} partition={partition} offset={from} first={first}",
                        self.name()
                    ),
                ));
            }
        }
        Ok(guard)
    }
}

/// Makes a guard's file under its lock from the first moment that it has its name.
fn write_locked(dir: &Path, path: &Path, from: &[u64]) -> Result<Held> {
    let failed = |error| Error::io(format!("cannot hold rows of the topic: path={}", path.display()), error);
    let text = serde_json::to_vec(&GuardFile { format: FORMAT, pid: std::process::id(), from: from.to_vec() })
        .map_err(|error| failed(error.into()))?;
    for _ in 0..TRIES_MAX {
        let beside = dir.join(format!("{}.tmp", files::unique()?));
        let file = OpenOptions::new().write(true).create_new(true).open(&beside).map_err(failed)?;
        let Some(mut lock) = files::try_lock(file).map_err(failed)? else { continue };
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let written = match lock.write(&text) {
            // Empty it holds everything: training goes on where a disk is full, of its checkpoints for example.
            Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) => Ok(()),
            written => written,
        };
        let put = written.and_then(|()| fs::rename(&beside, path));
        match put {
            Ok(()) => return Ok(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let _ = fs::remove_file(&beside);
                return Err(failed(error));
            }
        }
    }
    Err(Error::new(ErrorKind::Busy, format!("a guard's file is removed again and again: path={}", path.display())))
}

/// The guards of a topic, while nobody else adds guards or deletes data.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    _lock: Held,
}

impl Folder {
    pub(super) fn open(topic_dir: &Path) -> Result<Self> {
        let dir = topic_dir.join(GUARDS_DIR);
        let path = dir.join(LOCK_NAME);
        let lock = files::lock_file(&path).and_then(files::lock);
        let lock =
            lock.map_err(|error| Error::io(format!("cannot lock the topic's guards: path={}", path.display()), error))?;
        Ok(Self { dir, _lock: lock })
    }

    /// The offsets that live guards hold; files of dead ones are removed.
    pub(super) fn live(&self) -> Result<impl Iterator<Item = Vec<u64>>> {
        let failed = |error| Error::io(format!("cannot list guards: path={}", self.dir.display()), error);
        let mut live = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if ending != ENDING && ending != "tmp" {
                continue;
            }
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(failed)?,
            };
            match files::try_lock(file).map_err(failed)? {
                Some(_dead) => files::remove(&path)?,
                None if ending == ENDING => live.extend(read_guard(&path)?),
                None => {}
            }
        }
        Ok(live.into_iter())
    }
}

/// What a live guard holds. One that cannot be read holds everything.
fn read_guard(path: &Path) -> Result<Option<Vec<u64>>> {
    match files::read_small(path, GUARD_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => Ok(Some(serde_json::from_slice::<GuardFile>(&bytes).map(|guard| guard.from).unwrap_or_default())),
    }
}
