//! Dataset versions: exact, immutable lists of a topic's records under a name, `name@v1`, `name@v2` and so on.
//!
//! - [`Catalogue::pin`] makes one. It fixes extents with checksums of their payloads, counts, schema, recipe and fingerprint,
//!   and holds the records back from retention. Windows and manifest parts are shared with the version before where the
//!   topic has only grown, so a new version costs what was added.
//! - [`Catalogue::resolve`] turns `name@v2`, `name@prod` and `name@latest` into one version; training opens that.
//! - [`Catalogue::diff`], [`Catalogue::verify`] and [`Catalogue::export`] look at versions; [`Catalogue::unpin`] gives one up.
//! - [`holders`] tells who needs which records of a topic, over versions and the jobs' kept checkpoints. Everything that
//!   deletes records asks it: [`trim`] and [`remove_topic`].
//!
//! Records stand in the scope `catalogue` of the root's store (`cursorstore::records`). A version and its guard are written in
//! one append, so a version is there whole or not at all; parts that a failed pin left behind go with the next one.
//!
//! **Never too late.** A pin first takes a guard of the log, then looks, then writes its record, then drops that guard.
//! Retention, while no guard can be made, first lists the live ones and then folds the records. So whatever a version needs
//! is seen as one or the other.

mod blocks;
mod checksum;
mod diff;
mod export;
mod filter;
mod holds;
mod names;
mod open;
mod picker;
mod pin;
mod ranges;
mod scan;
mod split;
mod unpin;
mod users;
mod verify;
mod version;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use cursorstore::records::dataset::VersionRef;
use cursorstore::records::{DatasetVersion, Label, ReadError, Records};
use cursorstore::store::{Embedded, Scope, Store, StoreError, StoreErrorKind, Writer};

pub use checksum::checksum;
pub use diff::{Amount, Diff};
pub use export::Exported;
pub use holds::{Holder, Trimmed, holders, remove_topic, trim};
pub use names::{Reference, Which};
pub use open::Lines;
pub use pin::{Outcome, PinRequest};
pub use ranges::time_text;
pub use scan::ScanProgress;
pub use split::Split;
pub use unpin::Unpinned;
pub use users::User;
pub use verify::{BadExtent, CheckProgress, CheckReport};
pub use version::{describe, fingerprint};
pub(crate) use version::{pinned_ref, schema_of};

use crate::error::{Error, ErrorKind, Result};
use crate::log::Root;

/// Times that a change is tried again when another process changes the catalogue at the same moment.
const TRIES_MAX: usize = 64;

/// The catalogue of a root. Nothing is written before something is pinned or labelled.
#[derive(Debug)]
pub struct Catalogue {
    root: Root,
    store: Embedded,
}

impl Catalogue {
    /// The catalogue of an existing root.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        let root = Root::open(root)?;
        let store = Embedded::open(root.path())?;
        Ok(Self { root, store })
    }

    /// The root's directory.
    pub fn path(&self) -> PathBuf {
        self.root.path().to_path_buf()
    }

    /// The names of all datasets, sorted.
    pub fn names(&self) -> Result<Vec<String>> {
        let view = self.store.fold(&Scope::catalogue(), "dataset/")?;
        let mut names: Vec<String> =
            view.entries().iter().filter_map(|entry| Some(entry.key.split('/').nth(1)?.to_owned())).collect();
        names.dedup();
        Ok(names)
    }

    /// The numbers of a dataset's versions, in order.
    pub fn numbers(&self, name: &str) -> Result<Vec<u64>> {
        let view = self.store.fold(&Scope::catalogue(), &DatasetVersion::prefix(name))?;
        Ok(view.entries().iter().filter_map(|entry| entry.key.rsplit('/').next()?.parse().ok()).collect())
    }

    /// One version, which must be there.
    pub fn version(&self, reference: &VersionRef) -> Result<DatasetVersion> {
        match self.stored(&reference.name, reference.version)? {
            Some(version) => Ok(version),
            None => Err(self.no_version(reference)),
        }
    }

    /// The newest version of a dataset, if there is one.
    pub fn latest(&self, name: &str) -> Result<Option<DatasetVersion>> {
        match self.numbers(name)?.last() {
            Some(&number) => self.stored(name, number),
            None => Ok(None),
        }
    }

    fn stored(&self, name: &str, number: u64) -> Result<Option<DatasetVersion>> {
        let key = DatasetVersion::key_of(name, number);
        self.store.record(&Scope::catalogue(), &key).map_err(|error| bad_record(error, &format!("{name}@v{number}")))
    }

    /// The labels of a dataset, sorted.
    pub fn labels(&self, name: &str) -> Result<Vec<Label>> {
        Ok(self.store.records(&Scope::catalogue(), &Label::prefix(name))?)
    }

    /// Changes the catalogue. What `change` does is done anew, with a new writer, when another process took over meanwhile;
    /// so it must look at what is there each time.
    fn change<T>(&self, mut change: impl FnMut(&mut Writer) -> Result<T>) -> Result<T> {
        for _ in 0..TRIES_MAX {
            let mut writer = self.store.acquire(&Scope::catalogue()).map_err(append_error)?;
            match change(&mut writer) {
                Err(error) if error.kind() == ErrorKind::Fenced => {}
                done => return done,
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("other processes change the catalogue all the time: root={}", self.root.path().display()),
        )
        .with_hint("try again"))
    }
}

/// A failed change of the catalogue.
fn append_error(error: StoreError) -> Error {
    match error.kind() {
        StoreErrorKind::NoSpace => Error::new(ErrorKind::NoSpace, "nothing was changed, there is no room for it")
            .with_source(error)
            .with_hint("make room and try again"),
        _ => error.into(),
    }
}

/// A record that cannot be read, with what it was to say.
fn bad_record(error: ReadError, of: &str) -> Error {
    let error = Error::from(error);
    let hint = error.hint().map(str::to_owned);
    let hint = hint.unwrap_or_else(|| match error.kind() {
        ErrorKind::StateMismatch => "use the newer forebay that wrote it".into(),
        _ => "restore the folder 'store' of the root from a copy".into(),
    });
    Error::new(error.kind(), format!("cannot read a dataset version: version={of}")).with_source(error).with_hint(hint)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}
