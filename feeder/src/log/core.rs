//! The writer's inner part: one partition's active segment, what is stored in it, and when it is synced and sealed.
//!
//! Used by one thread at a time. A failure after which the file's contents are unknown *poisons* it: from then on
//! everything is refused, until opening the partition again has read what is there.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::Identity;
use super::commit::{NotWritten, Pending, Target, Written, place};
use super::facts;
use super::files::{self, Hint, SegmentName};
use super::footer::Footer;
use super::layout::block_rows;
use super::recover::{Active, Place};
use super::seal::Sealing;
use super::writer::Fsync;
use crate::error::{Error, ErrorKind, Result};
use crate::versions::SchemaVersion;

/// Blocks at which a segment is sealed whatever its size.
const BLOCKS_MAX: usize = 1 << 20;
/// The next step after a failure that poisons.
const REOPEN: &str = "close the topic's writer and open it again, it then reads what is stored";

/// What a writer needs to know of its topic.
pub(super) struct Setup {
    pub(super) dir: PathBuf,
    pub(super) schemas: Arc<facts::Known>,
    pub(super) identity: Identity,
    pub(super) block_bytes: usize,
    pub(super) segment_bytes: u64,
    pub(super) segment_age_ms: Option<u64>,
}

/// See the module.
pub(super) struct Core {
    /// `None` while a new segment could not be made.
    pub(super) active: Option<Active>,
    /// What is written; the active segment may still be of an earlier version, until the next append.
    pub(super) version: SchemaVersion,
    pub(super) end: u64,
    pub(super) origins: HashMap<u128, u64>,
    pub(super) hint: File,
    /// Time of the first append since the last sync.
    pub(super) dirty_since_ms: Option<u64>,
    pub(super) poisoned: Option<String>,
}

impl Core {
    /// Stores a group, whose rows are all of one schema version, and says what became of each append.
    pub(super) fn commit(
        &mut self,
        setup: &Setup,
        policy: Fsync,
        now_ms: u64,
        group: &[Pending],
    ) -> Vec<Result<Range<u64>>> {
        match self.store(setup, policy, now_ms, group) {
            Ok(results) => results,
            Err(error) => group.iter().map(|_| Err(again(&error))).collect(),
        }
    }

    fn store(
        &mut self,
        setup: &Setup,
        policy: Fsync,
        now_ms: u64,
        group: &[Pending],
    ) -> Result<Vec<Result<Range<u64>>>> {
        self.check()?;
        if self.is_aged(setup, now_ms) {
            // Without room the segment just stays active, to be sealed later.
            let sealed = self.seal(setup);
            if self.poisoned.is_some() {
                sealed?;
            }
        }
        if let Some(version) = group.first().map(|pending| &pending.version)
            && version.number > self.version.number
        {
            self.version = version.clone();
        }
        let upgraded = self.upgrade(setup, group)?;
        let group = upgraded.as_deref().unwrap_or(group);
        self.turn_to_version(setup)?;
        self.ensure_active(setup)?;
        let (placed, changed) = place(group, self.end, &self.origins);
        let Some(active) = &self.active else { return Err(Error::new(ErrorKind::Closed, "no active segment")) };
        let target = Target {
            file: &active.file,
            schema: &active.version.schema,
            identity: &setup.identity,
            block_rows: block_rows(&active.version.schema, setup.block_bytes),
            at: active.file_end,
            synced: active.synced,
            now_ms,
        };
        let written = match target.write(group, &placed) {
            Ok(written) => written,
            Err(NotWritten::Cleanly(error)) => return Err(error),
            Err(NotWritten::Poisoned(error)) => return Err(self.poison(error)),
        };
        self.take_written(written, now_ms);
        match policy {
            Fsync::Always => self.sync()?,
            policy => self.sync_if_due(policy, now_ms)?,
        }
        self.origins.extend(changed);
        let full = |active: &Active| active.file_end >= setup.segment_bytes || active.blocks.len() >= BLOCKS_MAX;
        if self.active.as_ref().is_some_and(full) {
            // The group is stored whatever becomes of this; a failure that matters stops the next append.
            let _ = self.seal(setup);
        }
        Ok(placed.into_iter().map(|placed| placed.map(|placed| placed.offsets)).collect())
    }

    fn take_written(&mut self, written: Written, now_ms: u64) {
        let (Some(active), Some(last)) = (self.active.as_mut(), written.blocks.last()) else { return };
        active.end = last.end();
        active.file_end = written.file_end;
        active.blocks.extend(&written.blocks);
        active.time_ms = Some(active.time_ms.map_or((now_ms, now_ms), |time| (time.0.min(now_ms), time.1.max(now_ms))));
        self.end = active.end;
        self.dirty_since_ms.get_or_insert(now_ms);
    }

    pub(super) fn check(&self) -> Result<()> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => {
                Err(Error::new(ErrorKind::Io, format!("the writer stopped after a failure: {why}")).with_hint(REOPEN))
            }
        }
    }

    fn poison(&mut self, error: Error) -> Error {
        self.poisoned = Some(error.report());
        error.with_hint(REOPEN)
    }

    pub(super) fn sync(&mut self) -> Result<()> {
        if self.dirty_since_ms.is_none() {
            return Ok(());
        }
        let Some(active) = self.active.as_mut() else { return Ok(()) };
        if let Err(error) = active.file.sync_data() {
            let failed = Error::io("cannot make rows durable, they may or may not be stored", error);
            return Err(self.poison(failed));
        }
        active.synced = active.file_end;
        self.dirty_since_ms = None;
        self.note_synced();
        Ok(())
    }

    /// Tells readers and recovery how much is durable. Nothing depends on its success.
    pub(super) fn note_synced(&mut self) {
        if let Some(active) = &self.active {
            let _ = Hint { base: active.base, synced: active.synced, end: active.end }.write(&self.hint);
        }
    }

    pub(super) fn sync_if_due(&mut self, policy: Fsync, now_ms: u64) -> Result<()> {
        match (policy, self.dirty_since_ms) {
            (Fsync::Interval { ms }, Some(since)) if now_ms.saturating_sub(since) >= ms => self.sync(),
            _ => Ok(()),
        }
    }

    pub(super) fn is_aged(&self, setup: &Setup, now_ms: u64) -> bool {
        let first = self.active.as_ref().and_then(|active| active.time_ms).map(|time| time.0);
        matches!((first, setup.segment_age_ms), (Some(first), Some(age)) if now_ms.saturating_sub(first) >= age)
    }

    fn ensure_active(&mut self, setup: &Setup) -> Result<()> {
        if self.active.is_none() {
            let schemas = setup.schemas.seen();
            let place = Place { dir: &setup.dir, schemas: &schemas, identity: &setup.identity };
            self.active = Some(place.create_active(self.end, &self.version)?);
            self.note_synced();
        }
        Ok(())
    }

    /// The group's rows under the version that is written by now; `None` if they are that already. Appends that waited
    /// while the schema changed are behind.
    fn upgrade(&self, setup: &Setup, group: &[Pending]) -> Result<Option<Vec<Pending>>> {
        if group.iter().all(|pending| pending.version.number == self.version.number) {
            return Ok(None);
        }
        let schemas = setup.schemas.seen();
        let upgraded = group.iter().map(|pending| {
            let rows = schemas.upgrade(pending.rows.schema(), &self.version.schema)?.rows(&pending.rows)?;
            Ok(Pending { rows, origin: pending.origin, version: self.version.clone() })
        });
        upgraded.collect::<Result<_>>().map(Some)
    }

    /// Ends an active segment of an earlier schema version: a segment is of one version. An empty one makes room.
    fn turn_to_version(&mut self, setup: &Setup) -> Result<()> {
        let Some(active) = self.active.as_ref().filter(|active| active.version.number != self.version.number) else {
            return Ok(());
        };
        if active.end > active.base {
            return self.seal(setup);
        }
        let old = SegmentName { base: active.base, schema: active.version.number };
        // What is durable of the old file says nothing of the new one, which has its place in the hint.
        Hint { base: active.base, synced: 0, end: active.base }.write(&self.hint).map_err(|error| {
            Error::io(format!("cannot write file: path={}", Hint::path(&setup.dir).display()), error)
        })?;
        let before = self.active.take();
        if let Err(error) = self.ensure_active(setup) {
            self.active = before;
            return Err(error);
        }
        // Beside the new one it counts for nothing; the next writer removes it if this fails.
        let _ = files::remove(&old.open(&setup.dir));
        Ok(())
    }

    pub(super) fn seal(&mut self, setup: &Setup) -> Result<()> {
        self.ensure_active(setup)?;
        let Some(active) = self.active.as_ref().filter(|active| active.end > active.base) else { return Ok(()) };
        let mut origins: Vec<(u128, u64)> = self.origins.iter().map(|(&source, &next)| (source, next)).collect();
        origins.sort_unstable();
        let sealing = Sealing {
            dir: &setup.dir,
            file: &active.file,
            version: &active.version,
            identity: &setup.identity,
            block_rows: block_rows(&active.version.schema, setup.block_bytes),
            file_end: active.file_end,
            footer: Footer {
                base: active.base,
                end: active.end,
                time_ms: active.time_ms.unwrap_or_default(),
                blocks: active.blocks.clone(),
                origins,
            },
        };
        // A footer in place needs less room and reads nothing, so it is the way out when gathering fails.
        let sealed = match sealing.wants_gathering() {
            true => match sealing.gathered() {
                Err(NotWritten::Cleanly(_)) => sealing.in_place(),
                gathered => gathered,
            },
            false => sealing.in_place(),
        };
        match sealed {
            Ok(()) => {}
            Err(NotWritten::Cleanly(error)) => return Err(error),
            Err(NotWritten::Poisoned(error)) => return Err(self.poison(error)),
        }
        self.active = None;
        self.dirty_since_ms = None;
        // Without room for a new segment the next append tries again.
        let _ = self.ensure_active(setup);
        Ok(())
    }
}

/// The same error for every append of a group.
fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.report());
    match error.hint() {
        Some(hint) => copy.with_hint(hint),
        None => copy,
    }
}
