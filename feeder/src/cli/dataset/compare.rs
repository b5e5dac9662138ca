//! `forebay dataset diff`.

use cursorstore::records::DatasetVersion;
use serde_json::json;

use super::amount;
use crate::catalogue::{self, Amount, Catalogue, time_text};
use crate::cli::console::{Console, Failure};

pub(super) fn run(
    one: &DatasetVersion,
    two: &DatasetVersion,
    catalogue: &Catalogue,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let diff = catalogue.diff(one, two)?;
    let names = [one.reference().to_string(), two.reference().to_string()];
    if console.json {
        let object = |amount: &Amount| json!({ "records": amount.records, "bytes": amount.bytes });
        return console.object(&json!({
            "one": names[0], "two": names[1], "same": diff.is_same,
            "removed": object(&diff.removed), "added": object(&diff.added), "common": object(&diff.common),
            "columns_removed": diff.columns_removed, "columns_added": diff.columns_added,
            "time_ms": [one.time_ms, two.time_ms], "topics": [one.topic.to_string(), two.topic.to_string()],
            "selections": [one.selection, two.selection], "shared_parts": diff.shared_parts,
        }));
    }
    if diff.is_same {
        return console.line(&format!("{} and {} are the same, record for record", names[0], names[1]));
    }
    let line = |name: &str, values: [String; 2]| [vec![name.to_owned()], values.to_vec()].concat();
    let times = |version: &DatasetVersion| match version.time_ms {
        Some((first, last)) => format!("{} to {}", time_text(first), time_text(last)),
        None => "unknown".into(),
    };
    let both = |of: &dyn Fn(&DatasetVersion) -> String| [of(one), of(two)];
    let words = |of: &Amount| amount(of.records, of.bytes);
    let mut table = vec![
        line("", names.clone()),
        line("records", both(&|version| amount(version.totals.records, version.totals.bytes))),
        line("only there", [words(&diff.removed), words(&diff.added)]),
        line("appended", both(&times)),
    ];
    if one.selection != two.selection {
        table.push(line("selection", both(&|version| catalogue::describe(&version.selection))));
    }
    if (&one.topic, &one.incarnations) != (&two.topic, &two.incarnations) {
        let topic = |version: &DatasetVersion| {
            let lives: Vec<String> = version.incarnations.iter().map(ToString::to_string).collect();
            format!("{} ({})", version.topic, lives.join(", "))
        };
        table.push(line("topic", both(&topic)));
    }
    if one.schema != two.schema {
        table.push(line("columns", [diff.columns_removed.join(", "), diff.columns_added.join(", ")]));
    }
    console.table(&table)?;
    console.line(&format!("in both: {}", words(&diff.common)))
}
