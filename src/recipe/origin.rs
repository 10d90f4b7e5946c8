//! Where a value comes from: as layers record it, and as callers see it.

use super::parse::Entry;
use super::shipped;
use std::fmt;
use std::path::PathBuf;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The table of keys, because no layer sets the key.
    Default,
    /// The preset of this name.
    Preset(String),
    /// The file that states the dimensions of what `model.init_from` names.
    InitFrom(PathBuf),
    /// The file that says what the tokens of the data stand for.
    Data(PathBuf),
    /// A recipe file.
    File {
        /// The file, relative to the current directory if the recipe was; `builtin:NAME` if the program carries it.
        path: PathBuf,
        /// Line of the value, from 1.
        line: usize,
        /// Column of the value in characters, from 1.
        column: usize,
    },
    /// The environment variable of this name.
    Env(String),
    /// A `--set` with this argument.
    Set(String),
}

impl Origin {
    /// Whether it is a recipe that the program carries.
    pub(super) fn is_carried(&self) -> bool {
        matches!(self, Self::File { path, .. } if shipped::name_in(path).is_some())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset(name) => write!(f, "preset {name}"),
            Self::InitFrom(path) => write!(f, "{} (model.init_from)", path.display()),
            Self::Data(path) => write!(f, "{} (data.train)", path.display()),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Set(argument) => write!(f, "--set {argument}"),
        }
    }
}

/// The source of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SaidBy {
    Defaults,
    /// The file that states the dimensions of what `model.init_from` names.
    InitFrom(PathBuf),
    Preset(&'static str),
    /// The file that says what the tokens of the data stand for.
    Data(PathBuf),
    /// The n-th file.
    File(usize),
    Env(String),
    Set(String),
}

impl SaidBy {
    /// Whether two layers count as one: all variables do, and all flags.
    pub(super) fn is_one_with(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Env(_), Self::Env(_)) | (Self::Set(_), Self::Set(_))) || self == other
    }

    /// Whether what the data say wins over it.
    pub(super) fn is_below_data(&self) -> bool {
        matches!(self, Self::Defaults | Self::InitFrom(_) | Self::Preset(_))
    }

    /// The public form of an entry's origin.
    pub(super) fn origin(&self, entry: &Entry) -> Origin {
        let place = &entry.place;
        match (self, &place.source.medium) {
            (Self::Preset(name), _) => Origin::Preset((*name).into()),
            (Self::InitFrom(path), _) => Origin::InitFrom(path.clone()),
            (Self::Data(path), _) => Origin::Data(path.clone()),
            (Self::Env(name), _) => Origin::Env(name.clone()),
            (Self::Set(argument), _) => Origin::Set(argument.clone()),
            (Self::File(_), medium) => match medium.path() {
                Some(path) => {
                    let start = place.span.as_ref().map_or(0, |span| span.start);
                    let (line, column) = place.source.line_column(start);
                    Origin::File { path, line, column }
                }
                None => Origin::Default,
            },
            _ => Origin::Default,
        }
    }
}
