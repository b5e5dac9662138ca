//! Running counts of a loader, by the names that Python and the command line show.

/// Running counts of a loader.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Batches handed out.
    pub batches: u64,
    /// Rows handed out.
    pub samples: u64,
    /// Bytes handed out.
    pub bytes: u64,
    /// Time spent waiting in `next`, in ns.
    pub stall_ns: u64,
    /// Batches copied to ordinary memory because the program held the slots.
    pub overflow_batches: u64,
    /// Bytes of such batches alive now.
    pub overflow_bytes: u64,
    /// Slots leased now.
    pub leased_slots: u64,
    /// Slots of the slab.
    pub slots: u64,
    /// Bytes of the slab.
    pub slab_bytes: u64,
    /// Reads made.
    pub reads: u64,
    /// Bytes read, gaps included.
    pub read_bytes: u64,
    /// Bytes copied from scratch memory into slots: small rows, what is checked, data read past the page cache.
    pub copied_bytes: u64,
    /// System calls of the readers.
    pub syscalls: u64,
    /// Units (chunks) read.
    pub units: u64,
    /// Units of which anything was compared with its checksums.
    pub checked_units: u64,
    /// Bytes compared with their checksums.
    pub checked_bytes: u64,
    /// Times that a thread found the plan's lock held by another one.
    pub lock_waits: u64,
    /// Records masked or replaced.
    pub bad_records: u64,
}

impl Stats {
    /// The counts by name.
    pub fn named(&self) -> [(&'static str, u64); 18] {
        let Self {
            batches,
            samples,
            bytes,
            stall_ns,
            overflow_batches,
            overflow_bytes,
            leased_slots,
            slots,
            slab_bytes,
            reads,
            read_bytes,
            copied_bytes,
            syscalls,
            units,
            checked_units,
            checked_bytes,
            lock_waits,
            bad_records,
        } = *self;
        [
            ("batches", batches),
            ("samples", samples),
            ("bytes", bytes),
            ("stall_ns", stall_ns),
            ("overflow_batches", overflow_batches),
            ("overflow_bytes", overflow_bytes),
            ("leased_slots", leased_slots),
            ("slots", slots),
            ("slab_bytes", slab_bytes),
            ("reads", reads),
            ("read_bytes", read_bytes),
            ("copied_bytes", copied_bytes),
            ("syscalls", syscalls),
            ("units", units),
            ("checked_units", checked_units),
            ("checked_bytes", checked_bytes),
            ("lock_waits", lock_waits),
            ("bad_records", bad_records),
        ]
    }
}
