//! The documents: which there are, and the fenced blocks in them.

#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod lab;
pub(crate) mod shell;
pub(crate) mod shown;

use std::path::PathBuf;

/// The pages of the site, in their order.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// Every document, by its path in the repository. `tests/documents/pages.rs` holds the list against what is there.
pub(crate) const DOCUMENTS: &[&str] = &[
    "README.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    SUMMARY,
    "docs/distributed.md",
    "docs/evaluation.md",
    "docs/gpu.md",
    "docs/guarantees.md",
    "docs/recipe-keys.md",
    "docs/sampling.md",
    "docs/scaling.md",
    "docs/targets.md",
    "docs/troubleshooting.md",
    "recipes/README.md",
    "recipes/sweeps/README.md",
    "datasets/README.md",
    "runs/README.md",
];

/// A file of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file of the repository.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A fenced block.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The word after the fence.
    pub(crate) language: String,
    /// Its lines, without the indentation of a list item that it belongs to.
    pub(crate) text: String,
    /// The document and the line of the fence, for messages.
    pub(crate) at: String,
}

/// The fenced blocks of a document, in order.
pub(crate) fn blocks(document: &str, text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut indent = None;
    for (i, line) in text.lines().enumerate() {
        let inner = line.trim_start();
        match (inner.strip_prefix("```"), indent) {
            (Some(language), None) => {
                indent = Some(line.len() - inner.len());
                let at = format!("{document}:{}", i + 1);
                found.push(Block { language: language.to_owned(), text: String::new(), at });
            }
            (Some(""), Some(_)) => indent = None,
            (_, Some(indent)) => {
                let block = found.last_mut().expect("an open block");
                block.text.push_str(line.get(indent..).unwrap_or(""));
                block.text.push('\n');
            }
            (_, None) => {}
        }
    }
    assert_eq!(indent, None, "{document}: a block without an end");
    found
}

/// A document without its fenced blocks.
pub(crate) fn outside_of_blocks(document: &str, text: &str) -> String {
    // what is not closed is reported
    blocks(document, text);
    let mut is_inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !is_inside {
            kept.push_str(line);
            kept.push('\n');
        }
        is_inside ^= is_fence;
    }
    kept
}

/// Where the links and pictures of a text lead, as they are written.
pub(crate) fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|after| after.split(')').next()).collect()
}
