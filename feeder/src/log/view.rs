//! A topic as readers see it: a snapshot of segments, blocks and offsets, taken without any lock and while a writer
//! appends.
//!
//! Sealed segments are known from their file names; their block index is read when first asked for: from the footer, or
//! where that is damaged from the blocks, which describe themselves. The active segment is walked up to its last whole
//! commit group, and synced before the snapshot is handed out: an offset in a snapshot is durable, and never given to
//! another row. A snapshot's files stay readable: the active one is held open (sealing may rename or replace it), sealed
//! ones never change and go only by retention, which a [`Guard`](super::Guard) holds off.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arrow_buffer::Buffer;
use cursorstore::{Incarnation, TopicName};

use super::Identity;
use super::block::{self, BadBody, BlockRef, Header, NoHeader};
use super::block_list::BlockList;
use super::files::SegmentName;
use super::footer::{self, NoFooter};
use super::layout::column_at;
use super::recover::{Damage, footer_error, preamble_bytes, scan_sealed};
use super::scan::{Hole, Scan};
use super::sums::BlockSums;
use crate::error::{Error, ErrorKind, Result};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::{SchemaVersion, Schemas};

/// A consistent snapshot of a topic.
#[derive(Clone, Debug)]
pub struct TopicView {
    /// The topic's name.
    pub name: TopicName,
    /// Its newest schema.
    pub schema: Arc<Schema>,
    /// All schemas that it has had; those of all segments are among them.
    pub schemas: Arc<Schemas>,
    /// The life of the topic that this is a snapshot of.
    pub incarnation: Incarnation,
    /// One per partition, in order.
    pub partitions: Vec<PartitionView>,
}

impl TopicView {
    /// Rows that can be read, over all partitions.
    pub fn rows(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.end - partition.first).sum()
    }
}

/// One partition of a snapshot.
#[derive(Clone, Debug)]
pub struct PartitionView {
    /// Its number.
    pub partition: u32,
    /// Offset of the first row that is retained.
    pub first: u64,
    /// Offset after the last row.
    pub end: u64,
    segments: Vec<Arc<SegmentView>>,
    pub(super) schemas: Arc<Schemas>,
}

impl PartitionView {
    pub(super) fn new(
        partition: u32,
        first: u64,
        end: u64,
        segments: Vec<Arc<SegmentView>>,
        schemas: Arc<Schemas>,
    ) -> Self {
        Self { partition, first, end, segments, schemas }
    }

    /// The segments in order of offsets; none is empty.
    pub fn segments(&self) -> &[Arc<SegmentView>] {
        &self.segments
    }

    /// The segment that holds an offset.
    pub fn segment_of(&self, offset: u64) -> Result<Arc<SegmentView>> {
        if offset < self.first {
            return Err(Error::new(
                ErrorKind::NotRetained,
                format!(
                    "rows are no longer retained: partition={} offset={offset} first={}",
                    self.partition, self.first
                ),
            ));
        }
        let after = self.segments.partition_point(|segment| segment.end <= offset);
        self.segments.get(after).filter(|_| offset < self.end).cloned().ok_or_else(|| {
            Error::invalid(format!(
                "there is no such row yet: partition={} offset={offset} end={}",
                self.partition, self.end
            ))
        })
    }

    /// Reads rows by their offsets, verified, under the topic's newest schema. For looking at data; training reads through
    /// the engine.
    pub fn read(&self, offsets: Range<u64>) -> Result<Rows> {
        let mut parts = Vec::new();
        let mut at = offsets.start;
        let newest = &self.schemas.newest().schema;
        while at < offsets.end {
            let segment = self.segment_of(at)?;
            let block = segment.block_of(at)?;
            let rows = segment.read(&block)?;
            let from = (at - block.base) as usize;
            let count = (offsets.end.min(block.end()) - at) as usize;
            let rows = rows.slice(from, count);
            parts.push(match segment.schema == *newest {
                true => rows,
                false => self.schemas.upgrade(&segment.schema, newest)?.rows(&rows)?,
            });
            at += count as u64;
        }
        match parts.is_empty() {
            true => Err(Error::invalid(format!("no rows are asked for: offsets={offsets:?}"))),
            false => Rows::concat(newest, &parts),
        }
    }
}

/// One segment of a snapshot.
#[derive(Debug)]
pub struct SegmentView {
    /// Partition it belongs to.
    pub partition: u32,
    /// Offset of its first row.
    pub base: u64,
    /// Offset after its last row.
    pub end: u64,
    /// Its file; that of an active segment may have another name by now, [`file`](Self::file) opens the right one.
    pub path: PathBuf,
    /// Number of the schema version that its rows are of.
    pub schema_number: u32,
    schema: Arc<Schema>,
    identity: Identity,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Sealed(OnceLock<Index>),
    Active(Arc<File>, Index),
}

/// The blocks of a segment.
#[derive(Clone, Debug)]
struct Index {
    blocks: BlockList,
    holes: Vec<Hole>,
    /// Time of the first and the last append, where it is known without reading blocks.
    time_ms: Option<(u64, u64)>,
    /// What is wrong with the footer that should have told all this, and did not.
    footer_damage: Option<String>,
}

/// Where the row of an offset is.
#[derive(Debug)]
pub enum Found {
    /// In this block.
    Block(BlockRef),
    /// Nowhere: it is lost to damage, and so are those that follow.
    Lost {
        /// Offset after the last row that is lost with it.
        end: u64,
        /// What is damaged.
        error: Error,
    },
}

impl SegmentView {
    pub(super) fn sealed(dir: &Path, version: &SchemaVersion, identity: Identity, offsets: Range<u64>) -> Self {
        Self {
            partition: identity.partition,
            base: offsets.start,
            end: offsets.end,
            path: SegmentName { base: offsets.start, schema: version.number }.sealed(dir),
            schema_number: version.number,
            schema: version.schema.clone(),
            identity,
            content: Content::Sealed(OnceLock::new()),
        }
    }

    pub(super) fn active(
        path: PathBuf,
        version: &SchemaVersion,
        identity: Identity,
        base: u64,
        file: File,
        scan: &Scan,
    ) -> Self {
        let index = Index {
            blocks: scan.blocks.iter().copied().collect(),
            holes: scan.holes.clone(),
            time_ms: None,
            footer_damage: None,
        };
        Self {
            partition: identity.partition,
            base,
            end: scan.end,
            path,
            schema_number: version.number,
            schema: version.schema.clone(),
            identity,
            content: Content::Active(Arc::new(file), index),
        }
    }

    /// The schema that its rows are stored under.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Whether the segment is sealed: its file is whole and never changes again.
    pub fn is_sealed(&self) -> bool {
        matches!(self.content, Content::Sealed(_))
    }

    /// The segment's file, open for reading.
    pub fn file(&self) -> Result<Arc<File>> {
        match &self.content {
            Content::Active(file, _) => Ok(file.clone()),
            Content::Sealed(_) => File::open(&self.path).map(Arc::new).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::new(
                    ErrorKind::NotRetained,
                    format!("the segment is no longer retained: path={} offset={}", self.path.display(), self.base),
                ),
                _ => Error::io(format!("cannot open segment: path={}", self.path.display()), error),
            }),
        }
    }

    /// Refuses a file that stands where the segment's did and is not it: without a guard, the topic may have been removed
    /// and made again. Whoever reads rows without their headers has no other way to notice.
    pub fn check_owner(&self, file: &File) -> Result<()> {
        preamble_bytes(file, &self.path, &self.schema, &self.identity, self.base).map(drop)
    }

    /// The blocks in order of offsets. Offsets that none covers are lost to damage.
    pub fn blocks(&self) -> Result<&BlockList> {
        Ok(&self.index()?.blocks)
    }

    /// The block that holds an offset.
    pub fn block_of(&self, offset: u64) -> Result<BlockRef> {
        match self.find(offset)? {
            Found::Block(block) => Ok(block),
            Found::Lost { error, .. } => Err(error),
        }
    }

    /// The block that holds an offset, or the rows that are lost there.
    pub fn find(&self, offset: u64) -> Result<Found> {
        let index = self.index()?;
        let after = index.blocks.after(offset);
        match index.blocks.get(after) {
            Some(block) if block.base <= offset => Ok(Found::Block(block)),
            next if (self.base..self.end).contains(&offset) => {
                let end = next.map_or(self.end, |block| block.base);
                Ok(Found::Lost { end, error: self.lost(index, after, offset) })
            }
            _ => Err(Error::invalid(format!(
                "the row is not in this segment: path={} offset={offset} base={} end={}",
                self.path.display(),
                self.base,
                self.end
            ))),
        }
    }

    /// The checksums of a block, from its header, which is verified. `file` is [the segment's](Self::file).
    pub fn sums(&self, file: &File, block: &BlockRef) -> Result<BlockSums> {
        Ok(self.header(file, block)?.sums)
    }

    /// The checksums of a block, from the bytes of its header (`block.header..block.body` of the file), which are verified.
    pub fn sums_in(&self, block: &BlockRef, header: &[u8]) -> Result<BlockSums> {
        match block::decode(&self.schema, &self.identity, block.header, header) {
            Ok(header) if header.block == *block => Ok(header.sums),
            Ok(_) => Err(self.corrupt(block, "the header is that of another block")),
            Err(why) => Err(self.corrupt(block, why)),
        }
    }

    /// The checksums of a block and the times of its first and last append, from its header, which is verified. `file` is
    /// [the segment's](Self::file).
    pub fn about(&self, file: &File, block: &BlockRef) -> Result<(BlockSums, (u64, u64))> {
        let header = self.header(file, block)?;
        Ok((header.sums, header.meta.time_ms))
    }

    /// Reads some columns of a block, by their numbers, and verifies them. `file` is [the segment's](Self::file).
    pub fn read_columns(&self, file: &File, block: &BlockRef, columns: &[usize]) -> Result<Vec<Buffer>> {
        let header = self.header(file, block)?;
        let read = |&number| block::read_column(file, &self.schema, &header, number);
        columns.iter().map(read).collect::<Result<_, _>>().map_err(|why| self.bad_body(block, why))
    }

    /// Reads the rows of a block and verifies them.
    pub fn read(&self, block: &BlockRef) -> Result<Rows> {
        self.read_from(&*self.file()?, block)
    }

    /// Stretches of the file whose rows are lost.
    pub fn damage(&self) -> Result<Vec<Damage>> {
        let index = self.index()?;
        let mut found: Vec<Damage> = index.holes.iter().map(|hole| self.damage_of(hole)).collect();
        if self.is_sealed() && index.footer_damage.is_none() {
            found.extend(gaps(&index.blocks, self.base..self.end).map(|(block, position, offsets)| {
                let why = "the rows are missing from the segment";
                self.damage_of(&Hole { block, position, offsets, why })
            }));
        }
        Ok(found)
    }

    /// What is wrong with a sealed segment's footer. The blocks were then found one after the other, and what they hold
    /// can be read.
    pub fn footer_damage(&self) -> Result<Option<&str>> {
        Ok(self.index()?.footer_damage.as_deref())
    }

    /// Time of the first and the last append, where it is known without reading blocks.
    pub fn time_ms(&self) -> Result<Option<(u64, u64)>> {
        Ok(self.index()?.time_ms)
    }

    pub(super) fn header(&self, file: &File, block: &BlockRef) -> Result<Header> {
        let len = file.metadata().map_err(|error| self.io(error))?.len();
        match block::read_header(file, &self.schema, &self.identity, block.header, len) {
            Ok(header) if header.block == *block => Ok(header),
            Ok(_) => Err(self.corrupt(block, "the header is that of another block")),
            Err(NoHeader::Short) => Err(self.corrupt(block, "the file ends inside the block")),
            Err(NoHeader::Bad(why)) => Err(self.corrupt(block, why)),
            Err(NoHeader::Io(error)) => Err(self.io(error)),
        }
    }

    /// Reads the rows of a block and verifies them. `file` is [the segment's](Self::file).
    pub fn read_from(&self, file: &File, block: &BlockRef) -> Result<Rows> {
        let header = self.header(file, block)?;
        block::read_rows(file, &self.schema, &header).map_err(|why| self.bad_body(block, why))
    }

    fn bad_body(&self, block: &BlockRef, why: BadBody) -> Error {
        match why {
            BadBody::Sum { column, piece } => self.bad_piece(block, column, piece),
            BadBody::Io(error) => self.io(error),
        }
    }

    /// The error for a piece of a column whose checksum is wrong: what a reader reports that verifies for itself.
    pub fn bad_piece(&self, block: &BlockRef, column: usize, piece: usize) -> Error {
        let name = self.schema.columns().get(column).map(|column| column.name.as_str()).unwrap_or_default();
        let at = column_at(&self.schema, block.rows, column) + (piece * super::PIECE_BYTES) as u64;
        self.corrupt_at(block, block.body + at, &format!("the checksum of column {name:?} is wrong"))
    }

    fn corrupt(&self, block: &BlockRef, why: &str) -> Error {
        self.corrupt_at(block, block.header, why)
    }

    fn corrupt_at(&self, block: &BlockRef, position: u64, why: &str) -> Error {
        let number = self.index().ok().and_then(|index| index.blocks.iter().position(|other| other == *block));
        Error::corrupt(format!(
            "a block is damaged, {why}: path={} block={} position={position} offset={} rows={}",
            self.path.display(),
            number.map_or_else(|| "?".into(), |number| number.to_string()),
            block.base,
            block.rows
        ))
        .with_hint("restore the file from a copy; all other blocks can be read")
    }

    fn lost(&self, index: &Index, after: usize, offset: u64) -> Error {
        let hole = index.holes.iter().find(|hole| hole.offsets.contains(&offset)).cloned();
        let hole = hole.unwrap_or_else(|| {
            let found = gaps(&index.blocks, self.base..self.end).find(|(_, _, offsets)| offsets.contains(&offset));
            let (block, position, offsets) = found.unwrap_or((after, 0, offset..offset + 1));
            Hole { block, position, offsets, why: "the rows are missing from the segment" }
        });
        Error::corrupt(format!(
            "rows are lost to damage, {}: path={} block={} position={} offset={} rows={}",
            hole.why,
            self.path.display(),
            hole.block,
            hole.position,
            hole.offsets.start,
            hole.offsets.end - hole.offsets.start
        ))
        .with_hint("restore the file from a copy; all other blocks can be read")
    }

    fn damage_of(&self, hole: &Hole) -> Damage {
        Damage {
            path: self.path.clone(),
            block: hole.block,
            position: hole.position,
            offsets: hole.offsets.clone(),
            why: hole.why.into(),
        }
    }

    fn io(&self, error: io::Error) -> Error {
        Error::io(format!("cannot read segment: path={}", self.path.display()), error)
    }

    fn index(&self) -> Result<&Index> {
        let once = match &self.content {
            Content::Active(_, index) => return Ok(index),
            Content::Sealed(once) => once,
        };
        if let Some(index) = once.get() {
            return Ok(index);
        }
        let file = self.file()?;
        let (index, end) = match footer::read(&file, &self.schema, &self.identity, self.base) {
            Ok(footer) => {
                let (blocks, time_ms) = (footer.blocks.into_iter().collect(), Some(footer.time_ms));
                (Index { blocks, holes: Vec::new(), time_ms, footer_damage: None }, footer.end)
            }
            Err(why @ NoFooter::Bad(_)) => self.walked(&file, footer_error(&self.path, self.base, why))?,
            Err(why) => return Err(footer_error(&self.path, self.base, why)),
        };
        if end > self.end {
            return Err(Error::corrupt(format!(
                "two segments hold the same offsets: path={} end={end} next={}",
                self.path.display(),
                self.end
            )));
        }
        Ok(once.get_or_init(|| index))
    }

    /// The index of a sealed segment whose footer is damaged, by its blocks, and the offset after the last row.
    fn walked(&self, file: &File, damage: Error) -> Result<(Index, u64)> {
        let mut time_ms: Option<(u64, u64)> = None;
        let note = |header: &Header| {
            let (from, to) = header.meta.time_ms;
            time_ms = Some(time_ms.map_or((from, to), |time| (time.0.min(from), time.1.max(to))));
        };
        let Scan { blocks, holes, end, .. } =
            scan_sealed((file, &self.path), &self.schema, &self.identity, self.base..self.end, note)?;
        let footer_damage = Some(damage.report());
        Ok((Index { blocks: blocks.into_iter().collect(), holes, time_ms, footer_damage }, end))
    }
}

/// Offsets of a segment that no block covers: number of the block that follows, file position of it, offsets.
fn gaps(blocks: &BlockList, offsets: Range<u64>) -> impl Iterator<Item = (usize, u64, Range<u64>)> {
    let mut from = offsets.start;
    let nexts = blocks.iter().map(Some).chain([None]).enumerate();
    nexts.filter_map(move |(number, next)| {
        let before = from..next.map_or(offsets.end, |block| block.base);
        from = next.map_or(offsets.end, |block| block.end());
        (!before.is_empty()).then(|| (number, next.map_or(0, |block| block.header), before))
    })
}
