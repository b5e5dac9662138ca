//! The definition, written down slowly: place by place, without any of the arithmetic of the product.

use super::*;

/// One line, as the plan's model has it; the permutations are the product's.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub(super) sizes: Vec<u64>,
    pub(super) key: PlanKey,
    pub(super) epoch: u64,
}

impl Reference {
    pub(super) fn total(&self) -> u64 {
        self.sizes.iter().sum()
    }

    pub(super) fn line(&self) -> Line {
        let ends: Vec<u64> = self
            .sizes
            .iter()
            .scan(0, |sum, size| {
                *sum += size;
                Some(*sum)
            })
            .collect();
        Line::new(&self.key, ends.into(), self.epoch).unwrap()
    }

    /// (span, lane, index on the line) of place n.
    pub(super) fn sample(&self, n: u64) -> (usize, u64, u64) {
        let (mut s, mut start) = (0, 0);
        while n >= start + self.sizes[s] {
            start += self.sizes[s];
            s += 1;
        }
        if !self.key.shuffle {
            return (s, 0, n);
        }
        let lanes = u64::from(self.key.lanes);
        let (x, lane) = ((n - start) / lanes, (n - start) % lanes);
        (s, lane, start + self.shuffled(s, self.sizes[s], lane, x))
    }

    fn shuffled(&self, s: usize, size: u64, lane: u64, x: u64) -> u64 {
        let (lanes, chunk, pool) = (u64::from(self.key.lanes), u64::from(self.key.chunk), u64::from(self.key.pool));
        let (least, more) = (size / lanes, size % lanes);
        let rounds = least / chunk;
        let full = rounds * chunk;
        let (first, width) = ((1 + lane * pool / lanes) * chunk, pool * chunk);
        let (base, end) = if x < first {
            (0, first)
        } else {
            let base = x - (x - first) % width;
            (base, base + width)
        };
        let end = end.min(least + u64::from(lane < more));
        let mut order = Vec::new();
        shuffle(&mut order, (end - base) as u32, mix(&[self.key.seed, self.epoch, s as u64, 1, lane, base]));
        let x = base + u64::from(order[(x - base) as usize]);
        // The model, but that the shorter chunks lie after `rest` full ones instead of after all of them, less what makes no
        // whole chunk, which stays at the end.
        let (rest, moved) = (self.rest(s), self.moved(s));
        if x >= full {
            let left = lane * (least - full) + lane.min(more) + (x - full);
            return if left < moved { rest * chunk + left } else { full * lanes + left };
        }
        let order = ChunkOrder::new(rounds * lanes, mix(&[self.key.seed, self.epoch, s as u64, 2]));
        let number = order.at(x / chunk * lanes + lane);
        number * chunk + x % chunk + if number < rest { 0 } else { moved }
    }

    /// Samples of shorter chunks that lie after the `rest` full ones, in span s.
    fn moved(&self, s: usize) -> u64 {
        let chunk = u64::from(self.key.chunk);
        let left =
            self.sizes[s] - self.sizes[s] / u64::from(self.key.lanes) / chunk * chunk * u64::from(self.key.lanes);
        if self.key.version == 1 { left } else { left / chunk * chunk }
    }

    /// Full chunks before the shorter ones, in span s.
    fn rest(&self, s: usize) -> u64 {
        let full_chunks =
            self.sizes[s] / u64::from(self.key.lanes) / u64::from(self.key.chunk) * u64::from(self.key.lanes);
        let key = mix(&[self.key.seed, self.epoch, s as u64, 3]);
        (u128::from(key) * u128::from(full_chunks + 1) / (1u128 << 64)) as u64
    }

    /// The chunk of a sample, as span and first sample.
    pub(super) fn chunk_of(&self, index: u64) -> (usize, u64) {
        let (mut span, mut start) = (0, 0);
        while index >= start + self.sizes[span] {
            start += self.sizes[span];
            span += 1;
        }
        let (lanes, chunk) = (u64::from(self.key.lanes), u64::from(self.key.chunk));
        let (least, more) = (self.sizes[span] / lanes, self.sizes[span] % lanes);
        let full = least / chunk * lanes;
        let mut sizes = vec![chunk; self.rest(span) as usize];
        let (mut moved, mut last) = (self.moved(span), Vec::new());
        for lane in 0..lanes {
            let size = least - full / lanes * chunk + u64::from(lane < more);
            let now = size.min(moved);
            sizes.push(now);
            last.push(size - now);
            moved -= now;
        }
        sizes.extend(vec![chunk; (full - self.rest(span)) as usize]);
        sizes.extend(last);
        let mut first = start;
        for size in sizes {
            if index < first + size {
                return (span, first);
            }
            first += size;
        }
        unreachable!("chunks cover the span");
    }

    /// All samples of the line, by place.
    pub(super) fn samples(&self) -> Vec<(usize, u64, u64)> {
        (0..self.total()).map(|n| self.sample(n)).collect()
    }
}

/// A row of a step: its place, and its sample.
pub(super) type Row = (u64, u64);

/// One rank's rows, and all, in a step of the places `n..n + batch`: sorted and cut.
pub(super) fn cut(samples: &[(usize, u64, u64)], n: u64, batch: u64, rank: u64, world: u64) -> (Vec<Row>, Vec<Row>) {
    let mut order: Vec<_> = (n..(samples.len() as u64).min(n + batch))
        .map(|place| (samples[place as usize].0, samples[place as usize].1, place, samples[place as usize].2))
        .collect();
    order.sort_unstable();
    let order: Vec<_> = order.into_iter().map(|(_, _, place, sample)| (place, sample)).collect();
    let count = order.len() as u64;
    let mine = order[(count * rank / world) as usize..(count * (rank + 1) / world) as usize].to_vec();
    (mine, order)
}

/// Seeds, shapes and spans to try: most of them smaller than what they are meant for.
pub(super) fn references() -> impl Strategy<Value = Reference> {
    let sizes = prop_oneof![
        3 => prop::collection::vec(0u64..700, 1..5),
        1 => prop::collection::vec(0u64..20, 0..12),
        1 => prop::collection::vec(700u64..3000, 1..2),
    ];
    let lanes = prop_oneof![Just(1u32), Just(2), Just(3), Just(8), Just(48), Just(64)];
    let key =
        (any::<bool>(), any::<u64>(), lanes, 1u32..40, 1u32..6).prop_map(|(ordered, seed, lanes, chunk, pool)| {
            let version = PLAN_VERSION_MIN + (seed >> 9) as u32 % PLAN_VERSION;
            PlanKey { version, shuffle: !ordered || seed % 3 > 0, seed, lanes, chunk, pool }
        });
    (sizes, key, 0u64..3).prop_map(|(sizes, key, epoch)| Reference { sizes, key, epoch })
}
