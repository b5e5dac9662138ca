//! From elements as a file stores them to elements as a topic stores them.
//!
//! Lossless only: bytes swapped to little endian, numbers [widened](Widen), booleans made 0 or 1. Everything else is refused
//! when columns are chosen, so that casting cannot fail.

use crate::schema::Dtype;
use crate::widen::Widen;

/// A conversion of elements that loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cast {
    from: Dtype,
    to: Dtype,
    /// The file's elements are big endian.
    swap: bool,
}

impl Cast {
    /// The conversion, if it is one that loses nothing.
    pub(super) fn new(from: Dtype, to: Dtype, swap: bool) -> Option<Self> {
        // Arrow and parquet have no bfloat16: people bring it as uint16, and a given schema says what it is.
        let same = from == to || (from == Dtype::UInt16 && to == Dtype::BFloat16);
        (same || Widen::new(from, to).is_some()).then_some(Self { from, to, swap })
    }

    /// Bytes of one element before.
    pub(super) fn bytes_before(self) -> usize {
        self.from.bytes()
    }

    /// Whether the bytes stay as they are.
    pub(super) fn is_identity(self) -> bool {
        self.from.bytes() == self.to.bytes() && (!self.swap || self.from.bytes() == 1) && self.to != Dtype::Bool
    }

    /// Converts whole elements.
    pub(super) fn apply(self, mut raw: Vec<u8>) -> Vec<u8> {
        let width = self.from.bytes();
        if self.swap && width > 1 {
            raw.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        if self.to == Dtype::Bool {
            raw.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        if self.to.bytes() == width {
            return raw;
        }
        let mut wide = Vec::new();
        if let Some(widen) = Widen::new(self.from, self.to) {
            widen.append(&raw, &mut wide);
        }
        wide
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lossless_casts_exist() {
        use Dtype::*;
        let allowed: Vec<(Dtype, Dtype)> = Dtype::ALL
            .into_iter()
            .flat_map(|from| Dtype::ALL.map(|to| (from, to)))
            .filter(|&(from, to)| from != to && Cast::new(from, to, false).is_some())
            .collect();
        let expected = [
            (Int8, Int16),
            (Int8, Int32),
            (Int8, Int64),
            (Int16, Int32),
            (Int16, Int64),
            (Int32, Int64),
            (UInt8, Int16),
            (UInt8, Int32),
            (UInt8, Int64),
            (UInt8, UInt16),
            (UInt8, UInt32),
            (UInt8, UInt64),
            (UInt16, Int32),
            (UInt16, Int64),
            (UInt16, UInt32),
            (UInt16, UInt64),
            (UInt16, BFloat16),
            (UInt32, Int64),
            (UInt32, UInt64),
            (Float16, Float32),
            (Float16, Float64),
            (BFloat16, Float32),
            (BFloat16, Float64),
            (Float32, Float64),
        ];
        assert_eq!(allowed, expected);
    }

    #[test]
    fn values_survive() {
        let cast = |from, to, swap, raw: &[u8]| Cast::new(from, to, swap).unwrap().apply(raw.to_vec());
        assert_eq!(cast(Dtype::Int16, Dtype::Int64, false, &(-2i16).to_le_bytes()), (-2i64).to_le_bytes());
        assert_eq!(cast(Dtype::Int16, Dtype::Int32, true, &(-2i16).to_be_bytes()), (-2i32).to_le_bytes());
        assert_eq!(cast(Dtype::UInt16, Dtype::Int32, false, &65535u16.to_le_bytes()), 65535i32.to_le_bytes());
        assert_eq!(cast(Dtype::Float32, Dtype::Float64, true, &1.5f32.to_be_bytes()), 1.5f64.to_le_bytes());
        assert_eq!(cast(Dtype::Float64, Dtype::Float64, true, &1.5f64.to_be_bytes()), 1.5f64.to_le_bytes());
        assert_eq!(cast(Dtype::Bool, Dtype::Bool, false, &[0, 1, 7]), [0, 1, 1]);
        assert!(!Cast::new(Dtype::Bool, Dtype::Bool, false).unwrap().is_identity());
        assert!(Cast::new(Dtype::UInt8, Dtype::UInt8, true).unwrap().is_identity());
        assert!(!Cast::new(Dtype::Int16, Dtype::Int16, true).unwrap().is_identity());
    }
}
