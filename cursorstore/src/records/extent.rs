//! `extent/<subscription>/<incarnation>/<segment>/<from>`: records that one daemon has spooled and indexed, a fact.
//!
//! The sealer makes windows of them.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, hex64, padded, to_json};
use crate::{Extent, Incarnation};

/// Consecutive records of one segment with what verifies them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummedExtent {
    /// The partition, or whatever else is ordered.
    pub segment: u32,
    /// The life of the topic that the offsets belong to.
    pub incarnation: Incarnation,
    /// First offset.
    pub from: u64,
    /// One past the last offset.
    pub to: u64,
    /// Bytes of the payloads.
    pub bytes: u64,
    /// Checksum of the payloads, in order.
    #[serde(with = "hex64")]
    pub checksum: u64,
}

impl SummedExtent {
    /// Number of records.
    pub fn count(&self) -> u64 {
        self.to - self.from
    }

    /// Which records, without what verifies them.
    pub fn extent(&self) -> Extent {
        Extent { segment: self.segment, incarnation: self.incarnation, from: self.from, to: self.to }
    }

    pub(super) fn check(&self) -> Result<(), BadBody> {
        if self.from > self.to {
            let what = format!("an extent ends before it begins: from={} to={}", self.from, self.to);
            return Err(BadBody::Inconsistent(what));
        }
        Ok(())
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexedExtent {
    /// The subscription.
    pub subscription: String,
    /// The records.
    pub extent: SummedExtent,
}

impl IndexedExtent {
    /// What the keys of a subscription's extents begin with.
    pub fn prefix(subscription: &str) -> String {
        format!("extent/{subscription}/")
    }
}

impl Record for IndexedExtent {
    const KIND: &'static str = "extent";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        let SummedExtent { incarnation, segment, from, .. } = &self.extent;
        format!("{}{incarnation}/{segment:010}/{}", Self::prefix(&self.subscription), padded(*from))
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        let record: Self = match version {
            1 => from_json(body)?,
            _ => return Err(BadBody::Version),
        };
        record.extent.check()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;

    fn extent(from: u64, to: u64) -> SummedExtent {
        let incarnation = Incarnation(0xabc);
        SummedExtent { segment: 3, incarnation, from, to, bytes: 1 << 20, checksum: 0x0123_4567_89ab_cdef }
    }

    #[test]
    fn golden_bytes() {
        let record = IndexedExtent { subscription: "live".into(), extent: extent(256, 512) };
        let key = "extent/live/00000000000000000000000000000abc/0000000003/00000000000000000256";
        check(&record, key, golden!("extent.1"));
    }

    #[test]
    fn an_extent_that_ends_before_it_begins_is_refused() {
        let record = IndexedExtent { subscription: "live".into(), extent: extent(256, 255) };
        assert!(IndexedExtent::decode(&record.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_round_trips(subscription in name(), from: u64, count: u64, bytes: u64, checksum: u64, segment: u32) {
            let extent = SummedExtent { segment, bytes, checksum, ..extent(from, from.saturating_add(count)) };
            round_trip(&IndexedExtent { subscription, extent });
        }
    }
}
