//! How a slab's memory becomes present: a portion at a time, front to back, before a loader begins
//! or by whoever lacks slots, several side by side.
//!
//! Huge pages are asked for as long as the kernel gives them without delay. What stays small is as good, only slower.

use std::time::Duration;

use nix::errno::Errno;

use crate::room::Promise;

/// What is made present at a time, from the front on: the bytes that one entry of the page table's middle level stands for,
/// on x86-64 and on arm64 with pages of 4 KiB.
pub(crate) const PORTION_BYTES: usize = 2 << 20;

/// Huge pages in vain after which no more are asked for: where memory is in pieces, each costs the kernel a search.
const COLLAPSES_FAILED_MAX: u32 = 8;
/// What as many small pages as make a huge one take, about. Huge ones that take longer, as the kernel must first move others
/// out of their way, are not worth it: [`COLLAPSE_PATIENCE`] is all that is lost by trying.
const SMALL_PAGES_TIME: Duration = Duration::from_micros(1000);
const COLLAPSE_PATIENCE: Duration = Duration::from_millis(4);

/// How asking for one huge page went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collapse {
    pub(crate) took: Duration,
    pub(crate) result: Result<(), Errno>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Growth {
    bytes: usize,
    /// The portion that is taken next.
    next: usize,
    /// Portions present from the front on.
    front: usize,
    /// Those present behind one that somebody is still at.
    early: Vec<usize>,
    /// What is not present.
    promise: Promise,
    patience: Patience,
}

#[derive(Debug, Default)]
struct Patience {
    spent: Duration,
    asked: u32,
    failed: u32,
    never: bool,
}

impl Growth {
    /// Of memory of `bytes` of which nothing is present.
    pub(crate) fn new(bytes: usize) -> Self {
        let promise = Promise::new(bytes as u64);
        Self { bytes, next: 0, front: 0, early: Vec::new(), promise, patience: Patience::default() }
    }

    /// Of memory that is all there.
    pub(crate) fn ended(bytes: usize) -> Self {
        let portions = bytes.div_ceil(PORTION_BYTES);
        let (promise, patience) = (Promise::new(0), Patience::default());
        Self { bytes, next: portions, front: portions, early: Vec::new(), promise, patience }
    }

    /// The next portion, for the caller to make present, and whether to ask for a huge page; none if all are taken.
    pub(crate) fn take(&mut self) -> Option<(usize, bool)> {
        if self.next * PORTION_BYTES >= self.bytes {
            return None;
        }
        self.next += 1;
        let Patience { spent, asked, failed, never } = self.patience;
        let is_patient =
            !never && failed < COLLAPSES_FAILED_MAX && spent <= COLLAPSE_PATIENCE + asked * SMALL_PAGES_TIME;
        Some((self.next - 1, is_patient))
    }

    /// The portion is present; how asking for a huge page went, if it was asked for.
    pub(crate) fn made(&mut self, portion: usize, collapse: Option<Collapse>) {
        if let Some(Collapse { took, result }) = collapse {
            self.patience.spent += took;
            self.patience.asked += 1;
            self.patience.failed += u32::from(result.is_err());
            self.patience.never |= result == Err(Errno::EINVAL);
        }
        self.promise.kept(PORTION_BYTES.min(self.bytes - portion * PORTION_BYTES) as u64);
        self.early.push(portion);
        while let Some(at) = self.early.iter().position(|&portion| portion == self.front) {
            self.early.swap_remove(at);
            self.front += 1;
        }
    }

    /// Bytes present from the front on.
    pub(crate) fn present_bytes(&self) -> usize {
        self.bytes.min(self.front * PORTION_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(growth: &mut Growth, took: Duration, result: Result<(), Errno>) -> bool {
        let (portion, is_patient) = growth.take().unwrap();
        growth.made(portion, is_patient.then_some(Collapse { took, result }));
        is_patient
    }

    #[test]
    fn what_is_present_ends_before_what_somebody_is_at() {
        let mut growth = Growth::new(3 * PORTION_BYTES + 1);
        let taken: Vec<usize> = std::iter::from_fn(|| growth.take()).map(|(portion, _)| portion).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        for (portion, portions) in [(2, 0), (0, 1), (3, 1)] {
            growth.made(portion, None);
            assert_eq!(growth.present_bytes(), portions * PORTION_BYTES);
        }
        assert_eq!(growth.promise.bytes(), PORTION_BYTES as u64, "one is not present yet");
        growth.made(1, None);
        assert_eq!(growth.promise.bytes(), 0);
        assert_eq!(growth.present_bytes(), 3 * PORTION_BYTES + 1);
        let mut ended = Growth::ended(PORTION_BYTES + 5);
        assert_eq!((ended.take(), ended.present_bytes()), (None, PORTION_BYTES + 5));
    }

    #[test]
    fn huge_pages_are_given_up_when_they_take_too_long_or_too_many_fail() {
        let (no_time, portions) = (Duration::ZERO, 100);
        let tries = |took: Duration, result| {
            let mut growth = Growth::new(portions * PORTION_BYTES);
            (0..portions).filter(|_| asked(&mut growth, took, result)).count()
        };
        assert_eq!(tries(no_time, Ok(())), portions);
        assert_eq!(tries(SMALL_PAGES_TIME, Ok(())), portions);
        assert_eq!(tries(2 * SMALL_PAGES_TIME, Ok(())), 5);
        assert_eq!(tries(10 * SMALL_PAGES_TIME, Ok(())), 1);
        assert_eq!(tries(no_time, Err(Errno::EAGAIN)), 8);
        assert_eq!(tries(no_time, Err(Errno::EINVAL)), 1);
    }
}
