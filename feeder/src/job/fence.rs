//! Whether a later run of the job has taken over, asked at every batch and commit.
//!
//! The answer costs a look at the store's generation (two system calls on files), and is never late: a process that was
//! stopped while another run started is refused at its first batch after it wakes up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Record, Run};
use cursorstore::store::{Scope, Store};

use crate::error::{Error, ErrorKind, Result};

/// Not in a run yet.
const NO_RUN: u64 = 0;

/// See the module.
#[derive(Debug)]
pub struct Fence {
    store: Arc<dyn Store>,
    scope: Scope,
    generation: AtomicU64,
}

impl Fence {
    pub(super) fn new(store: Arc<dyn Store>, scope: Scope) -> Self {
        Self { store, scope, generation: AtomicU64::new(NO_RUN) }
    }

    /// The generation of the run that this process belongs to; 0 before it belongs to one.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }

    /// An error of kind [`ErrorKind::Fenced`] once a later run has taken over.
    pub fn check(&self) -> Result<()> {
        let own = self.generation();
        if own == NO_RUN {
            return Ok(());
        }
        match self.store.generation(&self.scope)? {
            newest if newest == own => Ok(()),
            newest if newest > own => Err(self.fenced(newest)),
            newest => Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "the job's records are gone from the store: scope={} generation={own} newest={newest}",
                    self.scope
                ),
            )
            .with_hint("stop this process; was the folder of the store removed or replaced?")),
        }
    }

    /// The error, in the words of what happened.
    pub(super) fn fenced(&self, newest: u64) -> Error {
        let (scope, own) = (&self.scope, self.generation());
        let job = scope.job_name().unwrap_or_default();
        let key = Run::key_of(job, newest);
        let run = self.store.get(scope, &key).ok().flatten().and_then(|entry| Run::decode(&entry.value).ok());
        let text = match &run {
            Some(Run { from: StartedFrom::Rewind { step }, host, pid, .. }) => {
                format!(
                    "the job was rewound to step {step}: job={job} generation={own} newest={newest} host={host} pid={pid}"
                )
            }
            Some(Run { attempt, host, pid, .. }) => format!(
                "a later run of the job has taken over: job={job} generation={own} newest={newest} attempt={attempt:?} host={host} pid={pid}"
            ),
            None => format!("the job has been taken over: job={job} generation={own} newest={newest}"),
        };
        Error::new(ErrorKind::Fenced, text)
            .with_hint("stop this process; a new one goes on from the job's latest checkpoint")
    }
}
