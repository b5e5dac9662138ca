//! The store between processes: killed, stopped, crowded, out of room. Each process is this test program again, in one of
//! the parts at the end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cursorstore::store::embedded::Settings;
use cursorstore::store::{Batch, Embedded, Mark, Scope, Store, StoreErrorKind, StoreExt};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const PART: &str = "FOREBAY_TEST_PART";
const ROOT: &str = "FOREBAY_TEST_ROOT";
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);
/// Logs are rewritten every few hundred records.
const SMALL: Settings =
    Settings { rewrite_bytes_min: 8 << 10, rewrite_live_share: 2, patience: Duration::from_secs(30) };

fn job() -> Scope {
    Scope::job("vision").unwrap()
}

fn open(root: &Path) -> Embedded {
    Embedded::open_with(root, SMALL).unwrap()
}

fn number(store: &dyn Store, key: &str) -> Option<u64> {
    let entry = store.get(&job(), key).unwrap()?;
    Some(str::from_utf8(&entry.value).unwrap().parse().unwrap())
}

/// A process that plays a part.
struct Player {
    child: Child,
    say: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Player {
    fn start(part: &str, root: &Path) -> Self {
        Self::start_under(&[], part, root)
    }

    /// Starts it by another program.
    fn start_under(by: &[&str], part: &str, root: &Path) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut words = by.iter().map(std::ffi::OsStr::new).chain([own.as_os_str()]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["--exact", "play_a_part", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(ROOT, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { say: child.stdin.take(), child, lines }
    }

    /// The next thing that it says; `None` when it has ended.
    fn hear(&mut self) -> Option<String> {
        // The test program itself says things too; the part's begin with a mark, which may follow one of these.
        self.lines.by_ref().map_while(Result::ok).find_map(|line| line.split_once("> ").map(|(_, said)| said.into()))
    }

    fn say(&mut self, line: &str) {
        writeln!(self.say.as_mut().unwrap(), "{line}").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn ends_well(mut self) {
        drop(self.say.take());
        while self.hear().is_some() {}
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn killed_at_any_moment_it_has_what_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        for _ in 0..2 {
            // These read on through every crash and recovery.
            threads.spawn(|| {
                let reader = open(dir.path());
                let mut last = (0, Mark::START);
                while !done.load(Ordering::Relaxed) {
                    let view = reader.fold(&job(), "step").unwrap();
                    let steps: Vec<u64> =
                        view.entries().iter().map(|e| str::from_utf8(&e.value).unwrap().parse().unwrap()).collect();
                    assert!(steps.windows(2).all(|pair| pair[0] == pair[1]), "part of a batch: {steps:?}");
                    let now = (steps.first().copied().unwrap_or(0), view.mark());
                    assert!(last <= now, "went back: {last:?} {now:?}");
                    last = now;
                    reader.watch(&job(), now.1, Duration::from_millis(5)).unwrap();
                }
            });
        }
        let mut acknowledged = 0;
        for round in 0..25u64 {
            let mut writer = Player::start("count on", dir.path());
            for _ in 0..1 + round * round % 37 {
                acknowledged = writer.hear().expect("it goes on").parse().unwrap();
            }
            writer.signal(Signal::SIGKILL);
            while let Some(said) = writer.hear() {
                acknowledged = said.parse().unwrap();
            }
            writer.child.wait().unwrap();
            let found = number(&store, "step/a").unwrap();
            assert!(found == acknowledged || found == acknowledged + 1, "round={round} {found} {acknowledged}");
            acknowledged = found;
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_stopped_writer_that_wakes_up_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut old = Player::start("write when told", dir.path());
    assert_eq!(old.hear().as_deref(), Some("acquired"));
    old.say("1");
    assert_eq!(old.hear().as_deref(), Some("acknowledged"));
    old.signal(Signal::SIGSTOP);
    assert!(matches!(waitpid(old.pid(), Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(..))));

    let mut new = store.acquire(&job()).unwrap();
    new.put("step", "100").unwrap();
    old.signal(Signal::SIGCONT);
    for _ in 0..2 {
        old.say("2");
        assert_eq!(old.hear().as_deref(), Some("Fenced"));
    }
    assert_eq!(number(&store, "step"), Some(100));
    new.put("step", "101").unwrap();
    old.ends_well();
}

#[test]
fn of_many_writers_each_counts_on_from_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut players: Vec<_> = (0..4).map(|_| Player::start("compete", dir.path())).collect();
    let mut sum = 0;
    for player in &mut players {
        sum += player.hear().unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(number(&open(dir.path()), "count"), Some(sum), "no increment lost, none twice");
    players.into_iter().for_each(Player::ends_well);
}

#[test]
fn ranks_wait_for_the_run_of_their_attempt_and_add_facts() {
    let dir = tempfile::tempdir().unwrap();
    let mut ranks: Vec<_> = (0..4).map(|rank| Player::start(&format!("rank {rank}"), dir.path())).collect();
    for rank in &mut ranks {
        assert_eq!(rank.hear().as_deref(), Some("waiting"));
    }
    let store = open(dir.path());
    let mut writer = store.acquire(&job()).unwrap();
    writer.put("run/1", "7").unwrap();
    for step in 0..200 {
        writer.append(&Batch::new().put("step", step.to_string()).put("filler", [0; 100])).unwrap();
    }
    for rank in &mut ranks {
        assert_eq!(rank.hear().as_deref(), Some("started at 7"));
        assert_eq!(rank.hear().as_deref(), Some("added"));
    }
    assert_eq!(store.fold(&job(), "digest/").unwrap().entries().len(), 4 * 20);
    assert_eq!(number(&store, "step"), Some(199));
    ranks.into_iter().for_each(Player::ends_well);
}

#[test]
fn a_file_that_may_not_grow_is_no_room_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    // Blocks of 512 or 1024 bytes, as the shell likes.
    let by = ["sh", "-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\""];
    let mut player = Player::start_under(&by, "fill up", dir.path());
    let acknowledged: u64 = player.hear().unwrap().parse().unwrap();
    assert_eq!(player.hear().as_deref(), Some("NoSpace"));
    assert!(acknowledged > 10);
    let store = open(dir.path());
    assert_eq!(store.fold(&job(), "fill/").unwrap().entries().len() as u64, acknowledged);
    store.acquire(&job()).unwrap().put("more", [7; 1000]).expect("there is room again");
    player.ends_well();
}

fn say(line: &str) {
    // At once: what is said counts as acknowledged. Not by the test program's own stream, which is shared and buffered.
    File::options().append(true).open("/dev/stdout").unwrap().write_all(format!("> {line}\n").as_bytes()).unwrap();
}

/// Nothing when run by itself.
#[test]
fn play_a_part() {
    let (Ok(part), Ok(root)) = (std::env::var(PART), std::env::var(ROOT)) else { return };
    let store = open(Path::new(&root));
    match part.split_once(' ').unwrap_or((&part, "")) {
        ("count", _) => {
            let mut writer = store.acquire(&job()).unwrap();
            for step in number(&store, "step/a").unwrap_or(0) + 1.. {
                let text = step.to_string();
                writer.append(&Batch::new().put("step/a", &*text).put("step/b", &*text)).unwrap();
                say(&text);
            }
        }
        ("write", _) => {
            let mut writer = store.acquire(&job()).unwrap();
            say("acquired");
            for line in std::io::stdin().lines() {
                match writer.put("step", line.unwrap()) {
                    Ok(_) => say("acknowledged"),
                    Err(error) => say(&format!("{:?}", error.kind())),
                }
            }
        }
        ("compete", _) => {
            let mut count = 0;
            for _ in 0..15 {
                let mut writer = store.acquire(&job()).unwrap();
                for _ in 0..20 {
                    let next = number(&store, "count").unwrap_or(0) + 1;
                    match writer.put("count", next.to_string()) {
                        Ok(_) => count += 1,
                        Err(error) if error.kind() == StoreErrorKind::Fenced => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            say(&count.to_string());
        }
        ("rank", rank) => {
            say("waiting");
            let run = store.wait_for(&job(), "run/1", LONG).unwrap().expect("it comes");
            say(&format!("started at {}", str::from_utf8(&run.value).unwrap()));
            for step in 0..20 {
                store.fact(&job(), &format!("digest/{step}/{rank}"), b"sum").unwrap();
            }
            say("added");
        }
        ("fill", _) => {
            let mut writer = store.acquire(&job()).unwrap();
            let fill = |step: u64| writer.put(format!("fill/{step:05}"), [7; 100]).map_err(|error| (step, error));
            let (steps, error) = (0..10_000).map(fill).find_map(Result::err).expect("the limit is reached");
            say(&steps.to_string());
            say(&format!("{:?}", error.kind()));
        }
        _ => panic!("no such part: {part}"),
    }
}
