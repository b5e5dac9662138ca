//! `forebay dataset verify` and `export`: all records are read.

use std::path::Path;

use cursorstore::records::DatasetVersion;
use serde_json::json;

use super::amount;
use crate::catalogue::{Catalogue, CheckProgress};
use crate::cli::console::{Console, Failure};
use crate::cli::meter::Meter;
use crate::cli::{interrupt, text};
use crate::error::{Error, ErrorKind};

pub(super) fn verify(
    version: &DatasetVersion,
    catalogue: &Catalogue,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (name, mut done) = (version.reference().to_string(), 0);
    let mut meter = Meter::begin(console, "verifying", version.totals.bytes);
    let report = catalogue.verify(version, &mut |progress: CheckProgress| {
        meter.advance(console, progress.bytes.saturating_sub(done));
        done = progress.bytes;
    });
    meter.end();
    let report = report?;
    if console.json {
        let problems = report.problems.iter().map(|bad| {
            json!({
                "sample": bad.sample, "partition": bad.partition, "from": bad.from, "to": bad.to,
                "path": bad.path.as_ref().map(|path| path.display().to_string()), "message": bad.message,
            })
        });
        console.object(&json!({
            "version": name, "good": report.is_good(), "extents": report.extents, "records": report.records,
            "bytes": report.bytes, "extents_damaged": report.bad_extents, "records_damaged": report.bad_records,
            "problems": problems.collect::<Vec<_>>(),
        }))?;
    } else {
        let extents = text::counted(report.extents, "extent");
        console.line(&format!("{} in {extents} are as they were pinned", amount(report.records, report.bytes)))?;
    }
    let Some(first) = report.problems.first() else { return Ok(()) };
    let more = match report.bad_extents {
        1 => String::new(),
        n => format!(", the first of {}", text::counted(n, "bad extent")),
    };
    let place = format!("sample={} partition={} offsets={}..{}", first.sample, first.partition, first.from, first.to);
    let hint = match first.kind {
        ErrorKind::StateMismatch => {
            "these records are gone for good: unpin the version, or restore the topic's folder from a copy"
        }
        _ => "restore the segment file from a copy, or pin a version without these records",
    };
    Err(Error::new(first.kind, format!("a bad extent{more}: version={name} {place}: {}", first.message))
        .with_hint(hint)
        .into())
}

pub(super) fn export(
    version: &DatasetVersion,
    file: &Path,
    replace: bool,
    catalogue: &Catalogue,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (name, mut done) = (version.reference().to_string(), 0);
    interrupt::say_on_interrupt(
        console,
        || "the file was not made; an unfinished one beside it, its name begins with a dot, can go",
    );
    let mut meter = Meter::begin(console, "exporting", version.totals.bytes);
    let exported = catalogue.export(version, file, replace, &mut |progress: CheckProgress| {
        meter.advance(console, progress.bytes.saturating_sub(done));
        done = progress.bytes;
    });
    meter.end();
    let exported = exported?;
    if console.json {
        return console.object(&json!({
            "version": name, "path": file.display().to_string(), "records": exported.records,
            "file_bytes": exported.file_bytes,
        }));
    }
    let records = text::counted(exported.records, "record");
    console.line(&format!("wrote {records} of {name} to {} ({})", file.display(), text::bytes(exported.file_bytes)))
}
