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
    /// Waits until `ready` gives something; `level`, not 0, is what the flag shows meanwhile. `park` sleeps until a ring, or breaks with the reason why not to wait any
    /// longer; even then what became ready meanwhile is preferred.
    pub(crate) fn wait<T, W>(
        &self,
        level: u64,
        mut ready: impl FnMut() -> Option<T>,
        mut park: impl FnMut() -> ControlFlow<W>,
    ) -> Result<T, W> {
        loop {
            self.raise(level);
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
        self.must_ring_if(|_| true)
    }

    /// The same for news that may not be worth a wake-up yet: `enough` is told the level that the waiter raised, and
    /// must look at what is visible only when it is called.
    pub(crate) fn must_ring_if(&self, enough: impl FnOnce(u64) -> bool) -> bool {
        fence(Ordering::SeqCst);
        let level = self.flag.load(Ordering::Relaxed);
        level != 0 && enough(level) && self.flag.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether somebody is about to sleep, or does.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed) != 0
    }

    fn raise(&self, level: u64) {
        self.flag.swap(level, Ordering::Relaxed);
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
            1,
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
    fn news_below_the_level_leave_the_flag_up() {
        let flag = AtomicU64::new(0);
        let waiting = Waiting { flag: &flag };
        assert!(!waiting.must_ring_if(|_| panic!("asked though nobody waits")));
        let rung = Cell::new(false);
        let got = waiting.wait(
            7,
            || rung.get().then_some(()),
            || {
                assert!(!waiting.must_ring_if(|level| level == 6));
                assert!(waiting.must_ring_if(|level| level == 7));
                rung.set(true);
                ControlFlow::<()>::Continue(())
            },
        );
        assert_eq!(got, Ok(()));
    }

    #[test]
    fn what_became_ready_is_preferred_to_a_reason_to_stop() {
        let flag = AtomicU64::new(0);
        let waiting = Waiting { flag: &flag };
        let ready = Cell::new(None);
        let got = waiting.wait(
            1,
            || ready.get(),
            || {
                ready.set(Some(7));
                ControlFlow::Break("too late")
            },
        );
        assert_eq!(got, Ok(7));
        assert_eq!(waiting.wait(1, || None::<u8>, || ControlFlow::Break("too late")), Err("too late"));
        assert!(!waiting.must_ring());
    }
}
