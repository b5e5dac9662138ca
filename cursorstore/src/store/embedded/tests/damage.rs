//! Damaged logs: every changed byte is found and named, or changes nothing; nothing is guessed, nothing panics.

use std::fs;

use proptest::prelude::*;

use super::super::frame::{FRAMES_AT, HINT_AT, HINT_BYTES};
use super::*;
use crate::store::{Batch, StoreError, StoreErrorKind, StoreExt};

/// A copied log with restored frames and frames of every kind after them; where each of these begins, and the end.
fn sample() -> (TempDir, Vec<u8>, Vec<u64>) {
    let dir = fast_dir();
    let store = Embedded::open_with(dir.path(), EAGER).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    writer.append(&Batch::new().put("a", "1").put("b", "2")).unwrap();
    store.add_facts(&job(), &[("fact/0", b"x")]).unwrap();
    let path = put_path(dir.path());
    let mut starts = vec![FRAMES_AT, fs::metadata(&path).unwrap().len()];
    let mut mark = || starts.push(fs::metadata(&path).unwrap().len());
    let store = Embedded::open(dir.path()).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    mark();
    writer.append(&Batch::new().put("a", "3").delete("b").put("c", [9; 30])).unwrap();
    mark();
    store.fact(&job(), "fact/1", b"y").unwrap();
    mark();
    writer.put("d", "4").unwrap();
    mark();
    starts.dedup();
    let bytes = fs::read(&path).unwrap();
    (dir, bytes, starts)
}

fn put(root: &Path, bytes: &[u8]) -> PathBuf {
    let name = files(root).remove(0);
    let path = root.join("store/job/vision").join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn every_flipped_byte_is_named_or_harmless() {
    let (dir, bytes, starts) = sample();
    let whole = state(dir.path()).unwrap();
    let mut harmless = 0;
    for at in 0..bytes.len() {
        for mask in [1 << (at % 8), 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= mask;
            let path = put(dir.path(), &bytes);
            match state(dir.path()) {
                Ok(state) => {
                    assert_eq!(state, whole, "at={at}");
                    assert!((HINT_AT..FRAMES_AT).contains(&(at as u64)), "at={at}");
                    harmless += 1;
                }
                Err(StoreError::Corrupt { path: named, offset, .. }) => {
                    let begin = starts.iter().rev().find(|start| **start <= at as u64).unwrap_or(&0);
                    assert_eq!((named, offset), (path, *begin), "at={at}");
                }
                Err(error) => panic!("at={at}: {error}"),
            }
            let store = Embedded::open(dir.path()).unwrap();
            let before = fs::read(put(dir.path(), &bytes)).unwrap();
            if state(dir.path()).is_err() {
                assert_eq!(store.acquire(&job()).unwrap_err().kind(), StoreErrorKind::Corrupt, "at={at}");
                assert_eq!(store.fact(&job(), "f", b"1").unwrap_err().kind(), StoreErrorKind::Corrupt, "at={at}");
                assert_eq!(fs::read(put(dir.path(), &before)).unwrap(), before, "damage is left as it is");
            }
        }
    }
    assert_eq!(harmless, 2 * (FRAMES_AT - HINT_AT));
}

#[test]
fn a_flipped_byte_is_named_without_a_hint_too() {
    let (dir, mut bytes, starts) = sample();
    bytes[HINT_AT as usize + HINT_BYTES - 1] ^= 1;
    let whole = state(dir.path()).unwrap();
    put(dir.path(), &bytes);
    assert_eq!(state(dir.path()).unwrap(), whole);
    for at in FRAMES_AT as usize..bytes.len() {
        bytes[at] ^= 0x10;
        put(dir.path(), &bytes);
        let error = state(dir.path()).unwrap_err();
        let begin = *starts.iter().rev().find(|start| **start <= at as u64).unwrap();
        assert!(matches!(error, StoreError::Corrupt { offset, .. } if offset == begin), "at={at}: {error}");
        bytes[at] ^= 0x10;
    }
}

#[test]
fn damage_after_the_hint_is_named_where_a_frame_follows() {
    let (dir, bytes, starts) = sample();
    let sum = u32::from_le_bytes(*bytes[508..].first_chunk().unwrap());
    let hint = super::super::frame::hint_bytes(starts[2], sum);
    for at in starts[2]..starts[3] {
        let mut bytes = bytes.clone();
        bytes[HINT_AT as usize..HINT_AT as usize + HINT_BYTES].copy_from_slice(&hint);
        put(dir.path(), &bytes);
        state(dir.path()).expect("the hint may lag behind");
        bytes[at as usize] ^= 4;
        put(dir.path(), &bytes);
        let error = state(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { offset, .. } if offset == starts[2]), "at={at}: {error}");
    }
}

#[test]
fn a_log_cut_below_what_was_acknowledged_is_damage() {
    let (dir, bytes, _) = sample();
    for length in 0..bytes.len() {
        put(dir.path(), &bytes[..length]);
        let error = state(dir.path()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "length={length}");
    }
}

#[test]
fn damage_is_named_to_a_handle_that_is_already_open() {
    let (dir, ..) = sample();
    let (store, other) = (Embedded::open(dir.path()).unwrap(), Embedded::open(dir.path()).unwrap());
    let mut writer = store.acquire(&job()).unwrap();
    let path = put_path(dir.path());
    let at = fs::metadata(&path).unwrap().len();
    other.fact(&job(), "late", b"1").unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[at as usize + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = store.fold(&job(), "").unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { offset, .. } if offset == at), "{error}");
    assert_eq!(writer.put("a", "x").unwrap_err().kind(), StoreErrorKind::Corrupt);
}

fn put_path(root: &Path) -> PathBuf {
    root.join("store/job/vision").join(files(root).remove(0))
}

#[test]
fn frames_count_at_their_own_place_only() {
    let (dir, bytes, starts) = sample();
    let frame = |at: usize| &bytes[starts[at] as usize..starts[at + 1] as usize];
    let mut doubled = bytes.clone();
    doubled.extend_from_slice(frame(starts.len() - 2));
    put(dir.path(), &doubled);
    assert!(state(dir.path()).is_ok(), "a tail that is no frame here is cut");
    let swapped = [&bytes[..starts[2] as usize], frame(3), frame(2), &bytes[starts[4] as usize..]].concat();
    put(dir.path(), &swapped);
    assert_eq!(state(dir.path()).unwrap_err().kind(), StoreErrorKind::Corrupt);
    let left_out = [&bytes[..starts[2] as usize], &bytes[starts[3] as usize..]].concat();
    put(dir.path(), &left_out);
    assert_eq!(state(dir.path()).unwrap_err().kind(), StoreErrorKind::Corrupt);
}

#[test]
fn a_log_of_another_scope_or_of_a_newer_format_is_refused() {
    let (dir, bytes, _) = sample();
    let other = dir.path().join("store/job/other");
    fs::create_dir_all(&other).unwrap();
    fs::copy(put_path(dir.path()), other.join(&files(dir.path())[0])).unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    let error = store.fold(&Scope::job("other").unwrap(), "").unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { offset: 0, .. }), "{error}");

    let mut newer = bytes;
    newer[8] = 9;
    let sum = super::super::frame::crc32c(&newer[..508]);
    newer[508..512].copy_from_slice(&sum.to_le_bytes());
    put(dir.path(), &newer);
    let error = state(dir.path()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Newer);
    assert!(error.to_string().contains("reads format 9"), "{error}");
}

#[test]
fn golden_bytes() {
    let dir = fast_dir();
    let store = Embedded::open(dir.path()).unwrap();
    let mut writer = store.acquire(&job()).unwrap();
    writer.append(&Batch::new().put("a", "1").delete("b")).unwrap();
    store.fact(&job(), "f", b"x").unwrap();
    let bytes = fs::read(log_file(dir.path(), 0)).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let number = |n: u64| hex(&n.to_le_bytes());
    let header =
        [hex(b"forebay\n"), "01000000".into(), "0a000000".into(), number(0).repeat(3), hex(b"job/vision")].concat();
    assert!(hex(&bytes).starts_with(&header));
    // Sums apart, which cover one another.
    let frames = [
        ["09000000".to_string(), number(1)].concat(),
        ["01".to_string(), number(1)].concat(),
        ["1a000000".to_string(), number(2)].concat(),
        ["02".to_string(), number(1), "01010001000000".into(), hex(b"a1"), "00010000000000".into(), hex(b"b")].concat(),
        ["0a000000".to_string(), number(3)].concat(),
        ["03".to_string(), "03010001000000".into(), hex(b"fx")].concat(),
    ];
    let mut rest = &hex(&bytes)[2 * FRAMES_AT as usize..];
    for part in &frames {
        rest = &rest.strip_prefix(&**part).expect("as the format says")[8..];
    }
    assert_eq!(rest, "");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn foreign_bytes_never_panic(at in 0usize..2000, noise in prop::collection::vec(any::<u8>(), 1..200), keep in any::<bool>()) {
        let dir = fast_dir();
        let store = Embedded::open(dir.path()).unwrap();
        store.acquire(&job()).unwrap().append(&Batch::new().put("a", [1; 500])).unwrap();
        let mut bytes = fs::read(log_file(dir.path(), 0)).unwrap();
        let at = at.min(bytes.len());
        let end = if keep { (at + noise.len()).min(bytes.len()) } else { bytes.len() };
        bytes.splice(at..end, noise);
        fs::write(log_file(dir.path(), 0), &bytes).unwrap();
        let _ = state(dir.path());
        let _ = store.fold(&job(), "");
        let _ = store.acquire(&job());
    }

    #[test]
    fn bodies_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..6) {
        let _ = super::super::frame::parse_body(&[&[kind], &bytes[..]].concat());
    }
}
