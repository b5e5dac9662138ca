//! The command line, for the entry point `forebay` that the wheel installs.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command line with the arguments after the program's name and gives its exit code.
#[pyfunction]
pub fn run_cli(py: Python<'_>, argv: Vec<OsString>) -> u8 {
    let argv = std::iter::once(OsString::from("forebay")).chain(argv);
    py.detach(|| feeder::cli::main(argv))
}
