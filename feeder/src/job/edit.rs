//! Removing and tagging checkpoints from outside a run.
//!
//! Only the writer of a job changes its records, so both make a generation, which would end a run in progress. They refuse
//! to, unless the caller insists: a run removes and tags by its own commits.

use cursorstore::records::Tag;
use cursorstore::store::{Batch, Store};

use super::history::History;
use super::target::{Target, check_tag};
use super::{commit, now_ms, process, scope_of, write_first};
use crate::error::{Error, ErrorKind, Result};

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Steps, ascending.
    pub steps: Vec<u64>,
    /// Tags that named them.
    pub tags: Vec<String>,
}

/// What a removal would do.
pub fn preview(store: &dyn Store, job: &str, targets: &[Target]) -> Result<Removed> {
    let history = History::of(store, job)?;
    let mut steps = Vec::new();
    for target in targets {
        steps.push(history.find(target)?.step);
    }
    steps.sort_unstable();
    steps.dedup();
    let tags = history.tags().iter().filter(|(_, step)| steps.contains(step)).map(|(tag, _)| tag.clone()).collect();
    Ok(Removed { steps, tags })
}

/// Removes checkpoints with their guards and tags. Models' files are not touched.
pub fn remove(store: &dyn Store, job: &str, targets: &[Target], force: bool) -> Result<Removed> {
    let removed = preview(store, job, targets)?;
    refuse_in_a_run(&History::of(store, job)?, force)?;
    let mut batch = Batch::new();
    for step in &removed.steps {
        batch = commit::remove(batch, job, *step);
    }
    for tag in &removed.tags {
        batch = batch.delete(Tag::key_of(job, tag));
    }
    write_first(&mut store.acquire(&scope_of(job)?)?, &batch)?;
    Ok(removed)
}

/// Names a checkpoint; the step that had the name before.
pub fn tag(store: &dyn Store, job: &str, step: u64, tag: &str, force: bool) -> Result<Option<u64>> {
    check_tag(tag)?;
    let history = History::of(store, job)?;
    let step = history.find(&Target::Step(step))?.step;
    let before = history.tags().get(tag).copied();
    if before == Some(step) {
        return Ok(before);
    }
    refuse_in_a_run(&history, force)?;
    let record = Tag { job: job.into(), tag: tag.into(), step, tagged_ms: now_ms() };
    write_first(&mut store.acquire(&scope_of(job)?)?, &Batch::new().record(&record))?;
    Ok(before)
}

/// Takes a name away; the step that had it.
pub fn untag(store: &dyn Store, job: &str, tag: &str, force: bool) -> Result<u64> {
    let history = History::of(store, job)?;
    let step = history.find(&Target::Tag(tag.into()))?.step;
    refuse_in_a_run(&history, force)?;
    write_first(&mut store.acquire(&scope_of(job)?)?, &Batch::new().delete(Tag::key_of(job, tag)))?;
    Ok(step)
}

fn refuse_in_a_run(history: &History, force: bool) -> Result<()> {
    let Some(run) = history.newest_run()?.filter(|_| !force) else { return Ok(()) };
    if process::is_gone(run.process.as_deref(), &run.host) {
        return Ok(());
    }
    let certain = process::is_running(run.process.as_deref());
    let what = if certain { "a run of the job is in progress" } else { "a run of the job may be in progress" };
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "{what}, and this would end it: job={} generation={} host={} pid={}",
            run.job, run.generation, run.host, run.pid
        ),
    )
    .with_hint("commit(..., tag=, keep_last=) in the run itself, or wait for its end; --force does it all the same"))
}
