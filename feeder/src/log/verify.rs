//! Reading a whole topic against its checksums.

use std::path::PathBuf;
use std::sync::Arc;

use super::topic::Topic;
use super::view::SegmentView;
use crate::error::{Error, ErrorKind, Result};

/// How far verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Rows looked at.
    pub rows: u64,
    /// Rows of the topic.
    pub rows_total: u64,
    /// Bytes of rows looked at.
    pub bytes: u64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Partition.
    pub partition: u32,
    /// Segment file.
    pub path: PathBuf,
    /// First offset concerned.
    pub offset: u64,
    /// Rows concerned.
    pub rows: u64,
    /// What is wrong, with file, block and position.
    pub message: String,
}

/// What verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Segments looked at.
    pub segments: u64,
    /// Blocks looked at.
    pub blocks: u64,
    /// Rows that are good.
    pub rows: u64,
    /// Bytes of good rows.
    pub bytes: u64,
    /// All that is wrong.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Whether everything is as it was written.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Topic {
    /// Reads everything and compares it with its checksums. Damage is reported, not returned as an error; errors are
    /// failures of reading. `progress` is called after every block.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> Result<VerifyReport> {
        let view = self.view()?;
        let mut report = VerifyReport::default();
        let mut at = VerifyProgress { rows_total: view.rows(), ..VerifyProgress::default() };
        for segment in view.partitions.iter().flat_map(|partition| partition.segments()) {
            verify_segment(segment, &mut report, &mut at, progress)?;
        }
        Ok(report)
    }
}

fn verify_segment(
    segment: &Arc<SegmentView>,
    report: &mut VerifyReport,
    at: &mut VerifyProgress,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<()> {
    report.segments += 1;
    let problem = |offset, rows, message| Problem {
        partition: segment.partition,
        path: segment.path.clone(),
        offset,
        rows,
        message,
    };
    let rows_total = segment.end - segment.base;
    let opened =
        segment.blocks().and_then(|blocks| Ok((blocks, segment.file()?, segment.damage()?, segment.footer_damage()?)));
    let (blocks, file, damage, footer) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            report.problems.push(problem(segment.base, rows_total, damaged(error)?));
            at.rows += rows_total;
            progress(*at);
            return Ok(());
        }
    };
    // The rows that it should have told of are found and looked at without it.
    report.problems.extend(footer.map(|damage| problem(segment.base, 0, damage.to_owned())));
    for damage in damage {
        let rows = damage.offsets.end - damage.offsets.start;
        let message = format!(
            "rows are lost, {}: path={} block={} position={} offset={} rows={rows}",
            damage.why,
            damage.path.display(),
            damage.block,
            damage.position,
            damage.offsets.start
        );
        report.problems.push(problem(damage.offsets.start, rows, message));
        at.rows += rows;
    }
    for block in blocks.iter() {
        report.blocks += 1;
        match segment.read_from(&file, &block) {
            Ok(rows) => {
                report.rows += u64::from(block.rows);
                report.bytes += rows.bytes() as u64;
                at.bytes += rows.bytes() as u64;
            }
            Err(error) => report.problems.push(problem(block.base, u64::from(block.rows), damaged(error)?)),
        }
        at.rows += u64::from(block.rows);
        progress(*at);
    }
    Ok(())
}

/// The text of damage; other errors end the verification.
fn damaged(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::NotRetained => Ok(error.report()),
        _ => Err(error),
    }
}
