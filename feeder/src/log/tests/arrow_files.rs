//! Sealed segments are Arrow files that another reader opens as they are.

use std::fs::File;
use std::sync::Arc;

use arrow_ipc::reader::FileReader;

use super::support::*;
use crate::log::{Fsync, PAGE_BYTES, column_at};
use crate::rows::Rows;
use crate::schema::{Column, Dtype, Schema};

fn all_dtypes() -> String {
    let scalars = Dtype::ALL.map(|dtype| Column::new(format!("s_{dtype}"), dtype, []));
    let shaped = Dtype::ALL.map(|dtype| Column::new(format!("t_{dtype}"), dtype, [2, 3]));
    Schema::new(scalars.into_iter().chain(shaped).collect()).unwrap().to_string()
}

#[test]
fn a_sealed_segment_is_an_arrow_file_with_buffers_on_page_borders() {
    for gathered in [false, true] {
        let place = Place::new(&all_dtypes(), &small(10_000, u64::MAX));
        let schema: &Arc<Schema> = place.topic.schema();
        let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
        let step = if gathered { 7 } else { 128 };
        for at in (0..128).step_by(step) {
            writer.append(&rows(schema, at..(at + step as u64).min(128))).unwrap();
        }
        writer.seal().unwrap();
        let path = place.partition().join("00000000000000000000.arrow");
        let reader = FileReader::try_new(File::open(&path).unwrap(), None).unwrap();
        assert_eq!(Schema::from_arrow(&reader.schema()).unwrap(), **schema);
        let parts: Vec<Rows> = reader.map(|batch| Rows::from_arrow(&batch.unwrap(), schema).unwrap()).collect();
        assert!(parts.len() > 1);
        assert_same(&Rows::concat(schema, &parts).unwrap(), &rows(schema, 0..128));

        // The file's own words about its buffers are those of `column_at`.
        let bytes = std::fs::read(&path).unwrap();
        let view = place.topic.view().unwrap();
        for block in view.partitions[0].segments()[0].blocks().unwrap().iter() {
            let message = arrow_ipc::root_as_message(&bytes[block.header as usize + 8..block.body as usize]).unwrap();
            let batch = message.header_as_record_batch().unwrap();
            let data: Vec<_> = batch.buffers().unwrap().iter().filter(|buffer| buffer.length() > 0).collect();
            assert_eq!((data.len(), block.body % PAGE_BYTES), (schema.columns().len(), 0));
            for (column, buffer) in data.iter().enumerate() {
                assert_eq!(buffer.offset() as u64, column_at(schema, block.rows, column));
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_bytes_on_disk() {
    let place = Place::new("a:uint8[3000], b:int32", &small(1 << 18, u64::MAX));
    let writer = place.topic.writer(0, policy(Fsync::Never)).unwrap();
    writer.append(&rows(place.topic.schema(), 0..100)).unwrap();
    let view = place.topic.view().unwrap();
    let segment = &view.partitions[0].segments()[0];
    let bytes = std::fs::read(&segment.path).unwrap();
    for block in segment.blocks().unwrap().iter() {
        let sums = segment.sums(&segment.file().unwrap(), &block).unwrap();
        let mut header = bytes[block.header as usize..block.body as usize].to_vec();
        assert_eq!(segment.sums_in(&block, &header).unwrap(), sums);
        header[200] ^= 1;
        assert_eq!(segment.sums_in(&block, &header).unwrap_err().kind(), crate::ErrorKind::Corrupt);
        for (number, column) in place.topic.schema().columns().iter().enumerate() {
            let at = (block.body + column_at(place.topic.schema(), block.rows, number)) as usize;
            let buffer = &bytes[at..at + column.row_bytes() * block.rows as usize];
            let wanted: Vec<u32> = buffer.chunks(crate::log::PIECE_BYTES).map(crate::log::crc32c).collect();
            assert_eq!(sums.column(number), wanted);
        }
    }
}

/// Writes a segment of all dtypes where `FOREBAY_LOG_TEST_CHILD` says, for other tools to open.
#[test]
fn writes_a_segment_for_other_tools() {
    let Some(dir) = child_dir() else { return };
    let root = crate::log::Root::create(&dir).unwrap();
    let schema = Schema::parse(&all_dtypes()).unwrap();
    let topic = root.create_topic(&"all".parse().unwrap(), &schema, &small(10_000, u64::MAX)).unwrap();
    let writer = topic.writer(0, policy(Fsync::Always)).unwrap();
    writer.append(&rows(topic.schema(), 0..1000)).unwrap();
    writer.seal().unwrap();
}
