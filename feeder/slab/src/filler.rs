//! The filling side: takes free slots, publishes filled ones in order, waits for slots to come back.
//!
//! What state each slot is in is kept here, in the filler's own memory. A return of a slot that is not out is counted
//! and otherwise ignored: a peer that breaks the rules can spoil the batches in its own slab, and never make this side
//! write into a slot twice at a time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bell;
use crate::closer::Closer;
use crate::error::SlabError;
use crate::level::Level;
use crate::process;
use crate::ring::{Filled, WriteEnd};
use crate::shared::{Shared, Side};
use crate::slab::Slab;
use crate::waiter::FreeWaiter;

/// Up to this many bitmap words (1024 slots), every [`Filler::take_free`] looks for slots that just came back: they are
/// the ones most likely still in the cache. Larger slabs look when nothing else is free.
const EAGER_WORDS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Held,
    Out,
}

/// One slab's filling side. Its owner serialises publishing; dropping it closes the side.
#[derive(Debug)]
pub struct Filler {
    shared: Arc<Shared>,
    pid: u32,
    write: WriteEnd,
    stock: Stock,
    peer: Option<OwnedFd>,
}

/// The slots as this side knows them.
#[derive(Debug)]
struct Stock {
    states: Box<[State]>,
    /// Free slots, the one that came back last on top.
    free: Vec<u32>,
    stray_returns: u64,
}

impl Filler {
    pub(crate) fn claim(shared: Arc<Shared>) -> Result<Self, SlabError> {
        shared.claim(Side::Filler)?;
        let slots = shared.layout().shape.slots as usize;
        // Everything is out until the bitmap says that it is back; in a fresh slab it says so for all that is present.
        let stock = Stock { states: vec![State::Out; slots].into(), free: Vec::with_capacity(slots), stray_returns: 0 };
        let write = shared.ring().write_end();
        Ok(Self { shared, pid: process::id(), write, stock, peer: None })
    }

    /// The slab whose side this is.
    pub fn slab(&self) -> Slab {
        Slab::new(Arc::clone(&self.shared))
    }

    /// From now on waits end also when the process of this pidfd dies.
    pub fn watch(&mut self, peer: OwnedFd) {
        self.peer = Some(peer);
    }

    /// A handle to close this side from any thread.
    pub fn closer(&self) -> Closer {
        Closer::new(Arc::clone(&self.shared), Side::Filler, self.pid)
    }

    /// A free slot, which is the caller's to write until it is published or put back.
    pub fn take_free(&mut self) -> Option<u32> {
        if self.stock.free.is_empty() || self.shared.layout().returned_words <= EAGER_WORDS {
            self.stock.sweep(&self.shared);
        }
        let slot = self.stock.free.pop()?;
        self.stock.states[slot as usize] = State::Held;
        Some(slot)
    }

    /// Gives up a slot that was taken and not published.
    ///
    /// # Panics
    /// If the slot is not held.
    pub fn put_back(&mut self, slot: u32) {
        self.stock.move_from_held(slot, State::Free);
        self.stock.free.push(slot);
    }

    /// Slots that can be taken now.
    pub fn free_slots(&self) -> u32 {
        let mut free = self.stock.free.len() as u32;
        self.shared.returned().peek(|slot| free += u32::from(self.stock.is_out(slot)));
        free
    }

    /// Slots published that the taker has not taken yet, as far as its counter tells.
    pub fn ready_slots(&self) -> u32 {
        self.shared.ring().ready()
    }

    /// Hands a held slot to the taker; the order of calls is the order of delivery. Wakes nobody: see [`Filler::wake`].
    ///
    /// # Panics
    /// If the slot is not held.
    pub fn publish(&mut self, filled: Filled) {
        self.stock.move_from_held(filled.slot, State::Out);
        self.shared.ring().push(&mut self.write, filled);
    }

    /// Wakes the taker for everything published since; no system call when it does not wait.
    pub fn wake(&self) {
        self.shared.wake(Side::Taker);
    }

    /// Waits for a free slot: true if there is one. False after `timeout`, and at once when a side is closed or the
    /// taker's process is dead ([`Filler::taker_gone`]).
    pub fn wait_free(&mut self, timeout: Duration) -> bool {
        let Self { shared, stock, peer, .. } = self;
        let mut look = || {
            stock.sweep(shared);
            if !stock.free.is_empty() {
                return Some(true);
            }
            (shared.is_closed(Side::Taker) || shared.is_closed(Side::Filler)).then_some(false)
        };
        if let Some(found) = look() {
            return found;
        }
        if timeout.is_zero() {
            return false;
        }
        // A time beyond what the clock can tell is no time limit.
        let deadline = Instant::now().checked_add(timeout);
        if let Some(found) = bell::spin(&mut look) {
            return found;
        }
        let park = || bell::park(&shared.bells().returned, peer.as_ref(), deadline);
        shared.waiting(Side::Filler).wait(Level::ANY.pack(), look, park).unwrap_or(false)
    }

    /// A handle to wait for free slots while other threads use the filler.
    pub fn waiter(&self) -> FreeWaiter {
        FreeWaiter::new(Arc::clone(&self.shared))
    }

    /// Whether the taker closed its side.
    pub fn taker_closed(&self) -> bool {
        self.shared.is_closed(Side::Taker)
    }

    /// Whether nobody will take slots any more: the taker closed its side, or its process is dead.
    pub fn taker_gone(&self) -> bool {
        self.taker_closed() || self.peer.as_ref().is_some_and(bell::is_dead)
    }

    /// Returns of slots that were not out: not zero only if the peer breaks the rules.
    pub fn stray_returns(&self) -> u64 {
        self.stock.stray_returns
    }

    /// Whether this is a forked child of the process that made this side; such a copy must not be used.
    pub fn is_forked(&self) -> bool {
        process::id() != self.pid
    }

    /// Closes this side: the taker still gets what was published, then learns that nothing more comes.
    pub fn close(&self) {
        if !self.is_forked() {
            self.shared.close(Side::Filler);
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.close();
    }
}

impl Stock {
    fn sweep(&mut self, shared: &Shared) {
        shared.returned().sweep(|slot| {
            if self.is_out(slot) {
                self.states[slot as usize] = State::Free;
                self.free.push(slot);
            } else {
                self.stray_returns += 1;
            }
        });
    }

    fn is_out(&self, slot: u32) -> bool {
        self.states.get(slot as usize) == Some(&State::Out)
    }

    fn move_from_held(&mut self, slot: u32, to: State) {
        let state = self.states.get_mut(slot as usize).filter(|state| **state == State::Held);
        *state.unwrap_or_else(|| panic!("the slot is not held: slot={slot}")) = to;
    }
}
