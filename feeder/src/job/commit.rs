//! Commits: a checkpoint, its guard, its tag, and what it makes superfluous, in one append.

use std::collections::{BTreeMap, BTreeSet};

use cursorstore::State;
use cursorstore::records::{Checkpoint, Guard, Record, Run, Tag};
use cursorstore::store::{Batch, StoreErrorKind, VALUE_BYTES_MAX, Writer};

use super::history::{History, Trail};
use super::keep::Keep;
use super::now_ms;
use super::session::{Session, Shape, too_large};
use super::target::check_tag;
use crate::error::{Error, ErrorKind, Result};

/// Most checkpoints that one commit removes: the rest goes with the next.
const REMOVED_MAX: usize = 1000;
/// Longest path of a model, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// What is committed.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The user's own growing number.
    pub step: u64,
    /// The model's file, if there is one.
    pub path: Option<String>,
    /// A name for it.
    pub tag: Option<String>,
    /// The data that comes next.
    pub state: State,
    /// Which checkpoints stay; `None`: as the job says.
    pub keep: Option<Keep>,
}

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Steps of data up to it.
    pub data_step: u64,
    /// Steps of checkpoints removed.
    pub removed: Vec<u64>,
}

/// What rank 0 knows of its job while it is the only writer.
#[derive(Debug)]
pub(super) struct Leading {
    writer: Writer,
    shape: Shape,
    /// The run's start: steps that are not beyond it are refused.
    start: Option<Checkpoint>,
    start_steps: u64,
    start_data_step: u64,
    fingerprint: String,
    last: Option<(Checkpoint, Option<String>)>,
    tags: BTreeMap<String, u64>,
    /// All checkpoints of the job with their generation; read when first needed.
    steps: Option<BTreeMap<u64, u64>>,
    trail: Trail,
}

impl Leading {
    pub(super) fn new(
        writer: Writer,
        run: &Run,
        start: Option<Checkpoint>,
        shape: Shape,
        tags: BTreeMap<String, u64>,
    ) -> Self {
        let (start_steps, start_data_step) = (shape.steps_to(&run.state), run.data_step);
        let fingerprint = run.state.fingerprint.clone();
        let (last, steps, trail) = Default::default();
        Self { writer, shape, start, start_steps, start_data_step, fingerprint, last, tags, steps, trail }
    }

    fn data_step(&self, state: &State) -> u64 {
        let steps = self.shape.steps_to(state);
        match steps.checked_sub(self.start_steps) {
            Some(since) => self.start_data_step.saturating_add(since),
            None => self.start_data_step.saturating_sub(self.start_steps - steps),
        }
    }

    /// Whether this very commit was made before; an error if its step is not beyond what there is.
    fn is_repeated(&self, commit: &Commit) -> Result<bool> {
        let last = self.last.as_ref().map(|(checkpoint, tag)| (checkpoint, tag.as_ref()));
        let Some((before, tag)) = last.or(self.start.as_ref().map(|start| (start, None))) else { return Ok(false) };
        if commit.step > before.step {
            return Ok(false);
        }
        let tagged = commit.tag.as_ref().is_none_or(|new| tag == Some(new) || self.tags.get(new) == Some(&before.step));
        if commit.step == before.step && commit.state == before.state && commit.path == before.path && tagged {
            return Ok(true);
        }
        let what = if self.last.is_some() { "the last commit" } else { "the checkpoint that this run started from" };
        Err(Error::invalid(format!(
            "steps only grow, and this one is not beyond {what}: step={} last={}",
            commit.step, before.step
        ))
        .with_hint("count steps on from the step that was resumed; to go back, start a run with resume= that step"))
    }
}

impl Session {
    /// Makes a checkpoint durable, with its guard and tag, and removes what is not kept any more; all of it or nothing.
    /// The same commit again is no change. After an error other than `Fenced` the run goes on and may commit again.
    pub fn commit(&mut self, commit: Commit) -> Result<Committed> {
        let Some(run) = self.run().cloned() else {
            return Err(Error::new(ErrorKind::Closed, "the run has not begun"));
        };
        let Some(leading) = self.leading.as_mut() else {
            return Err(Error::invalid("only rank 0 of a job commits"));
        };
        check(&commit, &leading.fingerprint)?;
        let data_step = leading.data_step(&commit.state);
        if leading.is_repeated(&commit)? {
            let found = leading.writer.append(&Batch::new());
            return found.map(|_| Committed { data_step, removed: Vec::new() }).map_err(|e| fenced(&self.fence, e));
        }
        let keep = commit.keep.unwrap_or(self.settings.keep);
        keep.check()?;
        let checkpoint = Checkpoint {
            job: run.job.clone(),
            step: commit.step,
            data_step,
            generation: run.generation,
            dataset: commit.state.dataset.as_ref().map(|dataset| dataset.version.clone()),
            state: commit.state,
            path: commit.path,
            revision: run.revision.clone(),
            committed_ms: now_ms(),
        };
        let mut batch = put(Batch::new(), &checkpoint)?;
        // Whoever named an abandoned checkpoint of this step did not mean this one.
        let mut lost: Vec<String> = Vec::new();
        for (tag, _) in
            leading.tags.iter().filter(|(tag, step)| **step == checkpoint.step && Some(*tag) != commit.tag.as_ref())
        {
            batch = batch.delete(Tag::key_of(&run.job, tag));
            lost.push(tag.clone());
        }
        let mut tags: BTreeMap<String, u64> = leading.tags.clone();
        tags.retain(|tag, _| !lost.contains(tag));
        if let Some(tag) = &commit.tag {
            let record = Tag { job: run.job.clone(), tag: tag.clone(), step: checkpoint.step, tagged_ms: now_ms() };
            batch = batch.record(&record);
            tags.insert(tag.clone(), checkpoint.step);
        }
        let removed = if keep.keeps_all() {
            Vec::new()
        } else {
            if leading.steps.is_none() {
                let history = History::of(&*self.store, &run.job)?;
                leading.trail = history.trail()?;
                leading.steps = Some(history.briefs()?.iter().map(|brief| (brief.step, brief.generation)).collect());
            }
            surplus(leading, &keep, &checkpoint, &tags)
        };
        for step in &removed {
            batch = remove(batch, &run.job, *step);
        }
        leading.writer.append(&batch).map_err(|error| fenced(&self.fence, error))?;
        leading.tags = tags;
        if let Some(steps) = &mut leading.steps {
            steps.insert(checkpoint.step, checkpoint.generation);
            steps.retain(|step, _| removed.binary_search(step).is_err());
        }
        leading.last = Some((checkpoint, commit.tag));
        let notices = lost.iter().map(|tag| {
            format!(
                "a tag named an abandoned checkpoint, whose place is taken, and is gone: job={} step={} tag={tag}",
                run.job, commit.step
            )
        });
        self.notices.extend(notices);
        Ok(Committed { data_step, removed })
    }
}

/// Refuses what cannot be committed in this run.
fn check(commit: &Commit, fingerprint: &str) -> Result<()> {
    commit.tag.as_ref().map(|tag| check_tag(tag)).transpose()?;
    if let Some(path) = commit.path.as_ref().filter(|path| path.is_empty() || path.len() > PATH_BYTES_MAX) {
        let bytes = path.len();
        return Err(Error::invalid(format!("path is a text of 1 to {PATH_BYTES_MAX} bytes, or none: bytes={bytes}")));
    }
    if commit.state.fingerprint != fingerprint {
        return Err(Error::new(
            ErrorKind::StateMismatch,
            format!(
                "the state is not one of this run, it is of other records or another order: step={} state={} run={fingerprint}",
                commit.step, commit.state.fingerprint
            ),
        )
        .with_hint("commit states that state_dict() gave since this run began"));
    }
    Ok(())
}

/// A checkpoint and the guard on the records that it needs.
fn put(batch: Batch, checkpoint: &Checkpoint) -> Result<Batch> {
    let (key, value) = (checkpoint.key(), checkpoint.encode());
    let ranges: Vec<_> = checkpoint.state.windows.iter().flat_map(|window| window.extents.iter().cloned()).collect();
    let guard =
        Guard { holder: key.clone(), topic: checkpoint.state.topic.clone(), ranges, since_ms: checkpoint.committed_ms };
    // A dataset version holds its own records.
    let guarded = if guard.ranges.is_empty() { None } else { Some(guard.encode()) };
    let bytes = value.len().max(guarded.as_ref().map_or(0, Vec::len));
    if bytes > VALUE_BYTES_MAX {
        return Err(too_large(bytes));
    }
    let batch = batch.put(key, value);
    Ok(match guarded {
        Some(value) => batch.put(guard.key(), value),
        None => batch.delete(guard.key()),
    })
}

/// Removes a checkpoint and its guard.
pub(super) fn remove(batch: Batch, job: &str, step: u64) -> Batch {
    let key = Checkpoint::key_of(job, step);
    let guard = Guard::key_of(&key);
    batch.delete(key).delete(guard)
}

/// Steps that are not kept beside a new checkpoint.
fn surplus(leading: &Leading, keep: &Keep, new: &Checkpoint, tags: &BTreeMap<String, u64>) -> Vec<u64> {
    let (mut trail, mut abandoned) = (Vec::new(), Vec::new());
    for (&step, &generation) in leading.steps.iter().flatten().filter(|(step, _)| **step != new.step) {
        let on_trail = leading.trail.holds(generation, step);
        if on_trail { &mut trail } else { &mut abandoned }.push(step);
    }
    trail.push(new.step);
    let tagged: BTreeSet<u64> = tags.values().copied().collect();
    let mut steps = keep.surplus(&trail, &abandoned, &tagged);
    steps.truncate(REMOVED_MAX);
    steps
}

/// The words of the fence, if that is why.
fn fenced(fence: &super::Fence, error: cursorstore::store::StoreError) -> Error {
    match error {
        cursorstore::store::StoreError::Fenced { newest, .. } => fence.fenced(newest),
        error if error.kind() == StoreErrorKind::NoSpace => {
            let text = "cannot commit, there is no room; earlier checkpoints are untouched";
            Error::new(ErrorKind::NoSpace, text)
                .with_source(error)
                .with_hint("make room and commit again; training may go on")
        }
        error => error.into(),
    }
}
