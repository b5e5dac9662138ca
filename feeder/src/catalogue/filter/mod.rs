//! Filters: which records a version takes, as an expression over scalar columns.
//!
//! ```text
//! label == 3 and quality >= 0.5        user in (7, 9) or not reviewed        (x < 1 or x > 2) and y != 0
//! ```
//!
//! - A comparison has a column on one side and a value on the other: `==` (or `=`), `!=`, `<`, `<=`, `>`, `>=`; `in (...)` and
//!   `not in (...)` take lists; a column of booleans may stand by itself.
//! - `not` binds closer than `and`, `and` closer than `or`; brackets as usual. Names that are no words of letters, digits and
//!   `_` stand in double quotes.
//! - Whole numbers are compared exactly, whatever their types. A number compared with a column of floats is first rounded to
//!   the column's own type, as NumPy and torch do it: `x == 0.1` finds a float32 of 0.1. NaN equals nothing.
//!
//! `parse` makes the tree, which is shown in one canonical form; `bind` finds its columns in a schema and checks types.

mod bind;
mod parse;

#[cfg(test)]
mod tests;

use std::fmt;

pub(super) use bind::{Bound, cell_value};
pub(super) use parse::parse;

/// Longest filter, in bytes.
pub(super) const FILTER_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of brackets and `not`.
pub(super) const DEPTH_MAX: usize = 64;

/// How a column is compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Op {
    const ALL: [(&'static str, Self); 7] = [
        ("==", Self::Eq),
        ("!=", Self::Ne),
        ("<=", Self::Le),
        (">=", Self::Ge),
        ("<", Self::Lt),
        (">", Self::Gt),
        ("=", Self::Eq),
    ];

    fn text(self) -> &'static str {
        Self::ALL.iter().find(|(_, op)| *op == self).map_or("", |(text, _)| text)
    }

    /// The operator with its sides exchanged.
    fn turned(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::Le => Self::Ge,
            Self::Gt => Self::Lt,
            Self::Ge => Self::Le,
            same => same,
        }
    }
}

/// A value in a filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i128),
    Float(f64),
}

/// A filter as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    Compare(String, Op, Value),
    In(String, bool, Vec<Value>),
    /// A column of booleans.
    Is(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
        }
    }
}

impl fmt::Display for Expr {
    /// The canonical form, which parses to the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, parts: &[Expr], word: &str| {
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    write!(f, " {word} ")?;
                }
                let brackets = matches!((part, word), (Expr::Or(_), _) | (Expr::And(_), "and"));
                if brackets { write!(f, "({part})")? } else { write!(f, "{part}")? }
            }
            Ok(())
        };
        match self {
            Self::Or(parts) => joined(f, parts, "or"),
            Self::And(parts) => joined(f, parts, "and"),
            Self::Not(inner) => match **inner {
                Self::Is(_) | Self::Not(_) => write!(f, "not {inner}"),
                _ => write!(f, "not ({inner})"),
            },
            Self::Compare(column, op, value) => write!(f, "{} {} {value}", quoted(column), op.text()),
            Self::In(column, wanted, values) => {
                let values: Vec<String> = values.iter().map(Value::to_string).collect();
                let not = if *wanted { "" } else { "not " };
                write!(f, "{} {not}in ({})", quoted(column), values.join(", "))
            }
            Self::Is(column) => f.write_str(&quoted(column)),
        }
    }
}

/// Words with a meaning of their own.
const WORDS: [&str; 6] = ["and", "or", "not", "in", "true", "false"];

/// A column's name as it stands in a filter.
fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !WORDS.contains(&name.to_ascii_lowercase().as_str());
    if plain { name.into() } else { format!("\"{name}\"") }
}
