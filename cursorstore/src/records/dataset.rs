//! `dataset/<name>/<version>`: an exact, immutable list of records, with what makes samples of them.
//!
//! The extents stand in [manifest parts](super::manifest), which versions share. The fingerprint covers everything that a
//! training run can notice: topic, schema, recipe and extents.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::extent::SummedExtent;
use super::manifest::ManifestPart;
use super::{BadBody, Record, from_json, hex128, padded, to_json};
use crate::position::is_name_part;
use crate::{Extent, Incarnation, TopicName};

/// One part of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRef {
    /// Names the part: see [`ManifestPart::key_of`].
    #[serde(with = "hex128")]
    pub digest: u128,
    /// Number of extents.
    pub extents: u64,
    /// Number of records.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl PartRef {
    /// What stands for a part.
    pub fn of(part: &ManifestPart) -> Self {
        let sum = |of: fn(&SummedExtent) -> u64| part.extents.iter().map(of).sum();
        let (records, bytes) = (sum(SummedExtent::count), sum(|extent| extent.bytes));
        Self { digest: part.digest(), extents: part.extents.len() as u64, records, bytes }
    }
}

/// One window. An epoch reads all windows of a version as one span; a version that grew begins with those of its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowRef {
    /// Its parts in order.
    pub parts: Vec<PartRef>,
}

/// Numbers of a version, of a window or of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Records before any filter.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Extents.
    pub extents: u64,
}

/// What was asked for when the version was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// First records, as the user gave them.
    pub from: Option<String>,
    /// The end, as the user gave it.
    pub to: Option<String>,
    /// The checkpoint whose data this is, as `job@step`.
    pub checkpoint: Option<String>,
    /// Which records count.
    pub filter: Option<String>,
    /// Which share of the records.
    pub split: Option<String>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetVersion {
    /// The dataset.
    pub name: String,
    /// Its version, from 1.
    pub version: u64,
    /// The topic read.
    pub topic: TopicName,
    /// The lives of the topic that the offsets belong to.
    pub incarnations: Vec<Incarnation>,
    /// The schema under which records are read, in its text form.
    pub schema: String,
    /// How a record becomes a sample; empty for records taken as they are.
    pub recipe: String,
    /// What was asked for.
    pub selection: Selection,
    /// The records looked at, one range per partition; of those the selection took the windows. Empty where they were not
    /// ranges of that kind. A later version that looks at more of the same partitions only needs to add to the windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scanned: Vec<Extent>,
    /// The windows in order.
    pub windows: Vec<WindowRef>,
    /// Of all windows.
    pub totals: Totals,
    /// Times of the first and of the last record, in milliseconds since 1970, where known.
    pub time_ms: Option<(u64, u64)>,
    /// The version that this one grew from.
    pub parent: Option<u64>,
    /// Who made it.
    pub created_by: String,
    /// When, in milliseconds since 1970.
    pub created_ms: u64,
    /// See [`fingerprint_of`](Self::fingerprint_of).
    #[serde(with = "hex128")]
    pub fingerprint: u128,
}

impl DatasetVersion {
    /// What the keys of a dataset's versions begin with; sorted by key they are in order.
    pub fn prefix(name: &str) -> String {
        format!("dataset/{name}/")
    }

    /// The key of one version.
    pub fn key_of(name: &str, version: u64) -> String {
        Self::prefix(name) + &padded(version)
    }

    /// Sets totals and fingerprint to what the other fields make them.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.totals = totals(&self.windows).unwrap_or_default();
        self.fingerprint = self.fingerprint_of();
        self
    }

    /// Digest of topic, incarnations, schema, recipe, filter, split and windows. Not cryptographic: it finds mistakes, not
    /// attacks.
    pub fn fingerprint_of(&self) -> u128 {
        let Selection { filter, split, .. } = &self.selection;
        let parts = (&self.topic, &self.incarnations, &self.schema, &self.recipe, filter, split, &self.windows);
        xxhash_rust::xxh3::xxh3_128(&to_json(&parts))
    }

    /// The reference by which users name it.
    pub fn reference(&self) -> VersionRef {
        VersionRef { name: self.name.clone(), version: self.version }
    }

    fn check(&self) -> Result<(), BadBody> {
        let wrong =
            |what: &str| Err(BadBody::Inconsistent(format!("{what}: name={} version={}", self.name, self.version)));
        if totals(&self.windows) != Some(self.totals) {
            return wrong("the windows do not add up to the totals");
        }
        if self.fingerprint != self.fingerprint_of() {
            return wrong("the fingerprint is another's");
        }
        if self.version == 0 || self.parent.is_some_and(|parent| parent >= self.version) {
            return wrong("versions count from 1, and a parent comes before");
        }
        Ok(())
    }
}

/// The sums over all parts, if they fit.
fn totals(windows: &[WindowRef]) -> Option<Totals> {
    windows.iter().flat_map(|window| &window.parts).try_fold(Totals::default(), |sum, part| {
        Some(Totals {
            records: sum.records.checked_add(part.records)?,
            bytes: sum.bytes.checked_add(part.bytes)?,
            extents: sum.extents.checked_add(part.extents)?,
        })
    })
}

impl Record for DatasetVersion {
    const KIND: &'static str = "dataset";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::key_of(&self.name, self.version)
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        let record: Self = match version {
            1 => from_json(body)?,
            _ => return Err(BadBody::Version),
        };
        record.check()?;
        Ok(record)
    }
}

/// A dataset version as users name it: `name@vN`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VersionRef {
    /// The dataset.
    pub name: String,
    /// The version, from 1.
    pub version: u64,
}

impl fmt::Display for VersionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@v{}", self.name, self.version)
    }
}

/// The text is no `name@vN`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a dataset version, use a name and a number as in 'corpus@v3': version={0:?}")]
pub struct BadVersionRef(pub String);

impl FromStr for VersionRef {
    type Err = BadVersionRef;

    fn from_str(text: &str) -> Result<Self, BadVersionRef> {
        let parse = || {
            let (name, digits) = text.split_once("@v")?;
            let version: u64 = digits.parse().ok()?;
            let fine = is_name_part(name) && version > 0 && version.to_string() == digits;
            fine.then(|| Self { name: name.into(), version })
        };
        parse().ok_or_else(|| BadVersionRef(text.chars().take(200).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;

    fn version(name: &str, version: u64, counts: &[(u32, u32)]) -> DatasetVersion {
        let part = |&(records, bytes): &(u32, u32)| PartRef {
            digest: u128::from(records) << 64 | u128::from(bytes),
            extents: 3,
            records: records.into(),
            bytes: bytes.into(),
        };
        let windows = counts.chunks(2).map(|parts| WindowRef { parts: parts.iter().map(part).collect() }).collect();
        DatasetVersion {
            name: name.into(),
            version,
            topic: "digits".parse().unwrap(),
            incarnations: vec![Incarnation(0xabc)],
            schema: "id:int64, image:uint8[28x28]".into(),
            recipe: String::new(),
            selection: Selection { filter: Some("label_status = reviewed".into()), ..Selection::default() },
            scanned: Vec::new(),
            windows,
            totals: Totals::default(),
            time_ms: Some((1_789_000_000_000, 1_790_000_000_000)),
            parent: (version > 1).then(|| version - 1),
            created_by: "ana@node-1".into(),
            created_ms: 1_790_000_000_000,
            fingerprint: 0,
        }
        .sealed()
    }

    #[test]
    fn golden_bytes() {
        let version = version("digits-clean", 2, &[(8192, 1 << 30), (5, 4096), (100, 100)]);
        assert_eq!(version.totals, Totals { records: 8297, bytes: (1 << 30) + 4196, extents: 9 });
        check(&version, "dataset/digits-clean/00000000000000000002", golden!("dataset.1"));
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        let good = version("d", 2, &[(1, 1)]);
        assert!(DatasetVersion::decode(&good.encode()).is_ok());
        let mut bad = [good.clone(), good.clone(), good.clone(), good.clone()];
        bad[0].totals.records += 1;
        bad[1].schema.push('x');
        bad[2].parent = Some(2);
        bad[3].windows[0].parts[0].records = u64::MAX;
        bad[3].windows[0].parts.push(good.windows[0].parts[0].clone());
        for bad in bad {
            assert!(DatasetVersion::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_fingerprint_is_of_what_training_sees() {
        let one = version("d", 1, &[(1, 1)]);
        let renamed = DatasetVersion { created_by: "bo".into(), ..version("e", 3, &[(1, 1)]) }.sealed();
        assert_eq!(one.fingerprint, renamed.fingerprint);
        assert_ne!(one.fingerprint, version("d", 1, &[(1, 2)]).fingerprint);
        let recipe = DatasetVersion { recipe: "crop".into(), ..one.clone() }.sealed();
        assert_ne!(one.fingerprint, recipe.fingerprint);
    }

    #[test]
    fn references_round_trip() {
        let reference: VersionRef = "digits-clean@v12".parse().unwrap();
        assert_eq!((&*reference.name, reference.version), ("digits-clean", 12));
        assert_eq!(reference.to_string(), "digits-clean@v12");
        for bad in ["", "d", "d@", "d@v", "d@v0", "d@v01", "d@v+1", "d@1", "@v1", "a/b@v1", "d@v1@v2"] {
            assert!(bad.parse::<VersionRef>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_round_trips(name in name(), number in 1..u64::MAX, counts: Vec<(u32, u32)>) {
            round_trip(&version(&name, number, &counts));
        }
    }
}
