//! The records that a job trains on, and where they lie on disk.
//!
//! A dataset is a topic's view and a list of windows over it. For a bare topic the windows are "all records now in the
//! topic", fixed when the job starts and kept in its states; a resumed job gets the windows of its state, checked against
//! the topic as it is now: same incarnation, nothing missing. For a version (`name@v1`) they are the version's, in one
//! window, and states name it instead. While it lives, a dataset guards what it reads.
//!
//! All records are read under one schema version of the topic: the newest when the job starts, that of its state when it
//! is resumed, that of a dataset version, so that a topic which has grown in between changes no tensor's type. Records
//! stored under another version are upgraded as they are read.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use cursorstore::position::BadTopicName;
use cursorstore::records::DatasetVersion;
use cursorstore::{Extent, PinnedRef, State, TopicName, Window, WindowList};

use super::evolve;
use super::layout::SlotLayout;
use crate::catalogue::{self, Catalogue, Lines};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{
    Found, Guard, PIECE_BYTES, PartitionView, Root, SegmentView, Topic, TopicView, block_rows, column_at, crc32c,
};
use crate::reader::ReadFile;
use crate::schema::{Column, Schema};
use crate::versions::{SchemaVersion, Upgrade};

/// What is read at once in order: fewer, larger units cost fewer wake-ups.
const IN_ORDER_BYTES: usize = 1 << 20;
/// Segment files held open at once by one dataset.
pub const OPEN_FILES_MAX: usize = 64;

/// See the module.
pub struct Dataset {
    root: PathBuf,
    topic: Topic,
    view: TopicView,
    /// None for a version, whose states name it.
    windows: Vec<Window>,
    pinned: Option<PinnedRef>,
    line: WindowList,
    /// What records are read as.
    under: SchemaVersion,
    /// How rows of other versions become that, by number.
    upgrades: Mutex<HashMap<u32, Arc<Upgrade>>>,
    /// Keeps retention away; `None` where the topic's folder cannot be written, and once the job is over.
    guard: Option<Guard>,
    files: Mutex<Files>,
    stored_bytes: OnceLock<u64>,
    notices: Mutex<Notices>,
}

/// What users should know of the records, each thing once.
#[derive(Default)]
struct Notices {
    told: HashSet<String>,
    new: Vec<String>,
}

impl Notices {
    fn tell(&mut self, text: &str) {
        if self.told.insert(text.to_owned()) {
            self.new.push(text.to_owned());
        }
    }
}

/// Open segment files by (partition, base), the least recently opened one closed first.
#[derive(Default)]
struct Files {
    open: HashMap<(u32, u64), (u64, Arc<ReadFile>)>,
    tick: u64,
}

impl Files {
    fn find(&mut self, key: (u32, u64)) -> Option<Arc<ReadFile>> {
        self.tick += 1;
        let tick = self.tick;
        self.open.get_mut(&key).map(|(used, file)| {
            *used = tick;
            file.clone()
        })
    }

    /// Keeps a file that was opened; gives the one that another thread opened meanwhile, if there is one.
    fn keep(&mut self, key: (u32, u64), file: Arc<ReadFile>) -> Arc<ReadFile> {
        if let Some(file) = self.find(key) {
            return file;
        }
        if self.open.len() >= OPEN_FILES_MAX {
            let oldest = self.open.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            oldest.and_then(|key| self.open.remove(&key));
        }
        self.open.insert(key, (self.tick, file.clone()));
        file
    }
}

impl Dataset {
    /// The records that `name` means under `root`: those of a dataset version if there is an `@` in it (`clean@v1`,
    /// `clean@prod`), else all that are now in the topic of that name.
    pub fn named(root: &Path, name: &str) -> Result<Self> {
        if name.contains('@') {
            let catalogue = Catalogue::open(root)?;
            return Self::of_version(&catalogue, &catalogue.resolve(name)?);
        }
        let wrong = |error: BadTopicName| Error::invalid(error.to_string());
        Self::all_of(root, &name.parse().map_err(wrong)?)
    }

    /// The records of a dataset version, all of which must still be there.
    pub fn of_version(catalogue: &Catalogue, version: &DatasetVersion) -> Result<Self> {
        let root = catalogue.path();
        let topic = Root::open(&root)?.topic(&version.topic)?;
        let view = topic.view()?;
        let Lines { window, lowest } = catalogue.lines(version, &view)?;
        let under = catalogue::schema_of(version, &view)?;
        let (guard, notices) = guard(&topic, &lowest)?;
        let line = WindowList::new(&[window]);
        let (windows, pinned) = (Vec::new(), Some(catalogue::pinned_ref(version)));
        let (upgrades, files, stored_bytes) = (Mutex::default(), Mutex::default(), OnceLock::new());
        let notices = Mutex::new(notices);
        Ok(Self { root, topic, view, windows, pinned, line, under, upgrades, guard, files, stored_bytes, notices })
    }

    /// All records now in the topic `name` under `root`.
    pub fn all_of(root: &Path, name: &TopicName) -> Result<Self> {
        let topic = Root::open(root)?.topic(name)?;
        let view = topic.view()?;
        let extents = view.partitions.iter().map(|partition| Extent {
            segment: partition.partition,
            incarnation: view.incarnation,
            from: partition.first,
            to: partition.end,
        });
        let windows = vec![Window { extents: extents.filter(|extent| extent.count() > 0).collect() }];
        let under = view.schemas.newest().clone();
        let dataset = Self::new(root.to_path_buf(), topic, view, windows, under)?;
        if dataset.line.total() == 0 {
            return Err(Error::new(ErrorKind::NotFound, format!("the topic holds no records: topic={name}"))
                .with_hint(format!("forebay ingest FILES... --topic {name}")));
        }
        Ok(dataset)
    }

    /// The records that `state` was made over, in the topic as it is now. An incarnation, an offset or a segment that no
    /// longer exists is an error that says what is missing.
    pub fn of_state(&self, state: &State) -> Result<Self> {
        let topic = Root::open(&self.root)?.topic(&state.topic)?;
        let view = topic.view()?;
        check_retained(state, &view)?;
        let under = view.schemas.version(state.schema).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::StateMismatch,
                format!(
                    "the state is of a schema version that the topic has not had: topic={} state={} versions={}",
                    state.topic,
                    state.schema,
                    view.schemas.versions().len()
                ),
            )
        })?;
        Self::new(self.root.clone(), topic, view, state.windows.clone(), under)
    }

    /// The records of `windows`, read under one of the view's schema versions.
    fn new(root: PathBuf, topic: Topic, view: TopicView, windows: Vec<Window>, under: SchemaVersion) -> Result<Self> {
        let line = WindowList::new(&windows);
        let mut lowest: Vec<u64> = view.partitions.iter().map(|partition| partition.end).collect();
        for extent in line.extents() {
            if let Some(lowest) = lowest.get_mut(extent.segment as usize) {
                *lowest = extent.from.min(*lowest);
            }
        }
        let (guard, notices) = guard(&topic, &lowest)?;
        let (upgrades, files, stored_bytes) = (Mutex::default(), Mutex::default(), OnceLock::new());
        let notices = Mutex::new(notices);
        Ok(Self {
            root,
            topic,
            view,
            windows,
            pinned: None,
            line,
            under,
            upgrades,
            guard,
            files,
            stored_bytes,
            notices,
        })
    }

    /// Lets go of what is guarded and of all files: nothing more will be read.
    pub(super) fn release(&mut self) {
        self.guard = None;
        self.files = Mutex::default();
    }

    /// Lines that the user should read once: what of the topic is damaged though it can be read, that it is not guarded.
    /// Taken, not kept.
    pub(super) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).new)
    }

    /// The topic's name.
    pub fn name(&self) -> &TopicName {
        self.topic.name()
    }

    /// The schema that records are read under.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.under.schema
    }

    /// Its number among the topic's schema versions.
    pub fn schema_number(&self) -> u32 {
        self.under.number
    }

    /// How the rows of a segment become those of [`schema`](Self::schema); `None` where they are those.
    pub(super) fn upgrade(&self, segment: &SegmentView) -> Result<Option<Arc<Upgrade>>> {
        if segment.schema_number == self.under.number {
            return Ok(None);
        }
        let mut known = self.upgrades.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(upgrade) = known.get(&segment.schema_number) {
            return Ok(Some(upgrade.clone()));
        }
        let upgrade = Arc::new(self.view.schemas.upgrade(segment.schema(), &self.under.schema)?);
        known.insert(segment.schema_number, upgrade.clone());
        Ok(Some(upgrade))
    }

    /// Bytes of all rows, over all columns, of the segments that hold records of the windows.
    pub(super) fn stored_bytes(&self) -> u64 {
        let sum = || {
            let (mut stored, mut last) = (HashMap::new(), (0, 0..0));
            for extent in self.line.extents() {
                // A filter leaves a million extents, nearly all of them in the segment of the one before.
                if last.0 == extent.segment && last.1.contains(&extent.from) && extent.to <= last.1.end {
                    continue;
                }
                let partition = self.view.partitions.iter().find(|partition| partition.partition == extent.segment);
                let segments = partition.map_or(&[][..], PartitionView::segments);
                let first = segments.partition_point(|segment| segment.end <= extent.from);
                for segment in segments[first..].iter().take_while(|segment| segment.base < extent.to) {
                    let row_bytes = segment.schema().row_bytes() as u64;
                    stored.insert((segment.partition, segment.base), (segment.end - segment.base) * row_bytes);
                    last = (segment.partition, segment.base..segment.end);
                }
            }
            stored.values().sum()
        };
        *self.stored_bytes.get_or_init(sum)
    }

    /// Rows that are read at once where the order is the topic's own: whole blocks, about [`IN_ORDER_BYTES`] of them.
    pub(super) fn in_order_rows(&self) -> u32 {
        let schema = &self.under.schema;
        block_rows(schema, self.topic.options().block_bytes.max(IN_ORDER_BYTES))
    }

    /// Most rows of a block.
    pub(super) fn block_rows(&self) -> u32 {
        block_rows(&self.under.schema, self.topic.options().block_bytes)
    }

    /// The windows trained on, as states keep them: none for a version.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// The dataset version trained on; `None` for a bare topic.
    pub fn pinned(&self) -> Option<&PinnedRef> {
        self.pinned.as_ref()
    }

    /// What to give a loader to read this: `clean@v1`, or the topic's name.
    pub fn reference(&self) -> String {
        self.pinned.as_ref().map_or_else(|| self.topic.name().to_string(), |pinned| pinned.version.clone())
    }

    /// Refuses a state that is over something else: other records, or this version under its name but with another content.
    /// Says what to give a loader for it.
    pub(super) fn check_state(&self, state: &State) -> Result<()> {
        let ours = self.reference();
        let theirs = state.dataset.as_ref().map_or_else(|| state.topic.to_string(), |pinned| pinned.version.clone());
        let mismatch = |text: String, hint: String| Err(Error::new(ErrorKind::StateMismatch, text).with_hint(hint));
        match (&state.dataset, &self.pinned) {
            (None, None) if state.topic == *self.topic.name() => Ok(()),
            (Some(state), Some(pinned)) if state == pinned => Ok(()),
            (Some(state), Some(pinned)) if state.version == pinned.version => mismatch(
                format!(
                    "the dataset version was unpinned and made again with other records since the state was saved: version={ours} state={} version_now={}",
                    state.fingerprint, pinned.fingerprint
                ),
                "go on from a checkpoint made since, or restore the folder 'store' of the root from a copy".into(),
            ),
            (Some(_), _) => {
                // A version that is gone says so, and which ones there are.
                let found = Catalogue::open(&self.root).and_then(|catalogue| catalogue.resolve(&theirs));
                let text = format!("the state is of another dataset than this loader: state={theirs} loader={ours}");
                match found {
                    Ok(_) => mismatch(text, format!("forebay.DataLoader({theirs:?}, ...)")),
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        Err(Error::new(ErrorKind::StateMismatch, text).with_source(error))
                    }
                    Err(error) => Err(error),
                }
            }
            (None, _) => mismatch(
                format!("the state is of another topic than this loader: state={theirs} loader={ours}"),
                format!("forebay.DataLoader({theirs:?}, ...)"),
            ),
        }
    }

    /// The windows on a line.
    pub fn line(&self) -> &WindowList {
        &self.line
    }

    /// The segment that holds the record at line index `index`, the record's offset, and how many of `count` records
    /// follow from there in that segment and extent.
    pub(super) fn segment(&self, index: u64, count: u64) -> Result<(u32, Arc<SegmentView>, u64, u64)> {
        let range = self.line.locate(index, count).ok_or_else(|| {
            Error::invalid(format!("index past the end: index={index} samples={}", self.line.total()))
        })?;
        let partition = self.view.partitions.iter().find(|partition| partition.partition == range.segment);
        let partition = partition.ok_or_else(|| Error::corrupt(format!("no such partition: {}", range.segment)))?;
        let segment = partition.segment_of(range.from)?;
        let count = range.count.min(segment.end - range.from);
        Ok((range.segment, segment, range.from, count))
    }

    /// The open file of a segment.
    pub(super) fn file(&self, partition: u32, segment: &SegmentView) -> Result<Arc<ReadFile>> {
        let key = (partition, segment.base);
        let files = || self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(file) = files().find(key) {
            return Ok(file);
        }
        // Not under the lock: a file system that hangs would hold up all who read other files.
        let file = segment.file()?;
        segment.check_owner(&file)?;
        let file = Arc::try_unwrap(file).or_else(|shared| shared.try_clone());
        let file =
            file.map_err(|error| Error::io(format!("cannot open segment: path={}", segment.path.display()), error))?;
        let file = ReadFile::from_file(file, &segment.path);
        // Sealed segments were synced before they got their name and never change again.
        let file = Arc::new(if segment.is_sealed() { file.into_final() } else { file });
        if let Some(damage) = segment.footer_damage()? {
            self.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).tell(damage);
        }
        Ok(files().keep(key, file))
    }

    /// Sample `index` of the line: the columns named, or all, each with its bytes, compared with their checksums.
    pub fn sample(&self, index: u64, columns: Option<&[String]>) -> Result<Vec<(Column, Vec<u8>)>> {
        let layout = SlotLayout::new(self.schema(), columns, 1)?;
        let values = match self.read_sample(index, &layout)? {
            Sample::Good(values) => values,
            Sample::Bad { error, .. } => return Err(error),
        };
        Ok(layout.columns.into_iter().map(|placed| placed.column).zip(values).collect())
    }

    /// One sample, read by itself and compared with its checksums.
    pub(super) fn read_sample(&self, index: u64, layout: &SlotLayout) -> Result<Sample> {
        let (partition, segment, offset, count) = self.segment(index, u64::MAX)?;
        let file = self.file(partition, &segment)?;
        let block = match segment.find(offset)? {
            Found::Block(block) => block,
            Found::Lost { end, error } => return Ok(Sample::Bad { error, rows: count.min(end - offset) }),
        };
        let row = (offset - block.base) as usize;
        let sums = match segment.sums(file.file(), &block) {
            Ok(sums) => sums,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(Sample::Bad { error, rows: count.min(block.end() - offset) });
            }
            Err(error) => return Err(error),
        };
        let mut columns = Vec::with_capacity(layout.columns.len());
        let upgrade = self.upgrade(&segment)?;
        for placed in &layout.columns {
            let stored = match evolve::stored(upgrade.as_deref(), placed) {
                Ok(stored) => stored,
                Err(element) => {
                    columns.push(element.bytes().repeat(placed.column.elements()));
                    continue;
                }
            };
            let row_bytes = stored.row_bytes;
            let (start, end) = (row * row_bytes, (row + 1) * row_bytes);
            let first = start / PIECE_BYTES;
            let from = first * PIECE_BYTES;
            let whole = end.next_multiple_of(PIECE_BYTES).min(block.rows as usize * row_bytes);
            let mut bytes = vec![0; whole - from];
            let at = block.body + column_at(segment.schema(), block.rows, stored.at) + from as u64;
            file.file().read_exact_at(&mut bytes, at).map_err(|error| {
                Error::io(format!("cannot read a sample: file={} offset={at}", segment.path.display()), error)
            })?;
            for (piece, bytes) in (first..).zip(bytes.chunks(PIECE_BYTES)) {
                if sums.column(stored.at).get(piece) != Some(&crc32c(bytes)) {
                    let error = Error::corrupt(format!(
                        "data do not match their checksum: file={} block={} column={:?} sample={index}",
                        segment.path.display(),
                        block.base,
                        placed.column.name
                    ));
                    // Every row that reaches into the piece is as bad.
                    let next = (piece * PIECE_BYTES + bytes.len()).div_ceil(row_bytes);
                    return Ok(Sample::Bad { error, rows: ((next - row) as u64).min(count) });
                }
            }
            let bytes = &bytes[start - from..end - from];
            let mut value = Vec::new();
            match stored.widen {
                None => value.extend_from_slice(bytes),
                Some(widen) => widen.append(bytes, &mut value),
            }
            columns.push(value);
        }
        Ok(Sample::Good(columns))
    }
}

/// Holds a topic's records from these offsets on. Whoever may only read the topic cannot hold it; a read of a removed
/// segment is then an error.
fn guard(topic: &Topic, lowest: &[u64]) -> Result<(Option<Guard>, Notices)> {
    let mut notices = Notices::default();
    match topic.guard(lowest) {
        Ok(guard) => Ok((Some(guard), notices)),
        Err(error) if error.kind() == ErrorKind::Permission => {
            notices.tell(&format!(
                "the topic's folder cannot be written, so nothing keeps its records from being deleted while they are read: {error}"
            ));
            Ok((None, notices))
        }
        Err(error) => Err(error),
    }
}

/// Refuses a state whose topic was made again since, or has lost records that the state needs, and says which.
pub fn check_retained(state: &State, view: &TopicView) -> Result<()> {
    for extent in state.windows.iter().flat_map(|window| &window.extents) {
        if extent.incarnation != view.incarnation {
            return Err(Error::new(
                ErrorKind::StateMismatch,
                format!(
                    "the topic was deleted and made again since the state was saved: topic={} state={} topic_now={}",
                    state.topic, extent.incarnation, view.incarnation
                ),
            ));
        }
        let partition = view.partitions.iter().find(|partition| partition.partition == extent.segment);
        let (first, end) = partition.map_or((0, 0), |partition| (partition.first, partition.end));
        if extent.count() > 0 && (extent.from < first || extent.to > end) {
            let missing = first.saturating_sub(extent.from).min(extent.count()) + extent.to.saturating_sub(end);
            return Err(Error::new(
                ErrorKind::NotRetained,
                format!(
                    "records that the state needs are no longer in the topic: topic={} partition={} needed={}..{} kept={first}..{end} missing={missing}",
                    state.topic, extent.segment, extent.from, extent.to
                ),
            ));
        }
    }
    Ok(())
}

/// What [`Dataset::read_sample`] found.
pub(super) enum Sample {
    /// The delivered columns, each as long as a row.
    Good(Vec<Vec<u8>>),
    /// Its bytes are not what was written; nor are those of the following samples, `rows` in all.
    Bad { error: Error, rows: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{TopicOptions, WriterOptions};
    use crate::rows::Rows;

    #[test]
    fn stored_are_all_columns_of_the_segments_that_are_read_from() {
        let folder = tempfile::tempdir().unwrap();
        let schema = Schema::parse("id:int64, x:float32[3]").unwrap();
        let name: TopicName = "numbers".parse().unwrap();
        let topic =
            Root::create(folder.path()).unwrap().create_topic(&name, &schema, &TopicOptions::default()).unwrap();
        for count in [10, 20, 30] {
            let writer = topic.writer(0, WriterOptions::default()).unwrap();
            let columns =
                [8, 12].map(|row_bytes| arrow_buffer::Buffer::from_vec(vec![0u8; count * row_bytes])).to_vec();
            writer.append(&Rows::new(topic.schema().clone(), count, columns).unwrap()).unwrap();
            writer.seal().unwrap();
            writer.close().unwrap();
        }
        let all = Dataset::all_of(folder.path(), &name).unwrap();
        assert_eq!(all.stored_bytes(), 60 * 20);
        let of = |extents: &[(u64, u64)]| {
            let (topic, view) = (all.topic.clone(), all.view.clone());
            let incarnation = view.incarnation;
            let extents = extents.iter().map(|&(from, to)| Extent { segment: 0, incarnation, from, to });
            let windows = vec![Window { extents: extents.collect() }];
            Dataset::new(all.root.clone(), topic, view, windows, all.under.clone()).unwrap().stored_bytes()
        };
        assert_eq!(of(&[(9, 10), (2, 3)]), 10 * 20);
        assert_eq!(of(&[(30, 31)]), 30 * 20);
        assert_eq!(of(&[(29, 31), (0, 1)]), 60 * 20);
    }
}
