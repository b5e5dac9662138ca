//! `Tensor`: a column of a batch as Python sees it when no framework is asked for.
//!
//! It holds no elements of Python; it is a door: `torch.from_dlpack(t)`, `numpy.from_dlpack(t)`, `jax.dlpack.from_dlpack(t)`
//! and `numpy.asarray(t)` all view the same memory, and the memory is given back when the last of these views, and the
//! tensor itself, are gone. NumPy has no bfloat16, so there such a tensor has to be seen as `uint16` first
//! ([`crate::framework::Framework::Numpy`] does).

use feeder::Dtype;
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack::{CPU, TensorData};

/// A tensor in host memory, handed on by DLPack without a copy.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct Tensor {
    data: TensorData,
}

impl From<TensorData> for Tensor {
    fn from(data: TensorData) -> Self {
        Self { data }
    }
}

impl Tensor {
    /// What it shows.
    pub fn data(&self) -> &TensorData {
        &self.data
    }
}

#[pymethods]
impl Tensor {
    /// Name of the element type, as torch and NumPy spell it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.data.dtype().name()
    }

    /// Dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.data.shape())
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.data.bytes()
    }

    /// The DLPack capsule: versioned if `max_version` allows, else of the form before version 1.0.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(stream) = stream {
            return Err(PyBufferError::new_err(format!("host memory has no streams: stream={stream}")));
        }
        if let Some(device) = dl_device.filter(|device| *device != CPU) {
            return Err(PyBufferError::new_err(format!("a tensor is exported where it is: dl_device={device:?}")));
        }
        let copied = copy == Some(true);
        let own = if copied { Some(self.data.copy()) } else { None };
        let data = own.as_ref().unwrap_or(&self.data);
        match max_version {
            Some((major, _)) if major >= 1 => data.versioned_capsule(py, copied),
            _ => data.legacy_capsule(py),
        }
    }

    /// Device type and number: host memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        CPU
    }

    /// NumPy's older way to view memory; absent for element types that NumPy does not have.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let typestr = typestr(self.data.dtype()).ok_or_else(|| {
            PyAttributeError::new_err(format!("numpy has no such element type: dtype={}", self.data.dtype()))
        })?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("data", (self.data.address(), false))?;
        interface.set_item("strides", py.None())?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.data.shape().iter().map(i64::to_string).collect();
        format!("Tensor(dtype={}, shape=[{}])", self.data.dtype(), shape.join(", "))
    }
}

/// The element type in NumPy's array interface. Columns are little-endian throughout.
fn typestr(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Bool => "|b1",
        Dtype::Int8 => "|i1",
        Dtype::Int16 => "<i2",
        Dtype::Int32 => "<i4",
        Dtype::Int64 => "<i8",
        Dtype::UInt8 => "|u1",
        Dtype::UInt16 => "<u2",
        Dtype::UInt32 => "<u4",
        Dtype::UInt64 => "<u8",
        Dtype::Float16 => "<f2",
        Dtype::Float32 => "<f4",
        Dtype::Float64 => "<f8",
        Dtype::BFloat16 => return None,
    })
}
