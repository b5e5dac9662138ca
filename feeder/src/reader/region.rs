//! Memory that reads may land in: a slab, a scratch buffer, a place for junk.
//!
//! A region's memory is a mapping, not an object of the Rust program: the kernel writes into it on behalf of reads, and
//! other threads and processes may at times of their own. So it is touched by copies made of machine instructions that
//! the compiler does not look into (`copy`), never by references, and copying is safe to call: two copies that
//! race for the same bytes leave some of each, as two reads into the same part do, and nothing worse. Who may touch
//! which byte when is settled by ownership: a part belongs to the reader from `submit` until its `Done`, a row of a
//! slot to whoever the plan gives it to. Only [`Region::bytes`] makes a reference, and is unsafe for that.
//!
//! Ranges are checked against the region and a range outside is a bug of the caller: it panics, as a slice does.

#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use super::copy;

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A range of memory together with what keeps it alive. Clones are handles of the same memory.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory may be used from any thread (a condition of `new`), and what this type does with it is free of
// references and compiler-visible accesses, see the module.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Describes memory that somebody else made.
    ///
    /// # Safety
    ///
    /// 1. `base..base + bytes` is mapped readable and writable for as long as `owner` lives, from every thread.
    /// 2. For that time nobody holds a Rust reference to a byte of it while the region's holders may write that byte
    ///    (through the region or by reads that land there), and it is no part of a Rust allocation.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, bytes, owner }
    }

    /// The slots of a slab.
    pub fn of_slab(slab: &slab::Slab) -> Self {
        let (base, bytes) = slab.region();
        let base = NonNull::new(base).expect("a mapping is not at address 0");
        // SAFETY: 1. the slab's mapping is readable and writable while a clone of it lives. 2. Slots are handed out as
        // addresses only, and a slot that reads land in is not leased: it was taken free from the slab's filler.
        unsafe { Self::new(base, bytes, Arc::new(slab.clone())) }
    }

    /// Zeroed memory of its own, on a page border.
    pub fn alloc(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, PAGE_BYTES)
    }

    /// Zeroed memory of its own on a border of 2 MiB, in huge pages if the kernel has them to give.
    pub fn alloc_huge(bytes: usize) -> io::Result<Self> {
        Self::alloc_advised(bytes).map(|(region, _)| region)
    }

    /// As [`alloc_huge`](Self::alloc_huge), and why the kernel does not take the advice to use huge pages, if so.
    pub(super) fn alloc_advised(bytes: usize) -> io::Result<(Self, io::Result<()>)> {
        let region = Self::map(bytes, HUGE_PAGE_BYTES)?;
        // SAFETY: the range lies inside our own fresh mapping, and the advice changes no contents. It is advice: a
        // kernel without huge pages refuses it, and small pages serve as well, only slower.
        let advised = unsafe { madvise(region.base.cast(), bytes.max(1), MmapAdvise::MADV_HUGEPAGE) };
        Ok((region, advised.map_err(io::Error::from)))
    }

    /// Length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is no room at all.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies the bytes at `at` out. Panics if they are not all inside.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        let from = self.checked(at, into.len());
        // SAFETY: the range is inside the region, which is mapped; `into` is a live exclusive slice.
        unsafe { copy::copy_plain(into.as_mut_ptr(), from, into.len()) }
    }

    /// Copies `from` to `at`. Panics if it does not fit.
    pub fn write(&self, at: usize, from: &[u8]) {
        let into = self.checked(at, from.len());
        // SAFETY: as in `read`, the other way round.
        unsafe { copy::copy_plain(into, from.as_ptr(), from.len()) }
    }

    /// As [`write`](Self::write) with stores that bypass the caches, for rows that this core will not touch again:
    /// twice as fast into a slab larger than the caches. Call [`fence`](super::fence) after the last one and before
    /// telling anybody that the bytes are there.
    pub fn write_streaming(&self, at: usize, from: &[u8]) {
        let into = self.checked(at, from.len());
        // SAFETY: as in `write`.
        unsafe { copy::copy_streaming(into, from.as_ptr(), from.len()) }
    }

    /// Copies `bytes` bytes at `from` in `source` to `at`. Panics if a range is not inside its region.
    pub fn copy_from(&self, at: usize, source: &Region, from: usize, bytes: usize) {
        let into = self.checked(at, bytes);
        // SAFETY: both ranges are inside their regions, which are mapped.
        unsafe { copy::copy_plain(into, source.checked(from, bytes), bytes) }
    }

    /// As [`copy_from`](Self::copy_from) with stores that bypass the caches; see [`write_streaming`](Self::write_streaming).
    pub fn copy_from_streaming(&self, at: usize, source: &Region, from: usize, bytes: usize) {
        let into = self.checked(at, bytes);
        // SAFETY: as in `copy_from`.
        unsafe { copy::copy_streaming(into, source.checked(from, bytes), bytes) }
    }

    /// The bytes in place. Panics if they are not all inside.
    ///
    /// # Safety
    ///
    /// While the slice lives nobody writes any of its bytes: no read in flight has a part there, no other thread or
    /// process copies there.
    pub unsafe fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        let from = self.checked(at, bytes);
        // SAFETY: inside the mapping, which lives as long as `self`; not written meanwhile, by the caller's promise.
        unsafe { std::slice::from_raw_parts(from, bytes) }
    }

    /// How many handles keep the memory alive.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.owner)
    }

    /// Whether `bytes` bytes at `at` are inside.
    pub(super) fn holds(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Address of `bytes` bytes at `at`. Panics if they are not all inside.
    pub(super) fn checked(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(self.holds(at, bytes), "range outside region: at={at} bytes={bytes} region_bytes={}", self.bytes);
        self.base.as_ptr().wrapping_add(at)
    }

    fn map(bytes: usize, align: usize) -> io::Result<Self> {
        // The kernel aligns to pages; for more, take so much that an aligned start is inside. Untouched pages cost nothing.
        let room = bytes.max(1).checked_add(align - PAGE_BYTES).and_then(NonZeroUsize::new);
        let room = room.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let start =
            unsafe { mmap_anonymous(None, room, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE) }?;
        let mapping = Mapping { start: start.cast(), bytes: room.get() };
        let base = start
            .cast::<u8>()
            .map_addr(|address| NonZeroUsize::new(address.get().next_multiple_of(align)).unwrap_or(address));
        // SAFETY: mapped until the owner drops, shared with nobody, and no Rust allocation.
        Ok(unsafe { Self::new(base, bytes, Arc::new(mapping)) })
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base)
            .field("bytes", &self.bytes)
            .field("holders", &self.holders())
            .finish()
    }
}

/// Our own anonymous memory; unmapped when the last handle is gone.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only an address and a length; the memory itself is reached through `Region`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and regions, which are the only way to it, hold this object.
        let unmapped = unsafe { munmap(self.start.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
