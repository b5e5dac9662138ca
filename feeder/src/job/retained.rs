//! Whether the records that a state needs are still there.

use std::path::Path;

use cursorstore::records::{Checkpoint, Record};
use cursorstore::{State, WindowList};

use super::History;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Root;

/// Refuses a state of a topic that was made again or has lost records that the state needs, and says which. The records of
/// a dataset version are held for as long as there is one.
pub fn check(root: &Path, state: &State) -> Result<()> {
    let topic = Root::open(root)?.topic(&state.topic)?;
    if state.dataset.is_some() {
        return Ok(());
    }
    let view = topic.view()?;
    for extent in WindowList::new(&state.windows).extents() {
        if extent.incarnation != view.incarnation {
            return Err(Error::new(
                ErrorKind::StateMismatch,
                format!(
                    "the topic was deleted and made again since: topic={} state={} topic_now={}",
                    state.topic, extent.incarnation, view.incarnation
                ),
            ));
        }
        let partition = view.partitions.iter().find(|partition| partition.partition == extent.segment);
        let (first, end) = partition.map_or((0, 0), |partition| (partition.first, partition.end));
        if extent.from < first || extent.to > end {
            let missing = first.saturating_sub(extent.from).min(extent.count()) + extent.to.saturating_sub(end);
            return Err(Error::new(
                ErrorKind::NotRetained,
                format!(
                    "records that the checkpoint needs are no longer in the topic: topic={} partition={} needed={}..{} kept={first}..{end} missing={missing}",
                    state.topic, extent.segment, extent.from, extent.to
                ),
            ));
        }
    }
    Ok(())
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
