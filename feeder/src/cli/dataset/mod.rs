//! `forebay dataset`.

mod check;
mod compare;
mod pin;
mod remove;
mod show;

use cursorstore::records::DatasetVersion;
use serde_json::{Value, json};

use super::console::{Console, Failure};
use super::{Global, text};
use crate::catalogue::{self, Catalogue};
use crate::error::Result;

const PIN_HELP: &str = "\
A version is an exact, immutable list of records: training on NAME@v1 gives the same batches whatever
is appended to the topic, and retention leaves what it needs. Pinning the name again makes v2, v3 and
so on; where the topic has only grown it costs no more than what was added. The same records again are
no new version, unless --again is given. Without --topic and selection the newest version's are used.

Which records (all, if nothing is said):
  --from, --to   offsets: 1000 (one partition), or 0:1000,1:500 by partition; --to is not included
                 times of append: 2026-09-21T10:00:00Z, 2026-09-21, 1790000000000ms. The log keeps
                 them per block; a time inside a block's is refused, with the positions next to it
  --checkpoint   JOB@STEP, JOB@TAG or JOB@latest: all records that the job of that checkpoint trains
                 on in an epoch
  --filter       label == 3 and quality >= 0.5      user in (7, 9) or not reviewed
                 columns of single values; == != < <= > >= in, not in; and, or, not, brackets
  --split        a share of the records, by a hash: 0..0.9 for training and 0.9..1 for the rest.
                 A record never changes sides. --split-by COLUMN keeps equal values together

Examples:
  forebay dataset pin digits-clean --topic digits
  forebay dataset pin digits-clean                       # the same selection, of what is there now
  forebay dataset pin good --topic digits --filter 'label < 5 and quality >= 0.5'
  forebay dataset pin train --topic clicks --split 0..0.9 --split-by user --split-seed 7
  forebay dataset pin september --topic clicks --from 2026-09-01 --to 2026-10-01
  forebay dataset pin used --checkpoint vision@30";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Fix records of a topic as the next version of a dataset
    #[command(after_help = PIN_HELP)]
    Pin(pin::Args),
    /// List datasets, or the versions of one
    #[command(after_help = "Examples:\n  forebay dataset ls\n  forebay dataset ls digits-clean --json")]
    Ls {
        /// Only this dataset's versions
        name: Option<String>,
    },
    /// Show a version: what it holds, how it was made, which checkpoints used it
    #[command(after_help = "\
Examples:
  forebay dataset show digits-clean             # the newest version
  forebay dataset show digits-clean@v1
  forebay dataset show digits-clean@prod --json")]
    Show {
        /// NAME, NAME@v1, NAME@latest or NAME@label
        version: String,
    },
    /// Let a label such as 'prod' name a version
    #[command(after_help = "\
Examples:
  forebay dataset label digits-clean@v2 prod    # from now on digits-clean@prod is v2
  forebay dataset label digits-clean@prod --rm  # the label goes, the version stays

A loader takes the version that the label names when the loader is made.")]
    Label {
        /// NAME@v1, NAME@latest or NAME@label
        version: String,
        /// The label
        #[arg(required_unless_present = "rm", conflicts_with = "rm")]
        label: Option<String>,
        /// Remove the label that VERSION is named by
        #[arg(long)]
        rm: bool,
    },
    /// Compare two versions: records, bytes, times, columns
    #[command(after_help = "\
Examples:
  forebay dataset diff digits-clean@v1 digits-clean@v2
  forebay dataset diff digits-clean@prod digits-clean@latest --json

By lists of records, not by payload: the same record of a topic always holds the same.")]
    Diff {
        /// The first version: NAME@v1, NAME@latest or NAME@label
        one: String,
        /// The second
        two: String,
    },
    /// Read all records and compare them with the checksums taken when they were pinned
    #[command(after_help = "\
Examples:
  forebay dataset verify digits-clean@v1
  forebay dataset verify digits-clean@prod --json

Exits with 7 if anything is damaged, with 9 if records are gone, and names file, block and offset of
the first bad extent.")]
    Verify {
        /// NAME@v1, NAME@latest or NAME@label
        version: String,
        /// No progress
        #[arg(long, short)]
        quiet: bool,
    },
    /// Write a version to a parquet file
    #[command(after_help = "\
Examples:
  forebay dataset export digits-clean@v1 digits-clean-v1.parquet
  forebay dataset export digits-clean@prod prod.parquet --replace

The file gets its name when it is whole; whatever happens before leaves nothing behind. Tensors are
fixed-size lists marked as arrow.fixed_shape_tensor, which pyarrow knows.")]
    Export {
        /// NAME@v1, NAME@latest or NAME@label
        version: String,
        /// The file to make
        file: std::path::PathBuf,
        /// Replace a file of that name
        #[arg(long)]
        replace: bool,
        /// No progress
        #[arg(long, short)]
        quiet: bool,
    },
    /// Give a version up: retention may delete what only it needed
    #[command(after_help = "\
Examples:
  forebay dataset unpin digits-clean@v1
  forebay dataset unpin digits-clean@v1 --force

Refused while kept checkpoints were made on it or a label names it, which are told. With --force those
checkpoints can no longer be resumed; so goes also a version whose record is damaged. No record of the
topic is deleted by this: see forebay topic trim.")]
    Unpin {
        /// NAME@v1
        version: String,
        /// Even if checkpoints or labels need it
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(command: &Command, global: &Global, console: &mut Console<'_>) -> Result<(), Failure> {
    let catalogue = Catalogue::open(global.root())?;
    match command {
        Command::Pin(args) => pin::run(args, &catalogue, console),
        Command::Ls { name } => show::list(name.as_deref(), &catalogue, console),
        Command::Show { version } => show::show(&found(version, &catalogue)?, &catalogue, console),
        Command::Label { version, label: Some(label), .. } => set_label(version, label, &catalogue, console),
        Command::Label { version, .. } => remove_label(version, &catalogue, console),
        Command::Diff { one, two } => {
            compare::run(&found(one, &catalogue)?, &found(two, &catalogue)?, &catalogue, console)
        }
        Command::Verify { version, quiet } => {
            console.quiet = *quiet;
            check::verify(&found(version, &catalogue)?, &catalogue, console)
        }
        Command::Export { version, file, replace, quiet } => {
            console.quiet = *quiet;
            check::export(&found(version, &catalogue)?, file, *replace, &catalogue, console)
        }
        Command::Unpin { version, force } => remove::run(version, *force, &catalogue, console),
    }
}

/// The version of that reference; a bare name means the newest.
fn found(version: &str, catalogue: &Catalogue) -> Result<DatasetVersion> {
    match version.contains('@') {
        true => catalogue.resolve(version),
        false => catalogue.resolve(&format!("{version}@latest")),
    }
}

fn set_label(version: &str, label: &str, catalogue: &Catalogue, console: &mut Console<'_>) -> Result<(), Failure> {
    let (version, before) = catalogue.label(version, label)?;
    let (name, number) = (&version.name, version.version);
    if console.json {
        return console.object(&json!({ "label": format!("{name}@{label}"), "version": number, "before": before }));
    }
    let was = match before {
        Some(before) if before != number => format!(", before v{before}"),
        Some(_) => ", as before".into(),
        None => String::new(),
    };
    console.line(&format!("{name}@{label} is {name}@v{number}{was}"))
}

fn remove_label(reference: &str, catalogue: &Catalogue, console: &mut Console<'_>) -> Result<(), Failure> {
    let reference: catalogue::Reference = reference.parse()?;
    let catalogue::Which::Label(label) = &reference.which else {
        let error = crate::Error::invalid(format!("only a label can be removed: version={reference}"));
        return Err(error.with_hint(format!("forebay dataset label {}@prod --rm", reference.name)).into());
    };
    let removed = catalogue.unlabel(&reference.name, label)?;
    match console.json {
        true => console.object(&json!({ "removed": reference.to_string(), "version": removed.version })),
        false => console.line(&format!("removed {reference}, which was v{}", removed.version)),
    }
}

/// What is said of a version, for machines.
fn summary(version: &DatasetVersion, labels: &[String]) -> Value {
    json!({
        "version": version.reference().to_string(), "name": version.name, "number": version.version, "labels": labels,
        "topic": version.topic.to_string(), "incarnations": version.incarnations,
        "records": version.totals.records, "bytes": version.totals.bytes, "extents": version.totals.extents,
        "windows": version.windows.len(), "fingerprint": catalogue::fingerprint(version), "parent": version.parent,
        "selection": version.selection, "schema": version.schema, "recipe": version.recipe,
        "time_ms": version.time_ms, "created_by": version.created_by, "created_ms": version.created_ms,
    })
}

/// Records and bytes in words.
fn amount(records: u64, bytes: u64) -> String {
    format!("{} ({})", text::counted(records, "record"), text::bytes(bytes))
}
