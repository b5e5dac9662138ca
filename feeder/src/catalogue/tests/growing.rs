//! Versions of a topic that grows: what they hold, and what they share.

use std::collections::HashSet;

use cursorstore::records::ManifestPart;
use cursorstore::records::dataset::Selection;
use cursorstore::store::{Scope, Store};

use super::support::Place;
use crate::error::ErrorKind;

#[test]
fn a_version_holds_the_records_of_its_moment() {
    let mut place = Place::new(2);
    place.append(0, 20);
    place.append(1, 5);
    let one = place.pin("clean");
    assert!(one.is_new && one.read_bytes == 0, "whole blocks bring their checksums: {one:?}");
    assert_eq!((one.version.reference().to_string().as_str(), one.version.parent), ("clean@v1", None));
    let held: Vec<i64> = (0..25).collect();
    assert_eq!(place.ids(&one.version), held);

    place.append(0, 7);
    assert_eq!(place.ids(&one.version), held);
    place.seal(0);
    assert_eq!(place.ids(&one.version), held, "gathering blocks changes no checksum");
}

#[test]
fn growth_costs_what_was_added() {
    let mut place = Place::new(2);
    place.append(0, 20);
    let one = place.pin("clean").version;
    let again = place.pin("clean");
    assert!(!again.is_new);
    assert_eq!(again.version, one);

    place.append(1, 5);
    place.append(0, 9);
    let two = place.pin("clean");
    assert!(two.is_new);
    assert_eq!((two.looked_at, two.shared_windows, two.version.parent), (14, 1, Some(1)));
    assert_eq!(two.version.windows[..1], one.windows);
    let ids: Vec<i64> = (0..20).chain(25..34).chain(20..25).collect();
    assert_eq!(place.ids(&two.version), ids);
    assert_ne!(one.fingerprint, two.version.fingerprint);

    let parts = place.catalogue().store.fold(&Scope::catalogue(), &ManifestPart::prefix("clean")).unwrap();
    let named: HashSet<u128> =
        two.version.windows.iter().flat_map(|window| &window.parts).map(|part| part.digest).collect();
    assert_eq!((parts.entries().len(), named.len()), (2, 2), "both versions stand on two parts");
}

#[test]
fn filtered_versions_grow_too() {
    let mut place = Place::new(1);
    place.append(0, 40);
    let one = place.filtered("threes", "label == 3");
    assert!(!place.filtered("threes", "label=3").is_new, "the same filter, written in another way");
    place.append(0, 3);
    place.append(0, 20);
    let two = place.filtered("threes", "label == 3");
    assert_eq!((two.looked_at, two.shared_windows), (23, 1));
    let expected = |end: i64| (0..end).filter(|&id| super::support::label(id) == 3).collect::<Vec<_>>();
    assert_eq!(place.ids(&one.version), expected(40));
    assert_eq!(place.ids(&two.version), expected(63));
    let other = place.filtered("threes", "label == 4");
    assert_eq!((other.shared_windows, other.version.parent, other.version.version), (0, None, 3));
}

#[test]
fn nothing_selected_is_no_version() {
    let place = Place::new(1);
    let error = place.try_pin("clean", Selection::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.hint().unwrap().contains("forebay topic show t"), "{error:?}");
    assert!(place.catalogue().names().unwrap().is_empty());
}
