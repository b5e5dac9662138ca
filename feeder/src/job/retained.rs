//! Whether the records that a state needs are still there.

use std::path::Path;

use cursorstore::State;
use cursorstore::records::dataset::{BadVersionRef, VersionRef};
use cursorstore::records::{Checkpoint, Record};

use super::History;
use crate::catalogue::{self, Catalogue};
use crate::engine::check_retained;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Root;

/// Refuses a state of a dataset version that was unpinned or made anew, or of a topic that was made again or has lost
/// records that the state needs, and says which.
pub fn check(root: &Path, state: &State) -> Result<()> {
    let topics = Root::open(root)?;
    let Some(dataset) = &state.dataset else {
        return check_retained(state, &topics.topic(&state.topic)?.view()?);
    };
    topics.topic(&state.topic)?;
    let reference: VersionRef =
        dataset.version.parse().map_err(|error: BadVersionRef| Error::invalid(error.to_string()))?;
    let version = Catalogue::open(root)?.version(&reference).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(
            ErrorKind::NotRetained,
            format!("the dataset version that the state is of is no longer pinned: version={reference}"),
        )
        .with_source(error),
        _ => error,
    })?;
    let now = catalogue::fingerprint(&version);
    if now == dataset.fingerprint {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::StateMismatch,
        format!(
            "the dataset version was unpinned and made anew with other records: version={reference} state={} now={now}",
            dataset.fingerprint
        ),
    ))
}

/// The earliest step of a job whose data are all there, if there is one.
pub fn earliest(root: &Path, history: &History) -> Option<u64> {
    let mut judged: Vec<(String, bool)> = Vec::new();
    for entry in history.checkpoint_entries() {
        let Ok(checkpoint) = Checkpoint::decode(&entry.value) else { continue };
        let fingerprint = &checkpoint.state.fingerprint;
        let known = judged.iter().find(|(known, _)| known == fingerprint).map(|(_, fine)| *fine);
        let fine = known.unwrap_or_else(|| check(root, &checkpoint.state).is_ok());
        if fine {
            return Some(checkpoint.step);
        }
        if known.is_none() {
            judged.push((fingerprint.clone(), fine));
        }
    }
    None
}

/// Adds to an error about missing records where the job could go on instead.
pub fn with_way_out(error: Error, root: &Path, history: Option<&History>) -> Error {
    if error.kind() != ErrorKind::NotRetained {
        return error;
    }
    match history.and_then(|history| Some((history.job(), earliest(root, history)?))) {
        Some((job, step)) => error.with_hint(format!(
            "go on from step {step}, the earliest one whose data are there: resume={step}, or forebay checkpoint rewind {job} --to {step}"
        )),
        None => error.with_hint("no checkpoint of the job has all its data any more; restore them, or resume=\"never\""),
    }
}
