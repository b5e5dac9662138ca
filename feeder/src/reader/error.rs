//! What can go wrong: with one read, with the reader itself, and with making one.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::{MAX_DEPTH, MAX_PARTS};
use crate::error::{Error as PublicError, ErrorKind};

/// Why one read did not deliver. The others are not touched by it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open file: path={}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel reports an error.
    #[error("read failed: path={} offset={offset}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Where in the file the bytes that failed begin.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The file ends before the last part: it was cut, or the range was never there.
    #[error("file ends too early: path={} offset={offset} wanted_bytes={wanted} got_bytes={got}", path.display())]
    UnexpectedEnd {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that were there.
        got: u64,
    },
    /// A part is not inside its region; nothing was read.
    #[error(
        "part lies outside its region: part={part} region={region} at={at} bytes={bytes} region_bytes={region_bytes}"
    )]
    OutOfBounds {
        /// Which part.
        part: usize,
        /// The region it names.
        region: u32,
        /// Its first byte there.
        at: usize,
        /// Its length.
        bytes: u32,
        /// The region's length; 0 if there is no such region.
        region_bytes: usize,
    },
    /// More parts than one call to the kernel takes; nothing was read.
    #[error("too many parts in one read: parts={parts} limit={MAX_PARTS}")]
    TooManyParts {
        /// How many there were.
        parts: usize,
    },
    /// Ended by [`cancel`](super::BlockReader::cancel).
    #[error("read was cancelled")]
    Cancelled,
}

/// Why a reader can go on no longer. Reads in flight are lost with it; their memory stays theirs until it is dropped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// The ring was made by another thread.
    #[error("an io_uring can only be used by the thread that made it")]
    WrongThread,
    /// The kernel refuses to work on the ring.
    #[error("the kernel refuses to work on the io_uring: {call}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// Only reads that a script holds back are left (the memory double, where a real reader would wait for ever).
    #[error("no read in flight can end: in_flight={in_flight}")]
    Stuck {
        /// Reads held back.
        in_flight: usize,
    },
}

/// What helps where io_uring was asked for and cannot be had.
const IO_URING_HINT: &str = "use reader=\"auto\", which takes preadv where it must, or allow io_uring: 0 in \
     /proc/sys/kernel/io_uring_disabled, and a seccomp profile (that of the container) with io_uring_setup, io_uring_enter \
     and io_uring_register";

/// Why no reader could be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// io_uring was asked for and cannot be had.
    #[error("io_uring cannot be used: {step}{why}")]
    Unavailable {
        /// What was tried.
        step: &'static str,
        /// What its failure usually means, with a separator; or empty.
        why: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The depth is out of range.
    #[error("reader depth is out of range: depth={depth} least=1 most={MAX_DEPTH}")]
    Depth {
        /// What was asked for.
        depth: usize,
    },
}

impl From<ReadError> for PublicError {
    fn from(error: ReadError) -> Self {
        let message = error.to_string();
        match error {
            ReadError::Open { source, .. } | ReadError::Io { source, .. } => Self::io(message, source),
            ReadError::UnexpectedEnd { .. } => Self::corrupt(message),
            ReadError::OutOfBounds { .. } | ReadError::TooManyParts { .. } => Self::invalid(message),
            ReadError::Cancelled => Self::new(ErrorKind::Closed, message),
        }
    }
}

impl From<RingError> for PublicError {
    fn from(error: RingError) -> Self {
        let message = error.to_string();
        match error {
            RingError::Refused { source, .. } => Self::io(message, source),
            RingError::WrongThread | RingError::Stuck { .. } => Self::new(ErrorKind::Io, message),
        }
    }
}

impl From<ReaderError> for PublicError {
    fn from(error: ReaderError) -> Self {
        let message = error.to_string();
        match error {
            ReaderError::Unavailable { source, .. } => Self::io(message, source).with_hint(IO_URING_HINT),
            ReaderError::Depth { .. } => Self::invalid(message),
        }
    }
}
