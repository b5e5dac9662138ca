//! `forebay dataset unpin`.

use cursorstore::records::dataset::VersionRef;
use serde_json::json;

use crate::catalogue::{Catalogue, Reference, Which};
use crate::cli::console::{Console, Failure};
use crate::error::{Error, Result};

pub(super) fn run(version: &str, force: bool, catalogue: &Catalogue, console: &mut Console<'_>) -> Result<(), Failure> {
    let unpinned = catalogue.unpin(&exact(version)?, force)?;
    let name = unpinned.reference.to_string();
    let users: Vec<String> = unpinned.users.iter().map(|user| format!("{}@{}", user.job, user.step)).collect();
    if console.json {
        return console.object(&json!({ "unpinned": name, "labels": unpinned.labels, "checkpoints": users }));
    }
    console.line(&format!("unpinned {name}"))?;
    if !users.is_empty() {
        console.note(&format!("note: these checkpoints can no longer be resumed: {}", users.join(", ")));
    }
    if !unpinned.labels.is_empty() {
        console.note(&format!("note: these labels went with it: {}", unpinned.labels.join(", ")));
    }
    Ok(())
}

/// A version by its number: what a label means may change under the hands.
fn exact(version: &str) -> Result<VersionRef> {
    let reference: Reference = version.parse()?;
    match reference.which {
        Which::Version(version) => Ok(VersionRef { name: reference.name, version }),
        _ => Err(Error::invalid(format!("name the version to unpin by its number: version={version}"))
            .with_hint(format!("forebay dataset ls {}", reference.name))),
    }
}
