//! Schedules against the reference: every row of every step, from anywhere, for every share.

use super::reference::{Reference, cut, references};
use super::*;

/// A share with its cursor and the size of a piece.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) share: Share,
    pub(super) n: u64,
    pub(super) piece: u32,
}

pub(super) fn all_units(schedule: &mut Schedule) -> Vec<Unit> {
    let (mut units, mut unit) = (Vec::new(), Unit::default());
    while schedule.next_into(&mut unit) {
        units.push(unit.clone());
    }
    assert!(!schedule.next_into(&mut unit), "the end stays the end");
    units
}

/// Checks one schedule in every respect; `samples` are the reference's.
pub(super) fn check(reference: &Reference, samples: &[(usize, u64, u64)], case: &Case) {
    let Case { share, n, piece } = *case;
    let line = reference.line();
    let mut schedule = Schedule::new(line, share, n, piece).unwrap();
    let (batch, world) = (u64::from(share.batch), u64::from(share.world));
    let left = reference.total() - n;
    let steps = if share.drop_last { left / batch } else { left.div_ceil(batch) };
    assert_eq!(schedule.steps(), steps);

    let units = all_units(&mut schedule);
    let mut got: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    for unit in &units {
        check_unit(unit, &schedule, &mut got);
    }
    assert!(units.windows(2).all(|pair| pair[0].first_step <= pair[1].first_step), "by first need");
    if reference.key.shuffle {
        let chunks: Vec<_> = units.iter().map(|unit| chunk_of(reference, unit.from)).collect();
        assert_eq!(chunks.iter().collect::<BTreeSet<_>>().len(), chunks.len(), "a chunk is in one unit");
        for (unit, chunk) in units.iter().zip(chunks) {
            assert_eq!(chunk_of(reference, unit.from + u64::from(unit.count) - 1), chunk, "a unit is in one chunk");
        }
    } else {
        assert!(units.iter().all(|unit| unit.count <= piece));
    }

    let mut rows = 0;
    for step in 0..steps {
        let (mine, all) = cut(samples, n + step * batch, batch, u64::from(share.rank), world);
        assert_eq!(schedule.valid_rows(step) as usize, mine.len());
        assert_eq!(schedule.places(step), all.len() as u64);
        for (row, (place, sample)) in (0u32..).zip(&mine) {
            assert_eq!(got.get(&(step, row)), Some(sample), "step {step} row {row}");
            assert_eq!(schedule.place(step, row), *place);
        }
        let padded = match share.tail {
            Tail::Pad => (all.len() as u64).div_ceil(world) as u32,
            Tail::Short => mine.len() as u32,
        };
        assert_eq!(schedule.rows(step), padded);
        for row in mine.len() as u32..padded {
            let again = if mine.is_empty() { all[0].1 } else { mine[row as usize % mine.len()].1 };
            assert_eq!(got.get(&(step, row)), Some(&again), "padding of step {step} row {row}");
        }
        rows += padded as usize;
    }
    assert_eq!(got.len(), rows, "nothing else is read");
    check_span_steps(reference, &units, &schedule, case);
}

fn check_unit(unit: &Unit, schedule: &Schedule, got: &mut BTreeMap<(u64, u32), u64>) {
    let (mut first, mut last) = (u64::MAX, 0);
    let (mut from, mut to) = (u64::MAX, 0);
    for run in &unit.runs {
        (first, last) = (first.min(run.step), last.max(run.step));
        (from, to) = (from.min(run.index), to.max(run.index + u64::from(run.count)));
        assert!(run.count > 0);
        for i in 0..run.count {
            let before = got.insert((run.step, run.row + i), run.index + u64::from(i));
            assert_eq!(before, None, "a row is written once");
        }
    }
    assert_eq!((unit.first_step, unit.last_step), (first, last));
    assert_eq!((unit.from, unit.from + u64::from(unit.count)), (from, to), "exactly what is needed");
    for pair in unit.runs.windows(2) {
        assert!(pair[0].index <= pair[1].index, "by index");
        let next = (pair[0].index + u64::from(pair[0].count), pair[0].step, pair[0].row + pair[0].count);
        assert_ne!((pair[1].index, pair[1].step, pair[1].row), next, "neighbours are merged");
    }
    assert!(last - first < schedule.span_steps());
}

/// (span, lane or none, chunk) of a sample, from the definition of chunks.
fn chunk_of(reference: &Reference, index: u64) -> (usize, u64, u64) {
    let (mut span, mut start) = (0, 0);
    while index >= start + reference.sizes[span] {
        start += reference.sizes[span];
        span += 1;
    }
    let (lanes, chunk) = (u64::from(reference.key.lanes), u64::from(reference.key.chunk));
    let (least, more) = (reference.sizes[span] / lanes, reference.sizes[span] % lanes);
    let full = least / chunk * chunk;
    let inside = index - start;
    if inside < full * lanes {
        return (span, 0, inside / chunk);
    }
    let (mut lane, mut end) = (0, full * lanes + (least - full) + u64::from(more > 0));
    while inside >= end {
        lane += 1;
        end += least - full + u64::from(lane < more);
    }
    (span, 1, lane)
}

/// As many steps as are promised, and as the design counts them: what a pool of one lane spans.
fn check_span_steps(reference: &Reference, units: &[Unit], schedule: &Schedule, case: &Case) {
    let most = units.iter().map(|unit| unit.last_step - unit.first_step + 1).max().unwrap_or(0);
    let promised = schedule.span_steps();
    assert!(most <= promised && promised <= schedule.steps().max(most));
    let batch = u64::from(case.share.batch);
    let PlanKey { lanes, chunk, pool, shuffle, .. } = reference.key;
    let samples = if shuffle {
        u64::from(lanes) * u64::from(chunk) * u64::from(pool)
    } else if case.share.world == 1 {
        u64::from(case.piece)
    } else {
        1
    };
    assert!(promised <= samples.div_ceil(batch) + 1);
}

/// Any share of any line, from anywhere.
fn cases() -> impl Strategy<Value = (Reference, Case)> {
    references().prop_flat_map(|reference| {
        let total = reference.total();
        let tail = prop_oneof![Just(Tail::Pad), Just(Tail::Short)];
        let batch = prop_oneof![1u32..12, 1u32..200];
        let case = (1u32..13, any::<u32>(), batch, tail, any::<bool>(), 0..=total, 1u32..70).prop_map(
            |(world, rank, rows, tail, drop_last, n, piece)| {
                let rows = rows.div_ceil(world);
                let share = Share { rank: rank % world, world, batch: rows * world, tail, drop_last };
                Case { share, n, piece }
            },
        );
        (Just(reference), case)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_schedule_is_the_reference_turned_round((reference, case) in cases()) {
        check(&reference, &reference.samples(), &case);
    }
}
