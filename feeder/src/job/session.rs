//! One process of a run: rank 0 leads, the others follow.
//!
//! The leader finds where to start, puts its loader there, becomes the job's writer, looks again, and writes the run
//! record. What cannot be honoured is refused before anybody else is fenced. Followers wait for the record of their own
//! attempt and start at its state; they never write and never choose.
//!
//! An attempt started again under the same name leaves earlier run records of that name. A follower takes the newest,
//! unless it is certain that its rank 0 is gone ([`super::process`]). Where that cannot be seen (rank 0 in another
//! container), a follower that came before its rank 0 may start from an earlier record; the fence then refuses it at its
//! first batch after rank 0 wrote the new one, so that it never goes on unnoticed. Names that count restarts avoid that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cursorstore::State;
use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Checkpoint, Record, Run};
use cursorstore::store::{Batch, Mark, Scope, Store, VALUE_BYTES_MAX};

use super::commit::Leading;
use super::fence::Fence;
use super::history::History;
use super::keep::Keep;
use super::retained;
use super::start::Start;
use super::target::Resume;
use super::{now_ms, process, scope_of, write_first};
use crate::error::{Error, ErrorKind, Result};

/// Longest name of an attempt, in bytes.
pub const ATTEMPT_BYTES_MAX: usize = 512;
/// Longest revision, in bytes.
pub const REVISION_BYTES_MAX: usize = 512;

/// What a caller asks of a job.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job's name.
    pub job: String,
    /// The launcher's name of the attempt, the same on all its ranks, another one at each start.
    pub attempt: Option<String>,
    /// Where to start, unless a state was loaded.
    pub resume: Resume,
    /// Revision of the training code.
    pub revision: Option<String>,
    /// Which checkpoints stay, unless a commit says otherwise.
    pub keep: Keep,
}

/// What a loader is like, as far as a job cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of ranks.
    pub world: u32,
    /// Places of one step.
    pub batch: u32,
    /// Whether an epoch's short last step is left out.
    pub drop_last: bool,
}

impl Shape {
    /// Steps from the beginning of the data to a state.
    pub fn steps_to(&self, state: &State) -> u64 {
        let batch = u64::from(self.batch.max(1));
        let samples = state.samples();
        let whole = if self.drop_last { samples / batch } else { samples.div_ceil(batch) };
        let within =
            if self.drop_last && samples - state.cursor.n < batch { whole } else { state.cursor.n.div_ceil(batch) };
        state.cursor.epoch.saturating_mul(whole).saturating_add(within)
    }
}

/// Puts the loader at a state, or leaves it where it is, and says its state. It must refuse what it cannot honour.
pub type Place<'a> = &'a mut dyn FnMut(Option<&State>) -> Result<State>;

/// See the module.
#[derive(Debug)]
pub struct Session {
    pub(super) store: Arc<dyn Store>,
    pub(super) scope: Scope,
    pub(super) settings: Settings,
    pub(super) fence: Arc<Fence>,
    pub(super) leading: Option<Leading>,
    pub(super) notices: Vec<String>,
    root: PathBuf,
    run: Option<Run>,
    started_at: Option<Checkpoint>,
    /// Followers: records up to this generation are none to start from.
    seen: u64,
    mark: Mark,
    /// Followers: why the newest record of the own attempt was not taken.
    not_taken: Option<String>,
}

impl Session {
    /// A process's part in a job. Writes nothing.
    pub fn open(store: Arc<dyn Store>, root: &Path, settings: Settings) -> Result<Self> {
        let scope = scope_of(&settings.job)?;
        settings.keep.check()?;
        for (name, value, most) in
            [("attempt", &settings.attempt, ATTEMPT_BYTES_MAX), ("revision", &settings.revision, REVISION_BYTES_MAX)]
        {
            if let Some(value) = value.as_ref().filter(|value| value.is_empty() || value.len() > most) {
                return Err(Error::invalid(format!("{name} is a text of 1 to {most} bytes: {name}={value:?}")));
            }
        }
        let fence = Arc::new(Fence::new(store.clone(), scope.clone()));
        Ok(Self {
            store,
            scope,
            settings,
            fence,
            root: root.to_path_buf(),
            run: None,
            started_at: None,
            leading: None,
            seen: 0,
            mark: Mark::START,
            not_taken: None,
            notices: Vec::new(),
        })
    }

    /// What is asked at every batch.
    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// What the caller asked for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The run that this process belongs to, once it does.
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// The checkpoint that the run started from, if it did and it is still there.
    pub fn started_at(&self) -> Option<&Checkpoint> {
        self.started_at.as_ref()
    }

    /// Lines for the user's log, each once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Rank 0 begins a run: at the state that its loader was given if `explicit`, else where the settings say. Beginning
    /// again, after another state was loaded, begins another run, unless this one was taken over.
    pub fn lead(&mut self, explicit: bool, shape: Shape, place: Place<'_>) -> Result<()> {
        self.fence.check()?;
        self.check_attempt(explicit, shape)?;
        let (start, state) = self.find_start(explicit, place)?;
        let run = self.record(0, &start, state, shape);
        let bytes = run.encode().len();
        if bytes > VALUE_BYTES_MAX {
            return Err(too_large(bytes));
        }
        let mut writer = self.store.acquire(&self.scope)?;
        // Should it fail from here on, it may try again.
        self.fence.set(writer.generation());
        // What an earlier run committed until now counts; from now on it cannot.
        let (start, state) = match self.find_start(explicit, &mut |_| Ok(run.state.clone()))? {
            (again, _) if again == start => (start, run.state),
            _ => self.find_start(explicit, place)?,
        };
        let run = self.record(writer.generation(), &start, state, shape);
        write_first(&mut writer, &Batch::new().record(&run))?;
        for (step, path) in &start.passed_over {
            self.notices.push(format!(
                "a checkpoint is passed over because its file is gone: job={} step={step} path={path}",
                run.job
            ));
        }
        let tags = History::read(&*self.store, &run.job)?.map(|history| history.tags().clone()).unwrap_or_default();
        self.leading = Some(Leading::new(writer, &run, start.checkpoint.clone(), shape, tags));
        (self.run, self.started_at) = (Some(run), start.checkpoint);
        Ok(())
    }

    /// Where to start and the loader's state there.
    fn find_start(&self, explicit: bool, place: Place<'_>) -> Result<(Start, State)> {
        let history = History::read(&*self.store, &self.settings.job)?;
        let start = match explicit {
            true => self.explicit_start(history.as_ref(), &place(None)?)?,
            false => Start::of(&*self.store, history.as_ref(), &self.settings.job, &self.settings.resume)?,
        };
        let state = match explicit {
            true => place(None),
            false => place(start.state()),
        };
        let state = state.map_err(|error| retained::with_way_out(error, &self.root, history.as_ref()))?;
        Ok((start, state))
    }

    /// The start at a state that was loaded. Back at its own start, a run starts as it did.
    fn explicit_start(&self, history: Option<&History>, state: &State) -> Result<Start> {
        match self.run.as_ref().filter(|run| run.state == *state) {
            Some(run) => Ok(Start {
                checkpoint: self.started_at.clone(),
                is_foreign: run.from == StartedFrom::State,
                passed_over: Vec::new(),
            }),
            None => Start::explicit(history, state),
        }
    }

    fn record(&self, generation: u64, start: &Start, state: State, shape: Shape) -> Run {
        let settings = &self.settings;
        let data_step = match &start.checkpoint {
            Some(checkpoint) => checkpoint.data_step,
            None => shape.steps_to(&state),
        };
        Run {
            job: settings.job.clone(),
            generation,
            attempt: settings.attempt.clone().unwrap_or_default(),
            from: start.from(),
            parent: start.checkpoint.as_ref().map(|checkpoint| checkpoint.generation),
            data_step,
            dataset: state.dataset.as_ref().map(|dataset| dataset.version.clone()),
            state,
            world: shape.world,
            batch: shape.batch,
            revision: settings.revision.clone(),
            host: process::host(),
            pid: std::process::id(),
            process: process::this_process(),
            forebay: env!("CARGO_PKG_VERSION").into(),
            started_ms: now_ms(),
        }
    }

    fn check_attempt(&self, explicit: bool, shape: Shape) -> Result<()> {
        if shape.world == 1 || explicit || self.settings.attempt.is_some() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the ranks of a job find one another by the name of their attempt, and nothing says it: job={} world_size={}",
            self.settings.job, shape.world
        ))
        .with_hint(
            "attempt= with a text that is the same on all ranks and new at each start; or start with torchrun or srun, which say it; or load_state_dict(state) with the same state on every rank",
        ))
    }

    /// Another rank joins the run of its attempt, waiting at most `wait` for rank 0 to begin it: `false` if it has not.
    /// With a state of the caller's, rank 0 must have begun at that state. The caller then puts its loader at the run's
    /// state. Following again, after another state was loaded, follows a later run.
    pub fn follow(&mut self, explicit: Option<&State>, shape: Shape, wait: Duration) -> Result<bool> {
        self.check_attempt(explicit.is_some(), shape)?;
        if let Some(run) = self.run.as_ref().filter(|_| explicit.is_some()) {
            self.seen = self.seen.max(run.generation);
        }
        let began = Instant::now();
        loop {
            if let Some(run) = self.candidate(explicit)? {
                self.fence.set(run.generation);
                self.started_at = match &run.from {
                    StartedFrom::Checkpoint { step } | StartedFrom::Rewind { step } => {
                        let key = Checkpoint::key_of(&run.job, *step);
                        let entry = self.store.get(&self.scope, &key)?;
                        entry.and_then(|entry| Checkpoint::decode(&entry.value).ok())
                    }
                    _ => None,
                };
                self.run = Some(run);
                return Ok(true);
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.mark = self.store.watch(&self.scope, self.mark, left)?.mark;
        }
    }

    /// The run to follow, if there is one.
    fn candidate(&mut self, explicit: Option<&State>) -> Result<Option<Run>> {
        let runs = self.store.fold(&self.scope, &Run::prefix(&self.settings.job))?;
        let own = self.settings.attempt.as_deref().unwrap_or_default();
        let mut newest = None;
        for entry in runs.entries().iter().rev() {
            let run = Run::decode(&entry.value).map_err(|source| {
                let (scope, key) = (self.scope.clone(), entry.key.to_string());
                Error::from(cursorstore::records::ReadError::Record { scope, key, source })
            })?;
            let first = *newest.get_or_insert(run.generation);
            if run.generation <= self.seen {
                break;
            }
            if run.attempt != own || matches!(run.from, StartedFrom::Rewind { .. }) {
                if self.run.is_some() {
                    return Err(self.fence.fenced(first));
                }
                continue;
            }
            if process::is_gone(run.process.as_deref(), &run.host) {
                self.not_taken = Some(format!("its rank 0 is gone (generation={} pid={})", run.generation, run.pid));
                break;
            }
            if explicit.is_some_and(|state| *state != run.state) {
                self.not_taken = Some(format!("it began at another state (generation={})", run.generation));
                break;
            }
            if first > run.generation {
                self.fence.set(run.generation);
                return Err(self.fence.fenced(first));
            }
            return Ok(Some(run));
        }
        // None of these will do later.
        self.seen = self.seen.max(newest.unwrap_or(0));
        Ok(None)
    }

    /// The error of a rank that waited in vain.
    pub fn late(&self, rank: u32, waited: Duration) -> Error {
        let Settings { job, attempt, .. } = &self.settings;
        let why = self.not_taken.as_ref().map(|why| format!("; the newest run of this attempt was not taken, {why}"));
        Error::new(
            ErrorKind::Timeout,
            format!(
                "rank 0 of this attempt has not begun{}: job={job} attempt={:?} rank={rank} waited_s={}",
                why.unwrap_or_default(),
                attempt.as_deref().unwrap_or_default(),
                waited.as_secs()
            ),
        )
        .with_hint("rank 0 begins when it first iterates, or asks for its state or epoch: see that it does, with the same job=, attempt= and root=; raise timeout= if it needs longer")
    }
}

/// The error of a state that no record can hold.
pub(super) fn too_large(bytes: usize) -> Error {
    Error::invalid(format!(
        "the state is too large to be stored, it names too many separate ranges of records: bytes={bytes} bytes_max={VALUE_BYTES_MAX}"
    ))
    .with_hint("train on a dataset version, which a state names instead of listing its records: forebay dataset pin")
}
