//! The taking side: takes filled slots in order, waits for them, and leases them out.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bell::{self, Ended};
use crate::closer::Closer;
use crate::error::{Fault, SlabError};
use crate::lease::{Desk, Lease};
use crate::ring::{Filled, ReadEnd};
use crate::shared::{Shared, Side};
use crate::slab::Slab;

/// How a wait for a filled slot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A slot, to be leased.
    Filled(Filled),
    /// Nothing came in time.
    TimedOut,
    /// The filler's process is dead, and everything that it published has been taken.
    PeerDied,
    /// The filler closed its side and everything that it published has been taken; or this side is closed; or the
    /// filler broke the rules ([`Taker::fault`]).
    Closed,
}

/// One slab's taking side. Dropping it closes the side; leases that are out stay good.
#[derive(Debug)]
pub struct Taker {
    inbox: Inbox,
    peer: Option<OwnedFd>,
}

/// What looking for the next slot needs.
#[derive(Debug)]
struct Inbox {
    desk: Arc<Desk>,
    read: ReadEnd,
    fault: Option<Fault>,
}

impl Taker {
    pub(crate) fn claim(shared: Arc<Shared>) -> Result<Self, SlabError> {
        shared.claim(Side::Taker)?;
        let read = shared.ring().read_end();
        Ok(Self { inbox: Inbox { desk: Arc::new(Desk::new(shared)), read, fault: None }, peer: None })
    }

    /// The slab whose side this is.
    pub fn slab(&self) -> Slab {
        Slab::new(Arc::clone(self.inbox.desk.shared()))
    }

    /// From now on waits end also when the process of this pidfd dies.
    pub fn watch(&mut self, peer: OwnedFd) {
        self.peer = Some(peer);
    }

    /// A handle to close this side from any thread.
    pub fn closer(&self) -> Closer {
        Closer::new(Arc::clone(self.inbox.desk.shared()), Side::Taker, self.inbox.desk.pid())
    }

    /// The next filled slot, if one is ready.
    pub fn try_take(&mut self) -> Option<Filled> {
        self.inbox.try_take()
    }

    /// Waits for the next filled slot: for ever, if there is no `timeout`.
    pub fn wait_take(&mut self, timeout: Option<Duration>) -> Taken {
        let Self { inbox, peer } = self;
        if let Some(taken) = inbox.look() {
            return taken;
        }
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Taken::TimedOut;
        }
        // A time beyond what the clock can tell is no time limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(taken) = bell::spin(|| inbox.look()) {
            return taken;
        }
        let shared = Arc::clone(inbox.desk.shared());
        let park = || bell::park(&shared.bells().filled, peer.as_ref(), deadline);
        match shared.waiting(Side::Taker).wait(1, || inbox.look(), park) {
            Ok(taken) => taken,
            Err(Ended::TimedOut) => Taken::TimedOut,
            Err(Ended::PeerDied) => Taken::PeerDied,
        }
    }

    /// The right to read a slot that was taken. When it is dropped, by any thread, the slot goes back to the filler.
    ///
    /// # Panics
    /// If the slot was not taken, or is leased already.
    pub fn lease(&self, slot: u32) -> Lease {
        Desk::lease(&self.inbox.desk, slot)
    }

    /// Leases that are out.
    pub fn leased(&self) -> u32 {
        self.inbox.desk.leased()
    }

    /// Slots ready to be taken.
    pub fn ready_slots(&self) -> u32 {
        self.inbox.desk.shared().ring().ready()
    }

    /// What the filler did against the rules, if it did.
    pub fn fault(&self) -> Option<Fault> {
        self.inbox.fault
    }

    /// Whether this is a forked child of the process that made this side; such a copy must not be used.
    pub fn is_forked(&self) -> bool {
        self.inbox.desk.is_forked()
    }

    /// Closes this side: the filler's waits end, and nothing more should be filled.
    pub fn close(&self) {
        if !self.is_forked() {
            self.inbox.desk.shared().close(Side::Taker);
        }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inbox {
    fn try_take(&mut self) -> Option<Filled> {
        if self.fault.is_some() {
            return None;
        }
        let popped = match self.desk.shared().ring().pop(&mut self.read) {
            Ok(Some(filled)) => {
                // The filler may sleep until few enough are left.
                self.desk.shared().wake_filler();
                self.desk.admit(filled.slot).map(|()| Some(filled))
            }
            other => other,
        };
        popped.unwrap_or_else(|fault| {
            self.fault = Some(fault);
            self.desk.shared().close(Side::Taker);
            None
        })
    }

    /// The next slot, or the reason why none will come.
    fn look(&mut self) -> Option<Taken> {
        if self.desk.shared().is_closed(Side::Taker) {
            return Some(Taken::Closed);
        }
        // Asked before the ring is: what was published before closing is then seen below.
        let closed = self.desk.shared().is_closed(Side::Filler);
        match self.try_take() {
            Some(filled) => Some(Taken::Filled(filled)),
            None => (closed || self.fault.is_some()).then_some(Taken::Closed),
        }
    }
}
