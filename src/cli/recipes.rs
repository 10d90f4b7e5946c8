//! The arguments of the commands that take recipes: recipes and changes of them, which a line may mix.
//!
//! A change needs no `--set`, and later ones win, so the order of both kinds on the line counts. The fields that clap
//! derives would lose it.

use super::{Format, place};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use std::any::Any;
use std::path::PathBuf;

/// The name of the argument without a flag, for commands that describe it otherwise.
pub(super) const PLAIN: &str = "plain";
const SET: &str = "set";
const UNSET: &str = "unset";

/// Recipes, and changes of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecipeArgs {
    /// In the order of the command line.
    pub words: Vec<Word>,
    /// Keys of which files and environment count as silent.
    pub unset: Vec<String>,
}

/// One word about recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A recipe, or a change `key=value`.
    Plain(PathBuf),
    /// What follows a `--set`.
    Set(String),
}

impl Args for RecipeArgs {
    fn augment_args(command: Command) -> Command {
        let plain = Arg::new(PLAIN)
            .value_name("RECIPE|KEY=VALUE")
            .value_parser(value_parser!(PathBuf))
            .action(ArgAction::Append)
            .num_args(1..)
            .help("Recipes to train, in order; KEY=VALUE sets a key in all of them, as --set does");
        let set = Arg::new(SET).long(SET).value_name("KEY=VALUE").action(ArgAction::Append).help(
            "Set a key of the recipe, e.g. optimizer.lr=1e-3; the value is TOML, a bare word is a string",
        );
        let unset = Arg::new(UNSET)
            .long(UNSET)
            .value_name("KEY")
            .action(ArgAction::Append)
            .help("Drop what files and environment say of a key");
        command.args([plain, set, unset])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The argument without a flag of a command about one recipe.
pub(super) fn one(argument: Arg, help: &'static str) -> Arg {
    argument.required(true).help(format!("{help}; KEY=VALUE sets a key of it, as --set does"))
}

impl FromArgMatches for RecipeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let plain = placed::<PathBuf>(matches, PLAIN).map(|(place, path)| (place, Word::Plain(path)));
        let set = placed::<String>(matches, SET).map(|(place, change)| (place, Word::Set(change)));
        let mut words: Vec<(usize, Word)> = plain.chain(set).collect();
        words.sort_by_key(|(place, _)| *place);
        let unset = matches.get_many(UNSET).into_iter().flatten().cloned().collect();
        Ok(Self { words: words.into_iter().map(|(_, word)| word).collect(), unset })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The values of an argument with their places on the command line.
fn placed<T: Any + Clone + Send + Sync>(matches: &ArgMatches, id: &str) -> impl Iterator<Item = (usize, T)> {
    let places = matches.indices_of(id).into_iter().flatten();
    places.zip(matches.get_many::<T>(id).into_iter().flatten().cloned())
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The shipped recipe to start from, as `runner recipes` lists them
    #[arg(default_value = "quickstart")]
    pub name: String,
    /// The file to write instead of NAME.toml in the current directory
    #[arg(long, value_name = "FILE", value_parser = place())]
    pub out: Option<PathBuf>,
}

/// Arguments of `recipes`.
#[derive(Debug, Args)]
pub struct RecipesArgs {
    /// Print a table or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}
