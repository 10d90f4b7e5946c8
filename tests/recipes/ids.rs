//! Runs keep their ids: `golden/run_ids.tsv` has the identities of recipes as a former release computed them.

use crate::recipe_support;

use recipe_support::runner;
use runner::recipe::{DataDigests, Overrides, identity, load};
use std::path::{Path, PathBuf};

/// A line of the golden file.
struct Case<'a> {
    line: &'a str,
    identity: &'a str,
    recipe: PathBuf,
    /// `--set key=value`, `--unset key` or `RUNNER_KEY=value` each.
    arguments: Vec<&'a str>,
}

const GOLDEN: &str = include_str!("../golden/run_ids.tsv");

/// The cases whose identities are made in one of the two ways.
fn cases(made: &str) -> Vec<Case<'static>> {
    let lines = GOLDEN.lines().filter(|line| !line.starts_with('#'));
    let case = |line: &'static str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_else(|| panic!("a field is missing: {line}"));
        let (identity, way, recipe) = (next(), next(), next());
        let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
        (way == made).then(|| Case { line, identity, recipe, arguments: fields.collect() })
    };
    lines.filter_map(case).collect()
}

impl Case<'_> {
    fn overrides(&self) -> Overrides {
        let mut overrides = Overrides::default();
        for argument in &self.arguments {
            let mut list = |prefix: &str, list: fn(&mut Overrides) -> &mut Vec<String>| {
                let rest = argument.strip_prefix(prefix).map(str::to_owned);
                rest.map(|rest| list(&mut overrides).push(rest)).is_some()
            };
            if list("--set ", |o| &mut o.set) || list("--unset ", |o| &mut o.unset) {
                continue;
            }
            let (name, value) = argument.split_once('=').expect("a variable");
            assert!(name.starts_with("RUNNER_"), "{argument}");
            overrides.env.push((name.to_owned(), value.to_owned()));
        }
        overrides
    }

    /// The identity for data of these digests, as the library computes it.
    fn resolved(&self) -> String {
        let recipe =
            load(&self.recipe, &self.overrides()).unwrap_or_else(|e| panic!("{}\n{e}", self.line)).recipe;
        let init_from = recipe.model.init_from.is_some().then(|| "w".to_owned());
        identity(&recipe, &DataDigests { train: "t".into(), val: "v".into(), init_from })
    }

    /// The identity on record in the run that the program makes.
    fn trained(&self) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = runner(dir.path());
        command.arg(&self.recipe).args(["--runs-dir", "runs"]);
        for argument in &self.arguments {
            let (flag, value) = argument.split_once(' ').expect("a flag with its value");
            command.args([flag, value]);
        }
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}\n{}", self.line, String::from_utf8_lossy(&output.stderr));
        let run = dir.path().join(String::from_utf8(output.stdout).expect("UTF-8").trim());
        let record = std::fs::read_to_string(run.join("run.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
        record["hash"].as_str().expect("a hash").to_owned()
    }
}

/// Each case whose identity is another than it was, as its line would now be.
fn changed(cases: &[Case<'static>], identity: fn(&Case<'static>) -> String) -> Vec<String> {
    let now = cases.iter().map(|case| (case, identity(case)));
    let changed = now.filter(|(case, now)| case.identity != *now);
    changed.map(|(case, now)| case.line.replacen(case.identity, &now, 1)).collect()
}

#[test]
fn resolved_recipes_keep_their_identities() {
    let cases = cases("resolved");
    assert!(cases.len() >= 100, "only {} cases", cases.len());
    let changed = changed(&cases, Case::resolved);
    assert!(changed.is_empty(), "runs would lose their ids:\n{}", changed.join("\n"));
}

#[test]
fn runs_that_the_program_makes_keep_their_identities() {
    let cases = cases("trained");
    assert!(cases.len() >= 5, "only {} cases", cases.len());
    let changed = changed(&cases, Case::trained);
    assert!(changed.is_empty(), "runs would lose their ids:\n{}", changed.join("\n"));
}

#[test]
fn every_shipped_recipe_is_among_the_cases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut shipped = 0;
    for dir in
        ["", "base", "data", "gpt3", "ladder", "muon", "sweeps"].map(|dir| Path::new("recipes").join(dir))
    {
        for entry in std::fs::read_dir(root.join(dir)).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                shipped += 1;
                assert!(cases("resolved").iter().any(|case| case.recipe == path), "{}", path.display());
            }
        }
    }
    assert!(shipped > 30, "only {shipped} recipes found");
}
