//! The source keeps to lengths that can be read: of its files, and of its lines, which rustfmt leaves alone in comments.

use crate::source_support::files_below;

/// Columns of a line.
const WIDTH: usize = 120;

/// The extensions of source files, and how many lines a file of the kind may have. A kernel stays with its variants.
const LINES: &[(&str, usize)] = &[("rs", 400), ("cu", 600), ("cuh", 600)];

/// What is too long in a file with so many lines at most.
fn too_long(path: &str, text: &str, most: usize) -> Vec<String> {
    let lines = text.lines().count();
    let whole = (lines > most)
        .then(|| format!("src/{path}: {lines} lines, and the limit is {most}; split it by meaning"));
    let wide = text.lines().enumerate().filter(|(_, line)| line.chars().count() > WIDTH);
    let wide = wide.map(|(index, _)| format!("src/{path}:{}: more than {WIDTH} columns", index + 1));
    whole.into_iter().chain(wide).collect()
}

#[test]
fn every_file_and_every_line_can_be_read() {
    for &(extension, most) in LINES {
        let files = files_below("src", &[extension]);
        assert!(!files.is_empty(), "there are no files with the extension {extension} below src");
        let found: Vec<String> = files.iter().flat_map(|(path, text)| too_long(path, text, most)).collect();
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }
}

#[test]
fn lengths_are_counted_in_lines_and_characters() {
    let line = |width: usize| "\u{e9}".repeat(width) + "\n";
    assert_eq!(too_long("a.rs", &line(WIDTH).repeat(3), 3), Vec::<String>::new());
    let found = too_long("a.rs", &(line(WIDTH) + &line(WIDTH + 1)), 1);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("2 lines") && found[1].starts_with("src/a.rs:2:"), "{found:?}");
}
