//! Which checkpoints stay when a new one is committed: a pure rule.

use std::collections::BTreeSet;

use crate::error::{Error, Result};

/// What is kept of a job's checkpoints beside those with a tag. Without any limit all are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many of the trail. One, if only `every` says something.
    pub last: Option<u64>,
    /// Besides, those of the trail whose step is a multiple of this.
    pub every: Option<u64>,
}

impl Keep {
    /// Refuses zeros, which would keep nothing.
    pub fn check(&self) -> Result<()> {
        for (name, value) in [("keep_last", self.last), ("keep_every", self.every)] {
            if value == Some(0) {
                return Err(Error::invalid(format!("{name} is at least 1, or none to keep all: {name}=0")));
            }
        }
        Ok(())
    }

    /// Whether all are kept.
    pub fn keeps_all(&self) -> bool {
        self.last.is_none() && self.every.is_none()
    }

    /// The steps that go. `trail` are those of the trail, ascending; `abandoned` the others, of which those go that the
    /// trail has passed.
    pub fn surplus(&self, trail: &[u64], abandoned: &[u64], tagged: &BTreeSet<u64>) -> Vec<u64> {
        if self.keeps_all() {
            return Vec::new();
        }
        let last = usize::try_from(self.last.unwrap_or(1)).unwrap_or(usize::MAX);
        let older = &trail[..trail.len().saturating_sub(last)];
        let newest = trail.last().copied().unwrap_or(0);
        let every = |step: &u64| self.every.is_some_and(|every| step.is_multiple_of(every));
        let of_trail = older.iter().filter(|step| !every(step));
        let passed = abandoned.iter().filter(|step| **step < newest);
        let mut steps: Vec<u64> = of_trail.chain(passed).copied().filter(|step| !tagged.contains(step)).collect();
        steps.sort_unstable();
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_by_example() {
        let trail = [10, 20, 30, 40, 50];
        let none = BTreeSet::new();
        let rule = |last, every| Keep { last, every };
        let surplus = |keep: Keep| keep.surplus(&trail, &[], &none);
        assert!(surplus(rule(None, None)).is_empty());
        assert_eq!(surplus(rule(Some(2), None)), [10, 20, 30]);
        assert_eq!(surplus(rule(Some(1), Some(20))), [10, 30]);
        assert_eq!(surplus(rule(None, Some(20))), [10, 30], "the newest always stays");
        assert!(surplus(rule(Some(9), None)).is_empty());
        assert_eq!(rule(Some(1), None).surplus(&trail, &[], &BTreeSet::from([10, 30])), [20, 40], "tags stay");
        assert_eq!(rule(Some(9), None).surplus(&trail, &[45, 60], &none), [45], "what the trail has passed");
        assert_eq!(rule(Some(9), None).surplus(&trail, &[45, 60], &BTreeSet::from([45])), [0; 0]);
        assert!(rule(Some(0), None).check().is_err() && rule(None, Some(0)).check().is_err());
        assert!(rule(Some(1), Some(1)).check().is_ok());
    }
}
