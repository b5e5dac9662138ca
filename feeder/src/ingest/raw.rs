//! The bytes of one column or array, in order: a range of a file, as it is or behind a decompressor.
//!
//! Buffers grow with what arrives, not with what a header promises: a promise of terabytes in a short file costs nothing.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Allocated at once at most; beyond, a buffer grows with the bytes read.
const RESERVE_BYTES_MAX: usize = 16 << 20;
/// Read buffer in front of decompressors.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// An open file with its path for messages.
#[derive(Clone, Debug)]
pub(super) struct Input {
    file: Arc<File>,
    path: Arc<Path>,
    bytes: u64,
}

impl Input {
    pub(super) fn new(path: &Path, file: File) -> Result<Self> {
        let bytes = file
            .metadata()
            .map_err(|error| Error::io(format!("cannot read file: path={}", path.display()), error))?
            .len();
        Ok(Self { file: Arc::new(file), path: path.into(), bytes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Exactly `bytes` bytes from `at`; to be used for what is known to be small.
    pub(super) fn read(&self, at: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        Raw::range(self, at, bytes as u64)?.fill(bytes, &mut out)?;
        Ok(out)
    }

    /// An error about the file's content: `what: path=... offset=...`.
    pub(super) fn corrupt(&self, what: &str, at: u64) -> Error {
        Error::corrupt(format!("{what}: path={} offset={at}", self.path.display()))
    }

    fn ends_early(&self, at: u64) -> Error {
        self.corrupt("the file ends before its content does", at)
            .with_hint("the file is truncated or still being written: write or copy it again")
    }
}

/// A range of a file as a reader. Ends with an error, not silently, when the file does.
#[derive(Clone, Debug)]
pub(super) struct FileRange {
    input: Input,
    at: u64,
    end: u64,
}

impl FileRange {
    pub(super) fn new(input: &Input, at: u64, bytes: u64) -> Result<Self> {
        let end = at.checked_add(bytes).filter(|&end| end <= input.bytes).ok_or_else(|| input.ends_early(at))?;
        Ok(Self { input: input.clone(), at, end })
    }
}

impl Read for FileRange {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(out.len());
        if left == 0 {
            return Ok(0);
        }
        let got = self.input.file.read_at(&mut out[..left], self.at)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += got as u64;
        Ok(got)
    }
}

/// See the module.
pub(super) struct Raw {
    input: Input,
    /// Where the bytes (or their compressed form) begin, for messages.
    from: u64,
    source: Source,
}

enum Source {
    Plain(FileRange),
    Packed(Box<dyn Read + Send>),
}

impl Raw {
    /// Bytes of the file as they are.
    pub(super) fn range(input: &Input, at: u64, bytes: u64) -> Result<Self> {
        Ok(Self { input: input.clone(), from: at, source: Source::Plain(FileRange::new(input, at, bytes)?) })
    }

    /// Bytes of the file behind a decompressor that `unpack` puts in front of them.
    pub(super) fn packed(
        input: &Input,
        at: u64,
        bytes: u64,
        unpack: impl FnOnce(io::BufReader<FileRange>) -> io::Result<Box<dyn Read + Send>>,
    ) -> Result<Self> {
        let range = FileRange::new(input, at, bytes)?;
        let reader = unpack(io::BufReader::with_capacity(READ_BUFFER_BYTES, range))
            .map_err(|error| Error::io(format!("cannot decompress: path={}", input.path.display()), error))?;
        Ok(Self { input: input.clone(), from: at, source: Source::Packed(reader) })
    }

    /// Appends exactly `bytes` bytes to `out`.
    pub(super) fn fill(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        out.reserve(bytes.min(RESERVE_BYTES_MAX));
        let reader: &mut dyn Read = match &mut self.source {
            Source::Plain(range) => range,
            Source::Packed(reader) => reader,
        };
        match reader.take(bytes as u64).read_to_end(out) {
            Ok(got) if got == bytes => Ok(()),
            Ok(_) => Err(self.input.ends_early(self.from)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Passes over `bytes` bytes.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<()> {
        match &mut self.source {
            Source::Plain(range) if bytes <= range.end - range.at => range.at += bytes,
            Source::Plain(_) => return Err(self.input.ends_early(self.from)),
            Source::Packed(reader) => match io::copy(&mut reader.take(bytes), &mut io::sink()) {
                Ok(got) if got == bytes => {}
                Ok(_) => return Err(self.input.ends_early(self.from)),
                Err(error) => return Err(self.failed(error)),
            },
        }
        Ok(())
    }

    /// Checks that nothing is left, which is also when a decompressor checks its sums.
    pub(super) fn finish(&mut self) -> Result<()> {
        let reader: &mut dyn Read = match &mut self.source {
            Source::Plain(range) => range,
            Source::Packed(reader) => reader,
        };
        match reader.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.input.corrupt("the data go on behind their declared end", self.from)),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.input.ends_early(self.from),
            // What decompressors say about bad input; the system's own errors carry a code.
            _ if error.raw_os_error().is_none() => {
                self.input.corrupt("cannot decompress, the file is damaged", self.from).with_source(error)
            }
            _ => Error::io(format!("cannot read file: path={} offset={}", self.input.path.display(), self.from), error),
        }
    }
}
