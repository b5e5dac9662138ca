//! The catalogue over real topics in a folder.

mod checking;
mod evolving;
mod growing;
mod holding;
mod selecting;
mod support;
mod training;
