//! Where samples of the line are: in which block of which open file, or lost to damage.

use std::ops::Range;
use std::sync::Arc;

use super::Dataset;
use crate::error::{Error, Result};
use crate::log::{BlockRef, Found, SegmentView, columns_at};
use crate::plan::Run;
use crate::reader::ReadFile;
use crate::schema::Schema;
use crate::versions::Upgrade;

/// Files that a thread keeps at hand, beyond those that the dataset holds open.
const FILES_KEPT: usize = 16;

/// A block as far as one extent reaches: samples `first..end` of the line are its rows from `first_row` on.
#[derive(Clone)]
pub(super) struct BlockSpan {
    pub(super) segment: Arc<SegmentView>,
    pub(super) file: Arc<ReadFile>,
    pub(super) block: BlockRef,
    pub(super) first: u64,
    pub(super) end: u64,
    first_row: u64,
    /// How its rows become those of the dataset; `None` where they are those.
    pub(super) upgrade: Option<Arc<Upgrade>>,
}

impl BlockSpan {
    /// Whether both are parts of one block.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.block == other.block && Arc::ptr_eq(&self.file, &other.file)
    }

    pub(super) fn row_of(&self, index: u64) -> u64 {
        self.first_row + (index - self.first)
    }
}

/// Spans that lie in one part of a block, with their rows.
pub(super) struct Grouped {
    pub(super) spans: Range<usize>,
    /// From the first to the last of theirs. A row that repeats a sample has a span of its own, behind one that reaches
    /// further: the last span need not end last.
    pub(super) samples: Range<u64>,
    pub(super) rows: usize,
    pub(super) block: BlockSpan,
    /// Whether some of its samples are those of a part before: a row that repeats one.
    pub(super) again: bool,
}

impl Grouped {
    /// Of the spans to come, the first of which begins with sample `index` and is number `at`.
    pub(super) fn new(at: usize, index: u64, block: BlockSpan, again: bool) -> Self {
        Self { spans: at..at, samples: index..index, rows: 0, block, again }
    }

    /// Takes in `span`, the next one.
    pub(super) fn add(&mut self, span: &Run) {
        self.add_all(1, span.index + u64::from(span.count), span.count as usize);
    }

    /// Takes in the next `spans`, which end before sample `end` and have `rows` rows.
    pub(super) fn add_all(&mut self, spans: usize, end: u64, rows: usize) {
        self.spans.end += spans;
        self.samples.end = self.samples.end.max(end);
        self.rows += rows;
    }
}

/// How many of `runs`, from the first on, lie within `samples`, where they end and the rows they have.
pub(super) fn within(runs: &[Run], samples: &Range<u64>) -> (usize, u64, usize) {
    let (mut end, mut rows) = (0, 0);
    for (at, run) in runs.iter().enumerate() {
        let run_end = run.index + u64::from(run.count);
        // A row that repeats a sample may begin before its neighbour, and before their block.
        if run_end > samples.end || run.index < samples.start {
            return (at, end, rows);
        }
        end = run_end.max(end);
        rows += run.count as usize;
    }
    (runs.len(), end, rows)
}

/// Where columns stand in the bodies of blocks, for the kind of block looked at last.
#[derive(Default)]
pub(super) struct ColumnsAt {
    of: Option<(Arc<Schema>, u32)>,
    /// Per column of the schema, from the body's beginning on.
    pub(super) at: Vec<u64>,
}

impl ColumnsAt {
    /// Goes over to blocks of `rows` rows of `schema`.
    pub(super) fn find(&mut self, schema: &Arc<Schema>, rows: u32) {
        if self.of.as_ref().is_some_and(|(known, of)| *of == rows && Arc::ptr_eq(known, schema)) {
            return;
        }
        columns_at(schema, rows, &mut self.at);
        self.of = Some((schema.clone(), rows));
    }
}

/// Where samples of the line are.
pub(super) enum Located {
    Block(BlockSpan),
    /// Nowhere: samples up to `end` are lost to damage.
    Lost {
        end: u64,
        error: Error,
    },
}

/// A segment with its open file, and how its rows become those of the schema read under.
#[derive(Clone)]
struct Kept {
    segment: Arc<SegmentView>,
    file: Arc<ReadFile>,
    upgrade: Option<Arc<Upgrade>>,
}

/// The blocks of a dataset, as one reader thread finds them.
pub(super) struct Blocks {
    dataset: Arc<Dataset>,
    /// Segments used before, by a number made of where their views lie.
    kept: [Option<Kept>; FILES_KEPT],
}

impl Blocks {
    pub(super) fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset, kept: Default::default() }
    }

    /// Where the sample of this index is, and those that follow it there.
    pub(super) fn locate(&mut self, index: u64) -> Result<Located> {
        let (partition, segment, offset, count) = self.dataset.segment(index, u64::MAX)?;
        let block = match segment.find(offset)? {
            Found::Block(block) => block,
            Found::Lost { end, error } => return Ok(Located::Lost { end: index + count.min(end - offset), error }),
        };
        let first_row = offset - block.base;
        let end = index + count.min(u64::from(block.rows) - first_row);
        let Kept { file, upgrade, .. } = self.kept(partition, &segment)?.clone();
        Ok(Located::Block(BlockSpan { segment, file, block, first: index, end, first_row, upgrade }))
    }

    /// What reading a segment needs; of those used last without a lock.
    fn kept(&mut self, partition: u32, segment: &Arc<SegmentView>) -> Result<&Kept> {
        let place = &mut self.kept[(Arc::as_ptr(segment).addr() / size_of::<SegmentView>()) % FILES_KEPT];
        if !place.as_ref().is_some_and(|kept| Arc::ptr_eq(&kept.segment, segment)) {
            let (file, upgrade) = (self.dataset.file(partition, segment)?, self.dataset.upgrade(segment)?);
            *place = None;
            return Ok(place.insert(Kept { segment: segment.clone(), file, upgrade }));
        }
        Ok(place.as_mut().expect("just looked at"))
    }
}
