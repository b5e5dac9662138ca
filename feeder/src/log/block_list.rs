//! The blocks of a segment, in order of offsets, in as little memory as they differ.
//!
//! A segment is mostly blocks of the same size, one behind the other: such a [`Stretch`] is kept as its first block and what
//! each adds to the one before. So a topic of a hundred million blocks is held in memory like one of a hundred, and finding
//! a row is arithmetic. Whatever does not go on like that begins another stretch.

use super::block::BlockRef;

/// See the module. Made by `collect`, of blocks in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockList {
    stretches: Vec<Stretch>,
}

/// Blocks that follow each other evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// The number of the first one in the list.
    number: usize,
    count: usize,
    first: BlockRef,
    /// Bytes from the header of one to that of the next; 0 as long as there is one only.
    stride: u64,
}

impl Stretch {
    fn get(&self, at: usize) -> BlockRef {
        let (rows, bytes) = (at as u64 * u64::from(self.first.rows), at as u64 * self.stride);
        let BlockRef { base, rows: each, header, body } = self.first;
        BlockRef { base: base + rows, rows: each, header: header + bytes, body: body + bytes }
    }

    /// Offset after its last row.
    fn end(&self) -> u64 {
        self.first.base + self.count as u64 * u64::from(self.first.rows)
    }

    /// Takes in `block` if it goes on evenly.
    fn take(&mut self, block: &BlockRef) -> bool {
        let Some(bytes) = block.header.checked_sub(self.get(self.count - 1).header) else { return false };
        let stride = if self.count == 1 { bytes } else { self.stride };
        let next = Self { stride, ..self.clone() }.get(self.count);
        if stride == 0 || next != *block {
            return false;
        }
        (self.stride, self.count) = (stride, self.count + 1);
        true
    }
}

impl BlockList {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.stretches.last().map_or(0, |last| last.number + last.count)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// The block of that number, from 0 on.
    pub fn get(&self, number: usize) -> Option<BlockRef> {
        let after = self.stretches.partition_point(|stretch| stretch.number + stretch.count <= number);
        self.stretches.get(after).map(|stretch| stretch.get(number - stretch.number))
    }

    /// The last block.
    pub fn last(&self) -> Option<BlockRef> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = BlockRef> + '_ {
        self.stretches.iter().flat_map(|stretch| (0..stretch.count).map(|at| stretch.get(at)))
    }

    /// Number of the first block that ends after `offset`; that of all blocks if there is none.
    pub(super) fn after(&self, offset: u64) -> usize {
        let after = self.stretches.partition_point(|stretch| stretch.end() <= offset);
        self.stretches.get(after).map_or(self.len(), |stretch| {
            let rows = u64::from(stretch.first.rows.max(1));
            stretch.number + (offset.saturating_sub(stretch.first.base) / rows) as usize
        })
    }
}

impl FromIterator<BlockRef> for BlockList {
    fn from_iter<I: IntoIterator<Item = BlockRef>>(blocks: I) -> Self {
        let mut list = Self::default();
        for (number, block) in blocks.into_iter().enumerate() {
            if !list.stretches.last_mut().is_some_and(|last| last.take(&block)) {
                list.stretches.push(Stretch { number, count: 1, first: block, stride: 0 });
            }
        }
        list.stretches.shrink_to_fit();
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the blocks themselves: rows that stay the same for a while, odd headers, rows lost in between.
        #[test]
        fn a_list_is_its_blocks(parts in prop::collection::vec((1u32..5, 1u64..4, 1usize..6, 0u64..3), 0..12)) {
            let (mut base, mut at, mut blocks) = (70, 4096, Vec::new());
            for (rows, pages, count, lost) in parts {
                for _ in 0..count {
                    let body = at + pages * 4096;
                    blocks.push(BlockRef { base, rows, header: at, body });
                    (base, at) = (base + u64::from(rows), body + u64::from(rows) * 4096);
                }
                (base, at) = (base + lost, at + lost * 4096);
            }
            let list: BlockList = blocks.iter().copied().collect();
            prop_assert_eq!(list.len(), blocks.len());
            prop_assert_eq!(list.is_empty(), blocks.is_empty());
            prop_assert_eq!(list.last(), blocks.last().copied());
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), blocks.clone());
            for number in 0..=blocks.len() {
                prop_assert_eq!(list.get(number), blocks.get(number).copied());
            }
            for offset in 0..base + 3 {
                prop_assert_eq!(list.after(offset), blocks.partition_point(|block| block.end() <= offset), "{}", offset);
            }
        }
    }

    #[test]
    fn even_blocks_need_one_stretch() {
        let even =
            (0..100_000).map(|n| BlockRef { base: n * 64, rows: 64, header: n * 270_336, body: n * 270_336 + 4096 });
        let list: BlockList =
            even.chain([BlockRef { base: 6_400_000, rows: 3, header: 1 << 40, body: (1 << 40) + 4096 }]).collect();
        assert_eq!((list.stretches.len(), list.len()), (2, 100_001));
    }
}
