//! Where a unit's narrow rows go, worked out once for each width and not once for each column.

use std::ops::Range;

use super::assemble::Job;
use crate::reader::Scatter;
use crate::widen::Widen;

/// Runs longer than so many rows on average are copied as runs.
const RUN_ROWS_MAX: u64 = 8;
/// Fewer columns than this do not pay for working out and sorting the places.
const COLUMNS_MIN: usize = 8;
/// Widths that move as one word: 1, 2, 4 and 8 bytes.
const WIDTHS: usize = 4;

/// Rows of one column that wait in the scratch.
pub(super) struct CopyOut {
    /// Index into the layout's columns.
    pub(super) column: usize,
    /// Scratch position of the row of sample `lo`.
    pub(super) at: usize,
    pub(super) lo: u64,
    pub(super) spans: Range<usize>,
    /// Bytes of a row there, and what becomes of them.
    pub(super) row_bytes: usize,
    pub(super) widen: Option<Widen>,
}

/// The rows of the spans that columns of each width had last.
#[derive(Default)]
pub(super) struct Scatters {
    widths: [(Range<usize>, Scatter); WIDTHS],
}

impl Scatters {
    /// What is known is of another unit.
    pub(super) fn forget(&mut self) {
        self.widths.iter_mut().for_each(|(spans, _)| *spans = 0..0);
    }

    /// The rows of `copy`, by their places from its first row in the scratch and from its column in the first slot; `None`
    /// where they are no words, stand in long runs, or are of few columns.
    pub(super) fn of(&mut self, copy: &CopyOut, job: &Job, slot_bytes: usize) -> Option<&Scatter> {
        let bytes = copy.row_bytes;
        if job.copies.len() < COLUMNS_MIN || copy.widen.is_some() || !bytes.is_power_of_two() || bytes >= 1 << WIDTHS {
            return None;
        }
        let spans = &job.taken.unit.runs[copy.spans.clone()];
        let (known, scatter) = &mut self.widths[bytes.ilog2() as usize];
        if *known != copy.spans {
            let (first, last) = (spans.first()?, spans.last()?);
            if last.end() - first.index > RUN_ROWS_MAX * spans.len() as u64 {
                return None;
            }
            scatter.reset(bytes);
            for span in spans {
                let from = (span.index - copy.lo) as usize * bytes;
                let into = job.taken.slot_of(span) * slot_bytes + span.row as usize * bytes;
                scatter.push(from, into, span.count as usize);
            }
            scatter.sort();
            known.clone_from(&copy.spans);
        }
        Some(scatter)
    }
}
