//! A commit group on its way into the active segment: rows of many appends cut into blocks, written in one go, synced
//! once.
//!
//! A group is written whole or not at all: when writing fails, the file is cut back to where the group began and every
//! append of the group fails. When cutting back or syncing fails, what the disk holds is no longer known: the segment is
//! poisoned, and only opening the topic again (which reads what is there) helps.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;

use nix::errno::Errno;
use nix::sys::uio::pwritev;

use super::block::{self, BlockMeta, BlockRef, RUNS_MAX, Run};
use super::layout::{PAGE_BYTES, page_up};
use super::sums::{BlockSums, Summer};
use super::{Identity, Origin};
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::SchemaVersion;

/// Most buffers of one write; the kernel's limit.
const IOVECS_MAX: usize = 1024;
/// Most sources whose rows one partition knows: their list is part of every footer.
pub(super) const ORIGINS_MAX: usize = 1 << 20;
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// One append that waits for its group.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) rows: Rows,
    pub(super) origin: Option<Origin>,
    /// What the rows are.
    pub(super) version: SchemaVersion,
}

/// What an append adds: rows `from..` of it, at these offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    from: usize,
    pub(super) offsets: Range<u64>,
}

/// Rows `from..from + count` of the group's append number `item`.
#[derive(Clone, Copy, Debug)]
struct Piece {
    item: usize,
    from: usize,
    count: usize,
}

/// Gives every append its offsets from `end` on. Rows that their source has stored already are left out; `origins` is
/// asked for the next row of a source, the returned map holds those that change.
#[allow(clippy::type_complexity, reason = "two results of one pass")]
pub(super) fn place(
    group: &[Pending],
    mut end: u64,
    origins: &HashMap<u128, u64>,
) -> (Vec<Result<Placed>>, HashMap<u128, u64>) {
    let mut changed: HashMap<u128, u64> = HashMap::new();
    let placed = group.iter().map(|pending| {
        let count = pending.rows.count() as u64;
        let from = match pending.origin {
            None => 0,
            Some(Origin { source, first }) => {
                let next = changed.get(&source).or(origins.get(&source)).copied().unwrap_or(0);
                let after = first.checked_add(count).filter(|_| first <= next).ok_or_else(|| {
                    Error::invalid(format!(
                        "rows of a source must follow those stored, some are missing: source={source:032x} first={first} stored={next}"
                    ))
                })?;
                if next == 0 && origins.len() + changed.len() >= ORIGINS_MAX {
                    return Err(Error::invalid(format!("a partition knows at most {ORIGINS_MAX} sources: source={source:032x}"))
                        .with_hint("append without a source, or use more partitions"));
                }
                changed.insert(source, next.max(after));
                (next - first).min(count)
            }
        };
        let offsets = end..end + (count - from);
        end = offsets.end;
        Ok(Placed { from: from as usize, offsets })
    });
    (placed.collect(), changed)
}

/// Where and how a group is written.
pub(super) struct Target<'a> {
    pub(super) file: &'a File,
    pub(super) schema: &'a Schema,
    pub(super) identity: &'a Identity,
    pub(super) block_rows: u32,
    /// File position after the last group.
    pub(super) at: u64,
    /// Bytes known durable.
    pub(super) synced: u64,
    pub(super) now_ms: u64,
}

/// The blocks of a group as written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) blocks: Vec<BlockRef>,
    pub(super) file_end: u64,
}

/// Why a group was not written.
pub(super) enum NotWritten {
    /// Nothing of it is in the file.
    Cleanly(Error),
    /// The file could not be cut back.
    Poisoned(Error),
}

impl Target<'_> {
    /// Writes the placed rows of a group; all offsets are consecutive.
    pub(super) fn write(&self, group: &[Pending], placed: &[Result<Placed>]) -> Result<Written, NotWritten> {
        let cuts = self.cut(group, placed);
        let Some(base) = placed.iter().flatten().map(|placed| placed.offsets.start).next() else {
            return Ok(Written { blocks: Vec::new(), file_end: self.at });
        };
        let (headers, written) = self.headers(group, &cuts, base).map_err(NotWritten::Cleanly)?;
        let mut slices = Vec::new();
        for (header, pieces) in headers.iter().zip(&cuts) {
            slices.push(IoSlice::new(header));
            for column in 0..self.schema.columns().len() {
                let mut bytes = 0;
                for piece in pieces {
                    let part = self.part(group, piece, column);
                    bytes += part.len() as u64;
                    slices.push(IoSlice::new(part));
                }
                slices.push(IoSlice::new(&ZEROS[..(page_up(bytes) - bytes) as usize]));
            }
        }
        slices.retain(|slice| !slice.is_empty());
        write_all_at(self.file, &mut slices, self.at).map_err(|error| self.cut_back(error))?;
        Ok(written)
    }

    /// Cuts the rows into blocks of at most `block_rows` rows.
    fn cut(&self, group: &[Pending], placed: &[Result<Placed>]) -> Vec<Vec<Piece>> {
        let mut cuts: Vec<Vec<Piece>> = Vec::new();
        let mut room = 0;
        for (item, placed) in placed.iter().enumerate() {
            let Ok(placed) = placed else { continue };
            let mut from = placed.from;
            while from < group[item].rows.count() {
                if room == 0 || cuts.last().is_none_or(|cut| cut.len() == RUNS_MAX) {
                    cuts.push(Vec::new());
                    room = self.block_rows as usize;
                }
                let count = room.min(group[item].rows.count() - from);
                if let Some(cut) = cuts.last_mut() {
                    cut.push(Piece { item, from, count });
                }
                from += count;
                room -= count;
            }
        }
        cuts
    }

    fn headers(&self, group: &[Pending], cuts: &[Vec<Piece>], mut base: u64) -> Result<(Vec<Vec<u8>>, Written)> {
        let mut written = Written { blocks: Vec::with_capacity(cuts.len()), file_end: self.at };
        let mut headers = Vec::with_capacity(cuts.len());
        for (number, pieces) in cuts.iter().enumerate() {
            let rows = pieces.iter().map(|piece| piece.count as u32).sum();
            let meta = BlockMeta {
                incarnation: self.identity.incarnation,
                partition: self.identity.partition,
                at: written.file_end,
                base,
                rows,
                left: (cuts.len() - number - 1) as u32,
                synced: self.synced,
                time_ms: (self.now_ms, self.now_ms),
                runs: runs(group, pieces),
            };
            let header = block::encode(self.schema, &meta, &self.sums(group, pieces))?;
            let block = BlockRef { base, rows, header: meta.at, body: meta.at + header.len() as u64 };
            base = block.end();
            written.file_end = block.file_end(self.schema);
            written.blocks.push(block);
            headers.push(header);
        }
        Ok((headers, written))
    }

    fn sums(&self, group: &[Pending], pieces: &[Piece]) -> BlockSums {
        let columns = (0..self.schema.columns().len()).map(|column| {
            let mut summer = Summer::new();
            pieces.iter().for_each(|piece| summer.push(self.part(group, piece, column)));
            summer.finish()
        });
        BlockSums::new(columns.collect())
    }

    /// The bytes of one column of a piece.
    fn part<'a>(&self, group: &'a [Pending], piece: &Piece, column: usize) -> &'a [u8] {
        let row_bytes = self.schema.columns()[column].row_bytes();
        &group[piece.item].rows.column(column)[piece.from * row_bytes..(piece.from + piece.count) * row_bytes]
    }

    fn cut_back(&self, error: io::Error) -> NotWritten {
        let failed = Error::io("cannot append to the topic, nothing of it was stored", error);
        match self.file.set_len(self.at) {
            Ok(()) => NotWritten::Cleanly(failed),
            Err(error) => {
                NotWritten::Poisoned(Error::io("a failed append could not be cut off", error).with_source(failed))
            }
        }
    }
}

/// The rows of a block that have an origin; runs that go on are one.
fn runs(group: &[Pending], pieces: &[Piece]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0;
    for piece in pieces {
        if let Some(Origin { source, first }) = group[piece.item].origin {
            add_run(&mut runs, Run { source, first: first + piece.from as u64, at, rows: piece.count as u32 });
        }
        at += piece.count as u32;
    }
    runs
}

/// Adds a run, to the last one if it goes on there.
pub(super) fn add_run(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.source == run.source && last.next() == run.first && last.at + last.rows == run.at => {
            last.rows += run.rows;
        }
        _ => runs.push(run),
    }
}

/// Writes all slices, one after the other from `at`.
pub(super) fn write_all_at(file: &File, slices: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
    let mut rest = slices;
    while !rest.is_empty() {
        match pwritev(file, &rest[..rest.len().min(IOVECS_MAX)], at as i64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
