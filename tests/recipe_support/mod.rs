//! A directory of recipes that is gone after the test.

#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod mutate;
#[path = "../program/mod.rs"]
mod program;

use runner::recipe::{Diagnostics, Overrides, Resolved, load};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The two keys without a default.
pub(crate) const REQUIRED: &str = "[data]\ntrain = \"builtin:lipsum\"\n[schedule]\nmax_steps = 100\n";

/// A temporary directory with recipes in it.
pub(crate) struct Recipes(tempfile::TempDir);

impl Recipes {
    /// An empty directory.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    /// A directory with one recipe, `recipe.toml`.
    pub(crate) fn with(text: &str) -> Self {
        let recipes = Self::new();
        recipes.write("recipe.toml", text);
        recipes
    }

    /// Writes a file, its directories included.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, text).expect("a file");
        self
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Loads a file of the directory.
    pub(crate) fn load(&self, name: &str, overrides: &Overrides) -> Result<Resolved, Diagnostics> {
        load(&self.path(name), overrides)
    }

    /// Loads `recipe.toml`, which must be right.
    pub(crate) fn good(&self, overrides: &Overrides) -> Resolved {
        self.load("recipe.toml", overrides).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
    }

    /// Loads `recipe.toml`, which must be wrong; the messages, with the directory called `DIR`.
    pub(crate) fn bad(&self, overrides: &Overrides) -> String {
        match self.load("recipe.toml", overrides) {
            Ok(resolved) => panic!("no problem found in {:?}", resolved.recipe),
            Err(diagnostics) => self.hide(&diagnostics.to_string()),
        }
    }

    /// `text` with the directory called `DIR`.
    pub(crate) fn hide(&self, text: &str) -> String {
        text.replace(self.dir().to_str().expect("UTF-8"), "DIR")
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }
}

/// Overrides by flags.
pub(crate) fn set(arguments: &[&str]) -> Overrides {
    Overrides { set: arguments.iter().map(|argument| argument.to_string()).collect(), ..Overrides::default() }
}

/// Overrides by `--unset`.
pub(crate) fn unset(arguments: &[&str]) -> Overrides {
    Overrides {
        unset: arguments.iter().map(|argument| argument.to_string()).collect(),
        ..Overrides::default()
    }
}

/// Overrides by variables.
pub(crate) fn env(variables: &[(&str, &str)]) -> Overrides {
    let env = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Overrides { env, ..Overrides::default() }
}

/// The program, ready to start in `dir`, without colours.
pub(crate) fn runner(dir: &Path) -> Command {
    let mut command = program::program(dir);
    command.env("NO_COLOR", "1");
    command
}

/// What the program prints under these arguments, separated by spaces; it must succeed.
pub(crate) fn printed(dir: &Path, arguments: &str) -> String {
    printed_by(runner(dir).args(arguments.split_whitespace()))
}

/// What a command prints; it must succeed.
pub(crate) fn printed_by(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Its exit code and what it says on stderr; nothing may be on stdout.
pub(crate) fn refused(dir: &Path, arguments: &str) -> (Option<i32>, String) {
    let output = runner(dir).args(arguments.split_whitespace()).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "runner {arguments}");
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}
