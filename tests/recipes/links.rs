//! `..` behind a link: as it is written it takes off the link, and for the system it leads where the link leads.

use crate::recipe_support;

use recipe_support::{REQUIRED, Recipes, printed, refused};
use runner::recipe::Overrides;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A tree in which `here/link` leads to `there/inner`, with files.
fn tree(files: &[&str]) -> Recipes {
    let recipes = Recipes::new();
    recipes.write("there/inner/kept", "").write("here/kept", "");
    symlink("../there/inner", recipes.path("here/link")).expect("a link");
    for file in files {
        recipes.write(file, "[model]\nn_layer = 3\n");
    }
    recipes
}

/// What is said of a recipe, with the directory called `DIR`.
fn said(recipes: &Recipes, name: &str) -> Result<Vec<PathBuf>, String> {
    match recipes.load(name, &Overrides::default()) {
        Ok(resolved) => Ok(resolved.recipe.data.train.iter().map(PathBuf::from).collect()),
        Err(diagnostics) => Err(recipes.hide(&diagnostics.to_string())),
    }
}

#[test]
fn a_path_that_leads_to_two_places_is_refused() {
    let steps = "[schedule]\nmax_steps = 100\n";
    for text in [
        "data.train = \"link/../x.txt\"",
        "data.train = [\"builtin:lipsum\", \"./link/.././x.txt\"]",
        "data.train = \"link/../x.*\"",
        "data.train = [{ path = \"link/../x.txt\", weight = 1.0 }]",
        "data = { train = \"builtin:lipsum\", val = \"link/../x.txt\" }",
        "data = { train = \"builtin:lipsum\", val = { far = [\"link/../x.txt\"] } }",
        "data.train = \"builtin:lipsum\"\nmodel.init_from = \"link/../x.txt\"",
        "data.train = \"builtin:lipsum\"\nmodel.init_from = \"link/../x.txt@best\"",
        "data.train = \"builtin:lipsum\"\nmodel.init_from = { run = \"link/../x.txt\", step = 3 }",
        "data.train = \"builtin:lipsum\"\neval.tasks = \"link/../x.txt\"",
        "extends = \"link/../x.txt\"\ndata.train = \"builtin:lipsum\"",
    ] {
        for files in [&["there/x.txt"][..], &["there/x.txt", "here/x.txt"]] {
            let recipes = tree(files);
            recipes.write("here/recipe.toml", format!("{text}\n{steps}"));
            let said = said(&recipes, "here/recipe.toml").expect_err(text);
            assert!(said.contains("`..` behind a link"), "{text}: {said}");
            for place in ["DIR/here/x.", "DIR/there/x."] {
                assert!(said.contains(place), "{text}: {place} in {said}");
            }
        }
    }
}

#[test]
fn a_path_that_leads_to_one_place_is_what_is_written() {
    let text = "data.train = \"link/../x.txt\"\n[schedule]\nmax_steps = 100\n";
    // nothing behind the link, and in one case nothing at all
    for files in [&["here/x.txt"][..], &[]] {
        let recipes = tree(files);
        recipes.write("here/recipe.toml", text);
        assert_eq!(said(&recipes, "here/recipe.toml"), Ok(vec![recipes.path("here/x.txt")]));
    }
    // one file of two names
    let recipes = tree(&["here/x.txt"]);
    fs::hard_link(recipes.path("here/x.txt"), recipes.path("there/x.txt")).expect("a second name");
    recipes.write("here/recipe.toml", text);
    assert_eq!(said(&recipes, "here/recipe.toml"), Ok(vec![recipes.path("here/x.txt")]));
    // and one directory of two names, with a pattern of files in it
    let recipes = tree(&["here/data/x.txt"]);
    symlink("../here/data", recipes.path("there/data")).expect("a link");
    let text = text.replace("x.txt", "data/*.txt");
    recipes.write("here/recipe.toml", &text);
    let pattern = vec![recipes.path("here/data/*.txt")];
    assert_eq!(said(&recipes, "here/recipe.toml"), Ok(pattern));
}

#[test]
fn what_a_stronger_layer_replaces_may_lead_to_two_places() {
    let recipes = tree(&["here/x.txt", "there/x.txt"]);
    recipes.write("here/base.toml", "data.train = \"link/../x.txt\"\n[schedule]\nmax_steps = 100\n");
    recipes.write("here/recipe.toml", "extends = \"base.toml\"\ndata.train = \"builtin:lipsum\"\n");
    said(&recipes, "here/recipe.toml").expect("the base's is not used");
    let set = recipe_support::set(&["data.train=builtin:lipsum"]);
    assert!(recipes.load("here/base.toml", &set).is_ok());
    said(&recipes, "here/base.toml").expect_err("nothing replaces it");
}

#[test]
fn a_recipe_that_is_named_by_way_of_a_link_has_its_own_neighbours() {
    let recipes = tree(&["here/x.txt", "there/x.txt"]);
    recipes.write("here/base.toml", "data.train = \"builtin:lipsum\"\n");
    recipes.write("there/base.toml", "data.train = \"x.txt\"\n");
    recipes.write("there/recipe.toml", "extends = \"base.toml\"\n[schedule]\nmax_steps = 100\n");
    let there = fs::canonicalize(recipes.path("there/x.txt")).expect("it exists");
    assert_eq!(said(&recipes, "here/link/../recipe.toml"), Ok(vec![there]));
}

#[test]
fn the_recipe_of_a_run_is_read_as_it_was_written() {
    let recipes = tree(&["x.txt", "there/x.txt"]);
    // the program has written it for the run that it began as `here/runs/a`
    let text = "data.train = \"../../../x.txt\"\n[schedule]\nmax_steps = 100\n";
    recipes.write("there/inner/deep/a/recipe.toml", text);
    symlink("../there/inner/deep", recipes.path("here/runs")).expect("a link");
    said(&recipes, "here/runs/a/recipe.toml").expect_err("a file as any other");
    recipes.write("there/inner/deep/a/run.json", "{}");
    assert_eq!(said(&recipes, "here/runs/a/recipe.toml"), Ok(vec![recipes.path("x.txt")]));
}

#[test]
fn flags_are_held_to_it_too() {
    let recipes = tree(&["here/x.txt", "there/x.txt"]);
    recipes.write("here/recipe.toml", REQUIRED);
    for key in ["data.train", "model.init_from"] {
        let call = format!("recipe.toml --set {key}=link/../x.txt --dry-run");
        let (code, said) = refused(&recipes.path("here"), &call);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(key) && said.contains("behind a link"), "{said}");
    }
}

#[test]
fn a_run_that_is_kept_behind_a_link_finds_its_data_again() {
    let recipes = tree(&[]);
    recipes.write("here/x.txt", "a b c d e f g h ".repeat(40));
    let text = "name = \"a\"\n[model]\nn_layer = 1\nn_head = 1\nn_embd = 8\nblock_size = 8\n\
                [data]\ntrain = \"x.txt\"\ntokenizer = \"char\"\n[batch]\ntotal_tokens = 8\n\
                [schedule]\nmax_steps = 1\n";
    recipes.write("here/recipe.toml", text);
    let run = printed(&recipes.path("here"), "recipe.toml --runs-dir link/../runs -q");
    let kept = recipes.path("there/runs").join(Path::new(run.trim_end()).file_name().expect("a name"));
    let name = kept.strip_prefix(recipes.dir()).expect("below it").join("recipe.toml");
    assert_eq!(said(&recipes, name.to_str().expect("UTF-8")), Ok(vec![recipes.path("here/x.txt")]));
}
