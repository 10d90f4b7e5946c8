//! Texts made to fit, by an ellipsis, without two that differ becoming equal.

use std::collections::HashSet;

/// Stands for what was left out.
const ELLIPSIS: char = '…';

/// Which part of a text is worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The beginning, as of a sentence.
    Start,
    /// Both ends, as of an id, whose hash comes last.
    Ends,
}

/// The texts in at most `most` characters each, in order. Texts that differ stay different; a text becomes longer than
/// `most` only where a number behind the ellipsis has to tell it from the others.
#[must_use]
pub fn shorten(texts: &[String], most: usize, keep: Keep) -> Vec<String> {
    let most = most.max(3);
    if texts.iter().all(|text| text.chars().count() <= most) {
        return texts.to_vec();
    }
    let distinct = |texts: &[String]| texts.iter().collect::<HashSet<_>>().len();
    let all = distinct(texts);
    let ways: [fn(&[char], usize) -> String; 3] = match keep {
        Keep::Start => [start, ends, end],
        Keep::Ends => [ends, end, start],
    };
    let cut = |way: fn(&[char], usize) -> String| -> Vec<String> {
        let one = |text: &String| {
            let chars: Vec<char> = text.chars().collect();
            if chars.len() <= most { text.clone() } else { way(&chars, most) }
        };
        texts.iter().map(one).collect()
    };
    let mut first = None;
    for way in ways {
        let short = cut(way);
        if distinct(&short) == all {
            return short;
        }
        first.get_or_insert(short);
    }
    numbered(texts, first.unwrap_or_default())
}

/// Puts a number behind each text that another one was shortened to as well.
fn numbered(texts: &[String], short: Vec<String>) -> Vec<String> {
    let mut known: Vec<(&String, String)> = Vec::new();
    for (text, short) in texts.iter().zip(short) {
        if known.iter().any(|(other, _)| *other == text) {
            continue;
        }
        let is_free = |name: &String| known.iter().all(|(_, taken)| taken != name) && !texts.contains(name);
        let numbers = (2..).map(|n| format!("{short}{n}"));
        let name = std::iter::once(short.clone()).chain(numbers).find(|name| is_free(name) || name == text);
        known.push((text, name.unwrap_or(short)));
    }
    let name = |text: &String| known.iter().find(|(other, _)| *other == text).map(|(_, name)| name.clone());
    texts.iter().map(|text| name(text).unwrap_or_default()).collect()
}

fn start(chars: &[char], most: usize) -> String {
    chars[..most - 1].iter().chain([&ELLIPSIS]).collect()
}

fn ends(chars: &[char], most: usize) -> String {
    // of an id the last eight characters are its hash
    let tail = if most > 10 { 8 } else { most / 2 };
    let head = most - 1 - tail;
    chars[..head].iter().chain([&ELLIPSIS]).chain(&chars[chars.len() - tail..]).collect()
}

fn end(chars: &[char], most: usize) -> String {
    std::iter::once(&ELLIPSIS).chain(&chars[chars.len() + 1 - most..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str], most: usize, keep: Keep) -> Vec<String> {
        shorten(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), most, keep)
    }

    #[test]
    fn what_differs_stays_different() {
        assert_eq!(of(&["abc", "abcdef"], 6, Keep::Start), ["abc", "abcdef"]);
        assert_eq!(of(&["abcdefgh", "x"], 5, Keep::Start), ["abcd…", "x"]);
        let ids = of(&["transformer-sweep-5fc1322b", "transformer-sweep-afaf88f1"], 16, Keep::Ends);
        assert_eq!(ids, ["transfo…5fc1322b", "transfo…afaf88f1"]);
        assert_eq!(of(&["same start, one", "same start, two"], 8, Keep::Start), ["sam… one", "sam… two"]);
        let hopeless = of(&["aaaaaaXbbbbbb", "aaaaaaYbbbbbb", "aaaaaaXbbbbbb"], 5, Keep::Start);
        assert_eq!(hopeless, ["aaaa…", "aaaa…2", "aaaa…"], "equal texts stay equal");
    }

    proptest::proptest! {
        #[test]
        fn no_two_become_one(texts in proptest::collection::vec("[ab…2]{0,12}", 1..8), most in 3usize..9) {
            for keep in [Keep::Start, Keep::Ends] {
                let short = shorten(&texts, most, keep);
                for (i, a) in texts.iter().enumerate() {
                    for (j, b) in texts.iter().enumerate() {
                        proptest::prop_assert_eq!(a == b, short[i] == short[j], "{:?} {:?}", texts, short);
                    }
                }
            }
        }
    }
}
