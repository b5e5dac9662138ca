//! `forebay plan`.

use serde_json::json;

use super::console::{Console, Failure};
use super::{Global, text, topic};
use crate::catalogue::Catalogue;
use crate::engine::settings::{check_plan, check_step};
use crate::error::{Error, Result};
use crate::log::Root;
use crate::plan::{Cost, Line, Quality, Share, Tail, default_key};
use crate::schema::Schema;

/// Full steps that the shuffle is judged by.
const STEPS_JUDGED: u64 = 256;

const HELP: &str = "\
Shows the order's numbers (lanes, chunks, pools), what one epoch costs a rank in memory and reading,
and how well the shuffle mixes, against a full permutation. Nothing is read from the topic but its
size.

Examples:
  forebay plan digits --global-batch-size 256 --world-size 4
  forebay plan digits --global-batch-size 1024 --world-size 16 --seed 7 --drop-last
  forebay plan digits --global-batch-size 64 --no-shuffle --json";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Name of the topic, or of a dataset version (NAME@v1)
    topic: String,
    /// Samples of a step, over all ranks
    #[arg(long, short = 'B', value_name = "B")]
    global_batch_size: u32,
    /// Number of ranks; divides the global batch size
    #[arg(long, short = 'W', value_name = "W", default_value_t = 1)]
    world_size: u32,
    /// Train in the topic's order
    #[arg(long)]
    no_shuffle: bool,
    /// Seed of the shuffle
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Epoch
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Leave out the last step when it is short
    #[arg(long)]
    drop_last: bool,
    /// Short last step on several ranks: repeat samples under a mask (pad), or fewer rows (short)
    #[arg(long, default_value = "pad", value_parser = ["pad", "short"])]
    tail: String,
    /// Lanes instead of the default
    #[arg(long, value_name = "L")]
    lanes: Option<u32>,
    /// Samples of a chunk instead of the default
    #[arg(long, value_name = "C")]
    chunk: Option<u32>,
    /// Chunks of a pool instead of the default
    #[arg(long, value_name = "G")]
    pool: Option<u32>,
}

pub(super) fn run(args: &Args, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    check_step(args.global_batch_size, args.world_size)?;
    check_plan(args.lanes, args.chunk, args.pool)?;
    let version = match args.topic.contains('@') {
        true => Some(Catalogue::open(global.root())?.resolve(&args.topic)?),
        false => None,
    };
    let topic = match &version {
        Some(version) => Root::open(global.root())?.topic(&version.topic)?,
        None => topic::find(&args.topic, global)?,
    };
    let row_bytes = match &version {
        Some(version) => Schema::parse(&version.schema)?.row_bytes() as u64,
        None => topic.schema().row_bytes() as u64,
    };
    let total = match &version {
        Some(version) => version.totals.records,
        None => topic.view()?.rows(),
    };
    let name = version.as_ref().map_or_else(|| topic.name().to_string(), |version| version.reference().to_string());
    if total == 0 {
        return Err(Error::invalid(format!("the topic has no rows: topic={}", topic.name()))
            .with_hint(format!("forebay ingest SOURCE... --topic {}", topic.name()))
            .into());
    }
    let (line, cost, quality) = compute(args, total, row_bytes)?;
    if console.json {
        let key = line.key();
        let quality = quality.map(|q| {
            json!({
                "steps": q.steps, "correlation": q.correlation, "chunks": q.chunks, "chunks_full": q.chunks_full,
                "parts": q.parts, "parts_full": q.parts_full, "scatter": q.scatter,
            })
        });
        return console.object(&json!({
            "dataset": version.as_ref().map(|version| version.reference().to_string()),
            "topic": topic.name().to_string(), "incarnation": topic.incarnation().to_string(), "key": key, "epoch": args.epoch,
            "global_batch_size": args.global_batch_size, "world_size": args.world_size, "row_bytes": row_bytes,
            "samples": cost.samples, "steps": cost.steps, "dropped": cost.dropped, "padded": cost.padded,
            "rows": cost.rows, "chunks": cost.chunks, "rank_lanes": cost.lanes, "chunks_open": cost.chunks_open,
            "steps_open": cost.steps_open, "steps_ahead": cost.steps_ahead, "slab_bytes": cost.slab_bytes,
            "reads_per_byte": cost.reads_per_byte, "quality": quality,
        }));
    }
    print(&name, args, row_bytes, (&line, &cost, quality.as_ref()), console)
}

fn compute(args: &Args, total: u64, row_bytes: u64) -> Result<(Line, Cost, Option<Quality>)> {
    let (batch, world) = (args.global_batch_size, args.world_size);
    if args.drop_last && total < u64::from(batch) {
        return Err(Error::invalid(format!(
            "the batch is larger than the topic, and --drop-last leaves out what does not fill one: global_batch_size={batch} samples={total}"
        ))
        .with_hint(format!("use a batch of at most {total}, or leave out --drop-last")));
    }
    let mut key = default_key(row_bytes, total, args.world_size, !args.no_shuffle, args.seed);
    key.lanes = args.lanes.unwrap_or(key.lanes);
    key.chunk = args.chunk.unwrap_or(key.chunk);
    key.pool = args.pool.unwrap_or(key.pool);
    let line = Line::new(&key, [total].into(), args.epoch)?;
    let tail = if args.tail == "short" { Tail::Short } else { Tail::Pad };
    let share = Share { rank: 0, world, batch, tail, drop_last: args.drop_last };
    let cost = Cost::of(&line, share, row_bytes, key.chunk)?;
    let quality = if args.no_shuffle { None } else { Some(Quality::of(&line, batch, STEPS_JUDGED)?) };
    Ok((line, cost, quality.filter(|quality| quality.steps > 0)))
}

fn print(
    name: &str,
    args: &Args,
    row_bytes: u64,
    (line, cost, quality): (&Line, &Cost, Option<&Quality>),
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let key = line.key();
    let order = match key.shuffle {
        true => format!(
            "shuffled, seed {}: {} lanes, chunks of {} ({}), pools of {} chunks",
            key.seed,
            key.lanes,
            text::counted(u64::from(key.chunk), "sample"),
            text::bytes(u64::from(key.chunk) * row_bytes),
            key.pool
        ),
        false => "in the topic's order".to_owned(),
    };
    let mut end = Vec::new();
    if cost.dropped > 0 {
        end.push(format!("{} left out", text::counted(cost.dropped, "sample")));
    }
    if cost.padded > 0 {
        end.push(format!("{} repeated in the last one", text::counted(cost.padded, "row")));
    }
    // Of a topic with fewer samples than a batch, the one step is as short as its last.
    let small = cost.samples < u64::from(args.global_batch_size);
    let (step, rank_rows) = match small {
        true => (cost.samples, cost.samples.div_ceil(u64::from(args.world_size))),
        false => (u64::from(args.global_batch_size), u64::from(cost.rows)),
    };
    if small {
        end.push(format!("the topic has fewer samples than a batch of {}", text::count(args.global_batch_size.into())));
    }
    let end = if end.is_empty() { String::new() } else { format!(" ({})", end.join(", ")) };
    let per_rank = text::counted(rank_rows, "row");
    let mut table = vec![
        vec!["topic".into(), format!("{name}, {} of {row_bytes} bytes", text::counted(cost.samples, "sample"))],
        vec!["order".into(), order],
        vec!["steps".into(), format!("{} of {}, {per_rank} a rank{end}", text::count(cost.steps), text::count(step))],
        vec![
            "rank memory".into(),
            format!(
                "{}: {} open at once, {} read ahead",
                text::bytes(cost.slab_bytes),
                text::counted(cost.steps_open, "step"),
                text::count(cost.steps_ahead)
            ),
        ],
        vec![
            "reading".into(),
            format!(
                "{:.2} bytes for one trained on, at most {} open a rank",
                cost.reads_per_byte,
                text::counted(cost.chunks_open, "chunk")
            ),
        ],
    ];
    if let Some(quality) = quality {
        table.push(vec![
            "mixing".into(),
            format!(
                "a step draws on {:.1} chunks (full permutation {:.1}) and {:.1} hundredths of the topic ({:.1})",
                quality.chunks, quality.chunks_full, quality.parts, quality.parts_full
            ),
        ]);
        table.push(vec![
            "drift".into(),
            format!(
                "correlation of place and index {:.4}, scatter of steps {:.2} (1 as by chance)",
                quality.correlation, quality.scatter
            ),
        ]);
    }
    console.table(&table)
}
