//! What there is to say of a version.

use cursorstore::PinnedRef;
use cursorstore::records::DatasetVersion;
use cursorstore::records::dataset::Selection;

use crate::error::{Error, ErrorKind, Result};
use crate::log::TopicView;
use crate::schema::Schema;
use crate::versions::SchemaVersion;

/// The fingerprint as 32 hex digits.
pub fn fingerprint(version: &DatasetVersion) -> String {
    format!("{:032x}", version.fingerprint)
}

/// What states say of a version.
pub(crate) fn pinned_ref(version: &DatasetVersion) -> PinnedRef {
    PinnedRef {
        version: version.reference().to_string(),
        fingerprint: fingerprint(version),
        samples: version.totals.records,
    }
}

/// The schema version of the topic that a dataset version is read under.
pub(crate) fn schema_of(version: &DatasetVersion, view: &TopicView) -> Result<SchemaVersion> {
    let schema = Schema::parse(&version.schema)?;
    view.schemas.find(&schema).cloned().ok_or_else(|| {
        let text = "the topic has never had the schema that a dataset version was pinned under";
        Error::new(ErrorKind::StateMismatch, format!("{text}: version={} schema={schema}", version.reference()))
            .with_hint(format!("forebay topic show {}", version.topic))
    })
}

/// A selection in one line, as flags of the command line.
pub fn describe(selection: &Selection) -> String {
    let Selection { from, to, checkpoint, filter, split } = selection;
    let quoted = filter.as_ref().map(|filter| format!("'{filter}'"));
    let parts =
        [("--from", from), ("--to", to), ("--checkpoint", checkpoint), ("--filter", &quoted), ("--split", split)];
    let parts: Vec<String> =
        parts.iter().filter_map(|(flag, value)| Some(format!("{flag} {}", value.as_ref()?))).collect();
    if parts.is_empty() { "all records".into() } else { parts.join(" ") }
}
