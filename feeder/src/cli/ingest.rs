//! `forebay ingest`.

use std::time::Instant;

use cursorstore::TopicName;
use serde_json::json;

use super::console::{Console, Failure};
use super::meter::Meter;
use super::{Global, interrupt, text};
use crate::error::{Error, Result};
use crate::ingest::{DEFAULT_COLUMN, Event, Given, Plan, Progress, Request, Runner, Summary};
use crate::log::Fsync;
use crate::schema::Schema;
use crate::versions::Defaults;

const HELP: &str = "\
Formats, told by their first bytes:
  npy      versions 1 to 3; one column, or one for each field of a structured array
  npz      each array is a column; all need the same first dimension (else --columns)
  parquet  numbers, booleans, fixed-size binaries, lists of one length
  arrow    IPC files and streams, also LZ4 and Zstandard

The schema is taken from the files, unless the topic exists or --schema says it. A schema may make
numbers wider and give values another shape of as many elements; nothing else is converted. It is
needed where files do not tell:
  lists of any length in parquet    --schema 'id:int64, embedding:float32[768]'
  bfloat16 in npy files             --schema 'weights:bfloat16[1024]'
Types: bool, int8..int64, uint8..uint64, float16, bfloat16, float32, float64.
An npy file's array is named 'data', unless schema or columns name it.

A topic that exists takes files with its columns, by name; narrower numbers are widened. Its schema
grows by files with more, and earlier rows are read as what they are in the new one:
  wider numbers (int32 to int64)    the topic's column becomes as wide; --schema keeps it as it is
  a new column                      needs its value in earlier rows: --default label=-1
Columns added so may be missing in later files. Files that lack another column, or whose column has
another type or shape, are refused.

Nothing is written before all files are found good. Each record is stored once: when an ingest was
interrupted, run the same command again and it goes on; files that are in the topic already are
passed over. A file is known by its name and content, not by its folder: renamed, it is another.

Examples:
  forebay ingest digits.npz 'shards/*.parquet' --topic digits --root ./data
  forebay ingest train.parquet --topic train --columns id,image
  forebay ingest image.npy --topic images --schema 'image:uint8[3x224x224]' --partitions 4
  forebay ingest labelled.parquet --topic train --default label=-1
  forebay ingest 'new/*.arrow' --topic train --dry-run";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Files, or patterns in quotes; each pattern's files are taken in sorted order
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<String>,
    /// Topic to store in; made if it is not there
    #[arg(long, value_name = "NAME")]
    topic: String,
    /// Columns as they shall be, for example 'id:int64, image:uint8[3x224x224]'
    #[arg(long)]
    schema: Option<String>,
    /// Columns to take, in this order
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    columns: Option<Vec<String>>,
    /// Value of a new column in the topic's rows so far; for each element, if it has a shape
    #[arg(long = "default", value_name = "COLUMN=VALUE")]
    defaults: Vec<String>,
    /// Partitions of the topic, if it is made [default: 1]; a file is stored in one of them
    #[arg(long, value_name = "N")]
    partitions: Option<u32>,
    /// When rows are made durable: always, never, or interval:MS
    #[arg(long, value_name = "POLICY", default_value = "always")]
    fsync: String,
    /// Skip decoding everything once before the first row is written
    #[arg(long)]
    no_check: bool,
    /// Show schema and files, write nothing
    #[arg(long)]
    dry_run: bool,
    /// No notes and no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    console.quiet = args.quiet;
    let request = request(args, global)?;
    interrupt::say_on_interrupt(console, || "what was written stays; run the same command again to go on");
    let begun = Instant::now();
    let mut show = Show { console, meter: Meter::Silent };
    let done = Runner::new(&request, &mut show).run();
    show.meter.end();
    let (plan, summary) = done?;
    let seconds = begun.elapsed().as_secs_f64();
    match console.json {
        true => console.object(&json!({
            "topic": request.topic.to_string(),
            "root": request.root.display().to_string(),
            "schema": plan.schema().to_string(),
            "schema_changes": plan.growth().map(|growth| &growth.changes),
            "dry_run": request.dry_run,
            "created": summary.created,
            "partitions": summary.partitions,
            "files": summary.files,
            "files_already": summary.files_already,
            "rows": summary.rows,
            "rows_already": summary.rows_already,
            "bytes": summary.bytes,
            "topic_rows": summary.topic_rows,
            "seconds": seconds,
        })),
        false if request.dry_run => dry_result(&request, &plan, &summary, console),
        false => result(&request, &summary, seconds, console),
    }
}

fn request(args: &Args, global: &Global) -> Result<Request> {
    let topic: TopicName = args.topic.parse().map_err(|error| Error::invalid(format!("{error}")))?;
    let schema = args.schema.as_deref().map(Schema::parse).transpose()?;
    let columns = args.columns.as_ref().map(|names| names.iter().map(|name| name.trim().to_owned()).collect());
    Ok(Request {
        root: global.root(),
        topic,
        sources: args.sources.clone(),
        given: Given { schema, columns, growing: None },
        defaults: Defaults::parse(&args.defaults)?,
        partitions: args.partitions,
        fsync: parse_fsync(&args.fsync)?,
        check: !args.no_check,
        dry_run: args.dry_run,
    })
}

fn parse_fsync(text: &str) -> Result<Fsync> {
    match text {
        "always" => Ok(Fsync::Always),
        "never" => Ok(Fsync::Never),
        _ => {
            let ms = text.strip_prefix("interval:").and_then(|ms| ms.parse().ok()).filter(|&ms| ms > 0);
            ms.map(|ms| Fsync::Interval { ms }).ok_or_else(|| {
                Error::invalid(format!("unknown policy, known are always, never and interval:MS: fsync={text:?}"))
                    .with_hint("--fsync interval:1000 makes rows durable once a second")
            })
        }
    }
}

fn result(request: &Request, summary: &Summary, seconds: f64, console: &mut Console<'_>) -> Result<(), Failure> {
    let topic = &request.topic;
    let files = |n| text::counted(n, "file");
    let has = format!(
        "{} in {}",
        text::counted(summary.topic_rows, "row"),
        text::counted(u64::from(summary.partitions), "partition")
    );
    if summary.rows == 0 {
        let already = text::counted(summary.rows_already, "row");
        return console
            .line(&format!("already in the topic: {} with {already}; {topic} has {has}", files(summary.files)));
    }
    let mut line = format!(
        "{} added to {topic} from {} ({} in {seconds:.1} s)",
        text::counted(summary.rows, "row"),
        files(summary.files - summary.files_already),
        text::bytes(summary.bytes)
    );
    if summary.rows_already > 0 {
        line.push_str(&format!(", {} were there already", text::count(summary.rows_already)));
    }
    console.line(&format!("{line}; it has {has}"))
}

fn dry_result(request: &Request, plan: &Plan, summary: &Summary, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut table = vec![["FILE", "FORMAT", "SIZE", "ROWS"].map(str::to_owned).to_vec()];
    for file in plan.files() {
        let rows = file.rows.map_or("?".to_owned(), text::count);
        let path = file.path.display().to_string();
        table.push(vec![path, file.format.name().to_owned(), text::bytes(file.file_bytes), rows]);
    }
    console.table(&table)?;
    let add = plan.rows().map_or("an unknown number of rows".to_owned(), |rows| {
        text::counted(rows.saturating_sub(summary.rows_already), "row")
    });
    console.line(&format!("nothing was written; without --dry-run {add} would be added to {}", request.topic))
}

/// Shows the events of an ingest.
struct Show<'c, 'a> {
    console: &'c mut Console<'a>,
    meter: Meter,
}

impl Progress for Show<'_, '_> {
    fn report(&mut self, event: Event<'_>) {
        match event {
            Event::Note(text) => self.meter.note(self.console, &format!("note: {text}")),
            Event::Warning(text) => self.meter.warn(self.console, &format!("warning: {text}")),
            Event::Planned(plan) => {
                let rows =
                    plan.rows().map_or("an unknown number of rows".to_owned(), |rows| text::counted(rows, "row"));
                let files = text::counted(plan.files().len() as u64, "file");
                let bytes = plan.bytes().map_or(String::new(), |bytes| format!(", {}", text::bytes(bytes)));
                self.console.note(&format!("schema: {}", plan.schema()));
                if let Some(growth) = plan.growth() {
                    let number = growth.version.number;
                    self.console.note(&format!("the topic's schema grows to version {number}: {}", growth.changes));
                }
                self.console.note(&format!("{files}: {rows} of {} bytes each{bytes}", plan.schema().row_bytes()));
                let unnamed = plan.schema().columns().len() == 1 && plan.schema().columns()[0].name == DEFAULT_COLUMN;
                if unnamed && plan.files()[0].format == crate::ingest::Format::Npy {
                    self.console.note("note: arrays in npy files have no name, --columns NAME gives one");
                }
            }
            Event::Begin { stage, bytes } => self.meter = Meter::begin(self.console, stage.name(), bytes),
            Event::Advance { bytes } => self.meter.advance(self.console, bytes),
            Event::End => self.meter.end(),
        }
    }
}
