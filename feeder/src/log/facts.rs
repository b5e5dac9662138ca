//! `topic.json`: what a topic is, and the schemas it has had.
//!
//! The file is only ever replaced whole, by a durable rename, and only by a process that holds a partition of the topic
//! (which keeps it from being removed) and the topic's lock. A new schema version is in it before any segment of that
//! version exists: whoever meets a segment whose version it does not know reads the file again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cursorstore::Incarnation;
use serde::{Deserialize, Serialize};

use super::sums::crc32c;
use super::topic::TopicOptions;
use super::{FORMAT, FORMAT_GROWN, LOCK_NAME, TOPIC_FILE, files};
use crate::error::{Error, ErrorKind, Result};
use crate::schema::Schema;
use crate::versions::{Element, Growth, SchemaVersion, Schemas};

/// Most bytes of `topic.json`: several schemas of 4096 columns with names of 1 KiB, and their shapes.
const TOPIC_JSON_BYTES_MAX: u64 = 16 << 20;

/// What `topic.json` holds beside format and checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TopicFacts {
    pub(super) incarnation: Incarnation,
    /// The first schema.
    pub(super) schema: Schema,
    pub(super) options: TopicOptions,
    /// The later ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    grown: Vec<GrownFact>,
}

/// A later schema version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GrownFact {
    schema: Schema,
    /// Defaults of the columns added: one element each, its bytes in hex as they are stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    added: Vec<(String, String)>,
    made_ms: u64,
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
        Ok(Self { incarnation: Incarnation(files::random128()?), schema, options, grown: Vec::new() })
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let format = if self.grown.is_empty() { FORMAT } else { FORMAT_GROWN };
        let file = TopicFile { format, crc32c: self.sum()?, topic: self.clone() };
        serde_json::to_vec_pretty(&file).map_err(|error| Error::invalid("topic.json").with_source(error))
    }

    fn sum(&self) -> Result<String> {
        let text = serde_json::to_vec(self).map_err(|error| Error::invalid("topic.json").with_source(error))?;
        Ok(format!("{:08x}", crc32c(&text)))
    }

    /// Reads `topic.json`; `path` is for messages.
    pub(super) fn from_json(bytes: &[u8], path: &Path) -> Result<Self> {
        super::check_format(bytes, path, FORMAT_GROWN)?;
        let damaged = |why: String| Error::corrupt(format!("topic.json is damaged, {why}: path={}", path.display()));
        let file: TopicFile = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if file.topic.sum()? != file.crc32c {
            return Err(damaged("its checksum is wrong".into()));
        }
        file.topic.options.check()?;
        file.topic.schemas().map_err(|error| damaged(error.report()))?;
        Ok(file.topic)
    }

    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(TOPIC_FILE);
        Self::from_json(&files::read_small(&path, TOPIC_JSON_BYTES_MAX)?, &path)
    }

    /// All schema versions.
    pub(super) fn schemas(&self) -> Result<Schemas> {
        let first = Schemas::first(Arc::new(self.schema.clone()));
        self.grown.iter().try_fold(first, |schemas, grown| {
            let added = grown.added.iter().map(|(name, hex)| {
                let column = grown.schema.columns().iter().find(|column| column.name == *name);
                let element = column.and_then(|column| Element::new(column.dtype, from_hex(hex)?));
                element.map(|element| (name.clone(), element)).ok_or_else(|| {
                    Error::corrupt(format!("a default is not a value of its column: column={name:?} default={hex:?}"))
                })
            });
            let added = added.collect::<Result<_>>()?;
            let (number, schema) = (schemas.newest().number + 1, Arc::new(grown.schema.clone()));
            schemas.with(SchemaVersion { number, schema, added, made_ms: grown.made_ms })
        })
    }

    /// With one more schema version.
    fn with(mut self, version: &SchemaVersion) -> Self {
        let added = version.added.iter().map(|(name, element)| (name.clone(), to_hex(element.bytes())));
        let (schema, added, made_ms) = ((*version.schema).clone(), added.collect(), version.made_ms);
        self.grown.push(GrownFact { schema, added, made_ms });
        self
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The schemas of one life of a topic, as far as this process has seen them.
#[derive(Debug)]
pub(super) struct Known {
    dir: PathBuf,
    incarnation: Incarnation,
    schemas: Mutex<Arc<Schemas>>,
}

impl Known {
    pub(super) fn new(dir: &Path, facts: &TopicFacts) -> Result<Self> {
        let schemas = Mutex::new(Arc::new(facts.schemas()?));
        Ok(Self { dir: dir.to_path_buf(), incarnation: facts.incarnation, schemas })
    }

    /// Those seen so far.
    pub(super) fn seen(&self) -> Arc<Schemas> {
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes what `facts` say.
    pub(super) fn learn(&self, facts: &TopicFacts) -> Result<Arc<Schemas>> {
        if facts.incarnation != self.incarnation {
            let text = format!("the topic was removed and made again since it was opened: path={}", self.dir.display());
            return Err(Error::new(ErrorKind::StateMismatch, text).with_hint("open the topic again"));
        }
        let read = Arc::new(facts.schemas()?);
        let mut seen = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have read a later file in between.
        if read.versions().len() > seen.versions().len() {
            *seen = read;
        }
        Ok(seen.clone())
    }

    /// Those that there are now.
    pub(super) fn now(&self) -> Result<Arc<Schemas>> {
        self.learn(&TopicFacts::read(&self.dir)?)
    }

    /// Schemas that have version `number`; a segment of it is at `path`.
    pub(super) fn with_version(&self, number: u32, path: &Path) -> Result<Arc<Schemas>> {
        let mut schemas = self.seen();
        if schemas.version(number).is_none() {
            schemas = self.now()?;
        }
        match schemas.version(number) {
            Some(_) => Ok(schemas),
            None => Err(Error::corrupt(format!(
                "a segment is of a schema that its topic does not know: path={} schema={number} schemas={}",
                path.display(),
                schemas.versions().len()
            ))),
        }
    }

    /// Makes what `grow` asks for the topic's next version, durably; nothing, if the newest is that already. The caller
    /// holds a partition of the topic.
    pub(super) fn grow(&self, now_ms: u64, grow: &dyn Fn(&mut Growth<'_>) -> Result<()>) -> Result<Arc<Schemas>> {
        let path = self.dir.join(LOCK_NAME);
        let failed = |error| Error::io(format!("cannot change the topic's schema: path={}", path.display()), error);
        let _lock = files::lock_file(&path).and_then(files::lock).map_err(failed)?;
        let facts = TopicFacts::read(&self.dir)?;
        let schemas = self.learn(&facts)?;
        let mut growth = schemas.growth();
        grow(&mut growth)?;
        let Some(version) = growth.version(now_ms)? else { return Ok(schemas) };
        schemas.with(version.clone())?;
        let facts = facts.with(&version);
        let json = facts.to_json()?;
        if json.len() as u64 > TOPIC_JSON_BYTES_MAX {
            let text =
                format!("the topic's schemas take too much room: bytes={} most={TOPIC_JSON_BYTES_MAX}", json.len());
            return Err(Error::invalid(text).with_hint("ingest into a new topic"));
        }
        files::write_whole(&self.dir.join(TOPIC_FILE), &json)?;
        self.learn(&facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::Defaults;

    fn grown() -> TopicFacts {
        let options = TopicOptions::default();
        let schema = Schema::parse("id:int32, x:uint8[2]").unwrap();
        let facts = TopicFacts { incarnation: Incarnation(7), schema, options, grown: Vec::new() };
        let schemas = facts.schemas().unwrap();
        let mut growth = schemas.growth();
        let defaults = Defaults::parse(&["label=-2".into()]).unwrap();
        growth.take(&Schema::parse("x:uint8[2], label:int16, id:int64").unwrap(), &defaults).unwrap();
        facts.with(&growth.version(99).unwrap().unwrap())
    }

    #[test]
    fn golden_bytes() {
        let compact = serde_json::to_string(&grown()).unwrap();
        let id = |dtype: &str| format!(r#"{{"name":"id","dtype":"{dtype}","shape":[]}}"#);
        let x = r#"{"name":"x","dtype":"uint8","shape":[2]}"#;
        let options = r#"{"partitions":1,"block_bytes":262144,"segment_bytes":1073741824,"segment_age_ms":null}"#;
        let first = format!(
            r#"{{"incarnation":"00000000000000000000000000000007","schema":[{},{x}],"options":{options}"#,
            id("int32")
        );
        let later = format!(
            r#","grown":[{{"schema":[{},{x},{{"name":"label","dtype":"int16","shape":[]}}],"added":[["label","feff"]],"made_ms":99}}]}}"#,
            id("int64")
        );
        assert_eq!(compact, format!("{first}{later}"));
        let json = grown().to_json().unwrap();
        assert_eq!(TopicFacts::from_json(&json, Path::new("t")).unwrap(), grown());
        assert!(String::from_utf8(json).unwrap().contains("\"format\": 2"));
        let ungrown = TopicFacts { grown: Vec::new(), ..grown() };
        assert_eq!(serde_json::to_string(&ungrown).unwrap(), format!("{first}}}"));
        assert!(String::from_utf8(ungrown.to_json().unwrap()).unwrap().contains("\"format\": 1"));
    }

    #[test]
    fn schemas_that_do_not_follow_one_another_are_damage() {
        let good = grown();
        let with = |schema: &str, added: &[(&str, &str)]| {
            let mut facts = good.clone();
            facts.grown[0].schema = Schema::parse(schema).unwrap();
            facts.grown[0].added = added.iter().map(|(name, hex)| ((*name).into(), (*hex).into())).collect();
            TopicFacts::from_json(&facts.to_json().unwrap(), Path::new("t"))
        };
        assert!(with("id:int64, x:uint8[2], label:int16", &[("label", "feff")]).is_ok());
        for (schema, added) in [
            ("id:int64, x:uint8[2], label:int16", &[][..]),
            ("id:int64, x:uint8[2], label:int16", &[("label", "fe")]),
            ("id:int64, x:uint8[2], label:int16", &[("label", "fefz")]),
            ("id:int64, x:uint8[2], label:int16", &[("other", "feff")]),
            ("id:int64, label:int16", &[("label", "feff")]),
            ("x:uint8[2], id:int64", &[]),
            ("id:int8, x:uint8[2]", &[]),
            ("id:int32, x:uint8[3]", &[]),
            ("id:int32, x:uint8[2]", &[]),
        ] {
            assert_eq!(with(schema, added).unwrap_err().kind(), ErrorKind::Corrupt, "{schema} {added:?}");
        }
    }
}
