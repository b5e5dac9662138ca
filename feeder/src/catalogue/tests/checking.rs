//! Labels, differences, verification, export.

use cursorstore::records::dataset::{Selection, VersionRef};
use proptest::prelude::*;

use super::support::Place;
use crate::catalogue::{Amount, Reference};
use crate::error::ErrorKind;
use crate::log::{Retention, Root};

#[test]
fn labels_name_versions_and_move() {
    let mut place = Place::new(1);
    place.append(0, 10);
    place.pin("clean");
    place.append(0, 10);
    place.pin("clean");
    let catalogue = place.catalogue();
    let number = |text: &str| catalogue.resolve(text).unwrap().version;
    assert_eq!((number("clean@v1"), number("clean@latest")), (1, 2));
    assert_eq!(catalogue.label("clean@v1", "prod").unwrap().1, None);
    assert_eq!(number("clean@prod"), 1);
    assert_eq!(catalogue.label("clean@latest", "prod").unwrap().1, Some(1));
    assert_eq!(number("clean@prod"), 2);

    for (text, words) in [
        ("claen@v1", "did you mean clean?"),
        ("clean@v3", "there are v1, v2"),
        ("clean@prd", "did you mean prod?"),
        ("none@prod", "no such dataset"),
    ] {
        let error = catalogue.resolve(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(words), "{error}");
    }
    for text in ["clean", "@v1", "clean@", "clean@v0", "clean@v01", "a/b@v1", "clean@v1@v2", "clean@a b"] {
        assert_eq!(catalogue.resolve(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
    }
    for label in ["latest", "v3", "", "a/b"] {
        assert!(catalogue.label("clean@v1", label).is_err(), "{label}");
    }
    let two = VersionRef { name: "clean".into(), version: 2 };
    let error = catalogue.unpin(&two, false).unwrap_err();
    assert!(error.to_string().contains("clean@prod"), "{error}");
    assert_eq!(catalogue.unlabel("clean", "prod").unwrap().version, 2);
    assert!(catalogue.unlabel("clean", "prod").is_err());
    catalogue.unpin(&two, false).unwrap();
    assert_eq!("clean@v1".parse::<Reference>().unwrap().to_string(), "clean@v1");
}

#[test]
fn an_unpinned_number_made_again_has_another_fingerprint() {
    let mut place = Place::new(1);
    place.append(0, 10);
    let one = place.pin("clean").version;
    place.catalogue().unpin(&one.reference(), false).unwrap();
    let same = place.pin("clean").version;
    assert_eq!((same.version, same.fingerprint), (1, one.fingerprint), "the same records are the same version again");
    place.catalogue().unpin(&one.reference(), false).unwrap();
    place.append(0, 1);
    let other = place.pin("clean").version;
    assert_eq!(other.version, 1);
    assert_ne!(other.fingerprint, one.fingerprint);
}

#[test]
fn verification_names_the_first_bad_extent() {
    let mut place = Place::new(1);
    place.append(0, 16);
    place.seal(0);
    place.append(0, 16);
    let version = place.try_pin("clean", Selection { from: Some("2".into()), ..Selection::default() }).unwrap().version;
    let catalogue = place.catalogue();
    let report = catalogue.verify(&version, &mut |_| {}).unwrap();
    assert!(report.is_good());
    assert_eq!((report.records, report.bytes), (30, version.totals.bytes));

    let segment = place.topic.view().unwrap().partitions[0].segments()[0].clone();
    let block = segment.blocks().unwrap().get(0).unwrap();
    let mut bytes = std::fs::read(&segment.path).unwrap();
    bytes[block.body as usize + 3 * 8] ^= 1;
    std::fs::write(&segment.path, bytes).unwrap();
    let report = catalogue.verify(&version, &mut |_| {}).unwrap();
    assert_eq!(report.bad_extents, report.problems.len() as u64);
    let bad = &report.problems[0];
    assert_eq!((bad.sample, bad.from, bad.kind), (0, 2, ErrorKind::Corrupt));
    assert_eq!(bad.path.as_ref(), Some(&segment.path));
    assert!(bad.message.contains("block=0") && bad.message.contains("position="), "{}", bad.message);

    crate::catalogue::remove_topic(&place.root, &Place::name(), true).unwrap();
}

#[test]
fn records_that_are_gone_are_told_from_damaged_ones() {
    let mut place = Place::new(1);
    place.append(0, 16);
    place.seal(0);
    place.append(0, 16);
    let version = place.pin("clean").version;
    // Behind the catalogue's back.
    place.topic.retain(&Retention { bytes: Some(0), age_ms: None }, 0, &|_| Ok(None)).unwrap();
    let report = place.catalogue().verify(&version, &mut |_| {}).unwrap();
    assert_eq!((report.bad_records, report.records), (16, 16));
    assert_eq!(report.problems[0].kind, ErrorKind::NotRetained);
    let view = place.topic.view().unwrap();
    let error = place.catalogue().lines(&version, &view).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRetained);
    assert!(
        error.report().contains("first_missing=0..") && error.report().contains("samples=32"),
        "{}",
        error.report()
    );
}

#[test]
fn a_version_is_exported_as_it_is() {
    let mut place = Place::new(1);
    place.append(0, 40);
    let version = place.filtered("some", "label in (1, 2, 3) or id == 39").version;
    let file = place.dir.path().join("some.parquet");
    let catalogue = place.catalogue();
    let made = catalogue.export(&version, &file, false, &mut |_| {}).unwrap();
    assert_eq!((made.records, made.file_bytes), (version.totals.records, file.metadata().unwrap().len()));
    assert_eq!(catalogue.export(&version, &file, false, &mut |_| {}).unwrap_err().kind(), ErrorKind::Exists);
    catalogue.export(&version, &file, true, &mut |_| {}).unwrap();

    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(&file).unwrap());
    let batches: Vec<_> = reader.unwrap().build().unwrap().map(Result::unwrap).collect();
    let schema = place.topic.schema();
    let rows: Vec<_> = batches.iter().map(|batch| crate::Rows::from_arrow(batch, schema).unwrap()).collect();
    let rows = crate::Rows::concat(schema, &rows).unwrap();
    let ids = super::support::ids_of(&rows);
    assert_eq!(ids, place.ids(&version));
    for (row, id) in ids.into_iter().enumerate() {
        assert_eq!(
            rows.slice(row, 1).column(4).as_slice(),
            super::support::rows(schema, id..id + 1).column(4).as_slice()
        );
    }

    // What cannot be written whole leaves nothing behind.
    let missing = place.dir.path().join("no/such/folder.parquet");
    assert!(catalogue.export(&version, &missing, false, &mut |_| {}).is_err());
    Root::open(place.dir.path()).unwrap();
    place.topic.retain(&Retention::default(), 0, &|_| Ok(None)).unwrap();
    let segment = place.topic.view().unwrap().partitions[0].segments()[0].clone();
    let mut bytes = std::fs::read(&segment.path).unwrap();
    bytes[segment.blocks().unwrap().get(0).unwrap().body as usize] ^= 1;
    std::fs::write(&segment.path, bytes).unwrap();
    assert_eq!(catalogue.export(&version, &file, true, &mut |_| {}).unwrap_err().kind(), ErrorKind::Corrupt);
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("unfinished")), "{left:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Differences against sets of ids.
    #[test]
    fn differences_are_those_of_the_sets(a in (0i32..10, 0u64..30), b in (0i32..10, 0u64..30), grow in 0i64..30) {
        let mut place = Place::new(1);
        place.append(0, 40);
        let pin = |place: &Place, (label, from): (i32, u64)| {
            let (filter, from) = (Some(format!("label != {label}")), Some(from.to_string()));
            place.try_pin("d", Selection { filter, from, ..Selection::default() }).unwrap().version
        };
        let one = pin(&place, a);
        if grow > 0 {
            place.append(0, grow);
        }
        let two = pin(&place, b);
        let (left, right) = (place.ids(&one), place.ids(&two));
        let diff = place.catalogue().diff(&one, &two).unwrap();
        let amount = |ids: Vec<&i64>| Amount { records: ids.len() as u64, bytes: 20 * ids.len() as u64 };
        prop_assert_eq!(diff.removed, amount(left.iter().filter(|id| !right.contains(id)).collect()));
        prop_assert_eq!(diff.added, amount(right.iter().filter(|id| !left.contains(id)).collect()));
        prop_assert_eq!(diff.common, amount(left.iter().filter(|id| right.contains(id)).collect()));
        prop_assert_eq!(diff.is_same, one == two);
    }
}
