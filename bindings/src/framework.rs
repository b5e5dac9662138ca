//! Into whose tensors a batch is handed out: torch's, NumPy's, or plain [`Tensor`]s for any other DLPack consumer.
//!
//! Frameworks are imported when the first batch needs them, never before, and their functions are kept: after the first
//! call a tensor costs well under a microsecond in torch, half as much where torch has functions for C to make it. All of
//! them view the memory; none copies.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::IntoPyDict;

use feeder::{Dtype, Error};

use crate::dlpack::{Exchange, TensorData};
use crate::error::raise;
use crate::tensor::Tensor;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// `torch.Tensor` on the CPU.
    Torch,
    /// `numpy.ndarray`; bfloat16 as `ml_dtypes.bfloat16` where that package is there, else as `uint16`.
    Numpy,
    /// [`Tensor`].
    Plain,
}

impl Framework {
    /// torch if it can be imported, else NumPy if it can, else plain tensors.
    pub fn found(py: Python<'_>) -> PyResult<Self> {
        for (name, framework) in [("torch", Self::Torch), ("numpy", Self::Numpy)] {
            match py.import(name) {
                Ok(_) => return Ok(framework),
                Err(error) if error.is_instance_of::<PyImportError>(py) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self::Plain)
    }

    /// The framework of that name, found if it is "auto" or none.
    pub fn named(py: Python<'_>, name: Option<&str>) -> PyResult<Self> {
        Self::check_name(name)?;
        match name {
            Some("torch") => Ok(Self::Torch),
            Some("numpy") => Ok(Self::Numpy),
            Some("dlpack") => Ok(Self::Plain),
            _ => Self::found(py),
        }
    }

    /// Refuses a name that stands for none.
    pub fn check_name(name: Option<&str>) -> PyResult<()> {
        match name {
            None | Some("auto" | "torch" | "numpy" | "dlpack") => Ok(()),
            Some(other) => Err(raise(&Error::invalid(format!(
                "unknown value, allowed are auto, torch, numpy, dlpack: output={other:?}"
            )))),
        }
    }

    /// A tensor of the framework that views `data` and keeps its owner alive.
    pub fn give<'py>(self, py: Python<'py>, data: TensorData) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Torch => torch(py, &data),
            Self::Numpy => numpy(py, data),
            Self::Plain => Ok(Bound::new(py, Tensor::from(data))?.into_any()),
        }
    }
}

fn torch<'py>(py: Python<'py>, data: &TensorData) -> PyResult<Bound<'py, PyAny>> {
    static EXCHANGE: PyOnceLock<Option<Exchange>> = PyOnceLock::new();
    let exchange = EXCHANGE.get_or_try_init(py, || Exchange::of(&py.import("torch")?.getattr("Tensor")?))?;
    match exchange {
        Some(exchange) => exchange.give(py, data),
        None => torch_by_capsule(py, data),
    }
}

/// As torch does it that has no functions for C.
pub(crate) fn torch_by_capsule<'py>(py: Python<'py>, data: &TensorData) -> PyResult<Bound<'py, PyAny>> {
    static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // The public function takes a capsule as it is, which spares it three calls back into the tensor.
    let from_dlpack = FROM_DLPACK.import(py, "torch.utils.dlpack", "from_dlpack")?;
    from_dlpack.call1((data.versioned_capsule(py, false)?,))
}

fn numpy<'py>(py: Python<'py>, data: TensorData) -> PyResult<Bound<'py, PyAny>> {
    static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let from_dlpack = FROM_DLPACK.import(py, "numpy", "from_dlpack")?;
    if data.dtype() != Dtype::BFloat16 {
        return from_dlpack.call1((Tensor::from(data),));
    }
    let array = from_dlpack.call1((Tensor::from(data.seen_as(Dtype::UInt16)),))?;
    match numpy_bfloat16(py)? {
        Some(bfloat16) => array.call_method("view", (), Some(&[("dtype", bfloat16)].into_py_dict(py)?)),
        None => Ok(array),
    }
}

/// NumPy's bfloat16, which the package `ml_dtypes` adds.
fn numpy_bfloat16(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyAny>>> {
    static BFLOAT16: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let found = BFLOAT16.get_or_try_init(py, || match py.import("ml_dtypes") {
        Ok(module) => Ok(Some(module.getattr("bfloat16")?.unbind())),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(None),
        Err(error) => Err(error),
    })?;
    Ok(found.as_ref().map(|class| class.bind(py)))
}
