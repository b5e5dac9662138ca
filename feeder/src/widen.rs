//! Elements of one type as elements of a wider one, every value kept.
//!
//! Integers widen to integers that hold every value of theirs, floats to floats that do: `uint8` to `uint16` or `int16`,
//! `float16` to `float32` to `float64`, `bfloat16` to `float32`. Booleans, and integers as floats, never: that is another
//! meaning, not another width. Pure bits on little-endian bytes: two widenings after one another are the one that goes all
//! the way, also for infinities, subnormals and the payload of a NaN.

use crate::schema::Dtype;

/// Exponent and mantissa bits of a float.
type FloatForm = (u32, u32);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widen {
    from: Dtype,
    to: Dtype,
}

impl Widen {
    /// The widening, if it is one: from a type to itself is none.
    pub fn new(from: Dtype, to: Dtype) -> Option<Self> {
        let floats = match (float_form(from), float_form(to)) {
            (Some(from), Some(to)) => to != from && to.0 >= from.0 && to.1 >= from.1,
            _ => false,
        };
        let integers = is_integer(from)
            && is_integer(to)
            && to.bytes() > from.bytes()
            && (is_signed_integer(to) || !is_signed_integer(from));
        (floats || integers).then_some(Self { from, to })
    }

    /// The type before.
    pub fn from(self) -> Dtype {
        self.from
    }

    /// The type after.
    pub fn to(self) -> Dtype {
        self.to
    }

    /// Appends the whole elements of `narrow` to `wide`.
    pub fn append(self, narrow: &[u8], wide: &mut Vec<u8>) {
        let (before, after) = (self.from.bytes(), self.to.bytes());
        debug_assert!(narrow.len().is_multiple_of(before), "part of an element");
        wide.reserve(narrow.len() / before * after);
        for element in narrow.chunks_exact(before) {
            let mut bytes = [0; 8];
            bytes[..before].copy_from_slice(element);
            let bits = self.element(u64::from_le_bytes(bytes)).to_le_bytes();
            wide.extend_from_slice(&bits[..after]);
        }
    }

    /// The bits of one element.
    fn element(self, bits: u64) -> u64 {
        if let (Some(from), Some(to)) = (float_form(self.from), float_form(self.to)) {
            return widen_float(bits, from, to);
        }
        let unused = 64 - 8 * self.from.bytes() as u32;
        match is_signed_integer(self.from) {
            true => ((bits << unused) as i64 >> unused) as u64,
            false => bits,
        }
    }
}

fn widen_float(bits: u64, from: FloatForm, to: FloatForm) -> u64 {
    let ((exponent_bits, mantissa_bits), (wide_exponent_bits, wide_mantissa_bits)) = (from, to);
    let sign = bits >> (exponent_bits + mantissa_bits) & 1;
    let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let shift = wide_mantissa_bits - mantissa_bits;
    let bias = |bits: u32| (1u64 << (bits - 1)) - 1;
    let rebias = bias(wide_exponent_bits) - bias(exponent_bits);
    let (exponent, mantissa) = if exponent == (1 << exponent_bits) - 1 {
        ((1 << wide_exponent_bits) - 1, mantissa << shift)
    } else if exponent > 0 {
        (exponent + rebias, mantissa << shift)
    } else if mantissa == 0 || wide_exponent_bits == exponent_bits {
        (0, mantissa << shift)
    } else {
        // A subnormal is a normal number of the wider form: its leading one becomes the implicit one.
        let up = mantissa.leading_zeros() - (63 - mantissa_bits);
        (rebias + 1 - u64::from(up), (mantissa << up & ((1 << mantissa_bits) - 1)) << shift)
    };
    sign << (wide_exponent_bits + wide_mantissa_bits) | exponent << wide_mantissa_bits | mantissa
}

fn float_form(dtype: Dtype) -> Option<FloatForm> {
    match dtype {
        Dtype::Float16 => Some((5, 10)),
        Dtype::BFloat16 => Some((8, 7)),
        Dtype::Float32 => Some((8, 23)),
        Dtype::Float64 => Some((11, 52)),
        _ => None,
    }
}

fn is_signed_integer(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64)
}

fn is_integer(dtype: Dtype) -> bool {
    is_signed_integer(dtype) || matches!(dtype, Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn widened(from: Dtype, to: Dtype, narrow: &[u8]) -> Vec<u8> {
        let mut wide = Vec::new();
        Widen::new(from, to).unwrap().append(narrow, &mut wide);
        wide
    }

    #[test]
    fn only_what_keeps_every_value_widens() {
        use Dtype::*;
        let pairs = |from: Dtype| Dtype::ALL.into_iter().filter(move |&to| Widen::new(from, to).is_some());
        for (from, to) in [
            (Bool, &[][..]),
            (Int8, &[Int16, Int32, Int64]),
            (Int16, &[Int32, Int64]),
            (Int32, &[Int64]),
            (Int64, &[]),
            (UInt8, &[Int16, Int32, Int64, UInt16, UInt32, UInt64]),
            (UInt16, &[Int32, Int64, UInt32, UInt64]),
            (UInt32, &[Int64, UInt64]),
            (UInt64, &[]),
            (Float16, &[Float32, Float64]),
            (BFloat16, &[Float32, Float64]),
            (Float32, &[Float64]),
            (Float64, &[]),
        ] {
            assert_eq!(pairs(from).collect::<Vec<_>>(), to, "{from}");
        }
    }

    #[test]
    fn every_integer_of_16_bits_survives() {
        for bits in 0..=u16::MAX {
            let signed = bits as i16;
            assert_eq!(widened(Dtype::Int16, Dtype::Int64, &signed.to_le_bytes()), i64::from(signed).to_le_bytes());
            assert_eq!(widened(Dtype::UInt16, Dtype::Int32, &bits.to_le_bytes()), i32::from(bits).to_le_bytes());
            let byte = bits as u8;
            assert_eq!(widened(Dtype::Int8, Dtype::Int16, &[byte]), i16::from(byte as i8).to_le_bytes());
            assert_eq!(widened(Dtype::UInt8, Dtype::UInt64, &[byte]), u64::from(byte).to_le_bytes());
        }
    }

    #[test]
    fn every_half_survives_and_the_way_does_not_matter() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            for (narrow, value) in
                [(Dtype::Float16, f16::from_bits(bits).to_f64()), (Dtype::BFloat16, bf16::from_bits(bits).to_f64())]
            {
                let single = widened(narrow, Dtype::Float32, &bytes);
                let double = widened(narrow, Dtype::Float64, &bytes);
                assert_eq!(widened(Dtype::Float32, Dtype::Float64, &single), double, "{narrow} {bits:#06x}");
                let got = f64::from_le_bytes(double.try_into().unwrap());
                match value.is_nan() {
                    true => assert!(got.is_nan() && got.is_sign_negative() == value.is_sign_negative()),
                    false => assert_eq!(got.to_bits(), value.to_bits(), "{narrow} {bits:#06x}"),
                }
            }
        }
    }

    #[test]
    fn singles_survive() {
        let odd = [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::from_bits(1), f32::from_bits(0x007f_ffff), f32::MAX];
        for value in odd.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY]).flat_map(|value| [value, -value]) {
            let wide = widened(Dtype::Float32, Dtype::Float64, &value.to_le_bytes());
            assert_eq!(f64::from_le_bytes(wide.try_into().unwrap()).to_bits(), f64::from(value).to_bits(), "{value:e}");
        }
        let signalling = widened(Dtype::Float32, Dtype::Float64, &0x7f80_0001_u32.to_le_bytes());
        assert_eq!(u64::from_le_bytes(signalling.try_into().unwrap()), 0x7ff0_0000_2000_0000, "its payload is kept");
    }
}
