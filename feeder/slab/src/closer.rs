//! Closing one side from any thread, also while that side's own thread waits.

use std::sync::Arc;

use crate::process;
use crate::shared::{Shared, Side};

/// Closes the side that it came from; see the module. Made by [`crate::Filler::closer`] and [`crate::Taker::closer`];
/// keeps the slab's memory like a clone of the slab.
#[derive(Clone, Debug)]
pub struct Closer {
    shared: Arc<Shared>,
    side: Side,
    pid: u32,
}

impl Closer {
    pub(crate) fn new(shared: Arc<Shared>, side: Side, pid: u32) -> Self {
        Self { shared, side, pid }
    }

    /// Closes the side: its own waiter and the other side's return. Slots already published can still be taken after
    /// the filler closed; leases that are out stay good. In a forked child this does nothing.
    pub fn close(&self) {
        if process::id() == self.pid {
            self.shared.close(self.side);
        }
    }
}
