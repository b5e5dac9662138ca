//! The bytes of a log file. Little-endian; sums are CRC32C.
//!
//! ```text
//! 0     magic "forebay\x0a", format u32, bytes of the scope's name u32, number u64, mark u64, generation u64
//! 40    the scope's name, zeros up to 508, sum u32 of what is before
//! 512   hint: durable bytes u64, sum u32 of these and of the header's sum; zeros up to 1024
//! 1024  frames, each
//!         0   bytes of the body u32, mark u64, sum u32 of the frame's sum before (the header's for the first) and these
//!         16  body
//!         ..  sum u32 of all before it in the frame
//! ```
//!
//! Marks count up by one from frame to frame, and a frame's sums cover the sum of the one before: a frame is valid at its
//! own place of its own log only. A body is a kind u8 and then, by kind:
//!
//! ```text
//! 1 acquired   generation u64
//! 2 batch      generation u64, changes
//! 3 facts      changes
//! 4 restored   changes, each with its mark; such frames stand first and share the header's mark
//! change       bits u8 (1: a value, else removed; 2: fact), bytes of the key u16, of the value u32,
//!              in restored ones mark u64; key, value
//! ```

use std::ops::Range;

use super::super::batch::{BATCH_BYTES_MAX, BATCH_CHANGES_MAX};
use super::super::fold::Slot;
use super::super::scope::is_key;

/// Format that this build writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;
/// Where frames begin.
pub(super) const FRAMES_AT: u64 = 1024;
/// Where the hint stands.
pub(super) const HINT_AT: u64 = 512;
/// Bytes of the hint.
pub(super) const HINT_BYTES: usize = 12;
/// Bytes before a frame's body.
pub(super) const PREFIX_BYTES: usize = 16;
/// Bytes of a frame around its body.
pub(super) const AROUND_BYTES: usize = PREFIX_BYTES + 4;
/// Largest body: the largest batch and what is written around its changes.
pub(super) const BODY_BYTES_MAX: usize = BATCH_BYTES_MAX + BATCH_CHANGES_MAX * CHANGE_BYTES_MAX + 16;
/// Most bytes of one change beside key and value.
pub(super) const CHANGE_BYTES_MAX: usize = 15;

const MAGIC: [u8; 8] = *b"forebay\n";
const HEADER_BYTES: usize = HINT_AT as usize;
const SCOPE_AT: usize = 40;
const SUM_AT: usize = HEADER_BYTES - 4;
const PUT: u8 = 1;
const FACT: u8 = 2;

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// What a log file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) scope: String,
    /// How often the scope's log was rewritten before.
    pub(super) number: u64,
    /// The step that the log begins after.
    pub(super) mark: u64,
    pub(super) generation: u64,
}

/// Why the first bytes of a file are no header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    Damaged,
    Newer(u32),
}

impl Header {
    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.scope.len() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.mark.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[SCOPE_AT..SCOPE_AT + self.scope.len()].copy_from_slice(self.scope.as_bytes());
        let sum = crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The sum that the header ends with: what the log is known by in its hint and its first frame.
    pub(super) fn sum(&self) -> u32 {
        crc32c(&self.to_bytes()[..SUM_AT])
    }

    /// The header and its sum.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, u32), BadHeader> {
        let parse = || {
            let sum = u32_at(bytes, SUM_AT).filter(|&sum| sum == crc32c(&bytes[..SUM_AT]))?;
            let scope_bytes = u32_at(bytes, 12)? as usize;
            let scope = bytes.get(SCOPE_AT..SCOPE_AT.checked_add(scope_bytes)?)?;
            let header = Self {
                scope: str::from_utf8(scope).ok()?.into(),
                number: u64_at(bytes, 16)?,
                mark: u64_at(bytes, 24)?,
                generation: u64_at(bytes, 32)?,
            };
            Some((header, sum))
        };
        match u32_at(bytes, 8) {
            Some(format) if bytes[..8] == MAGIC && u32_at(bytes, SUM_AT) == Some(crc32c(&bytes[..SUM_AT])) => {
                match format {
                    FORMAT => parse().ok_or(BadHeader::Damaged),
                    _ => Err(BadHeader::Newer(format)),
                }
            }
            _ => Err(BadHeader::Damaged),
        }
    }
}

/// The bytes that name the durable length of the log whose header has that sum.
pub(super) fn hint_bytes(durable: u64, header_sum: u32) -> [u8; HINT_BYTES] {
    let mut bytes = [0; HINT_BYTES];
    bytes[..8].copy_from_slice(&durable.to_le_bytes());
    let sum = chained(header_sum, &bytes[..8]);
    bytes[8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The durable length, if the hint is whole.
pub(super) fn parse_hint(bytes: &[u8; HINT_BYTES], header_sum: u32) -> Option<u64> {
    let durable = u64_at(bytes, 0)?;
    (hint_bytes(durable, header_sum) == *bytes).then_some(durable)
}

/// Sum of a few bytes and of a sum before.
fn chained(before: u32, bytes: &[u8]) -> u32 {
    let mut both = [0; 16];
    both[..4].copy_from_slice(&before.to_le_bytes());
    both[4..4 + bytes.len()].copy_from_slice(bytes);
    crc32c(&both[..4 + bytes.len()])
}

/// Builds a body; `restored` marks only stand in bodies of that kind.
#[derive(Debug)]
pub(super) struct BodyWriter(Vec<u8>);

impl BodyWriter {
    pub(super) fn acquired(generation: u64) -> Self {
        let mut body = vec![1];
        body.extend_from_slice(&generation.to_le_bytes());
        Self(body)
    }

    pub(super) fn batch(generation: u64) -> Self {
        let mut body = vec![2];
        body.extend_from_slice(&generation.to_le_bytes());
        Self(body)
    }

    pub(super) fn facts() -> Self {
        Self(vec![3])
    }

    pub(super) fn restored() -> Self {
        Self(vec![4])
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn change(&mut self, key: &str, value: Option<&[u8]>, is_fact: bool) {
        self.push(key, value, is_fact, None);
    }

    pub(super) fn restore(&mut self, key: &str, slot: &Slot) {
        self.push(key, Some(&slot.value), slot.is_fact, Some(slot.mark));
    }

    fn push(&mut self, key: &str, value: Option<&[u8]>, is_fact: bool, mark: Option<u64>) {
        let bits = if value.is_some() { PUT } else { 0 } | if is_fact { FACT } else { 0 };
        let value = value.unwrap_or_default();
        self.0.push(bits);
        self.0.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.0.extend_from_slice(&(value.len() as u32).to_le_bytes());
        if let Some(mark) = mark {
            self.0.extend_from_slice(&mark.to_le_bytes());
        }
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(value);
    }

    /// The frame around it, and its sum.
    pub(super) fn frame(self, mark: u64, sum_before: u32) -> (Vec<u8>, u32) {
        let mut frame = Vec::with_capacity(self.0.len() + AROUND_BYTES);
        frame.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        frame.extend_from_slice(&mark.to_le_bytes());
        frame.extend_from_slice(&chained(sum_before, &frame[..12]).to_le_bytes());
        frame.extend_from_slice(&self.0);
        let sum = crc32c(&frame);
        frame.extend_from_slice(&sum.to_le_bytes());
        (frame, sum)
    }
}

/// What stands at the beginning of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A frame: where its body is, its mark, its length with all around it, its sum.
    Frame { body: Range<usize>, mark: u64, bytes: usize, sum: u32 },
    /// The beginning of a frame of so many bytes, or of one whose length is not there either.
    Part { bytes: Option<usize> },
    /// No frame of this log begins here.
    NoFrame,
    /// A frame of so many bytes whose contents are damaged.
    Damaged { bytes: usize },
}

/// Looks for the frame that follows one with `sum_before`.
pub(super) fn find(bytes: &[u8], sum_before: u32) -> Found {
    let Some(prefix) = bytes.get(..PREFIX_BYTES) else { return Found::Part { bytes: None } };
    let (Some(length), Some(mark), Some(sum)) = (u32_at(prefix, 0), u64_at(prefix, 4), u32_at(prefix, 12)) else {
        return Found::NoFrame;
    };
    if chained(sum_before, &prefix[..12]) != sum || length as usize > BODY_BYTES_MAX {
        return Found::NoFrame;
    }
    let total = length as usize + AROUND_BYTES;
    let Some(frame) = bytes.get(..total) else { return Found::Part { bytes: Some(total) } };
    let end = total - 4;
    match u32_at(frame, end) {
        Some(sum) if sum == crc32c(&frame[..end]) => Found::Frame { body: PREFIX_BYTES..end, mark, bytes: total, sum },
        _ => Found::Damaged { bytes: total },
    }
}

/// Whether a frame begins anywhere after the first byte of `bytes`, whose predecessor's sum stands right before it.
pub(super) fn any_follows(bytes: &[u8]) -> bool {
    let is_frame =
        |at: usize| u32_at(bytes, at - 4).is_some_and(|sum| !matches!(find(&bytes[at..], sum), Found::NoFrame));
    (4..bytes.len().saturating_sub(PREFIX_BYTES - 1)).any(is_frame)
}

/// A parsed body.
#[derive(Debug)]
pub(super) enum Body<'a> {
    Acquired { generation: u64 },
    Batch { generation: u64, changes: Vec<Change<'a>> },
    Facts { changes: Vec<Change<'a>> },
    Restored { changes: Vec<Change<'a>> },
}

/// One change of a body; `mark` is 0 but in restored ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) key: &'a str,
    pub(super) value: Option<&'a [u8]>,
    pub(super) is_fact: bool,
    pub(super) mark: u64,
}

/// Parses a body whose sum was right; an error says what this build does not understand.
pub(super) fn parse_body(bytes: &[u8]) -> Result<Body<'_>, String> {
    let (&kind, rest) = bytes.split_first().ok_or("an empty body")?;
    let generation = || u64_at(rest, 0).ok_or("a body without a generation");
    let body = match kind {
        1 if rest.len() == 8 => Body::Acquired { generation: generation()? },
        2 => Body::Batch { generation: generation()?, changes: changes(&rest[8..], false)? },
        3 => Body::Facts { changes: changes(rest, false)? },
        4 => Body::Restored { changes: changes(rest, true)? },
        _ => return Err(format!("a body of unknown kind: kind={kind} bytes={}", bytes.len())),
    };
    Ok(body)
}

fn changes(mut rest: &[u8], restored: bool) -> Result<Vec<Change<'_>>, &'static str> {
    const SHORT: &str = "a body that ends early";
    let mut changes = Vec::new();
    while let Some((&bits, after)) = rest.split_first() {
        let key_bytes = u16::from_le_bytes(*after.first_chunk().ok_or(SHORT)?) as usize;
        let value_bytes = u32_at(after, 2).ok_or(SHORT)? as usize;
        let (mark, at) = if restored { (u64_at(after, 6).ok_or(SHORT)?, 14) } else { (0, 6) };
        let key = after.get(at..at + key_bytes).ok_or(SHORT)?;
        let value = after.get(at + key_bytes..at + key_bytes + value_bytes).ok_or(SHORT)?;
        let key = str::from_utf8(key).ok().filter(|key| is_key(key)).ok_or("a body with a bad key")?;
        if bits & !(PUT | FACT) != 0 || (bits & PUT == 0 && value_bytes > 0) {
            return Err("a body with unknown bits");
        }
        changes.push(Change { key, value: (bits & PUT != 0).then_some(value), is_fact: bits & FACT != 0, mark });
        rest = &after[at + key_bytes + value_bytes..];
    }
    Ok(changes)
}
