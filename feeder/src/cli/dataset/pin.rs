//! `forebay dataset pin`.

use cursorstore::records::dataset::Selection;

use super::{amount, summary};
use crate::catalogue::{Catalogue, Outcome, PinRequest, ScanProgress, Split};
use crate::cli::console::{Console, Failure};
use crate::cli::meter::Meter;
use crate::cli::{interrupt, topic};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The dataset; its next version is made
    name: String,
    /// Topic whose records are pinned
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,
    /// First record: an offset, offsets by partition, or a time
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// End: an offset, offsets by partition, or a time
    #[arg(long, value_name = "PLACE")]
    to: Option<String>,
    /// The records that a checkpoint's job trains on
    #[arg(long, value_name = "JOB@STEP", conflicts_with_all = ["from", "to"])]
    checkpoint: Option<String>,
    /// Only records for which this holds
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Only this share of the records, chosen by a hash
    #[arg(long, value_name = "FROM..TO")]
    split: Option<String>,
    /// Another choice of the same size [default: 0]
    #[arg(long, value_name = "NUMBER", requires = "split")]
    split_seed: Option<u64>,
    /// Keep records with the same value of this column together
    #[arg(long, value_name = "COLUMN", requires = "split")]
    split_by: Option<String>,
    /// Make a version even if it holds the same records as the newest
    #[arg(long)]
    again: bool,
    /// No notes and no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args, catalogue: &Catalogue, console: &mut Console<'_>) -> Result<(), Failure> {
    console.quiet = args.quiet;
    let request = request(args)?;
    interrupt::say_on_interrupt(console, || "nothing was pinned");
    let mut meter = Meter::Silent;
    let mut done = 0;
    let outcome = catalogue.pin(&request, &mut |progress: ScanProgress| {
        if done == 0 || progress.bytes < done {
            meter.end();
            meter = Meter::begin(console, "pinning", progress.bytes_total);
            done = 0;
        }
        meter.advance(console, progress.bytes - done);
        done = progress.bytes;
    });
    meter.end();
    report(&outcome?, console)
}

fn request(args: &Args) -> Result<PinRequest> {
    let split = match &args.split {
        Some(share) => Some(Split::new(share, args.split_seed.unwrap_or(0), args.split_by.as_deref())?.to_string()),
        None => None,
    };
    let selection = Selection {
        from: args.from.clone(),
        to: args.to.clone(),
        checkpoint: args.checkpoint.clone(),
        filter: args.filter.clone(),
        split,
    };
    if args.topic.is_none() && args.checkpoint.is_none() && selection != Selection::default() {
        let text = format!("say of which topic these records are: dataset={}", args.name);
        return Err(Error::invalid(text).with_hint("--topic TOPIC"));
    }
    Ok(PinRequest {
        name: args.name.clone(),
        topic: args.topic.as_deref().map(topic::name).transpose()?,
        selection,
        again: args.again,
        created_by: who(),
    })
}

/// User and machine, as far as the system tells.
fn who() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let user = user.map_or_else(|| nix::unistd::getuid().to_string(), |user| user.name);
    let host = nix::sys::utsname::uname().ok().and_then(|about| about.nodename().to_str().map(str::to_owned));
    match host {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}

fn report(outcome: &Outcome, console: &mut Console<'_>) -> Result<(), Failure> {
    let Outcome { version, is_new, shared_windows, looked_at, read_bytes } = outcome;
    let name = version.reference();
    if console.json {
        let mut value = summary(version, &[]);
        value["new"] = (*is_new).into();
        value["shared_windows"] = (*shared_windows).into();
        value["looked_at"] = (*looked_at).into();
        value["read_bytes"] = (*read_bytes).into();
        return console.object(&value);
    }
    let what = amount(version.totals.records, version.totals.bytes);
    match (is_new, version.parent) {
        (false, _) => console.line(&format!("{name} holds the same already: {what} of {}", version.topic)),
        (true, None) => console.line(&format!("pinned {name}: {what} of {}", version.topic)),
        (true, Some(parent)) => {
            console.line(&format!("pinned {name}: {what} of {}, what v{parent} holds and more", version.topic))
        }
    }
}
