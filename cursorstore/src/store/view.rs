//! What readers get: records as they stood at one moment, and what changed since a moment.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A moment of a scope's log; [`Mark::START`] is before everything. Marks of one scope only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark(pub u64);

impl Mark {
    /// Before the first change.
    pub const START: Self = Self(0);
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One record as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Arc<str>,
    /// Its latest value.
    pub value: Arc<[u8]>,
    /// When it was last set.
    pub mark: Mark,
    /// Whether it was added as a fact.
    pub is_fact: bool,
}

/// The records under one prefix, as they stood at one moment; sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    entries: Vec<Entry>,
    mark: Mark,
}

impl View {
    /// For backends; `entries` are sorted by key.
    pub fn new(entries: Vec<Entry>, mark: Mark) -> Self {
        debug_assert!(entries.is_sorted_by(|a, b| a.key < b.key));
        Self { entries, mark }
    }

    /// The moment; watching from here misses nothing.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// All records, sorted by key.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// One record.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| (*entry.key).cmp(key)).ok()?;
        Some(&self.entries[at])
    }

    /// The records whose keys begin with `prefix`.
    pub fn range(&self, prefix: &str) -> &[Entry] {
        let from = self.entries.partition_point(|entry| &*entry.key < prefix);
        let rest = &self.entries[from..];
        &rest[..rest.partition_point(|entry| entry.key.starts_with(prefix))]
    }
}

/// A key, and its value if it has one.
pub type Change = (Arc<str>, Option<Arc<[u8]>>);

/// What changed between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Watch from here next.
    pub mark: Mark,
    /// The changes cannot be told one by one any more: forget every record; `changes` are all there are
    /// now, perhaps none.
    pub whole: bool,
    /// Each changed key once, in the order of its last change, with its value now; `None` when it is removed.
    pub changes: Vec<Change>,
}
