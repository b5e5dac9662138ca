//! `run/<job>/<generation>`: one attempt of a job, and where in the data it starts.
//!
//! Rank 0's first act. The other ranks wait for the record of their own attempt and start at its state.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, padded, state_json, to_json};
use crate::State;

/// What a run started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StartedFrom {
    /// The beginning of the data.
    Beginning,
    /// A checkpoint of this job.
    Checkpoint {
        /// Its step.
        step: u64,
    },
    /// A checkpoint that somebody rewound the job to.
    Rewind {
        /// Its step.
        step: u64,
    },
    /// A state that the caller brought.
    State,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The job.
    pub job: String,
    /// The writer's generation, which is this run's number.
    pub generation: u64,
    /// The launcher's name of the attempt, the same on all its ranks; empty where nothing told.
    pub attempt: String,
    /// What it started from.
    pub from: StartedFrom,
    /// Generation of the run that made the checkpoint that it started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    /// Steps of data before its start, counted over the job's whole line.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub data_step: u64,
    /// Where it started.
    #[serde(with = "state_json")]
    pub state: State,
    /// The dataset version read, as `name@vN`; `None` for a bare topic.
    pub dataset: Option<String>,
    /// Number of ranks.
    pub world: u32,
    /// Places of one step.
    pub batch: u32,
    /// Revision of the training code, if told.
    pub revision: Option<String>,
    /// Machine of rank 0.
    pub host: String,
    /// Process of rank 0.
    pub pid: u32,
    /// What tells that process from every other, if the system says: see the job module of the feeder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Version of forebay.
    pub forebay: String,
    /// When, in milliseconds since 1970.
    pub started_ms: u64,
}

impl Run {
    /// What the keys of a job's runs begin with.
    pub fn prefix(job: &str) -> String {
        format!("run/{job}/")
    }

    /// The key of one run's.
    pub fn key_of(job: &str, generation: u64) -> String {
        Self::prefix(job) + &padded(generation)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record for Run {
    const KIND: &'static str = "run";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::key_of(&self.job, self.generation)
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

    fn run(job: String, generation: u64, from: StartedFrom) -> Run {
        Run {
            job,
            generation,
            attempt: "torchelastic-77-0".into(),
            from,
            parent: None,
            data_step: 0,
            state: state(40),
            dataset: Some("digits-clean@v1".into()),
            world: 4,
            batch: 256,
            revision: None,
            host: "node-1".into(),
            pid: 4242,
            process: None,
            forebay: "0.1.0".into(),
            started_ms: 1_790_000_000_000,
        }
    }

    #[test]
    fn golden_bytes() {
        let run = run("vision".into(), 3, StartedFrom::Checkpoint { step: 30 });
        check(&run, "run/vision/00000000000000000003", golden!("run.1"));
    }

    #[test]
    fn a_run_with_a_changed_state_is_refused() {
        let text = String::from_utf8(run("vision".into(), 3, StartedFrom::State).body()).unwrap();
        assert!(Run::parse(1, text.as_bytes()).is_ok());
        assert!(Run::parse(1, text.replace("\"seed\":7", "\"seed\":8").as_bytes()).is_err());
        assert!(Run::parse(1, text.replace("\"pid\"", "\"other\"").as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_round_trips(job in name(), generation: u64, step: u64, kind in 0..4, attempt: String) {
            let from = match kind {
                0 => StartedFrom::Beginning,
                1 => StartedFrom::Checkpoint { step },
                2 => StartedFrom::Rewind { step },
                _ => StartedFrom::State,
            };
            let (parent, process) = (generation.checked_sub(1), (kind == 1).then(|| "a/b/7/9".to_string()));
            round_trip(&Run { attempt, parent, data_step: step, process, ..run(job, generation, from) });
        }
    }
}
