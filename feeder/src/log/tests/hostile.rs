//! Bytes that nobody of us wrote: everything that is read from disk, with anything in it.

use std::sync::Arc;

use proptest::prelude::*;

use super::support::*;
use crate::log::block::{self, BlockMeta};
use crate::log::facts::TopicFacts;
use crate::log::files::Hint;
use crate::log::layout::pieces;
use crate::log::sums::BlockSums;
use crate::log::{Fsync, Identity, TopicOptions, crc32c};
use crate::schema::Schema;

/// Looks at the topic in every way; any answer is good, as long as there is one.
fn exercise(place: &Place) {
    let topic = place.fresh();
    if let Ok(view) = topic.view() {
        for segment in view.partitions[0].segments() {
            if let Ok(blocks) = segment.blocks() {
                blocks.iter().take(8).for_each(|block| drop(segment.read(&block)));
            }
            let _ = segment.block_of(segment.base);
            let _ = segment.damage();
        }
    }
    let _ = topic.verify(&mut |_| {});
    let _ = topic.retain(&crate::log::Retention { bytes: Some(0), age_ms: Some(1) }, u64::MAX, &|_| Ok(Some(0)));
    if let Ok(writer) = topic.writer(0, policy(Fsync::Never)) {
        let _ = writer.append(&rows(topic.schema(), 0..3));
        let _ = writer.seal();
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let magic = prop_oneof![Just(Vec::new()), Just(b"ARROW1\0\0\xff\xff\xff\xff\x10\0\0\0".to_vec())];
    let end = prop_oneof![
        Just(Vec::new()),
        Just(b"\x40\0\0\0ARROW1".to_vec()),
        any::<i32>().prop_map(|length| [&length.to_le_bytes()[..], b"ARROW1"].concat()),
    ];
    (magic, prop::collection::vec(any::<u8>(), 0..9000), end).prop_map(|parts| [parts.0, parts.1, parts.2].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_bytes_may_stand_in_the_files(
        sealed in prop::option::of(bytes()), open in bytes(), hint in bytes(), guard in bytes(), base in 0u64..3,
    ) {
        let place = Place::quick("id:int64", &TopicOptions::default());
        if let Some(sealed) = sealed {
            std::fs::write(place.partition().join("00000000000000000000.arrow"), sealed).unwrap();
        }
        std::fs::write(place.partition().join(format!("{base:020}.open")), open).unwrap();
        std::fs::write(Hint::path(&place.partition()), hint).unwrap();
        std::fs::write(place.topic.dir().join("guards/x.guard"), guard).unwrap();
        exercise(&place);
    }

    #[test]
    fn any_bytes_may_be_a_topic_file(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(TopicFacts::from_json(&bytes, "topic.json".as_ref()).is_err());
    }
}

/// A topic of three blocks, its segment's bytes, and where the frames in it are.
fn segment(sealed: bool) -> (Place, std::path::PathBuf, Vec<u8>) {
    let place = Place::quick("id:int64", &small(16, u64::MAX));
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    writer.append_from(crate::log::Origin { source: 9, first: 0 }, &rows(place.topic.schema(), 0..6)).unwrap();
    if sealed {
        writer.seal().unwrap();
    }
    let name = if sealed { "00000000000000000000.arrow" } else { "00000000000000000000.open" };
    let path = place.partition().join(name);
    let bytes = std::fs::read(&path).unwrap();
    (place, path, bytes)
}

/// Makes the checksum at a frame's end right again.
fn close(frame: &mut [u8]) {
    let at = frame.len() - 4;
    let sum = crc32c(&frame[..at]);
    frame[at..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn frames_with_right_checksums_may_say_anything() {
    for sealed in [false, true] {
        let (place, path, bytes) = segment(sealed);
        // The first header, or the footer without its length and magic.
        let frame = match sealed {
            false => 4096..8192,
            true => {
                let length = i32::from_le_bytes(bytes[bytes.len() - 10..bytes.len() - 6].try_into().unwrap());
                bytes.len() - 10 - length as usize..bytes.len() - 10
            }
        };
        for case in 0..250u64 {
            let mut changed = bytes.clone();
            for change in 0..1 + case % 4 {
                let at = frame.start + (mix(case * 8 + change) % (frame.len().min(1800) as u64 - 8)) as usize;
                changed[at] = (mix(case * 8 + change) >> 32) as u8;
            }
            close(&mut changed[frame.clone()]);
            std::fs::write(&path, changed).unwrap();
            exercise(&place);
            clear(&place);
        }
    }
}

/// Takes away what `exercise` may have written.
fn clear(place: &Place) {
    for entry in std::fs::read_dir(place.partition()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

#[test]
fn any_changed_byte_of_a_topic_file_is_noticed_or_means_the_same() {
    let place = Place::quick("id:int64, x:float32[2x3]", &TopicOptions::default());
    let path = place.topic.dir().join("topic.json");
    let bytes = std::fs::read(&path).unwrap();
    let wanted = TopicFacts::from_json(&bytes, &path).unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            if let Ok(facts) = TopicFacts::from_json(&changed, &path) {
                assert_eq!(facts, wanted, "at={at} bit={bit}");
            }
        }
    }
}

#[test]
fn the_widest_headers_fit_their_limit() {
    let columns = (0..crate::schema::COLUMNS_MAX)
        .map(|at| crate::schema::Column::new(format!("c{at}"), crate::Dtype::UInt8, [2]));
    let wide = Arc::new(Schema::new(columns.collect()).unwrap());
    let large = Arc::new(Schema::parse("x:uint8[1073741824]").unwrap());
    let identity = Identity { incarnation: cursorstore::Incarnation(u128::MAX), partition: 9 };
    for (schema, rows) in [(wide, 64u32), (large, 1)] {
        let meta = BlockMeta {
            incarnation: identity.incarnation,
            partition: 9,
            at: 1 << 60,
            base: 1 << 62,
            rows,
            left: u32::MAX,
            synced: 1 << 60,
            time_ms: (u64::MAX, u64::MAX),
            runs: (0..block::RUNS_MAX as u32)
                .map(|at| block::Run { source: u128::MAX, first: u64::MAX / 2, at: at + (1 << 19), rows: 1 << 20 })
                .collect(),
        };
        let sums = schema.columns().iter().map(|column| vec![u32::MAX; pieces(column.row_bytes(), rows)]);
        let sums = BlockSums::new(sums.collect());
        let bytes = block::encode(&schema, &meta, &sums).unwrap();
        let header = block::decode(&schema, &identity, meta.at, &bytes).unwrap();
        assert_eq!((header.meta, header.sums), (meta, sums));
    }
}
