//! A unit becomes reads that land in slots; what came back is checked, finished and counted.
//!
//! Scatter, not gather: the destinations of a read are the rows' places in the slots to come. Rows of 4 KiB and more (and
//! runs of neighbours as long) are read straight into place; smaller ones go through a scratch that stays in L2 and are
//! copied out with non-temporal stores. Short gaps (headers, padding, other ranks' rows) land in a junk buffer rather
//! than cost a read. A unit that is to be checked is read through the scratch, widened to whole checksummed pieces.
//! In steady state nothing is allocated: jobs, reads and their lists are used again.

use std::ops::Range;
use std::sync::Arc;

use super::Dataset;
use super::feed::{Failure, Feed, Taken};
use super::layout::SlotLayout;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{BlockRef, BlockSums, Found, PIECE_BYTES, SegmentView, column_at, crc32c};
use crate::plan::Run;
use crate::reader::{MAX_PARTS, Part, Read, ReadError, ReadFile, Region, fence};

/// Gaps up to this size are read over, into the junk buffer.
pub(super) const JUNK_BYTES: usize = 16 << 10;
/// Rows, or runs of neighbouring rows, from this size on are read straight into their slots.
const DIRECT_BYTES: usize = 4096;
/// A column piece of at most so many runs is read straight whatever their size.
const DIRECT_RUNS: usize = 4;
/// A read ends before it grows beyond this, unless one row is larger.
const READ_BYTES: u64 = 2 << 20;
/// Rows from this size on are copied past the cache.
const STREAMING_BYTES: usize = 256;

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
    spans: Vec<Run>,
    copies: Vec<CopyOut>,
    checks: Vec<Check>,
    /// Rows of a unit to be checked that no block holds any more, with the reason: bad ones, of which nothing is read.
    lost: Vec<(Run, String)>,
    failed: Vec<(Range<u64>, Failure)>,
}

/// Rows of one column that wait in the scratch.
struct CopyOut {
    /// Index into the layout's columns.
    column: usize,
    /// Scratch position of the row of sample `lo`.
    at: usize,
    lo: u64,
    spans: Range<usize>,
}

/// Whole checksummed pieces of one column buffer that wait in the scratch.
struct Check {
    column: usize,
    at: usize,
    bytes: usize,
    first_piece: usize,
    block: BlockSpan,
    /// Samples of the unit that lie in this block.
    samples: Range<u64>,
}

/// A block as far as one extent reaches: samples `first..end` of the line are its rows from `first_row` on.
#[derive(Clone)]
struct BlockSpan {
    segment: Arc<SegmentView>,
    file: Arc<ReadFile>,
    block: BlockRef,
    first: u64,
    end: u64,
    first_row: u64,
}

impl BlockSpan {
    fn row_of(&self, index: u64) -> u64 {
        self.first_row + (index - self.first)
    }
}

/// Where samples of the line are.
enum Located {
    Block(BlockSpan),
    /// Nowhere: samples up to `end` are lost to damage.
    Lost {
        end: u64,
        error: Error,
    },
}

/// A sample whose bytes are not what was written, with the reason.
pub(super) struct BadSample {
    pub(super) index: u64,
    pub(super) span: Run,
    pub(super) error: Error,
}

/// See the module. One per reader thread.
pub(super) struct Assembler {
    dataset: Arc<Dataset>,
    layout: Arc<SlotLayout>,
    slab: Region,
    scratch: Region,
    scratch_bytes: usize,
    block: Option<BlockSpan>,
    /// Part lists that came back with their reads.
    spare: Vec<Vec<Part>>,
    /// File offset one past the read made last.
    read_end: u64,
    /// A checksummed piece, as memory of this thread alone.
    piece: Vec<u8>,
    /// The checksums used last: the columns of a block are checked one after the other.
    sums: Option<(Arc<ReadFile>, BlockRef, BlockSums)>,
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
            dataset,
            layout,
            slab,
            scratch,
            scratch_bytes,
            block: None,
            spare: Vec::new(),
            read_end: 0,
            piece: Vec::new(),
            sums: None,
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
        job.checks.clear();
        job.lost.clear();
        job.failed.clear();
        let first_read = out.len();
        let mut piece = 0;
        for at in 0..job.taken.unit.runs.len() {
            let mut run = job.taken.unit.runs[at];
            while run.count > 0 {
                let inside = self.block.as_ref().is_some_and(|block| (block.first..block.end).contains(&run.index));
                if !inside {
                    self.make_reads(job, piece, number, out);
                    piece = job.spans.len();
                    self.block = match self.locate(run.index)? {
                        Located::Block(block) => Some(block),
                        Located::Lost { error, .. } if !job.check => return Err(error),
                        Located::Lost { end, error } => {
                            lose(job, &mut run, end, &error);
                            piece = job.spans.len();
                            None
                        }
                    };
                    if self.block.is_none() {
                        continue;
                    }
                }
                let end = self.block.as_ref().map_or(run.index, |block| block.end);
                let count = u64::from(run.count).min(end - run.index) as u32;
                job.spans.push(Run { count, ..run });
                run.index += u64::from(count);
                run.row += count;
                run.count -= count;
            }
        }
        self.make_reads(job, piece, number, out);
        job.reads_left = out.len() - first_read;
        Ok(())
    }

    fn locate(&self, index: u64) -> Result<Located> {
        let (partition, segment, offset, count) = self.dataset.segment(index, u64::MAX)?;
        let file = self.dataset.file(partition, &segment)?;
        let block = match segment.find(offset)? {
            Found::Block(block) => block,
            Found::Lost { end, error } => return Ok(Located::Lost { end: index + count.min(end - offset), error }),
        };
        let first_row = offset - block.base;
        let end = index + count.min(u64::from(block.rows) - first_row);
        Ok(Located::Block(BlockSpan { segment, file, block, first: index, end, first_row }))
    }

    /// The reads of `job.spans[from..]`, which lie in the current block.
    fn make_reads(&mut self, job: &mut Job, from: usize, number: usize, out: &mut Vec<Read>) {
        let spans = from..job.spans.len();
        let (Some(block), Some(first), Some(last)) = (&self.block, job.spans.get(from), job.spans.last()) else {
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
        for &c in &self.layout.by_file {
            let placed = &self.layout.columns[c];
            let bytes = placed.row_bytes;
            let buffer = block.block.body + column_at(self.dataset.schema(), block.block.rows, placed.at);
            let run_bytes = bytes * rows as usize / spans.len();
            if !job.check && (run_bytes >= DIRECT_BYTES || spans.len() <= DIRECT_RUNS) {
                for span in &job.spans[spans.clone()] {
                    let slot = job.taken.slots[(span.step - job.taken.unit.first_step) as usize] as usize;
                    let at = slot * self.layout.slot_bytes + placed.offset + span.row as usize * bytes;
                    let offset = buffer + block.row_of(span.index) * bytes as u64;
                    let part = Part { region: SLAB, at, bytes: (span.count as usize * bytes) as u32 };
                    reads.push(offset, part, span.index..span.index + u64::from(span.count));
                }
                continue;
            }
            let (mut start, mut end) = (row * bytes, (row + count) * bytes);
            if job.check {
                start = start / PIECE_BYTES * PIECE_BYTES;
                end = end.next_multiple_of(PIECE_BYTES).min(block.block.rows as usize * bytes);
            }
            let at = job.scratch + job.scratch_used;
            job.scratch_used += end - start;
            debug_assert!(job.scratch_used <= self.scratch_bytes, "scratch of a job overflows");
            let part = Part { region: SCRATCH, at, bytes: (end - start) as u32 };
            reads.push(buffer + start as u64, part, samples.clone());
            let rows_at = at + row * bytes - start;
            job.copies.push(CopyOut { column: c, at: rows_at, lo: samples.start, spans: spans.clone() });
            if job.check {
                job.checks.push(Check {
                    column: c,
                    at,
                    bytes: end - start,
                    first_piece: start / PIECE_BYTES,
                    block: block.clone(),
                    samples: samples.clone(),
                });
            }
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
        for copy in &job.copies {
            let placed = &self.layout.columns[copy.column];
            for span in &job.spans[copy.spans.clone()] {
                let bytes = span.count as usize * placed.row_bytes;
                let from = copy.at + (span.index - copy.lo) as usize * placed.row_bytes;
                let slot = job.taken.slots[(span.step - job.taken.unit.first_step) as usize] as usize;
                let at = slot * self.layout.slot_bytes + placed.offset + span.row as usize * placed.row_bytes;
                if bytes >= STREAMING_BYTES {
                    self.slab.copy_from_streaming(at, &self.scratch, from, bytes);
                } else {
                    self.slab.copy_from(at, &self.scratch, from, bytes);
                }
            }
        }
        if !job.copies.is_empty() {
            fence();
        }
        if job.failed.is_empty() {
            for at in 0..job.checks.len() {
                self.check(job, at, bad);
            }
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
        let sums = match known.map_or_else(|| check.block.segment.sums(&check.block.block), |(_, _, sums)| Ok(sums)) {
            Ok(sums) => sums,
            // Without its header nothing can be said of a block's rows: all are as bad as those with a wrong checksum.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let why = error.report();
                return job.spans.iter().for_each(|span| bad_rows(span, check.samples.clone(), &why, bad));
            }
            Err(error) => return job.failed.push((check.samples.clone(), Failure::of(&error))),
        };
        let placed = &self.layout.columns[check.column];
        let mut buffer = std::mem::take(&mut self.piece);
        for (piece, at) in (check.first_piece..).zip((0..check.bytes).step_by(PIECE_BYTES)) {
            buffer.resize(PIECE_BYTES.min(check.bytes - at), 0);
            self.scratch.read(check.at + at, &mut buffer);
            if sums.column(placed.at).get(piece) == Some(&crc32c(&buffer)) {
                continue;
            }
            let (start, length) = ((piece * PIECE_BYTES) as u64, buffer.len() as u64);
            let rows = start / placed.row_bytes as u64..(start + length).div_ceil(placed.row_bytes as u64);
            let block = &check.block;
            let column = block.block.body + column_at(self.dataset.schema(), block.block.rows, placed.at);
            for span in &job.spans {
                for index in span.index..span.index + u64::from(span.count) {
                    if check.samples.contains(&index) && rows.contains(&block.row_of(index)) {
                        let error = Error::corrupt(format!(
                            "data do not match their checksum: file={} block={} column={:?} offset={} bytes={}",
                            block.segment.path.display(),
                            block.block.base,
                            placed.column.name,
                            column + start,
                            length
                        ));
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
    pub(super) fn count(&self, job: &mut Job, feed: &Feed) {
        for (samples, failure) in job.failed.drain(..) {
            for span in &job.spans {
                if span.index < samples.end && samples.start < span.index + u64::from(span.count) {
                    feed.fail(seq_of(&job.taken, span), &failure);
                }
            }
        }
        for span in &job.spans {
            let slot = job.taken.slots[(span.step - job.taken.unit.first_step) as usize];
            feed.arrived(slot, u64::from(span.count) * self.layout.row_bytes as u64);
        }
    }

    /// Fails every step of a unit whose reads could not even be made.
    pub(super) fn give_up(&self, job: &mut Job, error: &Error, feed: &Feed) {
        job.spans.clear();
        job.spans.extend(job.taken.unit.runs.iter().cloned());
        job.failed.clear();
        let unit = &job.taken.unit;
        job.failed.push((unit.from..unit.from + u64::from(unit.count), Failure::of(error)));
        self.count(job, feed);
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

/// Adds those of a span's samples that are among `samples`.
fn bad_rows(span: &Run, samples: Range<u64>, why: &str, bad: &mut Vec<BadSample>) {
    let (from, to) = (span.index.max(samples.start), (span.index + u64::from(span.count)).min(samples.end));
    bad.extend((from..to).map(|index| BadSample { index, span: *span, error: Error::corrupt(why) }));
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

/// Reads under construction: what follows closely enough is joined to the last one.
struct Reads<'a> {
    out: &'a mut Vec<Read>,
    /// The samples of each of this job's reads.
    ranges: &'a mut Vec<Range<u64>>,
    spare: &'a mut Vec<Vec<Part>>,
    end: &'a mut u64,
    file: &'a Arc<ReadFile>,
    number: usize,
}

impl Reads<'_> {
    /// `part` is filled from `offset` on with the rows of `samples`. Offsets grow within a block.
    fn push(&mut self, offset: u64, part: Part, samples: Range<u64>) {
        let next = offset + u64::from(part.bytes);
        if let (Some(read), Some(range)) = (self.out.last_mut(), self.ranges.last_mut())
            && Arc::ptr_eq(&read.file, self.file)
            && join(read, *self.end, offset, &part)
        {
            *range = range.start.min(samples.start)..range.end.max(samples.end);
        } else {
            let token = token(self.number, self.ranges.len());
            self.ranges.push(samples);
            let mut parts = self.spare.pop().unwrap_or_default();
            parts.push(part);
            self.out.push(Read { file: self.file.clone(), offset, parts, token });
        }
        *self.end = next;
    }
}

/// Adds `part` to `read`, which ends at `end`, if only a short gap lies between.
fn join(read: &mut Read, end: u64, offset: u64, part: &Part) -> bool {
    let Some(gap) = offset.checked_sub(end) else { return false };
    let bytes = offset + u64::from(part.bytes) - read.offset;
    if gap > JUNK_BYTES as u64 || bytes > READ_BYTES || read.parts.len() + 2 > MAX_PARTS {
        return false;
    }
    if gap > 0 {
        read.parts.push(Part { region: JUNK, at: 0, bytes: gap as u32 });
    }
    match read.parts.last_mut() {
        Some(last) if last.region == part.region && part.region != JUNK && last.at + last.bytes as usize == part.at => {
            last.bytes += part.bytes;
        }
        _ => read.parts.push(*part),
    }
    true
}

/// Token of a job's read.
fn token(job: usize, read: usize) -> u64 {
    (job as u64) << 32 | read as u64
}

/// Job and read of a token.
pub(super) fn parse_token(token: u64) -> (usize, usize) {
    ((token >> 32) as usize, token as u32 as usize)
}
