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
        let chunks: Vec<_> = units.iter().map(|unit| reference.chunk_of(unit.from)).collect();
        assert_eq!(chunks.iter().collect::<BTreeSet<_>>().len(), chunks.len(), "a chunk is in one unit");
        for (unit, chunk) in units.iter().zip(chunks) {
            assert_eq!(reference.chunk_of(unit.from + u64::from(unit.count) - 1), chunk, "a unit is in one chunk");
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
        (from, to) = (from.min(run.index), to.max(run.end()));
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
        let next = (pair[0].end(), pair[0].step, pair[0].row + pair[0].count);
        assert_ne!((pair[1].index, pair[1].step, pair[1].row), next, "neighbours are merged");
    }
    assert!(last - first < schedule.span_steps());
}

/// Several chunks in a unit are those of as many units, by first need; the unit comes when the first of them would.
fn check_joined(line: Line, case: &Case, chunks: u32) {
    let Case { share, n, piece } = *case;
    let mut schedule = Schedule::new(line, share, n, piece).unwrap();
    let single = all_units(&mut schedule.clone());
    let mut single: BTreeMap<_, _> = single.iter().map(|unit| ((unit.runs[0].step, unit.runs[0].row), unit)).collect();
    let mut reached = 0;
    schedule = schedule.joining(chunks);
    for unit in all_units(&mut schedule) {
        assert!(unit.cuts.len() < chunks.max(1) as usize);
        assert!(reached <= unit.first_step && unit.last_step - unit.first_step < schedule.span_steps());
        reached = unit.first_step;
        let ends = unit.cuts.iter().copied().chain([unit.runs.len()]);
        let (mut begin, mut need, mut last_step) = (0, unit.first_step, 0);
        for end in ends {
            let runs = &unit.runs[begin..end];
            let same = single.remove(&(runs[0].step, runs[0].row)).expect("a chunk that is in no unit of its own");
            assert_eq!(runs, same.runs);
            assert!(if begin == 0 { same.first_step == need } else { same.first_step >= need });
            (begin, need, last_step) = (end, same.first_step, same.last_step.max(last_step));
            if end == unit.runs.len() {
                assert_eq!((unit.from, unit.count), (same.from, same.count), "of the last chunk");
            }
        }
        assert_eq!(unit.last_step, last_step);
    }
    assert!(single.is_empty(), "nothing is left out");
}

#[test]
fn chunks_of_a_pool_are_joined() {
    // Of steps of 96 some begin in the middle of a pool and need one chunk of the next one alone.
    for batch in [128, 96, 4] {
        check_joins(batch);
    }
}

fn check_joins(batch: u32) {
    let whole = |chunks| {
        let line = line(&key(true, 4, 16, 4), 16 * 4 * 21);
        let units = all_units(&mut Schedule::new(line, share(0, 1, batch), 0, 1).unwrap().joining(chunks));
        units.iter().map(|unit| unit.cuts.len() + 1).collect::<Vec<_>>()
    };
    // First pools of 1, 2, 3 and 4 chunks, four whole ones for each lane, and what is left: 4, 3, 2 and 1.
    let mut sizes = whole(4);
    sizes.sort_unstable();
    assert_eq!(sizes, [[1, 1, 2, 2, 3, 3].as_slice(), &[4; 18]].concat());
    assert_eq!(whole(2).iter().sum::<usize>(), 84);
    assert_eq!((whole(2).into_iter().max(), whole(9).into_iter().max()), (Some(2), Some(4)));
    assert_eq!(whole(0), [1; 84]);
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

/// Every share of every line up to nine samples, in order, shuffled, in one span and in two, from every place.
#[test]
fn every_small_schedule_is_the_reference_turned_round() {
    let shapes = [(false, 1, 1, 1), (true, 1, 2, 2), (true, 2, 1, 2), (true, 3, 2, 1), (true, 64, 3, 4)];
    for ((shuffle, lanes, chunk, pool), total) in shapes.into_iter().flat_map(|shape| (0..10).map(move |n| (shape, n)))
    {
        for sizes in [vec![total], vec![total / 3, 0, total - total / 3]] {
            let reference = Reference { sizes, key: key(shuffle, lanes, chunk, pool), epoch: 0 };
            let samples = reference.samples();
            let shares =
                (1..6u32).flat_map(|batch| (1..=batch).filter(move |w| batch % w == 0).map(move |w| (batch, w)));
            for ((batch, world), n) in shares.flat_map(|share| (0..=total).map(move |n| (share, n))) {
                for rank in 0..world {
                    for (tail, drop_last) in [(Tail::Pad, false), (Tail::Short, false), (Tail::Pad, true)] {
                        let share = Share { rank, world, batch, tail, drop_last };
                        check(&reference, &samples, &Case { share, n, piece: 1 + (n as u32 + batch) % 4 });
                    }
                }
            }
        }
    }
}

/// A job that is stopped after any number of steps and goes on with other ranks and batches, read by schedules alone.
fn check_restarts(reference: &Reference, attempts: &[(u32, u32, u64)]) {
    let (samples, mut n) = (reference.samples(), 0);
    let mut seen = Vec::new();
    for &(world, rows, steps) in attempts {
        let batch = world * rows;
        let mut steps_run = 0;
        let mut batches = BTreeMap::new();
        for rank in 0..world {
            let share = Share { tail: Tail::Short, ..share(rank, world, batch) };
            let mut schedule = Schedule::new(reference.line(), share, n, 5).unwrap();
            steps_run = schedule.steps().min(steps);
            for run in all_units(&mut schedule).iter().flat_map(|unit| &unit.runs).filter(|run| run.step < steps_run) {
                for i in 0..run.count {
                    batches.insert((run.step, rank, run.row + i), run.index + u64::from(i));
                }
            }
        }
        for step in 0..steps_run {
            let (_, global) = cut(&samples, n, batch.into(), 0, 1);
            let rows: Vec<u64> = batches.range((step, 0, 0)..(step + 1, 0, 0)).map(|row| *row.1).collect();
            assert!(global.iter().map(|row| row.1).eq(rows.iter().copied()));
            n += rows.len() as u64;
            seen.extend(rows);
        }
    }
    let places: BTreeSet<u64> = samples[..n as usize].iter().map(|sample| sample.2).collect();
    assert!(seen.len() == n as usize && seen.into_iter().collect::<BTreeSet<_>>() == places);
}

/// Every row of some steps: (step, row) to sample.
fn rows_of(schedule: &mut Schedule) -> BTreeMap<(u64, u32), u64> {
    let mut rows = BTreeMap::new();
    for unit in all_units(schedule) {
        check_unit(&unit, schedule, &mut rows);
    }
    rows
}

/// Read in stretches of `steps_max` steps, every row of every step is what it is without.
fn check_stretches(reference: &Reference, case: &Case, steps_max: u64) {
    let Case { share, n, piece } = *case;
    let mut whole = Schedule::new(reference.line(), share, n, piece).unwrap();
    assert_eq!(whole.rest(), None);
    let (mut at, mut before, mut got) = (n, 0, BTreeMap::new());
    loop {
        let mut stretch = Schedule::stretch(reference.line(), share, at, piece, steps_max).unwrap();
        assert!(stretch.steps() <= steps_max && stretch.span_steps() <= steps_max);
        for step in 0..stretch.steps() {
            let same =
                |schedule: &Schedule, step| (schedule.rows(step), schedule.valid_rows(step), schedule.places(step));
            assert_eq!(same(&stretch, step), same(&whole, before + step));
        }
        let (joined, span_steps) = (all_units(&mut stretch.clone().joining(4)), stretch.span_steps());
        let rows = rows_of(&mut stretch);
        assert!(joined.iter().all(|unit| unit.last_step - unit.first_step < span_steps));
        let cells = |run: &Run| {
            let Run { index, count, step, row } = *run;
            (0..count).map(move |at| ((step, row + at), index + u64::from(at)))
        };
        let joined: BTreeMap<_, _> = joined.iter().flat_map(|unit| &unit.runs).flat_map(cells).collect();
        assert_eq!(joined, rows, "whole pools as well");
        got.extend(rows.into_iter().map(|((step, row), index)| ((before + step, row), index)));
        before += stretch.steps();
        match stretch.rest() {
            Some(next) => assert_eq!(next, at + steps_max * u64::from(share.batch)),
            None => break,
        }
        at += steps_max * u64::from(share.batch);
    }
    assert_eq!(before, whole.steps());
    assert_eq!(got, rows_of(&mut whole));
}

/// What the first steps from a cursor on cost: pools shuffled, samples in them, and units.
fn cost_from(n: u64) -> (u64, u64, usize) {
    let line = line(&key(true, 64, 64, 4), 100_000_000_000);
    count::take();
    let mut schedule = Schedule::new(line, share(1, 4, 256), n, 1).unwrap();
    let (mut unit, mut units) = (Unit::default(), 0);
    while unit.first_step < 100 && schedule.next_into(&mut unit) {
        units += 1;
    }
    let (pools, samples) = count::take();
    (pools, samples, units)
}

#[test]
fn starting_far_on_costs_what_starting_does() {
    // A pool lasts 64 steps: 16 lanes have 2 or 3 in 100 steps, wherever these are.
    for n in [256 * 64, 1_000_000_000, 1_000_000_017, 99_999_900_000] {
        let (pools, samples, units) = cost_from(n);
        assert!((32..=52).contains(&pools) && samples == pools * 256, "n={n} pools={pools} samples={samples}");
        assert!((100..=200).contains(&units), "n={n} units={units}");
    }
    let (pools, samples, _) = cost_from(0);
    assert!((32..=52).contains(&pools) && samples < pools * 256, "the first pools are smaller");
}

#[test]
fn every_pool_is_opened_once_and_memory_is_kept() {
    let line = line(&key(true, 8, 16, 4), 100_000);
    count::take();
    let mut schedule = Schedule::new(line, share(0, 1, 128), 0, 1).unwrap();
    let mut unit = Unit { runs: Vec::with_capacity(16), ..Unit::default() };
    let memory = unit.runs.as_ptr();
    while schedule.next_into(&mut unit) {}
    assert_eq!(count::take().1, 100_000, "each sample is shuffled once");
    assert_eq!(unit.runs.as_ptr(), memory, "the unit's memory is used again");
    assert!(schedule.pools() <= 8, "pools' memory is used again: {}", schedule.pools());
}

#[test]
fn the_short_last_step_is_padded() {
    // Ten samples in order, eight a step: the last step has two, for ranks 1 and 3.
    let units = |rank, tail| {
        let share = Share { tail, ..share(rank, 4, 8) };
        let mut schedule = Schedule::new(line(&key(false, 1, 1, 1), 10), share, 0, 100).unwrap();
        let rows = (0..2).map(|step| (schedule.rows(step), schedule.valid_rows(step))).collect::<Vec<_>>();
        let runs = all_units(&mut schedule).iter().flat_map(|unit| unit.runs.clone()).collect::<Vec<_>>();
        (rows, runs.iter().map(|run| (run.index, run.count, run.step, run.row)).collect::<Vec<_>>())
    };
    assert_eq!(units(0, Tail::Pad), (vec![(2, 2), (1, 0)], vec![(0, 2, 0, 0), (8, 1, 1, 0)]));
    assert_eq!(units(1, Tail::Pad), (vec![(2, 2), (1, 1)], vec![(2, 2, 0, 0), (8, 1, 1, 0)]));
    assert_eq!(units(3, Tail::Pad), (vec![(2, 2), (1, 1)], vec![(6, 2, 0, 0), (9, 1, 1, 0)]));
    assert_eq!(units(0, Tail::Short), (vec![(2, 2), (0, 0)], vec![(0, 2, 0, 0)]));
}

#[test]
fn pieces_in_order_end_on_their_borders() {
    let mut schedule = Schedule::new(line(&key(false, 1, 1, 1), 20), share(0, 1, 6), 3, 8).unwrap();
    let units = all_units(&mut schedule);
    let samples: Vec<_> = units.iter().map(|unit| (unit.from, unit.count, unit.first_step, unit.last_step)).collect();
    assert_eq!(samples, [(3, 5, 0, 0), (8, 8, 0, 2), (16, 4, 2, 2)]);
    assert_eq!(units[1].runs.len(), 3);
}

#[test]
fn shares_that_do_not_exist_are_refused() {
    let new = |share, n| Schedule::new(line(&key(true, 2, 2, 2), 10), share, n, 0).map(|schedule| schedule.steps());
    assert_eq!(new(share(0, 2, 4), 10), Ok(0));
    assert_eq!(new(share(0, 2, 4), 11), Err(PlanError::Cursor { n: 11, samples: 10 }));
    assert_eq!(new(share(2, 2, 4), 0), Err(PlanError::Rank { rank: 2, world: 2 }));
    assert_eq!(new(share(0, 0, 4), 0), Err(PlanError::Rank { rank: 0, world: 0 }));
    assert_eq!(new(share(0, 2, 3), 0), Err(PlanError::Batch { batch: 3, world: 2 }));
    assert_eq!(new(share(0, 1, 0), 0), Err(PlanError::Batch { batch: 0, world: 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_schedule_is_the_reference_turned_round((reference, case) in cases()) {
        check(&reference, &reference.samples(), &case);
    }

    #[test]
    fn joined_chunks_are_those_of_as_many_units((reference, case) in cases(), chunks in 0u32..7) {
        check_joined(reference.line(), &case, chunks);
    }

    #[test]
    fn stretches_are_the_whole_in_parts((reference, case) in cases(), steps_max in 1u64..12) {
        check_stretches(&reference, &case, steps_max);
    }

    #[test]
    fn restarts_go_on_with_the_next_sample(
        reference in references(),
        attempts in prop::collection::vec((1u32..9, 1u32..30, 0u64..6), 1..8),
    ) {
        check_restarts(&reference, &attempts);
    }
}
