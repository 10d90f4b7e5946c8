//! The recipes that the program carries, where no copy of the repository is: `builtin:NAME`, `init`, `recipes`.

use crate::recipe_support;

use recipe_support::{Recipes, printed, printed_by, refused, runner, set};
use runner::recipe::shipped::{SHIPPED, Shipped, find};
use runner::recipe::{Overrides, Resolved, load, to_toml};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// What a base lacks.
fn completed(shipped: &Shipped) -> Overrides {
    match shipped.is_base() {
        true if shipped.name == "gpt3/published" => {
            set(&["data.train=builtin:lipsum", "schedule.max_tokens=300e9", "batch.ramp_tokens=4e9"])
        }
        true => set(&["data.train=builtin:lipsum", "schedule.max_steps=100"]),
        false => Overrides::default(),
    }
}

/// The recipe at `path`, resolved; the directory `dir` is called `DIR` in it.
fn resolved(path: &Path, shipped: &Shipped, dir: &Path) -> String {
    let all = load(path, &completed(shipped)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    to_toml(&all.recipe, Path::new("/")).replace(dir.to_str().expect("UTF-8"), "DIR")
}

#[test]
fn all_come_to_the_same_from_the_tree_from_the_program_and_from_a_file_of_their_own() {
    for shipped in SHIPPED {
        let tree = root().join("recipes").join(format!("{}.toml", shipped.name));
        let tree = resolved(&tree, shipped, &root());
        let recipes = Recipes::new();
        let text = std::fs::read(root().join("datasets/tinyshakespeare.txt")).expect("shipped");
        recipes.write("datasets/tinyshakespeare.txt", text);
        let own = format!("{}.toml", shipped.stem());
        recipes.write(&own, shipped.standalone());
        assert_eq!(resolved(&recipes.path(&own), shipped, recipes.dir()), tree, "{}", shipped.name);
        // what extends it has the name of its own file
        recipes.write(&own, format!("extends = \"builtin:{}\"\n", shipped.name));
        assert_eq!(
            resolved(&recipes.path(&own), shipped, recipes.dir())
                .replace(&format!("name = \"{}\"", shipped.stem()), ""),
            tree.replace(&format!("name = \"{}\"", shipped.stem()), ""),
            "{}",
            shipped.name
        );
        assert!(!shipped.standalone().contains("../"), "{}", shipped.name);
    }
}

#[test]
fn an_empty_directory_is_enough_for_a_first_run() {
    let recipes = Recipes::new();
    let small = [
        "schedule.max_steps=2",
        "schedule.warmup_steps=1",
        "eval.every=1",
        "eval.batches=1",
        "sample.every=0",
    ];
    let output = runner(recipes.dir()).args(["init", "quickstart"]).output().expect("it runs");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "quickstart.toml\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("`runner quickstart.toml` trains it"));
    let run = printed_by(runner(recipes.dir()).arg("quickstart.toml").args(small));
    let again = printed_by(runner(recipes.dir()).args(["builtin:quickstart", "--dry-run"]).args(small));
    assert_eq!(run, again, "the same recipe is the same run");
    assert!(run.starts_with("runs/quickstart-"), "{run}");
    let table = printed(recipes.dir(), &format!("compare {}", run.trim()));
    assert!(table.contains("quickstart-"), "{table}");
}

#[test]
fn init_writes_what_is_not_there_and_says_what_is_missing() {
    let recipes = Recipes::new();
    recipes.write("quickstart.toml", "mine");
    let (code, says) = refused(recipes.dir(), "init");
    assert_eq!(code, Some(2));
    assert!(says.contains("`quickstart.toml` exists already") && says.contains("--out"), "{says}");
    assert_eq!(std::fs::read_to_string(recipes.path("quickstart.toml")).expect("there"), "mine");
    assert_eq!(printed(recipes.dir(), "init --out first.toml"), "first.toml\n");
    let (code, says) = refused(recipes.dir(), "init --out no/such/dir.toml");
    assert_eq!(code, Some(1));
    assert!(says.contains("could not write `no/such/dir.toml`"), "{says}");
    for (name, near) in [("quikstart", "did you mean `quickstart`?"), ("lstm", "`runner recipes` lists")] {
        let (code, says) = refused(recipes.dir(), &format!("init {name}"));
        assert_eq!(code, Some(2));
        assert!(
            says.contains(&format!("there is no built-in recipe `{name}`")) && says.contains(near),
            "{says}"
        );
    }
    for (name, says) in [
        ("builtin:tinyshakespeare", "`runner data fetch tinyshakespeare` gets them"),
        ("gpt2-124m.toml", "`runner data fetch fineweb-edu-10b` gets them"),
        ("base/gpt3-xl", "a base: a recipe builds upon it with `extends = \"gpt3-xl.toml\"`"),
    ] {
        let output = runner(recipes.dir()).args(["init", name]).output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains(says), "{name}: {told}");
    }
    recipes.write("datasets/tinyshakespeare.txt", "x");
    let output = runner(recipes.dir()).args(["init", "tinyshakespeare", "--out", "again.toml"]).output();
    let told = String::from_utf8(output.expect("it runs").stderr).expect("UTF-8");
    assert!(!told.contains("not here yet"), "{told}");
}

#[test]
fn the_list_has_every_recipe_with_what_it_is() {
    let recipes = Recipes::new();
    let table = printed(recipes.dir(), "recipes");
    let list: Vec<Json> =
        serde_json::from_str(&printed(recipes.dir(), "recipes --format json")).expect("JSON");
    assert_eq!(list.len(), SHIPPED.len());
    for (entry, shipped) in list.iter().zip(SHIPPED) {
        assert_eq!(entry["name"], shipped.name);
        assert_eq!(entry["path"], format!("builtin:{}", shipped.name));
        assert_eq!(entry["base"], shipped.is_base());
        let about = entry["about"].as_str().expect("a text");
        assert!(table.lines().any(|line| line.contains(shipped.name) && line.ends_with(about)), "{table}");
        // a base lacks what a training needs, and nothing else does
        let alone = load(&shipped.path(), &Overrides::default());
        assert_eq!(alone.is_err(), shipped.is_base(), "{}", shipped.name);
    }
}

#[test]
fn a_value_says_in_which_recipe_of_the_program_it_stands() {
    let recipes = Recipes::with("extends = [\"builtin:gpt2-124m\"]\nschedule.max_steps = 30000\n");
    let text = printed(recipes.dir(), "explain recipe.toml");
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).expect("a line").to_owned();
    assert!(line("compute.precision ").ends_with("builtin:base/gpt2-124m:11:13"), "{text}");
    assert!(line("schedule.max_steps ").ends_with("recipe.toml:2:22"), "{text}");
    assert!(line("data.train ").contains("[\"datasets/fineweb-edu/*train[-_]*\"]"), "{text}");
    assert!(line("name ").contains("\"recipe\""), "{text}");
    let files = printed(recipes.dir(), "explain recipe.toml extends");
    assert!(
        files.contains("builtin:base/gpt2-124m, builtin:data/fineweb-edu, builtin:gpt2-124m, recipe.toml"),
        "{files}"
    );
}

fn wrong(text: &str) -> String {
    Recipes::with(text).bad(&Overrides::default())
}

#[test]
fn names_that_the_program_does_not_carry_are_refused_where_they_stand() {
    let says = wrong("extends = [\"builtin:base/gpt2-124\"]\n");
    assert!(says.contains("`extends`: there is no built-in recipe `base/gpt2-124`"), "{says}");
    assert!(
        says.contains("recipe.toml:1:12") && says.contains("did you mean `builtin:base/gpt2-124m`?"),
        "{says}"
    );
    let says = wrong("extends = \"builtin:\"\n");
    assert!(says.contains("`runner recipes` lists"), "{says}");
    let recipes = Recipes::new();
    for (line, near) in [
        ("builtin:quikstart", "did you mean `builtin:quickstart`?"),
        ("plan builtin:../quickstart", "there is no built-in recipe `../quickstart`"),
        // forgotten, and there is no file of that name
        ("quickstart", "did you mean `builtin:quickstart`?"),
        ("plan quikstart.toml", "did you mean `builtin:quickstart`?"),
    ] {
        let (code, says) = refused(recipes.dir(), line);
        assert_eq!(code, Some(2));
        assert!(says.contains(near), "{line}: {says}");
    }
}

#[test]
fn a_file_may_have_such_a_name() {
    let recipes = Recipes::new();
    let name = |resolved: Resolved| resolved.recipe.name;
    recipes.write("builtin:quickstart", recipe_support::REQUIRED);
    recipes
        .write("a.toml", "extends = \"./builtin:quickstart\"\n")
        .write("b.toml", "extends = \"builtin:quickstart\"");
    let steps =
        |file: &str| recipes.load(file, &Overrides::default()).expect("right").recipe.schedule.max_steps;
    assert_ne!(steps("a.toml"), steps("b.toml"));
    assert_eq!(
        name(load(&find("gpt3/2.7b").expect("carried").path(), &Overrides::default()).expect("right")),
        "gpt3-2.7b-300b"
    );
}

#[test]
fn a_base_of_the_program_counts_where_it_is_strongest() {
    // as with files: what extends it, and the recipe itself, stand above
    let recipes = Recipes::new();
    recipes.write("sub/mid.toml", "extends = \"builtin:sweeps/small\"\nmodel.n_layer = 3\n");
    recipes.write(
        "recipe.toml",
        "extends = [\"sub/mid.toml\", \"builtin:data/fineweb-edu\"]\n[data]\ntokenizer = \"gpt2\"\n",
    );
    let recipe = recipes.good(&Overrides::default()).recipe;
    assert_eq!(recipe.model.n_layer, 3);
    // relative to the file that names it
    let here = |path: &str| recipes.path(path).display().to_string();
    assert_eq!(recipe.data.train[0], here("datasets/fineweb-edu/*train[-_]*"));
    recipes.write("recipe.toml", "extends = \"sub/deep.toml\"\n");
    recipes.write("sub/deep.toml", "extends = \"builtin:tinyshakespeare\"\n");
    assert_eq!(
        recipes.good(&Overrides::default()).recipe.data.train[0],
        here("sub/datasets/tinyshakespeare.txt")
    );
}
