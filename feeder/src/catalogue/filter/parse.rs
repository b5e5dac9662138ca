//! Text to tree, with the place of whatever is wrong.

use super::{DEPTH_MAX, Expr, FILTER_BYTES_MAX, Op, Value, WORDS};
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A bare word: a column's name, or one with a meaning of its own.
    Word(String),
    /// A name in double quotes.
    Name(String),
    Value(Value),
    Op(Op),
    Open,
    Close,
    Comma,
}

/// Reads a filter.
pub(in crate::catalogue) fn parse(text: &str) -> Result<Expr> {
    if text.len() > FILTER_BYTES_MAX {
        let text = format!("the filter is too long: bytes={} bytes_max={FILTER_BYTES_MAX}", text.len());
        return Err(Error::invalid(text));
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { text, tokens, at: 0 };
    let expr = parser.or(0)?;
    match parser.peek() {
        None => Ok(expr),
        Some(_) => Err(parser.wrong("the filter goes on where it should end, 'and' or 'or' may be missing")),
    }
}

fn wrong(text: &str, at: usize, what: &str) -> Error {
    let near: String = text.get(at..).unwrap_or_default().chars().take(20).collect();
    let near = if near.is_empty() { "its end".into() } else { format!("{near:?}") };
    Error::invalid(format!("{what}: at={at} near={near}"))
        .with_hint("write for example 'label == 3 and quality >= 0.5', 'user in (7, 9)', 'not reviewed'")
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let rest = &text[at..];
        let (token, length) = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'(' => (Token::Open, 1),
            b')' => (Token::Close, 1),
            b',' => (Token::Comma, 1),
            b'"' => {
                let end = rest[1..].find('"').filter(|&end| end > 0);
                let end = end.ok_or_else(|| wrong(text, at, "a name in quotes does not end, or is empty"))?;
                (Token::Name(rest[1..=end].into()), end + 2)
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                (word(&rest[..end]), end)
            }
            b'0'..=b'9' | b'.' | b'-' | b'+' => number(rest).ok_or_else(|| wrong(text, at, "not a number"))?,
            _ => {
                let found = Op::ALL.iter().find(|(op, _)| rest.starts_with(op));
                let (op, value) = found.ok_or_else(|| wrong(text, at, "the filter has a character of no meaning"))?;
                (Token::Op(*value), op.len())
            }
        };
        tokens.push((at, token));
        at += length;
    }
    Ok(tokens)
}

/// A word; those with a meaning of their own in lower case.
fn word(text: &str) -> Token {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "true" => Token::Value(Value::Bool(true)),
        "false" => Token::Value(Value::Bool(false)),
        _ if WORDS.contains(&lower.as_str()) => Token::Word(lower),
        _ => Token::Word(text.into()),
    }
}

/// A number at the beginning of a text, and its length.
fn number(rest: &str) -> Option<(Token, usize)> {
    let bytes = rest.as_bytes();
    let mut end = usize::from(matches!(bytes[0], b'-' | b'+'));
    while let Some(&byte) = bytes.get(end) {
        let exponent_sign = matches!(byte, b'-' | b'+') && matches!(bytes[end - 1], b'e' | b'E');
        if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' || exponent_sign) {
            break;
        }
        end += 1;
    }
    let text = rest[..end].replace('_', "");
    let value = match text.parse::<i128>() {
        Ok(number) => Value::Int(number),
        Err(_) if text.bytes().any(|b| b.is_ascii_digit()) && !text.contains(['n', 'N']) => {
            Value::Float(text.parse().ok().filter(|number: &f64| number.is_finite())?)
        }
        Err(_) => return None,
    };
    Some((Token::Value(value), end))
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(usize, Token)>,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        self.take(&Token::Word(word.into()))
    }

    fn wrong(&self, what: &str) -> Error {
        wrong(self.text, self.tokens.get(self.at).map_or(self.text.len(), |(at, _)| *at), what)
    }

    fn or(&mut self, depth: usize) -> Result<Expr> {
        self.joined(depth, "or", Self::and, Expr::Or)
    }

    fn and(&mut self, depth: usize) -> Result<Expr> {
        self.joined(depth, "and", Self::not, Expr::And)
    }

    fn joined(
        &mut self,
        depth: usize,
        word: &str,
        next: fn(&mut Self, usize) -> Result<Expr>,
        make: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr> {
        let mut parts = vec![next(self, depth)?];
        while self.take_word(word) {
            parts.push(next(self, depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { make(parts) })
    }

    fn not(&mut self, depth: usize) -> Result<Expr> {
        if depth > DEPTH_MAX {
            return Err(self.wrong("the filter is nested too deeply"));
        }
        if self.take_word("not") {
            return Ok(Expr::Not(Box::new(self.not(depth + 1)?)));
        }
        if self.take(&Token::Open) {
            let inner = self.or(depth + 1)?;
            return match self.take(&Token::Close) {
                true => Ok(inner),
                false => Err(self.wrong("a bracket is not closed")),
            };
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        if let Some(&Token::Value(value)) = self.peek() {
            self.at += 1;
            let op = self.op().ok_or_else(|| self.wrong("a value is to be compared with a column"))?;
            let column =
                self.column().ok_or_else(|| self.wrong("a value is compared with something that is no column"))?;
            return Ok(Expr::Compare(column, op.turned(), value));
        }
        let column = self.column().ok_or_else(|| self.wrong("the filter needs a column here"))?;
        if let Some(op) = self.op() {
            let value = self.value().ok_or_else(|| self.wrong("a column is compared with a number, true or false"))?;
            return Ok(Expr::Compare(column, op, value));
        }
        let not = self.take_word("not");
        if self.take_word("in") {
            return Ok(Expr::In(column, !not, self.list()?));
        }
        if not {
            return Err(self.wrong("'not' behind a column is followed by 'in'"));
        }
        Ok(Expr::Is(column))
    }

    fn list(&mut self) -> Result<Vec<Value>> {
        if !self.take(&Token::Open) {
            return Err(self.wrong("'in' is followed by a list in brackets"));
        }
        let mut values = Vec::new();
        loop {
            values.push(self.value().ok_or_else(|| self.wrong("a list holds numbers, true or false"))?);
            if self.take(&Token::Close) {
                return Ok(values);
            }
            if !self.take(&Token::Comma) {
                return Err(self.wrong("values of a list stand between commas"));
            }
        }
    }

    fn op(&mut self) -> Option<Op> {
        let Some(&Token::Op(op)) = self.peek() else { return None };
        self.at += 1;
        Some(op)
    }

    fn value(&mut self) -> Option<Value> {
        let Some(&Token::Value(value)) = self.peek() else { return None };
        self.at += 1;
        Some(value)
    }

    fn column(&mut self) -> Option<String> {
        let name = match self.peek()? {
            Token::Name(name) => name.clone(),
            Token::Word(word) if !WORDS.contains(&word.as_str()) => word.clone(),
            _ => return None,
        };
        self.at += 1;
        Some(name)
    }
}
