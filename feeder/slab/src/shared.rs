//! One slab as both sides see it: the mapping, the views of its parts, the bells.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bell::{self, Bells};
use crate::error::SlabError;
use crate::growth::Growth;
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
    growth: Mutex<Growth>,
    /// Whether all portions are taken up: then nobody needs the lock any more.
    taken_up: AtomicBool,
}

impl Shared {
    /// Fresh memory, of which the header is present. To a filler, slots that are not are as if the taker had them.
    pub(crate) fn create(layout: Layout, bells: Bells) -> Result<Self, SlabError> {
        let growth = Mutex::new(Growth::new(layout.total_bytes));
        let shared =
            Self { map: Mapping::create(layout.total_bytes)?, layout, bells, growth, taken_up: AtomicBool::new(false) };
        while shared.present_bytes() < layout.slots_at {
            shared.grow()?;
        }
        for (word, value) in shared.map.words(0, IDENTITY_WORDS).iter().zip(layout.identity()) {
            word.store(value, Ordering::Release);
        }
        Ok(shared)
    }

    /// Makes a further portion of the memory present; the slots that are whole with it are to the filler as if they had come
    /// back. False if no portion is left to be taken up. Any thread, several side by side.
    pub(crate) fn grow(&self) -> Result<bool, SlabError> {
        if self.taken_up.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some((portion, huge)) = self.growth().take() else {
            self.taken_up.store(true, Ordering::Relaxed);
            return Ok(false);
        };
        let collapse = self.map.make_present(portion, huge)?;
        let mut growth = self.growth();
        let first = self.slots_within(growth.present_bytes());
        growth.made(portion, collapse);
        let slots = first..self.slots_within(growth.present_bytes());
        slots.clone().for_each(|slot| self.returned().give_back(slot));
        drop(growth);
        if !slots.is_empty() {
            self.wake_filler();
        }
        Ok(true)
    }

    /// Bytes that are present, from the beginning on.
    pub(crate) fn present_bytes(&self) -> usize {
        self.growth().present_bytes()
    }

    /// Slots that lie within the first `bytes`.
    fn slots_within(&self, bytes: usize) -> u32 {
        (bytes.saturating_sub(self.layout.slots_at) / self.layout.shape.slot_bytes) as u32
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that somebody else made.
    pub(crate) fn adopt(map: Mapping, bells: Bells) -> Result<Self, SlabError> {
        let mut identity = [0; IDENTITY_WORDS];
        for (value, word) in identity.iter_mut().zip(map.words(0, IDENTITY_WORDS)) {
            *value = word.load(Ordering::Acquire);
        }
        let layout = Layout::parse(identity, map.bytes() as u64)?;
        Ok(Self {
            map,
            layout,
            bells,
            growth: Mutex::new(Growth::ended(layout.total_bytes)),
            taken_up: AtomicBool::new(true),
        })
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
