//! The loader as Python sees it: a loader of one rank, and an iterator over its batches.
//!
//! `DataLoader` in Python settles arguments and ranks; what happens at every step is here. Rules:
//! - `next` looks for a ready batch before it lets go of the interpreter's lock, and lets go only while it really waits:
//!   taking the lock back can cost a whole switch interval.
//! - While it waits it wakes up to let signals through, so Ctrl-C raises. It takes a batch only after that: a batch that
//!   an interrupt kept from the trainer is not counted as handed out.
//! - A forked child is refused before any lock is touched: another thread of the parent may have held it.
//! - The loader is one object behind a lock, together with which iterator is live; a second live one is refused. Nobody
//!   waits for that lock while holding the interpreter's.
//! - Frameworks make iterators early, and keep the old one while they make the next. So an iterator that nobody has drawn
//!   from binds nothing: another one takes its place, and `load` and `set_epoch` move it. And an iterator is over with
//!   its last batch, not with the `next` after it.

mod iterator;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use cursorstore::{State, StateError};
use feeder::engine::settings::{parse_direct, parse_reader, parse_tail};
use feeder::engine::{Checksum, Loader, OnBadRecord, Settings};
use feeder::job::{Fence, Shape};
use feeder::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::PyDataset;
use crate::error::{OrRaise, raise};
use crate::framework::Framework;

pub use iterator::BatchIterator;

/// How often a waiting `next` looks for signals.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// What iterators and the loader object share.
struct Core {
    inner: Mutex<Inner>,
    pid: u32,
    closed: AtomicBool,
    timeout: Option<Duration>,
    output: Option<String>,
    /// Says at every batch whether a later run of the job has taken over; empty without a job.
    fence: OnceLock<Arc<Fence>>,
}

/// The loader, and whose turn it is.
struct Inner {
    loader: Loader,
    /// Token of the live iterator, if there is one.
    live: Weak<()>,
}

impl Inner {
    fn begin(&mut self, token: &Arc<()>, replace: bool) -> feeder::Result<()> {
        if !replace && self.live.upgrade().is_some() && !self.loader.is_untouched() {
            let text = "the loader is being iterated already, by an iterator that is neither exhausted nor dropped";
            return Err(Error::invalid(text).with_hint("use up or delete that iterator, or make a second loader"));
        }
        self.loader.begin()?;
        self.live = Arc::downgrade(token);
        Ok(())
    }

    fn load(&mut self, state: &State) -> feeder::Result<()> {
        let untouched = self.loader.is_untouched();
        self.loader.load(state)?;
        if !untouched {
            self.forget_iterator();
        }
        Ok(())
    }

    fn set_epoch(&mut self, epoch: u64) -> feeder::Result<()> {
        let (before, untouched) = (self.loader.cursor(), self.loader.is_untouched());
        self.loader.set_epoch(epoch)?;
        if self.loader.cursor() != before && !untouched {
            self.forget_iterator();
        }
        Ok(())
    }

    /// Whether the iterator of that token has yet to go where its loader was moved to before the first batch.
    fn was_moved(&self, token: &Arc<()>) -> bool {
        self.loader.is_fresh() && std::ptr::eq(Arc::as_ptr(token), self.live.as_ptr())
    }

    /// Ends the life of the iterator that was live: what it would yield is no longer what comes next.
    fn forget_iterator(&mut self) {
        self.live = Weak::new();
    }

    /// The loader, for the iterator of that token. An error if the loader has gone elsewhere meanwhile: a batch from
    /// there would be one of another iteration.
    fn live(&mut self, token: &Arc<()>) -> feeder::Result<&mut Loader> {
        if std::ptr::eq(Arc::as_ptr(token), self.live.as_ptr()) {
            return Ok(&mut self.loader);
        }
        let text = "this iterator is over: load_state_dict, set_epoch or close was called on its loader";
        Err(Error::new(ErrorKind::Closed, text).with_hint("call iter() on the loader again"))
    }
}

impl Core {
    fn check_process(&self) -> PyResult<()> {
        let here = slab::process::id();
        if here == self.pid {
            return Ok(());
        }
        let text = "the loader was made by another process and cannot be used in a fork of it";
        let error = Error::new(ErrorKind::Closed, format!("{text}: made_by={} here={here}", self.pid));
        Err(raise(&error.with_hint("make a loader in the child process")))
    }

    /// Runs short `work`; the interpreter's lock is let go only if another thread has the loader.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Inner) -> T + Send) -> PyResult<T> {
        self.check_process()?;
        match self.try_lock() {
            Some(mut inner) => Ok(work(&mut inner)),
            None => Ok(py.detach(|| work(&mut self.lock()))),
        }
    }

    /// Runs `work` that may take its time, without the interpreter's lock.
    fn apart<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Inner) -> T + Send) -> PyResult<T> {
        self.check_process()?;
        Ok(py.detach(|| work(&mut self.lock())))
    }

    fn check_fence(&self) -> PyResult<()> {
        match self.fence.get() {
            Some(fence) => fence.check().or_raise(),
            None => Ok(()),
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loader of one rank; see `forebay.DataLoader`.
#[pyclass(frozen, name = "Loader", module = "forebay._forebay")]
pub struct PyLoader {
    core: Arc<Core>,
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (dataset, *, global_batch, rank, world, local_world, columns, shuffle, seed, drop_last, tail, checksum,
        on_bad_record, bad_records_max, lanes, chunk, pool, reader, direct, reader_threads, depth,
        read_ahead_steps,
        memory_limit_bytes, overflow_bytes, timeout_s, output))]
    #[allow(clippy::too_many_arguments, reason = "they are the settings, by name")]
    fn new(
        py: Python<'_>,
        dataset: &PyDataset,
        global_batch: u32,
        rank: u32,
        world: u32,
        local_world: Option<u32>,
        columns: Option<Vec<String>>,
        shuffle: bool,
        seed: u64,
        drop_last: bool,
        tail: Option<&str>,
        checksum: &str,
        on_bad_record: &str,
        bad_records_max: u64,
        lanes: Option<u32>,
        chunk: Option<u32>,
        pool: Option<u32>,
        reader: &str,
        direct: &str,
        reader_threads: Option<usize>,
        depth: usize,
        read_ahead_steps: Option<u32>,
        memory_limit_bytes: Option<u64>,
        overflow_bytes: u64,
        timeout_s: Option<f64>,
        output: Option<String>,
    ) -> PyResult<Self> {
        Framework::check_name(output.as_deref())?;
        let timeout = match timeout_s {
            None => None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                raise(&Error::invalid(format!("timeout is seconds, or 0 for none: timeout={seconds}")))
            })?),
        };
        let settings = Settings {
            global_batch,
            rank,
            world,
            local_world,
            columns,
            shuffle,
            seed,
            lanes,
            chunk,
            pool,
            drop_last,
            tail: tail.map(parse_tail).transpose().or_raise()?,
            checksum: Checksum::parse(checksum).or_raise()?,
            on_bad_record: OnBadRecord::parse(on_bad_record).or_raise()?,
            bad_records_max,
            reader: parse_reader(reader).or_raise()?,
            direct: parse_direct(direct).or_raise()?,
            reader_threads,
            depth,
            read_ahead_steps,
            memory_limit_bytes,
            overflow_bytes,
        };
        let dataset = dataset.dataset().clone();
        let loader = py.detach(|| Loader::new(dataset, settings)).or_raise()?;
        let core = Core {
            inner: Mutex::new(Inner { loader, live: Weak::new() }),
            pid: slab::process::id(),
            closed: AtomicBool::new(false),
            timeout: timeout.filter(|timeout| !timeout.is_zero()),
            output,
            fence: OnceLock::new(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Starts an iteration. With `replace`, one that is going on ends; else that is an error.
    #[pyo3(signature = (replace=false))]
    fn begin(&self, py: Python<'_>, replace: bool) -> PyResult<BatchIterator> {
        self.core.check_process()?;
        let framework = Framework::named(py, self.core.output.as_deref())?;
        let token = Arc::new(());
        self.core.apart(py, |inner| inner.begin(&token, replace))?.or_raise()?;
        Ok(BatchIterator {
            core: self.core.clone(),
            framework,
            names: Mutex::default(),
            token: Mutex::new(Some(token)),
            handed_out: AtomicU64::new(0),
        })
    }

    /// Batches of one whole epoch.
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.with(py, |inner| inner.loader.steps())
    }

    /// Samples of one whole epoch, over all ranks.
    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.with(py, |inner| inner.loader.samples())
    }

    /// Epoch and place of the cursor.
    fn cursor(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.core.with(py, |inner| (inner.loader.cursor().epoch, inner.loader.cursor().n))
    }

    /// Batches that this iteration has handed out.
    fn handed_out(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.with(py, |inner| inner.loader.handed_out())
    }

    /// Whether the cursor stands at its epoch's end.
    fn ended(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.with(py, |inner| inner.loader.has_ended())
    }

    /// Whether nothing was handed out since the last iteration began, or since a state or an epoch was set.
    fn untouched(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.with(py, |inner| inner.loader.is_untouched())
    }

    /// The state as JSON text, at the cursor or after `consumed` batches of this iteration.
    #[pyo3(signature = (consumed=None))]
    fn state(&self, py: Python<'_>, consumed: Option<u64>) -> PyResult<String> {
        self.core.with(py, |inner| inner.loader.state(consumed).map(|state| state.encode()))?.or_raise()
    }

    /// Takes a state, as JSON text.
    fn load(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let state = parse_state(state)?;
        self.core.apart(py, |inner| inner.load(&state))?.or_raise()
    }

    /// Names the epoch of the next iteration.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.core.with(py, |inner| inner.set_epoch(epoch))?.or_raise()
    }

    /// Running counts by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.core.with(py, |inner| inner.loader.stats())?;
        let dict = PyDict::new(py);
        for (name, value) in stats.named() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// The plan's numbers by name.
    fn plan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let key = self.core.with(py, |inner| inner.loader.key().clone())?;
        let dict = PyDict::new(py);
        dict.set_item("shuffle", key.shuffle)?;
        dict.set_item("seed", key.seed)?;
        dict.set_item("lanes", key.lanes)?;
        dict.set_item("chunk", key.chunk)?;
        dict.set_item("pool", key.pool)?;
        Ok(dict)
    }

    /// Lines for the log, each once.
    fn take_notices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.with(py, |inner| inner.loader.take_notices())
    }

    /// Records that were masked or replaced: index and reason.
    fn bad_records(&self, py: Python<'_>) -> PyResult<Vec<(u64, String)>> {
        self.core.with(py, |inner| inner.loader.bad_records().clone().into_iter().collect())
    }

    /// Ends the loader; safe to call again, and in a forked child, where it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.core.check_process().is_err() {
            return Ok(());
        }
        self.core.closed.store(true, Ordering::Relaxed);
        self.core.apart(py, |inner| {
            inner.forget_iterator();
            inner.loader.close();
        })
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.core.closed.load(Ordering::Relaxed)
    }
}

impl PyLoader {
    /// From now on batches are handed out only while this says that no later run has taken over.
    pub(crate) fn bind(&self, fence: &Arc<Fence>) {
        let _ = self.core.fence.set(fence.clone());
    }

    /// What a job needs to know of the loader.
    pub(crate) fn shape(&self, py: Python<'_>) -> PyResult<Shape> {
        self.core.with(py, |inner| {
            let settings = inner.loader.settings();
            Shape { world: settings.world, batch: settings.global_batch, drop_last: settings.drop_last }
        })
    }

    /// Puts the loader at a state, or leaves it where it is, and says its state.
    pub(crate) fn place(&self, state: Option<&State>) -> feeder::Result<State> {
        let mut inner = self.core.lock();
        state.map_or(Ok(()), |state| inner.load(state))?;
        inner.loader.state(None)
    }
}

/// A state from JSON text.
pub(crate) fn parse_state(text: &str) -> PyResult<State> {
    State::decode(text).map_err(|error| {
        let kind = match error {
            StateError::Newer { .. } | StateError::NoVersion { .. } | StateError::Inconsistent { .. } => {
                ErrorKind::StateMismatch
            }
            _ => ErrorKind::Invalid,
        };
        raise(&Error::new(kind, error.to_string()).with_source(error))
    })
}
