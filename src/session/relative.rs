//! Paths as people read them.

/// Text in which the paths below the current directory are relative to it: recipes make them absolute.
pub fn relative(text: &str) -> String {
    match std::env::current_dir() {
        Ok(here) => without(text, &format!("{}{}", here.display(), std::path::MAIN_SEPARATOR)),
        Err(_) => text.to_owned(),
    }
}

/// Text without the directory `below` where a path begins with it, not where a path has its name within.
fn without(text: &str, below: &str) -> String {
    let begins = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || "/._-".contains(c));
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    for (at, _) in text.match_indices(below).filter(|(at, _)| begins(&text[..*at])) {
        shown += &text[end..at];
        end = at + below.len();
    }
    shown + &text[end..]
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn only_what_a_path_begins_with_is_left_out() {
        let shown = |text| without(text, "/a/b/");
        assert_eq!(shown("/a/b/c.bin"), "c.bin");
        assert_eq!(shown("`/a/b/c` and /a/b/d"), "`c` and d");
        assert_eq!(shown("/x/a/b/c.bin"), "/x/a/b/c.bin");
        assert_eq!(shown("/a/b/a/b/c.bin"), "a/b/c.bin");
    }
}
