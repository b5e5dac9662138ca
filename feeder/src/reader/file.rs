//! An open file that reads refer to.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::ReadError;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An open file, its path for messages, and a number that no other open file of this process ever has, by which a
/// reader knows it again. Its length is not kept: a file may be cut at any time, and a read finds out.
#[derive(Debug)]
pub struct ReadFile {
    file: File,
    path: PathBuf,
    id: u64,
}

impl ReadFile {
    /// Opens `path` for reading; the descriptor is closed on exec.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        match File::open(path) {
            Ok(file) => Ok(Self::from_file(file, path)),
            Err(source) => Err(ReadError::Open { path: path.to_owned(), source }),
        }
    }

    /// Takes a file that is open for reading; `path` is for messages only.
    pub fn from_file(file: File, path: impl Into<PathBuf>) -> Self {
        Self { file, path: path.into(), id: NEXT_ID.fetch_add(1, Ordering::Relaxed) }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its number.
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl AsFd for ReadFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
