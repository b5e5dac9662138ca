//! One block: the header (an Arrow record-batch message) written and read, and the rows behind it read and verified.
//!
//! ```text
//! header   frame (see [`frame`](super::frame)); record batch with one buffer per column, each on a page border of the
//!          body; custom metadata `forebay.block` (JSON, [`BlockMeta`]) and `forebay.crc32c` (hex, column after column)
//! body     column buffers, each padded to a page border
//! ```
//!
//! A header names its own place (topic, partition, file position), so that bytes of another block, or of a segment file
//! that somebody stored as data, are never taken for one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::{Buffer as IpcBuffer, FieldNode, MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder};
use cursorstore::Incarnation;
use flatbuffers::FlatBufferBuilder;
use serde::{Deserialize, Serialize};

use super::Identity;
use super::frame::{self, PREFIX_BYTES};
use super::layout::{BLOCK_ROWS_MAX, PAGE_BYTES, body_bytes, column_at};
use super::sums::BlockSums;
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::schema::Schema;

/// Most bytes of a block's header: checksums, nodes and buffers of 4096 columns and of the largest row, and all runs.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 20;
/// Most runs of rows with an origin in one block.
pub(super) const RUNS_MAX: usize = 1024;
const BLOCK_KEY: &str = "forebay.block";
const SUMS_KEY: &str = "forebay.crc32c";

/// Where a block stands: its first offset and rows, and the file positions of its header and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// Offset of its first row.
    pub base: u64,
    /// Number of rows.
    pub rows: u32,
    /// File position of the message.
    pub header: u64,
    /// File position of the body; columns stand in it as [`column_at`] says.
    pub body: u64,
}

impl BlockRef {
    /// Offset after its last row.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.rows)
    }

    /// File position after its body.
    pub(super) fn file_end(&self, schema: &Schema) -> u64 {
        self.body + body_bytes(schema, self.rows)
    }
}

/// Consecutive rows of one source inside a block: rows `at..at + rows` of the block are the source's rows from `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    #[serde(with = "hex128")]
    pub(super) source: u128,
    pub(super) first: u64,
    pub(super) at: u32,
    pub(super) rows: u32,
}

impl Run {
    /// The source's row after the last of this run.
    pub(super) fn next(&self) -> u64 {
        self.first.saturating_add(u64::from(self.rows))
    }
}

/// What a block says about itself beside its checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlockMeta {
    pub(super) incarnation: Incarnation,
    pub(super) partition: u32,
    /// File position of the header.
    pub(super) at: u64,
    pub(super) base: u64,
    pub(super) rows: u32,
    /// Blocks of the same commit group that follow: a group is whole or was never written.
    pub(super) left: u32,
    /// Bytes of the file that were known durable when this was written.
    pub(super) synced: u64,
    /// Earliest and latest time of append.
    pub(super) time_ms: (u64, u64),
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) runs: Vec<Run>,
}

/// A header as read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) meta: BlockMeta,
    pub(super) sums: BlockSums,
    pub(super) block: BlockRef,
}

/// Why there is no header at a place.
#[derive(Debug)]
pub(super) enum NoHeader {
    /// The file ends before the header or its body does.
    Short,
    /// These bytes are no header of this place.
    Bad(&'static str),
    /// Reading failed.
    Io(io::Error),
}

/// The header's bytes, up to the page border where the body begins.
pub(super) fn encode(schema: &Schema, meta: &BlockMeta, sums: &BlockSums) -> Result<Vec<u8>> {
    let mut fbb = FlatBufferBuilder::new();
    let rows = i64::from(meta.rows);
    let (mut nodes, mut buffers) = (Vec::new(), Vec::new());
    for (number, column) in schema.columns().iter().enumerate() {
        let at = column_at(schema, meta.rows, number) as i64;
        let validity = IpcBuffer::new(at, 0);
        nodes.push(FieldNode::new(rows, 0));
        buffers.push(validity);
        if !column.shape.is_empty() {
            nodes.push(FieldNode::new(rows * column.elements() as i64, 0));
            buffers.push(validity);
        }
        buffers.push(IpcBuffer::new(at, rows * column.row_bytes() as i64));
    }
    let (nodes, buffers) = (fbb.create_vector(&nodes), fbb.create_vector(&buffers));
    let mut batch = RecordBatchBuilder::new(&mut fbb);
    batch.add_length(rows);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    let batch = batch.finish();
    let about = serde_json::to_string(meta).map_err(|error| Error::invalid("block header").with_source(error))?;
    let pairs = frame::key_values(&mut fbb, &[(BLOCK_KEY, &about), (SUMS_KEY, &sums.to_hex())]);
    let mut message = MessageBuilder::new(&mut fbb);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_header(batch.as_union_value());
    message.add_bodyLength(body_bytes(schema, meta.rows) as i64);
    message.add_custom_metadata(pairs);
    let message = message.finish();
    fbb.finish(message, None);
    let bytes = frame::frame(fbb.finished_data(), 0);
    if bytes.len() > HEADER_BYTES_MAX {
        return Err(Error::invalid(format!("a block's header grows too large: bytes={}", bytes.len())));
    }
    Ok(bytes)
}

/// Reads the header that `bytes` are, which stand at file position `at`.
pub(super) fn decode(schema: &Schema, identity: &Identity, at: u64, bytes: &[u8]) -> Result<Header, &'static str> {
    if !frame::is_sound(bytes) {
        return Err("the header's checksum is wrong");
    }
    let message = arrow_ipc::root_as_message(&bytes[PREFIX_BYTES..]).map_err(|_| "the header is no arrow message")?;
    let batch = message.header_as_record_batch().ok_or("the message is no record batch")?;
    let pairs = message.custom_metadata();
    let about = frame::value_of(pairs, BLOCK_KEY).ok_or("the header says nothing of its block")?;
    let meta: BlockMeta = serde_json::from_str(about).map_err(|_| "the header's words about its block are unknown")?;
    if meta.incarnation != identity.incarnation || meta.partition != identity.partition || meta.at != at {
        return Err("the block belongs elsewhere");
    }
    let counts = meta.rows >= 1 && meta.rows <= BLOCK_ROWS_MAX && meta.base.checked_add(u64::from(meta.rows)).is_some();
    if !counts || batch.length() != i64::from(meta.rows) {
        return Err("the header's numbers of rows do not agree");
    }
    let body = at.checked_add(bytes.len() as u64).filter(|body| body.is_multiple_of(PAGE_BYTES));
    let body = body.ok_or("the body is not on a page border")?;
    if message.bodyLength() as u64 != body_bytes(schema, meta.rows) {
        return Err("the body's length is not that of the topic's schema");
    }
    let sums = frame::value_of(pairs, SUMS_KEY).and_then(|text| BlockSums::from_hex(text, schema, meta.rows));
    let sums = sums.ok_or("the block's checksums are not there")?;
    let block = BlockRef { base: meta.base, rows: meta.rows, header: at, body };
    Ok(Header { meta, sums, block })
}

/// Reads the header at `at` of a file of `len` bytes, whose body must be in the file as well.
pub(super) fn read_header(
    file: &File,
    schema: &Schema,
    identity: &Identity,
    at: u64,
    len: u64,
) -> Result<Header, NoHeader> {
    let room = len.saturating_sub(at);
    if room < PAGE_BYTES {
        return Err(NoHeader::Short);
    }
    let mut bytes = vec![0; PAGE_BYTES as usize];
    read_at(file, &mut bytes, at)?;
    let prefix = bytes.first_chunk().copied().unwrap_or_default();
    let total = frame::frame_bytes(prefix).ok_or(NoHeader::Bad("no message begins here"))?;
    if total > HEADER_BYTES_MAX || !(total as u64).is_multiple_of(PAGE_BYTES) {
        return Err(NoHeader::Bad("the message's length is impossible"));
    }
    if total as u64 > room {
        return Err(NoHeader::Short);
    }
    bytes.resize(total, 0);
    read_at(file, &mut bytes[PAGE_BYTES as usize..], at + PAGE_BYTES)?;
    let header = decode(schema, identity, at, &bytes).map_err(NoHeader::Bad)?;
    if header.block.file_end(schema) > len {
        return Err(NoHeader::Short);
    }
    Ok(header)
}

fn read_at(file: &File, bytes: &mut [u8], at: u64) -> Result<(), NoHeader> {
    file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => NoHeader::Short,
        _ => NoHeader::Io(error),
    })
}

/// Why a block's rows cannot be had.
#[derive(Debug)]
pub(super) enum BadBody {
    /// Column and piece whose checksum is wrong.
    Sum { column: usize, piece: usize },
    /// Reading failed, or the file ends too early.
    Io(io::Error),
}

/// Reads all rows of a block and verifies them.
pub(super) fn read_rows(file: &File, schema: &Arc<Schema>, header: &Header) -> Result<Rows, BadBody> {
    let rows = header.block.rows;
    let columns = (0..schema.columns().len()).map(|number| read_column(file, schema, header, number));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    Rows::new(schema.clone(), rows as usize, columns).map_err(|error| BadBody::Io(io::Error::other(error)))
}

/// Reads one column of a block and verifies it.
pub(super) fn read_column(file: &File, schema: &Schema, header: &Header, number: usize) -> Result<Buffer, BadBody> {
    let rows = header.block.rows;
    let mut buffer = MutableBuffer::from_len_zeroed(schema.columns()[number].row_bytes() * rows as usize);
    let at = header.block.body + column_at(schema, rows, number);
    file.read_exact_at(buffer.as_slice_mut(), at).map_err(BadBody::Io)?;
    match header.sums.first_bad_piece(number, &buffer) {
        None => Ok(buffer.into()),
        Some(piece) => Err(BadBody::Sum { column: number, piece }),
    }
}

/// A 128-bit number as 32 hex digits.
mod hex128 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
