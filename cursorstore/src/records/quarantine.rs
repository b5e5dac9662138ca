//! `quarantine/<job>/<incarnation>/<segment>/<offset>`: a record that could not be decoded, a fact.
//!
//! Replay treats the same records the same way, because it finds them here.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, padded, to_json};
use crate::{Cursor, Incarnation};

/// What was delivered in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Treatment {
    /// The row was masked.
    Masked,
    /// Another sample of the same pool was delivered.
    Substituted {
        /// The line index of that sample.
        index: u64,
    },
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantined {
    /// The job.
    pub job: String,
    /// The life of the topic.
    pub incarnation: Incarnation,
    /// The partition.
    pub segment: u32,
    /// The record.
    pub offset: u64,
    /// The place in training that it would have had first.
    pub place: Cursor,
    /// The stage that failed, such as `decode`.
    pub stage: String,
    /// Why.
    pub reason: String,
    /// What was delivered instead.
    pub treatment: Treatment,
}

impl Quarantined {
    /// What the keys of a job's quarantined records begin with.
    pub fn prefix(job: &str) -> String {
        format!("quarantine/{job}/")
    }
}

impl Record for Quarantined {
    const KIND: &'static str = "quarantine";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        let Self { incarnation, segment, offset, .. } = self;
        format!("{}{incarnation}/{segment:010}/{}", Self::prefix(&self.job), padded(*offset))
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

    fn quarantined(job: &str, offset: u64, reason: &str, treatment: Treatment) -> Quarantined {
        Quarantined {
            job: job.into(),
            incarnation: Incarnation(0xabc),
            segment: 1,
            offset,
            place: Cursor { epoch: 0, n: 77 },
            stage: "decode".into(),
            reason: reason.into(),
            treatment,
        }
    }

    #[test]
    fn golden_bytes() {
        let record = quarantined("vision", 512, "not a JPEG", Treatment::Substituted { index: 90 });
        let key = "quarantine/vision/00000000000000000000000000000abc/0000000001/00000000000000000512";
        check(&record, key, golden!("quarantine.1"));
    }

    proptest! {
        #[test]
        fn any_round_trips(job in name(), offset: u64, reason: String, index: Option<u64>) {
            let treatment = index.map_or(Treatment::Masked, |index| Treatment::Substituted { index });
            round_trip(&quarantined(&job, offset, &reason, treatment));
        }
    }
}
