//! Making a version: look under a guard, share what the version before holds, write version and hold as one.

use std::collections::HashSet;

use cursorstore::records::dataset::{PartRef, Selection, Totals, WindowRef};
use cursorstore::records::{DatasetVersion, Guard, ManifestPart, Record, Records};
use cursorstore::store::{Batch, Scope, Store, VALUE_BYTES_MAX, Writer};
use cursorstore::{Extent, TopicName};

use super::names::{check_name, fenced_or};
use super::picker::Picker;
use super::ranges::{self, Bound};
use super::scan::{ScanProgress, Scanned, SealedPart, scan};
use super::{Catalogue, append_error, now_ms};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Guard as LogGuard, Topic, TopicView};

/// Bytes of parts appended at once.
const APPEND_BYTES: usize = 8 << 20;
/// Times that a snapshot is taken while retention deletes what it holds.
const LOOKS_MAX: usize = 16;

/// What to pin.
#[derive(Clone, Debug, Default)]
pub struct PinRequest {
    /// The dataset.
    pub name: String,
    /// The topic; `None` with a checkpoint, or to pin again as the newest version was.
    pub topic: Option<TopicName>,
    /// What of it.
    pub selection: Selection,
    /// Make a version even if it holds the same as the newest.
    pub again: bool,
    /// Who pins.
    pub created_by: String,
}

/// What became of a pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The version made, or the one that holds the same already.
    pub version: DatasetVersion,
    /// Whether it was made now.
    pub is_new: bool,
    /// Windows shared with its parent.
    pub shared_windows: usize,
    /// Records looked at.
    pub looked_at: u64,
    /// Bytes of payload that had to be read; checksums of whole blocks come from their headers.
    pub read_bytes: u64,
}

/// All that a pin looks at, fixed before the first attempt to write.
struct Work<'a> {
    request: &'a PinRequest,
    view: TopicView,
    selection: Selection,
    ranges: Vec<Extent>,
    /// Whether `ranges` are one per partition at most, so that a later version may add to them.
    growable: bool,
    picker: Picker,
    /// Holds the topic's records until the version's own guard is written.
    _guard: LogGuard,
}

impl Catalogue {
    /// Makes the next version of a dataset. The same content again is no new version unless asked for.
    pub fn pin(&self, request: &PinRequest, progress: &mut dyn FnMut(ScanProgress)) -> Result<Outcome> {
        check_name(&request.name)?;
        let work = self.work(request)?;
        loop {
            let before = self.latest(&request.name)?;
            let guard = before.as_ref().map(|before| self.guard_of(before)).transpose()?.flatten();
            let base = before.as_ref().filter(|before| work.continues(before, guard.as_ref()));
            let rest = match base {
                Some(base) => work.ranges_beyond(base),
                None => work.ranges.clone(),
            };
            let found = scan(&request.name, &work.view, &rest, &work.picker, progress)?;
            let same = base.is_some_and(|base| found.hulls.is_empty() && base.schema == work.view.schema.to_string());
            let same = same || base.is_none() && before.as_ref().is_some_and(|before| work.is_same(before, &found));
            if let Some(version) = before.clone().filter(|_| same && !request.again) {
                let (looked_at, read_bytes) = (found.looked_at, found.read_bytes);
                let shared_windows = version.windows.len();
                return Ok(Outcome { version, is_new: false, shared_windows, looked_at, read_bytes });
            }
            if let Some(outcome) = self.write(&work, before.as_ref(), base, guard.filter(|_| base.is_some()), &found)? {
                return Ok(outcome);
            }
        }
    }

    fn work<'a>(&self, request: &'a PinRequest) -> Result<Work<'a>> {
        let mut selection = request.selection.clone();
        let mut topic_name = request.topic.clone();
        if topic_name.is_none() && selection == Selection::default() {
            let latest = self.latest(&request.name)?.ok_or_else(|| {
                Error::invalid(format!("a new dataset needs a topic or a checkpoint: dataset={}", request.name))
                    .with_hint(format!("forebay dataset pin {} --topic TOPIC", request.name))
            })?;
            (topic_name, selection) = (Some(latest.topic), latest.selection);
        }
        let mut of_checkpoint = None;
        if let Some(text) = &selection.checkpoint {
            if selection.from.is_some() || selection.to.is_some() {
                return Err(Error::invalid("a checkpoint says which records already, leave out --from and --to"));
            }
            let checkpoint = self.checkpoint(text)?;
            let (topic, extents) = self.of_state(&checkpoint.state)?;
            if topic_name.as_ref().is_some_and(|name| *name != topic) {
                let text = format!("the checkpoint is of another topic: checkpoint={text} topic={topic}");
                return Err(Error::invalid(text).with_hint(format!("leave out --topic, or give --topic {topic}")));
            }
            selection.checkpoint = Some(format!("{}@{}", checkpoint.job, checkpoint.step));
            (topic_name, of_checkpoint) = (Some(topic), Some(extents));
        }
        let topic_name = topic_name.ok_or_else(|| Error::invalid("say which topic").with_hint("--topic TOPIC"))?;
        let topic = self.root.topic(&topic_name)?;
        let (view, guard) = held(&topic)?;
        let (ranges, growable) = match of_checkpoint {
            Some(extents) => (still_there(&view, extents)?, false),
            None => {
                let bound = |text: &Option<String>| text.as_deref().map(Bound::parse).transpose();
                let (from, to) = (bound(&selection.from)?, bound(&selection.to)?);
                (ranges::between(&view, from.as_ref(), to.as_ref())?, true)
            }
        };
        let picker = Picker::new(&mut selection, &view)?;
        Ok(Work { request, view, selection, ranges, growable, picker, _guard: guard })
    }

    /// Writes parts, version and guard. `None`: somebody else made a version meanwhile, look again.
    fn write(
        &self,
        work: &Work<'_>,
        before: Option<&DatasetVersion>,
        base: Option<&DatasetVersion>,
        base_guard: Option<Guard>,
        found: &Scanned,
    ) -> Result<Option<Outcome>> {
        let name = &work.request.name;
        let version = work.version(before, base, found)?;
        let guard = work.guard(&version, base_guard, found);
        let size = version.encode().len();
        if size > VALUE_BYTES_MAX {
            let text = format!(
                "the version has too many windows and parts for one record: bytes={size} bytes_max={VALUE_BYTES_MAX}"
            );
            return Err(Error::invalid(text).with_hint("pin it under a new name, which starts with a single window"));
        }
        self.change(|writer| {
            if self.latest(name)?.as_ref() != before {
                return Ok(None);
            }
            self.put_parts(writer, name, &found.parts)?;
            let batch = self.without_orphans(Batch::new(), name, &[], Some(&version))?;
            writer.append(&batch.record(&version).record(&guard)).map_err(fenced_or(append_error))?;
            let shared_windows = base.map_or(0, |base| base.windows.len());
            let (looked_at, read_bytes) = (found.looked_at, found.read_bytes);
            Ok(Some(Outcome { version: version.clone(), is_new: true, shared_windows, looked_at, read_bytes }))
        })
    }

    /// Puts the parts that are not there yet.
    fn put_parts(&self, writer: &mut Writer, name: &str, parts: &[SealedPart]) -> Result<()> {
        let there = self.store.fold(&Scope::catalogue(), &ManifestPart::prefix(name))?;
        let (mut batch, mut bytes) = (Batch::new(), 0);
        for part in parts.iter().filter(|part| there.get(&part.key).is_none()) {
            if bytes + part.bytes.len() > APPEND_BYTES {
                writer.append(&batch).map_err(fenced_or(append_error))?;
                (batch, bytes) = (Batch::new(), 0);
            }
            bytes += part.bytes.len();
            batch = batch.put(part.key.clone(), part.bytes.clone());
        }
        writer.append(&batch).map_err(fenced_or(append_error))?;
        Ok(())
    }

    /// Deletes the parts of a dataset that no version needs: its stored ones less those in `without`, and `with`.
    pub(super) fn without_orphans(
        &self,
        mut batch: Batch,
        name: &str,
        without: &[u64],
        with: Option<&DatasetVersion>,
    ) -> Result<Batch> {
        let mut needed: HashSet<String> = HashSet::new();
        let mut keep = |version: &DatasetVersion| {
            let parts = version.windows.iter().flat_map(|window| &window.parts);
            needed.extend(parts.map(|part| ManifestPart::key_of(name, part.digest)));
        };
        with.iter().for_each(|version| keep(version));
        for number in self.numbers(name)?.into_iter().filter(|number| !without.contains(number)) {
            match self.stored(name, number) {
                Ok(Some(version)) => keep(&version),
                Ok(None) => {}
                // What cannot be read may need any of them.
                Err(_) => return Ok(batch),
            }
        }
        for entry in self.store.fold(&Scope::catalogue(), &ManifestPart::prefix(name))?.entries() {
            if !needed.contains(&*entry.key) {
                batch = batch.delete(&*entry.key);
            }
        }
        Ok(batch)
    }

    fn guard_of(&self, version: &DatasetVersion) -> Result<Option<Guard>> {
        Ok(self.store.record(&Scope::catalogue(), &Guard::key_of(&version.key()))?)
    }
}

/// A snapshot of the topic, held back from retention.
fn held(topic: &Topic) -> Result<(TopicView, LogGuard)> {
    let mut tries = 0;
    loop {
        let view = topic.view()?;
        let first: Vec<u64> = view.partitions.iter().map(|partition| partition.first).collect();
        match topic.guard(&first) {
            Ok(guard) => return Ok((view, guard)),
            Err(error) if error.kind() == ErrorKind::NotRetained && tries < LOOKS_MAX => tries += 1,
            Err(error) if error.kind() == ErrorKind::Permission => {
                let text = format!("nothing can be pinned where nothing can be written: topic={}", topic.name());
                return Err(Error::new(ErrorKind::Permission, text).with_source(error));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Extents that were recorded before, if the topic still has them all.
pub(crate) fn still_there(view: &TopicView, extents: Vec<Extent>) -> Result<Vec<Extent>> {
    for extent in &extents {
        check_there(view, extent)?;
    }
    Ok(extents)
}

/// Refuses records of another life of the topic, and those that it no longer has.
pub(super) fn check_there(view: &TopicView, extent: &Extent) -> Result<()> {
    if extent.incarnation != view.incarnation {
        let text = "the topic was deleted and made again since its records were pinned";
        return Err(Error::new(
            ErrorKind::StateMismatch,
            format!("{text}: topic={} pinned={} topic_now={}", view.name, extent.incarnation, view.incarnation),
        ));
    }
    let partition = view.partitions.get(extent.segment as usize);
    let (first, end) = partition.map_or((0, 0), |partition| (partition.first, partition.end));
    if extent.from < first || extent.to > end {
        // Retention takes from the front; an end that comes too early is damage.
        let kind = if extent.from < first { ErrorKind::NotRetained } else { ErrorKind::Corrupt };
        return Err(Error::new(
            kind,
            format!(
                "records are no longer in the topic: topic={} partition={} needed={}..{} kept={first}..{end}",
                view.name, extent.segment, extent.from, extent.to
            ),
        ));
    }
    Ok(())
}

impl Work<'_> {
    /// Whether a version's windows are the beginning of what is to be pinned now: the same records were looked at in the same
    /// way, and the topic has only grown. A filter may mean something else under another schema.
    fn continues(&self, before: &DatasetVersion, guard: Option<&Guard>) -> bool {
        let Some(guard) = guard else { return false };
        let same = before.topic == self.view.name
            && before.incarnations == [self.view.incarnation]
            && (before.schema == self.view.schema.to_string() || self.selection.filter.is_none())
            && (&before.selection.filter, &before.selection.split) == (&self.selection.filter, &self.selection.split);
        let now = |segment: u32| self.ranges.iter().find(|range| range.segment == segment);
        same && self.growable
            && !before.scanned.is_empty()
            && before.scanned.iter().all(|old| {
                // Between the first record looked at and the first one taken nothing was taken, so beginning there is the same.
                let first =
                    guard.ranges.iter().find(|range| range.segment == old.segment).map_or(old.to, |range| range.from);
                now(old.segment).is_some_and(|new| (old.from..=first).contains(&new.from) && new.to >= old.to)
            })
    }

    /// What a continued version has not looked at.
    fn ranges_beyond(&self, base: &DatasetVersion) -> Vec<Extent> {
        let old = |segment: u32| base.scanned.iter().find(|old| old.segment == segment);
        let beyond = self
            .ranges
            .iter()
            .map(|range| Extent { from: old(range.segment).map_or(range.from, |old| old.to), ..range.clone() });
        beyond.filter(|range| range.count() > 0).collect()
    }

    /// Whether a version that is not continued holds just these parts anyway.
    fn is_same(&self, before: &DatasetVersion, found: &Scanned) -> bool {
        let windows = [WindowRef { parts: found.parts.iter().map(|part| part.of.clone()).collect() }];
        let made = self.shell(before.version, None, windows.to_vec(), found.time_ms).sealed();
        before.fingerprint == made.fingerprint
    }

    fn shell(
        &self,
        number: u64,
        parent: Option<u64>,
        windows: Vec<WindowRef>,
        time_ms: Option<(u64, u64)>,
    ) -> DatasetVersion {
        DatasetVersion {
            name: self.request.name.clone(),
            version: number,
            topic: self.view.name.clone(),
            incarnations: vec![self.view.incarnation],
            schema: self.view.schema.to_string(),
            recipe: String::new(),
            selection: self.selection.clone(),
            scanned: if self.growable { self.ranges.clone() } else { Vec::new() },
            windows,
            totals: Totals::default(),
            time_ms,
            parent,
            created_by: self.request.created_by.clone(),
            created_ms: now_ms(),
            fingerprint: 0,
        }
    }

    fn version(
        &self,
        before: Option<&DatasetVersion>,
        base: Option<&DatasetVersion>,
        found: &Scanned,
    ) -> Result<DatasetVersion> {
        let number = before.map_or(0, |before| before.version) + 1;
        let parts: Vec<PartRef> = found.parts.iter().map(|part| part.of.clone()).collect();
        let mut windows = base.map_or(Vec::new(), |base| base.windows.clone());
        if !parts.is_empty() {
            windows.push(WindowRef { parts });
        }
        if windows.is_empty() {
            let text = format!("no record is selected: topic={} looked_at={}", self.view.name, found.looked_at);
            let hint = match found.looked_at {
                0 => format!("see what there is: forebay topic show {}", self.view.name),
                _ => "loosen --filter or --split".into(),
            };
            return Err(Error::invalid(text).with_hint(hint));
        }
        let time_ms = match (base.and_then(|base| base.time_ms), found.time_ms) {
            (Some(old), Some(new)) => Some((old.0.min(new.0), old.1.max(new.1))),
            (old, new) => old.or(new),
        };
        Ok(self.shell(number, base.map(|base| base.version), windows, time_ms).sealed())
    }

    /// What retention must leave for the version: of each partition the range from its first record to its last.
    fn guard(&self, version: &DatasetVersion, of_base: Option<Guard>, found: &Scanned) -> Guard {
        let mut ranges = of_base.map_or(Vec::new(), |guard| guard.ranges);
        for hull in &found.hulls {
            match ranges.iter_mut().find(|range| range.segment == hull.segment) {
                Some(range) => (range.from, range.to) = (range.from.min(hull.from), range.to.max(hull.to)),
                None => ranges.push(hull.clone()),
            }
        }
        ranges.sort_by_key(|range| range.segment);
        Guard { holder: version.key(), topic: version.topic.clone(), ranges, since_ms: version.created_ms }
    }
}
