//! What consumers do with exports, without a framework: take, free on another thread, leave lying.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Counts how often it is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counted(dtype: Dtype, shape: &[i64]) -> (TensorData, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let bytes: Vec<u8> = (0..shape_bytes(dtype, shape).unwrap()).map(|n| n as u8).collect();
    (TensorData::copied_with(&bytes, dtype, shape.into(), Dropped(drops.clone())).unwrap(), drops)
}

/// Takes a capsule over, as a consumer does: gets the pointer and renames the capsule.
fn take<M: Managed>(capsule: &Bound<'_, PyAny>) -> *mut M {
    // SAFETY: the capsule is live and the names are static.
    unsafe {
        let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr());
        assert!(!managed.is_null());
        assert_eq!(ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor".as_ptr()), 0);
        managed.cast()
    }
}

fn attach<T>(f: impl for<'py> FnOnce(Python<'py>) -> T) -> T {
    Python::initialize();
    Python::attach(f)
}

#[test]
fn layouts_are_those_of_the_protocol() {
    assert_eq!(size_of::<Raw>(), 48);
    assert_eq!(size_of::<ManagedLegacy>(), 64);
    assert_eq!(size_of::<ManagedVersioned>(), 80);
    assert_eq!(std::mem::offset_of!(Raw, ndim), 16);
    assert_eq!(std::mem::offset_of!(Raw, dtype), 20);
    assert_eq!(std::mem::offset_of!(Raw, strides), 32);
    assert_eq!(std::mem::offset_of!(ManagedLegacy, deleter), 56);
    assert_eq!(std::mem::offset_of!(ManagedVersioned, deleter), 16);
    assert_eq!(std::mem::offset_of!(ManagedVersioned, tensor), 32);
}

#[test]
fn exports_say_shape_strides_and_type() {
    for dtype in Dtype::ALL {
        let (data, drops) = counted(dtype, &[2, 3, 4]);
        let managed = export::<ManagedVersioned>(&data, false);
        // SAFETY: the export is ours and live; shape and strides have `ndim` entries.
        unsafe {
            let tensor = &(*managed).tensor;
            assert_eq!(tensor.ndim, 3);
            assert_eq!(std::slice::from_raw_parts(tensor.shape, 3), [2, 3, 4]);
            assert_eq!(std::slice::from_raw_parts(tensor.strides, 3), [12, 4, 1]);
            assert_eq!(tensor.dtype, dtype.into());
            assert_eq!(usize::from(tensor.dtype.bits), dtype.bytes() * 8);
            assert_eq!(tensor.data.addr() % ALIGNMENT_BYTES, 0);
            assert_eq!((tensor.device.kind, tensor.device.id), CPU);
            assert_eq!((*managed).flags, 0);
            delete(managed);
        }
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(data);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn layouts_of_any_number_of_dimensions_are_whole() {
    for ndim in 1..=2 * SMALL_NDIM {
        let shape: Vec<i64> = (2..).take(ndim).collect();
        let (data, drops) = counted(Dtype::UInt8, &shape);
        let managed = export::<ManagedVersioned>(&data, false);
        drop(data);
        // SAFETY: the export is ours and live; shape and strides have `ndim` entries.
        unsafe {
            let tensor = &(*managed).tensor;
            assert_eq!(std::slice::from_raw_parts(tensor.shape, ndim), shape);
            let strides: Vec<i64> = (0..ndim).map(|at| shape[at + 1..].iter().product()).collect();
            assert_eq!(std::slice::from_raw_parts(tensor.strides, ndim), strides);
            delete(managed);
        }
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_scalar_and_an_empty_tensor_have_their_layout() {
    for shape in [vec![], vec![0], vec![0, 5]] {
        let (data, _) = counted(Dtype::Float32, &shape);
        let managed = export::<ManagedLegacy>(&data, false);
        // SAFETY: the export is ours and live.
        unsafe {
            assert_eq!((*managed).tensor.ndim as usize, shape.len());
            delete(managed);
        }
    }
}

#[test]
fn the_owner_goes_with_the_last_export_on_any_thread() {
    attach(|py| {
        let (data, drops) = counted(Dtype::Int64, &[4]);
        let first = data.versioned_capsule(py, false).unwrap();
        let second = data.legacy_capsule(py).unwrap();
        drop(data);
        let first = take::<ManagedVersioned>(&first) as usize;
        let second = take::<ManagedLegacy>(&second) as usize;
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        // Another thread, which does not hold the interpreter's lock: this one does, and waits for it.
        let free = move || {
            // SAFETY: both exports were taken above and are freed once, by their own deleter.
            unsafe {
                let first = first as *mut ManagedVersioned;
                ((*first).deleter.unwrap())(first);
                let second = second as *mut ManagedLegacy;
                ((*second).deleter.unwrap())(second);
            }
        };
        std::thread::spawn(free).join().unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_capsule_frees_what_nobody_took_and_only_that() {
    attach(|py| {
        let (data, drops) = counted(Dtype::UInt8, &[4]);
        let capsule = data.versioned_capsule(py, false).unwrap();
        let legacy = data.legacy_capsule(py).unwrap();
        drop((data, legacy));
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(capsule);
        assert_eq!(drops.load(Ordering::SeqCst), 1);

        let (data, drops) = counted(Dtype::UInt8, &[4]);
        let capsule = data.versioned_capsule(py, false).unwrap();
        drop(data);
        let managed = take::<ManagedVersioned>(&capsule);
        drop(capsule);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        // SAFETY: taken above, freed once.
        unsafe { delete(managed) };
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn an_owner_that_panics_does_not_end_the_process() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("from a drop");
        }
    }
    let data = TensorData::copied_with(&[1, 2], Dtype::UInt8, [2].into(), Bomb).unwrap();
    let managed = export::<ManagedLegacy>(&data, false);
    // The export holds the last reference; dropping ours does nothing yet.
    drop(data);
    // SAFETY: the export is ours, freed once.
    unsafe { delete(managed) };
}

#[test]
fn a_copy_is_apart_and_says_so() {
    attach(|py| {
        let (data, drops) = counted(Dtype::Int16, &[3]);
        let copy = data.copy();
        assert_ne!(copy.address(), data.address());
        drop(data);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        let managed = take::<ManagedVersioned>(&copy.versioned_capsule(py, true).unwrap());
        // SAFETY: taken above; the memory holds three elements; freed once.
        unsafe {
            assert_eq!((*managed).flags, FLAG_IS_COPIED);
            assert_eq!(std::slice::from_raw_parts((*managed).tensor.data.cast::<u8>(), 6), [0, 1, 2, 3, 4, 5]);
            delete(managed);
        }
    });
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    assert!(TensorData::copied(&[0; 8], Dtype::Int64, [1].into()).is_some());
    assert!(TensorData::copied(&[0; 7], Dtype::Int64, [1].into()).is_none());
    assert!(TensorData::copied(&[0; 8], Dtype::Int64, [-1].into()).is_none());
    assert!(TensorData::copied(&[], Dtype::Int64, [i64::MAX, i64::MAX].into()).is_none());
}
