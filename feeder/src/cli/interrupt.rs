//! What happens on Ctrl-C: the process ends, as it may at any moment, but says how to go on.

use nix::sys::signal::{SigSet, Signal};

use super::console::Console;

const EXIT_INTERRUPTED: i32 = 130;

/// From now on an interrupt ends the process after `last`, with the word of advice that it gives. Only for commands on the
/// process's own terminal, which end soon: the watching thread stays until then.
pub(super) fn say_on_interrupt(console: &Console<'_>, last: impl FnOnce() -> &'static str + Send + 'static) {
    if !console.terminal {
        return;
    }
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    if signals.thread_block().is_err() {
        return;
    }
    let watch = std::thread::Builder::new().name("forebay-interrupt".into()).spawn(move || {
        if signals.wait().is_ok() {
            let (advice, mut err) = (last(), std::io::stderr());
            let _ = std::io::Write::write_all(&mut err, format!("\ninterrupted: {advice}\n").as_bytes());
            #[allow(
                clippy::disallowed_methods,
                reason = "an interrupt ends the process here and now; nothing needs a drop"
            )]
            std::process::exit(EXIT_INTERRUPTED);
        }
    });
    if watch.is_err() {
        // Nobody watches: the default, death, is right.
        let _ = signals.thread_unblock();
    }
}
