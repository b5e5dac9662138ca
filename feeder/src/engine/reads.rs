//! Parts become reads: what follows closely enough in a file is read by one call.

use std::ops::Range;
use std::sync::Arc;

use super::assemble::{JUNK, JUNK_BYTES};
use crate::plan::Run;
use crate::reader::{MAX_PARTS, Part, Read, ReadFile};

/// A read ends before it grows beyond this, unless one row is larger.
const READ_BYTES: u64 = 2 << 20;

/// Reads under construction: what follows closely enough is joined to the last one.
pub(super) struct Reads<'a> {
    pub(super) out: &'a mut Vec<Read>,
    /// The samples of each of this job's reads.
    pub(super) ranges: &'a mut Vec<Range<u64>>,
    pub(super) spare: &'a mut Vec<Vec<Part>>,
    pub(super) end: &'a mut u64,
    pub(super) file: &'a Arc<ReadFile>,
    pub(super) number: usize,
}

impl Reads<'_> {
    /// `part` is filled from `offset` on with the rows of `samples`. Offsets grow within a block.
    pub(super) fn push(&mut self, offset: u64, part: Part, samples: Range<u64>) {
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

    /// The same of the parts of many spans, in order of offsets and samples. Most follow straight on, as the rows of a shuffled
    /// chunk do, and this is made for them: it is done for every row.
    pub(super) fn push_all(&mut self, spans: &[Run], place: impl Fn(&Run) -> (u64, Part)) {
        // Where the last read ends so far and may end at most, how many parts it may still get, and the end of its samples.
        let (mut end, mut limit, mut room, mut samples_end) = (0, 0, 0, 0);
        for span in spans {
            let (offset, part) = place(span);
            let (next, samples) = (offset + u64::from(part.bytes), span.index..span.end());
            if offset == end
                && next <= limit
                && room > 0
                && let Some(read) = self.out.last_mut()
            {
                extend(&mut read.parts, part);
                (end, room, samples_end) = (next, room - 1, samples_end.max(samples.end));
                continue;
            }
            self.reach(end, samples_end);
            samples_end = samples.end;
            self.push(offset, part, samples);
            let Some(read) = self.out.last() else { return };
            (end, limit, room) = (next, read.offset + READ_BYTES, MAX_PARTS.saturating_sub(read.parts.len()));
        }
        self.reach(end, samples_end);
    }

    /// The last read ends at `end`, its samples end at `samples_end` at least.
    fn reach(&mut self, end: u64, samples_end: u64) {
        if samples_end > 0
            && let Some(range) = self.ranges.last_mut()
        {
            range.end = range.end.max(samples_end);
            *self.end = end;
        }
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
    extend(&mut read.parts, *part);
    true
}

/// Adds `part`, or makes the last one longer where it is its neighbour.
fn extend(parts: &mut Vec<Part>, part: Part) {
    match parts.last_mut() {
        Some(last) if last.at + last.bytes as usize == part.at && last.region == part.region && part.region != JUNK => {
            last.bytes += part.bytes;
        }
        _ => parts.push(part),
    }
}

/// Token of a job's read.
pub(super) fn token(job: usize, read: usize) -> u64 {
    (job as u64) << 32 | read as u64
}

/// Job and read of a token.
pub(super) fn parse_token(token: u64) -> (usize, usize) {
    ((token >> 32) as usize, token as u32 as usize)
}
