//! Tests of the backend: the conformance suite, crashes, damage, faults of the file system, take-overs.

mod crashes;
mod damage;
mod faults;
mod takeover;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::faults::{Fault, with};
use super::{Embedded, Settings};
use crate::store::memory::Memory;
use crate::store::testing::{Harness, conformance};
use crate::store::{Result, Scope, Store};

/// A directory in memory where there is one: tests that enumerate crashes sync thousands of times.
fn fast_dir() -> TempDir {
    let shared = Path::new("/dev/shm");
    let made = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    made.unwrap()
}

fn job() -> Scope {
    Scope::job("vision").unwrap()
}

fn log_file(root: &Path, number: u64) -> PathBuf {
    root.join(format!("store/job/vision/{number:020}.log"))
}

/// Names in the scope's directory but for the lock of turns.
fn files(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("store/job/vision")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "turn");
    names.sort();
    names
}

/// The keys and values of the scope, as a new handle finds them.
fn state(root: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let view = Embedded::open(root)?.fold(&job(), "")?;
    Ok(view.entries().iter().map(|entry| (entry.key.to_string(), entry.value.to_vec())).collect())
}

/// Rewrites at every chance.
const EAGER: Settings = Settings { rewrite_bytes_min: 0, rewrite_live_share: 1, patience: Duration::from_secs(30) };

struct Files {
    dir: TempDir,
    settings: Settings,
    /// Of the points to die at, every so-manieth.
    stride: u64,
}

impl Harness for Files {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(Embedded::open_with(self.dir.path(), self.settings).unwrap())
    }

    fn dying(&self, after: u64, act: &mut dyn FnMut(&dyn Store)) -> Option<bool> {
        let store = Embedded::open_with(self.dir.path(), self.settings).unwrap();
        Some(with(Fault::Die { after: after * self.stride }, || act(&store)).1)
    }
}

#[test]
fn files_conform() {
    conformance(|| Files { dir: fast_dir(), settings: Settings::default(), stride: 1 });
}

#[test]
fn files_rewritten_at_every_chance_conform() {
    // A copy has a thousand points: `crashes` tries all of one.
    conformance(|| Files { dir: fast_dir(), settings: EAGER, stride: 13 });
}

#[test]
fn files_on_a_disk_conform() {
    struct OnDisk(TempDir);
    impl Harness for OnDisk {
        fn open(&self) -> Arc<dyn Store> {
            Arc::new(Embedded::open(self.0.path()).unwrap())
        }
    }
    conformance(|| OnDisk(tempfile::tempdir().unwrap()));
}

struct InMemory(Memory);

impl Harness for InMemory {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}

#[test]
fn memory_conforms() {
    conformance(|| InMemory(Memory::new()));
}

#[test]
fn a_watcher_from_before_a_rewrite_gets_everything() {
    let memory = Memory::new();
    let dir = fast_dir();
    let files = Embedded::open_with(dir.path(), EAGER).unwrap();
    let stores: [&dyn Store; 2] = [&memory, &files];
    for store in stores {
        let mut writer = store.acquire(&job()).unwrap();
        let mark = writer.put("a", "1").unwrap();
        writer.put("gone", "1").unwrap();
        writer.delete("gone").unwrap();
        for _ in 0..5 {
            writer.put("b", "1").unwrap();
        }
        memory.rewrite(&job());
        let changes = store.watch(&job(), mark, Duration::from_secs(60)).unwrap();
        let keys: Vec<&str> = changes.changes.iter().map(|(key, _)| &**key).collect();
        assert_eq!((changes.whole, &keys[..]), (true, &["a", "b"][..]));
    }
}
