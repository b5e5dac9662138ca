//! A batch as it is handed to the trainer: columns in the slot itself, or copies in ordinary memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::MutableBuffer;

use crate::schema::Dtype;

/// Keeps a column's memory alive. When the last clone is dropped, on whatever thread, the slot goes back or the memory
/// is freed.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// One column of a batch.
#[derive(Clone)]
pub struct BatchColumn {
    /// Name.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Rows first, then the shape of one value. C order, no gaps.
    pub shape: Vec<i64>,
    /// Address of the first byte, aligned to 64 bytes. Writable; no other batch has any of it while `owner` lives. Its
    /// provenance is exposed: `std::ptr::with_exposed_provenance_mut` makes a pointer of it.
    pub address: usize,
    /// Length.
    pub bytes: usize,
    /// Keeps the memory alive.
    pub owner: Owner,
}

/// A batch of one rank.
pub struct Batch {
    /// Epoch of the step.
    pub epoch: u64,
    /// First place of the step in its epoch.
    pub place: u64,
    /// Rows of this rank.
    pub rows: u32,
    /// Columns in the order asked for, then `mask` if there is one.
    pub columns: Vec<BatchColumn>,
}

/// Ordinary memory of one batch's columns, counted while it lives.
pub(super) struct Ordinary {
    /// Aligned to 64 bytes or more.
    memory: MutableBuffer,
    counted: Option<(Arc<AtomicU64>, u64)>,
}

impl Ordinary {
    /// `bytes` zeroed bytes; added to `held` while they live, if given.
    pub(super) fn new(bytes: usize, held: Option<&Arc<AtomicU64>>) -> Self {
        let counted = held.map(|held| {
            held.fetch_add(bytes as u64, Ordering::Relaxed);
            (held.clone(), bytes as u64)
        });
        Self { memory: MutableBuffer::from_len_zeroed(bytes), counted }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.memory.as_slice_mut()
    }

    pub(super) fn address(&mut self) -> usize {
        self.memory.as_mut_ptr().expose_provenance()
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        if let Some((held, bytes)) = &self.counted {
            held.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}
