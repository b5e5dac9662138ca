//! A unit becomes reads that land in slots; what came back is checked, finished and counted.
//!
//! Scatter, not gather: the destinations of a read are the rows' places in the slots to come. Rows of 4 KiB and more (and
//! runs of neighbours as long) are read straight into place; smaller ones go through a scratch that stays in L2 and are
//! copied out with non-temporal stores. Short gaps (headers, padding, other ranks' rows) land in a junk buffer rather
//! than cost a read. A unit that is to be checked is read through the scratch, widened to whole checksummed pieces. Extents
//! that lie in one block are read together, column after column, however small they are. What is stored under another
//! schema than it is read under takes the turns of [`evolve`].
//! In steady state nothing is allocated: jobs, reads and their lists are used again.

use std::ops::Range;
use std::sync::Arc;

use super::Dataset;
use super::apart::{self, Apart};
use super::bad::{BadSample, bad_rows, mismatch};
use super::blocks::{BlockSpan, Blocks, Located};
use super::evolve::{self, DefaultRows, Widener};
use super::feed::{Failure, Feed, Taken};
use super::layout::SlotLayout;
use super::reads::{Reads, token};
use super::scatters::{CopyOut, Scatters};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{BlockRef, BlockSums, PAGE_BYTES, PIECE_BYTES, column_at, crc32c};
use crate::plan::Run;
use crate::reader::{Part, Read, ReadError, ReadFile, Region, fence};

/// Gaps up to this size are read over, into the junk buffer.
pub(super) const JUNK_BYTES: usize = 16 << 10;
/// Blocks are read together until a read is so long. What cannot be read takes with it what is read by the same call.
const JOINED_BYTES: u64 = 128 << 10;
/// Rows, or runs of neighbouring rows, from this size on are read straight into their slots.
const DIRECT_BYTES: usize = 4096;
/// A column piece of at most so many runs is read straight whatever their size.
const DIRECT_RUNS: usize = 4;
/// Rows from this size on are copied past the cache.
const STREAMING_BYTES: usize = 256;

/// Border in the scratch, which words want; with thousands of small blocks in a unit, room comes first.
const SCRATCH_ALIGN_BYTES: usize = 64;

/// Indices of the regions given to the block reader.
pub(super) const SLAB: u32 = 0;
pub(super) const SCRATCH: u32 = 1;
pub(super) const JUNK: u32 = 2;

/// One unit on its way through one reader thread. Its lists are used again by later units.
#[derive(Default)]
pub(super) struct Job {
    pub(super) taken: Taken,
    /// Whether everything read is compared with its checksums.
    pub(super) check: bool,
    /// First byte of this job's part of the scratch.
    scratch: usize,
    scratch_used: usize,
    /// Reads submitted and not yet back.
    pub(super) reads_left: usize,
    /// The samples that each read brings.
    reads: Vec<Range<u64>>,
    /// The unit's runs, cut at the borders of blocks.
    pub(super) spans: Vec<Run>,
    pub(super) copies: Vec<CopyOut>,
    /// Rows of columns that their block does not have.
    defaults: Vec<DefaultRows>,
    checks: Vec<Check>,
    /// Rows of a unit to be checked that no block holds any more, with the reason: bad ones, of which nothing is read.
    lost: Vec<(Run, String)>,
    /// Checked rows that the scratch has no room for.
    apart: Vec<Apart>,
    failed: Vec<(Range<u64>, Failure)>,
    copied_bytes: u64,
}

impl Job {
    /// Bytes that the unit's rows took through the scratch.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

/// Whole checksummed pieces of one column buffer that wait in the scratch.
struct Check {
    /// Index into the segment's columns, and bytes of a row there.
    stored_at: usize,
    row_bytes: usize,
    at: usize,
    bytes: usize,
    first_piece: usize,
    block: BlockSpan,
    /// Samples of the unit that lie in this block.
    samples: Range<u64>,
}

/// See the module. One per reader thread.
pub(super) struct Assembler {
    blocks: Blocks,
    layout: Arc<SlotLayout>,
    slab: Region,
    scratch: Region,
    scratch_bytes: usize,
    block: Option<BlockSpan>,
    /// The parts of one block whose reads are still to be made, each with its first span.
    group: Vec<(usize, BlockSpan)>,
    /// Part lists that came back with their reads.
    spare: Vec<Vec<Part>>,
    /// File offset one past the read made last.
    read_end: u64,
    /// A checksummed piece, as memory of this thread alone.
    piece: Vec<u8>,
    /// The checksums used last: the columns of a block are checked one after the other.
    sums: Option<(Arc<ReadFile>, BlockRef, BlockSums)>,
    widener: Widener,
    scatters: Scatters,
}

impl Assembler {
    /// Bytes of scratch that one job needs: its small rows, or everything widened to whole pieces.
    pub(super) fn scratch_bytes(layout: &SlotLayout, unit_samples: u32) -> usize {
        (layout.row_bytes * unit_samples as usize + layout.columns.len() * 2 * PIECE_BYTES).next_multiple_of(4096)
    }

    pub(super) fn new(
        dataset: Arc<Dataset>,
        layout: Arc<SlotLayout>,
        slab: Region,
        scratch: Region,
        scratch_bytes: usize,
    ) -> Self {
        Self {
            blocks: Blocks::new(dataset),
            layout,
            slab,
            scratch,
            scratch_bytes,
            block: None,
            group: Vec::new(),
            spare: Vec::new(),
            read_end: 0,
            piece: Vec::new(),
            sums: None,
            widener: Widener::default(),
            scatters: Scatters::default(),
        }
    }

    /// Keeps the list of a read that came back.
    pub(super) fn reuse(&mut self, mut parts: Vec<Part>) {
        parts.clear();
        self.spare.push(parts);
    }

    /// The reads that bring the unit of `job`, the `number`th of this thread, appended to `out`.
    pub(super) fn build(&mut self, job: &mut Job, number: usize, out: &mut Vec<Read>) -> Result<()> {
        job.scratch = number * self.scratch_bytes;
        job.scratch_used = 0;
        job.reads.clear();
        job.spans.clear();
        job.copies.clear();
        job.defaults.clear();
        job.checks.clear();
        job.lost.clear();
        job.apart.clear();
        job.failed.clear();
        job.copied_bytes = 0;
        let first_read = out.len();
        self.group.clear();
        let mut known = 0..0;
        for at in 0..job.taken.unit.runs.len() {
            let mut run = job.taken.unit.runs[at];
            if known.start <= run.index && run.index + u64::from(run.count) <= known.end {
                // In the block of the one before, as nearly all are.
                job.spans.push(run);
                continue;
            }
            while run.count > 0 {
                let inside = self.block.as_ref().is_some_and(|block| (block.first..block.end).contains(&run.index));
                if !inside || self.group.is_empty() {
                    let block = match self.block.take().filter(|_| inside) {
                        Some(block) => block,
                        None => match self.blocks.locate(run.index)? {
                            Located::Block(block) => block,
                            Located::Lost { error, .. } if !job.check => return Err(error),
                            Located::Lost { end, error } => {
                                known = 0..0;
                                self.make_reads(job, number, out);
                                lose(job, &mut run, end, &error);
                                continue;
                            }
                        },
                    };
                    if !self.group.last().is_none_or(|(_, last)| last.is_beside(&block)) {
                        self.make_reads(job, number, out);
                    }
                    self.group.push((job.spans.len(), block.clone()));
                    self.block = Some(block);
                }
                known = self.block.as_ref().map_or(0..run.index, |block| block.first..block.end);
                let count = u64::from(run.count).min(known.end - run.index) as u32;
                job.spans.push(Run { count, ..run });
                run.index += u64::from(count);
                run.row += count;
                run.count -= count;
            }
        }
        self.make_reads(job, number, out);
        if out.len() == first_read {
            self.read_for_nothing(job, number, out);
        }
        job.reads_left = out.len() - first_read;
        Ok(())
    }

    /// A unit of defaults alone would never come back: reads a page of its block, which also shows that it is there.
    fn read_for_nothing(&mut self, job: &mut Job, number: usize, out: &mut Vec<Read>) {
        let Some(block) = &self.block else { return };
        let unit = &job.taken.unit;
        job.reads.push(unit.from..unit.from + u64::from(unit.count));
        let mut parts = self.spare.pop().unwrap_or_default();
        parts.push(Part { region: JUNK, at: 0, bytes: PAGE_BYTES as u32 });
        out.push(Read { file: block.file.clone(), offset: block.block.header, parts, token: token(number, 0) });
    }

    /// The reads of the spans of `self.group`, which lie in one block: column after column, so that offsets grow.
    fn make_reads(&mut self, job: &mut Job, number: usize, out: &mut Vec<Read>) {
        let mut group = std::mem::take(&mut self.group);
        if out.last().is_some_and(|read| self.read_end - read.offset >= JOINED_BYTES) {
            self.read_end = u64::MAX;
        }
        for at in 0..self.layout.by_file.len() {
            let column = self.layout.by_file[at];
            for (part, (from, block)) in group.iter().enumerate() {
                let to = group.get(part + 1).map_or(job.spans.len(), |(next, _)| *next);
                self.make_column_reads(job, column, (*from..to, block), number, out);
            }
        }
        group.clear();
        self.group = group;
    }

    /// The reads of one column of some spans, which lie in one part of a block.
    fn make_column_reads(
        &mut self,
        job: &mut Job,
        column: usize,
        (spans, block): (Range<usize>, &BlockSpan),
        number: usize,
        out: &mut Vec<Read>,
    ) {
        let (Some(first), Some(last)) = (job.spans[spans.clone()].first(), job.spans[spans.clone()].last()) else {
            return;
        };
        let samples = first.index..last.index + u64::from(last.count);
        let rows: u64 = job.spans[spans.clone()].iter().map(|span| u64::from(span.count)).sum();
        let row = block.row_of(samples.start) as usize;
        let count = (samples.end - samples.start) as usize;
        let mut reads = Reads {
            out,
            ranges: &mut job.reads,
            spare: &mut self.spare,
            end: &mut self.read_end,
            file: &block.file,
            number,
        };
        let placed = &self.layout.columns[column];
        let stored = match evolve::stored(block.upgrade.as_deref(), placed) {
            Ok(stored) => stored,
            Err(element) => return job.defaults.push(DefaultRows::new(column, placed, element, spans)),
        };
        let bytes = stored.row_bytes;
        let buffer = block.block.body + column_at(block.segment.schema(), block.block.rows, stored.at);
        let run_bytes = bytes * rows as usize / spans.len();
        let short = run_bytes < DIRECT_BYTES && spans.len() > DIRECT_RUNS;
        if !job.check && !short && stored.widen.is_none() {
            let (slots, first_step) = (&job.taken.slots, job.taken.unit.first_step);
            reads.push_all(job.spans[spans].iter().map(|span| {
                let slot = slots[(span.step - first_step) as usize] as usize;
                let at = slot * self.layout.slot_bytes + placed.offset + span.row as usize * bytes;
                let offset = buffer + block.row_of(span.index) * bytes as u64;
                let part = Part { region: SLAB, at, bytes: (span.count as usize * bytes) as u32 };
                (offset, part, span.index..span.index + u64::from(span.count))
            }));
            return;
        }
        let (mut start, mut end) = (row * bytes, (row + count) * bytes);
        if job.check {
            start = start / PIECE_BYTES * PIECE_BYTES;
            end = end.next_multiple_of(PIECE_BYTES).min(block.block.rows as usize * bytes);
            if job.scratch_used + (end - start) > self.scratch_bytes {
                return job.apart.push(Apart { column, stored, block: block.clone(), spans });
            }
        }
        let at = job.scratch + job.scratch_used;
        job.scratch_used += end - start;
        if job.copies.len() < self.layout.columns.len() * (2 * PIECE_BYTES / SCRATCH_ALIGN_BYTES) {
            job.scratch_used = job.scratch_used.next_multiple_of(SCRATCH_ALIGN_BYTES).min(self.scratch_bytes);
        }
        assert!(job.scratch_used <= self.scratch_bytes, "scratch of a job overflows");
        let part = Part { region: SCRATCH, at, bytes: (end - start) as u32 };
        reads.push(buffer + start as u64, part, samples.clone());
        let rows_at = at + row * bytes - start;
        job.copies.push(CopyOut {
            column,
            at: rows_at,
            lo: samples.start,
            spans,
            row_bytes: bytes,
            widen: stored.widen,
        });
        if job.check {
            let (stored_at, row_bytes, bytes, first_piece) = (stored.at, bytes, end - start, start / PIECE_BYTES);
            job.checks.push(Check { stored_at, row_bytes, at, bytes, first_piece, block: block.clone(), samples });
        }
    }

    /// Notes what became of the read `read_number` of `job`.
    pub(super) fn returned(&self, job: &mut Job, read_number: usize, result: std::result::Result<(), ReadError>) {
        job.reads_left -= 1;
        if let Err(error) = result {
            job.failed.push((job.reads[read_number].clone(), Failure::of(&Error::from(error))));
        }
    }

    /// Once all reads are back: checks what is to be checked, moves small rows to their slots. The samples that are not
    /// what was written come back; they are not counted yet.
    pub(super) fn finish(&mut self, job: &mut Job, bad: &mut Vec<BadSample>) {
        self.scatters.forget();
        for copy in &job.copies {
            let placed = &self.layout.columns[copy.column];
            if let Some(scatter) = self.scatters.of(copy, job, self.layout.slot_bytes) {
                self.slab.scatter(placed.offset, &self.scratch, copy.at, scatter);
                job.copied_bytes += scatter.bytes() as u64;
                continue;
            }
            let (slots, first_step) = (&job.taken.slots, job.taken.unit.first_step);
            for span in &job.spans[copy.spans.clone()] {
                let bytes = span.count as usize * copy.row_bytes;
                job.copied_bytes += bytes as u64;
                let from = copy.at + (span.index - copy.lo) as usize * copy.row_bytes;
                let slot = slots[(span.step - first_step) as usize] as usize;
                let at = slot * self.layout.slot_bytes + placed.offset + span.row as usize * placed.row_bytes;
                if let Some(widen) = copy.widen {
                    self.widener.turn(widen, &self.scratch, from, bytes, &self.slab, at);
                } else if bytes >= STREAMING_BYTES {
                    self.slab.copy_from_streaming(at, &self.scratch, from, bytes);
                } else {
                    self.slab.copy_from(at, &self.scratch, from, bytes);
                }
            }
        }
        job.defaults.iter().for_each(|rows| rows.write(&self.slab, &self.layout, &job.taken, &job.spans));
        if !job.copies.is_empty() {
            fence();
        }
        if job.failed.is_empty() {
            for at in 0..job.checks.len() {
                self.check(job, at, bad);
            }
        }
        if !job.apart.is_empty() {
            let Job { taken, apart, spans, failed, .. } = job;
            let slot_bytes = self.layout.slot_bytes;
            let slot_of = |span: &Run| taken.slots[(span.step - taken.unit.first_step) as usize] as usize * slot_bytes;
            apart::fill(apart, spans, &slot_of, (&self.layout, &self.slab), bad, failed);
        }
        for (span, why) in job.lost.drain(..) {
            bad_rows(&span, span.index..span.index + u64::from(span.count), &why, bad);
        }
    }

    fn check(&mut self, job: &mut Job, at: usize, bad: &mut Vec<BadSample>) {
        let check = &job.checks[at];
        let known = self
            .sums
            .take()
            .filter(|(file, block, _)| *block == check.block.block && Arc::ptr_eq(file, &check.block.file));
        let BlockSpan { segment, file, block, .. } = &check.block;
        let sums = match known.map_or_else(|| segment.sums(file.file(), block), |(_, _, sums)| Ok(sums)) {
            Ok(sums) => sums,
            // Without its header nothing can be said of a block's rows: all are as bad as those with a wrong checksum.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let why = error.report();
                return job.spans.iter().for_each(|span| bad_rows(span, check.samples.clone(), &why, bad));
            }
            Err(error) => return job.failed.push((check.samples.clone(), Failure::of(&error))),
        };
        let (schema, row_bytes) = (check.block.segment.schema(), check.row_bytes as u64);
        let mut buffer = std::mem::take(&mut self.piece);
        for (piece, at) in (check.first_piece..).zip((0..check.bytes).step_by(PIECE_BYTES)) {
            buffer.resize(PIECE_BYTES.min(check.bytes - at), 0);
            self.scratch.read(check.at + at, &mut buffer);
            if sums.column(check.stored_at).get(piece) == Some(&crc32c(&buffer)) {
                continue;
            }
            let (start, length) = ((piece * PIECE_BYTES) as u64, buffer.len() as u64);
            let rows = start / row_bytes..(start + length).div_ceil(row_bytes);
            let block = &check.block;
            let column = block.block.body + column_at(schema, block.block.rows, check.stored_at);
            for span in &job.spans {
                for index in span.index..span.index + u64::from(span.count) {
                    if check.samples.contains(&index) && rows.contains(&block.row_of(index)) {
                        let name = &schema.columns()[check.stored_at].name;
                        let error = mismatch(block, name, column + start, buffer.len());
                        bad.push(BadSample { index, span: *span, error });
                    }
                }
            }
        }
        self.piece = buffer;
        self.sums = Some((check.block.file.clone(), check.block.block, sums));
    }

    /// Puts the columns of one sample, each as long as a row, into the place of `sample`; zeros if there are none.
    pub(super) fn replace(&self, job: &Job, sample: &BadSample, columns: Option<&[Vec<u8>]>) {
        let (slot, row) = place_of(job, sample);
        for (at, placed) in self.layout.columns.iter().enumerate() {
            let to = slot as usize * self.layout.slot_bytes + placed.offset + row as usize * placed.row_bytes;
            match columns {
                Some(columns) => self.slab.write(to, &columns[at]),
                None => self.slab.write(to, &vec![0; placed.row_bytes]),
            }
        }
    }

    /// Fails the steps that needed what could not be read, and counts everything as there. The caller then calls
    /// [`Feed::done`].
    pub(super) fn count(job: &mut Job, feed: &Feed) {
        job.taken.count_rows();
        for (samples, failure) in job.failed.drain(..) {
            for span in &job.spans {
                if span.index < samples.end && samples.start < span.index + u64::from(span.count) {
                    feed.fail(seq_of(&job.taken, span), &failure);
                }
            }
        }
    }

    /// Fails every step of a unit whose reads could not even be made.
    pub(super) fn give_up(job: &mut Job, error: &Error, feed: &Feed) {
        job.spans.clear();
        job.spans.extend(job.taken.unit.runs.iter().cloned());
        job.failed.clear();
        let unit = &job.taken.unit;
        job.failed.push((unit.from..unit.from + u64::from(unit.count), Failure::of(error)));
        Self::count(job, feed);
    }
}

/// Takes the samples before `end` out of `run`, as bad ones.
fn lose(job: &mut Job, run: &mut Run, end: u64, error: &Error) {
    let span = Run { count: u64::from(run.count).min(end - run.index) as u32, ..*run };
    job.lost.push((span, error.report()));
    job.spans.push(span);
    run.index += u64::from(span.count);
    run.row += span.count;
    run.count -= span.count;
}

/// The `seq` of the step that a run belongs to.
pub(super) fn seq_of(taken: &Taken, run: &Run) -> u64 {
    taken.first_seq + (run.step - taken.unit.first_step)
}

/// Slot and row of a bad sample.
pub(super) fn place_of(job: &Job, sample: &BadSample) -> (u32, u32) {
    let slot = job.taken.slots[(sample.span.step - job.taken.unit.first_step) as usize];
    (slot, sample.span.row + (sample.index - sample.span.index) as u32)
}
