//! Files cut at every byte and damaged at every byte: a wrong row is never delivered, nothing panics, and what need not be
//! lost is not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::support::*;
use crate::error::ErrorKind;
use crate::log::block::{self, BlockMeta};
use crate::log::files::Hint;
use crate::log::scan::{Scan, Walk};
use crate::log::sums::BlockSums;
use crate::log::view::SegmentView;
use crate::log::{BlockRef, Fsync, Identity, TopicOptions, crc32c};
use crate::rows::Rows;
use crate::versions::SchemaVersion;

const PREAMBLE: u64 = 4096;

fn identity(place: &Place) -> Identity {
    Identity { incarnation: place.topic.incarnation(), partition: 0 }
}

fn version(place: &Place) -> SchemaVersion {
    place.topic.schemas().unwrap().newest().clone()
}

/// A topic whose active segment holds these groups, every one a few rows in blocks of two.
fn groups(fsync: Fsync, counts: &[u64]) -> (Place, File, Vec<(u64, u64)>) {
    let place = Place::quick("id:int64", &small(16, u64::MAX));
    let writer = place.topic.writer(0, policy(fsync)).unwrap();
    let file =
        OpenOptions::new().read(true).write(true).open(place.partition().join("00000000000000000000.open")).unwrap();
    let mut ends = vec![(PREAMBLE, 0)];
    for count in counts {
        let end = writer.append(&rows(place.topic.schema(), writer.end()..writer.end() + count)).unwrap().end;
        ends.push((file.metadata().unwrap().len(), end));
    }
    (place, file, ends)
}

fn scan(place: &Place, file: &File, len: u64, hint: Hint) -> Scan {
    let mut scan = Scan::new(PREAMBLE, 0);
    advance(&mut scan, place, file, len, hint);
    scan
}

fn advance(scan: &mut Scan, place: &Place, file: &File, len: u64, hint: Hint) {
    let walk = Walk { file, len, schema: place.topic.schema(), identity: &identity(place), hint };
    scan.advance(&walk, |_| {}).unwrap();
}

#[test]
fn a_segment_cut_at_any_byte_keeps_exactly_its_whole_groups() {
    // Groups of one block, two blocks, one, three.
    let (place, file, ends) = groups(Fsync::Never, &[2, 3, 1, 6]);
    let nothing = Hint { base: 0, synced: 0, end: 0 };
    let len = ends.last().unwrap().0;
    let check = |found: &Scan, cut: u64| {
        let &(good, end) = ends.iter().rev().find(|(file_end, _)| *file_end <= cut).unwrap();
        assert_eq!((found.good, found.end, found.holes.len()), (good, end, 0), "cut={cut}");
        assert_eq!(found.blocks.last().map_or(0, BlockRef::end), end);
    };
    // Every byte of the last two groups, as a reader sees it that has seen the groups before.
    let before = scan(&place, &file, ends[2].0, nothing);
    for cut in ends[2].0..=len {
        let mut found = before.clone();
        advance(&mut found, &place, &file, cut, nothing);
        check(&found, cut);
    }
    // And from the beginning, at and around all borders.
    for cut in (PREAMBLE..=len).filter(|cut| (cut + 3) % 4096 < 6 || cut % 613 == 0) {
        check(&scan(&place, &file, cut, nothing), cut);
    }
}

#[test]
fn durable_rows_that_are_cut_off_are_lost_but_never_replaced() {
    let (place, file, ends) = groups(Fsync::Always, &[2, 3, 1, 6]);
    let &(len, all) = ends.last().unwrap();
    let hint = Hint::read(&place.partition(), 0);
    assert_eq!((hint.synced, hint.end), (len, all));
    for cut in (PREAMBLE..len).step_by(7).chain(ends.iter().map(|end| end.0)) {
        let found = scan(&place, &file, cut, hint);
        assert_eq!(found.end, all, "cut={cut}");
        let kept = found.blocks.last().map_or(0, BlockRef::end);
        let whole = ends.iter().rev().find(|(file_end, _)| *file_end <= cut).unwrap().1;
        assert!(kept >= whole);
        match found.holes.as_slice() {
            [] => assert_eq!((kept, cut), (all, len)),
            [hole] => assert_eq!(hole.offsets, kept..all, "cut={cut}"),
            more => panic!("{more:?}"),
        }
    }
    // For real: the writer goes on after the offsets that are lost, and says so.
    file.set_len(ends[2].0 + 5000).unwrap();
    for cut_bytes in [5000, 0] {
        // The second time there is nothing left to cut, and the offsets are lost all the same.
        let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
        let damage = &writer.recovery().damage;
        assert_eq!((damage.len(), damage[0].offsets.clone(), writer.recovery().cut_bytes), (1, 5..12, cut_bytes));
        assert_eq!(place.fresh().view().unwrap().partitions[0].end, 12);
    }
    let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.append(&rows(place.topic.schema(), 12..14)).unwrap(), 12..14);
    for sealed in [false, true] {
        if sealed {
            writer.seal().unwrap();
        }
        let view = place.fresh().view().unwrap().partitions.remove(0);
        assert_eq!(view.end, 14);
        assert_same(&view.read(0..5).unwrap(), &rows(place.topic.schema(), 0..5));
        assert_same(&view.read(12..14).unwrap(), &rows(place.topic.schema(), 12..14));
        let error = view.read(7..8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(text.contains("offset=5 rows=7") && text.contains("block=3") && text.contains("path="), "{text}");
        let report = place.topic.verify(&mut |_| {}).unwrap();
        assert_eq!((report.rows, report.problems.len(), report.problems[0].rows), (7, 1, 7));
    }
}

#[test]
fn a_torn_tail_is_cut_from_the_file_and_reported() {
    let (place, file, ends) = groups(Fsync::Never, &[2, 3, 1, 6]);
    let bytes = std::fs::read(place.partition().join("00000000000000000000.open")).unwrap();
    let cuts = (ends[2].0..=ends[4].0).step_by(4096).flat_map(|border| [border.saturating_sub(1), border, border + 1]);
    for cut in cuts.filter(|&cut| cut >= PREAMBLE && cut <= ends[4].0) {
        file.set_len(0).unwrap();
        file.write_all_at(&bytes[..cut as usize], 0).unwrap();
        let &(good, end) = ends.iter().rev().find(|(file_end, _)| *file_end <= cut).unwrap();
        let seen = place.fresh().view().unwrap().partitions[0].end;
        let writer = place.fresh().writer(0, policy(Fsync::Never)).unwrap();
        let recovery = writer.recovery();
        assert_eq!((writer.end(), recovery.cut_bytes, seen), (end, cut - good, end));
        assert!(recovery.cut_rows < 6 && recovery.damage.is_empty());
        assert_eq!(file.metadata().unwrap().len(), good);
        writer.append(&rows(place.topic.schema(), end..end + 3)).unwrap();
        drop(writer);
        assert_eq!(assert_numbered(&place.fresh(), 0), end + 3);
    }
}

#[test]
fn a_body_that_never_reached_the_disk_ends_the_log() {
    // What a crash of the machine may leave: sizes and headers are there, the pages of a body are zeros.
    let (place, file, ends) = groups(Fsync::Never, &[2, 3, 1, 6]);
    file.write_all_at(&[0; 16], ends[2].0 + 4096).unwrap();
    let view = place.fresh().view().unwrap().partitions.remove(0);
    assert_eq!(view.end, ends[2].1);
    let writer = place.fresh().writer(0, policy(Fsync::Never)).unwrap();
    assert_eq!((writer.end(), writer.recovery().cut_rows), (5, 1));
    // The same bytes once durable are damage, not a tail.
    let (place, file, ends) = groups(Fsync::Always, &[2, 3, 1, 6]);
    file.write_all_at(&[0; 16], ends[2].0 + 4096).unwrap();
    let view = place.fresh().view().unwrap().partitions.remove(0);
    assert_eq!(view.end, 12);
    assert_same(&view.read(6..12).unwrap(), &rows(place.topic.schema(), 6..12));
    let text = view.read(5..6).unwrap_err().to_string();
    let position = ends[2].0 + 4096;
    assert!(text.contains("block=3") && text.contains(&format!("position={position} offset=5")), "{text}");
}

/// Every row is right or an error names the damage. Returns how many are right.
fn read_what_can_be(segment: &SegmentView, file: &File, wanted: &Rows) -> u64 {
    let blocks = match segment.blocks() {
        Ok(blocks) => blocks,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            return 0;
        }
    };
    let mut right = 0;
    for block in blocks.iter() {
        match segment.read_from(file, &block) {
            Ok(rows) => {
                assert_same(&rows, &wanted.slice(block.base as usize, block.rows as usize));
                right += u64::from(block.rows);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
    right
}

#[test]
fn any_damaged_byte_of_an_active_segment_costs_its_block_at_most() {
    let (place, file, ends) = groups(Fsync::Always, &[2, 3, 2]);
    let &(len, end) = ends.last().unwrap();
    let wanted = rows(place.topic.schema(), 0..end);
    let path = place.partition().join("00000000000000000000.open");
    for hinted in [true, false] {
        let hint = if hinted { Hint::read(&place.partition(), 0) } else { Hint { base: 0, synced: 0, end: 0 } };
        // Without the hint only later groups can say that something was durable: the last group counts as a tail.
        let protected = if hinted { end } else { 5 };
        for at in 0..len {
            // All of the bytes that mean something, and a part of the zeros between them.
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            if byte[0] == 0 && !at.is_multiple_of(5) {
                continue;
            }
            file.write_all_at(&[byte[0] ^ (1 << (at % 8))], at).unwrap();
            let found = scan(&place, &file, len, hint);
            let own = file.try_clone().unwrap();
            let segment = SegmentView::active(path.clone(), &version(&place), identity(&place), 0, own, &found);
            assert!(segment.end >= protected && segment.end <= end, "at={at} end={}", segment.end);
            let right = read_what_can_be(&segment, &file, &wanted);
            assert!(right + 2 >= protected, "at={at} right={right}");
            file.write_all_at(&byte, at).unwrap();
        }
    }
}

#[test]
fn any_damaged_byte_of_a_sealed_segment_is_noticed_when_it_is_needed() {
    let (place, _, _) = groups(Fsync::Always, &[2, 3, 2]);
    place.topic.writer(0, policy(Fsync::Always)).unwrap().seal().unwrap();
    let path = place.partition().join("00000000000000000000.arrow");
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let wanted = rows(place.topic.schema(), 0..7);
    let footer_at = len - 2000;
    for at in 0..len {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        if byte[0] == 0 && at < footer_at && !at.is_multiple_of(5) {
            continue;
        }
        file.write_all_at(&[byte[0] ^ (1 << (at % 8))], at).unwrap();
        let segment = SegmentView::sealed(&place.partition(), &version(&place), identity(&place), 0..7);
        let right = read_what_can_be(&segment, &file, &wanted);
        assert!(right >= 5 && (right == 7 || at < footer_at), "at={at} right={right}");
        file.write_all_at(&byte, at).unwrap();
    }
}

#[test]
fn a_damaged_segment_leaves_the_others_readable() {
    let place = Place::new("id:int64", &small(16, u64::MAX));
    let schema = place.topic.schema().clone();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    for at in 0..3 {
        writer.append(&rows(&schema, at * 4..at * 4 + 4)).unwrap();
        writer.seal().unwrap();
    }
    let flip = |name: &str, at: u64| {
        let file = OpenOptions::new().read(true).write(true).open(place.partition().join(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    // A row of the second block; a header; the footer's last bytes.
    flip("00000000000000000000.arrow", 4096 + 8192 + 4096);
    flip("00000000000000000004.arrow", 4096 + 100);
    let third = std::fs::metadata(place.partition().join("00000000000000000008.arrow")).unwrap().len();
    flip("00000000000000000008.arrow", third - 30);
    let view = place.fresh().view().unwrap().partitions.remove(0);
    assert_eq!(view.end, 12);
    for good in [0..2, 6..8] {
        assert_same(&view.read(good.clone()).unwrap(), &rows(&schema, good));
    }
    let text = |offset: u64| {
        let error = view.read(offset..offset + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        error.to_string()
    };
    let first = text(2);
    assert!(first.contains("0000.arrow block=1 position=16384 offset=2 rows=2") && first.contains("\"id\""), "{first}");
    assert!(text(4).contains("4.arrow block=0 position=4096 offset=4"), "{}", text(4));
    // Without its footer a segment's blocks still tell what they hold.
    assert_same(&view.read(8..12).unwrap(), &rows(&schema, 8..12));
    let footer = view.segments()[2].footer_damage().unwrap().unwrap();
    assert!(footer.contains("8.arrow block=footer") && footer.contains("offset=8"), "{footer}");
    assert!(view.segments()[0].footer_damage().unwrap().is_none());
    let report = place.fresh().verify(&mut |_| {}).unwrap();
    assert_eq!((report.rows, report.problems.len()), (8, 3));
    let problems: Vec<(u64, u64)> = report.problems.iter().map(|problem| (problem.offset, problem.rows)).collect();
    assert_eq!(problems, [(2, 2), (4, 2), (8, 0)]);
    assert!(report.problems[2].message.contains("block=footer"), "{}", report.problems[2].message);
    assert_eq!(writer.append(&rows(&schema, 12..13)).unwrap(), 12..13);
}

#[test]
fn a_footer_and_a_header_damaged_cost_the_rows_of_that_block() {
    // Of a segment in the middle, the first, a middle and the last block; the segment after it says where it ended.
    for (number, lost) in [(0, 0..2), (1, 2..4), (3, 6..8)] {
        let place = Place::quick("id:int64", &small(16, u64::MAX));
        let schema = place.topic.schema().clone();
        let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
        for at in 0..2 {
            writer.append(&rows(&schema, at * 8..at * 8 + 8)).unwrap();
            writer.seal().unwrap();
        }
        let path = place.partition().join("00000000000000000000.arrow");
        damage_header(&path, PREAMBLE + number * 8192);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(std::fs::metadata(&path).unwrap().len() - 1)
            .unwrap();
        let view = place.fresh().view().unwrap().partitions.remove(0);
        assert_eq!(view.end, 16);
        for offset in 0..16 {
            match view.read(offset..offset + 1) {
                Ok(found) => {
                    assert_same(&found, &rows(&schema, offset..offset + 1));
                    assert!(!lost.contains(&offset));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    assert!(lost.contains(&offset), "{error}");
                    let text = format!("block={number} position={} offset={}", PREAMBLE + number * 8192, lost.start);
                    assert!(error.to_string().contains(&text), "{error}");
                }
            }
        }
        let damage = view.segments()[0].damage().unwrap();
        assert_eq!((damage.len(), damage[0].offsets.clone()), (1, lost));
        assert!(view.segments()[0].time_ms().unwrap().is_some());
        let report = place.fresh().verify(&mut |_| {}).unwrap();
        assert_eq!((report.rows, report.problems.len()), (14, 2));
    }
}

#[test]
fn a_segment_with_damage_is_not_gathered() {
    let place = Place::new("id:int64", &small(1024, u64::MAX));
    let schema = place.topic.schema().clone();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    for at in 0..6 {
        writer.append(&rows(&schema, at..at + 1)).unwrap();
    }
    let file = OpenOptions::new().write(true).open(place.partition().join("00000000000000000000.open")).unwrap();
    file.write_all_at(b"damage", 4096 + 2 * 8192 + 4096).unwrap();
    writer.seal().unwrap();
    let view = place.fresh().view().unwrap().partitions.remove(0);
    assert_eq!(view.segments()[0].blocks().unwrap().len(), 6);
    assert_eq!(view.read(2..3).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_same(&view.read(3..6).unwrap(), &rows(&schema, 3..6));
    assert_same(&view.read(0..2).unwrap(), &rows(&schema, 0..2));
}

#[test]
fn rows_after_lost_ones_keep_their_offsets_when_sealed() {
    let place = Place::new("id:int64", &small(1024, u64::MAX));
    let schema = place.topic.schema().clone();
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    for at in 0..20 {
        writer.append(&rows(&schema, at..at + 1)).unwrap();
    }
    drop(writer);
    damage_header(&place.partition().join("00000000000000000000.open"), PREAMBLE + 7 * 8192);
    let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
    assert_eq!(writer.recovery().damage[0].offsets, 7..8);
    writer.append(&rows(&schema, 20..21)).unwrap();
    for sealed in [false, true] {
        if sealed {
            writer.seal().unwrap();
        }
        let view = place.fresh().view().unwrap().partitions.remove(0);
        assert_same(&view.read(8..21).unwrap(), &rows(&schema, 8..21));
        assert_same(&view.read(0..7).unwrap(), &rows(&schema, 0..7));
        let error = view.read(7..8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("block=7") && error.to_string().contains("offset=7 rows=1"), "{error}");
    }
}

#[test]
fn a_damaged_preamble_is_written_again() {
    for count in [0, 5] {
        let (place, file, _) = groups(Fsync::Always, &[count]);
        let mut before = vec![0; PREAMBLE as usize];
        file.read_exact_at(&mut before, 0).unwrap();
        file.write_all_at(&[0; 300], 0).unwrap();
        assert_eq!(place.fresh().view().unwrap().partitions[0].end, count);
        let writer = place.fresh().writer(0, policy(Fsync::Always)).unwrap();
        assert_eq!((writer.end(), writer.recovery().damage.len()), (count, 0));
        let mut after = vec![0; PREAMBLE as usize];
        file.read_exact_at(&mut after, 0).unwrap();
        assert!(before == after);
    }
}

#[test]
fn a_segment_of_another_topic_is_refused_and_left_alone() {
    let (place, _, _) = groups(Fsync::Always, &[5]);
    let (other, _, _) = groups(Fsync::Always, &[7]);
    let name = "00000000000000000000.open";
    let foreign = std::fs::read(other.partition().join(name)).unwrap();
    std::fs::write(place.partition().join(name), &foreign).unwrap();
    assert_eq!(place.fresh().view().unwrap_err().kind(), ErrorKind::Corrupt);
    let error = place.fresh().writer(0, policy(Fsync::Always)).unwrap_err();
    assert!(error.to_string().contains("another topic"), "{error}");
    assert!(std::fs::read(place.partition().join(name)).unwrap() == foreign);
}

#[test]
fn stored_bytes_of_a_segment_are_never_taken_for_blocks() {
    // Rows that are a whole block with an offset that may come next, and a damaged header before them: a block made for
    // another place, and one of another topic made for this very place.
    for other_topic in [false, true] {
        let place = Place::new("x:uint8[4096]", &TopicOptions::default());
        let schema: &Arc<_> = place.topic.schema();
        let writer = place.topic.writer(0, policy(Fsync::Always)).unwrap();
        writer.append(&rows(schema, 0..2)).unwrap();
        let path = place.partition().join("00000000000000000000.open");
        let at = std::fs::metadata(&path).unwrap().len();
        let (incarnation, meant_at) = match other_topic {
            false => (place.topic.incarnation(), at),
            true => (cursorstore::Incarnation(1), at + 4096),
        };
        let meta = BlockMeta {
            incarnation,
            partition: 0,
            at: meant_at,
            base: 3,
            rows: 1,
            left: 0,
            synced: 0,
            time_ms: (0, 0),
            runs: Vec::new(),
        };
        let body = vec![7; 4096];
        let sums = BlockSums::new(vec![vec![crc32c(&body)]]);
        let pages = [block::encode(schema, &meta, &sums).unwrap(), body].concat();
        let fake = Rows::new(schema.clone(), pages.len() / 4096, vec![arrow_buffer::Buffer::from_vec(pages)]).unwrap();
        let from = writer.append(&fake).unwrap();
        let to = writer.append(&rows(schema, from.end..from.end + 1)).unwrap().end;
        damage_header(&path, at);
        let view = place.fresh().view().unwrap().partitions.remove(0);
        assert_eq!(view.end, to);
        assert_same(&view.read(from.end..to).unwrap(), &rows(schema, from.end..to));
        for offset in from {
            assert_eq!(view.read(offset..offset + 1).unwrap_err().kind(), ErrorKind::Corrupt, "offset={offset}");
        }
    }
}

fn damage_header(path: &Path, at: u64) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"x", at + 50).unwrap();
}
