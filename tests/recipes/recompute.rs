//! `compute.recompute` in the plan and through the program: it saves memory, takes operations, and changes no byte.

use crate::recipe_support;

use recipe_support::{Recipes, printed, refused, runner, set};
use runner::engine::memory::Recompute;
use runner::plan::hardware::Hardware;
use runner::plan::{DataSize, Plan};
use runner::recipe::{MicroBatch, Recipe, RecomputeName};
use serde_json::Value as Json;

/// 8 rows of 32 tokens in two passes.
const RECIPE: &str = "\
[model]
n_layer = 4
n_head = 2
n_embd = 64
block_size = 32
vocab_size = 50257
[data]
train = \"builtin:lipsum:words=3000\"
val = \"builtin:lipsum:seed=2,words=1000\"
[batch]
total_tokens = 256
micro_batch = 4
[schedule]
max_steps = 4
warmup_steps = 2
[eval]
every = 2
batches = 1
[sample]
every = 4
tokens = 4
[checkpoint]
every = 2
keep = 0
";

const VALUES: [&str; 4] = ["none", "mlp", "block", "auto"];

fn plan(recipes: &Recipes, arguments: &str) -> Json {
    let text = printed(recipes.dir(), &format!("plan recipe.toml --format json {arguments}"));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_plan_shows_what_each_choice_takes() {
    let recipes = Recipes::with(RECIPE);
    let none = plan(&recipes, "");
    let options = none["recompute_options"].as_array().expect("a list");
    assert_eq!(options.len(), 3);
    let (layers, c, t) = (3, 64, 32);
    let extra = [0, layers * 8 * c * c, layers * (16 * c * c + 2 * c * t)];
    for (option, (value, extra)) in options.iter().zip(VALUES.iter().zip(extra)) {
        assert_eq!(
            (&option["recompute"], &option["extra_flops_per_token"]),
            (&(*value).into(), &extra.into())
        );
        let there = plan(&recipes, &format!("--set compute.recompute={value}"));
        assert_eq!((&there["recompute"], &there["total_bytes"]), (&(*value).into(), &option["total_bytes"]));
        // what a choice comes to does not depend on the choice, and the model's operations stay what they are
        assert_eq!(there["recompute_options"], none["recompute_options"]);
        for same in ["flops_per_token", "flops", "micro_batch", "steps"] {
            assert_eq!(there[same], none[same], "{same}");
        }
        let text = printed(recipes.dir(), &format!("plan recipe.toml --set compute.recompute={value}"));
        let line = text.lines().find(|line| line.starts_with(&format!("  recompute {value} ")));
        assert!(line.is_some_and(|line| line.ends_with(": as the recipe says")), "{text}");
        assert_eq!(text.matches(": as the recipe says").count(), 1, "{text}");
    }
    let bytes = |i: usize| options[i]["total_bytes"].as_u64().expect("a number");
    assert!(bytes(0) > bytes(1) && bytes(1) > bytes(2));
    let text = printed(recipes.dir(), "plan recipe.toml --set compute.recompute=auto");
    assert!(
        text.lines().any(|line| line.starts_with("  recompute none ") && line.ends_with(": chosen")),
        "{text}"
    );
    // the reference engine keeps a tape
    let reference = plan(&recipes, "--set compute.engine=dfdx --set compute.attention=naive");
    assert!(reference.get("recompute").is_none() && reference.get("recompute_options").is_none());
}

#[test]
fn a_prediction_and_a_roofline_count_what_is_computed_again() {
    let recipes = Recipes::with(RECIPE);
    let step = |value: &str| {
        let plan = plan(&recipes, &format!("--roofline h100 --set compute.recompute={value}"));
        let kernels = plan["roofline"]["kernels"].as_array().expect("kernels").clone();
        let of = |name: &str| {
            let all =
                kernels.iter().filter(|kernel| kernel["name"].as_str().expect("text").starts_with(name));
            all.map(|kernel| kernel["flops"].as_u64().expect("a number")).sum::<u64>()
        };
        let predicted = plan["predicted"]["step_s"].as_f64().expect("seconds");
        ([of("product "), of("flash_forward")], predicted)
    };
    let ([products, attention], none_s) = step("none");
    let ([mlp, mlp_attention], mlp_s) = step("mlp");
    let ([block, block_attention], block_s) = step("block");
    let (tokens, c) = (256, 64);
    assert_eq!([mlp - products, mlp_attention - attention], [tokens * 3 * 8 * c * c, 0]);
    // attention is computed twice in three of four blocks
    assert_eq!([block - products, 4 * block_attention], [tokens * 3 * 16 * c * c, 7 * attention]);
    assert!(none_s < mlp_s && mlp_s < block_s, "{none_s} {mlp_s} {block_s}");
}

#[test]
fn every_choice_writes_the_same_bytes_under_the_same_id() {
    for more in ["", "--set compute.precision=bf16 --set compute.attention=naive --set batch.world_size=2"] {
        let recipes = Recipes::with(RECIPE);
        let files = ["train.csv", "val.csv", "samples.txt"];
        let states = ["model.safetensors", "optimizer.safetensors"];
        let of = |value: &str| {
            let run = printed(
                recipes.dir(),
                &format!("recipe.toml --runs-dir {value} --set compute.recompute={value} {more}"),
            );
            let run = recipes.path(run.trim());
            let read = |name: &str| std::fs::read(run.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let log = crate::log_support::deterministic(&String::from_utf8(read(files[0])).expect("text"));
            let mut all = vec![log.into_bytes(), read(files[1]), read(files[2])];
            for step in [2, 4] {
                all.extend(states.map(|name| read(&format!("checkpoints/step-0000000{step}/{name}"))));
            }
            (run.file_name().expect("a name").to_owned(), all)
        };
        let kept = of("none");
        assert!(kept.1.iter().all(|bytes| bytes.len() > 20));
        for value in &VALUES[1..] {
            assert!(of(value) == kept, "{value} {more}");
        }
    }
}

#[test]
fn a_run_goes_on_under_another_choice() {
    let recipes = Recipes::with(RECIPE);
    let last = "checkpoints/step-00000004";
    let whole = recipes.path(printed(recipes.dir(), "recipe.toml --runs-dir whole").trim());
    // dies in its fourth step, so that it goes on from a checkpoint after the second
    let arguments =
        "recipe.toml --runs-dir part --set compute.recompute=mlp --set checkpoint.background=false";
    let died = runner(recipes.dir()).args(arguments.split(' ')).env("RUNNER_FAULT", "csv.mid_row:4").output();
    assert!(!died.expect("it starts").status.success());
    let part = recipes.path("part").join(whole.file_name().expect("a name"));
    assert!(part.join("checkpoints/step-00000002").is_dir() && !part.join(last).is_dir());
    printed(recipes.dir(), &format!("--resume {} --set compute.recompute=block", part.display()));
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let [a, b] =
            [&whole, &part].map(|run| std::fs::read(run.join(last).join(name)).expect("a checkpoint"));
        assert!(a == b, "{name}");
    }
}

#[test]
fn the_reference_has_no_use_for_it() {
    let recipes = Recipes::with(RECIPE);
    let reference = "--set compute.engine=dfdx --set compute.attention=naive --set compute.recompute=mlp";
    let (code, message) = refused(recipes.dir(), &format!("recipe.toml {reference}"));
    assert_eq!(code, Some(2));
    assert!(
        message.contains("`compute.recompute` has no effect with compute.engine = \"dfdx\""),
        "{message}"
    );
}

fn machine(bytes: usize) -> Hardware {
    Hardware { threads: 2, total_memory: bytes, free_memory: bytes, ranks: 1, cuda: None }
}

fn derived(recipe: &Recipe, machine: &Hardware) -> Plan {
    let data = DataSize { train_tokens: 10_000, train_rows: 300, val_rows: 20, ..DataSize::default() };
    Plan::derive(recipe, machine, data, None).expect("a plan")
}

#[test]
fn auto_takes_the_first_that_fits() {
    let mut recipe = Recipes::with(RECIPE).good(&set(&["compute.recompute=auto"])).recipe;
    recipe.batch.micro_batch = MicroBatch::Rows(8);
    let options = derived(&recipe, &machine(1 << 40)).recompute_options();
    let bytes = [0, 1, 2].map(|i: usize| options[i].total_bytes);
    for (free, chosen) in [
        (bytes[0], Recompute::None),
        (bytes[0] - 1, Recompute::Mlp),
        (bytes[1], Recompute::Mlp),
        (bytes[1] - 1, Recompute::Block),
        (bytes[2], Recompute::Block),
        (bytes[2] - 1, Recompute::Block),
    ] {
        let plan = derived(&recipe, &machine(free));
        assert_eq!(plan.memory.recompute(), chosen, "{free} of {bytes:?}");
        assert_eq!(plan.check_fit(&machine(free)).is_ok(), free >= bytes[2]);
    }
}

/// Rows are part of the result, so no choice has more of them than another; only where not even one fits, the choice
/// that makes it fit decides.
#[test]
fn an_automatic_micro_batch_is_the_same_under_every_choice_that_fits() {
    let auto = Recipes::with(RECIPE).good(&set(&["batch.micro_batch=auto", "batch.total_tokens=512"])).recipe;
    let of = |name, total| {
        let mut recipe = auto.clone();
        recipe.compute.recompute = name;
        derived(&recipe, &Hardware { free_memory: 1 << 40, ..machine(total) })
    };
    let names = [RecomputeName::None, RecomputeName::Mlp, RecomputeName::Block, RecomputeName::Auto];
    let floor = of(RecomputeName::Block, 1).bytes.total;
    let mut seen = [0; 3];
    for total in (floor..2 * floor).step_by(floor / 1500) {
        let limit = machine(total).memory_for_auto();
        let plans = names.map(|name| of(name, total));
        let rows = plans[3].batch.micro_batch;
        let fits = |plan: &Plan| plan.bytes.total <= limit;
        let Some(first) = plans[..3].iter().position(fits) else {
            assert!(plans.iter().all(|plan| plan.batch.micro_batch == 1), "{total}");
            continue;
        };
        seen[first] += 1;
        assert!(plans[first..].iter().all(|plan| plan.batch.micro_batch == rows), "{total}");
        // no larger one fits under the least that makes any fit
        assert_eq!(plans[first].largest_micro_batch(limit), Some(rows), "{total}");
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_refusal_names_the_choice_that_fits() {
    let mut recipe = Recipes::with(RECIPE).good(&set(&[])).recipe;
    recipe.batch.micro_batch = MicroBatch::Rows(8);
    let bytes = |rows, recompute| {
        let mut recipe = recipe.clone();
        (recipe.batch.micro_batch, recipe.compute.recompute) = (MicroBatch::Rows(rows), recompute);
        derived(&recipe, &machine(1 << 40)).bytes.total
    };
    let help = |free: usize| {
        let machine = machine(free);
        derived(&recipe, &machine).check_fit(&machine).expect_err("too little").help
    };
    let (eight, one) = (bytes(8, RecomputeName::None), bytes(1, RecomputeName::None));
    assert_eq!(
        help(eight - 1),
        "the largest micro_batch that fits is 4, or compute.recompute = \"mlp\" makes this one fit"
    );
    assert!(one < bytes(8, RecomputeName::Block));
    assert_eq!(help(one), "the largest micro_batch that fits is 1");
    assert_eq!(help(one - 1), "compute.recompute = \"mlp\" with a micro_batch of 1 fits");
    let least = bytes(1, RecomputeName::Block);
    assert_eq!(help(least), "compute.recompute = \"block\" with a micro_batch of 1 fits");
    assert_eq!(help(least - 1), "not even a micro_batch of 1 fits: choose a smaller model or block_size");
}
