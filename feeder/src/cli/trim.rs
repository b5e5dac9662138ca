//! `forebay topic trim`: retention, run by hand or by a timer.

use serde_json::json;

use super::console::{Console, Failure};
use super::{Global, text, topic};
use crate::catalogue::{self, Holder};
use crate::error::{Error, Result};
use crate::log::{Retention, Root};

pub(super) const HELP: &str = "\
Whole sealed segment files are deleted, the oldest first; the newest one of every partition stays. So
does whatever a dataset version, a kept checkpoint or a running loader needs, and what follows it.

Examples:
  forebay topic trim clicks --keep-bytes 500GiB --dry-run
  forebay topic trim clicks --keep-days 30
  forebay topic trim clicks --keep-days 30 --keep-bytes 500GiB      # what either rule gives up goes";

const DAY_MS: f64 = 86_400_000.0;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the topic
    topic: String,
    /// Most bytes of segment files to keep
    #[arg(long, value_name = "SIZE", required_unless_present = "keep_days")]
    keep_bytes: Option<String>,
    /// Delete segments whose newest row is older
    #[arg(long, value_name = "DAYS", allow_negative_numbers = true)]
    keep_days: Option<f64>,
    /// Say what would be deleted, delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    let rules = Retention {
        bytes: args.keep_bytes.as_deref().map(bytes).transpose()?,
        age_ms: args.keep_days.map(age_ms).transpose()?,
    };
    let root = Root::open(global.root())?;
    let topic = root.topic(&topic::name(&args.topic)?)?;
    let trimmed = catalogue::trim(&root, &topic, &rules, catalogue::now_ms(), args.dry_run)?;
    let done = &trimmed.retained;
    if console.json {
        let holder = |holder: &Holder| json!({ "holder": holder.name(), "scope": holder.scope.to_string(), "ranges": holder.ranges, "since_ms": holder.since_ms });
        return console.object(&json!({
            "topic": topic.name().to_string(), "dry_run": args.dry_run, "segments": done.segments, "rows": done.rows,
            "bytes": done.bytes, "held_bytes": done.held_bytes, "first": done.first, "readers": trimmed.readers,
            "held_by": trimmed.holders.iter().map(holder).collect::<Vec<_>>(),
        }));
    }
    let would = if args.dry_run { "would delete" } else { "deleted" };
    console.line(&format!(
        "{would} {} with {} ({}) of {}",
        text::counted(done.segments, "segment"),
        text::counted(done.rows, "row"),
        text::bytes(done.bytes),
        topic.name()
    ))?;
    if trimmed.holders.is_empty() && trimmed.readers == 0 {
        return Ok(());
    }
    console.line(&format!("held back: {}, by", text::bytes(done.held_bytes)))?;
    for holder in &trimmed.holders {
        let from: Vec<String> =
            (0..topic.partitions()).filter_map(|p| Some(format!("{p}:{}", holder.lowest(p)?))).collect();
        console.line(&format!("  {}, from {}", holder.name(), from.join(", ")))?;
    }
    if trimmed.readers > 0 {
        console.line(&format!("  {}", text::counted(trimmed.readers as u64, "running reader")))?;
    }
    Ok(())
}

/// A size; unlike elsewhere it may be none at all.
fn bytes(text: &str) -> Result<u64> {
    if text == "0" { Ok(0) } else { text::parse_bytes(text) }
}

fn age_ms(days: f64) -> Result<u64> {
    let ms = days * DAY_MS;
    if ms >= 0.0 && ms < u64::MAX as f64 {
        return Ok(ms as u64);
    }
    Err(Error::invalid(format!("not a number of days: keep_days={days}")))
}
