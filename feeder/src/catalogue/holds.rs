//! Who needs which records of a topic, and the two ways in which records are deleted, which ask that first.

use std::cell::OnceCell;
use std::path::Path;

use cursorstore::records::{Guard, Records, guard};
use cursorstore::store::{Embedded, Scope, Store};
use cursorstore::{Extent, Incarnation, TopicName};

use crate::error::{Error, ErrorKind, Result};
use crate::log::{Retained, Retention, Root, Topic};

/// Holders named in a message.
const HOLDERS_NAMED: usize = 8;

/// A stored record that needs records of a topic: a dataset version or a kept checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Where its record stands.
    pub scope: Scope,
    /// Key of its record.
    pub key: String,
    /// What it needs.
    pub ranges: Vec<Extent>,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
}

impl Holder {
    /// As users name it: `dataset clean@v1`, `checkpoint vision@30`.
    pub fn name(&self) -> String {
        match self.key.split('/').collect::<Vec<_>>()[..] {
            ["dataset", name, number] => format!("dataset {name}@v{}", number.trim_start_matches('0')),
            ["checkpoint", job, step] => {
                let step = step.trim_start_matches('0');
                format!("checkpoint {job}@{}", if step.is_empty() { "0" } else { step })
            }
            _ => format!("{} of {}", self.key, self.scope),
        }
    }

    /// The lowest offset it needs of a partition.
    pub fn lowest(&self, partition: u32) -> Option<u64> {
        let ranges = self.ranges.iter().filter(|range| range.segment == partition && range.from < range.to);
        ranges.map(|range| range.from).min()
    }
}

/// All stored holders of records of one life of a topic, over the catalogue and every job. A guard that cannot be read is an
/// error: nobody may delete anything then.
pub fn holders(root: &Path, topic: &TopicName, incarnation: Incarnation) -> Result<Vec<Holder>> {
    let store = Embedded::open(root)?;
    let mut holders = Vec::new();
    for scope in store.scopes()? {
        for guard in store.records::<Guard>(&scope, guard::PREFIX)? {
            let ours = |range: &Extent| range.incarnation == incarnation;
            if guard.topic == *topic && guard.ranges.iter().any(ours) {
                let ranges = guard.ranges.into_iter().filter(ours).collect();
                holders.push(Holder { scope: scope.clone(), key: guard.holder, ranges, since_ms: guard.since_ms });
            }
        }
    }
    Ok(holders)
}

/// What a trim did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// What was deleted, and how many bytes were held back.
    pub retained: Retained,
    /// The stored holders that keep something which the rules do not.
    pub holders: Vec<Holder>,
    /// Live readers that do.
    pub readers: usize,
}

/// Deletes what the rules no longer keep and nobody needs, or with `dry` only says what that would be.
pub fn trim(root: &Root, topic: &Topic, rules: &Retention, now_ms: u64, dry: bool) -> Result<Trimmed> {
    let due = topic.due(rules, now_ms)?.first;
    let found: OnceCell<Vec<Holder>> = OnceCell::new();
    let holds = |partition: u32| {
        if found.get().is_none() {
            let holders = holders(root.path(), topic.name(), topic.incarnation())?;
            let _ = found.set(holders);
        }
        Ok(found.get().into_iter().flatten().filter_map(|holder| holder.lowest(partition)).min())
    };
    let retained = match dry {
        true => topic.would_retain(rules, now_ms, &holds),
        false => topic.retain(rules, now_ms, &holds),
    }?;
    let keeps = |lowest: &dyn Fn(usize) -> Option<u64>| {
        due.iter().enumerate().any(|(partition, due)| lowest(partition).is_some_and(|lowest| lowest < *due))
    };
    let mut holders = found.into_inner().unwrap_or_default();
    holders.retain(|holder| keeps(&|partition| holder.lowest(partition as u32)));
    // A guard that says nothing of a partition holds all of it.
    let reads = |from: &&Vec<u64>| keeps(&|partition| Some(from.get(partition).copied().unwrap_or(0)));
    let readers = retained.live.iter().filter(reads).count();
    Ok(Trimmed { retained, holders, readers })
}

/// Removes a topic with all its data. Refused while a version or a kept checkpoint needs records of it, unless `force`; and
/// while somebody reads or writes it.
pub fn remove_topic(root: &Root, name: &TopicName, force: bool) -> Result<()> {
    root.remove_topic_if(name, &|| {
        if force {
            return Ok(());
        }
        let holders = holders(root.path(), name, root.topic(name)?.incarnation())?;
        if holders.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("records of the topic are pinned by {}: topic={name}", named(holders.iter().map(Holder::name))),
        )
        .with_hint("unpin the versions and remove the checkpoints first, or give --force"))
    })
}

/// Some names as a part of a sentence.
pub(super) fn named(names: impl ExactSizeIterator<Item = String>) -> String {
    let count = names.len();
    let shown: Vec<String> = names.take(HOLDERS_NAMED).collect();
    match count {
        n if n > HOLDERS_NAMED => format!("{} and {} more", shown.join(", "), n - HOLDERS_NAMED),
        _ => shown.join(", "),
    }
}
