//! `forebay checkpoint`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Checkpoint, Run};
use cursorstore::store::Store;
use serde_json::{Value, json};

use super::console::{Console, Failure};
use super::{Global, text};
use crate::error::{Error, Result};
use crate::job::history::{self, History, is_gone};
use crate::job::lineage::{Part, lineage, name_of};
use crate::job::rewind::{self, Preview};
use crate::job::target::Target;
use crate::job::{edit, open_store, process};
use crate::log::Root;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List the jobs, or the checkpoints of one
    #[command(after_help = "\
Examples:
  forebay checkpoint ls
  forebay checkpoint ls vision
  forebay checkpoint ls vision --json

Of a job's checkpoints, one is the latest: where the next run goes on. Abandoned ones lie behind a
rewind; a step that is committed again takes their place.")]
    Ls {
        /// Name of the job
        job: Option<String>,
    },
    /// Show which data made a model
    #[command(after_help = "\
Examples:
  forebay checkpoint show vision              # the latest
  forebay checkpoint show vision@30
  forebay checkpoint show vision@best --json")]
    Show {
        /// JOB@STEP, JOB@TAG, or JOB@latest, for which JOB will do
        checkpoint: String,
    },
    /// Let a job go on from an earlier checkpoint
    #[command(after_help = "\
Examples:
  forebay checkpoint rewind vision --to 30 --dry-run     # what would be trained again, is it there
  forebay checkpoint rewind vision --to best --yes

The next run of the job starts there. Processes of a run in progress get an error at their next
batch or commit. Later checkpoints stay, but are abandoned; rewinding to one of them takes it back.")]
    Rewind {
        /// Name of the job
        job: String,
        /// Step or tag of the checkpoint
        #[arg(long, value_name = "STEP|TAG")]
        to: String,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Remove checkpoints; models' files are not touched
    #[command(after_help = "\
Examples:
  forebay checkpoint rm vision 10 20          # says what would be lost
  forebay checkpoint rm vision 10 20 --yes

Data that only these needed may then be deleted by retention.")]
    Rm {
        /// Name of the job
        job: String,
        /// Their steps or tags
        #[arg(required = true, value_name = "STEP")]
        steps: Vec<String>,
        /// Really remove them
        #[arg(long, short)]
        yes: bool,
        /// Even if that ends a run in progress
        #[arg(long)]
        force: bool,
    },
    /// Give a checkpoint a name, by which it is found and always kept
    #[command(after_help = "\
Examples:
  forebay checkpoint tag vision 30 best       # moves the tag if another step has it
  forebay checkpoint tag vision 30 best --remove")]
    Tag {
        /// Name of the job
        job: String,
        /// Step of the checkpoint
        step: u64,
        /// The name
        tag: String,
        /// Take the name away
        #[arg(long)]
        remove: bool,
        /// Even if that ends a run in progress
        #[arg(long)]
        force: bool,
    },
}

/// The root, and the store in it.
struct Place {
    root: PathBuf,
    store: Arc<dyn Store>,
}

pub(super) fn run(command: &Command, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    let root = Root::open(global.root())?.path().to_path_buf();
    let place = Place { store: open_store(&root)?, root };
    // Taking a large store apart in memory would take as long as reading it did, and the process ends.
    std::mem::forget(place.store.clone());
    match command {
        Command::Ls { job: None } => list_jobs(&place, console),
        Command::Ls { job: Some(job) } => list(&place, job, console),
        Command::Show { checkpoint } => show(&place, checkpoint, console),
        Command::Rewind { job, to, dry_run, yes } => go_back(&place, job, to, *dry_run, *yes, console),
        Command::Rm { job, steps, yes, force } => remove(&place, job, steps, *yes, *force, console),
        Command::Tag { job, step, tag, remove, force } => name(&place, job, *step, tag, *remove, *force, console),
    }
}

fn list_jobs(place: &Place, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut table = vec![["JOB", "CHECKPOINTS", "LATEST", "DATA", "LAST RUN", "NOW"].map(str::to_owned).to_vec()];
    let mut objects = Vec::new();
    for job in history::jobs(&*place.store)? {
        let Some(history) = History::read(&*place.store, &job)? else { continue };
        let latest = history.latest(&is_gone)?.checkpoint.map(|checkpoint| checkpoint.step);
        let run = history.newest_run()?;
        let count = history.checkpoint_entries().len() as u64;
        let state = run.as_ref().map_or("", standing);
        let data = run.as_ref().map_or(String::new(), |run| name_of(&run.state));
        table.push(vec![
            job.clone(),
            text::count(count),
            latest.map_or("-".into(), |step| step.to_string()),
            data.clone(),
            run.as_ref().map_or(String::new(), |run| text::time(run.started_ms)),
            state.into(),
        ]);
        objects.push(json!({
            "job": job, "checkpoints": count, "latest": latest, "data": data, "state": state,
            "generation": run.as_ref().map(|run| run.generation), "started_ms": run.as_ref().map(|run| run.started_ms),
        }));
    }
    match (console.json, table.len()) {
        (true, _) => console.object(&objects),
        (false, 1) => {
            console.note(&format!("no jobs yet: root={}", place.root.display()));
            Ok(())
        }
        (false, _) => console.table(&table),
    }
}

/// Whether a run goes on, as far as that can be told.
fn standing(run: &Run) -> &'static str {
    let process = run.process.as_deref();
    match (&run.from, process::is_running(process)) {
        (StartedFrom::Rewind { .. }, _) => "rewound",
        (_, true) => "running",
        _ if process::is_gone(process, &run.host) => "ended",
        _ => "unknown",
    }
}

fn list(place: &Place, job: &str, console: &mut Console<'_>) -> Result<(), Failure> {
    let history = History::of(&*place.store, job)?;
    let trail = history.trail()?;
    let latest = history.latest(&is_gone)?.checkpoint.map(|checkpoint| checkpoint.step);
    let mut tags: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (tag, step) in history.tags() {
        tags.entry(*step).or_default().push(tag);
    }
    let mut table = vec![
        ["STEP", "DATA STEP", "EPOCH", "PLACE", "RUN", "WHEN", "STATE", "TAGS", "PATH"].map(str::to_owned).to_vec(),
    ];
    let mut objects = Vec::new();
    for brief in history.briefs()? {
        let abandoned = !trail.holds(brief.generation, brief.step);
        let gone = brief.path.as_deref().is_some_and(is_gone);
        let tags = tags.get(&brief.step).cloned().unwrap_or_default();
        let state = match (abandoned, gone, latest == Some(brief.step)) {
            (true, ..) => "abandoned",
            (_, true, _) => "file gone",
            (.., true) => "latest",
            _ => "",
        };
        if console.json {
            objects.push(json!({
                "job": job, "step": brief.step, "data_step": brief.data_step, "epoch": brief.cursor.epoch,
                "place": brief.cursor.n, "generation": brief.generation, "path": brief.path, "path_gone": gone,
                "dataset": brief.dataset, "committed_ms": brief.committed_ms, "tags": tags, "abandoned": abandoned,
                "latest": latest == Some(brief.step),
            }));
        } else {
            table.push(vec![
                brief.step.to_string(),
                brief.data_step.to_string(),
                brief.cursor.epoch.to_string(),
                brief.cursor.n.to_string(),
                brief.generation.to_string(),
                text::time(brief.committed_ms),
                state.into(),
                tags.join(","),
                brief.path.unwrap_or_default(),
            ]);
        }
    }
    match (console.json, table.len()) {
        (true, _) => console.object(&objects),
        (false, 1) => {
            console.note(&format!("the job has no checkpoints: job={job}"));
            Ok(())
        }
        (false, _) => console.table(&table),
    }
}

fn show(place: &Place, name: &str, console: &mut Console<'_>) -> Result<(), Failure> {
    let full = if name.contains('@') { name.to_string() } else { format!("{name}@latest") };
    let (history, checkpoint) = History::named(&*place.store, &full)?;
    let parts = lineage(&history, &checkpoint)?;
    let abandoned = !history.trail()?.holds(checkpoint.generation, checkpoint.step);
    let tags = history.tags_of(checkpoint.step);
    let gone = checkpoint.path.as_deref().is_some_and(is_gone);
    let Checkpoint { state, .. } = &checkpoint;
    let incarnation = state.windows.iter().flat_map(|window| &window.extents).next().map(|extent| extent.incarnation);
    if console.json {
        return console.object(&json!({
            "job": checkpoint.job, "step": checkpoint.step, "data_step": checkpoint.data_step, "tags": tags,
            "generation": checkpoint.generation, "abandoned": abandoned, "path": checkpoint.path, "path_gone": gone,
            "committed_ms": checkpoint.committed_ms, "revision": checkpoint.revision, "dataset": state.dataset,
            "topic": state.topic.to_string(), "incarnation": incarnation, "samples": state.samples(),
            "epoch": state.cursor.epoch, "place": state.cursor.n, "plan": state.plan, "windows": state.windows,
            "fingerprint": state.fingerprint, "runs": parts.iter().map(part_object).collect::<Vec<_>>(),
        }));
    }
    let path =
        checkpoint.path.as_ref().map_or("none".into(), |path| format!("{path}{}", if gone { " (gone)" } else { "" }));
    let data = match &state.dataset {
        Some(dataset) => format!("{} of {}, fingerprint {}", dataset.version, state.topic, dataset.fingerprint),
        None => format!("{} (incarnation {})", state.topic, incarnation.map_or("none".into(), |id| id.to_string())),
    };
    let order = match state.plan.shuffle {
        true => format!(
            "shuffled, seed {}: {} lanes, chunks of {}, pools of {}",
            state.plan.seed, state.plan.lanes, state.plan.chunk, state.plan.pool
        ),
        false => "as in the topic".into(),
    };
    let standing = if abandoned { ", abandoned by a rewind" } else { "" };
    console.table(&[
        vec!["checkpoint".into(), format!("{}@{}{standing}", checkpoint.job, checkpoint.step)],
        vec!["tags".into(), if tags.is_empty() { "none".into() } else { tags.join(", ") }],
        vec!["model".into(), path],
        vec!["committed".into(), text::time(checkpoint.committed_ms)],
        vec!["revision".into(), checkpoint.revision.clone().unwrap_or_else(|| "not told".into())],
        vec!["data".into(), data],
        vec!["samples".into(), format!("{} an epoch", text::count(state.samples()))],
        vec!["order".into(), order],
        vec!["comes next".into(), format!("epoch {} place {}", state.cursor.epoch, text::count(state.cursor.n))],
        vec!["data step".into(), text::count(checkpoint.data_step)],
    ])?;
    console.line("")?;
    console.line("trained on, in this order:")?;
    let head = ["RUN", "FROM", "EPOCH/PLACE", "TO", "DATA", "RANKS", "BATCH", "REVISION", "HOST", "STARTED"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(parts.iter().map(part_row));
    console.table(&table)
}

fn origin(run: &Run) -> String {
    match run.from {
        StartedFrom::Beginning => "beginning".into(),
        StartedFrom::Checkpoint { step } => format!("step {step}"),
        StartedFrom::Rewind { step } => format!("rewound to {step}"),
        StartedFrom::State => "a state".into(),
    }
}

fn part_row(Part { run, to }: &Part) -> Vec<String> {
    let state = &run.state;
    vec![
        run.generation.to_string(),
        origin(run),
        format!("{}/{}", state.cursor.epoch, state.cursor.n),
        format!("{}/{}", to.epoch, to.n),
        name_of(state),
        run.world.to_string(),
        run.batch.to_string(),
        run.revision.clone().unwrap_or_else(|| "-".into()),
        run.host.clone(),
        text::time(run.started_ms),
    ]
}

fn part_object(Part { run, to }: &Part) -> Value {
    json!({
        "generation": run.generation, "attempt": run.attempt, "from": run.from, "start": run.state.cursor, "end": to,
        "data": name_of(&run.state), "seed": run.state.plan.seed, "world_size": run.world,
        "global_batch_size": run.batch, "revision": run.revision, "host": run.host, "pid": run.pid,
        "forebay": run.forebay, "started_ms": run.started_ms,
    })
}

fn go_back(
    place: &Place,
    job: &str,
    to: &str,
    dry_run: bool,
    yes: bool,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let preview = rewind::preview(&*place.store, &place.root, job, &to.parse()?)?;
    let words = in_words(&preview);
    if !dry_run && !yes && !confirmed(&words, "rewind", console)? {
        return Err(Error::invalid(format!("this rewinds a job, and nobody said yes: {}", words.join("; ")))
            .with_hint(format!("forebay checkpoint rewind {job} --to {to} --yes, or --dry-run to look first"))
            .into());
    }
    let generation = if dry_run { None } else { Some(rewind::rewind(&*place.store, &preview)?) };
    let step = preview.checkpoint.step;
    if console.json {
        return console.object(&json!({
            "job": job, "step": step, "rewound": !dry_run, "generation": generation,
            "newest": preview.newest.map(|(step, _)| step), "abandons": preview.abandons, "samples": preview.samples,
            "bytes": preview.bytes, "data": preview.data, "retained": true, "was_abandoned": !preview.on_trail,
            "running": preview.running.as_ref().map(|run| json!({ "host": run.host, "pid": run.pid })),
            "path": preview.checkpoint.path, "path_gone": preview.missing_path.is_some(),
        }));
    }
    for line in words {
        console.line(&line)?;
    }
    match generation {
        Some(_) => console.line(&format!("rewound {job} to step {step}: the next run goes on from there")),
        None => console.line("nothing was changed"),
    }
}

/// What a rewind means, a line each.
fn in_words(preview: &Preview) -> Vec<String> {
    let Preview { checkpoint, .. } = preview;
    let cursor = checkpoint.state.cursor;
    let place = format!("epoch {} place {}", cursor.epoch, text::count(cursor.n));
    let mut words = vec![format!("{} goes back to step {}, {place}", checkpoint.job, checkpoint.step)];
    match preview.newest {
        _ if !preview.on_trail => {
            words.push("that checkpoint was abandoned by an earlier rewind, and is taken back".into())
        }
        Some((newest, _)) if newest > checkpoint.step => words.push(format!(
            "{} ({}) of {} will be trained on again, all are there: what led to step {newest}",
            text::counted(preview.samples, "sample"),
            text::bytes(preview.bytes),
            preview.data.join(", ")
        )),
        _ => words.push("nothing that was committed will be trained on again".into()),
    }
    if preview.abandons > 0 {
        words.push(format!("{} will be abandoned", text::counted(preview.abandons, "later checkpoint")));
    }
    if let Some(path) = &preview.missing_path {
        words.push(format!("the model's file is gone: {path}"));
    }
    if let Some(run) = &preview.running {
        words.push(format!("the run in progress ends with an error: host={} pid={}", run.host, run.pid));
    }
    words
}

/// Asks on the terminal. Without one, nobody says yes.
fn confirmed(words: &[String], what: &str, console: &mut Console<'_>) -> Result<bool, Failure> {
    if !console.terminal || console.json || !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    words.iter().for_each(|line| console.complain(line));
    console.complain(&format!("{what}? [y/N]"));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn remove(
    place: &Place,
    job: &str,
    steps: &[String],
    yes: bool,
    force: bool,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let targets = steps.iter().map(|step| step.parse()).collect::<Result<Vec<Target>>>()?;
    if !yes {
        let would = edit::preview(&*place.store, job, &targets)?;
        let named: Vec<String> = would.steps.iter().map(u64::to_string).collect();
        let tags = if would.tags.is_empty() { String::new() } else { format!(" tags={}", would.tags.join(",")) };
        return Err(Error::invalid(format!(
            "this removes checkpoints for good: job={job} steps={}{tags}",
            named.join(",")
        ))
        .with_hint(format!("forebay checkpoint rm {job} {} --yes", steps.join(" ")))
        .into());
    }
    let removed = edit::remove(&*place.store, job, &targets, force)?;
    if console.json {
        return console.object(&json!({ "job": job, "removed": removed.steps, "tags": removed.tags }));
    }
    let count = text::counted(removed.steps.len() as u64, "checkpoint");
    console.line(&format!("removed {count} of {job}"))
}

fn name(
    place: &Place,
    job: &str,
    step: u64,
    tag: &str,
    remove: bool,
    force: bool,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    if remove {
        let had = edit::untag(&*place.store, job, tag, force)?;
        return match console.json {
            true => console.object(&json!({ "job": job, "step": had, "untagged": tag })),
            false => console.line(&format!("{job}@{had} is not {tag} any more")),
        };
    }
    let before = edit::tag(&*place.store, job, step, tag, force)?.filter(|before| *before != step);
    if console.json {
        return console.object(&json!({ "job": job, "step": step, "tag": tag, "before": before }));
    }
    let moved = before.map_or(String::new(), |before| format!(", which step {before} was before"));
    console.line(&format!("{job}@{step} is {tag}{moved}"))
}
