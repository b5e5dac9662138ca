//! Waiting for slots to come back, apart from the filler itself: while one thread waits, others may publish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bell;
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

    /// Waits until a slot has come back, `until` says so, a side is closed, or `timeout` has passed. Whoever makes
    /// `until` true calls [`FreeWaiter::wake`] after it.
    pub fn wait(&self, timeout: Duration, until: impl Fn() -> bool) {
        let look = || {
            let mut back = until() || self.shared.is_closed(Side::Taker) || self.shared.is_closed(Side::Filler);
            self.shared.returned().peek(|_| back = true);
            back.then_some(())
        };
        if look().is_some() || bell::spin(look).is_some() {
            return;
        }
        let deadline = Instant::now().checked_add(timeout);
        let park = || bell::park(&self.shared.bells().returned, None, deadline);
        // Woken or out of time: the caller looks again either way.
        let _ = self.shared.waiting(Side::Filler).wait(look, park);
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
    use crate::{Shape, Slab};

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
            let waiting = scope.spawn(|| waiter.wait(LONG, || called.load(Ordering::SeqCst)));
            called.store(true, Ordering::SeqCst);
            waiter.wake();
            waiting.join().unwrap();
            let waiting = scope.spawn(|| waiter.wait(LONG, || false));
            drop(lease);
            waiting.join().unwrap();
            assert_eq!(filler.take_free(), Some(slot));
            let waiting = scope.spawn(|| waiter.wait(LONG, || false));
            taker.close();
            waiting.join().unwrap();
        });
    }
}
