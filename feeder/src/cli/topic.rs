//! `forebay topic`.

use cursorstore::TopicName;
use serde_json::{Value, json};

use super::console::{Console, Failure};
use super::meter::Meter;
use super::values::{row_json, row_text};
use super::{Global, text, trim};
use crate::catalogue;
use crate::error::{Error, Result};
use crate::log::{PartitionView, Root, SegmentView, Topic, TopicOptions, TopicView};
use crate::schema::Schema;
use crate::versions::describe_growth;

/// Bytes of rows that are read at once for showing.
const SHOW_BYTES: u64 = 8 << 20;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make an empty topic
    #[command(after_help = "\
Examples:
  forebay topic create digits --schema 'id:int64, image:uint8[28x28]'
  forebay topic create events --schema 'user:uint32, time:int64' --partitions 8 --segment-bytes 256MiB

Not needed before an ingest, which makes its topic.")]
    Create {
        /// Name: 'corpus' or 'persistent://tenant/namespace/corpus'
        topic: String,
        /// Columns as NAME:TYPE[SHAPE], for example 'id:int64, image:uint8[3x224x224]'
        #[arg(long)]
        schema: String,
        /// Partitions; each is written by one process at a time
        #[arg(long, value_name = "N", default_value_t = 1)]
        partitions: u32,
        /// Size of a block, the unit of writing
        #[arg(long, value_name = "SIZE", default_value = "256KiB")]
        block_bytes: String,
        /// Size at which a segment file is sealed
        #[arg(long, value_name = "SIZE", default_value = "1GiB")]
        segment_bytes: String,
    },
    /// List the topics
    #[command(after_help = "Examples:\n  forebay topic ls\n  forebay topic ls --root ./data --json")]
    Ls,
    /// Show a topic's schema, partitions and segments
    #[command(after_help = "Examples:\n  forebay topic show digits\n  forebay topic show digits --json")]
    Show {
        /// Name of the topic
        topic: String,
    },
    /// Print the last rows of each partition
    #[command(after_help = "\
Examples:
  forebay topic tail digits
  forebay topic tail digits -n 1 --partition 0 --json

With --json each row is an object on a line of its own, with all elements of its values.")]
    Tail {
        /// Name of the topic
        topic: String,
        /// Rows of each partition
        #[arg(short = 'n', long, default_value_t = 10)]
        rows: u64,
        /// Only this partition
        #[arg(long, value_name = "P")]
        partition: Option<u32>,
    },
    /// Remove a topic with all its data
    #[command(
        after_help = "Examples:\n  forebay topic rm digits          # says what would be lost\n  forebay topic rm digits --yes\n\nRefused while dataset versions or kept checkpoints need records of it, which are told; with --force\nthese can no longer be read."
    )]
    Rm {
        /// Name of the topic
        topic: String,
        /// Really remove it
        #[arg(long)]
        yes: bool,
        /// Even if versions or checkpoints need its records
        #[arg(long)]
        force: bool,
    },
    /// Delete the oldest segments, as far as nobody needs them
    #[command(after_help = trim::HELP)]
    Trim(trim::Args),
    /// Read everything and compare it with its checksums
    #[command(
        after_help = "Examples:\n  forebay topic verify digits\n\nExits with 7 if anything is damaged, and names file, offset and rows."
    )]
    Verify {
        /// Name of the topic
        topic: String,
        /// No progress
        #[arg(long, short)]
        quiet: bool,
    },
}

pub(super) fn run(command: &Command, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    match command {
        Command::Create { topic, schema, partitions, block_bytes, segment_bytes } => {
            let options = TopicOptions {
                partitions: *partitions,
                block_bytes: usize::try_from(text::parse_bytes(block_bytes)?).unwrap_or(usize::MAX),
                segment_bytes: text::parse_bytes(segment_bytes)?,
                ..TopicOptions::default()
            };
            create(&name(topic)?, &Schema::parse(schema)?, &options, global, console)
        }
        Command::Ls => list(global, console),
        Command::Show { topic } => show(&find(topic, global)?, console),
        Command::Tail { topic, rows, partition } => tail(&find(topic, global)?, *rows, *partition, console),
        Command::Rm { topic, yes, force } => remove(&name(topic)?, *yes, *force, global, console),
        Command::Trim(args) => trim::run(args, global, console),
        Command::Verify { topic, quiet } => {
            console.quiet = *quiet;
            verify(&find(topic, global)?, console)
        }
    }
}

/// A topic's name from an argument.
pub(super) fn name(text: &str) -> Result<TopicName> {
    text.parse().map_err(|error| Error::invalid(format!("{error}")))
}

/// The topic of that name.
pub(super) fn find(text: &str, global: &Global) -> Result<Topic> {
    let name = name(text)?;
    Root::open(global.root())?.topic(&name)
}

fn create(
    name: &TopicName,
    schema: &Schema,
    options: &TopicOptions,
    global: &Global,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    options.check()?;
    let topic = Root::create(global.root())?.create_topic(name, schema, options)?;
    match console.json {
        true => console.object(&describe(&topic, &topic.view()?)),
        false => {
            let partitions = text::counted(u64::from(topic.partitions()), "partition");
            console.line(&format!("made {name} with {partitions}: {schema}"))
        }
    }
}

fn list(global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    let root = Root::open(global.root())?;
    let mut table = vec![["TOPIC", "ROWS", "BYTES", "PARTITIONS", "SCHEMA"].map(str::to_owned).to_vec()];
    let mut objects = Vec::new();
    let mut failed = None;
    for name in root.topics()? {
        // One damaged topic must not hide the others.
        match root.topic(&name).and_then(|topic| topic.view().map(|view| (topic, view))) {
            Ok((topic, view)) => {
                let bytes = text::bytes(row_bytes(&view));
                let columns = [
                    name.to_string(),
                    text::count(view.rows()),
                    bytes,
                    topic.partitions().to_string(),
                    view.schema.to_string(),
                ];
                table.push(columns.to_vec());
                objects.push(summary(&topic, &view));
            }
            Err(error) => {
                console.complain(&format!("error: {}", error.report()));
                failed.get_or_insert(error);
            }
        }
    }
    match (console.json, table.len()) {
        (true, _) => console.object(&objects)?,
        (false, 1) => console.note(&format!("no topics yet: root={}", root.path().display())),
        (false, _) => console.table(&table)?,
    }
    match failed {
        Some(error) => Err(Error::new(error.kind(), "not all topics can be opened").into()),
        None => Ok(()),
    }
}

fn show(topic: &Topic, console: &mut Console<'_>) -> Result<(), Failure> {
    let view = topic.view()?;
    if console.json {
        return console.object(&describe(topic, &view));
    }
    let options = topic.options();
    let row = view.schema.row_bytes();
    console.table(&[
        vec!["topic".into(), topic.name().to_string()],
        vec!["incarnation".into(), topic.incarnation().to_string()],
        vec!["path".into(), topic.dir().display().to_string()],
        vec!["schema".into(), view.schema.to_string()],
        vec!["rows".into(), format!("{} of {row} bytes, {}", text::count(view.rows()), text::bytes(row_bytes(&view)))],
        vec![
            "blocks".into(),
            format!("{} rows, {}", topic.block_rows(), text::bytes(u64::from(topic.block_rows()) * row as u64)),
        ],
        vec!["segments".into(), format!("sealed at {}", text::bytes(options.segment_bytes))],
    ])?;
    show_schemas(&view, console)?;
    console.line("")?;
    let mut table = vec![["PARTITION", "ROWS", "OFFSETS", "BYTES", "SEGMENTS"].map(str::to_owned).to_vec()];
    for partition in &view.partitions {
        let rows = partition.end - partition.first;
        let offsets = format!("{}..{}", partition.first, partition.end);
        let segments = partition.segments().len().to_string();
        let bytes = text::bytes(rows * row as u64);
        table.push(vec![partition.partition.to_string(), text::count(rows), offsets, bytes, segments]);
    }
    console.table(&table)?;
    let segments: Vec<_> = view.partitions.iter().flat_map(PartitionView::segments).collect();
    if segments.is_empty() {
        return Ok(());
    }
    console.line("")?;
    let mut table = vec![["PARTITION", "OFFSETS", "FILE BYTES", "SCHEMA", "STATE", "FILE"].map(str::to_owned).to_vec()];
    for segment in segments {
        let bytes = file_bytes(segment).map_or("gone".into(), text::bytes);
        let file = segment.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let offsets = format!("{}..{}", segment.base, segment.end);
        let schema = segment.schema_number.to_string();
        table.push(vec![segment.partition.to_string(), offsets, bytes, schema, state(segment).into(), file]);
    }
    console.table(&table)
}

/// How the schema came to be what it is, where it has changed.
fn show_schemas(view: &TopicView, console: &mut Console<'_>) -> Result<(), Failure> {
    let versions = view.schemas.versions();
    if versions.len() < 2 {
        return Ok(());
    }
    console.line("")?;
    let mut table = vec![["SCHEMA", "COLUMNS"].map(str::to_owned).to_vec()];
    table.push(vec!["1".into(), versions[0].schema.to_string()]);
    for pair in versions.windows(2) {
        table.push(vec![pair[1].number.to_string(), describe_growth(&pair[0].schema, &pair[1])]);
    }
    console.table(&table)
}

fn tail(topic: &Topic, rows: u64, partition: Option<u32>, console: &mut Console<'_>) -> Result<(), Failure> {
    let partitions = match partition {
        Some(partition) => vec![topic.view_partition(partition)?],
        None => topic.view()?.partitions,
    };
    let at_once = (SHOW_BYTES / topic.schema().row_bytes() as u64).max(1);
    let mut shown = 0;
    for view in partitions {
        let mut at = view.end.saturating_sub(rows).max(view.first);
        while at < view.end {
            let count = at_once.min(view.end - at);
            let rows = view.read(at..at + count)?;
            for row in 0..count {
                let offset = at + row;
                match console.json {
                    true => {
                        let row = row_json(&rows, row as usize);
                        console.object(&json!({ "partition": view.partition, "offset": offset, "row": row }))?;
                    }
                    false => {
                        console.line(&format!("{}:{offset}  {}", view.partition, row_text(&rows, row as usize)))?
                    }
                }
            }
            (at, shown) = (at + count, shown + count);
        }
    }
    if shown == 0 && rows > 0 {
        console.note(&format!("no rows yet: topic={}", topic.name()));
    }
    Ok(())
}

fn remove(name: &TopicName, yes: bool, force: bool, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    let root = Root::open(global.root())?;
    if !yes {
        let rows = root.topic(name)?.view()?.rows();
        return Err(Error::invalid(format!("this removes a topic for good: topic={name} rows={rows}"))
            .with_hint(format!("forebay topic rm {name} --yes"))
            .into());
    }
    catalogue::remove_topic(&root, name, force)?;
    match console.json {
        true => console.object(&json!({ "removed": name.to_string() })),
        false => console.line(&format!("removed {name}")),
    }
}

fn verify(topic: &Topic, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut meter = Meter::begin(console, "verifying", row_bytes(&topic.view()?));
    let mut done = 0;
    let report = topic.verify(&mut |progress| {
        meter.advance(console, progress.bytes.saturating_sub(done));
        done = progress.bytes;
    });
    meter.end();
    let report = report?;
    let lost: u64 = report.problems.iter().map(|problem| problem.rows).sum();
    if console.json {
        let problems = report.problems.iter().map(|problem| {
            json!({
                "partition": problem.partition, "path": problem.path.display().to_string(),
                "offset": problem.offset, "rows": problem.rows, "message": problem.message,
            })
        });
        console.object(&json!({
            "topic": topic.name().to_string(), "good": report.is_good(), "segments": report.segments,
            "blocks": report.blocks, "rows": report.rows, "bytes": report.bytes, "rows_damaged": lost,
            "problems": problems.collect::<Vec<_>>(),
        }))?;
    } else {
        for problem in &report.problems {
            console.line(&format!("damaged: {}", problem.message))?;
        }
        let (rows, blocks) = (text::counted(report.rows, "row"), text::counted(report.blocks, "block"));
        let segments = text::counted(report.segments, "segment");
        console.line(&format!("{rows} are good ({}, {blocks}, {segments})", text::bytes(report.bytes)))?;
    }
    match report.is_good() {
        true => Ok(()),
        false => Err(Error::corrupt(format!("the topic is damaged: topic={} rows={lost}", topic.name()))
            .with_hint(match lost {
                0 => "all rows can still be read; restore the segment files from a copy, or ingest again into a new topic",
                _ => "keep the files for a look; remove the topic and ingest it again, or restore the segment files",
            })
            .into()),
    }
}

/// What `ls` says of a topic, for machines.
fn summary(topic: &Topic, view: &TopicView) -> Value {
    json!({
        "topic": topic.name().to_string(),
        "incarnation": topic.incarnation().to_string(),
        "path": topic.dir().display().to_string(),
        "schema": view.schema.to_string(),
        "columns": view.schema.columns(),
        "rows": view.rows(),
        "bytes": row_bytes(view),
        "partitions": topic.partitions(),
    })
}

/// What `show` says of a topic, for machines.
fn describe(topic: &Topic, view: &TopicView) -> Value {
    let mut value = summary(topic, view);
    let partitions = view.partitions.iter().map(|partition| {
        let segments = partition.segments().iter().map(|segment| {
            json!({
                "base": segment.base, "end": segment.end, "state": state(segment), "schema": segment.schema_number,
                "file_bytes": file_bytes(segment), "path": segment.path.display().to_string(),
            })
        });
        json!({
            "partition": partition.partition, "first": partition.first, "end": partition.end,
            "rows": partition.end - partition.first, "segments": segments.collect::<Vec<_>>(),
        })
    });
    value["partitions"] = Value::Array(partitions.collect());
    let schemas = view.schemas.versions().iter().map(|version| {
        let defaults = version.added.iter().map(|(name, element)| (name.clone(), json!(element.to_string())));
        json!({
            "schema": version.number, "columns": version.schema.columns(), "made_ms": version.made_ms,
            "defaults": defaults.collect::<serde_json::Map<_, _>>(),
        })
    });
    value["schemas"] = Value::Array(schemas.collect());
    value["row_bytes"] = view.schema.row_bytes().into();
    value["block_rows"] = topic.block_rows().into();
    value["options"] = json!(topic.options());
    value
}

/// Bytes of all rows, without headers and padding.
fn row_bytes(view: &TopicView) -> u64 {
    view.rows() * view.schema.row_bytes() as u64
}

fn state(segment: &SegmentView) -> &'static str {
    if segment.is_sealed() { "sealed" } else { "active" }
}

fn file_bytes(segment: &SegmentView) -> Option<u64> {
    Some(segment.file().ok()?.metadata().ok()?.len())
}
