//! The cursor and the self-contained state that a loader gives and takes (`state_dict`, `load_state_dict`).
//!
//! A state says which records are trained on (the topic, per segment incarnation, from, to), in which order (the plan's
//! numbers), and how far training has come: `(epoch, n)`, n = places consumed of that epoch. It is a few hundred bytes of
//! JSON, the same on every rank, and independent of world size and batch size. The records of a bare topic stand in it;
//! those of a dataset version, which may be a million extents, are named by it. A state that cannot be honoured is refused; training never silently starts elsewhere.

use serde::{Deserialize, Serialize};

use crate::position::TopicName;
use crate::window::{Window, WindowList};

/// Version of the encoding written by this build.
pub const STATE_VERSION: u32 = 1;
/// Largest state read, in bytes: some 100,000 extents.
pub const STATE_BYTES_MAX: usize = 16 << 20;

/// How far training has come on one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Places of this epoch consumed by the trainer.
    pub n: u64,
}

/// The numbers that fix the order of a line, together with its windows. Equal keys and windows give equal orders.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanKey {
    /// Version of the order itself: a change of the permutation makes a new one.
    pub version: u32,
    /// Whether places are shuffled; without, `seed`, `lanes`, `chunk` and `pool` do not touch the order.
    pub shuffle: bool,
    /// Seed of the shuffle.
    pub seed: u64,
    /// L: lanes drawn on evenly.
    pub lanes: u32,
    /// c: consecutive samples read together.
    pub chunk: u32,
    /// G: chunks of one lane that are mixed.
    pub pool: u32,
}

/// The dataset version that a state is made over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedRef {
    /// As users name it: `name@vN`.
    pub version: String,
    /// The version's fingerprint, 32 hex digits: one unpinned and made again under this name is another one.
    pub fingerprint: String,
    /// Its samples.
    pub samples: u64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this encoding.
    pub version: u32,
    /// The topic read.
    pub topic: TopicName,
    /// The dataset version trained on; `None` for a bare topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<PinnedRef>,
    /// The records trained on, fixed when the job starts; none where `dataset` says which.
    pub windows: Vec<Window>,
    /// Number of the schema version under which records of a bare topic are read; that of a dataset version stands in it.
    #[serde(default = "first_schema", skip_serializing_if = "is_first_schema")]
    pub schema: u32,
    /// The order.
    pub plan: PlanKey,
    /// How far.
    pub cursor: Cursor,
    /// Digest of topic, dataset, windows and plan, which must agree with them: a state edited by hand is noticed.
    pub fingerprint: String,
}

/// Why a state is not taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StateError {
    #[error("not a state of a forebay loader: bytes={bytes}")]
    Syntax { bytes: usize, source: serde_json::Error },
    #[error("the state is larger than any state: bytes={bytes} bytes_max={STATE_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("the state has a newer format than this build reads: version={found} newest={STATE_VERSION}")]
    Newer { found: u32 },
    #[error("there is no such version of a state: version={found} oldest=1 newest={STATE_VERSION}")]
    NoVersion { found: u32 },
    #[error("the state does not add up, it was changed after it was made: {what}")]
    Inconsistent { what: String },
}

impl State {
    /// A state over records of a bare topic; the fingerprint is computed.
    pub fn new(topic: TopicName, windows: Vec<Window>, plan: PlanKey, cursor: Cursor) -> Self {
        Self {
            version: STATE_VERSION,
            topic,
            dataset: None,
            windows,
            schema: 1,
            plan,
            cursor,
            fingerprint: String::new(),
        }
        .sealed()
    }

    /// A state over a dataset version of records of `topic`.
    pub fn pinned(topic: TopicName, dataset: PinnedRef, plan: PlanKey, cursor: Cursor) -> Self {
        let (dataset, windows) = (Some(dataset), Vec::new());
        Self { version: STATE_VERSION, topic, dataset, windows, schema: 1, plan, cursor, fingerprint: String::new() }
            .sealed()
    }

    /// The same over records that are read under this schema version of their topic, counted from 1.
    #[must_use]
    pub fn under_schema(self, schema: u32) -> Self {
        Self { schema, ..self }.sealed()
    }

    fn sealed(mut self) -> Self {
        self.fingerprint = fingerprint(&self);
        self
    }

    /// Samples of an epoch.
    pub fn samples(&self) -> u64 {
        match &self.dataset {
            Some(dataset) => dataset.samples,
            None => WindowList::new(&self.windows).total(),
        }
    }

    /// The JSON form.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("a state is plain data")
    }

    /// Reads and checks the JSON form: version, extents in order, cursor within the line, fingerprint.
    pub fn decode(text: &str) -> Result<Self, StateError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let bytes = text.len();
        if bytes > STATE_BYTES_MAX {
            return Err(StateError::TooLarge { bytes });
        }
        let syntax = |source| StateError::Syntax { bytes, source };
        let Versioned { version } = serde_json::from_str(text).map_err(syntax)?;
        if version > STATE_VERSION {
            return Err(StateError::Newer { found: version });
        }
        if version == 0 {
            return Err(StateError::NoVersion { found: version });
        }
        let state: Self = serde_json::from_str(text).map_err(syntax)?;
        state.check()?;
        Ok(state)
    }

    fn check(&self) -> Result<(), StateError> {
        let wrong = |what: String| Err(StateError::Inconsistent { what });
        let mut total = 0u64;
        for extent in self.windows.iter().flat_map(|window| &window.extents) {
            let count = extent.to.checked_sub(extent.from);
            match count.and_then(|count| total.checked_add(count)) {
                Some(sum) => total = sum,
                None => return wrong(format!("extent ends before it begins: {}..{}", extent.from, extent.to)),
            }
        }
        if self.dataset.is_some() && !self.windows.is_empty() {
            return wrong("it names a dataset version and windows besides".into());
        }
        if self.schema == 0 || (self.dataset.is_some() && self.schema != 1) {
            return wrong(format!("no such schema version: schema={}", self.schema));
        }
        if self.cursor.n > self.samples() {
            let samples = self.samples();
            return wrong(format!("cursor past the end of the epoch: n={} samples={samples}", self.cursor.n));
        }
        if self.plan.lanes == 0 || self.plan.chunk == 0 || self.plan.pool == 0 {
            return wrong("lanes, chunk and pool are at least 1".into());
        }
        if self.fingerprint != fingerprint(self) {
            return wrong(format!("fingerprint={:?}", self.fingerprint));
        }
        Ok(())
    }
}

fn first_schema() -> u32 {
    1
}

fn is_first_schema(schema: &u32) -> bool {
    *schema == 1
}

/// 128-bit digest of what fixes an order, as 32 hex digits. Not cryptographic: it finds mistakes, not attacks.
fn fingerprint(state: &State) -> String {
    let State { topic, windows, plan, .. } = state;
    let text = match &state.dataset {
        None if state.schema > 1 => serde_json::to_string(&(topic, windows, plan, state.schema)),
        None => serde_json::to_string(&(topic, windows, plan)),
        Some(dataset) => serde_json::to_string(&(topic, dataset, plan)),
    }
    .expect("plain data");
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::position::Incarnation;
    use crate::window::Extent;

    fn state() -> State {
        let extent = Extent { segment: 0, incarnation: Incarnation(7), from: 0, to: 100 };
        let plan = PlanKey { version: 1, shuffle: true, seed: 7, lanes: 64, chunk: 128, pool: 4 };
        State::new("digits".parse().unwrap(), vec![Window { extents: vec![extent] }], plan, Cursor { epoch: 2, n: 40 })
    }

    #[test]
    fn golden_bytes() {
        let golden = concat!(
            r#"{"version":1,"topic":"persistent://public/default/digits","windows":[{"extents":[{"segment":0,"#,
            r#""incarnation":"00000000000000000000000000000007","from":0,"to":100}]}],"plan":{"version":1,"shuffle":true,"#,
            r#""seed":7,"lanes":64,"chunk":128,"pool":4},"cursor":{"epoch":2,"n":40},"fingerprint":""#
        );
        assert!(state().encode().starts_with(golden), "{}", state().encode());
        assert!(state().encode().len() < 500);
        assert_eq!(State::decode(&state().encode()).unwrap(), state());
    }

    #[test]
    fn golden_bytes_over_a_dataset_version() {
        let State { topic, plan, cursor, .. } = state();
        let dataset = PinnedRef { version: "clean@v3".into(), fingerprint: "0".repeat(31) + "a", samples: 100 };
        let pinned = State::pinned(topic, dataset, plan, cursor);
        let golden = concat!(
            r#"{"version":1,"topic":"persistent://public/default/digits","dataset":{"version":"clean@v3","fingerprint":"#,
            r#""0000000000000000000000000000000a","samples":100},"windows":[],"plan":{"version":1,"shuffle":true,"#,
            r#""seed":7,"lanes":64,"chunk":128,"pool":4},"cursor":{"epoch":2,"n":40},"fingerprint":""#
        );
        let text = pinned.encode();
        assert!(text.starts_with(golden), "{text}");
        assert_eq!(State::decode(&text).unwrap(), pinned);
        for (from, to) in [("clean@v3", "clean@v4"), ("\"samples\":100", "\"samples\":99"), ("\"n\":40", "\"n\":101")] {
            let edited = text.replacen(from, to, 1);
            assert!(matches!(State::decode(&edited), Err(StateError::Inconsistent { .. })), "{edited}");
        }
        let both = State { dataset: pinned.dataset, ..state() };
        assert!(matches!(State::decode(&both.encode()), Err(StateError::Inconsistent { .. })));
    }

    #[test]
    fn golden_bytes_under_a_later_schema() {
        let later = state().under_schema(3);
        let text = later.encode();
        assert!(text.contains(r#""to":100}]}],"schema":3,"plan":{"#), "{text}");
        assert_eq!(State::decode(&text).unwrap(), later);
        assert_ne!(later.fingerprint, state().fingerprint);
        assert_eq!(later.under_schema(1), state(), "the first is not written");
        for (from, to) in [("\"schema\":3", "\"schema\":2"), ("\"schema\":3", "\"schema\":0"), ("\"schema\":3,", "")] {
            let edited = text.replacen(from, to, 1);
            assert!(matches!(State::decode(&edited), Err(StateError::Inconsistent { .. })), "{edited}");
        }
    }

    #[test]
    fn newer_and_edited_states_are_refused() {
        let text = state().encode();
        let newer = text.replacen("\"version\":1", "\"version\":2", 1);
        assert!(matches!(State::decode(&newer), Err(StateError::Newer { found: 2 })));
        for (from, to) in [("\"seed\":7", "\"seed\":8"), ("\"to\":100", "\"to\":99"), ("\"n\":40", "\"n\":101")] {
            let edited = text.replacen(from, to, 1);
            assert!(matches!(State::decode(&edited), Err(StateError::Inconsistent { .. })), "{edited}");
        }
        let moved = text.replacen("\"n\":40", "\"n\":41", 1);
        assert_eq!(State::decode(&moved).unwrap().cursor.n, 41);
        assert!(matches!(State::decode("{}"), Err(StateError::Syntax { .. })));
    }

    #[test]
    fn words_that_no_build_writes_are_refused() {
        let text = state().encode();
        let zero = text.replacen("\"version\":1", "\"version\":0", 1);
        assert!(matches!(State::decode(&zero), Err(StateError::NoVersion { found: 0 })));
        let places =
            [r#"{"version":1,"#, r#"{"extents":"#, r#"{"segment":"#, r#"{"version":1,"shuffle":"#, r#"{"epoch":"#];
        for place in places {
            assert_eq!(text.matches(place).count(), if place == places[0] { 2 } else { 1 }, "{place}");
            let more = text.replacen(place, &format!(r#"{{"more":1,{}"#, &place[1..]), 1);
            assert!(matches!(State::decode(&more), Err(StateError::Syntax { .. })), "{more}");
        }
    }

    proptest! {
        #[test]
        fn cut_and_changed_states_never_panic(at in 0usize..400, byte in any::<u8>()) {
            let text = state().encode();
            let _ = State::decode(&text[..at.min(text.len())]);
            let mut bytes = text.into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(text) = String::from_utf8(bytes) {
                let _ = State::decode(&text);
            }
        }
    }
}
