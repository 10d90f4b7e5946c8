//! The recipes of this repository as the program carries them, for people who have the program alone.
//!
//! Where a recipe is named, `builtin:NAME` is one of them. Their paths read as if their tree lay in a directory
//! `recipes/` beside the file that extends them, or in the current directory: `../datasets/x` is `datasets/x` there.

use super::diagnostics::Diagnostics;
use super::parse;
use super::paths::{self, BUILTIN};
use super::source::{Medium, Source};
use super::suggest;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of the tree of shipped recipes.
pub(super) const TREE: &str = "recipes";
/// The ending of a recipe file.
const ENDING: &str = ".toml";

/// A recipe that the program carries.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Shipped {
    /// Its path in the tree of recipes, without the ending: `gpt2-124m`, `base/gpt2-124m`.
    pub name: &'static str,
    /// The file, as it is in the tree.
    text: &'static str,
}

macro_rules! shipped {
    ($($name:literal)*) => {
        &[$(Shipped { name: $name, text: include_str!(concat!("../../recipes/", $name, ".toml")) }),*]
    };
}

/// All of them: whole recipes first, then those that show something, then what others build upon.
pub const SHIPPED: &[Shipped] = shipped![
    "quickstart"
    "shakespeare-char"
    "tinyshakespeare"
    "gpt2-124m"
    "gpt2-350m"
    "gpt2-774m"
    "gpt2-1558m"
    "gpt3-small"
    "gpt3-medium"
    "gpt3-large"
    "gpt3-xl"
    "gpt3/small"
    "gpt3/medium"
    "gpt3/large"
    "gpt3/xl"
    "gpt3/2.7b"
    "gpt3/6.7b"
    "gpt3/13b"
    "gpt3/175b"
    "sweeps/small"
    "muon/lipsum"
    "muon/shakespeare"
    "ladder/1-eager"
    "ladder/2-fused"
    "ladder/3-tf32"
    "ladder/4-bf16"
    "ladder/5-flash"
    "ladder/6-padded"
    "ladder/7-gpt3"
    "ladder/base"
    "base/gpt2-124m"
    "base/gpt2-350m"
    "base/gpt2-774m"
    "base/gpt2-1558m"
    "base/gpt3-small"
    "base/gpt3-medium"
    "base/gpt3-large"
    "base/gpt3-xl"
    "base/gpt3-2.7b"
    "base/gpt3-6.7b"
    "base/gpt3-13b"
    "base/gpt3-175b"
    "data/fineweb-edu"
    "gpt3/published"
];

/// The shipped recipe of this name, with or without the ending of a file.
#[must_use]
pub fn find(name: &str) -> Option<&'static Shipped> {
    let name = name.strip_suffix(ENDING).unwrap_or(name);
    SHIPPED.iter().find(|shipped| shipped.name == name)
}

/// What is wrong with a name that no shipped recipe has, and what to do. `before` stands before the name of another
/// one.
#[must_use]
pub fn unknown(name: &str, before: &str) -> (String, String) {
    let help = match nearest(name) {
        Some(near) => format!("did you mean `{before}{}`?", near.name),
        None => "`runner recipes` lists those that the program carries".to_owned(),
    };
    (format!("there is no built-in recipe `{name}`"), help)
}

/// The shipped recipe whose name is nearest to this one, if one is near enough for a typing error.
pub(super) fn nearest(name: &str) -> Option<&'static Shipped> {
    let name = name.strip_suffix(ENDING).unwrap_or(name);
    find(suggest::nearest(name, SHIPPED.iter().map(|shipped| shipped.name))?)
}

/// What follows `builtin:` where a recipe is named; `None` for the path of a file.
#[must_use]
pub fn name_in(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(BUILTIN)
}

impl Shipped {
    /// The path that names it wherever a recipe is named.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("{BUILTIN}{}", self.name).into()
    }

    /// The last part of its name, after which a run of it is called.
    #[must_use]
    pub fn stem(&self) -> &'static str {
        self.name.rsplit('/').next().unwrap_or(self.name)
    }

    /// The file, as it is in the tree.
    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    /// Its directory for a recipe in `anchor`, which names it.
    pub(super) fn dir(&self, anchor: &Path) -> PathBuf {
        anchor.join(TREE).join(Path::new(self.name).parent().unwrap_or(Path::new("")))
    }

    /// What a relative path in `extends` names.
    pub(super) fn extended(&self, name: &str) -> PathBuf {
        let dir = Path::new(self.name).parent().unwrap_or(Path::new(""));
        let joined = paths::normalize(&dir.join(name.strip_suffix(ENDING).unwrap_or(name)));
        format!("{BUILTIN}{}", joined.display()).into()
    }

    /// What it is: the first sentence of its first comment, without the full stop.
    #[must_use]
    pub fn about(&self) -> String {
        let comments = self.text.lines().skip_while(|line| !line.starts_with("# "));
        let lines = comments.map_while(|line| line.strip_prefix("# "));
        let paragraph = lines.collect::<Vec<_>>().join(" ");
        // a full stop inside a number is followed by a digit
        let sentence = paragraph.split_once(". ").map_or(paragraph.as_str(), |(first, _)| first);
        sentence.trim_end_matches('.').to_owned()
    }

    /// Whether it lacks what a training needs, and is there to be extended.
    #[must_use]
    pub fn is_base(&self) -> bool {
        self.text.lines().any(|line| line.starts_with("# A base: "))
    }

    /// The text of a file of its own in any directory: it extends what the program carries, and its data are in
    /// `datasets/` beside it.
    ///
    /// The same recipe comes of it as of the file in the tree.
    #[must_use]
    pub fn standalone(&'static self) -> String {
        let source = Source { medium: Medium::Shipped(self), text: self.text.into(), rank: 0 };
        let parsed = parse::document(&Arc::new(source), &mut Diagnostics::default());
        let mut text = self.text.to_owned();
        // from the end, so that the places before stay where they are
        for (name, place) in parsed.extends.iter().rev() {
            let span = place.span.clone().expect("it was found in the text");
            text.replace_range(span, &format!("\"{}\"", self.extended(name).display()));
        }
        let up = "../".repeat(self.name.split('/').count());
        text.replace(&format!("\"{up}datasets/"), "\"datasets/")
            .replace(
                &format!("runner {TREE}/{}{ENDING}", self.name),
                &format!("runner {}{ENDING}", self.stem()),
            )
            .lines()
            .skip_while(|line| line.starts_with("#:schema") || line.is_empty())
            .map(|line| format!("{line}\n"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_recipe_of_the_tree_is_carried() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join(TREE);
        let files = glob::glob(&format!("{}/**/*{ENDING}", tree.display())).expect("a pattern");
        let names: BTreeSet<String> = files
            .map(|file| file.expect("readable").strip_prefix(&tree).expect("below").display().to_string())
            .map(|name| name.trim_end_matches(ENDING).to_owned())
            .collect();
        let carried: BTreeSet<String> = SHIPPED.iter().map(|shipped| shipped.name.to_owned()).collect();
        assert_eq!(carried, names);
        assert_eq!(SHIPPED.len(), names.len(), "a name is carried twice");
    }

    #[test]
    fn every_recipe_says_what_it_is() {
        for shipped in SHIPPED {
            let about = shipped.about();
            assert!(about.len() >= 10 && about.len() < 130, "{}: {about}", shipped.name);
        }
        assert_eq!(find("base/gpt2-124m").map(Shipped::about).as_deref(), Some("GPT-2 124M"));
        assert_eq!(SHIPPED.iter().filter(|shipped| shipped.is_base()).count(), 14);
    }

    #[test]
    fn names_are_found_with_and_without_the_ending() {
        assert_eq!(find("gpt3/2.7b").map(Shipped::stem), Some("2.7b"));
        assert_eq!(find("quickstart.toml"), find("quickstart"));
        assert_eq!(nearest("quikstart").map(|shipped| shipped.name), Some("quickstart"));
        assert!(find("base").is_none() && nearest("nothing like it").is_none());
    }

    #[test]
    fn bases_are_named_from_anywhere_in_the_tree() {
        let shipped = find("gpt3/small").expect("carried");
        assert_eq!(shipped.extended("../base/gpt3-small.toml"), Path::new("builtin:base/gpt3-small"));
        assert_eq!(shipped.extended("published.toml"), Path::new("builtin:gpt3/published"));
        assert_eq!(
            paths::normalize(&shipped.dir(Path::new("/x")).join("../../datasets")),
            Path::new("/x/datasets")
        );
    }
}
