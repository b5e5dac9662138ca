//! One log file, read: the fold of what stands in it, brought up to date as the file grows.
//!
//! Bytes after the last whole frame are either a frame that is being written, or was when its process died (`Torn`), or
//! damage, which is named. What tells them apart:
//!
//! - The hint names a length that was durable: whatever is not whole before it is damage.
//! - A frame is written when the one before is durable: what is not whole and has a frame after it is damage.
//! - Without a whole hint, only what ends early, or was never written and is all zeros, counts as torn.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{fstat, fstatat};

use super::super::fold::{Fold, Slot};
use super::super::{Result, Scope, StoreError};
use super::frame::{self, BadHeader, Body, BodyWriter, FRAMES_AT, Found, HINT_AT, HINT_BYTES, Header};
use super::listing::log_path;

/// Bytes read at a time.
const READ_BYTES: usize = 4 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    header: Header,
    header_sum: u32,
    /// Where the next frame will begin.
    at: u64,
    /// Sum of the frame before.
    sum: u32,
    /// Whether a frame that is no restored one has been seen.
    is_begun: bool,
    fold: Fold,
    /// The directory, to look for the next log in.
    dir: Option<File>,
    next: CString,
}

/// Result of catching up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The file ends with a whole frame.
    Whole,
    /// Bytes follow that are no whole frame yet, or never became one.
    Torn,
}

/// What an append needs to know.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) at: u64,
    pub(super) frame: Vec<u8>,
    pub(super) mark: u64,
    pub(super) header_sum: u32,
}

impl Log {
    /// Opens and folds a log.
    pub(super) fn open(path: &Path, scope: &Scope, number: u64) -> Result<Self> {
        let file = File::open(path).map_err(StoreError::io("open the log", path))?;
        let mut bytes = [0; FRAMES_AT as usize];
        let corrupt = |what: &str| StoreError::Corrupt { path: path.into(), offset: 0, what: what.into() };
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(corrupt("it has no header")),
            read => read.map_err(StoreError::io("read the log", path))?,
        }
        let (header, header_sum) = Header::parse(&bytes[..HINT_AT as usize]).map_err(|bad| match bad {
            BadHeader::Damaged => corrupt("its header is not whole"),
            BadHeader::Newer(found) => StoreError::Newer { path: path.into(), found, newest: frame::FORMAT },
        })?;
        if header.scope != scope.to_string() || header.number != number {
            return Err(corrupt(&format!(
                "it was made as log {} of another place: scope={:?}",
                header.number, header.scope
            )));
        }
        let fold = Fold::begin(header.generation, header.mark);
        let (path, at) = (path.to_path_buf(), FRAMES_AT);
        let next = log_path(path.parent().unwrap_or(&path), number + 1);
        let next = CString::new(next.file_name().unwrap_or_default().as_encoded_bytes()).unwrap_or_default();
        let dir = path.parent().and_then(|dir| File::open(dir).ok());
        let mut log = Self { file, path, header, header_sum, at, sum: header_sum, is_begun: false, fold, dir, next };
        let hint = log.hint()?;
        log.catch_up()?;
        if hint.is_some_and(|durable| log.at < durable) {
            return Err(log.corrupt("acknowledged records are missing"));
        }
        Ok(log)
    }

    pub(super) fn number(&self) -> u64 {
        self.header.number
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fold(&self) -> &Fold {
        &self.fold
    }

    /// Bytes up to the last whole frame.
    pub(super) fn bytes(&self) -> u64 {
        self.at
    }

    /// Sum that names this log in its hint.
    pub(super) fn header_sum(&self) -> u32 {
        self.header_sum
    }

    /// Whether the file still has a name.
    pub(super) fn is_linked(&self) -> Result<bool> {
        Ok(self.file.metadata().map_err(StoreError::io("read the log", &self.path))?.nlink() > 0)
    }

    /// Whether nothing was appended since the last look, and no log has followed. `false` where that cannot be told.
    pub(super) fn is_as_read(&self) -> bool {
        let Some(dir) = &self.dir else { return false };
        let same = fstat(&self.file).is_ok_and(|file| file.st_size as u64 == self.at && file.st_nlink > 0);
        let next = fstatat(dir, &*self.next, AtFlags::AT_SYMLINK_NOFOLLOW);
        same && next.is_err_and(|error| error == Errno::ENOENT)
    }

    /// The durable length that the file names, if it does.
    pub(super) fn hint(&self) -> Result<Option<u64>> {
        let mut bytes = [0; HINT_BYTES];
        self.file.read_exact_at(&mut bytes, HINT_AT).map_err(StoreError::io("read the log", &self.path))?;
        Ok(frame::parse_hint(&bytes, self.header_sum))
    }

    /// Applies the frames that were added. After an error this is of no use any more.
    pub(super) fn catch_up(&mut self) -> Result<End> {
        // In this order: a hint written after the length was read would speak of bytes that are not read here.
        let length = self.file.metadata().map_err(StoreError::io("read the log", &self.path))?.len();
        if length == self.at {
            return Ok(End::Whole);
        }
        let hint = self.hint()?;
        let length = self.file.metadata().map_err(StoreError::io("read the log", &self.path))?.len();
        let mut buffer = Vec::new();
        let mut wanted = READ_BYTES;
        loop {
            self.fill(&mut buffer, length, wanted)?;
            let is_all = self.at + buffer.len() as u64 == length;
            let mut used = 0;
            let stopped = loop {
                if used == buffer.len() {
                    break None;
                }
                match frame::find(&buffer[used..], self.sum) {
                    Found::Frame { body, mark, bytes, sum } => {
                        self.apply(&buffer[used + body.start..used + body.end], mark)?;
                        (self.at, self.sum, used) = (self.at + bytes as u64, sum, used + bytes);
                    }
                    other => break Some(other),
                }
            };
            match stopped {
                Some(Found::Part { bytes }) if !is_all => {
                    wanted = READ_BYTES.max(bytes.unwrap_or(0));
                    buffer.drain(..used);
                }
                Some(found) => {
                    buffer.drain(..used);
                    return self.judge(&found, hint, length, buffer).map(|()| End::Torn);
                }
                None if !is_all => buffer.clear(),
                None => return Ok(End::Whole),
            }
        }
    }

    /// Makes `buffer`, which begins at the next frame, `wanted` bytes long where the file has them.
    fn fill(&self, buffer: &mut Vec<u8>, length: u64, wanted: usize) -> Result<()> {
        let left = length.checked_sub(self.at).ok_or_else(|| self.corrupt("the file became shorter"))?;
        let (have, want) = (buffer.len(), left.min(wanted as u64) as usize);
        if want > have {
            buffer.resize(want, 0);
            match self.file.read_exact_at(&mut buffer[have..], self.at + have as u64) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(self.corrupt("the file became shorter"));
                }
                read => read.map_err(StoreError::io("read the log", &self.path))?,
            }
        }
        Ok(())
    }

    fn apply(&mut self, body: &[u8], mark: u64) -> Result<()> {
        let body = frame::parse_body(body).map_err(|what| self.corrupt(&what))?;
        let is_restored = matches!(body, Body::Restored { .. });
        let expected = self.fold.mark().0 + u64::from(!is_restored);
        if mark != expected || (is_restored && self.is_begun) {
            return Err(self.corrupt(&format!("a frame out of turn: mark={mark} expected={expected}")));
        }
        let writer = match &body {
            Body::Batch { generation, .. } => Some(*generation),
            _ => None,
        };
        if let Some(generation) = writer.filter(|&generation| generation != self.fold.generation()) {
            let newest = self.fold.generation();
            return Err(self.corrupt(&format!("a frame of a fenced writer: generation={generation} newest={newest}")));
        }
        self.is_begun |= !is_restored;
        match body {
            Body::Acquired { generation } => self.fold.acquired(generation),
            Body::Batch { changes, .. } => self.fold.changed(false, changes.iter().map(|c| (c.key, c.value))),
            Body::Facts { changes } => self.fold.changed(true, changes.iter().map(|c| (c.key, c.value))),
            Body::Restored { changes } => {
                for change in &changes {
                    let value = change.value.unwrap_or_default().into();
                    self.fold.restore(change.key, Slot { value, mark: change.mark, is_fact: change.is_fact });
                }
            }
        }
        Ok(())
    }

    /// Decides whether what follows the last whole frame, `rest` up to the file's `length`, is torn or damaged.
    fn judge(&self, found: &Found, hint: Option<u64>, length: u64, mut rest: Vec<u8>) -> Result<()> {
        if hint.is_some_and(|durable| self.at < durable) {
            return Err(self.corrupt("an acknowledged record is not whole"));
        }
        let left = length - self.at;
        let frame_max = (frame::BODY_BYTES_MAX + frame::AROUND_BYTES) as u64;
        self.fill(&mut rest, length, left.min(2 * frame_max) as usize)?;
        let is_followed = match found {
            Found::Damaged { bytes } => rest.get(*bytes..).is_some_and(|after| after.iter().any(|&byte| byte != 0)),
            Found::NoFrame => left > frame_max || frame::any_follows(&rest),
            Found::Part { .. } | Found::Frame { .. } => false,
        };
        if is_followed {
            return Err(self.corrupt("a record is not whole, and others follow"));
        }
        let could_be_torn = hint.is_some()
            || match found {
                Found::Part { .. } | Found::Frame { .. } => true,
                Found::NoFrame => rest.iter().all(|&byte| byte == 0),
                Found::Damaged { .. } => false,
            };
        if could_be_torn { Ok(()) } else { Err(self.corrupt("the last record is not whole")) }
    }

    pub(super) fn corrupt(&self, what: &str) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), offset: self.at, what: what.into() }
    }

    /// The frame that appends a body.
    pub(super) fn prepare(&self, body: BodyWriter) -> Prepared {
        let mark = self.fold.mark().0 + 1;
        let (frame, _) = body.frame(mark, self.sum);
        Prepared { at: self.at, frame, mark, header_sum: self.header_sum }
    }
}
