//! What the tests of the hand-off share: stamping slots, and looking into a slab's memory from outside.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::os::fd::{AsFd, OwnedFd};

use slab::{Bells, Filled, Shape, Slab};

/// Offsets of the format, written down once more: the tests look at memory as a foreign process would.
pub const PUBLISHED_AT: i64 = 128;
pub const TAKER_WAITS_AT: i64 = 384;
pub const FILLER_WAITS_AT: i64 = 512;
pub const RETURNED_AT: i64 = 1024;

/// A slab of one page a slot.
pub fn slab(slots: u32) -> Slab {
    Slab::create(Shape { slots, slot_bytes: 4096 }).unwrap()
}

/// A good slot.
pub fn filled(slot: u32, tag: u64) -> Filled {
    Filled { slot, tag, generation: 1, rows: 1, code: 0 }
}

/// Copies of a slab's bells, as another process would get them.
pub fn bells_of(slab: &Slab) -> Bells {
    let copy = |bell: &OwnedFd| bell.try_clone().unwrap();
    Bells { filled: copy(&slab.bells().filled), returned: copy(&slab.bells().returned) }
}

/// Fills all of a slot with words that tell the tag and their place.
pub fn stamp((address, bytes): (*mut u8, usize), tag: u64) {
    for word in 0..bytes / 8 {
        // SAFETY: the caller holds the slot, which has `bytes` bytes from a page border on.
        unsafe { address.cast::<u64>().add(word).write(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64) };
    }
}

/// Whether all of a slot still is as `stamp` left it.
pub fn is_stamped((address, bytes): (*mut u8, usize), tag: u64) -> bool {
    (0..bytes / 8).all(|word| {
        // SAFETY: the caller holds a lease on the slot, which has `bytes` bytes from a page border on.
        let found = unsafe { address.cast::<u64>().add(word).read() };
        found == tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64
    })
}

/// One word of a memfd, past every mapping.
pub fn peek(fd: impl AsFd, offset: i64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(nix::sys::uio::pread(fd, &mut bytes, offset), Ok(8));
    u64::from_ne_bytes(bytes)
}

/// Writes one word of a memfd, past every mapping.
pub fn poke(fd: impl AsFd, offset: i64, value: u64) {
    assert_eq!(nix::sys::uio::pwrite(fd, &value.to_ne_bytes(), offset), Ok(8));
}

/// Returns when the word at `offset` is not zero: a side is about to sleep.
pub fn until_raised(fd: impl AsFd, offset: i64) {
    while peek(fd.as_fd(), offset) == 0 {
        std::thread::yield_now();
    }
}

/// Whether a bell was rung since it was last heard; hears it.
pub fn rung(bell: &OwnedFd) -> bool {
    nix::unistd::read(bell, &mut [0; 8]) == Ok(8)
}

/// Small numbers that differ from seed to seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % limit as u64) as usize
    }
}
