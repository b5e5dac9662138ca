//! What grows and what is refused, and upgrades against the values themselves.

use proptest::prelude::*;

use super::*;

fn schema(text: &str) -> Arc<Schema> {
    Arc::new(Schema::parse(text).unwrap())
}

fn defaults(texts: &[&str]) -> Defaults {
    Defaults::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// One more version by rows of this schema; `None` if nothing grows.
fn grown(schemas: &Schemas, text: &str, given: &[&str]) -> Result<Option<Schemas>> {
    let mut growth = schemas.growth();
    growth.take(&schema(text), &defaults(given))?;
    growth.check_defaults(&defaults(given))?;
    growth.version(5)?.map(|version| schemas.with(version)).transpose()
}

#[test]
fn columns_go_by_name_widen_and_come_with_defaults() {
    let first = Schemas::first(schema("id:int32, x:float16[2]"));
    for same in ["id:int32, x:float16[2]", "x:float16[2], id:int32", "id:int8, x:float16[2]", "x:float16[2], id:uint16"]
    {
        assert_eq!(grown(&first, same, &[]).unwrap(), None, "{same}");
    }
    let second = grown(&first, "label:int8, x:float16[2], id:int64", &["label=-3"]).unwrap().unwrap();
    assert_eq!(second.newest().schema.to_string(), "id:int64, x:float16[2], label:int8");
    assert_eq!(
        describe_growth(&first.newest().schema, second.newest()),
        "id:int32 becomes int64, label:int8 is new (default -3)"
    );
    // An older producer, and one that is behind in one column and ahead in another.
    assert_eq!(grown(&second, "id:int32, x:float16[2]", &[]).unwrap(), None);
    assert_eq!(grown(&second, "id:int32, x:float16[2]", &["label=-3"]).unwrap(), None, "said again");
    let third = grown(&second, "x:float32[2], id:int32, label:int16", &[]).unwrap().unwrap();
    assert_eq!(third.newest().schema.to_string(), "id:int64, x:float32[2], label:int16");
    assert_eq!(third.default_of("label").unwrap().to_string(), "-3");
    assert_eq!(third.find(&second.newest().schema).unwrap().number, 2);
    assert!(third.version(0).is_none() && third.version(4).is_none());

    let old = Rows::new(
        schema("id:int32, x:float16[2]"),
        1,
        vec![Buffer::from_vec(vec![-7i32]), Buffer::from_vec([0.5, -2.0].map(|x| f16::from_f32(x).to_bits()).to_vec())],
    );
    let new = third.upgrade(&first.newest().schema, &third.newest().schema).unwrap().rows(&old.unwrap()).unwrap();
    assert_eq!(new.column(0).as_slice(), (-7i64).to_le_bytes());
    assert_eq!(new.column(1).as_slice(), [0.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat());
    assert_eq!(new.column(2).as_slice(), (-3i16).to_le_bytes());
}

#[test]
fn what_would_lose_or_guess_is_refused_with_the_column_and_what_to_do() {
    let first = Schemas::first(schema("id:int32, x:float32[2x3], y:uint8"));
    let with_label = grown(&first, "id:int32, x:float32[2x3], y:uint8, label:int16", &["label=4"]).unwrap().unwrap();
    for (schemas, rows, given, why) in [
        (&first, "id:int32, y:uint8", &[][..], "missing: column=\"x\" topic=float32[2x3]"),
        (&first, "id:int32, z:float32[2x3], y:uint8", &["z=0"], "missing: column=\"x\""),
        (&first, "id:uint32, x:float32[2x3], y:uint8", &[], "column=\"id\" topic=int32 rows=uint32"),
        (&first, "id:float64, x:float32[2x3], y:uint8", &[], "column=\"id\" topic=int32 rows=float64"),
        (&first, "id:int32, x:float32[6], y:uint8", &[], "column=\"x\" topic=float32[2x3] rows=float32[6]"),
        (&first, "id:int32, x:float32[2x3], y:bool", &[], "column=\"y\" topic=uint8 rows=bool"),
        (&first, "id:int32, x:float32[2x3], y:int8", &[], "column=\"y\" topic=uint8 rows=int8"),
        (
            &first,
            "id:int32, x:float32[2x3], y:uint8, z:int8",
            &[],
            "needs a default for the rows before it: column=\"z\"",
        ),
        (
            &first,
            "id:int32, x:float32[2x3], y:uint8, z:int8",
            &["z=200"],
            "not a value of its column: column=\"z\" type=int8",
        ),
        (&first, "id:int32, x:float32[2x3], y:uint8", &["id=1"], "every row has: column=\"id\""),
        (
            &first,
            "id:int32, x:float32[2x3], y:uint8",
            &["ids=1"],
            "nobody brings (did you mean \"id\"?): column=\"ids\"",
        ),
        (
            &with_label,
            "id:int32, x:float32[2x3], y:uint8",
            &["label=5"],
            "keeps the default that it was added with: column=\"label\" default=4",
        ),
        (
            &with_label,
            "id:int32, x:float32[2x3], y:uint8, label:float32",
            &[],
            "column=\"label\" topic=int16 rows=float32",
        ),
        (&with_label, "id:int32, x:float32[2x3], label:int16", &[], "missing: column=\"y\""),
    ] {
        let error = grown(schemas, rows, given).unwrap_err();
        assert!(error.to_string().contains(why), "{rows} {given:?}: {error}");
    }
    let error = grown(&first, "id:int32, x:float32[2x3], y:uint8, z:int8", &[]).unwrap_err();
    assert!(error.hint().unwrap().contains("--default z=0"), "{error:?}");
    for bad in ["z", "=", "z:4"] {
        assert!(Defaults::parse(&[bad.to_owned()]).is_err() || bad == "=", "{bad}");
    }
    assert!(Defaults::parse(&["z=1".into(), "z=2".into()]).is_err());
}

#[test]
fn defaults_are_values_of_their_columns() {
    for (column, text, shown) in [
        ("a:bool", "true", "true"),
        ("a:bool", "0", "false"),
        ("a:int8", "-128", "-128"),
        ("a:uint64", "18446744073709551615", "18446744073709551615"),
        ("a:int64", "-9223372036854775808", "-9223372036854775808"),
        ("a:float16", "0.5", "0.5"),
        ("a:bfloat16", "-2", "-2"),
        ("a:float32", "0.1", "0.1"),
        ("a:float64", "nan", "NaN"),
        ("a:float32", "-inf", "-inf"),
    ] {
        assert_eq!(Element::parse(&schema(column).columns()[0], text).unwrap().to_string(), shown, "{column}");
    }
    for (column, text) in [
        ("a:bool", "2"),
        ("a:int8", "128"),
        ("a:uint8", "-1"),
        ("a:int32", "1.0"),
        ("a:float32", "x"),
        ("a:uint64", ""),
    ] {
        assert!(Element::parse(&schema(column).columns()[0], text).is_err(), "{column} {text}");
    }
}

/// A value as a number that every type here holds exactly.
fn value(bytes: &[u8], dtype: Dtype) -> f64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        Dtype::Float16 => f16::from_bits(bits as u16).to_f64(),
        Dtype::BFloat16 => bf16::from_bits(bits as u16).to_f64(),
        Dtype::Float32 => f64::from(f32::from_bits(bits as u32)),
        Dtype::Float64 => f64::from_bits(bits),
        _ => Element::new(dtype, bytes.to_vec()).unwrap().to_string().parse().unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any way through the versions gives what looking at each value by itself gives.
    #[test]
    fn upgrades_are_exact_and_their_way_does_not_matter(steps in proptest::collection::vec((0usize..4, 0u8..3, -100i32..100), 1..6)) {
        const WIDER: [&[&str]; 4] = [
            &["int8", "int16", "int32", "int64"],
            &["uint8", "uint16", "int32", "int64"],
            &["float16", "float32", "float64", "float64"],
            &["bfloat16", "float32", "float32", "float64"],
        ];
        let text = |widths: &[usize], added: usize| {
            let old = (0..4).map(|at| format!("c{at}:{}[3]", WIDER[at][widths[at]]));
            old.chain((0..added).map(|at| format!("new{at}:int16"))).collect::<Vec<_>>().join(", ")
        };
        let (mut widths, mut fills) = ([0usize; 4], Vec::new());
        let mut schemas = Schemas::first(schema(&text(&widths, 0)));
        for (column, kind, fill) in steps {
            let mut given = Vec::new();
            if kind == 0 {
                given.push(format!("new{}={fill}", fills.len()));
                fills.push(f64::from(fill));
            } else {
                widths[column] = (widths[column] + 1).min(3);
            }
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            if let Some(next) = grown(&schemas, &text(&widths, fills.len()), &given).unwrap() {
                schemas = next;
            }
        }
        let rows = |schema: &Arc<Schema>| {
            let columns = schema.columns().iter().map(|column| {
                let step = column.dtype.bytes();
                Buffer::from_vec((0..column.row_bytes() * 2).map(|at| if at % step == 0 { (at / step) as u8 } else { 0 }).collect::<Vec<u8>>())
            });
            Rows::new(schema.clone(), 2, columns.collect()).unwrap()
        };
        let to = &schemas.newest().schema;
        for from in schemas.versions() {
            let old = rows(&from.schema);
            let new = schemas.upgrade(&from.schema, to).unwrap().rows(&old).unwrap();
            let stepwise = schemas.versions()[from.number as usize..].iter().fold(old.clone(), |rows, version| {
                schemas.upgrade(rows.schema(), &version.schema).unwrap().rows(&rows).unwrap()
            });
            for (at, column) in to.columns().iter().enumerate() {
                prop_assert_eq!(new.column(at), stepwise.column(at));
                let got = new.column(at).chunks_exact(column.dtype.bytes()).map(|element| value(element, column.dtype));
                match from.schema.columns().get(at) {
                    Some(before) => {
                        let wanted = old.column(at).chunks_exact(before.dtype.bytes()).map(|element| value(element, before.dtype));
                        prop_assert_eq!(got.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
                    }
                    None => {
                        let fill = fills[at - 4];
                        prop_assert!(got.into_iter().all(|got| got == fill));
                    }
                }
            }
        }
    }
}
