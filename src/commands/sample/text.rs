//! Texts as they grow: whole characters, an end at a stop string, and the order in which several are printed.

use crate::data::Tokenizer;

/// The continuation of a prompt.
pub(super) struct Continuation<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    prompt: String,
    tokens: Vec<u32>,
    /// The last tokens, whose bytes end within a character.
    partial: Vec<u32>,
    /// What the other tokens stand for, without the stop string.
    text: String,
    /// Bytes of the text that no stop string can take back.
    settled: usize,
    ended: Option<&'static str>,
}

impl<'a> Continuation<'a> {
    /// Nothing yet; `prompt` is what is shown of the prompt.
    pub(super) fn new(tokenizer: &'a Tokenizer, stops: &'a [String], prompt: String) -> Self {
        let (tokens, partial, text) = (Vec::new(), Vec::new(), String::new());
        Self { tokenizer, stops, prompt, tokens, partial, text, settled: 0, ended: None }
    }

    /// Adds a token. Returns whether the text goes on.
    pub(super) fn push(&mut self, token: u32) -> bool {
        self.tokens.push(token);
        self.partial.push(token);
        let more = self.tokenizer.decode(&self.partial);
        // a character may need several tokens: until it is whole, its bytes show as a replacement mark
        if more.ends_with('\u{fffd}') {
            return true;
        }
        self.partial.clear();
        self.text += &more;
        // what is settled holds no beginning of a stop string
        let found = |stop: &String| self.text[self.settled..].find(stop.as_str());
        if let Some(at) = self.stops.iter().filter_map(found).min() {
            self.text.truncate(self.settled + at);
            self.settled = self.text.len();
            self.ended = Some("stop");
            return false;
        }
        let may_begin = |at: &usize| {
            let rest = &self.text.as_bytes()[*at..];
            self.stops.iter().any(|stop| stop.as_bytes().starts_with(rest))
        };
        self.settled = (self.settled..self.text.len()).find(may_begin).unwrap_or(self.text.len());
        true
    }

    /// No token follows.
    pub(super) fn end(&mut self) {
        self.settled = self.text.len();
        self.ended.get_or_insert("length");
    }

    /// What is shown of the prompt.
    pub(super) fn prompt(&self) -> &str {
        &self.prompt
    }

    /// Whole characters after the prompt.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// All tokens after the prompt.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Why the text ended: `length` or `stop`.
    pub(super) fn finish(&self) -> Option<&'static str> {
        self.ended
    }
}

/// Prints texts one after the other, each as far as it has come.
pub(super) struct Printer {
    shows: bool,
    /// Whether each text is announced, for there are several.
    numbers: bool,
    /// The text at hand, and its bytes that have been printed, once its prompt has.
    at: usize,
    printed: Option<usize>,
}

impl Printer {
    /// A printer of `count` texts; it prints nothing unless `shows`.
    pub(super) fn new(shows: bool, count: usize) -> Self {
        Self { shows, numbers: count > 1, at: 0, printed: None }
    }

    /// Prints what is new. Returns whether stdout is still open.
    pub(super) fn print(&mut self, texts: &mut [Continuation]) -> anyhow::Result<bool> {
        let mut out = String::new();
        while let Some(text) = texts.get(self.at).filter(|_| self.shows) {
            if self.printed.is_none() {
                if self.numbers {
                    let gap = if self.at > 0 { "\n" } else { "" };
                    out += &format!("{gap}=== sample {} ===\n", self.at + 1);
                }
                out += &text.prompt;
            }
            out += &text.text[self.printed.unwrap_or(0)..text.settled];
            self.printed = Some(text.settled);
            if text.ended.is_none() {
                break;
            }
            out += "\n";
            (self.at, self.printed) = (self.at + 1, None);
        }
        if out.is_empty() { Ok(true) } else { super::super::print(&out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is settled after each byte of `said`, and how it ended.
    fn settled(stops: &[&str], said: &str) -> (Vec<String>, Option<&'static str>) {
        let tokenizer = Tokenizer::bytes();
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut text = Continuation::new(tokenizer, &stops, String::new());
        let mut shown = Vec::new();
        for byte in said.bytes() {
            let goes_on = text.push(u32::from(byte));
            shown.push(text.text[..text.settled].to_owned());
            if !goes_on {
                break;
            }
        }
        (shown, text.finish())
    }

    #[test]
    fn only_whole_characters_are_shown() {
        assert_eq!(settled(&[], "aé!").0, ["a", "a", "aé", "aé!"]);
    }

    #[test]
    fn a_stop_string_and_what_may_become_one_are_not_shown() {
        let (shown, finish) = settled(&["aab", "x"], "caaab!");
        assert_eq!((shown, finish), (["c", "c", "c", "ca", "ca"].map(String::from).to_vec(), Some("stop")));
        // what did not become one is shown
        let (shown, finish) = settled(&["aab"], "aac");
        assert_eq!((shown, finish), (["", "", "aac"].map(String::from).to_vec(), None));
        // the first to occur, within one token or over several
        let (shown, finish) = settled(&["\n\n", "é\n"], "né\n\n");
        assert_eq!((shown.last().map(String::as_str), finish), (Some("n"), Some("stop")));
    }

    #[test]
    fn what_is_held_back_is_shown_at_the_end() {
        let tokenizer = Tokenizer::bytes();
        let stops = ["abc".to_owned()];
        let mut text = Continuation::new(tokenizer, &stops, String::new());
        assert!(text.push(97) && text.push(98));
        assert_eq!(text.settled, 0);
        text.end();
        assert_eq!((&text.text[..text.settled], text.finish()), ("ab", Some("length")));
    }
}
