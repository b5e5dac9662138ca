//! A version's extents: read part by part, and merged into what training reads.

use cursorstore::records::extent::SummedExtent;
use cursorstore::records::{DatasetVersion, ManifestPart, Records};
use cursorstore::store::Scope;
use cursorstore::{Extent, Window};

use super::pin::check_there;
use super::{Catalogue, bad_record};
use crate::error::{Error, ErrorKind, Result};
use crate::log::TopicView;

/// What training reads of a version.
#[derive(Debug)]
pub struct Lines {
    /// All records in order, as one window; contiguous extents are one.
    pub window: Window,
    /// The lowest offset needed, per partition.
    pub lowest: Vec<u64>,
}

impl Catalogue {
    /// Goes through a version's extents in order, reading one part at a time.
    pub fn extents(&self, version: &DatasetVersion, each: &mut dyn FnMut(&SummedExtent) -> Result<()>) -> Result<()> {
        for part in version.windows.iter().flat_map(|window| &window.parts) {
            self.part(version, part.digest)?.extents.iter().try_for_each(&mut *each)?;
        }
        Ok(())
    }

    /// One part of a version.
    pub(super) fn part(&self, version: &DatasetVersion, digest: u128) -> Result<ManifestPart> {
        let key = ManifestPart::key_of(&version.name, digest);
        let of = version.reference().to_string();
        let part =
            self.store.record::<ManifestPart>(&Scope::catalogue(), &key).map_err(|error| bad_record(error, &of))?;
        part.ok_or_else(|| {
            Error::corrupt(format!("a part of a dataset version is missing: version={of} key={key}"))
                .with_hint("restore the folder 'store' of the root from a copy")
        })
    }

    /// What training reads: the extents merged, in a snapshot of the topic.
    pub fn lines(&self, version: &DatasetVersion, view: &TopicView) -> Result<Lines> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = 0;
        let mut lowest: Vec<u64> = view.partitions.iter().map(|partition| partition.end).collect();
        self.extents(version, &mut |extent| {
            check_there(view, &extent.extent()).map_err(|error| missing(version, at, extent, view, error))?;
            at += extent.count();
            if let Some(lowest) = lowest.get_mut(extent.segment as usize) {
                *lowest = extent.from.min(*lowest);
            }
            match extents.last_mut() {
                Some(last) if follows(last, extent) => last.to = extent.to,
                _ => extents.push(extent.extent()),
            }
            Ok(())
        })?;
        extents.shrink_to_fit();
        Ok(Lines { window: Window { extents }, lowest })
    }
}

/// The error for an extent that is not there, with the samples that are.
fn missing(version: &DatasetVersion, at: u64, extent: &SummedExtent, view: &TopicView, error: Error) -> Error {
    let of = version.reference();
    if error.kind() == ErrorKind::Corrupt {
        let text = format!("samples of a dataset version are lost: version={of} first_missing={at}");
        return Error::corrupt(text).with_source(error).with_hint(format!("forebay topic verify {}", version.topic));
    }
    if error.kind() != ErrorKind::NotRetained {
        return Error::new(error.kind(), format!("a dataset version cannot be read: version={of}"))
            .with_source(error)
            .with_hint(format!("forebay dataset unpin {of}"));
    }
    let first = view.partitions.get(extent.segment as usize).map_or(0, |partition| partition.first);
    let gone = first.saturating_sub(extent.from).clamp(1, extent.count());
    let text = format!(
        "samples of a dataset version are no longer in the topic: version={of} first_missing={at}..{} samples={}",
        at + gone,
        version.totals.records
    );
    Error::new(ErrorKind::NotRetained, text)
        .with_source(error)
        .with_hint(format!("pin what is left: forebay dataset pin {} --topic {}", version.name, version.topic))
}

/// Whether an extent goes on where the one before ends.
pub(super) fn follows(last: &Extent, next: &SummedExtent) -> bool {
    last.segment == next.segment && last.to == next.from && last.incarnation == next.incarnation
}
