//! The runs of GPT-3 as they were published: Brown et al., 2020, table 2.1 and appendix B; and how a batch grows under
//! Megatron-LM, whose example for GPT-3 175B says what 4 to 12 billion tokens mean.

use crate::recipe_support;

use recipe_support::{Recipes, printed, set};
use runner::recipe::{Ramp, Recipe, ScheduleKind, StepSizes, load};
use runner::train::schedule::Schedule;
use std::path::{Path, PathBuf};

/// A row of table 2.1: the recipe, layers, heads, width, tokens of a batch, learning rate; and over how many tokens the
/// batch grows.
type Row = (&'static str, usize, usize, usize, usize, f64, u64);

// 0.5M, 1M and 2M are powers of two here. Two rows of the table do not add up: XL's 24 heads of 128 are no width of
// 2048, and 13B's 40 heads of 128 no width of 5140.
const TABLE: [Row; 8] = [
    ("small", 12, 12, 768, 524_288, 6.0e-4, 4_000_000_000),
    ("medium", 24, 16, 1024, 524_288, 3.0e-4, 4_000_000_000),
    ("large", 24, 16, 1536, 524_288, 2.5e-4, 4_000_000_000),
    ("xl", 24, 16, 2048, 1_048_576, 2.0e-4, 6_000_000_000),
    ("2.7b", 32, 32, 2560, 1_048_576, 1.6e-4, 6_000_000_000),
    ("6.7b", 32, 32, 4096, 2_097_152, 1.2e-4, 8_000_000_000),
    ("13b", 40, 40, 5120, 2_097_152, 1.0e-4, 8_000_000_000),
    ("175b", 96, 96, 12288, 3_276_800, 0.6e-4, 12_000_000_000),
];

fn recipes_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes")
}

fn published(name: &str) -> Recipe {
    let path = recipes_dir().join("gpt3").join(format!("{name}.toml"));
    load(&path, &set(&["data.train=builtin:lipsum"])).unwrap_or_else(|problems| panic!("{problems}")).recipe
}

#[test]
fn every_number_is_the_published_one() {
    for (name, layers, heads, width, batch, lr, ramp) in TABLE {
        let recipe = published(name);
        let model = &recipe.model;
        assert_eq!((model.n_layer, model.n_head, model.n_embd), (layers, heads, width), "{name}");
        assert_eq!((model.block_size, model.vocab_size), (2048, 50257), "{name}");
        assert_eq!((recipe.batch.total_tokens, recipe.optimizer.lr), (batch, lr), "{name}");
        // "from a small value (32k tokens) to the full value over the first 4-12 billion tokens"
        let growth = Ramp { start: 32_768, increment: 32_768, tokens: ramp };
        assert_eq!(recipe.batch.ramp(), Some(growth), "{name}");
        let optimizer = &recipe.optimizer;
        assert_eq!((optimizer.betas, optimizer.eps), ([0.9, 0.95], 1e-8), "{name}");
        assert_eq!((optimizer.weight_decay, optimizer.clip_norm), (0.1, 1.0), "{name}");
        let schedule = &recipe.schedule;
        assert_eq!((schedule.kind, schedule.min_lr_ratio), (ScheduleKind::Cosine, Some(0.1)), "{name}");
        assert_eq!(
            (schedule.max_steps, schedule.warmup_steps, schedule.decay_steps),
            (None, None, None),
            "{name}"
        );
        let tokens = (schedule.max_tokens, schedule.warmup_tokens, schedule.decay_tokens);
        assert_eq!(tokens, (Some(300_000_000_000), Some(375_000_000), Some(260_000_000_000)), "{name}");
        assert_eq!(recipe.name, format!("gpt3-{name}-300b"));
    }
    // every recipe of the directory is one of them
    let files = std::fs::read_dir(recipes_dir().join("gpt3")).expect("a directory").count();
    assert_eq!(files, TABLE.len() + 1);
}

#[test]
fn batch_and_rate_follow_the_tokens() {
    for (name, _, _, _, batch, peak, ramp) in TABLE {
        let recipe = published(name);
        let sizes = recipe.step_sizes();
        let steps = recipe.steps();
        // the last step that is begun ends before 300 billion tokens, and another would not
        assert!(
            sizes.tokens_before(steps) <= 300_000_000_000 && sizes.tokens_before(steps + 1) > 300_000_000_000
        );
        // the batch is full once the ramp's tokens have been read, and not before
        let full = sizes.steps_for(ramp);
        assert_eq!((sizes.tokens(0), sizes.tokens(full)), (32_768, batch as u64), "{name}");
        assert!(sizes.tokens(full - 1) < batch as u64, "{name}");
        assert_eq!(sizes.stages().len(), batch / 32_768, "{name}");
        // nothing but the tokens decides the rate
        let schedule = Schedule::new(&recipe.schedule, recipe.optimizer.lr, &sizes);
        let at = |tokens: u64| schedule.lr(sizes.steps_for(tokens));
        let close = |lr: f64, expected: f64| {
            assert!((lr / expected - 1.0).abs() < 1e-3, "{name}: {lr} is not {expected}");
        };
        assert_eq!(schedule.lr(sizes.steps_for(375_000_000) - 1), peak, "{name}");
        close(schedule.lr(0), peak * 32_768.0 / 375e6);
        close(schedule.lr(99), peak * 100.0 * 32_768.0 / 375e6);
        // half way between 0.375 and 260 billion
        close(at(130_187_500_000), 0.55 * peak);
        let way = std::f64::consts::PI * (200e9 - 375e6) / (260e9 - 375e6);
        close(at(200_000_000_000), peak * (0.1 + 0.45 * (1.0 + way.cos())));
        assert!(schedule.lr(sizes.steps_for(260_000_000_000) - 1) > 0.1 * peak, "{name}");
        for tokens in [260_000_000_000, 280_000_000_000, 299_990_000_000] {
            assert_eq!(at(tokens), 0.1 * peak, "{name}");
        }
    }
}

#[test]
fn a_batch_grows_as_under_megatron() {
    // --rampup-batch-size 16 16 5859375 with --global-batch-size 1536 and rows of 2048 tokens
    let recipe = Recipes::with(
        "[model]\nblock_size = 2048\n[data]\ntrain = \"builtin:lipsum\"\n[batch]\ntotal_tokens = 3_145_728\n\
         ramp_start = 32_768\nramp_increment = 32_768\nramp_tokens = 12e9\n[schedule]\nmax_tokens = 300e9\n",
    );
    let sizes: StepSizes = recipe.good(&set(&[])).recipe.step_sizes();
    let golden = include_str!("../golden/ramp.tsv").lines().filter(|line| !line.starts_with('#'));
    let golden: Vec<[u64; 3]> = golden
        .map(|line| {
            let numbers: Vec<u64> = line.split('\t').map(|field| field.parse().expect("a number")).collect();
            numbers.try_into().expect("three numbers")
        })
        .collect();
    let ours: Vec<[u64; 3]> =
        sizes.stages().iter().map(|stage| [stage.first_step, stage.first_row, stage.rows]).collect();
    assert_eq!(ours, golden);
    assert_eq!(golden.len(), 96);
}

#[test]
fn the_plan_shows_the_stages() {
    let text =
        printed(&recipes_dir(), "plan gpt3/small.toml --set data.train=builtin:lipsum --set data.val=[]");
    for line in [
        "ramp                  in 15 stages over 4,000,317,440 tokens, then the full batch",
        "from step 0: 32,768 tokens = ",
        "… 11 stages more",
        "from step 27,006: 524,288 tokens = ",
        "warm-up over 375,000,000 tokens = ",
        "the rate stays at its minimum after 260,000,000,000 tokens = ",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
}
