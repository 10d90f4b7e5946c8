//! Laws of plans: their bytes are what is allocated, `"auto"` is the largest that fits, and no recipe breaks them.

use crate::recipe_support;

use proptest::prelude::*;
use recipe_support::mutate::{mutated, mutation};
use recipe_support::{REQUIRED, Recipes, printed, runner, set};
use runner::engine::memory::{MemoryConfig, MemoryPlan, Mode, Target};
use runner::model::ParamLayout;
use runner::plan::hardware::Hardware;
use runner::plan::lints::{Subject, lints};
use runner::plan::predict::{Rates, UpdateTimes, probe, rates};
use runner::plan::{Begun, DataSize, Plan};
use runner::recipe::keys::KEYS;
use runner::recipe::{EvalConfig, LintCode, OptimizerName, Overrides, Recipe, load, silenced_by};
use std::path::Path;

const GIB: usize = 1 << 30;

fn hardware(free_memory: usize) -> Hardware {
    Hardware { threads: 3, total_memory: free_memory, free_memory, ranks: 1, cuda: None }
}

fn data() -> DataSize {
    DataSize { train_tokens: 10_000, train_rows: 300, val_rows: 20, ..DataSize::default() }
}

/// Every shipped recipe, made small: its heads, padding and settings, with little of everything else.
fn shrunk() -> Vec<(String, Recipe)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let mut out = Vec::new();
    for dir in [dir.clone(), dir.join("base")] {
        for entry in std::fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let needed =
                if dir.ends_with("base") { vec!["data.train=x", "schedule.max_steps=3"] } else { vec![] };
            let mut recipe = load(&path, &set(&needed)).unwrap_or_else(|error| panic!("{error}")).recipe;
            recipe.model.n_layer = recipe.model.n_layer.min(3);
            recipe.model.n_embd = recipe.model.n_head * 8;
            recipe.model.block_size = recipe.model.block_size.min(24);
            recipe.model.vocab_size = 500;
            recipe.batch.total_tokens = recipe.model.block_size * 4;
            recipe.batch.micro_batch = runner::recipe::MicroBatch::Rows(2);
            recipe.compute.threads = 3;
            out.push((path.display().to_string(), recipe));
        }
    }
    out
}

#[test]
fn the_bytes_of_a_plan_are_those_that_are_allocated() {
    use runner::recipe::{Attention, Precision};
    let shipped = shrunk();
    assert!(shipped.len() >= 22, "{}", shipped.len());
    for (name, mut recipe) in shipped {
        for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
            for attention in [Attention::Flash, Attention::Naive] {
                recipe.compute.precision = precision;
                recipe.compute.attention = attention;
                let plan = Plan::new(&recipe, &hardware(GIB), data(), None).expect("small");
                let engine = runner::engine::cpu::engine(plan.memory_plan()).expect("small");
                let allocated = engine.inner().backend().allocated_bytes();
                assert_eq!(allocated, plan.bytes.total, "{name} in {precision:?} with {attention:?}");
                assert_eq!(allocated, plan.bytes.kinds.iter().map(|(_, bytes)| bytes).sum::<usize>());
                let infer = MemoryPlan::new(MemoryConfig { mode: Mode::Infer, ..plan.memory });
                let (bytes, engine) =
                    (infer.total_bytes(), runner::engine::cpu::engine(infer).expect("small"));
                assert_eq!(engine.inner().backend().allocated_bytes(), bytes, "{name}, forward passes only");
            }
        }
    }
}

/// A small recipe with `"auto"`.
fn auto(rows: usize, block_size: usize, n_layer: usize, attention: &str) -> Recipe {
    let arguments = [
        format!("batch.total_tokens={}", rows * block_size),
        format!(
            "model={{ n_layer = {n_layer}, n_head = 2, n_embd = 32, block_size = {block_size}, vocab_size = 300 }}"
        ),
        format!("compute.attention={attention}"),
    ];
    let overrides = Overrides { set: arguments.into(), ..Overrides::default() };
    Recipes::with(REQUIRED).good(&overrides).recipe
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn auto_is_the_largest_power_of_two_that_fits(
        rows in 1..200_usize,
        block_size in 1..80_usize,
        n_layer in 1..4_usize,
        attention in prop::sample::select(vec!["flash", "naive"]),
        memory in 100_000..80_000_000_usize,
    ) {
        let recipe = auto(rows, block_size, n_layer, attention);
        // free memory does not enter the choice: it would differ from start to start
        let machine = Hardware { threads: 2, total_memory: memory, free_memory: usize::MAX, ranks: 1, cuda: None };
        let plan = Plan::new(&recipe, &machine, data(), None).expect("enough is free");
        let bytes = |micro_batch| MemoryPlan::new(MemoryConfig { micro_batch, ..plan.memory }).total_bytes();
        prop_assert!(plan.batch.micro_batch.is_power_of_two() && rows.is_multiple_of(plan.batch.micro_batch));
        let limit = machine.memory_for_auto();
        prop_assert!(plan.batch.micro_batch == 1 || bytes(plan.batch.micro_batch) <= limit);
        let next = 2 * plan.batch.micro_batch;
        prop_assert!(!rows.is_multiple_of(next) || bytes(next) > limit, "{} would fit", next);
        // whatever was chosen, the mathematics are those of any other choice
        let begun = Begun { micro_batch: 1, keeps_outputs: None };
        let other = Plan::new(&recipe, &machine, data(), Some(begun)).expect("enough is free");
        prop_assert_eq!(
            (plan.batch.rows_per_step, plan.tokens, plan.flops_per_token, plan.eval_rows),
            (other.batch.rows_per_step, other.tokens, other.flops_per_token, other.eval_rows)
        );
        prop_assert_eq!(plan.batch.micro_batch * plan.batch.micro_steps, rows);
    }

    #[test]
    fn a_refusal_names_what_fits(rows in 1..300_usize, n_layer in 1..4_usize, share in 0.1..1.0_f64) {
        let mut recipe = auto(rows, 16, n_layer, "flash");
        recipe.batch.micro_batch = runner::recipe::MicroBatch::Rows(rows);
        let needed = Plan::new(&recipe, &hardware(GIB), data(), None).expect("fits").bytes.total;
        prop_assert!(Plan::new(&recipe, &hardware(needed), data(), None).is_ok(), "exactly enough is enough");
        let small = hardware(((needed as f64 * share) as usize).min(needed - 1));
        let error = Plan::new(&recipe, &small, data(), None).expect_err("too little");
        prop_assert!(error.message.contains("needs") && error.message.contains("activations"), "{}", error);
        match error.help.strip_prefix("the largest micro_batch that fits is ") {
            Some(fits) => {
                // what else would fit stands behind it
                let fits: usize = fits.split(',').next().expect("a number").parse().expect("a number");
                recipe.batch.micro_batch = runner::recipe::MicroBatch::Rows(fits);
                prop_assert!(Plan::new(&recipe, &small, data(), None).is_ok());
                let next = (fits + 1..=rows).find(|next| rows.is_multiple_of(*next)).expect("all of them");
                recipe.batch.micro_batch = runner::recipe::MicroBatch::Rows(next);
                prop_assert!(Plan::new(&recipe, &small, data(), None).is_err());
            }
            None => {
                recipe.batch.micro_batch = runner::recipe::MicroBatch::Rows(1);
                prop_assert!(Plan::new(&recipe, &small, data(), None).is_err());
            }
        }
    }
}

#[test]
fn micro_batches_do_not_change_the_mathematics() {
    let recipes = Recipes::with(
        "[model]\nn_layer = 1\nn_head = 2\nn_embd = 16\nblock_size = 16\n[data]\ntrain = \"builtin:lipsum:words=2000\"\n\
         [batch]\ntotal_tokens = 128\n[schedule]\nmax_steps = 3\n",
    );
    let losses = |micro_batch: &str| -> Vec<f64> {
        let run = printed(
            recipes.dir(),
            &format!("recipe.toml --set batch.micro_batch={micro_batch} --runs-dir {micro_batch}"),
        );
        let csv = std::fs::read_to_string(recipes.path(run.trim()).join("train.csv")).expect("a log");
        csv.lines()
            .skip(1)
            .map(|line| line.split(',').nth(2).and_then(|loss| loss.parse().ok()).expect("a loss"))
            .collect()
    };
    let auto = losses("auto");
    assert_eq!(auto.len(), 3);
    for rows in ["1", "2", "8"] {
        let other = losses(rows);
        assert!(auto.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-4), "{auto:?} {other:?}");
    }
}

#[test]
fn nearly_all_memory_is_worth_a_remark() {
    let recipe = auto(8, 16, 2, "flash");
    let plan = Plan::new(&recipe, &hardware(GIB), data(), None).expect("small");
    let remark = |free: usize| {
        let hardware = &hardware(free);
        let subject = Subject { recipe: &recipe, plan: &plan, hardware, shards: None, prediction: None };
        lints(&subject).into_iter().find(|lint| lint.code == LintCode::TightMemory).map(|lint| lint.help)
    };
    assert_eq!(remark(2 * plan.bytes.total), None);
    let tight = remark(plan.bytes.total * 20 / 19).expect("more than 90 %");
    assert!(tight.contains("batch.micro_batch = 4"), "{tight}");
    assert_eq!(remark(plan.bytes.total - 1), None, "that is refused");
}

#[test]
fn a_prediction_counts_muon_s_products_at_any_width() {
    let plan = |n_embd: usize, ns_steps: u32, ranks: usize| {
        let mut recipe = auto(8, 16, 2, "flash");
        recipe.optimizer.kind = OptimizerName::Muon;
        recipe.optimizer.muon_ns_steps = ns_steps;
        (recipe.model.n_embd, recipe.batch.world_size) = (n_embd, ranks);
        Plan::derive(&recipe, &hardware(GIB), data(), None).expect("it need not fit")
    };
    let of_products =
        Rates { seconds_per_flop: 0.0, seconds_per_parameter: 0.0, seconds_per_update_flop: 1e-9 };
    let seconds = |plan: &Plan| plan.predict(&of_products, &EvalConfig::default()).step_s;
    for (n_embd, ns_steps) in [(64, 5), (64, 7), (4096, 5)] {
        let plan = plan(n_embd, ns_steps, 1);
        let flops = 56.0 * (n_embd as f64).powi(3) * plan.memory.dims.n_layer as f64 * f64::from(ns_steps);
        assert!((seconds(&plan) / (flops * 1e-9) - 1.0).abs() < 1e-9, "{n_embd} {ns_steps}");
    }
    // a rank has whole matrices, and the step waits for the one that has the most
    let shared = seconds(&plan(64, 5, 2)) / seconds(&plan(64, 5, 1));
    assert!((0.5..0.8).contains(&shared), "{shared}");
    // what was timed is told apart again, at the probe's own width
    let small = probe(&plan(4096, 5, 1).memory);
    let flops = 56.0 * (small.dims.n_embd as f64).powi(3) * small.dims.n_layer as f64;
    let found = rates(&small, 1.0, UpdateTimes::Iterated([5.0 + flops * 1e-9, 5.0 + 3.0 * flops * 1e-9]));
    assert!((found.seconds_per_update_flop / 1e-9 - 1.0).abs() < 1e-6, "{found:?}");
    let elements = ParamLayout::new(&small.dims).len as f64;
    assert!((found.seconds_per_parameter * elements / 5.0 - 1.0).abs() < 1e-6, "{found:?}");
    // and what a run of such steps took is predicted of another one
    let wide = plan(4096, 5, 1);
    let again = wide.predict(&wide.rates_of_step(3.0), &EvalConfig::default()).step_s;
    assert!((again - 3.0).abs() < 1e-9, "{again}");
}

#[test]
fn a_prediction_scales_with_the_work() {
    let recipe = auto(8, 16, 2, "flash");
    let plan = Plan::new(&recipe, &hardware(GIB), data(), None).expect("small");
    let rates = Rates { seconds_per_flop: 1e-9, seconds_per_parameter: 0.0, seconds_per_update_flop: 0.0 };
    let mut eval = recipe.eval.clone();
    eval.every = 0;
    let prediction = plan.predict(&rates, &eval);
    assert!((prediction.total_s / (plan.flops * 1e-9) - 1.0).abs() < 1e-12);
    assert!((prediction.tokens_per_s * plan.flops_per_token as f64 * 1e-9 - 1.0).abs() < 1e-12);
    // 100 steps, every 30: before steps 0, 30, 60 and 90, and after the last
    eval.every = 30;
    let evaluations = plan.predict(&rates, &eval).evaluation_s;
    let one = (plan.eval_rows * 16) as f64 * plan.flops_per_token as f64 * 1e-9 / 3.0;
    assert!((evaluations / one - 5.0).abs() < 1e-9, "{}", evaluations / one);
}

/// Everything that `explain` and `plan` compute, short of printing it.
fn look_at(path: &Path, machine: &Hardware, size: DataSize) -> Result<(), String> {
    let Ok(resolved) = load(path, &Overrides::default()) else { return Ok(()) };
    let here = path.parent().expect("a directory");
    for (key, settings) in resolved.origins() {
        for setting in settings {
            let text = setting.value_seen_from(here);
            if text.contains('\n') {
                return Err(format!("{key} takes two lines: {text:?}"));
            }
            let _ = setting.json_seen_from(Path::new("/elsewhere"));
        }
        let _ = silenced_by(&resolved.recipe, key);
    }
    let Ok(plan) = Plan::derive(&resolved.recipe, machine, size, None) else { return Ok(()) };
    let [l, c] = [plan.memory.dims.n_layer, plan.memory.dims.n_embd].map(|size| size as f64);
    if (plan.bytes.total as f64) < 16.0 * 12.0 * l * c * c {
        return Err(format!("{} bytes are too few for the matrices alone", plan.bytes.total));
    }
    for shards in [None, Some(&Default::default())] {
        let recipe = &resolved.recipe;
        let subject = Subject { recipe, plan: &plan, hardware: machine, shards, prediction: None };
        if let Some(lint) =
            lints(&subject).iter().find(|lint| lint.message.is_empty() || lint.help.is_empty())
        {
            return Err(format!("{lint:?}"));
        }
    }
    // thousands of workers take more, each having scratch of its own
    let target = Target::Cpu { threads: plan.threads.min(64) };
    let small = probe(&MemoryConfig { target, ..plan.memory });
    let prediction = plan.predict(&rates(&small, 1.0, UpdateTimes::Plain(1.0)), &resolved.recipe.eval);
    if prediction.total_s.is_nan() || MemoryPlan::new(small).total_bytes() > GIB {
        return Err(format!("{prediction:?} from {small:?}"));
    }
    let _ = plan.check_fit(machine);
    Ok(())
}

/// A recipe that has a value at one of its ends for some keys.
fn at_the_ends() -> impl Strategy<Value = String> {
    use runner::recipe::keys::Kind;
    let ends: Vec<(&'static str, i64)> = KEYS
        .iter()
        .filter_map(|key| match key.kind {
            Kind::Integer { min, max } => Some([(key.path, min), (key.path, max), (key.path, max / 2 + 1)]),
            Kind::MicroBatch { max } => Some([(key.path, 1), (key.path, max), (key.path, max / 2)]),
            _ => None,
        })
        .flatten()
        .collect();
    let attention = prop::sample::select(vec!["flash", "naive"]);
    (prop::collection::btree_map(0..ends.len(), Just(()), 0..6), attention).prop_map(move |(chosen, attention)| {
        let mut text = format!("data.train = \"x\"\ndata.val = \"y\"\nsample.every = 1\ncompute.attention = \"{attention}\"\n");
        let mut keys = vec!["sample.every"];
        for (key, value) in chosen.keys().map(|index| ends[*index]) {
            if !keys.contains(&key) {
                keys.push(key);
                text.push_str(&format!("{key} = {value}\n"));
            }
        }
        // ends are powers of two: so these, where they are not among the chosen, divide them or are multiples
        for (key, value) in [("schedule.max_steps", 1_i64 << 20), ("model.n_head", 1), ("batch.total_tokens", 1 << 36)] {
            if !keys.contains(&key) {
                text.push_str(&format!("{key} = {value}\n"));
            }
        }
        text
    })
}

proptest! {
    // 3000 + 3000 inputs
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_recipe_breaks_plan_or_explain(
        mutations in prop::collection::vec(mutation(), 0..6),
        threads in 1..4096_usize,
        memory in prop_oneof![Just(usize::MAX), 0..usize::MAX],
        rows in prop_oneof![Just(0), 1..u64::MAX],
    ) {
        let recipes = Recipes::new();
        recipes.write("recipe.toml", mutated(include_str!("../../recipes/quickstart.toml"), mutations));
        let machine = Hardware { threads, total_memory: memory, free_memory: memory, ranks: 1, cuda: None };
        let size = DataSize { train_tokens: rows, train_rows: rows, val_rows: rows, ..DataSize::default() };
        look_at(&recipes.path("recipe.toml"), &machine, size).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn the_ends_of_ranges_break_neither(text in at_the_ends()) {
        let recipes = Recipes::with(&text);
        look_at(&recipes.path("recipe.toml"), &hardware(usize::MAX), data()).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    // 40 inputs, each through the program twice
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_program_explains_or_refuses(mutations in prop::collection::vec(mutation(), 1..4)) {
        let recipes = Recipes::new();
        let text = "[model]\nn_layer = 1\nn_embd = 16\nn_head = 1\nblock_size = 8\n[batch]\ntotal_tokens = 64\n[data]\n\
                    train = \"missing.bin\"\n[schedule]\nmax_steps = 3\n";
        recipes.write("recipe.toml", mutated(text, mutations));
        for command in ["explain", "plan"] {
            let output = runner(recipes.dir()).args([command, "recipe.toml"]).output().expect("it runs");
            let errors = String::from_utf8_lossy(&output.stderr);
            prop_assert!(matches!(output.status.code(), Some(0 | 2)), "{:?} {}", output.status, errors);
            prop_assert_eq!(output.stdout.is_empty(), output.status.code() == Some(2), "{}", errors);
        }
    }
}
