//! Encapsulated Arrow messages with a checksum of their own.
//!
//! ```text
//! ff ff ff ff | length (i32) | flatbuffer | zeros | "fbc1" | CRC32C of all before it (u32)
//! ```
//!
//! The length counts everything after it, so Arrow readers take zeros and checksum for padding of the metadata. What a
//! frame says is looked at only after its checksum was found right, so damaged bytes are never parsed. The preamble of a
//! segment file (magic and schema message) is such a frame too.

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{KeyValue, KeyValueArgs, MessageBuilder, MessageHeader, MetadataVersion};
use cursorstore::Incarnation;
use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, Vector, WIPOffset};
use serde::{Deserialize, Serialize};

use super::Identity;
use super::layout::PAGE_BYTES;
use super::sums::crc32c;
use crate::schema::Schema;

/// First bytes of an Arrow file; the last six are the same without the zeros.
pub(super) const MAGIC: &[u8; 8] = b"ARROW1\0\0";
/// Marks the beginning of a message.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];
/// Marker and length before the flatbuffer.
pub(super) const PREFIX_BYTES: usize = 8;
/// Mark and checksum at a frame's end.
pub(super) const TRAILER_BYTES: usize = 8;
/// Most bytes of a segment's preamble: 4096 columns with names of 1 KiB.
pub(super) const PREAMBLE_BYTES_MAX: usize = 32 << 20;
const FILE_KEY: &str = "forebay.file";
const TRAILER_MARK: &[u8; 4] = b"fbc1";

#[derive(Serialize, Deserialize)]
struct FileMeta {
    format: u32,
    incarnation: Incarnation,
    partition: u32,
    base: u64,
}

/// The frame of a message that begins on a page border after `before` bytes, padded up to the next border.
pub(super) fn frame(flat: &[u8], before: usize) -> Vec<u8> {
    let total = (before + PREFIX_BYTES + flat.len() + TRAILER_BYTES).next_multiple_of(PAGE_BYTES as usize) - before;
    let mut bytes = Vec::with_capacity(total);
    bytes.extend_from_slice(&CONTINUATION);
    bytes.extend_from_slice(&((total - PREFIX_BYTES) as i32).to_le_bytes());
    bytes.extend_from_slice(flat);
    bytes.resize(total - TRAILER_BYTES, 0);
    close(&mut bytes);
    bytes
}

/// Adds the trailer.
pub(super) fn close(bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(TRAILER_MARK);
    let sum = crc32c(bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
}

/// Whether `bytes` end with a trailer that is right.
pub(super) fn is_sound(bytes: &[u8]) -> bool {
    let Some((rest, sum)) = bytes.split_last_chunk::<4>() else { return false };
    rest.ends_with(TRAILER_MARK) && crc32c(rest) == u32::from_le_bytes(*sum)
}

/// The bytes of a whole frame that begins with these eight, if they can begin one.
pub(super) fn frame_bytes(prefix: [u8; PREFIX_BYTES]) -> Option<usize> {
    let (mark, length) = prefix.split_first_chunk::<4>()?;
    let length = i32::from_le_bytes(length.try_into().ok()?);
    let total = usize::try_from(length).ok()?.checked_add(PREFIX_BYTES)?;
    (*mark == CONTINUATION && total >= PREFIX_BYTES + TRAILER_BYTES).then_some(total)
}

/// Key-value pairs for the custom metadata of a message or footer.
pub(super) fn key_values<'a>(
    fbb: &mut FlatBufferBuilder<'a>,
    pairs: &[(&str, &str)],
) -> WIPOffset<Vector<'a, ForwardsUOffset<KeyValue<'a>>>> {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| {
            let args = KeyValueArgs { key: Some(fbb.create_string(key)), value: Some(fbb.create_string(value)) };
            KeyValue::create(fbb, &args)
        })
        .collect();
    fbb.create_vector(&pairs)
}

/// The value under `key` in custom metadata.
pub(super) fn value_of<'a>(pairs: Option<Vector<'a, ForwardsUOffset<KeyValue<'a>>>>, key: &str) -> Option<&'a str> {
    pairs?.iter().find(|pair| pair.key() == Some(key))?.value()
}

/// The first bytes of a segment file: magic and schema, up to a page border. The schema message's metadata say whose
/// file it is.
pub(super) fn preamble(schema: &Schema, identity: &Identity, base: u64) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let fields = IpcSchemaEncoder::new().schema_to_fb_offset(&mut fbb, &schema.to_arrow());
    let about =
        FileMeta { format: super::FORMAT, incarnation: identity.incarnation, partition: identity.partition, base };
    let about = serde_json::to_string(&about).unwrap_or_default();
    let pairs = key_values(&mut fbb, &[(FILE_KEY, &about)]);
    let mut message = MessageBuilder::new(&mut fbb);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::Schema);
    message.add_header(fields.as_union_value());
    message.add_bodyLength(0);
    message.add_custom_metadata(pairs);
    let message = message.finish();
    fbb.finish(message, None);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(frame(fbb.finished_data(), MAGIC.len()));
    bytes
}

/// Whose file a preamble's frame says this is; `None` if the frame is damaged.
pub(super) fn preamble_owner(frame: &[u8]) -> Option<(Identity, u64)> {
    if !is_sound(frame) {
        return None;
    }
    let message = arrow_ipc::root_as_message(frame.get(PREFIX_BYTES..)?).ok()?;
    let about: FileMeta = serde_json::from_str(value_of(message.custom_metadata(), FILE_KEY)?).ok()?;
    Some((Identity { incarnation: about.incarnation, partition: about.partition }, about.base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_ends_on_a_border_and_notices_every_flipped_bit() {
        for length in [0, 1, 4071, 4072, 4073, 9000] {
            for before in [0, 8] {
                let bytes = frame(&vec![5; length], before);
                assert_eq!((before + bytes.len()) % PAGE_BYTES as usize, 0);
                assert_eq!(frame_bytes(bytes[..8].try_into().unwrap()), Some(bytes.len()));
                assert!(is_sound(&bytes));
            }
        }
        let mut bytes = frame(b"abc", 0);
        for at in 0..bytes.len() {
            bytes[at] ^= 0x10;
            assert!(!is_sound(&bytes), "at={at}");
            bytes[at] ^= 0x10;
        }
        assert!(!is_sound(&[]) && !is_sound(b"fbc1"));
    }
}
