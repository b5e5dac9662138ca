//! `label/<dataset>/<label>`: a name for one version of a dataset, as in `name@prod`, which may move.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, to_json};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The dataset.
    pub dataset: String,
    /// The name.
    pub label: String,
    /// Number of the version that it names.
    pub version: u64,
    /// When, in milliseconds since 1970.
    pub labelled_ms: u64,
}

impl Label {
    /// What the keys of a dataset's labels begin with.
    pub fn prefix(dataset: &str) -> String {
        format!("label/{dataset}/")
    }
}

impl Record for Label {
    const KIND: &'static str = "label";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::prefix(&self.dataset) + &self.label
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        match version {
            1 => from_json(body),
            _ => Err(BadBody::Version),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;

    #[test]
    fn golden_bytes() {
        let label =
            Label { dataset: "digits-clean".into(), label: "prod".into(), version: 2, labelled_ms: 1_790_000_000_000 };
        check(&label, "label/digits-clean/prod", golden!("label.1"));
    }

    proptest! {
        #[test]
        fn any_round_trips(dataset in name(), label in name(), version: u64, labelled_ms: u64) {
            round_trip(&Label { dataset, label, version, labelled_ms });
        }
    }
}
