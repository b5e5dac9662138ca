//! Reading a version against the checksums that were taken when it was pinned.
//!
//! Blocks have checksums of their own, which tell where damage is. Those of the version tell besides whether these are the
//! records that were pinned at all.

use std::path::PathBuf;

use cursorstore::records::DatasetVersion;
use cursorstore::records::extent::SummedExtent;

use super::blocks::Blocks;
use super::pin::check_there;
use super::{Catalogue, checksum};
use crate::error::{Error, ErrorKind, Result};
use crate::log::TopicView;

/// Problems told one by one.
const PROBLEMS_MAX: usize = 100;

/// How far verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Bytes of records looked at.
    pub bytes: u64,
    /// Bytes of the version.
    pub bytes_total: u64,
}

/// An extent that is not as it was pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadExtent {
    /// Index of its first sample in the version.
    pub sample: u64,
    /// Partition.
    pub partition: u32,
    /// Its offsets.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// The segment file, where there is one.
    pub path: Option<PathBuf>,
    /// What can be done.
    pub kind: ErrorKind,
    /// What is wrong, with file, block and position.
    pub message: String,
}

/// What verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Extents that are good.
    pub extents: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Extents that are not.
    pub bad_extents: u64,
    /// Records in them.
    pub bad_records: u64,
    /// The first hundred of them, in order.
    pub problems: Vec<BadExtent>,
}

impl CheckReport {
    /// Whether everything is as it was pinned.
    pub fn is_good(&self) -> bool {
        self.bad_extents == 0
    }
}

impl Catalogue {
    /// Reads all of a version and compares it with its checksums. Damage and loss are reported, not returned as an error;
    /// errors are failures of reading. `progress` is called after every extent.
    pub fn verify(&self, version: &DatasetVersion, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport> {
        let view = self.root.topic(&version.topic)?.view()?;
        let mut blocks = Blocks::new(&view);
        let mut report = CheckReport::default();
        let mut at = CheckProgress { bytes: 0, bytes_total: version.totals.bytes };
        let mut sample = 0;
        self.extents(version, &mut |extent| {
            match check(&mut blocks, &view, extent) {
                Ok(()) => {
                    report.extents += 1;
                    report.records += extent.count();
                    report.bytes += extent.bytes;
                }
                Err(error) if is_finding(&error) => {
                    report.bad_extents += 1;
                    report.bad_records += extent.count();
                    if report.problems.len() < PROBLEMS_MAX {
                        report.problems.push(problem(&view, extent, sample, &error));
                    }
                }
                Err(error) => return Err(error),
            }
            sample += extent.count();
            at.bytes += extent.bytes;
            progress(at);
            Ok(())
        })?;
        Ok(report)
    }
}

fn check(blocks: &mut Blocks<'_>, view: &TopicView, extent: &SummedExtent) -> Result<()> {
    check_there(view, &extent.extent())?;
    let rows = blocks.rows(extent.segment, extent.from..extent.to)?;
    if rows.bytes() as u64 == extent.bytes && checksum(&rows, 0..rows.count()) == extent.checksum {
        return Ok(());
    }
    let (segment, _) = blocks.segment(extent.segment, extent.from)?;
    let block = segment.block_of(extent.from)?;
    Err(Error::corrupt(format!(
        "the records are not those that were pinned: path={} block={} position={} offset={}",
        segment.path.display(),
        block.base,
        block.header,
        extent.from
    )))
}

/// Whether an error speaks of the data, and not of a failure to read them.
fn is_finding(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotRetained | ErrorKind::StateMismatch)
}

fn problem(view: &TopicView, extent: &SummedExtent, sample: u64, error: &Error) -> BadExtent {
    let partition = view.partitions.get(extent.segment as usize);
    let path =
        partition.and_then(|partition| partition.segment_of(extent.from).ok()).map(|segment| segment.path.clone());
    let (from, to, kind, message) = (extent.from, extent.to, error.kind(), error.report());
    BadExtent { sample, partition: extent.segment, from, to, path, kind, message }
}
