//! The table of keys is the only list of keys: what the program knows about a key stands in the key's row.
//!
//! A key's path may be written elsewhere in `src` for one purpose: to name a single key to a function, which reads its
//! value or blames it in a message. Everything else is a fact about the key, which a second place would have to be
//! kept in step with, and is refused here:
//!
//! - a path inside an array, however deep: a list of keys;
//! - a path that is compared with, or matched: a branch by key (constants such as `keys::SEED` are the row's own);
//! - the name of a table with a dot, or as a prefix: a fact about the keys of that table;
//! - three or more names of tables in one array: a list of tables;
//! - a path that is not in the table, in the modules that talk about keys.
//!
//! `recipe/keys/` itself and unit tests are left out.

use crate::source_support;

use runner::recipe::keys::{KEYS, find, find_table};
use source_support::{character, comment, is_word, raw_string, source_files, string};

/// The modules where `table.word` is a key's path; elsewhere it may be a file's name.
const ABOUT_KEYS: &[&str] = &["recipe/", "plan/", "report/", "session/", "commands/"];

/// What stands in a source file, as far as lists of keys are concerned.
enum Token<'a> {
    /// The contents of a string.
    Text(&'a str),
    /// A word or a punctuation mark.
    Code(&'a str),
}

/// A string with what surrounds it.
struct Mention<'a> {
    line: usize,
    text: &'a str,
    /// Where the arrays that hold it begin, innermost last.
    arrays: Vec<usize>,
    /// What stands before it, nearest last, and after it, nearest first; blanks left out.
    before: String,
    after: String,
}

/// The source without its unit tests.
fn program(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(program, _)| program)
}

/// The tokens of a source with their offsets.
fn tokens(text: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if let Some(length) = comment(rest).or_else(|| character(rest)) {
            length
        } else if let Some(length) = raw_string(rest).or_else(|| string(rest)) {
            let literal = &rest[..length];
            let inside = literal.find('"').zip(literal.rfind('"')).filter(|(open, close)| open < close);
            tokens.push((at, Token::Text(inside.map_or("", |(open, close)| &literal[open + 1..close]))));
            length
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push((at, Token::Code(&rest[..length])));
            length
        } else {
            let length = first.len_utf8();
            if !first.is_whitespace() {
                tokens.push((at, Token::Code(&rest[..length])));
            }
            length
        };
        at += length;
    }
    tokens
}

fn mentions(text: &str) -> Vec<Mention<'_>> {
    let tokens = tokens(text);
    let code = |range: &[(usize, Token)]| -> String {
        let words = range.iter().map(|(_, token)| match token {
            Token::Code(code) => *code,
            Token::Text(_) => "\"",
        });
        words.collect()
    };
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for (i, (at, token)) in tokens.iter().enumerate() {
        match token {
            Token::Code(bracket @ ("[" | "(" | "{")) => open.push((*bracket, *at)),
            Token::Code("]" | ")" | "}") => {
                open.pop();
            }
            Token::Code(_) => {}
            Token::Text(text_inside) => found.push(Mention {
                line: text[..*at].matches('\n').count() + 1,
                text: text_inside,
                arrays: open.iter().filter(|(bracket, _)| *bracket == "[").map(|(_, at)| *at).collect(),
                before: code(&tokens[i.saturating_sub(4)..i]),
                after: code(&tokens[i + 1..(i + 5).min(tokens.len())]),
            }),
        }
    }
    found
}

/// Whether a string is compared with, or is the pattern of a match.
fn decides(mention: &Mention) -> bool {
    let before = mention.before.trim_end_matches('*').trim_end_matches('&');
    ["==", "!=", "|"].iter().any(|end| before.ends_with(end))
        || ["==", "!=", "=>", "|"].iter().any(|start| mention.after.starts_with(start))
}

/// What a string says about keys that only their rows may say.
fn fault(path: &str, mention: &Mention) -> Option<&'static str> {
    let text = mention.text;
    let is_prefix = |method: &str| mention.before.ends_with(&format!("{method}("));
    if find(text).is_some() && text.contains('.') {
        return match mention.arrays.is_empty() {
            false => Some("a list of keys"),
            true => decides(mention).then_some("a branch by key"),
        };
    }
    if find(text).is_some() && ABOUT_KEYS.iter().any(|module| path.starts_with(module)) && decides(mention) {
        let is_key = mention.before.contains("key") || mention.before.contains("path");
        return is_key.then_some("a branch by key");
    }
    let (table, rest) = text.split_once('.').unwrap_or((text, ""));
    find_table(table)?;
    if text.ends_with('.') && rest.is_empty() || is_prefix("starts_with") || is_prefix("strip_prefix") {
        return Some("a fact about all keys of a table");
    }
    let looks_like_a_key = !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let is_about_keys = ABOUT_KEYS.iter().any(|module| path.starts_with(module));
    (looks_like_a_key && is_about_keys).then_some("no such key")
}

/// Every place of a source that knows what only rows should know.
fn faults(path: &str, text: &str) -> Vec<String> {
    let mentions = mentions(program(text));
    let mut faults: Vec<String> = Vec::new();
    for mention in &mentions {
        if let Some(fault) = fault(path, mention) {
            faults.push(format!("src/{path}:{}: \"{}\": {fault}", mention.line, mention.text));
        }
    }
    let arrays = mentions.iter().filter_map(|mention| mention.arrays.first());
    for array in arrays.collect::<std::collections::BTreeSet<_>>() {
        let tables =
            mentions.iter().filter(|m| m.arrays.first() == Some(array) && find_table(m.text).is_some());
        let tables: Vec<&str> = tables.map(|mention| mention.text).collect();
        if tables.len() >= 3 {
            faults.push(format!("src/{path}: {}: a list of tables", tables.join(", ")));
        }
    }
    faults
}

#[test]
fn no_second_list_of_keys_exists() {
    let sources = source_files("src");
    assert!(sources.iter().any(|(path, _)| path.starts_with("recipe/keys/")), "the table of keys has moved");
    let others = sources.iter().filter(|(path, _)| {
        !path.starts_with("recipe/keys/") && !path.ends_with("/tests.rs") && !path.contains("/tests/")
    });
    let mut named = 0;
    let mut found = Vec::new();
    for (path, text) in others {
        found.extend(faults(path, text));
        named +=
            mentions(program(text)).iter().filter(|m| m.text.contains('.') && find(m.text).is_some()).count();
    }
    assert!(found.is_empty(), "say it in the key's row, in src/recipe/keys/table.rs:\n{}", found.join("\n"));
    // otherwise nothing was read
    assert!(named > 20, "only {named} keys are named in the source");
}

#[test]
fn lists_of_keys_are_found_in_every_form() {
    for text in [
        "const A: &[&str] = &[\"model.n_layer\", \"seed\"];",
        "let a = [Switch { key: \"data.val\", is_off }];",
        "let a = vec![(\"data.train\", \"train\"), (\"data.val\", \"val\")];",
        "match path { \"data.train\" | \"data.val\" => {} _ => {} }",
        "matches!(key, \"eval.every\" | \"sample.every\")",
        "keys.filter(|key| *key != \"optimizer.lr\")",
        "if \"optimizer.lr\" == key.path {}",
        "if key == \"seed\" {}",
        "if key.path == \"extends\" {}",
        "key.starts_with(\"checkpoint.\")",
        "const TABLES: &[&str] = &[\"eval.\"];",
        "key.starts_with(\"watchdog\")",
        "const ABOUT: &[(&str, &str)] = &[(\"model\", \"a\"), (\"data\", \"b\"), (\"eval\", \"c\")];",
        "stack.winner(\"model.layers\")",
    ] {
        assert!(!faults("recipe/other.rs", text).is_empty(), "{text}");
    }
}

#[test]
fn a_key_may_be_named_to_a_function() {
    for text in [
        "stack.winner(\"schedule.max_steps\").map(|entry| &entry.value)",
        "refuse(\"batch.world_size\", &message, \"write batch.world_size = 1\");",
        "Refusal { key: \"compute.device\", message }",
        "Relation::broken_by(\"model.n_embd\", title).and(\"model.n_head\")",
        "// [\"model.n_layer\", \"model.n_head\"]",
        "let part = [\"data\", \"epochs\"];",
        "#[cfg(test)]\nmod tests { const A: &[&str] = &[\"model.n_layer\"]; }",
    ] {
        assert_eq!(faults("recipe/other.rs", text), [""; 0], "{text}");
    }
    assert_eq!(faults("run/import.rs", "const MODEL: &str = \"model.safetensors\";"), [""; 0]);
    assert!(KEYS.len() > 40);
}
