//! DLPack: memory handed to torch, NumPy, JAX and others without a copy.
//!
//! Contract:
//! - [`TensorData`] is a view of memory that lives as long as its owner; every export holds the owner, and the owner is
//!   dropped with the last export, whichever thread that happens on.
//! - A capsule that nobody takes frees its export when it is collected. One that is taken is renamed by its taker (so the
//!   protocol says), and the taker calls the deleter once.
//! - The deleter touches no Python object: it may run on any thread, without the interpreter's lock, while the
//!   interpreter ends, and in a forked child.
//! - Exports are host memory (`kDLCPU`, pinned memory too: torch refuses `kDLCUDAHost`), C-contiguous, and writable.
//!
//! Frameworks that have DLPack's functions for C take tensors from these without capsules ([`Exchange`]).
//!
//! With its parts, this is the only module of the crate with unsafe code. The layouts are those of `dlpack.h` 1.0, but
//! for the table of functions, which came with 1.3.

#![allow(unsafe_code)]

mod exchange;

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use feeder::Dtype;
use feeder::engine::BatchColumn;
use pyo3::ffi;
use pyo3::prelude::*;

pub use exchange::Exchange;

/// Host memory.
pub const CPU: (i32, i32) = (1, 0);
/// The newest version of the protocol that is written here.
const VERSION: Version = Version { major: 1, minor: 0 };
/// Says that the export is a copy of its own.
const FLAG_IS_COPIED: u64 = 1 << 1;
/// Tensors of so many dimensions have room for their layout in the export itself.
const SMALL_NDIM: usize = 4;
/// Own memory starts on borders of this size, which every consumer takes as it is.
const ALIGNMENT_BYTES: usize = 64;

/// A C-contiguous tensor in memory that its owner keeps alive. A clone is another view of the same memory.
#[derive(Clone)]
pub struct TensorData {
    ptr: *mut u8,
    bytes: usize,
    dtype: Dtype,
    shape: Arc<[i64]>,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory belongs to the owner, which is Send and Sync; the pointer is handed out as an address only.
unsafe impl Send for TensorData {}
// SAFETY: as above; no method reads or writes the memory except `copy`, which whoever made the view has allowed.
unsafe impl Sync for TensorData {}

impl TensorData {
    /// A view of `bytes` bytes at `ptr`. Panics if the shape's size is another one, or the address is not a border of
    /// the element type.
    ///
    /// # Safety
    ///
    /// 1. `ptr` is valid for reads and writes of `bytes` bytes until `owner` is dropped, and initialised.
    /// 2. Nothing else writes there meanwhile, except holders of views of the same memory.
    pub unsafe fn new(
        ptr: *mut u8,
        bytes: usize,
        dtype: Dtype,
        shape: Arc<[i64]>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert_eq!(shape_bytes(dtype, &shape), Some(bytes), "shape={shape:?} dtype={dtype}");
        assert!(ptr.addr().is_multiple_of(dtype.bytes()), "address={ptr:p} dtype={dtype}");
        Self { ptr, bytes, dtype, shape, owner }
    }

    /// A view of a batch's column.
    pub fn of_column(column: BatchColumn) -> Self {
        let BatchColumn { dtype, shape, address, bytes, owner, .. } = column;
        let data = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: (1) a batch's column is initialised memory that lives while its owner does; (2) it belongs to this
        // batch alone until then: slots are leased, copies are the batch's own.
        unsafe { Self::new(data, bytes, dtype, shape, owner) }
    }

    /// A tensor in memory of its own that holds a copy of `bytes`, or `None` if the shape's size is another one.
    pub fn copied(bytes: &[u8], dtype: Dtype, shape: Arc<[i64]>) -> Option<Self> {
        Self::copied_with(bytes, dtype, shape, ())
    }

    /// As [`TensorData::copied`]; `guest` is dropped together with the memory.
    pub fn copied_with(
        bytes: &[u8],
        dtype: Dtype,
        shape: Arc<[i64]>,
        guest: impl Send + Sync + 'static,
    ) -> Option<Self> {
        if shape_bytes(dtype, &shape) != Some(bytes.len()) {
            return None;
        }
        let mut lines = vec![Line([0; ALIGNMENT_BYTES]); bytes.len().div_ceil(ALIGNMENT_BYTES)];
        let ptr = lines.as_mut_ptr().cast::<u8>();
        // SAFETY: the lines hold at least that many bytes, and are fresh, so they do not overlap with `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, bytes.len()) };
        // SAFETY: (1) the vector's memory stays where it is until the owner drops it; (2) nobody else has its address.
        Some(unsafe { Self::new(ptr, bytes.len(), dtype, shape, Arc::new((lines, guest))) })
    }

    /// A copy in memory of its own.
    #[must_use]
    pub fn copy(&self) -> Self {
        // SAFETY: `new` promises the memory for as long as the owner lives.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) };
        Self::copied(bytes, self.dtype, self.shape.clone()).expect("a tensor has the size of its shape")
    }

    /// The same memory seen as elements of `dtype`, which has the same size.
    #[must_use]
    pub fn seen_as(&self, dtype: Dtype) -> Self {
        assert_eq!(dtype.bytes(), self.dtype.bytes(), "from={} to={dtype}", self.dtype);
        Self { dtype, ..self.clone() }
    }

    /// Where it is.
    pub fn address(&self) -> usize {
        self.ptr.expose_provenance()
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Type of an element.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// A capsule as consumers from version 1.0 on ask for (`max_version`), named `dltensor_versioned`.
    pub fn versioned_capsule<'py>(&self, py: Python<'py>, copied: bool) -> PyResult<Bound<'py, PyAny>> {
        capsule::<ManagedVersioned>(py, self, copied)
    }

    /// A capsule as consumers before version 1.0 take it, named `dltensor`.
    pub fn legacy_capsule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        capsule::<ManagedLegacy>(py, self, false)
    }
}

/// The size of a C-contiguous tensor, if it is one.
fn shape_bytes(dtype: Dtype, shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(dtype.bytes(), |bytes, &n| bytes.checked_mul(usize::try_from(n).ok()?))
}

#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT_BYTES]);

/// `DLPackVersion`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

/// `DLDevice`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

/// `DLDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl From<Dtype> for DataType {
    fn from(dtype: Dtype) -> Self {
        let code = match dtype {
            Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
            Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64 => 1,
            Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
            Dtype::BFloat16 => 4,
            Dtype::Bool => 6,
        };
        Self { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
    }
}

/// `DLTensor`.
#[repr(C)]
struct Raw {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct ManagedLegacy {
    tensor: Raw,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Raw,
}

/// What the two versions of the protocol differ in.
trait Managed: Sized {
    /// Name of a capsule that nobody has taken yet.
    const NAME: &'static CStr;

    fn wrap(tensor: Raw, copied: bool) -> Self;

    fn tensor(&mut self) -> &mut Raw;
}

impl Managed for ManagedLegacy {
    const NAME: &'static CStr = c"dltensor";

    fn wrap(tensor: Raw, _copied: bool) -> Self {
        Self { tensor, manager: std::ptr::null_mut(), deleter: Some(delete::<Self>) }
    }

    fn tensor(&mut self) -> &mut Raw {
        &mut self.tensor
    }
}

impl Managed for ManagedVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn wrap(tensor: Raw, copied: bool) -> Self {
        let flags = if copied { FLAG_IS_COPIED } else { 0 };
        Self { version: VERSION, manager: std::ptr::null_mut(), deleter: Some(delete::<Self>), flags, tensor }
    }

    fn tensor(&mut self) -> &mut Raw {
        &mut self.tensor
    }
}

/// One export. A consumer knows it by the address of its first field.
#[repr(C)]
struct Export<M> {
    managed: M,
    /// The shape, then the strides; `managed` points here, or to `large`, where that has more dimensions.
    small: [i64; 2 * SMALL_NDIM],
    large: Box<[i64]>,
    /// Dropped by the deleter, and with it the lease or the memory itself.
    _owner: Arc<dyn Any + Send + Sync>,
}

fn export<M: Managed>(data: &TensorData, copied: bool) -> *mut M {
    let ndim = data.shape.len();
    let large = vec![0; if ndim > SMALL_NDIM { 2 * ndim } else { 0 }].into_boxed_slice();
    let tensor = Raw {
        data: data.ptr.cast(),
        device: Device { kind: CPU.0, id: CPU.1 },
        ndim: ndim as i32,
        dtype: data.dtype.into(),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let (managed, owner) = (M::wrap(tensor, copied), data.owner.clone());
    let export = Box::into_raw(Box::new(Export { managed, small: [0; 2 * SMALL_NDIM], large, _owner: owner }));
    // SAFETY: the export is ours until it is handed out. Both ends of the layout are made from one pointer to all of it, so
    // that each stays valid while the other is used.
    unsafe {
        let (small, large) = (&raw mut (*export).small, (*export).large.as_mut_ptr());
        let layout = if ndim > SMALL_NDIM { large } else { small.cast() };
        let (shape, strides) = (layout, layout.add(ndim));
        let mut stride = 1;
        for (at, &n) in data.shape.iter().enumerate().rev() {
            shape.add(at).write(n);
            strides.add(at).write(stride);
            stride *= n;
        }
        let tensor = (*export).managed.tensor();
        (tensor.shape, tensor.strides) = (shape, strides);
    }
    export.cast()
}

/// The deleter of an export: see the module on where it may run.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the address is that of the boxed export whose first field this is (repr(C)), as `export` gave it away; the
    // protocol has the deleter called once.
    let export = unsafe { Box::from_raw(managed.cast::<Export<M>>()) };
    // Unwinding into C would end the process; an owner whose drop panics has said so already.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(export)));
}

fn capsule<'py, M: Managed>(py: Python<'py>, data: &TensorData, copied: bool) -> PyResult<Bound<'py, PyAny>> {
    let managed = export::<M>(data, copied);
    // SAFETY: the interpreter is attached; the name is static; the pointer is not null and fits the destructor.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(collect::<M>)) };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
        // SAFETY: no capsule was made, so the export is still ours.
        unsafe { delete(managed) };
    })
}

/// The destructor of a capsule: frees the export if nobody has taken it, that is, if the name is still the first one.
unsafe extern "C" fn collect<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule and the lock held. A capsule under this name holds our export.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 0 {
            delete::<M>(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast());
        }
    }
}

#[cfg(test)]
mod tests;
