//! Wrong recipes with their full messages: what a person sees is what is pinned here.

use crate::recipe_support;

use recipe_support::{REQUIRED, Recipes, env, set, unset};
use runner::recipe::Overrides;
use std::fmt::Write;

/// Compares with the committed messages of this name.
fn snapshot(name: &str, messages: impl AsRef<str>) {
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, messages.as_ref()) });
}

/// The messages of recipes that are `REQUIRED` followed by each text.
fn additions(cases: &[&str]) -> String {
    let whole: Vec<String> = cases.iter().map(|case| format!("{REQUIRED}{case}\n")).collect();
    recipes(&whole.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The messages of whole recipes.
fn recipes(cases: &[&str]) -> String {
    let mut out = String::new();
    for case in cases {
        let bad = Recipes::with(case).bad(&Overrides::default());
        writeln!(out, "{bad}\n────────").expect("a string grows");
    }
    out
}

/// The messages of a right recipe under each of the overrides.
fn overridden(cases: &[Overrides]) -> String {
    let recipes = Recipes::with(REQUIRED);
    cases.iter().map(|case| format!("{}\n────────\n", recipes.bad(case))).collect()
}

#[test]
fn names() {
    snapshot(
        "names",
        additions(&[
            "[model]\nn_layers = 12",
            "[model]\nlr = 3e-4",
            "[model]\nwobble = 1",
            "[modle]\nn_layer = 12",
            "[wobble]\nx = 1",
            "[default]\nseed = 1",
            "[optimizer]\nlearning_rate = 3e-4",
            "[batch]\nbatch_size = 4",
            "[batch]\nmicro = 4",
            "[model.n_layer]\nx = 1",
            "[model.extra]\nx = 1",
            "\"model.n_layer\" = 3",
            "[compute]\n\"devi\\nce\" = 3",
        ]),
    );
}

#[test]
fn names_at_the_top() {
    snapshot(
        "names_at_the_top",
        recipes(&[
            &format!("lr = 3e-4\n{REQUIRED}"),
            &format!("sed = 3\n{REQUIRED}"),
            &format!("model = \"gpt2\"\n{REQUIRED}"),
            &format!("model = 7\nbatch = []\n{REQUIRED}"),
            &format!("[[eval]]\nevery = 1\n{REQUIRED}"),
            "model.n_layers = 3\ndata.train = \"builtin:lipsum\"\nschedule.max_steps = 1",
            "data = { train = \"builtin:lipsum\", shufle = true }\nschedule = { max_steps = 0 }",
        ]),
    );
}

#[test]
fn types() {
    snapshot(
        "types",
        additions(&[
            "[model]\nn_layer = \"12\"",
            "[model]\nn_layer = 12.0",
            "[model]\nn_layer = true",
            "[model]\nn_layer = [12]",
            "[optimizer]\nlr = \"fast\"",
            "[optimizer]\nlr = \"6e-4\"",
            "[optimizer]\nlr = 1979-05-27",
            "[optimizer]\nbetas = 0.9",
            "[optimizer]\nbetas = [0.9]",
            "[optimizer]\nbetas = [0.9, \"0.95\"]",
            "[batch]\nmicro_batch = \"all\"",
            "[compute]\ndevice = 0",
            "[compute]\nprecision = 16",
            "[sample]\nprompt = 3",
            "[model]\ninit_from = [\"a\"]",
            "[model]\npreset = 124",
        ]),
    );
    snapshot(
        "types_of_lists",
        recipes(&[
            "[data]\ntrain = 3\nshuffle = \"true\"\n[schedule]\nmax_steps = 1e3",
            "[data]\ntrain = [\"a\", 3]\nval = { a = 1 }\n[schedule]\nmax_steps = 1",
            &format!("extends = 3\n{REQUIRED}"),
            &format!("extends = [3]\n{REQUIRED}"),
        ]),
    );
}

#[test]
fn ranges() {
    snapshot(
        "ranges",
        additions(&[
            "[model]\nn_layer = 0",
            "[model]\nblock_size = -1",
            "[model]\nvocab_size = 16777216",
            "[model]\nn_embd = 99999999999999999999999",
            "[optimizer]\nlr = 0",
            "[optimizer]\nlr = inf",
            "[optimizer]\nlr = nan",
            "[optimizer]\nlr = 1e999",
            "[optimizer]\nbetas = [\n    0.9,\n    1.0,\n]",
            "[optimizer]\nbetas = [0.9, 0.95, 0.99]",
            "[optimizer]\neps = 0.0",
            "[optimizer]\nweight_decay = -0.1",
            "[optimizer]\nclip_norm = -1",
            "[batch]\nmicro_batch = 0",
            "[batch]\nworld_size = 0",
            "[compute]\ndevice = \"gpu\"",
            "[compute]\ndevice = \"cuda:x\"",
            "[compute]\nengine = \"fussed\"",
            "[compute]\nprecision = \"float32\"",
            "[model]\npreset = \"gpt2-124M\"",
            "[model]\npreset = \"llama\"",
            "[model]\ninit_from = \"\"",
            "[sample]\nprompt = \"\"",
            "[eval]\nbatches = 0",
        ]),
    );
    snapshot(
        "ranges_at_the_top",
        recipes(&[
            &format!("seed = -1\n{REQUIRED}"),
            &format!("name = \"a/b\"\n{REQUIRED}"),
            &format!("name = \"\"\n{REQUIRED}"),
            &format!("name = \"..\"\n{REQUIRED}"),
            "[data]\ntrain = []\n[schedule]\nmax_steps = 0",
            "[data]\ntrain = \"\"\n[schedule]\nmax_steps = 10\nmin_lr_ratio = 1.5",
        ]),
    );
}

#[test]
fn relations() {
    snapshot(
        "relations",
        additions(&[
            "[model]\nn_embd = 770",
            "[model]\nn_embd = 8\nn_head = 16",
            "[model]\npreset = \"gpt2-350m\"\nn_head = 15",
            "[batch]\ntotal_tokens = 1000",
            "[batch]\ntotal_tokens = 100000\nmicro_batch = 16",
            "[batch]\ntotal_tokens = 40960\nmicro_batch = 16",
            "[batch]\nworld_size = 3",
            "[model]\nblock_size = 1000",
            "[batch]\nmicro_batch = 3\n[model]\npreset = \"gpt3-small\"",
        ]),
    );
    let schedule = |keys: &str| format!("[data]\ntrain = \"builtin:lipsum\"\n[schedule]\n{keys}\n");
    snapshot(
        "relations_of_the_schedule",
        recipes(&[
            &schedule("max_steps = 10\nwarmup_steps = 11"),
            &schedule("kind = \"wsd\"\nmax_steps = 10\nwarmup_steps = 5\ndecay_steps = 6"),
            &schedule("kind = \"wsd\"\nmax_steps = 10\nwarmup_steps = 9"),
            &schedule("kind = \"wsd\"\nmax_steps = 10\nwarmup_steps = 10"),
            &schedule("kind = \"constant\"\nmax_steps = 10\nwarmup_steps = 1\nmin_lr_ratio = 0.1"),
            &schedule("kind = \"constant\"\nmax_steps = 10\ndecay_steps = 1"),
        ]),
    );
}

#[test]
fn relations_of_lengths_in_tokens() {
    let schedule = |keys: &str| format!("[data]\ntrain = \"builtin:lipsum\"\n[schedule]\n{keys}\n");
    snapshot(
        "relations_of_lengths",
        recipes(&[
            &schedule("max_steps = 10\nmax_tokens = 1e9\nwarmup_steps = 1\nwarmup_tokens = 1e6"),
            &schedule("max_tokens = 1e5"),
            &schedule("max_tokens = 1e9\nwarmup_tokens = 2e9"),
            &schedule("max_steps = 10\nwarmup_tokens = 2e9"),
            &schedule("max_tokens = 1e7\nwarmup_steps = 20"),
            &schedule("kind = \"wsd\"\nmax_tokens = 1e9\nwarmup_tokens = 6e8\ndecay_tokens = 5e8"),
            &schedule("max_tokens = 1e9\nwarmup_tokens = 6e8\ndecay_tokens = 5e8"),
            &schedule("max_steps = 100\nwarmup_steps = 20\ndecay_steps = 20"),
            &schedule("max_tokens = 1.5\nwarmup_tokens = \"1e6\"\ndecay_tokens = 1e30"),
        ]),
    );
    let ramp = |batch: &str, keys: &str| {
        format!("{}[batch]\n{batch}\n", schedule(&format!("max_tokens = 1e9\n{keys}")))
    };
    let start = "ramp_start = 32768";
    snapshot(
        "relations_of_a_ramp",
        recipes(&[
            &ramp("ramp_tokens = 1e8\nramp_increment = 1024", ""),
            &ramp(start, ""),
            &ramp("ramp_start = 524288\nramp_tokens = 1e8", ""),
            &ramp("ramp_start = 1000\nramp_tokens = 1e8", ""),
            &ramp("ramp_start = 32768\nramp_tokens = 1e8\nmicro_batch = 8\nworld_size = 8", ""),
            &ramp("ramp_start = 32768\nramp_tokens = 1e8\nramp_increment = 1000", ""),
            &ramp("ramp_start = 65536\nramp_tokens = 1e8\nramp_increment = 131072", ""),
            &ramp("ramp_start = 1024\nramp_tokens = 1e8\ntotal_tokens = 8388608", ""),
            &ramp("ramp_start = 32768\nramp_tokens = 1e8", "warmup_steps = 10"),
            &ramp("ramp_start = 32768\nramp_tokens = 1e8", "kind = \"wsd\"\ndecay_steps = 10"),
        ]),
    );
}

#[test]
fn missing_keys() {
    snapshot(
        "missing_keys",
        recipes(&["", "# nothing\n[data]\nval = \"x\"\n", "[schedule]\nkind = \"linear\"\n"]),
    );
}

#[test]
fn syntax() {
    snapshot(
        "syntax",
        additions(&[
            "[compute]\ndevice = cpu",
            "[model\nn_layer = 3",
            "[model]\nn_layer =",
            "[model]\nn_layer",
            "[model]\nn_layer = 3\nn_layer = 4",
            "[data]",
            "[sample]\nprompt = \"open",
            "[optimizer]\nbetas = [0.9, 0.95\nlr = 3\n[model]\nn_layer = 0",
            "x = 1 y = 2",
            "= 3",
        ]),
    );
}

#[test]
fn numbers_that_fp32_cannot_hold_are_out_of_range() {
    let recipes = Recipes::with(REQUIRED);
    for change in ["optimizer.lr=1e308", "optimizer.lr=3.5e38", "optimizer.eps=1e-300", "optimizer.eps=1e-40"]
    {
        let said = recipes.bad(&set(&[change]));
        assert!(said.contains("out of range") && said.contains("which fp32 can hold"), "{said}");
    }
    for change in ["optimizer.lr=3.4e38", "optimizer.eps=1.2e-38"] {
        recipes.good(&set(&[change]));
    }
}

#[test]
fn what_would_fit_is_within_the_range_of_its_key() {
    let recipes = Recipes::with(REQUIRED);
    for (changes, fits) in [
        (
            &["model.block_size=1000", "batch.total_tokens=68719476735"][..],
            "= help: total_tokens = 68719476000 would",
        ),
        (&["model.block_size=1000", "batch.total_tokens=999"], "= help: total_tokens = 1000 would fit"),
        (&["model.n_head=1000", "model.n_embd=131071"], "= help: n_embd = 131000 would fit, or"),
        (&["model.n_head=7", "model.n_embd=20"], "= help: n_embd = 14 or 21 would fit, or"),
        (
            &[
                "model.block_size=1048576",
                "batch.world_size=65536",
                "batch.micro_batch=2",
                "batch.total_tokens=9",
            ],
            "= help: no total_tokens fits: micro_batch · block_size · world_size = 2 · 1048576 · 65536 is more than",
        ),
    ] {
        let said = recipes.bad(&set(changes));
        assert!(said.contains(fits), "{changes:?}: {said}");
    }
}

#[test]
fn flags_and_variables() {
    snapshot(
        "flags_and_variables",
        overridden(&[
            set(&["optimizer.lr=fast"]),
            set(&["optimizer.lr = -1"]),
            set(&["model.n_layr=3"]),
            set(&["n_layer=3"]),
            set(&["modl.n_layer=3"]),
            set(&["optimizer.lr"]),
            set(&["=3"]),
            set(&[""]),
            set(&["data.train=[\"a\""]),
            set(&["extends=a.toml"]),
            set(&["model=3"]),
            set(&["model={n_layr=3}"]),
            set(&["name=12"]),
            set(&["optimizer.betas=[0.9, 1.5]", "batch.total_tokens=1000"]),
            set(&["schedule.kind=constant", "schedule.warmup_steps=3"]),
            unset(&["schedule.warmup_steps"]),
            unset(&["schedule.warmup"]),
            unset(&["extends"]),
            unset(&[""]),
            unset(&["schedule.max_steps"]),
            env(&[("RUNNER_COMPUTE__DEVICE", "gpu")]),
            env(&[("RUNNER_COMPUTE__DEVISE", "cpu")]),
            env(&[("RUNNER_MODEL__N__LAYER", "3")]),
            env(&[("RUNNER__SEED", "-1"), ("RUNNER__NAME", "a b")]),
            env(&[("RUNNER_SEED", "3")]),
            env(&[("RUNNER__EXTENDS", "a.toml")]),
            env(&[("RUNNER__SED", "3")]),
            env(&[("RUNNER_SECRET__FILE", "not to be shown")]),
            env(&[("RUNNER_BATCH__TOTAL_TOKENS", "")]),
            env(&[("RUNNER_SAMPLE__PROMPT", "\"open")]),
        ]),
    );
    let both = runner::recipe::Overrides {
        unset: vec!["schedule.max_steps".into()],
        ..set(&["schedule.max_steps=3"])
    };
    snapshot("set_and_unset", overridden(&[both]));
}

#[test]
fn bases() {
    let recipes = Recipes::with(&format!("extends = [\"base/good.toml\", \"base/god.toml\"]\n{REQUIRED}"));
    recipes.write("base/good.toml", "[model]\nn_layer = 2\n");
    let missing = recipes.bad(&Overrides::default());
    recipes.write("recipe.toml", format!("extends = \"a.toml\"\n{REQUIRED}"));
    recipes
        .write("a.toml", "extends = [\"b.toml\"]\n")
        .write("b.toml", "seed = 3\nextends = [\"./a.toml\"]\n");
    let cycle = recipes.bad(&Overrides::default());
    recipes.write("recipe.toml", format!("extends = \"recipe.toml\"\n{REQUIRED}"));
    let itself = recipes.bad(&Overrides::default());
    recipes.write("recipe.toml", format!("extends = [\"base\", \"latin1.toml\", \"\"]\n{REQUIRED}"));
    recipes.write("latin1.toml", b"# caf\xe9\n");
    let unreadable = recipes.bad(&Overrides::default());
    recipes
        .write("recipe.toml", "extends = \"wrong.toml\"\n[data]\ntrain = \"x\"\n[batch]\nmicro_batch = 3\n");
    recipes.write(
        "wrong.toml",
        "[model]\nn_layr = 3\nn_embd = 770\n[batch]\ntotal_tokens = 8192\n[schedule]\nmax_steps = 1\n",
    );
    let inherited = recipes.bad(&Overrides::default());
    snapshot("bases", [missing, cycle, itself, unreadable, inherited].join("\n────────\n"));
}

/// A recipe that comes from anyone may name what nobody else may see.
#[test]
fn lines_of_a_file_that_is_no_recipe_are_not_shown_though_a_recipe_extends_it() {
    let recipes = Recipes::with(&format!("extends = \"private\"\n{REQUIRED}"));
    for private in [
        "[default]\naws_access_key_id = SECRET\naws_secret_access_key = SECRET/K7\n",
        "https://bob:SECRET@example.com\n",
        "SECRET\n",
        "machine example.com login bob password SECRET\n",
        "name = \"SECRET\"\ntoken = \"SECRET\"\n",
        "[data]\ntype = \"s3\"\nkey = \"SECRET\"\n",
        "model = \"x\"\napi_key = \"SECRET\"\n",
    ] {
        let said = recipes.write("private", private).bad(&Overrides::default());
        assert!(!said.contains("SECRET"), "{said}");
        let (title, place) =
            ("`extends`: `DIR/private` has mistakes, and may be no recipe", "extends = \"private\"");
        assert!(said.contains(title) && said.contains(place), "{said}");
    }
    let said = recipes.write("private", b"SECRET\xe9\n").bad(&Overrides::default());
    assert!(!said.contains("SECRET") && said.contains("it is not UTF-8: byte 0xe9 at offset 6"), "{said}");
    // those of a recipe are, and a base may be of what is in no table
    let said = recipes.write("private", "[model]\nn_layer = 2\nn_layrs = 3\n").bad(&Overrides::default());
    assert!(said.contains("n_layrs = 3"), "{said}");
    recipes.write("private", "seed = 3\n").good(&Overrides::default());
}

#[test]
fn files() {
    let recipes = Recipes::with(REQUIRED);
    let load = |name: &str| {
        let error = recipes.load(name, &Overrides::default()).expect_err("a problem");
        recipes.hide(&error.to_string())
    };
    recipes.write("sub/x.toml", REQUIRED).write("large.toml", vec![b'#'; (256 << 10) + 1]);
    recipes.write("latin1.toml", b"[model]\n# caf\xe9\n").write("bad name!.toml", REQUIRED);
    recipes.write("binary.toml", [0_u8, 1, 2, 255, 254]);
    let names = [
        "recpie.toml",
        "recipe",
        "nowhere/recipe.toml",
        "sub",
        "large.toml",
        "latin1.toml",
        "bad name!.toml",
    ];
    let messages: Vec<String> = names.into_iter().chain(["binary.toml", "recipe.toml/x"]).map(load).collect();
    snapshot("files", messages.join("\n────────\n"));
}

#[test]
fn five_mistakes_are_five_messages_in_file_order() {
    let text = "\
# A recipe with five mistakes.
sead = 1
[model]
n_embd = 770
[compute]
precision = \"bf61\"
[data]
train = 7
[schedule]
max_steps = 10
warmup_steps = 20
";
    let recipes = Recipes::with(text);
    let error = recipes.load("recipe.toml", &Overrides::default()).expect_err("five problems");
    let message = recipes.hide(&error.to_string());
    assert_eq!(error.len(), 5, "{message}");
    let lines: Vec<&str> =
        message.lines().filter_map(|line| line.trim().strip_prefix("--> DIR/recipe.toml:")).collect();
    assert_eq!(lines, ["2:1", "4:10", "6:13", "8:9", "11:16"], "{message}");
    snapshot("five_mistakes_are_five_messages_in_file_order", message);
}

#[test]
fn colour_is_only_there_when_asked_for() {
    let error = Recipes::with("sead = 1\n").load("recipe.toml", &Overrides::default()).expect_err("problems");
    assert!(!error.render(false).contains('\u{1b}'));
    assert!(error.render(true).contains("\u{1b}["));
}
