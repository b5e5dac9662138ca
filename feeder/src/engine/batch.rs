//! A batch as it is handed to the trainer: columns in the slot itself, or copies in ordinary memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::MutableBuffer;
use slab::Filled;

use super::feed::Incident;
use super::layout::{COLUMN_ALIGN_BYTES, SlotLayout};
use super::runner::Runner;
use crate::schema::{Column, Dtype};

/// Columns of fewer bytes a batch, all of them together, are handed out as ordinary memory: a copy of that size costs less
/// than holding a slot. Many small columns that together have more stay in the slot.
pub const SMALL_COLUMNS_BYTES: usize = 64 << 10;
/// Name of the column that marks rows which are samples, not repeats or holes.
pub const MASK: &str = "mask";

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
    pub shape: Arc<[i64]>,
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

/// The least bytes of a column, in a batch of `rows` rows, that are worth a lease.
pub(super) fn least_large_bytes(layout: &SlotLayout, rows: u32) -> usize {
    let sizes = layout.columns.iter().map(|placed| placed.row_bytes * rows as usize);
    let small: usize = sizes.filter(|&bytes| bytes < SMALL_COLUMNS_BYTES).sum();
    if small < SMALL_COLUMNS_BYTES { SMALL_COLUMNS_BYTES } else { 0 }
}

/// Bytes of a batch of `rows` rows in columns of at least `least` bytes.
pub(super) fn large_bytes(layout: &SlotLayout, rows: u32, least: usize) -> usize {
    let sizes = layout.columns.iter().map(|placed| placed.row_bytes * rows as usize);
    sizes.filter(|&bytes| bytes >= least).sum()
}

/// The columns of a filled slot: those of at least `least` bytes in place, small ones copied to memory of the batch's own. All
/// are copied if the trainer holds too many slots (`crowded`), each to memory of its own: who keeps one of them keeps only that.
/// `mask`: how many rows are samples, and what happened to some of them.
pub(super) fn columns(
    runner: &Runner,
    layout: &SlotLayout,
    filled: Filled,
    (least, crowded): (usize, bool),
    mask: Option<(u32, &[Incident])>,
) -> Vec<BatchColumn> {
    let rows = filled.rows as usize;
    let is_small = |bytes: usize| bytes < least && !crowded;
    let sizes = layout.columns.iter().map(|placed| placed.row_bytes * rows);
    let small: usize = sizes.filter(|&bytes| is_small(bytes)).map(aligned).sum();
    let mask_bytes = if mask.is_some() { rows } else { 0 };
    let mut ordinary = (small > 0 || mask.is_some()).then(|| Ordinary::new(small + mask_bytes, None));
    let memory = ordinary.as_mut().map_or(0, Ordinary::address);
    let (base, slot) = (filled.slot as usize * runner.slot_bytes, runner.slab.slot(filled.slot).0.expose_provenance());
    let slab = &runner.shared.slab;
    if let Some(ordinary) = &mut ordinary {
        let mut at = 0;
        for placed in &layout.columns {
            let bytes = placed.row_bytes * rows;
            if is_small(bytes) {
                slab.read(base + placed.offset, &mut ordinary.bytes()[at..at + bytes]);
                at += aligned(bytes);
            }
        }
        if let Some((valid, incidents)) = mask {
            let flags = &mut ordinary.bytes()[at..];
            flags[..valid as usize].fill(1);
            for incident in incidents.iter().filter(|incident| incident.masked) {
                flags[incident.row as usize] = 0;
            }
        }
    }
    let ordinary: Option<Owner> = ordinary.map(|ordinary| Arc::new(ordinary) as Owner);
    let lease: Owner = Arc::new(runner.taker.lease(filled.slot));
    let mut next = memory;
    let mut columns = Vec::with_capacity(layout.columns.len() + usize::from(mask.is_some()));
    for (placed, shape) in layout.columns.iter().zip(&runner.shapes) {
        let bytes = placed.row_bytes * rows;
        let (address, owner) = match &ordinary {
            Some(ordinary) if is_small(bytes) => {
                next += aligned(bytes);
                (next - aligned(bytes), ordinary.clone())
            }
            _ if crowded => {
                let mut own = Ordinary::new(bytes, Some(&runner.held));
                slab.read(base + placed.offset, own.bytes());
                (own.address(), Arc::new(own) as Owner)
            }
            _ => (slot + placed.offset, lease.clone()),
        };
        let shape = if shape[0] == rows as i64 { shape.clone() } else { shape_of(rows, &placed.column) };
        let (name, dtype) = (placed.name.clone(), placed.column.dtype);
        columns.push(BatchColumn { name, dtype, shape, address, bytes, owner });
    }
    if let (Some(ordinary), true) = (ordinary, mask.is_some()) {
        columns.push(BatchColumn {
            name: runner.mask_name.clone(),
            dtype: Dtype::Bool,
            shape: [rows as i64].into(),
            address: memory + small,
            bytes: rows,
            owner: ordinary,
        });
    }
    columns
}

/// The shape of `rows` rows of a column.
pub(super) fn shape_of(rows: usize, column: &Column) -> Arc<[i64]> {
    std::iter::once(rows as i64).chain(column.shape.iter().map(|&n| i64::from(n))).collect()
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(COLUMN_ALIGN_BYTES)
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
