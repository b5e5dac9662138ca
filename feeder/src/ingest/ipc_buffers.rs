//! Reading the buffers of an Arrow record batch, in order and in parts.
//!
//! Opening a column checks its validity bits and list offsets to the end, without keeping them; its values then come as
//! bytes, or bits made bytes, as they are asked for. Compressed buffers are decompressed as they are read.

use std::io::{self, Read};

use arrow_ipc::CompressionType;

use super::arrow_type::Place;
use super::choose::Take;
use super::ipc_layout::{ColumnLayout, Extent, Kind};
use super::raw::{Input, Raw};
use crate::error::Result;
use crate::schema::Column;

/// Bits or offsets that are looked at at once.
const CHECK_ELEMENTS: u64 = 1 << 16;

/// Opens buffers of one batch.
pub(super) struct BatchReader<'a> {
    pub(super) input: &'a Input,
    pub(super) body: Extent,
    pub(super) codec: Option<CompressionType>,
}

impl BatchReader<'_> {
    /// Checks validity and list lengths of a column of `rows` rows, and stands at its first value.
    pub(super) fn open_column(
        &self,
        layout: &ColumnLayout,
        take: &Take,
        column: &Column,
        place: &Place<'_>,
        rows: u64,
    ) -> Result<OpenColumn> {
        let overflow = || self.input.corrupt("an arrow batch has too many values", self.body.at);
        let (mut from, mut count, mut per_row) = (0u64, rows, 1u64);
        for (level, &dim) in layout.levels.iter().zip(&take.dims) {
            self.check_validity(level.validity, from, count, per_row, place)?;
            from = match level.kind {
                Kind::Fixed(_) => from.checked_mul(u64::from(dim)).ok_or_else(overflow)?,
                Kind::Offsets32(extent) => self.check_offsets::<4>(extent, from, count, dim, per_row, place)?,
                Kind::Offsets64(extent) => self.check_offsets::<8>(extent, from, count, dim, per_row, place)?,
            };
            count = count.checked_mul(u64::from(dim)).ok_or_else(overflow)?;
            per_row *= u64::from(dim);
        }
        self.check_validity(layout.validity, from, count, per_row, place)?;
        let end = from.checked_add(count).ok_or_else(overflow)?;
        let value_bytes = layout.value_bytes;
        let need = if layout.bits { end.div_ceil(8) } else { end.checked_mul(value_bytes).ok_or_else(overflow)? };
        let raw = self.buffer(layout.values, need)?;
        let values = if layout.bits { Values::Bits(Bits::new(raw)) } else { Values::Bytes(raw) };
        let elements = column.elements() as u64 * take.cast.bytes_before() as u64;
        let row_values = if layout.bits { column.elements() as u64 } else { elements / value_bytes.max(1) };
        let mut open = OpenColumn { values, row_values, value_bytes };
        open.skip(from)?;
        Ok(open)
    }

    /// A buffer of at least `need` bytes.
    fn buffer(&self, extent: Extent, need: u64) -> Result<Raw> {
        let at = self.body.at + extent.at;
        let short = || self.input.corrupt("an arrow buffer is shorter than its batch needs", at);
        let Some(codec) = self.codec.filter(|_| extent.bytes > 0) else {
            return if extent.bytes < need { Err(short()) } else { Raw::range(self.input, at, extent.bytes) };
        };
        let packed_bytes = extent.bytes.checked_sub(8).ok_or_else(short)?;
        let head: [u8; 8] = self.input.read(at, 8)?.try_into().map_err(|_| short())?;
        let (bytes, at) = (i64::from_le_bytes(head), at + 8);
        if bytes == -1 {
            return if packed_bytes < need { Err(short()) } else { Raw::range(self.input, at, packed_bytes) };
        }
        if u64::try_from(bytes).is_ok_and(|bytes| bytes < need) {
            return Err(short());
        }
        Raw::packed(self.input, at, packed_bytes, |range| {
            let reader: Box<dyn Read + Send> = match codec {
                CompressionType::LZ4_FRAME => Box::new(lz4_flex::frame::FrameDecoder::new(range)),
                CompressionType::ZSTD => Box::new(zstd::stream::read::Decoder::with_buffer(range)?),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown compression of arrow buffers")),
            };
            Ok(reader)
        })
    }

    /// Refuses nulls among values `from..from + count`. A batch without nulls may leave the buffer out.
    fn check_validity(&self, extent: Extent, from: u64, count: u64, per_row: u64, place: &Place<'_>) -> Result<()> {
        if extent.bytes == 0 || count == 0 {
            return Ok(());
        }
        let mut bits = Bits::new(self.buffer(extent, from.saturating_add(count).div_ceil(8))?);
        bits.skip(from)?;
        let mut at = 0;
        while at < count {
            let part = (count - at).min(CHECK_ELEMENTS);
            if let Some(null) = bits.next(part as usize)?.iter().position(|&bit| bit == 0) {
                return Err(place.null(place.row + (at + null as u64) / per_row.max(1)));
            }
            at += part;
        }
        Ok(())
    }

    /// Refuses lists `from..from + count` that are not `dim` long; gives the place of the first one's values.
    fn check_offsets<const WIDTH: usize>(
        &self,
        extent: Extent,
        from: u64,
        count: u64,
        dim: u32,
        per_row: u64,
        place: &Place<'_>,
    ) -> Result<u64> {
        if count == 0 {
            return Ok(0);
        }
        let skipped = from.saturating_mul(WIDTH as u64);
        let need = count.saturating_add(1).saturating_mul(WIDTH as u64).saturating_add(skipped);
        let mut raw = self.buffer(extent, need)?;
        raw.skip(skipped)?;
        let mut buffer = Vec::new();
        let (mut first, mut last) = (None, 0u64);
        let mut at = 0;
        while at <= count {
            let part = (count + 1 - at).min(CHECK_ELEMENTS);
            buffer.clear();
            raw.fill(part as usize * WIDTH, &mut buffer)?;
            for (i, bytes) in buffer.chunks_exact(WIDTH).enumerate() {
                let mut wide = [0; 8];
                wide[..WIDTH].copy_from_slice(bytes);
                let offset = u64::from_le_bytes(wide);
                if first.is_none() {
                    first = Some(offset);
                } else if last.checked_add(u64::from(dim)) != Some(offset) {
                    let row = place.row + (at + i as u64 - 1) / per_row.max(1);
                    return Err(place.ragged(row, offset.saturating_sub(last), dim));
                }
                last = offset;
            }
            at += part;
        }
        Ok(first.unwrap_or_default())
    }
}

/// A column of the batch that is being read.
pub(super) struct OpenColumn {
    values: Values,
    /// Values in one row.
    pub(super) row_values: u64,
    value_bytes: u64,
}

enum Values {
    Bytes(Raw),
    Bits(Bits),
}

impl OpenColumn {
    pub(super) fn next(&mut self, rows: usize) -> Result<Vec<u8>> {
        let values = rows * self.row_values as usize;
        match &mut self.values {
            Values::Bits(bits) => bits.next(values),
            Values::Bytes(raw) => {
                let mut out = Vec::new();
                raw.fill(values * self.value_bytes as usize, &mut out)?;
                Ok(out)
            }
        }
    }

    pub(super) fn skip(&mut self, values: u64) -> Result<()> {
        match &mut self.values {
            Values::Bits(bits) => bits.skip(values),
            Values::Bytes(raw) => raw.skip(values * self.value_bytes),
        }
    }
}

/// Bits of a buffer in order, least significant first.
struct Bits {
    raw: Raw,
    last: u8,
    /// Bits of `last` that are used up.
    used: usize,
}

impl Bits {
    fn new(raw: Raw) -> Self {
        Self { raw, last: 0, used: 8 }
    }

    /// The next `count` bits, one byte each.
    fn next(&mut self, count: usize) -> Result<Vec<u8>> {
        let fresh = count.saturating_sub(8 - self.used).div_ceil(8);
        let mut bytes = vec![self.last];
        self.raw.fill(fresh, &mut bytes)?;
        let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
        let bits = (self.used..self.used + count).map(bit).collect();
        self.used = self.used + count - 8 * fresh;
        self.last = bytes[fresh];
        Ok(bits)
    }

    fn skip(&mut self, count: u64) -> Result<()> {
        let ready = (8 - self.used) as u64;
        if count > ready {
            self.raw.skip((count - ready) / 8)?;
            (self.last, self.used) = (0, 8);
            self.next(((count - ready) % 8) as usize).map(drop)
        } else {
            self.used += count as usize;
            Ok(())
        }
    }
}
