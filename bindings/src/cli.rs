//! The command line, for the entry point `forebay` that the wheel installs.

use std::ffi::OsString;

use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;

/// Runs the command line with the arguments after the program's name and gives its exit code.
#[pyfunction]
pub fn run_cli(argv: Vec<OsString>) -> PyResult<u8> {
    Err(PyNotImplementedError::new_err(format!("this build has no command line: arguments={}", argv.len())))
}
