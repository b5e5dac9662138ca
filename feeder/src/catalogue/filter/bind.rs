//! A filter over the columns of one schema: names found, types checked, evaluated over the columns' bytes.

use std::cmp::Ordering;

use arrow_buffer::Buffer;
use half::{bf16, f16};

use super::{Expr, Op, Value};
use crate::error::{Error, Result};
use crate::schema::{Column, Dtype, Schema};

/// See the module.
#[derive(Clone, Debug)]
pub(in crate::catalogue) struct Bound {
    root: Node,
    /// The columns needed, by their numbers in the schema.
    columns: Vec<usize>,
    dtypes: Vec<Dtype>,
}

#[derive(Clone, Debug)]
enum Node {
    Or(Vec<Node>),
    And(Vec<Node>),
    Not(Box<Node>),
    /// The column's place among those needed; whether it compares so with any of the values.
    Any {
        column: usize,
        op: Op,
        values: Vec<Value>,
    },
}

impl Bound {
    /// Finds the columns. Unknown ones, tensors, and values of another kind than their column's are refused.
    pub(in crate::catalogue) fn new(expr: &Expr, schema: &Schema) -> Result<Self> {
        let mut bound = Self { root: Node::And(Vec::new()), columns: Vec::new(), dtypes: Vec::new() };
        bound.root = bound.node(expr, schema)?;
        Ok(bound)
    }

    /// The columns that [`eval`](Self::eval) needs, in this order.
    pub(in crate::catalogue) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Which of `rows` rows pass. `columns` are the bytes of the columns needed.
    pub(in crate::catalogue) fn eval(&self, columns: &[Buffer], rows: usize) -> Vec<bool> {
        self.root.eval(columns, &self.dtypes, rows)
    }

    fn node(&mut self, expr: &Expr, schema: &Schema) -> Result<Node> {
        let mut all = |parts: &[Expr]| parts.iter().map(|part| self.node(part, schema)).collect::<Result<Vec<_>>>();
        Ok(match expr {
            Expr::Or(parts) => Node::Or(all(parts)?),
            Expr::And(parts) => Node::And(all(parts)?),
            Expr::Not(inner) => Node::Not(Box::new(self.node(inner, schema)?)),
            Expr::Is(name) => match scalar(schema, name)? {
                (_, column) if column.dtype != Dtype::Bool => {
                    let text =
                        format!("a column that stands by itself is one of booleans: column={name:?} type={column}");
                    return Err(Error::invalid(text).with_hint(format!("compare it, as in '{name} != 0'")));
                }
                (at, column) => {
                    Node::Any { column: self.need(at, column.dtype), op: Op::Eq, values: vec![Value::Bool(true)] }
                }
            },
            Expr::Compare(name, op, value) => self.compare(schema, name, *op, &[*value])?,
            Expr::In(name, wanted, values) => {
                let any = self.compare(schema, name, Op::Eq, values)?;
                if *wanted { any } else { Node::Not(Box::new(any)) }
            }
        })
    }

    fn compare(&mut self, schema: &Schema, name: &str, op: Op, values: &[Value]) -> Result<Node> {
        let (at, column) = scalar(schema, name)?;
        let fit = |&value: &Value| fitting(column, op, value);
        let values = values.iter().map(fit).collect::<Result<_>>()?;
        Ok(Node::Any { column: self.need(at, column.dtype), op, values })
    }

    fn need(&mut self, column: usize, dtype: Dtype) -> usize {
        self.columns.iter().position(|&known| known == column).unwrap_or_else(|| {
            self.columns.push(column);
            self.dtypes.push(dtype);
            self.columns.len() - 1
        })
    }
}

fn scalar<'a>(schema: &'a Schema, name: &str) -> Result<(usize, &'a Column)> {
    let at = schema.index_of(name)?;
    let column = &schema.columns()[at];
    if !column.shape.is_empty() {
        let text = format!("a filter looks at columns of single values: column={name:?} type={column}");
        return Err(Error::invalid(text));
    }
    Ok((at, column))
}

/// The value as it is compared with a column.
fn fitting(column: &Column, op: Op, value: Value) -> Result<Value> {
    let wrong =
        |why: &str| Err(Error::invalid(format!("{why}: column={:?} type={} value={value}", column.name, column.dtype)));
    match (column.dtype, value) {
        (Dtype::Bool, Value::Bool(_)) if matches!(op, Op::Eq | Op::Ne) => Ok(value),
        (Dtype::Bool, Value::Bool(_)) => wrong("booleans are equal or not, they have no order"),
        (Dtype::Bool, _) => wrong("a column of booleans is compared with true or false"),
        (_, Value::Bool(_)) => wrong("a column of numbers is compared with numbers"),
        (Dtype::Float16 | Dtype::BFloat16 | Dtype::Float32 | Dtype::Float64, _) => {
            let exact = match value {
                Value::Int(number) => number as f64,
                Value::Float(number) => number,
                Value::Bool(_) => 0.0,
            };
            Ok(Value::Float(match column.dtype {
                Dtype::Float16 => f16::from_f64(exact).to_f64(),
                Dtype::BFloat16 => bf16::from_f64(exact).to_f64(),
                Dtype::Float32 => f64::from(exact as f32),
                _ => exact,
            }))
        }
        _ => Ok(value),
    }
}

impl Node {
    fn eval(&self, columns: &[Buffer], dtypes: &[Dtype], rows: usize) -> Vec<bool> {
        let fold = |parts: &[Node], start: bool| {
            parts.iter().fold(vec![start; rows], |mut all, part| {
                let more = part.eval(columns, dtypes, rows);
                all.iter_mut().zip(more).for_each(|(all, more)| *all = if start { *all && more } else { *all || more });
                all
            })
        };
        match self {
            Self::Or(parts) => fold(parts, false),
            Self::And(parts) => fold(parts, true),
            Self::Not(inner) => inner.eval(columns, dtypes, rows).into_iter().map(|pass| !pass).collect(),
            Self::Any { column, op, values } => {
                let dtype = dtypes[*column];
                let cells = columns[*column].chunks_exact(dtype.bytes()).take(rows);
                cells.map(|cell| values.iter().any(|value| holds(cell_value(dtype, cell), *op, *value))).collect()
            }
        }
    }
}

/// One cell; `bytes` is as long as its type says.
pub(in crate::catalogue) fn cell_value(dtype: Dtype, bytes: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        Dtype::Bool => Value::Bool(bits != 0),
        Dtype::Int8 => Value::Int((bits as u8 as i8).into()),
        Dtype::Int16 => Value::Int((bits as u16 as i16).into()),
        Dtype::Int32 => Value::Int((bits as u32 as i32).into()),
        Dtype::Int64 => Value::Int((bits as i64).into()),
        Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64 => Value::Int(bits.into()),
        Dtype::Float16 => Value::Float(f16::from_bits(bits as u16).to_f64()),
        Dtype::BFloat16 => Value::Float(bf16::from_bits(bits as u16).to_f64()),
        Dtype::Float32 => Value::Float(f32::from_bits(bits as u32).into()),
        Dtype::Float64 => Value::Float(f64::from_bits(bits)),
    }
}

/// Whether `left op right` is true. NaN is unequal to everything and has no order.
fn holds(left: Value, op: Op, right: Value) -> bool {
    let order = match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(&b)),
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(&b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(&b),
        (Value::Int(a), Value::Float(b)) => int_and_float(a, b),
        (Value::Float(a), Value::Int(b)) => int_and_float(b, a).map(Ordering::reverse),
        _ => None,
    };
    match (op, order) {
        (Op::Ne, None) => true,
        (_, None) => false,
        (Op::Eq, Some(order)) => order.is_eq(),
        (Op::Ne, Some(order)) => order.is_ne(),
        (Op::Lt, Some(order)) => order.is_lt(),
        (Op::Le, Some(order)) => order.is_le(),
        (Op::Gt, Some(order)) => order.is_gt(),
        (Op::Ge, Some(order)) => order.is_ge(),
    }
}

/// Compares a whole number of at most 64 bits with a float, exactly.
fn int_and_float(int: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    // Beyond 127 bits the conversion stays at the limit, which no column's number reaches.
    let whole = float.trunc() as i128;
    Some(int.cmp(&whole).then(0.0f64.partial_cmp(&float.fract()).unwrap_or(Ordering::Equal)))
}
