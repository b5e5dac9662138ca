//! How much of a stretch of a file lies in the page cache, by the system call `cachestat` (Linux 6.5).
//!
//! Older kernels, sandboxes and other systems' kernels answer with an error, usually `ENOSYS`; callers then do without.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The call's number, the same on all architectures that Rust runs on under Linux.
const CACHESTAT: libc::c_long = 451;
#[repr(C)]
struct Range {
    offset: u64,
    bytes: u64,
}

#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Bytes of `offset..offset + bytes` that a read would find in the page cache, in whole pages.
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "tests of other crates ask too"))]
pub fn cached_bytes(file: &File, offset: u64, bytes: u64) -> io::Result<u64> {
    let range = Range { offset, bytes };
    let mut pages = Pages::default();
    // SAFETY: the descriptor is open while `file` is borrowed; both structures are laid out as the kernel has them, are
    // alive for the call, and only the second one is written.
    let answer = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(pages.cached * rustix::param::page_size() as u64) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_just_written_is_cached_and_what_is_not_there_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        match cached_bytes(&file, 0, 64 << 10) {
            Ok(bytes) => {
                assert_eq!(bytes, 64 << 10);
                assert_eq!(cached_bytes(&file, 16 << 20, 1 << 20).unwrap(), 0);
            }
            // A kernel or sandbox without the call says so, in a way that callers can tell.
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}
