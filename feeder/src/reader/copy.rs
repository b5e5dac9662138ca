//! Copies between regions' memory, with plain stores and with stores that bypass the caches.
//!
//! A plain store to a line that is in no cache first fetches that line; rows that go to a slab larger than the caches
//! pay for memory twice. Non-temporal stores of whole lines do not fetch. They are weakly ordered: [`fence`] orders
//! them before whatever store tells others that the rows are there.
//!
//! On x86-64 the loops are assembly: the memory may be written by the kernel or by another process at the same time,
//! and accesses that the compiler cannot see give it nothing to assume about that. Elsewhere they are relaxed atomics.

#![allow(unsafe_code)]

/// Non-temporal stores are made in whole cache lines: a part of a line would be merged in memory, which is slower.
const LINE_BYTES: usize = 64;
/// Below this a copy has too few whole lines to gain anything.
const LEAST_STREAMED_BYTES: usize = 2 * LINE_BYTES;

/// Copies `bytes` bytes.
///
/// # Safety
///
/// Both ranges are mapped, `from` readable and `into` writable, and the compiler knows of no reference to `into` other
/// than one that the caller holds exclusively.
pub(super) unsafe fn copy_plain(into: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promises are the same.
    unsafe { machine::plain(into, from, bytes) }
}

/// As [`copy_plain`], the whole lines of `into` with non-temporal stores; needs a [`fence`] afterwards.
///
/// # Safety
///
/// As for [`copy_plain`].
pub(super) unsafe fn copy_streaming(into: *mut u8, from: *const u8, bytes: usize) {
    // Not `align_offset`, which is allowed to know nothing.
    let head = into.addr().wrapping_neg() % LINE_BYTES;
    if bytes < LEAST_STREAMED_BYTES {
        // SAFETY: as the caller promises.
        return unsafe { machine::plain(into, from, bytes) };
    }
    let lines = (bytes - head) / LINE_BYTES;
    let tail = head + lines * LINE_BYTES;
    // SAFETY: `head < LINE_BYTES <= bytes` and `tail <= bytes`, so the three pieces tile the range; `into + head` is
    // on a line's border.
    unsafe {
        if head > 0 {
            machine::plain(into, from, head);
        }
        machine::stream_lines(into.add(head), from.add(head), lines);
        if tail < bytes {
            machine::plain(into.add(tail), from.add(tail), bytes - tail);
        }
    }
}

/// Orders streaming copies made by this thread before its later stores. One for a batch of copies is enough.
pub fn fence() {
    machine::fence();
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;

    /// From here on the processor's own string copy is faster than a loop.
    const LEAST_STRING_BYTES: usize = 512;

    /// One load and one store of `$type`, unaligned.
    macro_rules! move_one {
        ($class:ident, $modifier:literal, $into:expr, $from:expr) => {
            asm!(
                concat!("mov {word", $modifier, "}, [{from}]"),
                concat!("mov [{into}], {word", $modifier, "}"),
                word = out($class) _,
                from = in(reg) $from,
                into = in(reg) $into,
                options(nostack, preserves_flags),
            )
        };
    }

    /// # Safety
    ///
    /// See [`super::copy_plain`].
    #[inline]
    pub(super) unsafe fn plain(into: *mut u8, from: *const u8, bytes: usize) {
        // Whole words, then the last word again so far back that it ends with the range.
        // SAFETY: every access lies inside the two ranges: loops end a word before the end, the last word begins
        // `size` before the end, and there are at least `size` bytes in that branch.
        unsafe {
            let (last_into, last_from) = (into.add(bytes), from.add(bytes));
            match bytes {
                LEAST_STRING_BYTES.. => asm!(
                    "rep movsb",
                    inout("rdi") into => _,
                    inout("rsi") from => _,
                    inout("rcx") bytes => _,
                    options(nostack, preserves_flags),
                ),
                32.. => wide(into, from, bytes),
                8..32 => {
                    let mut at = 0;
                    while at + 8 < bytes {
                        move_one!(reg, ":r", into.add(at), from.add(at));
                        at += 8;
                    }
                    move_one!(reg, ":r", last_into.sub(8), last_from.sub(8));
                }
                4..8 => {
                    move_one!(reg, ":e", into, from);
                    move_one!(reg, ":e", last_into.sub(4), last_from.sub(4));
                }
                2..4 => {
                    move_one!(reg, ":x", into, from);
                    move_one!(reg, ":x", last_into.sub(2), last_from.sub(2));
                }
                1 => move_one!(reg_byte, "", into, from),
                0 => {}
            }
        }
    }

    /// # Safety
    ///
    /// See [`super::copy_plain`]; at least 32 bytes.
    #[inline]
    unsafe fn wide(into: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: the loop handles `bytes / 32` blocks from the start, the second part the last 32 bytes; both inside.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups [{into}], {a}",
                "movups [{into} + 16], {b}",
                "add {from}, 32",
                "add {into}, 32",
                "dec {blocks}",
                "jnz 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                from = inout(reg) from => _,
                into = inout(reg) into => _,
                blocks = inout(reg) bytes / 32 => _,
                options(nostack),
            );
            if !bytes.is_multiple_of(32) {
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups [{into}], {a}",
                    "movups [{into} + 16], {b}",
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    from = in(reg) from.add(bytes - 32),
                    into = in(reg) into.add(bytes - 32),
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// # Safety
    ///
    /// See [`super::copy_plain`]; `into` is on a line's border, and there is at least one line.
    #[inline]
    pub(super) unsafe fn stream_lines(into: *mut u8, from: *const u8, lines: usize) {
        if lines == 0 {
            return;
        }
        // SAFETY: the loops handle exactly `lines` lines; the wide one only runs where the processor has AVX.
        unsafe {
            if std::arch::is_x86_feature_detected!("avx") {
                asm!(
                    "2:",
                    "vmovups ymm0, [{from}]",
                    "vmovups ymm1, [{from} + 32]",
                    "vmovntps [{into}], ymm0",
                    "vmovntps [{into} + 32], ymm1",
                    "add {from}, 64",
                    "add {into}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    "vzeroupper",
                    from = inout(reg) from => _,
                    into = inout(reg) into => _,
                    lines = inout(reg) lines => _,
                    // `vzeroupper` touches the upper halves of all sixteen.
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack),
                );
            } else {
                stream_lines_sse2(into, from, lines);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`stream_lines`].
    pub(super) unsafe fn stream_lines_sse2(into: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: exactly `lines` lines; SSE2 is part of x86-64.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movntps [{into}], {a}",
                "movntps [{into} + 16], {b}",
                "movntps [{into} + 32], {c}",
                "movntps [{into} + 48], {d}",
                "add {from}, 64",
                "add {into}, 64",
                "dec {lines}",
                "jnz 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                from = inout(reg) from => _,
                into = inout(reg) into => _,
                lines = inout(reg) lines => _,
                options(nostack),
            );
        }
    }

    pub(super) fn fence() {
        // SAFETY: orders stores and does nothing else.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence as order};

    /// # Safety
    ///
    /// See [`super::copy_plain`].
    pub(super) unsafe fn plain(into: *mut u8, from: *const u8, bytes: usize) {
        let mut at = 0;
        // SAFETY: all accesses lie inside the two ranges, and words are used only where both addresses allow them.
        unsafe {
            while at < bytes {
                let (to, of) = (into.add(at), from.add(at).cast_mut());
                if bytes - at >= 8 && to.addr() % 8 == 0 && of.addr() % 8 == 0 {
                    let word = AtomicU64::from_ptr(of.cast()).load(Ordering::Relaxed);
                    AtomicU64::from_ptr(to.cast()).store(word, Ordering::Relaxed);
                    at += 8;
                } else {
                    let byte = AtomicU8::from_ptr(of).load(Ordering::Relaxed);
                    AtomicU8::from_ptr(to).store(byte, Ordering::Relaxed);
                    at += 1;
                }
            }
        }
    }

    /// # Safety
    ///
    /// See [`super::copy_plain`].
    pub(super) unsafe fn stream_lines(into: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the same promises.
        unsafe { plain(into, from, lines * super::LINE_BYTES) }
    }

    pub(super) fn fence() {
        order(Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    /// Copies at every alignment within a line, of source and destination, and checks also what must not change.
    fn check_all(copy: Copy, lengths: impl Iterator<Item = usize> + Clone, multiple_of: usize) {
        const ROOM: usize = 1024;
        let source: Vec<u8> = (0..ROOM + 64).map(|i| (i * 7 + i / 256) as u8).collect();
        #[repr(align(64))]
        struct Aligned([u8; ROOM]);
        for into in (0..64).step_by(multiple_of) {
            for from in [0, 1, 3, 8, 15, 16, 31, 33, 63] {
                for bytes in lengths.clone() {
                    let mut memory = Aligned([0xA5; ROOM]);
                    // SAFETY: `into + bytes` and `from + bytes` are inside the arrays.
                    unsafe { copy(memory.0.as_mut_ptr().add(into), source.as_ptr().add(from), bytes) };
                    fence();
                    assert!(memory.0[..into].iter().all(|byte| *byte == 0xA5), "into={into} from={from} bytes={bytes}");
                    assert_eq!(memory.0[into..into + bytes], source[from..from + bytes], "into={into} from={from}");
                    assert!(memory.0[into + bytes..].iter().all(|byte| *byte == 0xA5), "into={into} bytes={bytes}");
                }
            }
        }
    }

    #[test]
    fn plain_copies_are_exact_at_every_length_and_alignment() {
        check_all(copy_plain, (0..=130).chain([255, 256, 257, 511, 700]), 1);
    }

    #[test]
    fn streaming_copies_are_exact_at_every_length_and_alignment() {
        check_all(copy_streaming, (0..=330).chain([511, 512, 513, 700, 900]), 1);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn streaming_without_avx_is_exact() {
        unsafe fn lines(into: *mut u8, from: *const u8, bytes: usize) {
            // SAFETY: as the caller promises; lengths are whole lines and `into` is aligned.
            unsafe { machine::stream_lines_sse2(into, from, bytes / LINE_BYTES) }
        }
        check_all(lines, [64, 128, 192, 640].into_iter(), 64);
    }
}
