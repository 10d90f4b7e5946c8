//! Which layer wins, what is traced to whom, and the traps of merging that each cost somebody an experiment.

use crate::recipe_support;

use recipe_support::{REQUIRED, Recipes, env, set, unset};
use runner::recipe::{
    Device, InitFrom, MicroBatch, Origin, Overrides, Precision, Resolved, ScheduleKind, load, to_toml,
};
use std::path::Path;

fn none() -> Overrides {
    Overrides::default()
}

/// Who set `key`, weakest first.
fn history(resolved: &Resolved, key: &str) -> Vec<String> {
    let settings = resolved.origins().find(|(name, _)| *name == key).map(|(_, settings)| settings);
    let show = |origin: &Origin| match origin {
        Origin::File { path, line, column } => {
            format!("{}:{line}:{column}", path.file_name().expect("a name").to_string_lossy())
        }
        other => other.to_string(),
    };
    settings
        .unwrap_or_default()
        .iter()
        .map(|setting| format!("{} = {}", show(&setting.origin), setting.value))
        .collect()
}

#[test]
fn every_layer_overrides_the_weaker_ones_and_is_remembered() {
    let recipes = Recipes::with(&format!(
        "extends = [\"one.toml\", \"two.toml\"]\n[optimizer]\nlr = 4e-4\n[model]\npreset = \"gpt3-small\"\n{REQUIRED}"
    ));
    recipes.write("one.toml", "[optimizer]\nlr = 2e-4\n").write("two.toml", "optimizer.lr = 3e-4\n");
    let overrides = Overrides {
        env: vec![("RUNNER_OPTIMIZER__LR".into(), "5e-4".into())],
        ..set(&["optimizer.lr=0.0007", "optimizer.lr = 0.0008"])
    };
    let resolved = recipes.good(&overrides);
    assert_eq!(resolved.recipe.optimizer.lr, 8e-4);
    assert_eq!(
        history(&resolved, "optimizer.lr"),
        [
            "default = 0.0006",
            "preset gpt3-small = 0.0006",
            "one.toml:2:6 = 0.0002",
            "two.toml:1:16 = 0.0003",
            "recipe.toml:3:6 = 0.0004",
            "environment variable RUNNER_OPTIMIZER__LR = 0.0005",
            "--set optimizer.lr=0.0007 = 0.0007",
            "--set optimizer.lr = 0.0008 = 0.0008",
        ]
    );
    assert_eq!(
        resolved.origin("optimizer.lr").expect("set").origin,
        Origin::Set("optimizer.lr = 0.0008".into())
    );
    assert_eq!(resolved.origin("optimizer.eps").expect("a default").origin, Origin::Default);
    assert!(resolved.origin("optimizer.wobble").is_none());
    let names: Vec<_> = resolved.files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, ["one.toml", "two.toml", "recipe.toml"]);
}

#[test]
fn a_preset_is_weaker_than_every_file_and_follows_the_strongest_choice() {
    let recipes = Recipes::with(&format!("extends = \"base.toml\"\n[model]\nn_head = 8\n{REQUIRED}"));
    recipes.write(
        "base.toml",
        "[model]\npreset = \"gpt3-small\"\nn_embd = 512\n[optimizer]\nbetas = [0.8, 0.9]\n",
    );
    let recipe = recipes.good(&none()).recipe;
    assert_eq!((recipe.model.n_embd, recipe.model.n_head, recipe.model.block_size), (512, 8, 2048));
    let medium = recipes.good(&set(&["model.preset=gpt3-medium"])).recipe;
    assert_eq!((medium.model.n_layer, medium.model.n_embd, medium.optimizer.lr), (24, 512, 3e-4));
    let plain = recipes.good(&unset(&["model.preset"])).recipe;
    assert_eq!((plain.model.block_size, plain.model.n_embd), (1024, 512));
}

#[test]
fn presets_are_the_published_models() {
    let shape = |name: &str| {
        let recipe = Recipes::with(REQUIRED).good(&set(&[&format!("model.preset={name}")])).recipe;
        let model = recipe.model;
        assert_eq!((model.vocab_size, model.vocab_multiple), (50257, 1), "{name}");
        (
            model.n_layer,
            model.n_head,
            model.n_embd,
            model.block_size,
            recipe.batch.total_tokens,
            recipe.optimizer.lr,
        )
    };
    assert_eq!(shape("gpt2-124m"), (12, 12, 768, 1024, 524288, 6e-4));
    assert_eq!(shape("gpt2-350m"), (24, 16, 1024, 1024, 524288, 6e-4));
    assert_eq!(shape("gpt2-774m"), (36, 20, 1280, 1024, 524288, 6e-4));
    assert_eq!(shape("gpt2-1558m"), (48, 25, 1600, 1024, 524288, 6e-4));
    assert_eq!(shape("gpt3-small"), (12, 12, 768, 2048, 524288, 6e-4));
    assert_eq!(shape("gpt3-medium"), (24, 16, 1024, 2048, 524288, 3e-4));
    assert_eq!(shape("gpt3-large"), (24, 16, 1536, 2048, 524288, 2.5e-4));
    assert_eq!(shape("gpt3-xl"), (24, 16, 2048, 2048, 1048576, 2e-4));
}

#[test]
fn a_base_reached_twice_counts_where_it_is_strongest() {
    // Merged in the order first, common, second, common: the last word is common's.
    let recipes =
        Recipes::with(&format!("extends = [\"first.toml\", \"second.toml\", \"common.toml\"]\n{REQUIRED}"));
    recipes.write("common.toml", "seed = 1\n[model]\nn_layer = 1\n");
    recipes.write("first.toml", "extends = \"common.toml\"\nseed = 2\ndata.val = \"v\"\n[eval]\nevery = 2\n");
    recipes.write("second.toml", "extends = \"common.toml\"\nseed = 3\n[eval]\nbatches = 3\n");
    let resolved = recipes.good(&none());
    assert_eq!(
        history(&resolved, "seed"),
        ["default = 1337", "first.toml:2:8 = 2", "second.toml:2:8 = 3", "common.toml:1:8 = 1"]
    );
    assert_eq!((resolved.recipe.eval.every, resolved.recipe.eval.batches), (2, Some(3)));
}

#[test]
fn wide_and_deep_extends_stay_cheap() {
    // Every file names the next one twice: 2^20 paths to the last.
    let recipes = Recipes::with(&format!("extends = \"0.toml\"\n{REQUIRED}"));
    for level in 0..20 {
        recipes.write(
            &format!("{level}.toml"),
            format!("extends = [\"{0}.toml\", \"./{0}.toml\"]\n", level + 1),
        );
    }
    recipes.write("20.toml", "seed = 20\n");
    assert_eq!(recipes.good(&none()).recipe.seed, 20);
    for level in 0..40 {
        recipes.write(&format!("{level}.toml"), format!("extends = \"{}.toml\"\n", level + 1));
    }
    assert!(recipes.bad(&none()).contains("`extends` reaches deeper than 32 files"));
}

#[test]
fn arrays_are_replaced_as_a_whole() {
    let recipes =
        Recipes::with("extends = \"base.toml\"\n[data]\ntrain = [\"c\"]\n[schedule]\nmax_steps = 1\n");
    recipes.write(
        "base.toml",
        "[data]\ntrain = [\"a\", \"b\"]\nval = [\"v\", \"w\"]\n[optimizer]\nbetas = [0.5, 0.6]\n",
    );
    let recipe = recipes.good(&set(&["optimizer.betas=[0.7, 0.8]", "data.val=[]"])).recipe;
    assert_eq!(recipe.data.train, [recipes.path("c").to_str().expect("UTF-8")]);
    assert_eq!((recipe.data.val.len(), recipe.optimizer.betas), (0, [0.7, 0.8]));
}

#[test]
fn a_changed_kind_drops_what_the_old_one_used() {
    let schedule = |base: &str, own: &str| {
        let recipes =
            Recipes::with(&format!("extends = \"base.toml\"\n[data]\ntrain = \"x\"\n[schedule]\n{own}\n"));
        recipes.write("base.toml", format!("[schedule]\nmax_steps = 100\n{base}\n"));
        recipes.good(&none()).recipe.schedule
    };
    let constant = schedule("warmup_steps = 10\nmin_lr_ratio = 0.2", "kind = \"constant\"");
    assert_eq!((constant.warmup_steps, constant.min_lr_ratio, constant.decay_steps), (None, None, None));
    assert_eq!((constant.kind, constant.max_steps), (ScheduleKind::Constant, Some(100)));
    let cosine = schedule("kind = \"wsd\"\nwarmup_steps = 10\ndecay_steps = 7", "kind = \"cosine\"");
    assert_eq!((cosine.warmup_steps, cosine.min_lr_ratio, cosine.decay_steps), (Some(10), Some(0.1), None));
    let wsd = schedule("kind = \"constant\"", "kind = \"wsd\"\nmax_steps = 101");
    assert_eq!((wsd.warmup_steps, wsd.min_lr_ratio, wsd.decay_steps), (Some(0), Some(0.1), Some(21)));
}

#[test]
fn a_decay_means_something_else_under_wsd_and_does_not_pass_over() {
    let schedule = |base: &str, own: &str| {
        let recipes =
            Recipes::with(&format!("extends = \"base.toml\"\n[data]\ntrain = \"x\"\n[schedule]\n{own}\n"));
        recipes.write("base.toml", format!("[schedule]\nmax_tokens = 1e9\n{base}\n"));
        recipes.good(&none()).recipe.schedule
    };
    let of = |schedule: runner::recipe::ScheduleConfig| (schedule.decay_steps, schedule.decay_tokens);
    let tokens = "decay_tokens = 1e8";
    assert_eq!(of(schedule(&format!("kind = \"cosine\"\n{tokens}"), "kind = \"wsd\"")), (None, None));
    assert_eq!(of(schedule(&format!("kind = \"wsd\"\n{tokens}"), "kind = \"linear\"")), (None, None));
    let kept = (None, Some(100_000_000));
    assert_eq!(of(schedule(&format!("kind = \"cosine\"\n{tokens}"), "kind = \"linear\"")), kept);
    // where nothing says a kind, it is a cosine's
    assert_eq!(of(schedule(tokens, "kind = \"wsd\"")), (None, None));
    assert_eq!(of(schedule(tokens, "kind = \"linear\"")), kept);
    // except for a length in steps, which only wsd had at first
    let steps = "decay_steps = 70";
    assert_eq!(of(schedule(steps, "kind = \"wsd\"")), (Some(70), None));
    assert_eq!(of(schedule(&format!("kind = \"cosine\"\n{steps}"), "kind = \"wsd\"")), (None, None));
}

#[test]
fn a_kind_that_is_unset_drops_what_a_kind_that_is_set_drops() {
    let unset_kind = |base: &str, own: &str| {
        let recipes =
            Recipes::with(&format!("extends = \"base.toml\"\n[data]\ntrain = \"x\"\n[schedule]\n{own}\n"));
        recipes.write("base.toml", format!("[schedule]\nmax_steps = 100\n{base}\n"));
        let schedule = recipes.good(&unset(&["schedule.kind"])).recipe.schedule;
        assert_eq!(schedule, recipes.good(&set(&["schedule.kind=cosine"])).recipe.schedule, "{base}\n{own}");
        (schedule.kind, schedule.warmup_steps, schedule.decay_steps)
    };
    let cosine = ScheduleKind::Cosine;
    assert_eq!(
        unset_kind("", "kind = \"wsd\"\nwarmup_steps = 3\ndecay_steps = 4"),
        (cosine, Some(3), None),
        "the decay is that of a wsd"
    );
    assert_eq!(unset_kind("kind = \"wsd\"\ndecay_steps = 4", "warmup_steps = 3"), (cosine, Some(3), None));
    assert_eq!(unset_kind("decay_steps = 40", "kind = \"wsd\"\ndecay_steps = 4"), (cosine, Some(0), None));
    assert_eq!(unset_kind("warmup_steps = 9", "kind = \"constant\""), (cosine, Some(0), None));
    let kept = unset_kind("kind = \"linear\"", "warmup_steps = 3\ndecay_steps = 40");
    assert_eq!(kept, (cosine, Some(3), Some(40)), "a linear decay ends where a cosine does");
    // flags count as said after the kind was dropped
    let recipes = Recipes::with("[data]\ntrain = \"x\"\n[schedule]\nkind = \"wsd\"\nmax_steps = 9\n");
    let overrides = Overrides { unset: vec!["schedule.kind".into()], ..set(&["schedule.decay_steps=7"]) };
    assert_eq!(recipes.good(&overrides).recipe.schedule.decay_steps, Some(7));
}

#[test]
fn of_two_forms_of_a_length_one_has_a_value() {
    let recipes = Recipes::with("data.train = \"x\"\n[schedule]\nmax_tokens = 1e9\nwarmup_tokens = 1e7\n");
    let recipe = recipes.good(&none()).recipe;
    let schedule = &recipe.schedule;
    assert_eq!((schedule.max_steps, schedule.max_tokens), (None, Some(1_000_000_000)));
    assert_eq!((schedule.warmup_steps, schedule.warmup_tokens), (None, Some(10_000_000)));
    // 1907.3 and 19.07 steps of 524,288 tokens
    let lengths = schedule.lengths(&recipe.step_sizes());
    assert_eq!((recipe.steps(), lengths.run, lengths.warmup), (1907, 1907, 19));
    // the stronger layer's form holds, and dropping the other one first drops no more than that
    for unset in [&[][..], &["schedule.max_tokens".to_owned()]] {
        let overrides = Overrides { unset: unset.to_vec(), ..set(&["schedule.max_steps=70"]) };
        let schedule = recipes.good(&overrides).recipe.schedule;
        assert_eq!((schedule.max_steps, schedule.max_tokens), (Some(70), None));
    }
    // the growth of the batch is dropped with the ramp, and its increment is the first size unless said
    recipes.write("ramp.toml", "extends = \"recipe.toml\"\n[batch]\nramp_start = 32768\nramp_tokens = 1e8\n");
    let ramp = |more: &[&str]| recipes.load("ramp.toml", &set(more)).expect("right").recipe.batch;
    assert_eq!(ramp(&[]).ramp_increment, Some(32_768));
    assert_eq!(ramp(&["batch.ramp_increment=16384"]).ramp_increment, Some(16_384));
    let off = ramp(&["batch.ramp_start=0"]);
    assert_eq!((off.ramp(), off.ramp_tokens, off.ramp_increment), (None, None, None));
}

#[test]
fn what_a_kind_dropped_does_not_come_back() {
    let recipes =
        Recipes::with(&format!("extends = [\"a.toml\", \"b.toml\"]\n{REQUIRED}kind = \"cosine\"\n"));
    recipes
        .write("a.toml", "[schedule]\nwarmup_steps = 10\n")
        .write("b.toml", "[schedule]\nkind = \"constant\"\n");
    let resolved = recipes.good(&none());
    assert_eq!(resolved.recipe.schedule.warmup_steps, Some(0));
    assert_eq!(history(&resolved, "schedule.warmup_steps"), ["default = 0"]);
    let constant = recipes.good(&set(&["schedule.kind=constant"])).recipe.schedule;
    assert_eq!((constant.warmup_steps, constant.min_lr_ratio), (None, None));
}

#[test]
fn a_key_beside_or_above_its_kind_is_not_dropped_but_refused() {
    let recipes =
        Recipes::with("extends = \"base.toml\"\n[data]\ntrain = \"x\"\n[schedule]\nwarmup_steps = 5\n");
    recipes.write("base.toml", "[schedule]\nmax_steps = 100\nkind = \"constant\"\n");
    assert!(recipes.bad(&none()).contains("`schedule.warmup_steps` has no effect"));
    let variables = env(&[("RUNNER_SCHEDULE__KIND", "constant"), ("RUNNER_SCHEDULE__WARMUP_STEPS", "3")]);
    assert!(recipes.bad(&variables).contains("RUNNER_SCHEDULE__WARMUP_STEPS=3"));
}

#[test]
fn all_unknown_keys_are_reported_at_once() {
    let error = Recipes::with("a = 1\nb = 2\n[model]\nc = 3\n[z]\nd = 4\n")
        .load("recipe.toml", &none())
        .expect_err("wrong");
    let unknown: Vec<_> = error.titles().filter(|title| title.starts_with("unknown")).collect();
    assert_eq!(unknown, ["unknown key `a`", "unknown key `b`", "unknown key `model.c`", "unknown table `z`"]);
}

#[test]
fn tables_are_not_profiles() {
    for profile in ["default", "global", "debug"] {
        let text = format!("{REQUIRED}[{profile}.model]\nn_layer = 2\n");
        let error = Recipes::with(&text).load("recipe.toml", &none()).expect_err("wrong");
        assert_eq!(error.titles().collect::<Vec<_>>(), [format!("unknown table `{profile}`")]);
    }
}

#[test]
fn variables_need_two_underscores_and_keep_single_ones() {
    let recipes = Recipes::with(REQUIRED);
    let recipe = recipes
        .good(&env(&[
            ("RUNNER_MODEL__N_LAYER", "3"),
            ("RUNNER_COMPUTE__DEVICE", "cuda:2"),
            ("RUNNER_COMPUTE__PRECISION", "\"bf16\""),
            ("RUNNER__NAME", "from-env"),
            ("RUNNER__SEED", "7"),
            // which every job of GitHub Actions has
            ("RUNNER_NAME", "GitHub Actions 2"),
            ("RUNNER_LOG", "debug"),
            ("RUNNER_TEMP", "9"),
            ("OTHER__N_LAYER", "9"),
        ]))
        .recipe;
    assert_eq!((recipe.model.n_layer, recipe.seed, recipe.name.as_str()), (3, 7, "from-env"));
    assert_eq!((recipe.compute.device, recipe.compute.precision), (Device::Cuda(2), Precision::Bf16));
}

#[test]
fn a_flag_is_toml_or_a_bare_word() {
    let recipes = Recipes::with(REQUIRED);
    let recipe = recipes
        .good(&set(&[
            "compute.precision=tf32",
            "sample.every=10",
            "sample.prompt=To be, or not to be",
            "batch.micro_batch=auto",
            "optimizer={lr = 1, betas = [0, 0.5]}",
            "data.shuffle=false",
            "data.train=builtin:lipsum:seed=2,words=10",
            "name = \"a-b\"",
        ]))
        .recipe;
    assert_eq!((recipe.compute.precision, recipe.batch.micro_batch), (Precision::Tf32, MicroBatch::Auto));
    assert_eq!(recipe.sample.prompt, "To be, or not to be");
    assert_eq!((recipe.optimizer.lr, recipe.optimizer.betas), (1.0, [0.0, 0.5]));
    assert_eq!((recipe.data.shuffle, recipe.name.as_str()), (false, "a-b"));
    assert_eq!(recipe.data.train, ["builtin:lipsum:seed=2,words=10"]);
    // a number that TOML writes in another way is told how
    for (argument, help) in [
        ("optimizer.lr=.001", "write it as 0.001"),
        ("optimizer.lr=5.", "write it as 5.0"),
        ("model.n_layer=007", "write it as 7"),
        ("optimizer.lr=\"1e-3\"", "write it without quotes: 1e-3"),
    ] {
        let message = recipes.bad(&set(&[argument]));
        assert!(message.contains(&format!("{help}\n")), "{argument}: {message}");
    }
}

#[test]
fn unset_uncovers_the_preset_or_default() {
    let recipes = Recipes::with(&format!("extends = \"base.toml\"\n[model]\nn_layer = 3\n{REQUIRED}"));
    recipes
        .write("base.toml", "[model]\npreset = \"gpt2-350m\"\nn_layer = 2\n[eval]\nevery = 7\nbatches = 8\n");
    let overrides = Overrides {
        env: vec![("RUNNER_MODEL__N_LAYER".into(), "5".into())],
        ..unset(&["model.n_layer", "eval"])
    };
    let resolved = recipes.good(&overrides);
    assert_eq!(
        (resolved.recipe.model.n_layer, resolved.recipe.eval.every, resolved.recipe.eval.batches),
        (24, 250, Some(20))
    );
    assert_eq!(history(&resolved, "model.n_layer"), ["default = 12", "preset gpt2-350m = 24"]);
}

#[test]
fn the_name_is_the_files_stem_unless_somebody_gives_one() {
    let recipes = Recipes::new();
    recipes.write("wide-net.v2.toml", format!("extends = \"base.toml\"\n{REQUIRED}")).write("base.toml", "");
    let name = |recipes: &Recipes| recipes.load("wide-net.v2.toml", &none()).expect("right").recipe.name;
    assert_eq!(name(&recipes), "wide-net.v2");
    recipes.write("base.toml", "name = \"shared\"\n");
    assert_eq!(name(&recipes), "shared");
}

#[test]
fn paths_belong_to_the_file_that_names_them() {
    let recipes = Recipes::with(
        "extends = \"base/base.toml\"\n[data]\nval = [\"./v/../val-*.bin\", \"/abs/x.bin\", \"builtin:lipsum\"]\n",
    );
    recipes.write(
        "base/base.toml",
        "[model]\ninit_from = \"../weights\"\n[data]\ntrain = \"../data/t.bin\"\n[schedule]\nmax_steps = 1\n",
    );
    let here = |name: &str| recipes.path(name).to_str().expect("UTF-8").to_string();
    let recipe = recipes.good(&none()).recipe;
    assert_eq!(recipe.data.train, [here("data/t.bin")]);
    assert_eq!(recipe.data.val, [here("val-*.bin"), "/abs/x.bin".into(), "builtin:lipsum".into()]);
    assert_eq!(recipe.model.init_from.as_ref().map(InitFrom::path), Some(recipes.path("weights").as_path()));
    let current = std::env::current_dir().expect("a current directory");
    let told =
        Overrides { env: vec![("RUNNER_DATA__VAL".into(), "v.bin".into())], ..set(&["data.train=../t.bin"]) };
    let recipe = recipes.good(&told).recipe;
    assert_eq!(
        recipe.data.train,
        [current.parent().expect("a parent").join("t.bin").to_str().expect("UTF-8")]
    );
    assert_eq!(recipe.data.val, [current.join("v.bin").to_str().expect("UTF-8")]);
}

#[test]
fn a_moved_tree_is_the_same_experiment() {
    let recipes = Recipes::new();
    recipes.write(
        "a/recipes/x.toml",
        "[data]\ntrain = \"../data/*.bin\"\nval = \"../data/v.bin\"\n[schedule]\nmax_steps = 9\n",
    );
    let first = recipes.load("a/recipes/x.toml", &none()).expect("right").recipe;
    let text = to_toml(&first, &recipes.path("a/runs/x-1234"));
    assert!(text.contains("train = [\"../../data/*.bin\"]"), "{text}");
    recipes.write("a/runs/x-1234/recipe.toml", &text);
    std::fs::rename(recipes.path("a"), recipes.path("b")).expect("moved");
    let moved = recipes.load("b/runs/x-1234/recipe.toml", &none()).expect("right").recipe;
    let from_source = recipes.load("b/recipes/x.toml", &none()).expect("right").recipe;
    assert_eq!(moved, from_source);
    assert_eq!(to_toml(&moved, &recipes.path("b/runs/x-1234")), text);
}

#[test]
fn line_ends_and_byte_order_marks_of_other_editors_are_read() {
    let recipes = Recipes::with(&format!("\u{feff}{}", REQUIRED.replace('\n', "\r\n")));
    assert_eq!(recipes.good(&none()).recipe.schedule.max_steps, Some(100));
    recipes.write("recipe.toml", "[model]\r\nn_layr = 3\r\n");
    assert!(recipes.bad(&none()).contains(":2:1\n  |\n2 | n_layr = 3\n  | ^^^^^^ did you mean `n_layer`?"));
}

#[test]
fn callers_complain_at_the_winning_place() {
    let recipes = Recipes::with(&format!("{REQUIRED}[compute]\ndevice = \"cuda\"\n"));
    let complain = |overrides: &Overrides, key: &str| {
        recipes.hide(&recipes.good(overrides).complain(key, "no CUDA here", "use the CPU").to_string())
    };
    assert_eq!(
        complain(&none(), "compute.device"),
        "error: no CUDA here\n --> DIR/recipe.toml:6:10\n  |\n6 | device = \"cuda\"\n  |          ^^^^^^\n  |\n  = help: use the CPU"
    );
    assert_eq!(
        complain(&set(&["compute.device=cuda:1"]), "compute.device"),
        "error: no CUDA here\n |\n | --set compute.device=cuda:1\n |                      ^^^^^^\n |\n = help: use the CPU"
    );
    assert_eq!(
        complain(&none(), "compute.threads"),
        "error: no CUDA here\n--> DIR/recipe.toml\n = help: use the CPU"
    );
}

#[test]
fn shipped_recipes_are_right() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let toml = |dir: &Path| -> Vec<_> {
        let entries =
            std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
    };
    let (recipes, bases) = (toml(&dir), toml(&dir.join("base")));
    assert!(recipes.len() >= 4 && bases.len() >= 8);
    for path in recipes {
        let resolved = load(&path, &none()).unwrap_or_else(|error| panic!("{error}"));
        let data = &resolved.recipe.data;
        assert!(!data.val.is_empty() || data.val_fraction.is_some(), "{}", path.display());
    }
    for path in bases {
        let resolved = load(&path, &set(&["data.train=builtin:lipsum", "schedule.max_steps=10"]));
        let recipe = resolved.unwrap_or_else(|error| panic!("{error}")).recipe;
        assert_eq!(path.file_stem().and_then(|stem| stem.to_str()), Some(recipe.name.as_str()));
        assert_eq!(recipe.model.vocab_multiple, 128, "{}", path.display());
    }
    let quickstart = load(&dir.join("quickstart.toml"), &none()).expect("right").recipe;
    assert_eq!((quickstart.batch.total_tokens, quickstart.schedule.max_steps), (1024, Some(300)));
    let gpt3 = load(&dir.join("gpt3-small.toml"), &none()).expect("right").recipe;
    assert_eq!((gpt3.model.block_size, gpt3.schedule.warmup_steps), (2048, Some(715)));
}

#[test]
fn a_branch_is_one_value_that_a_stronger_layer_replaces_as_a_whole() {
    let text = "[model]\ninit_from = { run = \"runs/a-01234567\", step = 3, optimizer = false }\n[data]\ntrain = \"x\"\n\
                [schedule]\nmax_steps = 9\n";
    let recipes = Recipes::with(text);
    let branch = |sets: &[&str]| recipes.good(&set(sets)).recipe.branch().cloned().expect("a branch");
    let first = branch(&[]);
    assert_eq!(
        (first.run.as_path(), first.step, first.optimizer),
        (recipes.path("runs/a-01234567").as_path(), Some(3), false)
    );
    let other = branch(&["model.init_from={run=\"/b\"}"]);
    assert_eq!((other.run.as_path(), other.step, other.optimizer), (Path::new("/b"), None, true));
    let weights = recipes.good(&set(&["model.init_from=w.safetensors"])).recipe;
    assert!(weights.branch().is_none() && weights.model.init_from.is_some());
    // what is written reads back, relative to where it stands
    let resolved = recipes.good(&none()).recipe;
    let written = to_toml(&resolved, recipes.dir());
    let line = "init_from = { run = \"runs/a-01234567\", step = 3, optimizer = false }";
    assert!(written.contains(line), "{written}");
    recipes.write("recipe.toml", written);
    assert_eq!(branch(&[]), first);
}
