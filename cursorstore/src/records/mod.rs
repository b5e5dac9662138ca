//! What the store holds: one kind of record per file, each with a versioned encoding whose bytes never change again.
//!
//! ```text
//! <kind> <version> <CRC32C of all but these 8 hex digits and their line's end>\n<body>
//! ```
//!
//! Bodies are compact JSON, but for manifest parts, which are binary. Older versions stay readable; a newer one is refused
//! with the version needed. A changed byte anywhere is noticed, a record under another record's key too. Keys read like
//! paths; numbers in them are padded, so that their text order is their order. `golden/` keeps the bytes of every version.

pub mod checkpoint;
pub mod dataset;
pub mod digest;
pub mod extent;
pub mod guard;
pub mod label;
pub mod manifest;
pub mod quarantine;
pub mod run;
pub mod tag;
#[cfg(test)]
mod testkit;
pub mod window;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use checkpoint::Checkpoint;
pub use dataset::DatasetVersion;
pub use digest::Digest;
pub use extent::IndexedExtent;
pub use guard::Guard;
pub use label::Label;
pub use manifest::ManifestPart;
pub use quarantine::Quarantined;
pub use run::Run;
pub use tag::Tag;
pub use window::SealedWindow;

use crate::State;
use crate::store::{Batch, Scope, Store, StoreError};

/// Longest first line of a record.
const LINE_BYTES_MAX: usize = 64;
const SUM_DIGITS: usize = 8;

/// One kind of record.
pub trait Record: Sized {
    /// What its first line calls it.
    const KIND: &'static str;
    /// The version written, and the newest that is read.
    const VERSION: u32;

    /// The key it is stored under.
    fn key(&self) -> String;

    /// The body in the newest version.
    fn body(&self) -> Vec<u8>;

    /// Reads a body of a version up to the newest.
    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody>;

    /// The stored bytes.
    fn encode(&self) -> Vec<u8> {
        seal(Self::KIND, Self::VERSION, &self.body())
    }

    /// Reads stored bytes.
    fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let kind = Self::KIND;
        let (version, body) = open(kind, bytes)?;
        if version > Self::VERSION {
            return Err(RecordError::Newer { kind, found: version, newest: Self::VERSION });
        }
        Self::parse(version, body).map_err(|source| RecordError::Body { kind, version, source })
    }
}

/// Why bytes are not taken for a record.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum RecordError {
    #[error("not a record: kind={kind} bytes={bytes}")]
    NoRecord { kind: &'static str, bytes: usize },
    #[error("another kind of record: wanted={wanted} found={found}")]
    OtherKind { wanted: &'static str, found: String },
    #[error("the record is damaged: kind={kind} bytes={bytes}")]
    Damaged { kind: &'static str, bytes: usize },
    #[error("the record needs a newer forebay, one that reads version {found}: kind={kind} newest={newest}")]
    Newer { kind: &'static str, found: u32, newest: u32 },
    #[error("the record does not add up: kind={kind} version={version}")]
    Body { kind: &'static str, version: u32, source: BadBody },
}

/// Why a body whose sum is right is not taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum BadBody {
    #[error("no such version")]
    Version,
    #[error("{0}")]
    Inconsistent(String),
    #[error("not the fields of this record")]
    Json(#[from] serde_json::Error),
}

/// Why a record could not be read from a store.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ReadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot read a record: scope={scope} key={key}")]
    Record { scope: Scope, key: String, source: RecordError },
    #[error("a record stands under another's key: scope={scope} key={key} own={own}")]
    Misplaced { scope: Scope, key: String, own: String },
}

/// Records read from a store and written to it.
pub trait Records: Store {
    /// The record under a key.
    fn record<R: Record>(&self, scope: &Scope, key: &str) -> Result<Option<R>, ReadError> {
        self.get(scope, key)?.map(|entry| read(scope, key, &entry.value)).transpose()
    }

    /// All records under a prefix, which must be of one kind, sorted by key.
    fn records<R: Record>(&self, scope: &Scope, prefix: &str) -> Result<Vec<R>, ReadError> {
        let view = self.fold(scope, prefix)?;
        view.entries().iter().map(|entry| read(scope, &entry.key, &entry.value)).collect()
    }

    /// Adds a record as a fact.
    fn add_record<R: Record>(&self, scope: &Scope, record: &R) -> Result<(), StoreError> {
        self.add_facts(scope, &[(&record.key(), &record.encode())])
    }
}

impl<S: Store + ?Sized> Records for S {}

impl Batch {
    /// Sets a record under its key.
    #[must_use]
    pub fn record<R: Record>(self, record: &R) -> Self {
        self.put(record.key(), record.encode())
    }
}

fn read<R: Record>(scope: &Scope, key: &str, bytes: &[u8]) -> Result<R, ReadError> {
    let record =
        R::decode(bytes).map_err(|source| ReadError::Record { scope: scope.clone(), key: key.into(), source })?;
    let own = record.key();
    if own != key {
        return Err(ReadError::Misplaced { scope: scope.clone(), key: key.into(), own });
    }
    Ok(record)
}

fn sum(kind_and_version: &[u8], body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(kind_and_version);
    digest.update(body);
    digest.finalize() as u32
}

fn seal(kind: &str, version: u32, body: &[u8]) -> Vec<u8> {
    let line = format!("{kind} {version} ");
    let sum = sum(line.as_bytes(), body);
    let mut bytes = format!("{line}{sum:08x}\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Version and body of the sealed bytes of a kind.
fn open<'a>(kind: &'static str, bytes: &'a [u8]) -> Result<(u32, &'a [u8]), RecordError> {
    let no_record = || RecordError::NoRecord { kind, bytes: bytes.len() };
    let line_end = bytes.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n').ok_or_else(no_record)?;
    let (line, body) = (&bytes[..line_end], &bytes[line_end + 1..]);
    let line = str::from_utf8(line).map_err(|_| no_record())?;
    let [found, version, digits] = line.split(' ').collect::<Vec<_>>()[..] else { return Err(no_record()) };
    let number: u32 = version.parse().map_err(|_| no_record())?;
    let expected = format!("{:08x}", sum(&line.as_bytes()[..line.len() - digits.len()], body));
    if digits.len() != SUM_DIGITS || digits != expected || number == 0 || number.to_string() != version {
        return Err(RecordError::Damaged { kind, bytes: bytes.len() });
    }
    if found != kind {
        return Err(RecordError::OtherKind { wanted: kind, found: found.into() });
    }
    Ok((number, body))
}

fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record is plain data")
}

fn from_json<R: DeserializeOwned>(body: &[u8]) -> Result<R, BadBody> {
    Ok(serde_json::from_slice(body)?)
}

/// A number in a key, padded so that text order is the numbers' order.
fn padded(number: u64) -> String {
    format!("{number:020}")
}

/// States inside records: read by their own rules, which know their versions.
mod state_json {
    use super::*;

    pub(super) fn serialize<S: Serializer>(state: &State, serializer: S) -> Result<S::Ok, S::Error> {
        state.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<State, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        State::decode(&value.to_string()).map_err(serde::de::Error::custom)
    }
}

/// Sums as hex digits: JSON readers elsewhere keep only 53 bits of a number.
mod hex64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u64::from_str_radix(&text, 16).ok().filter(|number| format!("{number:016x}") == text);
        number.ok_or_else(|| serde::de::Error::custom(format!("not 16 hex digits: {text:?}")))
    }
}

/// The same for 128 bits.
mod hex128 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16).ok().filter(|number| format!("{number:032x}") == text);
        number.ok_or_else(|| serde::de::Error::custom(format!("not 32 hex digits: {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;

    fn tag(step: u64) -> Tag {
        Tag { job: "vision".into(), tag: "best".into(), step, tagged_ms: 5 }
    }

    #[test]
    fn records_go_through_a_store() {
        let (store, scope) = (Memory::new(), Scope::job("vision").unwrap());
        let mut writer = store.acquire(&scope).unwrap();
        writer.append(&Batch::new().record(&tag(30))).unwrap();
        let key = tag(0).key();
        assert_eq!(store.record::<Tag>(&scope, &key).unwrap(), Some(tag(30)));
        assert_eq!(store.record::<Tag>(&scope, "tag/vision/none").unwrap(), None);
        assert_eq!(store.records::<Tag>(&scope, "tag/vision/").unwrap(), [tag(30)]);

        writer.put("tag/vision/moved", tag(30).encode()).unwrap();
        let error = store.records::<Tag>(&scope, "tag/").unwrap_err();
        assert!(matches!(&error, ReadError::Misplaced { own, .. } if *own == key), "{error}");
        writer.put("tag/vision/moved", "tag 1 00000000\n{}").unwrap();
        let error = store.record::<Tag>(&scope, "tag/vision/moved").unwrap_err();
        assert!(error.to_string().contains("tag/vision/moved"), "{error}");
    }

    #[test]
    fn another_kind_and_a_newer_version_are_refused_by_name() {
        let error = Label::decode(&tag(1).encode()).unwrap_err();
        assert!(matches!(&error, RecordError::OtherKind { found, .. } if found == "tag"), "{error}");
        let error = Tag::decode(&seal("tag", 7, b"whatever it will be")).unwrap_err();
        assert_eq!(error.to_string(), "the record needs a newer forebay, one that reads version 7: kind=tag newest=1");
        for text in ["", "tag", "tag 1", "tag 1 0\n", "tag 0 00000000\n", "tag +1 00000000\n", "tag 01 00000000\n"] {
            assert!(Tag::decode(text.as_bytes()).is_err(), "{text:?}");
        }
        for version in ["0", "01", "+1"] {
            let line = format!("tag {version} ");
            let sealed = format!("{line}{:08x}\n{{}}", sum(line.as_bytes(), b"{}"));
            assert!(matches!(Tag::decode(sealed.as_bytes()), Err(RecordError::Damaged { .. })), "{version}");
        }
        assert!(matches!(Tag::decode(&seal("tag", 1, b"{}")), Err(RecordError::Body { .. })));
    }
}
