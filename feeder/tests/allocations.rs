//! What a batch costs in steady state besides moving its bytes: reader threads allocate nothing and find no lock held,
//! the trainer's thread allocates what it hands out.
//!
//! A counting allocator tells the trainer's thread from all others. Counted is the middle of an epoch, after earlier ones
//! in which all lists have grown: at an epoch's beginning its order is made anew. This file is a program of its own, so
//! that no other test allocates meanwhile.
//!
//! What remains, with its bound: a unit compared with its checksums reads and parses the header of its block
//! ([`CHECKED_ALLOCATIONS`], one unit in 64 by default); a batch is a list of columns, a lease, and one piece of ordinary
//! memory for its small columns ([`BATCH_ALLOCATIONS`]); a list that meets its longest read late grows once more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_buffer::Buffer;
use feeder::engine::{Checksum, Loader, Settings, Step};
use feeder::log::{Root, TopicOptions, WriterOptions};
use feeder::reader::ReaderKind;
use feeder::{Rows, Schema};

/// Allocations of a batch of one large and one small column: the columns' list, the lease, the small columns' memory and
/// its owner.
const BATCH_ALLOCATIONS: u64 = 4;
/// Most allocations of a unit that is compared with its checksums: the header's text, and a list for each column.
const CHECKED_ALLOCATIONS: u64 = 40;
/// Batches among which reader threads may allocate once, as lists still grow.
const BATCHES_A_GROWTH: u64 = 50;

const SAMPLES: u64 = 1 << 15;
const BATCH: u32 = 32;
const WIDTH: usize = 1024;
const WAIT: Duration = Duration::from_secs(60);

struct Counting;

static BY_TRAINER: AtomicU64 = AtomicU64::new(0);
static BY_OTHERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_TRAINER: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    let by_trainer = IS_TRAINER.try_with(Cell::get).unwrap_or(false);
    if by_trainer { &BY_TRAINER } else { &BY_OTHERS }.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: everything is the system allocator's; counting allocates nothing, for the flag is constant at first.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts of a stretch of batches.
#[derive(Debug)]
struct Counts {
    batches: u64,
    by_trainer: u64,
    by_others: u64,
    checked_units: u64,
    lock_waits: u64,
}

fn take(loader: &mut Loader, batches: u64) {
    for _ in 0..batches {
        assert!(matches!(loader.poll_next(WAIT).unwrap(), Step::Batch(_)));
    }
}

fn count_middle(settings: Settings) -> Counts {
    let folder = tempfile::tempdir().unwrap();
    let schema = Schema::parse(&format!("id:int64, x:uint16[{WIDTH}]")).unwrap();
    let topic = "corpus".parse().unwrap();
    let topic_of = Root::create(folder.path()).unwrap();
    let topic_of = topic_of.create_topic(&topic, &schema, &TopicOptions::default()).unwrap();
    let writer = topic_of.writer(0, WriterOptions::default()).unwrap();
    let stretch = 4096;
    for first in (0..SAMPLES).step_by(stretch) {
        let id: Vec<i64> = (first as i64..).take(stretch).collect();
        let columns = vec![Buffer::from_vec(id), Buffer::from_vec(vec![7u16; stretch * WIDTH])];
        writer.append(&Rows::new(topic_of.schema().clone(), stretch, columns).unwrap()).unwrap();
    }
    writer.seal().unwrap();
    writer.close().unwrap();

    let mut loader = Loader::open(folder.path(), &topic, settings).unwrap();
    let steps = loader.steps();
    for _ in 0..2 {
        loader.begin().unwrap();
        take(&mut loader, steps);
    }
    loader.begin().unwrap();
    // A third in, and until the reader threads may be at the next epoch, which they begin at most a slab ahead.
    take(&mut loader, steps / 3);
    let before = loader.stats();
    let batches = steps / 3;
    assert!(before.slots < steps / 4, "the slab holds too much of an epoch: {before:?}");
    let counted = || (BY_TRAINER.load(Ordering::Relaxed), BY_OTHERS.load(Ordering::Relaxed));
    let from = counted();
    take(&mut loader, batches);
    let to = counted();
    let after = loader.stats();
    Counts {
        batches,
        by_trainer: to.0 - from.0,
        by_others: to.1 - from.1,
        checked_units: after.checked_units - before.checked_units,
        lock_waits: after.lock_waits - before.lock_waits,
    }
}

// One test: another one's thread would be counted.
#[test]
fn a_batch_in_steady_state_allocates_what_it_hands_out() {
    IS_TRAINER.set(true);
    let settings = || Settings {
        global_batch: BATCH,
        lanes: Some(16),
        chunk: Some(64),
        pool: Some(2),
        checksum: Checksum::Off,
        reader_threads: Some(1),
        ..Settings::default()
    };
    for (shuffle, reader, threads) in [
        (false, ReaderKind::Auto, 1),
        (true, ReaderKind::Auto, 1),
        (true, ReaderKind::Auto, 2),
        (true, ReaderKind::Preadv, 1),
    ] {
        let counts = count_middle(Settings { shuffle, reader, reader_threads: Some(threads), ..settings() });
        let name = format!("shuffle={shuffle} reader={reader:?} threads={threads} {counts:?}");
        assert!(counts.by_others * BATCHES_A_GROWTH <= counts.batches, "{name}");
        assert!(counts.by_trainer <= counts.batches * BATCH_ALLOCATIONS, "{name}");
        assert!(threads > 1 || counts.lock_waits == 0, "{name}");
    }
    for (checksum, part) in [(Checksum::Sampled, Checksum::SAMPLE), (Checksum::Always, 1)] {
        let counts = count_middle(Settings { shuffle: true, checksum, ..settings() });
        let most = (counts.checked_units + 1) * CHECKED_ALLOCATIONS + counts.batches / BATCHES_A_GROWTH;
        assert!(counts.by_others <= most, "{checksum:?} {counts:?}");
        assert!(counts.checked_units > 0 && counts.checked_units <= 2 * counts.batches / part + 1, "{counts:?}");
    }
}
