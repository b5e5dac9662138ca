//! The files of one scope's directory and their names.
//!
//! ```text
//! 00000000000000000003.log          the log; of several the one with the highest number is current
//! 00000000000000000003.<id>.fence   nothing is appended to log 3 any more: somebody is copying it
//! <id>.tmp                          a file that is being made, locked by its maker
//! turn                              lock for who is next to wait for the log's
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::{Result, StoreError};

/// Times that a listing is taken until two agree.
const LISTINGS_MAX: usize = 1000;
const DIGITS: usize = 20;
pub(super) const TMP: &str = "tmp";

/// Path of a log.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.log"))
}

/// Path of a new fence for a log.
pub(super) fn fence_path(dir: &Path, number: u64) -> Result<PathBuf> {
    Ok(dir.join(format!("{number:020}.{}.fence", unique()?)))
}

/// Path for a file that is being made.
pub(super) fn tmp_path(dir: &Path) -> Result<PathBuf> {
    Ok(dir.join(format!("{}.{TMP}", unique()?)))
}

/// A name part that no other process and no earlier call uses.
fn unique() -> Result<String> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    const SOURCE: &str = "/proc/sys/kernel/random/uuid";
    let text = fs::read_to_string(SOURCE).map_err(StoreError::io("get a random number", Path::new(SOURCE)))?;
    Ok(format!("{}-{:x}", text.trim(), CALLS.fetch_add(1, Ordering::Relaxed)))
}

/// What stands in a scope's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Numbers of the logs, ascending.
    pub(super) logs: Vec<u64>,
    /// Numbers of fenced logs with the fences' paths.
    pub(super) fences: Vec<(u64, PathBuf)>,
    pub(super) unfinished: Vec<PathBuf>,
}

impl Listing {
    /// One pass over the directory, which may miss files that come or go meanwhile. A directory that is not there is
    /// empty.
    pub(super) fn once(dir: &Path) -> Result<Self> {
        let failed = || StoreError::io("list the scope's files", dir);
        let mut listing = Self::default();
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
            entries => entries.map_err(failed())?,
        };
        for entry in entries {
            let path = entry.map_err(failed())?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let number = name.split('.').next().filter(|digits| digits.len() == DIGITS).and_then(|d| d.parse().ok());
            match (name.rsplit_once('.').map(|(_, ending)| ending), number) {
                (Some("log"), Some(number)) => listing.logs.push(number),
                (Some("fence"), Some(number)) => listing.fences.push((number, path)),
                (Some(TMP), _) => listing.unfinished.push(path),
                _ => {}
            }
        }
        listing.logs.sort_unstable();
        listing.fences.sort();
        listing.unfinished.sort();
        Ok(listing)
    }

    /// What stood in the directory at one moment: two passes that agree. Logs are made before lower ones are removed,
    /// so what one pass misses, the next sees.
    pub(super) fn settled(dir: &Path) -> Result<Self> {
        let mut last = Self::once(dir)?;
        for _ in 0..LISTINGS_MAX {
            let next = Self::once(dir)?;
            if (&last.logs, &last.fences) == (&next.logs, &next.fences) {
                return Ok(next);
            }
            last = next;
        }
        let source = io::Error::other("files change faster than they can be listed");
        Err(StoreError::Io { doing: "list the scope's files", path: dir.into(), source })
    }

    /// Number of the current log.
    pub(super) fn current(&self) -> Option<u64> {
        self.logs.last().copied()
    }

    /// Whether a log is the current one and may be appended to.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.current() == Some(number) && !self.is_fenced(number)
    }

    /// Whether nothing is appended to a log any more.
    pub(super) fn is_fenced(&self, number: u64) -> bool {
        self.fences.iter().any(|(fenced, _)| *fenced == number)
    }
}
