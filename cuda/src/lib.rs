//! The CUDA driver as Forebay sees it: found at run time, or absent with the reason. Never a build requirement.
//!
//! Contract of [`probe`]: it never panics and never ends the process, whatever is installed: no driver, one that lacks a
//! function, a toolkit's stub in its place, no device. Everything else that talks to the driver comes after a
//! successful probe, because the loading library panics where a library or a function is missing.
//!
//! A probe initialises the driver in this process but makes no context: it takes no device memory. A child forked
//! afterwards cannot use CUDA, so probe where a device is wanted and not before.
//!
//! The version of the driver's interface that this is compiled for is fixed here and is no feature of the crate: older
//! and newer drivers work, functions are looked up one by one.

#![deny(unsafe_code)]

mod driver;

use std::fmt;

pub use driver::probe;

/// A driver that answers, with at least one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA version that it serves.
    pub version: Version,
    /// Its devices, by number.
    pub devices: Vec<Device>,
}

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Such as 13.
    pub major: u32,
    /// Such as 0.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number, as in `cuda:0`.
    pub number: u32,
    /// What its maker calls it.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
}

/// Why there is no driver to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No libcuda on this machine.
    #[error("no nvidia driver is installed: library=libcuda.so.1")]
    Library,
    /// The driver is too old, or not a driver.
    #[error("the nvidia driver lacks a function: function={0}")]
    Symbol(&'static str),
    /// What the loader found is the toolkit's empty library for linking.
    #[error("the library found is the toolkit's stub and not the driver, take its folder off LD_LIBRARY_PATH: code=34")]
    Stub,
    /// A driver without a device that this process may use.
    #[error("the nvidia driver has no device for this process, see CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The driver refuses.
    #[error("the nvidia driver failed: call={call} code={code}")]
    Failed {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: i32,
    },
}
