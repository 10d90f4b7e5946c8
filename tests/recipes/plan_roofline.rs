//! `runner plan --roofline`: the modelled step on a CUDA device, on a machine without one.

use crate::recipe_support;

use recipe_support::{Recipes, printed, refused};
use serde_json::Value as Json;

/// 8 rows of 64 tokens in two passes, on the CPU.
const RECIPE: &str = "\
[model]
n_layer = 2
n_head = 2
n_embd = 128
block_size = 64
vocab_size = 1000
vocab_multiple = 128
[data]
train = \"builtin:lipsum:words=3000\"
val = \"builtin:lipsum:seed=2,words=1000\"
[batch]
total_tokens = 512
micro_batch = 4
[schedule]
max_steps = 20
warmup_steps = 2
[compute]
device = \"cpu\"
precision = \"bf16\"
";

fn plan(recipes: &Recipes, arguments: &str) -> Json {
    let text = printed(recipes.dir(), &format!("plan recipe.toml --format json {arguments}"));
    serde_json::from_str(&text).expect("JSON")
}

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_kernel_of_a_step_has_launches_bytes_operations_and_time() {
    let recipes = Recipes::with(RECIPE);
    let plan = plan(&recipes, "--roofline h100");
    let roofline = &plan["roofline"];
    assert_eq!((&roofline["device"], &roofline["kind"]), (&"H100 SXM".into(), &"model".into()));
    assert_eq!(roofline["micro_steps"], 2);
    let kernels = roofline["kernels"].as_array().expect("a list");
    let named = |name: &str| kernels.iter().find(|kernel| kernel["name"] == name).expect(name);
    // two layers, two passes
    assert_eq!(named("flash_forward")["launches"], 4);
    assert_eq!(named("adamw")["launches"], 2);
    // q, k and v in and the output out, 2 bytes each, and an fp32 number for each of two heads
    assert_eq!(named("flash_forward")["bytes"], 4 * 256 * (4 * 128 * 2 + 2 * 4));
    // per pass and layer: two products over the lower triangle
    assert_eq!(named("flash_forward")["flops"], 4 * (4 * 2 * (64 * 65 / 2)) * (2 * 2 * 64));
    // six operations for each token and weight: of the layers, and of the head with its padding
    let products =
        kernels.iter().filter(|kernel| kernel["name"].as_str().expect("text").starts_with("product "));
    let flops: f64 = products.map(|kernel| number(&kernel["flops"])).sum();
    assert_eq!(flops, (6 * 512 * (2 * 12 * 128 * 128 + 1024 * 128)) as f64);
    let total: f64 = kernels.iter().map(|kernel| number(&kernel["ms"])).sum();
    let step = number(&roofline["step_ms"]);
    assert!((total / step - 1.0).abs() < 1e-9, "{total} {step}");
    let parts = 2.0 * number(&roofline["micro_step_ms"]) + number(&roofline["update_ms"]);
    assert!((parts / step - 1.0).abs() < 1e-9);
    assert!((number(&roofline["tokens_per_s"]) / (512.0 / step * 1e3) - 1.0).abs() < 1e-9);
    let launches: f64 = kernels.iter().map(|kernel| number(&kernel["launches"])).sum();
    assert_eq!(launches, number(&roofline["launches"]));
}

#[test]
fn a_faster_device_takes_less_time_and_ranks_share_the_rows() {
    let recipes = Recipes::with(RECIPE);
    let step = |arguments: &str| number(&plan(&recipes, arguments)["roofline"]["step_ms"]);
    let [a100, h100, h200] = ["a100", "h100", "h200"].map(|device| step(&format!("--roofline {device}")));
    assert!(a100 > h100 && h100 > h200, "{a100} {h100} {h200}");
    let two =
        plan(&recipes, "--roofline h100 --set batch.world_size=2 --set distributed.shard_optimizer=true");
    assert_eq!(two["roofline"]["micro_steps"], 1);
    assert_eq!(two["roofline"]["without_sums"], true);
    let sums = two["roofline"]["kernels"].as_array().expect("a list").iter();
    let sums: Vec<_> = sums.filter(|kernel| kernel["bound"] == "link").collect();
    assert!(sums.len() == 3 && sums.iter().all(|kernel| kernel["ms"] == 0.0), "{sums:?}");
}

#[test]
fn the_plan_is_what_it_was_and_people_read_that_it_is_a_model() {
    let recipes = Recipes::with(RECIPE);
    assert_eq!(plan(&recipes, "").get("roofline"), None);
    let text = printed(recipes.dir(), "plan recipe.toml --roofline rtx4090");
    assert!(text.contains("GeForce RTX 4090: a model at assumed rates, not a measurement"), "{text}");
    assert!(text.contains("kernel") && text.contains("flash_backward"), "{text}");
    let (before, _) = text.split_once("\nroofline").expect("a section");
    assert!(!printed(recipes.dir(), "plan recipe.toml").contains("roofline"));
    assert!(before.contains("predicted"), "{text}");
}

#[test]
fn the_modelled_device_need_not_be_here() {
    let recipes = Recipes::with(RECIPE);
    let step = |plan: &Json| number(&plan["roofline"]["step_ms"]);
    let plain = plan(&recipes, "--roofline h100");
    // the CPU keeps the residual stream in fp32: such a run is refused here, and modelled all the same
    let low = plan(&recipes, "--roofline h100 --set compute.residual=bf16");
    assert!(step(&low) < step(&plain), "{} {}", step(&low), step(&plain));
    assert_eq!(plain["refusal"], Json::Null);
    assert!(
        low["refusal"].as_str().is_some_and(|why| why.contains("on CUDA devices only")),
        "{}",
        low["refusal"]
    );
    // no machine has so many devices
    let cuda = plan(&recipes, "--roofline h100 --set compute.device=cuda:63");
    assert_eq!(step(&cuda), step(&plain));
    assert!(cuda["refusal"].is_string());
    // without a model nothing has changed, and a device cannot train what it has no kernels for
    for arguments in [
        "--set compute.residual=bf16",
        "--set compute.device=cuda:63",
        "--roofline h100 --set compute.residual=bf16 --set compute.precision=fp16",
    ] {
        let (code, message) = refused(recipes.dir(), &format!("plan recipe.toml {arguments}"));
        assert_eq!(code, Some(2), "{arguments}: {message}");
    }
}

/// Eight layers and so many rows per step, of which the device decides how many go through at once.
fn deep(rows: usize, micro_batch: &str) -> String {
    let tokens = 64 * rows;
    format!("--set model.n_layer=8 --set batch.total_tokens={tokens} --set batch.micro_batch={micro_batch}")
}

#[test]
fn what_is_left_open_is_chosen_by_the_modelled_device() {
    let recipes = Recipes::with(RECIPE);
    let auto = deep(1 << 18, "auto");
    let [small, large] = ["rtx4090", "h200"].map(|device| {
        let plan = plan(&recipes, &format!("--roofline {device} {auto}"));
        let roofline = &plan["roofline"];
        let bytes = |name: &str| roofline[name].as_u64().expect("a number");
        assert!(roofline["fits"] == true && bytes("total_bytes") <= bytes("device_bytes"), "{roofline:#}");
        assert_eq!(bytes("micro_batch") * bytes("micro_steps"), 1 << 18);
        bytes("micro_batch")
    });
    assert!(2 * small <= large, "{small} {large}");
}

#[test]
fn a_step_that_the_modelled_device_cannot_hold_is_said() {
    let recipes = Recipes::with(RECIPE);
    let rows = deep(1 << 15, "32768");
    let fits =
        |device: &str| plan(&recipes, &format!("--roofline {device} {rows}"))["roofline"]["fits"].clone();
    assert_eq!((fits("rtx4090"), fits("h200")), (false.into(), true.into()));
    let text = |device: &str| printed(recipes.dir(), &format!("plan recipe.toml --roofline {device} {rows}"));
    let line = "for a micro_batch of 32768, recompute none";
    assert!(text("rtx4090").contains(&format!("{line}: the step does not fit on this device\n")));
    assert!(text("h200").contains(&format!("{line}\n")));
}

#[test]
fn what_the_cuda_engine_cannot_train_is_refused() {
    let recipes = Recipes::with(RECIPE);
    let reference = "--set compute.engine=dfdx --set compute.precision=fp32";
    let (code, message) = refused(recipes.dir(), &format!("plan recipe.toml --roofline h100 {reference}"));
    assert_eq!(code, Some(2));
    assert!(message.contains("compute.engine = \"fused\""), "{message}");
    let wide = "--set model.n_head=1 --set model.n_embd=160";
    let (code, message) = refused(recipes.dir(), &format!("plan recipe.toml --roofline h100 {wide}"));
    assert_eq!(code, Some(2));
    assert!(message.contains("heads of at most 128, the model's have 160"), "{message}");
    let (code, _) = refused(recipes.dir(), "plan recipe.toml --roofline abacus");
    assert_eq!(code, Some(2));
}
