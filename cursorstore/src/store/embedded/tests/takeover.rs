//! Whoever holds a log's lock and does not go on is taken over, and finds out when it does.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::super::faults::Step;
use super::*;
use crate::store::{Batch, StoreErrorKind, StoreExt};

const IMPATIENT: Settings = Settings { patience: Duration::from_millis(50), ..EAGER };
/// By number, for the process that is stopped.
const SETTINGS: [Settings; 3] = [EAGER, IMPATIENT, Settings { rewrite_bytes_min: u64::MAX, ..EAGER }];
const ROOT: &str = "FOREBAY_TEST_ROOT";
const STOP: &str = "FOREBAY_TEST_STOP";
const STEPS: [Step; 7] = [Step::Open, Step::Lock, Step::Write, Step::Sync, Step::Create, Step::Link, Step::Remove];

fn hold(path: &Path) -> Flock<File> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno).unwrap()
}

#[test]
fn a_lock_that_is_never_given_back_stops_nobody() {
    let dir = fast_dir();
    let settings = Settings { patience: Duration::from_millis(50), ..Settings::default() };
    let store = Embedded::open_with(dir.path(), settings).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    writer.put("a", "1").unwrap();
    let held = hold(&log_file(dir.path(), 0));
    writer.put("a", "2").expect("the log is taken over");
    assert_eq!(files(dir.path()), ["00000000000000000001.log"]);
    // What the holder still writes goes nowhere.
    let mut bytes = fs::read(log_file(dir.path(), 1)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&*held, &[0xff; 5000], 0).unwrap();
    assert_eq!(fs::read(log_file(dir.path(), 1)).unwrap(), bytes);

    let held = [held, hold(&log_file(dir.path(), 1)), hold(&dir.path().join("store/job/vision/turn"))];
    store.fact(&job(), "f", b"1").expect("so do facts, and whoever keeps the turn");
    let other = Embedded::open_with(dir.path(), settings).unwrap();
    other.acquire(&job()).unwrap();
    assert_eq!(writer.put("a", "3").unwrap_err().kind(), StoreErrorKind::Fenced);
    drop(held);
    bytes.clear();
    assert_eq!(state(dir.path()).unwrap(), [("a".into(), b"2".to_vec()), ("f".into(), b"1".to_vec())]);
}

#[test]
fn what_a_dead_one_left_of_a_take_over_stops_nobody() {
    let dir = fast_dir();
    let store = Embedded::open(dir.path()).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    writer.put("a", "1").unwrap();
    let scope = dir.path().join("store/job/vision");
    File::create(scope.join("00000000000000000000.x.fence")).unwrap();
    fs::write(scope.join("x.tmp"), "half a log").unwrap();
    assert_eq!(state(dir.path()).unwrap(), [("a".into(), b"1".to_vec())], "readers do not care");
    writer.put("a", "2").unwrap();
    assert_eq!(files(dir.path()), ["00000000000000000001.log"]);
    store.fact(&job(), "f", b"1").unwrap();
    assert_eq!(store.acquire(&job()).unwrap().generation(), 2);
}

#[test]
fn a_copy_that_comes_late_is_ignored_and_removed() {
    let dir = fast_dir();
    let store = Embedded::open_with(dir.path(), EAGER).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    writer.put("a", "old").unwrap();
    let late = fs::read(put_path(dir.path())).unwrap();
    let late_name = put_path(dir.path());
    for _ in 0..4 {
        writer.put("a", "new").unwrap();
    }
    let others = files(dir.path());
    fs::write(&late_name, late).unwrap();
    let lasting = Embedded::open(dir.path()).unwrap();
    assert_eq!(state(dir.path()).unwrap(), [("a".into(), b"new".to_vec())]);
    lasting.fact(&job(), "f", b"1").unwrap();
    assert_eq!(files(dir.path()).len(), others.len() + 1);
    writer.put("a", "newest").unwrap();
    writer.put("a", "newest").unwrap();
    assert_eq!(files(dir.path()).len(), 1);
    assert_eq!(state(dir.path()).unwrap()[0].1, b"newest");
}

fn put_path(root: &Path) -> PathBuf {
    root.join("store/job/vision").join(files(root).remove(0))
}

/// What the process does when it is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Append,
    Fact,
    /// It comes to a log whose lock is held.
    TakeOver,
}

/// The process that is stopped says what came of what it did. Nothing when run by itself.
#[test]
fn stopped_process() {
    let (Ok(root), Ok(stop)) = (std::env::var(ROOT), std::env::var(STOP)) else { return };
    let numbers: Vec<usize> = stop.split(' ').map(|number| number.parse().unwrap()).collect();
    let [step, nth, act, settings] = numbers[..] else { unreachable!() };
    let (act, settings) = ([Act::Append, Act::Fact, Act::TakeOver][act], SETTINGS[settings]);
    let store = Embedded::open_with(&root, settings).unwrap();
    let mut writer = (act != Act::TakeOver).then(|| store.acquire(&job()).unwrap());
    if let Some(writer) = &mut writer {
        writer.append(&Batch::new().put("a", "before").put("b", "before")).unwrap();
    }
    let (result, stopped) = with(Fault::Stop { step: STEPS[step], nth: nth as u32 }, || match &mut writer {
        None => store.acquire(&job()).map(|_| ()),
        Some(_) if act == Act::Fact => store.fact(&job(), "stopped", b"1"),
        Some(writer) => writer.put("a", "stopped").map(|_| ()),
    });
    let outcome = match result {
        Ok(()) => "acknowledged".to_string(),
        Err(error) => format!("{:?}", error.kind()),
    };
    fs::write(Path::new(&root).join(format!("{act:?}")), format!("{outcome} {stopped}")).unwrap();
}

/// Starts it with the settings of that number.
fn start(root: &Path, step: usize, nth: u32, act: Act, settings: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::embedded::tests::takeover::stopped_process", "--test-threads=1"])
        .env(ROOT, root)
        .env(STOP, format!("{step} {nth} {} {settings}", act as u8))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn outcome(root: &Path, act: Act) -> String {
    fs::read_to_string(root.join(format!("{act:?}"))).unwrap()
}

/// Waits until the process is stopped, or has ended: then `false`.
fn is_stopped(child: &Child) -> bool {
    match waitpid(Pid::from_raw(child.id() as i32), Some(WaitPidFlag::WUNTRACED)).unwrap() {
        WaitStatus::Stopped(..) => true,
        WaitStatus::Exited(_, 0) => false,
        status => panic!("{status:?}"),
    }
}

/// Stops a writer at every kind of call in the middle of an append, and another process takes the scope over meanwhile.
#[test]
fn a_writer_stopped_within_an_append_is_fenced_when_it_wakes_up() {
    let (mut fenced, mut stops) = (0, 0);
    for (step, kind) in STEPS.into_iter().enumerate() {
        for nth in 0.. {
            let dir = fast_dir();
            let mut child = start(dir.path(), step, nth, Act::Append, 0);
            if !is_stopped(&child) {
                assert_eq!(outcome(dir.path(), Act::Append), "acknowledged false");
                break;
            }
            stops += 1;
            let store = Embedded::open_with(dir.path(), IMPATIENT).unwrap();
            let mut writer = store.acquire(&job()).unwrap();
            let at_acquire = store.get(&job(), "a").unwrap().unwrap().value.to_vec();
            writer.append(&Batch::new().put("b", "after")).unwrap();
            kill(Pid::from_raw(child.id() as i32), Signal::SIGCONT).unwrap();
            let mut log = String::new();
            child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
            assert!(child.wait().unwrap().success(), "{log}");
            let outcome = outcome(dir.path(), Act::Append);
            let at_end = state(dir.path()).unwrap();
            let found = |key: &str| at_end.iter().find(|(found, _)| found == key).unwrap().1.clone();
            assert_eq!(found("b"), b"after", "{kind:?} {nth}");
            assert_eq!(found("a"), at_acquire, "nothing of it comes later: {kind:?} {nth}");
            match &*outcome {
                "Fenced true" => fenced += 1,
                // It had counted before it was stopped, and was clearing up.
                "acknowledged true" => assert_eq!(at_acquire, b"stopped", "{kind:?} {nth}"),
                _ => panic!("{kind:?} {nth}: {outcome}"),
            }
            writer.put("a", "last").expect("the new writer is not disturbed");
            assert_eq!(store.acquire(&job()).unwrap().generation(), 3);
        }
    }
    assert!(fenced >= 5 && stops > fenced, "fenced={fenced} stops={stops}");
}

#[test]
fn a_fact_stopped_within_an_append_arrives_when_it_wakes_up() {
    for (step, kind) in STEPS.into_iter().enumerate() {
        for nth in 0.. {
            let dir = fast_dir();
            let mut child = start(dir.path(), step, nth, Act::Fact, 0);
            if !is_stopped(&child) {
                break;
            }
            let store = Embedded::open_with(dir.path(), IMPATIENT).unwrap();
            let mut writer = store.acquire(&job()).unwrap();
            writer.put("b", "after").unwrap();
            kill(Pid::from_raw(child.id() as i32), Signal::SIGCONT).unwrap();
            assert!(child.wait().unwrap().success());
            assert_eq!(outcome(dir.path(), Act::Fact), "acknowledged true", "{kind:?} {nth}");
            assert_eq!(store.get(&job(), "stopped").unwrap().unwrap().value[..], *b"1");
            assert_eq!(store.get(&job(), "b").unwrap().unwrap().value[..], *b"after");
        }
    }
}

/// A writer is stopped before it writes; another process comes to take over and is stopped before the copy gets its
/// name; then the writer goes on, and only then the other.
#[test]
fn what_is_acknowledged_while_a_copy_is_made_is_not_lost() {
    let (write, link) = (2, 5);
    assert_eq!((STEPS[write], STEPS[link]), (Step::Write, Step::Link));
    let go_on = |child: &mut Child| {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGCONT).unwrap();
        assert!(child.wait().unwrap().success());
    };
    for (act, key) in [(Act::Append, "a"), (Act::Fact, "stopped")] {
        let dir = fast_dir();
        let mut writer = start(dir.path(), write, 0, act, 2);
        assert!(is_stopped(&writer));
        let mut other = start(dir.path(), link, 0, Act::TakeOver, 1);
        assert!(is_stopped(&other));
        go_on(&mut writer);
        assert_eq!(outcome(dir.path(), act), "acknowledged true", "nobody has acquired the scope yet");
        let acknowledged = state(dir.path()).unwrap();
        go_on(&mut other);
        assert_eq!(outcome(dir.path(), Act::TakeOver), "acknowledged true");
        assert_eq!(state(dir.path()).unwrap(), acknowledged);
        assert!(acknowledged.iter().any(|(found, value)| found == key && value != b"before"));
        let store = Embedded::open(dir.path()).unwrap();
        assert_eq!(store.acquire(&job()).unwrap().generation(), 3);
        assert_eq!(files(dir.path()).len(), 1, "{:?}", files(dir.path()));
    }
}
