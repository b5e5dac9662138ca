//! The active segment as readers see it: walked up to its last whole commit group, and synced before its rows are handed out.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::files::{Hint, SegmentName};
use super::recover::{Place, preamble_bytes};
use super::scan::{Scan, Walk};
use super::view::SegmentView;
use crate::error::{Error, Result};

/// What is known of an active segment from the last look at it; the next goes on from there.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    base: u64,
    inode: u64,
    scan: Scan,
}

/// Looks at an active segment. `None`: the file went away or shrank under the eyes, look at the directory again.
pub(super) fn look_at_active(
    place: &Place<'_>,
    name: SegmentName,
    seen: &mut Option<Seen>,
) -> Result<Option<SegmentView>> {
    let (path, base, version) = (name.open(place.dir), name.base, place.version(name)?);
    let failed = |error| Error::io(format!("cannot read segment: path={}", path.display()), error);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let hint = Hint::read(place.dir, base);
    let about = file.metadata().map_err(failed)?;
    let mut scan = match seen.take() {
        Some(seen) if seen.base == base && seen.inode == about.ino() && seen.scan.good <= about.len() => seen.scan,
        _ => Scan::new(preamble_bytes(&file, &path, &version.schema, place.identity, base)?, base),
    };
    let walk = Walk { file: &file, len: about.len(), schema: &version.schema, identity: place.identity, hint };
    scan.advance(&walk, |_| {}).map_err(failed)?;
    if !scan.blocks.is_empty() && file.metadata().map_err(failed)?.len() < scan.good {
        return Ok(None);
    }
    if scan.good > scan.synced && !scan.blocks.is_empty() {
        make_durable(&file).map_err(failed)?;
        scan.synced = scan.good;
    }
    let segment = SegmentView::active(path, version, *place.identity, base, file, &scan);
    if scan.holes.is_empty() {
        *seen = Some(Seen { base, inode: about.ino(), scan });
    }
    Ok(Some(segment))
}

/// Syncs a file that is open for reading; where the file system cannot, its rows are as durable as they get.
fn make_durable(file: &File) -> io::Result<()> {
    use nix::errno::Errno;
    let given_up = [Errno::EINVAL, Errno::EROFS, Errno::ENOSYS].map(|errno| Some(errno as i32));
    match file.sync_data() {
        Err(error) if !given_up.contains(&error.raw_os_error()) => Err(error),
        _ => Ok(()),
    }
}
