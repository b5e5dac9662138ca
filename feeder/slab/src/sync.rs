//! The atomics that the hand-off is written over: the standard library's, or loom's under `--cfg loom`.
//!
//! [`crate::ring`], [`crate::returned`] and [`crate::signal`] take references to these, so that the very code that runs
//! over the mapped memory is the code that loom explores.
//!
//! loom treats `SeqCst` on loads and stores as weaker than it is, but models `fence(SeqCst)` fully: where the order of
//! a store and a later load matters, the code uses a fence.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// One descriptor of the filled ring, as it lies in memory; see [`crate::ring`] for what the words mean.
pub(crate) type Entry = [AtomicU64; ENTRY_WORDS];

/// Words of one descriptor.
pub(crate) const ENTRY_WORDS: usize = 4;
