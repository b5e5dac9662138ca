//! The engine: plan + reader + decode for the ranks of one process, filling slots that the trainer takes batches from.
//!
//! ```text
//! [dataset]  which records, in which files      [settings]  what the caller asked for, checked
//!     │                                              │
//! [feed]  the plan's units in the order of need, a slot for every step, publication in step order
//!     │                       ▲
//! [assemble]  a unit ─► reads that land in slots ─► rows finished, checked, counted
//!     │                       │
//! [pump]  one thread per reader: take a unit, submit, drain, publish, one wake-up
//!     │
//! [runner] the slab, the threads, the step that comes next
//!     │                       │
//! [batch]  a filled slot handed out: columns, mask, the lease that holds them
//!     │
//! [loader]  the cursor and its rules: iter, set_epoch, state, close
//! ```
//!
//! Promises: batches come in the plan's order whatever the readers do; a cursor counts only what was handed out; a slot
//! is written only between being taken free and being published; a failed read fails the steps that needed it, by name.

pub mod settings;

pub mod dataset;
mod evolve;

mod layout;

mod feed;
mod gathers;

mod apart;
mod assemble;
mod bad;
mod blocks;
mod checks;
mod reads;

mod budget;
mod pump;

mod runner;
mod scatters;

pub mod batch;

pub mod stats;

pub mod loader;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use batch::{Batch, BatchColumn, Owner};
pub use dataset::{Dataset, check_retained};
pub use loader::{Loader, Step};
pub use settings::{Checksum, OnBadRecord, Settings};
pub use stats::Stats;
