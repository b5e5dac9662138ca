//! For tests: the work of a reader thread and of a trainer on one thread, in turn, so that what it costs is the same each
//! time.

use std::sync::Arc;

use cursorstore::{Cursor, PlanKey};

use super::Dataset;
use super::layout::SlotLayout;
use super::pump::Pump;
use super::runner::Runner;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::plan;
use crate::reader::{BlockReader, Region};

/// Assembles `batches` batches with the reader that `open` makes, each taken and given back as soon as it is there. Returns
/// the lines for the log.
pub fn assemble(
    dataset: &Arc<Dataset>,
    settings: &Settings,
    batches: u64,
    open: impl FnOnce(Vec<Region>) -> Box<dyn BlockReader>,
) -> Result<Vec<String>> {
    let (row_bytes, total, share) = (dataset.schema().row_bytes() as u64, dataset.line().total(), settings.share());
    let layout = SlotLayout::new(dataset.schema(), settings.columns.as_deref(), share.rows_max(total))?;
    let default = plan::default_key(row_bytes, total, settings.world, settings.shuffle, settings.seed);
    let key = PlanKey {
        lanes: settings.lanes.unwrap_or(default.lanes),
        chunk: settings.chunk.unwrap_or(default.chunk),
        pool: settings.pool.unwrap_or(default.pool),
        ..default
    };
    let (mut runner, _alive) = Runner::prepare(dataset, &layout, &key, share, settings, Cursor { epoch: 0, n: 0 })?;
    let shared = runner.shared.clone();
    let mut pump = Pump::over(&shared, |regions| Ok(open(regions)))?;
    for batch in 0..batches {
        let filled = loop {
            match runner.taker.try_take() {
                Some(filled) => break filled,
                None if pump.turn()? => {}
                None => return Err(Error::invalid(format!("nothing is left to do and no batch came: batch={batch}"))),
            }
        };
        drop(runner.taker.lease(filled.slot));
    }
    Ok(runner.notices())
}
