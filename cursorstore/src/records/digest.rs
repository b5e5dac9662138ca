//! `digest/<job>/<generation>/<epoch>/<n>/<rank>`: a sum over what one rank has delivered, a fact.
//!
//! The ranks' sums add up to that of the places `from..to`, which can be computed again from plan and log.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, hex128, padded, to_json};
use crate::Cursor;

/// What a sum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Places and positions.
    Positions,
    /// Payloads too.
    Payload,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digest {
    /// The job.
    pub job: String,
    /// The run.
    pub generation: u64,
    /// The rank that delivered.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// First place covered.
    pub from: Cursor,
    /// One past the last, on the same line.
    pub to: Cursor,
    /// What the sum covers.
    pub level: Level,
    /// Rows that this rank delivered of these places.
    pub rows: u64,
    /// The sum.
    #[serde(with = "hex128")]
    pub sum: u128,
}

impl Digest {
    /// What the keys of a job's digests begin with.
    pub fn prefix(job: &str) -> String {
        format!("digest/{job}/")
    }
}

impl Record for Digest {
    const KIND: &'static str = "digest";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        let numbers = [self.generation, self.to.epoch, self.to.n].map(padded);
        format!("{}{}/{:010}", Self::prefix(&self.job), numbers.join("/"), self.rank)
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        let record: Self = match version {
            1 => from_json(body)?,
            _ => return Err(BadBody::Version),
        };
        if record.from > record.to || record.from.epoch != record.to.epoch || record.rank >= record.world {
            let Self { from, to, rank, world, .. } = record;
            let what = format!("no range of one line or no rank: from={from:?} to={to:?} rank={rank} world={world}");
            return Err(BadBody::Inconsistent(what));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;

    fn digest(job: &str, n: u64, sum: u128) -> Digest {
        Digest {
            job: job.into(),
            generation: 3,
            rank: 1,
            world: 4,
            from: Cursor { epoch: 1, n: 0 },
            to: Cursor { epoch: 1, n },
            level: Level::Positions,
            rows: 64,
            sum,
        }
    }

    #[test]
    fn golden_bytes() {
        let key = "digest/vision/00000000000000000003/00000000000000000001/00000000000000000256/0000000001";
        check(&digest("vision", 256, 0xfeed), key, golden!("digest.1"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let good = digest("vision", 256, 1);
        for bad in [
            Digest { from: Cursor { epoch: 1, n: 257 }, ..good.clone() },
            Digest { from: Cursor { epoch: 0, n: 0 }, ..good.clone() },
            Digest { rank: 4, ..good },
        ] {
            assert!(Digest::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_round_trips(job in name(), n: u64, sum: u128, rows: u64, payload: bool) {
            let level = if payload { Level::Payload } else { Level::Positions };
            round_trip(&Digest { level, rows, ..digest(&job, n, sum) });
        }
    }
}
