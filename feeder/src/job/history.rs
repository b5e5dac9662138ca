//! What the store holds of a job: its runs, checkpoints and tags, read at one moment, and the trail through them.
//!
//! Records are decoded when they are looked at: of a job with very many checkpoints, finding the latest decodes a few.

use std::collections::BTreeMap;
use std::path::Path;

use cursorstore::State;
use cursorstore::records::checkpoint::Brief;
use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Checkpoint, ReadError, Record, RecordError, Run, Tag};
use cursorstore::store::{Entry, Scope, Store, View};

use super::target::{Resume, Target, parse_place};
use crate::error::{Error, ErrorKind, Result, nearest};

/// Names shown when one is not there.
const NAMES_SHOWN: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct History {
    job: String,
    scope: Scope,
    runs: View,
    checkpoints: View,
    tags: BTreeMap<String, u64>,
}

/// Which checkpoints are on a job's trail: generations, the newest first, each with the last step that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail(Vec<(u64, u64)>);

impl Trail {
    /// Whether a checkpoint is on the trail.
    pub fn holds(&self, generation: u64, step: u64) -> bool {
        self.0.iter().any(|&(own, last)| own == generation && step <= last)
    }

    /// Generations with the last step that counts of each, the newest first.
    pub fn parts(&self) -> &[(u64, u64)] {
        &self.0
    }
}

/// The newest checkpoint that can be used, and those passed over.
#[derive(Debug, Default)]
pub struct Latest {
    /// `None` if the trail has none.
    pub checkpoint: Option<Checkpoint>,
    /// Step and path of newer ones whose file is gone.
    pub passed_over: Vec<(u64, String)>,
}

impl History {
    /// A job's records as they are now; `None` if nobody ever ran a job of that name.
    pub fn read(store: &dyn Store, job: &str) -> Result<Option<Self>> {
        let scope = super::scope_of(job)?;
        // Runs first: a checkpoint that is read beside them is of one of them, or of a later one and not on the trail.
        let runs = store.fold(&scope, &Run::prefix(job))?;
        let tags = store.fold(&scope, &Tag::prefix(job))?;
        let checkpoints = store.fold(&scope, &Checkpoint::prefix(job))?;
        if runs.entries().is_empty() && checkpoints.entries().is_empty() {
            return Ok(None);
        }
        let mut history = Self { job: job.into(), scope, runs, checkpoints, tags: BTreeMap::new() };
        for entry in tags.entries() {
            let tag: Tag = history.decode(entry)?;
            history.tags.insert(tag.tag, tag.step);
        }
        Ok(Some(history))
    }

    /// The same; that nobody ever ran the job is an error which names the nearest there are.
    pub fn of(store: &dyn Store, job: &str) -> Result<Self> {
        if let Some(history) = Self::read(store, job)? {
            return Ok(history);
        }
        let jobs = jobs(store)?;
        Err(Error::new(ErrorKind::NotFound, format!("no such job{}: job={job}", known(job, &jobs)))
            .with_hint("list the jobs with: forebay checkpoint ls"))
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The stored checkpoints, by step.
    pub fn checkpoint_entries(&self) -> &[Entry] {
        self.checkpoints.entries()
    }

    /// All tags with their steps.
    pub fn tags(&self) -> &BTreeMap<String, u64> {
        &self.tags
    }

    /// The tags of a step.
    pub fn tags_of(&self, step: u64) -> Vec<&str> {
        self.tags.iter().filter(|(_, at)| **at == step).map(|(tag, _)| &**tag).collect()
    }

    /// The newest run.
    pub fn newest_run(&self) -> Result<Option<Run>> {
        self.runs.entries().last().map(|entry| self.decode(entry)).transpose()
    }

    /// The run of a generation.
    pub fn run(&self, generation: u64) -> Result<Option<Run>> {
        self.runs.get(&Run::key_of(&self.job, generation)).map(|entry| self.decode(entry)).transpose()
    }

    /// The job's trail.
    pub fn trail(&self) -> Result<Trail> {
        match self.newest_run()? {
            Some(run) => self.trail_to(run.generation, u64::MAX),
            None => Ok(Trail::default()),
        }
    }

    /// What led to the checkpoint that a generation made of a step.
    pub fn trail_to(&self, generation: u64, step: u64) -> Result<Trail> {
        let mut parts = vec![(generation, step)];
        let mut at = (generation, step);
        while let Some(run) = self.run(at.0)? {
            let (StartedFrom::Checkpoint { step } | StartedFrom::Rewind { step }, Some(parent)) =
                (&run.from, run.parent)
            else {
                break;
            };
            // A parent is always older: whatever a damaged record says, this ends.
            if parent >= at.0 {
                break;
            }
            at = (parent, at.1.min(*step));
            parts.push(at);
        }
        Ok(Trail(parts))
    }

    /// All checkpoints in short, by step.
    pub fn briefs(&self) -> Result<Vec<Brief>> {
        self.checkpoints.entries().iter().map(|entry| self.brief(entry)).collect()
    }

    /// The newest checkpoint of the trail whose file is there. `is_gone` says of a path that it is not.
    pub fn latest(&self, is_gone: &dyn Fn(&str) -> bool) -> Result<Latest> {
        let trail = self.trail()?;
        let mut latest = Latest::default();
        for entry in self.checkpoints.entries().iter().rev() {
            let generation =
                Checkpoint::generation_of(&entry.value).map_err(|source| self.unreadable(entry, source))?;
            if !trail.holds(generation, step_of(entry)) {
                continue;
            }
            let brief = self.brief(entry)?;
            match brief.path.filter(|path| is_gone(path)) {
                Some(path) => latest.passed_over.push((brief.step, path)),
                None => {
                    latest.checkpoint = Some(self.decode(entry)?);
                    break;
                }
            }
        }
        Ok(latest)
    }

    /// The checkpoint of that step or tag; if there is none, the error names the nearest.
    pub fn find(&self, target: &Target) -> Result<Checkpoint> {
        let step = match target {
            Target::Step(step) => *step,
            Target::Tag(tag) => *self.tags.get(tag).ok_or_else(|| self.no_tag(tag))?,
        };
        match self.checkpoints.get(&Checkpoint::key_of(&self.job, step)) {
            Some(entry) => self.decode(entry),
            None => Err(self.no_step(step)),
        }
    }

    /// The checkpoint that `job@step`, `job@tag` or `job@latest` names, with all there is of its job.
    pub fn named(store: &dyn Store, text: &str) -> Result<(Self, Checkpoint)> {
        let (job, resume) = parse_place(text)?;
        let history = Self::of(store, &job)?;
        let checkpoint = match resume {
            Resume::At(target) => history.find(&target)?,
            _ => history.latest(&is_gone)?.checkpoint.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("the job has no checkpoint to go on from: job={job}"))
                    .with_hint(format!("list them with: forebay checkpoint ls {job}"))
            })?,
        };
        Ok((history, checkpoint))
    }

    /// The newest checkpoint that has this very state, one on the trail if there is one.
    pub fn with_state(&self, state: &State) -> Result<Option<Checkpoint>> {
        let trail = self.trail()?;
        let cursor = format!(r#""cursor":{{"epoch":{},"n":{}}}"#, state.cursor.epoch, state.cursor.n);
        let words = [cursor.as_bytes(), state.fingerprint.as_bytes()];
        let mut abandoned = None;
        for entry in self.checkpoints.entries().iter().rev() {
            // Most are told apart by their bytes, which is a hundred times faster than reading them.
            if !words.iter().all(|word| contains(&entry.value, word)) {
                continue;
            }
            let checkpoint: Checkpoint = self.decode(entry)?;
            if checkpoint.state != *state {
                continue;
            }
            if trail.holds(checkpoint.generation, checkpoint.step) {
                return Ok(Some(checkpoint));
            }
            abandoned.get_or_insert(checkpoint);
        }
        Ok(abandoned)
    }

    pub(super) fn brief(&self, entry: &Entry) -> Result<Brief> {
        Checkpoint::brief(&entry.value).map_err(|source| self.unreadable(entry, source))
    }

    fn decode<R: Record>(&self, entry: &Entry) -> Result<R> {
        let record = R::decode(&entry.value).map_err(|source| self.unreadable(entry, source))?;
        if record.key() == *entry.key {
            return Ok(record);
        }
        let (scope, key, own) = (self.scope.clone(), entry.key.to_string(), record.key());
        Err(ReadError::Misplaced { scope, key, own }.into())
    }

    pub(super) fn unreadable(&self, entry: &Entry, source: RecordError) -> Error {
        let newer = matches!(source, RecordError::Newer { .. });
        let error: Error = ReadError::Record { scope: self.scope.clone(), key: entry.key.to_string(), source }.into();
        if newer { error.with_hint("use the newer forebay that wrote it") } else { error }
    }

    fn no_step(&self, step: u64) -> Error {
        let key = Checkpoint::key_of(&self.job, step);
        let entries = self.checkpoints.entries();
        let after = entries.partition_point(|entry| *entry.key < *key);
        let below = after.checked_sub(1).and_then(|at| entries.get(at)).map(step_of);
        let above = entries.get(after).map(step_of);
        let near = match (below, above) {
            (Some(below), Some(above)) => format!("the nearest are {below} and {above}"),
            (Some(near), None) | (None, Some(near)) => format!("the nearest is {near}"),
            (None, None) => "the job has none".into(),
        };
        Error::new(ErrorKind::NotFound, format!("no checkpoint of that step, {near}: job={} step={step}", self.job))
            .with_hint(format!("list them with: forebay checkpoint ls {}", self.job))
    }

    fn no_tag(&self, tag: &str) -> Error {
        let tags: Vec<String> = self.tags.keys().cloned().collect();
        let text = format!("no such tag{}: job={} tag={tag}", known(tag, &tags), self.job);
        Error::new(ErrorKind::NotFound, text).with_hint(format!("list them with: forebay checkpoint ls {}", self.job))
    }
}

/// The step in a checkpoint's key.
pub(super) fn step_of(entry: &Entry) -> u64 {
    entry.key.rsplit('/').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The names of all jobs.
pub fn jobs(store: &dyn Store) -> Result<Vec<String>> {
    let scopes = store.scopes()?;
    Ok(scopes.iter().filter_map(Scope::job_name).map(str::to_owned).collect())
}

/// Whether a path is one of this machine and nothing is there. URLs are not looked at.
pub fn is_gone(path: &str) -> bool {
    // What cannot be looked at may be there.
    !path.contains("://") && !Path::new(path).try_exists().unwrap_or(true)
}

/// ` (did you mean X?), there are X, Y`.
fn known(given: &str, names: &[String]) -> String {
    let near = nearest(given, names.iter().map(String::as_str)).map(|near| format!(" (did you mean {near}?)"));
    let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let there = match names.len() {
        0 => ", there are none yet".to_string(),
        n if n > NAMES_SHOWN => format!(", there are {shown} and {} more", n - NAMES_SHOWN),
        _ => format!(", there are {shown}"),
    };
    near.unwrap_or_default() + &there
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    let Some(&first) = word.first() else { return true };
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == first) {
        rest = &rest[at..];
        if rest.starts_with(word) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}
