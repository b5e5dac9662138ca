//! Runs and checkpoints over the double in memory and over files: who may write, where runs start, what stays.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cursorstore::records::run::StartedFrom;
use cursorstore::records::{Checkpoint, Guard, Record, Run};
use cursorstore::store::embedded::faults::{Fault, Step, with};
use cursorstore::store::memory::Memory;
use cursorstore::store::{Batch, Embedded, Scope, Store};
use cursorstore::{Cursor, Extent, Incarnation, PlanKey, State, Window};
use nix::errno::Errno;

use super::history::is_gone;
use super::lineage::lineage;
use super::*;
use crate::error::{Error, ErrorKind};

const JOB: &str = "vision";
const SHAPE: Shape = Shape { world: 2, batch: 10, drop_last: false };
const NOW: Duration = Duration::ZERO;

/// A state over 1000 samples.
fn state(epoch: u64, n: u64) -> State {
    seeded(7, epoch, n)
}

fn seeded(seed: u64, epoch: u64, n: u64) -> State {
    let extents =
        [(0, 600), (1, 400)].map(|(segment, to)| Extent { segment, incarnation: Incarnation(9), from: 0, to });
    let plan = PlanKey { version: 1, shuffle: true, seed, lanes: 64, chunk: 128, pool: 4 };
    let windows = vec![Window { extents: extents.to_vec() }];
    State::new("digits".parse().unwrap(), windows, plan, Cursor { epoch, n })
}

fn settings(attempt: &str, resume: &str) -> Settings {
    let attempt = Some(attempt.to_string()).filter(|attempt| !attempt.is_empty());
    let revision = Some("4f0c2d1".to_string());
    Settings { job: JOB.into(), attempt, resume: resume.parse().unwrap(), revision, keep: Keep::default() }
}

fn open(store: &Arc<dyn Store>, attempt: &str, resume: &str) -> Session {
    Session::open(store.clone(), Path::new("nowhere"), settings(attempt, resume)).unwrap()
}

/// A loader as far as a session cares.
struct Standing(RefCell<State>);

impl Standing {
    fn place(&self, state: Option<&State>) -> Result<State> {
        if let Some(state) = state {
            self.0.replace(state.clone());
        }
        Ok(self.0.borrow().clone())
    }
}

/// Rank 0, and where it starts.
fn try_lead(store: &Arc<dyn Store>, attempt: &str, resume: &str) -> Result<(Session, State)> {
    let mut session = open(store, attempt, resume);
    let loader = Standing(RefCell::new(state(0, 0)));
    session.lead(false, SHAPE, &mut |state| loader.place(state))?;
    Ok((session, loader.0.into_inner()))
}

fn lead(store: &Arc<dyn Store>, attempt: &str, resume: &str) -> (Session, State) {
    try_lead(store, attempt, resume).unwrap()
}

fn lead_at(store: &Arc<dyn Store>, attempt: &str, state: &State) -> Session {
    let mut session = open(store, attempt, "latest");
    session.lead(true, SHAPE, &mut |_| Ok(state.clone())).unwrap();
    session
}

fn at(step: u64, state: State) -> Commit {
    Commit { step, path: None, tag: None, state, keep: None }
}

fn history(store: &Arc<dyn Store>) -> History {
    History::of(&**store, JOB).unwrap()
}

fn latest(store: &Arc<dyn Store>) -> Option<u64> {
    history(store).latest(&is_gone).unwrap().checkpoint.map(|checkpoint| checkpoint.step)
}

fn steps(store: &Arc<dyn Store>) -> Vec<u64> {
    history(store).briefs().unwrap().iter().map(|brief| brief.step).collect()
}

fn refused<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("it was not refused") };
    assert_eq!(error.kind(), kind, "{error}");
    let text = format!("{} {}", error.report(), error.hint().unwrap_or_default());
    words.iter().for_each(|word| assert!(text.contains(word), "no {word:?} in {text}"));
    error
}

/// Runs a test over both stores.
fn everywhere(test: impl Fn(Arc<dyn Store>)) {
    test(Arc::new(Memory::new()));
    let dir = tempfile::tempdir().unwrap();
    test(Arc::new(Embedded::open(dir.path()).unwrap()));
}

#[test]
fn the_next_run_goes_on_from_the_last_commit() {
    everywhere(|store| {
        assert!(History::read(&*store, JOB).unwrap().is_none());
        let (mut first, start) = lead(&store, "a-0", "latest");
        assert_eq!((start, first.run().unwrap().from.clone()), (state(0, 0), StartedFrom::Beginning));
        assert_eq!(latest(&store), None);
        let committed = first.commit(Commit { tag: Some("best".into()), ..at(5, state(0, 50)) }).unwrap();
        assert_eq!(committed, Committed { data_step: 5, removed: vec![] });
        first.commit(Commit { path: Some("s3://models/7".into()), ..at(7, state(0, 70)) }).unwrap();
        // Taken before, committed after: as with files that are written in the background.
        assert_eq!(first.commit(at(8, state(0, 60))).unwrap().data_step, 6);

        let (mut second, start) = lead(&store, "a-1", "latest");
        assert_eq!(start, state(0, 60));
        assert_eq!(second.started_at().unwrap().step, 8);
        let run = second.run().unwrap();
        assert_eq!((&run.from, run.parent, run.data_step), (&StartedFrom::Checkpoint { step: 8 }, Some(1), 6));
        assert_eq!(second.commit(at(9, state(1, 20))).unwrap().data_step, 102);

        let found = history(&store).find(&"9".parse().unwrap()).unwrap();
        assert_eq!((found.revision.as_deref(), found.generation), (Some("4f0c2d1"), 2));
        let parts = lineage(&history(&store), &found).unwrap();
        let ranges: Vec<_> = parts.iter().map(|part| (part.run.generation, part.run.state.cursor, part.to)).collect();
        let cursor = |epoch, n| Cursor { epoch, n };
        assert_eq!(ranges, [(1, cursor(0, 0), cursor(0, 60)), (2, cursor(0, 60), cursor(1, 20))]);

        let guard = store.get(&scope_of(JOB).unwrap(), &Guard::key_of(&found.key())).unwrap().unwrap();
        assert_eq!(Guard::decode(&guard.value).unwrap().ranges, state(0, 0).windows[0].extents);
    });
}

#[test]
fn steps_only_grow_and_the_same_again_is_no_change() {
    everywhere(|store| {
        let (mut run, _) = lead(&store, "a", "latest");
        let commit = Commit { tag: Some("t".into()), ..at(5, state(0, 50)) };
        run.commit(commit.clone()).unwrap();
        run.commit(commit.clone()).expect("again");
        run.commit(at(5, state(0, 50))).expect("again, the tag is there already");
        refused(run.commit(at(5, state(0, 60))), ErrorKind::Invalid, &["steps only grow", "step=5 last=5"]);
        refused(run.commit(Commit { path: Some("/x".into()), ..commit }), ErrorKind::Invalid, &["steps only grow"]);
        refused(run.commit(at(4, state(0, 60))), ErrorKind::Invalid, &["the last commit", "step=4 last=5"]);
        refused(
            run.commit(at(6, seeded(8, 0, 60))),
            ErrorKind::StateMismatch,
            &["other records or another order", "step=6"],
        );
        refused(run.commit(Commit { tag: Some("30".into()), ..at(6, state(0, 60)) }), ErrorKind::Invalid, &["tag"]);
        refused(
            run.commit(Commit { path: Some("x".repeat(5000)), ..at(6, state(0, 60)) }),
            ErrorKind::Invalid,
            &["bytes=5000"],
        );
        let (mut next, _) = lead(&store, "b", "latest");
        next.commit(at(5, state(0, 50))).expect("what the run started from, again");
        refused(next.commit(at(5, state(0, 60))), ErrorKind::Invalid, &["that this run started from"]);
        assert_eq!(steps(&store), [5]);
    });
}

#[test]
fn an_earlier_run_is_refused_and_moves_nothing() {
    everywhere(|store| {
        let (mut old, _) = lead(&store, "a", "latest");
        old.commit(at(1, state(0, 10))).unwrap();
        old.fence().check().unwrap();
        let (new, _) = lead(&store, "b", "latest");
        let words =
            ["a later run of the job has taken over", "generation=1 newest=2 attempt=\"b\"", "stop this process"];
        refused(old.fence().check(), ErrorKind::Fenced, &words);
        refused(old.commit(at(2, state(0, 20))), ErrorKind::Fenced, &words);
        refused(old.commit(at(1, state(0, 10))), ErrorKind::Fenced, &words);
        let again = old.lead(true, SHAPE, &mut |_| Ok(state(0, 10)));
        refused(again, ErrorKind::Fenced, &words);
        new.fence().check().unwrap();
        assert_eq!((steps(&store), latest(&store)), (vec![1], Some(1)));
    });
}

#[test]
fn what_was_committed_until_the_last_moment_counts() {
    everywhere(|store| {
        let (mut old, _) = lead(&store, "a", "latest");
        old.commit(at(1, state(0, 10))).unwrap();
        let mut new = open(&store, "b", "latest");
        let loader = Standing(RefCell::new(state(0, 0)));
        let mut late = Some(at(2, state(0, 20)));
        let place = &mut |state: Option<&State>| {
            let placed = loader.place(state);
            if let Some(late) = late.take() {
                old.commit(late).unwrap();
            }
            placed
        };
        new.lead(false, SHAPE, place).unwrap();
        assert_eq!((new.started_at().unwrap().step, loader.0.into_inner()), (2, state(0, 20)));
    });
}

#[test]
fn what_cannot_be_honoured_fences_nobody() {
    everywhere(|store| {
        let (mut old, _) = lead(&store, "a", "latest");
        old.commit(at(1, state(0, 10))).unwrap();
        let mut new = open(&store, "b", "latest");
        let place = &mut |_: Option<&State>| Err(Error::new(ErrorKind::StateMismatch, "another seed"));
        refused(new.lead(false, SHAPE, place), ErrorKind::StateMismatch, &["another seed"]);
        refused(try_lead(&store, "b", "7"), ErrorKind::NotFound, &["the nearest is 1"]);
        refused(try_lead(&store, "", "latest"), ErrorKind::Invalid, &["attempt=", "torchrun", "load_state_dict"]);
        let extents =
            (0..40_000).map(|n| Extent { segment: 0, incarnation: Incarnation(9), from: 2 * n, to: 2 * n + 1 });
        let large = State::new(
            "digits".parse().unwrap(),
            vec![Window { extents: extents.collect() }],
            state(0, 0).plan,
            Cursor { epoch: 0, n: 0 },
        );
        let words = ["too large to be stored", "bytes_max=1000000", "dataset pin"];
        refused(open(&store, "b", "never").lead(true, SHAPE, &mut |_| Ok(large.clone())), ErrorKind::Invalid, &words);
        old.commit(at(2, state(0, 20))).expect("it is still the job's run");
    });
}

#[test]
fn followers_start_where_rank_0_of_their_attempt_does() {
    everywhere(|store| {
        let mut follower = open(&store, "a-1", "latest");
        assert!(!follower.follow(None, SHAPE, NOW).unwrap(), "nobody has begun");
        let (mut earlier, _) = lead(&store, "a-0", "latest");
        earlier.commit(at(3, state(0, 30))).unwrap();
        assert!(!follower.follow(None, SHAPE, NOW).unwrap(), "another attempt");
        let late = Err::<(), _>(follower.late(1, Duration::from_secs(9)));
        refused(late, ErrorKind::Timeout, &["attempt=\"a-1\" rank=1 waited_s=9", "same job=, attempt= and root="]);
        follower.fence().check().expect("it belongs to no run yet");

        let (mut leader, _) = lead(&store, "a-1", "latest");
        assert!(follower.follow(None, SHAPE, NOW).unwrap());
        let run = follower.run().unwrap();
        assert_eq!((&run.state, run.generation), (&state(0, 30), 2));
        assert_eq!(follower.started_at().unwrap().step, 3);
        refused(follower.commit(at(4, state(0, 40))), ErrorKind::Invalid, &["only rank 0"]);
        leader.commit(at(4, state(0, 40))).unwrap();
        follower.fence().check().expect("commits change nothing");

        let _later = lead(&store, "a-2", "latest");
        refused(follower.fence().check(), ErrorKind::Fenced, &["attempt=\"a-2\""]);
        let mut stale = open(&store, "a-1", "latest");
        refused(stale.follow(None, SHAPE, NOW), ErrorKind::Fenced, &["newest=3"]);
    });
}

#[test]
fn a_follower_that_waits_is_woken() {
    everywhere(|store| {
        let mut follower = open(&store, "a", "latest");
        let other = store.clone();
        let leader = std::thread::spawn(move || lead(&other, "a", "latest").1);
        assert!(follower.follow(None, SHAPE, Duration::from_secs(60)).unwrap());
        assert_eq!(follower.run().unwrap().state, leader.join().unwrap());
    });
}

#[test]
fn a_run_of_an_earlier_life_of_the_attempt_is_not_taken() {
    everywhere(|store| {
        let (_, _) = lead(&store, "again", "latest");
        let own = history(&store).newest_run().unwrap().unwrap();
        // The same attempt, by a process that has ended: no process began at the machine's first tick.
        let process = own.process.clone().unwrap();
        let dead = format!("{}/1", process.rsplit_once('/').unwrap().0);
        let mut writer = store.acquire(&scope_of(JOB).unwrap()).unwrap();
        let record = Run { generation: writer.generation(), process: Some(dead), ..own };
        writer.append(&Batch::new().record(&record)).unwrap();
        let mut follower = open(&store, "again", "latest");
        assert!(!follower.follow(None, SHAPE, NOW).unwrap());
        let late = Err::<(), _>(follower.late(1, NOW));
        refused(late, ErrorKind::Timeout, &["its rank 0 is gone (generation=2"]);
        let (_leader, _) = lead(&store, "again", "latest");
        assert!(follower.follow(None, SHAPE, NOW).unwrap());
        assert_eq!(follower.run().unwrap().generation, 3);
    });
}

#[test]
fn a_follower_too_early_for_a_new_life_is_refused_before_it_trains() {
    everywhere(|store| {
        let (_old, _) = lead(&store, "again", "latest");
        let mut follower = open(&store, "again", "latest");
        assert!(follower.follow(None, SHAPE, NOW).unwrap(), "nothing tells that rank 0 is to come once more");
        let (_new, _) = lead(&store, "again", "latest");
        refused(follower.fence().check(), ErrorKind::Fenced, &["generation=1 newest=2"]);
    });
}

#[test]
fn a_state_of_the_callers_needs_no_attempt_and_must_be_rank_0s_too() {
    everywhere(|store| {
        let mine = state(3, 70);
        let mut follower = open(&store, "", "latest");
        refused(follower.follow(None, SHAPE, NOW), ErrorKind::Invalid, &["nothing says it"]);
        let leader = lead_at(&store, "", &state(3, 60));
        assert!(!follower.follow(Some(&mine), SHAPE, NOW).unwrap());
        let late = Err::<(), _>(follower.late(1, NOW));
        refused(late, ErrorKind::Timeout, &["it began at another state (generation=1)"]);
        assert_eq!((leader.run().unwrap().data_step, &leader.run().unwrap().from), (306, &StartedFrom::State));
        let _leader = lead_at(&store, "", &mine);
        assert!(follower.follow(Some(&mine), SHAPE, NOW).unwrap());

        // Loading another state begins another run, on all ranks.
        let mut leader = lead_at(&store, "x", &mine);
        let mut follower = open(&store, "x", "latest");
        assert!(follower.follow(Some(&mine), SHAPE, NOW).unwrap());
        assert!(!follower.follow(Some(&state(1, 0)), SHAPE, NOW).unwrap());
        leader.lead(true, SHAPE, &mut |_| Ok(state(1, 0))).unwrap();
        assert!(follower.follow(Some(&state(1, 0)), SHAPE, NOW).unwrap());
        assert_eq!(follower.run().unwrap().generation, leader.run().unwrap().generation);
    });
}

#[test]
fn going_back_abandons_what_came_after() {
    everywhere(|store| {
        let (mut run, _) = lead(&store, "a", "latest");
        for step in 1..=4 {
            run.commit(Commit { tag: Some(format!("t{step}")), ..at(step, state(0, step * 10)) }).unwrap();
        }
        let (mut back, start) = lead(&store, "b", "tag:t2");
        assert_eq!((start, latest(&store), steps(&store)), (state(0, 20), Some(2), vec![1, 2, 3, 4]));
        let committed = back.commit(at(3, state(0, 35))).unwrap();
        assert_eq!(committed.data_step, 4);
        assert_eq!(latest(&store), Some(3));
        // Step 3 is another one now: the tag that named the abandoned one is gone, that of step 4 is not.
        assert!(back.take_notices()[0].contains("tag=t3"));
        assert_eq!(history(&store).tags().keys().collect::<Vec<_>>(), ["t1", "t2", "t4"]);

        let (_, start) = lead(&store, "c", "never");
        assert_eq!((start, latest(&store)), (state(0, 0), None));
        let (_, start) = lead(&store, "d", "latest");
        assert_eq!(start, state(0, 0), "never means it");
        let (_, start) = lead(&store, "e", "4");
        assert_eq!((start, latest(&store)), (state(0, 40), Some(4)), "what was abandoned can be taken back");
    });
}

#[test]
fn a_state_that_a_checkpoint_has_is_that_checkpoint() {
    everywhere(|store| {
        let (mut run, _) = lead(&store, "a", "latest");
        for step in 1..=3 {
            run.commit(at(step, state(0, step * 10))).unwrap();
        }
        let mut back = lead_at(&store, "b", &state(0, 20));
        assert_eq!(back.run().unwrap().from, StartedFrom::Checkpoint { step: 2 });
        assert_eq!(latest(&store), Some(2));
        refused(back.commit(at(2, state(0, 30))), ErrorKind::Invalid, &["steps only grow"]);
        let back = lead_at(&store, "c", &state(0, 30));
        assert_eq!(back.run().unwrap().from, StartedFrom::Checkpoint { step: 3 }, "an abandoned one, too");
    });
}

#[test]
fn back_at_its_own_start_a_run_starts_as_it_did() {
    everywhere(|store| {
        let (mut run, start) = lead(&store, "a", "latest");
        run.lead(true, SHAPE, &mut |_| Ok(start.clone())).unwrap();
        assert_eq!(run.run().unwrap().from, StartedFrom::Beginning);
        assert_eq!(lead(&store, "b", "latest").1, start);
    });
}

#[test]
fn nobody_guesses_where_a_foreign_state_led() {
    everywhere(|store| {
        let (mut run, _) = lead(&store, "a", "latest");
        run.commit(at(1, state(0, 10))).unwrap();
        let mut foreign = lead_at(&store, "b", &state(5, 0));
        assert_eq!(latest(&store), None);
        let words = ["a state that its caller brought", "load_state_dict(state) again"];
        refused(try_lead(&store, "c", "latest"), ErrorKind::Invalid, &words);
        foreign.commit(at(1, state(5, 10))).expect("steps begin anew, and take the place of abandoned ones");
        assert_eq!((latest(&store), lead(&store, "c", "latest").1), (Some(1), state(5, 10)));
    });
}

#[test]
fn what_is_not_kept_goes_with_its_guard() {
    everywhere(|store| {
        let keys = |prefix: &str| {
            let view = store.fold(&scope_of(JOB).unwrap(), prefix).unwrap();
            view.entries().iter().map(|e| e.key.rsplit('/').next().unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
        };
        let (mut run, _) = lead(&store, "a", "latest");
        for step in 1..=6 {
            let tag = (step == 2).then(|| "good".to_string());
            run.commit(Commit { tag, ..at(step, state(0, step * 10)) }).unwrap();
        }
        let mut settings = settings("b", "5");
        settings.keep = Keep { last: Some(2), every: Some(3) };
        let mut run = Session::open(store.clone(), Path::new("nowhere"), settings).unwrap();
        let loader = Standing(RefCell::new(state(0, 0)));
        run.lead(false, SHAPE, &mut |state| loader.place(state)).unwrap();
        // On the trail are 1 to 5; 6 is abandoned, and the trail does not pass it yet.
        assert_eq!(run.commit(at(6, state(0, 66))).unwrap().removed, [1, 4]);
        assert_eq!(keys("checkpoint/"), [2, 3, 5, 6]);
        assert_eq!(run.commit(at(9, state(0, 90))).unwrap().removed, [5]);
        assert_eq!(run.commit(at(10, state(0, 99))).unwrap().removed, [0; 0]);
        let keep = Some(Keep { last: Some(1), every: None });
        assert_eq!(run.commit(Commit { keep, ..at(11, state(1, 0)) }).unwrap().removed, [3, 6, 9, 10]);
        assert_eq!((keys("checkpoint/"), keys("guard/")), (vec![2, 11], vec![2, 11]));
        let zero = Some(Keep { last: Some(0), every: None });
        refused(run.commit(Commit { keep: zero, ..at(12, state(1, 10)) }), ErrorKind::Invalid, &["keep_last=0"]);
        assert_eq!(lead(&store, "c", "latest").1, state(1, 0));
    });
}

#[test]
fn a_checkpoint_whose_file_is_gone_is_passed_over() {
    everywhere(|store| {
        let dir = tempfile::tempdir().unwrap();
        let path = |step: u64| dir.path().join(format!("{step}.pt")).display().to_string();
        let (mut run, _) = lead(&store, "a", "latest");
        for step in 1..=3 {
            fs::write(path(step), "model").unwrap();
            run.commit(Commit { path: Some(path(step)), ..at(step, state(0, step * 10)) }).unwrap();
        }
        fs::remove_file(path(3)).unwrap();
        assert_eq!(latest(&store), Some(2));
        let (mut next, start) = lead(&store, "b", "latest");
        assert_eq!(start, state(0, 20));
        let notices = next.take_notices();
        assert!(notices.len() == 1 && notices[0].contains("step=3 path="), "{notices:?}");
        assert!(next.take_notices().is_empty());

        fs::remove_file(path(1)).unwrap();
        fs::remove_file(path(2)).unwrap();
        assert_eq!(latest(&store), None);
        let words = ["every checkpoint is gone", "checkpoints=2 step=2 path=", "resume=2", "\"never\""];
        refused(try_lead(&store, "c", "latest").map(|_| ()), ErrorKind::NotFound, &words);
        next.fence().check().unwrap();
        assert_eq!(lead(&store, "c", "2").1, state(0, 20));
        assert_eq!(lead(&store, "c", "never").1, state(0, 0));
    });
}

#[test]
fn a_full_disk_fails_the_commit_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::open(dir.path()).unwrap());
    let (mut run, _) = lead(&store, "a", "latest");
    run.commit(at(1, state(0, 10))).unwrap();
    for bytes in [0, 100] {
        let fault = Fault::Fail { step: Step::Write, nth: 0, errno: Errno::ENOSPC, bytes };
        let (failed, happened) = with(fault, || run.commit(at(2, state(0, 20))));
        assert!(happened);
        refused(failed, ErrorKind::NoSpace, &["earlier checkpoints are untouched", "commit again"]);
        assert_eq!((steps(&store), latest(&store)), (vec![1], Some(1)));
        run.fence().check().unwrap();
    }
    run.commit(at(2, state(0, 20))).unwrap();
    assert_eq!(latest(&store), Some(2));
}

#[test]
fn a_run_that_ends_another_and_cannot_begin_says_so() {
    let mut told = 0;
    for nth in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(dir.path()).unwrap());
        let (first, _) = lead(&store, "a", "latest");
        let fault = Fault::Fail { step: Step::Write, nth, errno: Errno::ENOSPC, bytes: 0 };
        let (failed, happened) = with(fault, || try_lead(&store, "b", "latest"));
        if !happened {
            break;
        }
        let Err(error) = failed else { continue };
        let is_told = error.report().contains("has been ended");
        told += u32::from(is_told);
        assert_eq!((is_told, error.kind()), (first.fence().check().is_err(), ErrorKind::NoSpace), "{}", error.report());
        assert_eq!(lead(&store, "c", "latest").1, state(0, 0));
    }
    assert!(told > 0);
}

#[test]
fn a_store_that_cannot_be_written_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::open(dir.path()).unwrap());
    let failing = |step, errno| with(Fault::FailAll { step, errno }, || try_lead(&store, "a", "latest").map(|_| ())).0;
    refused(failing(Step::CreateDir, Errno::EROFS), ErrorKind::Permission, &["use a root that this user may write"]);
    refused(failing(Step::Lock, Errno::ENOLCK), ErrorKind::Invalid, &["cannot lock files", "local disk"]);
    refused(failing(Step::Write, Errno::ENOSPC), ErrorKind::NoSpace, &["make room and try again"]);
    lead(&store, "a", "latest");
}

#[test]
fn a_start_that_failed_half_way_may_be_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::open(dir.path()).unwrap());
    let (mut run, _) = lead(&store, "a", "latest");
    run.commit(at(1, state(0, 10))).unwrap();
    // The first write is the new generation with its hint, the third the run record.
    let fault = Fault::Fail { step: Step::Write, nth: 2, errno: Errno::ENOSPC, bytes: 10 };
    let (failed, _) = with(fault, || run.lead(true, SHAPE, &mut |_| Ok(state(0, 10))));
    refused(failed, ErrorKind::NoSpace, &["make room"]);
    assert_eq!(store.generation(&scope_of(JOB).unwrap()).unwrap(), 2);
    run.lead(true, SHAPE, &mut |_| Ok(state(0, 10))).unwrap();
    run.commit(at(2, state(0, 20))).unwrap();

    // A follower whose loader could not be put there asks for the same run once more.
    let mut follower = open(&store, "a", "latest");
    for _ in 0..2 {
        assert!(follower.follow(None, SHAPE, NOW).unwrap());
    }
}

#[test]
fn a_commit_that_dies_anywhere_counts_whole_or_not_at_all() {
    let full = state(0, 20);
    let mut outcomes = [0, 0];
    for after in (0..4000).step_by(61) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(dir.path()).unwrap());
        let (mut run, _) = lead(&store, "a", "latest");
        run.commit(at(1, state(0, 10))).unwrap();
        let commit = Commit { tag: Some("best".into()), ..at(2, full.clone()) };
        let (done, died) = with(Fault::Die { after }, || run.commit(commit));
        let found: Arc<dyn Store> = Arc::new(Embedded::open(dir.path()).unwrap());
        let newest = latest(&found);
        let is_whole = newest == Some(2) && history(&found).tags_of(2) == ["best"];
        assert!(is_whole || (newest == Some(1) && history(&found).tags().is_empty()), "{after}: {newest:?}");
        assert!(is_whole || done.is_err(), "acknowledged and lost: {after}");
        outcomes[usize::from(is_whole)] += 1;
        let (_, start) = lead(&found, "b", "latest");
        assert_eq!(start, if is_whole { full.clone() } else { state(0, 10) });
        if !died {
            break;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[test]
fn records_that_cannot_be_read_are_named() {
    everywhere(|store| {
        let (mut run, _) = lead(&store, "a", "latest");
        run.commit(at(1, state(0, 10))).unwrap();
        let mut writer = store.acquire(&scope_of(JOB).unwrap()).unwrap();
        // `checkpoint 9` with its right sum: a record of a version to come.
        writer.put(Checkpoint::key_of(JOB, 2), newer("checkpoint 9 ", "{}")).unwrap();
        let words =
            ["needs a newer forebay", "version 9", "checkpoint/vision/00000000000000000002", "use the newer forebay"];
        refused(try_lead(&store, "b", "latest"), ErrorKind::StateMismatch, &words);
        refused(try_lead(&store, "b", "2"), ErrorKind::StateMismatch, &words);
        assert_eq!(lead(&store, "b", "1").1, state(0, 10), "others are none of it");
        let mut writer = store.acquire(&scope_of(JOB).unwrap()).unwrap();
        writer.put(Checkpoint::key_of(JOB, 2), "damaged").unwrap();
        refused(history(&store).find(&"2".parse().unwrap()), ErrorKind::Corrupt, &["00000000000000000002"]);
    });
}

fn newer(line: &str, body: &str) -> String {
    let sum = crate::log::crc32c(format!("{line}{body}").as_bytes());
    format!("{line}{sum:08x}\n{body}")
}

#[test]
fn names_that_are_not_there_are_answered_with_the_nearest() {
    everywhere(|store| {
        refused(History::of(&*store, JOB), ErrorKind::NotFound, &["there are none yet"]);
        let (mut run, _) = lead(&store, "a", "latest");
        refused(history(&store).find(&Target::Step(1)), ErrorKind::NotFound, &["the job has none"]);
        for step in [10, 30] {
            run.commit(Commit { tag: Some(format!("best{step}")), ..at(step, state(0, step)) }).unwrap();
        }
        refused(History::of(&*store, "visio"), ErrorKind::NotFound, &["did you mean vision?"]);
        refused(History::of(&*store, "a/b"), ErrorKind::Invalid, &["not a name"]);
        let find = |target: &str| history(&store).find(&target.parse().unwrap());
        refused(find("20"), ErrorKind::NotFound, &["the nearest are 10 and 30", "job=vision step=20"]);
        refused(find("5"), ErrorKind::NotFound, &["the nearest is 10"]);
        refused(find("bset10"), ErrorKind::NotFound, &["did you mean best10?", "best10, best30"]);
    });
}

#[test]
fn edits_from_outside_do_not_end_a_run_by_mistake() {
    everywhere(|store| {
        let (mut run, _) = lead(&store, "a", "latest");
        for step in 1..=3 {
            run.commit(at(step, state(0, step * 10))).unwrap();
        }
        let words = ["a run of the job is in progress", "--force"];
        refused(edit::tag(&*store, JOB, 1, "good", false), ErrorKind::Busy, &words);
        refused(edit::remove(&*store, JOB, &[Target::Step(1)], false), ErrorKind::Busy, &words);
        run.commit(at(4, state(0, 40))).expect("it goes on");

        assert_eq!(edit::tag(&*store, JOB, 2, "good", true).unwrap(), None);
        assert_eq!(edit::tag(&*store, JOB, 1, "good", true).unwrap(), Some(2), "it moves");
        assert_eq!(edit::tag(&*store, JOB, 1, "good", false).unwrap(), Some(1), "no change needs no force");
        refused(edit::tag(&*store, JOB, 9, "good", true), ErrorKind::NotFound, &["the nearest is 4"]);
        refused(edit::tag(&*store, JOB, 1, "latest", true), ErrorKind::Invalid, &["not a tag"]);
        refused(edit::untag(&*store, JOB, "goood", true), ErrorKind::NotFound, &["did you mean good?"]);
        refused(run.commit(at(5, state(0, 50))), ErrorKind::Fenced, &["taken over"]);
        let removed = edit::remove(&*store, JOB, &[Target::Tag("good".into()), Target::Step(4), Target::Step(4)], true);
        assert_eq!(removed.unwrap(), edit::Removed { steps: vec![1, 4], tags: vec!["good".into()] });
        assert_eq!((steps(&store), latest(&store)), (vec![2, 3], Some(3)), "the trail is what it was");
        assert!(history(&store).tags().is_empty());
        assert_eq!(store.fold(&Scope::job(JOB).unwrap(), "guard/").unwrap().entries().len(), 2);
        edit::tag(&*store, JOB, 2, "good", true).unwrap();
        assert_eq!(edit::untag(&*store, JOB, "good", true).unwrap(), 2);
    });
}
