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
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::fcntl::Flock;

use super::commit::{NotWritten, Pending, Target, place};
use super::files::{self, Hint};
use super::footer::Footer;
use super::recover::{Active, Place, Recovery};
use super::seal::Sealing;
use super::{Identity, Origin, now_ms};
use crate::error::{Error, ErrorKind, Result};
use crate::rows::Rows;
use crate::schema::Schema;

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

/// What a writer needs to know of its topic.
pub(super) struct Setup {
    pub(super) dir: PathBuf,
    pub(super) schema: Arc<Schema>,
    pub(super) identity: Identity,
    pub(super) block_rows: u32,
    pub(super) segment_bytes: u64,
    pub(super) segment_age_ms: Option<u64>,
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
    end: AtomicU64,
    _lock: Flock<File>,
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

struct Core {
    /// `None` while a new segment could not be made.
    active: Option<Active>,
    end: u64,
    origins: HashMap<u128, u64>,
    hint: File,
    /// Time of the first append since the last sync.
    dirty_since_ms: Option<u64>,
    poisoned: Option<String>,
}

impl Writer {
    /// Takes the partition's lock and recovers what is there.
    pub(super) fn open(setup: Setup, options: WriterOptions) -> Result<Self> {
        let lock = take_lock(&setup.dir)?;
        let place = Place { dir: &setup.dir, schema: &setup.schema, identity: &setup.identity };
        let opened = place.open(options.fsync != Fsync::Never)?;
        let path = Hint::path(&setup.dir);
        let hint = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let hint = hint.map_err(|error| Error::io(format!("cannot open file: path={}", path.display()), error))?;
        let end = opened.active.end;
        let mut core = Core {
            active: Some(opened.active),
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
            end: AtomicU64::new(end),
            _lock: lock,
        });
        let background = match shared.options.fsync {
            Fsync::Interval { ms } => Some(spawn_syncer(shared.clone(), ms)?),
            _ => None,
        };
        Ok(Self { shared, recovery: opened.recovery, background })
    }

    /// Stores rows at the end and returns their offsets. Rows of one call are stored together or not at all.
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
        self.shared.setup.block_rows
    }

    /// What was found when the partition was opened.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Makes everything appended so far durable.
    pub fn sync(&self) -> Result<()> {
        let mut core = self.shared.core();
        core.check()?;
        core.sync()
    }

    /// Seals the active segment, if it holds rows; a new one is begun.
    pub fn seal(&self) -> Result<()> {
        let mut core = self.shared.core();
        core.check()?;
        core.seal(&self.shared.setup)
    }

    /// Does what time asks for: seals a segment that has reached its age, syncs what has waited long enough. Appends do it
    /// on the way; a process that keeps a topic open without appending calls it now and then.
    pub fn maintain(&self) -> Result<()> {
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
        self.stop();
        let mut core = self.shared.core();
        core.check()?;
        if self.shared.options.fsync == Fsync::Never { Ok(()) } else { core.sync() }
    }

    fn submit(&self, rows: &Rows, origin: Option<Origin>) -> Result<Range<u64>> {
        let shared = &*self.shared;
        if !Arc::ptr_eq(rows.schema(), &shared.setup.schema) && rows.schema() != &shared.setup.schema {
            return Err(Error::invalid(format!(
                "rows have another schema than their topic: rows={:?} topic={:?}",
                rows.schema().to_string(),
                shared.setup.schema.to_string()
            )));
        }
        let mut queue = shared.queue();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiting.push((ticket, Pending { rows: rows.clone(), origin }));
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
            let results = shared.core().commit(shared, &group);
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
        self.stop();
        let mut core = self.shared.core();
        if core.poisoned.is_none() && matches!(self.shared.options.fsync, Fsync::Interval { .. }) {
            let _ = core.sync();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Everything that waits, up to the size of a group.
    fn take_group(&mut self) -> Vec<(u64, Pending)> {
        let mut bytes = 0;
        let fitting = self.waiting.iter().take_while(|(_, pending)| {
            let fits = bytes < GROUP_BYTES_MAX;
            bytes += pending.rows.bytes();
            fits
        });
        let count = fitting.count();
        self.waiting.drain(..count).collect()
    }
}

impl Core {
    /// Stores a group and says what became of each append.
    fn commit(&mut self, shared: &Shared, group: &[Pending]) -> Vec<Result<Range<u64>>> {
        match self.store(shared, group) {
            Ok(results) => results,
            Err(error) => group.iter().map(|_| Err(again(&error))).collect(),
        }
    }

    fn store(&mut self, shared: &Shared, group: &[Pending]) -> Result<Vec<Result<Range<u64>>>> {
        let setup = &shared.setup;
        self.check()?;
        let now_ms = (shared.options.clock)();
        if self.is_aged(setup, now_ms) {
            self.seal_quietly(setup)?;
        }
        self.ensure_active(setup)?;
        let (placed, changed) = place(group, self.end, &self.origins);
        let Some(active) = &self.active else { return Err(Error::new(ErrorKind::Closed, "no active segment")) };
        let target = Target {
            file: &active.file,
            schema: &setup.schema,
            identity: &setup.identity,
            block_rows: setup.block_rows,
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
        match shared.options.fsync {
            Fsync::Always => self.sync()?,
            policy => self.sync_if_due(policy, now_ms)?,
        }
        self.origins.extend(changed);
        shared.end.store(self.end, Ordering::Release);
        if self.active.as_ref().is_some_and(|active| active.file_end >= setup.segment_bytes) {
            self.seal_quietly(setup)?;
        }
        Ok(placed.into_iter().map(|placed| placed.map(|placed| placed.offsets)).collect())
    }

    fn take_written(&mut self, written: super::commit::Written, now_ms: u64) {
        let (Some(active), Some(last)) = (self.active.as_mut(), written.blocks.last()) else { return };
        active.end = last.end();
        active.file_end = written.file_end;
        active.blocks.extend(&written.blocks);
        active.time_ms = Some(active.time_ms.map_or((now_ms, now_ms), |time| (time.0.min(now_ms), time.1.max(now_ms))));
        self.end = active.end;
        self.dirty_since_ms.get_or_insert(now_ms);
    }

    fn check(&self) -> Result<()> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::Io, format!("the writer stopped after a failure: {why}"))
                .with_hint("close the topic's writer and open it again, it then reads what is stored")),
        }
    }

    fn poison(&mut self, error: Error) -> Error {
        self.poisoned = Some(error.report());
        error.with_hint("close the topic's writer and open it again, it then reads what is stored")
    }

    fn sync(&mut self) -> Result<()> {
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
    fn note_synced(&mut self) {
        if let Some(active) = &self.active {
            let _ = Hint { base: active.base, synced: active.synced, end: active.end }.write(&self.hint);
        }
    }

    fn sync_if_due(&mut self, policy: Fsync, now_ms: u64) -> Result<()> {
        match (policy, self.dirty_since_ms) {
            (Fsync::Interval { ms }, Some(since)) if now_ms.saturating_sub(since) >= ms => self.sync(),
            _ => Ok(()),
        }
    }

    fn is_aged(&self, setup: &Setup, now_ms: u64) -> bool {
        let first = self.active.as_ref().and_then(|active| active.time_ms).map(|time| time.0);
        matches!((first, setup.segment_age_ms), (Some(first), Some(age)) if now_ms.saturating_sub(first) >= age)
    }

    fn ensure_active(&mut self, setup: &Setup) -> Result<()> {
        if self.active.is_none() {
            let place = Place { dir: &setup.dir, schema: &setup.schema, identity: &setup.identity };
            self.active = Some(place.create_active(self.end)?);
            self.note_synced();
        }
        Ok(())
    }

    /// Seals on the way of an append: without room the segment just stays active, to be sealed later.
    fn seal_quietly(&mut self, setup: &Setup) -> Result<()> {
        match self.seal(setup) {
            Err(error) if self.poisoned.is_some() => Err(error),
            _ => Ok(()),
        }
    }

    fn seal(&mut self, setup: &Setup) -> Result<()> {
        self.ensure_active(setup)?;
        let Some(active) = self.active.as_ref().filter(|active| active.end > active.base) else { return Ok(()) };
        let mut origins: Vec<(u128, u64)> = self.origins.iter().map(|(&source, &next)| (source, next)).collect();
        origins.sort_unstable();
        let sealing = Sealing {
            dir: &setup.dir,
            file: &active.file,
            schema: &setup.schema,
            identity: &setup.identity,
            block_rows: setup.block_rows,
            file_end: active.file_end,
            footer: Footer {
                base: active.base,
                end: active.end,
                time_ms: active.time_ms.unwrap_or_default(),
                blocks: active.blocks.clone(),
                origins,
            },
        };
        let gathered = match sealing.wants_gathering() {
            false => false,
            true => match sealing.gathered() {
                // Before it has its name the new file counts for nothing, and the footer in place needs less room.
                Err(_) if !files::sealed_path(&setup.dir, active.base).exists() => false,
                Err(error) => return Err(self.poison(error)),
                Ok(()) => true,
            },
        };
        if !gathered {
            let sealed = sealing.in_place();
            let file_end = sealing.file_end;
            if let Err(error) = sealed {
                return Err(self.take_back(&setup.dir, file_end, error));
            }
        }
        self.active = None;
        self.dirty_since_ms = None;
        // Without room for a new segment the next append tries again.
        let _ = self.ensure_active(setup);
        Ok(())
    }

    /// After a failed sealing: the segment goes on as the active one if it is certain that it still is.
    fn take_back(&mut self, dir: &Path, file_end: u64, error: Error) -> Error {
        let Some(active) = &self.active else { return error };
        let still = files::open_path(dir, active.base).exists() && !files::sealed_path(dir, active.base).exists();
        match still && error.kind() == ErrorKind::NoSpace && active.file.set_len(file_end).is_ok() {
            true => error,
            false => self.poison(error),
        }
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

/// The lock that makes this the partition's only writer. The kernel frees it when the process ends, however it ends.
fn take_lock(dir: &Path) -> Result<Flock<File>> {
    let path = dir.join(super::LOCK_NAME);
    let failed = |error| Error::io(format!("cannot open topic for writing: path={}", path.display()), error);
    let file = files::lock_file(&path).map_err(failed)?;
    let lock = files::try_lock(file).map_err(failed)?;
    lock.ok_or_else(|| {
        Error::new(ErrorKind::Busy, format!("the topic is open for writing elsewhere: path={}", path.display()))
            .with_hint("close the other writer, or write to another partition")
    })
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
