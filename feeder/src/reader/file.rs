//! An open file that reads refer to.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::ReadError;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An open file, its path for messages, and a number that no other open file of this process ever has, by which a
/// reader knows it again. Its length is not kept: a file may be cut at any time, and a read finds out.
///
/// A file whose contents are [final](Self::into_final) may be read past the page cache, through a second descriptor that is
/// opened when first needed.
#[derive(Debug)]
pub struct ReadFile {
    file: File,
    path: PathBuf,
    id: u64,
    is_final: bool,
    inode: OnceLock<(u64, u64)>,
    direct: OnceLock<Result<Direct, String>>,
}

/// The same file, opened to be read past the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) file: Arc<ReadFile>,
    /// Length when it was opened.
    pub(super) bytes: u64,
    /// Whether reads turned out not to work, though opening did.
    refused: AtomicBool,
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
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self { file, path: path.into(), id, is_final: false, inode: OnceLock::new(), direct: OnceLock::new() }
    }

    /// Promises that nobody writes to the file any more and that what was written is on the disk: such a file may be read
    /// past the page cache. While a file is still appended to through the page cache, a direct read would first have to
    /// write dirty pages back, and the two views of its last page are not kept equal by all file systems.
    #[must_use]
    pub fn into_final(self) -> Self {
        Self { is_final: true, ..self }
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

    /// Device and inode, by which a file is known that was closed and opened again.
    pub(super) fn inode(&self) -> (u64, u64) {
        *self.inode.get_or_init(|| self.file.metadata().map_or((0, self.id), |about| (about.dev(), about.ino())))
    }

    /// Whether [`into_final`](Self::into_final) was promised.
    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    /// The file for reads past the page cache, or why there is none.
    pub(super) fn direct(&self) -> Result<&Direct, &str> {
        match self.direct.get_or_init(|| self.open_direct().map_err(|error| error.to_string())) {
            Ok(direct) if direct.refused.load(Ordering::Relaxed) => Err("direct reads are refused"),
            Ok(direct) => Ok(direct),
            Err(reason) => Err(reason),
        }
    }

    /// Notes that direct reads of this file do not work.
    pub(super) fn refuse_direct(&self) {
        if let Some(Ok(direct)) = self.direct.get() {
            direct.refused.store(true, Ordering::Relaxed);
        }
    }

    /// Opens what this descriptor refers to, not what bears its name by now.
    fn open_direct(&self) -> io::Result<Direct> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        let file = options.open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        let bytes = file.metadata()?.len();
        let file = Arc::new(Self::from_file(file, &self.path));
        Ok(Direct { file, bytes, refused: AtomicBool::new(false) })
    }
}

impl AsFd for ReadFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
