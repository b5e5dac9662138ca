//! Versions of a topic whose schema grows: each is read under its own.

use std::ops::Range;
use std::sync::Arc;

use arrow_buffer::Buffer;
use cursorstore::records::DatasetVersion;
use cursorstore::records::dataset::Selection;
use half::f16;

use crate::catalogue::{Catalogue, Outcome, PinRequest};
use crate::engine::Dataset;
use crate::log::{Root, Topic, TopicOptions, WriterOptions};
use crate::rows::Rows;
use crate::schema::Schema;
use crate::versions::Defaults;

const OLD: &str = "id:int16, score:float16";
const NEW: &str = "id:int64, score:float32, label:int8";

fn score(id: i64) -> f32 {
    f16::from_f32(id as f32 / 7.0).to_f32()
}

/// Rows under either schema; new ones have their id modulo 5 as label.
fn rows(schema: &str, ids: Range<i64>) -> Rows {
    let schema = Arc::new(Schema::parse(schema).unwrap());
    let is_old = schema.columns().len() == 2;
    let column = |bytes: &dyn Fn(i64) -> Vec<u8>| Buffer::from_vec(ids.clone().flat_map(bytes).collect::<Vec<u8>>());
    let mut columns = vec![
        column(&|id| if is_old { (id as i16).to_le_bytes().into() } else { id.to_le_bytes().into() }),
        column(&|id| match is_old {
            true => f16::from_f32(score(id)).to_le_bytes().into(),
            false => score(id).to_le_bytes().into(),
        }),
    ];
    if !is_old {
        columns.push(column(&|id| vec![(id % 5) as u8]));
    }
    Rows::new(schema, (ids.end - ids.start) as usize, columns).unwrap()
}

struct Place {
    dir: tempfile::TempDir,
    topic: Topic,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::create(dir.path()).unwrap();
        let options = TopicOptions { block_bytes: 160, ..TopicOptions::default() };
        let topic = root.create_topic(&"t".parse().unwrap(), &Schema::parse(OLD).unwrap(), &options).unwrap();
        Self { dir, topic }
    }

    fn append(&self, rows: &Rows) {
        let writer = self.topic.writer(0, WriterOptions::default()).unwrap();
        writer.append(rows).unwrap();
        writer.close().unwrap();
    }

    fn grow(&self) {
        let writer = self.topic.writer(0, WriterOptions::default()).unwrap();
        let defaults = Defaults::parse(&["label=-1".to_owned()]).unwrap();
        writer.grow(&Schema::parse(NEW).unwrap(), &defaults).unwrap();
        writer.close().unwrap();
    }

    fn catalogue(&self) -> Catalogue {
        Catalogue::open(self.dir.path()).unwrap()
    }

    fn pin(&self, name: &str, filter: Option<&str>, split: Option<&str>) -> Outcome {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let selection = Selection { filter: owned(filter), split: owned(split), ..Selection::default() };
        let topic = Some("t".parse().unwrap());
        let request = PinRequest { name: name.into(), topic, selection, ..PinRequest::default() };
        self.catalogue().pin(&request, &mut |_| {}).unwrap()
    }

    /// Ids and labels of a version as training reads it, after a look at the scores.
    fn read(&self, version: &DatasetVersion) -> (Vec<i64>, Vec<i8>) {
        let dataset = Dataset::of_version(&self.catalogue(), version).unwrap();
        assert_eq!(dataset.schema().to_string(), version.schema);
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for at in 0..dataset.line().total() {
            let row = dataset.sample(at, None).unwrap();
            let bytes = |column: usize| row[column].1.as_slice();
            let (id, found) = match row.len() {
                2 => {
                    let id = i16::from_le_bytes(bytes(0).try_into().unwrap());
                    (id.into(), f16::from_le_bytes(bytes(1).try_into().unwrap()).to_f32())
                }
                _ => {
                    labels.push(bytes(2)[0] as i8);
                    let id = i64::from_le_bytes(bytes(0).try_into().unwrap());
                    (id, f32::from_le_bytes(bytes(1).try_into().unwrap()))
                }
            };
            assert_eq!(found, score(id));
            ids.push(id);
        }
        assert!(self.catalogue().verify(version, &mut |_| {}).unwrap().is_good());
        (ids, labels)
    }
}

#[test]
fn each_version_keeps_its_schema() {
    let place = Place::new();
    place.append(&rows(OLD, 0..40));
    let one = place.pin("all", None, None).version;
    place.grow();
    let two = place.pin("all", None, None);
    assert!(two.is_new, "the same records under another schema are another version");
    assert_eq!((two.looked_at, two.shared_windows), (0, 1));
    assert_ne!(two.version.fingerprint, one.fingerprint);
    place.append(&rows(NEW, 40..60));
    let three = place.pin("all", None, None);
    assert_eq!((three.looked_at, three.shared_windows), (20, 1));

    assert_eq!((one.schema.as_str(), three.version.schema.as_str()), (OLD, NEW));
    assert_eq!(place.read(&one), ((0..40).collect(), vec![]));
    assert_eq!(place.read(&two.version), ((0..40).collect(), vec![-1; 40]));
    let (ids, labels) = place.read(&three.version);
    assert_eq!(ids, (0..60).collect::<Vec<_>>());
    assert_eq!(labels, (0..60).map(|id| if id < 40 { -1 } else { (id % 5) as i8 }).collect::<Vec<_>>());
    let diff = place.catalogue().diff(&one, &three.version).unwrap();
    assert_eq!((diff.added.records, diff.removed.records, diff.common.records), (20, 0, 40));
    assert_eq!(diff.columns_removed, ["id:int16", "score:float16"]);
}

#[test]
fn filters_and_splits_see_the_newest_schema() {
    let place = Place::new();
    place.append(&rows(OLD, 0..40));
    let side = place.read(&place.pin("side", None, Some("0..0.5 by=score")).version).0;
    place.grow();
    place.append(&rows(NEW, 40..60));
    assert_eq!(place.read(&place.pin("old", Some("label < 0"), None).version).0, (0..40).collect::<Vec<_>>());
    assert_eq!(place.read(&place.pin("twos", Some("label == 2 and id >= 45"), None).version).0, [47, 52, 57]);
    assert_eq!(place.read(&place.pin("low", Some("score <= 1"), None).version).0, (0..8).collect::<Vec<_>>());
    let grown = place.pin("side", None, Some("0..0.5 by=score"));
    assert_eq!(grown.shared_windows, 1);
    let whole = place.read(&place.pin("again", None, Some("0..0.5 by=score")).version).0;
    assert_eq!(whole.iter().copied().filter(|&id| id < 40).collect::<Vec<_>>(), side, "no record changes its side");
    assert_eq!(place.read(&grown.version).0, whole);
}

#[test]
fn exports_are_of_the_version_s_schema() {
    let place = Place::new();
    place.append(&rows(OLD, 0..40));
    let one = place.pin("all", None, None).version;
    place.grow();
    place.append(&rows(NEW, 40..60));
    let two = place.pin("all", None, None).version;
    for (version, count) in [(&one, 40), (&two, 60)] {
        let file = place.dir.path().join(format!("{count}.parquet"));
        place.catalogue().export(version, &file, false, &mut |_| {}).unwrap();
        let file = std::fs::File::open(file).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let schema = Arc::new(Schema::parse(&version.schema).unwrap());
        let read: Vec<Rows> =
            reader.build().unwrap().map(|batch| Rows::from_arrow(&batch.unwrap(), &schema).unwrap()).collect();
        assert_eq!(Rows::concat(&schema, &read).unwrap().count(), count);
    }
}
