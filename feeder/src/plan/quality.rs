//! How well a plan mixes, measured on steps spread over an epoch and held against a full permutation.
//!
//! Topics are often sorted: by class, by time, by source. What matters then is from how many parts of the topic a batch
//! comes, and whether the batches as a whole drift. Steps are looked at in stretches, so that each pool is opened once a
//! stretch; the cost is that of reading the stretches' pools, not of the line.

use super::{Line, PlanError, Schedule, Share, Tail, Unit};

/// Stretches of steps that are looked at.
const STRETCHES: u64 = 16;
/// Equal parts that a line is cut into for [`Quality::parts`].
const PARTS: u64 = 100;

/// Statistics of a shuffle, as means over the full steps looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// Steps looked at.
    pub steps: u64,
    /// Correlation between a sample's index and the step it comes in: 1 in order, about 0 when shuffled.
    pub correlation: f64,
    /// Different chunks (stretches of c samples of the line) that a step's samples come from.
    pub chunks: f64,
    /// The same for a full permutation.
    pub chunks_full: f64,
    /// Different hundredths of the line that a step's samples come from.
    pub parts: f64,
    /// The same for a full permutation.
    pub parts_full: f64,
    /// How far the steps' mean indices scatter, as variance in units of a full permutation's: below 1 steps are more alike
    /// than by chance, above they differ more; in order it is about B.
    pub scatter: f64,
}

impl Quality {
    /// Statistics of global batches of `batch` on `line`, from about `steps` of its full steps.
    pub fn of(line: &Line, batch: u32, steps: u64) -> Result<Self, PlanError> {
        let share = Share { rank: 0, world: 1, batch, tail: Tail::Short, drop_last: true };
        share.check()?;
        let total = line.total() / u64::from(batch);
        let stretches = STRETCHES.min(steps).min(total);
        let mut sums = Sums::new(line, batch);
        for stretch in 0..stretches {
            let (from, next) = (total * stretch / stretches, total * (stretch + 1) / stretches);
            let count = steps.div_ceil(stretches).min(next - from);
            let stretch = steps_from(line, share, from * u64::from(batch), count)?;
            (from..).zip(stretch).for_each(|(step, samples)| sums.add(step, samples));
        }
        Ok(sums.finish())
    }
}

/// The samples of `count` steps from place `n` on.
fn steps_from(line: &Line, share: Share, n: u64, count: u64) -> Result<Vec<Vec<u64>>, PlanError> {
    let mut schedule = Schedule::new(line.clone(), share, n, share.batch)?;
    let mut steps = vec![Vec::with_capacity(share.batch as usize); count as usize];
    let mut unit = Unit::default();
    while schedule.next_into(&mut unit) && unit.first_step < count {
        for run in unit.runs.iter().filter(|run| run.step < count) {
            steps[run.step as usize].extend(run.index..run.end());
        }
    }
    Ok(steps)
}

/// What is summed up over steps.
struct Sums {
    samples: u64,
    batch: u64,
    chunk: u64,
    /// Number of each step, and the mean of its samples' indices.
    steps: Vec<(f64, f64)>,
    /// Sum of the squares of the samples' indices.
    squares: f64,
    chunks: usize,
    parts: usize,
}

impl Sums {
    fn new(line: &Line, batch: u32) -> Self {
        let (batch, chunk) = (u64::from(batch), u64::from(line.key().chunk));
        Self { samples: line.total(), batch, chunk, steps: Vec::new(), squares: 0.0, chunks: 0, parts: 0 }
    }

    /// Adds the full step `step`. Indices are taken from the line's middle, so that squares stay exact enough.
    fn add(&mut self, step: u64, mut samples: Vec<u64>) {
        samples.sort_unstable();
        let middle = (self.samples - 1) as f64 / 2.0;
        let indices = samples.iter().map(|&index| index as f64 - middle);
        self.steps.push((step as f64, indices.clone().sum::<f64>() / self.batch as f64));
        self.squares += indices.map(|index| index * index).sum::<f64>();
        self.chunks += different(&samples, |index| index / self.chunk);
        self.parts +=
            different(&samples, |index| (u128::from(index) * u128::from(PARTS) / self.samples as u128) as u64);
    }

    fn finish(self) -> Quality {
        let count = (self.steps.len() as f64).max(1.0);
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| self.steps.iter().map(of).sum::<f64>() / count;
        let (step, index) = (mean(&|step| step.0), mean(&|step| step.1));
        let covariance = mean(&|&(s, i)| (s - step) * (i - index));
        let step_variance = mean(&|&(s, _)| (s - step) * (s - step));
        let index_variance = self.squares / (count * self.batch as f64) - index * index;
        let scatter = mean(&|&(_, i)| i * i);
        let (n, b) = (self.samples as f64, self.batch as f64);
        let (part, larger) = (self.samples / PARTS, self.samples % PARTS);
        let hit = |size| hit(self.samples, size, self.batch.min(self.samples));
        Quality {
            steps: self.steps.len() as u64,
            correlation: ratio(covariance, (step_variance * index_variance).sqrt(), 0.0),
            chunks: self.chunks as f64 / count,
            chunks_full: (self.samples / self.chunk) as f64 * hit(self.chunk) + hit(self.samples % self.chunk),
            parts: self.parts as f64 / count,
            parts_full: (PARTS - larger) as f64 * hit(part) + larger as f64 * hit(part + 1),
            scatter: ratio(scatter, (n + 1.0) * (n - b) / (12.0 * b), 1.0),
        }
    }
}

/// Groups that sorted samples fall into.
fn different(samples: &[u64], group: impl Fn(u64) -> u64) -> usize {
    samples.chunk_by(|&a, &b| group(a) == group(b)).count()
}

/// Chance that `draws` of `samples`, at most all of them and without putting back, hit a group of `size`.
fn hit(samples: u64, size: u64, draws: u64) -> f64 {
    let (few, many) = (size.min(draws), size.max(draws));
    // None of the few is among the many.
    1.0 - (0..few).map(|i| samples.saturating_sub(many + i) as f64 / (samples - i) as f64).product::<f64>()
}

fn ratio(part: f64, whole: f64, otherwise: f64) -> f64 {
    if whole > 0.0 { part / whole } else { otherwise }
}
