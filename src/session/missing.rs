//! What helps when data are not there: the command that fetches those of shipped recipes, where a name was looked for,
//! and what lies there under a similar name.

use crate::data::DataError;
use crate::data::fetch::CATALOGUE;
use crate::recipe::Resolved;
use crate::regular;
use crate::wording::word;
use std::path::{Component, Path, PathBuf};

/// Data that shipped recipes name.
#[derive(Debug)]
pub struct Shipped {
    /// How their paths go on below the directory of datasets.
    pub name: &'static str,
    /// The heading in that directory's README.
    pub heading: &'static str,
    /// Under which name `runner data fetch` gets them.
    pub fetch: &'static str,
}

/// The data of all shipped recipes. `datasets/README.md` has the same headings.
pub const SHIPPED: &[Shipped] = &[
    Shipped { name: "fineweb-edu/", heading: "FineWeb-Edu", fetch: "fineweb-edu-10b" },
    Shipped { name: "hellaswag_val.jsonl", heading: "HellaSwag", fetch: "hellaswag" },
    Shipped { name: "tinyshakespeare.txt", heading: "Tiny Shakespeare", fetch: "tinyshakespeare" },
];

/// Data of another user where recipes that the program carries, or copies of these, look for them, although no one has
/// named that place: the outermost directory on the way, or else the first file, that belongs neither to this process's
/// user nor to root. The number is its owner's.
pub(super) fn of_another(resolved: &Resolved) -> Option<(PathBuf, u32)> {
    let on_way = |path: &Path| {
        let datasets = path.ancestors().position(|above| above.ends_with(DATASETS))?;
        let (path, user) = regular::last_of_another(path.ancestors().take(datasets + 1))?;
        Some((path.to_owned(), user))
    };
    // `runner init` writes what it carries into a file
    let copied = resolved.filed_paths().filter(|named| shipped(named).is_some());
    resolved.carried_paths().chain(copied).find_map(|named| {
        let (dir, rest) = literal_directory(Path::new(named));
        let matched = || regular::matching(named).ok()?.paths.iter().find_map(|path| on_way(path));
        on_way(&dir.join(rest)).or_else(matched)
    })
}

/// The directory that shipped recipes take their data from.
const DATASETS: &str = "datasets";
/// The file that says where data come from.
const README: &str = "README.md";
/// At most this many names are shown, of at most so many files.
const SHOWN: usize = 3;
const LOOKED_AT: usize = 10_000;
/// Bytes of what is compared with names, which takes time in proportion to both lengths: no file has a longer name.
const LONGEST: usize = 255;

/// What to know and to do about data that are not there; nothing for other faults.
pub(super) fn help(error: &DataError) -> Vec<String> {
    let named = match error {
        DataError::Missing { path } => path.clone(),
        DataError::NoMatch { pattern } => PathBuf::from(pattern),
        _ => return Vec::new(),
    };
    let (dir, wanted) = literal_directory(&named);
    fetching(&named).into_iter().chain([there(&dir, &wanted)]).collect()
}

/// The data of shipped recipes that a path or a glob names, and the directory `datasets` that it names them in.
fn shipped(named: &str) -> Option<(&'static Shipped, &str)> {
    let below =
        |(at, _): (usize, &str)| Some((&named[..at + DATASETS.len()], named.get(at + DATASETS.len() + 1..)?));
    named.match_indices(DATASETS).filter_map(below).find_map(|(datasets, rest)| {
        Some((SHIPPED.iter().find(|known| rest.starts_with(known.name))?, datasets))
    })
}

/// The command that gets the data of a shipped recipe that a path or a glob names, and what they are; `None` for other
/// data.
#[must_use]
pub fn fetching(named: &Path) -> Option<String> {
    let (shipped, datasets) = shipped(named.to_str()?)?;
    let readme = literal_directory(Path::new(datasets)).0.join(DATASETS).join(README);
    let known = CATALOGUE.iter().find(|known| known.name == shipped.fetch)?;
    let relative = |path: &Path| super::inputs::relative(&path.display().to_string());
    let out = match relative(&literal_directory(named).0) {
        usual if usual == known.out => String::new(),
        other => format!(" --out {}", word(&other)),
    };
    let more = match readme.is_file() {
        true => format!("; \"{}\" in {} says more", shipped.heading, relative(&readme)),
        false => String::new(),
    };
    Some(format!("`runner data fetch {}{out}` gets them: {}, {}{more}", known.name, known.about, known.size))
}

/// The directory in which the last part of a path, or the first part with a wildcard, is looked for; and what is looked
/// for there. A directory that exists as it is written has no wildcards.
fn literal_directory(named: &Path) -> (PathBuf, String) {
    let parts: Vec<Component> = named.components().collect();
    let last = parts.len().saturating_sub(1);
    let is_directory = |path: &Path| path.is_dir() && regular::is_spelled(path);
    let mut dir = PathBuf::new();
    for (i, part) in parts.iter().enumerate() {
        let text = part.as_os_str().to_string_lossy();
        match unescaped(&text) {
            _ if i < last && is_directory(&dir.join(part)) => dir.push(part),
            Some(literal) if i < last => dir.push(literal),
            _ => {
                let rest: PathBuf = parts[i..].iter().collect();
                return (dir, rest.to_string_lossy().into_owned());
            }
        }
    }
    (dir, String::new())
}

/// The name that a part of a path stands for, its wildcards in brackets taken out; `None` if others are left.
fn unescaped(part: &str) -> Option<String> {
    let plain = ["[*]", "[?]", "[[]", "[]]"]
        .iter()
        .fold(part.to_owned(), |text, escaped| text.replace(escaped, &escaped[1..2]));
    (plain == part && !part.contains(['*', '?', '[']) || glob::Pattern::escape(&plain) == part)
        .then_some(plain)
}

/// What a directory holds instead of what was looked for.
fn there(dir: &Path, wanted: &str) -> String {
    let shown = dir.display();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(_) if !dir.exists() => return format!("there is no directory `{shown}`"),
        Err(error) => return format!("the directory `{shown}` could not be read: {error}"),
    };
    let files = entries.take(LOOKED_AT).filter_map(Result::ok).filter(|entry| entry.path().is_file());
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.') && name != README).collect();
    names.sort();
    let (mut similar, others): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| wanted.len() <= LONGEST && is_similar(name, wanted));
    similar.sort_by_key(|name| distance(name, wanted));
    let (list, what) = match (similar.is_empty(), others.is_empty()) {
        (true, true) => return format!("the directory `{shown}` holds no data"),
        (true, false) => (others, "no similar name, but"),
        (false, _) => (similar, "similar names:"),
    };
    let more = match list.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let first: Vec<String> = list.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    format!("the directory `{shown}` has {what} {}{more}", first.join(", "))
}

/// Whether a name may be what was meant by `wanted`, a name or a pattern: they share a word, or are nearly equal.
fn is_similar(name: &str, wanted: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let stem = Path::new(text).file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        let words = stem.split(|c: char| !c.is_alphabetic()).filter(|word| word.len() > 2);
        words.map(str::to_owned).collect()
    };
    let theirs = words(name);
    words(wanted).iter().any(|word| theirs.contains(word)) || distance(name, wanted) <= wanted.len() / 3
}

/// How many letters two names differ by.
fn distance(name: &str, wanted: &str) -> usize {
    strsim::damerau_levenshtein(&name.to_lowercase(), &wanted.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_what_stands_before_the_first_wildcard() {
        for (named, dir, wanted) in [
            ("/data/x.bin", "/data", "x.bin"),
            ("/data/web/train-*.bin", "/data/web", "train-*.bin"),
            ("/data/*/a.bin", "/data", "*/a.bin"),
            ("/odd [[]1[]]/train-*.bin", "/odd [1]", "train-*.bin"),
            ("x.bin", "", "x.bin"),
        ] {
            assert_eq!(literal_directory(Path::new(named)), (dir.into(), wanted.to_owned()), "{named}");
        }
        let lab = tempfile::tempdir().expect("tempdir");
        let odd = lab.path().join("odd [1]");
        std::fs::create_dir(&odd).expect("a directory");
        assert_eq!(literal_directory(&odd.join("x.bin")), (odd, "x.bin".to_owned()));
    }

    #[test]
    fn names_are_similar_if_they_share_a_word_or_nearly_all_letters() {
        for (name, wanted) in [
            ("edu_fineweb_train_000001.bin", "train-*.bin"),
            ("train.npy", "train.bin"),
            ("tinyshakespere.txt", "tinyshakespeare.txt"),
            ("Train-1.bin", "train-*.bin"),
        ] {
            assert!(is_similar(name, wanted), "{name} for {wanted}");
        }
        for (name, wanted) in [("val-0.bin", "train-*.bin"), ("README.md", "train-*.bin"), ("a.bin", "*.txt")]
        {
            assert!(!is_similar(name, wanted), "{name} for {wanted}");
        }
    }
}
