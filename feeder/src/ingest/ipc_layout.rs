//! Where a column's buffers are in a record batch of Arrow IPC.
//!
//! A batch lists the nodes (arrays) and buffers of all columns, depth first; what a type adds to either list is fixed by
//! the format's specification. Pure bookkeeping: nothing is read here.

use arrow_ipc::{FieldNode, RecordBatch};
use arrow_schema::{DataType, UnionMode};

/// What is wrong with a batch; the caller adds the file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum LayoutError {
    #[error("a record batch lists fewer arrays or buffers than its schema has")]
    Short,
    #[error("a record batch has a buffer outside its body")]
    Outside,
    #[error("a record batch has arrays of other lengths than it says")]
    Lengths,
    #[error("a column type cannot be passed over, {0}")]
    Unknown(String),
}

/// Place of a buffer in the batch's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// A level of lists above the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) validity: Extent,
    pub(super) kind: Kind,
}

/// How a level says where its lists begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All have the same length.
    Fixed(u64),
    /// Offsets of 4 bytes.
    Offsets32(Extent),
    /// Offsets of 8 bytes.
    Offsets64(Extent),
}

/// The buffers of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ColumnLayout {
    pub(super) levels: Vec<Level>,
    pub(super) validity: Extent,
    pub(super) values: Extent,
    /// Values are bits.
    pub(super) bits: bool,
    /// Bytes of one value, unless values are bits; for fixed-size binaries all of them.
    pub(super) value_bytes: u64,
}

/// Walks the two lists of a batch.
pub(super) struct Walk<'a> {
    nodes: Box<dyn Iterator<Item = FieldNode> + 'a>,
    buffers: Box<dyn Iterator<Item = Extent> + 'a>,
    views: Box<dyn Iterator<Item = i64> + 'a>,
    body_bytes: u64,
    /// Unions had a validity buffer before version 5.
    old_unions: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(batch: &RecordBatch<'a>, body_bytes: u64, old_unions: bool) -> Self {
        // Negative values become huge ones, which are outside of every body.
        let extent = |buffer: &arrow_ipc::Buffer| Extent { at: buffer.offset() as u64, bytes: buffer.length() as u64 };
        Self {
            nodes: Box::new(batch.nodes().into_iter().flatten().copied()),
            buffers: Box::new(batch.buffers().into_iter().flatten().map(extent)),
            views: Box::new(batch.variadicBufferCounts().into_iter().flatten()),
            body_bytes,
            old_unions,
        }
    }

    /// The buffers of a column of that type, which must have `rows` rows. Types that columns cannot have are an error.
    pub(super) fn column(&mut self, kind: &DataType, rows: u64) -> Result<ColumnLayout, LayoutError> {
        let mut levels = Vec::new();
        let mut kind = kind;
        let mut first = true;
        let (bits, value_bytes) = loop {
            let length = self.node()?.length();
            // Lists below the first level are counted by the levels above, when offsets are known.
            if std::mem::take(&mut first) && u64::try_from(length) != Ok(rows) {
                return Err(LayoutError::Lengths);
            }
            let validity = match kind {
                DataType::FixedSizeList(..) | DataType::List(_) | DataType::LargeList(_) => self.buffer()?,
                DataType::Boolean => break (true, 0),
                DataType::FixedSizeBinary(length) => break (false, *length as u64),
                other => match other.primitive_width() {
                    Some(bytes) => break (false, bytes as u64),
                    None => return Err(LayoutError::Unknown(other.to_string())),
                },
            };
            let (level, item) = match kind {
                DataType::FixedSizeList(item, length) => (Kind::Fixed(*length as u64), item),
                DataType::List(item) => (Kind::Offsets32(self.buffer()?), item),
                DataType::LargeList(item) => (Kind::Offsets64(self.buffer()?), item),
                other => return Err(LayoutError::Unknown(other.to_string())),
            };
            levels.push(Level { validity, kind: level });
            kind = item.data_type();
        };
        let (validity, values) = (self.buffer()?, self.buffer()?);
        Ok(ColumnLayout { levels, validity, values, bits, value_bytes })
    }

    /// Passes over a column of any type.
    pub(super) fn pass(&mut self, kind: &DataType) -> Result<(), LayoutError> {
        self.node()?;
        let buffers = match kind {
            DataType::Null | DataType::RunEndEncoded(..) => 0,
            DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => 3,
            DataType::ListView(_) | DataType::LargeListView(_) => 3,
            DataType::Utf8View | DataType::BinaryView => {
                let views = self.views.next().and_then(|count| u64::try_from(count).ok());
                2 + views.ok_or(LayoutError::Short)?
            }
            DataType::Union(_, UnionMode::Sparse) => 1 + u64::from(self.old_unions),
            DataType::Union(_, UnionMode::Dense) => 2 + u64::from(self.old_unions),
            DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => 2,
            DataType::Boolean | DataType::FixedSizeBinary(_) | DataType::Dictionary(..) => 2,
            other if other.primitive_width().is_some() => 2,
            other => return Err(LayoutError::Unknown(other.to_string())),
        };
        for _ in 0..buffers {
            self.buffer()?;
        }
        match kind {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                self.pass(item.data_type())
            }
            DataType::ListView(item) | DataType::LargeListView(item) | DataType::Map(item, _) => {
                self.pass(item.data_type())
            }
            DataType::Struct(fields) => fields.iter().try_for_each(|field| self.pass(field.data_type())),
            DataType::Union(fields, _) => fields.iter().try_for_each(|(_, field)| self.pass(field.data_type())),
            DataType::RunEndEncoded(ends, values) => {
                self.pass(ends.data_type())?;
                self.pass(values.data_type())
            }
            _ => Ok(()),
        }
    }

    fn node(&mut self) -> Result<FieldNode, LayoutError> {
        self.nodes.next().ok_or(LayoutError::Short)
    }

    fn buffer(&mut self) -> Result<Extent, LayoutError> {
        let extent = self.buffers.next().ok_or(LayoutError::Short)?;
        match extent.at.checked_add(extent.bytes) {
            Some(end) if end <= self.body_bytes => Ok(extent),
            _ => Err(LayoutError::Outside),
        }
    }
}
