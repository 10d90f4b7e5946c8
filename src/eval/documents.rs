//! Examples as text: the lines of JSONL files.

use super::EvalError;
use crate::data::BYTE_ORDER_MARK;
use crate::json;
use crate::wording::shortened;
use serde_json::{Map, Value};
use std::path::Path;

/// One example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Document {
    HellaSwag(HellaSwag),
    Choice(Choice),
    LastWord(LastWord),
}

/// A line of HellaSwag's own files (Zellers et al., 2019), as far as a score depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HellaSwag {
    /// `ctx`: the two parts of the context, joined.
    pub(super) ctx: String,
    /// `activity_label`, `ctx_a` and `ctx_b`, where the line has them.
    pub(super) parts: Option<[String; 3]>,
    pub(super) endings: Vec<String>,
    pub(super) label: usize,
}

impl HellaSwag {
    /// As llm.c and build-nanogpt take it: the raw `ctx`.
    pub(super) fn raw(self) -> Choice {
        Choice { context: self.ctx, endings: self.endings, label: self.label, delimiter: " ".into() }
    }
}

/// A context and what may follow it, after the delimiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) context: String,
    pub(super) endings: Vec<String>,
    pub(super) label: usize,
    pub(super) delimiter: String,
}

/// A text without its last word, and that word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastWord {
    pub(super) context: String,
    pub(super) word: String,
}

/// An example with its line, counted from 1.
pub(super) type Numbered = Result<(usize, Document), EvalError>;

/// The first example of a file, and then all, one after the other. All of them are of one kind.
pub(super) fn read<'a>(
    path: &'a Path,
    bytes: &'a [u8],
) -> Result<(Document, impl Iterator<Item = Numbered> + 'a), EvalError> {
    // some editors begin a file with the mark, which is no part of a line
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    if let Some(what) = looks_like(bytes) {
        return Err(EvalError::NoTask { path: path.to_owned(), what: what.to_owned() });
    }
    let lines = (1..).zip(bytes.split(|&byte| byte == b'\n'));
    let mut lines = lines.filter(|(_, text)| !text.trim_ascii().is_empty()).peekable();
    let parse = |(line, text): (usize, &[u8])| {
        let problem = |problem| EvalError::Line { path: path.to_owned(), line, problem };
        let value = json::value(text).map_err(|error| problem(format!("no JSON object: {error}")))?;
        let value =
            value.as_object().ok_or_else(|| problem("no JSON object, but another value".to_owned()))?;
        document(value).map_err(problem)
    };
    let Some(&first) = lines.peek() else { return Err(EvalError::Empty { path: path.to_owned() }) };
    let (line_of_first, first) = (first.0, parse(first)?);
    let form = std::mem::discriminant(&first);
    let documents = lines.map(move |(line, text)| {
        let document = parse((line, text))?;
        if std::mem::discriminant(&document) == form {
            return Ok((line, document));
        }
        let problem = format!(
            "an example of another form than that of line {line_of_first}: give each form its own file"
        );
        Err(EvalError::Line { path: path.to_owned(), line, problem })
    });
    Ok((first, documents))
}

/// What a file is that holds no lines of JSON, and what to do about it.
fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    let begin = bytes.trim_ascii_start();
    match begin.first()? {
        b'<' => Some("a web page, as a failed download leaves it: fetch the file again"),
        b'[' => Some("one array of JSON: write a line per example, for instance with jq -c '.[]'"),
        b'{' => None,
        _ if begin.starts_with(&[0x1f, 0x8b]) => Some("compressed by gzip: unpack it first, with gzip -d"),
        _ if begin.starts_with(b"PAR1") => Some(
            "a Parquet table: write its rows as lines of JSON, in Python with pandas' to_json(lines=True)",
        ),
        _ if begin.starts_with(b"version https://git-lfs") => {
            Some("a pointer of Git LFS: fetch the file itself, with git lfs pull")
        }
        _ => {
            Some("something else than JSON, whose lines begin with a brace: write a line of JSON per example")
        }
    }
}

fn document(line: &Map<String, Value>) -> Result<Document, String> {
    if line.contains_key("ctx") {
        let part = |key| line.get(key).and_then(Value::as_str).map(str::to_owned);
        let parts = [part("activity_label"), part("ctx_a"), part("ctx_b")];
        let parts = if let [Some(a), Some(b), Some(c)] = parts { Some([a, b, c]) } else { None };
        let (endings, label) = endings(line)?;
        return Ok(Document::HellaSwag(HellaSwag { ctx: string(line, "ctx")?, parts, endings, label }));
    }
    if line.contains_key("context") {
        let (endings, label) = endings(line)?;
        let delimiter = if line.contains_key("delimiter") { string(line, "delimiter")? } else { " ".into() };
        return Ok(Document::Choice(Choice { context: string(line, "context")?, endings, label, delimiter }));
    }
    if line.contains_key("text") {
        let text = string(line, "text")?;
        let Some((context, word)) =
            text.trim_end().rsplit_once(' ').filter(|(context, _)| !context.is_empty())
        else {
            let text = excerpt(&text.into());
            return Err(format!("`text` is {text}, which has no word before its last one"));
        };
        return Ok(Document::LastWord(LastWord { context: context.to_owned(), word: word.to_owned() }));
    }
    let keys: Vec<String> = line.keys().take(20).map(|key| format!("`{}`", shortened(key, 80))).collect();
    let found = if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
    Err(format!(
        "no example: it has {found}, but needs `ctx`, `endings` and `label` (HellaSwag), `context`, `endings` and \
         `label` (multiple choice), or `text` (last word)"
    ))
}

/// As much of a value as a message has room for.
fn excerpt(value: &Value) -> String {
    shortened(&value.to_string(), 200)
}

fn string(line: &Map<String, Value>, key: &str) -> Result<String, String> {
    match line.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("`{key}` is {}, but must be a text", excerpt(other))),
        None => Err(format!("`{key}` is missing")),
    }
}

fn endings(line: &Map<String, Value>) -> Result<(Vec<String>, usize), String> {
    let list = match line.get("endings") {
        Some(Value::Array(list)) if list.len() >= 2 => list,
        Some(Value::Array(list)) => {
            return Err(format!("`endings` has {}, but a choice needs two", list.len()));
        }
        Some(other) => return Err(format!("`endings` is {}, but must be a list of texts", excerpt(other))),
        None => return Err("`endings` is missing".into()),
    };
    let text = |ending: &Value| {
        ending.as_str().map(str::to_owned).ok_or_else(|| format!("the ending {} is no text", excerpt(ending)))
    };
    let endings: Vec<String> = list.iter().map(text).collect::<Result<_, _>>()?;
    if endings.iter().all(|ending| *ending == endings[0]) {
        return Err("its `endings` are all the same, so none can be told from the others".into());
    }
    let label = line.get("label").ok_or("`label` is missing")?;
    // Hugging Face's copy of HellaSwag has labels in quotes, and empty ones in the test set
    let number = match label {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    match number.map(|number: u64| number as usize) {
        Some(label) if label < endings.len() => Ok((endings, label)),
        _ => Err(format!(
            "`label` is {}, but must be from 0 to {}, the number of the right ending",
            excerpt(label),
            endings.len() - 1
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_at_the_beginning_is_no_part_of_a_line() {
        let line = "\u{feff}{\"text\": \"two words\"}\n";
        let (_, all) = read(Path::new("a.jsonl"), line.as_bytes()).expect("read");
        assert_eq!(all.filter_map(Result::ok).count(), 1);
        let (_, mut all) = read(Path::new("a.jsonl"), &line.as_bytes()[3..]).expect("read");
        assert!(all.all(|found| found.is_ok()));
        let twice = line.repeat(2);
        let (_, mut all) = read(Path::new("a.jsonl"), twice.as_bytes()).expect("the first");
        assert!(all.any(|found| found.is_err_and(|error| error.to_string().contains('2'))));
    }
}
