//! Which data made a checkpoint: the runs that led to it, with what each gave.

use cursorstore::records::{Checkpoint, Run};
use cursorstore::{Cursor, State};

use super::history::History;
use crate::error::Result;

/// What one run gave to a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// It starts at its own state.
    pub run: Run,
    /// Where the next one, or the checkpoint, stands.
    pub to: Cursor,
}

/// The runs that led to a checkpoint, the oldest first. Those that gave it nothing are left out.
pub fn lineage(history: &History, checkpoint: &Checkpoint) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut to = checkpoint.state.cursor;
    for &(generation, _) in history.trail_to(checkpoint.generation, checkpoint.step)?.parts() {
        let Some(run) = history.run(generation)? else { break };
        let start = run.state.cursor;
        if start != to || generation == checkpoint.generation {
            parts.push(Part { run, to });
        }
        to = start;
    }
    parts.reverse();
    Ok(parts)
}

/// What the records of a state are called.
pub fn name_of(state: &State) -> String {
    state.dataset.as_ref().map_or_else(|| state.topic.to_string(), |dataset| dataset.version.clone())
}
