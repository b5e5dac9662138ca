//! npy files: every type, both orders, structured arrays, and what is refused.

use std::sync::Arc;

use arrow_buffer::Buffer;

use super::fixtures::*;
use super::{Given, open};
use crate::error::ErrorKind;
use crate::rows::Rows;
use crate::schema::Schema;

fn le<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

fn rows(schema: &str, count: usize, columns: Vec<Vec<u8>>) -> Rows {
    let columns = columns.into_iter().map(Buffer::from_vec).collect();
    Rows::new(Arc::new(Schema::parse(schema).unwrap()), count, columns).unwrap()
}

fn error(bytes: &[u8], given: &Given) -> crate::Error {
    let file = file("x.npy", bytes);
    match read_all(&file.path, given, 10) {
        Err(error) => error,
        Ok(rows) => panic!("read {} rows", rows.count()),
    }
}

#[test]
fn every_dtype_in_both_byte_orders() {
    let values: Vec<u8> = (0..48).map(|n| n * 5 + 1).collect();
    for (descr, dtype, width) in [
        ("i1", "int8", 1),
        ("u1", "uint8", 1),
        ("i2", "int16", 2),
        ("u2", "uint16", 2),
        ("f2", "float16", 2),
        ("i4", "int32", 4),
        ("u4", "uint32", 4),
        ("f4", "float32", 4),
        ("i8", "int64", 8),
        ("u8", "uint64", 8),
        ("f8", "float64", 8),
    ] {
        let count = 48 / width / 2;
        let expected = rows(&format!("data:{dtype}[2]"), count, vec![values.clone()]);
        let little = file("x.npy", &npy(&format!("'<{descr}'"), &format!("({count}, 2)"), &values));
        assert_reads(&little.path, &Given::default(), &expected);
        let swapped: Vec<u8> = values.chunks(width).flat_map(|chunk| chunk.iter().rev().copied()).collect();
        let big = file("x.npy", &npy(&format!("'>{descr}'"), &format!("({count}, 2)"), &swapped));
        assert_reads(&big.path, &Given::default(), &expected);
    }
}

#[test]
fn versions_and_names() {
    let header = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }";
    for version in 1..=3 {
        let file = file("x", &npy_bytes(version, header, &[0, 1, 9]));
        assert_reads(&file.path, &Given::default(), &rows("data:bool", 3, vec![vec![0, 1, 1]]));
        assert_reads(&file.path, &columns("label"), &rows("label:bool", 3, vec![vec![0, 1, 1]]));
        assert_reads(&file.path, &given("y:bool[1]"), &rows("y:bool[1]", 3, vec![vec![0, 1, 1]]));
    }
}

#[test]
fn fortran_order_is_turned_over() {
    // Row i, place (j, k) holds 100 i + 10 j + k.
    let (n, a, b) = (5u16, 3, 2);
    let mut fortran = Vec::new();
    let mut ordered = Vec::new();
    (0..b).for_each(|k| (0..a).for_each(|j| (0..n).for_each(|i| fortran.push(100 * i + 10 * j + k))));
    (0..n).for_each(|i| (0..a).for_each(|j| (0..b).for_each(|k| ordered.push(100 * i + 10 * j + k))));
    let expected = rows("data:uint16[3x2]", 5, vec![le(&ordered, u16::to_le_bytes)]);
    let header = |descr| format!("{{'descr': '{descr}', 'fortran_order': True, 'shape': (5, 3, 2), }}");
    let little = npy_bytes(1, &header("<u2"), &le(&fortran, u16::to_le_bytes));
    assert_reads(&file("x.npy", &little).path, &Given::default(), &expected);
    let big = npy_bytes(1, &header(">u2"), &le(&fortran, u16::to_be_bytes));
    assert_reads(&file("x.npy", &big).path, &Given::default(), &expected);
    let zipped = rows("x:uint16[3x2]", 5, vec![le(&ordered, u16::to_le_bytes)]);
    for deflated in [false, true] {
        assert_reads(&file("x.npz", &npz(&[("x", little.clone())], deflated)).path, &Given::default(), &zipped);
    }
}

#[test]
fn fields_are_columns() {
    let descr = "[('id', '>i4'), ('', '|V1'), ('pair', '<u2', (2,)), ('ok', '|b1')]";
    let mut data = Vec::new();
    for n in 0..4u16 {
        data.extend(i32::from(n).to_be_bytes());
        data.push(0xee);
        data.extend(n.to_le_bytes());
        data.extend((n + 10).to_le_bytes());
        data.push(u8::from(n % 2 == 0));
    }
    let pairs: Vec<u16> = (0..4).flat_map(|n| [n, n + 10]).collect();
    let file = file("x.npy", &npy(descr, "(4,)", &data));
    let all = rows(
        "id:int32, pair:uint16[2], ok:bool",
        4,
        vec![le(&[0, 1, 2, 3], i32::to_le_bytes), le(&pairs, u16::to_le_bytes), vec![1, 0, 1, 0]],
    );
    assert_reads(&file.path, &Given::default(), &all);
    let some = rows("ok:bool, id:int64", 4, vec![vec![1, 0, 1, 0], le(&[0, 1, 2, 3], i64::to_le_bytes)]);
    assert_reads(&file.path, &given("ok:bool, id:int64"), &some);
}

#[test]
fn bfloat16_only_when_said() {
    let bytes = npy("'<V2'", "(2,)", &[1, 2, 3, 4]);
    let refused = error(&bytes, &Given::default());
    assert!(refused.hint().unwrap().contains("data:bfloat16"), "{refused:?}");
    assert!(error(&bytes, &given("x:uint16")).to_string().contains("file=void2"));
    let expected = rows("x:bfloat16", 2, vec![vec![1, 2, 3, 4]]);
    assert_reads(&file("x.npy", &bytes).path, &given("x:bfloat16"), &expected);
}

#[test]
fn what_is_no_array_of_numbers_is_refused() {
    let pickled = error(&npy("'|O'", "(2,)", b"\x80\x04"), &Given::default());
    assert!(pickled.to_string().contains("pickled objects are refused"), "{pickled}");
    assert_eq!(pickled.kind(), ErrorKind::Invalid);
    for (descr, shape, bytes, why) in [
        ("'<f4'", "()", 4, "scalar"),
        ("'<U1'", "(1,)", 4, "type=numpy <U1"),
        ("'<M8[ns]'", "(1,)", 8, "type=numpy <M8[ns]"),
        ("'|V8'", "(1,)", 8, "type=numpy |V8"),
        ("'<c8'", "(1,)", 8, "type=numpy <c8"),
        ("'<f4'", "(1, 0)", 0, "none of them 0"),
        ("[('a', [('b', '<f4')])]", "(1,)", 4, "flatten"),
        ("[('a', '<f4')]", "(1, 2)", 8, "one dimension"),
    ] {
        let refused = error(&npy(descr, shape, &vec![0; bytes]), &Given::default());
        assert!(refused.to_string().contains(why), "{descr}: {refused}");
        assert!(refused.to_string().contains("x.npy"), "{refused}");
    }
}

#[test]
fn sizes_must_agree() {
    let cut = error(&npy("'<f4'", "(3,)", &[0; 11]), &Given::default());
    assert_eq!((cut.kind(), cut.to_string().contains("bytes=11 expected=12")), (ErrorKind::Corrupt, true), "{cut}");
    let long = error(&npy("'<f4'", "(3,)", &[0; 13]), &Given::default());
    assert!(long.to_string().contains("more follows"), "{long}");
    let huge = error(&npy("'<f4'", "(4611686018427387904, 4)", &[]), &Given::default());
    assert!(huge.to_string().contains("overflows"), "{huge}");
    let large = error(&npy("'<f4'", "(461168601842738790,)", &[]), &Given::default());
    assert_eq!(large.kind(), ErrorKind::Corrupt);
    let empty = file("x.npy", &npy("'<f4'", "(0, 3)", &[]));
    assert_reads(&empty.path, &Given::default(), &rows("data:float32[3]", 0, vec![Vec::new()]));
}

#[test]
fn arrays_of_an_npz_are_columns() {
    let id = le(&[7i32, 8, 9], i32::to_le_bytes);
    let members = [
        ("image", npy("'|u1'", "(3, 2, 2)", &(0..12).collect::<Vec<_>>())),
        ("id", npy("'<i4'", "(3,)", &id)),
        ("ok", npy("'|b1'", "(3,)", &[1, 0, 1])),
    ];
    let all = rows("image:uint8[2x2], id:int32, ok:bool", 3, vec![(0..12).collect(), id.clone(), vec![1, 0, 1]]);
    let some = rows("id:int64, image:uint8[4]", 3, vec![le(&[7, 8, 9], i64::to_le_bytes), (0..12).collect()]);
    for deflated in [false, true] {
        let file = file("x.npz", &npz(&members, deflated));
        assert_reads(&file.path, &Given::default(), &all);
        assert_reads(&file.path, &given("id:int64, image:uint8[4]"), &some);
        assert_reads(&file.path, &columns("id"), &rows("id:int32", 3, vec![id.clone()]));
        let missing = read_all(&file.path, &columns("imag"), 1).unwrap_err();
        assert!(missing.to_string().contains("did you mean \"image\"?"), "{missing}");
    }
}

#[test]
fn arrays_that_do_not_belong_together_are_named() {
    let members = [
        ("x", npy("'|u1'", "(3,)", &[1, 2, 3])),
        ("y", npy("'|u1'", "(3,)", &[4, 5, 6])),
        ("names", npy("'<U1'", "(3,)", &[0; 12])),
        ("mean", npy("'<f4'", "()", &[0; 4])),
        ("classes", npy("'|u1'", "(2,)", &[0; 2])),
    ];
    let file = file("x.npz", &npz(&members, true));
    let error = read_all(&file.path, &Given::default(), 1).unwrap_err();
    assert!(error.to_string().contains("x=3 y=3 names=3 mean=scalar classes=2"), "{error}");
    assert_eq!(error.hint().unwrap(), "choose the arrays that belong together: --columns x,y");
    assert_reads(&file.path, &columns("x,y"), &rows("x:uint8, y:uint8", 3, vec![vec![1, 2, 3], vec![4, 5, 6]]));
}

#[test]
fn a_64_bit_end_beside_32_bit_values_is_read() {
    let id = le(&[7i32, 8, 9], i32::to_le_bytes);
    let plain = npz(&[("id", npy("'<i4'", "(3,)", &id))], false);
    let (members, end) = plain.split_at(plain.len() - 22);
    let word = |at: usize| u64::from(u32::from_le_bytes([end[at], end[at + 1], end[at + 2], end[at + 3]]));
    let entries = u64::from(end[10]);
    let mut bytes = members.to_vec();
    bytes.extend_from_slice(b"PK\x06\x06");
    bytes.extend_from_slice(&44u64.to_le_bytes());
    bytes.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for value in [entries, entries, word(12), word(16)] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    bytes.extend_from_slice(&(members.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(end);
    assert_reads(&file("x.npz", &bytes).path, &Given::default(), &rows("id:int32", 3, vec![id]));
}

#[test]
fn foreign_zips_are_told_apart() {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file("archive/data.pkl", zip::write::SimpleFileOptions::default()).unwrap();
    let torch = file("model.npz", &writer.finish().unwrap().into_inner());
    let error = read_all(&torch.path, &Given::default(), 1).unwrap_err().to_string();
    assert!(error.contains("pickled objects are refused") && error.contains("torch.save"), "{error}");
    let empty = file("x.npz", &npz(&[], false));
    assert!(read_all(&empty.path, &Given::default(), 1).unwrap_err().to_string().contains("no columns"));
}

/// The bytes of a stored npz with members `a` and `b`, and the place of each `needle` in them.
fn two_members(needle: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let members = [("a", npy("'|u1'", "(3,)", &[1, 2, 3])), ("b", npy("'|u1'", "(3,)", &[4, 5, 6]))];
    let bytes = npz(&members, false);
    let places = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(needle)).collect();
    (bytes, places)
}

#[test]
fn hostile_zips_are_refused() {
    let refused = |bytes: &[u8]| {
        let file = file("x.npz", bytes);
        read_all(&file.path, &Given::default(), 2).unwrap_err().to_string()
    };
    let (mut bytes, places) = two_members(b"b.npy");
    places.iter().for_each(|&at| bytes[at] = b'a');
    assert!(refused(&bytes).contains("two members of the zip have the same name"));

    // Flipped content is found by its sum, at the latest behind the last row.
    let (mut bytes, places) = two_members(&[1, 2, 3]);
    bytes[places[0]] = 9;
    assert!(refused(&bytes).contains("cannot decompress, the file is damaged"));

    // The second entry of the directory points to the first member.
    let (mut bytes, entries) = two_members(b"PK\x01\x02");
    bytes[entries[1] + 42..entries[1] + 46].fill(0);
    assert!(refused(&bytes).contains("overlap"));

    // Encrypted, and an unknown method.
    let (mut bytes, entries) = two_members(b"PK\x01\x02");
    bytes[entries[0] + 8] |= 1;
    assert!(refused(&bytes).contains("encrypted"));
    let (mut bytes, entries) = two_members(b"PK\x01\x02");
    bytes[entries[0] + 10] = 93;
    assert!(refused(&bytes).contains("compression method 93"));

    // Sizes that cannot be.
    let (mut bytes, entries) = two_members(b"PK\x01\x02");
    bytes[entries[0] + 24..entries[0] + 28].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    assert!(refused(&bytes).contains("declares a size that it cannot have"));
    let (bytes, _) = two_members(b"");
    assert!(refused(&bytes[..bytes.len() - 1]).contains("directory is missing"));
}

#[test]
fn a_zip_that_lies_about_its_size_is_refused() {
    let rows_total = 1u64 << 30;
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows_total},), }}");
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .compression_level(Some(1))
        .large_file(true);
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file("x.npy", options).unwrap();
    std::io::Write::write_all(&mut writer, &npy_bytes(1, &header, &[])).unwrap();
    // The declared shape is a lie: there are 4 MiB.
    for _ in 0..4 {
        std::io::Write::write_all(&mut writer, &vec![0; 1 << 20]).unwrap();
    }
    let file = file("x.npz", &writer.finish().unwrap().into_inner());
    let Err(error) = open(&file.path, &Given::default()) else { panic!() };
    assert!(error.to_string().contains("an array's shape and its size in the zip disagree"), "{error}");
}

#[test]
fn a_zip_bomb_is_read_in_parts() {
    // 16 MiB of zeros in some KiB: whoever takes some rows and stops has paid for these only.
    let rows_total = 16u64 << 20;
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows_total},), }}");
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &npy_bytes(1, &header, &[])).unwrap();
    for _ in 0..16 {
        std::io::Write::write_all(&mut encoder, &[0; 1 << 20]).unwrap();
    }
    let packed = encoder.finish().unwrap();
    let file = file("x.npz", &raw_zip(&packed, npy_bytes(1, &header, &[]).len() as u64 + rows_total));
    let mut decoder = open(&file.path, &Given::default()).unwrap();
    assert_eq!(decoder.rows_total(), Some(rows_total));
    assert_eq!(decoder.next(1000).unwrap().unwrap().bytes(), 1000);
}

/// A zip of the deflated member `x.npy`, whose sum is left 0.
fn raw_zip(packed: &[u8], bytes: u64) -> Vec<u8> {
    let (packed_bytes, bytes) = ((packed.len() as u32).to_le_bytes(), (bytes as u32).to_le_bytes());
    let common = [&[20, 0, 0, 0, 8, 0][..], &[0; 8], &packed_bytes, &bytes, &[5, 0, 0, 0]].concat();
    let mut zip = [b"PK\x03\x04", &common[..], b"x.npy", packed].concat();
    let at = zip.len() as u32;
    let entry = [b"PK\x01\x02", &[20, 0][..], &common, &[0; 14], b"x.npy"].concat();
    zip.extend(&entry);
    zip.extend(
        [b"PK\x05\x06", &[0, 0, 0, 0, 1, 0, 1, 0][..], &(entry.len() as u32).to_le_bytes(), &at.to_le_bytes(), &[0, 0]]
            .concat(),
    );
    zip
}
