//! Waiting for slots to come back, apart from the filler itself: while one thread waits, others may publish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bell;
use crate::level::Level;
use crate::shared::{Shared, Side};

/// Waits for what [`crate::Filler::take_free`] would find. One thread at a time may wait, the filler itself included.
#[derive(Clone, Debug)]
pub struct FreeWaiter {
    shared: Arc<Shared>,
}

impl FreeWaiter {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits until a slot has come back, `until` says so, a side is closed, or `timeout` has passed. Once it sleeps it
    /// does so until `level` is reached. Whoever makes `until` true calls [`FreeWaiter::wake`] after it.
    pub fn wait(&self, timeout: Duration, level: Level, until: impl Fn() -> bool) {
        let ended = || until() || self.shared.is_closed(Side::Taker) || self.shared.is_closed(Side::Filler);
        let look = |level: Level| {
            let (returned, ready) = (self.shared.returned().count(), self.shared.ring().ready());
            (ended() || level.is_reached(returned, ready)).then_some(())
        };
        if look(Level::ANY).is_some() || bell::spin(|| look(Level::ANY)).is_some() {
            return;
        }
        let deadline = Instant::now().checked_add(timeout);
        let park = || bell::park(&self.shared.bells().returned, None, deadline);
        // Woken or out of time: the caller looks again either way.
        let _ = self.shared.waiting(Side::Filler).wait(level.pack(), || look(level), park);
    }

    /// Makes a waiter ask its `until` again; no system call when nobody waits.
    pub fn wake(&self) {
        self.shared.wake(Side::Filler);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{Lease, Shape, Slab, Taker};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_waiter_returns_for_a_returned_slot_a_call_and_a_closed_side() {
        let (mut filler, mut taker) = Slab::create(Shape { slots: 1, slot_bytes: 4096 }).unwrap().split();
        let waiter = filler.waiter();
        let slot = filler.take_free().unwrap();
        filler.publish(crate::Filled { slot, tag: 0, generation: 0, rows: 0, code: 0 });
        let filled = taker.try_take().unwrap();
        let lease = taker.lease(filled.slot);
        let called = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.wait(LONG, Level::ANY, || called.load(Ordering::SeqCst)));
            called.store(true, Ordering::SeqCst);
            waiter.wake();
            waiting.join().unwrap();
            let waiting = scope.spawn(|| waiter.wait(LONG, Level::ANY, || false));
            drop(lease);
            waiting.join().unwrap();
            assert_eq!(filler.take_free(), Some(slot));
            let waiting = scope.spawn(|| waiter.wait(LONG, Level::ANY, || false));
            taker.close();
            waiting.join().unwrap();
        });
    }

    /// Fills and takes every slot of a slab, and lets a waiter sleep for `level`.
    fn asleep(level: Level, work: impl FnOnce(&mut Taker, Vec<Lease>, &dyn Fn() -> bool)) {
        let (mut filler, mut taker) = Slab::create(Shape { slots: 4, slot_bytes: 4096 }).unwrap().split();
        let (waiter, shared) = (filler.waiter(), filler.slab().shared().clone());
        for tag in 0..4 {
            let slot = filler.take_free().unwrap();
            filler.publish(crate::Filled { slot, tag, generation: 0, rows: 0, code: 0 });
        }
        let leases = (0..2).map(|_| taker.try_take().map(|filled| taker.lease(filled.slot)).unwrap()).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.wait(LONG, level, || false));
            while !shared.waiting(Side::Filler).is_raised() {
                std::thread::yield_now();
            }
            work(&mut taker, leases, &|| shared.waiting(Side::Filler).is_raised());
            waiting.join().unwrap();
        });
    }

    #[test]
    fn a_sleeper_is_woken_by_its_share_of_slots_and_not_before() {
        asleep(Level { returned: 2, ready: 0 }, |_, mut leases, sleeps| {
            drop(leases.pop());
            assert!(sleeps());
            drop(leases.pop());
        });
    }

    #[test]
    fn a_sleeper_is_woken_by_one_slot_when_few_are_ready() {
        // By the return, and by what is taken after it.
        asleep(Level { returned: 9, ready: 2 }, |_, leases, _| drop(leases));
        asleep(Level { returned: 9, ready: 0 }, |taker, mut leases, sleeps| {
            drop(leases.pop());
            let first = taker.try_take().unwrap();
            assert!(sleeps());
            let last = taker.try_take().unwrap();
            drop((taker.lease(first.slot), taker.lease(last.slot)));
        });
    }
}
