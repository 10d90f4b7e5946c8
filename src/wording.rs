//! How counts stand in texts, for messages of all modules, and texts that a terminal only shows.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A number with its digits grouped: `124,439,808`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The whole percents of a share, cut off and not rounded: 100 is the end.
#[must_use]
pub fn percent(share: f64) -> f64 {
    // what a fraction such as 0.29 lacks of itself is no percent
    (share * 100.0 + 1e-9).floor()
}

/// A count and what is counted, as a noun in the singular whose plural ends in s: `1 step`, `3 steps`.
#[must_use]
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    format!("{number} {}", noun_of(number, noun))
}

/// A count with its digits grouped and what is counted: `1 step`, `19,073 steps`.
#[must_use]
pub fn grouped(number: u64, noun: &str) -> String {
    format!("{} {}", thousands(number), noun_of(number, noun))
}

/// The name of the task that a file holds: the file's stem in lower case, every other character an underscore.
#[must_use]
pub fn task_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A noun in the number that a count asks for: `step` for one, `steps` for none and for several.
#[must_use]
pub fn noun_of<N: PartialEq + From<u8>>(number: N, noun: &str) -> String {
    if number == N::from(1) { noun.to_owned() } else { format!("{noun}s") }
}

/// A text from elsewhere for a terminal. Control characters, which could do anything to it, are replaced, and so are
/// those that turn the direction of writing; line feeds and tabs stay.
#[must_use]
pub fn tame(text: &str) -> String {
    replaced(text, |c| is_tame(c) || matches!(c, '\n' | '\t'))
}

/// [`tame`] for a text that must stay on one line: line feeds and tabs are replaced too.
#[must_use]
pub fn tame_line(text: &str) -> String {
    replaced(text, is_tame)
}

/// The items of a list below a message, each on a line of its own.
#[must_use]
pub fn items<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let list: String = items.into_iter().map(|item| format!("\n  - {}", tame_line(item.as_ref()))).collect();
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    if !lists.contains(&list) {
        lists.truncate(MOST_LISTS - 1);
        lists.insert(0, list.clone());
    }
    list
}

/// The latest lists of [`items`], the newest first. A message is a text by the time it is shown, and a name in it may
/// look like an item.
static LISTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MOST_LISTS: usize = 16;

/// [`tame`] for a message: line feeds stay only in a list of [`items`], so that a name from elsewhere cannot pass for
/// another message.
#[must_use]
pub fn tame_message(text: &str) -> String {
    let lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_list = |list: &String| {
        let (before, after) = text.split_once(list.as_str())?;
        Some(format!("{}{list}{}", tame_line(before), tame_line(after)))
    };
    lists.iter().filter(|list| !list.is_empty()).find_map(of_list).unwrap_or_else(|| tame_line(text))
}

/// Whether a terminal shows a character and does nothing else. Of those that Unicode has for text in two directions,
/// only the ones that reach beyond their neighbours are none (UAX #9, 2.1 to 2.5).
#[must_use]
pub fn is_tame(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a text, of `most` characters at most; an ellipsis stands for the rest.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text as a word of a shell, for commands that a message offers.
#[must_use]
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-~+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A text for a cell of CSV of which no spreadsheet takes a part for a formula and runs it: an apostrophe comes before
/// what begins like one, as OWASP advises. A cell begins behind a semicolon, a tab and a line break, too, where a
/// spreadsheet separates by these, and blanks before it do not count. A number stays as it is.
#[must_use]
pub fn no_formula(text: String) -> String {
    let separates = [';', '\t', '\r', '\n'];
    let is_formula = |part: &str| {
        let begins = part.trim_start_matches(is_blank);
        let begins = begins.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
        begins && part.trim_end_matches(separates).parse::<f64>().is_err()
    };
    let is_first = |at: usize, part: &str| at == 0 && part.starts_with(['\t', '\r', '\n']);
    let guard = |(at, part): (usize, &str)| match is_formula(part) || is_first(at, part) {
        true => format!("'{part}"),
        false => part.to_owned(),
    };
    text.split_inclusive(separates).enumerate().map(guard).collect()
}

/// Whether a spreadsheet passes over a character before a formula: blanks of all kinds, and the quote before a cell.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' | '"' | '\0')
}

fn replaced(text: &str, keeps: impl Fn(char) -> bool) -> String {
    text.chars().map(|c| if keeps(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0_u64, 1, 2].map(|n| count(n, "thread")), ["0 threads", "1 thread", "2 threads"]);
        assert_eq!([1, 19_073].map(|n| grouped(n, "step")), ["1 step", "19,073 steps"]);
        assert_eq!([0, 999, 1000, 124_439_808].map(thousands), ["0", "999", "1,000", "124,439,808"]);
        assert_eq!(count(1_usize, "seed"), "1 seed");
    }

    #[test]
    fn what_a_shell_would_take_for_its_own_is_quoted() {
        assert_eq!(word("runs/tiny-1/recipe.toml"), "runs/tiny-1/recipe.toml");
        assert_eq!(word("my runs/$x"), "'my runs/$x'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn a_long_text_is_shortened_between_characters() {
        assert_eq!([3, 4].map(|most| shortened("äöüß", most)), ["äöü…", "äöüß"]);
        assert_eq!(shortened("", 0), "");
    }

    #[test]
    fn what_could_act_on_a_terminal_is_replaced() {
        let text = "a\tb\n\u{1b}[31mc\r\u{9b}d\u{7f}\u{202e}e\u{2066}é\u{200f}→";
        let mark = '\u{fffd}';
        assert_eq!(tame(text), format!("a\tb\n{mark}[31mc{mark}{mark}d{mark}{mark}e{mark}é\u{200f}→"));
        assert_eq!(tame_line("a\tb\nc"), format!("a{mark}b{mark}c"));
        let listed = format!("a\nb{}", items(["c", "d\n  - e"]));
        assert_eq!(tame_message(&listed), format!("a{mark}b\n  - c\n  - d{mark}  - e"));
        assert_eq!(tame_message("`a\n  - error: c`"), format!("`a{mark}  - error: c`"));
        assert_eq!(
            tame_message(&format!("{listed}\n  - f")),
            format!("a{mark}b\n  - c\n  - d{mark}  - e{mark}  - f")
        );
    }
}
