//! The cursor store: keyed records whose latest value counts, per scope; the whole state is a fold of a log.
//!
//! - A [`Scope`] has one writer. [`Store::acquire`] makes a new generation and fences the earlier writer, wherever it
//!   lives and even while it is stopped: its next append fails with [`StoreError::Fenced`].
//! - [`Writer::append`] is durable when it returns, all of it or nothing. After an error other than `Fenced` the writer
//!   may go on; what the failed append held may or may not be there, and appending it again is harmless.
//! - [`Store::add_facts`] adds records that nobody needs to be fenced for: unique keys, the same value again is no change,
//!   another value is refused. A writer may delete facts but not replace them.
//! - Readers see whole batches in order, never a part, and never go back. A reader on the same node may see a batch
//!   shortly before it is durable.
//!
//! The trait is small and object-safe; [`StoreExt`] adds what can be made of it. Backends run one conformance suite,
//! `store::testing`.

mod batch;
pub mod embedded;
mod error;
mod fold;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod scope;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod view;

use std::fmt;
use std::time::Duration;

pub use batch::{BATCH_BYTES_MAX, BATCH_CHANGES_MAX, Batch, VALUE_BYTES_MAX};
pub use embedded::Embedded;
pub use error::{StoreError, StoreErrorKind};
pub use scope::{KEY_BYTES_MAX, Scope};
pub use view::{Change, Changes, Entry, Mark, View};

/// Result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A store of keyed records. See the module.
pub trait Store: fmt::Debug + Send + Sync {
    /// Becomes the scope's writer; the one before is fenced.
    fn acquire(&self, scope: &Scope) -> Result<Writer>;

    /// The records whose keys begin with `prefix`, as they stand now, sorted by key. A scope that nobody wrote to is
    /// empty.
    fn fold(&self, scope: &Scope, prefix: &str) -> Result<View>;

    /// One record as it stands now.
    fn get(&self, scope: &Scope, key: &str) -> Result<Option<Entry>>;

    /// What has changed since `from`, waiting for a change if there is none yet, but not beyond `timeout`; then there
    /// are no changes.
    fn watch(&self, scope: &Scope, from: Mark, timeout: Duration) -> Result<Changes>;

    /// The newest generation of a scope, 0 before the first writer. Cheap enough to be asked at every batch, and never
    /// late: once an [`acquire`](Self::acquire) has returned, anywhere, it tells.
    fn generation(&self, scope: &Scope) -> Result<u64>;

    /// Adds records under unique keys, durable when it returns, all or none.
    fn add_facts(&self, scope: &Scope, facts: &[(&str, &[u8])]) -> Result<()>;

    /// The scopes that were ever written to, sorted.
    fn scopes(&self) -> Result<Vec<Scope>>;
}

/// What a backend does for a [`Writer`].
pub trait Append: fmt::Debug + Send {
    /// See [`Writer::append`].
    fn append(&mut self, batch: &Batch) -> Result<Mark>;
}

/// The writer of a scope, until somebody else acquires it. Nothing is held: dropping it changes nothing.
#[derive(Debug)]
pub struct Writer {
    scope: Scope,
    generation: u64,
    pid: u32,
    inner: Box<dyn Append>,
}

impl Writer {
    /// For backends.
    pub fn new(scope: Scope, generation: u64, inner: Box<dyn Append>) -> Self {
        Self { scope, generation, pid: std::process::id(), inner }
    }

    /// The scope written to.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The fencing number: larger than that of every earlier writer of the scope.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Appends changes; durable when it returns. The mark is one from which [`Store::watch`] tells what comes later.
    /// An empty batch only finds out whether this writer is fenced.
    pub fn append(&mut self, batch: &Batch) -> Result<Mark> {
        batch.check()?;
        if self.pid != std::process::id() {
            let what = format!("the writer belongs to another process: pid={} scope={}", self.pid, self.scope);
            return Err(StoreError::Invalid { what });
        }
        self.inner.append(batch)
    }

    /// Sets one key.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Result<Mark> {
        self.append(&Batch::new().put(key, value))
    }

    /// Removes one key.
    pub fn delete(&mut self, key: impl Into<String>) -> Result<Mark> {
        self.append(&Batch::new().delete(key))
    }
}

/// What can be made of a [`Store`].
pub trait StoreExt: Store {
    /// Adds one record under a unique key.
    fn fact(&self, scope: &Scope, key: &str, value: &[u8]) -> Result<()> {
        self.add_facts(scope, &[(key, value)])
    }

    /// Waits until a key is there, but not beyond `timeout`.
    fn wait_for(&self, scope: &Scope, key: &str, timeout: Duration) -> Result<Option<Entry>> {
        let start = std::time::Instant::now();
        let mut mark = Mark::START;
        loop {
            if let Some(entry) = self.get(scope, key)? {
                return Ok(Some(entry));
            }
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(None);
            };
            mark = self.watch(scope, mark, left)?.mark;
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
