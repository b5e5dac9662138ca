//! Who holds what back, and that a pin and retention that meet never lose a record.

use cursorstore::records::{DatasetVersion, Guard, ManifestPart, Record};
use cursorstore::store::{Batch, Scope, Store};
use cursorstore::{Extent, Incarnation};

use super::support::Place;
use crate::catalogue::{PinRequest, holders, remove_topic, trim};
use crate::error::ErrorKind;
use crate::log::Retention;

const EVERYTHING: Retention = Retention { bytes: Some(0), age_ms: None };

/// A topic of three sealed segments of 16 rows and an active one.
fn segments(place: &mut Place) {
    for _ in 0..3 {
        place.append(0, 16);
        place.seal(0);
    }
    place.append(0, 16);
}

fn first(place: &Place) -> u64 {
    place.topic.view().unwrap().partitions[0].first
}

#[test]
fn what_is_pinned_stays_until_it_is_unpinned() {
    let mut place = Place::new(1);
    segments(&mut place);
    let version = place.filtered("tail", "id >= 20").version;
    let done = trim(&place.root, &place.topic, &EVERYTHING, 0, true).unwrap();
    assert_eq!((done.retained.segments, first(&place)), (1, 0), "a dry run deletes nothing");
    let done = trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap();
    assert_eq!((done.retained.segments, first(&place)), (1, 16));
    assert_eq!(done.holders.iter().map(|holder| holder.name()).collect::<Vec<_>>(), ["dataset tail@v1"]);
    assert!(done.retained.held_bytes > 0);
    assert!(place.catalogue().verify(&version, &mut |_| {}).unwrap().is_good());

    place.catalogue().unpin(&version.reference(), false).unwrap();
    let done = trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap();
    assert_eq!((done.retained.segments, first(&place), done.holders.len()), (2, 48, 0));
    let error = place.catalogue().resolve("tail@v1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let left = place.catalogue().store.fold(&Scope::catalogue(), "").unwrap();
    assert!(left.entries().is_empty(), "parts and guard went with it: {left:?}");
}

#[test]
fn jobs_hold_records_as_well() {
    let mut place = Place::new(1);
    segments(&mut place);
    let store = place.catalogue().store;
    let guard = |incarnation: Incarnation, from: u64| Guard {
        holder: "checkpoint/vision/00000000000000000030".into(),
        topic: Place::name(),
        ranges: vec![Extent { segment: 0, incarnation, from, to: 64 }],
        since_ms: 1,
    };
    let mut writer = store.acquire(&Scope::job("vision").unwrap()).unwrap();
    writer.append(&Batch::new().record(&guard(place.topic.incarnation(), 40))).unwrap();
    let done = trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap();
    assert_eq!(first(&place), 32);
    assert_eq!(done.holders[0].name(), "checkpoint vision@30");

    // Of another life of the topic, it holds nothing.
    writer.append(&Batch::new().record(&guard(Incarnation(7), 40))).unwrap();
    trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap();
    assert_eq!(first(&place), 48);
}

#[test]
fn a_guard_that_cannot_be_read_stops_all_deletion() {
    let mut place = Place::new(1);
    segments(&mut place);
    let store = place.catalogue().store;
    store
        .acquire(&Scope::job("vision").unwrap())
        .unwrap()
        .put("guard/checkpoint/vision/1", "guard 9 00000000\n{}")
        .unwrap();
    let error = trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap_err();
    assert_eq!((error.kind(), first(&place)), (ErrorKind::Corrupt, 0));
    assert!(remove_topic(&place.root, &Place::name(), false).is_err());
}

#[test]
fn a_topic_with_pinned_records_is_removed_by_force_only() {
    let mut place = Place::new(1);
    place.append(0, 16);
    let version = place.pin("clean").version;
    let error = remove_topic(&place.root, &Place::name(), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("dataset clean@v1"), "{error}");
    remove_topic(&place.root, &Place::name(), true).unwrap();
    let error = place.catalogue().verify(&version, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    Place::make(&place.root, 1);
    let report = place.catalogue().verify(&version, &mut |_| {}).unwrap();
    assert_eq!(report.problems[0].kind, ErrorKind::StateMismatch);
    assert!(holders(place.dir.path(), &Place::name(), Incarnation(1)).unwrap().is_empty());
}

#[test]
fn retention_in_the_middle_of_a_pin_takes_nothing_of_it() {
    let mut place = Place::new(1);
    segments(&mut place);
    let request = PinRequest { name: "clean".into(), topic: Some(Place::name()), ..PinRequest::default() };
    let mut trims = 0;
    let outcome = place
        .catalogue()
        .pin(&request, &mut |_| {
            let done = trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap();
            assert_eq!((done.retained.segments, done.readers), (0, 1));
            trims += 1;
        })
        .unwrap();
    assert!(trims > 3);
    trim(&place.root, &place.topic, &EVERYTHING, 0, false).unwrap();
    assert_eq!(place.ids(&outcome.version), (0..64).collect::<Vec<_>>());
}

#[test]
fn pins_that_meet_make_one_version_each_in_turn() {
    let mut place = Place::new(1);
    segments(&mut place);
    let request = PinRequest { name: "clean".into(), topic: Some(Place::name()), again: true, ..PinRequest::default() };
    let mut met = false;
    let outcome = place
        .catalogue()
        .pin(&request, &mut |_| {
            if !std::mem::replace(&mut met, true) {
                let other = place.catalogue().pin(&request, &mut |_| {}).unwrap();
                assert_eq!(other.version.version, 1);
            }
        })
        .unwrap();
    assert_eq!((outcome.version.version, outcome.shared_windows, outcome.version.parent), (2, 1, Some(1)));
    assert_eq!(place.catalogue().numbers("clean").unwrap(), [1, 2]);
}

#[test]
fn parts_of_a_pin_that_died_go_with_the_next() {
    let mut place = Place::new(1);
    place.append(0, 16);
    let store = place.catalogue().store;
    let extents = place.pin("other").version;
    let part = place.catalogue().part(&extents, extents.windows[0].parts[0].digest).unwrap();
    let orphan = ManifestPart { dataset: "clean".into(), extents: part.extents[..1].to_vec() };
    store.acquire(&Scope::catalogue()).unwrap().put(orphan.key(), orphan.encode()).unwrap();
    assert!(place.catalogue().names().unwrap() == ["other"], "nothing is half pinned");
    place.pin("clean");
    let parts = store.fold(&Scope::catalogue(), &ManifestPart::prefix("clean")).unwrap();
    assert_eq!(parts.entries().len(), 1);
    assert!(parts.get(&orphan.key()).is_none());
}

#[test]
fn records_that_are_newer_or_damaged_are_told_from_each_other() {
    let mut place = Place::new(1);
    place.append(0, 16);
    let version = place.pin("clean").version;
    let catalogue = place.catalogue();
    let part = ManifestPart::key_of("clean", version.windows[0].parts[0].digest);
    let good = catalogue.store.get(&Scope::catalogue(), &part).unwrap().unwrap().value;
    let mut writer = catalogue.store.acquire(&Scope::catalogue()).unwrap();

    let mut bad = good.to_vec();
    let end = bad.len() - 1;
    bad[end] ^= 1;
    writer.put(&part, bad).unwrap();
    let error = catalogue.verify(&version, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.report().contains("clean@v1") && error.report().contains("damaged"), "{}", error.report());
    writer.delete(&part).unwrap();
    assert!(catalogue.verify(&version, &mut |_| {}).unwrap_err().to_string().contains("missing"));

    let newer = b"dataset 2 ".to_vec();
    let sum = crc_fast::crc32_iscsi(b"dataset 2 {}");
    let newer = [newer, format!("{sum:08x}\n{{}}").into_bytes()].concat();
    writer.put(version.key(), newer).unwrap();
    let error = catalogue.resolve("clean@v1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StateMismatch);
    assert!(error.report().contains("newer forebay"), "{}", error.report());
    assert!(place.try_pin("clean", Default::default()).is_err(), "no version is made upon one that cannot be read");
    assert!(catalogue.unpin(&version.reference(), false).is_err());
    let gone = catalogue.unpin(&version.reference(), true).unwrap();
    assert_eq!(gone.version, None);
    assert!(catalogue.store.get(&Scope::catalogue(), &DatasetVersion::key_of("clean", 1)).unwrap().is_none());
}
