//! Retention: whole sealed segments are deleted from the front of a partition, by age and by bytes, as far as nobody
//! needs them.
//!
//! What must stay: the newest segment of every partition (its base keeps offsets from ever starting again), everything
//! that a hold of the caller or a live guard needs, and everything behind such a segment.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::files;
use super::guard::Folder;
use super::topic::Topic;
use super::view::SegmentView;
use crate::error::{Error, Result};

/// What is to be kept. Without any limit everything is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Most bytes of the topic's segment files; the oldest go first.
    pub bytes: Option<u64>,
    /// Segments whose last row is older go.
    pub age_ms: Option<u64>,
}

/// What retention did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Segments deleted.
    pub segments: u64,
    /// Rows in them.
    pub rows: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Bytes of segments that were due and are held back by a guard or a hold.
    pub held_bytes: u64,
    /// First offset of every partition now.
    pub first: Vec<u64>,
    /// What live guards hold: each the lowest offset it needs, per partition.
    pub live: Vec<Vec<u64>>,
}

/// The lowest offset of a partition that must stay, beside what guards hold; `None` for no need. Asked after the live guards
/// were listed, while none can be made: who holds a guard until its record is written is never missed.
pub type Holds<'a> = &'a dyn Fn(u32) -> Result<Option<u64>>;

struct Candidate {
    segment: Arc<SegmentView>,
    bytes: u64,
    last_ms: u64,
}

/// One partition's deletable segments, the oldest last.
struct Front {
    candidates: Vec<Candidate>,
    held_from: u64,
    first: u64,
}

impl Topic {
    /// Deletes what the rules no longer keep. Safe beside a writer and readers, in any process.
    pub fn retain(&self, rules: &Retention, now_ms: u64, holds: Holds<'_>) -> Result<Retained> {
        self.apply(rules, now_ms, Some(holds), true)
    }

    /// What [`retain`](Self::retain) would do, deleting nothing.
    pub fn would_retain(&self, rules: &Retention, now_ms: u64, holds: Holds<'_>) -> Result<Retained> {
        self.apply(rules, now_ms, Some(holds), false)
    }

    /// What the rules alone would delete, if nobody needed anything.
    pub fn due(&self, rules: &Retention, now_ms: u64) -> Result<Retained> {
        self.apply(rules, now_ms, None, false)
    }

    /// Without `holds`, guards do not count either.
    fn apply(&self, rules: &Retention, now_ms: u64, holds: Option<Holds<'_>>, delete: bool) -> Result<Retained> {
        let folder = Folder::open(self.dir())?;
        let mut guards: Vec<Vec<u64>> = folder.live()?.collect();
        if holds.is_none() {
            guards.clear();
        }
        let mut total = 0;
        let mut fronts = Vec::new();
        for partition in 0..self.partitions() {
            // A guard that says nothing of a partition holds all of it.
            let held = guards.iter().map(|from| from.get(partition as usize).copied().unwrap_or(0));
            let held_from =
                held.chain(holds.map(|holds| holds(partition)).transpose()?.flatten()).min().unwrap_or(u64::MAX);
            let (front, bytes) = self.front(partition, held_from)?;
            total += bytes;
            fronts.push(front);
        }
        let mut report = Retained { live: guards, ..Retained::default() };
        let aged = |last_ms| rules.age_ms.is_some_and(|age| now_ms.saturating_sub(last_ms) > age);
        for front in &mut fronts {
            while front.deletable().is_some_and(|oldest| aged(oldest.last_ms)) {
                total -= self.delete_oldest(front, &mut report, delete)?.min(total);
            }
        }
        while rules.bytes.is_some_and(|limit| total > limit) {
            let ages = fronts.iter_mut().filter_map(|front| Some((front.deletable()?.last_ms, front)));
            let Some((_, front)) = ages.min_by_key(|(last_ms, _)| *last_ms) else { break };
            total -= self.delete_oldest(front, &mut report, delete)?.min(total);
        }
        let held = || fronts.iter().flat_map(|front| front.candidates.iter().filter(|one| front.holds(one)));
        let held_bytes: u64 = held().map(|one| one.bytes).sum();
        let held_aged: u64 = held().filter(|one| aged(one.last_ms)).map(|one| one.bytes).sum();
        let excess = rules.bytes.map_or(0, |limit| total.saturating_sub(limit));
        report.held_bytes = held_aged.max(excess.min(held_bytes));
        report.first = fronts.iter().map(|front| front.first).collect();
        Ok(report)
    }

    /// First offset that is retained, by file names alone.
    pub(super) fn first(&self, partition: u32) -> Result<u64> {
        let listing = files::Listing::settled(&super::partition_dir(self.dir(), partition))?;
        Ok(listing.sealed.iter().chain(&listing.open).map(|segment| segment.base).min().unwrap_or(0))
    }

    fn front(&self, partition: u32, held_from: u64) -> Result<(Front, u64)> {
        let dir = super::partition_dir(self.dir(), partition);
        let view = self.view_partition(partition)?;
        let listing = files::Listing::settled(&dir)?;
        let newest = listing.sealed.iter().chain(&listing.open).map(|segment| segment.base).max();
        let (mut candidates, mut bytes) = (Vec::new(), 0);
        for segment in view.segments() {
            let path = &segment.path;
            let about = match fs::metadata(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                about => {
                    about.map_err(|error| Error::io(format!("cannot read segment: path={}", path.display()), error))?
                }
            };
            bytes += about.len();
            if segment.is_sealed() && newest != Some(segment.base) {
                // A damaged segment does not say its age; its file does.
                let said = segment.time_ms().ok().flatten().map(|time| time.1);
                let last_ms = said.unwrap_or((about.mtime() as u64).saturating_mul(1000));
                candidates.push(Candidate { segment: segment.clone(), bytes: about.len(), last_ms });
            }
        }
        candidates.reverse();
        Ok((Front { candidates, held_from, first: view.first }, bytes))
    }

    /// Deletes a partition's oldest segment and returns its bytes.
    fn delete_oldest(&self, front: &mut Front, report: &mut Retained, delete: bool) -> Result<u64> {
        let Some(oldest) = front.candidates.pop() else { return Ok(0) };
        if delete {
            files::remove(&oldest.segment.path)?;
            // One after the other, so that a crash of the machine leaves no gap.
            files::sync_dir(&super::partition_dir(self.dir(), oldest.segment.partition))?;
        }
        report.segments += 1;
        report.rows += oldest.segment.end - oldest.segment.base;
        report.bytes += oldest.bytes;
        front.first = oldest.segment.end;
        Ok(oldest.bytes)
    }
}

impl Front {
    fn holds(&self, candidate: &Candidate) -> bool {
        candidate.segment.end > self.held_from
    }

    /// The oldest segment, if nobody needs it.
    fn deletable(&self) -> Option<&Candidate> {
        self.candidates.last().filter(|oldest| !self.holds(oldest))
    }
}
