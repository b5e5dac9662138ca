//! The process dies, or the machine: what was acknowledged is there, and nothing of the rest or all of it.

use std::fs;

use super::super::frame::{FRAMES_AT, HINT_AT, HINT_BYTES};
use super::*;
use crate::store::Batch;

#[test]
fn a_rewrite_may_die_at_every_point() {
    let settings = Settings { rewrite_bytes_min: FRAMES_AT + 300, ..EAGER };
    let mut died_last = true;
    for after in 0.. {
        let dir = fast_dir();
        let store = Embedded::open_with(dir.path(), settings).unwrap();
        let mut writer = store.acquire(&job()).unwrap();
        writer.append(&Batch::new().put("a", [7; 100]).put("gone", [7; 100])).unwrap();
        store.add_facts(&job(), &[("fact", b"1")]).unwrap();
        let (acknowledged, died) =
            with(Fault::Die { after }, || writer.append(&Batch::new().put("a", "2").delete("gone")));
        let expected = |is_new: bool| {
            let a = if is_new { b"2".to_vec() } else { vec![7; 100] };
            let gone = (!is_new).then(|| ("gone".to_string(), vec![7; 100]));
            [("a".to_string(), a), ("fact".to_string(), b"1".to_vec())].into_iter().chain(gone).collect::<Vec<_>>()
        };
        let found = state(dir.path()).unwrap();
        assert!(found == expected(true) || (acknowledged.is_err() && found == expected(false)), "after={after}");

        let next = Embedded::open_with(dir.path(), EAGER).unwrap();
        let mut writer = next.acquire(&job()).unwrap();
        writer.put("a", "3").unwrap();
        writer.put("a", "3").unwrap();
        let left = files(dir.path());
        assert!(
            left.len() == 1 && left[0].ends_with(".log"),
            "what a crash leaves is cleaned up: after={after} {left:?}"
        );
        if !died {
            died_last = after < 1000;
            break;
        }
    }
    assert!(!died_last, "there are more points than a copy has bytes");
}

type State = Vec<(String, Vec<u8>)>;

/// A log that grew by one frame per step: its bytes after every step, and the state then.
fn history() -> Vec<(Vec<u8>, State)> {
    let dir = fast_dir();
    let store = Embedded::open(dir.path()).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    let mut steps = Vec::new();
    for step in 0..6u8 {
        let changes = match step {
            4 => Batch::new().delete("a").put("b", ""),
            _ => Batch::new().put("a", [step; 40]).put("c", [step]),
        };
        match step {
            0 => store.add_facts(&job(), &[("digest/0", b"x"), ("digest/1", b"y")]).unwrap(),
            3 => writer = store.acquire(&job()).unwrap(),
            _ => assert!(writer.append(&changes).unwrap() > crate::store::Mark::START),
        }
        steps.push((fs::read(log_file(dir.path(), 0)).unwrap(), state(dir.path()).unwrap()));
    }
    steps
}

/// What the file held when this much of the step's frame was written: the hint is that of the step before.
fn torn(before: &[u8], after: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = after[..length].to_vec();
    let hint = HINT_AT as usize..HINT_AT as usize + HINT_BYTES;
    bytes[hint.clone()].copy_from_slice(&before[hint]);
    bytes
}

#[test]
fn every_prefix_of_every_write_recovers_to_the_last_acknowledged_record() {
    let dir = fast_dir();
    let path = log_file(dir.path(), 0);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    for pair in history().windows(2) {
        let [(before, state_before), (after, state_after)] = pair else { unreachable!() };
        for length in before.len()..=after.len() {
            let cut = torn(before, after, length);
            let mut tails = vec![cut.clone()];
            if length < after.len() {
                // After a power failure, the rest of the frame may be zeros or anything.
                let rest = after.len() - length;
                tails.push([&cut[..], &vec![0; rest]].concat());
                tails.push([&cut[..], &vec![0xa5; rest]].concat());
                tails.push([&cut[..], &vec![0; 5000]].concat());
            }
            for bytes in tails {
                fs::write(&path, &bytes).unwrap();
                let expected = if length == after.len() || bytes == torn(before, after, after.len()) {
                    state_after
                } else {
                    state_before
                };
                assert_eq!(&state(dir.path()).unwrap(), expected, "length={length}");
                // The next writer cuts it off, and goes on.
                let store = Embedded::open(dir.path()).unwrap();
                store.acquire(&job()).unwrap().put("next", "1").unwrap();
                let mut expected = expected.clone();
                expected.push(("next".into(), b"1".to_vec()));
                expected.sort();
                assert_eq!(state(dir.path()).unwrap(), expected, "length={length}");
            }
        }
    }
}

#[test]
fn a_crash_upon_what_a_crash_left_recovers_too() {
    let dir = fast_dir();
    let path = log_file(dir.path(), 0);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (whole, expected) = history().remove(2);
    let torn = [&whole[..], &[0xa5; 3000]].concat();
    for after in 0.. {
        fs::write(&path, &torn).unwrap();
        let store = Embedded::open(dir.path()).unwrap();
        let (_, died) = with(Fault::Die { after }, || store.acquire(&job()).is_ok());
        assert_eq!(state(dir.path()).unwrap(), expected, "after={after}");
        if !died {
            assert!(after > 40);
            break;
        }
    }
}

#[test]
fn every_prefix_without_a_hint_recovers_too() {
    let dir = fast_dir();
    let path = log_file(dir.path(), 0);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let steps = history();
    let (last, _) = steps.last().unwrap();
    for length in steps[0].0.len()..last.len() {
        let mut bytes = last[..length].to_vec();
        bytes[HINT_AT as usize] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let (_, expected) = steps.iter().rev().find(|(whole, _)| whole.len() <= length).unwrap();
        assert_eq!(&state(dir.path()).unwrap(), expected, "length={length}");
    }
}

#[test]
fn what_another_process_may_not_have_synced_is_made_durable_before_anything_builds_on_it() {
    let dir = fast_dir();
    let path = log_file(dir.path(), 0);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let steps = history();
    let (before, after) = (&steps[0].0, &steps[1].0);
    fs::write(&path, torn(before, after, after.len())).unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    // The fact is there already, so nothing is written for it; but to say so, it must be durable.
    let fail = Fault::FailAll { step: super::super::faults::Step::Sync, errno: nix::errno::Errno::EIO };
    let (result, failed) = with(fail, || store.add_facts(&job(), &[("digest/0", b"x")]));
    assert!(failed && result.is_err());
    store.add_facts(&job(), &[("digest/0", b"x")]).unwrap();
    assert_eq!(&fs::read(&path).unwrap(), after, "only the hint moved");
}
