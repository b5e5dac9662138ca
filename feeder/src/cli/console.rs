//! Where a command's words go.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::Error;

/// How a command can fail.
#[derive(Debug)]
pub(super) enum Failure {
    /// Somebody closed the other end of the output.
    Pipe,
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Error(Error::io("cannot write output", error)),
        }
    }
}

/// The two streams of a command, and how it shall speak.
pub(super) struct Console<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    /// Results as JSON.
    pub(super) json: bool,
    /// No notes, no progress.
    pub(super) quiet: bool,
    /// `err` is the process's terminal.
    pub(super) terminal: bool,
}

impl<'a> Console<'a> {
    pub(super) fn new(out: &'a mut dyn Write, err: &'a mut dyn Write, terminal: bool) -> Self {
        Self { out, err, json: false, quiet: false, terminal }
    }

    /// A line of the result.
    pub(super) fn line(&mut self, text: &str) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{text}")?)
    }

    /// The result for machines, as one line.
    pub(super) fn object(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::invalid("the result cannot be written as json").with_source(error))?;
        self.line(&text)
    }

    /// Columns of a table, the first row is its head. Numbers stand to the right.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) -> Result<(), Failure> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |at: usize| rows.iter().filter_map(move |row| row.get(at));
        let widths: Vec<usize> =
            (0..columns).map(|at| cells(at).map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
        let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit());
        let right: Vec<bool> = (0..columns).map(|at| cells(at).skip(1).all(number) && cells(at).count() > 1).collect();
        for row in rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&right) {
                let text = if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(&text);
                line.push_str("  ");
            }
            self.line(line.trim_end())?;
        }
        Ok(())
    }

    /// Something to know beside the result.
    pub(super) fn note(&mut self, text: &str) {
        if !self.quiet {
            self.complain(text);
        }
    }

    /// A line that is shown whatever was asked for. If even that fails, nobody is left to be told.
    pub(super) fn complain(&mut self, text: &str) {
        let _ = writeln!(self.err, "{text}");
        let _ = self.err.flush();
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }
}
