//! Sources: which files are meant, and who they are.
//!
//! A file's identity is a hash of its name (without directories), size and content, so that a moved file is the same and
//! a changed one another. A topic remembers how many rows of each identity it holds: that is what makes ingest exact.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, ErrorKind, Result};

/// Read at once while hashing.
const HASH_BYTES: usize = 1 << 20;
/// Most files of one ingest.
pub const FILES_MAX: usize = 1 << 20;

/// The files that patterns mean, in the order of the patterns and sorted within each; each file once. Notes say which
/// were left out.
pub(super) fn resolve(patterns: &[String]) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut notes = Vec::new();
    for pattern in patterns {
        for path in matches(pattern)? {
            let real = path
                .canonicalize()
                .map_err(|error| Error::io(format!("cannot read file: path={}", path.display()), error))?;
            if real.is_dir() {
                return Err(Error::invalid(format!("a directory, files are ingested: path={}", path.display()))
                    .with_hint(format!("name its files, for example '{}/*.parquet'", path.display())));
            }
            // To open a pipe would be to wait for its writer.
            if !real.is_file() {
                return Err(Error::invalid(format!("not a regular file, files are ingested: path={}", path.display()))
                    .with_hint("write what it says to a file first, then name that"));
            }
            match seen.insert(real) {
                true => paths.push(path),
                false => notes.push(format!("named twice, taken once: path={}", path.display())),
            }
            if paths.len() > FILES_MAX {
                return Err(Error::invalid(format!("too many files at once: most={FILES_MAX}"))
                    .with_hint("ingest them in several parts"));
            }
        }
    }
    Ok((paths, notes))
}

/// The files of one pattern. A name that exists is meant literally, whatever characters it has.
fn matches(pattern: &str) -> Result<Vec<PathBuf>> {
    if let Some((scheme, _)) = pattern.split_once("://") {
        return Err(Error::invalid(format!("files are ingested, not addresses: scheme={scheme} source={pattern:?}"))
            .with_hint("download it first, then name the file"));
    }
    let literal = Path::new(pattern);
    if literal.symlink_metadata().is_ok() {
        return Ok(vec![literal.to_path_buf()]);
    }
    let not_found = |what: &str| Error::new(ErrorKind::NotFound, format!("{what}: source={pattern:?}"));
    if !pattern.contains(['*', '?', '[']) {
        return Err(not_found("no such file"));
    }
    let found = glob::glob(pattern)
        .map_err(|error| Error::invalid(format!("not a pattern: source={pattern:?}")).with_source(error))?;
    let mut paths = found
        .collect::<Result<Vec<PathBuf>, _>>()
        .map_err(|error| Error::io(format!("cannot list files: source={pattern:?}"), error.into()))?;
    if paths.is_empty() {
        return Err(not_found("no file matches the pattern").with_hint("look with: ls, and mind where you are"));
    }
    paths.sort();
    Ok(paths)
}

/// What tells that a file has been changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self { inode: (meta.dev(), meta.ino()), bytes: meta.len(), changed: (meta.mtime(), meta.mtime_nsec()) }
    }

    /// Refuses a file that is not as it was.
    pub(super) fn check(self, path: &Path) -> Result<()> {
        let meta =
            path.metadata().map_err(|error| Error::io(format!("cannot read file: path={}", path.display()), error))?;
        match Self::of(&meta) == self {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::StateMismatch,
                format!("the file was changed while it was being ingested: path={}", path.display()),
            )
            .with_hint("let it be finished first; what is in the topic of it belongs to its former content")),
        }
    }
}

/// The identity of a file, its size, and a stamp of the state it was in. `progress` gets the bytes read.
pub(super) fn identify(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<(u128, u64, Stamp)> {
    let failed = |error| Error::io(format!("cannot read file: path={}", path.display()), error);
    let mut file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut hash = Xxh3::new();
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name);
    hash.update(&meta.len().to_le_bytes());
    let mut buffer = vec![0; HASH_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => {
                hash.update(&buffer[..got]);
                bytes += got as u64;
                progress(got as u64);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let stamp = Stamp::of(&meta);
    if bytes != meta.len() {
        return Err(Error::new(
            ErrorKind::StateMismatch,
            format!("the file is still being written: path={} bytes={bytes} expected={}", path.display(), meta.len()),
        ));
    }
    stamp.check(path)?;
    Ok((hash.digest128(), bytes, stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_name_size_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let identity = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            let mut read = 0;
            let (source, bytes, _) = identify(&path, &mut |got| read += got).unwrap();
            assert_eq!((bytes, read), (content.len() as u64, content.len() as u64));
            source
        };
        let a = identity("a", b"content");
        assert_eq!(identity("elsewhere/a", b"content"), a);
        assert_ne!(identity("b", b"content"), a);
        assert_ne!(identity("a", b"Content"), a);
        assert_ne!(identity("ac", b"ontent"), a);
        let large = vec![7; HASH_BYTES * 2 + 1];
        assert_eq!(identity("x/l", &large), identity("y/l", &large));
    }

    #[test]
    fn patterns_are_sorted_and_files_come_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for name in ["b.npy", "a.npy", "c.npz", "odd[1].npy"] {
            std::fs::write(at(name), name).unwrap();
        }
        std::fs::create_dir(at("sub")).unwrap();
        let names = |patterns: &[String]| {
            let (paths, notes) = resolve(patterns).unwrap();
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            (paths.iter().map(name).collect::<Vec<_>>(), notes.len())
        };
        assert_eq!(
            names(&[at("c.npz"), at("?.np*"), at("a.npy")]),
            (vec!["c.npz".into(), "a.npy".into(), "b.npy".into()], 2)
        );
        assert_eq!(names(&[at("odd[1].npy")]).0, ["odd[1].npy"]);
        let error = |pattern: String| resolve(&[pattern]).unwrap_err();
        assert_eq!(error(at("*.parquet")).kind(), ErrorKind::NotFound);
        assert_eq!(error(at("d.npy")).kind(), ErrorKind::NotFound);
        assert!(error(at("sub")).hint().unwrap().contains("/sub/*.parquet'"));
        assert!(error(at("s*")).to_string().contains("a directory"));
        nix::unistd::mkfifo(at("pipe").as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(error(at("pipe")).to_string().contains("not a regular file"));
        assert!(error("s3://bucket/key".into()).to_string().contains("scheme=s3"));
        assert!(error(at("a[")).to_string().contains("not a pattern"));
    }

    #[test]
    fn changed_files_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"one").unwrap();
        let (_, _, stamp) = identify(&path, &mut |_| {}).unwrap();
        stamp.check(&path).unwrap();
        std::fs::write(&path, b"three").unwrap();
        assert_eq!(stamp.check(&path).unwrap_err().kind(), ErrorKind::StateMismatch);
    }
}
