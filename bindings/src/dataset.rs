//! The records that a job trains on, as Python sees them: fixed when the job starts, and readable one by one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use feeder::engine::Dataset;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dlpack::TensorData;
use crate::error::OrRaise;
use crate::framework::Framework;

/// The records that a job trains on: those of a dataset version, or all that a topic holds when this is made.
#[pyclass(frozen, name = "Dataset", module = "forebay._forebay")]
pub struct PyDataset {
    dataset: Arc<Dataset>,
}

#[pymethods]
impl PyDataset {
    #[new]
    fn new(py: Python<'_>, root: PathBuf, name: &str) -> PyResult<Self> {
        let dataset = py.detach(|| Dataset::named(Path::new(&root), name)).or_raise()?;
        Ok(Self { dataset: Arc::new(dataset) })
    }

    /// Number of samples.
    fn __len__(&self) -> usize {
        self.dataset.line().total() as usize
    }

    /// The columns as text.
    #[getter]
    fn schema(&self) -> String {
        self.dataset.schema().to_string()
    }

    /// The topic's name.
    #[getter]
    fn topic(&self) -> String {
        self.dataset.name().to_string()
    }

    /// The dataset version, as `name@v1`; none for a bare topic.
    #[getter]
    fn version(&self) -> Option<String> {
        self.dataset.pinned().map(|pinned| pinned.version.clone())
    }

    /// Sample `index` of the topic's or version's order, by column, each read by itself and compared with its checksums.
    #[pyo3(signature = (index, columns=None, output=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        index: u64,
        columns: Option<Vec<String>>,
        output: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let framework = Framework::named(py, output)?;
        let values = py.detach(|| self.dataset.sample(index, columns.as_deref())).or_raise()?;
        let sample = PyDict::new(py);
        for (column, bytes) in values {
            let shape = column.shape.iter().map(|&n| i64::from(n)).collect();
            let data = TensorData::copied(&bytes, column.dtype, shape)
                .ok_or_else(|| PyRuntimeError::new_err("a sample has another size than its column"))?;
            sample.set_item(column.name, framework.give(py, data)?)?;
        }
        Ok(sample)
    }
}

impl PyDataset {
    /// The dataset of the engine.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }
}
