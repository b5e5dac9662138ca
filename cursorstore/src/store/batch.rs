//! What a writer appends at once.

use super::scope::check_key;
use super::{Result, StoreError};

/// Largest value, in bytes: what brokers take as one message by default.
pub const VALUE_BYTES_MAX: usize = 1_000_000;
/// Largest batch, keys and values together, in bytes.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// Most changes in one batch.
pub const BATCH_CHANGES_MAX: usize = 100_000;

/// Changes that become durable together or not at all, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    changes: Vec<(String, Option<Vec<u8>>)>,
}

impl Batch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.changes.push((key.into(), Some(value.into())));
        self
    }

    /// Removes a key, which need not be there.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.changes.push((key.into(), None));
        self
    }

    /// The changes in order; `None` removes.
    pub fn changes(&self) -> &[(String, Option<Vec<u8>>)] {
        &self.changes
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Refuses bad keys and what exceeds a limit.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = self.changes.iter().map(|(key, value)| (&**key, value.as_ref().map_or(0, Vec::len)));
        check_sizes(self.changes.len(), sizes)
    }
}

/// Refuses bad keys and what exceeds a limit.
pub(crate) fn check_sizes<'a>(count: usize, sizes: impl Iterator<Item = (&'a str, usize)>) -> Result<()> {
    let refuse = |what| Err(StoreError::Invalid { what });
    if count > BATCH_CHANGES_MAX {
        return refuse(format!("too many changes at once: changes={count} changes_max={BATCH_CHANGES_MAX}"));
    }
    let mut total = 0;
    for (key, bytes) in sizes {
        check_key(key)?;
        if bytes > VALUE_BYTES_MAX {
            return refuse(format!("the value is too large: key={key} bytes={bytes} bytes_max={VALUE_BYTES_MAX}"));
        }
        total += key.len() + bytes;
    }
    if total > BATCH_BYTES_MAX {
        return refuse(format!("the batch is too large: bytes={total} bytes_max={BATCH_BYTES_MAX}"));
    }
    Ok(())
}
