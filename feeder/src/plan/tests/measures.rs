//! Costs, statistics and defaults against what schedules really do.

use super::*;
use crate::log::{BLOCK_BYTES, block_rows};
use crate::schema::Schema;

/// Units of every rank over the whole line.
fn units_of_ranks(line: &Line, of: Share) -> Vec<Vec<Unit>> {
    let ranks = (0..of.world).map(|rank| Schedule::new(line.clone(), Share { rank, ..of }, 0, 64).unwrap());
    ranks.map(|mut schedule| all_units(&mut schedule)).collect()
}

#[test]
fn costs_are_what_schedules_do() {
    let shares = [(256, 1), (256, 4), (96, 12), (32, 4), (384, 12), (8, 8), (1024, 128), (100, 5)];
    let shapes = [(true, 64, 64, 4), (true, 64, 1, 4), (true, 16, 7, 2), (true, 48, 20, 3), (false, 1, 1, 1)];
    for ((batch, world), (shuffle, lanes, chunk, pool)) in
        shares.into_iter().flat_map(|s| shapes.map(|shape| (s, shape)))
    {
        let name = format!("B={batch} W={world} L={lanes} c={chunk} G={pool} shuffle={shuffle}");
        let line = line(&key(shuffle, lanes, chunk, pool), 30_011);
        let share = Share { tail: Tail::Short, ..share(0, world, batch) };
        let cost = Cost::of(&line, share, 100, 64).unwrap();
        let ranks = units_of_ranks(&line, share);
        assert_eq!((cost.samples, cost.dropped, cost.padded), (30_011, 0, 0));
        assert_eq!(cost.steps, 30_011_u64.div_ceil(batch.into()));
        let open = |unit: &Unit| unit.last_step - unit.first_step + 1;
        assert!(ranks.iter().flatten().map(open).max().unwrap() <= cost.steps_open, "{name}");
        for units in &ranks {
            let mut change = BTreeMap::<u64, i64>::new();
            for unit in units {
                *change.entry(unit.first_step).or_default() += 1;
                *change.entry(unit.last_step).or_default() -= 1;
            }
            let most = change.values().scan(0, |open, change| {
                *open += change;
                Some(*open)
            });
            assert!(most.max().unwrap() <= cost.chunks_open as i64, "{name}");
        }
        let read = ranks.iter().flatten().map(|unit| u64::from(unit.count)).sum::<u64>() as f64 / 30_011.0;
        assert!((read / cost.reads_per_byte - 1.0).abs() < 0.05, "{name}: {read} {}", cost.reads_per_byte);
        assert_eq!(cost.slab_bytes, (cost.steps_open + cost.steps_ahead) * u64::from(batch / world) * 100);
        if shuffle && world == 1 {
            assert_eq!(cost.chunks, ranks[0].len() as u64, "{name}");
            assert_eq!((cost.lanes, cost.reads_per_byte), (lanes, 1.0));
        }
    }
}

#[test]
fn ends_are_counted() {
    let line = line(&key(true, 4, 4, 4), 1003);
    let cost = |tail, drop_last| Cost::of(&line, Share { tail, drop_last, ..share(0, 10, 100) }, 1, 1).unwrap();
    assert_eq!((cost(Tail::Pad, false).steps, cost(Tail::Pad, false).padded), (11, 7));
    assert_eq!((cost(Tail::Short, false).steps, cost(Tail::Short, false).padded), (11, 0));
    assert_eq!((cost(Tail::Pad, true).steps, cost(Tail::Pad, true).dropped), (10, 3));
    let nothing = Cost::of(&super::line(&key(true, 4, 4, 4), 0), share(0, 1, 8), 1, 1).unwrap();
    assert_eq!((nothing.steps, nothing.chunks, nothing.slab_bytes), (0, 0, 0));
}

#[test]
fn ranks_that_divide_evenly_share_nothing() {
    let line = line(&key(true, 64, 64, 4), 1 << 40);
    let cost = Cost::of(&line, share(3, 8, 512), 4096, 1).unwrap();
    assert_eq!((cost.lanes, cost.chunks_open, cost.reads_per_byte), (8, 32, 1.0));
    // G * c * L / B steps, and the chunk of each lane ahead.
    assert_eq!((cost.steps_open, cost.steps_ahead), (33, 8));
    assert_eq!(cost.slab_bytes, 41 * 64 * 4096);
    let uneven = Cost::of(&super::line(&key(true, 64, 64, 4), 1 << 40), share(0, 12, 96), 4096, 1).unwrap();
    assert!(uneven.reads_per_byte > 1.8, "{}", uneven.reads_per_byte);
}

#[test]
fn order_and_bad_shuffles_are_seen() {
    let total = 100_000;
    let in_order = Quality::of(&line(&key(false, 1, 100, 1), total), 100, 200).unwrap();
    assert!(in_order.correlation > 0.999 && in_order.steps == 208);
    assert!((90.0..110.0).contains(&in_order.scatter), "{in_order:?}");
    assert!(in_order.chunks == 1.0 && in_order.parts <= 1.1, "{in_order:?}");
    assert!((in_order.chunks_full - 95.2).abs() < 0.1 && (in_order.parts_full - 63.4).abs() < 0.1, "{in_order:?}");
    // One lane of big chunks: a step comes from few places, though nothing correlates.
    let lumpy = Quality::of(&line(&key(true, 1, 1000, 2), total), 100, 200).unwrap();
    assert!(lumpy.parts < 3.0 && lumpy.scatter > 20.0, "{lumpy:?}");
    // One chunk a sample is as good as a full permutation.
    let full = Quality::of(&line(&key(true, 1, 1, 1), total), 100, 400).unwrap();
    assert!((full.parts / full.parts_full - 1.0).abs() < 0.02 && (full.scatter - 1.0).abs() < 0.25, "{full:?}");
    assert!(full.correlation.abs() < 0.02 && full.chunks == 100.0, "{full:?}");
    let nothing = Quality::of(&line(&key(true, 1, 1, 1), 0), 100, 400).unwrap();
    assert_eq!((nothing.steps, nothing.parts, nothing.parts_full, nothing.chunks_full), (0, 0.0, 0.0, 0.0));
    let less = Quality::of(&line(&key(true, 1, 1, 1), 30), 100, 400).unwrap();
    assert_eq!((less.steps, less.parts_full, less.chunks_full), (0, 30.0, 30.0));
}

/// Small and large topics, tiny and huge rows: two thirds of the variety of a full permutation at least.
#[test]
fn defaults_mix_well() {
    for (row_bytes, total) in
        [(8, 1_000), (256, 1797), (8, 20_000), (784, 60_000), (3072, 50_000), (8, 1_000_000), (4096, 400_000)]
    {
        for world in [1, 8, 96] {
            let key = default_key(row_bytes, total, world, true, 3);
            let batch = (total / 8).min(192) as u32;
            let quality = Quality::of(&line(&key, total), batch, 128).unwrap();
            let name = format!("row_bytes={row_bytes} total={total} world={world} {key:?} {quality:?}");
            assert!(quality.chunks > 0.66 * quality.chunks_full, "{name}");
            assert!(quality.parts > 0.88 * quality.parts_full, "{name}");
            assert!(quality.correlation.abs() < 0.1 && quality.scatter < 4.0, "{name}");
        }
    }
}

#[test]
fn defaults_follow_bytes_then_mixing() {
    let chunk = |row_bytes, total, world| {
        let key = default_key(row_bytes, total, world, true, 0);
        (key.lanes, key.chunk)
    };
    assert_eq!(chunk(4096, 1 << 30, 1), (64, 64));
    assert_eq!(chunk(4096, 1 << 30, 256), (256, 64));
    assert_eq!(chunk(200_000, 1 << 30, 8), (64, 1));
    assert_eq!(chunk(10 << 20, 1 << 30, 8), (64, 1));
    assert_eq!(chunk(8, 1 << 30, 1), (64, 1024), "tiny rows");
    assert_eq!(chunk(4104, 200_000, 1), (64, 64), "an id beside a row of a power of two");
    assert_eq!(chunk(6144, 1 << 30, 1), (64, 64), "half more");
    assert_eq!(chunk(6145, 1 << 30, 1), (64, 32));
    assert_eq!(chunk(320, 1 << 30, 1), (64, 1024), "many small columns: a column of four bytes fills a page");
    for (schema, row_bytes) in
        [("x:uint16[2048], id:int64", 4104), ("x:uint8[150528], y:int64", 150_536), ("x:float32[80]", 320)]
    {
        let rows = block_rows(&Schema::parse(schema).unwrap(), BLOCK_BYTES);
        assert_eq!(chunk(row_bytes, 1 << 30, 1).1, rows, "a chunk is a block: {schema}");
    }
    assert_eq!(chunk(4096, 64 * 16 * 20, 1), (64, 20), "sixteen chunks a lane");
    assert_eq!(chunk(256, 1797, 1), (64, 1));
    assert_eq!(chunk(256, 100, 8), (6, 1), "a few samples take fewer lanes");
    assert_eq!(chunk(0, 0, 1), (1, 1));
    assert_eq!(chunk(8, 64 * 16 * 10 + 600, 1), (64, 8), "least left over of 6 to 10: 88");
    assert_eq!(chunk(8, 3251, 1), (64, 2), "51 left over, where 3 leaves 179");
    assert_eq!(chunk_samples(1 << 20, 4096, 1 << 30, 64), 256);
}

proptest! {
    #[test]
    fn defaults_are_always_a_plan(row_bytes in 0u64..1 << 24, total in 0u64..1 << 40, world in prop_oneof![1u32..5000, any::<u32>()]) {
        let key = default_key(row_bytes, total, world, true, 0);
        prop_assert_eq!(&key, &default_key(row_bytes, total, world, true, 0));
        prop_assert!(key.chunk == 1 || u64::from(key.chunk) * row_bytes <= CHUNK_BYTES * 3 / 2);
        let chunks = total / u64::from(key.lanes) / u64::from(key.chunk);
        prop_assert!(chunks >= LANE_CHUNKS_MIN || key.lanes == 1);
        // Whatever data there are, no more is given up than for the power of two and for less left over.
        let plenty = total >= 2 * LANE_CHUNKS_MIN * u64::from(key.lanes) * CHUNK_SAMPLES_MAX;
        prop_assert!(!plenty || u64::from(key.chunk) * 4 * row_bytes > CHUNK_BYTES || key.chunk >= 512);
        prop_assert!(Line::new(&key, vec![total].into(), 0).is_ok());
    }
}
