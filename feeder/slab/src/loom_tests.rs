//! The hand-off explored by loom: every interleaving of the models below up to a number of preemptions, and every value
//! that the memory model lets a load see.
//!
//! A lost wake-up shows as a deadlock, a lost or doubled slot and a wrong order as a failed assertion, and slot memory
//! that is read before it is written, or written while it is read, as a race of its [`UnsafeCell`].
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p forebay-slab --release --lib loom --target-dir target/loom`

use std::array;
use std::ops::ControlFlow;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::level::Level;
use crate::returned::Returned;
use crate::ring::{Filled, FilledRing, ReadEnd};
use crate::signal::Waiting;
use crate::sync::{AtomicU64, Entry, Ordering};

const SLOTS: usize = 2;

/// Preemptions per execution. Bugs of such algorithms show with two; three takes seconds, all of them hours.
const PREEMPTIONS: usize = 3;

/// An eventfd: rings add up to one until they are heard.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn park(&self) -> ControlFlow<()> {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
        ControlFlow::Continue(())
    }
}

/// What lies in a slab's memory, and its bells.
struct Memory {
    slots: usize,
    level: Level,
    published: AtomicU64,
    taken: AtomicU64,
    entries: [Entry; SLOTS],
    returned: [AtomicU64; 1],
    taker_waits: AtomicU64,
    filler_waits: AtomicU64,
    closed: AtomicU64,
    filled_bell: Bell,
    returned_bell: Bell,
    payload: [UnsafeCell<u64>; SLOTS],
}

impl Memory {
    /// All slots have come back, as in a fresh slab.
    fn new(slots: usize, level: Level) -> Arc<Self> {
        Arc::new(Self {
            slots,
            level,
            published: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            entries: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
            returned: [AtomicU64::new((1 << slots) - 1)],
            taker_waits: AtomicU64::new(0),
            filler_waits: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            filled_bell: Bell::default(),
            returned_bell: Bell::default(),
            payload: array::from_fn(|_| UnsafeCell::new(u64::MAX)),
        })
    }

    fn ring(&self) -> FilledRing<'_> {
        let entries = &self.entries[..self.slots.next_power_of_two()];
        FilledRing { published: &self.published, taken: &self.taken, entries, slots: self.slots as u32 }
    }

    fn taker_waiting(&self) -> Waiting<'_> {
        Waiting { flag: &self.taker_waits }
    }

    fn filler_waiting(&self) -> Waiting<'_> {
        Waiting { flag: &self.filler_waits }
    }

    fn give_back(&self, slot: u32) {
        self.returned().give_back(slot);
        self.wake_filler();
    }

    fn wake_filler(&self) {
        let enough = |level| Level::unpack(level).is_reached(self.returned().count(), self.ring().ready());
        if self.filler_waiting().must_ring_if(enough) {
            self.returned_bell.ring();
        }
    }

    fn returned(&self) -> Returned<'_> {
        Returned { words: &self.returned }
    }

    fn wake_taker(&self) {
        if self.taker_waiting().must_ring() {
            self.filled_bell.ring();
        }
    }

    /// The filler: publishes `tags` in order, waiting for free slots; wakes after each `burst`.
    fn fill(&self, tags: std::ops::Range<u64>, burst: u64) {
        let mut end = self.ring().write_end();
        let mut out = [true; SLOTS];
        let mut free = Vec::new();
        let mut sweep = || {
            self.returned().sweep(|slot| {
                assert!(std::mem::take(&mut out[slot as usize]), "slot {slot} came back twice");
                free.push(slot);
            });
            free.pop().inspect(|&slot| out[slot as usize] = true)
        };
        for tag in tags {
            // As the engine's threads do: what is there is used; only who sleeps does so until the level is reached.
            let slot = loop {
                if let Some(slot) = sweep() {
                    break slot;
                }
                let look = || self.level.is_reached(self.returned().count(), self.ring().ready()).then_some(());
                self.filler_waiting().wait(self.level.pack(), look, || self.returned_bell.park()).unwrap();
            };
            // SAFETY: what loom is asked to check: nobody else has this slot.
            self.payload[slot as usize].with_mut(|value| unsafe { *value = tag });
            self.ring().push(&mut end, Filled { slot, tag, generation: !tag, rows: tag as u32, code: 0 });
            if (tag + 1) % burst == 0 {
                self.wake_taker();
            }
        }
    }

    /// The taker: waits for the slot with `tag` and checks all that came with it.
    fn take(&self, end: &mut ReadEnd, tag: u64) -> u32 {
        let look = || self.ring().pop(end).unwrap().inspect(|_| self.wake_filler());
        let filled = self.taker_waiting().wait(1, look, || self.filled_bell.park()).unwrap();
        assert_eq!(filled, Filled { slot: filled.slot, tag, generation: !tag, rows: tag as u32, code: 0 });
        self.read(filled.slot, tag);
        filled.slot
    }

    fn read(&self, slot: u32, tag: u64) {
        // SAFETY: what loom is asked to check: nobody writes this slot now.
        self.payload[slot as usize].with(|value| assert_eq!(unsafe { *value }, tag));
    }
}

/// With a filler that sleeps until any slot is back, and one that wants two or an empty ring.
fn explore(model: fn(Level)) {
    for level in [Level::ANY, Level { returned: 2, ready: 0 }] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS);
        builder.check(move || model(level));
    }
}

/// One slot goes round: the filler must wait for it each time, the taker too.
#[test]
fn one_slot_goes_round() {
    explore(|level| {
        let memory = Memory::new(1, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.fill(0..3, 1)
        });
        let mut end = memory.ring().read_end();
        for tag in 0..3 {
            let slot = memory.take(&mut end, tag);
            memory.give_back(slot);
        }
        filler.join().unwrap();
    });
}

/// Two slots, and the ring's places are used again: order and contents hold.
#[test]
fn two_slots_arrive_in_order() {
    explore(|level| {
        let memory = Memory::new(2, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.fill(0..4, 1)
        });
        let mut end = memory.ring().read_end();
        for tag in 0..4 {
            let slot = memory.take(&mut end, tag);
            memory.give_back(slot);
        }
        filler.join().unwrap();
    });
}

/// Two publications, one wake-up: both are found.
#[test]
fn one_wake_up_serves_a_burst() {
    explore(|level| {
        let memory = Memory::new(2, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.fill(0..2, 2)
        });
        let mut end = memory.ring().read_end();
        let slots = [memory.take(&mut end, 0), memory.take(&mut end, 1)];
        assert_ne!(slots[0], slots[1]);
        filler.join().unwrap();
    });
}

/// Leases are read and dropped by two other threads, in any order, while the filler waits for slots to fill again.
#[test]
fn several_threads_return() {
    explore(|level| {
        let memory = Memory::new(2, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.fill(0..3, 1)
        });
        let mut end = memory.ring().read_end();
        let readers: Vec<_> = (0..2)
            .map(|tag| {
                let slot = memory.take(&mut end, tag);
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    memory.read(slot, tag);
                    memory.give_back(slot);
                })
            })
            .collect();
        memory.take(&mut end, 2);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        filler.join().unwrap();
    });
}

/// A wait that gave up leaves a late ring behind; the next wait hears it for nothing, and still gets its slot.
#[test]
fn a_late_ring_does_no_harm() {
    explore(|level| {
        let memory = Memory::new(2, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.fill(0..2, 1)
        });
        let mut end = memory.ring().read_end();
        let look = || memory.ring().pop(&mut end).unwrap().inspect(|_| memory.wake_filler());
        let early = memory.taker_waiting().wait(1, look, || ControlFlow::Break("time is up"));
        let rest = match early {
            Ok(filled) => {
                assert_eq!(filled.tag, 0);
                1..2
            }
            Err(_) => 0..2,
        };
        for tag in rest {
            memory.take(&mut end, tag);
        }
        filler.join().unwrap();
    });
}

/// Closing wakes the waiter, and what was published before is still found.
#[test]
fn closing_comes_after_what_was_published() {
    explore(|level| {
        let memory = Memory::new(1, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || {
                memory.fill(0..1, u64::MAX);
                memory.closed.fetch_or(1, Ordering::AcqRel);
                memory.filled_bell.ring();
            }
        });
        let mut end = memory.ring().read_end();
        let mut found = Vec::new();
        loop {
            let look = || {
                let closed = memory.closed.load(Ordering::Acquire) != 0;
                let popped = memory.ring().pop(&mut end).unwrap();
                popped.map(Some).or(closed.then_some(None))
            };
            match memory.taker_waiting().wait(1, look, || memory.filled_bell.park()).unwrap() {
                Some(filled) => found.push(filled.tag),
                None => break,
            }
        }
        assert_eq!(found, [0]);
        filler.join().unwrap();
    });
}

/// A slot goes back while another is ready, which is then taken and kept: the filler, which would rather have two slots
/// back, gets the one, from whoever makes the ring empty.
#[test]
fn a_kept_lease_does_not_keep_the_filler_asleep() {
    explore(|level| {
        let memory = Memory::new(2, level);
        let filler = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.fill(0..4, 1)
        });
        let mut end = memory.ring().read_end();
        let slot = memory.take(&mut end, 0);
        memory.give_back(slot);
        let kept = memory.take(&mut end, 1);
        for tag in 2..4 {
            let slot = memory.take(&mut end, tag);
            assert_ne!(slot, kept);
            memory.give_back(slot);
        }
        memory.read(kept, 1);
        filler.join().unwrap();
    });
}
