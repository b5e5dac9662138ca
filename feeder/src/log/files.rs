//! Names, listings, and the few ways in which files are made: whole or not at all, and durable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::sums::crc32c;
use crate::error::{Error, ErrorKind, Result};

/// Ending of files that are being made; one that no process works on is left over from a crash.
const UNFINISHED: &str = "tmp";
const SEALED: &str = "arrow";
const OPEN: &str = "open";
/// Times that a listing is taken until two agree.
const LISTINGS_MAX: usize = 1000;
/// Bytes of the file that names the durable length.
const HINT_BYTES: usize = 32;
const HINT_MARK: u32 = 0x4659_4e31;

/// What a segment's file name says: its first offset, and the number of the schema version that its rows are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub(super) base: u64,
    pub(super) schema: u32,
}

impl SegmentName {
    /// Path of the sealed segment.
    pub(super) fn sealed(self, dir: &Path) -> PathBuf {
        self.path(dir, SEALED)
    }

    /// Path of the active segment.
    pub(super) fn open(self, dir: &Path) -> PathBuf {
        self.path(dir, OPEN)
    }

    fn path(self, dir: &Path, ending: &str) -> PathBuf {
        match self.schema {
            1 => dir.join(format!("{:020}.{ending}", self.base)),
            schema => dir.join(format!("{:020}.s{schema}.{ending}", self.base)),
        }
    }

    /// Name and ending.
    fn parse(name: &str) -> Option<(Self, &str)> {
        let (base, rest) = name.split_once('.')?;
        let base = (base.len() == 20).then(|| base.parse().ok()).flatten()?;
        let (schema, ending) = match rest.split_once('.') {
            None => (1, rest),
            Some((schema, ending)) => (schema.strip_prefix('s')?.parse().ok()?, ending),
        };
        let parsed = Self { base, schema };
        // One name for each segment: no other spelling of the number counts.
        (parsed.path(Path::new(""), ending).to_str() == Some(name)).then_some((parsed, ending))
    }
}

/// The path under which a file is made before it gets its name.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(UNFINISHED);
    name.into()
}

/// The segment files of one partition, by base offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) sealed: Vec<SegmentName>,
    /// The `.open` files that count; more than one, or one that is not the last, is damage.
    pub(super) open: Vec<SegmentName>,
    /// `.open` files that made room for one of a later schema at the same place, without ever having held a row.
    pub(super) replaced: Vec<SegmentName>,
    pub(super) unfinished: Vec<PathBuf>,
}

impl Listing {
    /// One pass over the directory. Renames during it may hide a file: see [`Listing::settled`].
    pub(super) fn once(dir: &Path) -> Result<Self> {
        let failed = |error| Error::io(format!("cannot list segments: path={}", dir.display()), error);
        let mut listing = Self::default();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.ends_with(&format!(".{UNFINISHED}")) {
                listing.unfinished.push(path);
                continue;
            }
            match SegmentName::parse(name) {
                Some((segment, SEALED)) => listing.sealed.push(segment),
                Some((segment, OPEN)) => listing.open.push(segment),
                _ => {}
            }
        }
        listing.sealed.sort_unstable();
        listing.open.sort_unstable();
        let open = std::mem::take(&mut listing.open);
        for (at, &segment) in open.iter().enumerate() {
            match open.get(at + 1).is_some_and(|next| next.base == segment.base) {
                true => listing.replaced.push(segment),
                false => listing.open.push(segment),
            }
        }
        listing.unfinished.sort();
        Ok(listing)
    }

    /// What stood in the directory at one moment: two passes that agree. Every file gets its last name by one rename,
    /// so a file that one pass missed because of a rename is seen by the next.
    pub(super) fn settled(dir: &Path) -> Result<Self> {
        let mut last = Self::once(dir)?;
        for _ in 0..LISTINGS_MAX {
            let next = Self::once(dir)?;
            if (&last.sealed, &last.open) == (&next.sealed, &next.open) {
                return Ok(next);
            }
            last = next;
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("segments change faster than they can be listed: path={}", dir.display()),
        ))
    }
}

impl Listing {
    /// Whether a segment at `base` is sealed.
    pub(super) fn is_sealed(&self, base: u64) -> bool {
        self.sealed.binary_search_by_key(&base, |segment| segment.base).is_ok()
    }

    /// The highest number of a schema version among the segments that count.
    pub(super) fn newest_schema(&self) -> u32 {
        self.sealed.iter().chain(&self.open).map(|segment| segment.schema).max().unwrap_or(1)
    }
}

/// Makes a directory's entries durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io(format!("cannot sync directory: path={}", dir.display()), error))
}

/// Puts a file in place whole: written beside it, synced, renamed over it, directory synced.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = unfinished(path);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    if let Err(error) = write() {
        let _ = fs::remove_file(&beside);
        return Err(Error::io(format!("cannot write file: path={}", path.display()), error));
    }
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Reads a small file, refusing one that is larger than it can be.
pub(super) fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let failed = |error| Error::io(format!("cannot read file: path={}", path.display()), error);
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::corrupt(format!("file is too large: path={} bytes_max={bytes_max}", path.display())));
    }
    Ok(bytes)
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove file: path={}", path.display()), error))
        }
        _ => Ok(()),
    }
}

/// A file held under an exclusive lock, until it is dropped or the process ends. A forked child that drops its copy
/// leaves the lock to its parent.
#[derive(Debug)]
pub(super) struct Held {
    /// `None` only while it is dropped.
    lock: Option<Flock<File>>,
    pid: u32,
}

impl Held {
    fn new(lock: Flock<File>) -> Self {
        Self { lock: Some(lock), pid: std::process::id() }
    }

    /// Whether this process took the lock.
    pub(super) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Replaces the file's contents.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = self.lock.as_deref() else { return Ok(()) };
        file.set_len(0)?;
        file.write_all_at(bytes, 0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Unlocking would unlock the parent's: both share one open file.
            std::mem::forget(self.lock.take());
        }
    }
}

/// Takes an exclusive lock on a file without waiting; `None` when somebody else holds it.
pub(super) fn try_lock(file: File) -> io::Result<Option<Held>> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(Held::new(lock))),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Takes an exclusive lock on a file, waiting for it.
pub(super) fn lock(file: File) -> io::Result<Held> {
    let mut file = file;
    loop {
        match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(lock) => return Ok(Held::new(lock)),
            Err((back, Errno::EINTR)) => file = back,
            Err((_, errno)) => return Err(errno.into()),
        }
    }
}

/// Opens a lock file, making it if need be.
pub(super) fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// A 128-bit random number from the kernel.
pub(super) fn random128() -> Result<u128> {
    const SOURCE: &str = "/proc/sys/kernel/random/uuid";
    let text =
        fs::read_to_string(SOURCE).map_err(|error| Error::io(format!("no random number: path={SOURCE}"), error))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    number.ok_or_else(|| Error::new(ErrorKind::Io, format!("no random number: path={SOURCE}")))
}

/// A name part that no other process and no earlier call uses.
pub(super) fn unique() -> Result<String> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    Ok(format!("{:032x}{:x}", random128()?, CALLS.fetch_add(1, Ordering::Relaxed)))
}

/// How much of the active segment is durable for certain: written after each sync, never trusted for more than a lower
/// bound. It tells damage from a torn tail, and saves readers a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hint {
    /// Base offset of the segment this speaks of.
    pub(super) base: u64,
    /// Durable bytes.
    pub(super) synced: u64,
    /// Offset after the last durable row.
    pub(super) end: u64,
}

impl Hint {
    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join("synced")
    }

    fn to_bytes(self) -> [u8; HINT_BYTES] {
        let mut bytes = [0; HINT_BYTES];
        bytes[..8].copy_from_slice(&self.base.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.synced.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.end.to_le_bytes());
        bytes[24..28].copy_from_slice(&HINT_MARK.to_le_bytes());
        let sum = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HINT_BYTES]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(*bytes[at..].first_chunk()?));
        let hint = Self { base: number(0)?, synced: number(8)?, end: number(16)? };
        (hint.to_bytes() == *bytes).then_some(hint)
    }

    /// The hint for the segment at `base`; nothing known when there is none, or none that is whole.
    pub(super) fn read(dir: &Path, base: u64) -> Self {
        let nothing = Self { base, synced: 0, end: base };
        let mut bytes = [0; HINT_BYTES];
        let read = File::open(Self::path(dir)).and_then(|file| file.read_exact_at(&mut bytes, 0));
        match (read, Self::from_bytes(&bytes)) {
            (Ok(()), Some(hint)) if hint.base == base && hint.end >= base => hint,
            _ => nothing,
        }
    }

    /// Writes it to the file that [`path`](Self::path) names.
    pub(super) fn write(self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.to_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_taken_by_another_process_is_not_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let take = || try_lock(lock_file(&path).unwrap()).unwrap();
        drop(take().unwrap());
        let held = take().expect("given back");
        assert!(take().is_none());
        drop(Held { pid: held.pid + 1, lock: None });
        let mut held = held;
        held.pid += 1;
        drop(held);
        assert!(take().is_none(), "only the process that took it gives it back");
    }

    #[test]
    fn hints_round_trip_and_notice_damage() {
        let hint = Hint { base: 7, synced: 4096, end: 9 };
        let mut bytes = hint.to_bytes();
        assert_eq!(Hint::from_bytes(&bytes), Some(hint));
        for at in 0..HINT_BYTES {
            bytes[at] ^= 4;
            assert_eq!(Hint::from_bytes(&bytes), None);
            bytes[at] ^= 4;
        }
    }

    #[test]
    fn listings_see_segments_only() {
        let dir = tempfile::tempdir().unwrap();
        let others = ["00000000000000000007.s1.arrow", "00000000000000000007.s02.arrow", "00000000000000000007.2.open"];
        let segments = ["00000000000000000007.arrow", "00000000000000000008.s3.arrow", "00000000000000000009.s12.open"];
        for name in segments.into_iter().chain(others).chain(["x.tmp", "7.arrow", "lock", "z.arrow"]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::write(dir.path().join("00000000000000000009.s3.open"), "").unwrap();
        let listing = Listing::settled(dir.path()).unwrap();
        let named = |base, schema| SegmentName { base, schema };
        assert_eq!((&listing.sealed, &listing.open), (&vec![named(7, 1), named(8, 3)], &vec![named(9, 12)]));
        assert_eq!((listing.newest_schema(), &listing.replaced), (12, &vec![named(9, 3)]));
        assert!(listing.is_sealed(8) && !listing.is_sealed(9));
        assert_eq!(listing.unfinished, [dir.path().join("x.tmp")]);
    }

    #[test]
    fn a_file_is_put_in_place_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(read_small(&path, 3).unwrap(), b"two");
        assert!(read_small(&path, 2).unwrap_err().to_string().contains("too large"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
