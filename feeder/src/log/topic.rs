//! One topic on disk: what it is (`topic.json`), and the ways to write, read and keep it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cursorstore::{Incarnation, TopicName};
use serde::{Deserialize, Serialize};

use super::core::Setup;
use super::files::{self, Listing};
use super::footer;
use super::recover::{Place, footer_error};
use super::sums::crc32c;
use super::view::{PartitionView, Seen, SegmentView, TopicView, look_at_active};
use super::writer::{Writer, WriterOptions};
use super::{FORMAT, Identity, PARTITIONS_MAX, layout, partition_dir};
use crate::error::{Error, ErrorKind, Result};
use crate::schema::Schema;

/// Most bytes of `topic.json`: 4096 columns with names of 1 KiB, and their shapes.
const TOPIC_JSON_BYTES_MAX: u64 = 16 << 20;
/// Largest block that may be asked for.
const BLOCK_BYTES_MAX: usize = 64 << 20;
/// Looks at a directory that changes all the time.
const LOOKS_MAX: usize = 1000;

/// How a topic is laid out; fixed when it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicOptions {
    /// Number of partitions.
    pub partitions: u32,
    /// Bytes of rows in a full block; the actual size is the largest power of two of rows that fits.
    pub block_bytes: usize,
    /// Bytes of file at which a segment is sealed.
    pub segment_bytes: u64,
    /// Age at which a segment is sealed.
    pub segment_age_ms: Option<u64>,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self { partitions: 1, block_bytes: 1 << 20, segment_bytes: 1 << 30, segment_age_ms: None }
    }
}

impl TopicOptions {
    /// Refuses what no topic can have, with the values allowed.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(what));
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            return wrong(format!("a topic has 1 to {PARTITIONS_MAX} partitions: partitions={}", self.partitions));
        }
        if !(1..=BLOCK_BYTES_MAX).contains(&self.block_bytes) {
            return wrong(format!("a block has 1 to {BLOCK_BYTES_MAX} bytes: block_bytes={}", self.block_bytes));
        }
        if self.segment_bytes == 0 || self.segment_age_ms == Some(0) {
            return wrong(format!(
                "a segment needs size and age: segment_bytes={} segment_age_ms={:?}",
                self.segment_bytes, self.segment_age_ms
            ));
        }
        Ok(())
    }
}

/// What `topic.json` holds beside format and checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TopicFacts {
    pub(super) incarnation: Incarnation,
    pub(super) schema: Schema,
    pub(super) options: TopicOptions,
}

#[derive(Serialize, Deserialize)]
struct TopicFile {
    format: u32,
    /// CRC32C of `topic` as compact JSON.
    crc32c: String,
    topic: TopicFacts,
}

impl TopicFacts {
    pub(super) fn new(schema: Schema, options: TopicOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { incarnation: Incarnation(files::random128()?), schema, options })
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let file = TopicFile { format: FORMAT, crc32c: self.sum()?, topic: self.clone() };
        serde_json::to_vec_pretty(&file).map_err(|error| Error::invalid("topic.json").with_source(error))
    }

    fn sum(&self) -> Result<String> {
        let text = serde_json::to_vec(self).map_err(|error| Error::invalid("topic.json").with_source(error))?;
        Ok(format!("{:08x}", crc32c(&text)))
    }

    /// Reads `topic.json`; `path` is for messages.
    pub(super) fn from_json(bytes: &[u8], path: &Path) -> Result<Self> {
        super::check_format(bytes, path)?;
        let damaged = |why: String| Error::corrupt(format!("topic.json is damaged, {why}: path={}", path.display()));
        let file: TopicFile = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if file.topic.sum()? != file.crc32c {
            return Err(damaged("its checksum is wrong".into()));
        }
        file.topic.options.check()?;
        Ok(file.topic)
    }
}

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Topic {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: TopicName,
    dir: PathBuf,
    schema: Arc<Schema>,
    incarnation: Incarnation,
    options: TopicOptions,
    /// The life that `topic.json` was last seen to speak of: its inode and change time.
    stamp: Mutex<Stamp>,
    known: Mutex<HashMap<u32, Known>>,
}

/// Inode, seconds and nanoseconds of the last change of a file.
type Stamp = (u64, i64, i64);

fn stamp_of(path: &Path) -> std::io::Result<Stamp> {
    let about = std::fs::metadata(path)?;
    Ok((about.ino(), about.ctime(), about.ctime_nsec()))
}

/// What earlier views learnt of a partition.
#[derive(Debug, Default)]
struct Known {
    sealed: HashMap<u64, Arc<SegmentView>>,
    active: Option<Seen>,
}

impl Topic {
    pub(super) fn open(name: TopicName, dir: PathBuf) -> Result<Self> {
        let path = dir.join(super::TOPIC_FILE);
        let failed = |error| Error::io(format!("cannot open topic: topic={name} path={}", dir.display()), error);
        let stamp = stamp_of(&path).map_err(failed)?;
        let facts = TopicFacts::from_json(&files::read_small(&path, TOPIC_JSON_BYTES_MAX)?, &path)?;
        let inner = Inner {
            name,
            dir,
            schema: Arc::new(facts.schema),
            incarnation: facts.incarnation,
            options: facts.options,
            stamp: Mutex::new(stamp),
            known: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The topic's name.
    pub fn name(&self) -> &TopicName {
        &self.inner.name
    }

    /// Its columns.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.inner.schema
    }

    /// Which life of the topic this is.
    pub fn incarnation(&self) -> Incarnation {
        self.inner.incarnation
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.inner.options.partitions
    }

    /// How it is laid out.
    pub fn options(&self) -> &TopicOptions {
        &self.inner.options
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Rows of a full block.
    pub fn block_rows(&self) -> u32 {
        layout::block_rows(&self.inner.schema, self.inner.options.block_bytes)
    }

    /// Opens a partition for appends. Only one writer can have it at a time, in any process.
    pub fn writer(&self, partition: u32, options: WriterOptions) -> Result<Writer> {
        let identity = self.identity(partition)?;
        let setup = Setup {
            dir: partition_dir(&self.inner.dir, partition),
            schema: self.inner.schema.clone(),
            identity,
            block_rows: self.block_rows(),
            segment_bytes: self.inner.options.segment_bytes,
            segment_age_ms: self.inner.options.segment_age_ms,
        };
        Writer::open(setup, options, || self.check_life())
    }

    /// Takes a snapshot for reading.
    pub fn view(&self) -> Result<TopicView> {
        let partitions =
            (0..self.partitions()).map(|partition| self.view_partition(partition)).collect::<Result<_>>()?;
        Ok(TopicView {
            name: self.inner.name.clone(),
            schema: self.inner.schema.clone(),
            incarnation: self.inner.incarnation,
            partitions,
        })
    }

    /// Takes a snapshot of one partition.
    pub fn view_partition(&self, partition: u32) -> Result<PartitionView> {
        let identity = self.identity(partition)?;
        self.check_life()?;
        let dir = partition_dir(&self.inner.dir, partition);
        let mut known = self.known();
        let known = known.entry(partition).or_default();
        for _ in 0..LOOKS_MAX {
            let listing = Listing::settled(&dir)?;
            if let Some(view) = self.look(&dir, identity, &listing, known)? {
                return Ok(view);
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("segments change faster than they can be read: path={}", dir.display()),
        ))
    }

    /// The snapshot of what a listing names; `None` when files went away meanwhile.
    fn look(
        &self,
        dir: &Path,
        identity: Identity,
        listing: &Listing,
        known: &mut Known,
    ) -> Result<Option<PartitionView>> {
        let last_sealed = listing.sealed.last().copied();
        let mut active = listing.open.iter().copied().filter(|base| listing.sealed.binary_search(base).is_err());
        let (active, more) = (active.next(), active.next());
        if let Some(base) = active.filter(|&base| more.is_some() || last_sealed.is_some_and(|last| last > base)) {
            return Err(Error::corrupt(format!(
                "an active segment stands before others: path={}",
                files::open_path(dir, base).display()
            )));
        }
        let newest = match active {
            None => None,
            Some(base) => match look_at_active(dir, &self.inner.schema, identity, base, &mut known.active)? {
                Some(segment) => Some(segment),
                None => return Ok(None),
            },
        };
        let end = match (&newest, last_sealed) {
            (Some(segment), _) => segment.end,
            (None, None) => 0,
            (None, Some(base)) => match self.sealed_end(dir, identity, base, known)? {
                Some(end) => end,
                None => return Ok(None),
            },
        };
        let ends = listing.sealed.iter().skip(1).copied().chain([newest.as_ref().map_or(end, |newest| newest.base)]);
        let mut segments: Vec<Arc<SegmentView>> = Vec::with_capacity(listing.sealed.len() + 1);
        for (&base, end) in listing.sealed.iter().zip(ends) {
            segments.push(self.sealed(dir, identity, base..end, known));
        }
        known.sealed.retain(|base, _| listing.sealed.binary_search(base).is_ok());
        let first = segments.first().map(|segment| segment.base).or(newest.as_ref().map(|newest| newest.base));
        segments.extend(newest.filter(|segment| segment.end > segment.base).map(Arc::new));
        Ok(Some(PartitionView::new(identity.partition, first.unwrap_or(end), end, segments)))
    }

    fn sealed(
        &self,
        dir: &Path,
        identity: Identity,
        offsets: std::ops::Range<u64>,
        known: &mut Known,
    ) -> Arc<SegmentView> {
        match known.sealed.get(&offsets.start) {
            Some(segment) if segment.end == offsets.end => segment.clone(),
            _ => {
                let segment = Arc::new(SegmentView::sealed(dir, &self.inner.schema, identity, offsets.clone()));
                known.sealed.insert(offsets.start, segment.clone());
                segment
            }
        }
    }

    /// End of the last sealed segment when no active one follows it; `None` if it went away.
    fn sealed_end(&self, dir: &Path, identity: Identity, base: u64, known: &Known) -> Result<Option<u64>> {
        if let Some(segment) = known.sealed.get(&base) {
            return Ok(Some(segment.end));
        }
        let path = files::sealed_path(dir, base);
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| Error::io(format!("cannot open segment: path={}", path.display()), error))?,
        };
        match footer::read(&file, &self.inner.schema, &identity, base) {
            Ok(footer) => Ok(Some(footer.end)),
            Err(footer::NoFooter::Bad(_) | footer::NoFooter::Foreign(_)) => {
                let place = Place { dir, schema: &self.inner.schema, identity: &identity };
                place.walk_sealed(base, &mut HashMap::new()).map(Some)
            }
            Err(why) => Err(footer_error(&path, base, why)),
        }
    }

    /// Refuses to go on when the topic was removed, or removed and made again.
    fn check_life(&self) -> Result<()> {
        let path = self.inner.dir.join(super::TOPIC_FILE);
        let gone = |what: &str| {
            let text = format!("the topic was {what} since it was opened: topic={}", self.inner.name);
            Err(Error::new(ErrorKind::StateMismatch, text).with_hint("open the topic again"))
        };
        let now = match stamp_of(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return gone("removed"),
            now => now.map_err(|error| Error::io(format!("cannot read file: path={}", path.display()), error))?,
        };
        let mut stamp = self.inner.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if *stamp != now {
            let facts = TopicFacts::from_json(&files::read_small(&path, TOPIC_JSON_BYTES_MAX)?, &path)?;
            if facts.incarnation != self.inner.incarnation {
                return gone("removed and made again");
            }
            *stamp = now;
        }
        Ok(())
    }

    fn identity(&self, partition: u32) -> Result<Identity> {
        if partition >= self.partitions() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "the topic has no such partition: topic={} partition={partition} partitions={}",
                    self.inner.name,
                    self.partitions()
                ),
            ));
        }
        Ok(Identity { incarnation: self.inner.incarnation, partition })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u32, Known>> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
