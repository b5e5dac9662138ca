//! What an ingest reports while it runs; the command line draws it, others may ignore it.

use super::plan::Plan;

/// Parts of an ingest that take time, all counted in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Files are hashed: who they are.
    Identify,
    /// Files are decoded without storing anything: whatever is wrong with them shows before the first row is written.
    Check,
    /// Rows are stored.
    Write,
}

impl Stage {
    /// What the stage does, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identify => "reading",
            Self::Check => "checking",
            Self::Write => "writing",
        }
    }
}

/// One report.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Something to know that is no error.
    Note(&'a str),
    /// Something that may not be what was meant; to be shown whatever is asked for.
    Warning(&'a str),
    /// All files are opened, their schema is agreed; nothing is written yet.
    Planned(&'a Plan),
    /// A stage begins.
    Begin {
        /// Which.
        stage: Stage,
        /// Bytes it will go through, as far as known.
        bytes: u64,
    },
    /// So many bytes of the present stage are done.
    Advance {
        /// How many.
        bytes: u64,
    },
    /// The present stage is done.
    End,
}

/// Takes reports. Any closure over [`Event`] does.
pub trait Progress {
    /// Takes one.
    fn report(&mut self, event: Event<'_>);
}

impl<F: FnMut(Event<'_>)> Progress for F {
    fn report(&mut self, event: Event<'_>) {
        self(event);
    }
}
