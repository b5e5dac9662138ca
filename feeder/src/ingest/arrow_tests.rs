//! Parquet and Arrow IPC against rows of every type.

use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeBinaryBuilder, Int32Builder, ListBuilder, MapBuilder, StringBuilder, UInt8Builder,
};
use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeListArray, Float32Array, Int32Array,
    Int64Array, LargeListArray, ListArray, NullArray, RecordBatch, RunArray, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray, UInt16Array, UnionArray,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, UnionFields};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::fixtures::*;
use super::{Given, open};
use crate::error::ErrorKind;
use crate::rows::Rows;
use crate::schema::{Dtype, Schema};

/// How a test writes a batch.
#[derive(Clone, Copy, Debug)]
enum Form {
    Parquet { arrow_schema: bool },
    File(Option<CompressionType>),
    Stream(Option<CompressionType>),
}

const FORMS: [Form; 8] = [
    Form::Parquet { arrow_schema: true },
    Form::Parquet { arrow_schema: false },
    Form::File(None),
    Form::File(Some(CompressionType::LZ4_FRAME)),
    Form::File(Some(CompressionType::ZSTD)),
    Form::Stream(None),
    Form::Stream(Some(CompressionType::LZ4_FRAME)),
    Form::Stream(Some(CompressionType::ZSTD)),
];

/// Writes the batch in parts of `part` rows: row groups or record batches.
fn bytes_of(form: Form, batch: &RecordBatch, part: usize) -> Vec<u8> {
    let parts = (0..batch.num_rows()).step_by(part).map(|at| batch.slice(at, part.min(batch.num_rows() - at)));
    let options = |codec| IpcWriteOptions::default().try_with_compression(codec).unwrap();
    match form {
        Form::Parquet { arrow_schema } => {
            let properties = WriterProperties::builder()
                .set_max_row_group_row_count(Some(part))
                .set_compression(Compression::ZSTD(ZstdLevel::default()))
                .build();
            let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(!arrow_schema);
            let mut writer = ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options).unwrap();
            parts.for_each(|part| writer.write(&part).unwrap());
            writer.into_inner().unwrap()
        }
        Form::File(codec) => {
            let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options(codec)).unwrap();
            parts.for_each(|part| writer.write(&part).unwrap());
            writer.into_inner().unwrap()
        }
        Form::Stream(codec) => {
            let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options(codec)).unwrap();
            parts.for_each(|part| writer.write(&part).unwrap());
            writer.into_inner().unwrap()
        }
    }
}

fn error(form: Form, columns: Vec<(&str, ArrayRef)>, given: &Given) -> crate::Error {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = file("x.bin", &bytes_of(form, &batch, 2));
    match read_all(&file.path, given, 10) {
        Err(error) => error,
        Ok(rows) => panic!("read {} rows", rows.count()),
    }
}

/// Rows of every dtype, scalar and shaped.
fn all_types(count: usize) -> Rows {
    let scalars = Dtype::ALL.map(|dtype| format!("s_{dtype}:{dtype}"));
    let shaped = Dtype::ALL.map(|dtype| format!("t_{dtype}:{dtype}[2x3]"));
    let text = scalars.into_iter().chain(shaped).collect::<Vec<_>>().join(", ");
    let schema = Arc::new(Schema::parse(&text).unwrap());
    let columns = schema.columns().iter().map(|column| {
        let most = if column.dtype == Dtype::Bool { 2 } else { 251 };
        Buffer::from_vec((0..count * column.row_bytes()).map(|n| (n * 7 % most) as u8).collect::<Vec<u8>>())
    });
    Rows::new(schema.clone(), count, columns.collect()).unwrap()
}

#[test]
fn rows_of_every_type_come_back() {
    let rows = all_types(11);
    let batch = rows.to_arrow().unwrap();
    for form in FORMS {
        // Without the arrow schema parquet has lists of any length, and neither bool8 nor bfloat16.
        let schema = match form {
            Form::Parquet { arrow_schema: false } => continue,
            _ => Given::default(),
        };
        let file = file("x.bin", &bytes_of(form, &batch, 4));
        assert_reads(&file.path, &schema, &rows);
        let some = "t_uint8:uint8[6], s_int32:int64, s_bool:bool";
        let read = read_all(&file.path, &given(some), 3).unwrap();
        assert_eq!(read.schema().to_string(), some);
        assert_eq!(read.column(0), rows.column(rows.schema().index_of("t_uint8").unwrap()));
        assert_eq!(read.column(2), rows.column(rows.schema().index_of("s_bool").unwrap()));
    }
}

/// Columns as other software writes them: nullable, nested, bits, binaries, lists of any length.
fn foreign() -> (RecordBatch, Rows) {
    let bits: Vec<bool> = (0..70).map(|n| n % 3 == 0).collect();
    let item = |kind| Arc::new(Field::new("item", kind, true));
    let floats: Vec<f32> = (0..70 * 6).map(|n| n as f32 / 2.0).collect();
    let inner = FixedSizeListArray::new(item(DataType::Float32), 3, Arc::new(Float32Array::from(floats.clone())), None);
    let nested = FixedSizeListArray::new(item(inner.data_type().clone()), 2, Arc::new(inner), None);
    let flags = FixedSizeListArray::new(
        item(DataType::Boolean),
        5,
        Arc::new(BooleanArray::from((0..350).map(|n| n % 7 < 3).collect::<Vec<_>>())),
        None,
    );
    let mut binary = FixedSizeBinaryBuilder::new(3);
    (0..70u8).for_each(|n| binary.append_value([n, n + 1, n + 2]).unwrap());
    let list = ListArray::from_iter_primitive::<Float32Type, _, _>(
        (0..70).map(|n| Some(vec![Some(n as f32), Some(-1.0), Some(0.5), Some(8.0)])),
    );
    let wide: ArrayRef = Arc::new(Int32Array::from((0..140).collect::<Vec<_>>()));
    let large = LargeListArray::new(item(DataType::Int32), OffsetBuffer::from_lengths([2; 70]), wide, None);
    let names: ArrayRef = Arc::new(StringArray::from((0..70).map(|n| n.to_string()).collect::<Vec<_>>()));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("bits", Arc::new(BooleanArray::from(bits.clone())) as ArrayRef, true),
        ("name", names, true),
        ("nested", Arc::new(nested), true),
        ("flags", Arc::new(flags), true),
        ("binary", Arc::new(binary.finish()), true),
        ("list", Arc::new(list), true),
        ("large", Arc::new(large), true),
        ("half", Arc::new(UInt16Array::from((0..70u16).collect::<Vec<_>>())), true),
    ])
    .unwrap();
    let schema = "half:bfloat16, bits:bool, large:int64[2], nested:float32[2x3], list:float32[2x2], binary:uint8[3], flags:bool[5]";
    let f32s = |values: Vec<f32>| Buffer::from_vec(values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let columns = vec![
        Buffer::from_vec((0..70u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()),
        Buffer::from_vec(bits.iter().map(|&bit| u8::from(bit)).collect::<Vec<u8>>()),
        Buffer::from_vec((0..140i64).flat_map(i64::to_le_bytes).collect::<Vec<u8>>()),
        f32s(floats),
        f32s((0..70).flat_map(|n| [n as f32, -1.0, 0.5, 8.0]).collect()),
        Buffer::from_vec((0..70u8).flat_map(|n| [n, n + 1, n + 2]).collect::<Vec<u8>>()),
        Buffer::from_vec((0..350).map(|n| u8::from(n % 7 < 3)).collect::<Vec<u8>>()),
    ];
    (batch, Rows::new(Arc::new(Schema::parse(schema).unwrap()), 70, columns).unwrap())
}

#[test]
fn what_others_write_is_understood() {
    let (batch, rows) = foreign();
    for form in FORMS {
        for part in [33, 100] {
            let file = file("x.bin", &bytes_of(form, &batch, part));
            assert_reads(&file.path, &given(&rows.schema().to_string()), &rows);
        }
    }
    // A slice has offsets that do not begin at 0.
    let (sliced, expected) = (batch.slice(13, 40), rows.slice(13, 40));
    for form in FORMS {
        let file = file("x.bin", &bytes_of(form, &sliced, 100));
        assert_reads(&file.path, &given(&rows.schema().to_string()), &expected);
    }
}

#[test]
fn types_that_topics_do_not_hold_are_named() {
    let (batch, _) = foreign();
    for form in FORMS {
        let file = file("x.bin", &bytes_of(form, &batch, 100));
        let error = read_all(&file.path, &columns("bits,name"), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("column=\"name\" type=Utf8"), "{error}");
        assert!(error.hint().unwrap().starts_with("take the others: --columns bits,"), "{error:?}");
        let lists = read_all(&file.path, &columns("half,list"), 1).unwrap_err();
        assert!(lists.hint().unwrap().contains("list:float32["), "{lists:?}");
        if let Form::Parquet { .. } = form {
            assert!(lists.hint().unwrap().ends_with("--schema 'half:uint16, list:float32[4]'"), "{lists:?}");
        }
    }
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![1, 2]));
    for form in FORMS {
        let error = error(form, vec![("t", times.clone())], &Given::default());
        assert!(error.to_string().contains("type=Timestamp"), "{error}");
    }
}

#[test]
fn nulls_are_refused_with_their_row() {
    let scalar: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(2), Some(3), None, Some(5)]));
    let mut lists = ListBuilder::new(UInt8Builder::new());
    (0..4).for_each(|n| lists.append_value([Some(n), Some(1)]));
    lists.append_value([Some(1), None]);
    let inside: ArrayRef = Arc::new(lists.finish());
    for form in FORMS {
        let error_of = error(form, vec![("a", scalar.clone())], &Given::default());
        assert!(error_of.to_string().contains("column=\"a\" row=3"), "{form:?}: {error_of}");
        let error_of = error(form, vec![("b", inside.clone())], &given("b:uint8[2]"));
        assert!(error_of.to_string().contains("column=\"b\" row=4"), "{form:?}: {error_of}");
    }
    // Nullable columns without nulls are fine, also when others have some.
    let batch = RecordBatch::try_from_iter([("a", scalar), ("b", inside)]).unwrap().slice(0, 3);
    for form in FORMS {
        let file = file("x.bin", &bytes_of(form, &batch, 2));
        assert_eq!(read_all(&file.path, &given("a:int64, b:uint8[2]"), 9).unwrap().count(), 3);
    }
}

#[test]
fn ragged_lists_are_refused_with_their_row() {
    let mut lists = ListBuilder::new(UInt8Builder::new());
    [2usize, 2, 2, 3, 1].iter().for_each(|&n| lists.append_value(vec![Some(1); n]));
    let lists: ArrayRef = Arc::new(lists.finish());
    for form in FORMS {
        let error = error(form, vec![("a", lists.clone())], &given("a:uint8[2]"));
        assert!(error.to_string().contains("row=3 length=3 expected=2"), "{form:?}: {error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn unfinished_files_are_told_apart() {
    let batch = all_types(5).to_arrow().unwrap();
    let stream = bytes_of(Form::Stream(None), &batch, 2);
    let unfinished = file("x.arrows", &stream[..stream.len() - 8]);
    let error = read_all(&unfinished.path, &Given::default(), 1).unwrap_err();
    assert!(error.to_string().contains("no end mark"), "{error}");
    let twice = file("x.arrows", &[stream.clone(), stream].concat());
    assert!(read_all(&twice.path, &Given::default(), 1).unwrap_err().to_string().contains("more follows"));
    let arrow = bytes_of(Form::File(None), &batch, 2);
    let unfinished = file("x.arrow", &arrow[..arrow.len() / 2]);
    assert!(read_all(&unfinished.path, &Given::default(), 1).unwrap_err().to_string().contains("no footer"));
    let parquet = bytes_of(FORMS[0], &batch, 2);
    let unfinished = file("x.parquet", &parquet[..parquet.len() / 2]);
    let error = read_all(&unfinished.path, &Given::default(), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn empty_files_have_a_schema_and_no_rows() {
    let rows = all_types(0);
    for form in FORMS {
        if matches!(form, Form::Parquet { arrow_schema: false }) {
            continue;
        }
        let file = file("x.bin", &bytes_of(form, &rows.to_arrow().unwrap(), 1));
        assert_reads(&file.path, &Given::default(), &rows);
    }
}

#[test]
fn parts_of_any_size_follow_each_other() {
    let rows = all_types(50);
    for form in [FORMS[0], FORMS[2], FORMS[7]] {
        let file = file("x.bin", &bytes_of(form, &rows.to_arrow().unwrap(), 17));
        let mut decoder = open(&file.path, &Given::default()).unwrap();
        let mut at = 0;
        for rows_max in [1, 7, 2, 4, 9, 3, 50, 50, 50] {
            let Some(part) = decoder.next(rows_max).unwrap() else { break };
            assert_same(&part, &rows.slice(at, part.count()));
            at += part.count();
        }
        assert_eq!(at, 50, "{form:?}");
        assert!(decoder.next(1).unwrap().is_none());
    }
}

/// Columns of every kind that arrow has beside those that topics hold, between two that they do.
fn many_kinds() -> RecordBatch {
    let strings = || StringArray::from(vec!["a", "bb", "a long one, not inline"]);
    let ints = || Arc::new(Int32Array::from(vec![1, 2, 3])) as ArrayRef;
    let item = |kind| Arc::new(Field::new("item", kind, true));
    let pair = StructArray::from(vec![
        (Arc::new(Field::new("x", DataType::Int32, true)), ints()),
        (Arc::new(Field::new("y", DataType::Utf8, true)), Arc::new(strings()) as ArrayRef),
    ]);
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    (0..3).for_each(|n| {
        map.keys().append_value("k");
        map.values().append_value(n);
        map.append(true).unwrap();
    });
    let fields =
        UnionFields::from_fields(vec![Field::new("i", DataType::Int32, true), Field::new("s", DataType::Utf8, true)]);
    let children = || vec![ints(), Arc::new(strings()) as ArrayRef];
    let sparse = UnionArray::try_new(fields.clone(), vec![0i8, 1, 0].into(), None, children()).unwrap();
    let dense = UnionArray::try_new(fields, vec![0i8, 1, 0].into(), Some(vec![0, 0, 1].into()), children()).unwrap();
    let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2, 3]), &Int32Array::from(vec![7, 8])).unwrap();
    let keys = Int32Array::from(vec![0, 1, 0]);
    let words = DictionaryArray::<Int32Type>::new(keys, Arc::new(StringArray::from(vec!["p", "q"])));
    let offsets = || OffsetBuffer::from_lengths([1, 1, 1]);
    let views = StringViewArray::from_iter_values(["a", "a text that does not fit into its view", "b"]);
    RecordBatch::try_from_iter_with_nullable([
        ("first", Arc::new(Int64Array::from(vec![10, 11, 12])) as ArrayRef, false),
        ("null", Arc::new(NullArray::new(3)), true),
        ("struct", Arc::new(pair), true),
        ("map", Arc::new(map.finish()), true),
        ("words", Arc::new(words), true),
        ("texts", Arc::new(ListArray::new(item(DataType::Utf8), offsets(), Arc::new(strings()), None)), true),
        ("views", Arc::new(views), true),
        ("sparse", Arc::new(sparse), true),
        ("dense", Arc::new(dense), true),
        ("runs", Arc::new(runs), true),
        ("decimal", Arc::new(Decimal128Array::from(vec![1, 2, 3])), true),
        ("list", Arc::new(ListArray::new(item(DataType::Int32), offsets(), ints(), None)), true),
        ("last", Arc::new(UInt16Array::from(vec![7, 8, 9])), false),
    ])
    .unwrap()
}

#[test]
fn columns_of_any_kind_are_passed_over() {
    let batch = many_kinds();
    let schema = Arc::new(Schema::parse("last:uint16, list:int32[1], first:int64").unwrap());
    let columns = vec![
        Buffer::from_vec([7u16, 8, 9].into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()),
        Buffer::from_vec([1i32, 2, 3].into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>()),
        Buffer::from_vec([10i64, 11, 12].into_iter().flat_map(i64::to_le_bytes).collect::<Vec<u8>>()),
    ];
    let expected = Rows::new(schema.clone(), 3, columns).unwrap();
    for form in &FORMS[2..] {
        let file = file("x.bin", &bytes_of(*form, &batch, 3));
        assert_reads(&file.path, &given(&schema.to_string()), &expected);
        for column in ["null", "struct", "map", "words", "texts", "views", "sparse", "dense", "runs", "decimal"] {
            let error = read_all(&file.path, &super::fixtures::columns(column), 1).unwrap_err();
            assert!(error.to_string().contains("topics do not hold"), "{column}: {error}");
        }
    }
}
