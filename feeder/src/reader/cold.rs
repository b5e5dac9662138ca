//! Which reads find their data cold, and so go past the page cache.
//!
//! Under [`DirectReads::Auto`](super::DirectReads::Auto) short reads are never: they are those of small columns, a page of
//! which holds the rows of several chunks and is then read once. Of the others every [`ASK_READS`]th of a file asks how much
//! of its own range is cached, and what the answer is holds up to the next question.

use std::fs::File;
use std::io;

use super::{Keep, ReadFile};

/// Shorter reads go through the cache.
pub(super) const SHORT_BYTES: u64 = 16 << 10;
/// One read of a file in so many asks whether its range is cached.
pub(super) const ASK_READS: u32 = 8;
/// A range of which less than one part in so many is cached is read past the cache.
const CACHED_PART: u64 = 2;
/// Files that a reader remembers the answer of.
const KNOWN_FILES: usize = 64;

/// Bytes of a range of a file that are cached.
pub(super) type Ask = fn(&File, u64, u64) -> io::Result<u64>;

#[derive(Clone, Copy, Default)]
struct Known {
    id: u64,
    asks_in: u32,
    cold: bool,
}

/// See the module. One per reader.
pub(super) struct Cold {
    /// `None`: everything is read past the cache.
    ask: Option<Ask>,
    /// What is cold is to be in the cache afterwards.
    pub(super) keep: Keep,
    known: [Known; KNOWN_FILES],
    /// Questions so far.
    pub(super) asked: u64,
}

impl Cold {
    pub(super) fn new(ask: Option<Ask>) -> Self {
        Self { ask, keep: Keep::Nothing, known: [Known::default(); KNOWN_FILES], asked: 0 }
    }

    /// Whether a read of `bytes` bytes at `offset` goes past the cache. An error where nobody can say: no further read does.
    pub(super) fn is_cold(&mut self, file: &ReadFile, offset: u64, bytes: u64) -> io::Result<bool> {
        let known = &mut self.known[file.id() as usize % KNOWN_FILES];
        if known.id != file.id() {
            *known = Known { id: file.id(), asks_in: 0, cold: self.ask.is_none() };
        }
        let Some(ask) = self.ask else { return Ok(known.cold) };
        if self.keep != Keep::Nothing || bytes < SHORT_BYTES {
            return Ok(false);
        }
        if known.asks_in > 0 {
            known.asks_in -= 1;
            return Ok(known.cold);
        }
        (known.asks_in, known.cold) = (ASK_READS - 1, false);
        self.asked += 1;
        let cached = ask(file.file(), offset, bytes).inspect_err(|_| self.ask = Some(|_, _, bytes| Ok(bytes)))?;
        known.cold = cached.saturating_mul(CACHED_PART) < bytes;
        Ok(known.cold)
    }

    /// Has a file read through the cache from now on, whatever is cached of it.
    pub(super) fn refuse(&mut self, file: &ReadFile) {
        self.known[file.id() as usize % KNOWN_FILES] = Known { id: file.id(), asks_in: u32::MAX, cold: false };
    }

    /// Whether what is cached makes any difference.
    pub(super) fn depends(&self) -> bool {
        self.ask.is_some()
    }
}
