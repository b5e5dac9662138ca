//! Giving a version up: its record, its guard, and the parts that no other version needs.

use cursorstore::records::dataset::VersionRef;
use cursorstore::records::{DatasetVersion, Guard, Label};
use cursorstore::store::Batch;

use super::holds::named;
use super::names::fenced_or;
use super::users::User;
use super::{Catalogue, append_error};
use crate::error::{Error, ErrorKind, Result};

/// What was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpinned {
    /// The version.
    pub reference: VersionRef,
    /// Its record, unless it could not be read.
    pub version: Option<DatasetVersion>,
    /// Labels that went with it.
    pub labels: Vec<String>,
    /// Kept checkpoints that used it.
    pub users: Vec<User>,
}

impl Catalogue {
    /// Removes a version and frees what it held back. Refused while kept checkpoints or labels need it, unless `force`; then
    /// also one whose record cannot be read goes.
    pub fn unpin(&self, reference: &VersionRef, force: bool) -> Result<Unpinned> {
        let VersionRef { name, version: number } = reference;
        let key = DatasetVersion::key_of(name, *number);
        self.change(|writer| {
            let version = match self.version(reference) {
                Ok(version) => Some(version),
                Err(error) if force && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::StateMismatch) => None,
                Err(error) => return Err(error),
            };
            let users = version.as_ref().map_or(Ok(Vec::new()), |version| self.users(version))?;
            let labels = self.labels(name)?.into_iter().filter(|label| label.version == *number);
            let labels: Vec<String> = labels.map(|label| label.label).collect();
            if !force {
                refuse_if_used(reference, &users, &labels)?;
            }
            let mut batch = Batch::new().delete(key.clone()).delete(Guard::key_of(&key));
            for label in &labels {
                batch = batch.delete(format!("{}{label}", Label::prefix(name)));
            }
            let batch = self.without_orphans(batch, name, &[*number], None)?;
            writer.append(&batch).map_err(fenced_or(append_error))?;
            Ok(Unpinned { reference: reference.clone(), version, labels, users })
        })
    }
}

fn refuse_if_used(reference: &VersionRef, users: &[User], labels: &[String]) -> Result<()> {
    let busy =
        |what: String| Err(Error::new(ErrorKind::Busy, format!("the version is in use, {what}: version={reference}")));
    if !users.is_empty() {
        let names = named(users.iter().map(|user| format!("{}@{}", user.job, user.step)));
        return busy(format!("by the kept checkpoints {names}")).map_err(|error| {
            error.with_hint(format!(
                "remove these checkpoints first; with --force they can never be resumed: {reference}"
            ))
        });
    }
    if !labels.is_empty() {
        let names = named(labels.iter().map(|label| format!("{}@{label}", reference.name)));
        return busy(format!("as {names}")).map_err(|error| {
            error.with_hint(format!(
                "let the label name another version: forebay dataset label {}@vN {}",
                reference.name, labels[0]
            ))
        });
    }
    Ok(())
}
