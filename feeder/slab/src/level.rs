//! When a sleeping filler is worth waking: a wake-up costs both sides more than handing over a slot does.
//!
//! A trainer that is slower than the filler would wake it for every slot that comes back. So a filler says, as it goes to
//! sleep, for how many returned slots it wants to be woken, and below how many ready ones for any: whoever gives a slot
//! back, or takes one out of the ring, rings once that is reached. The level travels in the waiting flag itself.
//!
//! No wake-up is lost. While the filler sleeps, returned slots only grow in number and ready ones only shrink, so a level
//! once reached stays so until somebody publishes; and every step towards it is made visible before its maker looks at
//! flag and level (see [`crate::signal`]), so the maker of the last step sees them all. A taker that finds the ring
//! empty has taken the last slot before, and looked: then any returned slot is enough, whatever the level.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// So many returned slots are enough by themselves.
    pub returned: u32,
    /// With so many slots ready to be taken, or fewer, one returned slot is enough.
    pub ready: u32,
}

impl Level {
    /// Any returned slot is enough.
    pub const ANY: Self = Self { returned: 1, ready: 0 };

    /// As it stands in the flag; never 0, which means that nobody waits.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.returned.max(1)) | u64::from(self.ready) << 32
    }

    /// What a flag says; a peer may have written anything.
    pub(crate) fn unpack(flag: u64) -> Self {
        Self { returned: flag as u32, ready: (flag >> 32) as u32 }
    }

    /// Whether so many returned and ready slots are worth a wake-up.
    pub(crate) fn is_reached(self, returned: u32, ready: u32) -> bool {
        returned > 0 && (returned >= self.returned || ready <= self.ready)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_reached_by_either_number_but_never_without_a_slot() {
        let level = Level { returned: 4, ready: 2 };
        assert_eq!(Level::unpack(level.pack()), level);
        for (returned, ready, reached) in [(0, 0, false), (1, 0, true), (1, 2, true), (3, 3, false), (4, 9, true)] {
            assert_eq!(level.is_reached(returned, ready), reached, "returned={returned} ready={ready}");
        }
    }

    #[test]
    fn every_level_raises_the_flag_and_an_empty_ring_reaches_every_level() {
        for level in [Level::ANY, Level { returned: 0, ready: 0 }, Level { returned: u32::MAX, ready: 0 }] {
            assert_ne!(level.pack(), 0);
            assert!(Level::unpack(level.pack()).is_reached(1, 0));
        }
        // What a filler of an earlier build raises.
        assert_eq!(Level::unpack(1), Level::ANY);
    }
}
