//! The writer of one partition: appends from any number of threads, gathered into commit groups.
//!
//! An append waits for its group. The first thread that finds no leader leads: it takes everything that waits, writes it
//! in one go, syncs once as the policy says, and wakes the others; what comes meanwhile is the next group. Offsets are
//! dense, and appends of one thread keep their order. When `append` returns, its rows are as durable as the policy says.
//!
//! A failed write fails the appends of its group and leaves no trace: appends work again when there is room. After a
//! failed sync nothing can be known of the disk any more; the writer then refuses everything until it is opened again.

use std::collections::HashMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::commit::Pending;
use super::core::{Core, Setup};
use super::files::{self, Held, Hint};
use super::layout::block_rows;
use super::recover::{Place, Recovery};
use super::{Origin, now_ms};
use crate::error::{Error, ErrorKind, Result};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::{Defaults, SchemaVersion, Schemas};

/// Bytes of rows after which a commit group takes no further append.
pub const GROUP_BYTES_MAX: usize = 64 << 20;

/// When appended rows are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Before `append` returns: what was acknowledged survives a crash of the machine.
    #[default]
    Always,
    /// At most so many milliseconds later: a crash of the machine may lose these. A crash of the process loses nothing.
    Interval {
        /// The time.
        ms: u64,
    },
    /// When the kernel sees fit, and when a segment is sealed. A crash of the process loses nothing.
    Never,
}

/// How a partition is written.
#[derive(Clone)]
pub struct WriterOptions {
    /// When rows are made durable.
    pub fsync: Fsync,
    /// The time in milliseconds since 1970, stored with the rows and used for sealing by age.
    pub clock: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { fsync: Fsync::default(), clock: Arc::new(now_ms) }
    }
}

impl fmt::Debug for WriterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterOptions").field("fsync", &self.fsync).finish_non_exhaustive()
    }
}

/// See the module. Dropping it frees the partition for another writer.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    recovery: Recovery,
    background: Option<JoinHandle<()>>,
}

struct Shared {
    setup: Setup,
    options: WriterOptions,
    queue: Mutex<Queue>,
    /// A group is done.
    turn: Condvar,
    /// The writer closes.
    closing: Condvar,
    core: Mutex<Core>,
    /// The schemas that appends are compared with; the newest is what is written.
    schemas: Mutex<Arc<Schemas>>,
    end: AtomicU64,
    lock: Held,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("dir", &self.setup.dir).field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<(u64, Pending)>,
    done: HashMap<u64, Result<Range<u64>>>,
    next_ticket: u64,
    leading: bool,
    closed: bool,
}

impl Writer {
    /// Takes the partition's lock and recovers what is there. `still_there` is asked under the lock, which keeps the topic
    /// from being removed.
    pub(super) fn open(setup: Setup, options: WriterOptions, still_there: impl FnOnce() -> Result<()>) -> Result<Self> {
        let lock = take_lock(&setup.dir)?;
        still_there()?;
        // All versions of segments that are there: only this writer makes them from now on.
        let schemas = setup.schemas.now()?;
        let place = Place { dir: &setup.dir, schemas: &schemas, identity: &setup.identity };
        let opened = place.open(options.fsync != Fsync::Never)?;
        let path = Hint::path(&setup.dir);
        let hint = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let hint = hint.map_err(|error| Error::io(format!("cannot open file: path={}", path.display()), error))?;
        let end = opened.active.end;
        let mut core = Core {
            active: Some(opened.active),
            version: schemas.newest().clone(),
            end,
            origins: opened.origins,
            hint,
            dirty_since_ms: None,
            poisoned: None,
        };
        if options.fsync != Fsync::Never {
            core.note_synced();
        }
        let shared = Arc::new(Shared {
            setup,
            options,
            queue: Mutex::default(),
            turn: Condvar::new(),
            closing: Condvar::new(),
            core: Mutex::new(core),
            schemas: Mutex::new(schemas),
            end: AtomicU64::new(end),
            lock,
        });
        let background = match shared.options.fsync {
            Fsync::Interval { ms } => Some(spawn_syncer(shared.clone(), ms)?),
            _ => None,
        };
        Ok(Self { shared, recovery: opened.recovery, background })
    }

    /// Stores rows at the end and returns their offsets. Rows of one call are stored together or not at all.
    ///
    /// Rows need not have the topic's schema. Columns go by name; narrower ones are widened; columns that were added with a
    /// default may be missing. Wider ones make the topic's next schema version first. Whatever would lose or guess
    /// something is refused with the column, and nothing is written.
    pub fn append(&self, rows: &Rows) -> Result<Range<u64>> {
        self.submit(rows, None)
    }

    /// Stores rows `origin.first..` of a source. Rows that this source has stored already are left out, so a retry stores
    /// nothing twice; rows that would leave some of the source out are refused. Returns the offsets of what was stored.
    pub fn append_from(&self, origin: Origin, rows: &Rows) -> Result<Range<u64>> {
        self.submit(rows, Some(origin))
    }

    /// The first row of a source that is not stored yet; `None` if none is.
    pub fn origin_next(&self, source: u128) -> Option<u64> {
        self.shared.core().origins.get(&source).copied()
    }

    /// Offset after the last row stored.
    pub fn end(&self) -> u64 {
        self.shared.end.load(Ordering::Acquire)
    }

    /// Rows of a full block: appends of a multiple of it are stored without being gathered later.
    pub fn block_rows(&self) -> u32 {
        block_rows(&self.schemas().newest().schema, self.shared.setup.block_bytes)
    }

    /// The schemas of the topic; the newest is what this writer stores.
    pub fn schemas(&self) -> Arc<Schemas> {
        self.shared.schemas.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `schema` the topic's next schema version, for all its partitions: columns may be wider, and new ones need a
    /// default. Durable when it returns; nothing, if the topic's schema takes such rows already. The segment that is
    /// active now is sealed before the first rows of the new version.
    pub fn grow(&self, schema: &Schema, defaults: &Defaults) -> Result<Arc<Schemas>> {
        self.shared.check_process()?;
        self.shared.grow(schema, defaults)
    }

    /// What was found when the partition was opened.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Makes everything appended so far durable.
    pub fn sync(&self) -> Result<()> {
        self.shared.check_process()?;
        let mut core = self.shared.core();
        core.check()?;
        core.sync()
    }

    /// Seals the active segment, if it holds rows; a new one is begun.
    pub fn seal(&self) -> Result<()> {
        self.shared.check_process()?;
        let mut core = self.shared.core();
        core.check()?;
        core.seal(&self.shared.setup)
    }

    /// Does what time asks for: seals a segment that has reached its age, syncs what has waited long enough. Appends do it
    /// on the way; a process that keeps a topic open without appending calls it now and then.
    pub fn maintain(&self) -> Result<()> {
        self.shared.check_process()?;
        let now_ms = (self.shared.options.clock)();
        let mut core = self.shared.core();
        core.check()?;
        core.sync_if_due(self.shared.options.fsync, now_ms)?;
        match core.is_aged(&self.shared.setup, now_ms) {
            true => core.seal(&self.shared.setup),
            false => Ok(()),
        }
    }

    /// Makes everything durable (unless the policy is `never`) and frees the partition.
    pub fn close(mut self) -> Result<()> {
        self.shared.check_process()?;
        self.stop();
        let mut core = self.shared.core();
        core.check()?;
        if self.shared.options.fsync == Fsync::Never { Ok(()) } else { core.sync() }
    }

    fn submit(&self, rows: &Rows, origin: Option<Origin>) -> Result<Range<u64>> {
        let shared = &*self.shared;
        shared.check_process()?;
        let (rows, version) = shared.fit(rows)?;
        // Asked before leading: a clock that fails must not leave the others without a leader.
        let now_ms = (shared.options.clock)();
        let mut queue = shared.queue();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiting.push((ticket, Pending { rows, origin, version }));
        loop {
            if let Some(result) = queue.done.remove(&ticket) {
                return result;
            }
            if queue.leading {
                queue = shared.turn.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.leading = true;
            let group = queue.take_group();
            drop(queue);
            let (tickets, group): (Vec<u64>, Vec<Pending>) = group.into_iter().unzip();
            let results = {
                let mut core = shared.core();
                let results = core.commit(&shared.setup, shared.options.fsync, now_ms, &group);
                shared.end.store(core.end, Ordering::Release);
                results
            };
            queue = shared.queue();
            queue.leading = false;
            queue.done.extend(tickets.into_iter().zip(results));
            shared.turn.notify_all();
        }
    }

    fn stop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.closing.notify_all();
        if let Some(thread) = self.background.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.shared.lock.is_ours() {
            return;
        }
        self.stop();
        let mut core = self.shared.core();
        if core.poisoned.is_none() && matches!(self.shared.options.fsync, Fsync::Interval { .. }) {
            let _ = core.sync();
        }
    }
}

impl Shared {
    /// A forked child has the file but not the lock's right to it, nor the threads.
    fn check_process(&self) -> Result<()> {
        match self.lock.is_ours() {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Closed, "the writer belongs to the process that this one was forked from")
                    .with_hint("open the topic in the process that writes it"))
            }
        }
    }

    /// The rows as they are stored, and the schema version that they are then.
    fn fit(&self, rows: &Rows) -> Result<(Rows, SchemaVersion)> {
        let schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let newest = schemas.newest();
        if Arc::ptr_eq(rows.schema(), &newest.schema) || *rows.schema() == newest.schema {
            return Ok((rows.clone(), newest.clone()));
        }
        let mut growth = schemas.growth();
        let fits = growth.take(rows.schema(), &Defaults::default()).and_then(|()| growth.version(0));
        let schemas = match fits {
            Ok(None) => schemas,
            // Or another process made the version that these rows are of.
            _ => self.grow(rows.schema(), &Defaults::default())?,
        };
        let newest = schemas.newest();
        Ok((schemas.upgrade(rows.schema(), &newest.schema)?.rows(rows)?, newest.clone()))
    }

    fn grow(&self, schema: &Schema, defaults: &Defaults) -> Result<Arc<Schemas>> {
        let now_ms = (self.options.clock)();
        let schemas = self.setup.schemas.grow(now_ms, &|growth| {
            growth.take(schema, defaults)?;
            growth.check_defaults(defaults)
        })?;
        let mut known = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        if schemas.versions().len() > known.versions().len() {
            *known = schemas;
        }
        Ok(known.clone())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Everything that waits, up to the size of a group, and up to the first that is of another schema version.
    fn take_group(&mut self) -> Vec<(u64, Pending)> {
        let mut bytes = 0;
        let version = self.waiting.first().map(|(_, pending)| pending.version.number);
        let fitting = self.waiting.iter().take_while(|(_, pending)| {
            let fits = bytes < GROUP_BYTES_MAX && Some(pending.version.number) == version;
            bytes += pending.rows.bytes();
            fits
        });
        let count = fitting.count();
        self.waiting.drain(..count).collect()
    }
}

/// The lock that makes this the partition's only writer. The kernel frees it when the process ends, however it ends.
fn take_lock(dir: &Path) -> Result<Held> {
    let path = dir.join(super::LOCK_NAME);
    let failed = |error| Error::io(format!("cannot open topic for writing: path={}", path.display()), error);
    let file = files::lock_file(&path).map_err(failed)?;
    let Some(mut lock) = files::try_lock(file).map_err(failed)? else {
        let mut pid = String::new();
        let _ = files::lock_file(&path).and_then(|file| file.take(20).read_to_string(&mut pid));
        let text = format!("the topic is open for writing elsewhere: path={} pid={}", path.display(), pid.trim());
        return Err(
            Error::new(ErrorKind::Busy, text).with_hint("close the other writer, or write to another partition")
        );
    };
    // Only for the message above, so it may fail.
    let _ = lock.write(std::process::id().to_string().as_bytes());
    Ok(lock)
}

/// The thread that syncs in the background.
fn spawn_syncer(shared: Arc<Shared>, ms: u64) -> Result<JoinHandle<()>> {
    let work = move || {
        let mut queue = shared.queue();
        while !queue.closed {
            let wait = shared.closing.wait_timeout(queue, Duration::from_millis(ms.max(1)));
            let (back, waited) = wait.unwrap_or_else(PoisonError::into_inner);
            queue = back;
            if waited.timed_out() && !queue.closed {
                drop(queue);
                let mut core = shared.core();
                if core.poisoned.is_none() {
                    // A failure poisons the core, and the next append reports it.
                    let _ = core.sync();
                }
                drop(core);
                queue = shared.queue();
            }
        }
    };
    std::thread::Builder::new()
        .name("forebay-sync".into())
        .spawn(work)
        .map_err(|error| Error::io("cannot start the thread that syncs", error))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::tests::support::{Clock, Place, assert_numbered, policy, rows, small};
    use super::*;

    fn swap_file(writer: &Writer, path: &str) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        writer.shared.core().active.as_mut().unwrap().file = file;
    }

    #[test]
    fn after_a_failure_that_leaves_doubt_everything_is_refused_until_reopened() {
        // Writes fail and cannot be cut back; syncs fail.
        for (device, kind, text) in [
            ("/dev/full", ErrorKind::Io, "could not be cut off"),
            ("/dev/null", ErrorKind::Io, "may or may not be stored"),
        ] {
            let place = Place::new("x:int64", &small(64, u64::MAX));
            let schema = place.topic.schema().clone();
            let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
            writer.append(&rows(&schema, 0..5)).unwrap();
            swap_file(&writer, device);
            let error = writer.append(&rows(&schema, 5..7)).unwrap_err();
            assert_eq!(error.kind(), kind, "{}", error.report());
            assert!(
                error.report().contains(text) && error.hint().unwrap().contains("open it again"),
                "{}",
                error.report()
            );
            for refused in
                [writer.append(&rows(&schema, 5..7)).map(drop), writer.sync(), writer.seal(), writer.maintain()]
            {
                assert!(refused.unwrap_err().report().contains("stopped after a failure"));
            }
            assert!(writer.close().is_err());
            let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
            assert_eq!(writer.append(&rows(&schema, 5..7)).unwrap(), 5..7);
            assert_eq!(assert_numbered(&place.topic, 0), 7);
        }
    }

    #[test]
    fn rows_become_durable_when_the_policy_says() {
        let synced = |place: &Place| Hint::read(&place.topic.dir().join("p0000"), 0).end;
        let (place, clock) = (Place::new("x:int64", &small(64, u64::MAX)), Clock::default());
        let schema = place.topic.schema().clone();
        // So long that the background never comes in between.
        let writer = place.topic.writer(0, clock.options(Fsync::Interval { ms: 1 << 40 })).unwrap();
        writer.append(&rows(&schema, 0..3)).unwrap();
        assert_eq!(synced(&place), 0);
        clock.set(1 << 40);
        writer.append(&rows(&schema, 3..5)).unwrap();
        assert_eq!(synced(&place), 5);
        writer.append(&rows(&schema, 5..6)).unwrap();
        clock.set((1 << 41) - 1);
        writer.maintain().unwrap();
        assert_eq!(synced(&place), 5);
        clock.set(1 << 41);
        writer.maintain().unwrap();
        assert_eq!(synced(&place), 6);
        writer.append(&rows(&schema, 6..7)).unwrap();
        writer.close().unwrap();
        assert_eq!(synced(&place), 7);

        let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
        writer.append(&rows(&schema, 7..8)).unwrap();
        assert_eq!(synced(&place), 7);
        writer.sync().unwrap();
        assert_eq!(synced(&place), 8);
        drop(writer);

        // The background's own turn: it needs no append.
        let writer = place.topic.writer(0, policy(Fsync::Interval { ms: 1 })).unwrap();
        writer.append(&rows(&schema, 8..9)).unwrap();
        let mut queue = writer.shared.queue();
        for _ in 0..1000 {
            if synced(&place) == 9 {
                break;
            }
            queue = writer.shared.turn.wait_timeout(queue, Duration::from_millis(5)).unwrap().0;
        }
        drop(queue);
        assert_eq!(synced(&place), 9);
    }
}
