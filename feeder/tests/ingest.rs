//! A real `forebay ingest`, killed at points all over its work and run again: the topic holds each record once, in order.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cursorstore::TopicName;
use feeder::Error;
use feeder::log::{Root, TopicView};

const FILES: u64 = 3;
const FILE_ROWS: u64 = 40_000;
const VALUE_BYTES: usize = 500;
const ROUNDS: u64 = 4;
/// Kills of one ingest before it may finish.
const KILLS: u64 = 3;

/// The bytes that belong to an id.
fn value(id: u64) -> Vec<u8> {
    let mut state = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..VALUE_BYTES / 4).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u32
    });
    words.flat_map(u32::to_le_bytes).collect()
}

fn label(id: u64) -> i16 {
    (id % 1000) as i16
}

fn npy(descr: &str, shape: &str, data: impl Iterator<Item = u8>) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

/// One npz with ids from `from` on; stored or deflated, with labels or without.
fn write_npz(path: &Path, from: u64, method: zip::CompressionMethod, labels: bool) {
    let ids = from..from + FILE_ROWS;
    let options = zip::write::SimpleFileOptions::default().compression_method(method).compression_level(None);
    let mut writer = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    writer.start_file("id.npy", options).unwrap();
    writer.write_all(&npy("<u8", &format!("({FILE_ROWS},)"), ids.clone().flat_map(u64::to_le_bytes))).unwrap();
    writer.start_file("value.npy", options).unwrap();
    writer.write_all(&npy("|u1", &format!("({FILE_ROWS}, {VALUE_BYTES})"), ids.clone().flat_map(value))).unwrap();
    if labels {
        writer.start_file("label.npy", options).unwrap();
        writer.write_all(&npy("<i2", &format!("({FILE_ROWS},)"), ids.flat_map(|id| label(id).to_le_bytes()))).unwrap();
    }
    writer.finish().unwrap();
}

struct Ingest {
    root: PathBuf,
    sources: Vec<PathBuf>,
    partitions: u32,
    defaults: &'static [&'static str],
}

impl Ingest {
    fn start(&self, check: bool) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("ingest").args(&self.sources).args(["--topic", "t", "--quiet", "--root"]).arg(&self.root);
        command.args(["--partitions", &self.partitions.to_string()]).args((!check).then_some("--no-check"));
        command.args(self.defaults).stdout(Stdio::null()).spawn().unwrap()
    }

    fn view(&self) -> Result<TopicView, Error> {
        Root::open(&self.root)?.topic(&"t".parse::<TopicName>().unwrap())?.view()
    }

    /// Kills a run as soon as the topic has `rows`, or at once. Gives the rows that can be read then.
    fn kill_at(&self, rows: u64) -> u64 {
        let mut child = self.start(false);
        let stored = || self.view().map_or(0, |view| view.rows());
        while stored() < rows && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        stored()
    }

    /// Asserts that each record is there once, each file in order.
    fn check(&self) {
        let view = self.view().unwrap();
        assert_eq!(view.rows(), FILES * FILE_ROWS);
        let mut next: HashMap<u64, u64> = HashMap::new();
        for partition in &view.partitions {
            let mut at = partition.first;
            while at < partition.end {
                let end = (at + 5000).min(partition.end);
                let rows = partition.read(at..end).unwrap();
                let ids = rows.column(0).chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().unwrap()));
                for (id, bytes) in ids.zip(rows.column(1).chunks_exact(VALUE_BYTES)) {
                    let next = next.entry(id / FILE_ROWS).or_insert(id - id % FILE_ROWS);
                    assert_eq!(id, *next, "a record is missing, twice, or in another place");
                    assert!(bytes == value(id), "a record has other content: id={id}");
                    *next += 1;
                }
                at = end;
            }
        }
    }
}

#[test]
fn killed_anywhere_and_run_again_each_record_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let method = |n| if n == 1 { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let sources: Vec<PathBuf> = (0..FILES).map(|n| dir.path().join(format!("{n}.npz"))).collect();
    sources.iter().zip(0..).for_each(|(path, n)| write_npz(path, n * FILE_ROWS, method(n), false));
    let mut random = 20240517u64;
    let mut cut_short = 0;
    for round in 0..ROUNDS {
        let partitions = 1 + (round % 2) as u32;
        let root = dir.path().join(format!("root{round}"));
        let ingest = Ingest { root, sources: sources.clone(), partitions, defaults: &[] };
        let mut before = 0;
        for _ in 0..KILLS {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let stored = ingest.kill_at(random % (FILES * FILE_ROWS));
            assert!(stored >= before, "acknowledged rows are gone: {stored} of {before}");
            cut_short += u64::from(stored < FILES * FILE_ROWS);
            before = stored;
        }
        assert!(ingest.start(true).wait().unwrap().success());
        ingest.check();
        // Once more changes nothing.
        assert!(ingest.start(true).wait().unwrap().success());
        assert_eq!(ingest.view().unwrap().rows(), FILES * FILE_ROWS);
        std::fs::remove_dir_all(&ingest.root).unwrap();
    }
    assert!(cut_short > ROUNDS, "most kills must come before the end: {cut_short}");
}

#[test]
fn killed_while_the_schema_grows_it_goes_on_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let sources: Vec<PathBuf> = (0..FILES).map(|n| dir.path().join(format!("{n}.npz"))).collect();
    let labelled = |n| n > 0;
    for (path, n) in sources.iter().zip(0..) {
        write_npz(path, n * FILE_ROWS, zip::CompressionMethod::Stored, labelled(n));
    }
    let partitions = 2;
    let root = dir.path().join("root");
    let first = Ingest { root: root.clone(), sources: sources[..1].to_vec(), partitions, defaults: &[] };
    assert!(first.start(true).wait().unwrap().success());
    let ingest = Ingest { root, sources: sources.clone(), partitions, defaults: &["--default", "label=-1"] };
    for rows in [FILE_ROWS, FILE_ROWS + 1, 2 * FILE_ROWS - 100] {
        ingest.kill_at(rows);
    }
    assert!(ingest.start(true).wait().unwrap().success());
    ingest.check();
    let view = ingest.view().unwrap();
    assert_eq!(view.schemas.versions().len(), 2);
    for partition in &view.partitions {
        for at in (partition.first..partition.end).step_by(997) {
            let row = partition.read(at..at + 1).unwrap();
            let id = u64::from_le_bytes(row.column(0).as_slice().try_into().unwrap());
            let wanted = if labelled(id / FILE_ROWS) { label(id) } else { -1 };
            assert_eq!(row.column(2).as_slice(), wanted.to_le_bytes(), "id={id}");
        }
    }
}
