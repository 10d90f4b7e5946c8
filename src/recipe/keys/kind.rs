//! What the value of a key must be, and what holds where no layer sets it.

/// The kind of a key's value, with its range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// An integer in `min..=max`.
    Integer {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// A number of tokens in `1..=max`: an integer, which may be written as a float such as `12e9`.
    Tokens {
        /// Largest value.
        max: i64,
    },
    /// An integer in `1..=max` or `"auto"`.
    MicroBatch {
        /// Largest value.
        max: i64,
    },
    /// A finite number in an interval.
    Number(Interval),
    /// Two numbers in `[0, 1)`.
    Betas,
    /// `true` or `false`.
    Flag,
    /// A string that is not empty.
    Text,
    /// A string of letters, digits, `.`, `_` and `-`, fit for a directory's name.
    Name,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Some of these words, as a list or a single string.
    Choices(&'static [&'static str]),
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    Device,
    /// The path of one file or directory, relative to the file that names it.
    File,
    /// The path of weights, as [`File`](Self::File), or a table that names a run and one of its checkpoints.
    Start,
    /// Files, globs or `builtin:` names, as a list or a single string.
    Files {
        /// Fewest entries.
        min: usize,
    },
    /// Files, globs or `builtin:` names as in [`Files`](Self::Files), at least one, or a list of tables that give each
    /// a weight.
    Sources,
    /// Files, globs or `builtin:` names as in [`Files`](Self::Files), or a table of them by the names of sets.
    Sets,
    /// The name of a preset.
    Preset,
    /// Recipe files to build upon, as a list or a single string.
    Extends,
}

/// The numbers that a key accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// Greater than 0, and a number that fp32 holds with full precision.
    Positive,
    /// Greater than 0 and less than 1.
    Fraction,
    /// 0 or more, and less than 1.
    BelowOne,
    /// 0 or more.
    NonNegative,
    /// From 0 to 1, both included.
    Unit,
}

/// The value of a key that no layer sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This TOML value.
    Is(&'static str),
    /// None: the key may be absent.
    Absent,
    /// None: leaving the key out is an error.
    Required,
    /// The stem of the recipe's file name.
    FileStem,
    /// A fifth of the value of the integer key with this path, rounded up.
    FifthOf(&'static str),
    /// The value of the integer key with this path, where that is not 0.
    SameAs(&'static str),
}
