//! A root with a topic whose rows say who they are, and datasets of it.

use std::ops::Range;
use std::sync::Arc;

use arrow_buffer::Buffer;
use cursorstore::TopicName;
use cursorstore::records::DatasetVersion;
use cursorstore::records::dataset::Selection;

use crate::catalogue::{Catalogue, Outcome, PinRequest};
use crate::error::Result;
use crate::log::{Root, Topic, TopicOptions, WriterOptions};
use crate::rows::Rows;
use crate::schema::Schema;

pub(super) const SCHEMA: &str = "id:int64, label:int32, quality:float32, good:bool, x:uint8[3]";

/// What the row of an id holds.
pub(super) fn label(id: i64) -> i32 {
    (id * 7 % 10) as i32
}

pub(super) fn quality(id: i64) -> f32 {
    (id * 37 % 101) as f32 / 100.0
}

pub(super) fn good(id: i64) -> bool {
    id % 3 == 0
}

pub(super) struct Place {
    pub(super) dir: tempfile::TempDir,
    pub(super) root: Root,
    pub(super) topic: Topic,
    /// Id of the next row.
    next: i64,
}

impl Place {
    /// A topic `t` of so many partitions, whose blocks have 8 rows when gathered.
    pub(super) fn new(partitions: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::create(dir.path()).unwrap();
        let topic = Self::make(&root, partitions);
        Self { dir, root, topic, next: 0 }
    }

    pub(super) fn make(root: &Root, partitions: u32) -> Topic {
        // 8 rows of 20 bytes, and segments of a few blocks each.
        let options =
            TopicOptions { partitions, block_bytes: 160, segment_bytes: 128 << 10, ..TopicOptions::default() };
        root.create_topic(&Self::name(), &Schema::parse(SCHEMA).unwrap(), &options).unwrap()
    }

    pub(super) fn name() -> TopicName {
        "t".parse().unwrap()
    }

    /// Appends rows with the next ids.
    pub(super) fn append(&mut self, partition: u32, count: i64) -> Range<i64> {
        let ids = self.next..self.next + count;
        let writer = self.topic.writer(partition, WriterOptions::default()).unwrap();
        writer.append(&rows(self.topic.schema(), ids.clone())).unwrap();
        writer.close().unwrap();
        self.next = ids.end;
        ids
    }

    pub(super) fn seal(&self, partition: u32) {
        let writer = self.topic.writer(partition, WriterOptions::default()).unwrap();
        writer.seal().unwrap();
        writer.close().unwrap();
    }

    pub(super) fn catalogue(&self) -> Catalogue {
        Catalogue::open(self.dir.path()).unwrap()
    }

    pub(super) fn try_pin(&self, name: &str, selection: Selection) -> Result<Outcome> {
        let request = PinRequest {
            name: name.into(),
            topic: Some(Self::name()).filter(|_| selection.checkpoint.is_none()),
            selection,
            again: false,
            created_by: "ana@node-1".into(),
        };
        self.catalogue().pin(&request, &mut |_| {})
    }

    pub(super) fn pin(&self, name: &str) -> Outcome {
        self.try_pin(name, Selection::default()).unwrap()
    }

    pub(super) fn filtered(&self, name: &str, filter: &str) -> Outcome {
        self.try_pin(name, Selection { filter: Some(filter.into()), ..Selection::default() }).unwrap()
    }

    /// The ids of a version's records, in order.
    pub(super) fn ids(&self, version: &DatasetVersion) -> Vec<i64> {
        let view = self.topic.view().unwrap();
        let mut ids = Vec::new();
        let catalogue = self.catalogue();
        catalogue
            .extents(version, &mut |extent| {
                let rows = view.partitions[extent.segment as usize].read(extent.from..extent.to)?;
                assert_eq!(extent.checksum, super::super::checksum(&rows, 0..rows.count()), "{extent:?}");
                assert_eq!(extent.bytes, rows.bytes() as u64);
                ids.extend(ids_of(&rows));
                Ok(())
            })
            .unwrap();
        assert_eq!(ids.len() as u64, version.totals.records);
        ids
    }
}

pub(super) fn ids_of(rows: &Rows) -> Vec<i64> {
    rows.column(0).chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

pub(super) fn rows(schema: &Arc<Schema>, ids: Range<i64>) -> Rows {
    let column = |f: &dyn Fn(i64) -> Vec<u8>| Buffer::from_vec(ids.clone().flat_map(f).collect::<Vec<u8>>());
    let columns = vec![
        column(&|id| id.to_le_bytes().into()),
        column(&|id| label(id).to_le_bytes().into()),
        column(&|id| quality(id).to_le_bytes().into()),
        column(&|id| vec![good(id).into()]),
        column(&|id| vec![id as u8, 1, 2]),
    ];
    Rows::new(schema.clone(), (ids.end - ids.start) as usize, columns).unwrap()
}
