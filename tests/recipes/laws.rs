//! Laws over many recipes: what is written reads back, and nothing that is read makes the loader panic.

use crate::recipe_support;

use proptest::prelude::*;
use recipe_support::mutate::{mutated, mutation};
use recipe_support::{REQUIRED, Recipes};
use runner::data::TokenizerKind;
use runner::recipe::{
    Attention, BatchConfig, Branch, CheckpointConfig, ComputeConfig, DataConfig, Device, DistributedConfig,
    EngineKind, EvalConfig, InitFrom, LintCode, LintsConfig, LogConfig, MicroBatch, Missing, ModelConfig,
    MuonAdjust, MuonPrecision, OptimizerConfig, OptimizerName, Overrides, Precision, Recipe, RecomputeName,
    Residual, SampleConfig, ScheduleConfig, ScheduleKind, Sources, Validation, WatchdogAction,
    WatchdogConfig, to_toml,
};

/// A recipe with every key but the ones given here taken from the shipped quickstart.
const SEED_TEXT: &str = include_str!("../../recipes/quickstart.toml");

fn model() -> impl Strategy<Value = ModelConfig> {
    let branch = (prop::option::of(0..1_u64 << 40), any::<bool>()).prop_map(|(step, optimizer)| {
        InitFrom::Run(Branch { run: "/runs/x-01234567".into(), step, optimizer })
    });
    let weights = Just(InitFrom::Weights("/models/gpt2/model.safetensors".into()));
    let init = prop::option::of(prop_oneof![weights, branch]);
    let shape = (1..100_usize, 1..32_usize, 1..64_usize);
    (1..4096_usize, 1..16_777_216_usize, 1..1000_usize, shape, init, 0.0..1.0_f64).prop_map(
        |(block_size, vocab_size, vocab_multiple, (n_layer, n_head, head_size), init, dropout)| ModelConfig {
            init_from: init,
            block_size,
            vocab_size,
            vocab_multiple,
            n_layer,
            n_head,
            n_embd: n_head * head_size,
            dropout,
        },
    )
}

fn compute() -> impl Strategy<Value = ComputeConfig> {
    let device = prop_oneof![Just(Device::Auto), Just(Device::Cpu), (0..16_usize).prop_map(Device::Cuda)];
    let engine = prop_oneof![Just(EngineKind::Fused), Just(EngineKind::Dfdx)];
    let precision =
        prop::sample::select(vec![Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16]);
    let attention = prop_oneof![Just(Attention::Flash), Just(Attention::Naive)];
    let residual = prop_oneof![Just(Residual::Fp32), Just(Residual::Bf16)];
    let recompute = prop::sample::select(vec![
        RecomputeName::None,
        RecomputeName::Mlp,
        RecomputeName::Block,
        RecomputeName::Auto,
    ]);
    (device, engine, precision, attention, residual, recompute, 0..4096_usize).prop_map(
        |(device, engine, precision, attention, residual, recompute, threads)| ComputeConfig {
            device,
            engine,
            precision,
            attention,
            residual,
            recompute,
            threads,
        },
    )
}

fn schedule() -> impl Strategy<Value = ScheduleConfig> {
    let kind = prop::sample::select(vec![
        ScheduleKind::Cosine,
        ScheduleKind::Constant,
        ScheduleKind::Linear,
        ScheduleKind::Wsd,
    ]);
    let target = prop::option::of(prop_oneof![0.01..20.0, Just(1e-30), Just(3.28)]);
    (kind, 0..1_u64 << 20, 1..1_u64 << 20, 1..1_u64 << 20, 0.0..=1.0, target).prop_map(
        |(kind, warmup, decay, rest, ratio, stop_at_val_loss)| ScheduleConfig {
            kind,
            max_steps: Some(warmup + decay + rest),
            max_tokens: None,
            warmup_steps: (kind != ScheduleKind::Constant).then_some(warmup),
            warmup_tokens: None,
            min_lr_ratio: (kind != ScheduleKind::Constant).then_some(ratio),
            decay_steps: match kind {
                ScheduleKind::Wsd => Some(decay),
                // as often as not
                ScheduleKind::Cosine | ScheduleKind::Linear if rest % 2 == 0 => Some(warmup + decay),
                _ => None,
            },
            decay_tokens: None,
            stop_at_val_loss,
        },
    )
}

fn optimizer() -> impl Strategy<Value = OptimizerConfig> {
    let positive =
        || prop_oneof![1e-12..1e3, Just(f64::from(f32::MIN_POSITIVE)), Just(f64::from(f32::MAX)), Just(1e22)];
    let numbers = (positive(), 0.0..1.0, 0.0..1.0, positive(), 0.0..10.0, 0.0..10.0);
    let of_muon = (positive(), 0.0..1.0, any::<bool>(), 1..100_u32, 0.0..10.0, any::<(bool, bool)>());
    let of_embeddings = (0.0..10.0, prop::option::of(0.0..10.0));
    (any::<bool>(), numbers, of_embeddings, of_muon).prop_map(|(is_muon, numbers, of_embeddings, of_muon)| {
        let (lr, beta1, beta2, eps, weight_decay, clip_norm) = numbers;
        let betas = [beta1, beta2];
        // what has no effect is left out of a written recipe, so it is the default
        let (embedding_lr_factor, weight_decay_embeddings) = of_embeddings;
        let adamw = OptimizerConfig {
            lr,
            betas,
            eps,
            weight_decay,
            embedding_lr_factor,
            weight_decay_embeddings,
            clip_norm,
            ..OptimizerConfig::default()
        };
        if !is_muon {
            return adamw;
        }
        let (muon_lr, muon_momentum, muon_nesterov, muon_ns_steps, muon_weight_decay, (rounds, matches)) =
            of_muon;
        OptimizerConfig {
            kind: OptimizerName::Muon,
            muon_lr,
            muon_momentum,
            muon_nesterov,
            muon_ns_steps,
            muon_ns_precision: if rounds { MuonPrecision::Bf16 } else { MuonPrecision::Fp32 },
            muon_weight_decay,
            muon_adjust: if matches { MuonAdjust::MatchRmsAdamw } else { MuonAdjust::Original },
            ..adamw
        }
    })
}

/// An entry of `data`, absolute as resolution leaves it; globs over plain directories.
fn entry() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("builtin:lipsum:seed=2,words=100".to_string()),
        "(/[a-z0-9 é_.]{1,6}[a-z0-9]){1,4}",
        "(/[a-z]{1,6}){1,3}/[a-z]{0,3}[*?][a-z.]{1,4}",
    ]
}

/// Validation data of their own, a fraction of the training data, or neither.
fn validation() -> impl Strategy<Value = (Validation, Option<f64>)> {
    let fraction = prop_oneof![1e-9..1.0, Just(f64::MIN_POSITIVE), Just(1.0 - f64::EPSILON / 2.0)];
    let files = prop::collection::vec(entry(), 1..3);
    let sets = prop::collection::btree_map("[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", files, 1..4);
    prop_oneof![
        prop::collection::vec(entry(), 0..3).prop_map(|val| (val.into(), None)),
        sets.prop_map(|sets| (sets.into(), None)),
        fraction.prop_map(|fraction| (Validation::default(), Some(fraction))),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[\\x00-\\x7f]{1,20}", "[\"'\\\\\\n\\r\\t#=\\[\\]{} ]{1,10}"]
        .prop_filter("not empty", |text| !text.is_empty())
}

fn watchdog() -> impl Strategy<Value = WatchdogConfig> {
    let limit = || prop_oneof![Just(0.0), 0.0..100.0];
    (limit(), limit(), 2..=1_usize << 16, any::<bool>()).prop_map(
        |(max_loss_zscore, max_grad_zscore, window, skip)| WatchdogConfig {
            max_loss_zscore,
            max_grad_zscore,
            window,
            action: if skip { WatchdogAction::Skip } else { WatchdogAction::Stop },
        },
    )
}

/// Files, or a mixture of them.
fn train() -> impl Strategy<Value = Sources> {
    let mixture = prop::collection::vec((entry(), 1e-6..1e6_f64), 1..4);
    prop_oneof![prop::collection::vec(entry(), 1..4).prop_map(Sources::from), mixture.prop_map(Sources::from)]
}

/// The recipe with its lengths in tokens, and a batch that grows in `stages` stages, if that can be said.
fn in_tokens(mut recipe: Recipe, stages: usize, ramp_tokens: u64) -> Recipe {
    let tokens =
        |steps: u64| steps.checked_mul(recipe.batch.total_tokens as u64).filter(|tokens| *tokens <= 1 << 50);
    let schedule = &mut recipe.schedule;
    if let Some(all) = schedule.max_steps.and_then(tokens) {
        schedule.max_tokens = Some(all);
        schedule.max_steps = None;
        // no warm-up is no number of tokens
        schedule.warmup_tokens = schedule.warmup_steps.filter(|steps| *steps > 0).and_then(tokens);
        schedule.warmup_steps = schedule.warmup_steps.filter(|steps| *steps == 0);
        schedule.decay_tokens = schedule.decay_steps.take().and_then(tokens);
        let increment = recipe.batch.total_tokens;
        if stages > 0 {
            recipe.batch.ramp_start = increment;
            recipe.batch.total_tokens = increment * (stages + 1);
            recipe.batch.ramp_tokens = Some(ramp_tokens);
            recipe.batch.ramp_increment = Some(increment);
        }
    }
    recipe
}

prop_compose! {
    fn recipe()(
        recipe in recipe_in_steps(),
        in_tokens_too in any::<bool>(),
        (stages, ramp_tokens) in (0..40_usize, 1..=1_u64 << 50),
    ) -> Recipe {
        if in_tokens_too { in_tokens(recipe, stages, ramp_tokens) } else { recipe }
    }
}

prop_compose! {
    fn recipe_in_steps()(
        (name, seed, model, compute, schedule, optimizer) in
            ("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", 0..=i64::MAX as u64, model(), compute(), schedule(), optimizer()),
        train in train(),
        (val, val_fraction) in validation(),
        (shuffle, auto) in any::<(bool, bool)>(),
        (rows, world_size, steps) in (1..64_usize, 1..16_usize, 1..64_usize),
        (every, batches, keep, tokens) in (0..1_u64 << 30, 1..1_usize << 30, 0..1_usize << 30, 1..1_usize << 20),
        prompt in text(),
        allow in prop::collection::vec(prop::sample::select(LintCode::ALL), 0..3),
        watchdog in watchdog(),
        (shard_optimizer, timeout_s) in (any::<bool>(), 1..=86_400_u64),
        tokenizer in prop::sample::select(TokenizerKind::ALL.to_vec()),
    ) -> Recipe {
        Recipe {
            name,
            seed,
            batch: BatchConfig {
                total_tokens: rows * world_size * steps * model.block_size,
                micro_batch: if auto { MicroBatch::Auto } else { MicroBatch::Rows(rows) },
                world_size,
                ramp_start: 0,
                ramp_tokens: None,
                ramp_increment: None,
            },
            distributed: DistributedConfig { shard_optimizer, timeout_s },
            model,
            compute,
            // no last part of a mixture can be kept
            data: DataConfig {
                val_fraction: val_fraction.filter(|_| train.mixture().is_none()),
                train,
                val_main: val.named().and_then(|sets| Some(sets.last()?.0.to_owned())),
                val,
                tokenizer,
                shuffle,
            },
            optimizer,
            schedule,
            eval: EvalConfig {
                every,
                batches: (!auto).then_some(batches),
                tokens: auto.then_some(batches as u64),
                hellaswag: shuffle.then(|| "/data/hellaswag.jsonl".into()),
                tasks: if auto { vec!["/data/a.jsonl".into(), "/b [1].jsonl".into()] } else { Vec::new() },
                missing: if shuffle { Missing::Skip } else { Missing::Error },
            },
            checkpoint: CheckpointConfig { every, keep, keep_best: shuffle, background: shuffle },
            watchdog,
            sample: SampleConfig { every, prompt, tokens },
            log: LogConfig { tensorboard: shuffle },
            lints: LintsConfig { allow },
        }
    }
}

/// The recipe with the defaults of the keys that have no effect in it, as loading gives them.
fn tidy(mut recipe: Recipe) -> Recipe {
    let defaults = Recipes::with(REQUIRED).good(&Overrides::default()).recipe;
    if recipe.data.val.is_empty() && recipe.data.val_fraction.is_none() {
        recipe.eval = defaults.eval;
        recipe.checkpoint.keep_best = false;
        recipe.schedule.stop_at_val_loss = None;
    }
    recipe.checkpoint.keep_best &= recipe.eval.every > 0;
    recipe.schedule.stop_at_val_loss = recipe.schedule.stop_at_val_loss.filter(|_| recipe.eval.every > 0);
    if recipe.batch.world_size == 1 {
        recipe.distributed = defaults.distributed;
    }
    if !recipe.watchdog.is_on() {
        recipe.watchdog = defaults.watchdog;
    }
    if recipe.sample.every == 0 {
        recipe.sample = defaults.sample;
    }
    if matches!(recipe.compute.device, Device::Cuda(_)) {
        recipe.compute.threads = 0;
    }
    if recipe.compute.engine == EngineKind::Dfdx {
        recipe.compute.recompute = RecomputeName::None;
    }
    recipe
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_recipe_reads_back(recipe in recipe()) {
        let recipe = tidy(recipe);
        let recipes = Recipes::new();
        let text = to_toml(&recipe, recipes.dir());
        recipes.write("recipe.toml", &text);
        let read = recipes.load("recipe.toml", &Overrides::default());
        let read = read.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(&read.recipe, &recipe, "{}", text);
        prop_assert_eq!(to_toml(&read.recipe, recipes.dir()), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_file_makes_the_loader_panic(mutations in prop::collection::vec(mutation(), 1..8)) {
        let bytes = mutated(SEED_TEXT, mutations);
        let recipes = Recipes::new();
        recipes.write("recipe.toml", &bytes);
        if let Err(error) = recipes.load("recipe.toml", &Overrides::default()) {
            prop_assert!(!error.is_empty());
            prop_assert!(error.render(true).len() >= error.to_string().len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_override_makes_the_loader_panic(
        set in prop::collection::vec(prop_oneof![any::<String>(), "[a-z_.]{0,12}=[\\[\"a-z0-9,.{}=\\] ]{0,12}",
            "(model|optimizer|data|schedule)(\\.(n_layer|lr|train|kind|betas))?=(wsd|[0-9\\[\\]\"{},.]{0,8})"], 0..3),
        unset in prop::collection::vec(prop_oneof![any::<String>(), "(model|schedule|data)(\\.(n_layer|kind|train))?"], 0..2),
        env in prop::collection::vec(("RUNNER_[A-Z_é]{0,20}", any::<String>()), 0..3),
    ) {
        let recipes = Recipes::with(REQUIRED);
        if let Err(error) = recipes.load("recipe.toml", &Overrides { set, unset, env, ..Overrides::default() }) {
            prop_assert!(!error.is_empty() && !error.to_string().is_empty());
        }
    }
}

#[test]
fn pathological_files_are_refused_in_good_time() {
    // where a parser takes quadratic time, these sizes make the test run for hours
    let size = 1 << 20;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("ten megabytes", vec![b'\n'; 10 << 20]),
        ("open brackets", [b"a = ".to_vec(), vec![b'['; size]].concat()),
        ("inline tables", format!("a = {}", "{a=".repeat(size / 3)).into()),
        ("dotted key", format!("a{} = 1", ".a".repeat(size / 2)).into()),
        ("dotted header", format!("[a{}]", ".a".repeat(size / 2)).into()),
        ("headers", "[model]\n".repeat(size / 8).into()),
        ("unknown keys", (0..size / 16).map(|i| format!("k{i} = 1\n")).collect::<String>().into()),
        (
            "wrong values",
            (0..size / 32).map(|i| format!("k{i} = wrong\nl{i} = [\n")).collect::<String>().into(),
        ),
        ("one long key", [vec![b'k'; size], b" = 1".to_vec()].concat()),
        ("one long string", format!("[sample]\nprompt = \"{}\" 3", "é".repeat(size)).into()),
        ("long wrong value", format!("seed = \"{}\"", "x".repeat(size)).into()),
        ("many betas", format!("[optimizer]\nbetas = [{}]", "0.5,".repeat(size / 4)).into()),
        ("extends itself often", format!("extends = [{}]", "\"recipe.toml\",".repeat(size / 14)).into()),
        ("zeroes", vec![0; size]),
        ("bytes", (0..=255).cycle().take(size).collect()),
        ("carriage returns", vec![b'\r'; size]),
    ];
    for (name, bytes) in cases {
        let recipes = Recipes::new();
        recipes.write("recipe.toml", bytes);
        let error = recipes.load("recipe.toml", &Overrides::default()).expect_err(name);
        let message = error.to_string();
        assert!(message.starts_with("error: ") && message.len() < 1 << 20, "{name}: {} bytes", message.len());
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let recipes = Recipes::with(REQUIRED);
    let status = std::process::Command::new("mkfifo").arg(recipes.path("pipe")).status().expect("mkfifo");
    assert!(status.success());
    std::os::unix::fs::symlink(recipes.path("loop"), recipes.path("loop")).expect("a link");
    for (name, reason) in [("pipe", "it is not a regular file"), ("loop", "symbolic link"), ("a\0b", "nul")] {
        let error = recipes.load(name, &Overrides::default()).expect_err(name).to_string();
        assert!(error.to_lowercase().contains(reason), "{error}");
    }
    recipes.write("recipe.toml", format!("extends = \"pipe\"\n{REQUIRED}"));
    assert!(
        recipes
            .bad(&Overrides::default())
            .contains("`extends`: cannot read `DIR/pipe`: it is not a regular file")
    );
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let recipes = Recipes::with(REQUIRED);
    let path = recipes.path("recipe.toml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("owned");
    let loaded = recipes.load("recipe.toml", &Overrides::default());
    // Root reads everything; then there is nothing to refuse.
    if std::fs::read(&path).is_err() {
        assert!(loaded.expect_err("unreadable").to_string().contains("permission denied"));
    } else {
        assert_eq!(loaded.expect("readable").recipe.schedule.max_steps, Some(100));
    }
}
