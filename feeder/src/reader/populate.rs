//! Has the kernel bring a stretch of a file into the page cache in huge pages, by madvise(2)'s `MADV_POPULATE_READ`
//! (Linux 5.14) on a mapping of it that asks for them.
//!
//! The page cache holds a file in pieces as large as what brought them in, and read-ahead for ordinary reads begins with
//! single pages, of which copies are made at half the speed or less for as long as they stay. For a mapping with
//! `MADV_HUGEPAGE` it begins with pieces of 2 MiB where the file system has such (`do_sync_mmap_readahead` in the kernel's
//! `mm/filemap.c`, since 5.18), and is as good as any other where not.
//!
//! The mapping is never touched, so that a file which ends too early is an error and no signal.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Brings `bytes` bytes from `offset` on, a multiple of the page size. An error past the file's end, after what is there came.
pub(super) fn populate(file: &File, offset: u64, bytes: usize) -> io::Result<()> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, offset) }?;
    // SAFETY: the range is our own mapping, which nobody else knows of; both only fill page tables and the page cache.
    let populated = unsafe {
        // Advice: small pages serve as well, only slower.
        let _ = madvise(start, bytes, Advice::LinuxHugepage);
        madvise(start, bytes, Advice::LinuxPopulateRead)
    };
    // SAFETY: the same mapping, in use by nobody.
    let unmapped = unsafe { munmap(start, bytes) };
    debug_assert!(unmapped.is_ok());
    Ok(populated?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_lies_past_the_end_is_an_error_and_no_signal() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8 << 10]).unwrap();
        match populate(&file, 0, 8 << 10) {
            Ok(()) => {}
            // A kernel or sandbox without the advice says so.
            Err(error) => return assert!(super::super::fill::is_refusal(&error), "{error}"),
        }
        assert!(populate(&file, 0, 2 << 20).is_err());
        file.set_len(0).unwrap();
        assert!(populate(&file, 0, 8 << 10).is_err());
    }
}
