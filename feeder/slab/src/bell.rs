//! The bells of a slab: an eventfd in each direction, polled together with the peer's life.
//!
//! Bells are not in the slab's memory; another process gets them beside it. A process id that died is noticed through a
//! pidfd: nothing else tells it for certain, since sockets and pipes live on in the dead one's children.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::unistd;

use crate::error::SlabError;

/// How long a waiter spins before it sleeps: a wake-up costs more than twice as much.
const SPIN: Duration = Duration::from_micros(2);

/// Spins between two looks at the clock.
const SPINS_A_LOOK: u32 = 16;

/// What is rung when slots were filled, and what is rung when slots came back. eventfds, non-blocking.
#[derive(Debug)]
pub struct Bells {
    /// Rung by the filler, waited at by the taker.
    pub filled: OwnedFd,
    /// Rung by the takers of slots, waited at by the filler.
    pub returned: OwnedFd,
}

impl Bells {
    /// A fresh pair.
    pub fn new() -> Result<Self, SlabError> {
        let bell = || {
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map(OwnedFd::from)
                .map_err(|errno| SlabError::Os { call: "eventfd", bytes: 8, source: io::Error::from(errno) })
        };
        Ok(Self { filled: bell()?, returned: bell()? })
    }
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    TimedOut,
    PeerDied,
}

/// Wakes whoever polls `bell`.
pub(crate) fn ring(bell: &OwnedFd) {
    // The only failure of an eventfd is that its counter is full: then it rings already.
    let _ = unistd::write(bell, &1u64.to_ne_bytes());
}

/// Sleeps until `bell` rings, `peer` dies or `deadline` passes. May also return for nothing.
pub(crate) fn park(bell: &OwnedFd, peer: Option<&OwnedFd>, deadline: Option<Instant>) -> ControlFlow<Ended> {
    let timeout = match deadline {
        None => None,
        Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
            None | Some(Duration::ZERO) => return ControlFlow::Break(Ended::TimedOut),
            Some(left) => Some(TimeSpec::from_duration(left)),
        },
    };
    let peer = peer.map(|peer| peer.as_fd());
    let mut fds = [poll_in(bell.as_fd()), poll_in(peer.unwrap_or(bell.as_fd()))];
    let used = if peer.is_some() { 2 } else { 1 };
    match ppoll(&mut fds[..used], timeout, None) {
        Ok(0) | Err(Errno::EINTR) => return ControlFlow::Continue(()),
        // Out of kernel memory: look again, and let others run meanwhile.
        Err(_) => {
            std::thread::yield_now();
            return ControlFlow::Continue(());
        }
        Ok(_) => {}
    }
    if fds[0].any() == Some(true) {
        let _ = unistd::read(bell, &mut [0; 8]);
        return ControlFlow::Continue(());
    }
    if used == 2 && fds[1].any() == Some(true) {
        return ControlFlow::Break(Ended::PeerDied);
    }
    ControlFlow::Continue(())
}

/// Whether the process of this pidfd is gone.
pub(crate) fn is_dead(peer: &OwnedFd) -> bool {
    let mut fds = [poll_in(peer.as_fd())];
    matches!(ppoll(&mut fds, Some(TimeSpec::from_duration(Duration::ZERO)), None), Ok(1))
}

/// Looks for about [`SPIN`] whether `ready` gives something.
pub(crate) fn spin<T>(mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + SPIN;
    loop {
        for _ in 0..SPINS_A_LOOK {
            if let Some(found) = ready() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return None;
        }
    }
}

fn poll_in(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_heard_once_and_rings_add_up_to_one() {
        let bells = Bells::new().unwrap();
        let soon = || Some(Instant::now());
        assert_eq!(park(&bells.filled, None, soon()), ControlFlow::Break(Ended::TimedOut));
        ring(&bells.filled);
        ring(&bells.filled);
        assert_eq!(park(&bells.filled, None, None), ControlFlow::Continue(()));
        assert_eq!(unistd::read(&bells.filled, &mut [0; 8]), Err(Errno::EAGAIN));
        assert_eq!(unistd::read(&bells.returned, &mut [0; 8]), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_full_bell_neither_blocks_nor_fails() {
        let bells = Bells::new().unwrap();
        unistd::write(&bells.filled, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        ring(&bells.filled);
        assert_eq!(park(&bells.filled, None, None), ControlFlow::Continue(()));
    }
}
