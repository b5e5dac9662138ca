//! Lines: one to one, the same for all, and pinned.

use super::reference::{Reference, cut, references};
use super::*;

/// Orders as a program in another language, written from the definition alone, computes them. If one of these
/// changes, resumed jobs train on other samples than they would have: that needs a new `PLAN_VERSION`.
#[test]
fn orders_are_pinned() {
    let samples = |line: &Line| (0..line.total()).map(|n| line.sample(n).index).collect::<Vec<_>>();
    let key = |shuffle, lanes, chunk, pool| PlanKey { version: 1, ..key(shuffle, lanes, chunk, pool) };
    let small = samples(&line(&key(true, 3, 4, 2), 40));
    let expected = [
        16, 1, 31, 19, 0, 37, 18, 2, 39, 17, 3, 29, 26, 13, 30, 24, 22, 36, 9, 12, 38, 10, 14, 28, 25, 15, 5, 8, 21,
        35, 11, 23, 6, 27, 20, 4, 33, 34, 7, 32,
    ];
    assert_eq!(small, expected);
    assert_eq!(mix(&small), 0x4952_e272_0128_e994);
    let digits = |epoch| samples(&Line::new(&key(true, 64, 1, 4), vec![1797].into(), epoch).unwrap());
    assert_eq!(digits(0)[..8], [1766, 938, 404, 1059, 1346, 324, 433, 604]);
    assert_eq!(mix(&digits(0)), 0xab0d_714c_65b2_fea2);
    assert_eq!(digits(1)[..8], [165, 21, 680, 42, 420, 1710, 1228, 1100]);
    assert_eq!(mix(&digits(1)), 0x4a27_71cf_82b6_bdbe);
    let spans = PlanKey { seed: 0xdead_beef_cafe_f00d, ..key(true, 8, 16, 3) };
    let spans = Line::new(&spans, vec![0, 5000, 5333].into(), 2).unwrap();
    assert_eq!(mix(&samples(&spans)), 0x8f0e_860d_74ad_0dee);
    let far = line(&key(true, 64, 64, 4), 1_000_000_000_007);
    let far = [0, 1_000_000_000, 1_000_000_000_000].map(|n| far.sample(n).index);
    assert_eq!(far, [573_973_613_593, 179_098_400_355, 859_675_249_088]);
}

/// The same of version 2, which keeps full chunks at multiples of their size.
#[test]
fn orders_of_the_second_version_are_pinned() {
    let samples = |line: &Line| (0..line.total()).map(|n| line.sample(n).index).collect::<Vec<_>>();
    let of = |version, total| samples(&line(&PlanKey { version, ..key(true, 3, 4, 2) }, total));
    // Four left over make a whole chunk: nothing stays at the end.
    assert_eq!(of(2, 40), of(1, 40));
    // Of six left over, after `rest` samples, two for each lane, those of the last lane go to the end; what lay behind them
    // moves up.
    let rest = 32;
    let moved = |index: u64| match index.checked_sub(rest) {
        Some(4..6) => index - rest - 4 + 40,
        Some(6..) => index - 2,
        _ => index,
    };
    let (first, second) = (of(1, 42), of(2, 42));
    assert_eq!(second, first.into_iter().map(moved).collect::<Vec<_>>());
    assert_eq!(mix(&second), 0xf4f8_04ee_0387_c8ef);
    let spans = PlanKey { seed: 0xdead_beef_cafe_f00d, ..key(true, 8, 16, 3) };
    let spans = Line::new(&spans, vec![0, 5000, 5333].into(), 2).unwrap();
    assert_eq!(mix(&samples(&spans)), 0xe606_4190_7088_b329);
}

#[test]
fn full_chunks_lie_at_multiples_of_their_size() {
    for total in [40, 41, 43, 1000, 1003, 5333] {
        let span = line(&key(true, 3, 4, 2), total).span(0);
        for dealt in (0..total / 12 * 4).step_by(4) {
            assert!((0..3).all(|lane| span.index(lane, dealt).is_multiple_of(4)), "total={total} dealt={dealt}");
        }
    }
}

#[test]
fn permutations_are_pinned() {
    let order = |n, i| ChunkOrder::new(n, 5).at(i);
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| order(10, i)), [8, 6, 5, 1, 0, 3, 4, 7, 9, 2]);
    let far = [0, 1, 2].map(|i| order(10_000_000_000_000, i));
    assert_eq!(far, [4_893_833_472_380, 4_176_694_742_841, 454_270_760_246]);
    let mut pool = Vec::new();
    shuffle(&mut pool, 10, 5);
    assert_eq!(pool, [2, 7, 9, 8, 1, 0, 5, 4, 3, 6]);
}

#[test]
fn permutations_are_one_to_one() {
    let mut pool = Vec::new();
    for n in 0..300u32 {
        let order = ChunkOrder::new(u64::from(n), u64::from(n) * 3);
        let images: BTreeSet<_> = (0..u64::from(n)).map(|i| order.at(i)).collect();
        assert!(images.into_iter().eq(0..u64::from(n)));
        shuffle(&mut pool, n, u64::from(n) * 5);
        assert!(pool.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..n));
    }
    for n in [LINE_SAMPLES_MAX, (1 << 62) + 1, (1 << 40) - 1] {
        let order = ChunkOrder::new(n, 9);
        let images: BTreeSet<_> = (0..500).chain(n - 500..n).map(|i| order.at(i)).collect();
        assert!(images.len() == 1000 && images.iter().all(|&image| image < n));
    }
}

/// (chi² - degrees) / sqrt(2 degrees) of counts that should be equal.
fn z(counts: &[u64]) -> f64 {
    let degrees = (counts.len() - 1) as f64;
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let chi2: f64 = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
    (chi2 - degrees) / (2.0 * degrees).sqrt()
}

/// Images of fixed places, differences of neighbours and of places half way round, over many keys.
fn worst_z(n: usize, keys: u64, mut permute: impl FnMut(u64, &mut Vec<u32>)) -> f64 {
    let mut images = vec![vec![0; n]; 4];
    let mut differences = vec![vec![0; n - 1]; 3];
    let mut image = Vec::new();
    for key in 0..keys {
        permute(mix(&[key, 11]), &mut image);
        for (i, counts) in images.iter_mut().enumerate() {
            counts[image[i * (n - 1) / 3] as usize] += 1;
        }
        for (counts, (a, b)) in differences.iter_mut().zip([(0, 1), (n / 2, n / 2 + 1), (0, n / 2)]) {
            counts[(image[b] as usize + n - image[a] as usize) % n - 1] += 1;
        }
    }
    images.iter().chain(&differences).map(|counts| z(counts).abs()).fold(0.0, f64::max)
}

/// Chance gives up to about 3.5. Longer runs (3 million keys at 4 to 64, 1 million at 256) gave no more either.
#[test]
fn permutations_look_random() {
    for (n, keys) in [(5, 4_000), (12, 8_000), (28, 15_000), (64, 5_000), (256, 3_000)] {
        let pools = worst_z(n, keys, |key, image| shuffle(image, n as u32, key));
        let chunks = worst_z(n, keys, |key, image| {
            let order = ChunkOrder::new(n as u64, key);
            image.clear();
            image.extend((0..n as u64).map(|i| order.at(i) as u32));
        });
        assert!(pools < 4.0 && chunks < 4.0, "n={n} pools={pools} chunks={chunks}");
    }
}

/// All orders of a few elements are equally likely.
#[test]
fn small_permutations_are_all_as_likely() {
    for n in 2..6u64 {
        let factorial = (1..=n).product::<u64>() as usize;
        let (mut pools, mut chunks) = (BTreeMap::<Vec<u64>, u64>::new(), BTreeMap::<Vec<u64>, u64>::new());
        for key in 0..100 * factorial as u64 {
            let (order, mut pool) = (ChunkOrder::new(n, mix(&[key, 12])), Vec::new());
            *chunks.entry((0..n).map(|i| order.at(i)).collect()).or_default() += 1;
            shuffle(&mut pool, n as u32, mix(&[key, 13]));
            *pools.entry(pool.into_iter().map(u64::from).collect()).or_default() += 1;
        }
        for counts in [pools, chunks].map(|counts| counts.into_values().collect::<Vec<_>>()) {
            assert!(counts.len() == factorial && z(&counts).abs() < 4.0, "n={n} z={}", z(&counts));
        }
    }
}

fn check_line(reference: &Reference) {
    let (line, samples) = (reference.line(), reference.samples());
    assert_eq!(line.total(), reference.total());
    let mut start = 0;
    for (n, &(span, lane, index)) in samples.iter().enumerate() {
        let placed = line.sample(n as u64);
        assert_eq!((placed.span, u64::from(placed.lane), placed.index), (span, lane, index));
    }
    for size in &reference.sizes {
        let end = start + *size as usize;
        let span: BTreeSet<u64> = samples[start..end].iter().map(|sample| sample.2).collect();
        assert!(span.into_iter().eq(start as u64..end as u64), "none lost, none twice, none of another span");
        start = end;
    }
    assert!(reference.key.shuffle || samples.iter().map(|sample| sample.2).eq(0..line.total()));
}

#[test]
fn every_small_line_is_one_to_one() {
    for (size, lanes) in (0..40).flat_map(|size| [1, 2, 3, 5, 64].map(|lanes| (size, lanes))) {
        for (chunk, pool) in (1..5).flat_map(|chunk| (1..4).map(move |pool| (chunk, pool))) {
            check_line(&Reference { sizes: vec![size], key: key(true, lanes, chunk, pool), epoch: 1 });
        }
    }
}

#[test]
fn seeds_and_epochs_and_spans_differ() {
    let mut orders = BTreeSet::new();
    for (seed, epoch) in (0..6).flat_map(|seed| (0..6).map(move |epoch| (seed, epoch))) {
        let line = Line::new(&PlanKey { seed, ..key(true, 4, 5, 2) }, vec![100, 200].into(), epoch).unwrap();
        for start in [0, 100] {
            orders.insert((start..start + 100).map(|n| line.sample(n).index - start).collect::<Vec<_>>());
        }
    }
    assert_eq!(orders.len(), 72);
}

/// Those of a shuffle's shorter chunks come last, so these must not be the same samples in every epoch.
#[test]
fn drop_last_leaves_out_other_samples_each_epoch() {
    let mut dropped = vec![0; 2047];
    for epoch in 0..60 {
        let line = Line::new(&key(true, 64, 1, 4), vec![2047].into(), epoch).unwrap();
        let share = Share { drop_last: true, ..share(0, 1, 256) };
        let mut schedule = Schedule::new(line, share, 0, 1).unwrap();
        dropped.iter_mut().for_each(|dropped| *dropped += 1);
        for run in all_units(&mut schedule).iter().flat_map(|unit| &unit.runs) {
            (run.index..run.end()).for_each(|index| dropped[index as usize] -= 1);
        }
    }
    assert_eq!(dropped.iter().sum::<i32>(), 60 * 255);
    // 7.5 of 60 on average.
    assert!(*dropped.iter().max().unwrap() < 23, "{dropped:?}");
}

#[test]
fn what_is_no_plan_is_refused() {
    let line = |key: PlanKey, ends: &[u64]| Line::new(&key, ends.into(), 0).map(|line| line.total());
    let good = key(true, 64, 64, 4);
    assert_eq!(line(good.clone(), &[]), Ok(0));
    assert_eq!(line(good.clone(), &[3, 3, 9]), Ok(9));
    assert_eq!(line(PlanKey { version: 1, ..good.clone() }, &[9]), Ok(9), "a former version is known");
    for found in [0, 3] {
        assert_eq!(line(PlanKey { version: found, ..good.clone() }, &[1]), Err(PlanError::Version { found }));
    }
    assert_eq!(line(key(true, 0, 1, 1), &[1]), Err(PlanError::Empty { lanes: 0, chunk: 1, pool: 1 }));
    assert_eq!(line(key(true, u32::MAX, 1, 1), &[1]), Err(PlanError::Lanes { lanes: u32::MAX }));
    let samples = u128::from(u32::MAX) * u128::from(u32::MAX) * 2;
    assert_eq!(line(key(true, 2, u32::MAX, u32::MAX), &[1]), Err(PlanError::TooWide { samples }));
    assert_eq!(line(good.clone(), &[5, 4]), Err(PlanError::Ends { span: 1 }));
    assert_eq!(line(good, &[u64::MAX]), Err(PlanError::TooLong { samples: u64::MAX }));
    let error = Error::from(PlanError::Version { found: 3 });
    assert_eq!(error.kind(), ErrorKind::StateMismatch);
    assert_eq!(Error::from(PlanError::Batch { batch: 3, world: 2 }).kind(), ErrorKind::Invalid);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_line_is_its_reference(reference in references()) {
        check_line(&reference);
    }

    #[test]
    fn a_growing_line_keeps_its_past(reference in references(), more in prop::collection::vec(0u64..400, 1..3)) {
        let line = reference.line();
        let longer = Reference { sizes: [&reference.sizes[..], &more].concat(), ..reference }.line();
        prop_assert!((0..line.total()).all(|n| line.sample(n) == longer.sample(n)));
    }

    #[test]
    fn any_ranks_and_batches_at_every_step(reference in references(), steps in prop::collection::vec((1u32..200, 1u32..9), 1..40)) {
        let (line, samples) = (reference.line(), reference.samples());
        let (mut n, mut seen) = (0, Vec::new());
        for (batch, world) in steps {
            let whole = line.step(n, batch, 0, 1);
            for world in [1, 2, 3, world, batch] {
                let parts: Vec<_> = (0..world).map(|rank| line.step(n, batch, rank, world)).collect();
                prop_assert_eq!(&parts.concat(), &whole);
                let (mine, _) = cut(&samples, n, batch.into(), u64::from(world) - 1, world.into());
                prop_assert!(mine.iter().map(|row| row.1).eq(parts[world as usize - 1].iter().copied()));
            }
            n += whole.len() as u64;
            seen.extend(whole);
        }
        let places: BTreeSet<u64> = samples[..n as usize].iter().map(|sample| sample.2).collect();
        prop_assert!(seen.len() == n as usize && seen.into_iter().collect::<BTreeSet<_>>() == places);
    }
}
