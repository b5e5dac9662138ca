//! Names of places in topics: the topic's name, the incarnation of one life of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest part of a topic's name, in bytes; file systems allow 255.
pub const NAME_PART_BYTES_MAX: usize = 120;

/// A topic's full name, `persistent://tenant/namespace/name`; the short form `name` means tenant `public`, namespace
/// `default`. Parts hold ASCII letters, digits, `-`, `_` and `.`, and do not begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName {
    tenant: String,
    namespace: String,
    name: String,
}

impl TopicName {
    /// First part of the full name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Second part of the full name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Last part of the full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The form with all parts.
    pub fn full(&self) -> String {
        format!("persistent://{}/{}/{}", self.tenant, self.namespace, self.name)
    }
}

impl fmt::Display for TopicName {
    /// The short form where it says the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant == "public" && self.namespace == "default" {
            f.write_str(&self.name)
        } else {
            f.write_str(&self.full())
        }
    }
}

/// Why a text is no topic name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "not a topic name, use letters, digits, '-', '_' and '.', as in 'corpus' or 'persistent://tenant/namespace/corpus': name={0:?}"
)]
pub struct BadTopicName(pub String);

impl FromStr for TopicName {
    type Err = BadTopicName;

    fn from_str(text: &str) -> Result<Self, BadTopicName> {
        let bad = || BadTopicName(text.chars().take(200).collect());
        let parts: Vec<&str> = match text.strip_prefix("persistent://") {
            Some(rest) => rest.split('/').collect(),
            None => vec!["public", "default", text],
        };
        let [tenant, namespace, name] = parts[..] else { return Err(bad()) };
        if ![tenant, namespace, name].into_iter().all(is_name_part) {
            return Err(bad());
        }
        Ok(Self { tenant: tenant.into(), namespace: namespace.into(), name: name.into() })
    }
}

/// Whether a text can be a part of a name: it never leaves a directory and needs no quoting anywhere.
pub fn is_name_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= NAME_PART_BYTES_MAX
        && !part.starts_with('.')
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

impl TryFrom<String> for TopicName {
    type Error = BadTopicName;

    fn try_from(text: String) -> Result<Self, BadTopicName> {
        text.parse()
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> String {
        name.full()
    }
}

/// Identity of one life of a topic: a topic deleted and made again under its name has another one. Shown as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Incarnation(pub u128);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TryFrom<String> for Incarnation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let fine = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(&text, 16) {
            Ok(number) if fine => Ok(Self(number)),
            _ => Err(format!("an incarnation is 32 hex digits: incarnation={text:?}")),
        }
    }
}

impl From<Incarnation> for String {
    fn from(incarnation: Incarnation) -> String {
        incarnation.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_full_names_are_the_same_topic() {
        let short: TopicName = "corpus".parse().unwrap();
        let full: TopicName = "persistent://public/default/corpus".parse().unwrap();
        assert_eq!(short, full);
        assert_eq!(short.to_string(), "corpus");
        assert_eq!("persistent://a/b/c".parse::<TopicName>().unwrap().to_string(), "persistent://a/b/c");
    }

    #[test]
    fn names_that_could_leave_the_root_are_refused() {
        for bad in
            ["", "..", ".x", "a/b", "a b", "persistent://a/b", "persistent://a/../c", "persistent://a/b/c/d", "é"]
        {
            assert!(bad.parse::<TopicName>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(NAME_PART_BYTES_MAX + 1).parse::<TopicName>().is_err());
    }

    #[test]
    fn incarnations_round_trip() {
        let one = Incarnation(0xabc);
        assert_eq!(Incarnation::try_from(one.to_string()).unwrap(), one);
        for bad in ["", "+0000000000000000000000000000abc", "zz", "abc"] {
            assert!(Incarnation::try_from(bad.to_string()).is_err(), "{bad:?}");
        }
    }
}
