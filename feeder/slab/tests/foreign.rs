//! Memory that somebody else made: refused unless it is a sealed slab of a shape and version that we know.

mod common;

use std::os::fd::OwnedFd;

use common::{poke, slab};
use nix::sys::stat::fstat;
use nix::unistd::{ftruncate, pipe};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use slab::{Shape, Slab, SlabError};

const ALL: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memfd of `bytes` bytes that begins with `identity`.
fn forged(bytes: i64, identity: &[u64], seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    for (word, &value) in identity.iter().enumerate() {
        poke(&fd, word as i64 * 8, value);
    }
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// What a good slab of 2 slots of a page begins with, and its size.
fn good() -> ([u64; 5], i64) {
    let slab = slab(2);
    let identity = std::array::from_fn(|word| common::peek(slab.fd(), word as i64 * 8));
    (identity, slab.bytes() as i64)
}

#[test]
fn a_good_copy_is_accepted() {
    let (identity, bytes) = good();
    let slab = Slab::from_fd(forged(bytes, &identity, ALL)).unwrap();
    assert_eq!(slab.shape(), Shape { slots: 2, slot_bytes: 4096 });
}

#[test]
fn what_is_not_sealed_is_refused() {
    let (identity, bytes) = good();
    for seals in [
        SealFlags::empty(),
        SealFlags::SHRINK,
        SealFlags::SHRINK | SealFlags::GROW,
        SealFlags::GROW | SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::SEAL,
    ] {
        let error = Slab::from_fd(forged(bytes, &identity, seals)).unwrap_err();
        assert!(matches!(error, SlabError::NotSealed { .. }), "{seals:?}: {error}");
    }
    let refused = |fd: OwnedFd| matches!(Slab::from_fd(fd), Err(SlabError::NotSealed { seals: 0 }));
    assert!(refused(pipe().unwrap().0));
    assert!(refused(std::fs::File::open("/proc/self/exe").unwrap().into()));
    assert!(refused(std::fs::File::open("/").unwrap().into()));
}

#[test]
fn wrong_sizes_are_refused() {
    let (identity, bytes) = good();
    for (bytes, words) in [(0, 0), (8, 1), (1023, 5), (1024, 5), (bytes - 4096, 5), (bytes + 4096, 5), (bytes - 1, 5)] {
        let error = Slab::from_fd(forged(bytes, &identity[..words], ALL)).unwrap_err();
        assert!(matches!(error, SlabError::Size { file_bytes, .. } if file_bytes == bytes as u64), "{bytes}: {error}");
    }
    // Larger than any slab: refused before it is mapped.
    let error = Slab::from_fd(forged(1 << 43, &identity, ALL)).unwrap_err();
    assert!(matches!(error, SlabError::Size { .. }), "{error}");
}

#[test]
fn hostile_headers_are_refused() {
    let (identity, bytes) = good();
    let changed = |word: usize, value: u64| {
        let mut identity = identity;
        identity[word] = value;
        Slab::from_fd(forged(bytes, &identity, ALL)).unwrap_err()
    };
    assert!(matches!(changed(0, 0), SlabError::Magic { magic: 0 }));
    assert!(matches!(changed(1, 0), SlabError::Version { version: 0 }));
    assert!(matches!(changed(1, 2), SlabError::Version { version: 2 }));
    for slots in [0, u64::from(slab::MAX_SLOTS) + 1, 1 << 32, (1 << 32) + 2, u64::MAX] {
        assert!(matches!(changed(2, slots), SlabError::Shape { .. }), "{slots}");
    }
    for slot_bytes in [0, 1, 4095, 1 << 43, u64::MAX, u64::MAX - 4095] {
        assert!(matches!(changed(3, slot_bytes), SlabError::Shape { .. }), "{slot_bytes}");
    }
    for (word, value) in [(2, 1), (2, 3), (3, 8192), (4, 0), (4, u64::MAX)] {
        assert!(matches!(changed(word, value), SlabError::Size { .. }), "{word} {value}");
    }
}

#[test]
fn a_changed_header_changes_nothing_later() {
    let memory = slab(2);
    let there = Slab::from_fd(memory.fd().try_clone_to_owned().unwrap()).unwrap();
    poke(memory.fd(), 16, u64::MAX);
    poke(memory.fd(), 24, u64::MAX);
    assert_eq!(there.shape(), Shape { slots: 2, slot_bytes: 4096 });
    let (mut filler, _taker) = there.split();
    assert!(filler.take_free().unwrap() < 2 && filler.take_free().unwrap() < 2 && filler.take_free().is_none());
}

#[test]
fn a_slab_that_cannot_be_is_refused_with_the_bytes_needed() {
    for (shape, needed) in [
        (Shape { slots: 1 << 20, slot_bytes: 1 << 30 }, 1u128 << 50),
        // Allowed by the format, but no machine has it.
        (Shape { slots: 4, slot_bytes: 1 << 39 }, 1 << 41),
    ] {
        let error = Slab::create(shape).unwrap_err();
        assert!(matches!(error, SlabError::Shape { .. } | SlabError::NoRoom { .. }), "{error}");
        let text = error.to_string();
        let told = text.split("needed_bytes=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u128>().ok());
        assert!(told.is_some_and(|told| told > needed && told < needed + (needed >> 10)), "{text}");
    }
    assert!(matches!(Slab::create(Shape { slots: 0, slot_bytes: 1 }), Err(SlabError::Shape { .. })));
    assert!(matches!(Slab::create(Shape { slots: 1, slot_bytes: 0 }), Err(SlabError::Shape { .. })));
}

#[test]
fn a_slab_has_no_name_and_all_of_it_is_there() {
    let memory = Slab::create(Shape { slots: 16, slot_bytes: 65536 }).unwrap();
    let stat = fstat(memory.fd()).unwrap();
    assert_eq!(stat.st_nlink, 0);
    assert_eq!(stat.st_blocks as usize * 512, memory.bytes());
    assert_eq!(ftruncate(memory.fd(), 0), Err(nix::errno::Errno::EPERM));
}
