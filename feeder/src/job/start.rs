//! Where a new run begins.

use cursorstore::State;
use cursorstore::records::Checkpoint;
use cursorstore::records::run::StartedFrom;

use cursorstore::store::Store;

use super::history::{History, is_gone};
use super::target::Resume;
use crate::error::{Error, ErrorKind, Result};

/// The start of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The checkpoint to go on from; `None` for the beginning, or for a state of the caller's that no checkpoint has.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the caller brought a state that no checkpoint has.
    pub is_foreign: bool,
    /// Step and path of newer checkpoints that were passed over because their file is gone.
    pub passed_over: Vec<(u64, String)>,
}

impl Start {
    /// The beginning of the data.
    const BEGINNING: Self = Self { checkpoint: None, is_foreign: false, passed_over: Vec::new() };

    /// What a run record says of it.
    pub fn from(&self) -> StartedFrom {
        match &self.checkpoint {
            Some(checkpoint) => StartedFrom::Checkpoint { step: checkpoint.step },
            None if self.is_foreign => StartedFrom::State,
            None => StartedFrom::Beginning,
        }
    }

    /// The state to start at, if a checkpoint says one.
    pub fn state(&self) -> Option<&State> {
        self.checkpoint.as_ref().map(|checkpoint| &checkpoint.state)
    }

    /// Where `resume` leads. `history` is `None` for a job that never ran.
    pub fn of(store: &dyn Store, history: Option<&History>, job: &str, resume: &Resume) -> Result<Self> {
        match (resume, history) {
            (Resume::Never, _) | (Resume::Latest, None) => Ok(Self::BEGINNING),
            (Resume::Latest, Some(history)) => Self::latest(history),
            (Resume::At(target), history) => {
                let checkpoint = match history {
                    Some(history) => history.find(target)?,
                    None => History::of(store, job)?.find(target)?,
                };
                Ok(Self { checkpoint: Some(checkpoint), ..Self::BEGINNING })
            }
        }
    }

    fn latest(history: &History) -> Result<Self> {
        let latest = history.latest(&is_gone)?;
        if latest.checkpoint.is_none() {
            refuse_to_begin_anew(history, &latest.passed_over)?;
            refuse_to_guess(history)?;
        }
        Ok(Self { checkpoint: latest.checkpoint, passed_over: latest.passed_over, ..Self::BEGINNING })
    }

    /// The start at a state that the caller brought.
    pub fn explicit(history: Option<&History>, state: &State) -> Result<Self> {
        let checkpoint = history.map(|history| history.with_state(state)).transpose()?.flatten();
        Ok(Self { is_foreign: checkpoint.is_none(), checkpoint, ..Self::BEGINNING })
    }
}

/// An error if there are checkpoints and the files of all are gone: where a file system is not mounted, say, nobody means to
/// train from the beginning.
fn refuse_to_begin_anew(history: &History, passed_over: &[(u64, String)]) -> Result<()> {
    let Some((step, path)) = passed_over.first() else { return Ok(()) };
    let (job, count) = (history.job(), passed_over.len());
    Err(Error::new(
        ErrorKind::NotFound,
        format!("the model's file of every checkpoint is gone: job={job} checkpoints={count} step={step} path={path}"),
    )
    .with_hint(format!(
        "see that the files are where they were written; without them resume={step} goes on with the data alone, and resume=\"never\" begins anew"
    )))
}

/// An error if the trail without checkpoints began at a state that somebody brought: only they know it.
fn refuse_to_guess(history: &History) -> Result<()> {
    let trail = history.trail()?;
    let Some(&(oldest, _)) = trail.parts().last() else { return Ok(()) };
    let Some(run) = history.run(oldest)?.filter(|run| run.from == StartedFrom::State) else { return Ok(()) };
    let job = history.job();
    Err(Error::invalid(format!(
        "the last run began at a state that its caller brought, and committed nothing: job={job} generation={} attempt={:?}",
        run.generation, run.attempt
    ))
    .with_hint("load_state_dict(state) again before iterating, or resume= a step of the job, or resume=\"never\""))
}
