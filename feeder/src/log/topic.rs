//! One topic on disk: the ways to write, read and keep it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cursorstore::{Incarnation, TopicName};
use serde::{Deserialize, Serialize};

use super::active::{Seen, look_at_active};
use super::core::Setup;
use super::facts::{self, TopicFacts};
use super::files::{Listing, SegmentName};
use super::footer;
use super::layout::BLOCK_BYTES;
use super::recover::{Place, footer_error};
use super::view::{PartitionView, SegmentView, TopicView};
use super::writer::{Writer, WriterOptions};
use super::{Identity, PARTITIONS_MAX, layout, partition_dir};
use crate::error::{Error, ErrorKind, Result};
use crate::schema::Schema;
use crate::versions::Schemas;

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
        Self { partitions: 1, block_bytes: BLOCK_BYTES, segment_bytes: 1 << 30, segment_age_ms: None }
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

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Topic {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: TopicName,
    dir: PathBuf,
    /// The newest schema when this was opened.
    schema: Arc<Schema>,
    schemas: Arc<facts::Known>,
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
        let facts = TopicFacts::read(&dir)?;
        let schemas = facts::Known::new(&dir, &facts)?;
        let inner = Inner {
            name,
            dir,
            schema: schemas.seen().newest().schema.clone(),
            schemas: Arc::new(schemas),
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

    /// Its columns: the newest schema when this handle was opened. [`view`](Self::view) and [`schemas`](Self::schemas) tell
    /// what there is now.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.inner.schema
    }

    /// All schemas that it has had up to now.
    pub fn schemas(&self) -> Result<Arc<Schemas>> {
        self.check_life()?;
        self.inner.schemas.now()
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

    /// Rows of a full block of [`schema`](Self::schema).
    pub fn block_rows(&self) -> u32 {
        layout::block_rows(&self.inner.schema, self.inner.options.block_bytes)
    }

    /// Opens a partition for appends. Only one writer can have it at a time, in any process.
    pub fn writer(&self, partition: u32, options: WriterOptions) -> Result<Writer> {
        let identity = self.identity(partition)?;
        let setup = Setup {
            dir: partition_dir(&self.inner.dir, partition),
            schemas: self.inner.schemas.clone(),
            identity,
            block_bytes: self.inner.options.block_bytes,
            segment_bytes: self.inner.options.segment_bytes,
            segment_age_ms: self.inner.options.segment_age_ms,
        };
        Writer::open(setup, options, || self.check_life())
    }

    /// Takes a snapshot for reading.
    pub fn view(&self) -> Result<TopicView> {
        let mut partitions =
            (0..self.partitions()).map(|partition| self.view_partition(partition)).collect::<Result<Vec<_>>>()?;
        // After the segments, so that all of theirs are among them.
        let schemas = self.inner.schemas.now()?;
        partitions.iter_mut().for_each(|partition| partition.schemas = schemas.clone());
        Ok(TopicView {
            name: self.inner.name.clone(),
            schema: schemas.newest().schema.clone(),
            schemas,
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
        let mut active = listing.open.iter().copied().filter(|segment| !listing.is_sealed(segment.base));
        let (active, more) = (active.next(), active.next());
        if let Some(name) =
            active.filter(|name| more.is_some() || last_sealed.is_some_and(|last| last.base > name.base))
        {
            return Err(Error::corrupt(format!(
                "an active segment stands before others: path={}",
                name.open(dir).display()
            )));
        }
        let schemas = self.inner.schemas.with_version(listing.newest_schema(), dir)?;
        let place = Place { dir, schemas: &schemas, identity: &identity };
        let newest = match active {
            None => None,
            Some(name) => match look_at_active(&place, name, &mut known.active)? {
                Some(segment) => Some(segment),
                None => return Ok(None),
            },
        };
        let end = match (&newest, last_sealed) {
            (Some(segment), _) => segment.end,
            (None, None) => 0,
            (None, Some(name)) => match sealed_end(&place, name, known)? {
                Some(end) => end,
                None => return Ok(None),
            },
        };
        let bases = listing.sealed.iter().skip(1).map(|segment| segment.base);
        let ends = bases.chain([newest.as_ref().map_or(end, |newest| newest.base)]);
        let mut segments: Vec<Arc<SegmentView>> = Vec::with_capacity(listing.sealed.len() + 1);
        for (&name, end) in listing.sealed.iter().zip(ends) {
            segments.push(sealed(&place, name, end, known)?);
        }
        known.sealed.retain(|&base, _| listing.is_sealed(base));
        let first = segments.first().map(|segment| segment.base).or(newest.as_ref().map(|newest| newest.base));
        segments.extend(newest.filter(|segment| segment.end > segment.base).map(Arc::new));
        Ok(Some(PartitionView::new(identity.partition, first.unwrap_or(end), end, segments, schemas)))
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
            let facts = TopicFacts::read(&self.inner.dir)?;
            if facts.incarnation != self.inner.incarnation {
                return gone("removed and made again");
            }
            self.inner.schemas.learn(&facts)?;
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

/// A sealed segment whose rows end before `end`.
fn sealed(place: &Place<'_>, name: SegmentName, end: u64, known: &mut Known) -> Result<Arc<SegmentView>> {
    match known.sealed.get(&name.base) {
        Some(segment) if segment.end == end => Ok(segment.clone()),
        _ => {
            let segment = SegmentView::sealed(place.dir, place.version(name)?, *place.identity, name.base..end);
            let segment = Arc::new(segment);
            known.sealed.insert(name.base, segment.clone());
            Ok(segment)
        }
    }
}

/// End of the last sealed segment when no active one follows it; `None` if it went away.
fn sealed_end(place: &Place<'_>, name: SegmentName, known: &Known) -> Result<Option<u64>> {
    if let Some(segment) = known.sealed.get(&name.base) {
        return Ok(Some(segment.end));
    }
    let path = name.sealed(place.dir);
    let file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| Error::io(format!("cannot open segment: path={}", path.display()), error))?,
    };
    match footer::read(&file, &place.version(name)?.schema, place.identity, name.base) {
        Ok(footer) => Ok(Some(footer.end)),
        Err(footer::NoFooter::Bad(_) | footer::NoFooter::Foreign(_)) => {
            place.walk_sealed(name, &mut HashMap::new()).map(Some)
        }
        Err(why) => Err(footer_error(&path, name.base, why)),
    }
}
