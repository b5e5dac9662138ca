//! What a step costs as data grow, one case for each run of this program; `benches/growth` runs them and makes the table.
//!
//! ```text
//! growth make ROOT SAMPLES BLOCK_ROWS              a topic "t" of one byte a sample, through the log's own writer
//! growth plan SAMPLES WINDOWS LANES CHUNK STEPS    the plan alone: what to read next and where it goes
//! growth engine ROOT WINDOWS LANES CHUNK STEPS     batches out of that topic
//! ```
//!
//! Steps are taken from the middle of an epoch on, shuffled, B = [`BATCH`], G = [`POOL`]. Each case prints one line of JSON.
//! Times are of the processor (of all threads, by the kernel's own count), medians over [`SLICES`] parts of the steps.
//! Memory is the growth of the largest resident set since before the plan or the loader was made, less the slab, and
//! includes what a view of the topic holds.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use cursorstore::{Cursor, Extent, Incarnation, PlanKey, State, TopicName, Window};
use feeder::engine::{Loader, Settings, Step};
use feeder::log::{Fsync, Root, TopicOptions, WriterOptions};
use feeder::plan::{Line, PLAN_VERSION, Schedule, Share, Tail, Unit};
use feeder::{Rows, Schema};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

/// Samples of a step.
const BATCH: u32 = 1024;
/// Chunks of a pool.
const POOL: u32 = 4;
/// Parts of the steps that a median is of.
const SLICES: u64 = 8;
/// Rows appended at a time.
const APPEND_ROWS: u64 = 1 << 20;
const TOPIC: &str = "t";
const SCHEMA: &str = "x:uint8";
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let found = match words[..] {
        ["make", root, samples, block_rows] => make(Path::new(root), samples.parse()?, block_rows.parse()?)?,
        ["plan", samples, windows, lanes, chunk, steps] => {
            plan(samples.parse()?, windows.parse()?, &key(lanes, chunk)?, steps.parse()?)?
        }
        ["engine", root, windows, lanes, chunk, steps] => {
            engine(Path::new(root), windows.parse()?, key(lanes, chunk)?, steps.parse()?)?
        }
        _ => return Err("usage: see the first lines of the program's text".into()),
    };
    writeln!(std::io::stdout(), "{found}")?;
    Ok(())
}

fn key(lanes: &str, chunk: &str) -> Outcome<PlanKey> {
    let (lanes, chunk) = (lanes.parse()?, chunk.parse()?);
    Ok(PlanKey { version: PLAN_VERSION, shuffle: true, seed: 7, lanes, chunk, pool: POOL })
}

fn make(root: &Path, samples: u64, block_rows: usize) -> Outcome<Value> {
    let schema = Schema::parse(SCHEMA)?;
    let options = TopicOptions { block_bytes: block_rows, ..TopicOptions::default() };
    let topic = Root::create(root)?.create_topic(&TOPIC.parse()?, &schema, &options)?;
    let writer = topic.writer(0, WriterOptions { fsync: Fsync::Never, ..WriterOptions::default() })?;
    let schema = Arc::new(schema);
    for first in (0..samples).step_by(APPEND_ROWS as usize) {
        let count = APPEND_ROWS.min(samples - first) as usize;
        writer.append(&Rows::new(schema.clone(), count, vec![Buffer::from_vec(vec![7_u8; count])])?)?;
    }
    writer.seal()?;
    writer.close()?;
    let mut blocks = 0;
    for segment in topic.view()?.partitions.iter().flat_map(|partition| partition.segments()) {
        blocks += segment.blocks()?.len();
    }
    Ok(json!({"samples": samples, "blocks": blocks}))
}

/// Cuts `samples` into `windows` nearly equal parts: their ends.
fn ends(samples: u64, windows: u64) -> Vec<u64> {
    (1..=windows).map(|window| (u128::from(samples) * u128::from(window) / u128::from(windows)) as u64).collect()
}

/// A place near the middle, at the beginning of a step.
fn middle(samples: u64) -> u64 {
    samples / 2 / u64::from(BATCH) * u64::from(BATCH)
}

fn plan(samples: u64, windows: u64, key: &PlanKey, steps: u64) -> Outcome<Value> {
    let memory = Memory::now()?;
    let began = cpu_ns()?;
    let line = Line::new(key, ends(samples, windows).into(), 0)?;
    let share = Share { rank: 0, world: 1, batch: BATCH, tail: Tail::Short, drop_last: false };
    let mut schedule = Schedule::new(line.clone(), share, middle(samples), key.chunk)?;
    let mut unit = Unit::default();
    schedule.next_into(&mut unit);
    let first_ns = cpu_ns()? - began;
    let (mut slices, mut taken, mut epoch) = (Vec::new(), 0, 0);
    for slice in 1..=SLICES {
        let (began, before) = (cpu_ns()?, taken);
        while taken < steps * slice / SLICES {
            let at = unit.first_step;
            if schedule.next_into(&mut unit) {
                taken += unit.first_step - at;
                continue;
            }
            taken += schedule.steps() - at;
            epoch += 1;
            schedule = Schedule::new(Line::new(key, ends(samples, windows).into(), epoch)?, share, 0, key.chunk)?;
            unit.first_step = 0;
        }
        slices.push((cpu_ns()? - began) / (taken - before).max(1));
    }
    Ok(json!({"cpu_ns_per_step": median(slices), "first_us": first_ns / 1000, "memory_bytes": memory.growth()?}))
}

fn engine(root: &Path, windows: u64, key: PlanKey, steps: u64) -> Outcome<Value> {
    let topic: TopicName = TOPIC.parse()?;
    let view = Root::open(root)?.topic(&topic)?.view()?;
    let (samples, incarnation) = (view.rows(), view.incarnation);
    drop(view);
    let windows = cut(samples, windows, incarnation);
    let settings = Settings { global_batch: BATCH, shuffle: true, seed: key.seed, ..Settings::default() };
    let state = |n| State::new(topic.clone(), windows.clone(), key.clone(), Cursor { epoch: 0, n });
    // Everything is in the page cache, and this process's own pages are there.
    let (first, _) = start(root, &settings, &state(0))?;
    drop(first);

    let memory = Memory::now()?;
    let (mut loader, middle_ms) = start(root, &settings, &state(middle(samples)))?;
    let mut slices = Vec::new();
    take(&mut loader, steps / SLICES)?;
    for _ in 0..SLICES {
        let began = cpu_ns()?;
        take(&mut loader, steps / SLICES)?;
        slices.push((cpu_ns()? - began) / (steps / SLICES).max(1));
    }
    let slab_bytes = loader.stats().slab_bytes;
    let memory_bytes = memory.growth()?.saturating_sub(slab_bytes);
    let state_bytes = loader.state(None)?.encode().len();
    drop(loader);
    let end = samples.saturating_sub(u64::from(BATCH)) / u64::from(BATCH) * u64::from(BATCH);
    let (_, end_ms) = start(root, &settings, &state(end))?;
    Ok(json!({
        "cpu_ns_per_step": median(slices), "memory_bytes": memory_bytes, "slab_bytes": slab_bytes, "state_bytes": state_bytes,
        "first_batch_middle_ms": middle_ms, "first_batch_end_ms": end_ms,
    }))
}

/// All samples of the topic's only partition, in so many windows.
fn cut(samples: u64, windows: u64, incarnation: Incarnation) -> Vec<Window> {
    let ends = ends(samples, windows);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let windows = starts.zip(&ends).filter(|(from, to)| from < *to);
    windows.map(|(from, &to)| Window { extents: vec![Extent { segment: 0, incarnation, from, to }] }).collect()
}

/// A loader at `state` and its first batch, with the time that both took.
fn start(root: &Path, settings: &Settings, state: &State) -> Outcome<(Loader, f64)> {
    let began = Instant::now();
    let mut loader = Loader::open(root, &state.topic, settings.clone())?;
    loader.load(state)?;
    loader.begin()?;
    take(&mut loader, 1)?;
    Ok((loader, began.elapsed().as_secs_f64() * 1e3))
}

fn take(loader: &mut Loader, steps: u64) -> Outcome<()> {
    let mut taken = 0;
    while taken < steps {
        match loader.poll_next(PATIENCE)? {
            Step::Batch(_) => taken += 1,
            Step::End => loader.begin()?,
            Step::Pending => return Err(format!("no batch came: {}", loader.late()).into()),
        }
    }
    Ok(())
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Processor time of this process, all its threads.
fn cpu_ns() -> Outcome<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let times = [usage.user_time(), usage.system_time()];
    Ok(times.iter().map(|time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1000).sum())
}

/// The resident set at one moment.
struct Memory {
    before_bytes: u64,
}

impl Memory {
    /// From now on the largest one is counted anew.
    fn now() -> Outcome<Self> {
        std::fs::write("/proc/self/clear_refs", "5")?;
        Ok(Self { before_bytes: resident("VmRSS:")? })
    }

    fn growth(&self) -> Outcome<u64> {
        Ok(resident("VmHWM:")?.saturating_sub(self.before_bytes))
    }
}

fn resident(field: &str) -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("the kernel does not count memory")?;
    let kib: u64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kib * 1024)
}
