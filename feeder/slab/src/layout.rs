//! Where everything lies in the slab's memory: pure offsets, and the checks on a header that somebody else wrote.
//!
//! ```text
//! offset 0      identity: magic, version, slots, slot bytes, total bytes      (u64 each, native order; never change)
//!       128     filled ring: descriptors published                            one line of 128 bytes each, so that
//!       256     filled ring: descriptors taken                                no two counters share what a core's
//!       384     taker waits          512     filler waits                     prefetcher pulls in together
//!       640     filler's side word   768     taker's side word
//!      1024     returned slots: one bit each, in u64 words
//!       ...     descriptors: 32 bytes each, a power of two of them, at least one per slot
//!       ...     slot memory, from a page border on: slot s at s * slot_bytes
//! ```
//!
//! Everything behind the identity is derived from it, so there is nothing in a header that could contradict itself. The
//! identity is read once; later changes of it by a hostile peer are never seen.

use crate::error::SlabError;
use crate::sync::ENTRY_WORDS;

/// Slots and slot memory lie on borders of this many bytes.
pub const PAGE_BYTES: usize = 4096;

/// Most slots of one slab.
pub const MAX_SLOTS: u32 = 1 << 20;

/// Most bytes of one slab.
pub const MAX_SLAB_BYTES: u64 = 1 << 42;

/// Version of the format. Another version is refused.
pub(crate) const VERSION: u64 = 1;

/// What a slab begins with; reads the same way round only on machines of the same byte order.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"FBAYSLAB");

/// Words of the identity.
pub(crate) const IDENTITY_WORDS: usize = 5;

pub(crate) const PUBLISHED_AT: usize = LINE_BYTES;
pub(crate) const TAKEN_AT: usize = 2 * LINE_BYTES;
pub(crate) const TAKER_WAITS_AT: usize = 3 * LINE_BYTES;
pub(crate) const FILLER_WAITS_AT: usize = 4 * LINE_BYTES;
pub(crate) const FILLER_SIDE_AT: usize = 5 * LINE_BYTES;
pub(crate) const TAKER_SIDE_AT: usize = 6 * LINE_BYTES;
pub(crate) const RETURNED_AT: usize = 8 * LINE_BYTES;

const LINE_BYTES: usize = 128;
const WORD_BYTES: usize = 8;

/// How many slots of how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of slots, at most [`MAX_SLOTS`].
    pub slots: u32,
    /// Bytes of one slot; a slab rounds them up to [`PAGE_BYTES`].
    pub slot_bytes: usize,
}

/// Offsets of one slab's parts; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Shape,
    pub(crate) returned_words: usize,
    pub(crate) entries: usize,
    pub(crate) entries_at: usize,
    pub(crate) slots_at: usize,
    pub(crate) total_bytes: usize,
}

impl Layout {
    /// The layout of a slab of `shape`, slot bytes rounded up to whole pages.
    pub(crate) fn of(shape: Shape) -> Result<Self, SlabError> {
        Self::of_numbers(u64::from(shape.slots), shape.slot_bytes as u64)
    }

    fn of_numbers(slots: u64, slot_bytes: u64) -> Result<Self, SlabError> {
        // Wide enough that no pair of u64 overflows: what does not fit is refused with its true size.
        let page = PAGE_BYTES as u128;
        let rounded = u128::from(slot_bytes).next_multiple_of(page);
        let words = u128::from(slots).div_ceil(64);
        let entries = u128::from(slots).next_power_of_two();
        let entries_at = (RETURNED_AT as u128 + words * WORD_BYTES as u128).next_multiple_of(LINE_BYTES as u128);
        let slots_at = (entries_at + entries * (ENTRY_WORDS * WORD_BYTES) as u128).next_multiple_of(page);
        let total = slots_at + u128::from(slots) * rounded;

        let refused = |reason| SlabError::Shape { reason, slots, slot_bytes, needed_bytes: total };
        if slots == 0 {
            return Err(refused("a slab needs slots"));
        }
        if slot_bytes == 0 {
            return Err(refused("a slab's slots need bytes"));
        }
        if slots > u64::from(MAX_SLOTS) {
            return Err(refused("too many slots for one slab"));
        }
        if total > u128::from(MAX_SLAB_BYTES) {
            return Err(refused("too large for a slab"));
        }
        let narrow = |value: u128| usize::try_from(value).map_err(|_| refused("too large for a slab"));
        Ok(Self {
            shape: Shape { slots: slots as u32, slot_bytes: narrow(rounded)? },
            returned_words: narrow(words)?,
            entries: narrow(entries)?,
            entries_at: narrow(entries_at)?,
            slots_at: narrow(slots_at)?,
            total_bytes: narrow(total)?,
        })
    }

    /// The words that a slab of this layout begins with.
    pub(crate) fn identity(&self) -> [u64; IDENTITY_WORDS] {
        [MAGIC, VERSION, u64::from(self.shape.slots), self.shape.slot_bytes as u64, self.total_bytes as u64]
    }

    /// The layout that `identity` tells, if it is one that [`Layout::identity`] would write and fits `file_bytes`.
    pub(crate) fn parse(identity: [u64; IDENTITY_WORDS], file_bytes: u64) -> Result<Self, SlabError> {
        let [magic, version, slots, slot_bytes, total_bytes] = identity;
        if magic != MAGIC {
            return Err(SlabError::Magic { magic });
        }
        if version != VERSION {
            return Err(SlabError::Version { version });
        }
        let layout = Self::of_numbers(slots, slot_bytes)?;
        if layout.shape.slot_bytes as u64 != slot_bytes {
            let needed_bytes = layout.total_bytes as u128;
            return Err(SlabError::Shape {
                reason: "a slab's slots must be whole pages",
                slots,
                slot_bytes,
                needed_bytes,
            });
        }
        if layout.total_bytes as u64 != total_bytes || total_bytes != file_bytes {
            return Err(SlabError::Size { file_bytes, header_bytes: layout.total_bytes as u64 });
        }
        Ok(layout)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(slots: u32, slot_bytes: usize) -> Layout {
        Layout::of(Shape { slots, slot_bytes }).unwrap()
    }

    #[test]
    fn parts_follow_each_other_without_overlap() {
        for slots in [1, 2, 3, 63, 64, 65, 128, 1000, MAX_SLOTS] {
            let layout = layout(slots, 1);
            assert_eq!(layout.shape, Shape { slots, slot_bytes: PAGE_BYTES });
            assert!(layout.returned_words * 64 >= slots as usize, "{layout:?}");
            assert!(layout.entries.is_power_of_two() && layout.entries >= slots as usize, "{layout:?}");
            assert!(RETURNED_AT + layout.returned_words * WORD_BYTES <= layout.entries_at, "{layout:?}");
            assert!(layout.entries_at + layout.entries * ENTRY_WORDS * WORD_BYTES <= layout.slots_at, "{layout:?}");
            assert_eq!(layout.slots_at % PAGE_BYTES, 0);
            assert_eq!(layout.total_bytes, layout.slots_at + slots as usize * PAGE_BYTES);
        }
    }

    #[test]
    fn one_counter_a_line() {
        let lines =
            [0, PUBLISHED_AT, TAKEN_AT, TAKER_WAITS_AT, FILLER_WAITS_AT, FILLER_SIDE_AT, TAKER_SIDE_AT, RETURNED_AT];
        for pair in lines.windows(2) {
            assert!(pair[1] - pair[0] >= LINE_BYTES, "{pair:?}");
        }
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_bytes_needed() {
        for (slots, slot_bytes) in [(0, 1), (1, 0), (MAX_SLOTS + 1, 1), (u32::MAX, usize::MAX)] {
            let error = Layout::of(Shape { slots, slot_bytes }).unwrap_err();
            assert!(matches!(error, SlabError::Shape { .. }), "{error}");
        }
        let error = Layout::of(Shape { slots: 1024, slot_bytes: 1 << 40 }).unwrap_err().to_string();
        assert!(error.contains(&format!("needed_bytes={}", (1u64 << 50) + 36864)), "{error}");
    }

    #[test]
    fn hostile_identities_are_refused() {
        let good = layout(3, 8192);
        let identity = good.identity();
        let bytes = good.total_bytes as u64;
        assert_eq!(Layout::parse(identity, bytes).unwrap(), good);

        let changed = |word: usize, value: u64| {
            let mut identity = identity;
            identity[word] = value;
            Layout::parse(identity, bytes).unwrap_err()
        };
        assert!(matches!(changed(0, 0), SlabError::Magic { magic: 0 }));
        assert!(matches!(changed(0, MAGIC.swap_bytes()), SlabError::Magic { .. }));
        assert!(matches!(changed(1, 2), SlabError::Version { version: 2 }));
        assert!(matches!(changed(2, 0), SlabError::Shape { .. }));
        assert!(matches!(changed(2, 1 << 40), SlabError::Shape { .. }));
        assert!(matches!(changed(2, u64::MAX), SlabError::Shape { .. }));
        assert!(matches!(changed(2, 4), SlabError::Size { .. }));
        assert!(matches!(changed(3, 8191), SlabError::Shape { .. }));
        assert!(matches!(changed(3, u64::MAX), SlabError::Shape { .. }));
        assert!(matches!(changed(3, 4096), SlabError::Size { .. }));
        assert!(matches!(changed(4, 0), SlabError::Size { .. }));
        assert!(matches!(Layout::parse(identity, bytes - 1), Err(SlabError::Size { .. })));
        assert!(matches!(Layout::parse(identity, bytes + 1), Err(SlabError::Size { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn an_accepted_identity_is_one_that_we_would_write(
            slots in prop_oneof![0u64..200, any::<u64>()],
            slot_bytes in prop_oneof![(0u64..64).prop_map(|pages| pages * 4096), any::<u64>()],
            file_bytes in any::<u64>(),
            honest in any::<bool>(),
        ) {
            let total = Layout::of_numbers(slots, slot_bytes).map_or(file_bytes, |layout| layout.total_bytes as u64);
            let file_bytes = if honest { total } else { file_bytes };
            let identity = [MAGIC, VERSION, slots, slot_bytes, file_bytes];
            if let Ok(layout) = Layout::parse(identity, file_bytes) {
                prop_assert_eq!(layout.identity(), identity);
                prop_assert_eq!(layout.total_bytes as u64, file_bytes);
                prop_assert!(file_bytes <= MAX_SLAB_BYTES);
            } else {
                prop_assert!(!honest || slots == 0 || slots > 200 || slot_bytes == 0 || slot_bytes > 64 * 4096);
            }
        }
    }
}
