//! Measurements on small topics: that figures are there and add up, not how large they are.

use super::*;
use crate::error::ErrorKind;

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let settings = Settings { global_batch: 64, reader_threads: Some(1), ..Settings::default() };
    let mut options = Options { settings, seconds: 0.02, step_us: None, cold: false };
    change(&mut options);
    options
}

/// A topic of 300 samples.
fn generated(parent: &Path) -> Generated {
    Generated::make(parent, 300 * 4096).unwrap()
}

fn measure(topic: &Generated, options: &Options) -> Report {
    run(topic.root(), topic.topic(), options).unwrap()
}

#[test]
fn a_generated_topic_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (generated(folder.path()), generated(folder.path()));
    assert_ne!(first.root(), second.root());
    drop((first, second));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(Generated::make(folder.path(), 17).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn what_an_interrupted_process_made_can_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("forebay-bench-0-0")).unwrap();
    (0..2).for_each(|_| std::mem::forget(generated(folder.path())));
    Generated::remove_all(folder.path()).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["forebay-bench-0-0"], "another process's stays");
    assert!(Generated::remove_all(&folder.path().join("nothing")).is_err());
}

#[test]
fn a_batch_larger_than_the_topic_takes_no_more_memory_than_one_of_all_samples() {
    let folder = tempfile::tempdir().unwrap();
    let topic = generated(folder.path());
    let slab = |batch: u32, world: u32| {
        let report = measure(
            &topic,
            &options(|options| {
                (options.settings.global_batch, options.settings.world) = (batch, world);
            }),
        );
        (report.batch_rows, report.pipeline.slab_bytes, report.pipeline.samples / report.pipeline.steps)
    };
    assert_eq!(slab(1 << 24, 1), slab(300, 1));
    assert_eq!(slab(1 << 24, 4), slab(300, 4));
    assert_eq!(slab(1 << 24, 1).0, 300);
}

#[test]
fn a_run_counts_whole_batches() {
    let folder = tempfile::tempdir().unwrap();
    let topic = generated(folder.path());
    for shuffle in [false, true] {
        let report = measure(&topic, &options(|options| options.settings.shuffle = shuffle));
        let (run, limits) = (&report.pipeline, &report.limits);
        assert_eq!((report.samples, report.row_bytes, report.threads), (300, 4104, 1));
        // Four whole batches and one of 44 an epoch.
        let (whole, rest) = (run.steps / 5, run.steps % 5);
        assert_eq!(run.samples, whole * 300 + rest * 64);
        assert_eq!(run.bytes, run.samples * 4104);
        assert!(run.epochs == whole || (run.epochs + 1 == whole && rest == 0), "{run:?}");
        assert!(run.seconds > 0.0 && run.first_batch_ms > 0.0 && run.cpu_s >= 0.0 && run.slab_bytes > 64 * 4104);
        assert!(run.stall_s < run.seconds, "{run:?}");
        assert!(limits.memory_copy > 0.0 && limits.ring > 0.0 && limits.slab > 0.0);
        assert!(limits.disk.as_ref().is_ok_and(|rate| *rate > 0.0) || limits.disk.is_err());
        assert_eq!(report.limit(), Some(("page cache", limits.slab)));
        assert!(reader(&report).starts_with("reader at ") && reader(&report).ends_with("% of the page cache"));
        assert!(trainer(&report).starts_with("a training step of more than "));
    }
}

#[test]
fn a_cold_run_is_one_epoch_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let report = measure(&generated(folder.path()), &options(|options| (options.cold, options.seconds) = (true, 0.5)));
    assert!((1..=5).contains(&report.pipeline.steps));
    match &report.limits.disk {
        // A slab as small as this topic holds all of it.
        Ok(_) => assert!(report.is_all_ahead() && report.limit().is_none(), "{report:?}"),
        Err(why) => assert!(!why.is_empty() && report.limit().is_none()),
    }
}

/// A report with these figures.
fn report(step_us: Option<u64>, stall_s: f64) -> Report {
    let pipeline = Pipeline { steps: 1000, bytes: 9_200_000_000, seconds: 1.0, stall_s, ..Pipeline::default() };
    let limits = Limits { memory_copy: 12.0, ring: 20.0, slab: 10.0, disk: Ok(11.5) };
    Report { samples: 1, row_bytes: 1, batch_rows: 1, threads: 1, cold: false, step_us, limits, pipeline }
}

#[test]
fn figures_become_words() {
    assert_eq!(reader(&report(None, 0.0)), "reader at 92% of the page cache");
    assert_eq!(reader(&Report { cold: true, ..report(None, 0.0) }), "reader at 80% of the disk");
    let mut unknown = Report { cold: true, ..report(None, 0.0) };
    unknown.limits.disk = Err("no direct reads".into());
    assert_eq!(reader(&unknown), "the disk's own rate could not be told");
    let mut few = Report { cold: true, ..report(None, 0.0) };
    few.pipeline.slab_bytes = 1;
    assert!(reader(&few).starts_with("too little data to measure the disk by"), "{}", reader(&few));
    let mut slow = report(Some(1000), 0.0);
    slow.pipeline.bytes = 1_000_000;
    assert_eq!(reader(&slow), "less than 1% of the page cache in use");
    assert_eq!(trainer(&report(None, 0.5)), "a training step of more than 1000 us never waits for data");
    let bound = trainer(&report(Some(340), 0.001));
    assert_eq!(bound, "trainer-bound at 340 us a step: 0.1% of the time is spent waiting for data");
    let late = trainer(&report(Some(340), 0.25));
    assert_eq!(late, "data-bound: a step of 340 us waits 250 us for data, 25% of the time");
}

#[test]
fn a_simulated_step_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let report = measure(&generated(folder.path()), &options(|options| options.step_us = Some(1000)));
    assert!(report.pipeline.step_us() >= 1000.0, "{:?}", report.pipeline);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let topic = generated(folder.path());
    for wrong in [
        options(|options| options.seconds = 0.0),
        options(|options| options.seconds = f64::NAN),
        options(|options| options.step_us = Some(0)),
        options(|options| options.settings.global_batch = 0),
    ] {
        let error = run(topic.root(), topic.topic(), &wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let missing = run(topic.root(), &"nothing".parse().unwrap(), &options(|_| ())).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
