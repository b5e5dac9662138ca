//! What an active segment holds: the walk over its headers, for the writer's recovery and for readers alike.
//!
//! Both see the same rows, because the rule is one of the bytes alone: whole commit groups, up to the first that is not
//! whole. What comes after is a *torn tail*, never acknowledged as durable. Bytes that were durable once (a later header
//! or the hint says so) and are wrong now are *damage*: they are named, their offsets stay lost, and the rows after them
//! stay readable. Rows that are not known durable are verified against their checksums, because a crash of the machine
//! may leave a header without its body.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::Identity;
use super::block::{self, BadBody, BlockRef, Header, NoHeader};
use super::files::Hint;
use super::layout::PAGE_BYTES;
use crate::schema::Schema;

/// Why offsets are lost without bytes that would be wrong.
const CUT_SHORT: &str = "the file is shorter than what was durable";

/// A stretch of a segment that was durable and is unreadable now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hole {
    /// Number of the block in its file, counting what is readable before it.
    pub(super) block: usize,
    /// File position where the damage begins.
    pub(super) position: u64,
    /// Offsets lost.
    pub(super) offsets: Range<u64>,
    pub(super) why: &'static str,
}

/// The state of a walk; it can go on later, when the file has grown.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub(super) blocks: Vec<BlockRef>,
    pub(super) holes: Vec<Hole>,
    /// File position after the last whole group.
    pub(super) good: u64,
    /// Offset after the last whole group.
    pub(super) end: u64,
    /// Bytes known durable.
    pub(super) synced: u64,
    /// Whole blocks beyond `good`, and their rows: what a torn tail loses.
    pub(super) torn_rows: u64,
}

/// The file that is walked over.
pub(super) struct Walk<'a> {
    pub(super) file: &'a File,
    pub(super) len: u64,
    pub(super) schema: &'a Arc<Schema>,
    pub(super) identity: &'a Identity,
    pub(super) hint: Hint,
}

impl Scan {
    /// A walk that begins after the preamble.
    pub(super) fn new(preamble_bytes: u64, base: u64) -> Self {
        Self { blocks: Vec::new(), holes: Vec::new(), good: preamble_bytes, end: base, synced: 0, torn_rows: 0 }
    }

    /// Goes on from the last whole group to the end of the file. `each` sees the headers of the blocks kept, in order.
    /// Only failed reads are errors.
    pub(super) fn advance(&mut self, walk: &Walk<'_>, mut each: impl FnMut(&Header)) -> std::io::Result<()> {
        let headers = walk.headers(self.good)?;
        // The most that any header, or the hint, says of durable bytes.
        let said = headers.iter().map(|header| header.meta.synced.min(header.meta.at)).chain([walk.hint.synced]);
        self.synced = said.max().unwrap_or(0).max(self.synced).min(walk.len);
        self.torn_rows = 0;
        let (mut at, mut expected) = (self.good, self.end);
        let mut group: Vec<&Header> = Vec::new();
        let mut coming = headers.iter().peekable();
        while at < walk.len {
            let why = match coming.next_if(|header| header.meta.at == at) {
                // With a higher offset: rows were lost with the end of the file, and writing went on after them.
                Some(header) if header.meta.base == expected || header.meta.base > expected && group.is_empty() => {
                    if header.meta.base > expected {
                        self.lose(at, expected..header.meta.base, CUT_SHORT);
                    }
                    at = header.block.file_end(walk.schema);
                    expected = header.block.end();
                    group.push(header);
                    if header.meta.left == 0 && !self.take_group(walk, &mut group, &mut each)? {
                        return Ok(());
                    }
                    continue;
                }
                Some(_) => "the block's offset does not follow",
                None => walk.header(at)?.err().unwrap_or("the block appeared just now"),
            };
            while coming.next_if(|header| header.meta.base <= expected).is_some() {}
            let Some((next_at, next_offset)) = self.after_hole(walk, at, expected, coming.peek().copied()) else {
                break;
            };
            // What is durable was acknowledged with its whole group, so blocks before the hole are good.
            group.drain(..).for_each(|header| self.take(header, walk, &mut each));
            self.lose(at, expected..next_offset, why);
            (at, expected) = (next_at, next_offset);
            self.good = at;
        }
        if walk.hint.end > expected {
            group.drain(..).for_each(|header| self.take(header, walk, &mut each));
            self.lose(self.good, expected..walk.hint.end, CUT_SHORT);
        }
        self.torn_rows += group.iter().map(|header| u64::from(header.meta.rows)).sum::<u64>();
        Ok(())
    }

    fn lose(&mut self, position: u64, offsets: Range<u64>, why: &'static str) {
        self.end = offsets.end;
        self.holes.push(Hole { block: self.blocks.len() + self.holes.len(), position, offsets, why });
    }

    /// Keeps a whole group if its rows are what their checksums say, or known durable. False: the tail begins here.
    fn take_group(
        &mut self,
        walk: &Walk<'_>,
        group: &mut Vec<&Header>,
        each: &mut impl FnMut(&Header),
    ) -> std::io::Result<bool> {
        for header in group.iter() {
            if header.block.file_end(walk.schema) > self.synced {
                match block::read_rows(walk.file, walk.schema, header) {
                    Ok(_) => {}
                    Err(BadBody::Io(error)) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error),
                    Err(_) => {
                        self.torn_rows += group.iter().map(|header| u64::from(header.meta.rows)).sum::<u64>();
                        return Ok(false);
                    }
                }
            }
        }
        group.drain(..).for_each(|header| self.take(header, walk, each));
        Ok(true)
    }

    fn take(&mut self, header: &Header, walk: &Walk<'_>, each: &mut impl FnMut(&Header)) {
        self.blocks.push(header.block);
        self.good = header.block.file_end(walk.schema);
        self.end = header.block.end();
        each(header);
    }

    /// If the bytes at `at` were durable, where reading can go on: file position and offset. `None` for a torn tail.
    fn after_hole(&self, walk: &Walk<'_>, at: u64, expected: u64, next: Option<&Header>) -> Option<(u64, u64)> {
        if at >= self.synced {
            return None;
        }
        let hint = walk.hint;
        let known = hint.synced > at && hint.synced <= walk.len && hint.end > expected;
        next.map(|next| (next.meta.at, next.meta.base)).or(known.then_some((hint.synced, hint.end)))
    }
}

impl Walk<'_> {
    fn header(&self, at: u64) -> std::io::Result<Result<Header, &'static str>> {
        match block::read_header(self.file, self.schema, self.identity, at, self.len) {
            Ok(header) => Ok(Ok(header)),
            Err(NoHeader::Bad(why)) => Ok(Err(why)),
            Err(NoHeader::Short) => Ok(Err("the file ends inside a block")),
            Err(NoHeader::Io(error)) => Err(error),
        }
    }

    /// All good headers from `at` on, looking at every page border that is not inside a good block.
    fn headers(&self, mut at: u64) -> std::io::Result<Vec<Header>> {
        let mut headers = Vec::new();
        while at < self.len {
            match self.header(at)? {
                Ok(header) => {
                    at = header.block.file_end(self.schema);
                    headers.push(header);
                }
                Err(_) => at += PAGE_BYTES,
            }
        }
        Ok(headers)
    }
}
