//! `forebay dataset` and `forebay topic trim` as users meet them.

use serde_json::Value;

use super::tests::{Place, pairs};

/// A topic `t` of 40 rows (`id`, `pair`) in blocks of a few rows.
fn place() -> Place {
    let place = Place::new();
    let schema = "id:int64, pair:uint8[2]";
    place.good(&["topic", "create", "t", "--schema", schema, "--block-bytes", "64", "--segment-bytes", "4KiB"]);
    add(&place, 0, 40);
    place
}

fn add(place: &Place, from: i64, count: i64) {
    let file = place.file(&format!("{from}.npz"), &pairs(from, count));
    place.good(&["ingest", &file, "--topic", "t", "-q"]);
}

#[test]
fn versions_are_made_listed_and_shown() {
    let place = place();
    assert!(place.run(&["dataset", "ls"]).err.contains("no datasets yet"));
    assert_eq!(
        place.good(&["dataset", "pin", "clean", "--topic", "t", "-q"]),
        "pinned clean@v1: 40 records (400 B) of t\n"
    );
    let again = place.good(&["dataset", "pin", "clean", "-q"]);
    assert_eq!(again, "clean@v1 holds the same already: 40 records (400 B) of t\n");
    add(&place, 40, 5);
    let two = place.json(&["dataset", "pin", "clean", "-q"]);
    assert_eq!((&two["version"], &two["records"], &two["looked_at"]), (&"clean@v2".into(), &45.into(), &5.into()));
    assert_eq!(
        (&two["new"], &two["shared_windows"], &two["parent"], &two["read_bytes"]),
        (&true.into(), &1.into(), &1.into(), &0.into())
    );
    let three = place.json(&["dataset", "pin", "clean", "--again", "-q"]);
    assert_eq!((&three["version"], &three["fingerprint"]), (&"clean@v3".into(), &two["fingerprint"]));
    place.good(&["dataset", "label", "clean@v2", "prod"]);

    let listed = place.json(&["dataset", "ls"]);
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["version"].as_str().unwrap()).collect();
    assert_eq!(names, ["clean@v1", "clean@v2", "clean@v3"]);
    assert_eq!(listed[1]["labels"], serde_json::json!(["prod"]));
    let table = place.good(&["dataset", "ls", "clean"]);
    assert!(table.starts_with("VERSION") && table.contains("all records"), "{table}");

    let shown = place.good(&["dataset", "show", "clean@prod"]);
    for word in ["clean@v2", "45 records (450 B)", "grew from", "clean@v1", "labels", "prod", "no kept checkpoint"] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    let shown = place.json(&["dataset", "show", "clean"]);
    assert_eq!((&shown["version"], &shown["checkpoints"]), (&"clean@v3".into(), &Value::Array(vec![])));
    let planned = place.json(&["plan", "clean@v1", "--global-batch-size", "8"]);
    assert_eq!((&planned["samples"], &planned["dataset"]), (&40.into(), &"clean@v1".into()));
}

#[test]
fn selections_are_taken_or_refused_with_the_reason() {
    let place = place();
    let records = |args: &[&str]| {
        let name = format!("d{}", args.len());
        place.json(&[&["dataset", "pin", &name, "--topic", "t", "--again", "-q"], args].concat())["records"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(records(&["--filter", "id < 10 or id in (20, 21)"]), 12);
    assert_eq!(records(&["--filter", "-1 < id"]), 40);
    assert_eq!(records(&["--from", "5", "--to", "0:30"]), 25);
    let (low, high) = (records(&["--split", "0..0.3"]), records(&["--split", "0.3..1.0"]));
    assert_eq!(low + high, 40);
    let split = place.json(&[
        "dataset",
        "pin",
        "s",
        "--topic",
        "t",
        "--split",
        "0..0.50",
        "--split-seed",
        "7",
        "--split-by",
        "id",
        "-q",
    ]);
    assert_eq!(split["selection"]["split"], "0..0.5 seed=7 by=id");

    for (args, code, words) in [
        (&["--filter", "idd == 3"][..], 3, &["did you mean \"id\"?"][..]),
        (&["--filter", "id == true"], 2, &["compared with numbers"]),
        (&["--filter", "pair == 1"], 2, &["single values"]),
        (&["--filter", "id >"], 2, &["at=4", "try:"]),
        (&["--filter", "id > 100"], 2, &["no record is selected", "looked_at=40"]),
        (&["--split", "0.9..0.1"], 2, &["try: --split 0..0.9"]),
        (&["--split-seed", "3"], 2, &["--split"]),
        (&["--from", "41"], 2, &["no such record yet"]),
        (&["--from", "yesterday"], 2, &["neither a position nor a time"]),
        (&["--checkpoint", "vision@30"], 3, &["no such job"]),
        (&["--checkpoint", "vision@30", "--from", "3"], 2, &["cannot be used with"]),
    ] {
        place.bad(&[&["dataset", "pin", "bad", "--topic", "t"], args].concat(), code, words);
    }
    place.bad(&["dataset", "pin", "bad"], 2, &["needs a topic", "try: forebay dataset pin bad --topic TOPIC"]);
    place.bad(&["dataset", "pin", "bad", "--filter", "id == 1"], 2, &["of which topic"]);
    place.bad(&["dataset", "pin", "a/b", "--topic", "t"], 2, &["not a dataset's name"]);
    place.bad(&["dataset", "pin", "bad", "--topic", "tt"], 3, &["no such topic, there are t"]);
    assert!(!place.good(&["dataset", "ls"]).contains("bad"));
}

#[test]
fn versions_are_compared_checked_and_exported() {
    let place = place();
    place.good(&["dataset", "pin", "d", "--topic", "t", "--to", "30", "-q"]);
    place.good(&["dataset", "pin", "d", "--topic", "t", "--from", "10", "-q"]);
    let diff = place.json(&["dataset", "diff", "d@v1", "d@v2"]);
    let records = |side: &str| diff[side]["records"].as_u64().unwrap();
    assert_eq!((records("removed"), records("added"), records("common")), (10, 10, 20));
    let text = place.good(&["dataset", "diff", "d@v1", "d@v2"]);
    assert!(
        text.contains("10 records (100 B)") && text.contains("--to 30") && text.contains("in both: 20 records"),
        "{text}"
    );
    assert!(place.good(&["dataset", "diff", "d@v1", "d@v1"]).contains("are the same"));

    assert!(place.good(&["dataset", "verify", "d@v1", "-q"]).starts_with("30 records"));
    let file = place.dir.path().join("d.parquet").display().to_string();
    assert!(place.good(&["dataset", "export", "d@v2", &file, "-q"]).starts_with("wrote 30 records of d@v2"));
    place.bad(&["dataset", "export", "d@v2", &file], 4, &["--replace"]);
    place.good(&["dataset", "export", "d@v1", &file, "--replace", "-q"]);
    place.good(&["ingest", &file, "--topic", "back", "-q"]);
    assert_eq!(place.rows("back")[29]["row"], place.rows("t")[29]["row"]);

    let folder = place.root().join("topics/public/default/t/p0000");
    let segment = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
        path.extension().is_some_and(|end| end == "arrow" || end == "open") && path.metadata().unwrap().len() > 8192
    });
    let segment = segment.unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(16).position(|found| found == [1i64, 2].map(i64::to_le_bytes).concat()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let said = place.run(&["dataset", "verify", "d@v1", "-q"]);
    assert_eq!(said.code, 7);
    for word in ["sample=0", "offsets=0..", "block=0", "position=", &segment.display().to_string()] {
        assert!(said.err.contains(word), "no {word:?} in {said:?}");
    }
}

#[test]
fn what_is_pinned_is_held_back() {
    let place = place();
    add(&place, 40, 40);
    place.good(&["dataset", "pin", "d", "--topic", "t", "--from", "40", "-q"]);
    let dry = place.json(&["topic", "trim", "t", "--keep-bytes", "0", "--dry-run"]);
    let done = place.json(&["topic", "trim", "t", "--keep-bytes", "0"]);
    assert_eq!((&dry["segments"], &dry["first"]), (&done["segments"], &done["first"]));
    assert_eq!(done["held_by"].as_array().map(Vec::len), Some(usize::from(done["held_bytes"] != 0)));
    place.bad(&["topic", "rm", "t", "--yes"], 6, &["dataset d@v1", "--force"]);
    place.bad(&["topic", "trim", "t"], 2, &["--keep-bytes"]);
    place.bad(&["topic", "trim", "t", "--keep-days", "-1"], 2, &["days"]);
    place.good(&["topic", "trim", "t", "--keep-days", "1"]);

    place.good(&["dataset", "label", "d@v1", "prod"]);
    place.bad(&["dataset", "unpin", "d@v1"], 6, &["d@prod"]);
    place.bad(&["dataset", "unpin", "d@prod"], 2, &["by its number"]);
    assert_eq!(place.good(&["dataset", "label", "d@prod", "--rm"]), "removed d@prod, which was v1\n");
    place.bad(&["dataset", "label", "d@v1", "--rm"], 2, &["only a label"]);
    assert_eq!(place.good(&["dataset", "unpin", "d@v1"]), "unpinned d@v1\n");
    place.bad(&["dataset", "unpin", "d@v1"], 3, &["no such dataset"]);
    place.bad(&["dataset", "show", "d"], 3, &["no such dataset"]);
    place.good(&["topic", "rm", "t", "--yes"]);
}
