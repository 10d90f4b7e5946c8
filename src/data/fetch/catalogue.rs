//! The data sets that are known by name.
//!
//! A figure is here only with where it is from. What the hub holds is asked when it is fetched: nothing here has to be
//! changed when a data set gets another shard.

use super::hub::Address;
use super::{Digest, FetchError, Wanted};
use std::path::PathBuf;

/// A data set that is known by name.
#[derive(Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// How much it is, with where that is from if the server does not say so.
    pub size: &'static str,
    /// Under which terms it may be used, and who says so.
    pub licence: &'static str,
    /// Where its files go unless another directory is named.
    pub out: &'static str,
    /// Where it is.
    pub source: Source,
}

/// Where a data set is.
#[derive(Debug)]
pub enum Source {
    /// On the hub.
    Hub {
        /// `OWNER/REPO`.
        repo: &'static str,
        /// Which of its files.
        pattern: &'static str,
        /// Whether these are shards whose names are made uniform: `train-000001.bin`, `val-000000.bin`.
        is_sharded: bool,
    },
    /// One file on another server.
    File {
        /// Its address.
        url: &'static str,
        /// The name that it gets.
        name: &'static str,
        /// Its size in bytes, where that is known.
        size: Option<u64>,
        /// What it must contain.
        digest: Digest,
    },
}

/// A digest that is written in this file.
const fn digest(hex: &str) -> Digest {
    match Digest::parse(hex) {
        Some(digest) => digest,
        None => panic!("a digest has 40 or 64 hexadecimal digits"),
    }
}

/// All of them.
pub const CATALOGUE: &[Known] = &[
    Known {
        name: "tinyshakespeare",
        about: "plays of Shakespeare, a text that char-rnn and nanoGPT use",
        size: "1.1 MB",
        licence: "public domain",
        out: "datasets",
        source: Source::File {
            url: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            name: "tinyshakespeare.txt",
            size: Some(1_115_394),
            digest: digest("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
        },
    },
    Known {
        name: "fineweb-edu-10b",
        about: "ten billion tokens of educational web pages, ready-made shards",
        size: "100 shards of about 200 MB, the first for validation",
        licence: "ODC-By 1.0, says the card of HuggingFaceFW/fineweb-edu, whose text it is",
        out: "datasets/fineweb-edu",
        source: Source::Hub { repo: "kjj0/finewebedu10B-gpt2", pattern: "*.bin", is_sharded: true },
    },
    Known {
        name: "fineweb-10b",
        about: "ten billion tokens of web pages, ready-made shards",
        size: "104 shards of about 200 MB, the first for validation",
        licence: "ODC-By 1.0, says the card of HuggingFaceFW/fineweb, whose text it is",
        out: "datasets/fineweb-10b",
        source: Source::Hub { repo: "kjj0/fineweb10B-gpt2", pattern: "*.bin", is_sharded: true },
    },
    Known {
        name: "fineweb-edu-100b",
        about: "a hundred billion tokens of educational web pages, ready-made shards",
        size: "1002 shards of about 200 MB, the first for validation",
        licence: "ODC-By 1.0, says the card of HuggingFaceFW/fineweb-edu, whose text it is",
        out: "datasets/fineweb-edu-100b",
        source: Source::Hub {
            repo: "karpathy/fineweb-edu-100B-gpt2-token-shards",
            pattern: "*.bin",
            is_sharded: true,
        },
    },
    Known {
        name: "hellaswag",
        about: "the 10,042 questions of HellaSwag's validation set, in JSONL",
        size: "the server says it",
        licence: "MIT, says the licence of rowanz/hellaswag",
        out: "datasets",
        source: Source::File {
            url: "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl",
            name: "hellaswag_val.jsonl",
            size: None,
            // as the repository's tree names it
            digest: digest("0f5ee25d72216f12317d5d8a7b92deafa423d81e"),
        },
    },
    Known {
        name: "openwebtext",
        about: "eight million web pages that GPT-2's authors' rule selects, as text in Parquet, to be tokenized",
        size: "38 GB of text, says its site; packed, the hub says it",
        licence: "CC0 for the packaging, says its site; the pages belong to their authors",
        out: "datasets/openwebtext",
        source: Source::Hub { repo: "Skylion007/openwebtext", pattern: "**/*.parquet", is_sharded: false },
    },
];

impl Known {
    /// Where it is on the hub, if it is there.
    pub(super) fn address(&self) -> Option<Address> {
        match self.source {
            Source::Hub { repo, pattern, .. } => {
                Some(Address { repo: repo.into(), revision: "main".into(), pattern: pattern.into() })
            }
            Source::File { .. } => None,
        }
    }

    /// Its one file, at its usual address or at another one. Panics for what is on the hub.
    pub(super) fn single(&self, from: Option<&str>) -> Wanted {
        let Source::File { url, name, size, digest } = self.source else {
            panic!("{} has files on the hub", self.name)
        };
        Wanted { url: from.unwrap_or(url).into(), name: name.into(), size, digest: Some(digest) }
    }

    /// Files of the hub under the names that they get, in the order of the names.
    ///
    /// # Errors
    /// None of them is a shard by its name.
    pub(super) fn uniform(&self, files: Vec<Wanted>, address: &Address) -> Result<Vec<Wanted>, FetchError> {
        if !matches!(self.source, Source::Hub { is_sharded: true, .. }) {
            return Ok(files);
        }
        let all: Vec<String> = files.iter().map(|file| format!("`{}`", file.name.display())).collect();
        let rename = |file: Wanted| Some(Wanted { name: uniform(&file.name.to_string_lossy())?, ..file });
        let mut shards: Vec<Wanted> = files.into_iter().filter_map(rename).collect();
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        if shards.is_empty() {
            return Err(address.no_match("the hub", &all));
        }
        Ok(shards)
    }
}

/// `train-000001.bin` for what is called `edu_fineweb_train_000001.bin` or so; `None` for what is no shard.
fn uniform(name: &str) -> Option<PathBuf> {
    let stem = name.rsplit('/').next()?.strip_suffix(".bin")?;
    let (rest, number) = stem.rsplit_once(['_', '-'])?;
    let split = rest.rsplit(['_', '-']).next()?;
    let number: u32 = number.parse().ok()?;
    matches!(split, "train" | "val").then(|| format!("{split}-{number:06}.bin").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_get_the_names_that_recipes_look_for() {
        for (name, expected) in [
            ("fineweb_train_000001.bin", Some("train-000001.bin")),
            ("finewebedu_val_000000.bin", Some("val-000000.bin")),
            ("data/edu_fineweb_train_001001.bin", Some("train-001001.bin")),
            ("train-7.bin", Some("train-000007.bin")),
            ("README.md", None),
            ("fineweb_train.bin", None),
            ("fineweb_test_000001.bin", None),
        ] {
            assert_eq!(uniform(name), expected.map(PathBuf::from), "{name}");
        }
    }

    #[test]
    fn every_name_is_there_once_and_says_where_it_is_from() {
        for (i, known) in CATALOGUE.iter().enumerate() {
            assert!(CATALOGUE[..i].iter().all(|other| other.name != known.name), "{}", known.name);
            assert!(known.address().is_some() || known.single(None).url.starts_with("https://"));
            assert!(!known.licence.is_empty() && known.out.starts_with("datasets"));
        }
    }
}
