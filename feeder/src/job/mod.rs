//! Jobs: a training with a name, whose runs and checkpoints the store keeps.
//!
//! ```text
//! [target]   what a caller names: the latest checkpoint, a step, a tag
//! [history]  what the store holds of a job, and which checkpoints are on its trail
//! [start]    where a new run begins
//! [session]  one process of a run: rank 0 leads and commits, the others follow its run record
//! [fence]    whether a later run has taken over, asked at every batch
//! [keep]     which checkpoints stay         [retained]  whether the data of a state are still there
//! [lineage]  which data made a checkpoint
//! [process]  which process a run record is of, and whether it is gone
//! [rewind]   what going back to a checkpoint means, and doing it    [edit]  removing and tagging checkpoints
//! ```
//!
//! - A job has one writer, rank 0 of its newest run. Its first act is the run record; whoever starts a later run, rewinds
//!   included, makes a newer generation, and every process of an earlier one is refused at its next commit and batch.
//! - A checkpoint, its guard and its tag are one append: all durable when [`session::Session::commit`] returns, or none.
//! - The *trail* of a job is what its newest run made, before that what led to the checkpoint that this run started from,
//!   and so on. Going back to a checkpoint abandons those after it: they stay, but are never the latest. A step that is
//!   committed again takes an abandoned one's place.
//! - A run that starts at a state which no checkpoint has begins a trail of its own. If it ends without a commit, nobody
//!   guesses where to go on: the state is to be loaded again.

pub mod target;

pub mod history;

pub mod start;

pub mod session;

mod commit;

pub mod fence;

pub mod keep;

pub mod retained;

pub mod process;

pub mod lineage;

pub mod rewind;

pub mod edit;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cursorstore::store::{Batch, Embedded, Scope, Store, Writer};

pub use commit::{Commit, Committed};
pub use fence::Fence;
pub use history::History;
pub use keep::Keep;
pub use session::{Session, Settings, Shape};
pub use target::{Resume, Target};

use crate::error::{Error, Result};

/// The store that keeps the jobs of a root.
pub fn open_store(root: &Path) -> Result<Arc<dyn Store>> {
    let store = Embedded::open(root).map_err(|error| {
        Error::from(error).with_hint("name the directory with --root or FOREBAY_ROOT, or ingest something to make it")
    })?;
    Ok(Arc::new(store))
}

/// The scope of a job.
fn scope_of(job: &str) -> Result<Scope> {
    Ok(Scope::job(job)?)
}

/// What a new writer of a job writes first. Should it fail, earlier processes are refused all the same: they are to be told.
fn write_first(writer: &mut Writer, batch: &Batch) -> Result<()> {
    let written = writer.append(batch).map(drop);
    written.map_err(|error| {
        let (scope, cause) = (writer.scope().clone(), Error::from(error));
        let hint = cause.hint().unwrap_or("try again").to_owned();
        let text =
            format!("a run that was going on has been ended, but what was to follow it is not stored: scope={scope}");
        Error::new(cause.kind(), text).with_source(cause).with_hint(hint)
    })
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
