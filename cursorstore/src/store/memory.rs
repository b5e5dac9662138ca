//! A store in memory, for tests: what one handle writes, its clones see.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::batch::check_sizes;
use super::fold::Fold;
use super::{Append, Batch, Changes, Entry, Mark, Result, Scope, Store, View, Writer};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    scopes: Mutex<BTreeMap<Scope, Fold>>,
    changed: Condvar,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<Scope, Fold>> {
        self.0.scopes.lock().expect("no thread panics while it holds this lock")
    }

    /// Forgets how records came about, as a rewritten log does: watchers from before get everything.
    pub fn rewrite(&self, scope: &Scope) {
        if let Some(fold) = self.scopes().get_mut(scope) {
            let mut new = Fold::begin(fold.generation(), fold.mark().0);
            fold.slots().for_each(|(key, slot)| new.restore(key, slot.clone()));
            *fold = new;
        }
    }
}

impl Store for Memory {
    fn acquire(&self, scope: &Scope) -> Result<Writer> {
        let mut scopes = self.scopes();
        let fold = scopes.entry(scope.clone()).or_default();
        let generation = fold.generation() + 1;
        fold.acquired(generation);
        self.0.changed.notify_all();
        let inner = MemoryWriter { store: self.clone(), scope: scope.clone(), generation };
        Ok(Writer::new(scope.clone(), generation, Box::new(inner)))
    }

    fn fold(&self, scope: &Scope, prefix: &str) -> Result<View> {
        Ok(self.scopes().get(scope).map(|fold| fold.view(prefix)).unwrap_or_default())
    }

    fn get(&self, scope: &Scope, key: &str) -> Result<Option<Entry>> {
        Ok(self.scopes().get(scope).and_then(|fold| fold.get(key)))
    }

    fn watch(&self, scope: &Scope, from: Mark, timeout: Duration) -> Result<Changes> {
        let start = Instant::now();
        let mut scopes = self.scopes();
        let empty = Fold::default();
        loop {
            let changes = scopes.get(scope).unwrap_or(&empty).changes(scope, from)?;
            let left = timeout.saturating_sub(start.elapsed());
            if changes.whole || !changes.changes.is_empty() || left.is_zero() {
                return Ok(changes);
            }
            scopes = self.0.changed.wait_timeout(scopes, left).expect("no thread panics while it holds this lock").0;
        }
    }

    fn generation(&self, scope: &Scope) -> Result<u64> {
        Ok(self.scopes().get(scope).map_or(0, Fold::generation))
    }

    fn add_facts(&self, scope: &Scope, facts: &[(&str, &[u8])]) -> Result<()> {
        check_sizes(facts.len(), facts.iter().map(|(key, value)| (*key, value.len())))?;
        let mut scopes = self.scopes();
        let fold = scopes.entry(scope.clone()).or_default();
        let new = fold.new_facts(scope, facts)?;
        if !new.is_empty() {
            fold.changed(true, new.into_iter().map(|(key, value)| (key, Some(value))));
            self.0.changed.notify_all();
        }
        Ok(())
    }

    fn scopes(&self) -> Result<Vec<Scope>> {
        Ok(self.scopes().keys().cloned().collect())
    }
}

#[derive(Debug)]
struct MemoryWriter {
    store: Memory,
    scope: Scope,
    generation: u64,
}

impl Append for MemoryWriter {
    fn append(&mut self, batch: &Batch) -> Result<Mark> {
        let mut scopes = self.store.scopes();
        let fold = scopes.entry(self.scope.clone()).or_default();
        fold.admit(&self.scope, self.generation, batch)?;
        if batch.is_empty() {
            return Ok(fold.mark());
        }
        fold.changed(false, batch.changes().iter().map(|(key, value)| (&**key, value.as_deref())));
        self.store.0.changed.notify_all();
        Ok(fold.mark())
    }
}
