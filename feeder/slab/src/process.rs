//! The number of this process, without a system call each time: every step of a loader asks whether it is in a fork.
//!
//! It is kept in a page that the kernel empties in a forked child, whoever forks and however; an empty page is filled
//! anew. Where the kernel has no such pages (before 4.14), it is asked every time.

use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::layout::PAGE_BYTES;

/// Stands for "this kernel has no such pages".
static ABSENT: AtomicU32 = AtomicU32::new(0);

/// The page, once somebody has asked; never unmapped.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The id of this process, in a forked child the child's.
pub fn id() -> u32 {
    let page = PAGE.load(Ordering::Acquire);
    let page = if page.is_null() { publish() } else { page };
    if ptr::eq(page, &ABSENT) {
        return std::process::id();
    }
    // SAFETY: what is published is a whole page, aligned, zeroed by the kernel or written through this type, never unmapped.
    let known = unsafe { &*page };
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Makes the page, or takes the one that another thread has made meanwhile. No lock: a fork may come at any moment.
fn publish() -> *mut AtomicU32 {
    let made = make().unwrap_or((&raw const ABSENT).cast_mut());
    match PAGE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(other) => {
            if !ptr::eq(made, &ABSENT) {
                unmap(made);
            }
            other
        }
    }
}

fn make() -> Option<*mut AtomicU32> {
    let length = NonZeroUsize::new(PAGE_BYTES)?;
    // SAFETY: a new private mapping at an address that the kernel chooses touches nothing that exists.
    let page =
        unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE) };
    let page = page.ok()?;
    // SAFETY: exactly our own fresh mapping, which nobody else knows.
    let wiped = unsafe { madvise(page, PAGE_BYTES, MmapAdvise::MADV_WIPEONFORK) };
    let page = page.as_ptr().cast::<AtomicU32>();
    if wiped.is_err() {
        unmap(page);
        return None;
    }
    Some(page)
}

fn unmap(page: *mut AtomicU32) {
    if let Some(page) = ptr::NonNull::new(page) {
        // SAFETY: mapped by `make` and not published, so nobody refers to it.
        let unmapped = unsafe { munmap(page.cast(), PAGE_BYTES) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
