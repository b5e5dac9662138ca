//! One scope's log as this process sees it: read as it grows, appended to under its lock, copied, taken over.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::fcntl::Flock;

use super::super::fold::Fold;
use super::super::{Changes, Mark, Result, Scope, StoreError};
use super::frame::{BodyWriter, CHANGE_BYTES_MAX, FRAMES_AT, HINT_AT, Header, hint_bytes};
use super::listing::{Listing, fence_path, log_path, tmp_path};
use super::log::{End, Log, Prepared};
use super::{Settings, disk};

/// Times that an append starts again because the log was taken over or rewritten.
const TRIES_MAX: usize = 100;
/// How often waiting readers look for what other processes did.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Bytes of a restored frame's body, about.
const RESTORED_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct ScopeLog {
    scope: Scope,
    /// The scope's directory.
    dir: PathBuf,
    /// The directories from the scope's up to the root.
    dirs: Vec<PathBuf>,
    settings: Settings,
    /// Held through every append of this process.
    writing: Mutex<Writing>,
    log: Mutex<Option<Log>>,
    /// The log has grown.
    grown: Condvar,
}

#[derive(Debug, Default)]
struct Writing {
    /// The log whose name is known to be durable.
    adopted: Option<u64>,
    /// After a failed rewrite: the size from which to try again.
    rewrite_from_bytes: u64,
}

type Locked = Flock<File>;

impl ScopeLog {
    pub(super) fn new(root: &Path, store_dir: &str, scope: &Scope, settings: Settings) -> Self {
        let dir = root.join(store_dir).join(scope.to_string());
        let dirs = dir.ancestors().take_while(|dir| dir.starts_with(root)).map(Path::to_path_buf).collect();
        let (writing, log, grown) = Default::default();
        Self { scope: scope.clone(), dir, dirs, settings, writing, log, grown }
    }

    /// Whether anything was ever written.
    pub(super) fn exists(&self) -> Result<bool> {
        Ok(Listing::settled(&self.dir)?.current().is_some())
    }

    /// Looks at the state as it is now.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Fold) -> T) -> Result<T> {
        let log = self.current()?;
        let empty = Fold::default();
        Ok(look(log.as_ref().map_or(&empty, Log::fold)))
    }

    /// The newest generation, at the cost of two system calls while nothing changes.
    pub(super) fn generation(&self) -> Result<u64> {
        {
            let log = self.log.lock().expect("no thread panics while it holds this lock");
            if let Some(log) = log.as_ref().filter(|log| log.is_as_read()) {
                return Ok(log.fold().generation());
            }
        }
        self.read(Fold::generation)
    }

    /// See [`Store::watch`](super::Store::watch).
    pub(super) fn watch(&self, from: Mark, timeout: Duration) -> Result<Changes> {
        let start = Instant::now();
        loop {
            let log = self.current()?;
            let empty = Fold::default();
            let changes = log.as_ref().map_or(&empty, Log::fold).changes(&self.scope, from)?;
            let left = timeout.saturating_sub(start.elapsed());
            if changes.whole || !changes.changes.is_empty() || left.is_zero() {
                return Ok(changes);
            }
            let waited = self.grown.wait_timeout(log, left.min(LOOK_EVERY));
            drop(waited.expect("no thread panics while it holds this lock"));
        }
    }

    /// The current log up to date; `None` when nobody has written yet.
    fn current(&self) -> Result<MutexGuard<'_, Option<Log>>> {
        let mut log = self.log.lock().expect("no thread panics while it holds this lock");
        let is_current = match &mut *log {
            None => false,
            Some(log) => {
                let next = log_path(&self.dir, log.number() + 1);
                // What looks damaged may be an append that failed and was taken back: only a fresh look names damage.
                log.is_linked()? && !next.exists() && log.catch_up().is_ok()
            }
        };
        if !is_current {
            *log = None;
            *log = self.load()?;
        }
        Ok(log)
    }

    fn load(&self) -> Result<Option<Log>> {
        for _ in 0..TRIES_MAX {
            let Some(number) = Listing::settled(&self.dir)?.current() else { return Ok(None) };
            match Log::open(&log_path(&self.dir, number), &self.scope, number) {
                // Rewritten between the listing and now.
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                log => return log.map(Some),
            }
        }
        Err(StoreError::Busy { scope: self.scope.clone() })
    }

    /// Appends what `make` makes of the state that it will follow, durably; `None` for nothing. It may be asked again.
    pub(super) fn append(&self, mut make: impl FnMut(&Fold) -> Result<Option<BodyWriter>>) -> Result<Mark> {
        let mut writing = self.writing.lock().expect("no thread panics while it holds this lock");
        for _ in 0..TRIES_MAX {
            let number = self.current()?.as_ref().map(Log::number);
            let Some(number) = number else {
                self.create()?;
                continue;
            };
            let path = log_path(&self.dir, number);
            let file = match disk::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(StoreError::io("open the log for writing", &path))?,
            };
            let Some(locked) = self.lock(file, &path)? else {
                self.take_over(number)?;
                continue;
            };
            let listing = Listing::settled(&self.dir)?;
            if !listing.is_open(number) {
                drop(locked);
                if listing.current() == Some(number) {
                    // Whoever barred it has died.
                    self.take_over(number)?;
                }
                continue;
            }
            self.adopt(&mut writing, number)?;
            let prepared = {
                let mut log = self.current()?;
                let Some(log) = log.as_mut().filter(|log| log.number() == number) else { continue };
                heal(log, &locked)?;
                let Some(body) = make(log.fold())? else { return Ok(log.fold().mark()) };
                log.prepare(body)
            };
            self.write(&locked, &path, number, &prepared)?;
            if !Listing::settled(&self.dir)?.is_open(number) {
                continue;
            }
            let durable = prepared.at + prepared.frame.len() as u64;
            // A lower bound only: nothing depends on this write.
            let _ = disk::write(&locked, &hint_bytes(durable, prepared.header_sum), HINT_AT);
            self.after_append(&mut writing, number);
            return Ok(Mark(prepared.mark));
        }
        Err(StoreError::Busy { scope: self.scope.clone() })
    }

    /// Writes and syncs a frame. One that failed is taken back; a log whose contents are in doubt is barred, so that the
    /// next append begins with a copy.
    fn write(&self, locked: &Locked, path: &Path, number: u64, prepared: &Prepared) -> Result<()> {
        if let Err(error) = disk::write(locked, &prepared.frame, prepared.at) {
            let _ = disk::cut(locked, prepared.at);
            return Err(StoreError::io("write to the log", path)(error));
        }
        if let Err(error) = disk::sync(locked) {
            let _ = disk::cut(locked, prepared.at);
            let _ = disk::create(&fence_path(&self.dir, number)?);
            return Err(StoreError::io("sync the log", path)(error));
        }
        Ok(())
    }

    /// What is not needed for the append to count.
    fn after_append(&self, writing: &mut Writing, number: u64) {
        let is_due = match self.current().as_deref() {
            Ok(Some(log)) if log.number() == number => {
                let (records, bytes) = log.fold().size();
                let live = bytes + (records * CHANGE_BYTES_MAX) as u64;
                log.bytes() >= self.settings.rewrite_bytes_min.max(writing.rewrite_from_bytes)
                    && live.saturating_mul(self.settings.rewrite_live_share) < log.bytes()
            }
            _ => false,
        };
        self.grown.notify_all();
        if is_due && self.copy(number).is_err() {
            let bytes = self.current().ok().and_then(|log| log.as_ref().map(Log::bytes));
            writing.rewrite_from_bytes = bytes.unwrap_or(0) / 4 * 5;
        }
    }

    /// Locks the log, waiting in turn, but not for ever.
    fn lock(&self, file: File, path: &Path) -> Result<Option<Locked>> {
        // Whoever appends in a loop would always be quicker than one who waits to be woken, so waiting is in turn. Only
        // fairness depends on it.
        let turn = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.dir.join("turn"));
        let _turn = turn.and_then(|turn| disk::lock(turn, self.settings.patience));
        disk::lock(file, self.settings.patience).map_err(|error| no_locks(error, path))
    }

    /// Makes the names on the way to a log durable, once.
    fn adopt(&self, writing: &mut Writing, number: u64) -> Result<()> {
        if writing.adopted != Some(number) {
            let dirs = if writing.adopted.is_none() { &self.dirs[..] } else { &self.dirs[..1] };
            for dir in dirs {
                disk::sync_dir(dir).map_err(StoreError::io("sync the directory", dir))?;
            }
            writing.adopted = Some(number);
        }
        Ok(())
    }

    /// Makes the scope's first log.
    fn create(&self) -> Result<()> {
        for dir in self.dirs.iter().rev().skip(1) {
            disk::create_dir(dir).map_err(StoreError::io("make the directory", dir))?;
        }
        self.place(0, &copy_of(&Fold::default(), &self.scope, 0))
    }

    /// Bars a log whose lock cannot be had, and copies it.
    fn take_over(&self, number: u64) -> Result<()> {
        let fence = fence_path(&self.dir, number)?;
        disk::create(&fence).map_err(StoreError::io("bar the log", &fence))?;
        self.copy(number).inspect_err(|_| {
            let _ = disk::remove(&fence);
        })
    }

    /// Puts a copy without garbage in a log's place. Either its lock is held, or it is barred.
    fn copy(&self, number: u64) -> Result<()> {
        let bytes = {
            let log = self.current()?;
            let Some(log) = log.as_ref().filter(|log| log.number() == number) else { return Ok(()) };
            copy_of(log.fold(), &self.scope, number + 1)
        };
        self.place(number + 1, &bytes)
    }

    /// Makes a log, unless somebody else has made one of that number.
    fn place(&self, number: u64, bytes: &[u8]) -> Result<()> {
        let tmp = tmp_path(&self.dir)?;
        let file = disk::create(&tmp).map_err(StoreError::io("make a log", &tmp))?;
        let placed = self.fill_and_link(file, &tmp, number, bytes);
        let removed = disk::remove(&tmp).map_err(StoreError::io("remove a file", &tmp));
        placed.and(removed)?;
        disk::sync_dir(&self.dir).map_err(StoreError::io("sync the directory", &self.dir))?;
        self.clean();
        Ok(())
    }

    fn fill_and_link(&self, file: File, tmp: &Path, number: u64, bytes: &[u8]) -> Result<()> {
        let locked = disk::try_lock(file).map_err(|error| no_locks(error, tmp))?;
        // Whoever cleans up holds it, and has removed it.
        let Some(locked) = locked else { return Ok(()) };
        let write = disk::write(&locked, bytes, 0).and_then(|()| disk::sync(&locked));
        write.map_err(StoreError::io("write a log", tmp))?;
        let path = log_path(&self.dir, number);
        match disk::link(tmp, &path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => Ok(()),
            Err(source) if disk::is_unsupported(&source) => Err(StoreError::NoLinks { path, source }),
            linked => linked.map_err(StoreError::io("name a log", &path)),
        }
    }

    /// Removes what has lost its purpose. What cannot be removed now will be another time.
    fn clean(&self) {
        let Ok(listing) = Listing::settled(&self.dir) else { return };
        let Some(current) = listing.current() else { return };
        for &number in listing.logs.iter().filter(|&&number| number < current) {
            // In order, so that a log that has a name is never older than one that has lost it.
            if disk::remove(&log_path(&self.dir, number)).is_err() {
                return;
            }
        }
        for (_, fence) in listing.fences.iter().filter(|(number, _)| *number < current) {
            let _ = disk::remove(fence);
        }
        for tmp in &listing.unfinished {
            if let Ok(Some(_dead)) = File::open(tmp).and_then(disk::try_lock) {
                let _ = disk::remove(tmp);
            }
        }
    }
}

fn no_locks(source: io::Error, path: &Path) -> StoreError {
    if disk::is_unsupported(&source) {
        return StoreError::NoLocks { path: path.into(), source };
    }
    StoreError::io("lock the log", path)(source)
}

/// Under the lock: cuts a torn tail, and makes durable what another process wrote and may not have synced. After a
/// failed sync the kernel may call pages clean that never reached the disk, so these are written once more.
fn heal(log: &mut Log, locked: &Locked) -> Result<()> {
    let path = log.path().to_path_buf();
    if log.catch_up()? == End::Torn {
        disk::cut(locked, log.bytes()).map_err(StoreError::io("cut the log's torn end", &path))?;
    }
    let hint = log.hint()?;
    if hint == Some(log.bytes()) {
        return Ok(());
    }
    let from = hint.unwrap_or(FRAMES_AT);
    let mut bytes = vec![0; (log.bytes() - from) as usize];
    locked.read_exact_at(&mut bytes, from).map_err(StoreError::io("read the log", &path))?;
    disk::write(locked, &bytes, from).map_err(StoreError::io("write to the log", &path))?;
    disk::sync(locked).map_err(StoreError::io("sync the log", &path))?;
    let hint = hint_bytes(log.bytes(), log.header_sum());
    disk::write(locked, &hint, HINT_AT).map_err(StoreError::io("write to the log", &path))
}

/// The bytes of a log that holds this state only.
fn copy_of(fold: &Fold, scope: &Scope, number: u64) -> Vec<u8> {
    let header = Header { scope: scope.to_string(), number, mark: fold.mark().0, generation: fold.generation() };
    let mut bytes = header.to_bytes().to_vec();
    let header_sum = header.sum();
    bytes.resize(FRAMES_AT as usize, 0);
    let (mut body, mut sum) = (BodyWriter::restored(), header_sum);
    let mut slots = fold.slots().peekable();
    while let Some((key, slot)) = slots.next() {
        body.restore(key, slot);
        if body.len() >= RESTORED_BYTES || slots.peek().is_none() {
            let (frame, next) = std::mem::replace(&mut body, BodyWriter::restored()).frame(header.mark, sum);
            bytes.extend_from_slice(&frame);
            sum = next;
        }
    }
    let hint = hint_bytes(bytes.len() as u64, header_sum);
    bytes[HINT_AT as usize..HINT_AT as usize + hint.len()].copy_from_slice(&hint);
    bytes
}
