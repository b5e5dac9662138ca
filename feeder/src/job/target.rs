//! What a caller names: a checkpoint by its step or tag, or a way to resume.

use std::fmt;
use std::str::FromStr;

use cursorstore::position::is_name_part;

use crate::error::{Error, Result};

const LATEST: &str = "latest";
const NEVER: &str = "never";
const TAG: &str = "tag:";

/// One checkpoint of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By its step.
    Step(u64),
    /// By a tag.
    Tag(String),
}

impl FromStr for Target {
    type Err = Error;

    /// `30` is a step; `best` and `tag:best` are a tag.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(tag) = text.strip_prefix(TAG) {
            return check_tag(tag).map(|()| Self::Tag(tag.into()));
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let step = text.parse().map_err(|_| Error::invalid(format!("the step is too large: step={text}")))?;
            return Ok(Self::Step(step));
        }
        check_tag(text).map(|()| Self::Tag(text.into()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => step.fmt(f),
            Self::Tag(tag) => f.write_str(tag),
        }
    }
}

/// Where a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// At the newest checkpoint of the job's trail, or at the beginning if there is none.
    Latest,
    /// At the beginning, whatever there is.
    Never,
    /// At this checkpoint; those after it are abandoned.
    At(Target),
}

impl FromStr for Resume {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            LATEST => Ok(Self::Latest),
            NEVER => Ok(Self::Never),
            _ => text.parse().map(Self::At),
        }
    }
}

/// Refuses what cannot be a tag: tags are told from steps and from the ways to resume by how they look.
pub fn check_tag(tag: &str) -> Result<()> {
    let taken = tag == LATEST || tag == NEVER || tag.bytes().all(|byte| byte.is_ascii_digit()) || tag.starts_with('-');
    if is_name_part(tag) && !taken {
        return Ok(());
    }
    let shown: String = tag.chars().take(80).collect();
    Err(Error::invalid(format!(
        "not a tag, use letters, digits, '-', '_' and '.', not digits alone, nor 'latest' or 'never': tag={shown:?}"
    )))
}

/// Splits `vision@30`, `vision@best` or `vision@latest`.
pub fn parse_place(text: &str) -> Result<(String, Resume)> {
    let Some((job, target)) = text.split_once('@') else {
        return Err(Error::invalid(format!(
            "name a checkpoint as JOB@STEP, JOB@TAG or JOB@latest: checkpoint={text:?}"
        )));
    };
    let which = match target {
        LATEST => Resume::Latest,
        _ => Resume::At(target.parse()?),
    };
    Ok((job.into(), which))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_mean_what_they_look_like() {
        assert_eq!("latest".parse::<Resume>().unwrap(), Resume::Latest);
        assert_eq!("never".parse::<Resume>().unwrap(), Resume::Never);
        assert_eq!("30".parse::<Resume>().unwrap(), Resume::At(Target::Step(30)));
        for text in ["best", "tag:best"] {
            assert_eq!(text.parse::<Resume>().unwrap(), Resume::At(Target::Tag("best".into())));
        }
        assert_eq!(parse_place("vision@007").unwrap(), ("vision".into(), Resume::At(Target::Step(7))));
        assert_eq!(parse_place("vision@latest").unwrap(), ("vision".into(), Resume::Latest));
        assert!(parse_place("vision@never").is_err());
        for text in ["", "tag:", "tag:30", "tag:latest", "a b", "a/b", "-x", "99999999999999999999", ".x"] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
        assert!(parse_place("vision").unwrap_err().to_string().contains("JOB@STEP"));
    }
}
