//! Failures on demand, for tests: the calls of one thread to the disk can be made to die, fail or pause at any point.

use std::cell::RefCell;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};

pub use super::disk::Step;

/// What is to happen.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The process dies after so many points; a write of n bytes has n + 1 points, every other call has one. Nothing
    /// that comes later reaches the disk.
    Die {
        /// Points passed before.
        after: u64,
    },
    /// The `nth` call of this kind (from 0) fails.
    Fail {
        /// The kind of call.
        step: Step,
        /// Which one.
        nth: u32,
        /// How.
        errno: Errno,
        /// For a write: the bytes that still get through.
        bytes: usize,
    },
    /// Every call of this kind fails.
    FailAll {
        /// The kind of call.
        step: Step,
        /// How.
        errno: Errno,
    },
    /// The process is stopped (SIGSTOP) before the `nth` call of this kind.
    Stop {
        /// The kind of call.
        step: Step,
        /// Which one.
        nth: u32,
    },
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    points: u64,
    calls: u32,
    happened: bool,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs `act` with a fault on this thread; the second value says whether it happened.
pub fn with<T>(fault: Fault, act: impl FnOnce() -> T) -> (T, bool) {
    PLAN.set(Some(Plan { fault, points: 0, calls: 0, happened: false }));
    let result = act();
    let plan = PLAN.take();
    (result, plan.is_some_and(|plan| plan.happened))
}

fn died() -> io::Error {
    io::Error::other("the process died here")
}

impl Plan {
    fn is_nth(&mut self, nth: u32) -> bool {
        self.calls += 1;
        self.calls == nth + 1
    }

    /// Outcome of a call with so many bytes: how many get through, and the error.
    fn pass(&mut self, step: Step, bytes: usize) -> Option<(usize, io::Error)> {
        let fault = self.fault;
        match fault {
            Fault::Die { .. } if self.happened => Some((0, died())),
            Fault::Die { after } => {
                let left = after - self.points;
                self.points += bytes as u64 + 1;
                self.happened = left <= bytes as u64;
                self.happened.then(|| (left as usize, died()))
            }
            Fault::Fail { step: wanted, nth, errno, bytes } if wanted == step && self.is_nth(nth) => {
                self.happened = true;
                Some((bytes, errno.into()))
            }
            Fault::FailAll { step: wanted, errno } if wanted == step => {
                self.happened = true;
                Some((0, errno.into()))
            }
            Fault::Stop { step: wanted, nth } if wanted == step && self.is_nth(nth) => {
                self.happened = true;
                raise(Signal::SIGSTOP).expect("a process may stop itself");
                None
            }
            _ => None,
        }
    }
}

pub(super) fn interfere(step: Step, bytes: usize) -> Option<(usize, io::Error)> {
    let outcome = PLAN.with_borrow_mut(|plan| plan.as_mut().and_then(|plan| plan.pass(step, bytes)));
    outcome.map(|(through, error)| (through.min(bytes), error))
}
