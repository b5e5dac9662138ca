//! The conformance suite that every backend of the store passes. It panics with what is wrong.
//!
//! ```ignore
//! cursorstore::store::testing::conformance(|| MyHarness::new());
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{
    Batch, Changes, Entry, KEY_BYTES_MAX, Mark, Scope, Store, StoreError, StoreErrorKind, StoreExt, VALUE_BYTES_MAX,
};

/// Long enough that a test which waits so long has failed.
const LONG: Duration = Duration::from_secs(60);
/// Steps of each random history.
const STEPS: u64 = 400;

/// One store that the suite may fill.
pub trait Harness {
    /// A handle on it, as another process would open one.
    fn open(&self) -> Arc<dyn Store>;

    /// Lets `act` use a handle whose process dies after so many points (whatever a backend counts), and says whether it
    /// died. `None` where the backend cannot do that.
    fn dying(&self, after: u64, act: &mut dyn FnMut(&dyn Store)) -> Option<bool> {
        let _ = (after, act);
        None
    }
}

/// Runs the whole suite; `make` makes an empty store each time.
pub fn conformance<H: Harness>(make: impl Fn() -> H) {
    empty_scopes_are_empty(&*make().open());
    the_latest_value_counts(&make());
    folds_are_sorted_and_cut_by_prefix(&make());
    an_earlier_writer_is_fenced(&make());
    facts_are_unique(&make());
    watchers_see_each_change(&make());
    waiting_watchers_wake(&make());
    limits_hold(&make());
    (0..3).for_each(|seed| random_histories_agree_with_a_map(&make(), seed));
    batches_are_seen_whole(&make());
    facts_of_many_threads_arrive(&make());
    of_two_values_one_wins(&make());
    every_crash_leaves_before_or_after(&make);
}

fn job() -> Scope {
    Scope::job("vision").expect("a name")
}

fn value(store: &dyn Store, key: &str) -> Option<Vec<u8>> {
    store.get(&job(), key).unwrap().map(|entry| entry.value.to_vec())
}

fn keys(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| &*entry.key).collect()
}

fn state(store: &dyn Store) -> BTreeMap<String, Vec<u8>> {
    let view = store.fold(&job(), "").unwrap();
    view.entries().iter().map(|entry| (entry.key.to_string(), entry.value.to_vec())).collect()
}

fn empty_scopes_are_empty(store: &dyn Store) {
    assert_eq!(store.fold(&job(), "").unwrap().entries(), []);
    assert_eq!(store.fold(&job(), "").unwrap().mark(), Mark::START);
    assert_eq!(store.get(&job(), "a").unwrap(), None);
    assert_eq!(store.watch(&job(), Mark::START, Duration::ZERO).unwrap(), Changes::default());
    assert_eq!(store.scopes().unwrap(), []);
    let error = store.watch(&job(), Mark(1), Duration::ZERO).unwrap_err();
    assert!(matches!(error, StoreError::BeyondEnd { .. }), "{error}");
}

fn the_latest_value_counts(harness: &impl Harness) {
    let (store, other) = (harness.open(), harness.open());
    let mut writer = store.acquire(&job()).unwrap();
    let first = writer.put("a", "1").unwrap();
    let second = writer.append(&Batch::new().put("a", "2").put("b", "1").delete("b").put("c", "")).unwrap();
    assert!(first < second);
    assert_eq!((value(&*store, "a"), value(&*store, "b")), (Some(b"2".to_vec()), None));
    assert_eq!(value(&*other, "c"), Some(Vec::new()), "an empty value is a value");
    assert_eq!(other.get(&job(), "a").unwrap().unwrap().mark, second);
    writer.delete("a").unwrap();
    writer.delete("a").unwrap();
    writer.delete("never").unwrap();
    assert_eq!((value(&*store, "a"), value(&*other, "a")), (None, None));
    writer.put("a", "3").unwrap();
    assert_eq!(value(&*harness.open(), "a"), Some(b"3".to_vec()));

    let elsewhere = Scope::job("audio").unwrap();
    assert_eq!(store.get(&elsewhere, "a").unwrap(), None);
    store.acquire(&elsewhere).unwrap();
    store.fact(&Scope::catalogue(), "x", b"1").unwrap();
    assert_eq!(harness.open().scopes().unwrap(), [Scope::catalogue(), elsewhere, job()]);
}

fn folds_are_sorted_and_cut_by_prefix(harness: &impl Harness) {
    let store = harness.open();
    let mut writer = store.acquire(&job()).unwrap();
    for key in ["checkpoint/b", "run/2", "checkpoint/a", "checkpoint", "run/10", "tag/x"] {
        writer.put(key, key).unwrap();
    }
    let view = harness.open().fold(&job(), "checkpoint/").unwrap();
    assert_eq!(keys(view.entries()), ["checkpoint/a", "checkpoint/b"]);
    let all = store.fold(&job(), "").unwrap();
    assert_eq!(keys(all.entries()), ["checkpoint", "checkpoint/a", "checkpoint/b", "run/10", "run/2", "tag/x"]);
    assert_eq!(keys(all.range("run/")), ["run/10", "run/2"]);
    assert_eq!(keys(all.range("zebra")), Vec::<&str>::new());
    assert_eq!(all.get("run/2").map(|entry| &*entry.value), Some(&b"run/2"[..]));
    assert_eq!(all.get("run/3"), None);
    writer.put("run/3", "").unwrap();
    assert_eq!(all.get("run/3"), None, "a view is one moment");
    assert!(all.mark() < store.fold(&job(), "").unwrap().mark());
}

fn an_earlier_writer_is_fenced(harness: &impl Harness) {
    let (store, other, reader) = (harness.open(), harness.open(), harness.open());
    let told = || (store.generation(&job()).unwrap(), reader.generation(&job()).unwrap());
    assert_eq!(told(), (0, 0));
    let mut old = store.acquire(&job()).unwrap();
    assert_eq!(told(), (old.generation(), old.generation()));
    old.put("a", "old").unwrap();
    assert_eq!(told(), (old.generation(), old.generation()));
    let mut elsewhere = store.acquire(&Scope::catalogue()).unwrap();
    let mut new = other.acquire(&job()).unwrap();
    assert!(new.generation() > old.generation());
    assert_eq!(told(), (new.generation(), new.generation()));
    for batch in [Batch::new().put("a", "late"), Batch::new()] {
        match old.append(&batch).unwrap_err() {
            StoreError::Fenced { scope, generation, newest } => {
                assert_eq!((scope, generation, newest), (job(), old.generation(), new.generation()));
            }
            error => panic!("wanted Fenced, got {error}"),
        }
    }
    assert_eq!(value(&*store, "a"), Some(b"old".to_vec()));
    new.put("a", "new").unwrap();
    assert_eq!(value(&*store, "a"), Some(b"new".to_vec()));
    assert_eq!(old.delete("a").unwrap_err().kind(), StoreErrorKind::Fenced, "fenced for ever");
    elsewhere.put("a", "1").expect("other scopes are none of it");

    let generation = new.generation();
    drop((new, store, other, reader));
    let again = harness.open().acquire(&job()).unwrap();
    assert!(again.generation() > generation, "generations outlive handles");
    assert_eq!(value(&*harness.open(), "a"), Some(b"new".to_vec()));
}

fn facts_are_unique(harness: &impl Harness) {
    let (store, other) = (harness.open(), harness.open());
    let mut writer = store.acquire(&job()).unwrap();
    writer.put("record", "1").unwrap();
    other.fact(&job(), "digest/1", b"x").unwrap();
    let mark = store.fold(&job(), "").unwrap().mark();
    store.fact(&job(), "digest/1", b"x").unwrap();
    assert_eq!(store.fold(&job(), "").unwrap().mark(), mark, "the same again is no change");
    for (key, value) in [("digest/1", b"y"), ("record", b"1"), ("record", b"2")] {
        let error = store.add_facts(&job(), &[("digest/2", b"x"), (key, value)]).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    }
    assert_eq!(value(&*store, "digest/2"), None, "all or none");
    let error = other.add_facts(&job(), &[("twice", b"x"), ("twice", b"y")]).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict);
    other.add_facts(&job(), &[("twice", b"x"), ("twice", b"x"), ("digest/1", b"x")]).unwrap();
    assert!(store.get(&job(), "twice").unwrap().unwrap().is_fact);
    assert!(!store.get(&job(), "record").unwrap().unwrap().is_fact);

    let error = writer.append(&Batch::new().put("record", "2").put("digest/1", "x")).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "a writer does not replace facts");
    assert_eq!(value(&*store, "record"), Some(b"1".to_vec()));
    writer.delete("digest/1").expect("facts fence nobody, and the writer may delete them");
    other.fact(&job(), "digest/1", b"y").unwrap();
    assert_eq!(value(&*store, "digest/1"), Some(b"y".to_vec()));
    other.fact(&Scope::subscription("s").unwrap(), "extent/1", b"x").expect("facts need no writer");
}

fn watchers_see_each_change(harness: &impl Harness) {
    let (store, other) = (harness.open(), harness.open());
    let mut writer = store.acquire(&job()).unwrap();
    let mark = writer.append(&Batch::new().put("a", "1").put("b", "1")).unwrap();
    let look = |from| other.watch(&job(), from, Duration::ZERO).unwrap();
    let shown = |changes: &Changes| {
        let text = |value: &Option<Arc<[u8]>>| value.as_ref().map(|value| String::from_utf8(value.to_vec()).unwrap());
        changes.changes.iter().map(|(key, value)| (key.to_string(), text(value))).collect::<Vec<_>>()
    };
    let set = |key: &str, value: &str| (key.to_string(), Some(value.to_string()));
    assert_eq!(shown(&look(Mark::START)), [set("a", "1"), set("b", "1")]);
    assert_eq!(look(mark), Changes { mark, whole: false, changes: vec![] });
    writer.put("b", "2").unwrap();
    other.fact(&job(), "f", b"1").unwrap();
    let last = writer.append(&Batch::new().put("a", "2").delete("b").put("a", "3")).unwrap();
    let changes = look(mark);
    let mut expected = vec![set("f", "1"), ("b".into(), None), set("a", "3")];
    if changes.whole {
        expected.remove(1);
    }
    assert_eq!((shown(&changes), changes.mark), (expected, last));
    assert_eq!(look(last).changes, []);
    assert_eq!(other.watch(&job(), last, Duration::from_millis(1)).unwrap().changes, []);
    assert!(other.watch(&job(), Mark(last.0 + 1), Duration::ZERO).is_err());
}

fn waiting_watchers_wake(harness: &impl Harness) {
    let (store, near, far) = (harness.open(), harness.open(), harness.open());
    let first = |store: &dyn Store| {
        let mut mark = Mark::START;
        loop {
            let changes = store.watch(&job(), mark, LONG).unwrap();
            assert!(changes.mark > mark, "nothing came");
            mark = changes.mark;
            if let Some((key, _)) = changes.changes.first() {
                return key.clone();
            }
        }
    };
    thread::scope(|threads| {
        let same = threads.spawn(|| first(&*store));
        let other = threads.spawn(|| first(&*far));
        let run = threads.spawn(|| far.wait_for(&job(), "run/2", LONG).unwrap());
        let mut writer = store.acquire(&job()).unwrap();
        writer.put("run/1", "x").unwrap();
        assert_eq!((&*same.join().unwrap(), &*other.join().unwrap()), ("run/1", "run/1"));
        near.fact(&job(), "run/2", b"y").unwrap();
        assert_eq!(&*run.join().unwrap().expect("it came").value, b"y");
    });
    assert_eq!(near.wait_for(&job(), "run/3", Duration::from_millis(1)).unwrap(), None);
}

fn limits_hold(harness: &impl Harness) {
    let store = harness.open();
    let mut writer = store.acquire(&job()).unwrap();
    let long = "k".repeat(KEY_BYTES_MAX);
    for key in ["", "a b", "/a", &format!("{long}k")] {
        assert_eq!(writer.put(key, "x").unwrap_err().kind(), StoreErrorKind::Invalid, "{key:?}");
        assert_eq!(store.fact(&job(), key, b"x").unwrap_err().kind(), StoreErrorKind::Invalid, "{key:?}");
    }
    let large = vec![7; VALUE_BYTES_MAX + 1];
    assert_eq!(writer.put("a", &large[..]).unwrap_err().kind(), StoreErrorKind::Invalid);
    assert_eq!(store.fact(&job(), "a", &large).unwrap_err().kind(), StoreErrorKind::Invalid);
    let batch = (0..20).fold(Batch::new(), |batch, at| batch.put(format!("k{at}"), &large[1..]));
    assert_eq!(writer.append(&batch).unwrap_err().kind(), StoreErrorKind::Invalid);
    assert!(state(&*store).is_empty());
    writer.append(&Batch::new().put(&*long, &large[1..]).put("b", &large[1..])).unwrap();
    assert_eq!(value(&*harness.open(), &long).as_deref(), Some(&large[1..]));
}

/// A small generator of numbers, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn random_histories_agree_with_a_map(harness: &impl Harness, seed: u64) {
    let mut numbers = Numbers(seed);
    let mut stores = [harness.open(), harness.open()];
    let mut writer = stores[0].acquire(&job()).unwrap();
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut mirror: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut mark = Mark::START;
    for step in 0..STEPS {
        let store = stores[numbers.below(2) as usize].clone();
        match numbers.below(20) {
            0 => {
                let mut old = std::mem::replace(&mut writer, store.acquire(&job()).unwrap());
                assert_eq!(old.put("k0", "x").unwrap_err().kind(), StoreErrorKind::Fenced);
            }
            1 => stores[numbers.below(2) as usize] = harness.open(),
            2..5 => {
                let key = format!("fact/{}", numbers.below(50));
                let value = vec![numbers.below(2) as u8; 20];
                let is_same = model.get(&key).is_none_or(|old| *old == value);
                assert_eq!(store.fact(&job(), &key, &value).is_ok(), is_same);
                model.entry(key).or_insert(value);
            }
            _ => {
                let mut batch = Batch::new();
                for _ in 0..=numbers.below(3) {
                    let key = format!("k{}", numbers.below(12));
                    if numbers.below(4) == 0 {
                        batch = batch.delete(&*key);
                        model.remove(&key);
                    } else {
                        let value = step.to_le_bytes().repeat(numbers.below(8) as usize);
                        batch = batch.put(&*key, &*value);
                        model.insert(key, value);
                    }
                }
                writer.append(&batch).unwrap();
            }
        }
        if numbers.below(4) == 0 {
            assert_eq!(state(&*store), model, "seed={seed} step={step}");
            let changes = store.watch(&job(), mark, Duration::ZERO).unwrap();
            assert!(changes.mark >= mark);
            if changes.whole {
                mirror.clear();
            }
            for (key, value) in changes.changes {
                match value {
                    Some(value) => mirror.insert(key.to_string(), value.to_vec()),
                    None => mirror.remove(&*key),
                };
            }
            mark = changes.mark;
            assert_eq!(mirror, model, "watched: seed={seed} step={step}");
        }
    }
    assert_eq!(state(&*harness.open()), model, "seed={seed}");
}

fn batches_are_seen_whole(harness: &impl Harness) {
    let (store, done) = (harness.open(), AtomicBool::new(false));
    thread::scope(|threads| {
        for _ in 0..3 {
            let reader = harness.open();
            let done = &done;
            threads.spawn(move || {
                let mut last = (None, Mark::START);
                while !done.load(Ordering::Relaxed) {
                    let view = reader.fold(&job(), "").unwrap();
                    let values: Vec<_> = view.entries().iter().map(|entry| entry.value.clone()).collect();
                    assert!(values.is_empty() || values.len() == 3, "part of a batch: {values:?}");
                    assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "part of a batch: {values:?}");
                    let now = (values.first().cloned(), view.mark());
                    assert!(last.1 <= now.1 && last.0 <= now.0, "went back: {last:?} {now:?}");
                    last = now;
                }
            });
        }
        let mut writer = store.acquire(&job()).unwrap();
        for step in 0..300u32 {
            let value = step.to_be_bytes();
            writer.append(&Batch::new().put("a", value).put("b", value).put("c", value)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

fn facts_of_many_threads_arrive(harness: &impl Harness) {
    let store = harness.open();
    thread::scope(|threads| {
        for rank in 0..4 {
            let store = if rank < 2 { store.clone() } else { harness.open() };
            threads.spawn(move || {
                for step in 0..25 {
                    store.fact(&job(), &format!("digest/{step}/{rank}"), &[rank]).unwrap();
                }
            });
        }
        let mut writer = store.acquire(&job()).unwrap();
        for step in 0..50 {
            writer.put(format!("step/{step}"), "x").unwrap();
        }
    });
    let view = harness.open().fold(&job(), "").unwrap();
    assert_eq!((view.range("digest/").len(), view.range("step/").len()), (100, 50));
}

fn of_two_values_one_wins(harness: &impl Harness) {
    for round in 0..10 {
        let key = format!("contested/{round}");
        let won: usize = thread::scope(|threads| {
            let tries: Vec<_> = (0..4u8)
                .map(|rank| {
                    let (store, key) = (harness.open(), &key);
                    threads.spawn(move || match store.fact(&job(), key, &[rank]) {
                        Ok(()) => 1,
                        Err(error) if error.kind() == StoreErrorKind::Conflict => 0,
                        Err(error) => panic!("{error}"),
                    })
                })
                .collect();
            tries.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }
}

/// For each kind of write: dies at every point of it, and finds what was acknowledged, with nothing of what was not or
/// all of it.
fn every_crash_leaves_before_or_after<H: Harness>(make: &impl Fn() -> H) {
    type Act = fn(&dyn Store) -> bool;
    let acts: [(&str, Act); 5] = [
        ("first acquire", |store| store.acquire(&Scope::job("new").expect("a name")).is_ok()),
        ("first fact", |store| store.fact(&Scope::job("new").expect("a name"), "f", b"1").is_ok()),
        ("acquire", |store| store.acquire(&job()).is_ok()),
        ("append", |store| {
            let Ok(mut writer) = store.acquire(&job()) else { return false };
            writer.append(&Batch::new().put("a", "2").put("b", "2").delete("c")).is_ok()
        }),
        ("fact", |store| store.add_facts(&job(), &[("f", b"1"), ("g", b"1")]).is_ok()),
    ];
    for (name, act) in acts {
        for after in 0.. {
            let harness = make();
            let mut writer = harness.open().acquire(&job()).unwrap();
            writer.append(&Batch::new().put("a", "1").put("c", "1")).unwrap();
            let before = state(&*harness.open());
            let mut acknowledged = false;
            let Some(died) = harness.dying(after, &mut |store| acknowledged = act(store)) else { return };
            let store = harness.open();
            let found = state(&*store);
            // What is acknowledged must be there; what is not may be there as a whole.
            let new = Scope::job("new").expect("a name");
            let is_after = match name {
                "first acquire" | "acquire" => found == before,
                "first fact" => store.get(&new, "f").unwrap().is_some(),
                "append" => found.len() == 2 && found["a"] == b"2" && found["b"] == b"2",
                _ => found.len() == before.len() + 2 && found.contains_key("f") && found.contains_key("g"),
            };
            let is_before = found == before;
            assert!(if acknowledged { is_after } else { is_before || is_after }, "{name} after={after}: {found:?}");
            // And it goes on.
            let scope = if name.starts_with("first") { new } else { job() };
            let mut next = store.acquire(&scope).unwrap();
            next.put("next", "1").unwrap();
            store.fact(&scope, "more", b"1").unwrap();
            let mut expected: Vec<String> =
                found.keys().filter(|_| scope == job()).cloned().chain(["more".into(), "next".into()]).collect();
            if is_after && name == "first fact" {
                expected.push("f".into());
            }
            expected.sort();
            assert_eq!(keys(harness.open().fold(&scope, "").unwrap().entries()), expected, "{name} after={after}");
            if !died {
                assert!(acknowledged && after > 0, "{name}");
                break;
            }
        }
    }
}
