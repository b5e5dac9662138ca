//! The compiled half of the Python package `forebay`: what needs the engine or the memory of batches.
//!
//! Python mirrors this crate module by module. Arguments, ranks and the words of errors are settled in Python
//! (`python/forebay`), so that importing this module brings in neither torch nor NumPy; frameworks are looked up when the
//! first batch is handed out. `unsafe` stands in [`dlpack`] alone.

#![deny(unsafe_code)]

pub mod error;

pub mod dlpack;

pub mod tensor;

pub mod framework;

pub mod dataset;

pub mod loader;

pub mod job;

pub mod cli;

mod testing;

use pyo3::prelude::*;

/// The module `forebay._forebay`.
#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<dataset::PyDataset>()?;
    module.add_class::<loader::PyLoader>()?;
    module.add_class::<loader::BatchIterator>()?;
    module.add_class::<job::PyJob>()?;
    module.add_function(wrap_pyfunction!(job::job_latest, module)?)?;
    module.add_function(wrap_pyfunction!(cli::run_cli, module)?)?;
    testing::add(module)
}
