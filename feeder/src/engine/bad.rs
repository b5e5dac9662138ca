//! Samples that are not what was written, on their way from whoever finds them to whoever heals or reports them.

use std::ops::Range;

use super::blocks::BlockSpan;
use crate::error::Error;
use crate::plan::Run;

/// A sample whose bytes are not what was written, with the reason.
pub(super) struct BadSample {
    pub(super) index: u64,
    pub(super) span: Run,
    pub(super) error: Error,
}

impl BadSample {
    /// Its row in the batch.
    pub(super) fn row(&self) -> u32 {
        self.span.row + (self.index - self.span.index) as u32
    }
}

/// What is told of `bytes` bytes at file offset `at` of a block's column that are not what was written.
pub(super) fn mismatch(block: &BlockSpan, column: &str, at: u64, bytes: usize) -> Error {
    let (file, block) = (block.segment.path.display(), block.block.base);
    Error::corrupt(format!(
        "data do not match their checksum: file={file} block={block} column={column:?} offset={at} bytes={bytes}"
    ))
}

/// Adds those of a span's samples that are among `samples`.
pub(super) fn bad_rows(span: &Run, samples: Range<u64>, why: &str, bad: &mut Vec<BadSample>) {
    let (from, to) = (span.index.max(samples.start), span.end().min(samples.end));
    bad.extend((from..to).map(|index| BadSample { index, span: *span, error: Error::corrupt(why) }));
}
