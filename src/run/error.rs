//! What can go wrong with a run on disk.
//!
//! One enum for the whole module: the command line turns it into a message and an exit code, and nothing in between
//! needs to tell a lock's I/O error from a log's.

use crate::wording::{items, word};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A failure to read or write a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another live process writes this run.
    #[error("the run `{}` is being written by {holder}; wait for it to end or stop it", path.display())]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// Who holds the lock, as far as it could be read.
        holder: String,
    },
    /// A directory that is called like a run holds another one.
    #[error(
        "`{}` holds the run `{id}`, which was copied or linked there: move it away, or give the recipe another `name`",
        path.display()
    )]
    IsAnother {
        /// The directory.
        path: PathBuf,
        /// The run that it was made as.
        id: String,
    },
    /// What is to hold runs is no directory.
    #[error("`{}` is not a directory: name another one with --runs-dir", path.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
    },
    /// The runs directory cannot be used.
    #[error("cannot write runs to `{}`: {error}; name another directory with --runs-dir", dir.display())]
    NotWritable {
        /// The runs directory.
        dir: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Another user has made the run's directory.
    #[error(
        "`{}` belongs to user {user}, who made it first, and you may not write there; give the recipe another `name`, \
         or name a directory of your own with --runs-dir",
        path.display()
    )]
    OfAnother {
        /// The run's directory.
        path: PathBuf,
        /// The number of that user.
        user: u32,
    },
    /// Another user has put a file beside weights that are not theirs.
    #[error("`{}` cannot be used: {problem}", path.display())]
    PutBeside {
        /// The file.
        path: PathBuf,
        /// Whose it is, and what to do.
        problem: String,
    },
    /// The run has not come to a checkpoint yet.
    #[error(
        "`{}` has no checkpoint; `runner --resume` goes on with a run that is unfinished, and --fresh with its recipe \
         trains a finished one again",
        path.display()
    )]
    NoCheckpoint {
        /// The run directory.
        path: PathBuf,
    },
    /// A run has no checkpoint of this name.
    #[error("`{}` {why}; {}", run.display(), has(steps))]
    NoSuchCheckpoint {
        /// The run directory.
        run: PathBuf,
        /// What it lacks, as a predicate.
        why: String,
        /// The steps of the checkpoints that it has, ascending.
        steps: Vec<u64>,
    },
    /// A checkpoint is named where a run is meant.
    #[error(
        "`{}` names a checkpoint, and what is meant here is a run: `{run}`, which goes on from its newest checkpoint; \
         --set {from} begins another run from this one",
        named.display(),
        run = run.display(),
        from = word(&format!("model.init_from={{run=\"{}@{checkpoint}\"}}", run.display()))
    )]
    NamesCheckpoint {
        /// The name.
        named: PathBuf,
        /// The run in it.
        run: PathBuf,
        /// What it says of the checkpoint.
        checkpoint: String,
    },
    /// The path holds no run.
    #[error("`{}` is not a run: it has no recipe.toml", path.display())]
    NotARun {
        /// The directory that was named.
        path: PathBuf,
    },
    /// A directory is to be removed as a run, and nothing shows that it is one.
    #[error(
        "`{}` may be no run: no record (run.json) in it can be read, and it has not both a run's name (NAME-HASH) and \
         its lock; look into it, and delete it by hand if it is to go",
        path.display()
    )]
    NotMade {
        /// The directory.
        path: PathBuf,
    },
    /// A run is to be removed in whose directory another one lies.
    #[error(
        "`{}` holds another run or project, `{}`, which has a recipe or a record of its own; move that elsewhere or \
         remove it first",
        path.display(),
        inner.display()
    )]
    HoldsAnother {
        /// The directory that is to be removed.
        path: PathBuf,
        /// The directory in it.
        inner: PathBuf,
    },
    /// A name leads to no run.
    #[error(
        "`{}` is not a run: it is neither a run's directory, nor a pattern or the beginning of a name in `{}`; \
         `runner list` shows what there is, --runs-dir names another directory of runs",
        named.display(),
        runs_dir.display()
    )]
    NoSuchRun {
        /// The name.
        named: PathBuf,
        /// Where runs were looked for.
        runs_dir: PathBuf,
    },
    /// A name is to stand for one run and stands for several.
    #[error("`{}` stands for several runs: {}; write more of the id", named.display(), ids.join(", "))]
    SeveralRuns {
        /// The name.
        named: PathBuf,
        /// The ids of the runs.
        ids: Vec<String>,
    },
    /// Another user has made something of a name that is meant for what others have made.
    #[error(
        "`{}` is user {user}'s, and may be meant for {}: write the path of the one that you mean, as in `{}`",
        named.display(),
        others.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        others.first().unwrap_or(named).display()
    )]
    Planted {
        /// The name, which is a path.
        named: PathBuf,
        /// The number of the user.
        user: u32,
        /// The runs.
        others: Vec<PathBuf>,
    },
    /// A name looks like a pattern and is none.
    #[error("`{pattern}` is not a pattern: {problem}")]
    Pattern {
        /// The name.
        pattern: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The id of a run would not be one directory below the runs directory.
    #[error("`{id}` cannot name a run directory; use letters, digits, `-`, `_` and `.`")]
    InvalidId {
        /// The id.
        id: String,
    },
    /// A file was written by a later version of this program.
    #[error(
        "`{}` has format version {found}, this build reads up to {supported}; use a newer build of runner",
        path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The version it states.
        found: u64,
        /// The newest version known here.
        supported: u64,
    },
    /// The operating system refused.
    #[error("could not {action} `{}`: {error}", path.display())]
    Io {
        /// The verb, e.g. `write`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// A file does not say what it should.
    #[error("`{}` is malformed: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where there is one.
        problem: String,
    },
    /// A log is not the one that the run has written.
    #[error(
        "`{}` is not as the run has written it: {problem}; bring it back from a copy, or start over with --fresh, \
         which discards the run",
        path.display()
    )]
    Log {
        /// The log.
        path: PathBuf,
        /// How it differs.
        problem: String,
    },
    /// The directory of a run is no longer at its path.
    #[error(
        "the run's directory `{}` was moved, removed or replaced while the run trains: nothing more is written; if it \
         was moved, `runner --resume` goes on with it at its new path",
        path.display()
    )]
    Gone {
        /// Where it was.
        path: PathBuf,
    },
    /// A file of a checkpoint is not the one that was written.
    #[error(
        "`{}` is truncated or corrupted: expected {expected}, found {found}",
        path.display()
    )]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// Size or digest on record.
        expected: String,
        /// Size or digest of the file.
        found: String,
    },
    /// A checkpoint that was named holds another model than the one that was saved.
    #[error(
        "the checkpoint `{}` is not what was saved: {reason}; restore it or name another, as RUN@STEP, or RUN@latest \
         for the newest that is intact",
        checkpoint.display()
    )]
    Damaged {
        /// Its directory.
        checkpoint: PathBuf,
        /// What is wrong with it.
        reason: Box<RunError>,
    },
    /// A checkpoint's tensors are not those of the model.
    #[error("`{}` does not fit the model:{}", path.display(), items(problems))]
    Tensors {
        /// The file.
        path: PathBuf,
        /// One line for each tensor.
        problems: Vec<String>,
    },
    /// The weights to start from cannot be used.
    #[error("the weights `{}` cannot be used:{}", path.display(), items(problems))]
    Weights {
        /// The file or directory that holds them.
        path: PathBuf,
        /// One line for each problem.
        problems: Vec<String>,
    },
}

impl RunError {
    /// Whether a live process holds the run: exit code 3.
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }

    /// Whether what the user asked for is at fault, not the program or the disk: exit code 2.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NotWritable { .. }
                | Self::OfAnother { .. }
                | Self::PutBeside { .. }
                | Self::NoDirectory { .. }
                | Self::NotARun { .. }
                | Self::NotMade { .. }
                | Self::HoldsAnother { .. }
                | Self::IsAnother { .. }
                | Self::NoSuchRun { .. }
                | Self::SeveralRuns { .. }
                | Self::Planted { .. }
                | Self::Pattern { .. }
                | Self::NoCheckpoint { .. }
                | Self::NoSuchCheckpoint { .. }
                | Self::NamesCheckpoint { .. }
                | Self::InvalidId { .. }
                | Self::NewerFormat { .. }
                | Self::Weights { .. }
        )
    }

    /// Whether a file is not what was written, or the disk does not give it back; false for what can be put right
    /// without touching the file: permissions, too many open files, another build.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Io { error, .. } => {
                let absent = [ErrorKind::NotFound, ErrorKind::UnexpectedEof, ErrorKind::NotADirectory];
                // a directory, a pipe or a device in the place of a file, or one that no run has written
                let foreign = [ErrorKind::IsADirectory, ErrorKind::InvalidInput, ErrorKind::FileTooLarge];
                // a link to itself
                let is_loop = error.raw_os_error() == Some(libc::ELOOP);
                absent.contains(&error.kind())
                    || foreign.contains(&error.kind())
                    || is_loop
                    || error.raw_os_error() == Some(libc::EIO)
            }
            Self::Malformed { .. } | Self::Corrupted { .. } | Self::Damaged { .. } => true,
            _ => false,
        }
    }

    /// Whether the system does not tell what is there, as with a failing or distant disk or too many open files: the
    /// next look may find it whole.
    pub fn is_of_the_look(&self) -> bool {
        let Self::Io { error, .. } = self else { return false };
        error.raw_os_error() == Some(libc::EIO) || !self.is_damage()
    }

    /// Says what to do about a record that cannot be read.
    pub(super) fn of_a_record(self) -> Self {
        match self {
            Self::Malformed { path, problem } => Self::Malformed {
                path,
                problem: format!(
                    "{problem}; bring it back from a copy, or remove it: the run goes on from its checkpoints, and \
                     what was on record of its earlier sessions is lost"
                ),
            },
            other => other,
        }
    }

    pub(super) fn malformed(path: &Path, problem: impl ToString) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.to_string() }
    }
}

/// Names the file and the verb of an I/O error.
pub(super) trait Context<T> {
    /// `action` is a verb that reads well after "could not".
    fn context(self, action: &'static str, path: &Path) -> Result<T, RunError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, RunError> {
        self.map_err(|error| RunError::Io { action, path: path.to_owned(), error })
    }
}

fn has(steps: &[u64]) -> String {
    match steps {
        [] => "it has none yet".to_owned(),
        steps => format!("it has {}", steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_reason_is_said_once() {
        let refused = || Err::<(), _>(io::Error::from(io::ErrorKind::PermissionDenied));
        let unwritable = |error| RunError::NotWritable { dir: "runs".into(), error };
        for error in [
            refused().context("write", Path::new("run.json")).expect_err("refused"),
            unwritable(refused().expect_err("refused")),
        ] {
            // as the command line shows it: the message and then its causes
            let shown = format!("{:#}", anyhow::Error::from(error));
            assert_eq!(shown.matches("permission denied").count(), 1, "{shown}");
        }
    }
}
