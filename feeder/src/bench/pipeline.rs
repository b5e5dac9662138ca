//! Batches as a trainer takes them: the loader with the caller's settings, one epoch after the other.
//!
//! The clock runs from before the loader is made; rates are over everything from the first request for a batch on. A
//! simulated training step parks its thread, as one does that waits for a device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use super::Options;
use crate::engine::{Dataset, Loader, Step};
use crate::error::{Error, ErrorKind, Result};

/// Longest wait for one batch.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run of the pipeline took.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// Batches handed out.
    pub steps: u64,
    /// Rows handed out.
    pub samples: u64,
    /// Bytes handed out.
    pub bytes: u64,
    /// Whole epochs.
    pub epochs: u64,
    /// Time from the first request for a batch to the end.
    pub seconds: f64,
    /// Time until the loader was there: slab, threads.
    pub open_ms: f64,
    /// Time from there to the first batch.
    pub first_batch_ms: f64,
    /// Time spent waiting for batches, the first one apart.
    pub stall_s: f64,
    /// Processor time of all threads.
    pub cpu_s: f64,
    /// Memory that batches live in.
    pub slab_bytes: u64,
    /// What the loader has to say, such as which way files are read.
    pub notices: Vec<String>,
}

impl Pipeline {
    /// 10⁹ bytes handed out per second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    /// Rows handed out per second.
    pub fn samples_per_s(&self) -> f64 {
        self.samples as f64 / self.seconds
    }

    /// Time of one step, in us.
    pub fn step_us(&self) -> f64 {
        self.seconds / self.steps as f64 * 1e6
    }

    /// Processor seconds for 10⁹ bytes.
    pub fn cpu_s_per_gb(&self) -> f64 {
        self.cpu_s / self.bytes as f64 * 1e9
    }

    /// Runs it. A cold run ends with its first epoch: after that nothing is cold.
    pub(super) fn measure(dataset: Arc<Dataset>, options: &Options) -> Result<Self> {
        let time = Duration::from_secs_f64(options.seconds);
        let opening = Instant::now();
        let mut loader = Loader::new(dataset, options.settings.clone())?;
        loader.begin()?;
        let mut run = Self { open_ms: ms(opening), ..Self::default() };
        let (began, cpu_s) = (Instant::now(), cpu_s()?);
        let (mut due, mut first_stall_ns) = (began, 0);
        while run.steps == 0 || began.elapsed() < time {
            match loader.poll_next(PATIENCE)? {
                Step::Batch(batch) => {
                    if run.steps == 0 {
                        (run.first_batch_ms, first_stall_ns, due) =
                            (ms(began), loader.stats().stall_ns, Instant::now());
                    }
                    run.steps += 1;
                    run.samples += u64::from(batch.rows);
                    train(&mut due, options.step_us);
                }
                Step::End if options.cold => break,
                Step::End => {
                    run.epochs += 1;
                    loader.begin()?;
                }
                Step::Pending => {
                    let waited = PATIENCE.as_secs();
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        format!("no batch came: waited={waited}s, {}", loader.late()),
                    ));
                }
            }
        }
        let stats = loader.stats();
        run.seconds = began.elapsed().as_secs_f64();
        run.cpu_s = self::cpu_s()? - cpu_s;
        run.stall_s = stats.stall_ns.saturating_sub(first_stall_ns) as f64 / 1e9;
        (run.bytes, run.slab_bytes, run.notices) = (stats.bytes, stats.slab_bytes, loader.take_notices());
        Ok(run)
    }
}

/// One step of a trainer that is never early: what it is late by is not made good.
fn train(due: &mut Instant, step_us: Option<u64>) {
    let Some(us) = step_us else { return };
    *due = (*due).max(Instant::now()) + Duration::from_micros(us);
    while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn cpu_s() -> Result<f64> {
    let usage =
        getrusage(UsageWho::RUSAGE_SELF).map_err(|errno| Error::io("cannot tell the processor time", errno.into()))?;
    let times = [usage.user_time(), usage.system_time()];
    Ok(times.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum())
}
