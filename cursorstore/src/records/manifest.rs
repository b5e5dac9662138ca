//! `manifest/<dataset>/<digest>`: some thousand extents of a dataset version, in order.
//!
//! Parts are named by their contents, so versions share those that they have in common, and equal names need not be read
//! to be equal. The body is binary (varints are LEB128 in the shortest form, signed ones zigzag):
//!
//! ```text
//! varint    bytes of the dataset's name; the name
//! varint    number of incarnations; 16 bytes each, little-endian, in the order of first use
//! varint    number of extents; then each:
//!   signed  segment, less that of the extent before (the first: less 0)
//!   varint  number of its incarnation
//!   signed  first offset, less the end of the extent before (modulo 2^64)
//!   varint  number of records
//!   signed  bytes, less those of the extent before (modulo 2^64)
//!   8 bytes checksum, little-endian
//! ```

use std::collections::HashMap;

use super::extent::SummedExtent;
use super::{BadBody, Record};
use crate::Incarnation;
use crate::position::is_name_part;

/// Most extents of one part: with ever so large numbers it fits into one value of the store.
pub const PART_EXTENTS_MAX: usize = 8192;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestPart {
    /// The dataset.
    pub dataset: String,
    /// In reading order.
    pub extents: Vec<SummedExtent>,
}

impl ManifestPart {
    /// The parts of a window's extents. Those of a longer list with the same beginning are the same but for the last.
    pub fn split<'a>(dataset: &'a str, extents: &'a [SummedExtent]) -> impl Iterator<Item = Self> + 'a {
        let part = |extents: &[SummedExtent]| Self { dataset: dataset.into(), extents: extents.into() };
        extents.chunks(PART_EXTENTS_MAX).map(part)
    }

    /// What the keys of a dataset's parts begin with.
    pub fn prefix(dataset: &str) -> String {
        format!("manifest/{dataset}/")
    }

    /// The key of a part.
    pub fn key_of(dataset: &str, digest: u128) -> String {
        format!("{}{digest:032x}", Self::prefix(dataset))
    }

    /// Digest of the extents.
    pub fn digest(&self) -> u128 {
        let mut bytes = Vec::new();
        self.write_extents(&mut bytes);
        xxhash_rust::xxh3::xxh3_128(&bytes)
    }

    fn write_extents(&self, out: &mut Vec<u8>) {
        let mut numbers: HashMap<Incarnation, u64> = HashMap::new();
        let mut incarnations = Vec::new();
        for extent in &self.extents {
            numbers.entry(extent.incarnation).or_insert_with(|| {
                incarnations.push(extent.incarnation);
                incarnations.len() as u64 - 1
            });
        }
        put_varint(out, incarnations.len() as u64);
        incarnations.iter().for_each(|incarnation| out.extend_from_slice(&incarnation.0.to_le_bytes()));
        put_varint(out, self.extents.len() as u64);
        let (mut segment, mut end, mut bytes) = (0, 0, 0);
        for extent in &self.extents {
            put_signed(out, i64::from(extent.segment) - segment);
            put_varint(out, numbers[&extent.incarnation]);
            put_signed(out, extent.from.wrapping_sub(end) as i64);
            put_varint(out, extent.count());
            put_signed(out, extent.bytes.wrapping_sub(bytes) as i64);
            out.extend_from_slice(&extent.checksum.to_le_bytes());
            (segment, end, bytes) = (i64::from(extent.segment), extent.to, extent.bytes);
        }
    }
}

impl Record for ManifestPart {
    const KIND: &'static str = "manifest";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::key_of(&self.dataset, self.digest())
    }

    fn body(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 * self.extents.len() + 64);
        put_varint(&mut out, self.dataset.len() as u64);
        out.extend_from_slice(self.dataset.as_bytes());
        self.write_extents(&mut out);
        out
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        match version {
            1 => Reader(body).part().ok_or_else(|| BadBody::Inconsistent("not a list of extents".into())),
            _ => Err(BadBody::Version),
        }
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            number |= bits << shift;
            if byte < 0x80 {
                // Neither longer than need be nor larger than fits.
                let is_shortest = byte > 0 || shift == 0;
                return (is_shortest && (bits << shift) >> shift == bits).then_some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn part(mut self) -> Option<ManifestPart> {
        let name_bytes = usize::try_from(self.varint()?).ok()?;
        let dataset = str::from_utf8(self.take(name_bytes)?).ok().filter(|name| is_name_part(name))?.to_string();
        let count = self.varint()?.min(PART_EXTENTS_MAX as u64 + 1);
        let incarnations: Option<Vec<_>> =
            (0..count).map(|_| Some(Incarnation(u128::from_le_bytes(*self.take(16)?.first_chunk()?)))).collect();
        let incarnations = incarnations?;
        let count = usize::try_from(self.varint()?).ok().filter(|&count| count <= PART_EXTENTS_MAX)?;
        let mut extents = Vec::with_capacity(count);
        let (mut segment, mut end, mut bytes) = (0i64, 0u64, 0u64);
        for _ in 0..count {
            segment = segment.checked_add(self.signed()?)?;
            let incarnation = *incarnations.get(usize::try_from(self.varint()?).ok()?)?;
            let from = end.wrapping_add(self.signed()? as u64);
            end = from.checked_add(self.varint()?)?;
            bytes = bytes.wrapping_add(self.signed()? as u64);
            let checksum = u64::from_le_bytes(*self.take(8)?.first_chunk()?);
            let segment = u32::try_from(segment).ok()?;
            extents.push(SummedExtent { segment, incarnation, from, to: end, bytes, checksum });
        }
        self.0.is_empty().then_some(ManifestPart { dataset, extents })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;
    use crate::store::VALUE_BYTES_MAX;

    fn extent(segment: u32, incarnation: u128, from: u64, count: u64, bytes: u64, checksum: u64) -> SummedExtent {
        let incarnation = Incarnation(incarnation);
        SummedExtent { segment, incarnation, from, to: from + count, bytes, checksum }
    }

    fn part(extents: Vec<SummedExtent>) -> ManifestPart {
        ManifestPart { dataset: "digits-clean".into(), extents }
    }

    #[test]
    fn golden_bytes() {
        let part = part(vec![
            extent(0, 0xabc, 0, 256, 1 << 20, 0x0123_4567_89ab_cdef),
            extent(0, 0xabc, 256, 256, 1 << 20, 1),
            extent(1, 0xdef, 1000, 3, 12288, u64::MAX),
        ]);
        let key = format!("manifest/digits-clean/{:032x}", part.digest());
        check(&part, &key, golden!("manifest.1"));
        assert_eq!(format!("{:032x}", part.digest()), "5f84a481fad8709d47b63dac8bae116f");
    }

    #[test]
    fn a_usual_extent_takes_14_bytes_and_the_largest_part_fits_a_value() {
        let usual = (0..1000).map(|at| extent(0, 7, at * 256, 256, 1 << 20, at * at)).collect();
        assert!(part(usual).encode().len() < 14 * 1000 + 100);
        let huge = (0..PART_EXTENTS_MAX).map(|at| match at % 2 {
            0 => extent(0, at as u128, 0, u64::MAX, u64::MAX / 2, 0),
            _ => extent(u32::MAX, at as u128, 1 << 62, 1 << 63, 0, 0),
        });
        let huge = part(huge.collect());
        assert!(huge.encode().len() < VALUE_BYTES_MAX, "{}", huge.encode().len());
        round_trip(&huge);
    }

    #[test]
    fn lists_that_grow_share_parts() {
        let all: Vec<_> = (0..3 * PART_EXTENTS_MAX as u64).map(|at| extent(0, 7, at * 8, 8, 64, at)).collect();
        let keys = |count: usize| ManifestPart::split("d", &all[..count]).map(|part| part.key()).collect::<Vec<_>>();
        let (short, long) = (keys(2 * PART_EXTENTS_MAX + 5), keys(all.len()));
        assert_eq!((short.len(), long.len()), (3, 3));
        assert_eq!(short[..2], long[..2]);
        assert_ne!(short[2], long[2]);
        let other = ManifestPart { dataset: "e".into(), extents: all[..5].to_vec() };
        assert_eq!(other.digest(), ManifestPart { dataset: "d".into(), ..other.clone() }.digest());
    }

    #[test]
    fn numbers_have_one_form() {
        for (bytes, number) in [(&[0x80, 0][..], None), (&[0x81, 1], Some(129)), (&[0xff; 10], None), (&[], None)] {
            assert_eq!(Reader(bytes).varint(), number, "{bytes:?}");
        }
        let mut most = Vec::new();
        put_varint(&mut most, u64::MAX);
        assert_eq!((Reader(&most).varint(), most.len()), (Some(u64::MAX), 10));
        most[9] = 2;
        assert_eq!(Reader(&most).varint(), None);
    }

    proptest! {
        #[test]
        fn any_round_trips(dataset in name().prop_filter("a name", |name| is_name_part(name)), list: Vec<(u32, u8, u64, u64, u64, u64)>) {
            let extents = list.into_iter().map(|(segment, incarnation, from, count, bytes, checksum)| {
                extent(segment, incarnation.into(), from, count.min(u64::MAX - from), bytes, checksum)
            });
            round_trip(&ManifestPart { dataset, extents: extents.collect() });
        }

        #[test]
        fn foreign_bodies_never_panic(body: Vec<u8>) {
            let _ = ManifestPart::parse(1, &body);
        }

        #[test]
        fn what_is_read_is_written_the_same(at in 0usize..60, byte: u8) {
            let mut body = part(vec![extent(0, 1, 5, 6, 7, 8), extent(2, 1, 5, 6, 7, 8)]).body();
            let at = at % body.len();
            body[at] = byte;
            if let Ok(part) = ManifestPart::parse(1, &body) {
                // The list of incarnations may hold some that are not used, or be in another order.
                prop_assert_eq!(ManifestPart::parse(1, &part.body()).unwrap(), part);
            }
        }
    }
}
