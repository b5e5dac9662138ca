//! An iterator over a loader's batches: takes ready ones at once, waits for others without the interpreter's lock, and is
//! over with its last batch. Its token says whether it still is the loader's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feeder::engine::{Batch, Loader, Step};
use feeder::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::{Core, Inner, SIGNAL_CHECK};
use crate::dlpack::TensorData;
use crate::error::{OrRaise, raise};
use crate::framework::Framework;

/// Yields the batches of one iteration as dicts of tensors.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct BatchIterator {
    pub(super) core: Arc<Core>,
    pub(super) framework: Framework,
    /// Column names as Python strings, made with the first batch.
    pub(super) names: Mutex<Vec<Py<PyString>>>,
    /// There while this iterator may yield. Held for a moment only.
    pub(super) token: Mutex<Option<Arc<()>>>,
    pub(super) handed_out: AtomicU64,
}

#[pymethods]
impl BatchIterator {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        match self.wait(py)? {
            Some(batch) => {
                if self.core.with(py, |inner| inner.loader.has_ended())? {
                    self.end();
                }
                self.dict(py, batch).map(Some)
            }
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

    /// Whether `next` has an answer at once: a batch, the end or an error. Raises if this iterator is over.
    fn ready(&self, py: Python<'_>) -> PyResult<bool> {
        match self.token() {
            Some(token) => {
                self.core.check_fence()?;
                self.core.with(py, |inner| inner.live(&token).map(Loader::is_ready))?.or_raise()
            }
            None => Ok(true),
        }
    }

    /// Batches that this iterator has handed out.
    #[getter]
    fn handed_out(&self) -> u64 {
        self.handed_out.load(Ordering::Relaxed)
    }

    /// Ends this iterator, so that another one can be made. With `consumed`, only so many of its batches count as handed
    /// out: the others were taken ahead by a wrapper and never reached the trainer. Does nothing in a forked child.
    #[pyo3(signature = (consumed=None))]
    fn close(&self, py: Python<'_>, consumed: Option<u64>) -> PyResult<()> {
        if self.core.check_process().is_err() {
            return Ok(());
        }
        if let (Some(consumed), Some(token)) = (consumed, self.token()) {
            let give_back = |inner: &mut Inner| {
                // Otherwise the loader stands elsewhere already.
                if let Ok(loader) = inner.live(&token) {
                    loader.give_back(consumed)?;
                    inner.forget_iterator();
                }
                Ok(())
            };
            self.core.with(py, give_back)?.or_raise()?;
        }
        self.end();
        Ok(())
    }
}

impl BatchIterator {
    fn token(&self) -> Option<Arc<()>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn wait(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        self.core.check_process()?;
        let Some(token) = self.token() else { return Ok(None) };
        let drawn_from = self.handed_out.load(Ordering::Relaxed) > 0;
        if !drawn_from && self.core.with(py, |inner| inner.was_moved(&token))? {
            self.core
                .apart(py, |inner| if inner.was_moved(&token) { inner.loader.begin() } else { Ok(()) })?
                .or_raise()?;
        }
        let mut began = None;
        loop {
            self.core.check_fence()?;
            // With the interpreter's lock held, so that nothing comes between the signals looked for and the batch.
            let step = match self.core.try_lock() {
                Some(mut inner) => {
                    let loader = inner.live(&token).or_raise()?;
                    let step = loader.poll_next(Duration::ZERO);
                    let notices = loader.late_notices();
                    drop(inner);
                    log(py, &notices);
                    step.or_raise()?
                }
                None => Step::Pending,
            };
            match step {
                Step::Batch(batch) => {
                    self.handed_out.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(batch));
                }
                Step::End => return Ok(None),
                Step::Pending => {}
            }
            let waited = began.get_or_insert_with(Instant::now).elapsed();
            if self.core.timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(self.timed_out(py)?);
            }
            let left = self.core.timeout.map_or(SIGNAL_CHECK, |timeout| timeout - waited);
            let wait = left.min(SIGNAL_CHECK);
            self.core.apart(py, |inner| inner.live(&token).map(|loader| loader.wait_ready(wait)))?.or_raise()?;
            py.check_signals()?;
        }
    }

    fn timed_out(&self, py: Python<'_>) -> PyResult<PyErr> {
        let (late, cursor) = self.core.with(py, |inner| (inner.loader.late(), inner.loader.cursor()))?;
        let seconds = self.core.timeout.unwrap_or_default().as_secs_f64();
        let text = format!("no batch in time, {late}: timeout={seconds} epoch={} place={}", cursor.epoch, cursor.n);
        Ok(raise(&Error::new(ErrorKind::Timeout, text).with_hint("look at the disk, or raise timeout")))
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

/// Says what came up while batches were read. A handler of the program's own that fails takes no batch with it.
fn log(py: Python<'_>, notices: &[String]) {
    for line in notices {
        let said = py
            .import("logging")
            .and_then(|logging| logging.call_method1("getLogger", ("forebay",)))
            .and_then(|logger| logger.call_method1("info", ("%s", line)));
        if let Err(error) = said {
            error.write_unraisable(py, None);
        }
    }
}
