//! Memory that direct reads land in: one region on huge pages, lent out in stretches as long as each read.
//!
//! On small pages a request falls apart into too many segments for the device, a third of the speed. The first room that is
//! large enough is lent, so short reads stay in the same few pages: huge pages are dear to get, and what is used again and
//! again stays in the caches.

use std::io;

use super::Region;

/// The unit of lending.
const GRAIN_BYTES: usize = 64 << 10;
/// Most that is lent for one read: 1 MiB, with a grain for what lies beside it up to the borders.
pub(super) const LOAN_BYTES: usize = (1 << 20) + GRAIN_BYTES;
/// Most grains, in three huge pages: five of the longest reads are all that a device gains from, and every huge page may
/// take milliseconds to get.
const GRAINS_MAX: usize = 96;
const BITS: usize = u128::BITS as usize;
/// Says whether the kernel gives huge pages at all.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Makes memory, and says whether it may be on huge pages.
pub(super) type Alloc = fn(usize) -> io::Result<(Region, io::Result<()>)>;

/// See the module.
pub(super) struct Bounces {
    region: Region,
    /// Bit i: grain i is not lent.
    free: u128,
    /// Why the region is not on huge pages, if it is not.
    small: Option<String>,
}

impl Bounces {
    /// For `depth` of the longest reads, if those are not too many. Costs address space; memory is taken by the first reads.
    pub(super) fn new(depth: usize, alloc: Alloc) -> io::Result<Self> {
        let bytes = Self::bytes(depth);
        let (grains, (region, advised)) = (bytes / GRAIN_BYTES, alloc(bytes)?);
        let never = || std::fs::read_to_string(HUGE_PAGES).ok().filter(|text| text.contains("[never]"));
        let small = match advised {
            Ok(()) => never().map(|_| format!("{HUGE_PAGES} is never")),
            Err(error) => Some(error.to_string()),
        };
        Ok(Self { region, free: u128::MAX >> (BITS - grains), small })
    }

    /// Their length for `depth` reads.
    pub(super) fn bytes(depth: usize) -> usize {
        depth.saturating_mul(LOAN_BYTES / GRAIN_BYTES).min(GRAINS_MAX) * GRAIN_BYTES
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Why they are not on huge pages, if they are not.
    pub(super) fn small(&self) -> Option<&str> {
        self.small.as_deref()
    }

    /// The number of grains.
    pub(super) fn grains(&self) -> usize {
        self.region.len() / GRAIN_BYTES
    }

    /// How many of them are not lent.
    #[cfg(test)]
    pub(super) fn free_grains(&self) -> usize {
        self.free.count_ones() as usize
    }

    /// Where a grain is in the region.
    pub(super) fn at(grain: usize) -> usize {
        grain * GRAIN_BYTES
    }

    /// Lends room for `bytes`, at least 1 and at most [`LOAN_BYTES`]: its first grain.
    pub(super) fn lend(&mut self, bytes: usize) -> Option<usize> {
        // Bit i stays set where as many grains as needed are free from i on.
        let starts = (1..grains_of(bytes)).fold(self.free, |starts, next| starts & (self.free >> next));
        let first = starts.trailing_zeros() as usize;
        (starts != 0).then(|| {
            self.free &= !mask(first, bytes);
            first
        })
    }

    /// Takes back what was lent for `bytes` from grain `first` on.
    pub(super) fn take_back(&mut self, first: usize, bytes: usize) {
        debug_assert_eq!(self.free & mask(first, bytes), 0, "room taken back that is not lent");
        self.free |= mask(first, bytes);
    }
}

fn grains_of(bytes: usize) -> usize {
    bytes.div_ceil(GRAIN_BYTES)
}

fn mask(first: usize, bytes: usize) -> u128 {
    (u128::MAX >> (BITS - grains_of(bytes))) << first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounces(depth: usize) -> Bounces {
        Bounces::new(depth, Region::alloc_advised).unwrap()
    }

    #[test]
    fn what_is_lent_never_overlaps_and_can_be_lent_again() {
        let mut bounces = bounces(8);
        assert_eq!((bounces.grains(), bounces.region().len()), (96, 6 << 20));
        for _ in 0..3 {
            let long: Vec<_> = std::iter::from_fn(|| bounces.lend(LOAN_BYTES)).collect();
            assert_eq!(long, [0, 17, 34, 51, 68]);
            let short: Vec<_> = std::iter::from_fn(|| bounces.lend(1)).collect();
            assert_eq!(short, (85..96).collect::<Vec<_>>());
            long.into_iter().for_each(|first| bounces.take_back(first, LOAN_BYTES));
            short.into_iter().for_each(|first| bounces.take_back(first, 1));
        }
        assert_eq!(bounces.free.count_ones(), 96);
    }

    #[test]
    fn the_first_room_that_is_large_enough_is_lent() {
        let mut bounces = bounces(1);
        assert_eq!(bounces.grains(), 17);
        assert_eq!([3, 2, 1, 4].map(|grains| bounces.lend(grains * GRAIN_BYTES)), [Some(0), Some(3), Some(5), Some(6)]);
        bounces.take_back(3, 2 * GRAIN_BYTES);
        assert_eq!(bounces.lend(2 * GRAIN_BYTES + 1), Some(10));
        assert_eq!(bounces.lend(2 * GRAIN_BYTES), Some(3));
        assert_eq!(bounces.lend(5 * GRAIN_BYTES), None);
        assert_eq!(bounces.lend(4 * GRAIN_BYTES), Some(13));
        assert_eq!(bounces.lend(1), None);
    }

    #[test]
    fn why_pages_are_small_is_known() {
        let refused: Alloc = |bytes| Ok((Region::alloc(bytes)?, Err(io::Error::from_raw_os_error(libc::EINVAL))));
        let bounces = Bounces::new(1, refused).unwrap();
        assert!(bounces.small().unwrap().contains("os error 22"));
        assert!(Bounces::new(1, |_| Err(io::ErrorKind::OutOfMemory.into())).is_err());
    }
}
