//! Jobs as Python sees them: one process's part in a run, and the latest checkpoint of a job.
//!
//! When a run begins, and for which rank, is settled in Python (`forebay/_job.py`). Here the loader is put at the run's
//! state under its own lock, and waiting for rank 0 lets signals through.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cursorstore::State;
use cursorstore::records::Checkpoint;
use feeder::job::history::is_gone;
use feeder::job::{Commit, Fence, History, Keep, Session, Settings, open_store};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::loader::{PyLoader, SIGNAL_CHECK, parse_state};

/// Step, path and state as JSON text.
type Found = (u64, Option<String>, String);
/// The same, and step and path of those passed over.
type Latest = (Option<Found>, Vec<(u64, String)>);

/// One process's part in a job; see `forebay.DataLoader`.
#[pyclass(frozen, name = "Job", module = "forebay._forebay")]
pub struct PyJob {
    session: Mutex<Session>,
    fence: Arc<Fence>,
}

#[pymethods]
impl PyJob {
    #[new]
    #[pyo3(signature = (root, job, *, attempt, resume, revision, keep_last, keep_every))]
    #[allow(clippy::too_many_arguments, reason = "they are the settings, by name")]
    fn new(
        root: PathBuf,
        job: String,
        attempt: Option<String>,
        resume: &str,
        revision: Option<String>,
        keep_last: Option<u64>,
        keep_every: Option<u64>,
    ) -> PyResult<Self> {
        let keep = Keep { last: keep_last, every: keep_every };
        let resume = resume.parse().or_raise()?;
        let settings = Settings { job, attempt, resume, revision, keep };
        let session = open_store(&root).and_then(|store| Session::open(store, &root, settings)).or_raise()?;
        let fence = session.fence().clone();
        Ok(Self { session: Mutex::new(session), fence })
    }

    /// Begins a run as rank 0, at the loader's state if `explicit`, else where `resume` says; the loader is put there.
    fn lead(&self, py: Python<'_>, loader: &PyLoader, explicit: bool) -> PyResult<()> {
        loader.bind(&self.fence);
        let shape = loader.shape(py)?;
        let lead = || self.session().lead(explicit, shape, &mut |state| loader.place(state));
        py.detach(lead).or_raise()
    }

    /// Joins the run that rank 0 of this attempt begins, waiting at most so many seconds for it; the loader is put at its
    /// state, or must be there already if `explicit`.
    fn follow(&self, py: Python<'_>, loader: &PyLoader, explicit: bool, rank: u32, timeout_s: f64) -> PyResult<()> {
        loader.bind(&self.fence);
        let shape = loader.shape(py)?;
        let state = if explicit { Some(py.detach(|| loader.place(None)).or_raise()?) } else { None };
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        let began = Instant::now();
        loop {
            let wait = timeout.saturating_sub(began.elapsed()).min(SIGNAL_CHECK);
            let found = py.detach(|| {
                let mut session = self.session();
                let found = session.follow(state.as_ref(), shape, wait)?;
                if let Some(run) = session.run().filter(|_| found && !explicit) {
                    loader.place(Some(&run.state))?;
                }
                Ok(found)
            });
            if found.or_raise()? {
                return Ok(());
            }
            py.check_signals()?;
            if began.elapsed() >= timeout {
                return Err(self.session().late(rank, began.elapsed())).or_raise();
            }
        }
    }

    /// Makes a checkpoint durable; gives the steps of data up to it.
    #[pyo3(signature = (step, path, tag, state, keep_last, keep_every))]
    #[allow(clippy::too_many_arguments, reason = "they are the record")]
    fn commit(
        &self,
        py: Python<'_>,
        step: u64,
        path: Option<String>,
        tag: Option<String>,
        state: &str,
        keep_last: Option<u64>,
        keep_every: Option<u64>,
    ) -> PyResult<u64> {
        let state = parse_state(state)?;
        let keep = Keep { last: keep_last, every: keep_every };
        let keep = (!keep.keeps_all()).then_some(keep);
        let done = py.detach(|| self.session().commit(Commit { step, path, tag, state, keep }));
        Ok(done.or_raise()?.data_step)
    }

    /// Raises once a later run has taken over.
    fn check(&self) -> PyResult<()> {
        self.fence.check().or_raise()
    }

    /// Number of the run; 0 before it has begun.
    #[getter]
    fn generation(&self) -> u64 {
        self.fence.generation()
    }

    /// The checkpoint that the run started from.
    #[getter]
    fn started_at(&self, py: Python<'_>) -> Option<Found> {
        py.detach(|| self.session().started_at().map(found))
    }

    /// The state that the run started at.
    #[getter]
    fn start_state(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.session().run().map(|run| run.state.encode()))
    }

    /// Lines for the log, each once.
    fn take_notices(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.session().take_notices())
    }
}

impl PyJob {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest checkpoint of a job's trail whose file is there, and step and path of those passed over.
#[pyfunction]
pub fn job_latest(py: Python<'_>, root: PathBuf, job: &str) -> PyResult<Latest> {
    py.detach(|| latest(&root, job)).or_raise()
}

fn latest(root: &Path, job: &str) -> feeder::Result<Latest> {
    let store = open_store(root)?;
    let Some(history) = History::read(&*store, job)? else { return Ok((None, Vec::new())) };
    let latest = history.latest(&is_gone)?;
    Ok((latest.checkpoint.as_ref().map(found), latest.passed_over))
}

fn found(checkpoint: &Checkpoint) -> Found {
    let state: &State = &checkpoint.state;
    (checkpoint.step, checkpoint.path.clone(), state.encode())
}
