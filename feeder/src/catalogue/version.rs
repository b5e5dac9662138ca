//! What there is to say of a version.

use cursorstore::PinnedRef;
use cursorstore::records::DatasetVersion;
use cursorstore::records::dataset::Selection;

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
