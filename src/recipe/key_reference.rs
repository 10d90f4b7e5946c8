//! Every key on a page for readers: `runner schema keys` prints it, and `docs/recipe-keys.md` is it.
//!
//! It is generated from the table of keys, so it cannot disagree with the loader.

use super::init_from;
use super::keys::{Fallback, Interval, KEYS, Key, Kind, OnResume, TABLES, known};
use super::presets;
use crate::wording::thousands;

/// What stands above the tables. The page lies in `docs/`, from where its links lead.
const HEAD: &str = "\
# Every key

A recipe sets keys of these tables; [the guide](../recipes/README.md) says what they are for and how layers combine.
`runner explain RECIPE KEY` shows the value of one in a recipe, and who set it. `runner schema keys` prints this page.

A key with a default may be left out. Under *on resume*, a resumed run [may change](../runs/README.md#resuming) the key
or keeps it as it began. Files are paths, globs or `builtin:` names, relative to the recipe that names them.
";

/// The page, in Markdown, without a final newline.
#[must_use]
pub fn key_reference() -> String {
    let mut page = HEAD.to_owned();
    section(&mut page, "Outside of the tables", "the recipe as a whole", "");
    for table in TABLES {
        section(&mut page, table.name, table.doc, table.name);
    }
    page.trim_end().to_owned()
}

fn section(page: &mut String, heading: &str, about: &str, table: &str) {
    page.push_str(&format!("\n## {heading}\n\n{}.\n\n", capitalized(about)));
    page.push_str("| key | meaning | value | default | on resume |\n| --- | --- | --- | --- | --- |\n");
    for key in KEYS.iter().filter(|key| key.table() == table) {
        let resume = match (key.is_resolved(), key.on_resume) {
            (false, _) => "",
            (true, OnResume::Free) => "may change",
            (true, OnResume::Kept) => "kept",
        };
        let cells = [&format!("`{}`", key.leaf()), &meaning(key), &value(key.kind), &default(key), resume];
        page.push_str(&format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")));
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Words, each as code.
fn coded<'a>(words: impl IntoIterator<Item = &'a str>, joint: &str) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(joint)
}

/// Texts as TOML has them.
fn texts<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
}

/// What a key accepts.
fn value(kind: Kind) -> String {
    match kind {
        Kind::Integer { min, max } => {
            format!("integer, {} to {}", bound(min.unsigned_abs()), bound(max.unsigned_abs()))
        }
        Kind::Tokens { max } => format!("integer, 1 to {}, or as `12e9`", bound(max.unsigned_abs())),
        Kind::MicroBatch { max } => format!("integer, 1 to {}, or `\"auto\"`", bound(max.unsigned_abs())),
        Kind::Number(Interval::Positive) => "number above 0".to_owned(),
        Kind::Number(Interval::Fraction) => "number above 0 and below 1".to_owned(),
        Kind::Number(Interval::BelowOne) => "number, 0 or more and below 1".to_owned(),
        Kind::Number(Interval::NonNegative) => "number, 0 or more".to_owned(),
        Kind::Number(Interval::Unit) => "number, 0 to 1".to_owned(),
        Kind::Betas => "two numbers, each 0 or more and below 1".to_owned(),
        Kind::Flag => coded(["true", "false"], ", "),
        Kind::Text => "text".to_owned(),
        Kind::Name => "letters, digits, `.`, `_` and `-`".to_owned(),
        Kind::Choice(words) => texts(words.iter().copied()),
        Kind::Choices(words) => format!("some of {}", texts(words.iter().copied())),
        Kind::Device => texts(["auto", "cpu", "cuda", "cuda:N"]),
        Kind::File => "path".to_owned(),
        Kind::Start => {
            format!("path, or `{{ run, step, optimizer }}`; a step is 0 to {}", bound(init_from::STEPS))
        }
        Kind::Files { min: 0 } => "files, one or a list".to_owned(),
        Kind::Files { .. } => "files, one or a list, at least one".to_owned(),
        Kind::Sources => "files, one or a list, or a list of `{ path, weight }`".to_owned(),
        Kind::Sets => "files, one or a list, or a table of them by name".to_owned(),
        Kind::Preset => texts(presets::names()),
        Kind::Extends => "recipes, one or a list".to_owned(),
    }
}

/// A bound, where it is a power of two of many digits as such.
fn bound(number: u64) -> String {
    match number.is_power_of_two() && number > 1 << 20 {
        true => format!("2^{}", number.trailing_zeros()),
        false => thousands(number),
    }
}

fn default(key: &Key) -> String {
    let of = |path| format!("`{}`", known(path).leaf());
    match key.default {
        Fallback::Is(value) => format!("`{value}`"),
        Fallback::Absent => "none".to_owned(),
        Fallback::Required => "required".to_owned(),
        Fallback::FileStem => "the stem of the file's name".to_owned(),
        Fallback::FifthOf(path) => {
            let with = key.special_in.map_or_else(String::new, |kind| format!(" with `{kind}`"));
            format!("a fifth of {}{with}", of(path))
        }
        Fallback::SameAs(path) => format!("that of {}", of(path)),
    }
}

/// What a key means, and when it has an effect.
fn meaning(key: &Key) -> String {
    let mut text = format!("{}.", capitalized(key.doc));
    if !key.schedules.is_empty() {
        text.push_str(&format!(" Only with `schedule.kind` {}.", coded(key.schedules.iter().copied(), ", ")));
    }
    if let Some(switch) = key.silenced_by {
        let keys = coded(switch.keys.iter().copied(), " and ");
        text.push_str(&format!(" Whether it has an effect depends on {keys}."));
    }
    if !key.also_called.is_empty() {
        text.push_str(&format!(" Elsewhere: {}.", coded(key.also_called.iter().copied(), ", ")));
    }
    text
}
