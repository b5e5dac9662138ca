//! `window/<subscription>/<number>`: what one window of a live subscription holds, sealed for ever.

use serde::{Deserialize, Serialize};

use super::{BadBody, Record, from_json, padded, to_json};
use crate::Window;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedWindow {
    /// The subscription.
    pub subscription: String,
    /// Its place among the subscription's windows, from 0 without gaps.
    pub number: u64,
    /// The sealer's generation.
    pub generation: u64,
    /// Samples of all windows before.
    pub samples_before: u64,
    /// Samples of this one.
    pub samples: u64,
    /// The records.
    pub window: Window,
    /// When, in milliseconds since 1970.
    pub sealed_ms: u64,
}

impl SealedWindow {
    /// What the keys of a subscription's windows begin with; sorted by key they are in order.
    pub fn prefix(subscription: &str) -> String {
        format!("window/{subscription}/")
    }

    fn check(&self) -> Result<(), BadBody> {
        let mut samples = 0u64;
        for extent in &self.window.extents {
            let count = extent.to.checked_sub(extent.from);
            let sum = count.and_then(|count| samples.checked_add(count));
            samples = sum.ok_or_else(|| BadBody::Inconsistent("an extent ends before it begins".into()))?;
        }
        if samples != self.samples || self.samples_before.checked_add(samples).is_none() {
            let what = format!("the extents do not have the samples: samples={} extents={samples}", self.samples);
            return Err(BadBody::Inconsistent(what));
        }
        Ok(())
    }
}

impl Record for SealedWindow {
    const KIND: &'static str = "window";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        Self::prefix(&self.subscription) + &padded(self.number)
    }

    fn body(&self) -> Vec<u8> {
        to_json(self)
    }

    fn parse(version: u32, body: &[u8]) -> Result<Self, BadBody> {
        let record: Self = match version {
            1 => from_json(body)?,
            _ => return Err(BadBody::Version),
        };
        record.check()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{check, golden, name, round_trip};
    use super::*;
    use crate::{Extent, Incarnation};

    fn window(subscription: &str, number: u64, counts: &[u32]) -> SealedWindow {
        let extents = counts.iter().zip(0..).map(|(&count, segment)| Extent {
            segment,
            incarnation: Incarnation(0xabc),
            from: 100,
            to: 100 + u64::from(count),
        });
        SealedWindow {
            subscription: subscription.into(),
            number,
            generation: 4,
            samples_before: 10_000,
            samples: counts.iter().copied().map(u64::from).sum(),
            window: Window { extents: extents.collect() },
            sealed_ms: 1_790_000_000_000,
        }
    }

    #[test]
    fn golden_bytes() {
        check(&window("live", 7, &[40, 2]), "window/live/00000000000000000007", golden!("window.1"));
    }

    #[test]
    fn a_window_that_does_not_add_up_is_refused() {
        let mut wrong = window("live", 7, &[40, 2]);
        wrong.samples = 41;
        assert!(SealedWindow::decode(&wrong.encode()).is_err());
        let mut wrong = window("live", 7, &[40, 2]);
        wrong.window.extents[0].to = 0;
        assert!(SealedWindow::decode(&wrong.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_round_trips(subscription in name(), number: u64, counts in prop::collection::vec(any::<u32>(), 0..20)) {
            round_trip(&window(&subscription, number, &counts));
        }
    }
}
