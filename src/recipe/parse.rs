//! From a TOML text to checked entries: every unknown key, wrong type and bad value of it at once.
//!
//! The parser walks the spanned tables of the `toml` crate against the table of keys: serde would stop at the first
//! problem, and figment keeps no line numbers.

use super::diagnostics::{Diagnostics, Problem};
use super::keys::{self, KEYS, Key, Kind};
use super::source::{Medium, Place, Source};
use super::suggest;
use super::value::{self, Value, shown};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A key that a source sets.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: &'static Key,
    pub(super) value: Value,
    pub(super) place: Place,
}

/// The entries of one source, with what checks need to know about it.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) entries: Vec<Entry>,
    /// Keys that are set to a value that they do not accept.
    pub(super) broken: Vec<&'static Key>,
    /// The header of each table.
    pub(super) headers: BTreeMap<&'static str, Range<usize>>,
    /// Recipe files named by `extends`.
    pub(super) extends: Vec<(String, Place)>,
    /// True if the parser may have skipped some of the text.
    pub(super) is_partial: bool,
}

impl Parsed {
    /// Whether it is certainly of a recipe: it extends another one, or sets a key in a table to a value that it may
    /// have. What is in no table, as `name`, other programs have as well.
    pub(super) fn is_of_recipe(&self) -> bool {
        !self.extends.is_empty() || self.entries.iter().any(|entry| !entry.key.table().is_empty())
    }
}

/// Reads a recipe file's text.
pub(super) fn document(source: &Arc<Source>, diagnostics: &mut Diagnostics) -> Parsed {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    let mut walk = Walk { source, offset: 0, diagnostics, parsed: Parsed::default(), faults: Vec::new() };
    walk.syntax(table.get_ref(), errors);
    walk.table("", table.get_ref());
    walk.parsed
}

/// Reads `path = text` where `text`, a TOML value or a bare word, is what follows `offset` in `source`; the name of the
/// key is at `at`.
pub(super) fn assignment(
    source: &Arc<Source>,
    path: &str,
    at: Range<usize>,
    offset: usize,
    diagnostics: &mut Diagnostics,
) -> Parsed {
    let text = &source.text[offset..];
    let mut walk = Walk { source, offset: 0, diagnostics, parsed: Parsed::default(), faults: Vec::new() };
    let value = match DeValue::parse(text) {
        Ok(value) => value,
        Err(error) if text.starts_with(['[', '{', '"', '\'']) => {
            let at =
                error.span().map_or(offset..source.text.len(), |span| span.start + offset..span.end + offset);
            let help = "the value is TOML; a text that begins like this needs quotes";
            walk.diagnostics.push(
                Problem::new(
                    format!("invalid TOML in `{}`: {}", shown(path), error.message()),
                    Place::at(source, at),
                )
                .help(help),
            );
            walk.parsed.broken.extend(KEYS.iter().filter(|key| key.path == path || key.table() == path));
            return walk.parsed;
        }
        Err(_) if let Some(values) = keys::find(path).and_then(|key| several(key, text)) => {
            let problem = several_problem(path, &values, Place::at(source, offset..source.text.len()));
            walk.diagnostics.push(problem);
            walk.parsed.broken.extend(keys::find(path));
            return walk.parsed;
        }
        Err(_) => Spanned::new(0..text.len(), DeValue::String(text.into())),
    };
    walk.offset = offset;
    walk.member(path, at, &value);
    walk.parsed
}

/// The values of a list with commas, each of which the key accepts though not their list: what sweeps of other programs
/// are written as.
fn several<'a>(key: &Key, text: &'a str) -> Option<Vec<&'a str>> {
    let accepts = |text: &str| {
        let bare = || Spanned::new(0..text.len(), DeValue::String(text.to_owned().into()));
        value::check(key, &DeValue::parse(text).unwrap_or_else(|_| bare())).is_ok()
    };
    let values: Vec<&str> = text.split(',').map(str::trim).collect();
    (values.len() > 1 && !accepts(text) && values.iter().all(|value| accepts(value))).then_some(values)
}

/// The problem of several values for a key that takes one.
fn several_problem(path: &str, values: &[&str], place: Place) -> Problem {
    let shown = values.iter().map(|value| shown(value)).collect::<Vec<_>>().join(" ");
    let variable = path.rsplit('.').next().unwrap_or(path);
    Problem::new(format!("`{path}` takes one value, not {}", values.len()), place)
        .label("a run has one of them")
        .help(format!(
            "a sweep is a loop: for {variable} in {shown}; do runner RECIPE {path}=${variable}; done; then compare \
             the runs"
        ))
        .help("recipes/sweeps/README.md has such loops, with seeds, grids and a table at the end")
}

struct Walk<'a> {
    source: &'a Arc<Source>,
    /// Added to the spans of values.
    offset: usize,
    diagnostics: &'a mut Diagnostics,
    parsed: Parsed,
    /// Spans of syntax errors.
    faults: Vec<Range<usize>>,
}

/// No more syntax errors of a file are reported.
const SYNTAX_ERRORS: usize = 8;

impl Walk<'_> {
    /// Reports the syntax errors, the first of each value or line only: the others follow from it.
    fn syntax(&mut self, table: &DeTable, errors: Vec<toml::de::Error>) {
        let mut values = Vec::new();
        spans("", table, &mut values);
        values.sort_by_key(|(span, _)| span.start);
        let mut errors: Vec<_> =
            errors.into_iter().map(|error| (error.span().unwrap_or(0..0), error)).collect();
        errors.sort_by_key(|(span, _)| span.start);
        let (mut covered, mut said) = (0, 0);
        for (span, error) in errors {
            if span.start < covered {
                continue;
            }
            said += 1;
            if said > SYNTAX_ERRORS {
                // a text that is no recipe has one in every line
                self.parsed.is_partial = true;
                break;
            }
            let before = values.partition_point(|(value, _)| value.start <= span.start);
            let inside =
                before.checked_sub(1).map(|last| &values[last]).filter(|(value, _)| value.end >= span.start);
            let line_end = self.source.line_end(span.start);
            covered = line_end.max(inside.map_or(0, |(value, _)| value.end)) + 1;
            // The parser misreads what follows a broken header or an array without an end.
            let swallows = inside.is_none_or(|(value, _)| value.end > line_end);
            self.parsed.is_partial |= swallows && !error.message().starts_with(DUPLICATE);
            let value = inside.map(|(value, path)| (path.as_str(), &self.source.text[value.clone()]));
            let mut problem = syntax_problem(error.message(), value, Place::at(self.source, span.clone()));
            let line_start = self.source.line_start(span.start);
            if let Some((value, _)) = inside.filter(|(value, _)| value.start < line_start) {
                let (line, _) = self.source.line_column(value.start);
                problem = problem.help(format!("the value begins in line {line}: is its end missing?"));
            }
            self.diagnostics.push(problem);
            let is_header = inside.is_none() && self.source.text[line_start..].starts_with('[');
            let end = if is_header { self.next_header(covered) } else { covered };
            self.faults.push(span.start..end.max(self.faults.last().map_or(0, |fault| fault.end)));
        }
    }

    /// Where the next table begins: the parser takes the members of a table with a broken header for another table's.
    fn next_header(&self, offset: usize) -> usize {
        let rest = self.source.text.get(offset..).unwrap_or_default();
        rest.find("\n[").map_or(usize::MAX, |newline| offset + newline)
    }

    fn table(&mut self, prefix: &str, table: &DeTable) {
        for (name, value) in table {
            let at = name.span();
            let plain = !name.get_ref().contains('.');
            let path = match (prefix, plain) {
                (_, false) => format!("{prefix}.\"{}\"", name.get_ref()),
                ("", true) => name.get_ref().to_string(),
                (_, true) => format!("{prefix}.{}", name.get_ref()),
            };
            self.member(path.trim_start_matches('.'), at.start + self.offset..at.end + self.offset, value);
        }
    }

    /// One key with its value, which may be a table.
    fn member(&mut self, path: &str, at: Range<usize>, value: &Spanned<DeValue>) {
        if let Some(key) = keys::find(path) {
            return self.entry(key, value);
        }
        let Some(table) = keys::find_table(path).map(|table| table.name) else {
            return self.unknown(path, at, value);
        };
        match value.get_ref() {
            DeValue::Table(members) => {
                self.parsed.headers.insert(table, at);
                self.table(table, members);
            }
            _ if self.is_faulty(&self.span(value)) => {}
            other => {
                let members = members(table);
                let problem =
                    Problem::new(format!("`{table}` is a table"), Place::at(self.source, self.span(value)))
                        .label(format!("expected a table, found {}", other.type_str()))
                        .help(format!("write its keys under [{table}]: {members}"));
                self.diagnostics.push(problem);
                self.parsed.broken.extend(KEYS.iter().filter(|key| key.table() == table));
            }
        }
    }

    fn entry(&mut self, key: &'static Key, value: &Spanned<DeValue>) {
        let span = self.span(value);
        if self.is_faulty(&span) {
            return self.parsed.broken.push(key);
        }
        if key.kind == Kind::Extends {
            self.extends(value);
        }
        let place = Place::at(self.source, span);
        match value::check(key, value) {
            Ok(_) if key.kind == Kind::Extends => {}
            Ok(value) => self.parsed.entries.push(Entry { key, value, place }),
            Err(fault) => {
                let at = fault.span.start + self.offset..fault.span.end + self.offset;
                let mut problem =
                    Problem::new(format!("`{}` {}", key.path, fault.what), Place::at(self.source, at))
                        .label(fault.label);
                problem.help.extend(fault.help);
                self.diagnostics.push(problem.help(format!("`{}`: {}", key.path, key.doc)));
                self.parsed.broken.push(key);
            }
        }
    }

    fn extends(&mut self, value: &Spanned<DeValue>) {
        let items = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        let named = items.into_iter().filter_map(|item| Some((item.get_ref().as_str()?, item.span())));
        let named = named.filter(|(name, _)| !name.is_empty() && !name.contains('\0'));
        self.parsed
            .extends
            .extend(named.map(|(name, span)| (name.to_string(), Place::at(self.source, span))));
    }

    fn unknown(&mut self, path: &str, at: Range<usize>, value: &Spanned<DeValue>) {
        // The nearest name takes time to find.
        if !self.is_faulty(&at) && !self.diagnostics.omits_another() {
            let place = Place::at(self.source, at);
            self.diagnostics.push(unknown(path, place, value.get_ref().is_table()));
        }
    }

    fn span(&self, value: &Spanned<DeValue>) -> Range<usize> {
        let span = value.span();
        span.start + self.offset..span.end + self.offset
    }

    /// True for a value that the parser made up after a syntax error.
    fn is_faulty(&self, span: &Range<usize>) -> bool {
        let after = self.faults.partition_point(|fault| fault.end <= span.start);
        self.faults.get(after).is_some_and(|fault| fault.start <= span.end)
    }
}

/// The problem of a name that is no key and no table.
pub(super) fn unknown(path: &str, place: Place, is_table: bool) -> Problem {
    let (table, leaf) = path.rsplit_once('.').unwrap_or(("", path));
    let what = if is_table && table.is_empty() { "table" } else { "key" };
    let problem = Problem::new(format!("unknown {what} `{}`", shown(path)), place);
    if path.contains('"') {
        return problem
            .help("leave the quotes out: a dot inside quotes does not separate a table from a key");
    }
    if !table.is_empty() && keys::find_table(table).is_none() {
        return match suggest::path(path) {
            Some(near) => problem.label(format!("did you mean `{}`?", near.path)),
            None => problem.help(format!("the tables are {}", keys::table_names())),
        };
    }
    if is_table && table.is_empty() {
        return match suggest::table(leaf) {
            Some(near) => problem.label(format!("did you mean [{near}]?")),
            None => problem.help(format!("the tables are {}", keys::table_names())),
        };
    }
    let near = suggest::key(table, leaf);
    let listed = if table.is_empty() {
        format!("the tables are {}", keys::table_names())
    } else {
        format!("the keys of [{table}] are {}", members(table))
    };
    let problem = match near.filter(|key| key.also_called.contains(&leaf)) {
        Some(key) => problem.help(format!("`{}`: {}", key.path, key.doc)),
        None => problem,
    };
    match near {
        Some(key) if key.table() == table => problem.label(format!("did you mean `{}`?", key.leaf())),
        Some(key) => problem.label(format!("did you mean `{}`?", key.path)).help(if key.table().is_empty() {
            format!("`{}` stands at the top of the file, before any table", key.path)
        } else {
            format!("`{}` belongs under [{}]", key.leaf(), key.table())
        }),
        None => problem.help(listed),
    }
}

/// The key with this path, asked for outside of any recipe.
///
/// # Errors
/// No such key exists; the message suggests the nearest one.
pub fn find_key(path: &str) -> Result<&'static Key, Diagnostics> {
    keys::find(path).ok_or_else(|| {
        let source = Source { medium: Medium::Flag, text: path.to_owned(), rank: 0 };
        let mut diagnostics = Diagnostics::default();
        diagnostics.push(unknown(path, Place::at(&Arc::new(source), 0..path.len()), false));
        diagnostics
    })
}

fn members(table: &str) -> String {
    value::comma(KEYS.iter().filter(|key| key.table() == table).map(|key| key.leaf().to_string()))
}

/// The spans and paths of all values that are not tables.
fn spans(prefix: &str, table: &DeTable, out: &mut Vec<(Range<usize>, String)>) {
    for (name, value) in table {
        let dot = if prefix.is_empty() { "" } else { "." };
        let path = format!("{prefix}{dot}{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => spans(&path, table, out),
            _ => out.push((value.span(), path)),
        }
    }
}

const DUPLICATE: &str = "duplicate key";

/// A syntax error in words that need no knowledge of TOML's grammar; `value` is the path and the text of the value in
/// which it occurs.
fn syntax_problem(message: &str, value: Option<(&str, &str)>, place: Place) -> Problem {
    let plain = message.split(", expected").next().unwrap_or(message);
    let (what, help) = match value {
        Some((_, "")) => ("there is no value".to_string(), Some("a key is written name = value".to_string())),
        Some((_, text)) if message.starts_with("string values must be quoted") && !text.contains(' ') => {
            ("a string must be quoted".into(), Some(format!("write it as \"{}\"", shown(text))))
        }
        _ if message.starts_with(DUPLICATE) => {
            (plain.into(), Some("it is set earlier in this file: keep one of the two".into()))
        }
        _ if message.starts_with("invalid basic string") => {
            (plain.into(), Some("is the closing quote missing?".into()))
        }
        _ if message.starts_with("unclosed table") => {
            (plain.into(), Some("a table's header is written [name]".into()))
        }
        _ if message.starts_with("key with no value") => {
            (plain.into(), Some("a key is written name = value".into()))
        }
        _ => (message.into(), None),
    };
    let title = match value {
        Some((path, _)) => format!("invalid TOML in `{}`: {what}", shown(path)),
        None => format!("invalid TOML: {what}"),
    };
    help.into_iter().fold(Problem::new(title, place), Problem::help)
}
