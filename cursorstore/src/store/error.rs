//! Why the store refuses or fails, each cause with what a caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::{Mark, Scope};

/// What a caller can do about an error of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// An argument is wrong: change it.
    Invalid,
    /// The store's directory does not exist.
    NotFound,
    /// A later writer has taken the scope over: stop.
    Fenced,
    /// A fact of this key says something else.
    Conflict,
    /// The system refuses access, or the store is read-only.
    Permission,
    /// No room: make some, nothing that was acknowledged is lost.
    NoSpace,
    /// The file system cannot lock or link files: put the store elsewhere.
    Unsupported,
    /// Another process holds the scope.
    Busy,
    /// A file of the store is damaged; the message names file and offset.
    Corrupt,
    /// Written by a newer forebay, which is needed to read it.
    Newer,
    /// A read or write failed.
    Io,
}

/// See the module.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum StoreError {
    #[error("{what}")]
    Invalid { what: String },
    #[error("the scope has been taken over by a later writer: scope={scope} generation={generation} newest={newest}")]
    Fenced { scope: Scope, generation: u64, newest: u64 },
    #[error("the key already holds something else: scope={scope} key={key}")]
    Conflict { scope: Scope, key: String },
    #[error(
        "the mark lies beyond the newest change, it belongs to another store: scope={scope} mark={mark} newest={newest}"
    )]
    BeyondEnd { scope: Scope, mark: Mark, newest: Mark },
    #[error("the file system cannot lock files, keep the store on a local disk: path={}", path.display())]
    NoLocks { path: PathBuf, source: io::Error },
    #[error("the file system cannot link files, keep the store on a local disk: path={}", path.display())]
    NoLinks { path: PathBuf, source: io::Error },
    #[error("other processes take the scope over again and again: scope={scope}")]
    Busy { scope: Scope },
    #[error("a file of the store is damaged, {what}: path={} offset={offset}", path.display())]
    Corrupt { path: PathBuf, offset: u64, what: String },
    #[error("a file of the store needs a newer forebay, one that reads format {found}: path={} newest={newest}", path.display())]
    Newer { path: PathBuf, found: u32, newest: u32 },
    #[error("cannot {doing}: path={}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl StoreError {
    /// A failed system call.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_path_buf(), source }
    }

    /// The coarse kind.
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Invalid { .. } | Self::BeyondEnd { .. } => StoreErrorKind::Invalid,
            Self::Fenced { .. } => StoreErrorKind::Fenced,
            Self::Conflict { .. } => StoreErrorKind::Conflict,
            Self::NoLocks { .. } | Self::NoLinks { .. } => StoreErrorKind::Unsupported,
            Self::Busy { .. } => StoreErrorKind::Busy,
            Self::Corrupt { .. } => StoreErrorKind::Corrupt,
            Self::Newer { .. } => StoreErrorKind::Newer,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => StoreErrorKind::NotFound,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreErrorKind::Permission,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    StoreErrorKind::NoSpace
                }
                _ => StoreErrorKind::Io,
            },
        }
    }
}
