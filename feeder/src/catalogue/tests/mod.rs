//! The catalogue over real topics in a folder.

mod growing;
mod support;
