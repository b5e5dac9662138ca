//! The loader as Python sees it: a dataset fixed when the job starts, a loader of one rank, an iterator over batches.
//!
//! `DataLoader` in Python settles arguments and ranks; what happens at every step is here. Rules:
//! - `next` looks for a ready batch before it lets go of the interpreter's lock, and lets go only while it really waits:
//!   taking the lock back can cost a whole switch interval.
//! - While it waits it wakes up to let signals through, so Ctrl-C raises.
//! - A forked child is refused before any lock is touched: another thread of the parent may have held it.
//! - The loader is one object behind a lock; an iterator is a handle of it, and a second live one is refused.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use cursorstore::{State, StateError};
use feeder::engine::settings::{parse_reader, parse_tail};
use feeder::engine::{Batch, Checksum, Dataset, Loader, OnBadRecord, Settings, Step};
use feeder::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::dlpack::TensorData;
use crate::error::{OrRaise, raise};
use crate::framework::Framework;

/// How often a waiting `next` looks for signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// The records that a job trains on: all that a topic holds when this is made.
#[pyclass(frozen, name = "Dataset", module = "forebay._forebay")]
pub struct PyDataset {
    dataset: Arc<Dataset>,
}

#[pymethods]
impl PyDataset {
    #[new]
    fn new(py: Python<'_>, root: std::path::PathBuf, topic: &str) -> PyResult<Self> {
        let name = topic
            .parse()
            .map_err(|error: cursorstore::position::BadTopicName| raise(&Error::invalid(error.to_string())))?;
        let dataset = py.detach(|| Dataset::all_of(Path::new(&root), &name)).or_raise()?;
        Ok(Self { dataset: Arc::new(dataset) })
    }

    /// Number of samples.
    fn __len__(&self) -> usize {
        self.dataset.line().total() as usize
    }

    /// The columns as text.
    #[getter]
    fn schema(&self) -> String {
        self.dataset.schema().to_string()
    }

    /// The topic's name.
    #[getter]
    fn topic(&self) -> String {
        self.dataset.name().to_string()
    }

    /// Sample `index` of the topic's order, by column, each read by itself and compared with its checksums.
    #[pyo3(signature = (index, columns=None, output=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        index: u64,
        columns: Option<Vec<String>>,
        output: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let framework = framework(py, output)?;
        let values = py.detach(|| self.dataset.sample(index, columns.as_deref())).or_raise()?;
        let sample = PyDict::new(py);
        for (column, bytes) in values {
            let shape = column.shape.iter().map(|&n| i64::from(n)).collect();
            let data = TensorData::copied(&bytes, column.dtype, shape)
                .ok_or_else(|| PyRuntimeError::new_err("a sample has another size than its column"))?;
            sample.set_item(column.name, framework.give(py, data)?)?;
        }
        Ok(sample)
    }
}

fn framework(py: Python<'_>, output: Option<&str>) -> PyResult<Framework> {
    match output {
        None | Some("auto") => Framework::found(py),
        Some("torch") => Ok(Framework::Torch),
        Some("numpy") => Ok(Framework::Numpy),
        Some("dlpack") => Ok(Framework::Plain),
        Some(other) => Err(raise(&Error::invalid(format!(
            "unknown value, allowed are auto, torch, numpy, dlpack: output={other:?}"
        )))),
    }
}

/// What iterators and the loader object share.
struct Core {
    loader: Mutex<Loader>,
    pid: u32,
    closed: AtomicBool,
    timeout: Option<Duration>,
    output: Option<String>,
    /// The live iterator, if there is one.
    live: Mutex<Weak<()>>,
}

impl Core {
    fn check_process(&self) -> PyResult<()> {
        let here = std::process::id();
        if here == self.pid {
            return Ok(());
        }
        let text = "the loader was made by another process and cannot be used in a fork of it";
        let error = Error::new(ErrorKind::Closed, format!("{text}: made_by={} here={here}", self.pid));
        Err(raise(&error.with_hint("make a loader in the child process")))
    }

    /// Runs `work` on the loader; the interpreter's lock is let go only if another thread has the loader.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Loader) -> T + Send) -> PyResult<T> {
        self.check_process()?;
        match self.loader.try_lock() {
            Ok(mut loader) => Ok(work(&mut loader)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(work(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(py.detach(|| work(&mut self.lock()))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Loader> {
        self.loader.lock().unwrap_or_else(PoisonError::into_inner)
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
    #[pyo3(signature = (dataset, *, global_batch, rank, world, columns, shuffle, seed, drop_last, tail, checksum,
        on_bad_record, bad_records_max, lanes, chunk, pool, reader, reader_threads, depth, read_ahead_steps,
        memory_limit_bytes, overflow_bytes, timeout_s, output))]
    #[allow(clippy::too_many_arguments, reason = "they are the settings, by name")]
    fn new(
        py: Python<'_>,
        dataset: &PyDataset,
        global_batch: u32,
        rank: u32,
        world: u32,
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
        reader_threads: Option<usize>,
        depth: usize,
        read_ahead_steps: Option<u32>,
        memory_limit_bytes: Option<u64>,
        overflow_bytes: u64,
        timeout_s: Option<f64>,
        output: Option<String>,
    ) -> PyResult<Self> {
        framework_name(output.as_deref())?;
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
            reader_threads,
            depth,
            read_ahead_steps,
            memory_limit_bytes,
            overflow_bytes,
        };
        let dataset = dataset.dataset.clone();
        let loader = py.detach(|| Loader::new(dataset, settings)).or_raise()?;
        let core = Core {
            loader: Mutex::new(loader),
            pid: std::process::id(),
            closed: AtomicBool::new(false),
            timeout: timeout.filter(|timeout| !timeout.is_zero()),
            output,
            live: Mutex::default(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Starts an iteration.
    fn begin(&self, py: Python<'_>) -> PyResult<BatchIterator> {
        self.core.check_process()?;
        let framework = framework(py, self.core.output.as_deref())?;
        let mut live = self.core.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.upgrade().is_some() {
            let text = "the loader is being iterated already, by an iterator that is neither exhausted nor dropped";
            return Err(raise(
                &Error::invalid(text).with_hint("use up or delete that iterator, or make a second loader"),
            ));
        }
        let core = &self.core;
        py.detach(|| core.lock().begin()).or_raise()?;
        let token = Arc::new(());
        *live = Arc::downgrade(&token);
        Ok(BatchIterator {
            core: self.core.clone(),
            framework,
            names: Mutex::default(),
            token: Mutex::new(Some(token)),
        })
    }

    /// Batches of one whole epoch.
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.with(py, |loader| loader.steps())
    }

    /// Samples of one whole epoch, over all ranks.
    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.with(py, |loader| loader.samples())
    }

    /// Epoch and place of the cursor.
    fn cursor(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.core.with(py, |loader| (loader.cursor().epoch, loader.cursor().n))
    }

    /// The state as JSON text, at the cursor or after `consumed` batches of this iteration.
    #[pyo3(signature = (consumed=None))]
    fn state(&self, py: Python<'_>, consumed: Option<u64>) -> PyResult<String> {
        self.core.with(py, |loader| loader.state(consumed).map(|state| state.encode()))?.or_raise()
    }

    /// Takes a state, as JSON text.
    fn load(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let state = State::decode(state).map_err(|error| {
            let kind = match error {
                StateError::Newer { .. } | StateError::Inconsistent { .. } => ErrorKind::StateMismatch,
                _ => ErrorKind::Invalid,
            };
            raise(&Error::new(kind, error.to_string()).with_source(error))
        })?;
        self.core.check_process()?;
        let core = &self.core;
        py.detach(|| core.lock().load(&state)).or_raise()?;
        self.forget_iterator();
        Ok(())
    }

    /// Names the epoch of the next iteration.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        let moved = self.core.with(py, |loader| {
            let before = loader.cursor();
            loader.set_epoch(epoch).map(|()| loader.cursor() != before)
        })?;
        if moved.or_raise()? {
            self.forget_iterator();
        }
        Ok(())
    }

    /// Running counts by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.core.with(py, |loader| loader.stats())?;
        let dict = PyDict::new(py);
        for (name, value) in stats.named() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// The plan's numbers by name.
    fn plan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let key = self.core.with(py, |loader| loader.key().clone())?;
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
        self.core.with(py, Loader::take_notices)
    }

    /// Records that were masked or replaced: index and reason.
    fn bad_records(&self, py: Python<'_>) -> PyResult<Vec<(u64, String)>> {
        self.core.with(py, |loader| loader.bad_records().clone().into_iter().collect())
    }

    /// Ends the loader; safe to call again, and in a forked child, where it does nothing.
    fn close(&self, py: Python<'_>) {
        if self.core.check_process().is_ok() {
            self.core.closed.store(true, Ordering::Relaxed);
            let core = &self.core;
            py.detach(|| core.lock().close());
            self.forget_iterator();
        }
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.core.closed.load(Ordering::Relaxed)
    }
}

impl PyLoader {
    /// Ends the life of the iterator that was live: what it would yield is no longer what comes next.
    fn forget_iterator(&self) {
        *self.core.live.lock().unwrap_or_else(PoisonError::into_inner) = Weak::new();
    }
}

fn framework_name(output: Option<&str>) -> PyResult<()> {
    match output {
        None | Some("auto" | "torch" | "numpy" | "dlpack") => Ok(()),
        Some(other) => Err(raise(&Error::invalid(format!(
            "unknown value, allowed are auto, torch, numpy, dlpack: output={other:?}"
        )))),
    }
}

/// Yields the batches of one iteration as dicts of tensors.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct BatchIterator {
    core: Arc<Core>,
    framework: Framework,
    /// Column names as Python strings, made with the first batch.
    names: Mutex<Vec<Py<PyString>>>,
    /// Alive while this iterator may yield.
    token: Mutex<Option<Arc<()>>>,
}

#[pymethods]
impl BatchIterator {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        match self.wait(py)? {
            Some(batch) => self.dict(py, batch).map(Some),
            None => {
                self.end();
                Ok(None)
            }
        }
    }

    /// The next batch with its epoch and first place, for transforms that are keyed by them. At the end the iterator is
    /// not over yet: its wrapper, which still has batches to yield, closes it.
    fn next_with_place<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyDict>, u64, u64)>> {
        match self.wait(py)? {
            Some(batch) => {
                let (epoch, place) = (batch.epoch, batch.place);
                Ok(Some((self.dict(py, batch)?, epoch, place)))
            }
            None => Ok(None),
        }
    }

    /// Ends this iterator, so that another one can be made. With `consumed`, only so many of its batches count as handed
    /// out: the others were taken ahead by a wrapper and never reached the trainer.
    #[pyo3(signature = (consumed=None))]
    fn close(&self, py: Python<'_>, consumed: Option<u64>) -> PyResult<()> {
        if let Some(consumed) = consumed
            && matches!(self.is_live(), Ok(true))
        {
            self.core.with(py, |loader| loader.give_back(consumed))?.or_raise()?;
        }
        self.end();
        Ok(())
    }
}

impl BatchIterator {
    fn end(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn wait(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        self.core.check_process()?;
        if !self.is_live()? {
            return Ok(None);
        }
        let first = match self.core.loader.try_lock() {
            Ok(mut loader) => loader.poll_next(Duration::ZERO).or_raise()?,
            Err(_) => Step::Pending,
        };
        let mut step = first;
        let began = Instant::now();
        loop {
            match step {
                Step::Batch(batch) => return Ok(Some(batch)),
                Step::End => return Ok(None),
                Step::Pending => {}
            }
            if self.core.timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                return Err(self.timed_out(py)?);
            }
            let left = self.core.timeout.map_or(SIGNAL_CHECK, |timeout| timeout.saturating_sub(began.elapsed()));
            let wait = left.min(SIGNAL_CHECK);
            step = py.detach(|| self.core.lock().poll_next(wait)).or_raise()?;
            if matches!(step, Step::Pending) {
                py.check_signals()?;
                self.is_live()?;
            }
        }
    }

    fn timed_out(&self, py: Python<'_>) -> PyResult<PyErr> {
        let (late, cursor) = self.core.with(py, |loader| (loader.late(), loader.cursor()))?;
        let seconds = self.core.timeout.unwrap_or_default().as_secs_f64();
        let text = format!("no batch in time, {late}: timeout={seconds} epoch={} place={}", cursor.epoch, cursor.n);
        Ok(raise(&Error::new(ErrorKind::Timeout, text).with_hint("look at the disk, or raise timeout")))
    }

    /// Whether there is more to come. An error if the loader has gone elsewhere meanwhile: a batch from there would be
    /// one of another iteration.
    fn is_live(&self) -> PyResult<bool> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(token) = token.as_ref() else { return Ok(false) };
        let live = self.core.live.lock().unwrap_or_else(PoisonError::into_inner);
        if std::ptr::eq(Arc::as_ptr(token), live.as_ptr()) {
            return Ok(true);
        }
        let text = "this iterator is over: load_state_dict, set_epoch or close was called on its loader";
        Err(raise(&Error::new(ErrorKind::Closed, text).with_hint("call iter() on the loader again")))
    }

    fn dict<'py>(&self, py: Python<'py>, batch: Batch) -> PyResult<Bound<'py, PyDict>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() != batch.columns.len() {
            *names = batch.columns.iter().map(|column| PyString::intern(py, &column.name).unbind()).collect();
        }
        let dict = PyDict::new(py);
        for (name, column) in names.iter().zip(batch.columns) {
            let tensor = self.framework.give(py, TensorData::of_column(column))?;
            dict.set_item(name.bind(py), tensor)?;
        }
        Ok(dict)
    }
}
