//! The embedded topic: an append-only log of partitions, whose sealed segments are plain Arrow files.
//!
//! ```text
//! <root>/forebay.json                              the format; marks a root
//! <root>/lock                                      held while topics are made or removed
//! <root>/topics/<tenant>/<namespace>/<name>/
//!     topic.json                                   incarnation, schemas, options; with a checksum
//!     lock                                         held while the schema changes
//!     guards/                                      what live readers hold, see guard.rs
//!     p0000/lock                                   held by the partition's writer
//!     p0000/synced                                 how much of the active segment is durable
//!     p0000/00000000000000000000.arrow             sealed segment, named by its first offset
//!     p0000/00000000000000065536.open              active segment: the same without its footer
//!     p0000/00000000000000070000.s2.open           one whose rows are of the topic's second schema
//! ```
//!
//! A segment is a schema message, blocks ([`BlockRef`]: one record batch each, see block.rs) and a footer. Everything
//! begins on a border of [`PAGE_BYTES`]; where a column stands in a block is [`column_at`]. Offsets are dense, begin
//! with 0 and are never given twice in one incarnation. What was acknowledged as durable is there after any crash; what
//! was damaged is named with file, block and position, and everything else stays readable.
//!
//! Limits: [`PARTITIONS_MAX`] partitions, [`BLOCK_ROWS_MAX`] rows of a block, 1 GiB of a row, 4096 columns.

mod active;
mod block;
mod block_list;
mod commit;
mod core;
mod facts;
mod files;
mod footer;
mod frame;
mod guard;
mod layout;
mod recover;
mod retention;
mod root;
mod scan;
mod seal;
mod sums;
mod topic;
mod verify;
mod view;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use cursorstore::Incarnation;

pub use block::BlockRef;
pub use block_list::BlockList;
pub use guard::Guard;
pub(crate) use layout::rows_within;
pub use layout::{BLOCK_BYTES, BLOCK_ROWS_MAX, PAGE_BYTES, PIECE_BYTES, block_rows, body_bytes, column_at, columns_at};
pub use recover::{Damage, Recovery};
pub use retention::{Holds, Retained, Retention};
pub use root::Root;
pub use sums::{BlockSums, crc32c};
pub use topic::{Topic, TopicOptions};
pub use verify::{Problem, VerifyProgress, VerifyReport};
pub use view::{Found, PartitionView, SegmentView, TopicView};
pub use writer::{Fsync, GROUP_BYTES_MAX, Writer, WriterOptions};

use crate::error::{Error, ErrorKind, Result};

/// Version of everything on disk; a root or topic of a newer one is refused.
pub const FORMAT: u32 = 1;
/// Version of the description of a topic that has had more than one schema.
pub const FORMAT_GROWN: u32 = 2;
/// Most partitions of a topic.
pub const PARTITIONS_MAX: u32 = 1024;

const ROOT_FILE: &str = "forebay.json";
const TOPIC_FILE: &str = "topic.json";
const LOCK_NAME: &str = "lock";

/// Where appended rows come from: rows `first..` of a source (a file, a remote segment). Rows of one source are stored
/// in order and once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Identity of the source, for example a hash of its contents.
    pub source: u128,
    /// Number of the first row within the source.
    pub first: u64,
}

/// Whose segment a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    incarnation: Incarnation,
    partition: u32,
}

fn partition_dir(topic_dir: &Path, partition: u32) -> PathBuf {
    topic_dir.join(format!("p{partition:04}"))
}

/// Refuses a file of a newer format, with the version needed.
fn check_format(json: &[u8], path: &Path, newest: u32) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        format: u32,
    }
    let versioned: Versioned = serde_json::from_slice(json)
        .map_err(|error| Error::corrupt(format!("the file is damaged: path={}", path.display())).with_source(error))?;
    match versioned.format {
        format if (1..=newest).contains(&format) => Ok(()),
        0 => Err(Error::corrupt(format!("the file is damaged: path={} format=0", path.display()))),
        newer => Err(Error::new(
            ErrorKind::Invalid,
            format!("written by a newer version of forebay: path={} format={newer} supported={newest}", path.display()),
        )
        .with_hint(format!("install a version of forebay that reads format {newer}"))),
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}
