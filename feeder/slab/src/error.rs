//! Why a slab could not be made or was refused, and what a broken peer did.

use std::{fmt, io};

use crate::layout::{MAX_SLAB_BYTES, MAX_SLOTS, VERSION};

/// Why a slab could not be made, or why one that was handed over is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlabError {
    /// The shape itself is impossible.
    #[error(
        "{reason}: slots={slots} slot_bytes={slot_bytes} needed_bytes={needed_bytes} \
         max_slots={MAX_SLOTS} max_bytes={MAX_SLAB_BYTES}"
    )]
    Shape {
        /// What is wrong with it.
        reason: &'static str,
        /// Slots asked for.
        slots: u64,
        /// Bytes of one slot asked for.
        slot_bytes: u64,
        /// Bytes that such a slab would take.
        needed_bytes: u128,
    },
    /// The memory cannot be had.
    #[error("the slab does not fit within {limit}: needed_bytes={needed_bytes}{}", AvailableBytes(*available_bytes))]
    NoRoom {
        /// Bytes of the whole slab.
        needed_bytes: u64,
        /// Bytes that the limit still leaves, where it tells.
        available_bytes: Option<u64>,
        /// The limit that stands in the way.
        limit: &'static str,
    },
    /// The file can still be resized or sealed further by its maker, so that mapping it is not safe.
    #[error("the slab's memory is not sealed against shrinking, growing and further seals: seals={seals:#x}")]
    NotSealed {
        /// Seals found, 0 for a file that cannot be sealed.
        seals: i32,
    },
    /// The file's size is not the one that its header asks for, or no header fits into it.
    #[error("the slab's memory has the wrong size: file_bytes={file_bytes} header_bytes={header_bytes}")]
    Size {
        /// Size of the file.
        file_bytes: u64,
        /// Size that the header tells, or the least that a header needs.
        header_bytes: u64,
    },
    /// The memory does not begin like a slab.
    #[error("this memory is not a slab: magic={magic:#018x}")]
    Magic {
        /// What it begins with.
        magic: u64,
    },
    /// Another version of the format.
    #[error("the slab has another version: version={version} known_version={VERSION}")]
    Version {
        /// Version found.
        version: u64,
    },
    /// Somebody already is this side of the slab.
    #[error("this side of the slab is taken already: side={side}")]
    Claimed {
        /// Which side.
        side: &'static str,
    },
    /// A system call failed.
    #[error("{call} failed: bytes={bytes}")]
    Os {
        /// Its name.
        call: &'static str,
        /// Bytes that it was about.
        bytes: u64,
        /// The cause.
        source: io::Error,
    },
}

/// Shown only where the limit tells it.
struct AvailableBytes(Option<u64>);

impl fmt::Display for AvailableBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |bytes| write!(f, " available_bytes={bytes}"))
    }
}

/// What the filling side did against the rules. The taker that sees it closes its side: nothing that comes after can be
/// trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// More filled slots are announced than there are slots.
    #[error("the filler announced impossible progress: published={published} taken={taken} slots={slots}")]
    Published {
        /// Its counter.
        published: u64,
        /// Our counter.
        taken: u64,
        /// Slots of the slab.
        slots: u32,
    },
    /// A slot that the slab does not have.
    #[error("the filler handed over a slot that does not exist: slot={slot} slots={slots}")]
    Slot {
        /// Its number.
        slot: u32,
        /// Slots of the slab.
        slots: u32,
    },
    /// A slot that is still with the taker.
    #[error("the filler handed over a slot that it does not have: slot={slot}")]
    NotReturned {
        /// Its number.
        slot: u32,
    },
}
