//! Rows as text and JSON.

use half::{bf16, f16};
use serde_json::{Map, Number, Value};

use crate::rows::Rows;
use crate::schema::{Column, Dtype};

/// Elements of a value that people are shown.
const SHOWN_ELEMENTS: usize = 6;

/// A row as a JSON object: all elements, nested as the shapes say. Floats that JSON lacks are strings.
pub(super) fn row_json(rows: &Rows, row: usize) -> Map<String, Value> {
    let columns = rows.schema().columns().iter().enumerate();
    columns
        .map(|(at, column)| (column.name.clone(), nested(column, value_bytes(rows, at, row), &column.shape)))
        .collect()
}

/// A row as one line for people: the first elements of each value.
pub(super) fn row_text(rows: &Rows, row: usize) -> String {
    let columns = rows.schema().columns().iter().enumerate();
    let texts =
        columns.map(|(at, column)| format!("{}={}", column.name, value_text(column, value_bytes(rows, at, row))));
    texts.collect::<Vec<_>>().join("  ")
}

fn value_bytes(rows: &Rows, column: usize, row: usize) -> &[u8] {
    let row_bytes = rows.schema().columns()[column].row_bytes();
    &rows.column(column)[row * row_bytes..(row + 1) * row_bytes]
}

fn nested(column: &Column, bytes: &[u8], shape: &[u32]) -> Value {
    match shape.split_first() {
        None => element(column.dtype, bytes),
        Some((&n, inner)) => {
            let parts = bytes.chunks_exact(bytes.len() / n as usize);
            Value::Array(parts.map(|part| nested(column, part, inner)).collect())
        }
    }
}

fn value_text(column: &Column, bytes: &[u8]) -> String {
    let elements = bytes.chunks_exact(column.dtype.bytes()).map(|bytes| match element(column.dtype, bytes) {
        Value::String(text) => text,
        value => value.to_string(),
    });
    if column.shape.is_empty() {
        return elements.collect();
    }
    let count = elements.len();
    let shown: Vec<String> = elements.take(SHOWN_ELEMENTS).collect();
    let more = if count > SHOWN_ELEMENTS { ", ..." } else { "" };
    let shape: Vec<String> = column.shape.iter().map(u32::to_string).collect();
    format!("[{}{more}] ({})", shown.join(", "), shape.join("x"))
}

/// One element; `bytes` is as long as its type says.
fn element(dtype: Dtype, bytes: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        Dtype::Bool => Value::Bool(bits != 0),
        Dtype::Int8 => Value::from(bits as u8 as i8),
        Dtype::Int16 => Value::from(bits as u16 as i16),
        Dtype::Int32 => Value::from(bits as u32 as i32),
        Dtype::Int64 => Value::from(bits as i64),
        Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64 => Value::from(bits),
        Dtype::Float16 => float(f16::from_bits(bits as u16).to_string()),
        Dtype::BFloat16 => float(bf16::from_bits(bits as u16).to_string()),
        Dtype::Float32 => float(f32::from_bits(bits as u32).to_string()),
        Dtype::Float64 => float(f64::from_bits(bits).to_string()),
    }
}

/// A number from the shortest text that means the same float, so that 0.1 of 32 bits is not 0.10000000149.
fn float(text: String) -> Value {
    match text.parse().ok().and_then(Number::from_f64) {
        Some(number) => Value::Number(number),
        None => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_buffer::Buffer;

    use super::*;
    use crate::schema::Schema;

    #[test]
    fn every_dtype_is_shown() {
        let schema = Schema::parse(
            "a:bool, b:int8, c:int16, d:int32, e:int64, f:uint64, g:float16, h:bfloat16, i:float32, j:float64, k:uint8[2x4]",
        );
        let columns: Vec<Vec<u8>> = vec![
            vec![1],
            vec![0xff],
            (-2i16).to_le_bytes().into(),
            (-3i32).to_le_bytes().into(),
            i64::MIN.to_le_bytes().into(),
            u64::MAX.to_le_bytes().into(),
            f16::from_f32(0.5).to_le_bytes().into(),
            bf16::from_f32(-2.0).to_le_bytes().into(),
            0.1f32.to_le_bytes().into(),
            f64::NAN.to_le_bytes().into(),
            (0..8).collect(),
        ];
        let columns = columns.into_iter().map(Buffer::from_vec).collect();
        let rows = Rows::new(Arc::new(schema.unwrap()), 1, columns).unwrap();
        let expected = serde_json::json!({
            "a": true, "b": -1, "c": -2, "d": -3, "e": i64::MIN, "f": u64::MAX, "g": 0.5, "h": -2.0, "i": 0.1, "j": "NaN",
            "k": [[0, 1, 2, 3], [4, 5, 6, 7]],
        });
        assert_eq!(Value::Object(row_json(&rows, 0)), expected);
        let text = row_text(&rows, 0);
        assert!(text.starts_with("a=true  b=-1  c=-2"), "{text}");
        assert!(text.ends_with("i=0.1  j=NaN  k=[0, 1, 2, 3, 4, 5, ...] (2x4)"), "{text}");
    }
}
