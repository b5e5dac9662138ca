//! Loaders over versions: what they read, and which states they take.

use std::sync::Arc;

use cursorstore::State;
use cursorstore::records::dataset::Selection;

use super::support::Place;
use crate::catalogue::{remove_topic, trim};
use crate::engine::{Dataset, Loader, Settings};
use crate::error::{Error, ErrorKind};
use crate::log::Retention;

fn loader(place: &Place, name: &str) -> Loader {
    let dataset = Dataset::named(place.dir.path(), name).unwrap();
    let settings = Settings { global_batch: 4, shuffle: true, seed: 7, ..Settings::default() };
    Loader::new(Arc::new(dataset), settings).unwrap()
}

fn ids(dataset: &Dataset) -> Vec<i64> {
    let names = ["id".to_owned()];
    let id = |at: u64| dataset.sample(at, Some(&names)).unwrap()[0].1.clone();
    (0..dataset.line().total()).map(|at| i64::from_le_bytes(id(at).try_into().unwrap())).collect()
}

#[test]
fn a_version_is_read_as_it_was_pinned() {
    let mut place = Place::new(2);
    place.append(0, 30);
    place.append(1, 30);
    place.pin("clean");
    let some = place.filtered("some", "label != 3").version;
    place.append(0, 30);
    place.seal(0);
    trim(&place.root, &place.topic, &Retention { bytes: Some(0), age_ms: None }, 0, false).unwrap();
    let clean = Dataset::named(place.dir.path(), "clean@v1").unwrap();
    assert_eq!(ids(&clean), (0..60).collect::<Vec<_>>());
    assert_eq!(clean.line().extents().count(), 2, "contiguous extents are read as one");
    assert_eq!(ids(&Dataset::named(place.dir.path(), "some@latest").unwrap()), place.ids(&some));
    assert_eq!(Dataset::named(place.dir.path(), "t").unwrap().line().total(), 90);
    assert_eq!(clean.line().ends().len(), 1, "one span");
    place.append(0, 5);
    place.pin("clean");
    let grown = Dataset::named(place.dir.path(), "clean@v2").unwrap();
    assert_eq!((grown.line().total(), grown.line().ends().len()), (95, 1), "one span, however many windows");
}

#[test]
fn states_name_the_version_and_belong_to_it() {
    let mut place = Place::new(1);
    place.append(0, 40);
    place.pin("clean");
    let mut one = loader(&place, "clean@v1");
    let state = one.state(None).unwrap();
    assert_eq!(state.dataset.as_ref().unwrap().version, "clean@v1");
    assert_eq!((state.samples(), state.windows.len()), (40, 0));
    let moved = State { cursor: cursorstore::Cursor { epoch: 1, n: 8 }, ..state.clone() };
    one.load(&moved).unwrap();
    assert_eq!(one.state(None).unwrap(), moved);
    // Other numbers of the plan are taken from the state.
    let mut other = Loader::new(
        Arc::new(Dataset::named(place.dir.path(), "clean@v1").unwrap()),
        Settings { global_batch: 4, shuffle: true, seed: 7, lanes: Some(3), ..Settings::default() },
    )
    .unwrap();
    let state_of_other = other.state(None).unwrap();
    one.load(&state_of_other).unwrap();
    assert_eq!(one.state(None).unwrap(), state_of_other);
    assert!(other.load(&state).is_err(), "lanes were asked for");

    place.append(0, 10);
    place.pin("clean");
    place.catalogue().label("clean@v2", "prod").unwrap();
    let refused = |name: &str, state: &State| -> Error {
        let mut loader = loader(&place, name);
        let before = loader.state(None).unwrap();
        let error = loader.load(state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StateMismatch, "{error:?}");
        assert_eq!(loader.state(None).unwrap(), before, "nothing has moved");
        error
    };
    let error = refused("clean@prod", &state);
    assert_eq!(error.hint(), Some("forebay.DataLoader(\"clean@v1\", ...)"), "{error:?}");
    let error = refused("t", &state);
    assert_eq!(error.hint(), Some("forebay.DataLoader(\"clean@v1\", ...)"), "{error:?}");
    let bare = loader(&place, "t").state(None).unwrap();
    let error = refused("clean@v1", &bare);
    assert_eq!(error.hint(), Some("forebay.DataLoader(\"t\", ...)"), "{error:?}");

    place.catalogue().unpin(&"clean@v1".parse().unwrap(), false).unwrap();
    let error = refused("clean@prod", &state);
    assert!(error.report().contains("unpinned") && error.report().contains("v2"), "{}", error.report());
    place.catalogue().unlabel("clean", "prod").unwrap();
    place.catalogue().unpin(&"clean@v2".parse().unwrap(), false).unwrap();
    place.filtered("clean", "label < 5");
    let error = refused("clean@v1", &state);
    assert!(error.to_string().contains("made again"), "{error}");
    assert!(error.to_string().contains(&state.dataset.as_ref().unwrap().fingerprint), "{error}");
}

#[test]
fn what_cannot_be_trained_on_says_why() {
    let mut place = Place::new(1);
    place.append(0, 40);
    place.pin("clean");
    let open = |name: &str| Dataset::named(place.dir.path(), name).err().unwrap();
    assert!(open("claen@v1").to_string().contains("did you mean clean?"));
    assert_eq!(open("no such topic").kind(), ErrorKind::Invalid);
    let held = Dataset::named(place.dir.path(), "clean@v1").unwrap();
    let error = remove_topic(&place.root, &Place::name(), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "a running loader is not forced: {error}");
    drop(held);
    remove_topic(&place.root, &Place::name(), true).unwrap();
    assert_eq!(open("clean@v1").kind(), ErrorKind::NotFound);
    Place::make(&place.root, 1);
    let error = open("clean@v1");
    assert_eq!(error.kind(), ErrorKind::StateMismatch);
    assert!(error.report().contains("made again"), "{}", error.report());
    let error = place.try_pin("clean", Selection::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "the new topic is empty");
}
