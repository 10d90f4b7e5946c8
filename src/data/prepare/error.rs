//! What can be wrong with a preparation. Each message names the file and says what to do.

use crate::data::DataError;
use crate::data::unfinished::Unfinished;
use crate::wording::count;
use std::path::PathBuf;

/// A reason why text cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// What is wrong with a file of text or a shard.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Options that do not go together.
    #[error("{0}")]
    Options(String),
    /// A file that is not known to hold text.
    #[error(
        "`{}` is not known to be text: name files that end in .txt, .jsonl, .ndjson, .json or .parquet, all but the \
         last also followed by .gz or .zst",
        path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// A directory without text.
    #[error(
        "`{}` has no file below it that ends in .txt, .jsonl or .parquet: check the directory; lines of JSON in a \
         .json are read where the file is named",
        path.display()
    )]
    NoFile {
        /// The directory.
        path: PathBuf,
    },
    /// A file of no bytes.
    #[error("`{}` is empty: it has no text to prepare; leave it out", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Files with nothing in them.
    #[error("there is no text in {}: nothing was prepared", count(*files, "file"))]
    NoText {
        /// Number of files.
        files: usize,
    },
    /// A document that cannot be read.
    #[error("`{}`, {place}: {problem}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// All tokens are for validation.
    #[error(
        "all {} of the text would be for validation, and none for training: ask for fewer with --val-tokens, or for \
         smaller shards with --shard-tokens",
        count(*tokens, "token")
    )]
    NoTrain {
        /// Number of tokens.
        tokens: u64,
    },
    /// No token is for validation, which was asked for.
    #[error(
        "--val-fraction {fraction} of {} is not one token for validation: ask for more, or prepare more text",
        count(*tokens, "token")
    )]
    NoVal {
        /// What was asked for.
        fraction: f64,
        /// Number of tokens.
        tokens: u64,
    },
    /// A process prepares into the directory.
    #[error("`{}` is being prepared by a live process: wait for its end, or choose another directory", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// A preparation that another user has begun, who may have put anything into it.
    #[error(
        "`{}` belongs to user {user}, who began to prepare there, and it is not gone on with: choose another directory \
         with --out",
        inside.display()
    )]
    OfAnother {
        /// The directory of the preparation.
        inside: PathBuf,
        /// Its owner.
        user: u32,
    },
    /// A directory that holds something else.
    #[error("`{}` holds {what}: choose another directory with --out, or remove it", dir.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
        /// What is in it.
        what: String,
    },
    /// More files than the record of a set has room for.
    #[error(
        "{}{} are more than the record of a data set has room for, which is read up to 64 MiB: join small files, for \
         instance to JSON lines, which hold any number of documents{}",
        count(*files, "file"),
        and_shards(*shards),
        if *shards > 0 { ", and ask for larger shards with --shard-tokens" } else { "" }
    )]
    TooLong {
        /// Number of sources.
        files: usize,
        /// Number of shards, where they matter.
        shards: usize,
    },
    /// A source that is not what it was.
    #[error(
        "`{}` has changed since `{}` was prepared from it: prepare into another directory, or remove that one to start \
         over",
        path.display(),
        dir.display()
    )]
    SourceChanged {
        /// The source.
        path: PathBuf,
        /// The directory.
        dir: PathBuf,
    },
    /// A source whose name has it read otherwise than before.
    #[error(
        "`{}` is read as .{now} for its name, and `{}` was prepared from it as .{then}: name it as before, prepare \
         into another directory, or remove that one to start over",
        path.display(),
        dir.display()
    )]
    Renamed {
        /// The source.
        path: PathBuf,
        /// How it would be read.
        now: String,
        /// The directory.
        dir: PathBuf,
        /// How it was read.
        then: String,
    },
    /// A failure after some shards were complete.
    #[error("{error}; {} kept, and the same command goes on from there", kept(*shards))]
    Kept {
        /// What went wrong.
        error: Box<PrepareError>,
        /// Complete shards.
        shards: u64,
    },
}

fn and_shards(shards: usize) -> String {
    if shards > 0 { format!(" and {}", count(shards, "shard")) } else { String::new() }
}

fn kept(files: u64) -> String {
    format!("{} complete so far {}", count(files, "file"), if files == 1 { "is" } else { "are" })
}

impl PrepareError {
    /// Whether it says that what a source holds is wrong, or was changed while it was read.
    pub(super) fn is_of_source(&self) -> bool {
        matches!(
            self,
            Self::Document { .. }
                | Self::Data(
                    DataError::NotUtf8 { .. }
                        | DataError::Changed { .. }
                        | DataError::Unfinished(Unfinished::Hole { .. })
                )
        )
    }

    /// Whether what was asked for is at fault, and not the machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Data(error) => !matches!(error, DataError::Write { .. }),
            Self::Locked { .. } => false,
            Self::Kept { error, .. } => error.is_usage(),
            _ => true,
        }
    }
}
