//! `forebay bench`.

use serde_json::json;

use super::console::{Console, Failure};
use super::{Global, interrupt, text, topic};
use crate::bench::{self, Generated, Options, Report};
use crate::engine::Settings;
use crate::error::{Error, Result};

const HELP: &str = "\
Measures what this machine can do at most (copy memory, read files from the page cache and from the
disk), then how fast the pipeline delivers batches of the topic, and says what the figures mean.
Without a topic, one is made in a temporary folder ($TMPDIR) and removed again. Rates are 10^9 bytes
a second. Other programs that run meanwhile lower all of them.

With --step-us a training step of that length is simulated: who waits for whom?

How fast would your training be with free data? In Python, forebay.ceiling(loader) replays a few of
the loader's real batches for ever: train from it instead of from the loader, and compare.

Examples:
  forebay bench
  forebay bench digits --batch-size 256 --shuffle
  forebay bench digits --batch-size 256 --shuffle --step-us 340
  forebay bench digits --cold --json";

const REMOVED: &str = "the topic that was made is removed";
const ADVICE: &str = "remove what is left of the topic that was made: rm -r \"${TMPDIR:-/tmp}\"/forebay-bench-*";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Name of the topic; one of random bytes, 4 KiB a sample, is made if there is none
    topic: Option<String>,
    /// Samples of a batch of one rank
    #[arg(long, short = 'b', value_name = "N", default_value_t = 256)]
    batch_size: u32,
    /// Ranks that share each step; the first of them is measured
    #[arg(long, short = 'W', value_name = "W", default_value_t = 1)]
    world_size: u32,
    /// Train in a shuffled order
    #[arg(long)]
    shuffle: bool,
    /// Seed of the shuffle
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Columns to deliver, separated by commas; all by default
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    columns: Option<Vec<String>>,
    /// Threads that read; two where there are processors for them
    #[arg(long, value_name = "N")]
    reader_threads: Option<usize>,
    /// Most memory for batches and for buffers to read into, such as 64MiB; half of what is available by default
    #[arg(long, value_name = "SIZE")]
    memory_limit_bytes: Option<String>,
    /// Seconds that the pipeline runs; all takes about twice as long
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Simulate a training step of so many microseconds
    #[arg(long, value_name = "US")]
    step_us: Option<u64>,
    /// Take the topic out of the page cache first: one epoch from the disk
    #[arg(long)]
    cold: bool,
    /// Size of the topic that is made when none is named
    #[arg(long, value_name = "SIZE", default_value = "256MiB", conflicts_with = "topic")]
    size: String,
}

impl Args {
    fn options(&self) -> Result<Options> {
        let global_batch = self.batch_size.checked_mul(self.world_size).ok_or_else(|| {
            let (batch, world) = (self.batch_size, self.world_size);
            Error::invalid(format!("the global batch is too large: batch_size={batch} world_size={world}"))
        })?;
        let settings = Settings {
            global_batch,
            world: self.world_size,
            columns: self.columns.clone(),
            shuffle: self.shuffle,
            seed: self.seed,
            reader_threads: self.reader_threads,
            memory_limit_bytes: self.memory_limit_bytes.as_deref().map(text::parse_bytes).transpose()?,
            ..Settings::default()
        };
        settings.check()?;
        Ok(Options { settings, seconds: self.seconds, step_us: self.step_us, cold: self.cold })
    }
}

pub(super) fn run(args: &Args, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    let options = args.options()?;
    let (name, report) = match &args.topic {
        Some(name) => {
            if name.contains('@') {
                return Err(Error::invalid(format!("topics are measured, not dataset versions: name={name}"))
                    .with_hint(format!("measure its topic, which this names: forebay dataset show {name}"))
                    .into());
            }
            let name = topic::name(name)?;
            (Some(name.to_string()), bench::run(&global.root(), &name, &options)?)
        }
        None => {
            let (bytes, parent) = (text::parse_bytes(&args.size)?, std::env::temp_dir());
            interrupt::say_on_interrupt(console, {
                let parent = parent.clone();
                move || if Generated::remove_all(&parent).is_ok() { REMOVED } else { ADVICE }
            });
            let made = Generated::make(&parent, bytes)?;
            (None, bench::run(made.root(), made.topic(), &options)?)
        }
    };
    match console.json {
        true => object(name.as_deref(), args, &report, console),
        false => print(name.as_deref(), args, &report, console),
    }
}

fn object(name: Option<&str>, args: &Args, report: &Report, console: &mut Console<'_>) -> Result<(), Failure> {
    let (run, limits) = (&report.pipeline, &report.limits);
    let limit = report.limit();
    console.object(&json!({
        "topic": name, "samples": report.samples, "row_bytes": report.row_bytes, "batch_size": args.batch_size,
        "world_size": args.world_size, "shuffle": args.shuffle, "seed": args.seed, "cold": report.cold, "step_us": report.step_us,
        "reader_threads": report.threads, "batch_rows": report.batch_rows, "notices": run.notices,
        "limits": {
            "memory_copy_gb_per_s": limits.memory_copy, "page_cache_ring_gb_per_s": limits.ring,
            "page_cache_gb_per_s": limits.slab, "disk_gb_per_s": limits.disk.as_ref().ok(),
            "disk_unknown_because": limits.disk.as_ref().err(),
        },
        "pipeline": {
            "gb_per_s": run.gb_per_s(), "samples_per_s": run.samples_per_s(), "us_per_step": run.step_us(), "steps": run.steps,
            "samples": run.samples, "bytes": run.bytes, "epochs": run.epochs, "seconds": run.seconds, "open_ms": run.open_ms,
            "first_batch_ms": run.first_batch_ms, "stall_s": run.stall_s, "cpu_s": run.cpu_s,
            "cpu_s_per_gb": run.cpu_s_per_gb(), "slab_bytes": run.slab_bytes,
        },
        "limit": limit.map(|(name, _)| name), "part_of_limit": limit.map(|(_, rate)| run.gb_per_s() / rate),
        "reader": bench::reader(report), "trainer": bench::trainer(report),
    }))
}

fn print(name: Option<&str>, args: &Args, report: &Report, console: &mut Console<'_>) -> Result<(), Failure> {
    let (run, limits) = (&report.pipeline, &report.limits);
    let threads = text::counted(report.threads as u64, "thread");
    let disk = match &limits.disk {
        Ok(rate) => format!("{rate:.1} GB/s, past the page cache"),
        Err(why) => format!("unknown: {why}"),
    };
    let order = if args.shuffle { "shuffled" } else { "in order" };
    let all = if report.batch_rows < args.batch_size { ", all there are" } else { "" };
    let ranks = match args.world_size {
        1 => String::new(),
        world => format!(", rank 0 of {world}"),
    };
    let rows = [
        (
            "topic",
            format!(
                "{}, {} of {} bytes, {}",
                name.unwrap_or("made for this"),
                text::counted(report.samples, "sample"),
                text::count(report.row_bytes),
                text::bytes(report.bytes())
            ),
        ),
        ("memory copy", format!("{:.1} GB/s, 1 thread", limits.memory_copy)),
        (
            "page cache",
            format!(
                "{:.1} GB/s into {}, {:.1} into {} as the slab, {threads}",
                limits.ring,
                text::bytes((bench::RING_BYTES * report.threads) as u64),
                limits.slab,
                text::bytes(run.slab_bytes)
            ),
        ),
        ("disk", disk),
        (
            "pipeline",
            format!(
                "{order}, batches of {}{all}{ranks}: {}, {} samples/s, {:.0} us a step",
                text::count(u64::from(report.batch_rows)),
                text::rate(run.gb_per_s()),
                text::count(run.samples_per_s() as u64),
                run.step_us()
            ),
        ),
        ("start", format!("{:.0} ms to open, {:.1} ms to the first batch", run.open_ms, run.first_batch_ms)),
        ("processor", format!("{:.3} s for each GB", run.cpu_s_per_gb())),
    ];
    let table: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    console.table(&table)?;
    console.line("")?;
    console.line(&format!("{}, {}", bench::reader(report), bench::trainer(report)))?;
    run.notices.iter().for_each(|line| console.note(line));
    if report.bytes() < bench::RING_BYTES as u64 {
        console.note("so little data stays in the processor's caches: reading more of it is slower");
    }
    console.note("your training with free data: for batch in forebay.ceiling(loader): ...");
    Ok(())
}
