//! What the figures mean, in words.

use super::Report;

/// Part of a trainer's time spent waiting below which the trainer is what limits.
const WAITING_PART: f64 = 0.02;

/// How the reader stands to its limit: `reader at 92% of the disk`.
pub fn reader(report: &Report) -> String {
    let Some((limit, rate)) = report.limit() else {
        return match &report.limits.disk {
            Ok(_) => "too little data to measure the disk by: all of it was read ahead",
            Err(_) => "the disk's own rate could not be told",
        }
        .into();
    };
    let part = match report.pipeline.gb_per_s() / rate * 100.0 {
        part if part < 1.0 => "less than 1".into(),
        part => format!("{part:.0}"),
    };
    match report.step_us {
        // What is delivered to a slow trainer says nothing about the reader.
        Some(_) => format!("{part}% of the {limit} in use"),
        None => format!("reader at {part}% of the {limit}"),
    }
}

/// Who waits for whom.
pub fn trainer(report: &Report) -> String {
    let run = &report.pipeline;
    let Some(us) = report.step_us else {
        return format!("a training step of more than {:.0} us never waits for data", run.step_us());
    };
    match run.stall_s / run.seconds {
        waiting if waiting <= WAITING_PART => {
            format!("trainer-bound at {us} us a step: {:.1}% of the time is spent waiting for data", waiting * 100.0)
        }
        waiting => format!(
            "data-bound: a step of {us} us waits {:.0} us for data, {:.0}% of the time",
            run.stall_s / run.steps as f64 * 1e6,
            waiting * 100.0
        ),
    }
}
