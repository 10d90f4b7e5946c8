//! What can be wrong with a task. Each message names the file, the value found and what to do about it.

use std::path::PathBuf;

/// A reason why a task cannot be scored.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The operating system refused to read the file.
    #[error("could not read `{}`: {error}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file without examples.
    #[error("`{}` has no examples: it needs at least one line of JSON", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A file that is something else than a task by all appearances.
    #[error("`{}` holds no examples: it is {what}", path.display())]
    NoTask {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do about it.
        what: String,
    },
    /// A line that is no example.
    #[error("`{}`, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it, and what is needed.
        problem: String,
    },
    /// An example of llm.c's file that is damaged.
    #[error("`{}`, example {example}: {problem}", path.display())]
    Example {
        /// The file.
        path: PathBuf,
        /// The example, counted from 0 as llm.c does.
        example: usize,
        /// What is wrong with it, and what is needed.
        problem: String,
    },
    /// A token that the model does not have.
    #[error(
        "`{}`, {place}: its token {token} is outside the model's vocabulary of {vocab_size} ids: evaluate a model with \
         the {tokenizer} vocabulary, or give the task another file",
        path.display()
    )]
    Token {
        /// The file.
        path: PathBuf,
        /// The line or the example.
        place: String,
        /// The first such token.
        token: u32,
        /// Number of ids that the model knows.
        vocab_size: usize,
        /// The kind of tokenizer that made it.
        tokenizer: &'static str,
    },
    /// A task of one kind where another is needed.
    #[error("`{}` is {found}, but {wanted} is needed: name it with {option}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: &'static str,
        /// What it should hold.
        wanted: &'static str,
        /// The option that takes such a file.
        option: &'static str,
    },
}
