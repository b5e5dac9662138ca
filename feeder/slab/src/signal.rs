//! Waiting without lost wake-ups, and without a system call when nobody waits.
//!
//! The waiter raises a flag, looks once more whether what it waits for is there, and only then sleeps. The other side
//! makes it visible, then looks at the flag, and rings if it is up. Between store and load on both sides stands a
//! sequentially consistent fence, so at least one of the two sees the other. Who rings lowers the flag first, so that
//! of many signallers one rings. A ring that comes late wakes a later wait for nothing: it looks, and sleeps again.
//!
//! Every write of the flag is a swap, so all of them form one chain: a lowering that was meant for an earlier wait
//! cannot end up after the raising of a later one.

use std::ops::ControlFlow;

use crate::sync::{AtomicU64, Ordering, fence};

/// One side's waiting flag in shared memory; see the module.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) flag: &'a AtomicU64,
}

impl Waiting<'_> {
    /// Waits until `ready` gives something. `park` sleeps until a ring, or breaks with the reason why not to wait any
    /// longer; even then what became ready meanwhile is preferred.
    pub(crate) fn wait<T, W>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
        mut park: impl FnMut() -> ControlFlow<W>,
    ) -> Result<T, W> {
        loop {
            self.raise();
            let mut outcome = ready().map(Ok);
            if outcome.is_none()
                && let ControlFlow::Break(why) = park()
            {
                outcome = Some(ready().ok_or(why));
            }
            if let Some(outcome) = outcome {
                self.flag.swap(0, Ordering::Relaxed);
                return outcome;
            }
        }
    }

    /// To be asked after the other side's news are visible: whether it sleeps and this caller is the one to ring.
    pub(crate) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flag.load(Ordering::Relaxed) != 0 && self.flag.swap(0, Ordering::Relaxed) != 0
    }

    fn raise(&self) {
        self.flag.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn of_many_signallers_one_rings_and_none_when_nobody_waits() {
        let flag = AtomicU64::new(0);
        let waiting = Waiting { flag: &flag };
        assert!(!waiting.must_ring());
        let parked = Cell::new(0);
        let got = waiting.wait(
            || (parked.get() == 2).then_some("ready"),
            || {
                parked.set(parked.get() + 1);
                assert!(waiting.must_ring());
                assert!(!waiting.must_ring());
                ControlFlow::<()>::Continue(())
            },
        );
        assert_eq!(got, Ok("ready"));
        assert!(!waiting.must_ring());
    }

    #[test]
    fn what_became_ready_is_preferred_to_a_reason_to_stop() {
        let flag = AtomicU64::new(0);
        let waiting = Waiting { flag: &flag };
        let ready = Cell::new(None);
        let got = waiting.wait(
            || ready.get(),
            || {
                ready.set(Some(7));
                ControlFlow::Break("too late")
            },
        );
        assert_eq!(got, Ok(7));
        assert_eq!(waiting.wait(|| None::<u8>, || ControlFlow::Break("too late")), Err("too late"));
        assert!(!waiting.must_ring());
    }
}
