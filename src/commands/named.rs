//! What a command line names: recipes, changes of them, and what people took for one of the two.

use crate::cli::{Cli, RecipeArgs, Word};
use crate::recipe::keys::find;
use crate::recipe::{Overrides, similar};
use crate::run::dir::is_run;
use crate::session::UsageError;
use crate::wording::word as quoted;
use clap::CommandFactory;
use std::path::{Path, PathBuf};

/// Words that other trainers have for what happens here without one.
const TRAIN: [&str; 4] = ["train", "run", "fit", "start"];

/// The recipes that a command line names, and the layers above their files.
#[derive(Debug)]
pub struct Named {
    /// In the order of the command line.
    pub recipes: Vec<PathBuf>,
    /// Changes in the order of the command line, with or without `--set`; the environment's are weaker.
    pub overrides: Overrides,
}

impl Named {
    /// Tells recipes from changes. `below` has the variables of the environment.
    #[must_use]
    pub fn of(args: &RecipeArgs, below: Overrides) -> Self {
        let mut named = Self { recipes: Vec::new(), overrides: below };
        named.overrides.unset.clone_from(&args.unset);
        for word in &args.words {
            let set = &mut named.overrides.set;
            match word {
                Word::Set(change) => set.push(change.clone()),
                Word::Plain(path) => match change(path) {
                    Some(change) => {
                        named.overrides.bare.insert(set.len());
                        set.push(change.to_owned());
                    }
                    None => named.recipes.push(path.clone()),
                },
            }
        }
        named
    }

    /// As [`of`](Self::of), under the environment of this process.
    pub(super) fn here(args: &RecipeArgs) -> Self {
        Self::of(args, Overrides::from_process_env())
    }

    /// The one recipe of a command that takes one, such as `plan`.
    ///
    /// # Errors
    /// [`UsageError`] if there is none or more than one, or it is a run.
    pub(super) fn one(self, command: &str) -> Result<(PathBuf, Overrides), UsageError> {
        match &self.recipes[..] {
            [recipe] if is_run(recipe) => {
                let (run, recipe) = (recipe.display(), recipe.join("recipe.toml").display().to_string());
                Err(UsageError(format!(
                    "`{run}` is a run: for its recipe, write `runner {command} {}`",
                    quoted(&recipe)
                )))
            }
            [recipe] => Ok((recipe.clone(), self.overrides)),
            [] => Err(UsageError(format!("no recipe is named: write `runner {command} RECIPE`"))),
            recipes => Err(UsageError(format!(
                "`runner {command}` takes one recipe, not {}: {}",
                recipes.len(),
                listed(recipes)
            ))),
        }
    }

    /// Refuses a call that trains if its words show that something else was meant.
    ///
    /// # Errors
    /// [`UsageError`] with the command that may have been meant.
    pub(super) fn check(&self, runs_dir: &Path, resumes: bool) -> Result<(), UsageError> {
        if resumes {
            return match &self.recipes[..] {
                [] => Ok(()),
                recipes => Err(UsageError(format!(
                    "--resume continues a run from its own recipe, so it takes no other: leave {} out",
                    listed(recipes)
                ))),
            };
        }
        let Some(first) = self.recipes.first() else {
            return Err(UsageError("no recipe is named: write `runner RECIPE`".into()));
        };
        if let Some([key, _, value]) =
            self.recipes.array_windows().find(|[_, sign, _]| sign == Path::new("="))
        {
            let (key, value) = (key.display(), value.display());
            return Err(UsageError(format!("`{key} = {value}`: write it without spaces, `{key}={value}`")));
        }
        let meant = self.recipes.iter().find_map(|recipe| run(recipe, runs_dir));
        let meant = meant.or_else(|| command(first, &self.recipes[1..]));
        meant.map_or(Ok(()), |meant| Err(UsageError(meant)))
    }
}

/// The change that a word without a flag is: `key=value`, and of what is no key, no file of that name. What is called
/// like a change of a key is `./seed=1`: somebody else may have put it there.
fn change(word: &Path) -> Option<&str> {
    let text = word.to_str()?;
    let (key, _) = text.split_once('=')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ' ');
    let could_be_key = !key.is_empty() && key.chars().all(is_name);
    let is_key = find(key.trim()).is_some();
    let is_file = text.ends_with(".toml") || word.exists();
    (could_be_key && (is_key || !is_file)).then_some(text)
}

/// Paths, for a message.
fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
    paths.join(", ")
}

/// What to write instead if the first word was meant as a command that does not exist. `rest` follows it.
fn command(first: &Path, rest: &[PathBuf]) -> Option<String> {
    let word = first.to_str().filter(|word| !first.exists() && !word.contains(['/', '.', ':']))?;
    let recipe = similar(first);
    if recipe.as_deref().and_then(Path::file_stem).is_some_and(|stem| stem == word) {
        // the recipe's own message says so
        return None;
    }
    let rest: String = rest.iter().map(|path| format!(" {}", path.display())).collect();
    let line = |command: &str| {
        if rest.is_empty() { format!("{command} RECIPE") } else { format!("{command}{rest}") }
    };
    if TRAIN.contains(&word) {
        let instead = line("runner");
        return Some(format!("there is no command `{word}`, training needs none: write `{instead}`"));
    }
    let cli = Cli::command();
    let distance = |name: &str| strsim::damerau_levenshtein(&word.to_lowercase(), name);
    let near = cli.get_subcommands().map(clap::Command::get_name).min_by_key(|name| distance(name))?;
    if distance(near) <= (near.len().max(word.len()) / 3).max(1) {
        return Some(format!("there is no command `{word}`: did you mean `runner {near}{rest}`?"));
    }
    recipe.is_none().then(|| {
        format!(
            "cannot read recipe `{word}`: no such file, and no command has that name: `runner --help` lists them"
        )
    })
}

/// What to write instead of a run, if a word that should be a recipe is one.
fn run(word: &Path, runs_dir: &Path) -> Option<String> {
    // the beginning of an id may as well be a recipe, mistyped
    let run = match word.exists() {
        true => word.to_owned(),
        false => runs_dir.join(word),
    };
    if !is_run(&run) {
        return None;
    }
    let (recipe, run) = (run.join("recipe.toml"), quoted(&run.display().to_string()));
    Some(format!(
        "`{}` is a run, not a recipe: `runner --resume {run}` continues it, `runner compare {run}` and `runner sample \
         {run}` look at it, and `{}` is its recipe",
        word.display(),
        recipe.display()
    ))
}
