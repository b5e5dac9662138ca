//! How many instructions the hot path takes: a step of a shuffled plan, a slot's way round the ring, the assembly of one
//! batch over a reader that lands nothing. Compared with the figures in `instructions.json` within [`TOLERANCE_PERCENT`].
//!
//! Instructions are counted by valgrind, so neither the clock nor the neighbours matter; each piece of work is run twice,
//! with different numbers of rounds, and the difference is what a round takes. Figures belong to a compiler,
//! by which they are kept; where there are none the guard says so and passes.
//!
//! ```text
//! cargo test --profile count -p forebay-feeder --test instructions -- --ignored --exact guard --nocapture
//! FOREBAY_RECORD=1 cargo test ...        # after a change that is meant: writes the figures of this compiler
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow_buffer::Buffer;
use cursorstore::PlanKey;
use feeder::engine::testing::assemble;
use feeder::engine::{Checksum, Dataset, Settings};
use feeder::log::{Root, TopicOptions, WriterOptions};
use feeder::plan::{Line, PLAN_VERSION, Schedule, Share, Tail, Unit};
use feeder::reader::testing::{Script, ScriptedReader};
use feeder::{Rows, Schema};
use slab::{Filled, Shape, Slab};

/// How far a figure may be from the recorded one, up or down: what became cheaper is to be recorded too.
const TOLERANCE_PERCENT: u64 = 5;
/// Names the rounds for a piece of work run under valgrind.
const ROUNDS: &str = "FOREBAY_ROUNDS";
/// Set to record figures instead of comparing them.
const RECORD: &str = "FOREBAY_RECORD";
/// Each piece of work with its smaller and larger number of rounds.
const WORKS: &[(&str, u64, u64)] = &[
    ("plan_step", 40, 240),
    // Pools of 32 samples last for 512 steps.
    ("plan_step_of_many_lanes", 512, 1536),
    ("slot_round", 500, 5500),
    ("batch_assembly", 40, 240),
];

type Figures = BTreeMap<String, BTreeMap<String, u64>>;

fn rounds() -> u64 {
    std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// The steps of a shuffled plan: their units with all their rows.
fn plan_steps(lanes: u32, chunk: u32, batch: u32) {
    let key = PlanKey { version: PLAN_VERSION, shuffle: true, seed: 3, lanes, chunk, pool: 4 };
    let line = Line::new(&key, [10_000_000].into(), 1).unwrap();
    let share = Share { rank: 0, world: 1, batch, tail: Tail::Short, drop_last: false };
    let mut schedule = Schedule::new(line, share, 1_000_000, 256).unwrap();
    let (mut unit, mut rows, steps) = (Unit::default(), 0, rounds());
    while unit.first_step < steps {
        assert!(schedule.next_into(&mut unit));
        rows += unit.runs.len();
    }
    assert!(rows > 0);
}

/// One step.
#[test]
#[ignore = "run by the guard"]
fn plan_step() {
    plan_steps(64, 64, 256);
}

/// One step that has places of a sixteenth of the lanes.
#[test]
#[ignore = "run by the guard"]
fn plan_step_of_many_lanes() {
    plan_steps(1024, 8, 64);
}

/// A slot is taken free, published, taken, leased and given back.
#[test]
#[ignore = "run by the guard"]
fn slot_round() {
    let (mut filler, mut taker) = Slab::create(Shape { slots: 32, slot_bytes: 4096 }).unwrap().split();
    for tag in 0..rounds() {
        let slot = filler.take_free().unwrap();
        filler.publish(Filled { slot, tag, generation: 0, rows: 1, code: 0 });
        filler.wake();
        let filled = taker.try_take().unwrap();
        drop(taker.lease(filled.slot));
    }
}

/// A batch of 128 rows in two columns: planned, read, small rows copied, counted, published, taken and given back.
#[test]
#[ignore = "run by the guard"]
fn batch_assembly() {
    const SAMPLES: usize = 1 << 13;
    let folder = tempfile::tempdir().unwrap();
    let schema = Schema::parse("id:int64, x:uint8[4096]").unwrap();
    let topic = "corpus".parse().unwrap();
    let made = Root::create(folder.path()).unwrap().create_topic(&topic, &schema, &TopicOptions::default()).unwrap();
    let writer = made.writer(0, WriterOptions::default()).unwrap();
    let columns = vec![Buffer::from_vec(vec![1i64; SAMPLES]), Buffer::from_vec(vec![2u8; SAMPLES * 4096])];
    writer.append(&Rows::new(made.schema().clone(), SAMPLES, columns).unwrap()).unwrap();
    writer.seal().unwrap();
    writer.close().unwrap();
    let dataset = Arc::new(Dataset::all_of(folder.path(), &topic).unwrap());
    let settings = Settings {
        global_batch: 128,
        shuffle: true,
        lanes: Some(16),
        chunk: Some(64),
        pool: Some(4),
        checksum: Checksum::Off,
        ..Settings::default()
    };
    let reader = |regions| -> Box<dyn feeder::reader::BlockReader> {
        Box::new(ScriptedReader::new(settings.depth, regions, Script::default().blank()))
    };
    assemble(&dataset, &settings, rounds(), reader).unwrap();
}

/// Instructions of one piece of work, the test harness and the set-up included; the reason if they cannot be counted.
fn counted(work: &str, rounds: u64) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", work, "--test-threads=1"])
        .env(ROUNDS, rounds.to_string())
        .output()
        .map_err(|error| format!("valgrind does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{work} failed under valgrind: {text}");
    let found = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    found.ok_or_else(|| format!("valgrind told no count: {text}"))
}

/// What the figures depend on.
fn build() -> Result<String, String> {
    let output = Command::new("rustc").arg("--version").output().map_err(|error| format!("no rustc: {error}"))?;
    if cfg!(debug_assertions) {
        return Err("built with checks for development: use --profile count".to_owned());
    }
    Ok(format!("{} {}", String::from_utf8_lossy(&output.stdout).trim(), std::env::consts::ARCH))
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.json")
}

/// What is wrong with a figure, if anything is.
fn complaint(work: &str, known: Option<u64>, now: u64) -> Option<String> {
    let Some(known) = known else { return Some(format!("{work}: no figure recorded, now {now}")) };
    let beyond = 100 * u128::from(now.abs_diff(known)) > u128::from(TOLERANCE_PERCENT) * u128::from(known);
    let change = 100.0 * (now as f64 / known as f64 - 1.0);
    beyond.then(|| format!("{work}: recorded {known}, now {now} ({change:+.1}%)"))
}

fn check() -> Result<(), String> {
    let build = build()?;
    let text = std::fs::read_to_string(file()).unwrap_or_else(|_| "{}".into());
    let mut figures: Figures = serde_json::from_str(&text).expect("instructions.json is not what it was written as");
    let record = std::env::var_os(RECORD).is_some();
    let known = match figures.get(&build) {
        None if !record => return Err(format!("no figures for this compiler: {build}")),
        known => known.cloned().unwrap_or_default(),
    };
    let mut now = BTreeMap::new();
    for &(work, few, many) in WORKS {
        let took = (counted(work, many)? - counted(work, few)?) / (many - few);
        now.insert(work.to_owned(), took);
    }
    if record {
        figures.insert(build, now);
        let text = serde_json::to_string_pretty(&figures).expect("figures are plain");
        std::fs::write(file(), text + "\n").expect("cannot write the figures");
        return Ok(());
    }
    let wrong: Vec<_> = now.iter().filter_map(|(work, &now)| complaint(work, known.get(work).copied(), now)).collect();
    assert!(wrong.is_empty(), "instructions of a round changed; if they are meant to, record them anew:\n{wrong:#?}");
    Ok(())
}

#[test]
#[ignore = "takes half a minute under valgrind"]
#[allow(clippy::print_stdout, reason = "whoever runs it by hand wants to know why it did nothing")]
fn guard() {
    if let Err(reason) = check() {
        println!("skipped: {reason}");
    }
}

#[test]
fn a_change_of_more_than_the_tolerance_is_a_complaint() {
    assert_eq!(complaint("work", Some(1000), 1050), None);
    assert_eq!(complaint("work", Some(1000), 950), None);
    assert!(complaint("work", Some(1000), 1051).unwrap().contains("recorded 1000, now 1051 (+5.1%)"));
    assert!(complaint("work", Some(1000), 940).is_some());
    assert!(complaint("work", None, 1).is_some());
}
