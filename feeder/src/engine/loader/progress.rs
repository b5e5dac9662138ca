//! How far a loader has come: what was handed out, and the state that says so.

use cursorstore::{Cursor, State};

use super::{Loader, Phase};
use crate::error::{Error, Result};

impl Loader {
    /// Whether the cursor stands at its epoch's end.
    pub fn has_ended(&self) -> bool {
        self.steps_from(self.cursor.n) == 0
    }

    /// Whether no batch was handed out since the last `begin`, `load` or `set_epoch`.
    pub fn is_untouched(&self) -> bool {
        self.cursor == self.begun
    }

    /// Whether `load` or `set_epoch` moved the cursor to where no `begin` has followed yet.
    pub fn is_fresh(&self) -> bool {
        matches!(self.phase, Phase::Fresh { .. })
    }

    /// Batches that this iteration has handed out.
    pub fn handed_out(&self) -> u64 {
        (self.cursor.n - self.begun.n.min(self.cursor.n)).div_ceil(u64::from(self.settings.global_batch))
    }

    /// The state at the cursor, or after `consumed` batches of this iteration.
    pub fn state(&self, consumed: Option<u64>) -> Result<State> {
        let cursor = match consumed {
            None => self.cursor,
            Some(batches) => {
                let n = batches.checked_mul(u64::from(self.settings.global_batch));
                let n = n.and_then(|n| n.checked_add(self.begun.n)).map(|n| n.min(self.samples()));
                match n {
                    Some(n) if n <= self.cursor.n && self.begun.epoch == self.cursor.epoch => {
                        Cursor { epoch: self.begun.epoch, n }
                    }
                    _ => {
                        return Err(Error::invalid(format!(
                            "consumed counts batches that this iteration has handed out: consumed={batches} handed_out={}",
                            self.handed_out()
                        )));
                    }
                }
            }
        };
        let (topic, key) = (self.dataset.name().clone(), self.key.clone());
        Ok(match self.dataset.pinned() {
            Some(pinned) => State::pinned(topic, pinned.clone(), key, cursor),
            None => State::new(topic, self.dataset.windows().to_vec(), key, cursor)
                .under_schema(self.dataset.schema_number()),
        })
    }

    /// Sets the cursor back to after `consumed` batches of this iteration, as if the others had never been taken.
    pub fn give_back(&mut self, consumed: u64) -> Result<()> {
        self.cursor = self.state(Some(consumed))?.cursor;
        Ok(())
    }
}
