//! The slab's memory: a sealed memfd and its mapping. The only unsafe code of the crate's library.
//!
//! Sealed against shrinking, so that no peer can turn a read into SIGBUS; against growing and further seals, so that
//! what was checked stays true. It has no name and is gone with its last descriptor and mapping, however its users
//! die.
//!
//! Whole huge pages where the kernel gives them ([`collapse`](Mapping::collapse)): they are there in a tenth of the time.
//!
//! Words that both sides change are reached as atomics only. Slot memory is handed out as plain addresses: who may
//! touch a slot when is the hand-off's matter.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::libc;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::SlabError;
use crate::growth::{Collapse, PORTION_BYTES};
use crate::layout::PAGE_BYTES;
use crate::sync::{AtomicU64, ENTRY_WORDS, Entry};

/// What it is called in `/proc/self/maps`.
const NAME: &str = "forebay-slab";

/// Advice that makes a range one huge page now, whatever the system's settings for such pages of files in memory are
/// (madvise(2), Linux 6.1; the number is that of `asm-generic/mman-common.h`).
const MADV_COLLAPSE: libc::c_int = 25;

const ADDRESS_SPACE: &str = "the limit on address space (ulimit -v)";
const MEMORY: &str = "the memory that the kernel has left";

/// A mapped memfd; see the module.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to this value and lives as long as it does; shared words are reached through atomics,
// slot memory only as raw addresses.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a non-atomic reference into the mapping.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Fresh memory of `bytes`, zeroed and sealed, none of it present: portions must be [made present](Self::make_present) before
    /// they are touched.
    pub(crate) fn create(bytes: usize) -> Result<Self, SlabError> {
        let fd = memfd().map_err(|source| os("memfd_create", bytes, source))?;
        ftruncate(&fd, bytes as i64).map_err(|errno| no_room_or("ftruncate", bytes, errno))?;
        let mapping = Self::map(fd, bytes)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&mapping.fd, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| os("sealing", bytes, errno))?;
        Ok(mapping)
    }

    /// Maps memory that somebody else made, if it is sealed; its size is between `least_bytes` and `most_bytes`.
    pub(crate) fn adopt(fd: OwnedFd, least_bytes: usize, most_bytes: u64) -> Result<Self, SlabError> {
        let wanted = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        // A file that cannot be sealed at all answers with an error.
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).unwrap_or(0);
        if !SealFlag::from_bits_retain(seals).contains(wanted) {
            return Err(SlabError::NotSealed { seals });
        }
        let stat = fstat(&fd).map_err(|errno| os("fstat", 0, errno))?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let wrong_size = SlabError::Size { file_bytes, header_bytes: least_bytes as u64 };
        if file_bytes < least_bytes as u64 || file_bytes > most_bytes {
            return Err(wrong_size);
        }
        let bytes = usize::try_from(file_bytes).map_err(|_| wrong_size)?;
        let mapping = Self::map(fd, bytes)?;
        // The pages are there already; only this process's page table is filled now instead of at each first touch.
        let _ = mapping.populate(0, bytes);
        Ok(mapping)
    }

    /// The memfd.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes mapped.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `len` bytes from `offset` on.
    pub(crate) fn address(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.bytes && len <= self.bytes - offset, "offset={offset} len={len} bytes={}", self.bytes);
        // SAFETY: the offset was just checked to lie inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The atomic words from `offset` on.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let address = self.address(offset, count * size_of::<AtomicU64>());
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "offset={offset}");
        // SAFETY: in bounds, aligned (the mapping begins on a page), initialised (the kernel's zeros at least), alive
        // as long as `self`; this memory is never reached but through atomics. Any bits are a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(address.cast::<AtomicU64>(), count) }
    }

    /// The descriptors from `offset` on.
    pub(crate) fn entries(&self, offset: usize, count: usize) -> &[Entry] {
        self.words(offset, count * ENTRY_WORDS).as_chunks::<ENTRY_WORDS>().0
    }

    /// Maps all of `fd`, if it may be from an address on at which huge pages can begin.
    fn map(fd: OwnedFd, bytes: usize) -> Result<Self, SlabError> {
        let length = NonZeroUsize::new(bytes).ok_or(SlabError::Size { file_bytes: 0, header_bytes: 1 })?;
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses, where a wish counts only if nothing is there, touches
        // nothing that exists.
        match unsafe { mmap(huge_page_start(bytes), length, protection, flags, &fd, 0) } {
            Ok(start) => Ok(Self { start: start.cast(), bytes, fd }),
            Err(Errno::ENOMEM) => {
                let needed_bytes = bytes as u64;
                Err(SlabError::NoRoom { needed_bytes, available_bytes: None, limit: ADDRESS_SPACE })
            }
            Err(errno) => Err(os("mmap", bytes, errno)),
        }
    }

    /// Makes every page of a portion present now: at its first use each one costs a fault, and a missing one would be SIGBUS.
    /// Tries whether the kernel gives one huge page, if that is wished. Nobody but atomics may use the portion yet.
    pub(crate) fn make_present(&self, portion: usize, huge: bool) -> Result<Option<Collapse>, SlabError> {
        let offset = portion * PORTION_BYTES;
        let len = PORTION_BYTES.min(self.bytes.saturating_sub(offset));
        let collapse = (huge && len == PORTION_BYTES).then(|| self.collapse(offset));
        match self.populate(offset, len) {
            Ok(()) => {}
            // Kernels before 5.14 and some sandboxes do not know the advice. Reserve first, so that touching cannot
            // fail.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM | Errno::EOPNOTSUPP) => {
                self.reserve_and_touch(offset, len)?;
            }
            Err(errno) => return Err(no_room_or("pre-faulting", self.bytes, errno)),
        }
        Ok(collapse)
    }

    /// Asks for one huge page at `offset`. Of a range with one small page in it one is made, of an empty range none is.
    fn collapse(&self, offset: usize) -> Collapse {
        let began = Instant::now();
        let result = self.populate(offset, PAGE_BYTES).and_then(|()| {
            let start = self.address(offset, PORTION_BYTES);
            // SAFETY: a part of this mapping; collapsing changes no contents.
            Errno::result(unsafe { libc::madvise(start.cast(), PORTION_BYTES, MADV_COLLAPSE) }).map(drop)
        });
        Collapse { took: began.elapsed(), result }
    }

    fn populate(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        let start = NonNull::new(self.address(offset, bytes)).ok_or(Errno::EFAULT)?;
        // SAFETY: a part of this mapping; populating changes no contents.
        unsafe { madvise(start.cast::<c_void>(), bytes, MmapAdvise::MADV_POPULATE_WRITE) }
    }

    fn reserve_and_touch(&self, offset: usize, len: usize) -> Result<(), SlabError> {
        match fallocate(&self.fd, FallocateFlags::empty(), offset as i64, len as i64) {
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
            Err(errno) => return Err(no_room_or("fallocate", self.bytes, errno)),
        }
        for offset in (offset..offset + len).step_by(PAGE_BYTES) {
            let address = self.address(offset, 1);
            // SAFETY: inside the mapping, in a part that nobody else uses yet; volatile, since only the touch matters.
            unsafe { address.write_volatile(0) };
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with these numbers, and no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.start.cast::<c_void>(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A free address at which `bytes` of huge pages can begin; none if they fill not even one, or there is no room to spare. Who
/// maps something meanwhile may take it: then pages stay small.
fn huge_page_start(bytes: usize) -> Option<NonZeroUsize> {
    let room = bytes.checked_add(PORTION_BYTES).and_then(NonZeroUsize::new).filter(|_| bytes >= PORTION_BYTES)?;
    // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
    let free = unsafe { mmap_anonymous(None, room, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.ok()?;
    // SAFETY: what was just mapped, and nobody else knows of.
    unsafe { munmap(free, room.get()) }.ok()?;
    NonZeroUsize::new(free.addr().get().next_multiple_of(PORTION_BYTES))
}

fn memfd() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Hardened systems demand that memory be marked as not executable; kernels before 6.3 do not know the mark.
    match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => Ok(memfd_create(NAME, flags)?),
        made => Ok(made?),
    }
}

fn os(call: &'static str, bytes: usize, source: impl Into<io::Error>) -> SlabError {
    SlabError::Os { call, bytes: bytes as u64, source: source.into() }
}

/// Different places of the kernel tell in different words that there is no memory.
fn no_room_or(call: &'static str, bytes: usize, errno: Errno) -> SlabError {
    match errno {
        Errno::ENOMEM | Errno::ENOSPC | Errno::EFBIG | Errno::EFAULT => {
            SlabError::NoRoom { needed_bytes: bytes as u64, available_bytes: None, limit: MEMORY }
        }
        errno => os(call, bytes, errno),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn present_bytes(mapping: &Mapping) -> usize {
        fstat(mapping.fd()).unwrap().st_blocks as usize * 512
    }

    /// Memory all of which is present.
    fn whole(bytes: usize) -> Mapping {
        let mapping = Mapping::create(bytes).unwrap();
        for portion in 0..bytes.div_ceil(PORTION_BYTES) {
            mapping.make_present(portion, true).unwrap();
        }
        mapping
    }

    #[test]
    fn memory_is_sealed_at_once_and_present_where_it_was_made_so() {
        let bytes = 2 * PORTION_BYTES + 3 * PAGE_BYTES;
        let mapping = Mapping::create(bytes).unwrap();
        assert_eq!(ftruncate(mapping.fd(), 0), Err(Errno::EPERM));
        for (portion, huge, present) in
            [(2, true, 3 * PAGE_BYTES), (0, false, PORTION_BYTES), (1, true, 2 * PORTION_BYTES)]
        {
            let collapse = mapping.make_present(portion, huge).unwrap();
            assert_eq!(collapse.is_some(), portion == 1, "the last one is too small");
            assert!(present_bytes(&mapping) >= present && (portion == 2 || present_bytes(&mapping) > present));
        }
        assert_eq!(present_bytes(&mapping), bytes);
    }

    #[test]
    fn fresh_memory_is_sealed_and_nameless() {
        let mapping = whole(64 * PAGE_BYTES);
        let stat = fstat(mapping.fd()).unwrap();
        assert_eq!(stat.st_size as usize, 64 * PAGE_BYTES);
        assert_eq!(stat.st_blocks as usize * 512, 64 * PAGE_BYTES);
        assert_eq!(stat.st_nlink, 0);
        for bytes in [0, 63 * PAGE_BYTES as i64, 65 * PAGE_BYTES as i64] {
            assert_eq!(ftruncate(mapping.fd(), bytes), Err(Errno::EPERM));
        }
        assert_eq!(fcntl(mapping.fd(), FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)), Err(Errno::EPERM));
    }

    /// Bytes of `mapping` that huge pages hold.
    fn huge_bytes(mapping: &Mapping) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", mapping.start.addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
        1024 * line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    }

    /// Whether this kernel makes a huge page of a memfd on demand.
    fn kernel_collapses() -> bool {
        let mapping = whole(PORTION_BYTES);
        huge_bytes(&mapping) > 0
    }

    #[test]
    fn large_memory_begins_where_huge_pages_do_and_has_them_where_the_kernel_lets_us() {
        let bytes = 4 * PORTION_BYTES + 3 * PAGE_BYTES;
        let first = whole(bytes);
        assert_eq!(fstat(first.fd()).unwrap().st_blocks as usize * 512, bytes);
        let second = Mapping::adopt(first.fd().try_clone_to_owned().unwrap(), PAGE_BYTES, 1 << 30).unwrap();
        for mapping in [&first, &second] {
            assert!(mapping.start.addr().get().is_multiple_of(PORTION_BYTES));
        }
        first.words(bytes - 8, 1)[0].store(42, Ordering::Release);
        assert_eq!(second.words(bytes - 8, 1)[0].load(Ordering::Acquire), 42);
        if kernel_collapses() {
            // Where memory is in pieces there are fewer; none at all would be a fault of ours.
            assert!(huge_bytes(&first) > 0 || !kernel_collapses(), "no huge pages");
            assert_eq!(huge_bytes(&second), huge_bytes(&first), "the other side sees them as small ones");
        }
    }

    #[test]
    fn touching_is_as_good_as_the_advice() {
        let fd = memfd().unwrap();
        ftruncate(&fd, 32 * PAGE_BYTES as i64).unwrap();
        let mapping = Mapping::map(fd, 32 * PAGE_BYTES).unwrap();
        assert_eq!(fstat(mapping.fd()).unwrap().st_blocks, 0);
        mapping.reserve_and_touch(8 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
        assert_eq!(present_bytes(&mapping), 4 * PAGE_BYTES);
        mapping.reserve_and_touch(0, 32 * PAGE_BYTES).unwrap();
        assert_eq!(present_bytes(&mapping), 32 * PAGE_BYTES);
    }

    #[test]
    fn a_second_mapping_sees_the_first() {
        let first = whole(PAGE_BYTES);
        let second = Mapping::adopt(first.fd().try_clone_to_owned().unwrap(), PAGE_BYTES, 1 << 20).unwrap();
        assert_ne!(first.address(0, 1), second.address(0, 1));
        first.words(64, 2)[1].store(42, Ordering::Release);
        assert_eq!(second.words(72, 1)[0].load(Ordering::Acquire), 42);
        assert_eq!(second.entries(64, 2)[0][1].load(Ordering::Acquire), 42);
    }

    #[test]
    #[should_panic(expected = "offset=4088 len=16")]
    fn words_beyond_the_end_are_a_bug() {
        whole(PAGE_BYTES).words(PAGE_BYTES - 8, 2);
    }
}
