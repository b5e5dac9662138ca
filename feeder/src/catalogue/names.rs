//! How users name versions: `name@v3`, `name@latest`, `name@prod`; and what is said when there is no such name.

use std::fmt;
use std::str::FromStr;

use cursorstore::records::dataset::VersionRef;
use cursorstore::records::{DatasetVersion, Label};
use cursorstore::store::{Batch, StoreError};

use super::{Catalogue, append_error, now_ms};
use crate::error::{Error, ErrorKind, Result, nearest};

/// The label that always names the newest version.
pub(super) const LATEST: &str = "latest";
/// Names shown when one is not there.
const NAMES_SHOWN: usize = 8;

/// Which version of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// `@v3`.
    Version(u64),
    /// `@latest`.
    Latest,
    /// `@prod`.
    Label(String),
}

/// A dataset and which version of it, as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The dataset.
    pub name: String,
    /// Which version.
    pub which: Which,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Which::Version(number) => write!(f, "{}@v{number}", self.name),
            Which::Latest => write!(f, "{}@{LATEST}", self.name),
            Which::Label(label) => write!(f, "{}@{label}", self.name),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let shown: String = text.chars().take(200).collect();
            Error::invalid(format!("not a dataset version: version={shown:?}"))
                .with_hint("write NAME@v3, NAME@latest or NAME@label")
        };
        let (name, which) = text.split_once('@').ok_or_else(wrong)?;
        check_name(name)?;
        let which = match which {
            LATEST => Which::Latest,
            _ if is_number(which) => {
                let reference: VersionRef = text.parse().map_err(|_| wrong())?;
                Which::Version(reference.version)
            }
            label => Which::Label(check_label(label).map_err(|_| wrong())?.to_owned()),
        };
        Ok(Self { name: name.into(), which })
    }
}

/// Whether it looks like the number of a version, `v3`.
fn is_number(text: &str) -> bool {
    text.strip_prefix('v').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Refuses what cannot be a dataset's name: the rules are those of topics' names.
pub(super) fn check_name(name: &str) -> Result<&str> {
    match format!("{name}@v1").parse::<VersionRef>() {
        Ok(_) => Ok(name),
        Err(_) => {
            let shown: String = name.chars().take(200).collect();
            Err(Error::invalid(format!("not a dataset's name, use letters, digits, '-', '_' and '.': name={shown:?}")))
        }
    }
}

/// Refuses what cannot be a label.
fn check_label(label: &str) -> Result<&str> {
    check_name(label)
        .map_err(|_| Error::invalid(format!("not a label, use letters, digits, '-', '_' and '.': label={label:?}")))?;
    if label == LATEST || is_number(label) {
        let text = "the label has a meaning of its own already";
        return Err(Error::invalid(format!("{text}: label={label}")).with_hint("choose another word, such as 'prod'"));
    }
    Ok(label)
}

impl Catalogue {
    /// The version that a reference means now.
    pub fn resolve(&self, text: &str) -> Result<DatasetVersion> {
        let reference: Reference = text.parse()?;
        let name = &reference.name;
        match &reference.which {
            Which::Version(number) => self.version(&VersionRef { name: name.clone(), version: *number }),
            Which::Latest => self.latest(name)?.ok_or_else(|| self.no_dataset(name)),
            Which::Label(label) => {
                let labels = self.labels(name)?;
                match labels.iter().find(|found| found.label == *label) {
                    Some(label) => self.version(&VersionRef { name: name.clone(), version: label.version }),
                    None => Err(self.no_label(name, label, &labels)),
                }
            }
        }
    }

    /// Lets a label name a version; it may have named another one, whose number is returned.
    pub fn label(&self, reference: &str, label: &str) -> Result<(DatasetVersion, Option<u64>)> {
        check_label(label)?;
        self.change(|writer| {
            let version = self.resolve(reference)?;
            let before = self.labels(&version.name)?.into_iter().find(|found| found.label == label);
            let record = Label {
                dataset: version.name.clone(),
                label: label.into(),
                version: version.version,
                labelled_ms: now_ms(),
            };
            writer.append(&Batch::new().record(&record)).map_err(fenced_or(append_error))?;
            Ok((version, before.map(|label| label.version)))
        })
    }

    /// Removes a label.
    pub fn unlabel(&self, name: &str, label: &str) -> Result<Label> {
        self.change(|writer| {
            let labels = self.labels(name)?;
            let found = labels.iter().find(|found| found.label == label);
            let found = found.cloned().ok_or_else(|| self.no_label(name, label, &labels))?;
            writer.delete(format!("{}{label}", Label::prefix(name))).map_err(fenced_or(append_error))?;
            Ok(found)
        })
    }

    pub(super) fn no_dataset(&self, name: &str) -> Error {
        let names = self.names().unwrap_or_default();
        let (near, there) = known(name, &names);
        Error::new(
            ErrorKind::NotFound,
            format!("no such dataset{near}, {there}: dataset={name} root={}", self.root.path().display()),
        )
        .with_hint(format!("forebay dataset ls, or make it: forebay dataset pin {name} --topic TOPIC"))
    }

    pub(super) fn no_version(&self, reference: &VersionRef) -> Error {
        let numbers = self.numbers(&reference.name).unwrap_or_default();
        let Some(newest) = numbers.last() else { return self.no_dataset(&reference.name) };
        let mut shown: Vec<String> =
            numbers.iter().rev().take(NAMES_SHOWN).map(|number| format!("v{number}")).collect();
        shown.reverse();
        let more = if numbers.len() > NAMES_SHOWN { ", older ones" } else { "" };
        let text = "no such version, it was unpinned or never made";
        Error::new(ErrorKind::NotFound, format!("{text}, there are {}{more}: version={reference}", shown.join(", ")))
            .with_hint(format!("forebay dataset show {}@v{newest}", reference.name))
    }

    fn no_label(&self, name: &str, label: &str, labels: &[Label]) -> Error {
        if self.numbers(name).is_ok_and(|numbers| numbers.is_empty()) {
            return self.no_dataset(name);
        }
        let names: Vec<String> = labels.iter().map(|label| label.label.clone()).chain([LATEST.into()]).collect();
        let (near, there) = known(label, &names);
        Error::new(ErrorKind::NotFound, format!("no such label{near}, {there}: version={name}@{label}"))
            .with_hint(format!("forebay dataset label {name}@latest {label}"))
    }
}

/// Lets the loss of a writer through as it is, so that the change is tried again.
pub(super) fn fenced_or(otherwise: fn(StoreError) -> Error) -> impl Fn(StoreError) -> Error {
    move |error| match &error {
        StoreError::Fenced { .. } => Error::from(error),
        _ => otherwise(error),
    }
}

/// The nearest of the names that there are, and some of them, as parts of a sentence.
fn known(wanted: &str, names: &[String]) -> (String, String) {
    let near = nearest(wanted, names.iter().map(String::as_str)).map(|near| format!(" (did you mean {near}?)"));
    let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let there = match names.len() {
        0 => "there are none yet".into(),
        n if n > NAMES_SHOWN => format!("there are {shown} and {} more", n - NAMES_SHOWN),
        _ => format!("there are {shown}"),
    };
    (near.unwrap_or_default(), there)
}
