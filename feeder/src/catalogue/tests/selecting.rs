//! What a selection takes, against a model that looks at every record by itself.

use cursorstore::records::dataset::Selection;
use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Checkpoint, Records, Run, Tag};
use cursorstore::store::{Batch, Scope, Store};
use cursorstore::{Cursor, Extent, PlanKey, State, Window};
use proptest::prelude::*;

use super::support::{Place, good, label, quality};
use crate::catalogue::{Split, trim};
use crate::error::ErrorKind;
use crate::log::Retention;

fn select(fields: &[(&str, &str)]) -> Selection {
    let mut selection = Selection::default();
    for (name, value) in fields {
        let value = Some((*value).to_owned());
        match *name {
            "from" => selection.from = value,
            "to" => selection.to = value,
            "filter" => selection.filter = value,
            "split" => selection.split = value,
            _ => selection.checkpoint = value,
        }
    }
    selection
}

fn ids(place: &Place, name: &str, fields: &[(&str, &str)]) -> Vec<i64> {
    place.ids(&place.try_pin(name, select(fields)).unwrap().version)
}

#[test]
fn positions_cut_anywhere() {
    let mut place = Place::new(1);
    place.append(0, 40);
    assert_eq!(ids(&place, "a", &[("from", "3"), ("to", "37")]), (3..37).collect::<Vec<_>>());
    assert_eq!(ids(&place, "b", &[("from", "0:39")]), [39]);
    let bad = |fields: &[(&str, &str)]| place.try_pin("c", select(fields)).unwrap_err();
    assert_eq!(bad(&[("from", "5"), ("to", "5")]).kind(), ErrorKind::Invalid, "nothing selected");
    assert_eq!(bad(&[("to", "41")]).kind(), ErrorKind::Invalid);
    assert_eq!(bad(&[("from", "1:0")]).kind(), ErrorKind::NotFound);

    let mut two = Place::new(2);
    two.append(0, 10);
    two.append(1, 10);
    let error = two.try_pin("a", select(&[("from", "5")])).unwrap_err();
    assert_eq!(error.hint(), Some("0:5,1:5"));
    assert_eq!(ids(&two, "a", &[("from", "0:8")]), (8..20).collect::<Vec<_>>(), "other partitions are not limited");
    assert_eq!(ids(&two, "b", &[("from", "0:8,1:2"), ("to", "1:4")]), [8, 9, 12, 13]);
}

#[test]
fn what_retention_removed_is_told() {
    let mut place = Place::new(1);
    place.append(0, 16);
    place.seal(0);
    place.append(0, 16);
    trim(&place.root, &place.topic, &Retention { bytes: Some(0), age_ms: None }, 0, false).unwrap();
    let error = place.try_pin("a", select(&[("from", "10")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRetained);
    assert!(error.to_string().contains("missing=6"), "{error}");
    assert_eq!(error.hint(), Some("begin at the first record that is left: --from 0:16"));
    assert_eq!(place.pin("b").version.totals.records, 16, "without a place, what there is");
}

#[test]
fn times_part_blocks_or_are_refused() {
    let mut place = Place::new(1);
    let mut times = Vec::new();
    for count in [8, 8, 8] {
        place.append(0, count);
        let segment = place.topic.view().unwrap().partitions[0].segments()[0].clone();
        let block = segment.blocks().unwrap().last().unwrap();
        times.push(segment.about(&segment.file().unwrap(), &block).unwrap().1);
        // The next append is at another time for certain.
        let now = times[times.len() - 1].1;
        while crate::catalogue::now_ms() <= now {
            std::hint::spin_loop();
        }
    }
    let at = |ms: u64| format!("{ms}ms");
    assert_eq!(ids(&place, "a", &[("from", &at(times[1].0))]), (8..24).collect::<Vec<_>>());
    assert_eq!(ids(&place, "b", &[("from", &at(times[0].0)), ("to", &at(times[2].0))]), (0..16).collect::<Vec<_>>());
    place.seal(0);
    if place.topic.view().unwrap().partitions[0].segments()[0].blocks().unwrap().len() > 1 {
        assert_eq!(
            ids(&place, "c", &[("from", &at(times[1].0))]),
            (8..24).collect::<Vec<_>>(),
            "sealed, but not gathered"
        );
    }
    let later = at(times[2].1 + 1);
    assert_eq!(place.try_pin("d", select(&[("from", &later)])).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_time_inside_a_block_is_refused() {
    let mut place = Place::new(1);
    // Small appends are gathered into one block when the segment is sealed.
    place.append(0, 1);
    let before = crate::catalogue::now_ms();
    while crate::catalogue::now_ms() <= before + 1 {
        std::hint::spin_loop();
    }
    place.append(0, 1);
    place.seal(0);
    let segment = place.topic.view().unwrap().partitions[0].segments()[0].clone();
    let (first, last) = segment.time_ms().unwrap().unwrap();
    assert!(first < last && segment.blocks().unwrap().len() == 1, "the test needs one block of two times");
    let error = place.try_pin("a", select(&[("from", &format!("{last}ms"))])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.hint().unwrap().contains("0:0 or 0:2"), "{error:?}");
    assert_eq!(ids(&place, "b", &[("from", &format!("{first}ms"))]), [0, 1]);
}

#[test]
fn a_checkpoint_brings_the_records_of_its_job() {
    let mut place = Place::new(1);
    place.append(0, 40);
    let incarnation = place.topic.incarnation();
    let extents =
        vec![Extent { segment: 0, incarnation, from: 5, to: 12 }, Extent { segment: 0, incarnation, from: 20, to: 30 }];
    let key = PlanKey { version: 1, shuffle: false, seed: 0, lanes: 1, chunk: 1, pool: 1 };
    let state = State::new(Place::name(), vec![Window { extents }], key.clone(), Cursor { epoch: 0, n: 4 });
    let catalogue = place.catalogue();
    let commit = |step: u64, state: &State| {
        let record = Checkpoint {
            job: "vision".into(),
            step,
            data_step: 1,
            generation: 1,
            state: state.clone(),
            path: Some("s3://models/1".into()),
            dataset: state.dataset.as_ref().map(|dataset| dataset.version.clone()),
            revision: None,
            committed_ms: 5,
        };
        let tag = Tag { job: "vision".into(), tag: "best".into(), step, tagged_ms: 5 };
        let run = Run {
            job: "vision".into(),
            generation: 1,
            attempt: String::new(),
            from: StartedFrom::Beginning,
            parent: None,
            data_step: 0,
            state: state.clone(),
            dataset: None,
            world: 1,
            batch: 4,
            revision: None,
            host: "here".into(),
            pid: 1,
            process: None,
            forebay: "0".into(),
            started_ms: 5,
        };
        let mut writer = catalogue.store.acquire(&Scope::job("vision").unwrap()).unwrap();
        writer.append(&Batch::new().record(&run).record(&record).record(&tag)).unwrap();
    };
    commit(30, &state);
    let expected: Vec<i64> = (5..12).chain(20..30).collect();
    for (name, which) in [("a", "vision@30"), ("b", "vision@best"), ("c", "vision@latest")] {
        let version = place.try_pin(name, select(&[("checkpoint", which)])).unwrap().version;
        assert_eq!(place.ids(&version), expected);
        assert_eq!(version.selection.checkpoint.as_deref(), Some("vision@30"));
    }
    // One over a version brings that version's records, and counts as its user.
    let version = catalogue.resolve("a@v1").unwrap();
    let pinned = crate::catalogue::pinned_ref(&version);
    commit(31, &State::pinned(Place::name(), pinned, key, Cursor { epoch: 0, n: 2 }));
    assert_eq!(ids(&place, "d", &[("checkpoint", "vision@31")]), expected);
    let users = catalogue.users(&version).unwrap();
    assert_eq!(users.iter().map(|user| (user.job.as_str(), user.step)).collect::<Vec<_>>(), [("vision", 31)]);
    assert!(catalogue.store.records::<Tag>(&Scope::job("vision").unwrap(), "tag/").unwrap().len() == 1);

    let bad = |which: &str| place.try_pin("e", select(&[("checkpoint", which)])).unwrap_err();
    assert!(bad("visoin@30").to_string().contains("did you mean vision?"), "{}", bad("visoin@30"));
    assert!(bad("vision@29").to_string().contains("the nearest is 30"), "{}", bad("vision@29"));
    assert_eq!(bad("vision").kind(), ErrorKind::Invalid);
}

#[test]
fn a_split_by_a_column_keeps_its_values_together() {
    let mut place = Place::new(2);
    place.append(0, 100);
    place.append(1, 100);
    let low = ids(&place, "low", &[("split", "0..0.5 by=label")]);
    let high = ids(&place, "high", &[("split", "0.5..1 by=label")]);
    assert_eq!(low.len() + high.len(), 200);
    let labels = |ids: &[i64]| ids.iter().map(|&id| label(id)).collect::<std::collections::BTreeSet<_>>();
    assert!(labels(&low).is_disjoint(&labels(&high)));
    let error = place.try_pin("x", select(&[("split", "0..0.5 by=lable")])).unwrap_err();
    assert!(error.to_string().contains("label"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Pins of a topic that grows, seals and is trimmed, each against the model; and what they share.
    #[test]
    fn versions_hold_what_the_model_says(
        acts in prop::collection::vec((0u8..6, 0u32..2, 1i64..30), 2..14),
        least in 0i32..9,
        share in prop::option::of((0u32..50, 51u32..100)),
        seed in 0u64..3,
    ) {
        let mut place = Place::new(2);
        let mut positions: Vec<Vec<i64>> = vec![Vec::new(); 2];
        let filter = format!("(label >= {least} or good) and quality < 0.9");
        let split = share.map(|(from, to)| Split::new(&format!("0.{from:02}..0.{to:02}"), seed, None).unwrap());
        let selection = Selection {
            filter: Some(filter),
            split: split.as_ref().map(Split::to_string),
            ..Selection::default()
        };
        let taken = |positions: &[Vec<i64>]| -> Vec<i64> {
            let all = positions.iter().enumerate().flat_map(|(p, ids)| ids.iter().enumerate().map(move |(o, &id)| (p, o, id)));
            let passes = |id: i64| (label(id) >= least || good(id)) && quality(id) < 0.9;
            let in_share = |p: usize, o: usize| split.as_ref().is_none_or(|split| split.takes_position(p as u32, o as u64));
            let mut ids: Vec<i64> = all.filter(|&(p, o, id)| passes(id) && in_share(p, o)).map(|(_, _, id)| id).collect();
            ids.sort_unstable();
            ids
        };
        let mut versions = Vec::new();
        for (act, partition, count) in acts {
            match act {
                0..=2 => positions[partition as usize].extend(place.append(partition, count)),
                3 => place.seal(partition),
                _ => {
                    let expected = taken(&positions);
                    match place.try_pin("d", selection.clone()) {
                        Ok(outcome) => {
                            prop_assert_eq!(outcome.is_new, versions.last().is_none_or(|(_, ids)| *ids != expected));
                            if outcome.is_new {
                                versions.push((outcome.version, expected));
                            }
                        }
                        Err(error) => {
                            prop_assert!(expected.is_empty() && error.to_string().contains("no record is selected"), "{}", error);
                        }
                    }
                    if act == 5 {
                        let rules = Retention { bytes: Some(0), age_ms: None };
                        trim(&place.root, &place.topic, &rules, 0, versions.is_empty()).unwrap();
                    }
                }
            }
        }
        for (at, (version, expected)) in versions.iter().enumerate() {
            let mut ids = place.ids(version);
            ids.sort_unstable();
            prop_assert_eq!(&ids, expected);
            let report = place.catalogue().verify(version, &mut |_| {}).unwrap();
            prop_assert!(report.is_good());
            if at > 0 {
                let parent = &versions[at - 1].0;
                prop_assert_eq!(version.parent, Some(parent.version));
                prop_assert_eq!(&version.windows[..parent.windows.len()], &parent.windows[..]);
            }
        }
    }
}
