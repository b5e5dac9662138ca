//! `guard/<key of the holder>`: records of a topic that retention must leave, because another record needs them.
//!
//! A holder is a dataset version or a kept checkpoint; its guard is written with it and removed with it.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, to_json};
use crate::{Extent, TopicName};

/// What the keys of all guards begin with.
pub const PREFIX: &str = "guard/";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Key of the record that needs them.
    pub holder: String,
    /// The topic.
    pub topic: TopicName,
    /// The records: as a rule one range per partition.
    pub ranges: Vec<Extent>,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
}

impl Guard {
    /// The key of a holder's guard.
    pub fn key_of(holder: &str) -> String {
        format!("{PREFIX}{holder}")
    }
}

impl Record for Guard {
    const KIND: &'static str = "guard";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::key_of(&self.holder)
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        let record: Self = match version {
            1 => from_json(body)?,
            _ => return Err(BadBody::Version),
        };
        match record.ranges.iter().find(|range| range.from > range.to) {
            Some(range) => Err(BadBody::Inconsistent(format!(
                "a range ends before it begins: from={} to={}",
                range.from, range.to
            ))),
            None => Ok(record),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;
    use crate::Incarnation;

    fn guard(holder: String, from: u64, to: u64) -> Guard {
        let range = Extent { segment: 1, incarnation: Incarnation(0xabc), from, to };
        Guard { holder, topic: "digits".parse().unwrap(), ranges: vec![range], since_ms: 1_790_000_000_000 }
    }

    #[test]
    fn golden_bytes() {
        let holder = "dataset/digits-clean/00000000000000000001";
        check(&guard(holder.into(), 10, 50), &format!("guard/{holder}"), golden!("guard.1"));
        assert!(Guard::decode(&guard("x".into(), 5, 4).encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_round_trips(holder in name(), from: u64, count: u64) {
            round_trip(&guard(holder, from, from.saturating_add(count)));
        }
    }
}
