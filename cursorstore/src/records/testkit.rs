//! What every kind of record is tested with.

use std::fmt::Debug;

use proptest::prelude::*;

use super::{Record, RecordError, seal};
use crate::store::{Batch, StoreExt};
use crate::{Cursor, Extent, Incarnation, PlanKey, State, Window};

/// A state like those of real loaders.
pub(super) fn state(n: u64) -> State {
    let extent = Extent { segment: 0, incarnation: Incarnation(7), from: 0, to: u64::MAX / 2 };
    let plan = PlanKey { version: 1, shuffle: true, seed: 7, lanes: 64, chunk: 128, pool: 4 };
    State::new("digits".parse().unwrap(), vec![Window { extents: vec![extent] }], plan, Cursor { epoch: 2, n })
}

/// Text of names, as far as names go.
pub(super) fn name() -> impl Strategy<Value = String> {
    "[a-z0-9_=-]{1,20}"
}

/// Encodes to these bytes and back, now and for ever; stands under this key; and no damage goes unnoticed.
pub(super) fn check<R: Record + PartialEq + Debug>(record: &R, key: &str, golden: &[u8]) {
    assert_eq!(record.key(), key);
    let bytes = record.encode();
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(golden));
    assert_eq!(bytes, golden);
    assert_eq!(&R::decode(golden).unwrap(), record);
    assert_no_damage_passes::<R>(golden);
    let error = R::decode(&seal(R::KIND, R::VERSION + 1, b"")).unwrap_err();
    assert!(matches!(error, RecordError::Newer { found, .. } if found == R::VERSION + 1), "{error}");
    let store = crate::store::memory::Memory::new();
    let scope = crate::store::Scope::catalogue();
    store.fact(&scope, &record.key(), &bytes).expect("the store takes the key");
    assert!(!Batch::new().record(record).is_empty());
}

/// Encodes and decodes to the same.
pub(super) fn round_trip<R: Record + PartialEq + Debug>(record: &R) {
    assert_eq!(&R::decode(&record.encode()).unwrap(), record);
}

/// Every changed byte, every cut and every added byte is an error, and bodies with a right sum never panic.
fn assert_no_damage_passes<R: Record + Debug>(bytes: &[u8]) {
    for at in 0..bytes.len() {
        assert!(R::decode(&bytes[..at]).is_err(), "cut at {at}");
        for mask in [1, 0x10, 0x20, 0x80, 0xff] {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= mask;
            assert!(R::decode(&bytes).is_err(), "changed at {at}");
        }
    }
    assert!(R::decode(&[bytes, b" "].concat()).is_err());
    let body = &bytes[bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1..];
    for at in 0..body.len() {
        assert!(R::decode(&seal(R::KIND, R::VERSION, &body[..at])).is_err(), "body cut at {at}");
        let mut changed = body.to_vec();
        changed[at] ^= 0x11;
        let _ = R::decode(&seal(R::KIND, R::VERSION, &changed));
    }
}

/// Reads the golden bytes of a version.
macro_rules! golden {
    ($name:literal) => {
        include_bytes!(concat!("golden/", $name))
    };
}
pub(super) use golden;
