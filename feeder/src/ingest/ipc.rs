//! Arrow IPC, files and streams.
//!
//! The format's buffers are read directly, column by column and in parts: a batch may be larger than memory, and only
//! the columns asked for are read. Messages are verified (flatbuffers) and every place in them is checked against the
//! file. A stream without its end mark is refused: nothing else tells it from a truncated one.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_buffer::Buffer;
use arrow_ipc::{CompressionType, Endianness, Message, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{FieldRef, Schema as ArrowSchema};

use super::arrow_type::{Place, found};
use super::choose::{Found, Take, choose};
use super::ipc_buffers::{BatchReader, OpenColumn};
use super::ipc_layout::{ColumnLayout, Extent, LayoutError, Walk};
use super::raw::Input;
use super::{Decoder, Given, check_forward};
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::schema::Schema;

const MAGIC: &[u8] = b"ARROW1";
/// Magic and padding in front of the first message of a file.
const FILE_HEAD_BYTES: u64 = 8;
/// Length of the footer and magic at the end of a file.
const FILE_TAIL_BYTES: u64 = 10;
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Reads an Arrow IPC file or stream.
pub(super) struct IpcDecoder {
    input: Input,
    fields: Vec<FieldRef>,
    batches: Vec<Batch>,
    schema: Arc<Schema>,
    takes: Vec<Take>,
    rows: u64,
    at: u64,
    /// The batch that is being read.
    open: Option<OpenBatch>,
    /// Index of the batch after it, and its first row.
    next: (usize, u64),
}

/// A record batch's places in the file.
#[derive(Clone, Copy, Debug)]
struct Batch {
    /// The message, without its prefix.
    meta: Extent,
    body: Extent,
    rows: u64,
}

struct OpenBatch {
    left: u64,
    columns: Vec<OpenColumn>,
}

impl IpcDecoder {
    pub(super) fn open_file(path: &Path, file: File, given: &Given) -> Result<Self> {
        let input = Input::new(path, file)?;
        let unfinished = || {
            input
                .corrupt("the arrow file has no footer", input.bytes())
                .with_hint("the file is truncated or still being written: write or copy it again")
        };
        let tail_at = input.bytes().checked_sub(FILE_TAIL_BYTES).ok_or_else(unfinished)?;
        let tail = input.read(tail_at, FILE_TAIL_BYTES as usize)?;
        if !tail.ends_with(MAGIC) {
            return Err(unfinished());
        }
        let footer_bytes = i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
        let footer_bytes = u64::try_from(footer_bytes).map_err(|_| unfinished())?;
        let footer_at = tail_at.checked_sub(footer_bytes).filter(|&at| at >= FILE_HEAD_BYTES).ok_or_else(unfinished)?;
        let footer = input.read(footer_at, footer_bytes as usize)?;
        let damaged = || input.corrupt("the arrow file's footer is damaged", footer_at);
        let footer = root_as_footer(&footer).map_err(|error| damaged().with_source(error))?;
        let schema = arrow_schema(&input, footer.schema().ok_or_else(damaged)?, footer.version())?;
        let mut batches = Vec::new();
        let mut end = FILE_HEAD_BYTES;
        for block in footer.recordBatches().into_iter().flatten() {
            let place = (
                u64::try_from(block.offset()),
                u64::try_from(block.metaDataLength()),
                u64::try_from(block.bodyLength()),
            );
            let (Ok(at), Ok(meta_bytes), Ok(body_bytes)) = place else { return Err(damaged()) };
            let body_at = at.checked_add(meta_bytes).ok_or_else(damaged)?;
            let block_end = body_at.checked_add(body_bytes).filter(|&end| end <= footer_at).ok_or_else(damaged)?;
            if at < end {
                return Err(damaged());
            }
            end = block_end;
            let meta = input.read(at, meta_bytes as usize)?;
            let prefix = if meta.starts_with(&CONTINUATION) { 8 } else { 4 };
            let meta = Extent { at: at + prefix, bytes: meta_bytes.checked_sub(prefix).ok_or_else(damaged)? };
            batches.push(Batch::of(&input, meta, Extent { at: body_at, bytes: body_bytes })?.ok_or_else(damaged)?);
        }
        Self::new(input, schema, batches, given)
    }

    pub(super) fn open_stream(path: &Path, file: File, given: &Given) -> Result<Self> {
        let input = Input::new(path, file)?;
        let mut schema = None;
        let mut batches = Vec::new();
        let mut at = 0;
        while let Some(meta) = next_message(&input, at)? {
            let bytes = input.read(meta.at, meta.bytes as usize)?;
            let message = message(&input, &bytes, meta.at)?;
            let body_bytes = u64::try_from(message.bodyLength())
                .map_err(|_| input.corrupt("an arrow message has a negative length", meta.at))?;
            let body = Extent { at: meta.at + meta.bytes, bytes: body_bytes };
            at = body
                .at
                .checked_add(body.bytes)
                .filter(|&end| end <= input.bytes())
                .ok_or_else(|| input.corrupt("the file ends inside an arrow message", body.at))?;
            match (message.header_as_schema(), &schema) {
                (Some(fields), None) => schema = Some(arrow_schema(&input, fields, message.version())?),
                (None, Some(_)) => batches.extend(Batch::of(&input, meta, body)?),
                _ => return Err(input.corrupt("an arrow stream has one schema, at its begin", meta.at)),
            }
        }
        let schema = schema.ok_or_else(|| input.corrupt("the arrow stream has no schema", 0))?;
        Self::new(input, schema, batches, given)
    }

    fn new(input: Input, arrow: ArrowSchema, batches: Vec<Batch>, given: &Given) -> Result<Self> {
        let columns: Vec<Found> = arrow.fields().iter().map(|field| found(field)).collect();
        let (schema, takes) = choose(input.path(), &columns, given)?;
        let rows = batches.iter().try_fold(0u64, |rows, batch| rows.checked_add(batch.rows));
        let rows = rows.ok_or_else(|| input.corrupt("the arrow batches have too many rows", 0))?;
        let fields = arrow.fields().iter().cloned().collect();
        let decoder = Self { input, fields, batches, schema, takes, rows, at: 0, open: None, next: (0, 0) };
        // Every batch is looked at now: what is wrong with a place in the file is known before anything is read.
        decoder.batches.iter().try_for_each(|batch| decoder.layout(batch).map(drop))?;
        Ok(decoder)
    }

    /// The buffers of the chosen columns in a batch, and its codec.
    fn layout(&self, batch: &Batch) -> Result<(Vec<ColumnLayout>, CompressionType, bool)> {
        let bytes = self.input.read(batch.meta.at, batch.meta.bytes as usize)?;
        let message = message(&self.input, &bytes, batch.meta.at)?;
        let damaged = |error: LayoutError| self.input.corrupt(&error.to_string(), batch.meta.at);
        let record = message.header_as_record_batch().ok_or_else(|| damaged(LayoutError::Short))?;
        let mut walk = Walk::new(&record, batch.body.bytes, message.version() < MetadataVersion::V5);
        let mut found = vec![None; self.takes.len()];
        for (at, field) in self.fields.iter().enumerate() {
            match self.takes.iter().position(|take| take.from == at) {
                Some(take) => found[take] = Some(walk.column(field.data_type(), batch.rows).map_err(damaged)?),
                None => walk.pass(field.data_type()).map_err(damaged)?,
            }
        }
        let codec = record.compression().map(|compression| compression.codec());
        let columns = found.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| damaged(LayoutError::Short))?;
        Ok((columns, codec.unwrap_or_default(), codec.is_some()))
    }

    /// Opens the batch of row `self.at`.
    fn open_batch(&mut self) -> Result<()> {
        let (mut index, mut first) = self.next;
        while first + self.batches[index].rows <= self.at {
            first += self.batches[index].rows;
            index += 1;
        }
        let batch = self.batches[index];
        let (layouts, codec, packed) = self.layout(&batch)?;
        let reader = BatchReader { input: &self.input, body: batch.body, codec: packed.then_some(codec) };
        let columns = self.takes.iter().zip(self.schema.columns()).zip(&layouts).map(|((take, column), layout)| {
            let place = Place { path: self.input.path(), column, row: first };
            reader.open_column(layout, take, column, &place, batch.rows)
        });
        let mut open = OpenBatch { left: batch.rows, columns: columns.collect::<Result<_>>()? };
        open.skip(self.at - first)?;
        self.open = Some(open);
        self.next = (index + 1, first + batch.rows);
        Ok(())
    }
}

impl Decoder for IpcDecoder {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn rows_total(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn next(&mut self, rows_max: usize) -> Result<Option<Rows>> {
        if self.at == self.rows {
            return Ok(None);
        }
        if self.open.as_ref().is_none_or(|open| open.left == 0) {
            self.open_batch()?;
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        let count = usize::try_from(open.left).unwrap_or(usize::MAX).min(rows_max.max(1));
        let columns = open.columns.iter_mut().zip(&self.takes);
        let columns = columns.map(|(column, take)| Ok(Buffer::from_vec(take.cast.apply(column.next(count)?))));
        let columns = columns.collect::<Result<_>>()?;
        open.left -= count as u64;
        self.at += count as u64;
        Rows::new(self.schema.clone(), count, columns).map(Some)
    }

    fn skip_to(&mut self, row: u64) -> Result<()> {
        check_forward(self.input.path(), self.at, row, self.rows)?;
        match &mut self.open {
            Some(open) if row - self.at <= open.left => open.skip(row - self.at)?,
            _ => self.open = None,
        }
        self.at = row;
        Ok(())
    }
}

impl OpenBatch {
    fn skip(&mut self, rows: u64) -> Result<()> {
        self.left -= rows;
        self.columns.iter_mut().try_for_each(|column| column.skip(rows * column.row_values))
    }
}

impl Batch {
    /// The batch that a message is, or `None` for a dictionary.
    fn of(input: &Input, meta: Extent, body: Extent) -> Result<Option<Self>> {
        let bytes = input.read(meta.at, meta.bytes as usize)?;
        let message = message(input, &bytes, meta.at)?;
        match (message.header_as_record_batch(), message.header_as_dictionary_batch()) {
            (Some(record), _) => {
                let rows = u64::try_from(record.length())
                    .map_err(|_| input.corrupt("an arrow batch has a negative number of rows", meta.at))?;
                Ok(Some(Self { meta, body, rows }))
            }
            (None, Some(_)) => Ok(None),
            (None, None) => Err(input.corrupt("an arrow message is neither batch nor dictionary", meta.at)),
        }
    }
}

/// The message that starts at `at`, without its prefix; `None` at the end mark.
fn next_message(input: &Input, at: u64) -> Result<Option<Extent>> {
    let unfinished = || {
        input
            .corrupt("the arrow stream has no end mark", at)
            .with_hint("the file is truncated, or its writer was not closed: write or copy it again")
    };
    let head = input.read(at, 4).map_err(|_| unfinished())?;
    let (length, meta_at) = match head == CONTINUATION {
        true => (input.read(at + 4, 4).map_err(|_| unfinished())?, at + 8),
        false => (head, at + 4),
    };
    match i32::from_le_bytes([length[0], length[1], length[2], length[3]]) {
        0 if meta_at == input.bytes() => Ok(None),
        0 => Err(input.corrupt("more follows the end of the arrow stream", meta_at)),
        length => match u64::try_from(length) {
            Ok(bytes) if meta_at + bytes <= input.bytes() => Ok(Some(Extent { at: meta_at, bytes })),
            Ok(_) => Err(unfinished()),
            Err(_) => Err(input.corrupt("an arrow message has a negative length", at)),
        },
    }
}

fn message<'a>(input: &Input, bytes: &'a [u8], at: u64) -> Result<Message<'a>> {
    root_as_message(bytes).map_err(|error| input.corrupt("an arrow message is damaged", at).with_source(error))
}

fn arrow_schema(input: &Input, schema: arrow_ipc::Schema<'_>, version: MetadataVersion) -> Result<ArrowSchema> {
    let refuse = |what: &str| Err(Error::invalid(format!("{what}: path={}", input.path().display())));
    if version < MetadataVersion::V4 {
        return refuse("arrow files older than version 0.8 are not read");
    }
    if schema.endianness() != Endianness::Little {
        return refuse("big-endian arrow files are not read");
    }
    arrow_ipc::convert::try_fb_to_schema(schema)
        .map_err(|error| input.corrupt("the arrow schema is damaged", 0).with_source(error))
}
