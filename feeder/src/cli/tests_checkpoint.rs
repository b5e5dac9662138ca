//! `forebay checkpoint` as users meet it.

use std::path::Path;

use cursorstore::State;
use serde_json::{Value, json};

use super::tests::{Place, pairs};
use crate::engine::{self, Loader};
use crate::job::{Commit, Keep, Session, Settings, Shape, open_store};

const SHAPE: Shape = Shape { world: 2, batch: 100, drop_last: false };

/// A place with a topic of 1000 rows of ten bytes in two segments.
fn place() -> Place {
    let place = Place::new();
    place.good(&["topic", "create", "digits", "--schema", "id:int64, pair:uint8[2]", "--segment-bytes", "8KiB"]);
    for part in 0..2 {
        let file = place.file(&format!("{part}.npz"), &pairs(part * 500, 500));
        place.good(&["ingest", &file, "--topic", "digits"]);
    }
    place
}

fn loader(root: &Path) -> Loader {
    let settings = engine::Settings { global_batch: 100, shuffle: true, seed: 7, ..engine::Settings::default() };
    Loader::open(root, &"digits".parse().unwrap(), settings).unwrap()
}

/// A run of the job; `resume` as a loader takes it.
fn run(root: &Path, resume: &str) -> (Session, State) {
    let settings = Settings {
        job: "vision".into(),
        attempt: Some("a".into()),
        resume: resume.parse().unwrap(),
        revision: Some("4f0c2d1".into()),
        keep: Keep::default(),
    };
    let mut session = Session::open(open_store(root).unwrap(), root, settings).unwrap();
    let mut loader = loader(root);
    let place = &mut |state: Option<&State>| {
        state.map_or(Ok(()), |state| loader.load(state))?;
        loader.state(None)
    };
    session.lead(false, SHAPE, place).unwrap();
    let state = session.run().unwrap().state.clone();
    (session, state)
}

fn commit(session: &mut Session, state: &State, step: u64, epoch: u64, n: u64) {
    let mut state = state.clone();
    (state.cursor.epoch, state.cursor.n) = (epoch, n);
    let tag = (step == 20).then(|| "best".to_string());
    let path = (step == 30).then(|| "s3://models/30".to_string());
    session.commit(Commit { step, path, tag, state, keep: None }).unwrap();
}

/// A job with the steps 10, 20, 30, and after a second run from 20 on: 30 anew, 40.
fn job(root: &Path) -> Session {
    let (mut first, state) = run(root, "latest");
    for step in 1..=3 {
        commit(&mut first, &state, step * 10, 0, step * 100);
    }
    let (mut second, state) = run(root, "best");
    commit(&mut second, &state, 30, 0, 350);
    commit(&mut second, &state, 40, 2, 100);
    second
}

#[test]
fn jobs_and_checkpoints_are_listed() {
    let place = place();
    let said = place.run(&["checkpoint", "ls"]);
    assert_eq!((said.code, said.out.as_str()), (0, ""));
    assert!(said.err.contains("no jobs yet"), "{said:?}");
    let _session = job(&place.root());
    let jobs = place.json(&["checkpoint", "ls"]);
    for (key, value) in [("job", json!("vision")), ("checkpoints", json!(4)), ("latest", json!(40))] {
        assert_eq!(jobs[0][key], value);
    }
    assert_eq!((&jobs[0]["state"], &jobs[0]["data"]), (&json!("running"), &json!("digits")));
    let table = place.good(&["checkpoint", "ls", "vision"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 5);
    assert_eq!((rows[2][0], rows[2].last()), ("20", Some(&"best")));
    assert_eq!((&rows[4][..5], rows[4].last()), (&["40", "21", "2", "100", "2"][..], Some(&"latest")));
    let list = place.json(&["checkpoint", "ls", "vision"]);
    let of = |key: &str| list.as_array().unwrap().iter().map(|one| one[key].clone()).collect::<Vec<Value>>();
    assert_eq!(of("step"), [10, 20, 30, 40]);
    assert_eq!(of("generation"), [1, 1, 2, 2]);
    assert_eq!(of("latest"), [false, false, false, true]);
    place.bad(&["checkpoint", "ls", "visoin"], 3, &["did you mean vision?", "try: list the jobs"]);
    place.bad(&["checkpoint", "ls", "a/b"], 2, &["not a name"]);
}

#[test]
fn the_latest_is_where_the_job_goes_on_and_not_the_largest_step() {
    let place = place();
    let _ended = job(&place.root());
    let (mut anew, state) = run(&place.root(), "never");
    commit(&mut anew, &state, 5, 0, 500);
    assert_eq!(place.json(&["checkpoint", "show", "vision@latest"])["step"], 5);
    let pinned = place.json(&["dataset", "pin", "used", "--checkpoint", "vision@latest"]);
    assert_eq!(pinned["selection"]["checkpoint"], "vision@5");

    run(&place.root(), "never");
    for args in
        [&["checkpoint", "show", "vision@latest"][..], &["dataset", "pin", "x", "--checkpoint", "vision@latest"]]
    {
        place.bad(args, 3, &["no checkpoint to go on from", "checkpoint ls vision"]);
    }
}

#[test]
fn which_data_made_a_model_is_shown() {
    let place = place();
    let _session = job(&place.root());
    let shown = place.good(&["checkpoint", "show", "vision"]);
    for words in
        ["vision@40", "4f0c2d1", "digits (incarnation ", "1,000 an epoch", "shuffled, seed 7", "epoch 2 place 100"]
    {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    let object = place.json(&["checkpoint", "show", "vision@40"]);
    let parts = object["runs"].as_array().unwrap();
    let ends: Vec<_> = parts.iter().map(|part| (&part["start"], &part["end"], &part["seed"])).collect();
    let cursor = |epoch: u64, n: u64| json!({ "epoch": epoch, "n": n });
    let seed = json!(7);
    let expected = [(cursor(0, 0), cursor(0, 200)), (cursor(0, 200), cursor(2, 100))];
    assert_eq!(ends, expected.iter().map(|(start, end)| (start, end, &seed)).collect::<Vec<_>>());
    assert_eq!((&parts[1]["from"], &parts[1]["world_size"]), (&json!({ "checkpoint": { "step": 20 } }), &json!(2)));
    assert_eq!(place.json(&["checkpoint", "show", "vision@best"])["step"], 20);
    assert!(place.good(&["checkpoint", "show", "vision@30"]).contains("s3://models/30"));
    assert_eq!(place.json(&["checkpoint", "show", "vision@latest"]), place.json(&["checkpoint", "show", "vision"]));
    place.bad(&["checkpoint", "show", "vision@33"], 3, &["the nearest are 30 and 40"]);
    place.bad(&["checkpoint", "show", "vision@bset"], 3, &["did you mean best?"]);
    place.bad(&["checkpoint", "show", "other@1"], 3, &["no such job", "there are vision"]);
}

#[test]
fn a_rewind_is_looked_at_and_done() {
    let place = place();
    let session = job(&place.root());
    let rewind = ["checkpoint", "rewind", "vision", "--to"];
    let shown = place.good(&[&rewind[..], &["10", "--dry-run"]].concat());
    for words in [
        "step 10, epoch 0 place 100",
        "2,000 samples (19.5 KiB) of digits",
        "3 later checkpoints",
        "in progress",
        "nothing was",
    ] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    place.bad(&[&rewind[..], &["10"]].concat(), 2, &["2,000 samples", "--to 10 --yes, or --dry-run"]);
    session.fence().check().expect("nothing has happened yet");
    place.bad(&[&rewind[..], &["15", "--yes"]].concat(), 3, &["the nearest are 10 and 20"]);
    let done = place.json(&[&rewind[..], &["best", "--yes"]].concat());
    for (key, value) in
        [("step", json!(20)), ("samples", json!(1900)), ("bytes", json!(19_000)), ("abandons", json!(2))]
    {
        assert_eq!(done[key], value, "{key} of {done}");
    }
    assert_eq!((&done["rewound"], &done["generation"]), (&json!(true), &json!(3)));
    let error = session.fence().check().unwrap_err();
    assert!(error.to_string().contains("the job was rewound to step 20"), "{error}");
    assert_eq!(place.json(&["checkpoint", "ls"])[0]["latest"], 20);
    assert_eq!(place.json(&["checkpoint", "ls"])[0]["state"], "rewound");

    let back = place.json(&[&rewind[..], &["40", "--yes"]].concat());
    assert_eq!((&back["was_abandoned"], &back["samples"], &back["abandons"]), (&json!(true), &json!(0), &json!(0)));
    assert_eq!(place.json(&["checkpoint", "ls"])[0]["latest"], 40, "what was abandoned is taken back");
    let (_, state) = run(&place.root(), "latest");
    assert_eq!((state.cursor.epoch, state.cursor.n), (2, 100));
}

#[test]
fn a_rewind_to_data_that_are_gone_says_where_to_go_instead() {
    let place = place();
    job(&place.root());
    let pattern = place.root().join("topics/public/default/digits/p*/*.arrow");
    let mut files: Vec<_> = glob::glob(pattern.to_str().unwrap()).unwrap().map(Result::unwrap).collect();
    files.sort();
    std::fs::remove_file(&files[0]).unwrap();
    let args = ["checkpoint", "rewind", "vision", "--to", "10", "--dry-run"];
    place.bad(&args, 9, &["no longer in the topic", "partition=0 needed=0..1000", "no checkpoint of the job has all"]);
    // A run over what is left makes a checkpoint that can be gone back to.
    let (mut session, _) = run(&place.root(), "never");
    let state = session.run().unwrap().state.clone();
    commit(&mut session, &state, 50, 0, 100);
    place.bad(&args, 9, &["go on from step 50", "resume=50", "forebay checkpoint rewind vision --to 50"]);
    place.good(&["checkpoint", "rewind", "vision", "--to", "50", "--yes"]);
}

#[test]
fn checkpoints_are_removed_and_tagged() {
    let place = place();
    let session = job(&place.root());
    place.bad(&["checkpoint", "rm", "vision", "10", "20"], 2, &["for good", "steps=10,20 tags=best", "10 20 --yes"]);
    place.bad(&["checkpoint", "rm", "vision", "10", "--yes"], 6, &["a run of the job is in progress", "--force"]);
    place.bad(&["checkpoint", "rm", "vision", "11", "--yes"], 3, &["the nearest are 10 and 20"]);
    place.bad(&["checkpoint", "tag", "vision", "30", "good"], 6, &["in progress"]);
    place.bad(&["checkpoint", "tag", "vision", "30", "7", "--force"], 2, &["not a tag"]);
    session.fence().check().expect("it still goes on");
    assert_eq!(place.good(&["checkpoint", "tag", "vision", "30", "good", "--force"]), "vision@30 is good\n");
    session.fence().check().unwrap_err();
    let moved = place.json(&["checkpoint", "tag", "vision", "40", "good", "--force"]);
    assert_eq!((&moved["step"], &moved["before"]), (&json!(40), &json!(30)));
    place.good(&["checkpoint", "tag", "vision", "40", "good", "--remove", "--force"]);
    place.bad(&["checkpoint", "show", "vision@good"], 3, &["no such tag"]);
    let removed = place.json(&["checkpoint", "rm", "vision", "best", "10", "--yes", "--force"]);
    assert_eq!((&removed["removed"], &removed["tags"]), (&json!([10, 20]), &json!(["best"])));
    assert_eq!(place.json(&["checkpoint", "ls", "vision"]).as_array().unwrap().len(), 2);
}
