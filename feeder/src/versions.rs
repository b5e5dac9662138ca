//! The schemas that a topic has had, and how rows of one are rows of another.
//!
//! A topic's schema only ever grows, and never so that a row would lose anything: a column may become [wider](Widen), and
//! a column may be added with a default, which is what rows without it have. Columns go by name; their order is the
//! topic's. Everything else (a column that is missing and has no default, a narrower or another type, another shape) is
//! refused with the column and what to do. There are no nulls in a topic, so "nullable" is no default: it must be said.
//!
//! [`Schemas`] are the versions, numbered from 1. [`Upgrade`] takes rows as they were written to rows as they are read:
//! columns as they are, widened, or filled. It is exact, and its way does not matter: from version 1 to 3 is from 1 to 2
//! to 3.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow_buffer::Buffer;
use half::{bf16, f16};

use crate::error::{Error, ErrorKind, Result, nearest};
use crate::rows::Rows;
use crate::schema::{Column, Dtype, Schema};
use crate::widen::Widen;

/// Most schema versions of a topic.
pub const SCHEMAS_MAX: usize = 1024;
/// The next step when rows do not fit their topic.
const OTHER_TOPIC: &str = "put them into another topic, or make the column what the topic has";

/// Values for columns that are added, by column, as users write them; each stands for every element of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults(BTreeMap<String, String>);

impl Defaults {
    /// Reads `column=value` texts.
    pub fn parse(texts: &[String]) -> Result<Self> {
        let mut values = BTreeMap::new();
        for text in texts {
            let (column, value) = text.split_once('=').ok_or_else(|| {
                Error::invalid(format!("a default is written as COLUMN=VALUE: default={text:?}"))
                    .with_hint("for example --default label=-1")
            })?;
            if values.insert(column.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(Error::invalid(format!("a column has two defaults: column={:?}", column.trim())));
            }
        }
        Ok(Self(values))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the column has one.
    pub fn has(&self, column: &str) -> bool {
        self.0.contains_key(column)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// One element of a column, as its type stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    dtype: Dtype,
    bytes: Vec<u8>,
}

impl Element {
    /// Takes the bytes, as long as the type says.
    pub(crate) fn new(dtype: Dtype, bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() == dtype.bytes()).then_some(Self { dtype, bytes })
    }

    /// Reads a number (or `true` or `false`) as an element of `column`. Floats are rounded to the nearest.
    fn parse(column: &Column, text: &str) -> Result<Self> {
        let integer = |from: i128, to: i128| text.parse::<i128>().ok().filter(|n| (from..=to).contains(n));
        let bytes = match column.dtype {
            Dtype::Bool => match text {
                "true" | "1" => Some(vec![1]),
                "false" | "0" => Some(vec![0]),
                _ => None,
            },
            Dtype::Float16 => text.parse().ok().map(|n: f64| f16::from_f64(n).to_le_bytes().to_vec()),
            Dtype::BFloat16 => text.parse().ok().map(|n: f64| bf16::from_f64(n).to_le_bytes().to_vec()),
            Dtype::Float32 => text.parse().ok().map(|n: f32| n.to_le_bytes().to_vec()),
            Dtype::Float64 => text.parse().ok().map(|n: f64| n.to_le_bytes().to_vec()),
            Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => {
                let half = 1i128 << (8 * column.dtype.bytes() - 1);
                integer(-half, half - 1).map(|n| n.to_le_bytes()[..column.dtype.bytes()].to_vec())
            }
            Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64 => {
                let most = (1i128 << (8 * column.dtype.bytes())) - 1;
                integer(0, most).map(|n| n.to_le_bytes()[..column.dtype.bytes()].to_vec())
            }
        };
        bytes.map(|bytes| Self { dtype: column.dtype, bytes }).ok_or_else(|| {
            Error::invalid(format!(
                "a default is not a value of its column: column={:?} type={} default={text:?}",
                column.name, column.dtype
            ))
        })
    }

    /// The type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// As stored, little endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn widened(&self, to: Dtype) -> Option<Self> {
        if self.dtype == to {
            return Some(self.clone());
        }
        let mut bytes = Vec::with_capacity(to.bytes());
        Widen::new(self.dtype, to)?.append(&self.bytes, &mut bytes);
        Some(Self { dtype: to, bytes })
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wide = [0; 8];
        wide[..self.bytes.len()].copy_from_slice(&self.bytes);
        let bits = u64::from_le_bytes(wide);
        match self.dtype {
            Dtype::Bool => write!(f, "{}", bits != 0),
            Dtype::Int8 => write!(f, "{}", bits as i8),
            Dtype::Int16 => write!(f, "{}", bits as i16),
            Dtype::Int32 => write!(f, "{}", bits as i32),
            Dtype::Int64 => write!(f, "{}", bits as i64),
            Dtype::UInt8 | Dtype::UInt16 | Dtype::UInt32 | Dtype::UInt64 => write!(f, "{bits}"),
            Dtype::Float16 => write!(f, "{}", f16::from_bits(bits as u16)),
            Dtype::BFloat16 => write!(f, "{}", bf16::from_bits(bits as u16)),
            Dtype::Float32 => write!(f, "{}", f32::from_bits(bits as u32)),
            Dtype::Float64 => write!(f, "{}", f64::from_bits(bits)),
        }
    }
}

/// One version of a topic's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaVersion {
    /// Counted from 1.
    pub number: u32,
    /// The columns.
    pub schema: Arc<Schema>,
    /// Columns that this version added, and what rows of earlier ones have there.
    pub added: Vec<(String, Element)>,
    /// When it was made, in milliseconds since 1970; 0 for the first.
    pub made_ms: u64,
}

/// All versions of a topic's schema, the first first. Each is a growth of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schemas {
    versions: Vec<SchemaVersion>,
}

impl Schemas {
    /// A topic that has had one schema.
    pub fn first(schema: Arc<Schema>) -> Self {
        Self { versions: vec![SchemaVersion { number: 1, schema, added: Vec::new(), made_ms: 0 }] }
    }

    /// The versions, oldest first; at least one.
    pub fn versions(&self) -> &[SchemaVersion] {
        &self.versions
    }

    /// The version that is written.
    pub fn newest(&self) -> &SchemaVersion {
        &self.versions[self.versions.len() - 1]
    }

    /// The version of that number.
    pub fn version(&self, number: u32) -> Option<&SchemaVersion> {
        self.versions.get((number as usize).checked_sub(1)?)
    }

    /// The version with exactly these columns.
    pub fn find(&self, schema: &Schema) -> Option<&SchemaVersion> {
        self.versions.iter().rev().find(|version| *version.schema == *schema)
    }

    /// What rows without the column have there; `None` for a column that was always there, or is not.
    pub fn default_of(&self, column: &str) -> Option<&Element> {
        let added = self.versions.iter().flat_map(|version| &version.added);
        added.into_iter().find(|(name, _)| name == column).map(|(_, element)| element)
    }

    /// The newest version as something to grow.
    pub fn growth(&self) -> Growth<'_> {
        Growth { schemas: self, columns: self.newest().schema.columns().to_vec(), added: Vec::new() }
    }

    /// With one more version, which must be a growth of the newest.
    pub fn with(&self, version: SchemaVersion) -> Result<Self> {
        let newest = self.newest();
        if self.versions.len() >= SCHEMAS_MAX {
            return Err(Error::invalid(format!("a topic has at most {SCHEMAS_MAX} schema versions"))
                .with_hint("ingest into a new topic"));
        }
        let mut all = self.clone();
        all.versions.push(version);
        let (made, before) = (all.newest(), newest.schema.columns());
        let after = made.schema.columns();
        let in_place = after.len() >= before.len() && before.iter().zip(after).all(|(old, new)| old.name == new.name);
        let new = after.get(before.len()..).unwrap_or_default();
        let said = new.len() == made.added.len()
            && new
                .iter()
                .zip(&made.added)
                .all(|(new, (name, element))| new.name == *name && new.dtype == element.dtype);
        if made.number != newest.number + 1 || !in_place || !said || *made.schema == *newest.schema {
            return Err(Error::corrupt(format!(
                "a schema version does not follow the one before: number={}",
                made.number
            )));
        }
        all.upgrade(&newest.schema, &made.schema)?;
        Ok(all)
    }

    /// How rows of `from` become rows of `to`; both are versions, or what rows brought with them. Columns that `to` does
    /// not have are left out. An error names the column for which there is no way.
    pub fn upgrade(&self, from: &Schema, to: &Arc<Schema>) -> Result<Upgrade> {
        let source = |column: &Column| match from.columns().iter().position(|other| other.name == column.name) {
            Some(at) => {
                let stored = &from.columns()[at];
                let widen = Widen::new(stored.dtype, column.dtype);
                match stored.shape == column.shape {
                    true if stored.dtype == column.dtype => Ok(Source::Same { at }),
                    true if widen.is_some() => {
                        Ok(Source::Wider { at, widen: widen.ok_or_else(|| no_way(stored, column))? })
                    }
                    _ => Err(no_way(stored, column)),
                }
            }
            None => match self.default_of(&column.name).and_then(|element| element.widened(column.dtype)) {
                Some(element) => Ok(Source::Default(element)),
                None => Err(missing(column)),
            },
        };
        let sources = to.columns().iter().map(source).collect::<Result<_>>()?;
        Ok(Upgrade { to: to.clone(), sources })
    }
}

/// A schema under construction: the newest of a topic, grown by what rows bring.
#[derive(Clone, Debug)]
pub struct Growth<'a> {
    schemas: &'a Schemas,
    columns: Vec<Column>,
    added: Vec<(String, Element)>,
}

impl Growth<'_> {
    /// Grows by rows of `schema`: afterwards they can be stored without loss. Columns that are new need a default; columns
    /// that were added with one may be missing. Refused with the reason, and then nothing has grown.
    pub fn take(&mut self, schema: &Schema, defaults: &Defaults) -> Result<()> {
        let (mut columns, mut added) = (self.columns.clone(), self.added.clone());
        for column in &mut columns {
            let given = schema.columns().iter().find(|given| given.name == column.name);
            let has_default =
                self.schemas.default_of(&column.name).is_some() || added.iter().any(|(name, _)| *name == column.name);
            match given {
                None if has_default => {}
                None => return Err(removed(column)),
                Some(given) if given.shape != column.shape => return Err(reshaped(column, given)),
                Some(given) if given.dtype == column.dtype || Widen::new(given.dtype, column.dtype).is_some() => {}
                Some(given) if Widen::new(column.dtype, given.dtype).is_some() => column.dtype = given.dtype,
                Some(given) => return Err(retyped(column, given)),
            }
        }
        for given in schema.columns() {
            if columns.iter().all(|column| column.name != given.name) {
                let Some(text) = defaults.0.get(&given.name) else { return Err(undeclared(given)) };
                added.push((given.name.clone(), Element::parse(given, text)?));
                columns.push(given.clone());
            }
        }
        for (name, element) in &mut added {
            if let Some(column) = columns.iter().find(|column| column.name == *name) {
                *element = element.widened(column.dtype).unwrap_or_else(|| element.clone());
            }
        }
        (self.columns, self.added) = (columns, added);
        Ok(())
    }

    /// Refuses defaults that would change nothing: of columns that have none or another one, or that nobody brings.
    pub fn check_defaults(&self, defaults: &Defaults) -> Result<()> {
        for name in defaults.names() {
            let Some(column) = self.columns.iter().find(|column| column.name == name) else {
                let names = self.columns.iter().map(|column| column.name.as_str());
                let meant = nearest(name, names).map(|n| format!(" (did you mean {n:?}?)")).unwrap_or_default();
                let text = format!("a default is for a column that nobody brings{meant}: column={name:?}");
                return Err(Error::new(ErrorKind::NotFound, text));
            };
            if self.added.iter().any(|(added, _)| added == name) {
                continue;
            }
            let Some(there) = self.schemas.default_of(name).and_then(|element| element.widened(column.dtype)) else {
                return Err(Error::invalid(format!("a default is for a column that every row has: column={name:?}"))
                    .with_hint(format!("leave out --default {name}=...")));
            };
            if Element::parse(column, &defaults.0[name])? != there {
                return Err(Error::invalid(format!(
                    "a column keeps the default that it was added with: column={name:?} default={there} wanted={}",
                    defaults.0[name]
                ))
                .with_hint(format!("leave out --default {name}=..., rows may bring any value of their own")));
            }
        }
        Ok(())
    }

    /// The next version, made at `now_ms`; `None` if nothing has grown.
    pub fn version(self, now_ms: u64) -> Result<Option<SchemaVersion>> {
        let newest = self.schemas.newest();
        if self.columns == newest.schema.columns() {
            return Ok(None);
        }
        let schema = Arc::new(Schema::new(self.columns)?);
        Ok(Some(SchemaVersion { number: newest.number + 1, schema, added: self.added, made_ms: now_ms }))
    }
}

/// What changes from one schema to its growth, for people: `label:int64 is new (default -1), id:int32 becomes int64`.
pub fn describe_growth(from: &Schema, to: &SchemaVersion) -> String {
    let change = |column: &Column| match from.columns().iter().find(|old| old.name == column.name) {
        Some(old) if old.dtype == column.dtype => None,
        Some(old) => Some(format!("{old} becomes {}", column.dtype)),
        None => {
            let default = to.added.iter().find(|(name, _)| *name == column.name);
            let default = default.map(|(_, element)| format!(" (default {element})")).unwrap_or_default();
            Some(format!("{column} is new{default}"))
        }
    };
    to.schema.columns().iter().filter_map(change).collect::<Vec<_>>().join(", ")
}

/// Where the values of one column come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Column `at` of the rows, as it is.
    Same {
        /// Index in the rows' schema.
        at: usize,
    },
    /// Column `at` of the rows, widened.
    Wider {
        /// Index in the rows' schema.
        at: usize,
        /// How.
        widen: Widen,
    },
    /// This in every element.
    Default(Element),
}

/// How rows of one schema become rows of another; see [`Schemas::upgrade`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    to: Arc<Schema>,
    sources: Vec<Source>,
}

impl Upgrade {
    /// Where column `at` of the new schema comes from. Panics if there is no such column.
    pub fn source(&self, at: usize) -> &Source {
        &self.sources[at]
    }

    /// The rows, upgraded; columns that stay as they are share their buffers.
    pub fn rows(&self, rows: &Rows) -> Result<Rows> {
        let columns = self.to.columns().iter().zip(&self.sources).map(|(column, source)| match source {
            Source::Same { at } => rows.column(*at).clone(),
            Source::Wider { at, widen } => {
                let mut wide = Vec::new();
                widen.append(rows.column(*at), &mut wide);
                Buffer::from_vec(wide)
            }
            Source::Default(element) => Buffer::from_vec(element.bytes.repeat(column.elements() * rows.count())),
        });
        Rows::new(self.to.clone(), rows.count(), columns.collect())
    }
}

fn no_way(from: &Column, to: &Column) -> Error {
    let text = format!("rows cannot be read as another type: column={:?} from={} to={}", to.name, kind(from), kind(to));
    Error::new(ErrorKind::StateMismatch, text)
}

fn missing(column: &Column) -> Error {
    let text = format!("rows lack a column that has no default: column={:?} type={}", column.name, kind(column));
    Error::new(ErrorKind::StateMismatch, text)
}

fn removed(column: &Column) -> Error {
    Error::invalid(format!("a column of the topic is missing: column={:?} topic={}", column.name, kind(column)))
        .with_hint("bring the column under its name, or put the rows into another topic")
}

fn reshaped(topic: &Column, given: &Column) -> Error {
    changed("a column has another shape than in its topic", topic, given)
}

fn retyped(topic: &Column, given: &Column) -> Error {
    changed("a column has a type that neither widens to its topic's nor the other way round", topic, given)
}

fn changed(what: &str, topic: &Column, given: &Column) -> Error {
    Error::invalid(format!("{what}: column={:?} topic={} rows={}", topic.name, kind(topic), kind(given)))
        .with_hint(OTHER_TOPIC)
}

fn undeclared(column: &Column) -> Error {
    let name = &column.name;
    let text = format!("a new column needs a default for the rows before it: column={name:?} type={}", kind(column));
    Error::invalid(text)
        .with_hint(format!("--default {name}=0 adds it to the topic, --columns without it leaves it out"))
}

/// Type and shape of a column without its name.
fn kind(column: &Column) -> String {
    Column::new("", column.dtype, column.shape.clone()).to_string().split_off(1)
}

#[cfg(test)]
mod tests;
