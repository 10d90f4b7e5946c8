//! A table for a README or an issue.

use super::{Export, Table};
use crate::wording::tame_line;

/// The format.
#[derive(Debug)]
pub struct Markdown;

impl Export for Markdown {
    fn export(&self, table: &Table) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = line(table.columns.iter().map(|column| escaped(&column.title)).collect());
        out += &line(
            table.columns.iter().map(|c| if c.is_numeric { "---:" } else { "---" }.to_owned()).collect(),
        );
        for row in &table.rows {
            out += &line(row.iter().map(|cell| escaped(&cell.shown)).collect());
        }
        out
    }

    fn sentence(&self, text: &str) -> String {
        escaped(text)
    }

    fn item(&self, text: &str) -> String {
        format!("- {}", self.sentence(text))
    }
}

/// A cell must stay on its line and within its bars, and is no markup: no tag, no link, no picture that tells another
/// machine who reads the table.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    let mut before = None;
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        match c {
            // GitHub makes links of addresses (GitHub Flavored Markdown, 6.9), and mentions of names
            ':' if rest.starts_with("//") => out += "\\:",
            '.' if text[..at].to_ascii_lowercase().ends_with("www") => out += "\\.",
            '@' if !is_word(before) || is_host(rest) => out += "@<!-- -->",
            // it makes references of numbers and pictures of words, whatever is escaped; a comment parts them
            '#' if begins_with_digit(rest) => out += "#<!-- -->",
            '-' if begins_with_digit(rest) && ends_with_gh(&text[..at]) => out += "-<!-- -->",
            ':' if is_emoji(rest) => out += ":<!-- -->",
            '#' if text[..at].trim().is_empty() => out += "\\#",
            '&' => out += "&amp;",
            '<' if begins_a_tag(rest) => out += "&lt;",
            '\n' => out += "<br>",
            // before a space it begins nothing
            '~' if rest.starts_with(' ') => out.push(c),
            // within a word it is none
            '_' if is_word(before) && is_word(rest.chars().next()) => out.push(c),
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '~' | '$' => out.extend(['\\', c]),
            _ => out.push(c),
        }
        before = Some(c);
    }
    tame_line(&out)
}

/// Whether a text is what stands behind the first character of a tag or a comment.
fn begins_a_tag(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?'))
}

fn begins_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether a text ends in the word that GitHub takes for its issues, as in `GH-12`.
fn ends_with_gh(text: &str) -> bool {
    let mut ending = text.chars().rev();
    let letters = ending.by_ref().take(2).map(|c| c.to_ascii_lowercase());
    letters.eq(['h', 'g']) && !ending.next().is_some_and(char::is_alphanumeric)
}

/// Whether a text is what stands behind the first colon of a word such as `:smile:`.
fn is_emoji(text: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-');
    text.trim_start_matches(part).starts_with(':') && text.starts_with(part)
}

/// Whether a text begins like the host of an address of mail.
fn is_host(text: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().take_while(|c| part(*c)).any(|c| c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_markup() {
        for (text, expected) in [
            ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
            ("![](http://x/y.png)", "!\\[\\](http\\://x/y.png)"),
            ("WWW.x.y", "WWW\\.x.y"),
            ("a@x.y", "a@<!-- -->x.y"),
            ("@somebody", "@<!-- -->somebody"),
            ("run@1000", "run@1000"),
            ("#12", "#<!-- -->12"),
            ("a/b#7 and (#8)", "a/b#<!-- -->7 and (#<!-- -->8)"),
            ("GH-12 gh-3", "GH-<!-- -->12 gh-<!-- -->3"),
            ("high-12 a-1", "high-12 a-1"),
            (":smile: :+1:", ":<!-- -->smile: :<!-- -->+1:"),
            ("10:30 a: b", "10:30 a: b"),
            ("# no heading", "\\# no heading"),
            ("C# and #", "C# and #"),
            ("data: a/b", "data: a/b"),
            ("[a](javascript:b)", "\\[a\\](javascript:b)"),
            ("`a|b` *c* ~d~ _e_ $f$", "\\`a\\|b\\` \\*c\\* \\~d~ \\_e\\_ \\$f\\$"),
            ("a\\|b", "a\\\\\\|b"),
            ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
            ("schedule.max_steps", "schedule.max_steps"),
            ("a\nb\r\u{1b}", "a<br>b\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn cells_do_not_break_the_table() {
        let text = Markdown.export(&super::super::example());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["| RUN | LR | NOTE |", "| --- | ---: | --- |"]);
        assert_eq!(lines[3], "| long\\|name | 1 | x, \"y\"<br>µ |");
        assert_eq!(lines.len(), 5);
    }
}
