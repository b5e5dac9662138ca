//! The catalogue over real topics in a folder.

mod checking;
mod growing;
mod holding;
mod selecting;
mod support;
mod training;
