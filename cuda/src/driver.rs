//! The driver's functions, looked up and called: the only unsafe code of the crate.
//!
//! Results are taken as plain numbers: the binding's own type is an enum, which a code from a newer driver would make
//! invalid. Looking up goes through a closure and calls go through [`Calls`], so that tests bring drivers of their own.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};

use cudarc::driver::sys;

use crate::{Device, Driver, Missing, Version};

const SUCCESS: c_int = 0;
const STUB_LIBRARY: c_int = 34;
const NO_DEVICE: c_int = 100;
/// Longest name of a device that is read.
const NAME_BYTES: usize = 256;

/// The functions that a probe calls.
#[derive(Clone, Copy)]
struct Calls {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    memory: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
}

/// Looks for the driver and its devices. See the crate for what it does and does not do.
pub fn probe() -> Result<Driver, Missing> {
    // SAFETY: opens libraries by the driver's names, whose initialisers run; every user of CUDA does that.
    if !unsafe { sys::is_culib_present() } {
        return Err(Missing::Library);
    }
    // SAFETY: as above; it does not panic, because one of the names could be opened just now.
    let library = unsafe { sys::culib() };
    /// The function of that name, with the type that the field wants.
    macro_rules! find {
        ($name:literal) => {
            // SAFETY: the type of the field is that of the function in cuda.h, with its enum as the int that it is.
            *unsafe { library.get($name.as_bytes()) }.map_err(|_| Missing::Symbol($name))?
        };
    }
    describe(Calls {
        init: find!("cuInit"),
        version: find!("cuDriverGetVersion"),
        count: find!("cuDeviceGetCount"),
        device: find!("cuDeviceGet"),
        name: find!("cuDeviceGetName"),
        memory: find!("cuDeviceTotalMem_v2"),
    })
}

fn describe(calls: Calls) -> Result<Driver, Missing> {
    // SAFETY: flags must be 0.
    check("cuInit", unsafe { (calls.init)(0) })?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: writes one int.
    check("cuDriverGetVersion", unsafe { (calls.version)(&mut version) })?;
    // SAFETY: writes one int.
    check("cuDeviceGetCount", unsafe { (calls.count)(&mut count) })?;
    if count <= 0 {
        return Err(Missing::NoDevice);
    }
    let devices = (0..count).map(|number| device(calls, number)).collect::<Result<_, _>>()?;
    let version = version.unsigned_abs();
    Ok(Driver { version: Version { major: version / 1000, minor: version % 1000 / 10 }, devices })
}

fn device(calls: Calls, number: c_int) -> Result<Device, Missing> {
    let (mut handle, mut memory_bytes) = (0, 0);
    let mut name = [0; NAME_BYTES];
    // SAFETY: writes one int.
    check("cuDeviceGet", unsafe { (calls.device)(&mut handle, number) })?;
    // One byte less than there is: whatever the driver writes, a zero ends it.
    // SAFETY: writes at most that many bytes.
    check("cuDeviceGetName", unsafe { (calls.name)(name.as_mut_ptr(), NAME_BYTES as c_int - 1, handle) })?;
    // SAFETY: writes one size.
    check("cuDeviceTotalMem", unsafe { (calls.memory)(&mut memory_bytes, handle) })?;
    // SAFETY: the last byte is zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Device { number: number.unsigned_abs(), name, memory_bytes: memory_bytes as u64 })
}

fn check(call: &'static str, code: c_int) -> Result<(), Missing> {
    match code {
        SUCCESS => Ok(()),
        STUB_LIBRARY => Err(Missing::Stub),
        NO_DEVICE => Err(Missing::NoDevice),
        code => Err(Missing::Failed { call, code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn init(flags: c_uint) -> c_int {
        flags as c_int
    }

    extern "C" fn version(out: *mut c_int) -> c_int {
        // SAFETY: the caller's int.
        unsafe { *out = 12080 };
        SUCCESS
    }

    extern "C" fn two(out: *mut c_int) -> c_int {
        // SAFETY: the caller's int.
        unsafe { *out = 2 };
        SUCCESS
    }

    extern "C" fn none(out: *mut c_int) -> c_int {
        // SAFETY: the caller's int.
        unsafe { *out = 0 };
        SUCCESS
    }

    extern "C" fn handle(out: *mut c_int, number: c_int) -> c_int {
        // SAFETY: the caller's int.
        unsafe { *out = 70 + number };
        SUCCESS
    }

    /// Fills the buffer to its last byte and writes no zero.
    extern "C" fn long_name(out: *mut c_char, bytes: c_int, _handle: c_int) -> c_int {
        // SAFETY: the caller says how many bytes there are.
        unsafe { out.write_bytes(b'x', bytes as usize) };
        SUCCESS
    }

    extern "C" fn memory(out: *mut usize, handle: c_int) -> c_int {
        // SAFETY: the caller's size.
        unsafe { *out = handle as usize };
        SUCCESS
    }

    extern "C" fn stub(_flags: c_uint) -> c_int {
        STUB_LIBRARY
    }

    extern "C" fn no_device(_flags: c_uint) -> c_int {
        NO_DEVICE
    }

    extern "C" fn from_the_future(_out: *mut c_int) -> c_int {
        123_456
    }

    const GOOD: Calls = Calls { init, version, count: two, device: handle, name: long_name, memory };

    #[test]
    fn a_driver_is_described() {
        let driver = describe(GOOD).unwrap();
        assert_eq!(driver.version, Version { major: 12, minor: 8 });
        assert_eq!(driver.version.to_string(), "12.8");
        let numbers: Vec<_> = driver.devices.iter().map(|device| (device.number, device.memory_bytes)).collect();
        assert_eq!(numbers, [(0, 70), (1, 71)]);
        assert_eq!(driver.devices[0].name, "x".repeat(NAME_BYTES - 1));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(describe(Calls { init: stub, ..GOOD }), Err(Missing::Stub));
        assert_eq!(describe(Calls { init: no_device, ..GOOD }), Err(Missing::NoDevice));
        assert_eq!(describe(Calls { count: none, ..GOOD }), Err(Missing::NoDevice));
        let failed = Missing::Failed { call: "cuDriverGetVersion", code: 123_456 };
        assert_eq!(describe(Calls { version: from_the_future, ..GOOD }), Err(failed.clone()));
        assert_eq!(failed.to_string(), "the nvidia driver failed: call=cuDriverGetVersion code=123456");
    }

    #[test]
    fn a_probe_of_this_machine_answers() {
        let has_driver = std::path::Path::new("/proc/driver/nvidia/version").exists();
        match probe() {
            Ok(driver) => assert!(!driver.devices.is_empty()),
            Err(missing) => assert!(!has_driver || missing != Missing::Library, "{missing}"),
        }
    }

    #[test]
    fn probing_twice_says_the_same() {
        assert_eq!(probe(), probe());
    }
}
