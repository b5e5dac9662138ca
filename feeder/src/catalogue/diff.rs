//! What two versions have in common and what only one of them has.
//!
//! By extents, one part at a time; parts that both have are passed over unread. What is kept in memory are the merged ranges
//! of the other parts, some 32 bytes each.

use std::collections::HashMap;

use cursorstore::Incarnation;
use cursorstore::records::DatasetVersion;
use cursorstore::records::dataset::PartRef;

use super::Catalogue;
use crate::error::Result;
use crate::schema::Schema;

/// So many records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Records.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Only in the first.
    pub removed: Amount,
    /// Only in the second.
    pub added: Amount,
    /// In both.
    pub common: Amount,
    /// Whether both have the same records in the same order, under the same schema and recipe.
    pub is_same: bool,
    /// Columns that only the first has, or has otherwise, as text.
    pub columns_removed: Vec<String>,
    /// Columns that only the second has, or has otherwise.
    pub columns_added: Vec<String>,
    /// Manifest parts that both have.
    pub shared_parts: u64,
}

/// Consecutive records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    incarnation: Incarnation,
    segment: u32,
    from: u64,
    to: u64,
    row_bytes: u64,
}

impl Catalogue {
    /// Compares two versions, of one dataset or of two.
    pub fn diff(&self, one: &DatasetVersion, two: &DatasetVersion) -> Result<Diff> {
        let mut diff = Diff { is_same: one.fingerprint == two.fingerprint, ..Diff::default() };
        let parts = |version: &DatasetVersion| -> Vec<PartRef> {
            version.windows.iter().flat_map(|window| window.parts.clone()).collect()
        };
        let (mut rest, mut only_two) = (counted(&parts(one)), Vec::new());
        for part in parts(two) {
            match rest.get_mut(&part.digest).filter(|(_, count)| *count > 0) {
                Some((_, count)) => {
                    *count -= 1;
                    diff.shared_parts += 1;
                    diff.common.records += part.records;
                    diff.common.bytes += part.bytes;
                }
                None => only_two.push(part),
            }
        }
        // In the first's own order, so that runs merge.
        let mut only_one = parts(one);
        only_one.retain(|part| match rest.get_mut(&part.digest) {
            Some((_, count)) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        });
        let (one_runs, two_runs) = (self.runs(one, &only_one)?, self.runs(two, &only_two)?);
        compare(&one_runs, &two_runs, &mut diff);
        let columns = |of: &DatasetVersion| -> Result<Vec<String>> {
            Ok(Schema::parse(&of.schema)?.columns().iter().map(ToString::to_string).collect())
        };
        let (old, new) = (columns(one)?, columns(two)?);
        diff.columns_removed = old.iter().filter(|column| !new.contains(column)).cloned().collect();
        diff.columns_added = new.into_iter().filter(|column| !old.contains(column)).collect();
        Ok(diff)
    }

    /// The merged records of some parts of a version, sorted.
    fn runs(&self, version: &DatasetVersion, parts: &[PartRef]) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for part in parts {
            for extent in self.part(version, part.digest)?.extents {
                let row_bytes = extent.bytes / extent.count().max(1);
                let (incarnation, segment) = (extent.incarnation, extent.segment);
                let run = Run { incarnation, segment, from: extent.from, to: extent.to, row_bytes };
                match runs.last_mut() {
                    Some(last) if last.to == run.from && Run { from: last.from, to: last.to, ..run } == *last => {
                        last.to = run.to;
                    }
                    _ => runs.push(run),
                }
            }
        }
        runs.sort_unstable();
        Ok(runs)
    }
}

/// Parts by digest, and how often each stands there.
fn counted(parts: &[PartRef]) -> HashMap<u128, (PartRef, u64)> {
    let mut counted = HashMap::new();
    for part in parts {
        counted.entry(part.digest).or_insert_with(|| (part.clone(), 0)).1 += 1;
    }
    counted
}

/// Walks both lists at once, which are sorted and do not overlap themselves.
fn compare(one: &[Run], two: &[Run], diff: &mut Diff) {
    let add = |amount: &mut Amount, run: &Run, from: u64, to: u64| {
        amount.records += to - from;
        amount.bytes += (to - from) * run.row_bytes;
    };
    let (mut one, mut two) = (one.iter().copied().peekable(), two.iter().copied().peekable());
    let place = |run: &Run| (run.incarnation, run.segment);
    let (mut left, mut right) = (one.next(), two.next());
    loop {
        match (&mut left, &mut right) {
            (None, None) => return,
            (Some(a), None) => {
                add(&mut diff.removed, a, a.from, a.to);
                left = one.next();
            }
            (None, Some(b)) => {
                add(&mut diff.added, b, b.from, b.to);
                right = two.next();
            }
            (Some(a), Some(b)) if place(a) < place(b) || (place(a) == place(b) && a.to <= b.from) => {
                add(&mut diff.removed, a, a.from, a.to);
                left = one.next();
            }
            (Some(a), Some(b)) if place(b) < place(a) || b.to <= a.from => {
                add(&mut diff.added, b, b.from, b.to);
                right = two.next();
            }
            (Some(a), Some(b)) => {
                let from = a.from.max(b.from);
                add(&mut diff.removed, a, a.from, from);
                add(&mut diff.added, b, b.from, from);
                let to = a.to.min(b.to);
                add(&mut diff.common, b, from, to);
                (a.from, b.from) = (to, to);
                if a.from == a.to {
                    left = one.next();
                }
                if right.as_ref().is_some_and(|b| b.from == b.to) {
                    right = two.next();
                }
            }
        }
    }
}
