//! Carries an ingest out: plan, check, write; each record once, whatever happens in between.
//!
//! Nothing is written before all that can be foreseen is known to be right: files, types and schemas, room on the disk,
//! and, unless checking is turned off, every value. Each file is stored in one partition under its identity, and the
//! log drops rows that it has of it: a run that was killed is repeated as it was, and goes on where the log ends. What
//! is acknowledged stays, also when a later file fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use cursorstore::TopicName;

use super::plan::{Plan, PlannedFile};
use super::progress::{Event, Progress, Stage};
use super::{Decoder, Given, Growing};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Fsync, Origin, Root, Topic, TopicOptions, Writer, WriterOptions};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::Defaults;

/// Rows of about so many bytes are appended at once.
const APPEND_BYTES: usize = 8 << 20;
/// A partition that got so many bytes in one ingest is sealed at its end: readers then find its blocks in the footer
/// rather than by walking them. After less it stays open, so that many small ingests do not make many small segments.
const SEAL_BYTES: u64 = 32 << 20;
/// Appends that a decoder may be ahead of the log.
const AHEAD: usize = 2;

/// What to ingest, and where to.
#[derive(Clone, Debug)]
pub struct Request {
    /// Root directory of the topics; made if there is none.
    pub root: PathBuf,
    /// The topic; made if there is none.
    pub topic: TopicName,
    /// Files and patterns.
    pub sources: Vec<String>,
    /// Schema and columns.
    pub given: Given,
    /// What the topic's rows have in columns that the files add to it.
    pub defaults: Defaults,
    /// Partitions of the topic, if it is made; must agree if it is there.
    pub partitions: Option<u32>,
    /// Durability of appends.
    pub fsync: Fsync,
    /// Decode everything once before anything is written.
    pub check: bool,
    /// Stop before anything is written.
    pub dry_run: bool,
}

/// What an ingest did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files.
    pub files: u64,
    /// Files that were in the topic already, whole.
    pub files_already: u64,
    /// Rows stored by this run.
    pub rows: u64,
    /// Rows of these files that were in the topic already.
    pub rows_already: u64,
    /// Bytes of the rows stored.
    pub bytes: u64,
    /// Whether this run made the topic.
    pub created: bool,
    /// Partitions of the topic.
    pub partitions: u32,
    /// Rows in the topic now, all of it.
    pub topic_rows: u64,
}

/// Carries out one request.
pub struct Runner<'a> {
    request: &'a Request,
    progress: &'a mut dyn Progress,
}

impl<'a> Runner<'a> {
    /// A runner that reports to `progress`.
    pub fn new(request: &'a Request, progress: &'a mut dyn Progress) -> Self {
        Self { request, progress }
    }

    /// Runs. The plan that was carried out comes back with the summary.
    pub fn run(mut self) -> Result<(Plan, Summary)> {
        self.topic_options().check()?;
        if let Some(done) = self.carry_out()? {
            return Ok(done);
        }
        let text = format!("another ingest made the topic meanwhile, going on with it: topic={}", self.request.topic);
        self.progress.report(Event::Note(&text));
        self.carry_out()?.ok_or_else(|| {
            let text = format!("the topic comes and goes: topic={}", self.request.topic);
            Error::new(ErrorKind::Busy, text).with_hint("try again when nobody else makes or removes it")
        })
    }

    /// All of it, from the topic as it is now. `None`: there was none, and then somebody else made it.
    fn carry_out(&mut self) -> Result<Option<(Plan, Summary)>> {
        let topic = self.existing_topic()?;
        let given = given_for(self.request, topic.as_ref())?;
        let plan = Plan::new(&self.request.sources, &given, self.progress)?;
        self.progress.report(Event::Planned(&plan));
        if plan.rows() == Some(0) {
            return Err(Error::invalid(format!("the files hold no rows: files={}", plan.files().len())));
        }
        let mut summary = Summary { files: plan.files().len() as u64, ..Summary::default() };
        let mut writers = topic.as_ref().map_or(Ok(Vec::new()), |topic| self.writers(topic))?;
        let todo = todo(&plan, &writers, &mut summary);
        if self.request.check && !todo.is_empty() {
            self.check(&plan, &todo)?;
        }
        self.check_room(&plan, &todo)?;
        if self.request.dry_run {
            summary.partitions = topic.map_or(self.topic_options().partitions, |topic| topic.partitions());
            return Ok(Some((plan, summary)));
        }
        if topic.is_none() {
            let topic = match self.make_topic(plan.schema()) {
                Err(error) if error.kind() == ErrorKind::Exists => return Ok(None),
                topic => topic?,
            };
            writers = self.writers(&topic)?;
            summary.created = true;
        }
        if plan.growth().is_some() && !todo.is_empty() {
            // All of them, so that none goes on under the earlier schema.
            writers.iter().try_for_each(|writer| writer.grow(plan.schema(), &self.request.defaults).map(drop))?;
        }
        self.write(&plan, &todo, &writers, &mut summary)?;
        summary.partitions = writers.len() as u32;
        summary.topic_rows = writers.iter().map(Writer::end).sum();
        writers.into_iter().try_for_each(Writer::close)?;
        Ok(Some((plan, summary)))
    }

    fn existing_topic(&self) -> Result<Option<Topic>> {
        let root = match Root::open(&self.request.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            root => root?,
        };
        match root.topic(&self.request.topic) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            topic => topic.map(Some),
        }
    }

    fn make_topic(&self, schema: &Schema) -> Result<Topic> {
        Root::create(&self.request.root)?.create_topic(&self.request.topic, schema, &self.topic_options())
    }

    /// Of the topic, if it is made.
    fn topic_options(&self) -> TopicOptions {
        TopicOptions { partitions: self.request.partitions.unwrap_or(1), ..TopicOptions::default() }
    }

    /// The topic's writers, which keeps other writers out until they are closed.
    fn writers(&mut self, topic: &Topic) -> Result<Vec<Writer>> {
        if let Some(partitions) = self.request.partitions.filter(|&partitions| partitions != topic.partitions()) {
            return Err(Error::invalid(format!(
                "the topic has another number of partitions: topic={} partitions={} wanted={partitions}",
                topic.name(),
                topic.partitions()
            ))
            .with_hint("leave out --partitions, or ingest into another topic"));
        }
        let options = WriterOptions { fsync: self.request.fsync, ..WriterOptions::default() };
        let mut writers = Vec::new();
        for partition in 0..topic.partitions() {
            let writer = topic.writer(partition, options.clone())?;
            let recovery = writer.recovery();
            if recovery.cut_bytes > 0 {
                self.progress.report(Event::Note(&format!(
                    "a torn end was cut, nothing of it had been acknowledged: partition={partition} bytes={} rows={}",
                    recovery.cut_bytes, recovery.cut_rows
                )));
            }
            for damage in &recovery.damage {
                self.progress.report(Event::Note(&format!(
                    "stored rows are unreadable, {}: path={} position={} offsets={}..{}",
                    damage.why,
                    damage.path.display(),
                    damage.position,
                    damage.offsets.start,
                    damage.offsets.end
                )));
            }
            writers.push(writer);
        }
        Ok(writers)
    }

    /// Decodes what is to be stored, to the end.
    fn check(&mut self, plan: &Plan, todo: &[Todo]) -> Result<()> {
        self.progress.report(Event::Begin { stage: Stage::Check, bytes: bytes_of(plan, todo) });
        for todo in todo {
            let file = &plan.files()[todo.file];
            let mut decoder = plan.open(file)?;
            decoder.skip_to(todo.from)?;
            let rows_max = rows_of(APPEND_BYTES, plan.schema());
            while let Some(rows) = decoder.next(rows_max)? {
                self.progress.report(Event::Advance { bytes: rows.bytes() as u64 });
            }
            file.stamp.check(&file.path)?;
        }
        self.progress.report(Event::End);
        Ok(())
    }

    /// Refuses before the first row what the disk cannot hold in the end.
    fn check_room(&self, plan: &Plan, todo: &[Todo]) -> Result<()> {
        let needed = bytes_of(plan, todo);
        let Some(free) = free_bytes(&self.request.root) else { return Ok(()) };
        if needed <= free {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the disk has no room for the rows: root={} bytes={needed} free={free}",
                self.request.root.display()
            ),
        )
        .with_hint("make room, keep the topics elsewhere with --root, or take fewer columns with --columns"))
    }

    fn write(&mut self, plan: &Plan, todo: &[Todo], writers: &[Writer], summary: &mut Summary) -> Result<()> {
        if todo.is_empty() {
            return Ok(());
        }
        self.progress.report(Event::Begin { stage: Stage::Write, bytes: bytes_of(plan, todo) });
        // Whole files go to where least is, or will be; begun ones stay where they are.
        let mut load: Vec<u64> = writers.iter().map(Writer::end).collect();
        let mut written_bytes = vec![0; writers.len()];
        for todo in todo {
            let file = &plan.files()[todo.file];
            let partition = todo.partition.unwrap_or_else(|| {
                let least = load.iter().enumerate().min_by_key(|(_, rows)| **rows);
                least.map_or(0, |(partition, _)| partition)
            });
            let rows = self.write_file(plan, file, todo.from, &writers[partition])?;
            load[partition] += rows;
            summary.rows += rows;
            let bytes = rows * plan.schema().row_bytes() as u64;
            written_bytes[partition] += bytes;
            summary.bytes += bytes;
        }
        for (writer, _) in writers.iter().zip(written_bytes).filter(|(_, bytes)| *bytes >= SEAL_BYTES) {
            writer.seal()?;
        }
        self.progress.report(Event::End);
        Ok(())
    }

    /// Stores a file's rows from `from` on; gives how many.
    fn write_file(&mut self, plan: &Plan, file: &PlannedFile, from: u64, writer: &Writer) -> Result<u64> {
        let mut decoder = plan.open(file)?;
        decoder.skip_to(from)?;
        let block_rows = writer.block_rows() as usize;
        let rows_max = (rows_of(APPEND_BYTES, plan.schema()) / block_rows).max(1) * block_rows;
        let progress = &mut *self.progress;
        let mut at = from;
        read_ahead(decoder, rows_max, &mut |rows| {
            writer.append_from(Origin { source: file.source, first: at }, &rows)?;
            at += rows.count() as u64;
            progress.report(Event::Advance { bytes: rows.bytes() as u64 });
            Ok(())
        })?;
        file.stamp.check(&file.path)?;
        Ok(at - from)
    }
}

/// A file that is not yet whole in the topic.
#[derive(Clone, Copy, Debug)]
struct Todo {
    /// Index into the plan.
    file: usize,
    /// First row that is missing.
    from: u64,
    /// The partition that has the rows before it.
    partition: Option<usize>,
}

/// How files are read: as the topic takes them, if it is there.
fn given_for(request: &Request, topic: Option<&Topic>) -> Result<Given> {
    let Some(topic) = topic else {
        return match request.defaults.is_empty() {
            true => Ok(request.given.clone()),
            false => Err(Error::invalid(format!(
                "defaults are for columns that are added to a topic, and there is none yet: topic={}",
                request.topic
            ))
            .with_hint("leave out --default")),
        };
    };
    let schemas = topic.schemas()?;
    if let Some(schema) = &request.given.schema {
        let mut growth = schemas.growth();
        growth.take(schema, &request.defaults).map_err(|error| {
            let text = format!("the topic has another schema, {error} schema={:?}", topic.schema().to_string());
            Error::new(error.kind(), text).with_hint("leave out --schema, or ingest into another topic")
        })?;
    }
    let growing = Arc::new(Growing { schemas, defaults: request.defaults.clone() });
    Ok(Given { growing: Some(growing), ..request.given.clone() })
}

/// What the topic lacks of each file.
fn todo(plan: &Plan, writers: &[Writer], summary: &mut Summary) -> Vec<Todo> {
    let mut todo = Vec::new();
    for (at, file) in plan.files().iter().enumerate() {
        let known = writers.iter().enumerate().find_map(|(n, writer)| Some((n, writer.origin_next(file.source)?)));
        let from = known.map_or(0, |(_, next)| next);
        summary.rows_already += from;
        match known.is_some() && file.rows == Some(from) {
            true => summary.files_already += 1,
            false => todo.push(Todo { file: at, from, partition: known.map(|(partition, _)| partition) }),
        }
    }
    todo
}

/// Bytes of rows still to be stored, as far as files say.
fn bytes_of(plan: &Plan, todo: &[Todo]) -> u64 {
    let rows = |todo: &Todo| plan.files()[todo.file].rows.map_or(0, |rows| rows.saturating_sub(todo.from));
    todo.iter().map(rows).fold(0u64, u64::saturating_add).saturating_mul(plan.schema().row_bytes() as u64)
}

fn rows_of(bytes: usize, schema: &Schema) -> usize {
    (bytes / schema.row_bytes()).max(1)
}

/// Free bytes where a directory is or will be.
fn free_bytes(root: &Path) -> Option<u64> {
    let there = root.ancestors().find(|path| path.exists());
    let there = there.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(there).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Decodes on another thread, a little ahead of `take`, in parts of `rows_max` rows (the last one may be smaller).
fn read_ahead(decoder: Box<dyn Decoder>, rows_max: usize, take: &mut dyn FnMut(Rows) -> Result<()>) -> Result<()> {
    thread::scope(|scope| {
        let (send, receive) = crossbeam_channel::bounded(AHEAD);
        let reading = thread::Builder::new().name("forebay-decode".into()).spawn_scoped(scope, move || {
            let mut parts = Parts { decoder, rows_max };
            while let Some(rows) = parts.next().transpose() {
                // Nobody takes any more: the other side has failed.
                if send.send(rows).is_err() {
                    return;
                }
            }
        });
        let reading = reading.map_err(|error| Error::io("cannot start a thread", error))?;
        let taken = receive.iter().try_for_each(|rows| take(rows?));
        drop(receive);
        match reading.join() {
            Ok(()) => taken,
            Err(_) => taken.and(Err(Error::corrupt("a decoder gave up, the file is damaged"))),
        }
    })
}

/// Gathers small parts, so that the log gets full blocks.
struct Parts {
    decoder: Box<dyn Decoder>,
    rows_max: usize,
}

impl Parts {
    fn next(&mut self) -> Result<Option<Rows>> {
        let (mut parts, mut count) = (Vec::new(), 0);
        while count < self.rows_max {
            match self.decoder.next(self.rows_max - count)? {
                Some(rows) => {
                    count += rows.count();
                    parts.push(rows);
                }
                None => break,
            }
        }
        match parts.is_empty() {
            true => Ok(None),
            false => Rows::concat(self.decoder.schema(), &parts).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::fixtures::npy;

    fn request(dir: &Path) -> Request {
        let path = dir.join("id.npy");
        let ids: Vec<u8> = (0..5i64).flat_map(i64::to_le_bytes).collect();
        std::fs::write(&path, npy("'<i8'", "(5,)", &ids)).unwrap();
        Request {
            root: dir.join("root"),
            topic: "t".parse().unwrap(),
            sources: vec![path.display().to_string()],
            given: Given::default(),
            defaults: Defaults::default(),
            partitions: None,
            fsync: Fsync::Never,
            check: true,
            dry_run: false,
        }
    }

    /// Runs an ingest that finds no topic, before which `other` makes it.
    fn overtaken(request: &Request, mut other: impl FnMut() -> Result<()>) -> (Result<Summary>, Vec<String>) {
        let (mut notes, mut planned) = (Vec::new(), 0);
        let mut progress = |event: Event<'_>| match event {
            Event::Planned(_) => {
                planned += 1;
                if planned == 1 {
                    other().unwrap();
                }
            }
            Event::Note(text) => notes.push(text.to_owned()),
            _ => {}
        };
        let done = Runner::new(request, &mut progress).run();
        (done.map(|(_, summary)| summary), notes)
    }

    #[test]
    fn who_comes_second_to_a_new_topic_goes_on_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        let other = Request { sources: vec![dir.path().join("other.npy").display().to_string()], ..request.clone() };
        let ids: Vec<u8> = (5..8i64).flat_map(i64::to_le_bytes).collect();
        std::fs::write(&other.sources[0], npy("'<i8'", "(3,)", &ids)).unwrap();
        let (done, notes) = overtaken(&request, || Runner::new(&other, &mut |_: Event<'_>| {}).run().map(drop));
        let done = done.unwrap();
        assert_eq!((done.created, done.rows, done.rows_already, done.topic_rows, done.files), (false, 5, 0, 8, 1));
        assert!(notes.iter().any(|note| note.contains("another ingest made the topic")), "{notes:?}");
        // The same file from both: stored once.
        let same = Request { topic: "u".parse().unwrap(), ..request.clone() };
        let (done, _) = overtaken(&same, || Runner::new(&same, &mut |_: Event<'_>| {}).run().map(drop));
        let done = done.unwrap();
        assert_eq!((done.rows, done.rows_already, done.files_already, done.topic_rows), (0, 5, 1, 5));
    }

    #[test]
    fn who_comes_second_to_a_topic_that_is_written_or_has_other_columns_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        let mut writer = None;
        let make = |name: &str, schema: &str| {
            Root::create(&request.root)?.create_topic(
                &name.parse().unwrap(),
                &Schema::parse(schema)?,
                &TopicOptions::default(),
            )
        };
        let (done, _) = overtaken(&request, || {
            writer = Some(make("t", "data:int64")?.writer(0, WriterOptions::default())?);
            Ok(())
        });
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Busy);
        let other = Request { topic: "u".parse().unwrap(), ..request.clone() };
        let (done, _) = overtaken(&other, || make("u", "data:int64, x:bool").map(drop));
        assert_eq!(done.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_no_topic_can_have_is_refused_before_a_root_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let request = Request { partitions: Some(0), ..request(dir.path()) };
        let error = Runner::new(&request, &mut |_: Event<'_>| {}).run().unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("partitions=0"), "{error}");
        assert!(!request.root.exists());
    }
}
