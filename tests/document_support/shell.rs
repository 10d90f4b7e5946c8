//! What the commands of a document would start, and whether that could be started.

use super::lab::Lab;
use super::{read, root};
use clap::{CommandFactory, Parser};
use runner::cli::{Cli, Command, RecipeArgs};
use runner::commands::named::Named;
use runner::recipe::keys::{OnResume, find};
use runner::recipe::{Overrides, Recipe, load};
use std::path::Path;

/// Runs a block with stand-ins for programs, and checks every call that they saw, which it returns.
pub(crate) fn check(lab: &Lab, at: &str, script: &str) -> Vec<Vec<String>> {
    let _ = std::fs::remove_file(lab.path("calls"));
    let output = lab.shell("stand-ins", &format!("set -eu\n{script}")).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{at}: {}\n{said}", output.status);
    let calls = std::fs::read_to_string(lab.path("calls")).unwrap_or_default();
    let calls: Vec<Vec<&str>> = calls.lines().map(|line| line.split('\u{1f}').collect()).collect();
    for (i, call) in calls.iter().enumerate() {
        let ranks = ranks(call).unwrap_or_else(|problem| panic!("{at}: {}: {problem}", call.join(" ")));
        if let Some(ranks) = ranks {
            let next = calls.get(i + 1).unwrap_or_else(|| panic!("{at}: {} starts nothing", call[0]));
            let recipe = recipe(lab, next).unwrap_or_else(|problem| panic!("{at}: {problem}"));
            let asked = recipe.expect("a recipe").batch.world_size;
            assert_eq!(asked, ranks, "{at}: {} starts {ranks} ranks of {asked}", call[0]);
        }
        call_is_right(lab, call).unwrap_or_else(|problem| panic!("{at}: {}: {problem}", call.join(" ")));
    }
    calls.iter().map(|call| call.iter().map(|word| (*word).to_owned()).collect()).collect()
}

/// How many ranks a launcher starts, if it is one.
fn ranks(call: &[&str]) -> Result<Option<usize>, String> {
    let number = match call[0] {
        "torchrun" if call.get(1..3) == Some(&["--no-python", "--nproc-per-node"]) => call.get(3).copied(),
        "srun" => call.get(1).and_then(|option| option.strip_prefix("--ntasks=")),
        "mpirun" if call.get(1) == Some(&"-n") => call.get(2).copied(),
        "torchrun" | "mpirun" => None,
        _ => return Ok(None),
    };
    number.and_then(|n| n.parse().ok()).map(Some).ok_or_else(|| "options that are not known".to_owned())
}

fn call_is_right(lab: &Lab, call: &[&str]) -> Result<(), String> {
    match call {
        ["torchrun" | "srun" | "mpirun", ..] => Ok(()),
        ["runner", words @ ..] => {
            recipe(lab, call)?;
            if is_quick(words) {
                let output = lab.runner().args(words).output().map_err(|error| error.to_string())?;
                let said = String::from_utf8_lossy(&output.stderr);
                return if output.status.success() { Ok(()) } else { Err(said.into_owned()) };
            }
            Ok(())
        }
        ["cargo", words @ ..] => cargo(words),
        ["python" | "python3", script, words @ ..] => {
            exists(script)?;
            let text = read(script);
            let options = words.iter().filter(|word| word.starts_with("--"));
            let unknown: Vec<_> = options.filter(|option| !text.contains(&format!("\"{option}\""))).collect();
            if unknown.is_empty() { Ok(()) } else { Err(format!("no options {unknown:?}")) }
        }
        ["pip", "install", packages @ ..] => {
            let advice = read("src/cuda/libraries.rs");
            let unknown: Vec<_> = packages.iter().filter(|name| !advice.contains(**name)).collect();
            if unknown.is_empty() {
                Ok(())
            } else {
                Err(format!("{unknown:?} are not what `runner doctor` advises"))
            }
        }
        ["git", "diff", path] | ["sh", path, ..] => exists(path),
        _ => Err("nothing is known about this command".to_owned()),
    }
}

fn exists(path: &str) -> Result<(), String> {
    if root().join(path).exists() { Ok(()) } else { Err(format!("there is no {path}")) }
}

/// Whether a command only looks at things, and is soon done.
fn is_quick(words: &[&str]) -> bool {
    let looks = ["explain", "plan", "list", "compare", "schema", "completions", "doctor"];
    let is_slow = ["--measure", "--selftest"].iter().any(|slow| words.contains(slow));
    words.first().is_some_and(|word| looks.contains(word)) && !is_slow
}

/// The recipe that a call of the program is about, if it is about one.
fn recipe(lab: &Lab, call: &[&str]) -> Result<Option<Recipe>, String> {
    let cli = Cli::try_parse_from(call).map_err(|error| error.to_string())?;
    let resolve = |path: &Path, overrides: &Overrides| -> Result<Option<Recipe>, String> {
        let resolved = load(&lab.path(path.to_str().expect("UTF-8")), overrides);
        resolved.map(|resolved| Some(resolved.recipe)).map_err(|problems| problems.to_string())
    };
    let of = |args: &RecipeArgs| Named::of(args, Overrides::default());
    let first = |args: &RecipeArgs| {
        let named = of(args);
        resolve(named.recipes.first().ok_or("no recipe")?, &named.overrides)
    };
    match &cli.command {
        Some(Command::Plan(args)) => first(&args.recipe),
        Some(Command::Explain(args)) => first(&args.recipe),
        Some(Command::Verify(args)) => first(&args.recipe),
        Some(Command::Bench(args)) => first(&args.recipe),
        Some(_) => Ok(None),
        None => {
            let train = of(&cli.train.recipes);
            if let Some(run) = &cli.train.resume {
                let changed = train.overrides.set.iter().filter_map(|set| set.split('=').next());
                if let Some(key) =
                    changed.clone().find(|key| find(key).is_none_or(|key| key.on_resume == OnResume::Kept))
                {
                    return Err(format!("a resumed run cannot change {key}"));
                }
                let run = match lab.path(run.to_str().expect("UTF-8")) {
                    directory if directory.is_dir() => directory,
                    _ => lab.run(run.to_str().expect("UTF-8")),
                };
                let recipe = run.join("recipe.toml");
                return resolve(&recipe, &train.overrides);
            }
            let mut recipes = train.recipes.iter().map(|path| resolve(path, &train.overrides));
            recipes.next().unwrap_or(Ok(None)).and_then(|first| {
                recipes.try_for_each(|next| next.map(drop))?;
                Ok(first)
            })
        }
    }
}

/// Whether cargo would know the targets and features that are named. Its own options are few enough to list.
fn cargo(words: &[&str]) -> Result<(), String> {
    let manifest = read("Cargo.toml");
    let commands = ["run", "build", "test", "bench", "install", "fmt", "clippy"];
    let Some((_, options)) = words.split_first().filter(|(command, _)| commands.contains(command)) else {
        return Err("a command of cargo that is not known".to_owned());
    };
    let mut options = options.iter().take_while(|word| **word != "--").peekable();
    while let Some(&option) = options.next() {
        match option {
            "--release" | "--locked" | "--all-targets" | "--check" => {}
            "--path" if options.next() == Some(&".") => {}
            "--features" => {
                for feature in options.next().unwrap_or(&"").split(',') {
                    if !manifest.contains(&format!("\n{feature} = [")) {
                        return Err(format!("no feature {feature}"));
                    }
                }
            }
            "--test" => {
                let name = options.next().unwrap_or(&"");
                exists(&format!("tests/{name}/main.rs")).or_else(|_| exists(&format!("tests/{name}.rs")))?;
                // what follows filters the tests by the module that they stand in
                if let Some(filter) = options.next_if(|word| !word.starts_with("--")) {
                    exists(&format!("tests/{name}/{}.rs", filter.trim_end_matches("::")))?;
                }
            }
            "--bench" => exists(&format!("benches/{}.rs", options.next().unwrap_or(&"")))?,
            "--lib" => {
                let module = options.next().unwrap_or(&"").trim_end_matches("::");
                exists(&format!("src/{module}")).or_else(|_| exists(&format!("src/{module}.rs")))?;
            }
            other => return Err(format!("{other} is not known")),
        }
    }
    Ok(())
}

/// Whether the options of the program that a text names in backticks exist, such as `` `--align step` ``.
pub(crate) fn unknown_options(text: &str) -> Vec<String> {
    let command = Cli::command();
    // those of clap, and one of cargo
    let mut known: Vec<String> = ["help", "version", "release"].map(str::to_owned).to_vec();
    let mut commands = vec![&command];
    while let Some(command) = commands.pop() {
        known.extend(command.get_arguments().filter_map(|argument| argument.get_long().map(str::to_owned)));
        commands.extend(command.get_subcommands());
    }
    let spans = text.split('`').skip(1).step_by(2);
    let ours = spans.filter(|span| span.starts_with("--") || span.starts_with("runner "));
    let options = ours.flat_map(str::split_whitespace).filter_map(|word| word.strip_prefix("--"));
    let names = options.map(|word| word.split(['=', ',', '|', ']']).next().unwrap_or(word).to_owned());
    names.filter(|name| !known.contains(name)).collect()
}
