//! The header of an npy array: a Python literal in front of the data. Parsed, never evaluated.
//!
//! ```text
//! \x93NUMPY | major u8 | minor u8 | length u16 (version 1) or u32 (2, 3), little endian | header | data
//! header = {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//! descr of a structured array = [('id', '<i8'), ('image', '|u1', (28, 28)), ('', '|V4')]
//! ```

use std::io::Read;

use super::choose::Element;
use crate::schema::Dtype;

/// Longest header that is read.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of the literal.
const DEPTH_MAX: usize = 16;

/// What is wrong with a header; the caller adds the file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum HeaderError {
    #[error("the file ends inside the npy header")]
    Ends,
    #[error("not an npy array, it does not begin with \\x93NUMPY")]
    Magic,
    #[error("unknown npy version {0}.{1}, known are 1, 2 and 3")]
    Version(u8, u8),
    #[error("the npy header is longer than {HEADER_BYTES_MAX} bytes")]
    TooLong,
    #[error("the npy header is not what numpy writes, {0}")]
    Malformed(&'static str),
    #[error("pickled objects are refused: loading them can run any code; the array's dtype is object")]
    Pickled,
    #[error("fields of fields are not read, flatten the structured array; field={0:?}")]
    Nested(String),
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) fields: Fields,
    pub(super) fortran: bool,
    pub(super) shape: Vec<u64>,
    /// Bytes in front of the data.
    pub(super) bytes: u64,
}

/// What an item of the array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fields {
    One(Type),
    Named(Vec<Field>),
}

/// Element type and size of a dtype string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) element: Element,
    pub(super) bytes: u64,
    pub(super) swap: bool,
}

/// One field of a structured array; padding has an empty name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: Type,
    pub(super) shape: Vec<u64>,
    /// Place in the item, in bytes.
    pub(super) at: u64,
}

impl Header {
    /// Reads and parses a header.
    pub(super) fn read(input: &mut dyn Read) -> Result<Self, HeaderError> {
        let mut fixed = [0; 8];
        fill(input, &mut fixed)?;
        let [magic @ .., major, minor] = fixed;
        if magic != *b"\x93NUMPY" {
            return Err(HeaderError::Magic);
        }
        let (length, prefix) = match major {
            1 => {
                let mut length = [0; 2];
                fill(input, &mut length)?;
                (usize::from(u16::from_le_bytes(length)), 10)
            }
            2 | 3 => {
                let mut length = [0; 4];
                fill(input, &mut length)?;
                (u32::from_le_bytes(length) as usize, 12)
            }
            _ => return Err(HeaderError::Version(major, minor)),
        };
        if length > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong);
        }
        let mut text = vec![0; length];
        fill(input, &mut text)?;
        // Versions 1 and 2 are Latin-1, version 3 is UTF-8.
        let text = match major {
            3 => String::from_utf8(text).map_err(|_| HeaderError::Malformed("not UTF-8"))?,
            _ => text.into_iter().map(char::from).collect(),
        };
        Self::of_literal(Parser::parse(&text)?, (prefix + length) as u64)
    }

    fn of_literal(literal: Literal, bytes: u64) -> Result<Self, HeaderError> {
        let Literal::Dict(entries) = literal else { return Err(HeaderError::Malformed("not a dict")) };
        let (mut fields, mut fortran, mut shape) = (None, None, None);
        for (key, value) in entries {
            match (key.as_str(), value) {
                ("descr", descr) => fields = Some(Fields::of_literal(descr)?),
                ("fortran_order", Literal::Bool(value)) => fortran = Some(value),
                ("shape", value) => shape = Some(shape_of(value)?),
                _ => return Err(HeaderError::Malformed("unknown or wrong entry")),
            }
        }
        match (fields, fortran, shape) {
            (Some(fields), Some(fortran), Some(shape)) => Ok(Self { fields, fortran, shape, bytes }),
            _ => Err(HeaderError::Malformed("an entry is missing")),
        }
    }
}

impl Fields {
    fn of_literal(descr: Literal) -> Result<Self, HeaderError> {
        match descr {
            Literal::Text(text) => Ok(Self::One(Type::of_text(&text)?)),
            Literal::Sequence(entries) => {
                let (mut fields, mut at) = (Vec::with_capacity(entries.len()), 0u64);
                for entry in entries {
                    let mut field = Field::of_literal(entry)?;
                    let bytes = field.shape.iter().try_fold(field.kind.bytes, |product, &n| product.checked_mul(n));
                    field.at = at;
                    at = bytes
                        .and_then(|bytes| at.checked_add(bytes))
                        .ok_or(HeaderError::Malformed("sizes overflow"))?;
                    fields.push(field);
                }
                Ok(Self::Named(fields))
            }
            _ => Err(HeaderError::Malformed("descr is neither a name nor a list of fields")),
        }
    }

    /// Bytes of one item.
    pub(super) fn item_bytes(&self) -> u64 {
        match self {
            Self::One(kind) => kind.bytes,
            // Parsing has multiplied and added these without overflow.
            Self::Named(fields) => fields
                .last()
                .map_or(0, |field| field.at + field.shape.iter().fold(field.kind.bytes, |product, n| product * n)),
        }
    }
}

impl Field {
    /// `(name, descr)` or `(name, descr, shape)`; a name may be `(title, name)`.
    fn of_literal(literal: Literal) -> Result<Self, HeaderError> {
        let wrong = HeaderError::Malformed("a field is not (name, type) or (name, type, shape)");
        let Literal::Sequence(parts) = literal else { return Err(wrong) };
        let mut parts = parts.into_iter();
        let name = match parts.next() {
            Some(Literal::Text(name)) => name,
            Some(Literal::Sequence(title)) => match <[Literal; 2]>::try_from(title) {
                Ok([_, Literal::Text(name)]) => name,
                _ => return Err(wrong),
            },
            _ => return Err(wrong),
        };
        let kind = match parts.next() {
            Some(Literal::Text(text)) => Type::of_text(&text)?,
            Some(Literal::Sequence(_)) => return Err(HeaderError::Nested(name)),
            _ => return Err(wrong),
        };
        let shape = parts.next().map(shape_of).transpose()?.unwrap_or_default();
        match parts.next() {
            None => Ok(Self { name, kind, shape, at: 0 }),
            Some(_) => Err(wrong),
        }
    }
}

impl Type {
    /// A dtype string: byte order, kind, size, for example `<f4`.
    fn of_text(text: &str) -> Result<Self, HeaderError> {
        let (order, rest) = match text.chars().next() {
            Some(order @ ('<' | '>' | '=' | '|')) => (order, &text[1..]),
            _ => ('|', text),
        };
        let other = |bytes| Self { element: Element::Other(format!("numpy {text}")), bytes, swap: false };
        let known = |dtype: Dtype| Self {
            element: Element::Known(dtype),
            bytes: dtype.bytes() as u64,
            swap: order == '>' && dtype.bytes() > 1,
        };
        let kind = rest.chars().next().ok_or(HeaderError::Malformed("an empty dtype"))?;
        if kind == 'O' {
            return Err(HeaderError::Pickled);
        }
        if rest == "bfloat16" {
            return Ok(known(Dtype::BFloat16));
        }
        let digits = rest[kind.len_utf8()..].split('[').next().unwrap_or_default();
        let Ok(size) = digits.parse::<u64>() else { return Err(HeaderError::Malformed("an unknown dtype")) };
        Ok(match (kind, size) {
            ('b' | '?', 1) => known(Dtype::Bool),
            ('i', 1) => known(Dtype::Int8),
            ('i', 2) => known(Dtype::Int16),
            ('i', 4) => known(Dtype::Int32),
            ('i', 8) => known(Dtype::Int64),
            ('u', 1) => known(Dtype::UInt8),
            ('u', 2) => known(Dtype::UInt16),
            ('u', 4) => known(Dtype::UInt32),
            ('u', 8) => known(Dtype::UInt64),
            ('f', 2) => known(Dtype::Float16),
            ('f', 4) => known(Dtype::Float32),
            ('f', 8) => known(Dtype::Float64),
            ('V', 2) if order != '>' => Self { element: Element::Void2, bytes: 2, swap: false },
            ('U', size) => other(size.checked_mul(4).ok_or(HeaderError::Malformed("sizes overflow"))?),
            (_, size) => other(size),
        })
    }
}

fn shape_of(literal: Literal) -> Result<Vec<u64>, HeaderError> {
    let number = |literal| match literal {
        Literal::Int(n) => Ok(n),
        _ => Err(HeaderError::Malformed("a shape is not made of numbers")),
    };
    match literal {
        Literal::Sequence(parts) => parts.into_iter().map(number).collect(),
        one => Ok(vec![number(one)?]),
    }
}

fn fill(input: &mut dyn Read, out: &mut [u8]) -> Result<(), HeaderError> {
    input.read_exact(out).map_err(|_| HeaderError::Ends)
}

/// The Python literals that headers are made of. Lists and tuples are the same here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Literal {
    Text(String),
    Int(u64),
    Bool(bool),
    Sequence(Vec<Literal>),
    Dict(Vec<(String, Literal)>),
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn parse(text: &'a str) -> Result<Literal, HeaderError> {
        let mut parser = Self { rest: text };
        let literal = parser.literal(0)?;
        match parser.rest.trim().is_empty() {
            true => Ok(literal),
            false => Err(HeaderError::Malformed("something follows the dict")),
        }
    }

    fn literal(&mut self, depth: usize) -> Result<Literal, HeaderError> {
        if depth > DEPTH_MAX {
            return Err(HeaderError::Malformed("nested too deeply"));
        }
        self.rest = self.rest.trim_start();
        let first = self.rest.chars().next().ok_or(HeaderError::Malformed("it ends early"))?;
        match first {
            '{' => self.dict(depth),
            '(' => self.sequence(')', depth),
            '[' => self.sequence(']', depth),
            '\'' | '"' => Ok(Literal::Text(self.text(first)?)),
            '0'..='9' => self.int(),
            _ if self.eat("True") => Ok(Literal::Bool(true)),
            _ if self.eat("False") => Ok(Literal::Bool(false)),
            _ => Err(HeaderError::Malformed("an unknown literal")),
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sequence(&mut self, close: char, depth: usize) -> Result<Literal, HeaderError> {
        self.rest = &self.rest[1..];
        let mut parts = Vec::new();
        let close = close.to_string();
        loop {
            if self.eat(&close) {
                return Ok(Literal::Sequence(parts));
            }
            parts.push(self.literal(depth + 1)?);
            if !self.eat(",") && !self.rest.starts_with(&close) {
                return Err(HeaderError::Malformed("a list lacks a comma"));
            }
        }
    }

    fn dict(&mut self, depth: usize) -> Result<Literal, HeaderError> {
        self.rest = &self.rest[1..];
        let mut entries: Vec<(String, Literal)> = Vec::new();
        loop {
            if self.eat("}") {
                return Ok(Literal::Dict(entries));
            }
            let Literal::Text(key) = self.literal(depth + 1)? else {
                return Err(HeaderError::Malformed("a key is not text"));
            };
            if !self.eat(":") || entries.iter().any(|(known, _)| *known == key) {
                return Err(HeaderError::Malformed("a dict entry is wrong"));
            }
            entries.push((key, self.literal(depth + 1)?));
            if !self.eat(",") && !self.rest.starts_with('}') {
                return Err(HeaderError::Malformed("a dict lacks a comma"));
            }
        }
    }

    /// A quoted text. Of escapes only those that `repr` writes for quotes and backslashes.
    fn text(&mut self, quote: char) -> Result<String, HeaderError> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                '\\' => match chars.next() {
                    Some((_, c @ ('\\' | '\'' | '"'))) => text.push(c),
                    _ => return Err(HeaderError::Malformed("an unknown escape in a text")),
                },
                c => text.push(c),
            }
        }
        Err(HeaderError::Malformed("a text does not end"))
    }

    fn int(&mut self) -> Result<Literal, HeaderError> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let number = self.rest[..end].parse().map_err(|_| HeaderError::Malformed("a number is too large"))?;
        // Python 2 wrote 3L.
        self.rest = self.rest[end..].strip_prefix('L').unwrap_or(&self.rest[end..]);
        Ok(Literal::Int(number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ingest::fixtures::npy_bytes;

    fn header(text: &str) -> Result<Header, HeaderError> {
        Header::read(&mut npy_bytes(1, text, &[]).as_slice())
    }

    fn one(descr: &str) -> Result<Type, HeaderError> {
        match header(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (3,)}}"))?.fields {
            Fields::One(kind) => Ok(kind),
            fields => panic!("{fields:?}"),
        }
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let text = "{'descr': '>f4', 'fortran_order': True, 'shape': (3, 28L), }      \n";
        for version in 1..=3 {
            let bytes = npy_bytes(version, text, &[]);
            let header = Header::read(&mut bytes.as_slice()).unwrap();
            assert_eq!(header.shape, [3, 28]);
            assert!(header.fortran);
            assert_eq!(header.bytes as usize, bytes.len());
            let Fields::One(kind) = header.fields else { panic!() };
            assert_eq!((kind.element, kind.bytes, kind.swap), (Element::Known(Dtype::Float32), 4, true));
        }
        let scalar = header("{'descr': '|b1', 'fortran_order': False, 'shape': (), }").unwrap();
        assert_eq!(scalar.shape, [0u64; 0]);
    }

    #[test]
    fn fields_have_places() {
        let text = "{'descr': [('id', '<i8'), (('Title', 'im\\'g'), '|u1', (2, 3)), ('', '|V2'), ('x', '>f2', 4)], \
                    'fortran_order': False, 'shape': (5,)}";
        let header = header(text).unwrap();
        assert_eq!(header.fields.item_bytes(), 8 + 6 + 2 + 8);
        let Fields::Named(fields) = header.fields else { panic!() };
        let places: Vec<(&str, u64)> = fields.iter().map(|field| (field.name.as_str(), field.at)).collect();
        assert_eq!(places, [("id", 0), ("im'g", 8), ("", 14), ("x", 16)]);
        assert_eq!((fields[3].shape.as_slice(), fields[3].kind.swap), ([4].as_slice(), true));
    }

    #[test]
    fn types_are_known_or_named() {
        assert_eq!(one("|O").unwrap_err(), HeaderError::Pickled);
        assert_eq!(one("O").unwrap_err(), HeaderError::Pickled);
        assert_eq!(one("<V2").unwrap().element, Element::Void2);
        assert_eq!(one("bfloat16").unwrap().element, Element::Known(Dtype::BFloat16));
        assert_eq!(one("<U7").unwrap(), Type { element: Element::Other("numpy <U7".into()), bytes: 28, swap: false });
        assert_eq!(one("<M8[ns]").unwrap().bytes, 8);
        assert_eq!(one("<c16").unwrap().element, Element::Other("numpy <c16".into()));
        assert_eq!(one(">V2").unwrap().element, Element::Other("numpy >V2".into()));
        assert!(matches!(one("wat").unwrap_err(), HeaderError::Malformed(_)));
    }

    #[test]
    fn nonsense_is_refused() {
        let bad = |text: &str| assert!(header(text).is_err(), "{text}");
        bad("");
        bad("[]");
        bad("{'descr': '<f4', 'fortran_order': False}");
        bad("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}");
        bad("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} + 1");
        bad("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}");
        bad("{'descr': '<f4', 'fortran_order': __import__('os'), 'shape': (3,)}");
        bad("{'descr': [('a', [('b', '<f4')])], 'fortran_order': False, 'shape': (3,)}");
        bad("{'descr': [('a', '<f4', (18446744073709551615, 9))], 'fortran_order': False, 'shape': (3,)}");
        bad(&"(".repeat(100));
        let mut long = b"\x93NUMPY\x02\x00".to_vec();
        long.extend(u32::MAX.to_le_bytes());
        assert_eq!(Header::read(&mut long.as_slice()).unwrap_err(), HeaderError::TooLong);
        let bytes = npy_bytes(4, "{}", &[]);
        assert_eq!(Header::read(&mut bytes.as_slice()).unwrap_err(), HeaderError::Version(4, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_text_is_an_error_or_a_header(text in "[\\{\\}\\[\\]\\(\\),:'\"\\\\0-9 a-zTF<>|é]{0,60}") {
            let _ = header(&text);
            let _ = header(&format!("{{'descr': {text}, 'fortran_order': False, 'shape': (3,)}}"));
            let _ = header(&format!("{{'descr': '{text}', 'fortran_order': False, 'shape': (3,)}}"));
        }
    }
}
