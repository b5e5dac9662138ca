//! Every change that the store makes to the disk, each one call here, so that tests can stop or fail any of them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

#[cfg(any(test, feature = "testing"))]
use super::faults;

/// A place where tests may interfere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after the calls")]
#[cfg_attr(not(any(test, feature = "testing")), allow(unreachable_pub, reason = "tests of other crates name it"))]
pub enum Step {
    CreateDir,
    Create,
    Open,
    Write,
    Sync,
    Cut,
    Link,
    Remove,
    SyncDir,
    Lock,
}

/// What becomes of a call: an error, before which so many of its bytes get through.
#[cfg(any(test, feature = "testing"))]
fn interfere(step: Step, bytes: usize) -> Option<(usize, io::Error)> {
    faults::interfere(step, bytes)
}

#[cfg(not(any(test, feature = "testing")))]
fn interfere(_: Step, _: usize) -> Option<(usize, io::Error)> {
    None
}

fn before(step: Step) -> io::Result<()> {
    interfere(step, 0).map_or(Ok(()), |(_, error)| Err(error))
}

/// Makes a directory, if it is not there.
pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    before(Step::CreateDir)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Makes a file that was not there.
pub(super) fn create(path: &Path) -> io::Result<File> {
    before(Step::Create)?;
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Opens a file for writing.
pub(super) fn open(path: &Path) -> io::Result<File> {
    before(Step::Open)?;
    OpenOptions::new().read(true).write(true).open(path)
}

/// Writes all of `bytes`.
pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    if let Some((through, error)) = interfere(Step::Write, bytes.len()) {
        file.write_all_at(&bytes[..through], offset)?;
        return Err(error);
    }
    file.write_all_at(bytes, offset)
}

/// Makes a file's contents and length durable.
pub(super) fn sync(file: &File) -> io::Result<()> {
    before(Step::Sync)?;
    file.sync_data()
}

/// Cuts a file off.
pub(super) fn cut(file: &File, length: u64) -> io::Result<()> {
    before(Step::Cut)?;
    file.set_len(length)
}

/// Gives a file another name, which must be free: of two who try, one succeeds.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    before(Step::Link)?;
    fs::hard_link(from, to)
}

/// Removes a name that may be gone already.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    before(Step::Remove)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Makes a directory's entries durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    before(Step::SyncDir)?;
    File::open(path)?.sync_all()
}

/// Locks a file against others who lock it, without waiting; `None` when somebody else holds it.
pub(super) fn try_lock(file: File) -> io::Result<Option<Flock<File>>> {
    before(Step::Lock)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Locks a file, waiting for at most `patience`. `file` must be an opening of its own: after a wait in vain, a thread
/// keeps it until it has got the lock and dropped it.
pub(super) fn lock(file: File, patience: Duration) -> io::Result<Option<Flock<File>>> {
    let again = file.try_clone()?;
    if let Some(lock) = try_lock(file)? {
        return Ok(Some(lock));
    }
    let (send, receive) = mpsc::sync_channel(1);
    let wait = move || {
        let mut file = again;
        let result = loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(lock) => break Ok(lock),
                Err((back, Errno::EINTR)) => file = back,
                Err((_, errno)) => break Err(io::Error::from(errno)),
            }
        };
        // If nobody waits any more, the lock is dropped with the message.
        let _ = send.send(result);
    };
    std::thread::Builder::new().name("forebay-store-lock".into()).spawn(wait)?;
    receive.recv_timeout(patience).ok().transpose()
}

/// Whether an error means that the file system has no such operation.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EPERM))
}
