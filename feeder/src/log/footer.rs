//! The footer of a sealed segment: what makes it an Arrow file, and the index of its blocks.
//!
//! ```text
//! ... blocks | ff ff ff ff 00 00 00 00 | footer flatbuffer | zeros to 8 | "fbc1" | CRC32C | length (i32) | "ARROW1"
//! ```
//!
//! Custom metadata: `forebay.segment` (JSON: whose file, base, end, time range), `forebay.blocks` (rows of the blocks in
//! order, runs of equal ones as `256x1023`, rows lost to damage as `-256`), `forebay.origins` (`source:next` for every
//! source stored in this partition up to here, so that the last footer knows all of them).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{Block as IpcBlock, FooterBuilder, MetadataVersion};
use cursorstore::Incarnation;
use flatbuffers::{FlatBufferBuilder, VerifierOptions};
use serde::{Deserialize, Serialize};

use super::Identity;
use super::block::{BlockRef, HEADER_BYTES_MAX};
use super::frame::{self, CONTINUATION, MAGIC};
use super::layout::{BLOCK_ROWS_MAX, PAGE_BYTES, body_bytes};
use crate::schema::Schema;

/// Most bytes of a footer: a million blocks and a million sources.
pub(super) const FOOTER_BYTES_MAX: usize = 256 << 20;
/// Bytes from the end that the first read takes; most footers fit.
const FIRST_READ_BYTES: u64 = 64 << 10;
/// Length and magic after the footer.
const TAIL_BYTES: usize = 10;
const SEGMENT_KEY: &str = "forebay.segment";
const BLOCKS_KEY: &str = "forebay.blocks";
const ORIGINS_KEY: &str = "forebay.origins";

/// What a sealed segment knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) base: u64,
    pub(super) end: u64,
    pub(super) time_ms: (u64, u64),
    /// The good blocks; offsets between them that none covers are lost.
    pub(super) blocks: Vec<BlockRef>,
    /// Next row of every source seen in this partition.
    pub(super) origins: Vec<(u128, u64)>,
}

#[derive(Serialize, Deserialize)]
struct SegmentMeta {
    format: u32,
    incarnation: Incarnation,
    partition: u32,
    base: u64,
    end: u64,
    time_ms: (u64, u64),
}

/// Why a file has no footer to use.
#[derive(Debug)]
pub(super) enum NoFooter {
    /// What is there is damaged.
    Bad(&'static str),
    /// The footer is whole, and not one that this build may go by.
    Foreign(&'static str),
    Io(io::Error),
}

impl From<&'static str> for NoFooter {
    fn from(why: &'static str) -> Self {
        Self::Bad(why)
    }
}

/// The bytes from the end of the last block to the end of the file.
pub(super) fn encode(schema: &Schema, identity: &Identity, footer: &Footer) -> Result<Vec<u8>, &'static str> {
    let mut fbb = FlatBufferBuilder::new();
    let blocks: Vec<IpcBlock> = footer
        .blocks
        .iter()
        .map(|block| {
            let header_bytes = (block.body - block.header) as i32;
            IpcBlock::new(block.header as i64, header_bytes, body_bytes(schema, block.rows) as i64)
        })
        .collect();
    let batches = fbb.create_vector(&blocks);
    let dictionaries = fbb.create_vector::<IpcBlock>(&[]);
    let fields = IpcSchemaEncoder::new().schema_to_fb_offset(&mut fbb, &schema.to_arrow());
    let about = SegmentMeta {
        format: super::FORMAT,
        incarnation: identity.incarnation,
        partition: identity.partition,
        base: footer.base,
        end: footer.end,
        time_ms: footer.time_ms,
    };
    let about = serde_json::to_string(&about).map_err(|_| "the segment's facts do not serialise")?;
    let rows = write_rows(footer);
    let origins: Vec<String> = footer.origins.iter().map(|(source, next)| format!("{source:032x}:{next}")).collect();
    let pairs = [(SEGMENT_KEY, about.as_str()), (BLOCKS_KEY, &rows), (ORIGINS_KEY, &origins.join(","))];
    let pairs = frame::key_values(&mut fbb, &pairs);
    let mut table = FooterBuilder::new(&mut fbb);
    table.add_version(MetadataVersion::V5);
    table.add_schema(fields);
    table.add_dictionaries(dictionaries);
    table.add_recordBatches(batches);
    table.add_custom_metadata(pairs);
    let table = table.finish();
    fbb.finish(table, None);
    let mut bytes = fbb.finished_data().to_vec();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    frame::close(&mut bytes);
    if bytes.len() > FOOTER_BYTES_MAX {
        return Err("the footer grows too large");
    }
    let mut all = [CONTINUATION, [0; 4]].concat();
    let length = bytes.len() as i32;
    all.extend(bytes);
    all.extend_from_slice(&length.to_le_bytes());
    all.extend_from_slice(&MAGIC[..6]);
    Ok(all)
}

/// Reads the footer of a sealed segment with one or two reads.
pub(super) fn read(file: &File, schema: &Schema, identity: &Identity, base: u64) -> Result<Footer, NoFooter> {
    let len = file.metadata().map_err(NoFooter::Io)?.len();
    let mut start = len.saturating_sub(FIRST_READ_BYTES);
    let mut bytes = vec![0; (len - start) as usize];
    file.read_exact_at(&mut bytes, start).map_err(NoFooter::Io)?;
    let length = footer_bytes(&bytes).map_err(NoFooter::Bad)?;
    let wanted = (length + TAIL_BYTES) as u64;
    if wanted > len {
        return Err(NoFooter::Bad("the footer's length is impossible"));
    }
    if wanted > len - start {
        start = len - wanted;
        bytes = vec![0; wanted as usize];
        file.read_exact_at(&mut bytes, start).map_err(NoFooter::Io)?;
    }
    let at = len - wanted;
    let flat = &bytes[(at - start) as usize..][..length];
    decode(schema, identity, base, at, flat)
}

/// Length of the footer, from the last bytes of a file.
fn footer_bytes(end: &[u8]) -> Result<usize, &'static str> {
    let tail: &[u8; TAIL_BYTES] = end.last_chunk().ok_or("the file is too short")?;
    if tail[4..] != MAGIC[..6] {
        return Err("the file does not end as a sealed segment");
    }
    let length = i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    match usize::try_from(length) {
        Ok(length) if length <= FOOTER_BYTES_MAX => Ok(length),
        _ => Err("the footer's length is impossible"),
    }
}

/// Reads the footer that `bytes` are, which stand at file position `at`.
fn decode(schema: &Schema, identity: &Identity, base: u64, at: u64, bytes: &[u8]) -> Result<Footer, NoFooter> {
    if !frame::is_sound(bytes) {
        return Err(NoFooter::Bad("the footer's checksum is wrong"));
    }
    let options = VerifierOptions { max_tables: 4_000_000, ..VerifierOptions::default() };
    let table = arrow_ipc::root_as_footer_with_opts(&options, bytes).map_err(|_| "the footer is no arrow footer")?;
    let pairs = table.custom_metadata();
    let text = |key| frame::value_of(pairs, key).ok_or("the footer says too little");
    let about: SegmentMeta = serde_json::from_str(text(SEGMENT_KEY)?).map_err(|_| "the footer's words are unknown")?;
    if about.format > super::FORMAT {
        return Err(NoFooter::Foreign("the segment was written by a newer version"));
    }
    if about.incarnation != identity.incarnation || about.partition != identity.partition || about.base != base {
        return Err(NoFooter::Foreign("the segment belongs elsewhere"));
    }
    let places = table.recordBatches().ok_or("the footer names no blocks")?;
    let blocks = read_blocks(schema, &about, text(BLOCKS_KEY)?, places.iter(), at)?;
    let origins = read_origins(text(ORIGINS_KEY)?).ok_or("the footer's sources are unreadable")?;
    Ok(Footer { base, end: about.end, time_ms: about.time_ms, blocks, origins })
}

/// `256x3,17,-256`: three blocks of 256 rows, one of 17, 256 rows that are lost.
fn write_rows(footer: &Footer) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut run = (0u32, 0u32);
    let flush = |run: &mut (u32, u32), parts: &mut Vec<String>| {
        match *run {
            (_, 0) => {}
            (rows, 1) => parts.push(rows.to_string()),
            (rows, times) => parts.push(format!("{rows}x{times}")),
        }
        run.1 = 0;
    };
    let mut at = footer.base;
    for block in &footer.blocks {
        if block.base > at {
            flush(&mut run, &mut parts);
            parts.push(format!("-{}", block.base - at));
        }
        if run.0 != block.rows {
            flush(&mut run, &mut parts);
        }
        run = (block.rows, run.1 + 1);
        at = block.end();
    }
    flush(&mut run, &mut parts);
    if footer.end > at {
        parts.push(format!("-{}", footer.end - at));
    }
    parts.join(",")
}

fn read_blocks<'a>(
    schema: &Schema,
    about: &SegmentMeta,
    rows: &str,
    mut places: impl ExactSizeIterator<Item = &'a IpcBlock>,
    at: u64,
) -> Result<Vec<BlockRef>, &'static str> {
    const WRONG: &str = "the footer's blocks do not add up";
    let (mut blocks, mut base, mut file_end) = (Vec::with_capacity(places.len()), about.base, 0u64);
    for part in rows.split(',').filter(|part| !part.is_empty()) {
        if let Some(lost) = part.strip_prefix('-') {
            base = lost.parse().ok().and_then(|lost: u64| base.checked_add(lost)).ok_or(WRONG)?;
            continue;
        }
        let (rows, times) = part.split_once('x').unwrap_or((part, "1"));
        let rows: u32 = rows.parse().ok().filter(|rows| (1..=BLOCK_ROWS_MAX).contains(rows)).ok_or(WRONG)?;
        for _ in 0..times.parse::<u32>().map_err(|_| WRONG)? {
            let place = places.next().ok_or(WRONG)?;
            let header_bytes = place.metaDataLength();
            let header = u64::try_from(place.offset()).map_err(|_| WRONG)?;
            let fine = header >= file_end.max(PAGE_BYTES)
                && header.is_multiple_of(PAGE_BYTES)
                && (PAGE_BYTES as i32..=HEADER_BYTES_MAX as i32).contains(&header_bytes)
                && header_bytes % PAGE_BYTES as i32 == 0
                && place.bodyLength() as u64 == body_bytes(schema, rows);
            let block = BlockRef { base, rows, header, body: header.saturating_add(header_bytes as u64) };
            if !fine || block.body.saturating_add(body_bytes(schema, rows)) > at {
                return Err(WRONG);
            }
            base = base.checked_add(u64::from(rows)).ok_or(WRONG)?;
            file_end = block.file_end(schema);
            blocks.push(block);
        }
    }
    if base != about.end || places.next().is_some() { Err(WRONG) } else { Ok(blocks) }
}

fn read_origins(text: &str) -> Option<Vec<(u128, u64)>> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    let parts = parts.map(|part| {
        let (source, next) = part.split_once(':')?;
        Some((u128::from_str_radix(source, 16).ok()?, next.parse().ok()?))
    });
    parts.collect()
}
