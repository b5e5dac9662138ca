//! From elements as a file stores them to elements as a topic stores them.
//!
//! Lossless only: bytes swapped to little endian, integers widened, booleans made 0 or 1. Everything else is refused
//! when columns are chosen, so that casting cannot fail.

use crate::schema::Dtype;

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
        (same || widens(from, to)).then_some(Self { from, to, swap })
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
        let mut wide = Vec::with_capacity(raw.len() / width * self.to.bytes());
        let (signed, fill) = (is_signed(self.from), self.to.bytes() - width);
        for element in raw.chunks_exact(width) {
            let negative = signed && element[width - 1] & 0x80 != 0;
            wide.extend_from_slice(element);
            wide.extend_from_slice(&[if negative { 0xff } else { 0 }; 8][..fill]);
        }
        wide
    }
}

/// Whether every integer of `from` is one of `to`, with more bytes.
fn widens(from: Dtype, to: Dtype) -> bool {
    is_integer(from) && is_integer(to) && to.bytes() > from.bytes() && (is_signed(to) || !is_signed(from))
}

fn is_signed(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64)
}

fn is_integer(dtype: Dtype) -> bool {
    is_signed(dtype) || matches!(dtype, Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64)
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
        ];
        assert_eq!(allowed, expected);
    }

    #[test]
    fn values_survive() {
        let cast = |from, to, swap, raw: &[u8]| Cast::new(from, to, swap).unwrap().apply(raw.to_vec());
        assert_eq!(cast(Dtype::Int16, Dtype::Int64, false, &(-2i16).to_le_bytes()), (-2i64).to_le_bytes());
        assert_eq!(cast(Dtype::Int16, Dtype::Int32, true, &(-2i16).to_be_bytes()), (-2i32).to_le_bytes());
        assert_eq!(cast(Dtype::UInt16, Dtype::Int32, false, &65535u16.to_le_bytes()), 65535i32.to_le_bytes());
        assert_eq!(cast(Dtype::Float64, Dtype::Float64, true, &1.5f64.to_be_bytes()), 1.5f64.to_le_bytes());
        assert_eq!(cast(Dtype::Bool, Dtype::Bool, false, &[0, 1, 7]), [0, 1, 1]);
        assert!(!Cast::new(Dtype::Bool, Dtype::Bool, false).unwrap().is_identity());
        assert!(Cast::new(Dtype::UInt8, Dtype::UInt8, true).unwrap().is_identity());
        assert!(!Cast::new(Dtype::Int16, Dtype::Int16, true).unwrap().is_identity());
    }
}
