//! Rows of one width, from strewn places of one region to long runs of another: a column's share of a pool on its way to
//! the batches that a shuffle gave it.
//!
//! Runs go out in whole lines by stores that bypass the caches; a run that begins or ends inside a line does so with plain
//! stores. Words of 4 and 8 bytes become lines in registers, rows of other widths in a buffer that stays in the first cache.
//! Where rows come from was worked out once, in a [`Gather`], for all columns of the same width. As all copies between
//! regions, these are made of machine instructions that the compiler does not look into (see [`Region`]).

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use super::{Region, copy};

/// Bytes that are put together before they go out: far fewer than the first cache has, and so many that the first of them
/// have left the processor's store buffer, which is read from at a walk only.
const BUFFER_BYTES: usize = 8192;
/// Most bytes of a run that are put together at once.
const PIECE_BYTES: usize = 4096;
/// Most runs in the buffer.
const HELD_MAX: usize = 64;
/// Of a cache line.
const LINE_BYTES: usize = 64;

/// Where rows of one width come from, and the runs that they make.
#[derive(Debug, Default)]
pub struct Gather {
    row_bytes: usize,
    /// Where each row begins in the source, run after run.
    from: Vec<u32>,
    runs: Vec<Run>,
    /// One past the last byte of all rows, at either end.
    from_end: usize,
    into_end: usize,
    /// Where all runs begin, by "or": whether each does on a multiple of a power of two.
    any: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    into: usize,
    rows: usize,
}

#[repr(align(64))]
struct Buffer([MaybeUninit<u8>; BUFFER_BYTES]);

impl Gather {
    /// Forgets all rows; those to come have `row_bytes` bytes, at least one.
    pub fn reset(&mut self, row_bytes: usize) {
        assert!(row_bytes > 0, "rows without bytes");
        self.from.clear();
        self.runs.clear();
        (self.row_bytes, self.from_end, self.into_end, self.any) = (row_bytes, 0, 0, 0);
    }

    /// Adds a run to byte `into` on, of the rows at the bytes `from` of the source.
    pub fn push(&mut self, into: usize, from: impl Iterator<Item = u32>) {
        let before = self.from.len();
        let mut last = 0;
        self.from.extend(from.inspect(|&from| last = last.max(from)));
        let rows = self.from.len() - before;
        if rows > 0 {
            self.any |= into;
            self.from_end = self.from_end.max(last as usize + self.row_bytes);
            self.into_end = self.into_end.max(into + rows * self.row_bytes);
            self.runs.push(Run { into, rows });
        }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.from.len() * self.row_bytes
    }
}

impl Region {
    /// Copies the rows of `gather`, whose positions count from `from` in `source` and from `at` here; call
    /// [`fence`](super::fence) afterwards. Panics if any of them is not inside its region.
    pub fn gather(&self, at: usize, source: &Region, from: usize, gather: &Gather) {
        let into = self.checked(at, gather.into_end);
        let from: *const u8 = source.checked(from, gather.from_end);
        let aligned = (into.addr() | gather.any).is_multiple_of(gather.row_bytes.max(1));
        // SAFETY: every row ends before the ends checked above, in mapped memory.
        unsafe {
            match (gather.row_bytes, aligned) {
                (4, true) => words::<4>(into, from, gather),
                (8, true) => words::<8>(into, from, gather),
                (bytes, _) if bytes > PIECE_BYTES || bytes.is_multiple_of(LINE_BYTES) => one_by_one(into, from, gather),
                _ => assemble(into, from, gather),
            }
        }
    }
}

/// Rows of one word: those of a whole line go from the source to registers and from there out, the others by themselves.
///
/// # Safety
///
/// All rows of `gather` are inside mapped memory; all runs begin on a border of `BYTES`, which is 4 or 8.
unsafe fn words<const BYTES: usize>(into: *mut u8, from: *const u8, gather: &Gather) {
    let one_by_one = |into: *mut u8, places: &[u32]| {
        for (row, &place) in places.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { copy::copy_plain(into.add(row * BYTES), from.add(place as usize), BYTES) }
        }
    };
    let (mut places, line_rows) = (&gather.from[..], LINE_BYTES / BYTES);
    for run in &gather.runs {
        let (rows, later) = places.split_at(run.rows);
        places = later;
        let into = into.wrapping_add(run.into);
        let head = (into.addr().wrapping_neg() % LINE_BYTES / BYTES).min(run.rows);
        let lines = (run.rows - head) / line_rows;
        let (rows, tail) = rows.split_at(head + lines * line_rows);
        let (head, rows) = rows.split_at(head);
        one_by_one(into, head);
        let into = into.wrapping_add(head.len() * BYTES);
        if lines > 0 {
            // SAFETY: `into` is on a line's border; so many lines end where the run does or before.
            unsafe { machine::lines::<BYTES>(into, from, rows) }
        }
        one_by_one(into.wrapping_add(lines * LINE_BYTES), tail);
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;

    /// Four words of 4 bytes to 16 bytes of the line.
    macro_rules! four {
        ($at:literal) => {
            concat!(
                "mov {p:e}, [{places} + ",
                $at,
                "]\n",
                "mov {q:e}, [{places} + ",
                $at,
                " + 4]\n",
                "movd {a}, [{from} + {p}]\n",
                "movd {b}, [{from} + {q}]\n",
                "mov {p:e}, [{places} + ",
                $at,
                " + 8]\n",
                "mov {q:e}, [{places} + ",
                $at,
                " + 12]\n",
                "movd {c}, [{from} + {p}]\n",
                "movd {d}, [{from} + {q}]\n",
                "punpckldq {a}, {b}\n",
                "punpckldq {c}, {d}\n",
                "punpcklqdq {a}, {c}\n",
                "movntps [{into} + ",
                $at,
                "], {a}\n",
            )
        };
    }

    /// Two words of 8 bytes to 16 bytes of the line.
    macro_rules! two {
        ($at:literal) => {
            concat!(
                "mov {p:e}, [{places} + ",
                $at,
                " / 2]\n",
                "mov {q:e}, [{places} + ",
                $at,
                " / 2 + 4]\n",
                "movq {a}, [{from} + {p}]\n",
                "movhps {a}, [{from} + {q}]\n",
                "movntps [{into} + ",
                $at,
                "], {a}\n",
            )
        };
    }

    /// Fills whole lines with the words at `places` of the source, past the caches.
    ///
    /// # Safety
    ///
    /// As for [`super::words`]; `into` is on a line's border and `places` are those of whole lines, at least one.
    #[inline]
    pub(super) unsafe fn lines<const BYTES: usize>(into: *mut u8, from: *const u8, places: &[u32]) {
        // SAFETY: each round reads a line's places and the words there, and writes a line; SSE2 is part of x86-64.
        unsafe {
            if BYTES == 4 {
                asm!(
                    "2:",
                    four!("0"), four!("16"), four!("32"), four!("48"),
                    "add {places}, 64",
                    "add {into}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                    p = out(reg) _, q = out(reg) _,
                    from = in(reg) from,
                    places = inout(reg) places.as_ptr() => _,
                    into = inout(reg) into => _,
                    lines = inout(reg) places.len() / 16 => _,
                    options(nostack),
                );
            } else {
                asm!(
                    "2:",
                    two!("0"), two!("16"), two!("32"), two!("48"),
                    "add {places}, 32",
                    "add {into}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    a = out(xmm_reg) _,
                    p = out(reg) _, q = out(reg) _,
                    from = in(reg) from,
                    places = inout(reg) places.as_ptr() => _,
                    into = inout(reg) into => _,
                    lines = inout(reg) places.len() / 8 => _,
                    options(nostack),
                );
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    /// # Safety
    ///
    /// As for [`super::words`].
    pub(super) unsafe fn lines<const BYTES: usize>(into: *mut u8, from: *const u8, places: &[u32]) {
        for (row, &place) in places.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { super::copy::copy_plain(into.add(row * BYTES), from.add(place as usize), BYTES) }
        }
    }
}

/// Rows that are together in the buffer and have yet to go out.
#[derive(Clone, Copy, Default)]
struct Held {
    buffer_at: usize,
    into: usize,
    bytes: usize,
}

/// Rows of any other width: puts them together in a buffer and sends them out from there.
///
/// # Safety
///
/// All rows of `gather` are inside mapped memory, and none is larger than [`PIECE_BYTES`].
unsafe fn assemble(into: *mut u8, from: *const u8, gather: &Gather) {
    let mut buffer = Buffer([MaybeUninit::uninit(); BUFFER_BYTES]);
    let buffer = buffer.0.as_mut_ptr().cast::<u8>();
    let (mut places, most) = (&gather.from[..], PIECE_BYTES / gather.row_bytes);
    let (mut held, mut count, mut used) = ([Held::default(); HELD_MAX], 0, 0);
    let send = |held: &[Held]| {
        for piece in held {
            // SAFETY: what was filled, to where it was checked to go.
            unsafe { copy::copy_streaming(into.add(piece.into), buffer.add(piece.buffer_at), piece.bytes) }
        }
    };
    for run in &gather.runs {
        let (mut row_at, mut rows) = (run.into, run.rows);
        while rows > 0 {
            let (now, later) = places.split_at(rows.min(most));
            let bytes = now.len() * gather.row_bytes;
            if count == HELD_MAX || used + LINE_BYTES + bytes > BUFFER_BYTES {
                send(&held[..count]);
                (count, used) = (0, 0);
            }
            // Lines of the buffer become lines of the region.
            let buffer_at = used + into.addr().wrapping_add(row_at) % LINE_BYTES;
            // SAFETY: there is room for so many bytes, as was just seen to; the rows end where the run does.
            unsafe {
                for (row, &place) in now.iter().enumerate() {
                    let row = buffer.add(buffer_at + row * gather.row_bytes);
                    copy::copy_plain(row, from.add(place as usize), gather.row_bytes);
                }
            }
            held[count] = Held { buffer_at, into: row_at, bytes };
            count += 1;
            used = (buffer_at + bytes).next_multiple_of(LINE_BYTES);
            places = later;
            row_at += bytes;
            rows -= now.len();
        }
    }
    send(&held[..count]);
}

/// # Safety
///
/// All rows of `gather` are inside mapped memory.
unsafe fn one_by_one(into: *mut u8, from: *const u8, gather: &Gather) {
    let mut places = gather.from.iter();
    for run in &gather.runs {
        for (row, &place) in places.by_ref().take(run.rows).enumerate() {
            let row_at = run.into + row * gather.row_bytes;
            // SAFETY: as the caller promises.
            unsafe { copy::copy_streaming(into.add(row_at), from.add(place as usize), gather.row_bytes) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fence;
    use super::*;

    const ROOM: usize = 64 << 10;

    /// Gathers runs of these lengths, one after the other with gaps of `gap` rows, from rows strewn over the source.
    fn check(bytes: usize, (at, from): (usize, usize), runs: &[usize], gap: usize) {
        let (source, target) = (Region::alloc(ROOM).unwrap(), Region::alloc(ROOM).unwrap());
        let data: Vec<u8> = (0..ROOM).map(|i| (i * 7 + i / 256 + 1) as u8).collect();
        source.write(0, &data);
        let mut expected = vec![0; ROOM];
        let mut gather = Gather::default();
        gather.reset(99);
        gather.push(0, [0, 3].into_iter());
        gather.reset(bytes);
        let (mut to, mut total) = (0, 0);
        let strewn = ROOM / 4 / bytes;
        for &rows in runs {
            let places: Vec<u32> = (0..rows).map(|row| ((total + row) * 37 % strewn * bytes) as u32).collect();
            gather.push(to, places.iter().copied());
            for (row, &place) in places.iter().enumerate() {
                let (to, place) = (at + to + row * bytes, from + place as usize);
                expected[to..to + bytes].copy_from_slice(&data[place..place + bytes]);
            }
            to += (rows + gap) * bytes;
            total += rows;
        }
        assert_eq!(gather.bytes(), total * bytes);
        target.gather(at, &source, from, &gather);
        fence();
        let mut got = vec![0; ROOM];
        target.read(0, &mut got);
        assert!(got == expected, "bytes={bytes} at={at} from={from} runs={runs:?}");
    }

    #[test]
    fn rows_of_every_width_and_alignment_make_the_runs_asked_for() {
        for bytes in (1..=17).chain([24, 31, 56, 63, 64, 65, 96, 128, 200, 256, 1000]) {
            for place in [(0, 0), (128, 64), (8, 16), (1, 0), (0, 1), (7, 9), (63, 8), (36, 4)] {
                check(bytes, place, &[1, 2, 0, 5, 16], 1);
                check(bytes, place, &[3], 0);
            }
        }
    }

    #[test]
    fn runs_longer_than_the_buffer_and_rows_larger_than_it_are_whole() {
        for bytes in [1, 2, 4, 8, 3, 12, 56] {
            let most = PIECE_BYTES / bytes;
            for place in [(0, 0), (128, 0), (4, 8), (5, 3)] {
                check(bytes, place, &[most - 1, most, most + 1, 2 * most + 3], 2);
            }
        }
        for bytes in [PIECE_BYTES, PIECE_BYTES + 1, 5000] {
            check(bytes, (64, 0), &[2, 1], 1);
            check(bytes, (3, 1), &[2, 1], 1);
        }
    }

    #[test]
    fn a_row_outside_is_refused_before_anything_is_copied() {
        let (source, target) = (Region::alloc(4096).unwrap(), Region::alloc(4096).unwrap());
        let mut gather = Gather::default();
        gather.reset(4);
        gather.push(4088, [0, 4092].into_iter());
        target.gather(0, &source, 0, &gather);
        for (at, from) in [(1, 0), (0, 1), (usize::MAX, 0), (0, usize::MAX)] {
            let outside = std::panic::AssertUnwindSafe(|| target.gather(at, &source, from, &gather));
            assert!(std::panic::catch_unwind(outside).is_err());
        }
    }
}
