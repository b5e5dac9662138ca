//! Samples that are not what was written, on their way from whoever finds them to whoever heals or reports them.

use std::ops::Range;

use crate::error::Error;
use crate::plan::Run;

/// A sample whose bytes are not what was written, with the reason.
pub(super) struct BadSample {
    pub(super) index: u64,
    pub(super) span: Run,
    pub(super) error: Error,
}

/// Adds those of a span's samples that are among `samples`.
pub(super) fn bad_rows(span: &Run, samples: Range<u64>, why: &str, bad: &mut Vec<BadSample>) {
    let (from, to) = (span.index.max(samples.start), (span.index + u64::from(span.count)).min(samples.end));
    bad.extend((from..to).map(|index| BadSample { index, span: *span, error: Error::corrupt(why) }));
}
