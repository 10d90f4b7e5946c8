//! The program's source as text, for tests of rules that no compiler checks.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};

/// The Rust files below a directory of the repository, as [`files_below`] gives them.
pub(crate) fn source_files(directory: &str) -> Vec<(String, String)> {
    files_below(directory, &["rs"])
}

/// The files with one of the extensions below a directory of the repository, sorted: the path below it with slashes, and
/// the text.
pub(crate) fn files_below(directory: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut files = Vec::new();
    collect(&root, extensions, &mut files);
    files.sort();
    let read = |file: PathBuf| {
        let below = file.strip_prefix(&root).expect("it lies below the directory");
        let path = below.to_str().expect("our names are ASCII").replace('\\', "/");
        (path, fs::read_to_string(&file).expect("a source file"))
    };
    files.into_iter().map(read).collect()
}

fn collect(dir: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("the directory can be read") {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() {
            collect(&path, extensions, files);
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|&wanted| extension == wanted))
        {
            files.push(path);
        }
    }
}

/// The text with comments and the contents of strings and character literals taken out; line breaks stay.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped =
            comment(rest).or_else(|| raw_string(rest)).or_else(|| string(rest)).or_else(|| character(rest));
        let taken = skipped.unwrap_or(first.len_utf8());
        match skipped {
            // a blank keeps the words on both sides apart
            Some(_) => code.extend(rest[..taken].chars().filter(|&c| c == '\n').chain([' '])),
            None => code.push(first),
        }
        rest = &rest[taken..];
        if skipped.is_none() && is_word(first) {
            // a whole word at once: the r of `char"` begins no raw string
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            code.push_str(&rest[..word]);
            rest = &rest[word..];
        }
    }
    code
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the comment that the text begins with.
pub(crate) fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.starts_with("/*").then(|| text.find("*/").map_or(text.len(), |end| end + 2))
}

/// Length of the raw string that the text begins with.
pub(crate) fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = body.find(&close).map_or(body.len(), |end| end + close.len());
    Some(text.len() - body.len() + end)
}

/// Length of the string that the text begins with.
pub(crate) fn string(text: &str) -> Option<usize> {
    let body = text.strip_prefix("b\"").or_else(|| text.strip_prefix('"'))?;
    Some(text.len() - body.len() + quoted(body, '"'))
}

/// Length of the character literal that the text begins with: `'x'` and `'\n'`, but not the lifetime `'x`.
pub(crate) fn character(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    let mut chars = body.chars();
    let closes = match chars.next()? {
        '\\' => true,
        _ => chars.next() == Some('\''),
    };
    closes.then(|| 1 + quoted(body, '\''))
}

/// Length up to and with the quote that closes.
fn quoted(body: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    body.len()
}
