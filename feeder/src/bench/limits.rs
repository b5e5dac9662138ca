//! Limits of the machine, measured plainly: nothing of the pipeline takes part, but for the reader that the disk is read
//! by.
//!
//! Page cache and disk are read in reads of [`READ_BYTES`], in the files' order, in passes until the time is over. From the
//! page cache each thread takes every T-th read, into buffers of its own, used in turn: where bytes land matters more than
//! where they come from. The disk is read past the page cache, by one thread with several reads in flight.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::Advice;

use crate::error::{Error, Result};
use crate::log::TopicView;
use crate::reader::{self, DEFAULT_DEPTH, Part, Read, ReadFile, ReaderKind, Region};

/// Bytes of one read.
pub const READ_BYTES: usize = 1 << 20;
/// Bytes of a thread's buffers that stay in the processor's last cache.
pub const RING_BYTES: usize = 8 << 20;
/// Bytes that are copied from and to: far more than caches hold.
const COPY_BYTES: usize = 128 << 20;
/// Bytes that direct reads begin and end on.
const DIRECT_ALIGN: u64 = 4096;
const GIGA: f64 = 1e9;

/// Rates in 10⁹ bytes per second.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory to memory, one thread.
    pub memory_copy: f64,
    /// Page cache into [`RING_BYTES`] a thread.
    pub ring: f64,
    /// Page cache into as much memory as the slab has.
    pub slab: f64,
    /// Disk, or why that cannot be told.
    pub disk: Result<f64, String>,
}

/// Copies of [`READ_BYTES`] from one large piece of memory to another.
pub(super) fn memory_copy(time: Duration) -> Result<f64> {
    let memory = || Region::alloc_huge(COPY_BYTES).map_err(|error| Error::io("no memory to copy", error));
    let (from, into) = (memory()?, memory()?);
    let pass = || (0..COPY_BYTES).step_by(READ_BYTES).for_each(|at| into.copy_from(at, &from, at, READ_BYTES));
    // The kernel finds the pages, outside of the clock.
    pass();
    let (began, mut bytes) = (Instant::now(), 0);
    while bytes == 0 || began.elapsed() < time {
        pass();
        bytes += COPY_BYTES as u64;
    }
    Ok(rate(bytes, began.elapsed()))
}

/// The topic's files.
pub(super) struct Files {
    files: Vec<(PathBuf, File, u64)>,
}

impl Files {
    /// Those of all partitions, in order.
    pub(super) fn of(view: &TopicView) -> Result<Self> {
        let mut files = Vec::new();
        for segment in view.partitions.iter().flat_map(|partition| partition.segments()) {
            let wrong = |error| Error::io(format!("cannot open segment: path={}", segment.path.display()), error);
            let file = File::open(&segment.path).map_err(wrong)?;
            let bytes = file.metadata().map_err(wrong)?.len();
            files.push((segment.path.clone(), file, bytes));
        }
        Ok(Self { files })
    }

    /// Reads everything once, so that it is in the page cache, but for no longer than `time`.
    pub(super) fn warm(&self, time: Duration) -> Result<()> {
        let mut buffers = Buffers::new(READ_BYTES);
        let began = Instant::now();
        for (file, at, bytes) in self.reads(1, 0) {
            if began.elapsed() > time {
                break;
            }
            buffers.fill(file, at, bytes)?;
        }
        Ok(())
    }

    /// Takes the files out of the page cache.
    pub(super) fn evict(&self) -> Result<()> {
        for (path, file, _) in &self.files {
            let done = rustix::fs::fsync(file).and_then(|()| rustix::fs::fadvise(file, 0, None, Advice::DontNeed));
            done.map_err(|errno| {
                Error::io(format!("cannot drop a file from the page cache: path={}", path.display()), errno.into())
            })?;
        }
        Ok(())
    }

    /// Reads by `threads` threads into `memory_bytes` of memory, all of them together.
    pub(super) fn cached(&self, threads: usize, memory_bytes: usize, time: Duration) -> Result<f64> {
        let mut memories: Vec<Buffers> = (0..threads).map(|_| Buffers::new(memory_bytes / threads)).collect();
        let began = Instant::now();
        let bytes: Result<Vec<u64>> = std::thread::scope(|scope| {
            let readers: Vec<_> = memories
                .iter_mut()
                .enumerate()
                .map(|(number, buffers)| scope.spawn(move || self.passes(buffers, threads, number, began + time)))
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        Ok(rate(bytes?.iter().sum(), began.elapsed()))
    }

    /// One thread's part of [`Files::cached`]; returns the bytes read.
    fn passes(&self, buffers: &mut Buffers, threads: usize, number: usize, end: Instant) -> Result<u64> {
        let mut sum = 0;
        loop {
            let before = sum;
            for (file, at, bytes) in self.reads(threads, number) {
                buffers.fill(file, at, bytes)?;
                sum += bytes as u64;
                if Instant::now() >= end {
                    return Ok(sum);
                }
            }
            if sum == before {
                // A small topic has no read for this thread.
                return Ok(sum);
            }
        }
    }

    /// Every `threads`th read of one pass: file, offset, bytes.
    fn reads(&self, threads: usize, number: usize) -> impl Iterator<Item = (&File, u64, usize)> {
        let all = self.files.iter().flat_map(|(_, file, size)| {
            (0..*size).step_by(READ_BYTES).map(move |at| (file, at, (size - at).min(READ_BYTES as u64) as usize))
        });
        all.skip(number).step_by(threads)
    }

    /// Reads past the page cache, or why that is not to be had.
    pub(super) fn direct(&self, time: Duration) -> Result<Result<f64, String>> {
        let mut files = Vec::new();
        for (path, _, size) in &self.files {
            let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
            match opened {
                Ok(file) => files.push((Arc::new(ReadFile::from_file(file, path)), size / DIRECT_ALIGN * DIRECT_ALIGN)),
                Err(error) => return Ok(Err(format!("the file system has no direct reads: {error}"))),
            }
        }
        if files.iter().all(|(_, size)| *size == 0) {
            return Ok(Err("the topic is too small".into()));
        }
        direct_passes(&files, time)
    }
}

/// Passes with several reads in flight; see [`Files::direct`].
fn direct_passes(files: &[(Arc<ReadFile>, u64)], time: Duration) -> Result<Result<f64, String>> {
    let memory = Region::alloc_huge(DEFAULT_DEPTH * READ_BYTES).map_err(|error| Error::io("no memory", error))?;
    let mut reader = reader::open(ReaderKind::Auto, DEFAULT_DEPTH, vec![memory], &mut |_| {})?;
    let pass = || {
        files.iter().flat_map(|(file, size)| {
            let size = *size;
            (0..size).step_by(READ_BYTES).map(move |at| (file, at, (size - at).min(READ_BYTES as u64) as u32))
        })
    };
    let mut coming = std::iter::repeat_with(pass).flatten();
    let (mut done, mut bytes, began) = (Vec::new(), 0, Instant::now());
    let mut free: Vec<usize> = (0..DEFAULT_DEPTH).collect();
    loop {
        let over = began.elapsed() >= time && bytes > 0;
        while let Some(buffer) = free.pop_if(|_| !over) {
            let Some((file, offset, length)) = coming.next() else { break };
            let parts = vec![Part { region: 0, at: buffer * READ_BYTES, bytes: length }];
            reader.submit(Read { file: file.clone(), offset, parts, token: buffer as u64 });
        }
        if reader.in_flight() == 0 {
            return Ok(Ok(rate(bytes, began.elapsed())));
        }
        reader.wait(1, &mut done)?;
        let mut refused = None;
        for ended in done.drain(..) {
            bytes += ended.read.parts.iter().map(|part| u64::from(part.bytes)).sum::<u64>();
            free.push(ended.read.token as usize);
            refused = ended.result.err().or(refused);
        }
        if let Some(error) = refused {
            drain(&mut *reader);
            return Ok(Err(format!("direct reads fail: {error}")));
        }
    }
}

/// Lets what is in flight come back.
fn drain(reader: &mut dyn reader::BlockReader) {
    let mut done = Vec::new();
    while reader.in_flight() > 0 && reader.wait(1, &mut done).is_ok() {
        done.clear();
    }
}

/// A thread's memory, cut into buffers of a read each.
struct Buffers {
    memory: Vec<u8>,
    next: usize,
}

impl Buffers {
    /// Of about `bytes`, at least one buffer; written once, so that the kernel has found its pages.
    fn new(bytes: usize) -> Self {
        Self { memory: vec![1; (bytes / READ_BYTES).max(1) * READ_BYTES], next: 0 }
    }

    /// Reads into the next buffer.
    fn fill(&mut self, file: &File, at: u64, bytes: usize) -> Result<()> {
        let buffer = &mut self.memory[self.next..self.next + bytes];
        file.read_exact_at(buffer, at)
            .map_err(|error| Error::io(format!("cannot read a segment: offset={at}"), error))?;
        self.next = (self.next + READ_BYTES) % self.memory.len();
        Ok(())
    }
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / GIGA
}
