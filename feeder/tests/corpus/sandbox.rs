//! Takes things away from a thread, and from those that it starts, for good: system calls, processors. Nothing else of the
//! process notices.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::io;

/// When a system call is refused.
pub enum When {
    Always,
    /// If this argument is that number.
    Is(u32, u32),
    /// If this argument is at least that number (both below 2^32).
    AtLeast(u32, u32),
    /// If this argument has one of these bits.
    Has(u32, u32),
}

/// Runs `work` on a thread of its own without what `take` takes away. Says so and gives `None` where the system lets nobody
/// take that away.
#[allow(clippy::print_stderr, reason = "a test that did nothing says why")]
pub fn without<T: Send>(take: impl Fn() -> io::Result<()> + Send, work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || match take() {
            Ok(()) => Some(work()),
            Err(error) => {
                eprintln!("skipped, as nothing can be taken away here: {error}");
                None
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Refuses a system call with `errno`.
pub fn refuse(call: libc::c_long, when: &When, errno: i32) -> io::Result<()> {
    // Offsets in the kernel's `seccomp_data`: the call's number, and the low half of an argument.
    let load = |at: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let argument = |number: u32| load(16 + 8 * number + if cfg!(target_endian = "big") { 4 } else { 0 });
    let jump = |test: u32, value: u32, no: u8| libc::sock_filter {
        code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
        jt: 0,
        jf: no,
        k: value,
    };
    let answer = |action: u32| statement(libc::BPF_RET | libc::BPF_K, action);
    let mut program = vec![load(0), jump(libc::BPF_JEQ, call as u32, if matches!(when, When::Always) { 1 } else { 3 })];
    let test = match when {
        When::Always => None,
        When::Is(number, value) => Some((libc::BPF_JEQ, number, value)),
        When::AtLeast(number, value) => Some((libc::BPF_JGE, number, value)),
        When::Has(number, bits) => Some((libc::BPF_JSET, number, bits)),
    };
    if let Some((test, number, value)) = test {
        program.extend([argument(*number), jump(test, *value, 1)]);
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | errno as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls act on this thread alone; the program and its instructions live until they return.
    let outcome = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Leaves one of the processors.
pub fn keep_one_processor() -> io::Result<()> {
    const SIZE: usize = size_of::<libc::cpu_set_t>();
    // SAFETY: a set is plain bits, all of which may be zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is this thread; the set is as long as said, and is written before it is read.
    let outcome = unsafe {
        if libc::sched_getaffinity(0, SIZE, &raw mut set) < 0 {
            return Err(io::Error::last_os_error());
        }
        let first = (0..8 * SIZE).find(|&number| libc::CPU_ISSET(number, &set)).unwrap_or(0);
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        libc::sched_setaffinity(0, SIZE, &raw const set)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn statement(code: u32, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}
