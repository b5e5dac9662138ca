//! Splits: a share of a topic's records, chosen by a hash, so that every record is always on the same side.
//!
//! Written `0..0.9`, with a seed `0..0.9 seed=7`, and to keep together what has the same value in a column
//! `0..0.9 seed=7 by=user`. A record's hash (64 bits, `xxh3` with the seed) is of its partition and offset, or of the column's
//! value; it is taken when the hash lies in that share of all numbers. So shares that do not overlap have no record in common,
//! shares that meet leave none out, and a topic that grows moves no record to another side.

use std::fmt;

use super::filter::{Value, cell_value};
use crate::error::{Error, Result};
use crate::schema::Dtype;

/// Most digits after the point.
const DIGITS_MAX: usize = 18;

/// A number between 0 and 1, as it was written: `digits / 10^places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    digits: u64,
    places: u32,
}

impl Fraction {
    fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let part = part.trim_end_matches('0');
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole) || !plain(part) || part.len() > DIGITS_MAX || (whole.is_empty() && part.is_empty()) {
            return None;
        }
        let places = part.len() as u32;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let digits = whole.checked_mul(10u64.pow(places))?.checked_add(if part.is_empty() {
            0
        } else {
            part.parse().ok()?
        })?;
        (digits <= 10u64.pow(places)).then_some(Self { digits, places })
    }

    /// The first hash that is not below it.
    fn threshold(self) -> u128 {
        (u128::from(self.digits) << 64).div_ceil(10u128.pow(self.places))
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = 10u64.pow(self.places);
        write!(f, "{}", self.digits / one)?;
        match self.places {
            0 => Ok(()),
            places => write!(f, ".{:0places$}", self.digits % one, places = places as usize),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    from: Fraction,
    to: Fraction,
    seed: u64,
    by: Option<String>,
}

impl Split {
    /// A share `A..B` with seed and column.
    pub fn new(share: &str, seed: u64, by: Option<&str>) -> Result<Self> {
        let wrong = || {
            let text = format!("not a share, from and to are numbers between 0 and 1: split={share:?}");
            Error::invalid(text).with_hint("--split 0..0.9 for training and --split 0.9..1 for the rest")
        };
        let (from, to) = share.split_once("..").ok_or_else(wrong)?;
        let (from, to) = (Fraction::parse(from).ok_or_else(wrong)?, Fraction::parse(to).ok_or_else(wrong)?);
        if from.threshold() >= to.threshold() {
            return Err(wrong());
        }
        if by.is_some_and(|by| by.is_empty() || by.contains(char::is_whitespace)) {
            return Err(Error::invalid(format!("not the name of a column: split_by={by:?}")));
        }
        Ok(Self { from, to, seed, by: by.map(str::to_owned) })
    }

    /// Reads the form that is shown.
    pub fn parse(text: &str) -> Result<Self> {
        let mut words = text.split(' ');
        let share = words.next().unwrap_or_default();
        let (mut seed, mut by) = (0, None);
        for word in words {
            match word.split_once('=') {
                Some(("seed", number)) => {
                    seed = number.parse().map_err(|_| Error::invalid(format!("not a seed: split={text:?}")))?;
                }
                Some(("by", column)) => by = Some(column),
                _ => return Err(Error::invalid(format!("not a split: split={text:?}"))),
            }
        }
        Self::new(share, seed, by)
    }

    /// The column that keeps records together.
    pub fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// Whether the record at a position is in the share.
    pub fn takes_position(&self, partition: u32, offset: u64) -> bool {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&partition.to_le_bytes());
        bytes[4..].copy_from_slice(&offset.to_le_bytes());
        self.takes(&bytes)
    }

    /// Whether a record with this value is in the share. Numbers count by their value, whatever their width.
    pub fn takes_value(&self, dtype: Dtype, bytes: &[u8]) -> bool {
        let mut canonical = Vec::with_capacity(16);
        for element in bytes.chunks_exact(dtype.bytes()) {
            match cell_value(dtype, element) {
                Value::Int(number) => canonical.extend_from_slice(&number.to_le_bytes()),
                Value::Float(number) => canonical.extend_from_slice(&number.to_le_bytes()),
                Value::Bool(value) => canonical.push(value.into()),
            }
        }
        self.takes(&canonical)
    }

    fn takes(&self, bytes: &[u8]) -> bool {
        let hash = u128::from(xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.seed));
        (self.from.threshold()..self.to.threshold()).contains(&hash)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.from, self.to)?;
        if self.seed != 0 {
            write!(f, " seed={}", self.seed)?;
        }
        match &self.by {
            Some(by) => write!(f, " by={by}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_read_and_shown_in_one_form() {
        for (text, shown) in [
            ("0..0.9", "0..0.9"),
            ("0.90..1.0", "0.9..1"),
            (".5..1", "0.5..1"),
            ("0..1", "0..1"),
            ("0.05..0.10", "0.05..0.1"),
        ] {
            assert_eq!(Split::new(text, 0, None).unwrap().to_string(), shown);
        }
        let split = Split::new("0..0.9", 7, Some("user")).unwrap();
        assert_eq!(split.to_string(), "0..0.9 seed=7 by=user");
        assert_eq!(Split::parse("0..0.9 seed=7 by=user").unwrap(), split);
        for text in [
            "",
            "0.9",
            "0..",
            "0.9..0.1",
            "0.5..0.5",
            "0..1.1",
            "-1..1",
            "0..1e0",
            "0..0.1234567890123456789",
            "a..b",
            "0..+1",
        ] {
            assert!(Split::new(text, 0, None).is_err(), "{text:?}");
        }
        assert!(Split::parse("0..1 seed=x").is_err() && Split::parse("0..1 other").is_err());
        assert!(Split::new("0..1", 0, Some("a b")).is_err());
    }

    /// The sides of records never change, in no version of this code.
    #[test]
    fn golden_sides() {
        let split = Split::new("0..0.5", 7, None).unwrap();
        let sides: String = (0..32).map(|offset| if split.takes_position(3, offset) { '1' } else { '0' }).collect();
        assert_eq!(sides, "01111000101011110110010000100011");
        let by = |dtype: Dtype, bytes: &[u8]| split.takes_value(dtype, bytes);
        let sides: String = (0..32i64).map(|n| if by(Dtype::Int64, &n.to_le_bytes()) { '1' } else { '0' }).collect();
        assert_eq!(sides, "11110000100100011001111101110100");
        assert!(
            (-100..100i16).all(|n| by(Dtype::Int16, &n.to_le_bytes()) == by(Dtype::Int64, &i64::from(n).to_le_bytes()))
        );
    }

    proptest! {
        #[test]
        fn shares_that_meet_part_all_records(cut in 1u32..1000, seed: u64, partition: u32, offset: u64) {
            let cut = format!("0.{cut:03}");
            let low = Split::new(&format!("0..{cut}"), seed, None).unwrap();
            let high = Split::new(&format!("{cut}..1"), seed, None).unwrap();
            prop_assert!(low.takes_position(partition, offset) != high.takes_position(partition, offset));
            prop_assert!(Split::new("0..1", seed, None).unwrap().takes_position(partition, offset));
        }

        #[test]
        fn no_text_panics(text in "[-0-9.+a-z= é]{0,40}") {
            if let Ok(split) = Split::parse(&text) {
                prop_assert_eq!(Split::parse(&split.to_string()).unwrap(), split);
            }
        }
    }

    #[test]
    fn a_share_is_about_as_large_as_it_says() {
        let split = Split::new("0.2..0.5", 1, None).unwrap();
        let taken = (0..100_000).filter(|&offset| split.takes_position(0, offset)).count();
        assert!((29_000..31_000).contains(&taken), "{taken}");
    }
}
