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

use feeder::engine::settings;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The largest value of every argument that the engine limits, by name, so that Python's words about them are true.
fn limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let limits = PyDict::new(py);
    limits.set_item("batch_size", settings::BATCH_MAX)?;
    limits.set_item("global_batch_size", settings::BATCH_MAX)?;
    limits.set_item("lanes", settings::LANES_MAX)?;
    limits.set_item("chunk", settings::CHUNK_MAX)?;
    limits.set_item("pool", settings::POOL_MAX)?;
    limits.set_item("reader_threads", settings::READER_THREADS_MAX)?;
    limits.set_item("depth", settings::DEPTH_MAX)?;
    Ok(limits)
}

/// The module `forebay._forebay`.
#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("LIMITS", limits(module.py())?)?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<dataset::PyDataset>()?;
    module.add_class::<loader::PyLoader>()?;
    module.add_class::<loader::BatchIterator>()?;
    module.add_class::<job::PyJob>()?;
    module.add_function(wrap_pyfunction!(job::job_latest, module)?)?;
    module.add_function(wrap_pyfunction!(cli::run_cli, module)?)?;
    testing::add(module)
}
