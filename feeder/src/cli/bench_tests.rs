//! `forebay bench` as users meet it.

use super::*;

#[test]
fn bench_measures_a_topic() {
    let place = Place::new();
    let file = place.file("a.npz", &pairs(0, 300));
    place.good(&["ingest", &file, "--topic", "t", "-q"]);
    let quick = ["bench", "t", "--batch-size", "16", "--world-size", "2", "--shuffle", "--seconds", "0.02"];
    let said = place.json(&quick);
    assert_eq!((&said["topic"], &said["samples"], &said["shuffle"]), (&"t".into(), &300.into(), &true.into()));
    let (limits, run) = (&said["limits"], &said["pipeline"]);
    for rate in [&limits["memory_copy_gb_per_s"], &limits["page_cache_ring_gb_per_s"], &limits["page_cache_gb_per_s"]] {
        assert!(rate.as_f64().unwrap() > 0.0, "{said}");
    }
    assert!(limits["disk_gb_per_s"].is_null() != limits["disk_unknown_because"].is_null(), "{said}");
    let (steps, samples) = (run["steps"].as_u64().unwrap(), run["samples"].as_u64().unwrap());
    assert!(
        steps > 0 && samples <= steps * 16 && samples > (steps - 1) / 10 * 150,
        "a rank has half of each step: {said}"
    );
    assert!(said["reader"].as_str().unwrap().contains("page cache"), "{said}");
    let text = place.good(&quick);
    for word in
        ["memory copy", "page cache", "disk", "pipeline", "rank 0 of 2", "us a step", "reader at", "never waits"]
    {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    let paced = place.good(&["bench", "t", "-b", "100", "--seconds", "0.02", "--step-us", "500"]);
    assert!(paced.contains("bound"), "{paced}");
}

#[test]
fn bench_measures_what_is_there_of_a_batch_larger_than_the_topic() {
    let place = Place::new();
    let file = place.file("one.npz", &pairs(0, 1));
    place.good(&["ingest", &file, "--topic", "one", "-q"]);
    let quick = ["bench", "one", "-b", "1000000", "--seconds", "0.01", "--memory-limit-bytes", "2MiB"];
    let said = place.json(&quick);
    assert_eq!((&said["batch_rows"], &said["batch_size"]), (&1.into(), &1_000_000.into()));
    assert!(said["notices"].as_array().unwrap().iter().any(|line| line.as_str().unwrap().starts_with("reader=")));
    let said = place.run(&quick);
    assert!(said.code == 0 && said.out.contains("batches of 1, all there are: "), "{said:?}");
    for word in ["reader=", "caches", "direct=off"] {
        assert!(said.err.contains(word), "no {word:?} in {said:?}");
    }
}

#[test]
fn bench_makes_a_topic_and_removes_it() {
    let place = Place::new();
    let said = place.json(&["bench", "--size", "1MiB", "--seconds", "0.02"]);
    assert!(said["topic"].is_null());
    assert_eq!(said["samples"], 256);
    assert!(!place.root().exists(), "the user's own root is left alone");
}

#[test]
fn bench_says_what_is_wrong() {
    let place = Place::new();
    place.bad(&["bench", "t"], 3, &["error:", "try:"]);
    place.good(&["topic", "create", "empty", "--schema", "id:int64"]);
    let root = format!("try: forebay --root {} ingest FILES... --topic empty\n", place.root().display());
    place.bad(&["bench", "empty"], 3, &["no records", &root]);
    let list = format!("forebay --root {} topic ls\n", place.root().display());
    place.bad(&["bench", "nope"], 3, &["there are empty", &list]);
    place.bad(&["bench", "nope@v1"], 2, &["nope@v1", "dataset show nope@v1"]);
    place.bad(
        &["bench", "--size", "1MiB", "--memory-limit-bytes", "1MiB"],
        10,
        &["limit_bytes=1048576", "memory_limit_bytes"],
    );
    place.bad(&["bench", "--memory-limit-bytes", "much"], 2, &["size=\"much\""]);
    place.bad(&["bench", "--seconds", "0"], 2, &["seconds=0"]);
    place.bad(&["bench", "--batch-size", "0"], 2, &["global_batch_size=0"]);
    place.bad(&["bench", "--batch-size", "4000000000", "-W", "4"], 2, &["world_size=4"]);
    place.bad(&["bench", "--size", "1 parsec"], 2, &["size="]);
    place.bad(&["bench", "--step-us", "0"], 2, &["step_us=0"]);
    place.bad(&["bench", "--size", "1MiB", "--columns", "nothing"], 3, &["nothing"]);
}
