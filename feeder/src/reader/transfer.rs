//! One read on its way: the buffers that are still empty, and what the kernel's answers mean.
//!
//! Shared by the readers, so that short reads, ends of files and errors mean the same in all of them. The buffers'
//! vector is reused from read to read.

use std::collections::VecDeque;
use std::io;

use super::{Done, MAX_PARTS, Part, Read, ReadError, Region};

/// Times in a row that a read may be answered "try again" before that becomes its error.
const MAX_STALLS: u32 = 64;

/// Refuses what the kernel must not see: what is not inside `regions`, and where no file has bytes.
pub(super) fn check(read: &Read, regions: &[Region]) -> Result<(), ReadError> {
    each_part(read, regions, |_, _| {}).map(drop)
}

/// Checks all parts and gives `take` the address and bytes of each, until one is refused: the bytes of all.
#[inline]
fn each_part(read: &Read, regions: &[Region], mut take: impl FnMut(*mut u8, usize)) -> Result<u64, ReadError> {
    if read.parts.len() > MAX_PARTS {
        return Err(ReadError::TooManyParts { parts: read.parts.len() });
    }
    let mut wanted = 0;
    for (index, &Part { region, at, bytes }) in read.parts.iter().enumerate() {
        let found = regions.get(region as usize);
        let Some(inside) = found.filter(|region| region.holds(at, bytes as usize)) else {
            let region_bytes = found.map_or(0, Region::len);
            return Err(ReadError::OutOfBounds { part: index, region, at, bytes, region_bytes });
        };
        wanted += u64::from(bytes);
        take(inside.address().wrapping_add(at), bytes as usize);
    }
    // To io_uring offset -1 means "wherever the file stands".
    if read.offset > (i64::MAX as u64).saturating_sub(wanted) {
        return Err(unexpected_end(read, wanted, 0));
    }
    Ok(wanted)
}

/// Ends the reads that wait, as cancelled.
pub(super) fn cancel_waiting(waiting: &mut VecDeque<Read>, ended: &mut Vec<Done>) {
    ended.extend(waiting.drain(..).map(|read| Done { read, result: Err(ReadError::Cancelled) }));
}

/// The state of one read.
#[derive(Default)]
pub(super) struct Transfer {
    buffers: Vec<libc::iovec>,
    /// The first buffer that is not full.
    next: usize,
    wanted: u64,
    got: u64,
    stalls: u32,
}

impl Transfer {
    /// Begins a read, or refuses it as [`check`] does, and has no buffers then. Both in one: it is done for every row.
    pub(super) fn begin(&mut self, read: &Read, regions: &[Region]) -> Result<(), ReadError> {
        self.buffers.clear();
        (self.next, self.got, self.stalls) = (0, 0, 0);
        let buffers = &mut self.buffers;
        let wanted = each_part(read, regions, |base, bytes| match buffers.last_mut() {
            // Neighbours in memory are one buffer for the kernel, and nothing is none.
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == base.cast() => last.iov_len += bytes,
            _ if bytes > 0 => buffers.push(libc::iovec { iov_base: base.cast(), iov_len: bytes }),
            _ => {}
        });
        self.wanted = wanted.inspect_err(|_| self.buffers.clear())?;
        Ok(())
    }

    /// What is still to be filled; empty when nothing is.
    pub(super) fn rest(&self) -> &[libc::iovec] {
        &self.buffers[self.next..]
    }

    /// Where in the file the rest begins.
    pub(super) fn offset(&self, read: &Read) -> u64 {
        read.offset + self.got
    }

    /// Bytes that have landed.
    pub(super) fn got(&self) -> u64 {
        self.got
    }

    /// Takes the kernel's answer to a call for [`rest`](Self::rest): a number of bytes or an error code. `None`: the
    /// read goes on with another call.
    pub(super) fn answer(&mut self, read: &Read, answer: Result<usize, i32>) -> Option<Result<(), ReadError>> {
        match answer {
            Ok(0) if self.got < self.wanted => Some(Err(unexpected_end(read, self.wanted, self.got))),
            Ok(bytes) => {
                self.stalls = 0;
                self.fill(bytes);
                self.rest().is_empty().then_some(Ok(()))
            }
            Err(libc::EINTR | libc::EAGAIN) if self.stalls < MAX_STALLS => {
                self.stalls += 1;
                None
            }
            Err(code) => Some(Err(ReadError::Io {
                path: read.file.path().to_owned(),
                offset: self.offset(read),
                source: io::Error::from_raw_os_error(code),
            })),
        }
    }

    fn fill(&mut self, mut bytes: usize) {
        if bytes as u64 == self.wanted - self.got {
            // All of it, as nearly always.
            (self.got, self.next) = (self.wanted, self.buffers.len());
            return;
        }
        while bytes > 0 && self.next < self.buffers.len() {
            let buffer = &mut self.buffers[self.next];
            let here = bytes.min(buffer.iov_len);
            buffer.iov_base = buffer.iov_base.wrapping_byte_add(here);
            buffer.iov_len -= here;
            self.got += here as u64;
            bytes -= here;
            if buffer.iov_len == 0 {
                self.next += 1;
            }
        }
        debug_assert_eq!(bytes, 0, "the kernel gave more than it was asked for");
    }
}

fn unexpected_end(read: &Read, wanted: u64, got: u64) -> ReadError {
    ReadError::UnexpectedEnd { path: read.file.path().to_owned(), offset: read.offset, wanted, got }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::ReadFile;
    use super::*;

    fn begun(parts: &[(usize, u32)]) -> (Transfer, Read, Region) {
        let region = Region::alloc(4096).unwrap();
        let parts = parts.iter().map(|&(at, bytes)| Part { region: 0, at, bytes }).collect();
        let file = Arc::new(ReadFile::open("/dev/null").unwrap());
        let read = Read { file, offset: 1000, parts, token: 0 };
        let mut transfer = Transfer::default();
        transfer.begin(&read, std::slice::from_ref(&region)).unwrap();
        (transfer, read, region)
    }

    /// The rest as places in the region.
    fn rest(transfer: &Transfer, region: &Region) -> Vec<(usize, usize)> {
        let place = |buffer: &libc::iovec| (buffer.iov_base.addr() - region.address().addr(), buffer.iov_len);
        transfer.rest().iter().map(place).collect()
    }

    #[test]
    fn neighbours_are_one_buffer_and_nothing_is_none() {
        let (transfer, _, region) = begun(&[(10, 5), (15, 5), (0, 0), (20, 1), (0, 10), (2000, 1), (1999, 1)]);
        assert_eq!(rest(&transfer, &region), [(10, 11), (0, 10), (2000, 1), (1999, 1)]);
    }

    #[test]
    fn the_rest_begins_at_the_exact_byte() {
        let (mut transfer, read, region) = begun(&[(100, 10), (0, 20), (50, 5)]);
        let steps = [
            (9, vec![(109, 1), (0, 20), (50, 5)]),
            (1, vec![(0, 20), (50, 5)]),
            (20, vec![(50, 5)]),
            (4, vec![(54, 1)]),
        ];
        let mut offset = 1000;
        for (bytes, expected) in steps {
            assert!(transfer.answer(&read, Ok(bytes)).is_none());
            offset += bytes as u64;
            assert_eq!((rest(&transfer, &region), transfer.offset(&read)), (expected, offset));
        }
        assert!(matches!(transfer.answer(&read, Ok(1)), Some(Ok(()))));
    }

    #[test]
    fn try_again_is_tried_again_but_not_for_ever() {
        let (mut transfer, read, region) = begun(&[(0, 10)]);
        for _ in 0..2 {
            for _ in 0..MAX_STALLS {
                assert!(transfer.answer(&read, Err(libc::EAGAIN)).is_none());
            }
            assert!(transfer.answer(&read, Ok(1)).is_none());
        }
        for _ in 0..MAX_STALLS {
            assert!(transfer.answer(&read, Err(libc::EINTR)).is_none());
        }
        match transfer.answer(&read, Err(libc::EINTR)) {
            Some(Err(ReadError::Io { offset: 1002, source, .. })) => {
                assert_eq!(source.raw_os_error(), Some(libc::EINTR));
            }
            other => panic!("{other:?}"),
        }
        // The next read in this place has the same patience.
        transfer.begin(&read, &[region]).unwrap();
        assert!(transfer.answer(&read, Err(libc::EAGAIN)).is_none());
    }
}
