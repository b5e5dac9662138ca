//! The slab itself: made by the trainer, handed to whatever fills it, split into its two sides.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::bell::Bells;
use crate::error::SlabError;
use crate::filler::Filler;
use crate::layout::{Layout, MAX_SLAB_BYTES, RETURNED_AT, Shape};
use crate::map::Mapping;
use crate::room;
use crate::shared::Shared;
use crate::taker::Taker;

/// One rank's memory for batches. Clones are the same slab; its memory lives until the last clone, side and lease are
/// gone.
#[derive(Clone, Debug)]
pub struct Slab {
    shared: Arc<Shared>,
}

impl Slab {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes a slab: memory that is present from the start and sealed. Refuses, with the bytes needed, what the machine
    /// or a limit does not allow.
    pub fn create(shape: Shape) -> Result<Self, SlabError> {
        let slab = Self::create_growing(shape)?;
        while slab.grow()? {}
        Ok(slab)
    }

    /// As [`create`](Self::create), but the memory of slots becomes present only by [`grow`](Self::grow), until when the filler
    /// does not get them: much of it takes long. What the machine does not allow is refused here; memory that others take
    /// meanwhile is missed by `grow`. Not to be handed to another process before it is whole.
    pub fn create_growing(shape: Shape) -> Result<Self, SlabError> {
        let layout = Layout::of(shape)?;
        room::check(layout.total_bytes as u64)?;
        Ok(Self { shared: Arc::new(Shared::create(layout, Bells::new()?)?) })
    }

    /// Makes a further portion of the memory present and gives the slots that are whole with it to the filler, which is woken.
    /// False if all portions are taken up. For any thread; several work side by side.
    pub fn grow(&self) -> Result<bool, SlabError> {
        self.shared.grow()
    }

    /// Bytes of the slab, from its beginning on, that are present.
    pub fn present_bytes(&self) -> usize {
        self.shared.present_bytes()
    }

    /// Maps a slab made elsewhere, after checking its seals, size, version and shape; with bells of its own, which only
    /// this mapping's sides hear. Its maker's bells come by [`Slab::from_parts`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, SlabError> {
        Self::from_parts(fd, Bells::new()?)
    }

    /// Maps a slab made elsewhere, together with its maker's bells.
    pub fn from_parts(fd: OwnedFd, bells: Bells) -> Result<Self, SlabError> {
        let map = Mapping::adopt(fd, RETURNED_AT, MAX_SLAB_BYTES)?;
        Ok(Self { shared: Arc::new(Shared::adopt(map, bells)?) })
    }

    /// The memfd, to be handed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.map().fd()
    }

    /// The bells, to be handed over beside the memfd.
    pub fn bells(&self) -> &Bells {
        self.shared.bells()
    }

    /// Number of slots, and bytes of each after rounding.
    pub fn shape(&self) -> Shape {
        self.shared.layout().shape
    }

    /// Bytes of the whole slab, header and rings included.
    pub fn bytes(&self) -> usize {
        self.shared.layout().total_bytes
    }

    /// Address and bytes of one slot; valid as long as the slab is. Who may touch it when: see the crate.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn slot(&self, slot: u32) -> (*mut u8, usize) {
        self.shared.slot(slot)
    }

    /// Address and bytes of all slots' memory: slot s begins at `s * slot_bytes`.
    pub fn region(&self) -> (*mut u8, usize) {
        let layout = self.shared.layout();
        let bytes = layout.total_bytes - layout.slots_at;
        (self.shared.map().address(layout.slots_at, bytes), bytes)
    }

    /// Both sides, for use in one process.
    ///
    /// # Panics
    /// If a side was taken before, here or by another process.
    pub fn split(self) -> (Filler, Taker) {
        match (self.filler(), self.taker()) {
            (Ok(filler), Ok(taker)) => (filler, taker),
            (Err(error), _) | (_, Err(error)) => panic!("{error}"),
        }
    }

    /// The filling side, once.
    pub fn filler(&self) -> Result<Filler, SlabError> {
        Filler::claim(Arc::clone(&self.shared))
    }

    /// The taking side, once.
    pub fn taker(&self) -> Result<Taker, SlabError> {
        Taker::claim(Arc::clone(&self.shared))
    }
}
