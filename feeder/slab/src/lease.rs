//! Leases: the right to read one slot, and the desk that counts them.
//!
//! A lease is dropped by whichever thread lets the last tensor over its slot go: without a lock, without waiting,
//! without touching anything but atomics. In a forked child dropping does nothing: the child inherited a copy of the
//! lease, but the slot is its parent's, and shared memory would make the return real.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::error::Fault;
use crate::process;
use crate::shared::Shared;

/// A slot's state on the taking side.
const WITH_FILLER: u8 = 0;
const TAKEN: u8 = 1;
const LEASED: u8 = 2;

/// What a taker's leases share; it outlives the taker as long as one is out.
#[derive(Debug)]
pub(crate) struct Desk {
    shared: Arc<Shared>,
    pid: u32,
    states: Box<[AtomicU8]>,
    leased: AtomicU32,
}

impl Desk {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let states = (0..shared.layout().shape.slots).map(|_| AtomicU8::new(WITH_FILLER)).collect();
        Self { shared, pid: process::id(), states, leased: AtomicU32::new(0) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn is_forked(&self) -> bool {
        process::id() != self.pid
    }

    pub(crate) fn leased(&self) -> u32 {
        self.leased.load(Ordering::Relaxed)
    }

    /// Notes that `slot` came out of the ring. It must not be here already: whoever reads it would see it change.
    pub(crate) fn admit(&self, slot: u32) -> Result<(), Fault> {
        match self.states[slot as usize].compare_exchange(WITH_FILLER, TAKEN, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(Fault::NotReturned { slot }),
        }
    }

    pub(crate) fn lease(desk: &Arc<Self>, slot: u32) -> Lease {
        let state = desk.states.get(slot as usize);
        let leased = state
            .is_some_and(|state| state.compare_exchange(TAKEN, LEASED, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        assert!(leased, "the slot was not taken or is leased already: slot={slot}");
        desk.leased.fetch_add(1, Ordering::Relaxed);
        Lease { desk: Arc::clone(desk), slot }
    }

    fn give_back(&self, slot: u32) {
        // Relaxed is enough: the return releases this, and the next admission comes after it by way of the filler.
        self.states[slot as usize].store(WITH_FILLER, Ordering::Relaxed);
        self.leased.fetch_sub(1, Ordering::Relaxed);
        self.shared.returned().give_back(slot);
        self.shared.wake_filler();
    }
}

/// The right to read one slot; see the module. Made by [`crate::Taker::lease`].
#[derive(Debug)]
#[must_use = "the slot goes back to the filler as soon as its lease is dropped"]
pub struct Lease {
    desk: Arc<Desk>,
    slot: u32,
}

impl Lease {
    /// The slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Address and bytes of the slot, good as long as this lease lives.
    pub fn memory(&self) -> (*mut u8, usize) {
        self.desk.shared.slot(self.slot)
    }

    /// Returns the slot now; the same as dropping the lease.
    pub fn give_back(self) {}
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.desk.is_forked() {
            self.desk.give_back(self.slot);
        }
    }
}
