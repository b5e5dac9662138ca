//! What this machine can do at most, and how much of that the pipeline reaches on a topic: `forebay bench`.
//!
//! [`run`] measures, in a few seconds: copying memory, reading the topic's own files from the page cache and from the
//! disk ([`limits`]), and batches as a trainer takes them ([`pipeline`]). Everything is measured on the same files, by as
//! many threads as the pipeline reads with. [`words`] says what the figures mean. Rates are 10⁹ bytes per second; a
//! pipeline's count bytes handed out, first batch included. Where a limit cannot be measured (no direct reads on this file
//! system) it is `None`, with the reason beside it.
//!
//! Without a topic of the caller's own, [`generated`] makes one and removes it.

mod generated;
mod limits;
mod pipeline;
mod words;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cursorstore::TopicName;

pub use generated::Generated;
pub use limits::{Limits, READ_BYTES, RING_BYTES};
pub use pipeline::Pipeline;
pub use words::{reader, trainer};

use crate::engine::{Dataset, Settings};
use crate::error::{Error, Result};
use crate::log::Root;

/// Longest and shortest measurement, in seconds.
pub const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=3600.0;
/// Longest simulated training step, in microseconds.
pub const STEP_US_MAX: u64 = 60_000_000;
/// Each limit is measured for this part of the pipeline's time.
const LIMIT_PART: f64 = 0.25;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The loader, as a trainer would make it.
    pub settings: Settings,
    /// How long the pipeline runs, in [`SECONDS`].
    pub seconds: f64,
    /// How long a simulated training step takes, in us; `None`: as fast as batches come.
    pub step_us: Option<u64>,
    /// Take the topic's files out of the page cache first, and compare with the disk.
    pub cold: bool,
}

impl Options {
    fn check(&self) -> Result<()> {
        if !SECONDS.contains(&self.seconds) {
            return Err(Error::invalid(format!(
                "a measurement takes {} to {} seconds: seconds={}",
                SECONDS.start(),
                SECONDS.end(),
                self.seconds
            )));
        }
        if let Some(us) = self.step_us.filter(|us| !(1..=STEP_US_MAX).contains(us)) {
            return Err(Error::invalid(format!("a step takes 1 to {STEP_US_MAX} microseconds: step_us={us}")));
        }
        Ok(())
    }
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// Samples of the topic.
    pub samples: u64,
    /// Bytes of one sample, all columns.
    pub row_bytes: u64,
    /// Samples of a whole batch of this rank: as many as asked for, or as there are.
    pub batch_rows: u32,
    /// Threads that read.
    pub threads: usize,
    /// See [`Options::cold`].
    pub cold: bool,
    /// See [`Options::step_us`].
    pub step_us: Option<u64>,
    /// What the machine can do.
    pub limits: Limits,
    /// What the pipeline does.
    pub pipeline: Pipeline,
}

impl Report {
    /// The limit that the pipeline is held against, with its name: the disk if it was cold, else the page cache read into
    /// as much memory as the slab has. `None` where the disk's rate is not known, or nothing can be held against it.
    pub fn limit(&self) -> Option<(&'static str, f64)> {
        match self.cold {
            true if self.is_all_ahead() => None,
            true => self.limits.disk.as_ref().ok().map(|rate| ("disk", *rate)),
            false => Some(("page cache", self.limits.slab)),
        }
    }
}

impl Report {
    /// Bytes of all samples.
    pub fn bytes(&self) -> u64 {
        self.samples.saturating_mul(self.row_bytes)
    }

    /// Whether all samples may be read before the first batch is asked for.
    pub fn is_all_ahead(&self) -> bool {
        self.bytes() <= self.pipeline.slab_bytes
    }
}

/// Measures the topic `name` under `root`.
pub fn run(root: &Path, name: &TopicName, options: &Options) -> Result<Report> {
    options.check()?;
    let dataset = Arc::new(Dataset::all_of(root, name)?);
    let files = limits::Files::of(&Root::open(root)?.topic(name)?.view()?)?;
    let (threads, each) = (options.settings.threads(), Duration::from_secs_f64(options.seconds * LIMIT_PART));
    if options.cold {
        files.evict()?;
    } else {
        files.warm(Duration::from_secs_f64(options.seconds))?;
    }
    let pipeline = Pipeline::measure(dataset.clone(), options)?;
    let slab_bytes = usize::try_from(pipeline.slab_bytes).unwrap_or(usize::MAX);
    if options.cold {
        files.warm(Duration::from_secs_f64(options.seconds))?;
    }
    let limits = Limits {
        memory_copy: limits::memory_copy(each)?,
        ring: files.cached(threads, RING_BYTES * threads, each)?,
        slab: files.cached(threads, slab_bytes, each)?,
        disk: files.direct(each)?,
    };
    let samples = dataset.line().total();
    Ok(Report {
        samples,
        batch_rows: options.settings.share().rows_max(samples),
        row_bytes: dataset.schema().row_bytes() as u64,
        threads,
        cold: options.cold,
        step_us: options.step_us,
        limits,
        pipeline,
    })
}
