//! The error that callers of this crate see: a coarse kind that says what can be done, a message, and the cause.
//!
//! Inside, each part has its own error enum; they meet here. The message is for people (lower case, values at the end),
//! the kind for programs (Python exception class, exit code), `hint` is the next step shown by the command line.

use std::error::Error as StdError;
use std::fmt;

use cursorstore::records::{ReadError, RecordError};
use cursorstore::store::{StoreError, StoreErrorKind};

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument, a name or a setting is wrong: change it.
    Invalid,
    /// The topic, file or column asked for does not exist.
    NotFound,
    /// The thing to be made is there already.
    Exists,
    /// The system refuses access.
    Permission,
    /// Somebody else holds it: a topic open for writing elsewhere.
    Busy,
    /// Data on disk are damaged; the message names file, block and offset.
    Corrupt,
    /// A state does not belong to this topic, plan or batch.
    StateMismatch,
    /// Data that a state or a version needs is no longer retained.
    NotRetained,
    /// No room: disk full, memory limit.
    NoSpace,
    /// Too slow: a time-out passed.
    Timeout,
    /// The loader or writer is closed, or belongs to another process.
    Closed,
    /// A read or write failed.
    Io,
    /// A later run of the job has taken over, or it was rewound: stop.
    Fenced,
}

impl ErrorKind {
    /// The exit code of the command line for this kind; documented in `forebay --help`.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::NotFound => 3,
            Self::Exists => 4,
            Self::Permission => 5,
            Self::Busy => 6,
            Self::Corrupt => 7,
            Self::StateMismatch => 8,
            Self::NotRetained => 9,
            Self::NoSpace => 10,
            Self::Timeout => 11,
            Self::Closed => 12,
            Self::Io => 13,
            Self::Fenced => 14,
        }
    }
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// See the module.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `message` is lower case without a full stop, values as `key=value` at the end.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// An error of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error of kind [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// A failed system call while doing `what`; the kind comes from the code.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Permission,
            Io::AlreadyExists => ErrorKind::Exists,
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge | Io::OutOfMemory => ErrorKind::NoSpace,
            Io::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Io,
        };
        let descriptors = out_of_descriptors(&source);
        let made = Self::new(kind, what).with_source(source);
        if descriptors { made.with_hint(MORE_DESCRIPTORS) } else { made }
    }

    /// Adds the next step for the user, shown as `try: ...`.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Chains the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The coarse kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The next step for the user, if there is one to name.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Message and causes in one line, as Python and the command line show them.
    pub fn report(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            let next = error.to_string();
            if !text.contains(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        use StoreErrorKind as Store;
        let (kind, hint) = match error.kind() {
            Store::Invalid => (ErrorKind::Invalid, None),
            Store::NotFound => (ErrorKind::NotFound, None),
            Store::Fenced => {
                (ErrorKind::Fenced, Some("stop this process: another run of the job goes on in its place"))
            }
            Store::Conflict => (ErrorKind::Exists, None),
            Store::Permission => (ErrorKind::Permission, Some("use a root that this user may write")),
            Store::NoSpace => (ErrorKind::NoSpace, Some("make room and try again; nothing that was stored is lost")),
            Store::Unsupported => (ErrorKind::Invalid, None),
            Store::Busy => (ErrorKind::Busy, None),
            Store::Corrupt => (ErrorKind::Corrupt, None),
            Store::Newer => (ErrorKind::StateMismatch, Some("use the newer forebay that wrote it")),
            _ => (ErrorKind::Io, None),
        };
        let made = Self::new(kind, error.to_string()).with_source(error);
        match hint {
            Some(hint) => made.with_hint(hint),
            None => made,
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Store(_) => None,
            ReadError::Record { source: RecordError::Newer { .. }, .. } => Some(ErrorKind::StateMismatch),
            _ => Some(ErrorKind::Corrupt),
        };
        match (kind, error) {
            (_, ReadError::Store(error)) => error.into(),
            (kind, error) => Self::new(kind.unwrap_or(ErrorKind::Corrupt), error.to_string()).with_source(error),
        }
    }
}

/// What helps a process that has no file descriptor left.
pub(crate) const MORE_DESCRIPTORS: &str =
    "close files or loaders that are not needed, or allow more open files (ulimit -n, LimitNOFILE)";

/// Whether a call failed because this process, or the system, has too many files open.
pub(crate) fn out_of_descriptors(error: &std::io::Error) -> bool {
    use nix::errno::Errno;
    [Errno::EMFILE, Errno::ENFILE].iter().any(|&errno| error.raw_os_error() == Some(errno as i32))
}

/// The name in `allowed` that `given` was probably meant to be: at most two edits away, or the same but for case.
pub fn nearest<'a>(given: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    allowed
        .into_iter()
        .map(|name| (edits(&given, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 2.min(name.len().saturating_sub(1)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let best = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_chains_causes_once() {
        let io = std::io::Error::other("disk on fire");
        let error = Error::io("cannot read segment: path=a", io).with_hint("look at the disk");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.report(), "cannot read segment: path=a: disk on fire");
    }

    #[test]
    fn too_many_open_files_are_named_with_what_helps() {
        for errno in [nix::errno::Errno::EMFILE, nix::errno::Errno::ENFILE] {
            let error = Error::io("cannot open segment: path=a", std::io::Error::from(errno));
            assert!(error.hint().unwrap().contains("ulimit -n"), "{error:?}");
        }
        assert_eq!(Error::io("cannot open segment", std::io::Error::other("x")).hint(), None);
    }

    #[test]
    fn nearest_names_are_near() {
        assert_eq!(nearest("imgae", ["id", "image"]), Some("image"));
        assert_eq!(nearest("ID", ["id", "image"]), Some("id"));
        assert_eq!(nearest("zebra", ["id", "image"]), None);
    }
}
