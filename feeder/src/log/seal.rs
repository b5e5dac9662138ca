//! Sealing: from an active segment to an Arrow file that never changes again.
//!
//! A segment whose blocks are full already gets its footer in place and another name. One of many small blocks is
//! gathered: its rows are written as full blocks to a new file, which takes its name when it is durable. Either way a
//! crash leaves the active segment or the sealed one, and a reader that has the active file open goes on reading it.

use std::fs::{self, File};
use std::io::IoSlice;
use std::path::Path;

use super::Identity;
use super::block::{self, BlockMeta, BlockRef, Header, RUNS_MAX, Run};
use super::commit::{NotWritten, add_run, write_all_at};
use super::files::{self, SegmentName};
use super::footer::{self, Footer};
use super::frame;
use super::layout::{PAGE_BYTES, page_up};
use super::sums::{BlockSums, Summer};
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::versions::SchemaVersion;

/// Gathering is worth its second writing when it saves more than one in this many blocks.
const GATHER_SHARE: usize = 8;

/// An active segment that is to be sealed.
pub(super) struct Sealing<'a> {
    pub(super) dir: &'a Path,
    pub(super) file: &'a File,
    pub(super) version: &'a SchemaVersion,
    pub(super) identity: &'a Identity,
    pub(super) block_rows: u32,
    /// File position after the last block.
    pub(super) file_end: u64,
    /// What the footer is to say.
    pub(super) footer: Footer,
}

impl Sealing<'_> {
    /// Whether so many blocks are short that the segment is better written again. One with damage never is: bytes that
    /// are wrong must not get new checksums.
    pub(super) fn wants_gathering(&self) -> bool {
        let rows: u64 = self.footer.blocks.iter().map(|block| u64::from(block.rows)).sum();
        let whole = rows == self.footer.end - self.footer.base;
        let ideal = rows.div_ceil(u64::from(self.block_rows)) as usize;
        whole && self.footer.blocks.len() > ideal + ideal / GATHER_SHARE
    }

    /// Adds the footer to the active file and gives it its sealed name.
    pub(super) fn in_place(&self) -> Result<(), NotWritten> {
        let open = self.name().open(self.dir);
        let failed = |error| Error::io(format!("cannot seal segment: path={}", open.display()), error);
        let bytes = self.footer_bytes(&self.footer).map_err(NotWritten::Cleanly)?;
        let cut_back = |error: Error| match self.file.set_len(self.file_end) {
            Ok(()) => NotWritten::Cleanly(error),
            Err(error) => NotWritten::Poisoned(failed(error)),
        };
        write_all_at(self.file, &mut [IoSlice::new(&bytes)], self.file_end).map_err(|error| cut_back(failed(error)))?;
        self.file.sync_all().map_err(|error| NotWritten::Poisoned(failed(error)))?;
        let sealed = self.name().sealed(self.dir);
        fs::rename(&open, sealed).map_err(|error| cut_back(failed(error)))?;
        files::sync_dir(self.dir).map_err(NotWritten::Poisoned)
    }

    /// Writes the rows as full blocks to a new file and puts that in the active one's place.
    pub(super) fn gathered(&self) -> Result<(), NotWritten> {
        let sealed = self.name().sealed(self.dir);
        let beside = files::unfinished(&sealed);
        let failed = |error| Error::io(format!("cannot seal segment: path={}", beside.display()), error);
        let write = || {
            let file = File::create(&beside).map_err(failed)?;
            self.rewrite(&file, &beside)?;
            file.sync_all().map_err(failed)?;
            fs::rename(&beside, &sealed).map_err(failed)
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&beside);
            return Err(NotWritten::Cleanly(error));
        }
        files::sync_dir(self.dir).map_err(NotWritten::Poisoned)?;
        // Beside its sealed form it counts for nothing; the next writer removes it if this fails.
        let _ = files::remove(&self.name().open(self.dir));
        Ok(())
    }

    fn name(&self) -> SegmentName {
        SegmentName { base: self.footer.base, schema: self.version.number }
    }

    fn footer_bytes(&self, footer: &Footer) -> Result<Vec<u8>> {
        footer::encode(&self.version.schema, self.identity, footer)
            .map_err(|why| Error::invalid(format!("cannot seal: {why}")))
    }

    fn rewrite(&self, file: &File, path: &Path) -> Result<()> {
        let preamble = frame::preamble(&self.version.schema, self.identity, self.footer.base);
        let failed = |error| Error::io(format!("cannot seal segment: path={}", path.display()), error);
        write_all_at(file, &mut [IoSlice::new(&preamble)], 0).map_err(failed)?;
        let mut out = Gathered { at: preamble.len() as u64, base: self.footer.base, blocks: Vec::new() };
        let mut parts: Vec<(Header, Rows)> = Vec::new();
        let mut held = 0;
        for block in &self.footer.blocks {
            if block.base != out.base + held as u64 {
                return Err(Error::corrupt(format!("rows are missing: path={} offset={}", path.display(), block.base)));
            }
            let (header, rows) = self.read(block)?;
            held += rows.count();
            parts.push((header, rows));
            while held >= self.block_rows as usize {
                self.write_block(file, &mut out, &mut parts, self.block_rows as usize).map_err(|e| e.at(path))?;
                held -= self.block_rows as usize;
            }
        }
        if held > 0 {
            self.write_block(file, &mut out, &mut parts, held).map_err(|e| e.at(path))?;
        }
        let footer = Footer { blocks: out.blocks, ..self.footer.clone() };
        write_all_at(file, &mut [IoSlice::new(&self.footer_bytes(&footer)?)], out.at).map_err(failed)
    }

    fn read(&self, block: &BlockRef) -> Result<(Header, Rows)> {
        let damaged = |why: String| {
            Error::corrupt(format!(
                "a block is damaged, {why}: path={} position={} offset={}",
                self.name().open(self.dir).display(),
                block.header,
                block.base
            ))
        };
        let header = block::read_header(self.file, &self.version.schema, self.identity, block.header, self.file_end)
            .map_err(|why| damaged(format!("{why:?}")))?;
        let rows =
            block::read_rows(self.file, &self.version.schema, &header).map_err(|why| damaged(format!("{why:?}")))?;
        Ok((header, rows))
    }

    /// Writes the first `count` rows of `parts` as one block and takes them out.
    fn write_block(
        &self,
        file: &File,
        out: &mut Gathered,
        parts: &mut Vec<(Header, Rows)>,
        count: usize,
    ) -> Result<(), Unwritten> {
        let mut taken: Vec<Rows> = Vec::new();
        let (mut runs, mut time_ms, mut left) = (Vec::<Run>::new(), (u64::MAX, 0), count);
        while left > 0 {
            let (header, rows) = &mut parts[0];
            let take = left.min(rows.count());
            let skipped = header.meta.rows as usize - rows.count();
            let done = (count - left) as u32;
            runs_of(&header.meta.runs, skipped as u32, take as u32, done).for_each(|run| add_run(&mut runs, run));
            time_ms = (header.meta.time_ms.0.min(time_ms.0), header.meta.time_ms.1.max(time_ms.1));
            taken.push(rows.slice(0, take));
            left -= take;
            match take == rows.count() {
                true => drop(parts.remove(0)),
                false => *rows = rows.slice(take, rows.count() - take),
            }
        }
        // The footer knows every source; runs that a header has no room for are not missed.
        runs.truncate(RUNS_MAX);
        let meta = BlockMeta {
            incarnation: self.identity.incarnation,
            partition: self.identity.partition,
            at: out.at,
            base: out.base,
            rows: count as u32,
            left: 0,
            synced: 0,
            time_ms,
            runs,
        };
        let columns = 0..self.version.schema.columns().len();
        let sums = columns.clone().map(|column| {
            let mut summer = Summer::new();
            taken.iter().for_each(|rows| summer.push(rows.column(column)));
            summer.finish()
        });
        let header =
            block::encode(&self.version.schema, &meta, &BlockSums::new(sums.collect())).map_err(Unwritten::Header)?;
        let zeros = [0; PAGE_BYTES as usize];
        let mut slices = vec![IoSlice::new(&header)];
        for column in columns {
            let bytes: u64 = taken.iter().map(|rows| rows.column(column).len() as u64).sum();
            slices.extend(taken.iter().map(|rows| IoSlice::new(rows.column(column))));
            slices.push(IoSlice::new(&zeros[..(page_up(bytes) - bytes) as usize]));
        }
        slices.retain(|slice| !slice.is_empty());
        write_all_at(file, &mut slices, out.at).map_err(Unwritten::Io)?;
        let block = BlockRef { base: out.base, rows: count as u32, header: out.at, body: out.at + header.len() as u64 };
        (out.at, out.base) = (block.file_end(&self.version.schema), block.end());
        out.blocks.push(block);
        Ok(())
    }
}

/// Where the new file stands.
struct Gathered {
    at: u64,
    base: u64,
    blocks: Vec<BlockRef>,
}

enum Unwritten {
    Header(Error),
    Io(std::io::Error),
}

impl Unwritten {
    fn at(self, path: &Path) -> Error {
        match self {
            Self::Header(error) => error,
            Self::Io(error) => Error::io(format!("cannot seal segment: path={}", path.display()), error),
        }
    }
}

/// The runs of rows `from..from + count` of a block, as they stand when these rows begin at row `at` of another.
fn runs_of(runs: &[Run], from: u32, count: u32, at: u32) -> impl Iterator<Item = Run> {
    runs.iter().filter_map(move |run| {
        let (start, end) = (run.at.max(from), (run.at.saturating_add(run.rows)).min(from + count));
        (start < end).then(|| Run {
            source: run.source,
            first: run.first.saturating_add(u64::from(start - run.at)),
            at: start - from + at,
            rows: end - start,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_to_the_rows_taken() {
        let run = |first, at, rows| Run { source: 1, first, at, rows };
        let runs = [run(100, 2, 3), run(500, 5, 4)];
        let cut = |from, count, at| runs_of(&runs, from, count, at).collect::<Vec<_>>();
        assert_eq!(cut(0, 9, 0), runs);
        assert_eq!(cut(0, 2, 0), []);
        assert_eq!(cut(3, 4, 10), [run(101, 10, 2), run(500, 12, 2)]);
        assert_eq!(cut(8, 1, 0), [run(503, 0, 1)]);
    }
}
