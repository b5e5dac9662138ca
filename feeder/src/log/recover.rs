//! Opening a partition for writing: what a crash left half done is finished or taken back, and said.
//!
//! Under the partition's lock: files that never got their name are removed; of an active and a sealed file of one base
//! the sealed one stands; the active segment's torn tail is cut; what was not durable yet is written once more in place
//! and synced, because after a failed sync the kernel may call pages clean that never reached the disk.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Identity;
use super::block::{BlockRef, Header};
use super::files::{self, Hint, Listing, SegmentName};
use super::footer::{self, NoFooter};
use super::frame;
use super::scan::{Scan, Walk};
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::versions::{SchemaVersion, Schemas};

/// Bytes written again at a time.
const REWRITE_BYTES: u64 = 1 << 20;

/// What opening a partition for writing found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes of a torn tail that were cut; nothing of it had been acknowledged as durable.
    pub cut_bytes: u64,
    /// Rows of whole blocks among them.
    pub cut_rows: u64,
    /// Half-made files that were removed.
    pub removed: Vec<PathBuf>,
    /// Rows that were stored and are unreadable now; their offsets stay lost, all others can be read.
    pub damage: Vec<Damage>,
}

/// A stretch of a segment file that was stored and is unreadable now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment file.
    pub path: PathBuf,
    /// Number of the block in the file.
    pub block: usize,
    /// File position where the damage begins.
    pub position: u64,
    /// Offsets lost.
    pub offsets: Range<u64>,
    /// What is wrong.
    pub why: String,
}

/// The segment that is appended to.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) file: File,
    pub(super) base: u64,
    /// What its rows are.
    pub(super) version: SchemaVersion,
    pub(super) file_end: u64,
    pub(super) end: u64,
    pub(super) blocks: Vec<BlockRef>,
    /// Bytes known durable.
    pub(super) synced: u64,
    /// Time of the first and of the last append.
    pub(super) time_ms: Option<(u64, u64)>,
}

/// Where a partition stands.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) active: Active,
    pub(super) origins: HashMap<u128, u64>,
    pub(super) recovery: Recovery,
}

/// The partition that is opened.
pub(super) struct Place<'a> {
    pub(super) dir: &'a Path,
    pub(super) schemas: &'a Schemas,
    pub(super) identity: &'a Identity,
}

impl Place<'_> {
    /// The schema version that a segment is of.
    pub(super) fn version(&self, name: SegmentName) -> Result<&SchemaVersion> {
        self.schemas.version(name.schema).ok_or_else(|| {
            Error::corrupt(format!(
                "a segment is of a schema that its topic does not know: path={} schema={} schemas={}",
                name.sealed(self.dir).display(),
                name.schema,
                self.schemas.versions().len()
            ))
        })
    }

    /// Makes the partition ready for appends. With `durable`, everything that is there is durable afterwards.
    pub(super) fn open(&self, durable: bool) -> Result<Opened> {
        let listing = Listing::once(self.dir)?;
        let mut recovery = Recovery::default();
        for path in &listing.unfinished {
            files::remove(path)?;
            recovery.removed.push(path.clone());
        }
        for name in &listing.replaced {
            let path = self.clear_replaced(*name)?;
            recovery.removed.push(path);
        }
        let open = self.one_active(&listing, &mut recovery)?;
        let (sealed_end, mut origins) = self.sealed_facts(&listing.sealed)?;
        let active = match open {
            Some(name) if name.base < sealed_end => {
                return Err(Error::corrupt(format!(
                    "two segments hold the same offsets: path={} offset={} sealed_end={sealed_end}",
                    name.open(self.dir).display(),
                    name.base
                )));
            }
            Some(name) => self.open_active(name, durable, &mut origins, &mut recovery)?,
            None => self.create_active(sealed_end, self.schemas.newest())?,
        };
        Ok(Opened { active, origins, recovery })
    }

    /// The base of the active segment. One whose sealed form is in place has lost its purpose.
    fn one_active(&self, listing: &Listing, recovery: &mut Recovery) -> Result<Option<SegmentName>> {
        let mut active = None;
        for &name in &listing.open {
            let path = name.open(self.dir);
            if listing.is_sealed(name.base) {
                self.footer(name)?;
                files::remove(&path)?;
                recovery.removed.push(path);
            } else if active.is_some() || listing.sealed.last().is_some_and(|last| last.base > name.base) {
                return Err(Error::corrupt(format!(
                    "an active segment stands before others: path={} segments={}",
                    path.display(),
                    listing.sealed.len() + listing.open.len()
                )));
            } else {
                active = Some(name);
            }
        }
        Ok(active)
    }

    /// Removes an active segment that made room for one of a later schema; it holds no rows.
    fn clear_replaced(&self, name: SegmentName) -> Result<PathBuf> {
        let path = name.open(self.dir);
        let preamble = frame::preamble(&self.version(name)?.schema, self.identity, name.base);
        let len = std::fs::metadata(&path).map(|about| about.len());
        let len = len.map_err(|error| Error::io(format!("cannot read segment: path={}", path.display()), error))?;
        if len > preamble.len() as u64 {
            let text = format!("two segments hold the same offsets: path={} offset={}", path.display(), name.base);
            return Err(Error::corrupt(text));
        }
        files::remove(&path)?;
        Ok(path)
    }

    fn footer(&self, name: SegmentName) -> Result<footer::Footer> {
        let path = name.sealed(self.dir);
        let file = File::open(&path)
            .map_err(|error| Error::io(format!("cannot open segment: path={}", path.display()), error))?;
        let schema = &self.version(name)?.schema;
        footer::read(&file, schema, self.identity, name.base).map_err(|why| footer_error(&path, name.base, why))
    }

    /// End of the last sealed segment and the next row of every source. Footers are cumulative, so the last tells all;
    /// where one is damaged, its blocks tell the same.
    fn sealed_facts(&self, sealed: &[SegmentName]) -> Result<(u64, HashMap<u128, u64>)> {
        let mut origins = HashMap::new();
        let mut end = None;
        for &name in sealed.iter().rev() {
            match self.footer(name) {
                Ok(footer) => {
                    for (source, next) in footer.origins {
                        raise(&mut origins, source, next);
                    }
                    return Ok((end.unwrap_or(footer.end), origins));
                }
                Err(error) if error.kind() != crate::error::ErrorKind::Corrupt => return Err(error),
                Err(_) => {
                    let found = self.walk_sealed(name, &mut origins)?;
                    end.get_or_insert(found);
                }
            }
        }
        Ok((end.unwrap_or(0), origins))
    }

    /// The end of a sealed segment by its blocks alone.
    pub(super) fn walk_sealed(&self, name: SegmentName, origins: &mut HashMap<u128, u64>) -> Result<u64> {
        let (path, base) = (name.sealed(self.dir), name.base);
        let version = self.version(name)?;
        let failed = |error| Error::io(format!("cannot read segment: path={}", path.display()), error);
        let file = File::open(&path).map_err(failed)?;
        let note = |header: &Header| header.meta.runs.iter().for_each(|run| raise(origins, run.source, run.next()));
        Ok(scan_sealed((&file, &path), &version.schema, self.identity, base..base, note)?.end)
    }

    /// Makes an empty active segment.
    pub(super) fn create_active(&self, base: u64, version: &SchemaVersion) -> Result<Active> {
        let path = SegmentName { base, schema: version.number }.open(self.dir);
        let preamble = frame::preamble(&version.schema, self.identity, base);
        files::write_whole(&path, &preamble)?;
        let file = open_for_writing(&path)?;
        let file_end = preamble.len() as u64;
        let version = version.clone();
        Ok(Active { file, base, version, file_end, end: base, blocks: Vec::new(), synced: file_end, time_ms: None })
    }

    fn open_active(
        &self,
        name: SegmentName,
        durable: bool,
        origins: &mut HashMap<u128, u64>,
        recovery: &mut Recovery,
    ) -> Result<Active> {
        let (path, base) = (name.open(self.dir), name.base);
        let version = self.version(name)?.clone();
        let failed = |error| Error::io(format!("cannot recover segment: path={}", path.display()), error);
        let file = open_for_writing(&path)?;
        let hint = Hint::read(self.dir, base);
        let len = file.metadata().map_err(failed)?.len();
        let mut scan = Scan::new(preamble_bytes(&file, &path, &version.schema, self.identity, base)?, base);
        let walk = Walk { file: &file, len, schema: &version.schema, identity: self.identity, hint };
        let mut time_ms: Option<(u64, u64)> = None;
        let note = |header: &Header| {
            let (from, to) = header.meta.time_ms;
            time_ms = Some(time_ms.map_or((from, to), |time| (time.0.min(from), time.1.max(to))));
            header.meta.runs.iter().for_each(|run| raise(origins, run.source, run.next()));
        };
        scan.advance(&walk, note).map_err(failed)?;
        let preamble = frame::preamble(&version.schema, self.identity, base);
        mend_preamble(&file, &preamble, scan.blocks.first().map(|block| block.header)).map_err(failed)?;
        if len > scan.good {
            file.set_len(scan.good).map_err(failed)?;
            recovery.cut_bytes = len - scan.good;
            recovery.cut_rows = scan.torn_rows;
        }
        recovery.damage = scan
            .holes
            .iter()
            .map(|hole| Damage {
                path: path.clone(),
                block: hole.block,
                position: hole.position,
                offsets: hole.offsets.clone(),
                why: hole.why.into(),
            })
            .collect();
        let mut synced = scan.synced.min(scan.good);
        if durable {
            rewrite(&file, synced..scan.good).and_then(|()| file.sync_all()).map_err(failed)?;
            synced = scan.good;
        }
        Ok(Active { file, base, version, file_end: scan.good, end: scan.end, blocks: scan.blocks, synced, time_ms })
    }
}

/// Writes a damaged preamble again, when it is known where it ended.
fn mend_preamble(file: &File, preamble: &[u8], first_block: Option<u64>) -> std::io::Result<()> {
    let mut there = vec![0; preamble.len()];
    let same = file.read_exact_at(&mut there, 0).is_ok() && there == preamble;
    let sound = there.get(frame::MAGIC.len()..).is_some_and(frame::is_sound) && there.starts_with(frame::MAGIC);
    if same || sound || first_block.is_some_and(|at| at != preamble.len() as u64) {
        return Ok(());
    }
    file.write_all_at(preamble, 0)
}

/// The blocks of a sealed segment as their headers say them. Offsets up to the end of `offsets` are known to have been in
/// it: those that no block covers are holes.
pub(super) fn scan_sealed(
    (file, path): (&File, &Path),
    schema: &Arc<Schema>,
    identity: &Identity,
    offsets: Range<u64>,
    each: impl FnMut(&Header),
) -> Result<Scan> {
    let failed = |error| Error::io(format!("cannot read segment: path={}", path.display()), error);
    let len = file.metadata().map_err(failed)?.len();
    let base = offsets.start;
    let mut scan = Scan::new(preamble_bytes(file, path, schema, identity, base)?, base);
    let hint = Hint { base, synced: len, end: offsets.end };
    scan.advance(&Walk { file, len, schema, identity, hint }, each).map_err(failed)?;
    Ok(scan)
}

/// Sets a source's next row, never back.
pub(super) fn raise(origins: &mut HashMap<u128, u64>, source: u128, next: u64) {
    let known = origins.entry(source).or_default();
    *known = next.max(*known);
}

/// What is wrong with a footer, for people.
pub(super) fn footer_error(path: &Path, base: u64, why: NoFooter) -> Error {
    match why {
        NoFooter::Io(error) => Error::io(format!("cannot read segment: path={}", path.display()), error),
        NoFooter::Bad(why) | NoFooter::Foreign(why) => {
            let position = std::fs::metadata(path).map(|about| about.len()).unwrap_or(0);
            Error::corrupt(format!(
                "a sealed segment's footer is damaged, {why}: path={} block=footer position={position} offset={base}",
                path.display()
            ))
        }
    }
}

/// Length of a segment's preamble: as it says itself, or as it must have been when it is damaged. A file that says it
/// belongs to another topic, partition or place is refused.
pub(super) fn preamble_bytes(file: &File, path: &Path, schema: &Schema, identity: &Identity, base: u64) -> Result<u64> {
    let failed = |error| Error::io(format!("cannot read segment: path={}", path.display()), error);
    let mut start = [0; frame::MAGIC.len() + frame::PREFIX_BYTES];
    match file.read_exact_at(&mut start, 0) {
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(failed(error)),
        _ => {}
    }
    let ours = || Ok(frame::preamble(schema, identity, base).len() as u64);
    let Some(said) = start.last_chunk().copied().and_then(frame::frame_bytes) else { return ours() };
    let total = (said + frame::MAGIC.len()) as u64;
    let len = file.metadata().map_err(failed)?.len();
    if !start.starts_with(frame::MAGIC) || said > frame::PREAMBLE_BYTES_MAX || total > len {
        return ours();
    }
    let mut bytes = vec![0; said];
    file.read_exact_at(&mut bytes, frame::MAGIC.len() as u64).map_err(failed)?;
    match frame::preamble_owner(&bytes) {
        None => ours(),
        Some(owner) if owner == (*identity, base) => Ok(total),
        Some(_) => Err(Error::corrupt(format!(
            "the segment belongs to another topic or place: path={} offset={base} incarnation={}",
            path.display(),
            identity.incarnation
        ))),
    }
}

fn open_for_writing(path: &Path) -> Result<File> {
    let open = OpenOptions::new().read(true).write(true).open(path);
    open.map_err(|error| Error::io(format!("cannot open segment for writing: path={}", path.display()), error))
}

/// Writes what a range of the file holds over itself, so that a sync really writes it.
fn rewrite(file: &File, range: Range<u64>) -> std::io::Result<()> {
    let mut at = range.start;
    let mut bytes = Vec::new();
    while at < range.end {
        bytes.resize(REWRITE_BYTES.min(range.end - at) as usize, 0);
        file.read_exact_at(&mut bytes, at)?;
        file.write_all_at(&bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(())
}
