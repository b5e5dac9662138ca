//! Which kept checkpoints use a version: those of all jobs whose state is over it.

use cursorstore::records::{Checkpoint, DatasetVersion, Records};
use cursorstore::store::Store;

use super::{Catalogue, version};
use crate::error::Result;

/// A kept checkpoint that uses a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The job.
    pub job: String,
    /// The step.
    pub step: u64,
    /// The model's file.
    pub path: Option<String>,
    /// When it was committed, in milliseconds since 1970.
    pub committed_ms: u64,
}

impl Catalogue {
    /// The kept checkpoints of all jobs that use a version, sorted by job and step.
    pub fn users(&self, version: &DatasetVersion) -> Result<Vec<User>> {
        let ours = version::pinned_ref(version);
        let mut users = Vec::new();
        for scope in self.store.scopes()? {
            let Some(job) = scope.job_name() else { continue };
            for found in self.store.records::<Checkpoint>(&scope, &Checkpoint::prefix(job))? {
                if found.state.dataset.as_ref() == Some(&ours) {
                    let Checkpoint { job, step, path, committed_ms, .. } = found;
                    users.push(User { job, step, path, committed_ms });
                }
            }
        }
        Ok(users)
    }
}
