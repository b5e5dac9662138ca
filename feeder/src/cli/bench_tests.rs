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
    place.bad(&["bench", "--seconds", "0"], 2, &["seconds=0"]);
    place.bad(&["bench", "--batch-size", "0"], 2, &["global_batch_size=0"]);
    place.bad(&["bench", "--batch-size", "4000000000", "-W", "4"], 2, &["world_size=4"]);
    place.bad(&["bench", "--size", "1 parsec"], 2, &["size="]);
    place.bad(&["bench", "--step-us", "0"], 2, &["step_us=0"]);
    place.bad(&["bench", "--size", "1MiB", "--columns", "nothing"], 3, &["nothing"]);
}
