//! Where training stands in its data: positions, extents, windows, cursors, and the states that a run resumes from.
//!
//! The feeder builds windows from topics and moves cursors; Python stores states in checkpoints; the store keeps what
//! must outlive all of them. All but the store is pure values without I/O. Everything here is exact arithmetic on counts:
//! nothing is estimated, and nothing is accepted that does not add up.

#![forbid(unsafe_code)]

pub mod position;

pub mod window;

pub mod state;

pub mod store;

pub mod records;

pub use position::{Incarnation, TopicName};
pub use state::{Cursor, PinnedRef, PlanKey, State, StateError};
pub use window::{Extent, ExtentRange, Window, WindowList};
