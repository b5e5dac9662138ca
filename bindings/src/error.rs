//! Errors of the feeder as Python exceptions.
//!
//! The classes live in `forebay.errors` and are named after the kinds: `Invalid` raises `InvalidError`. Each derives from
//! `forebay.Error` and from the built-in that people would catch. The text is the whole chain of causes in one line,
//! then `; try: ` and the next step where there is one to name; the next step is also the attribute `hint`.

use feeder::Error;
use pyo3::prelude::*;

/// The Python exception for `error`.
pub fn raise(error: &Error) -> PyErr {
    Python::attach(|py| match exception(py, error) {
        Ok(value) => PyErr::from_value(value),
        Err(failure) => failure,
    })
}

/// Turns a result of the feeder into one of Python: `call().or_raise()?`.
pub trait OrRaise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for feeder::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(&error))
    }
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let errors = py.import("forebay.errors")?;
    // A kind that Python does not know yet is still an error of ours.
    let class = errors.getattr(format!("{:?}Error", error.kind())).or_else(|_| errors.getattr("Error"))?;
    class.call_method1("of", (error.report(), error.hint()))
}
