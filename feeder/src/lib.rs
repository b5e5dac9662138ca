//! The data's way from files on disk to batches in memory. Modules stand in the order the data flows:
//!
//! files ─► [`ingest`] ─► [`log`] (the embedded topic) ─► [`reader`] ─► [`engine`] (decode, batch in slot) ─► bindings
//!                                                   [`plan`] says which sample comes when, and into which slot and row

#![deny(unsafe_code)]

pub mod error;

pub mod schema;

pub mod rows;

pub mod widen;

pub mod versions;

pub mod ingest;

pub mod log;

pub mod catalogue;

pub mod plan;

pub mod reader;

pub mod engine;

pub mod job;

pub mod bench;

pub mod cli;

pub use error::{Error, ErrorKind, Result};
pub use rows::Rows;
pub use schema::{Column, Dtype, Schema};
