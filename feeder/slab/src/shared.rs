//! One slab as both sides see it: the mapping, the views of its parts, the bells.

use std::sync::atomic::Ordering;

use crate::bell::{self, Bells};
use crate::error::SlabError;
use crate::layout::{
    FILLER_SIDE_AT, FILLER_WAITS_AT, IDENTITY_WORDS, Layout, PUBLISHED_AT, RETURNED_AT, TAKEN_AT, TAKER_SIDE_AT,
    TAKER_WAITS_AT,
};
use crate::level::Level;
use crate::map::Mapping;
use crate::returned::Returned;
use crate::ring::FilledRing;
use crate::signal::Waiting;
use crate::sync::AtomicU64;

/// Bits of a side word.
const CLAIMED: u64 = 1;
const CLOSED: u64 = 2;

/// The two users of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Filler,
    Taker,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    map: Mapping,
    layout: Layout,
    bells: Bells,
}

impl Shared {
    /// Fresh memory in the state "every slot has come back", from which a filler starts.
    pub(crate) fn create(layout: Layout, bells: Bells) -> Result<Self, SlabError> {
        let shared = Self { map: Mapping::create(layout.total_bytes)?, layout, bells };
        for slot in 0..layout.shape.slots {
            shared.returned().give_back(slot);
        }
        for (word, value) in shared.map.words(0, IDENTITY_WORDS).iter().zip(layout.identity()) {
            word.store(value, Ordering::Release);
        }
        Ok(shared)
    }

    /// Memory that somebody else made.
    pub(crate) fn adopt(map: Mapping, bells: Bells) -> Result<Self, SlabError> {
        let mut identity = [0; IDENTITY_WORDS];
        for (value, word) in identity.iter_mut().zip(map.words(0, IDENTITY_WORDS)) {
            *value = word.load(Ordering::Acquire);
        }
        let layout = Layout::parse(identity, map.bytes() as u64)?;
        Ok(Self { map, layout, bells })
    }

    pub(crate) fn map(&self) -> &Mapping {
        &self.map
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn bells(&self) -> &Bells {
        &self.bells
    }

    /// The memory of one slot.
    pub(crate) fn slot(&self, slot: u32) -> (*mut u8, usize) {
        let shape = self.layout.shape;
        assert!(slot < shape.slots, "the slab has no such slot: slot={slot} slots={}", shape.slots);
        let offset = self.layout.slots_at + slot as usize * shape.slot_bytes;
        (self.map.address(offset, shape.slot_bytes), shape.slot_bytes)
    }

    pub(crate) fn ring(&self) -> FilledRing<'_> {
        FilledRing {
            published: self.word(PUBLISHED_AT),
            taken: self.word(TAKEN_AT),
            entries: self.map.entries(self.layout.entries_at, self.layout.entries),
            slots: self.layout.shape.slots,
        }
    }

    pub(crate) fn returned(&self) -> Returned<'_> {
        Returned { words: self.map.words(RETURNED_AT, self.layout.returned_words) }
    }

    /// The flag that `side` raises when it waits.
    pub(crate) fn waiting(&self, side: Side) -> Waiting<'_> {
        let flag = match side {
            Side::Filler => self.word(FILLER_WAITS_AT),
            Side::Taker => self.word(TAKER_WAITS_AT),
        };
        Waiting { flag }
    }

    /// Rings for `side` if it sleeps.
    pub(crate) fn wake(&self, side: Side) {
        if self.waiting(side).must_ring() {
            self.ring_for(side);
        }
    }

    /// Rings for the filler if it sleeps and has what it sleeps for: to be called after a slot came back or left the ring.
    pub(crate) fn wake_filler(&self) {
        let enough = |level| Level::unpack(level).is_reached(self.returned().count(), self.ring().ready());
        if self.waiting(Side::Filler).must_ring_if(enough) {
            self.ring_for(Side::Filler);
        }
    }

    /// Marks a side as used, once.
    pub(crate) fn claim(&self, side: Side) -> Result<(), SlabError> {
        match self.side_word(side).fetch_or(CLAIMED, Ordering::AcqRel) & CLAIMED {
            0 => Ok(()),
            _ => Err(SlabError::Claimed { side: if side == Side::Filler { "filler" } else { "taker" } }),
        }
    }

    /// Marks a side as closed and wakes both: whoever waits looks again.
    pub(crate) fn close(&self, side: Side) {
        self.side_word(side).fetch_or(CLOSED, Ordering::AcqRel);
        self.ring_for(Side::Filler);
        self.ring_for(Side::Taker);
    }

    /// Whether a side was closed. Acquire: who sees it sees also what that side published before.
    pub(crate) fn is_closed(&self, side: Side) -> bool {
        self.side_word(side).load(Ordering::Acquire) & CLOSED != 0
    }

    fn ring_for(&self, side: Side) {
        bell::ring(match side {
            Side::Filler => &self.bells.returned,
            Side::Taker => &self.bells.filled,
        });
    }

    fn side_word(&self, side: Side) -> &AtomicU64 {
        match side {
            Side::Filler => self.word(FILLER_SIDE_AT),
            Side::Taker => self.word(TAKER_SIDE_AT),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.map.words(offset, 1)[0]
    }
}
