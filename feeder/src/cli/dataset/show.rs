//! `forebay dataset ls` and `show`.

use cursorstore::records::DatasetVersion;
use cursorstore::records::dataset::VersionRef;
use serde_json::json;

use super::{amount, summary};
use crate::catalogue::{self, Catalogue, User, time_text};
use crate::cli::console::{Console, Failure};
use crate::cli::text;
use crate::error::{Error, Result};

pub(super) fn list(name: Option<&str>, catalogue: &Catalogue, console: &mut Console<'_>) -> Result<(), Failure> {
    let names = match name {
        Some(name) => {
            catalogue.resolve(&format!("{name}@latest"))?;
            vec![name.to_owned()]
        }
        None => catalogue.names()?,
    };
    let mut table =
        vec![["VERSION", "RECORDS", "BYTES", "TOPIC", "SELECTION", "MADE", "LABELS"].map(str::to_owned).to_vec()];
    let (mut objects, mut failed) = (Vec::new(), None);
    for name in names {
        let labels = catalogue.labels(&name)?;
        for number in catalogue.numbers(&name)? {
            // One record that cannot be read must not hide the others.
            let version = match catalogue.version(&VersionRef { name: name.clone(), version: number }) {
                Ok(version) => version,
                Err(error) => {
                    console.complain(&format!("error: {}", error.report()));
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let ours = labels.iter().filter(|label| label.version == number).map(|label| label.label.clone());
            let ours: Vec<String> = ours.collect();
            table.push(row(&version, &ours));
            objects.push(summary(&version, &ours));
        }
    }
    match (console.json, table.len()) {
        (true, _) => console.object(&objects)?,
        (false, 1) => console.note("no datasets yet, make one: forebay dataset pin NAME --topic TOPIC"),
        (false, _) => console.table(&table)?,
    }
    match failed {
        Some(error) => Err(Error::new(error.kind(), "not all versions can be read").into()),
        None => Ok(()),
    }
}

fn row(version: &DatasetVersion, labels: &[String]) -> Vec<String> {
    vec![
        version.reference().to_string(),
        text::count(version.totals.records),
        text::bytes(version.totals.bytes),
        version.topic.to_string(),
        catalogue::describe(&version.selection),
        time_text(version.created_ms),
        labels.join(", "),
    ]
}

pub(super) fn show(version: &DatasetVersion, catalogue: &Catalogue, console: &mut Console<'_>) -> Result<(), Failure> {
    let labels = catalogue.labels(&version.name)?;
    let labels = labels.iter().filter(|label| label.version == version.version).map(|label| label.label.clone());
    let labels: Vec<String> = labels.collect();
    let users = catalogue.users(version)?;
    if console.json {
        let mut value = summary(version, &labels);
        let user = |user: &User| json!({ "job": user.job, "step": user.step, "path": user.path, "committed_ms": user.committed_ms });
        value["checkpoints"] = users.iter().map(user).collect();
        value["scanned"] = json!(version.scanned);
        return console.object(&value);
    }
    let line = |name: &str, value: String| vec![name.to_owned(), value];
    let totals = &version.totals;
    let mut table = vec![
        line("version", version.reference().to_string()),
        line("topic", format!("{}, incarnation {}", version.topic, list_of(&version.incarnations))),
        line("selection", catalogue::describe(&version.selection)),
        line(
            "records",
            format!("{} in {}", amount(totals.records, totals.bytes), text::counted(totals.extents, "extent")),
        ),
        line("schema", version.schema.clone()),
        line("fingerprint", catalogue::fingerprint(version)),
        line("made", format!("{} by {}", time_text(version.created_ms), version.created_by)),
    ];
    if let Some((first, last)) = version.time_ms {
        table.insert(4, line("appended", format!("{} to {}", time_text(first), time_text(last))));
    }
    if let Some(parent) = version.parent {
        table.push(line("grew from", format!("{}@v{parent}", version.name)));
    }
    if !labels.is_empty() {
        table.push(line("labels", labels.join(", ")));
    }
    console.table(&table)?;
    console.line("")?;
    if users.is_empty() {
        return console.line("no kept checkpoint used it");
    }
    let mut table = vec![["CHECKPOINT", "COMMITTED", "MODEL"].map(str::to_owned).to_vec()];
    for user in &users {
        let path = user.path.clone().unwrap_or_default();
        table.push(vec![format!("{}@{}", user.job, user.step), time_text(user.committed_ms), path]);
    }
    console.table(&table)
}

fn list_of(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
