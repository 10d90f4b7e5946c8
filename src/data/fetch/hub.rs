//! Data sets on the Hugging Face hub, or on a mirror with the hub's interface.
//!
//! `GET {endpoint}/api/datasets/{repo}/tree/{revision}?recursive=true` lists the files with their sizes and digests,
//! page by page; `{endpoint}/datasets/{repo}/resolve/{revision}/{path}` is a file.

use super::client::{Client, Fault};
use super::download::persist;
use super::{CATALOGUE, Digest, FetchError, Wanted};
use glob::{MatchOptions, Pattern};
use std::collections::HashSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The hub that is asked unless `HF_ENDPOINT` names another.
pub(super) const ENDPOINT: &str = "https://huggingface.co";
const SCHEME: &str = "hf://datasets/";
/// The number of names that a message shows.
const SHOWN: usize = 5;
/// No list has more pages.
const PAGES: usize = 10_000;
/// No list has more files, and their names no more bytes in all: it is held in memory.
const FILES: usize = 1_000_000;
const NAMES: usize = 64 << 20;

/// Files of a data set on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// `OWNER/REPO`.
    pub(super) repo: String,
    pub(super) revision: String,
    /// A glob, a path or a directory; empty for all files.
    pub(super) pattern: String,
}

impl Address {
    /// Parses `hf://datasets/OWNER/REPO[@REVISION][/PATTERN]`. Slashes in a revision are written `%2F`.
    pub(super) fn parse(what: &str) -> Result<Self, FetchError> {
        let Some(rest) = what.strip_prefix(SCHEME) else {
            if what.starts_with("hf://") {
                return Err(FetchError::Address { what: what.into(), why: "names no data set".into() });
            }
            let near =
                CATALOGUE.iter().map(|known| known.name).filter(|name| strsim::jaro(name, what) > 0.75);
            let near = near.max_by(|a, b| strsim::jaro(a, what).total_cmp(&strsim::jaro(b, what)));
            let near = near.map_or_else(String::new, |near| format!(" (`{near}` is)"));
            return Err(FetchError::Unknown { what: what.into(), near });
        };
        let wrong = |why: &str| FetchError::Address { what: what.into(), why: why.into() };
        let (owner, rest) = rest.split_once('/').ok_or_else(|| wrong("names no repository"))?;
        let (repo, pattern) = rest.split_once('/').unwrap_or((rest, ""));
        let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
        let is_name = |name: &str| {
            let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !name.is_empty() && !name.starts_with('.') && name.chars().all(is_known)
        };
        if !is_name(owner) || !is_name(repo) || revision.is_empty() {
            return Err(wrong("has no owner, repository and revision of letters, digits, `-`, `_` and `.`"));
        }
        Pattern::new(pattern).map_err(|error| wrong(&format!("has no valid pattern: {error}")))?;
        let revision = revision.replace("%2F", "/").replace("%2f", "/");
        Ok(Self { repo: format!("{owner}/{repo}"), revision, pattern: pattern.into() })
    }

    /// The repository without its owner.
    pub(super) fn name(&self) -> &str {
        self.repo.rsplit('/').next().unwrap_or(&self.repo)
    }

    /// The page of the data set, for people.
    pub(super) fn page(&self, endpoint: &str) -> String {
        format!("{endpoint}/datasets/{}", self.repo)
    }

    /// The files that are meant, in the order of their names, under the paths that they have in the repository.
    pub(super) fn files(&self, client: &Client, retries: u32) -> Result<Vec<Wanted>, FetchError> {
        let revision = encoded(&self.revision, false);
        let mut next =
            Some(format!("{}/api/datasets/{}/tree/{revision}?recursive=true", client.endpoint, self.repo));
        let mut all: Vec<(String, Wanted)> = Vec::new();
        let (mut names, mut pages, mut held) = (HashSet::new(), 0, 0);
        let mut left = client.patience();
        while let Some(url) = next.take() {
            let mut took = Duration::ZERO;
            let page = || {
                let begun = Instant::now();
                let page = client.list(&url, begun + left);
                took = begun.elapsed();
                page
            };
            let (page, following) = persist(&url, retries, page, |_: &Fault| false)?;
            left = left.saturating_sub(took);
            let wrong = |why: &str| FetchError::Listing { url: url.clone(), why: why.into() };
            let entries = page.as_array().ok_or_else(|| wrong("it is no list"))?;
            for entry in entries.iter().filter(|entry| entry["type"] != "directory") {
                let path = entry["path"].as_str().ok_or_else(|| wrong("an entry has no path"))?;
                if !names.insert(path.to_owned()) {
                    return Err(wrong(&format!("it names `{path}` twice")));
                }
                held += path.len();
                if all.len() == FILES || held > NAMES {
                    return Err(wrong(&format!("it is longer than {FILES} files or {NAMES} bytes of names")));
                }
                let lfs = &entry["lfs"]["oid"];
                let oid = if lfs.is_string() { lfs } else { &entry["oid"] };
                let wanted = Wanted {
                    url: format!(
                        "{}/datasets/{}/resolve/{revision}/{}",
                        client.endpoint,
                        self.repo,
                        encoded(path, true)
                    ),
                    name: path.into(),
                    size: entry["size"].as_u64(),
                    digest: oid.as_str().map(|oid| oid.trim_start_matches("sha256:")).and_then(Digest::parse),
                };
                all.push((path.to_owned(), wanted));
            }
            pages += 1;
            if pages == PAGES && following.is_some() {
                return Err(wrong(&format!("it has more than {PAGES} pages")));
            }
            next = following;
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let is_meant = self.matcher();
        let (meant, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(path, _)| is_meant(path));
        if meant.is_empty() {
            let names: Vec<String> = others.iter().map(|(path, _)| format!("`{path}`")).collect();
            return Err(self.no_match(&client.endpoint, &names));
        }
        Ok(meant.into_iter().map(|(_, wanted)| wanted).collect())
    }

    /// The error that no file is meant, with the names of those that are there.
    pub(super) fn no_match(&self, endpoint: &str, names: &[String]) -> FetchError {
        let mut holds = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        match names.len().saturating_sub(SHOWN) {
            0 if names.is_empty() => holds.push_str("no files"),
            0 => {}
            // writing to a string cannot fail
            more => drop(write!(holds, " and {more} more")),
        }
        FetchError::NoMatch { repo: self.page(endpoint), pattern: self.pattern.clone(), holds }
    }

    /// Whether a path is meant: the pattern matches it, or is it or a directory that holds it.
    fn matcher(&self) -> impl Fn(&str) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let (literal, pattern) = (self.pattern.trim_end_matches('/').to_owned(), Pattern::new(&self.pattern));
        move |path| {
            let below = path.strip_prefix(&literal).is_some_and(|rest| rest.starts_with('/'));
            let is_glob = pattern.as_ref().is_ok_and(|pattern| pattern.matches_with(path, options));
            literal.is_empty() || path == literal || below || is_glob
        }
    }
}

/// A path or a revision within an address: everything but unreserved characters as `%XX` (RFC 3986).
fn encoded(text: &str, keeps_slashes: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
            b'/' if keeps_slashes => out.push('/'),
            // writing to a string cannot fail
            other => drop(write!(out, "%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_an_owner_a_repository_a_revision_and_a_pattern() {
        let parsed = |text: &str| Address::parse(text).map(|it| (it.repo, it.revision, it.pattern));
        let is = |repo: &str, revision: &str, pattern: &str| (repo.into(), revision.into(), pattern.into());
        for (text, expected) in [
            ("hf://datasets/a/b", is("a/b", "main", "")),
            ("hf://datasets/a/b/", is("a/b", "main", "")),
            ("hf://datasets/a/b@v1.0/x/*.bin", is("a/b", "v1.0", "x/*.bin")),
            (
                "hf://datasets/a/b-c@refs%2Fconvert%2Fparquet/**/*.parquet",
                is("a/b-c", "refs/convert/parquet", "**/*.parquet"),
            ),
        ] {
            assert_eq!(parsed(text).unwrap_or_else(|error| panic!("{error}")), expected, "{text}");
        }
        for (text, what) in [
            ("hf://datasets/a", "names no repository"),
            ("hf://models/a/b", "names no data set"),
            ("hf://datasets/../b", "has no owner"),
            ("hf://datasets/a/b c", "has no owner"),
            ("hf://datasets/a/b@/x", "has no owner"),
            ("hf://datasets/a/b/[x", "no valid pattern"),
            ("fineweb-edu", "`fineweb-edu-10"),
            ("something", "--list"),
        ] {
            let error = parsed(text).expect_err(text).to_string();
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(encoded("a b/ä+.bin", true), "a%20b/%C3%A4%2B.bin");
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
    }

    #[test]
    fn a_pattern_is_a_glob_a_path_or_a_directory() {
        let all = ["README.md", "a/x.bin", "a/b/y.bin", "ab/z.bin"];
        let meant = |pattern: &str| -> Vec<&str> {
            let address = Address { repo: "a/b".into(), revision: "main".into(), pattern: pattern.into() };
            let is_meant = address.matcher();
            all.into_iter().filter(|path| is_meant(path)).collect()
        };
        assert_eq!(meant(""), all);
        assert_eq!(meant("a"), ["a/x.bin", "a/b/y.bin"]);
        assert_eq!(meant("a/"), ["a/x.bin", "a/b/y.bin"]);
        assert_eq!(meant("a/*.bin"), ["a/x.bin"]);
        assert_eq!(meant("**/*.bin"), ["a/x.bin", "a/b/y.bin", "ab/z.bin"]);
        assert_eq!(meant("README.md"), ["README.md"]);
        assert_eq!(meant("none"), [""; 0]);
    }
}
