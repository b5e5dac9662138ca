//! Cold data, and what an epoch leaves of it in the page cache.

mod corpus;

use std::fs::File;
use std::path::PathBuf;

use corpus::{compare, drop_from_cache, files, name, next, topic};
use cursorstore::{Cursor, State};
use feeder::engine::{Checksum, Loader, Settings};
use feeder::reader::DirectReads;
use feeder::reader::testing::cached_bytes;

/// Samples of 4 KiB, and how many.
const WIDTH: usize = 2048;
const SAMPLES: u64 = 4096;

/// The segment of a topic, which is one file.
struct Segment {
    file: File,
    bytes: u64,
    _folder: tempfile::TempDir,
    root: PathBuf,
}

impl Segment {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        topic(folder.path(), &[SAMPLES], WIDTH, 256 << 10, 512);
        let file = files(folder.path()).into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
        let bytes = file.metadata().unwrap().len();
        assert!(bytes > SAMPLES * 4096);
        Self { file, bytes, root: folder.path().to_owned(), _folder: folder }
    }

    /// Whether it could be dropped from the page cache: not in file systems that live there.
    fn drop_from_cache(&self) -> bool {
        drop_from_cache(&self.file);
        self.cached_part().is_some_and(|part| part < 0.05)
    }

    /// Of its bytes; `None` if the kernel cannot say.
    fn cached_part(&self) -> Option<f64> {
        cached_bytes(&self.file, 0, self.bytes).ok().map(|cached| cached as f64 / self.bytes as f64)
    }
}

/// Few slots, so that little is read ahead; a shuffle of small reach.
fn settings() -> Settings {
    let (lanes, chunk, pool) = (Some(4), Some(16), Some(2));
    Settings { global_batch: 8, shuffle: true, lanes, chunk, pool, checksum: Checksum::Off, ..Settings::default() }
}

#[test]
#[allow(clippy::print_stderr, reason = "a test that did nothing says why")]
fn a_first_epoch_leaves_nothing_in_the_cache_and_later_ones_what_fits() {
    let segment = Segment::new();
    for shuffle in [false, true] {
        for (direct, epoch, stays) in [
            (DirectReads::Auto, 0, false),
            (DirectReads::Auto, 1, true),
            (DirectReads::Auto, 7, true),
            (DirectReads::On, 1, false),
            (DirectReads::Off, 0, true),
        ] {
            if !segment.drop_from_cache() {
                return eprintln!("skipped, files cannot be dropped from the page cache here, or nobody can tell");
            }
            let mut loader = Loader::open(&segment.root, &name(), Settings { shuffle, direct, ..settings() }).unwrap();
            let state = State { cursor: Cursor { epoch, n: 0 }, ..loader.state(None).unwrap() };
            loader.load(&state).unwrap();
            if stays {
                compare(&mut loader, 1, WIDTH);
            } else {
                // Not to its end: what is read ahead there is the next epoch's.
                loader.begin().unwrap();
                (0..loader.steps() * 3 / 4).for_each(|_| drop(next(&mut loader).unwrap()));
            }
            let lines = loader.take_notices();
            loader.close();
            if lines.iter().any(|line| line.contains("direct=off")) {
                return eprintln!("skipped, there are no direct reads here: {lines:?}");
            }
            let part = segment.cached_part().unwrap();
            assert_eq!(part > 0.5, stays, "direct={direct:?} epoch={epoch} cached={part:.2}");
        }
    }
}
