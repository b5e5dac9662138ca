//! The plan's promises, checked against a slow transcription of its definition.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::permute::{ChunkOrder, count, mix, shuffle};
use super::*;

mod measures;
mod order;
mod reference;
mod schedules;

fn key(shuffle: bool, lanes: u32, chunk: u32, pool: u32) -> PlanKey {
    PlanKey { version: PLAN_VERSION, shuffle, seed: 7, lanes, chunk, pool }
}

fn line(key: &PlanKey, total: u64) -> Line {
    Line::new(key, vec![total].into(), 0).unwrap()
}

fn share(rank: u32, world: u32, batch: u32) -> Share {
    Share { rank, world, batch, tail: Tail::Pad, drop_last: false }
}

fn all_units(schedule: &mut Schedule) -> Vec<Unit> {
    let (mut units, mut unit) = (Vec::new(), Unit::default());
    while schedule.next_into(&mut unit) {
        units.push(unit.clone());
    }
    assert!(!schedule.next_into(&mut unit), "the end stays the end");
    units
}
