//! For tests: the work of a reader thread and of a trainer on one thread, in turn, so that what it costs is the same each
//! time.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use cursorstore::Cursor;

use super::Dataset;
use super::layout::SlotLayout;
use super::pump::Pump;
use super::runner::Runner;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::reader::{BlockReader, Region};

/// Assembles `batches` batches with the reader that `open` makes, each taken and given back as soon as it is there. Returns
/// the lines for the log.
pub fn assemble(
    dataset: &Arc<Dataset>,
    settings: &Settings,
    batches: u64,
    open: impl FnOnce(Vec<Region>) -> Box<dyn BlockReader>,
) -> Result<Vec<String>> {
    let (mut runner, _alive) = prepare(dataset, settings)?;
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

/// Bytes of the slab that were present when the first batch was there, and when nothing more could be read ahead, and all of
/// them. The reader is the one that `open` makes.
pub fn growth(
    dataset: &Arc<Dataset>,
    settings: &Settings,
    open: impl FnOnce(Vec<Region>) -> Box<dyn BlockReader>,
) -> Result<[usize; 3]> {
    let (runner, _alive) = prepare(dataset, settings)?;
    let shared = runner.shared.clone();
    let mut pump = Pump::over(&shared, |regions| Ok(open(regions)))?;
    while runner.taker.ready_slots() == 0 && pump.turn()? {}
    let first = runner.slab.present_bytes();
    while pump.turn()? {}
    Ok([first, runner.slab.present_bytes(), runner.slab.bytes()])
}

/// A runner without threads at the line's beginning; with what they would hold.
fn prepare(dataset: &Arc<Dataset>, settings: &Settings) -> Result<(Runner, Sender<()>)> {
    let (row_bytes, total, share) = (dataset.schema().row_bytes() as u64, dataset.line().total(), settings.share());
    let layout = SlotLayout::new(dataset.schema(), settings.columns.as_deref(), share.rows_max(total))?;
    let key = settings.plan(row_bytes, total);
    Runner::prepare(dataset, &layout, &key, share, settings, Cursor { epoch: 0, n: 0 })
}
