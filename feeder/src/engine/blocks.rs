//! Where samples of the line are: in which block of which open file, or lost to damage.

use std::ops::Range;
use std::sync::Arc;

use super::Dataset;
use crate::error::{Error, Result};
use crate::log::{BlockRef, Found, SegmentView, columns_at};
use crate::plan::{Run, Unit};
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
        self.add_all(1, span.end(), span.count as usize);
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
        let run_end = run.end();
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
    /// The runs of a unit before they are cut.
    whole: Vec<Run>,
}

impl Blocks {
    pub(super) fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset, kept: Default::default(), whole: Vec::new() }
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

    /// Cuts the runs from number `at` on at the borders of blocks and of what is lost, all of them: there may be very many. Those
    /// from where a block cannot be told on stay whole; who looks for it is told why.
    pub(super) fn cut(&mut self, unit: &mut Unit, at: usize) {
        let Unit { runs, cuts, .. } = unit;
        let mut whole = std::mem::take(&mut self.whole);
        whole.clear();
        whole.extend(runs.drain(at..));
        let mut cuts = cuts.iter_mut().skip_while(|cut| **cut <= at).peekable();
        let mut known = 0..0;
        for (number, run) in whole.iter().enumerate() {
            if let Some(cut) = cuts.next_if(|cut| **cut == at + number) {
                *cut = runs.len();
            }
            let mut rest = *run;
            while rest.count > 0 {
                if !known.contains(&rest.index) {
                    known = match self.locate(rest.index) {
                        Ok(Located::Block(block)) => block.first..block.end,
                        Ok(Located::Lost { end, .. }) => rest.index..end,
                        Err(_) => rest.index..u64::MAX,
                    };
                }
                let count = u64::from(rest.count).min(known.end - rest.index) as u32;
                runs.push(Run { count, ..rest });
                (rest.index, rest.row, rest.count) =
                    (rest.index + u64::from(count), rest.row + count, rest.count - count);
            }
        }
        self.whole = whole;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Root, TopicOptions, WriterOptions};
    use crate::rows::Rows;

    #[test]
    fn runs_are_cut_where_blocks_end_and_chunks_begin_where_they_did() {
        let folder = tempfile::tempdir().unwrap();
        let name = "numbers".parse().unwrap();
        let schema = Schema::parse("id:int64").unwrap();
        let topic =
            Root::create(folder.path()).unwrap().create_topic(&name, &schema, &TopicOptions::default()).unwrap();
        // Blocks of five.
        for _ in 0..5 {
            let writer = topic.writer(0, WriterOptions::default()).unwrap();
            let ids = arrow_buffer::Buffer::from_vec(vec![0i64; 5]);
            writer.append(&Rows::new(topic.schema().clone(), 5, vec![ids]).unwrap()).unwrap();
            writer.seal().unwrap();
            writer.close().unwrap();
        }
        let mut blocks = Blocks::new(Arc::new(Dataset::all_of(folder.path(), &name).unwrap()));
        let runs = |runs: &[(u64, u32, u64, u32)]| -> Vec<Run> {
            runs.iter().map(|&(index, count, step, row)| Run { index, count, step, row }).collect()
        };
        let whole = [(0, 3, 0, 0), (3, 4, 1, 0), (8, 2, 2, 7), (6, 1, 2, 9), (9, 12, 3, 1), (21, 9, 4, 0)];
        let mut unit = Unit { runs: runs(&whole), cuts: vec![1, 2, 4, 5], ..Unit::default() };
        blocks.cut(&mut unit, 1);
        let cut = [
            [(0, 3, 0, 0), (3, 2, 1, 0), (5, 2, 1, 2)].as_slice(),
            &[(8, 2, 2, 7), (6, 1, 2, 9)],
            &[(9, 1, 3, 1), (10, 5, 3, 2), (15, 5, 3, 7), (20, 1, 3, 12)],
            // Nothing is behind sample 24, so that who looks for it fails.
            &[(21, 4, 4, 0), (25, 5, 4, 4)],
        ];
        assert_eq!(unit.runs, runs(&cut.concat()));
        assert_eq!(unit.cuts, [1, 3, 5, 9]);
        let before = unit.clone();
        blocks.cut(&mut unit, 0);
        assert_eq!(unit, before);
    }
}
