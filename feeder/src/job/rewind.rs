//! Rewinding: what going back to a checkpoint means, and doing it.
//!
//! A rewind is a run of its own that trains nothing: it makes a generation whose record says where the job goes on. From
//! then on every process of an earlier run is refused, and the next run with `resume="latest"` starts there.

use std::path::Path;

use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Checkpoint, Record, Records, Run};
use cursorstore::store::{Batch, Store};
use cursorstore::{Cursor, State};

use super::history::{History, is_gone, step_of};
use super::lineage::name_of;
use super::target::Target;
use super::{now_ms, process, retained, scope_of, write_first};
use crate::error::{Error, Result};
use crate::log::Root;

/// What a rewind would do.
#[derive(Debug)]
pub struct Preview {
    /// The checkpoint to go back to.
    pub checkpoint: Checkpoint,
    /// The newest one of the trail, if the trail has any.
    pub newest: Option<(u64, Cursor)>,
    /// Whether the checkpoint is on the trail; else it is one that an earlier rewind abandoned.
    pub on_trail: bool,
    /// Checkpoints of the trail that are abandoned.
    pub abandons: u64,
    /// Samples between the two checkpoints, over all ranks, which will be trained on again.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Dataset versions, or topics, that these are of.
    pub data: Vec<String>,
    /// The newest run, if its rank 0 is surely still there.
    pub running: Option<Run>,
    /// The model's file, if it is gone.
    pub missing_path: Option<String>,
}

/// Looks at what a rewind would do, and whether its data are still there. Changes nothing.
pub fn preview(store: &dyn Store, root: &Path, job: &str, target: &Target) -> Result<Preview> {
    let history = History::of(store, job)?;
    let checkpoint = history.find(target)?;
    retained::check(root, &checkpoint.state).map_err(|error| retained::with_way_out(error, root, Some(&history)))?;
    let trail = history.trail()?;
    let on_trail = trail.holds(checkpoint.generation, checkpoint.step);
    let newest = history.latest(&|_| false)?.checkpoint;
    let (mut samples, mut data) = (0, Vec::new());
    if on_trail {
        // From part to part of the trail: each run begins where the next older one is left.
        let mut to = newest.as_ref().map(|newest| newest.state.clone());
        for &(generation, _) in trail.parts() {
            let Some(run) = history.run(generation)? else { break };
            let is_last = generation == checkpoint.generation;
            let from = if is_last { &checkpoint.state } else { &run.state };
            let is_of_run = to.as_ref().is_some_and(|to| to.fingerprint == run.state.fingerprint);
            if let Some(to) = to.as_ref().filter(|_| is_of_run) {
                samples += between(from, to);
            }
            let name = name_of(&run.state);
            if !data.contains(&name) {
                data.push(name);
            }
            if is_last {
                break;
            }
            to = Some(run.state);
        }
    }
    let trail_after = history.trail_to(checkpoint.generation, checkpoint.step)?;
    let mut abandons = 0;
    for entry in history.checkpoint_entries().iter().rev() {
        let after = step_of(entry);
        if on_trail && after <= checkpoint.step {
            break;
        }
        let generation = Checkpoint::generation_of(&entry.value).map_err(|source| history.unreadable(entry, source))?;
        abandons += u64::from(trail.holds(generation, after) && !trail_after.holds(generation, after));
    }
    let topic = Root::open(root)?.topic(&checkpoint.state.topic)?;
    let running = history.newest_run()?.filter(|run| process::is_running(run.process.as_deref()));
    Ok(Preview {
        missing_path: checkpoint.path.clone().filter(|path| is_gone(path)),
        newest: newest.map(|newest| (newest.step, newest.state.cursor)),
        on_trail,
        abandons,
        samples,
        bytes: samples.saturating_mul(topic.schema().row_bytes() as u64),
        data,
        running,
        checkpoint,
    })
}

/// Rewinds the job to the checkpoint of a preview: the generation made.
pub fn rewind(store: &dyn Store, preview: &Preview) -> Result<u64> {
    let wanted = &preview.checkpoint;
    let job = &wanted.job;
    let mut writer = store.acquire(&scope_of(job)?)?;
    // Nobody else writes from here on; until now somebody may have.
    let scope = writer.scope().clone();
    let checkpoint = store.record::<Checkpoint>(&scope, &wanted.key())?.filter(|found| found == wanted);
    let Some(checkpoint) = checkpoint else {
        return Err(Error::invalid(format!("the checkpoint was made anew meanwhile: job={job} step={}", wanted.step))
            .with_hint("look at it again with: forebay checkpoint show"));
    };
    let before = store.fold(&scope, &Run::prefix(job))?.entries().last().and_then(|run| Run::decode(&run.value).ok());
    let run = Run {
        job: job.clone(),
        generation: writer.generation(),
        attempt: String::new(),
        from: StartedFrom::Rewind { step: checkpoint.step },
        parent: Some(checkpoint.generation),
        data_step: checkpoint.data_step,
        state: checkpoint.state,
        dataset: checkpoint.dataset,
        world: before.as_ref().map_or(0, |run| run.world),
        batch: before.as_ref().map_or(0, |run| run.batch),
        revision: None,
        host: process::host(),
        pid: std::process::id(),
        process: process::this_process(),
        forebay: env!("CARGO_PKG_VERSION").into(),
        started_ms: now_ms(),
    };
    write_first(&mut writer, &Batch::new().record(&run))?;
    Ok(run.generation)
}

/// Samples from one state to another of the same records.
fn between(from: &State, to: &State) -> u64 {
    let at = |state: &State| u128::from(state.cursor.epoch) * u128::from(state.samples()) + u128::from(state.cursor.n);
    u64::try_from(at(to).saturating_sub(at(from))).unwrap_or(u64::MAX)
}
