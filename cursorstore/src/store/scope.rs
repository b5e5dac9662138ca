//! Scopes, each with one writer, and the keys inside them.

use std::fmt;
use std::str::FromStr;

use super::StoreError;
use crate::position::is_name_part;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

const JOB: &str = "job";
const SUBSCRIPTION: &str = "subscription";
const CATALOGUE: &str = "catalogue";

/// What has one writer at a time. Names follow the rules for parts of topic names.
///
/// The text form is `job/<name>`, `subscription/<name>` or `catalogue`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Inner);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Inner {
    Catalogue,
    Job(String),
    Subscription(String),
}

impl Scope {
    /// A job's runs and checkpoints.
    pub fn job(name: &str) -> Result<Self, StoreError> {
        Ok(Self(Inner::Job(name_part(JOB, name)?)))
    }

    /// A subscription's windows.
    pub fn subscription(name: &str) -> Result<Self, StoreError> {
        Ok(Self(Inner::Subscription(name_part(SUBSCRIPTION, name)?)))
    }

    /// All datasets' versions and labels.
    pub fn catalogue() -> Self {
        Self(Inner::Catalogue)
    }

    /// The job's name, if this is a job's scope.
    pub fn job_name(&self) -> Option<&str> {
        match &self.0 {
            Inner::Job(name) => Some(name),
            _ => None,
        }
    }

    /// The subscription's name, if this is a subscription's scope.
    pub fn subscription_name(&self) -> Option<&str> {
        match &self.0 {
            Inner::Subscription(name) => Some(name),
            _ => None,
        }
    }
}

fn name_part(what: &str, name: &str) -> Result<String, StoreError> {
    if is_name_part(name) {
        return Ok(name.into());
    }
    let shown: String = name.chars().take(200).collect();
    Err(StoreError::Invalid { what: format!("not a name, use letters, digits, '-', '_' and '.': {what}={shown:?}") })
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Catalogue => f.write_str(CATALOGUE),
            Inner::Job(name) => write!(f, "{JOB}/{name}"),
            Inner::Subscription(name) => write!(f, "{SUBSCRIPTION}/{name}"),
        }
    }
}

impl FromStr for Scope {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        match text.split_once('/') {
            None if text == CATALOGUE => Ok(Self::catalogue()),
            Some((JOB, name)) => Self::job(name),
            Some((SUBSCRIPTION, name)) => Self::subscription(name),
            _ => {
                let shown: String = text.chars().take(200).collect();
                Err(StoreError::Invalid { what: format!("not a scope: scope={shown:?}") })
            }
        }
    }
}

/// Whether a text can be a key: parts of letters, digits, `-`, `_`, `.` and `=`, with `/` between them.
pub(crate) fn is_key(key: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.=".contains(&b);
    key.len() <= KEY_BYTES_MAX && key.split('/').all(|part| !part.is_empty() && part.bytes().all(fine))
}

/// Refuses what is no key.
pub(crate) fn check_key(key: &str) -> Result<(), StoreError> {
    if is_key(key) {
        return Ok(());
    }
    let shown: String = key.chars().take(200).collect();
    Err(StoreError::Invalid { what: format!("not a key: bytes_max={KEY_BYTES_MAX} key={shown:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_round_trip() {
        for text in ["job/vision", "subscription/live.1", "catalogue"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        assert_eq!(Scope::job("vision").unwrap().job_name(), Some("vision"));
        assert_eq!(Scope::job("vision").unwrap().subscription_name(), None);
        assert_eq!(Scope::subscription("s").unwrap().subscription_name(), Some("s"));
    }

    #[test]
    fn scopes_that_could_leave_the_store_are_refused() {
        for text in ["", "job", "job/", "job/..", "job/.x", "job/a/b", "job/a b", "catalogue/x", "other/x", "job/é"] {
            assert!(text.parse::<Scope>().is_err(), "{text:?}");
        }
        assert!(Scope::job(&"x".repeat(121)).is_err());
    }

    #[test]
    fn keys_are_paths() {
        assert!(check_key("checkpoint/vision/00000000000000000030").is_ok());
        for key in ["", "/", "a/", "/a", "a//b", "a b", "é", "a\n", &"x".repeat(KEY_BYTES_MAX + 1)] {
            assert!(check_key(key).is_err(), "{key:?}");
        }
    }
}
