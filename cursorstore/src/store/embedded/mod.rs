//! The store in files, for the processes of one node: a log per scope under `<root>/store/`.
//!
//! - An append takes the log's lock (flock), reads what others added, checks its generation, writes one frame, syncs
//!   (the one fsync), checks that the log was not taken over meanwhile, and only then counts. Generations are frames of
//!   the log itself, so a writer that was fenced finds out before it writes.
//! - Whoever waits too long for the lock, because its holder is stopped or hangs in a system call, takes the log over: a
//!   *fence* file bars it, its frames are copied, and the copy gets the next number by `link`, which only one can do.
//!   The holder of the lock, should it go on, finds the fence or the higher number after its own sync, and its append
//!   does not count there. What it had acknowledged before was written before the fence, so it is in the copy.
//! - A log that is mostly overwritten records is copied in the same way, under its lock. Readers keep the old file until
//!   they look again; `link` and `unlink` are all that happens to names, so they never find none.
//! - Readers take no lock and need no right to write.
//!
//! `frame` describes the bytes, `listing` the files, `log` how torn and damaged logs are told apart.

mod disk;
#[cfg(any(test, feature = "testing"))]
pub mod faults;
mod frame;
mod listing;
mod log;
mod scope_log;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::frame::BodyWriter;
use self::scope_log::ScopeLog;
use super::batch::check_sizes;
use super::{Append, Batch, Changes, Entry, Mark, Result, Scope, Store, StoreError, View, Writer};

/// Name of the directory under the root.
const STORE_DIR: &str = "store";

/// How the store behaves; the defaults suit everybody but tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Logs below this size are not rewritten.
    pub rewrite_bytes_min: u64,
    /// A log is rewritten when its records take less than one part in so many of it.
    pub rewrite_live_share: u64,
    /// How long another process may hold a log's lock until the log is taken over.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { rewrite_bytes_min: 1 << 20, rewrite_live_share: 2, patience: Duration::from_secs(2) }
    }
}

/// See the module. Any number of handles, in any number of processes, may be open on one root.
#[derive(Debug)]
pub struct Embedded {
    root: PathBuf,
    settings: Settings,
    scopes: Mutex<BTreeMap<Scope, Arc<ScopeLog>>>,
}

impl Embedded {
    /// The store under an existing directory. Nothing is written before a scope is.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        Self::open_with(root, Settings::default())
    }

    /// The same with other settings.
    pub fn open_with(root: impl Into<PathBuf>, settings: Settings) -> Result<Self> {
        let root = root.into();
        let is_dir = fs::metadata(&root).map_err(StoreError::io("open the store", &root))?.is_dir();
        if !is_dir {
            return Err(StoreError::Io {
                doing: "open the store",
                path: root,
                source: io::ErrorKind::NotADirectory.into(),
            });
        }
        Ok(Self { root, settings, scopes: Mutex::default() })
    }

    /// The directory that the store lies in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn scope(&self, scope: &Scope) -> Arc<ScopeLog> {
        let mut scopes = self.scopes.lock().expect("no thread panics while it holds this lock");
        let make = || Arc::new(ScopeLog::new(&self.root, STORE_DIR, scope, self.settings));
        scopes.entry(scope.clone()).or_insert_with(make).clone()
    }
}

impl Store for Embedded {
    fn acquire(&self, scope: &Scope) -> Result<Writer> {
        let log = self.scope(scope);
        let mut generation = 0;
        log.append(|fold| {
            generation = fold.generation() + 1;
            Ok(Some(BodyWriter::acquired(generation)))
        })?;
        let inner = EmbeddedWriter { log, scope: scope.clone(), generation };
        Ok(Writer::new(scope.clone(), generation, Box::new(inner)))
    }

    fn fold(&self, scope: &Scope, prefix: &str) -> Result<View> {
        self.scope(scope).read(|fold| fold.view(prefix))
    }

    fn get(&self, scope: &Scope, key: &str) -> Result<Option<Entry>> {
        self.scope(scope).read(|fold| fold.get(key))
    }

    fn watch(&self, scope: &Scope, from: Mark, timeout: Duration) -> Result<Changes> {
        self.scope(scope).watch(from, timeout)
    }

    fn generation(&self, scope: &Scope) -> Result<u64> {
        self.scope(scope).generation()
    }

    fn add_facts(&self, scope: &Scope, facts: &[(&str, &[u8])]) -> Result<()> {
        check_sizes(facts.len(), facts.iter().map(|(key, value)| (*key, value.len())))?;
        let make = |fold: &super::fold::Fold| {
            let new = fold.new_facts(scope, facts)?;
            let mut body = BodyWriter::facts();
            new.iter().for_each(|(key, value)| body.change(key, Some(value), true));
            Ok((!new.is_empty()).then_some(body))
        };
        self.scope(scope).append(make).map(|_| ())
    }

    fn scopes(&self) -> Result<Vec<Scope>> {
        let store = self.root.join(STORE_DIR);
        let mut scopes = Vec::new();
        for first in names(&store)? {
            let deeper = names(&store.join(&first))?.into_iter().map(|second| format!("{first}/{second}"));
            for text in std::iter::once(first.clone()).chain(deeper) {
                let Ok(scope) = text.parse::<Scope>() else { continue };
                if self.scope(&scope).exists()? {
                    scopes.push(scope);
                }
            }
        }
        scopes.sort();
        Ok(scopes)
    }
}

/// Names of the directories in a directory; none in one that is not there.
fn names(dir: &Path) -> Result<Vec<String>> {
    let failed = || StoreError::io("list scopes", dir);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed())?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed())?;
        if entry.file_type().map_err(failed())?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

#[derive(Debug)]
struct EmbeddedWriter {
    log: Arc<ScopeLog>,
    scope: Scope,
    generation: u64,
}

impl Append for EmbeddedWriter {
    fn append(&mut self, batch: &Batch) -> Result<Mark> {
        self.log.append(|fold| {
            fold.admit(&self.scope, self.generation, batch)?;
            let mut body = BodyWriter::batch(self.generation);
            batch.changes().iter().for_each(|(key, value)| body.change(key, value.as_deref(), false));
            Ok((!batch.is_empty()).then_some(body))
        })
    }
}
