//! Keys without effect: who sets one in vain is told, but switching something off needs no tidying up below.

use crate::recipe_support;

use recipe_support::{REQUIRED, Recipes, env, set, unset};
use runner::recipe::{Overrides, Resolved, load, silenced_by, to_toml};

fn none() -> Overrides {
    Overrides::default()
}

/// The titles of what is wrong with a recipe of `REQUIRED` and `text`.
fn titles(text: &str, overrides: &Overrides) -> Vec<String> {
    let recipes = Recipes::with(&format!("{REQUIRED}{text}"));
    match recipes.load("recipe.toml", overrides) {
        Ok(_) => Vec::new(),
        Err(error) => error.titles().map(str::to_owned).collect(),
    }
}

#[test]
fn what_is_set_in_vain_is_refused_where_it_stands() {
    for (text, title) in [
        ("[eval]\nevery = 250\n", "`eval.every` has no effect with data.val = []"),
        ("[eval]\nbatches = 7\n", "`eval.batches` has no effect with data.val = []"),
        ("[sample]\nprompt = \"x\"\n", "`sample.prompt` has no effect with sample.every = 0"),
        ("[sample]\nevery = 0\ntokens = 3\n", "`sample.tokens` has no effect with sample.every = 0"),
        (
            "[distributed]\nshard_optimizer = true\n",
            "`distributed.shard_optimizer` has no effect with batch.world_size = 1",
        ),
        (
            "[compute]\ndevice = \"cuda:1\"\nthreads = 4\n",
            "`compute.threads` has no effect with compute.device = \"cuda:1\"",
        ),
        (
            "[compute]\nengine = \"dfdx\"\nattention = \"flash\"\n",
            "`compute.attention = \"flash\"` has no effect with compute.engine = \"dfdx\"",
        ),
    ] {
        assert_eq!(titles(text, &none()), [title], "{text}");
    }
    let recipes = Recipes::with(&format!("{REQUIRED}[sample]\ntokens = 3\nevery = 0\n"));
    insta::with_settings!({ omit_expression => true }, {
        insta::assert_snapshot!("without_effect", recipes.bad(&set(&["eval.every=1"])));
    });
}

#[test]
fn what_has_an_effect_is_accepted() {
    for text in [
        "[sample]\nevery = 1\nprompt = \"x\"\n",
        "[compute]\nthreads = 4\n",
        "[compute]\ndevice = \"cuda\"\n",
        "[compute]\nengine = \"dfdx\"\nattention = \"naive\"\n",
    ] {
        assert_eq!(titles(text, &none()), [""; 0], "{text}");
    }
    let eval = "[eval]\nevery = 0\nbatches = 7\n";
    assert_eq!(titles(eval, &set(&["data.val=v"])), [""; 0]);
}

#[test]
fn a_stronger_layer_may_switch_off_without_tidying_up() {
    let text = "[eval]\nbatches = 7\n[sample]\nevery = 5\nprompt = \"x\"\n[compute]\nthreads = 3\nattention = \"flash\"\n";
    let recipes = Recipes::new();
    recipes
        .write("recipe.toml", format!("schedule.max_steps = 1\n[data]\ntrain = \"t\"\nval = \"v\"\n{text}"));
    let off = ["data.val=[]", "sample.every=0", "compute.device=cuda", "compute.engine=dfdx"];
    let recipe = recipes.good(&set(&off)).recipe;
    assert_eq!((recipe.eval.batches, recipe.compute.threads), (Some(20), 0), "the defaults");
    assert_eq!(recipe.sample.prompt, "Hello, I'm a language model,");
    // dropping validation data from the files is switching off, too
    assert_eq!(recipes.good(&unset(&["data.val"])).recipe.eval.batches, Some(20));
    // and what a flag says along with that is not below it
    let beside = Overrides { set: vec!["eval.every=3".into()], ..unset(&["data.val"]) };
    assert!(recipes.bad(&beside).contains("`eval.every` has no effect with data.val = []"));
    assert_eq!(recipes.good(&env(&[("RUNNER_SAMPLE__EVERY", "0")])).recipe.sample.tokens, 32);
    // what is said along with the switch is not below it
    let both = env(&[("RUNNER_SAMPLE__EVERY", "0"), ("RUNNER_SAMPLE__TOKENS", "3")]);
    assert!(recipes.bad(&both).contains("`sample.tokens` has no effect"));
    assert!(recipes.bad(&set(&["sample.tokens=3", "sample.every=0"])).contains("`sample.tokens`"));
    assert!(
        recipes
            .bad(&Overrides { set: vec!["sample.tokens=3".into()], ..env(&[("RUNNER_SAMPLE__EVERY", "0")]) })
            .contains("`sample.tokens`")
    );
}

#[test]
fn a_base_may_be_switched_off_by_the_file_above_it() {
    let recipes = Recipes::with(&format!("extends = \"base.toml\"\n{REQUIRED}[sample]\nevery = 0\n"));
    recipes.write("base.toml", "[sample]\nevery = 9\nprompt = \"x\"\n");
    assert_eq!(recipes.good(&none()).recipe.sample.prompt, "Hello, I'm a language model,");
    // the other way round, the file above the switch speaks in vain
    recipes.write("base.toml", "[sample]\nevery = 0\n");
    recipes.write("recipe.toml", format!("extends = \"base.toml\"\n{REQUIRED}[sample]\nprompt = \"x\"\n"));
    assert!(recipes.bad(&none()).contains("`sample.prompt` has no effect with sample.every = 0"));
}

/// The same recipe written out and loaded again.
fn again(resolved: &Resolved) -> Resolved {
    let recipes = Recipes::new();
    recipes.write("again.toml", to_toml(&resolved.recipe, recipes.dir()));
    load(&recipes.path("again.toml"), &none()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_written_recipe_leaves_out_what_has_no_effect_and_reads_back() {
    // the dfdx engine's default attention, once written out, was refused when the run was started again
    for arguments in [
        vec!["compute.engine=dfdx"],
        vec!["compute.device=cuda"],
        vec!["data.val=builtin:lipsum:seed=2", "eval.batches=3"],
        vec!["sample.every=1", "sample.tokens=2"],
        vec![],
    ] {
        let resolved = Recipes::with(REQUIRED).good(&set(&arguments));
        let back = again(&resolved);
        assert_eq!(back.recipe, resolved.recipe, "{arguments:?}");
        for (key, _) in back.origins() {
            let is_written =
                !matches!(back.origin(key).map(|s| &s.origin), Some(runner::recipe::Origin::Default));
            assert_eq!(is_written, silenced_by(&resolved.recipe, key).is_none(), "{key} with {arguments:?}");
        }
    }
}

#[test]
fn lints_are_known_by_their_codes() {
    let recipes = Recipes::with(&format!("{REQUIRED}[lints]\nallow = [\"ugly-vocab\", \"many-epochs\"]\n"));
    assert_eq!(recipes.good(&none()).recipe.lints.allow.len(), 2);
    assert_eq!(recipes.good(&set(&["lints.allow=small-data"])).recipe.lints.allow.len(), 1);
    let message = recipes.bad(&set(&["lints.allow=[\"ugly-vocab\", \"ugly-vocap\"]"]));
    assert!(message.contains("`lints.allow` is \"ugly-vocap\", which is not one of its values"), "{message}");
    assert!(message.contains("did you mean \"ugly-vocab\"?"), "{message}");
    assert!(
        recipes
            .bad(&set(&["lints.allow=3"]))
            .contains("`lints.allow` must be a string or an array of strings")
    );
    assert!(recipes.bad(&set(&["lints.allow=[3]"])).contains("`lints.allow` must be a string"));
}
