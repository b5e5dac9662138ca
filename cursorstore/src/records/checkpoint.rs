//! `checkpoint/<job>/<step>`: a model checkpoint and the position in the data that belongs to it, one durable fact.

use serde::{Deserialize, Deserializer, Serialize};

use super::{BadBody, Record, RecordError, from_json, open, padded, state_json, to_json};
use crate::{Cursor, State};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The job.
    pub job: String,
    /// The user's own growing number.
    pub step: u64,
    /// Steps of data taken when it was made, counted over the job's whole line.
    pub data_step: u64,
    /// The run that made it.
    pub generation: u64,
    /// The data that comes next.
    #[serde(with = "state_json")]
    pub state: State,
    /// The model's file, if there is one.
    pub path: Option<String>,
    /// The dataset version read, as `name@vN`; `None` for a bare topic.
    pub dataset: Option<String>,
    /// Revision of the training code, if told.
    pub revision: Option<String>,
    /// When, in milliseconds since 1970.
    pub committed_ms: u64,
}

/// What a listing of many checkpoints needs: the record without its state, which takes most of the time to read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, reason = "as in the record")]
pub struct Brief {
    pub step: u64,
    pub data_step: u64,
    pub generation: u64,
    pub path: Option<String>,
    pub dataset: Option<String>,
    pub committed_ms: u64,
    #[serde(rename = "state", deserialize_with = "cursor_of_state")]
    pub cursor: Cursor,
}

fn cursor_of_state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cursor, D::Error> {
    #[derive(Deserialize)]
    struct OnlyCursor {
        cursor: Cursor,
    }
    Ok(OnlyCursor::deserialize(deserializer)?.cursor)
}

impl Checkpoint {
    /// The run that made stored bytes, without a look at the rest.
    pub fn generation_of(bytes: &[u8]) -> Result<u64, RecordError> {
        const FIELD: &[u8] = b"\"generation\":";
        // It stands behind the job's name and two numbers.
        let head = &bytes[..bytes.len().min(512)];
        let found = head.windows(FIELD.len()).position(|part| part == FIELD).map(|at| &head[at + FIELD.len()..]);
        let digits = found.and_then(|rest| rest.split(|byte| !byte.is_ascii_digit()).next());
        match digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok()) {
            Some(generation) if bytes.starts_with(b"checkpoint 1 ") => Ok(generation),
            _ => Ok(Self::brief(bytes)?.generation),
        }
    }

    /// Reads stored bytes without the state.
    pub fn brief(bytes: &[u8]) -> Result<Brief, RecordError> {
        let kind = Self::KIND;
        match open(kind, bytes)? {
            (1, body) => from_json(body).map_err(|source| RecordError::Body { kind, version: 1, source }),
            (found, _) => Err(RecordError::Newer { kind, found, newest: Self::VERSION }),
        }
    }

    /// What the keys of a job's checkpoints begin with; sorted by key they are sorted by step.
    pub fn prefix(job: &str) -> String {
        format!("checkpoint/{job}/")
    }

    /// The key of one step's.
    pub fn key_of(job: &str, step: u64) -> String {
        Self::prefix(job) + &padded(step)
    }
}

impl Record for Checkpoint {
    const KIND: &'static str = "checkpoint";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::key_of(&self.job, self.step)
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        match version {
            1 => from_json(body),
            _ => Err(BadBody::Version),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip, state};
    use super::*;

    fn checkpoint(job: &str, step: u64, n: u64) -> Checkpoint {
        Checkpoint {
            job: job.into(),
            step,
            data_step: 120,
            generation: 3,
            state: state(n),
            path: Some("runs/vision/model-30.pt".into()),
            dataset: None,
            revision: Some("4f0c2d1".into()),
            committed_ms: 1_790_000_000_000,
        }
    }

    #[test]
    fn golden_bytes() {
        let checkpoint = checkpoint("vision", 30, 30720);
        check(&checkpoint, "checkpoint/vision/00000000000000000030", golden!("checkpoint.1"));
        assert!(checkpoint.encode().len() < 700);
        let brief = Checkpoint::brief(&checkpoint.encode()).unwrap();
        assert_eq!((brief.step, brief.data_step, brief.generation), (30, 120, 3));
        assert_eq!((brief.path, brief.dataset, brief.cursor), (checkpoint.path.clone(), None, checkpoint.state.cursor));
        let newer = super::super::seal("checkpoint", 2, b"");
        assert!(matches!(Checkpoint::brief(&newer), Err(RecordError::Newer { found: 2, .. })));
        assert_eq!(Checkpoint::generation_of(&checkpoint.encode()).unwrap(), 3);
        assert!(matches!(Checkpoint::generation_of(&newer), Err(RecordError::Newer { found: 2, .. })));
    }

    proptest! {
        #[test]
        fn any_round_trips(job in name(), step: u64, n in 0..u64::MAX / 2, path: Option<String>) {
            round_trip(&Checkpoint { path, ..checkpoint(&job, step, n) });
        }

        #[test]
        fn keys_are_in_the_order_of_steps(a: u64, b: u64) {
            prop_assert_eq!(Checkpoint::key_of("j", a).cmp(&Checkpoint::key_of("j", b)), a.cmp(&b));
        }
    }
}
