//! A trace as CSV: a header that names the columns, then a line for each job.
//!
//! Strict on purpose: an unknown column, a missing one or a number that is not one
//! is an error with its line, never a default.

use crate::host_gpus::read_size;
use crate::trace::{JobRow, Trace, TraceBuilder, TraceError, read_tier};
use std::collections::BTreeMap;

/// Columns that must be there.
const REQUIRED_COLUMNS: [&str; 6] = ["arrival_s", "tenant", "vram", "gpus", "duration_s", "tier"];
/// Columns that may be there.
const OPTIONAL_COLUMNS: [&str; 2] = ["priority", "name"];

/// Lines of a table with a header that names the columns.
#[derive(Debug)]
pub struct CsvTable<'a> {
    columns: BTreeMap<String, usize>,
    lines: Vec<(usize, &'a str)>,
}

/// One line of a table, with its number.
#[derive(Debug)]
pub struct CsvLine<'t> {
    /// Counted from 1, the header included.
    pub number: usize,
    fields: Vec<String>,
    columns: &'t BTreeMap<String, usize>,
}

impl<'a> CsvTable<'a> {
    /// Parses the header. Empty lines and a byte order mark are skipped.
    pub fn read(text: &'a str) -> Result<CsvTable<'a>, TraceError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().zip(1..).map(|(line, n)| (n, line)).filter(|(_, line)| !line.trim().is_empty());
        let Some((number, header)) = lines.next() else { return Err(TraceError::whole("it is empty")) };
        let mut columns = BTreeMap::new();
        for (place, name) in split(header).map_err(|what| TraceError::at(number, what))?.into_iter().enumerate() {
            if columns.insert(name.clone(), place).is_some() {
                return Err(TraceError::at(number, format!("column `{name}` is there twice")));
            }
        }
        Ok(CsvTable { columns, lines: lines.collect() })
    }

    /// The names of its columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(String::as_str)
    }

    /// Fails unless all of these are there.
    pub fn require(&self, names: &[&str]) -> Result<(), TraceError> {
        match names.iter().find(|name| !self.columns.contains_key(**name)) {
            Some(name) => Err(TraceError::at(1, format!("column `{name}` is missing"))),
            None => Ok(()),
        }
    }

    /// Its lines, each with as many fields as there are columns.
    pub fn lines(&self) -> impl Iterator<Item = Result<CsvLine<'_>, TraceError>> {
        self.lines.iter().map(|(number, line)| {
            let fields = split(line).map_err(|what| TraceError::at(*number, what))?;
            if fields.len() != self.columns.len() {
                let (have, want) = (fields.len(), self.columns.len());
                return Err(TraceError::at(*number, format!("{have} fields, but the header has {want}")));
            }
            Ok(CsvLine { number: *number, fields, columns: &self.columns })
        })
    }
}

impl CsvLine<'_> {
    /// The text in a column; empty if there is no such column.
    pub fn field(&self, name: &str) -> &str {
        self.columns.get(name).map_or("", |place| &self.fields[*place])
    }

    /// The number in a column.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.field(name);
        text.parse().map_err(|_| format!("`{name}` {text:?} is not a number that fits there"))
    }
}

/// Fields of one line. Quotes may surround a field; two in it stand for one.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let after = match rest.strip_prefix('"') {
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                if rest[..end].contains('"') {
                    return Err("a quote inside a field that does not begin with one".into());
                }
                fields.push(rest[..end].trim().to_owned());
                &rest[end..]
            }
            Some(mut inner) => {
                let mut field = String::new();
                loop {
                    let Some(end) = inner.find('"') else { return Err("a quote is not closed".into()) };
                    field.push_str(&inner[..end]);
                    inner = &inner[end + 1..];
                    match inner.strip_prefix('"') {
                        Some(more) => {
                            field.push('"');
                            inner = more;
                        }
                        None => break,
                    }
                }
                fields.push(field);
                inner
            }
        };
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None if after.is_empty() => return Ok(fields),
            None => return Err("something stands between a closing quote and the comma".into()),
        }
    }
}

/// Reads a trace.
pub fn read(text: &str, source: &str) -> Result<Trace, TraceError> {
    let table = CsvTable::read(text)?;
    table.require(&REQUIRED_COLUMNS)?;
    if let Some(odd) = table.columns().find(|name| !REQUIRED_COLUMNS.contains(name) && !OPTIONAL_COLUMNS.contains(name))
    {
        let known = [&REQUIRED_COLUMNS[..], &OPTIONAL_COLUMNS[..]].concat().join(", ");
        return Err(TraceError::at(1, format!("column `{odd}` is not known; there are: {known}")));
    }
    let mut builder = TraceBuilder::new(source);
    for line in table.lines() {
        let line = line?;
        row(&line).and_then(|row| builder.push(row)).map_err(|what| TraceError::at(line.number, what))?;
    }
    builder.finish()
}

fn row(line: &CsvLine<'_>) -> Result<JobRow, String> {
    let priority = match line.field("priority") {
        "" => 0,
        _ => line.number("priority")?,
    };
    Ok(JobRow {
        arrival_s: line.number("arrival_s")?,
        tenant: line.field("tenant").to_owned(),
        vram: read_size(line.field("vram")).map_err(|what| format!("`vram`: {what}"))?,
        gpus: line.number("gpus")?,
        duration_s: line.number("duration_s")?,
        tier: read_tier(line.field("tier"))?,
        priority,
        name: Some(line.field("name")).filter(|name| !name.is_empty()).map(str::to_owned),
    })
}
