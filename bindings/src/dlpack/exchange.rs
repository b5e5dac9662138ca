//! DLPack's functions for C, by which a framework makes a tensor of an export: no capsule, no call of a Python function.
//!
//! A framework that has them says so on its tensor type, by a capsule under [`ATTRIBUTE`] that points to a table of
//! functions, which lives as long as the process. The layout is that of `dlpack.h` 1.3; a table of another major version is
//! passed over for an older one behind it, if there is any that is known here.

use std::ffi::{CStr, c_int, c_void};

use pyo3::exceptions::{PyAttributeError, PySystemError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use super::{ManagedVersioned, TensorData, VERSION, Version, export};

/// Where a tensor type has its table, and the name of the capsule there.
const ATTRIBUTE: &str = "__dlpack_c_exchange_api__";
const NAME: &CStr = c"dlpack_exchange_api";
/// Older tables looked at, mostly none.
const TABLES_MAX: usize = 8;

/// `DLPackExchangeAPIHeader`.
#[repr(C)]
pub(super) struct Header {
    pub(super) version: Version,
    pub(super) older: *const Header,
}

/// `DLPackExchangeAPI`, up to what is called here.
#[repr(C)]
pub(super) struct Table {
    pub(super) header: Header,
    pub(super) allocate: *const c_void,
    pub(super) from_object: *const c_void,
    pub(super) to_object: Option<ToObject>,
}

/// `DLPackManagedTensorToPyObjectNoSync`: takes the export over and writes a new reference to a tensor; or returns not 0,
/// with an exception set.
pub(super) type ToObject = unsafe extern "C" fn(*mut ManagedVersioned, *mut *mut c_void) -> c_int;

/// A framework's function that makes a tensor of an export.
#[derive(Clone, Copy)]
pub struct Exchange(ToObject);

impl Exchange {
    /// That of a framework's tensor type; `None` if it has none that is known here.
    pub fn of(class: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let capsule = match class.getattr(ATTRIBUTE) {
            Ok(capsule) => capsule,
            Err(error) if error.is_instance_of::<PyAttributeError>(class.py()) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Ok(capsule) = capsule.cast::<PyCapsule>() else { return Ok(None) };
        let Ok(table) = capsule.pointer_checked(Some(NAME)) else { return Ok(None) };
        // SAFETY: so the protocol says of a capsule of that name under that attribute.
        Ok(unsafe { Self::in_table(table.as_ptr().cast()) })
    }

    /// # Safety
    ///
    /// `header` begins a table of the protocol, which lives as long as the process, as do those behind it; or it is null.
    pub(super) unsafe fn in_table(mut header: *const Header) -> Option<Self> {
        for _ in 0..TABLES_MAX {
            // SAFETY: as the caller promises: headers are the same in all versions, the rest in those of one major version.
            unsafe {
                if header.as_ref()?.version.major == VERSION.major {
                    return (*header.cast::<Table>()).to_object.map(Self);
                }
                header = (*header).older;
            }
        }
        None
    }

    /// A tensor of the framework that views `data` and keeps its owner alive. What the framework refuses it does not give
    /// back, so `data` lives on then.
    pub fn give<'py>(self, py: Python<'py>, data: &TensorData) -> PyResult<Bound<'py, PyAny>> {
        let mut object = std::ptr::null_mut();
        // SAFETY: the export is fresh and handed over; the interpreter is attached.
        let answer = unsafe { (self.0)(export(data, false), &raw mut object) };
        if answer != 0 {
            return Err(
                PyErr::take(py).unwrap_or_else(|| PySystemError::new_err("a tensor was refused without a reason"))
            );
        }
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, object.cast::<ffi::PyObject>()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pyo3::exceptions::PyValueError;

    use super::*;
    use crate::dlpack::delete;
    use feeder::Dtype;

    fn table(major: u32, older: *const Header, to_object: ToObject) -> Table {
        let header = Header { version: Version { major, minor: 9 }, older };
        Table { header, allocate: std::ptr::null(), from_object: std::ptr::null(), to_object: Some(to_object) }
    }

    /// Makes `None` of an export that it frees.
    unsafe extern "C" fn none(managed: *mut ManagedVersioned, out: *mut *mut c_void) -> c_int {
        // SAFETY: called by `give` alone, with the interpreter attached.
        unsafe {
            delete(managed);
            *out = ffi::Py_NewRef(ffi::Py_None()).cast();
        }
        0
    }

    unsafe extern "C" fn refuse(_: *mut ManagedVersioned, _: *mut *mut c_void) -> c_int {
        // SAFETY: an error may be set while the interpreter is attached.
        unsafe { ffi::PyErr_SetString(ffi::PyExc_ValueError, c"not today".as_ptr()) };
        -1
    }

    unsafe extern "C" fn refuse_in_silence(_: *mut ManagedVersioned, _: *mut *mut c_void) -> c_int {
        -1
    }

    fn data() -> (TensorData, Arc<()>) {
        let guest = Arc::new(());
        (TensorData::copied_with(&[1, 2], Dtype::UInt8, [2].into(), guest.clone()).unwrap(), guest)
    }

    #[test]
    fn a_table_that_is_known_is_found_behind_newer_ones() {
        let known = table(1, std::ptr::null(), none);
        let newer = table(2, &raw const known.header, refuse);
        let newest = table(3, &raw const newer.header, refuse);
        let unknown = table(2, std::ptr::null(), refuse);
        // SAFETY: the tables live longer than what is found in them.
        unsafe {
            for header in [&known.header, &newest.header] {
                let found = Exchange::in_table(header).unwrap();
                assert!(std::ptr::fn_addr_eq(found.0, none as ToObject));
            }
            assert!(Exchange::in_table(&unknown.header).is_none() && Exchange::in_table(std::ptr::null()).is_none());
            let mut ring = table(2, std::ptr::null(), refuse);
            ring.header.older = &raw const ring.header;
            assert!(Exchange::in_table(&raw const ring.header).is_none());
            let empty = Table { to_object: None, ..table(1, std::ptr::null(), none) };
            assert!(Exchange::in_table(&empty.header).is_none());
        }
    }

    #[test]
    fn the_owner_goes_with_what_was_made_and_a_refusal_is_an_error() {
        Python::initialize();
        Python::attach(|py| {
            let (tensor, guest) = data();
            assert!(Exchange(none).give(py, &tensor).unwrap().is_none());
            drop(tensor);
            assert_eq!(Arc::strong_count(&guest), 1);
            let error = Exchange(refuse).give(py, &data().0).unwrap_err();
            assert!(error.is_instance_of::<PyValueError>(py), "{error}");
            let error = Exchange(refuse_in_silence).give(py, &data().0).unwrap_err();
            assert!(error.is_instance_of::<PySystemError>(py), "{error}");
        });
    }

    #[test]
    fn types_without_a_table_have_none() {
        Python::initialize();
        Python::attach(|py| {
            let class = py.eval(c"type('T', (), {'__dlpack_c_exchange_api__': 7})", None, None).unwrap();
            assert!(Exchange::of(&class).unwrap().is_none());
            assert!(Exchange::of(py.get_type::<PyValueError>().as_any()).unwrap().is_none());
        });
    }
}
