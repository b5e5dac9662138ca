//! The command line as users meet it: what is printed, what is stored, and the exit code.

#[path = "bench_tests.rs"]
mod bench_tests;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use super::run;
use crate::ingest::fixtures::{npy, npz};
use crate::log::{Root, WriterOptions};

/// A directory with files and a root.
pub(super) struct Place {
    pub(super) dir: tempfile::TempDir,
}

/// What a command said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) code: u8,
    pub(super) out: String,
    pub(super) err: String,
}

impl Place {
    pub(super) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    /// Runs `forebay ARGS --root ROOT`.
    pub(super) fn run(&self, args: &[&str]) -> Said {
        let root = self.root().display().to_string();
        let all = [&["forebay"], args, &["--root", &root]].concat();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(all.iter().map(OsString::from), &mut out, &mut err);
        Said { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
    }

    pub(super) fn good(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(!said.err.contains("error:"), "{said:?}");
        said.out
    }

    pub(super) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[args, &["--json"]].concat())).unwrap()
    }

    /// Asserts a failure with that code and words, and nothing on the standard output. Words may leave out the root in the
    /// commands that the error names.
    pub(super) fn bad(&self, args: &[&str], code: u8, words: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!((said.code, said.out.as_str()), (code, ""), "{said:?}");
        let short = said.err.replace(&format!("forebay --root {} ", self.root().display()), "forebay ");
        for word in words {
            assert!(said.err.contains(word) || short.contains(word), "no {word:?} in {said:?}");
        }
        said
    }

    /// All rows of a topic as `tail` prints them.
    pub(super) fn rows(&self, topic: &str) -> Vec<Value> {
        let text = self.good(&["topic", "tail", topic, "-n", "1000000", "--json"]);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn ids(from: i64, count: i64) -> Vec<u8> {
    npy("'<i8'", &format!("({count},)"), &(from..from + count).flat_map(i64::to_le_bytes).collect::<Vec<_>>())
}

/// An npz with `id` from `from` on, and `pair`.
pub(super) fn pairs(from: i64, count: i64) -> Vec<u8> {
    let pair: Vec<u8> = (from..from + count).flat_map(|n| [n as u8, 7]).collect();
    npz(&[("id", ids(from, count)), ("pair", npy("'|u1'", &format!("({count}, 2)"), &pair))], true)
}

fn parquet(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn int64(values: Vec<Option<i64>>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}

#[test]
fn help_and_version_say_what_there_is() {
    let place = Place::new();
    let help = place.good(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("Exit codes:") && help.contains("FOREBAY_ROOT"), "{help}");
    assert!(place.good(&["--version"]).starts_with("forebay "));
    for command in [
        &["ingest"][..],
        &["topic"],
        &["topic", "create"],
        &["topic", "ls"],
        &["topic", "show"],
        &["topic", "tail"],
        &["topic", "rm"],
        &["topic", "verify"],
        &["topic", "trim"],
        &["dataset"],
        &["dataset", "pin"],
        &["dataset", "ls"],
        &["dataset", "show"],
        &["dataset", "label"],
        &["dataset", "diff"],
        &["dataset", "verify"],
        &["dataset", "export"],
        &["dataset", "unpin"],
        &["plan"],
        &["checkpoint"],
        &["checkpoint", "ls"],
        &["checkpoint", "show"],
        &["checkpoint", "rewind"],
        &["checkpoint", "rm"],
        &["checkpoint", "tag"],
        &["bench"],
    ] {
        let help = place.good(&[command, &["--help"]].concat());
        assert!(
            matches!(command, ["topic" | "dataset" | "checkpoint"]) || help.contains("Examples:"),
            "{command:?}: {help}"
        );
    }
    place.bad(&["ingset"], 2, &["error:", "ingest"]);
    place.bad(&["ingest", "a.npy"], 2, &["--topic"]);
}

#[test]
fn an_ingest_is_stored_once() {
    let place = Place::new();
    let file = place.file("digits.npz", &pairs(0, 3));
    let said = place.run(&["ingest", &file, "--topic", "digits"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("schema: id:int64, pair:uint8[2]"), "{said:?}");
    assert!(said.out.starts_with("3 rows added to digits from 1 file (30 B in "), "{said:?}");
    assert!(said.out.ends_with("; it has 3 rows in 1 partition\n"), "{said:?}");

    let again = place.good(&["ingest", &file, "--topic", "digits", "--quiet"]);
    assert_eq!(again, "already in the topic: 1 file with 3 rows; digits has 3 rows in 1 partition\n");
    let more = place.file("more.npz", &pairs(3, 2));
    let summary = place.json(&["ingest", &file, &more, "--topic", "digits"]);
    for (key, value) in
        [("rows", 2), ("rows_already", 3), ("topic_rows", 5), ("files", 2), ("files_already", 1), ("bytes", 20)]
    {
        assert_eq!(summary[key], value, "{key} of {summary}");
    }
    let rows = place.rows("digits");
    assert_eq!(rows.len(), 5);
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(*row, serde_json::json!({"partition": 0, "offset": n, "row": {"id": n, "pair": [n, 7]}}));
    }
    let tail = place.good(&["topic", "tail", "digits", "-n", "1"]);
    assert_eq!(tail, "0:4  id=4  pair=[4, 7] (2)\n");
}

#[test]
fn two_files_that_count_as_one_are_warned_of_even_when_quiet() {
    let place = Place::new();
    for folder in ["a", "b"] {
        std::fs::create_dir(place.dir.path().join(folder)).unwrap();
        place.file(&format!("{folder}/d.npz"), &pairs(0, 3));
    }
    let pattern = place.dir.path().join("*/d.npz").display().to_string();
    let said = place.run(&["ingest", &pattern, "--topic", "t", "--quiet"]);
    assert!(said.code == 0 && said.err.starts_with("warning: two files of the same name and content"), "{said:?}");
    assert!(said.out.contains("3 rows added"), "{said:?}");
}

#[test]
fn topics_are_listed_and_shown() {
    let place = Place::new();
    place.bad(&["topic", "ls"], 3, &["no topics are kept here", "try:"]);
    let created = place.good(&[
        "topic",
        "create",
        "alpha",
        "--schema",
        "id:int64",
        "--partitions",
        "2",
        "--segment-bytes",
        "1MiB",
    ]);
    assert_eq!(created, "made alpha with 2 partitions: id:int64\n");
    place.good(&["ingest", &place.file("d.npz", &pairs(0, 9)), "--topic", "persistent://t/n/b"]);
    let list = place.good(&["topic", "ls"]);
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("TOPIC") && lines.len() == 3, "{list}");
    assert!(list.contains("persistent://t/n/b") && list.contains("id:int64, pair:uint8[2]"), "{list}");
    let objects = place.json(&["topic", "ls"]);
    assert_eq!(objects.as_array().unwrap().len(), 2);

    let shown = place.good(&["topic", "show", "persistent://t/n/b"]);
    assert!(shown.contains("9 of 10 bytes, 90 B") && shown.contains("incarnation"), "{shown}");
    let shown = place.json(&["topic", "show", "alpha"]);
    assert_eq!(shown["partitions"].as_array().unwrap().len(), 2);
    assert_eq!(shown["options"]["segment_bytes"], 1 << 20);
    assert_eq!(shown["columns"], serde_json::json!([{"name": "id", "dtype": "int64", "shape": []}]));
    place.bad(&["topic", "show", "alpah"], 3, &["no such topic", "did you mean alpha?"]);
    place.bad(&["topic", "create", "alpha", "--schema", "id:int64"], 4, &["exists already"]);
    place.bad(&["topic", "create", "../a", "--schema", "id:int64"], 2, &["not a topic name"]);
    place.bad(&["topic", "create", "c", "--schema", "id:int65"], 2, &["did you mean int64"]);
    place.bad(&["topic", "create", "c", "--schema", "id:int64", "--block-bytes", "much"], 2, &["not a size"]);
    place.bad(&["topic", "tail", "alpha", "--partition", "7"], 3, &["no such partition"]);

    place.bad(&["topic", "rm", "alpha"], 2, &["removes a topic for good", "try: forebay topic rm alpha --yes"]);
    assert_eq!(place.good(&["topic", "rm", "alpha", "--yes"]), "removed alpha\n");
    place.bad(&["topic", "show", "alpha"], 3, &["no such topic"]);
}

#[test]
fn bad_input_stores_nothing() {
    let place = Place::new();
    let good = place.file("good.npz", &pairs(0, 5));
    let other = place.file(
        "other.npz",
        &npz(&[("id", npy("'<i4'", "(1,)", &[0; 4])), ("pair", npy("'|u1'", "(1, 2)", &[0; 2]))], false),
    );
    let fewer = place.file("fewer.npz", &npz(&[("id", ids(0, 1))], false));
    let cut = place.file("cut.npz", &pairs(0, 5)[..100]);
    let text = place.file(
        "text.parquet",
        &parquet(vec![("id", int64(vec![Some(1)])), ("name", Arc::new(StringArray::from(vec!["a"])))]),
    );
    let empty = place.file("empty.npy", &ids(0, 0));
    let pickled = place.file("pickled.npy", &npy("'|O'", "(1,)", b"cos\nsystem\n"));
    let missing = place.dir.path().join("missing.npy").display().to_string();
    let pattern = place.dir.path().join("*.arrow").display().to_string();
    let dir = place.dir.path().display().to_string();
    let cases: &[(&[&str], u8, &[&str])] = &[
        (
            &[&good, &other],
            2,
            &["different columns", "column=\"id\"", "good.npz", "other.npz", "type=int64", "type=int32"],
        ),
        (&[&good, &fewer], 2, &["column=\"pair\"", "type=none", "--columns"]),
        (&[&fewer, &good], 2, &["column=\"pair\"", "type=uint8[2]"]),
        (&[&good, &cut], 7, &["cut.npz", "zip directory is missing", "try:"]),
        (&[&text], 2, &["column=\"name\"", "type=Utf8", "try: take the others: --columns id"]),
        (&[&empty], 2, &["hold no rows"]),
        (&[&pickled], 2, &["pickled objects are refused"]),
        (&[&missing], 3, &["no such file"]),
        (&[&pattern], 3, &["no file matches"]),
        (&[&dir], 2, &["a directory"]),
        (&[&good, "--schema", "id:int32, pair:uint8[2]"], 2, &["schema=int32 file=int64"]),
        (&[&good, "--schema", "id:int64, x:int8"], 3, &["no such column", "column=\"x\""]),
        (&[&good, "--columns", "id,pear"], 3, &["did you mean \"pair\"?"]),
        (&[&good, "--fsync", "sometimes"], 2, &["unknown policy", "interval:1000"]),
        (&[&good, "--partitions", "0"], 2, &["1 to 1024 partitions"]),
    ];
    for (args, code, words) in cases {
        place.bad(&[&["ingest", "--topic", "t", "--quiet"], *args].concat(), *code, words);
        let left = Root::open(place.root()).map(|root| root.topics().unwrap());
        assert!(left.unwrap_or_default().is_empty(), "{args:?} left a topic");
    }
    place.bad(&["ingest", &good, "--topic", "no/slash"], 2, &["not a topic name"]);
}

#[test]
fn what_only_reading_shows_is_found_before_writing() {
    let place = Place::new();
    let good = place.file("a.parquet", &parquet(vec![("id", int64((0..50).map(Some).collect()))]));
    let nulls: Vec<Option<i64>> = (0..3000).map(|n| (n != 2500).then_some(n)).collect();
    let bad = place.file("b.parquet", &parquet(vec![("id", int64(nulls))]));
    let said = place.bad(
        &["ingest", &good, &bad, "--topic", "t", "--quiet"],
        2,
        &["is null", "b.parquet", "row=2500", "try:"],
    );
    assert_eq!(said.err.lines().count(), 2);
    assert!(!place.root().exists());

    // Unchecked, the first file stays, and going on after the repair stores nothing twice.
    place.bad(&["ingest", &good, &bad, "--topic", "t", "--quiet", "--no-check"], 2, &["row=2500"]);
    assert_eq!(place.rows("t").len(), 50);
    place.file("b.parquet", &parquet(vec![("id", int64((50..60).map(Some).collect()))]));
    let summary = place.json(&["ingest", &good, &bad, "--topic", "t"]);
    assert_eq!(
        (&summary["rows"], &summary["rows_already"], &summary["topic_rows"]),
        (&10.into(), &50.into(), &60.into())
    );
    let ids: Vec<Value> = place.rows("t").iter().map(|row| row["row"]["id"].clone()).collect();
    assert_eq!(ids, (0..60).map(Value::from).collect::<Vec<_>>());
}

#[test]
fn an_existing_topic_says_how_files_are_read() {
    let place = Place::new();
    place.good(&["topic", "create", "t", "--schema", "id:int64, pair:uint8[2x1]"]);
    let narrow =
        npz(&[("pair", npy("'|u1'", "(2, 2)", &[1, 2, 3, 4])), ("id", npy("'<i2'", "(2,)", &[5, 0, 6, 0]))], false);
    place.good(&["ingest", &place.file("n.npz", &narrow), "--topic", "t"]);
    assert_eq!(place.rows("t")[1]["row"], serde_json::json!({"id": 6, "pair": [[3], [4]]}));
    let wide = place.file(
        "w.npz",
        &npz(&[("id", npy("'<f8'", "(1,)", &[0; 8])), ("pair", npy("'|u1'", "(1, 2)", &[1, 2]))], false),
    );
    place.bad(&["ingest", &wide, "--topic", "t", "-q"], 2, &["schema=int64 file=float64"]);
    place.bad(
        &["ingest", &wide, "--topic", "t", "-q", "--schema", "id:int8"],
        2,
        &["the topic has another schema", "column=\"pair\""],
    );
    place.bad(&["ingest", &wide, "--topic", "t", "-q", "--partitions", "3"], 2, &["w.npz"]);
    let fine = place.file("f.npz", &pairs(0, 1));
    place.bad(&["ingest", &fine, "--topic", "t", "-q", "--partitions", "3"], 2, &["another number of partitions"]);
    assert_eq!(place.rows("t").len(), 2);
}

#[test]
fn files_are_spread_whole_and_stay_where_they_are() {
    let place = Place::new();
    let files: Vec<String> = (0..5).map(|n| place.file(&format!("{n}.npz"), &pairs(n * 10, 10))).collect();
    let pattern = place.dir.path().join("*.npz").display().to_string();
    place.good(&["ingest", &files[1], "--topic", "t", "--partitions", "2"]);
    let summary = place.json(&["ingest", &pattern, &files[3], "--topic", "t"]);
    assert_eq!((&summary["rows"], &summary["files"], &summary["partitions"]), (&40.into(), &5.into(), &2.into()));
    let rows = place.rows("t");
    let of = |partition: u64| {
        let ids = rows.iter().filter(|row| row["partition"] == partition).map(|row| row["row"]["id"].as_i64().unwrap());
        ids.collect::<Vec<_>>()
    };
    let whole = |files: &[i64]| files.iter().flat_map(|n| n * 10..n * 10 + 10).collect::<Vec<_>>();
    assert_eq!((of(0), of(1)), (whole(&[1, 2, 4]), whole(&[0, 3])));
    // The same content under another name is another source, a copy elsewhere is not.
    std::fs::create_dir(place.dir.path().join("sub")).unwrap();
    let copy = place.file("sub/0.npz", &pairs(0, 10));
    let said = place.run(&["ingest", &files[0], &copy, "--topic", "t"]);
    assert!(said.out.starts_with("already in the topic: 1 file"), "{said:?}");
    assert!(said.err.contains("taken once"), "{said:?}");
}

#[test]
fn dry_runs_write_nothing() {
    let place = Place::new();
    let file = place.file("digits.npz", &pairs(0, 3));
    let out = place.good(&["ingest", &file, "--topic", "t", "--dry-run"]);
    assert!(out.contains("npz") && out.ends_with("without --dry-run 3 rows would be added to t\n"), "{out}");
    assert!(!place.root().exists());
    assert_eq!(place.json(&["ingest", &file, "--topic", "t", "--dry-run"])["dry_run"], true);
}

#[test]
fn a_held_topic_is_busy() {
    let place = Place::new();
    let file = place.file("digits.npz", &pairs(0, 3));
    place.good(&["ingest", &file, "--topic", "t"]);
    let topic = Root::open(place.root()).unwrap().topic(&"t".parse().unwrap()).unwrap();
    let writer = topic.writer(0, WriterOptions::default()).unwrap();
    place.bad(&["ingest", &file, "--topic", "t", "-q"], 6, &["error:"]);
    place.bad(&["topic", "rm", "t", "--yes"], 6, &["in use"]);
    drop(writer);
    place.good(&["ingest", &file, "--topic", "t"]);
}

#[test]
fn verify_names_what_is_damaged() {
    let place = Place::new();
    place.good(&["ingest", &place.file("d.npz", &pairs(0, 4)), "--topic", "t"]);
    let out = place.good(&["topic", "verify", "t"]);
    assert_eq!(out, "4 rows are good (40 B, 1 block, 1 segment)\n");
    assert_eq!(place.json(&["topic", "verify", "t"])["good"], true);
    let shown = place.json(&["topic", "show", "t"]);
    let path = Path::new(shown["partitions"][0]["segments"][0]["path"].as_str().unwrap()).to_owned();
    let mut bytes = std::fs::read(&path).unwrap();
    // The pairs of row 2.
    let at = bytes.windows(8).position(|window| window == [0, 7, 1, 7, 2, 7, 3, 7]).unwrap();
    bytes[at + 4] = 9;
    std::fs::write(&path, bytes).unwrap();
    let said = place.run(&["topic", "verify", "t", "-q"]);
    assert_eq!(said.code, 7, "{said:?}");
    assert!(said.out.contains("damaged: ") && said.err.contains("the topic is damaged"), "{said:?}");
}

/// Takes so many bytes, then has no reader.
struct Pipe(usize);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 && !bytes.is_empty() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::new();
    place.good(&["ingest", &place.file("d.npz", &pairs(0, 100)), "--topic", "t"]);
    let root = place.root().display().to_string();
    for taken in [0, 1, 100] {
        for args in
            [&["topic", "tail", "t", "-n", "100"][..], &["topic", "show", "t"], &["--help"], &["topic", "verify", "t"]]
        {
            let all = [&["forebay"], args, &["--root", &root]].concat();
            let mut err = Vec::new();
            assert_eq!(run(all.iter().map(OsString::from), &mut Pipe(taken), &mut err), 0, "{args:?}");
            assert_eq!(String::from_utf8(err).unwrap(), "", "{args:?}");
        }
    }
}

#[test]
fn plans_are_shown() {
    let place = Place::new();
    place.good(&["topic", "create", "empty", "--schema", "id:int64"]);
    place.bad(&["plan", "empty", "--global-batch-size", "8"], 2, &["has no rows", "forebay ingest"]);
    place.good(&["ingest", &place.file("d.npz", &pairs(0, 10_000)), "--topic", "t"]);
    let shown = place.good(&["plan", "t", "--global-batch-size", "64", "--world-size", "4", "--seed", "7"]);
    for words in
        ["10,000 samples of 10 bytes", "shuffled, seed 7: 64 lanes", "157 of 64, 16 rows a rank", "mixing", "reading"]
    {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    let args = ["plan", "t", "--global-batch-size", "64", "--no-shuffle", "--drop-last", "--world-size"];
    let plan = place.json(&[&args[..], &["4"]].concat());
    for (key, value) in [("samples", 10_000), ("steps", 156), ("dropped", 16), ("padded", 0), ("rows", 16)] {
        assert_eq!(plan[key], value, "{key} of {plan}");
    }
    assert_eq!((&plan["key"]["shuffle"], &plan["quality"]), (&false.into(), &Value::Null));
    place.bad(&[&args[..], &["3"]].concat(), 2, &["does not divide", "try: use a multiple of 3, such as 63 or 66"]);
    place.bad(&[&args[..], &["0"]].concat(), 2, &["world_size is 1 to", "world_size=0"]);
    // Of a topic smaller than a batch, what a loader gives.
    for (more, words) in [
        (&[][..], "1 of 10,000, 10,000 rows a rank (the topic has fewer samples than a batch of 20,000)"),
        (&["-W", "4"], "1 of 10,000, 2,500 rows a rank (the topic has fewer"),
    ] {
        let shown = place.good(&[&["plan", "t", "-B", "20000"], more].concat());
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    place.bad(&["plan", "t", "-B", "20000", "--drop-last"], 2, &["larger than the topic", "at most 10000"]);
    place.bad(&["plan", "t", "-B", "0"], 2, &["a global batch has 1 to", "global_batch_size=0"]);
}

/// An npz with `id` as 64 or 32 bits, `pair`, and `label` if there is one.
fn labelled(from: i64, count: i64, narrow: bool, label: Option<i16>) -> Vec<u8> {
    let shape = format!("({count},)");
    let id = match narrow {
        true => npy("'<i4'", &shape, &(from..from + count).flat_map(|n| (n as i32).to_le_bytes()).collect::<Vec<_>>()),
        false => ids(from, count),
    };
    let pair: Vec<u8> = (from..from + count).flat_map(|n| [n as u8, 7]).collect();
    let mut arrays = vec![("id", id), ("pair", npy("'|u1'", &format!("({count}, 2)"), &pair))];
    if let Some(label) = label {
        arrays.push(("label", npy("'<i2'", &shape, &(0..count).flat_map(|_| label.to_le_bytes()).collect::<Vec<_>>())));
    }
    npz(&arrays, true)
}

#[test]
fn a_topic_grows_by_what_files_bring_and_refuses_the_rest() {
    let place = Place::new();
    let old = place.file("old.npz", &labelled(0, 2, true, None));
    place.good(&["ingest", &old, "--topic", "t"]);
    let wide = place.file("wide.npz", &labelled(2, 2, false, None));
    let dry = place.run(&["ingest", &wide, "--topic", "t", "--dry-run"]);
    assert!(dry.err.contains("the topic's schema grows to version 2: id:int32 becomes int64"), "{dry:?}");
    assert_eq!(place.json(&["topic", "show", "t"])["schemas"].as_array().unwrap().len(), 1);
    place.bad(&["ingest", &wide, "--topic", "t", "-q", "--schema", "id:int32, pair:uint8[2]"], 2, &["file=int64"]);
    assert_eq!(place.json(&["ingest", &wide, "--topic", "t"])["schema_changes"], "id:int32 becomes int64");

    let label = place.file("label.npz", &labelled(4, 2, true, Some(5)));
    place.bad(
        &["ingest", &label, "--topic", "t", "-q"],
        2,
        &["label.npz", "column=\"label\" type=int16", "--default label=0"],
    );
    place.bad(&["ingest", &label, "--topic", "t", "-q", "--default", "label=70000"], 2, &["not a value", "label.npz"]);
    place.bad(
        &["ingest", &label, "--topic", "t", "-q", "--default", "lable=1", "--default", "label=1"],
        3,
        &["did you mean \"label\"?"],
    );
    place.bad(&["ingest", &label, "--topic", "new", "-q", "--default", "label=1"], 2, &["there is none yet"]);
    assert_eq!(place.rows("t").len(), 4);
    // One file that was not upgraded comes along.
    let late = place.file("late.npz", &labelled(6, 1, true, None));
    let args = ["ingest", &label, &late, "--topic", "t", "--default", "label=-1"];
    place.good(&args);
    assert!(place.good(&args).starts_with("already in the topic: 2 files"));
    place.bad(&["ingest", &old, "--topic", "t", "-q", "--default", "label=3"], 2, &["keeps the default", "default=-1"]);
    // Without the column, and with the column left out.
    place.good(&[
        "ingest",
        &place.file("left.npz", &labelled(7, 1, false, Some(9))),
        "--topic",
        "t",
        "--columns",
        "id,pair",
    ]);
    let rows: Vec<(i64, i64)> = place
        .rows("t")
        .iter()
        .map(|row| (row["row"]["id"].as_i64().unwrap(), row["row"]["label"].as_i64().unwrap()))
        .collect();
    assert_eq!(rows, [(0, -1), (1, -1), (2, -1), (3, -1), (4, 5), (5, 5), (6, -1), (7, -1)]);

    for (name, file, words) in [
        ("gone.npz", npz(&[("id", ids(0, 1))], true), &["no such column", "column=\"pair\""][..]),
        (
            "float.npz",
            npz(&[("id", npy("'<f8'", "(1,)", &[0; 8])), ("pair", npy("'|u1'", "(1, 2)", &[1, 2]))], true),
            &["schema=int64 file=float64"],
        ),
        (
            "shape.npz",
            npz(&[("id", ids(0, 1)), ("pair", npy("'|u1'", "(1, 3)", &[1, 2, 3]))], true),
            &["schema=uint8[2] file=uint8[3]"],
        ),
    ] {
        let code = if name == "gone.npz" { 3 } else { 2 };
        place.bad(&["ingest", &place.file(name, &file), "--topic", "t", "-q"], code, words);
    }
    assert_eq!(place.rows("t").len(), 8);

    let shown = place.good(&["topic", "show", "t"]);
    assert!(shown.contains("id:int64, pair:uint8[2], label:int16"), "{shown}");
    assert!(shown.contains("id:int32 becomes int64") && shown.contains("label:int16 is new (default -1)"), "{shown}");
    let shown = place.json(&["topic", "show", "t"]);
    assert_eq!(shown["schemas"][2]["defaults"], serde_json::json!({ "label": "-1" }));
    let segments = shown["partitions"][0]["segments"].as_array().unwrap();
    assert_eq!(segments.iter().map(|one| one["schema"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(place.good(&["topic", "verify", "t", "-q"]).starts_with("8 rows are good"));
    assert!(place.good(&["topic", "tail", "t", "-n", "1"]).contains("label=-1"));
}
