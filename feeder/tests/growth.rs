//! Training on a topic whose schema grew: rows of all versions come in the plan's order and worth what a naive upgrade
//! makes of them, whatever reads them; a job that goes on keeps the schema that it began with, to the type.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_buffer::Buffer;
use cursorstore::{State, TopicName};
use feeder::engine::{Batch, Checksum, Loader, OnBadRecord, Settings, Step};
use feeder::log::{Root, Topic, TopicOptions, Writer, WriterOptions};
use feeder::plan::Line;
use feeder::reader::ReaderKind;
use feeder::versions::Defaults;
use feeder::{Dtype, ErrorKind, Rows, Schema};
use proptest::prelude::*;

const WAIT: Duration = Duration::from_secs(20);

fn name() -> TopicName {
    "corpus".parse().unwrap()
}

/// A column of the model: its type now, its elements, and what rows without it have.
#[derive(Clone, Debug)]
struct Growing {
    dtype: Dtype,
    elements: u32,
    default: i64,
}

/// A topic that grows, and what was stored: sample by sample, the version that it was stored under.
struct Model {
    topic: Topic,
    writer: Writer,
    columns: Vec<Growing>,
    stored: Vec<usize>,
}

fn column_name(at: usize) -> String {
    format!("c{at}")
}

fn text_of(columns: &[Growing]) -> String {
    let column = |(at, column): (usize, &Growing)| match column.elements {
        0 => format!("{}:{}", column_name(at), column.dtype),
        n => format!("{}:{}[{n}]", column_name(at), column.dtype),
    };
    columns.iter().enumerate().map(column).collect::<Vec<_>>().join(", ")
}

/// Element `k` of column `at` of sample `id`: small, so that every type holds it.
fn value(id: u64, at: usize, k: u32) -> i64 {
    ((id * 7 + at as u64 * 31 + u64::from(k)) % 100) as i64
}

fn encode(value: i64, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::Float16 => half::f16::from_f64(value as f64).to_le_bytes().to_vec(),
        Dtype::BFloat16 => half::bf16::from_f64(value as f64).to_le_bytes().to_vec(),
        Dtype::Float32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::Float64 => (value as f64).to_le_bytes().to_vec(),
        dtype => value.to_le_bytes()[..dtype.bytes()].to_vec(),
    }
}

impl Model {
    fn new(root: &Path, columns: Vec<Growing>, block_bytes: usize) -> Self {
        let options = TopicOptions { block_bytes, segment_bytes: 200_000, ..TopicOptions::default() };
        let schema = Schema::parse(&text_of(&columns)).unwrap();
        let topic = Root::create(root).unwrap().create_topic(&name(), &schema, &options).unwrap();
        let writer = topic.writer(0, WriterOptions::default()).unwrap();
        Self { topic, writer, columns, stored: Vec::new() }
    }

    /// Stores samples as a producer has them that knows the first `columns` columns, with these types.
    fn append(&mut self, columns: &[Growing], count: u64) {
        let schema = Arc::new(Schema::parse(&text_of(columns)).unwrap());
        let first = self.stored.len() as u64;
        let buffers = columns.iter().enumerate().map(|(at, column)| {
            let ids = first..first + count;
            let bytes = ids
                .flat_map(|id| (0..column.elements.max(1)).flat_map(move |k| encode(value(id, at, k), column.dtype)));
            Buffer::from_vec(bytes.collect::<Vec<u8>>())
        });
        let rows = Rows::new(schema.clone(), count as usize, buffers.collect()).unwrap();
        assert_eq!(self.writer.append(&rows).unwrap(), first..first + count);
        self.stored.extend((0..count).map(|_| columns.len()));
    }

    /// The bytes of a sample's column read under `columns`.
    fn naive(&self, id: u64, at: usize, columns: &[Growing]) -> Vec<u8> {
        let column = &columns[at];
        let brought = at < self.stored[id as usize];
        let element = |k| encode(if brought { value(id, at, k) } else { column.default }, column.dtype);
        (0..column.elements.max(1)).flat_map(element).collect()
    }

    fn grow(&mut self, change: &Change) {
        match *change {
            Change::Widen(at, to) => self.columns[at].dtype = to,
            Change::Add { dtype, elements, default } => {
                self.columns.push(Growing { dtype, elements, default });
            }
        }
        let at = self.columns.len() - 1;
        let default = match change {
            Change::Add { default, .. } => vec![format!("{}={default}", column_name(at))],
            Change::Widen(..) => vec![],
        };
        let schema = Schema::parse(&text_of(&self.columns)).unwrap();
        self.writer.grow(&schema, &Defaults::parse(&default).unwrap()).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Change {
    Widen(usize, Dtype),
    Add { dtype: Dtype, elements: u32, default: i64 },
}

fn bytes<'a>(batch: &'a Batch, column: &str) -> &'a [u8] {
    let column = batch.columns.iter().find(|c| &*c.name == column).unwrap();
    // SAFETY: the batch holds the owner of the column's `bytes` bytes.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(column.address), column.bytes) }
}

fn next(loader: &mut Loader) -> Option<Batch> {
    match loader.poll_next(WAIT).unwrap() {
        Step::Batch(batch) => Some(batch),
        Step::End => None,
        Step::Pending => panic!("no batch within {WAIT:?}"),
    }
}

/// Runs `epochs` epochs and compares every batch, byte by byte, with the plan's order of naively upgraded samples.
fn compare(model: &Model, columns: &[Growing], names: Option<&[usize]>, settings: Settings, epochs: u64) {
    let chosen: Vec<usize> = names.map_or_else(|| (0..columns.len()).collect(), <[usize]>::to_vec);
    let settings =
        Settings { columns: names.map(|names| names.iter().map(|&at| column_name(at)).collect()), ..settings };
    let mut loader = Loader::open(model_root(model), &name(), settings).unwrap();
    let ends: Arc<[u64]> = loader.dataset().line().ends().into();
    for _ in 0..epochs {
        loader.begin().unwrap();
        let mut seen = 0;
        loop {
            let at = loader.cursor();
            let Some(batch) = next(&mut loader) else { break };
            let line = Line::new(loader.key(), ends.clone(), at.epoch).unwrap();
            let wanted = line.step(at.n, loader.settings().global_batch, 0, 1);
            for &column in &chosen {
                let naive: Vec<u8> = wanted.iter().flat_map(|&id| model.naive(id, column, columns)).collect();
                assert!(bytes(&batch, &column_name(column)) == naive, "column {column} differs at {at:?}");
            }
            seen += wanted.len();
        }
        assert_eq!(seen, model.stored.len());
    }
}

fn model_root(model: &Model) -> &Path {
    // <root>/topics/<tenant>/<namespace>/<name>
    model.topic.dir().ancestors().nth(4).unwrap()
}

/// The widenings of a type, one of them by `pick`.
fn wider(dtype: Dtype, pick: usize) -> Option<Dtype> {
    let all: Vec<Dtype> = Dtype::ALL.into_iter().filter(|&to| feeder::widen::Widen::new(dtype, to).is_some()).collect();
    (!all.is_empty()).then(|| all[pick % all.len()])
}

fn readers() -> [Settings; 3] {
    let base =
        Settings { global_batch: 13, seed: 7, lanes: Some(4), chunk: Some(9), pool: Some(2), ..Settings::default() };
    [
        Settings { reader: ReaderKind::Auto, checksum: Checksum::Sampled, reader_threads: Some(2), ..base.clone() },
        Settings { reader: ReaderKind::Preadv, checksum: Checksum::Always, shuffle: true, ..base.clone() },
        Settings { reader: ReaderKind::Preadv, checksum: Checksum::Off, shuffle: true, ..base },
    ]
}

fn start() -> Vec<Growing> {
    let column = |dtype, elements| Growing { dtype, elements, default: 0 };
    vec![column(Dtype::Int8, 0), column(Dtype::UInt8, 5), column(Dtype::Float16, 3), column(Dtype::BFloat16, 0)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn rows_of_every_version_are_read_as_a_naive_upgrade_has_them(
        steps in proptest::collection::vec((0usize..6, 0usize..6, 1u64..60, any::<bool>()), 1..7),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::new(folder.path(), start(), 600);
        model.append(&start(), 30);
        let mut older = vec![start()];
        for (at, pick, count, old) in steps {
            let change = match wider(model.columns[at % model.columns.len()].dtype, pick) {
                Some(to) if pick < 4 => Change::Widen(at % model.columns.len(), to),
                _ => {
                    let dtype = [Dtype::Int8, Dtype::UInt16, Dtype::Float16, Dtype::Float64][at % 4];
                    Change::Add { dtype, elements: pick as u32, default: (at * 7) as i64 }
                }
            };
            model.grow(&change);
            let columns = model.columns.clone();
            model.append(&columns, count);
            if old {
                // A producer that was not upgraded.
                let behind = older[at % older.len()].clone();
                model.append(&behind, 1 + count / 3);
            }
            older.push(columns);
        }
        let columns = model.columns.clone();
        for settings in readers() {
            compare(&model, &columns, None, settings, 2);
        }
        // What is new, alone and the other way round.
        let chosen: Vec<usize> = (0..columns.len()).rev().filter(|at| at % 2 == 1 || *at >= 4).collect();
        compare(&model, &columns, Some(&chosen), readers()[2].clone(), 1);
        let dataset = feeder::engine::Dataset::all_of(folder.path(), &name()).unwrap();
        for id in (0..model.stored.len() as u64).step_by(7) {
            for (at, (_, bytes)) in dataset.sample(id, None).unwrap().into_iter().enumerate() {
                prop_assert!(bytes == model.naive(id, at, &columns));
            }
        }
        let report = model.topic.verify(&mut |_| {}).unwrap();
        prop_assert!(report.is_good());
    }
}

#[test]
fn large_rows_that_did_not_change_are_still_read_straight() {
    let folder = tempfile::tempdir().unwrap();
    let columns = vec![
        Growing { dtype: Dtype::Int32, elements: 0, default: 0 },
        Growing { dtype: Dtype::UInt8, elements: 9000, default: 0 },
    ];
    let mut model = Model::new(folder.path(), columns.clone(), 64 << 10);
    model.append(&columns, 60);
    model.grow(&Change::Add { dtype: Dtype::Int16, elements: 700, default: -4 });
    model.grow(&Change::Widen(0, Dtype::Int64));
    let columns = model.columns.clone();
    model.append(&columns, 40);
    for settings in readers() {
        compare(&model, &columns, None, settings.clone(), 2);
        compare(&model, &columns, Some(&[2]), settings, 2);
    }
}

/// A job that began before the topic grew goes on under the schema that it began with: the same batches to the byte.
#[test]
fn a_resumed_job_sees_the_schema_that_it_began_with() {
    for settings in readers() {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::new(folder.path(), start(), 600);
        model.append(&start(), 100);
        let first = start();
        model.grow(&Change::Widen(1, Dtype::Int16));
        let second = model.columns.clone();
        model.append(&second, 57);
        let run = |state: Option<&State>, settings: &Settings, steps: usize| {
            let mut loader = Loader::open(folder.path(), &name(), settings.clone()).unwrap();
            if let Some(state) = state {
                loader.load(state).unwrap();
                assert_eq!(loader.state(None).unwrap(), *state);
            }
            loader.begin().unwrap();
            let mut seen = Vec::new();
            while seen.len() < steps
                && let Some(batch) = next(&mut loader)
            {
                let columns = batch.columns.iter();
                seen.push(
                    columns.map(|c| (c.name.to_string(), c.dtype, bytes(&batch, &c.name).to_vec())).collect::<Vec<_>>(),
                );
            }
            (seen, loader.state(None).unwrap())
        };
        let (straight, _) = run(None, &settings, usize::MAX);
        let (begun, state) = run(None, &settings, 5);
        assert_eq!(state.schema, 2);
        model.grow(&Change::Widen(1, Dtype::Int64));
        model.grow(&Change::Add { dtype: Dtype::Float32, elements: 0, default: 1 });
        let newest = model.columns.clone();
        model.append(&newest, 40);
        let text = state.encode();
        let (rest, end) = run(Some(&State::decode(&text).unwrap()), &settings, usize::MAX);
        assert_eq!(end.schema, 2);
        assert!([begun, rest].concat() == straight, "batches or types differ");
        // Another job takes what there is now, and one of the first version takes that.
        compare(&model, &newest, None, settings.clone(), 1);
        let loader = Loader::open(folder.path(), &name(), settings.clone()).unwrap();
        assert_eq!(loader.state(None).unwrap().schema, 4);
        let of_first = State { windows: state.windows.clone(), ..state.clone() }.under_schema(1);
        let mut loader = Loader::open(folder.path(), &name(), settings.clone()).unwrap();
        loader.load(&of_first).unwrap();
        assert_eq!(loader.dataset().schema().to_string(), text_of(&first));
        // Rows of a later version cannot be had under an earlier, narrower one.
        loader.begin().unwrap();
        let error = loop {
            match loader.poll_next(WAIT) {
                Ok(Step::Batch(_)) => {}
                Ok(_) => panic!("narrowed"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::StateMismatch);
        assert!(error.to_string().contains("column=\"c1\" from=int16[5] to=uint8[5]"), "{error}");
        // What the state's schema lacks is refused, and nothing has changed.
        let settings = Settings { columns: Some(vec!["c4".into()]), ..settings };
        let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
        let before = loader.state(None).unwrap();
        let error = loader.load(&state).unwrap_err();
        assert!(error.kind() == ErrorKind::StateMismatch && error.to_string().contains("c4"), "{error}");
        assert_eq!(loader.state(None).unwrap(), before);
        let error = loader.load(&state.under_schema(9)).unwrap_err();
        assert!(error.to_string().contains("state=9 versions=4"), "{error}");
    }
}

#[test]
fn damage_to_older_rows_is_found_by_the_sums_of_what_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::new(folder.path(), start(), 600);
    model.append(&start(), 60);
    model.grow(&Change::Widen(1, Dtype::Int32));
    let columns = model.columns.clone();
    model.append(&columns, 20);
    let view = model.topic.view().unwrap();
    let segment = view.partitions[0].segment_of(17).unwrap();
    let block = segment.block_of(17).unwrap();
    let at = block.body + feeder::log::column_at(segment.schema(), block.rows, 1) + (17 - block.base) * 5;
    let file = std::fs::File::options().write(true).open(&segment.path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xee], at).unwrap();
    let mut settings = readers()[1].clone();
    let mut loader = Loader::open(folder.path(), &name(), settings.clone()).unwrap();
    loader.begin().unwrap();
    let error = std::iter::from_fn(|| Some(loader.poll_next(WAIT))).find_map(Result::err).unwrap();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("column=\"c1\""), "{error}");
    (settings.on_bad_record, settings.drop_last) = (OnBadRecord::Substitute, false);
    settings.bad_records_max = 100;
    let mut loader = Loader::open(folder.path(), &name(), settings).unwrap();
    loader.begin().unwrap();
    let good: Vec<Vec<u8>> = (0..80).map(|id| model.naive(id, 1, &columns)).collect();
    while let Some(batch) = next(&mut loader) {
        assert!(bytes(&batch, "c1").chunks(20).all(|row| good.iter().any(|good| good == row)));
    }
    assert!(loader.bad_records().contains_key(&17));
}

#[test]
fn columns_that_an_earlier_schema_lacks_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::new(folder.path(), start(), 600);
    model.append(&start(), 40);
    model.grow(&Change::Add { dtype: Dtype::Int16, elements: 2, default: 9 });
    let columns = model.columns.clone();
    model.append(&columns, 30);
    let mut loader = Loader::open(folder.path(), &name(), readers()[1].clone()).unwrap();
    let state = loader.state(None).unwrap().under_schema(1);
    loader.load(&state).unwrap();
    loader.begin().unwrap();
    let mut samples = 0;
    while let Some(batch) = next(&mut loader) {
        assert_eq!(batch.columns.iter().map(|column| &*column.name).collect::<Vec<_>>(), ["c0", "c1", "c2", "c3"]);
        samples += batch.rows;
    }
    assert_eq!(samples, 70);
}
