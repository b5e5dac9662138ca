//! The slab: the memory that batches are handed over in, and the rules of the hand-off.
//!
//! One slab per rank: a sealed memfd with room for a number of batches, its *slots*. The *filler* (an engine in this
//! process, or a daemon) writes batches into slots; the *taker* (the trainer) reads them where they lie. Everything
//! that both sides need is in the memfd, as offsets and atomics, so the sides may be two processes.
//!
//! # A slot's way
//!
//! ```text
//!             take_free              publish              try_take              lease
//!   ┌──────┐ ───────────► ┌──────┐ ───────────► ┌────────┐ ─────────► ┌───────┐ ─────► ┌────────┐
//!   │ free │              │ held │              │ filled │            │ taken │        │ leased │
//!   └──────┘ ◄─────────── └──────┘              └────────┘            └───────┘        └────────┘
//!      ▲       put_back                                                                     │
//!      │                               ┌──────────┐                                         │
//!      └────────────────────────────── │ returned │ ◄───────────────────────────────────────┘
//!            the filler's sweep        └──────────┘     the lease is dropped, by any thread
//! ```
//!
//! - *free*, *held*: the filler's. Only a held slot may be written, and it must not be published or put back while a
//!   read into it is still in flight.
//! - *filled*: nobody's. It is in the ring, in the order of publishing.
//! - *taken*, *leased*: the taker's. A leased slot may be read (and written: a trainer can spoil only its own batches)
//!   by everyone who keeps the lease alive. A lease must live as long as anything, a device included, may still read.
//! - *returned*: nobody's. Slots come back in any order.
//!
//! What was written to a slot before publishing is visible to whoever took it; what was read from it before the return
//! has happened when the filler gets it. A slot is in one place at a time, none is lost, none is handed over twice.
//!
//! A slab's memory may become present while it is in use ([`Slab::create_growing`]): slots that are not are to the filler as
//! if the taker had them.
//!
//! # Waiting, closing, dying
//!
//! A waiter spins for about 2 µs, raises its flag and sleeps on an eventfd; who brings news rings only if the flag is
//! up ([`Filler::wake`] once for many publications). A filler that waits for slots may ask for several at once ([`Level`]). If it was given the peer's pidfd, a wait ends also when the peer
//! dies. Each side can be closed, from any thread ([`Closer`]) or by being dropped; then the other side's waits end.
//! What was published before the filler closed or died is still delivered. Memory lives until the last lease is gone.
//!
//! After a fork the child holds copies of everything; dropping or closing them there does nothing.
//!
//! # Trust
//!
//! Neither side trusts what the other can write: a peer that breaks the rules costs its own slab's batches. A filler
//! ignores returns of slots that are not out. A taker that is handed an impossible slot closes its side
//! ([`Taker::fault`]). Headers of foreign memory are checked and read once, and the seals keep its size.
//!
//! # Model checking
//!
//! Ring, bitmap and waiting flag are written over the crate's own `sync` module, and loom explores them:
//! `RUSTFLAGS="--cfg loom" cargo test -p forebay-slab --release --lib loom --target-dir target/loom`.

#![deny(unsafe_code)]
#![allow(unexpected_cfgs, reason = "cfg(loom) is set by hand, for model checking")]
#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "under loom only the hand-off's algorithms are built"))]

mod sync;

mod error;

mod layout;

mod ring;

mod returned;

mod signal;

mod level;

#[cfg(not(loom))]
mod room;

#[cfg(not(loom))]
mod growth;

#[cfg(not(loom))]
#[allow(unsafe_code)]
mod map;

#[cfg(not(loom))]
#[allow(unsafe_code)]
pub mod process;

#[cfg(not(loom))]
mod bell;

#[cfg(not(loom))]
mod shared;

#[cfg(not(loom))]
mod slab;

#[cfg(not(loom))]
mod filler;

#[cfg(not(loom))]
mod waiter;

#[cfg(not(loom))]
mod taker;

#[cfg(not(loom))]
mod lease;

#[cfg(not(loom))]
mod closer;

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod loom_tests;

pub use error::{Fault, SlabError};
pub use layout::{MAX_SLAB_BYTES, MAX_SLOTS, PAGE_BYTES, Shape};
pub use level::Level;
pub use ring::Filled;
#[cfg(not(loom))]
pub use room::available_bytes;

#[cfg(not(loom))]
pub use self::{
    bell::Bells, closer::Closer, filler::Filler, lease::Lease, slab::Slab, taker::Taken, taker::Taker,
    waiter::FreeWaiter,
};
