//! Progress of long work: a bar on a terminal, a line now and then elsewhere, nothing when quiet.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::console::Console;
use super::text;

/// Lines are at least so far apart, in time and in share done.
const LINE_EVERY: Duration = Duration::from_secs(1);
const LINE_PERCENT: u64 = 10;
/// A line comes after so long in any case.
const LINE_AT_LATEST: Duration = Duration::from_secs(10);

/// See the module.
pub(super) enum Meter {
    Silent,
    Bar(ProgressBar),
    Lines(Lines),
}

pub(super) struct Lines {
    what: String,
    total: u64,
    done: u64,
    begun: Instant,
    shown: Instant,
    shown_percent: u64,
}

impl Meter {
    /// Begins to show how `total` bytes are gone through.
    pub(super) fn begin(console: &Console<'_>, what: &str, total: u64) -> Self {
        if console.quiet {
            return Self::Silent;
        }
        if console.terminal {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{msg:9} {bar:30} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(what.to_owned());
            return Self::Bar(bar);
        }
        let now = Instant::now();
        Self::Lines(Lines { what: what.to_owned(), total, done: 0, begun: now, shown: now, shown_percent: 0 })
    }

    pub(super) fn advance(&mut self, console: &mut Console<'_>, bytes: u64) {
        match self {
            Self::Silent => {}
            Self::Bar(bar) => bar.inc(bytes),
            Self::Lines(lines) => {
                if let Some(line) = lines.advance(bytes, Instant::now()) {
                    console.note(&line);
                }
            }
        }
    }

    pub(super) fn end(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
        *self = Self::Silent;
    }

    /// Writes a line without spoiling the bar.
    pub(super) fn note(&mut self, console: &mut Console<'_>, text: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| console.note(text)),
            _ => console.note(text),
        }
    }

    /// A line that is shown even where notes are not.
    pub(super) fn warn(&mut self, console: &mut Console<'_>, text: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| console.complain(text)),
            _ => console.complain(text),
        }
    }
}

impl Lines {
    fn advance(&mut self, bytes: u64, now: Instant) -> Option<String> {
        self.done += bytes;
        let percent = (self.done as u128 * 100 / u128::from(self.total.max(1))).min(100) as u64;
        let since = now.duration_since(self.shown);
        let due = since >= LINE_AT_LATEST || (since >= LINE_EVERY && percent >= self.shown_percent + LINE_PERCENT);
        if !due {
            return None;
        }
        (self.shown, self.shown_percent) = (now, percent);
        let rate = self.done as f64 / now.duration_since(self.begun).as_secs_f64().max(1e-3);
        let left = self.total.saturating_sub(self.done) as f64 / rate.max(1.0);
        Some(format!(
            "{} {percent}%: {} of {}, {}/s, {} left",
            self.what,
            text::bytes(self.done),
            text::bytes(self.total),
            text::bytes(rate as u64),
            text::seconds(left as u64)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_now_and_then() {
        let begun = Instant::now();
        let mut lines =
            Lines { what: "writing".into(), total: 1000 << 20, done: 0, begun, shown: begun, shown_percent: 0 };
        let mut at = |seconds: f64, mib: u64| lines.advance(mib << 20, begun + Duration::from_secs_f64(seconds));
        assert_eq!(at(0.5, 200), None, "too early");
        assert_eq!(at(2.0, 0).unwrap(), "writing 20%: 200.0 MiB of 1000.0 MiB, 100.0 MiB/s, 8 s left");
        assert_eq!(at(4.0, 50), None, "too little");
        assert!(at(12.0, 0).is_some(), "a long time");
        assert!(at(13.5, 900).unwrap().starts_with("writing 100%"), "never above");
    }
}
