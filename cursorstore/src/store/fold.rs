//! The state of one scope in memory: what applying a log's changes in order leaves.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use super::{Batch, Changes, Entry, Mark, Result, Scope, StoreError, View};

/// One key's latest value.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) value: Arc<[u8]>,
    pub(crate) mark: u64,
    pub(crate) is_fact: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fold {
    slots: BTreeMap<Arc<str>, Slot>,
    /// Newest generation.
    generation: u64,
    /// Number of the last step applied.
    mark: u64,
    /// Steps up to this one are known by what they left only.
    horizon: u64,
    /// Every change after the horizon.
    recent: Vec<(u64, Arc<str>)>,
    /// Bytes of all keys and values.
    bytes: u64,
}

impl Fold {
    /// The state that a rewritten log begins with, before its records are [restored](Self::restore).
    pub(crate) fn begin(generation: u64, mark: u64) -> Self {
        Self { generation, mark, horizon: mark, ..Self::default() }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.mark)
    }

    /// Number of records, and bytes of their keys and values.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.slots.len(), self.bytes)
    }

    /// A record from before the horizon.
    pub(crate) fn restore(&mut self, key: &str, slot: Slot) {
        self.insert(Arc::from(key), slot);
    }

    /// The next step: a new generation.
    pub(crate) fn acquired(&mut self, generation: u64) {
        self.mark += 1;
        self.generation = generation;
    }

    /// The next step: changes made together.
    pub(crate) fn changed<'a>(&mut self, is_fact: bool, changes: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) {
        self.mark += 1;
        for (key, value) in changes {
            let key = match value {
                Some(value) => {
                    let key = Arc::from(key);
                    self.insert(Arc::clone(&key), Slot { value: value.into(), mark: self.mark, is_fact });
                    key
                }
                None => match self.slots.remove_entry(key) {
                    Some((own, slot)) => {
                        self.bytes -= (own.len() + slot.value.len()) as u64;
                        own
                    }
                    None => continue,
                },
            };
            self.recent.push((self.mark, key));
        }
    }

    fn insert(&mut self, key: Arc<str>, slot: Slot) {
        self.bytes += slot.value.len() as u64;
        let bytes = key.len() as u64;
        match self.slots.insert(key, slot) {
            Some(old) => self.bytes -= old.value.len() as u64,
            None => self.bytes += bytes,
        }
    }

    /// Whether a writer of `generation` may make these changes.
    pub(crate) fn admit(&self, scope: &Scope, generation: u64, batch: &Batch) -> Result<()> {
        if self.generation != generation {
            return Err(StoreError::Fenced { scope: scope.clone(), generation, newest: self.generation });
        }
        for (key, value) in batch.changes() {
            if value.is_some() && self.slots.get(&**key).is_some_and(|slot| slot.is_fact) {
                return Err(StoreError::Conflict { scope: scope.clone(), key: key.clone() });
            }
        }
        Ok(())
    }

    /// The facts among these that are not known yet.
    pub(crate) fn new_facts<'a>(
        &self,
        scope: &Scope,
        facts: &[(&'a str, &'a [u8])],
    ) -> Result<Vec<(&'a str, &'a [u8])>> {
        let mut seen: BTreeMap<&str, &[u8]> = BTreeMap::new();
        let mut new = Vec::new();
        for &(key, value) in facts {
            let known = self.slots.get(key).map(|slot| (&*slot.value, slot.is_fact));
            match known.or_else(|| seen.get(key).map(|value| (*value, true))) {
                None => {
                    seen.insert(key, value);
                    new.push((key, value));
                }
                Some((old, true)) if old == value => {}
                Some(_) => return Err(StoreError::Conflict { scope: scope.clone(), key: key.into() }),
            }
        }
        Ok(new)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Entry> {
        self.slots.get_key_value(key).map(entry)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = (&Arc<str>, &Slot)> {
        self.slots.iter()
    }

    pub(crate) fn view(&self, prefix: &str) -> View {
        let from = self.slots.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        View::new(from.take_while(|(key, _)| key.starts_with(prefix)).map(entry).collect(), self.mark())
    }

    /// What changed after `from`.
    pub(crate) fn changes(&self, scope: &Scope, from: Mark) -> Result<Changes> {
        let mark = self.mark();
        if from > mark {
            return Err(StoreError::BeyondEnd { scope: scope.clone(), mark: from, newest: mark });
        }
        let value = |key: &Arc<str>| self.slots.get(key).map(|slot| slot.value.clone());
        if from.0 < self.horizon {
            let mut all: Vec<_> = self.slots.iter().map(|(key, slot)| (slot.mark, key.clone())).collect();
            all.sort();
            let changes = all.into_iter().map(|(_, key)| (key.clone(), value(&key))).collect();
            return Ok(Changes { mark, whole: true, changes });
        }
        let first = self.recent.partition_point(|(at, _)| *at <= from.0);
        let mut seen = HashSet::new();
        let last = self.recent[first..].iter().rev().filter(|(_, key)| seen.insert(key));
        let mut changes: Vec<_> = last.map(|(_, key)| (key.clone(), value(key))).collect();
        changes.reverse();
        Ok(Changes { mark, whole: false, changes })
    }
}

fn entry((key, slot): (&Arc<str>, &Slot)) -> Entry {
    Entry { key: key.clone(), value: slot.value.clone(), mark: Mark(slot.mark), is_fact: slot.is_fact }
}
