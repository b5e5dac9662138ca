//! A topic's schema: named columns of fixed shape.
//!
//! Each row of a column is `row_bytes` little-endian bytes, rows stand one after the other: what is on disk is what a
//! tensor wants. Arrow has no bit-free boolean and no bfloat16, so `bool` is stored as the canonical extension
//! `arrow.bool8` (one byte) and `bfloat16` as uint16 marked in the field's metadata; shapes are the canonical extension
//! `arrow.fixed_shape_tensor`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema as ArrowSchema};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, nearest};

/// Most columns of a topic.
pub const COLUMNS_MAX: usize = 4096;
/// Most bytes of one row over all columns.
pub const ROW_BYTES_MAX: u64 = 1 << 30;
/// Most dimensions of one value.
pub const DIMENSIONS_MAX: usize = 16;
/// Field metadata that names a dtype Arrow does not have.
const DTYPE_KEY: &str = "forebay.dtype";
const EXTENSION_NAME: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";

/// Element type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dtype {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    BFloat16,
    Float32,
    Float64,
}

impl Dtype {
    /// All of them.
    pub const ALL: [Dtype; 13] = [
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
        Self::Float16,
        Self::BFloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// The name used in schemas, states and errors, as torch and NumPy spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// The dtype of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 | Self::BFloat16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// The Arrow type of one stored element.
    pub fn storage(self) -> DataType {
        match self {
            Self::Bool | Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt8 => DataType::UInt8,
            Self::UInt16 | Self::BFloat16 => DataType::UInt16,
            Self::UInt32 => DataType::UInt32,
            Self::UInt64 => DataType::UInt64,
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        }
    }

    /// The dtype that stores an Arrow primitive as it is.
    pub fn of_storage(storage: &DataType) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| !matches!(dtype, Self::Bool | Self::BFloat16) && dtype.storage() == *storage)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One column: a name, an element type and the shape of one value (empty for a scalar).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Column {
    /// Name, unique in its schema.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one row's value.
    pub shape: Vec<u32>,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u32>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Elements of one row.
    pub fn elements(&self) -> usize {
        self.shape.iter().map(|&n| n as usize).product()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// The Arrow type of the column, without extension.
    pub fn arrow_type(&self) -> DataType {
        match self.shape.is_empty() {
            true => self.dtype.storage(),
            false => DataType::FixedSizeList(
                Arc::new(Field::new("item", self.dtype.storage(), false)),
                self.elements() as i32,
            ),
        }
    }

    fn arrow_field(&self) -> Field {
        let mut metadata = HashMap::new();
        if !self.shape.is_empty() {
            let shape = serde_json::json!({ "shape": self.shape }).to_string();
            metadata.insert(EXTENSION_NAME.into(), "arrow.fixed_shape_tensor".into());
            metadata.insert(EXTENSION_METADATA.into(), shape);
        } else if self.dtype == Dtype::Bool {
            metadata.insert(EXTENSION_NAME.into(), "arrow.bool8".into());
            metadata.insert(EXTENSION_METADATA.into(), String::new());
        }
        if matches!(self.dtype, Dtype::Bool | Dtype::BFloat16) {
            metadata.insert(DTYPE_KEY.into(), self.dtype.name().into());
        }
        Field::new(&self.name, self.arrow_type(), false).with_metadata(metadata)
    }

    fn from_arrow_field(field: &Field) -> Result<Self> {
        let (element, length) = match field.data_type() {
            DataType::FixedSizeList(item, length) => (item.data_type(), Some(*length)),
            other => (other, None),
        };
        let unsupported = || {
            Error::invalid(format!(
                "column has a type that topics do not hold, they hold {}, and fixed-size lists of these: column={:?} type={}",
                Dtype::ALL.map(Dtype::name).join(", "),
                field.name(),
                field.data_type()
            ))
        };
        let marked = field.metadata().get(DTYPE_KEY).and_then(|name| Dtype::from_name(name));
        let dtype = match marked {
            Some(dtype) if dtype.storage() == *element => dtype,
            Some(_) => return Err(unsupported()),
            None if field.metadata().get(EXTENSION_NAME).is_some_and(|name| name == "arrow.bool8") => Dtype::Bool,
            None => Dtype::of_storage(element).ok_or_else(unsupported)?,
        };
        let Some(length) = length else { return Ok(Self::new(field.name(), dtype, [])) };
        let length = u32::try_from(length).map_err(|_| unsupported())?;
        let shape = field.metadata().get(EXTENSION_METADATA).and_then(|text| {
            let value: serde_json::Value = serde_json::from_str(text).ok()?;
            serde_json::from_value::<Vec<u32>>(value.get("shape")?.clone()).ok()
        });
        let product = |shape: &[u32]| shape.iter().map(|&n| u64::from(n)).product::<u64>();
        match shape {
            Some(shape) if product(&shape) == u64::from(length) => Ok(Self::new(field.name(), dtype, shape)),
            Some(shape) => Err(Error::invalid(format!(
                "shape and list length of a column disagree: column={:?} shape={shape:?} length={length}",
                field.name()
            ))),
            None => Ok(Self::new(field.name(), dtype, [length])),
        }
    }
}

impl fmt::Display for Column {
    /// `name:dtype` or `name:dtype[3x224x224]`, the form that [`Schema::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.dtype)?;
        if !self.shape.is_empty() {
            let shape: Vec<String> = self.shape.iter().map(u32::to_string).collect();
            write!(f, "[{}]", shape.join("x"))?;
        }
        Ok(())
    }
}

/// The columns of a topic, in order. Valid by construction: at least one column, unique non-empty names, rows of 1 byte
/// to [`ROW_BYTES_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Column>", into = "Vec<Column>")]
pub struct Schema {
    columns: Vec<Column>,
}

impl Schema {
    /// Checks and takes the columns.
    pub fn new(columns: Vec<Column>) -> Result<Self> {
        if columns.is_empty() || columns.len() > COLUMNS_MAX {
            return Err(Error::invalid(format!("a schema has 1 to {COLUMNS_MAX} columns: columns={}", columns.len())));
        }
        let mut row_bytes = 0u64;
        for (at, column) in columns.iter().enumerate() {
            if column.name.is_empty() || column.name.len() > 1024 {
                return Err(Error::invalid(format!("a column's name has 1 to 1024 bytes: column={at}")));
            }
            if columns[..at].iter().any(|other| other.name == column.name) {
                return Err(Error::invalid(format!("two columns have the same name: column={:?}", column.name)));
            }
            let elements = column.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::from(d)));
            let bytes = elements.and_then(|n| n.checked_mul(column.dtype.bytes() as u64));
            row_bytes = bytes.and_then(|bytes| row_bytes.checked_add(bytes)).unwrap_or(u64::MAX);
            if elements == Some(0) || column.shape.len() > DIMENSIONS_MAX || row_bytes > ROW_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "a column's shape has at most {DIMENSIONS_MAX} dimensions, none of them 0, and a row at most {ROW_BYTES_MAX} bytes: column={:?} shape={:?}",
                    column.name, column.shape
                )));
            }
        }
        Ok(Self { columns })
    }

    /// Reads `name:dtype[shape], ...`, for example `id:int64, image:uint8[3x224x224]`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut columns = Vec::new();
        for part in text.split(',').map(str::trim) {
            let wrong = |why: &str| {
                Error::invalid(format!("{why}, write columns as 'id:int64, image:uint8[3x224x224]': column={part:?}"))
            };
            let (name, rest) = part.rsplit_once(':').ok_or_else(|| wrong("a column needs a dtype"))?;
            let (dtype, shape) = match rest.split_once('[') {
                None => (rest.trim(), ""),
                Some((dtype, shape)) => {
                    (dtype.trim(), shape.trim_end().strip_suffix(']').ok_or_else(|| wrong("a shape ends with ']'"))?)
                }
            };
            let dtype = Dtype::from_name(dtype).ok_or_else(|| {
                let known = Dtype::ALL.map(Dtype::name);
                let meant = nearest(dtype, known).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default();
                Error::invalid(format!("unknown dtype{meant}, known are {}: dtype={dtype:?}", known.join(", ")))
            })?;
            let shape: Vec<u32> = match shape.trim() {
                "" => Vec::new(),
                shape => shape
                    .split('x')
                    .map(|n| n.trim().parse().map_err(|_| wrong("a shape is numbers with 'x' between them")))
                    .collect::<Result<_>>()?,
            };
            columns.push(Column::new(name.trim(), dtype, shape));
        }
        Self::new(columns)
    }

    /// The columns in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Bytes of one row over all columns.
    pub fn row_bytes(&self) -> usize {
        self.columns.iter().map(Column::row_bytes).sum()
    }

    /// Index of the column of that name, or an error that names what there is.
    pub fn index_of(&self, name: &str) -> Result<usize> {
        self.columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
            let meant =
                nearest(name, names.iter().copied()).map(|n| format!(" (did you mean {n:?}?)")).unwrap_or_default();
            Error::new(
                crate::error::ErrorKind::NotFound,
                format!("no such column{meant}, the topic has {}: column={name:?}", names.join(", ")),
            )
        })
    }

    /// The Arrow schema that segment files carry.
    pub fn to_arrow(&self) -> ArrowSchema {
        ArrowSchema::new(self.columns.iter().map(Column::arrow_field).collect::<Vec<_>>())
    }

    /// Reads an Arrow schema of fixed-shape columns. Nullability is not looked at: nulls are refused value by value.
    pub fn from_arrow(schema: &ArrowSchema) -> Result<Self> {
        Self::new(schema.fields().iter().map(|field| Column::from_arrow_field(field)).collect::<Result<_>>()?)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<String> = self.columns.iter().map(Column::to_string).collect();
        f.write_str(&columns.join(", "))
    }
}

impl TryFrom<Vec<Column>> for Schema {
    type Error = Error;

    fn try_from(columns: Vec<Column>) -> Result<Self> {
        Self::new(columns)
    }
}

impl From<Schema> for Vec<Column> {
    fn from(schema: Schema) -> Self {
        schema.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_dtypes() -> Schema {
        let scalars = Dtype::ALL.map(|dtype| Column::new(format!("s_{dtype}"), dtype, []));
        let shaped = Dtype::ALL.map(|dtype| Column::new(format!("t_{dtype}"), dtype, [2, 3]));
        Schema::new(scalars.into_iter().chain(shaped).collect()).unwrap()
    }

    #[test]
    fn text_and_arrow_forms_round_trip() {
        let schema = all_dtypes();
        assert_eq!(Schema::parse(&schema.to_string()).unwrap(), schema);
        assert_eq!(Schema::from_arrow(&schema.to_arrow()).unwrap(), schema);
        let json = serde_json::to_string(&schema).unwrap();
        assert_eq!(serde_json::from_str::<Schema>(&json).unwrap(), schema);
    }

    #[test]
    fn bad_schemas_are_refused_with_the_reason() {
        for (text, why) in [
            ("", "dtype"),
            ("a", "dtype"),
            ("a:int65", "did you mean int64"),
            ("a:int64[0]", "none of them 0"),
            ("a:int64[2", "ends with"),
            ("a:int64[2,3]", "ends with"),
            ("a:int8, a:int8", "same name"),
            ("a:int64[65536x65536x65536]", "at most"),
            (":int64", "name"),
        ] {
            let error = Schema::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let text = ArrowSchema::new(vec![Field::new("t", DataType::Utf8, false)]);
        assert!(Schema::from_arrow(&text).unwrap_err().to_string().contains("Utf8"));
    }
}
