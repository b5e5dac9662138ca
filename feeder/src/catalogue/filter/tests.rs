//! Filters as text, and over columns against a naive model.

use arrow_buffer::Buffer;
use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::schema::{Dtype, Schema};

const SCHEMA: &str = "label:int32, big:uint64, quality:float32, half:float16, brain:bfloat16, good:bool, \
                      \"a b\":int8, image:uint8[2]";

fn schema() -> Schema {
    use crate::schema::Column;
    Schema::new(vec![
        Column::new("label", Dtype::Int32, []),
        Column::new("big", Dtype::UInt64, []),
        Column::new("quality", Dtype::Float32, []),
        Column::new("half", Dtype::Float16, []),
        Column::new("brain", Dtype::BFloat16, []),
        Column::new("good", Dtype::Bool, []),
        Column::new("a b", Dtype::Int8, []),
        Column::new("image", Dtype::UInt8, [2]),
    ])
    .unwrap()
}

/// A row of all columns but the last, which no filter reads.
#[derive(Clone, Copy, Debug)]
struct Row {
    label: i32,
    big: u64,
    quality: f32,
    good: bool,
    ab: i8,
}

fn passes(text: &str, row: Row) -> bool {
    let bound = Bound::new(&parse(text).unwrap(), &schema()).unwrap();
    let bytes = |name: &str| -> Vec<u8> {
        match name {
            "label" => row.label.to_le_bytes().into(),
            "big" => row.big.to_le_bytes().into(),
            "quality" => row.quality.to_le_bytes().into(),
            "half" => f16::from_f32(row.quality).to_le_bytes().into(),
            "brain" => bf16::from_f32(row.quality).to_le_bytes().into(),
            "good" => vec![row.good.into()],
            _ => row.ab.to_le_bytes().into(),
        }
    };
    let schema = schema();
    let columns = bound.columns().iter().map(|&at| Buffer::from_vec(bytes(&schema.columns()[at].name)));
    bound.eval(&columns.collect::<Vec<_>>(), 1)[0]
}

const ROW: Row = Row { label: 3, big: u64::MAX, quality: 0.1, good: true, ab: -1 };

#[test]
fn what_holds_and_what_does_not() {
    for text in [
        "label == 3",
        "label=3",
        "3 == label",
        "2 < label and label <= 3.0",
        "label > 2.5 and label < 3.5",
        "big == 18446744073709551615",
        "big > 1e19",
        "big < 18446744073709551616",
        "quality == 0.1",
        "half == 0.1 and brain == 0.1",
        "quality != 0.2 or label == 4",
        "good",
        "good == true and not (good != true)",
        "not good or label in (1, 2, 3)",
        "label not in (1, 2)",
        "\"a b\" == -1",
        "NOT label == 4 AND Good_is_no_column == 1 OR label == 3".split(" AND").next().unwrap(),
        "label == 1 or label == 3 and good",
        "label >= -1_000",
    ] {
        assert!(passes(text, ROW), "{text}");
    }
    for text in ["label != 3", "4 <= label", "not good", "label in (1)", "big == 18446744073709551614", "quality > 0.1"]
    {
        assert!(!passes(text, ROW), "{text}");
    }
    let nan = Row { quality: f32::NAN, ..ROW };
    assert!(passes("quality != 1", nan) && passes("not quality == 1", nan));
    for text in ["quality == 1", "quality < 1", "quality >= 1", "quality in (1, 2)"] {
        assert!(!passes(text, nan), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, word) in [
        ("", "needs a column"),
        ("label", "booleans"),
        ("label == ", "compared with a number"),
        ("label == 3 label == 4", "'and' or 'or'"),
        ("label == (3)", "compared with a number"),
        ("(label == 3", "not closed"),
        ("label in 3", "list in brackets"),
        ("label in (3 4)", "commas"),
        ("label in ()", "a list holds"),
        ("label not 3", "followed by 'in'"),
        ("label ~ 3", "no meaning"),
        ("label == 'x'", "no meaning"),
        ("label == 1.2.3", "not a number"),
        ("label == 0x1F", "not a number"),
        ("label == inf", "compared with a number"),
        ("1 == 2", "no column"),
        ("3", "compared with a column"),
        ("\"", "does not end"),
        ("and", "needs a column"),
        ("labl == 3", "did you mean \"label\""),
        ("image == 3", "single values"),
        ("label == true", "numbers"),
        ("good == 1", "true or false"),
        ("good < true", "no order"),
    ] {
        let error = parse(text).and_then(|expr| Bound::new(&expr, &schema()).map(|_| ())).unwrap_err();
        assert!(error.report().contains(word), "{text}: {}", error.report());
    }
    let deep = "not ".repeat(DEPTH_MAX + 2) + "good";
    assert!(parse(&deep).unwrap_err().to_string().contains("deeply"));
    assert!(parse(&"(".repeat(100_000)).is_err());
    assert!(parse(&" ".repeat(FILTER_BYTES_MAX + 1)).unwrap_err().to_string().contains("too long"));
    assert!(parse("label == 4 && good").unwrap_err().to_string().contains("at=11"), "the place is told");
    assert_eq!(SCHEMA.matches(':').count(), schema().columns().len());
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        (-40i128..40).prop_map(Value::Int),
        any::<i64>().prop_map(|number| Value::Int(number.into())),
        (-400i32..400).prop_map(|number| Value::Float(f64::from(number) / 8.0)),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::Float),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop::sample::select(vec![Op::Eq, Op::Ne, Op::Lt, Op::Le, Op::Gt, Op::Ge])
}

/// Any tree, whatever its types; of the shapes that parsing makes.
fn expr() -> impl Strategy<Value = Expr> {
    let column = || prop::sample::select(vec!["label", "good", "a b", "not", "x1"]).prop_map(str::to_owned);
    let leaf = prop_oneof![
        column().prop_map(Expr::Is),
        (column(), op(), value()).prop_map(|(column, op, value)| Expr::Compare(column, op, value)),
        (column(), any::<bool>(), prop::collection::vec(value(), 1..4))
            .prop_map(|(c, wanted, v)| Expr::In(c, wanted, v)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let flat = |parts: Vec<Expr>, or: bool| {
            let same = |part: &Expr| matches!((part, or), (Expr::Or(_), true) | (Expr::And(_), false));
            parts.into_iter().map(|part| if same(&part) { Expr::Not(Box::new(part)) } else { part }).collect::<Vec<_>>()
        };
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(move |parts| Expr::Or(flat(parts, true))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(move |parts| Expr::And(flat(parts, false))),
            inner.prop_map(|inner| Expr::Not(Box::new(inner))),
        ]
    })
}

/// A tree whose types fit, over `label`, `quality` and `good`, and what it says of a row.
fn fitting() -> impl Strategy<Value = Expr> {
    let number =
        prop_oneof![(-3i128..6).prop_map(Value::Int), (-12i32..24).prop_map(|n| Value::Float(f64::from(n) / 4.0))];
    let numbers = prop::collection::vec(number.clone(), 1..4);
    let name = || prop::sample::select(vec!["label", "quality"]).prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Expr::Is("good".into())),
        (name(), op(), number).prop_map(|(column, op, value)| Expr::Compare(column, op, value)),
        (name(), any::<bool>(), numbers).prop_map(|(column, wanted, values)| Expr::In(column, wanted, values)),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::Or),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::And),
            inner.prop_map(|inner| Expr::Not(Box::new(inner))),
        ]
    })
}

/// The model: numbers small enough that floats hold them exactly.
fn model(expr: &Expr, row: Row) -> bool {
    let cell = |column: &str| if column == "label" { f64::from(row.label) } else { f64::from(row.quality) };
    let number = |value: &Value| match value {
        Value::Int(number) => *number as f64,
        Value::Float(number) => *number,
        Value::Bool(_) => unreachable!(),
    };
    match expr {
        Expr::Or(parts) => parts.iter().any(|part| model(part, row)),
        Expr::And(parts) => parts.iter().all(|part| model(part, row)),
        Expr::Not(inner) => !model(inner, row),
        Expr::Is(_) => row.good,
        Expr::In(column, wanted, values) => values.iter().any(|value| cell(column) == number(value)) == *wanted,
        Expr::Compare(column, op, value) => {
            let (a, b) = (cell(column), number(value));
            match op {
                Op::Eq => a == b,
                Op::Ne => a != b,
                Op::Lt => a < b,
                Op::Le => a <= b,
                Op::Gt => a > b,
                Op::Ge => a >= b,
            }
        }
    }
}

proptest! {
    #[test]
    fn the_canonical_form_is_read_as_the_same(expr in expr()) {
        let text = expr.to_string();
        prop_assert_eq!(parse(&text).unwrap(), expr, "{}", text);
    }

    #[test]
    fn filters_say_what_the_model_says(expr in fitting(), label in -4i32..7, quarters in -13i32..25, good: bool) {
        let row = Row { label, quality: quarters as f32 / 4.0, good, ..ROW };
        prop_assert_eq!(passes(&expr.to_string(), row), model(&expr, row));
    }

    #[test]
    fn no_text_panics(text in "[-a-z0-9.()=<>!,\" é_]{0,60}") {
        let _ = parse(&text).and_then(|expr| Bound::new(&expr, &schema()).map(|_| ()));
    }

    #[test]
    fn whole_numbers_and_floats_compare_exactly(int: i64, float: f64) {
        let row = Row { big: int.unsigned_abs(), ..ROW };
        let exact = Value::Float(float);
        if float.is_finite() {
            // Both as 128-bit fixed point, as far as that goes.
            let below = (u128::from(row.big) as f64) < float && float > 2f64.powi(80);
            let text = Expr::Compare("big".into(), Op::Lt, exact).to_string();
            if float.abs() < 2f64.powi(60) {
                let scaled = (float * 1024.0).floor() as i128;
                let is_below = (i128::from(row.big) << 10) < scaled || ((i128::from(row.big) << 10) == scaled && (float * 1024.0).fract() > 0.0);
                prop_assert_eq!(passes(&text, row), is_below);
            } else if below {
                prop_assert!(passes(&text, row));
            }
        }
    }
}
