//! What the Python tests need to see of the compiled half: tensors without an engine, owners counted, errors on demand.
//!
//! Private (`_testing_*`), and no part of the package's interface.

use std::sync::atomic::{AtomicUsize, Ordering};

use feeder::{Dtype, Error, ErrorKind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::dlpack::TensorData;
use crate::error::raise;
use crate::framework::{Framework, torch_by_capsule};
use crate::tensor::Tensor;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Counted while the memory of a test's tensor lives.
struct Counted;

impl Counted {
    fn new() -> Self {
        LIVE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A tensor that holds a copy of `data`.
#[pyfunction]
fn _testing_tensor(data: &[u8], dtype: &str, shape: Vec<i64>) -> PyResult<Tensor> {
    let dtype = Dtype::from_name(dtype).ok_or_else(|| PyValueError::new_err("no such dtype"))?;
    let data = TensorData::copied_with(data, dtype, shape.into(), Counted::new());
    Ok(data.ok_or_else(|| PyValueError::new_err("not the size of the shape"))?.into())
}

/// How many owners of tensors made by `_testing_tensor` live.
#[pyfunction]
fn _testing_live() -> usize {
    LIVE.load(Ordering::SeqCst)
}

/// The tensor as a batch would hand it out: in the framework of that name, or the one found.
#[pyfunction]
#[pyo3(signature = (tensor, framework=None))]
fn _testing_give<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, Tensor>,
    framework: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let framework = match framework {
        None => Framework::found(py)?,
        Some("torch") => Framework::Torch,
        Some("numpy") => Framework::Numpy,
        Some("plain") => Framework::Plain,
        Some("torch by capsule") => return torch_by_capsule(py, tensor.get().data()),
        Some(_) => return Err(PyValueError::new_err("no such framework")),
    };
    framework.give(py, tensor.get().data().clone())
}

const KINDS: [ErrorKind; 13] = [
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Exists,
    ErrorKind::Permission,
    ErrorKind::Busy,
    ErrorKind::Corrupt,
    ErrorKind::StateMismatch,
    ErrorKind::NotRetained,
    ErrorKind::NoSpace,
    ErrorKind::Timeout,
    ErrorKind::Closed,
    ErrorKind::Io,
    ErrorKind::Fenced,
];

/// Names of all kinds of errors.
#[pyfunction]
fn _testing_kinds() -> Vec<String> {
    KINDS.map(|kind| format!("{kind:?}")).to_vec()
}

/// Raises an error of that kind.
#[pyfunction]
#[pyo3(signature = (kind, message, hint=None))]
fn _testing_raise(kind: &str, message: &str, hint: Option<&str>) -> PyResult<()> {
    let kind = KINDS.into_iter().find(|known| format!("{known:?}") == kind);
    let error = Error::new(kind.ok_or_else(|| PyValueError::new_err("no such kind"))?, message);
    Err(raise(&match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }))
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_testing_tensor, module)?)?;
    module.add_function(wrap_pyfunction!(_testing_live, module)?)?;
    module.add_function(wrap_pyfunction!(_testing_give, module)?)?;
    module.add_function(wrap_pyfunction!(_testing_kinds, module)?)?;
    module.add_function(wrap_pyfunction!(_testing_raise, module)?)
}
