//! `tag/<job>/<tag>`: a name for one checkpoint of a job, which may move.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, to_json};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tag {
    /// The job.
    pub job: String,
    /// The name.
    pub tag: String,
    /// Step of the checkpoint that it names.
    pub step: u64,
    /// When, in milliseconds since 1970.
    pub tagged_ms: u64,
}

impl Tag {
    /// What the keys of a job's tags begin with.
    pub fn prefix(job: &str) -> String {
        format!("tag/{job}/")
    }

    /// The key of one tag's.
    pub fn key_of(job: &str, tag: &str) -> String {
        Self::prefix(job) + tag
    }
}

impl Record for Tag {
    const KIND: &'static str = "tag";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::key_of(&self.job, &self.tag)
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
        let tag = Tag { job: "vision".into(), tag: "best".into(), step: 30, tagged_ms: 1_790_000_000_000 };
        check(&tag, "tag/vision/best", golden!("tag.1"));
    }

    proptest! {
        #[test]
        fn any_round_trips(job in name(), tag in name(), step: u64, tagged_ms: u64) {
            round_trip(&Tag { job, tag, step, tagged_ms });
        }
    }
}
