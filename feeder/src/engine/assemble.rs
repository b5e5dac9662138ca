//! A unit becomes reads that land in slots; what came back is checked, finished and counted.
//!
//! Scatter, not gather: the destinations of a read are the rows' places in the slots to come. Rows of 4 KiB and more (and
//! runs of neighbours as long) are read straight into place; smaller ones go through a scratch that stays in L2 and are
//! copied out with non-temporal stores: narrow ones put together in runs where a unit brings whole pools ([`gathers`]), else
//! as words of their own ([`scatters`]). Short gaps (headers, padding, other ranks' rows) land in a junk buffer rather
//! than cost a read. What is to be checked is read through the scratch, widened to whole checksummed pieces: all, or of what is
//! read one block's part in [`Checksum::SAMPLE`], so that no unit takes much longer than others. Extents
//! that lie in one block are read together, column after column, however small they are. What is stored under another
//! schema than it is read under takes the turns of [`evolve`].
//! In steady state nothing is allocated: jobs, reads and their lists are used again.
//!
//! [`gathers`]: super::gathers
//! [`scatters`]: super::scatters

use std::ops::Range;
use std::sync::Arc;

use super::Dataset;
use super::apart::{self, Apart};
use super::bad::{BadSample, bad_rows};
use super::blocks::{BlockSpan, Blocks, ColumnsAt, Grouped, Located, within};
use super::checks::{Check, Checker, Sampler};
use super::evolve::{self, DefaultRows, Widener};
use super::feed::{Failure, Feed, Taken};
use super::gathers::Gathers;
use super::layout::{SCRATCH_ALIGN_BYTES, SlotLayout, UnitSize};
use super::reads::{Reads, token};
use super::scatters::{CopyOut, Scatters};
use super::settings::Checksum;
use crate::error::{Error, Result};
use crate::log::{PAGE_BYTES, PIECE_BYTES};
use crate::plan::{Run, Unit};
use crate::reader::{Part, Read, ReadError, Region, fence};

/// Gaps up to this size are read over, into the junk buffer.
pub(super) const JUNK_BYTES: usize = 16 << 10;
/// Blocks are read together until a read is so long. What cannot be read takes with it what is read by the same call.
const BLOCKS_JOINED_BYTES: u64 = 128 << 10;
/// Rows, or runs of neighbouring rows, from this size on are read straight into their slots.
const DIRECT_BYTES: usize = 4096;
/// A column piece of at most so many runs is read straight whatever their size.
const DIRECT_RUNS: usize = 4;
/// Rows from this size on are copied past the cache.
const STREAMING_BYTES: usize = 256;

/// Indices of the regions given to the block reader.
pub(super) const SLAB: u32 = 0;
pub(super) const SCRATCH: u32 = 1;
pub(super) const JUNK: u32 = 2;

/// One unit on its way through one reader thread. Its lists are used again by later units.
#[derive(Default)]
pub(super) struct Job {
    /// Its runs are cut at the borders of blocks as reads are made of them. A range of them is called spans.
    pub(super) taken: Taken,
    /// Whether the part whose reads are made is compared with its checksums, and how many bytes of the unit are.
    check: bool,
    pub(super) checked_bytes: u64,
    /// First byte of this job's part of the scratch, and how much of it checked pieces use.
    scratch: usize,
    scratch_used: usize,
    /// The chunk whose reads are made: its place in the scratch, which its first sample begins.
    chunk_at: usize,
    chunk_first: u64,
    /// Reads submitted and not yet back.
    pub(super) reads_left: usize,
    /// The samples that each read brings.
    reads: Vec<Range<u64>>,
    pub(super) copies: Vec<CopyOut>,
    /// Rows of columns that their block does not have.
    defaults: Vec<DefaultRows>,
    pub(super) checks: Vec<Check>,
    /// Rows of a unit to be checked that no block holds any more, with the reason: bad ones, of which nothing is read.
    lost: Vec<(Run, String)>,
    /// Checked rows that the scratch has no room for.
    pub(super) apart: Vec<Apart>,
    failed: Vec<(Range<u64>, Failure)>,
    copied_bytes: u64,
}

impl Job {
    /// Bytes that the unit's rows took through the scratch.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

/// See the module. One per reader thread.
pub(super) struct Assembler {
    blocks: Blocks,
    layout: Arc<SlotLayout>,
    slab: Region,
    scratch: Region,
    scratch_bytes: usize,
    /// Where checked pieces that have no other place begin in a job's part of it: at its front where all are checked, else
    /// behind the places of what is not.
    checks_at: usize,
    sampler: Sampler,
    /// Where columns have their places in a chunk's part of the scratch, and the bytes of it.
    places: Vec<usize>,
    chunk_bytes: usize,
    block: Option<BlockSpan>,
    /// The parts of one block whose reads are still to be made.
    group: Vec<Grouped>,
    columns_at: ColumnsAt,
    /// Part lists that came back with their reads.
    spare: Vec<Vec<Part>>,
    /// File offset one past the read made last.
    read_end: u64,
    checker: Checker,
    widener: Widener,
    gathers: Gathers,
    scatters: Scatters,
}

impl Assembler {
    /// Bytes of scratch that one job needs: its small rows, or everything widened to whole pieces; or the one and a part of
    /// the other.
    pub(super) fn scratch_bytes(layout: &SlotLayout, unit: UnitSize) -> usize {
        let ((_, chunk_bytes), (_, part_bytes)) = (layout.scratch(unit.samples), layout.scratch(unit.part));
        let widened_bytes = part_bytes + layout.columns.len() * 2 * PIECE_BYTES;
        (chunk_bytes * unit.chunks as usize + widened_bytes).next_multiple_of(4096)
    }

    pub(super) fn new(
        dataset: Arc<Dataset>,
        layout: Arc<SlotLayout>,
        slab: Region,
        scratch: Region,
        unit: UnitSize,
        checksum: Checksum,
    ) -> Self {
        let (scratch_bytes, (places, chunk_bytes)) = (Self::scratch_bytes(&layout, unit), layout.scratch(unit.samples));
        Self {
            blocks: Blocks::new(dataset),
            layout,
            slab,
            scratch,
            scratch_bytes,
            checks_at: if unit.part == 0 { 0 } else { chunk_bytes * unit.chunks as usize },
            sampler: Sampler::new(checksum),
            places,
            chunk_bytes,
            block: None,
            group: Vec::new(),
            columns_at: ColumnsAt::default(),
            spare: Vec::new(),
            read_end: 0,
            checker: Checker::default(),
            widener: Widener::default(),
            gathers: Gathers::default(),
            scatters: Scatters::default(),
        }
    }

    /// The units to come are of `epoch`.
    pub(super) fn begin(&mut self, epoch: u64) {
        self.sampler.begin(epoch);
    }

    /// Keeps the list of a read that came back.
    pub(super) fn reuse(&mut self, mut parts: Vec<Part>) {
        parts.clear();
        self.spare.push(parts);
    }

    /// The reads that bring the unit of `job`, the `number`th of this thread, appended to `out`.
    pub(super) fn build(&mut self, job: &mut Job, number: usize, out: &mut Vec<Read>) -> Result<()> {
        job.scratch = number * self.scratch_bytes;
        job.scratch_used = self.checks_at;
        job.checked_bytes = 0;
        job.chunk_at = job.scratch;
        job.reads.clear();
        job.copies.clear();
        job.defaults.clear();
        job.checks.clear();
        job.lost.clear();
        job.apart.clear();
        job.failed.clear();
        job.copied_bytes = 0;
        let first_read = out.len();
        self.group.clear();
        job.chunk_first = job.taken.unit.runs.first().map_or(0, |run| run.index);
        // Where the block of the run before lies, in the same chunk.
        let (mut cut, mut known, mut at, mut reached) = (0, 0..0, 0, 0);
        while at < job.taken.unit.runs.len() {
            let Unit { runs, cuts, .. } = &job.taken.unit;
            if cuts.get(cut) == Some(&at) {
                let first = runs[at].index;
                self.make_reads(job, number, out);
                (known, reached) = (0..0, 0);
                job.chunk_at += self.chunk_bytes;
                job.chunk_first = first;
                cut += 1;
                continue;
            }
            // Nearly all runs lie in that block too.
            let (count, end, rows) = within(&runs[at..cuts.get(cut).copied().unwrap_or(runs.len())], &known);
            if let Some(last) = self.group.last_mut().filter(|_| count > 0) {
                last.add_all(count, end, rows);
                (at, reached) = (at + count, end.max(reached));
                continue;
            }
            let index = runs[at].index;
            let inside = self.block.as_ref().is_some_and(|block| (block.first..block.end).contains(&index));
            if !inside || self.group.is_empty() {
                let block = match self.block.take().filter(|_| inside) {
                    Some(block) => block,
                    None => match self.blocks.locate(index)? {
                        Located::Block(block) => block,
                        Located::Lost { error, .. } if !self.sampler.takes_all() => return Err(error),
                        Located::Lost { end, error } => {
                            known = 0..0;
                            self.make_reads(job, number, out);
                            if job.taken.unit.runs[at].end() > end {
                                self.blocks.cut(&mut job.taken.unit, at);
                            }
                            job.lost.push((job.taken.unit.runs[at], error.report()));
                            at += 1;
                            continue;
                        }
                    },
                };
                if !self.group.last().is_none_or(|last| last.block.is_beside(&block)) {
                    self.make_reads(job, number, out);
                }
                self.group.push(Grouped::new(at, index, block.clone(), index < reached));
                self.block = Some(block);
            }
            known = self.block.as_ref().map_or(0..index, |block| block.first..block.end);
            if job.taken.unit.runs[at].end() > known.end {
                self.blocks.cut(&mut job.taken.unit, at);
            }
            let run = job.taken.unit.runs[at];
            if let Some(last) = self.group.last_mut() {
                last.add(&run);
            }
            (at, reached) = (at + 1, reached.max(run.end()));
        }
        self.make_reads(job, number, out);
        if out.len() == first_read {
            self.read_for_nothing(job, number, out);
        }
        job.reads_left = out.len() - first_read;
        // Now, while the runs are in the cache: the reads will drive them out of it.
        job.taken.count_rows();
        Ok(())
    }

    /// A unit of defaults alone would never come back: reads a page of its block, which also shows that it is there.
    fn read_for_nothing(&mut self, job: &mut Job, number: usize, out: &mut Vec<Read>) {
        let Some(block) = &self.block else { return };
        // Of all samples of the unit.
        job.reads.push(0..u64::MAX);
        let mut parts = self.spare.pop().unwrap_or_default();
        parts.push(Part { region: JUNK, at: 0, bytes: PAGE_BYTES as u32 });
        out.push(Read { file: block.file.clone(), offset: block.block.header, parts, token: token(number, 0) });
    }

    /// The reads of the spans of `self.group`, which lie in one block: column after column, so that offsets grow.
    fn make_reads(&mut self, job: &mut Job, number: usize, out: &mut Vec<Read>) {
        let mut group = std::mem::take(&mut self.group);
        if out.last().is_some_and(|read| self.read_end - read.offset >= BLOCKS_JOINED_BYTES) {
            self.read_end = u64::MAX;
        }
        if let Some(first) = group.first() {
            self.columns_at.find(first.block.segment.schema(), first.block.block.rows);
            job.check = self.sampler.next();
        }
        for at in 0..self.layout.by_file.len() {
            let column = self.layout.by_file[at];
            for part in &group {
                self.make_column_reads(job, column, part, number, out);
            }
        }
        group.clear();
        self.group = group;
    }

    /// The reads of one column of some spans, which lie in one part of a block.
    fn make_column_reads(&mut self, job: &mut Job, column: usize, part: &Grouped, number: usize, out: &mut Vec<Read>) {
        let (spans, samples, block) = (part.spans.clone(), part.samples.clone(), &part.block);
        if spans.is_empty() {
            return;
        }
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
        let buffer = block.block.body + self.columns_at.at[stored.at];
        let run_bytes = bytes * part.rows / spans.len();
        let short = run_bytes < DIRECT_BYTES && spans.len() > DIRECT_RUNS;
        if !job.check && !short && stored.widen.is_none() {
            let (taken, slot_bytes) = (&job.taken, self.layout.slot_bytes);
            reads.push_all(&taken.unit.runs[spans], |span| {
                let at = taken.slot_of(span) * slot_bytes + placed.offset + span.row as usize * bytes;
                let offset = buffer + block.row_of(span.index) * bytes as u64;
                (offset, Part { region: SLAB, at, bytes: (span.count as usize * bytes) as u32 })
            });
            return;
        }
        let (mut start, mut end) = (row * bytes, (row + count) * bytes);
        if part.again && !job.check && bytes < placed.row_bytes {
            // Its place is another row's: those of the part before stand as close to each other as they are stored.
            return job.apart.push(Apart { column, stored, block: block.clone(), spans });
        }
        // As wide as rows become: those of other blocks of the unit may be stored wider than these.
        let before_bytes = (samples.start - job.chunk_first) as usize * placed.row_bytes;
        let mut at = job.chunk_at + self.places[column] + before_bytes;
        let rows_alone = start..end;
        if job.check {
            start = start / PIECE_BYTES * PIECE_BYTES;
            end = end.next_multiple_of(PIECE_BYTES).min(block.block.rows as usize * bytes);
            job.checked_bytes += (end - start) as u64;
        }
        // Where whole pieces are no more than the rows, and not all are compared, these go where rows that are not compared do:
        // the list of where they come from then serves all columns. Rows that else go straight into slots have no such place.
        let has_place = !self.sampler.takes_all() && (short || stored.widen.is_some()) && bytes == placed.row_bytes;
        if job.check && !(has_place && rows_alone == (start..end)) {
            if job.scratch_used + (end - start) > self.scratch_bytes {
                return job.apart.push(Apart { column, stored, block: block.clone(), spans });
            }
            at = job.scratch + job.scratch_used;
            job.scratch_used += end - start;
            // With thousands of small blocks in a unit, room comes first.
            if job.copies.len() < self.layout.columns.len() * (2 * PIECE_BYTES / SCRATCH_ALIGN_BYTES) {
                job.scratch_used = job.scratch_used.next_multiple_of(SCRATCH_ALIGN_BYTES).min(self.scratch_bytes);
            }
        }
        assert!(at + (end - start) <= job.scratch + self.scratch_bytes, "scratch of a job overflows");
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
        let columns = self.layout.columns.len();
        if self.layout.is_narrow() && self.gathers.begin(job, columns) {
            (0..columns).for_each(|column| self.gather(job, column));
        } else {
            (0..job.copies.len()).for_each(|at| self.copy_out(job, at));
        }
        job.defaults.iter().for_each(|rows| rows.write(&self.slab, &self.layout, &job.taken));
        if !job.copies.is_empty() {
            fence();
        }
        if job.failed.is_empty() {
            for check in &job.checks {
                self.checker.check(check, &job.taken.unit.runs, &self.scratch, bad, &mut job.failed);
            }
        }
        if !job.apart.is_empty() {
            apart::fill(&job.apart, &job.taken, (&self.layout, &self.slab), bad, &mut job.failed);
        }
        for (span, why) in job.lost.drain(..) {
            bad_rows(&span, span.index..span.end(), &why, bad);
        }
    }

    /// Moves all rows of a column, as runs if they make some.
    fn gather(&mut self, job: &mut Job, column: usize) {
        if let Some((from, gather)) = self.gathers.of(column, job, self.layout.slot_bytes) {
            self.slab.gather(self.layout.columns[column].offset, &self.scratch, from, gather);
            job.copied_bytes += gather.bytes() as u64;
            return;
        }
        let mut next = self.gathers.first(column);
        while let Some(at) = next {
            self.copy_out(job, at);
            next = self.gathers.after(at);
        }
    }

    /// Moves the rows of one copy.
    fn copy_out(&mut self, job: &mut Job, at: usize) {
        let copy = &job.copies[at];
        let placed = &self.layout.columns[copy.column];
        if let Some(scatter) = self.scatters.of(copy, job, self.layout.slot_bytes) {
            self.slab.scatter(placed.offset, &self.scratch, copy.at, scatter);
            job.copied_bytes += scatter.bytes() as u64;
            return;
        }
        for span in &job.taken.unit.runs[copy.spans.clone()] {
            let bytes = span.count as usize * copy.row_bytes;
            job.copied_bytes += bytes as u64;
            let from = copy.at + (span.index - copy.lo) as usize * copy.row_bytes;
            let slot_at = job.taken.slot_of(span) * self.layout.slot_bytes;
            let at = slot_at + placed.offset + span.row as usize * placed.row_bytes;
            if let Some(widen) = copy.widen {
                self.widener.turn(widen, &self.scratch, from, bytes, &self.slab, at);
            } else if bytes >= STREAMING_BYTES {
                self.slab.copy_from_streaming(at, &self.scratch, from, bytes);
            } else {
                self.slab.copy_from(at, &self.scratch, from, bytes);
            }
        }
    }

    /// Puts the columns of one sample, each as long as a row, into the place of `sample`; zeros if there are none.
    pub(super) fn replace(&self, job: &Job, sample: &BadSample, columns: Option<&[Vec<u8>]>) {
        let slot_at = job.taken.slot_of(&sample.span) * self.layout.slot_bytes;
        for (at, placed) in self.layout.columns.iter().enumerate() {
            let to = slot_at + placed.offset + sample.row() as usize * placed.row_bytes;
            match columns {
                Some(columns) => self.slab.write(to, &columns[at]),
                None => self.slab.write(to, &vec![0; placed.row_bytes]),
            }
        }
    }

    /// Fails the steps that needed what could not be read. The caller then calls [`Feed::done`].
    pub(super) fn fail_steps(job: &mut Job, feed: &Feed) {
        for (samples, failure) in job.failed.drain(..) {
            for span in &job.taken.unit.runs {
                if span.index < samples.end && samples.start < span.end() {
                    feed.fail(job.taken.seq_of(span), &failure);
                }
            }
        }
    }

    /// Fails every step of a unit whose reads could not even be made.
    pub(super) fn give_up(job: &mut Job, error: &Error, feed: &Feed) {
        job.taken.count_rows();
        job.failed.clear();
        job.failed.push((0..u64::MAX, Failure::of(error)));
        Self::fail_steps(job, feed);
    }
}
