//! Which file stands where in a ring's table of registered files.
//!
//! A registered file spares the kernel the look-up of its descriptor at every read. The table keeps the files used last.
//! Two rules make it exact: an entry is never replaced while a read in flight names it, for the kernel looks it up when
//! it begins the read; and files that nobody else holds any more are dropped from the table whenever it changes, for it
//! would keep a deleted file's blocks on the disk.

use std::sync::{Arc, Weak};

use super::ReadFile;

/// An entry that was used within the last `KEEP_LOOKUPS` times the table's length look-ups is not replaced: when more
/// files take turns than there is room for, replacing one each time costs a call per read and gains nothing.
const KEEP_LOOKUPS: u64 = 4;

/// What to do for a file; `Plain` also if nothing is registered at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// It stands at this index.
    Hit(u32),
    /// It should be registered at this index; then call [`FileTable::set`].
    Put(u32),
    /// Use its descriptor.
    Plain,
}

/// The table's bookkeeping; the calls are its owner's business.
#[derive(Default)]
pub(super) struct FileTable {
    entries: Vec<Entry>,
    lookups: u64,
}

#[derive(Default)]
struct Entry {
    /// 0: empty.
    id: u64,
    file: Weak<ReadFile>,
    used: u64,
    pins: u32,
}

impl FileTable {
    pub(super) fn new(entries: usize) -> Self {
        Self { entries: (0..entries).map(|_| Entry::default()).collect(), lookups: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Finds `file` or a place for it.
    pub(super) fn lookup(&mut self, file: &ReadFile) -> Lookup {
        self.lookups += 1;
        if let Some(index) = self.entries.iter().position(|entry| entry.id == file.id()) {
            self.entries[index].used = self.lookups;
            return Lookup::Hit(index as u32);
        }
        let free = self.entries.iter().enumerate().filter(|(_, entry)| entry.pins == 0);
        let Some((index, oldest)) = free.min_by_key(|(_, entry)| (entry.is_alive(), entry.used)) else {
            return Lookup::Plain;
        };
        let kept = self.entries.len() as u64 * KEEP_LOOKUPS;
        if oldest.is_alive() && self.lookups - oldest.used <= kept {
            return Lookup::Plain;
        }
        Lookup::Put(index as u32)
    }

    /// Notes that `file` now stands at `index`, or that nothing does.
    pub(super) fn set(&mut self, index: u32, file: Option<&Arc<ReadFile>>) {
        let entry = &mut self.entries[index as usize];
        debug_assert_eq!(entry.pins, 0, "an entry in use was replaced");
        let (id, file) = file.map_or((0, Weak::new()), |file| (file.id(), Arc::downgrade(file)));
        *entry = Entry { id, file, used: self.lookups, pins: 0 };
    }

    /// An entry whose file nobody holds any more: take it out.
    pub(super) fn dead(&self) -> Option<u32> {
        let dead = |entry: &Entry| entry.id != 0 && entry.pins == 0 && !entry.is_alive();
        self.entries.iter().position(dead).map(|index| index as u32)
    }

    /// A read in flight names the entry.
    pub(super) fn pin(&mut self, index: u32) {
        self.entries[index as usize].pins += 1;
    }

    /// That read has ended.
    pub(super) fn unpin(&mut self, index: u32) {
        self.entries[index as usize].pins -= 1;
    }
}

impl Entry {
    fn is_alive(&self) -> bool {
        self.file.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Arc<ReadFile> {
        Arc::new(ReadFile::open("/dev/null").unwrap())
    }

    /// Looks `file` up and registers it if told to.
    fn take(table: &mut FileTable, file: &Arc<ReadFile>) -> Lookup {
        let lookup = table.lookup(file);
        if let Lookup::Put(index) = lookup {
            table.set(index, Some(file));
        }
        lookup
    }

    #[test]
    fn the_file_used_longest_ago_makes_room_once_it_is_idle() {
        let mut table = FileTable::new(2);
        let (a, b, c) = (file(), file(), file());
        assert_eq!(take(&mut table, &a), Lookup::Put(0));
        assert_eq!(take(&mut table, &b), Lookup::Put(1));
        assert_eq!(take(&mut table, &c), Lookup::Plain, "both were used just now");
        for _ in 0..2 * KEEP_LOOKUPS {
            assert_eq!(take(&mut table, &a), Lookup::Hit(0));
        }
        assert_eq!(take(&mut table, &c), Lookup::Put(1));
        assert_eq!(take(&mut table, &b), Lookup::Plain);
    }

    #[test]
    fn an_entry_in_flight_is_never_replaced() {
        let mut table = FileTable::new(1);
        let (a, b) = (file(), file());
        assert_eq!(take(&mut table, &a), Lookup::Put(0));
        table.pin(0);
        drop(a);
        for _ in 0..100 {
            assert_eq!(take(&mut table, &b), Lookup::Plain);
        }
        assert_eq!(table.dead(), None);
        table.unpin(0);
        assert_eq!(table.dead(), Some(0));
        assert_eq!(take(&mut table, &b), Lookup::Put(0));
    }

    #[test]
    fn a_file_that_is_gone_makes_room_at_once() {
        let mut table = FileTable::new(2);
        let (a, b, c) = (file(), file(), file());
        take(&mut table, &a);
        take(&mut table, &b);
        drop(b);
        assert_eq!(take(&mut table, &c), Lookup::Put(1));
        assert_eq!(table.dead(), None);
    }

    #[test]
    fn without_entries_descriptors_are_used() {
        assert_eq!(FileTable::default().lookup(&file()), Lookup::Plain);
    }
}
