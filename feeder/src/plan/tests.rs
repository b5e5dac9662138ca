//! The plan's promises, checked against a slow transcription of its definition.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::permute::{ChunkOrder, mix, shuffle};
use super::*;

mod reference;
mod schedules;
