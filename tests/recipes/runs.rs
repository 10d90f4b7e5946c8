//! Through the program: every key does something, and a run is the same experiment as the recipe it came from.

use crate::log_support;
use crate::recipe_support;

use recipe_support::{Recipes, printed, refused, runner};
use runner::data::write_llmc;
use runner::recipe::keys::{KEYS, Key};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

const TINY: &str = "\
name = \"tiny\"
[model]
n_layer = 1
n_head = 1
n_embd = 16
block_size = 16
vocab_size = 64
[data]
train = \"data/a.bin\"
val = \"data/b.bin\"
[batch]
total_tokens = 64
micro_batch = 4
[optimizer]
lr = 1e-2
[schedule]
max_steps = 4
[eval]
every = 2
batches = 1
";

/// A directory with `tiny.toml` and two shards of pseudo-random tokens.
fn lab() -> Recipes {
    let recipes = Recipes::new();
    // of tokens 0, 1 and 2
    let choices = r##"{"context": "!", "endings": ["\"", "#"], "label": 0, "delimiter": ""}"##;
    recipes.write("tiny.toml", TINY).write("data/.keep", "").write("data/choices.jsonl", choices);
    for (name, seed) in [("a", 1_u32), ("b", 2)] {
        let tokens = (0..600_u32).map(|i| ((i * i + seed).wrapping_mul(2_654_435_761) >> 26) as u16);
        write_llmc(&recipes.path(&format!("data/{name}.bin")), tokens).expect("a shard");
    }
    recipes
}

/// Trains and returns the run's directory.
fn train(recipes: &Recipes, arguments: &str) -> PathBuf {
    recipes.path(printed(recipes.dir(), arguments).trim())
}

/// What shows that a key is read.
#[derive(Debug)]
enum Shows {
    /// The plan, at this place.
    Plan(&'static str),
    /// A file of the run; of `train.csv` the deterministic columns.
    File(&'static str),
    /// Which checkpoints there are.
    Checkpoints,
    /// How many event files there are.
    EventFiles,
    /// The name of the run's directory.
    Name,
    /// How the run ends.
    Ending,
    /// The plan at this place, or the program refuses the value.
    PlanOrRefusal(&'static str),
}

use Shows::{Checkpoints, Ending, EventFiles, File, Name, Plan, PlanOrRefusal};

/// A learning rate at which the loss rises from step to step, and what judges a step by the two before.
const RISING: &str = "--set optimizer.lr=1 --set schedule.max_steps=6 --set watchdog.window=2";

/// A batch of four rows that grows from one.
const RAMP: &str = "--set batch.micro_batch=1 --set batch.ramp_start=16 --set batch.ramp_tokens=100";
/// The rule that reads its own keys, at a rate at which they show within a few steps.
const MUON: &str = "--set optimizer.kind=muon --set optimizer.muon_lr=5e-2";

/// One key: what is given in both cases, what is added to change it, and where that shows.
type Row = (&'static str, &'static str, &'static str, Shows);

const TRAIN: &str = "train.csv";
const ROWS: &[Row] = &[
    ("extends", "", "extending.toml", Plan("/parameters")),
    ("name", "", "name=other", Name),
    ("seed", "", "seed=2", File(TRAIN)),
    (
        "model.preset",
        "--unset model --set batch.total_tokens=8192 --set batch.micro_batch=1",
        "model.preset=gpt3-small",
        Plan("/rows_per_step"),
    ),
    ("model.init_from", "", "model.init_from=weights", File(TRAIN)),
    ("model.block_size", "", "model.block_size=8", File(TRAIN)),
    ("model.vocab_size", "", "model.vocab_size=70", Plan("/parameters")),
    ("model.vocab_multiple", "", "model.vocab_multiple=100", Plan("/padded_vocab")),
    ("model.n_layer", "", "model.n_layer=2", File(TRAIN)),
    ("model.n_head", "", "model.n_head=2", File(TRAIN)),
    ("model.n_embd", "", "model.n_embd=32", File(TRAIN)),
    ("model.dropout", "", "model.dropout=0.5", File(TRAIN)),
    ("compute.device", "", "compute.device=cuda:99", PlanOrRefusal("/device")),
    ("compute.engine", "", "compute.engine=dfdx", File(TRAIN)),
    ("compute.precision", "", "compute.precision=bf16", File(TRAIN)),
    ("compute.attention", "", "compute.attention=naive", Plan("/bytes/activations")),
    ("compute.residual", "", "compute.residual=bf16", PlanOrRefusal("/bytes/activations")),
    ("compute.recompute", "", "compute.recompute=block", Plan("/recompute")),
    ("compute.threads", "--set compute.threads=1", "compute.threads=3", Plan("/threads")),
    ("data.train", "", "data.train=data/b.bin", File(TRAIN)),
    ("data.val", "", "data.val=data/a.bin", File("val.csv")),
    (
        "data.val_main",
        "--set data.val={web=\"data/a.bin\",books=\"data/b.bin\"} --set data.val_main=books",
        "data.val_main=web",
        File("val.csv"),
    ),
    ("data.val_fraction", "--set data.val=[]", "data.val_fraction=0.25", File("val.csv")),
    (
        "data.tokenizer",
        "--set data.train=builtin:lipsum:words=400 --set data.val=[] --set model.vocab_size=50257",
        "data.tokenizer=bytes",
        File(TRAIN),
    ),
    ("data.shuffle", "", "data.shuffle=false", File(TRAIN)),
    ("batch.total_tokens", "", "batch.total_tokens=128", File(TRAIN)),
    ("batch.micro_batch", "", "batch.micro_batch=2", Plan("/micro_steps")),
    ("batch.world_size", "--set batch.micro_batch=1", "batch.world_size=2", Plan("/micro_steps")),
    ("batch.ramp_start", RAMP, "batch.ramp_start=32", File(TRAIN)),
    ("batch.ramp_tokens", RAMP, "batch.ramp_tokens=200", File(TRAIN)),
    ("batch.ramp_increment", RAMP, "batch.ramp_increment=48", File(TRAIN)),
    (
        "distributed.shard_optimizer",
        "--set batch.micro_batch=1 --set batch.world_size=2",
        "distributed.shard_optimizer=true",
        Plan("/bytes/moments"),
    ),
    (
        "distributed.timeout_s",
        "--set batch.micro_batch=1 --set batch.world_size=2",
        "distributed.timeout_s=7",
        Plan("/timeout_s"),
    ),
    ("optimizer.kind", "", "optimizer.kind=muon", File(TRAIN)),
    ("optimizer.lr", "", "optimizer.lr=2e-2", File(TRAIN)),
    ("optimizer.betas", "", "optimizer.betas=[0.5, 0.6]", File(TRAIN)),
    ("optimizer.eps", "", "optimizer.eps=1e-2", File(TRAIN)),
    ("optimizer.weight_decay", "", "optimizer.weight_decay=5", File(TRAIN)),
    ("optimizer.embedding_lr_factor", "", "optimizer.embedding_lr_factor=3", File(TRAIN)),
    ("optimizer.weight_decay_embeddings", "", "optimizer.weight_decay_embeddings=5", File(TRAIN)),
    ("optimizer.clip_norm", "--set optimizer.eps=1e-2", "optimizer.clip_norm=1e-3", File(TRAIN)),
    ("optimizer.muon_lr", MUON, "optimizer.muon_lr=1e-1", File(TRAIN)),
    ("optimizer.muon_momentum", MUON, "optimizer.muon_momentum=0.5", File(TRAIN)),
    ("optimizer.muon_nesterov", MUON, "optimizer.muon_nesterov=false", File(TRAIN)),
    ("optimizer.muon_ns_steps", MUON, "optimizer.muon_ns_steps=1", File(TRAIN)),
    ("optimizer.muon_ns_precision", MUON, "optimizer.muon_ns_precision=fp32", File(TRAIN)),
    ("optimizer.muon_weight_decay", MUON, "optimizer.muon_weight_decay=5", File(TRAIN)),
    ("optimizer.muon_adjust", MUON, "optimizer.muon_adjust=original", File(TRAIN)),
    ("schedule.kind", "", "schedule.kind=linear", File(TRAIN)),
    ("schedule.max_steps", "", "schedule.max_steps=5", File(TRAIN)),
    (
        "schedule.max_tokens",
        "--unset schedule.max_steps --set schedule.max_tokens=256",
        "schedule.max_tokens=320",
        File(TRAIN),
    ),
    ("schedule.warmup_steps", "", "schedule.warmup_steps=2", File(TRAIN)),
    ("schedule.warmup_tokens", "", "schedule.warmup_tokens=128", File(TRAIN)),
    ("schedule.min_lr_ratio", "", "schedule.min_lr_ratio=0.5", File(TRAIN)),
    ("schedule.decay_tokens", "", "schedule.decay_tokens=128", File(TRAIN)),
    ("schedule.decay_steps", "--set schedule.kind=wsd", "schedule.decay_steps=3", File(TRAIN)),
    ("schedule.stop_at_val_loss", "", "schedule.stop_at_val_loss=10", File(TRAIN)),
    ("eval.every", "", "eval.every=1", File("val.csv")),
    ("eval.batches", "", "eval.batches=3", File("val.csv")),
    ("eval.tokens", "", "eval.tokens=32", File("val.csv")),
    ("eval.hellaswag", "", "eval.hellaswag=data/choices.jsonl", File("val.csv")),
    ("eval.tasks", "", "eval.tasks=data/choices.jsonl", File("val.csv")),
    (
        "eval.missing",
        "--set eval.hellaswag=data/none.jsonl",
        "eval.missing=skip",
        PlanOrRefusal("/data_error"),
    ),
    ("checkpoint.every", "", "checkpoint.every=2", Checkpoints),
    ("checkpoint.keep", "--set checkpoint.every=1", "checkpoint.keep=1", Checkpoints),
    ("checkpoint.keep_best", "--set checkpoint.keep=0", "checkpoint.keep_best=true", Checkpoints),
    ("checkpoint.background", "", "checkpoint.background=false", Plan("/snapshot_bytes")),
    (
        "watchdog.max_loss_zscore",
        "RISING --set watchdog.max_grad_zscore=1e300",
        "watchdog.max_loss_zscore=1e-9",
        Ending,
    ),
    (
        "watchdog.max_grad_zscore",
        "RISING --set watchdog.max_loss_zscore=1e300",
        "watchdog.max_grad_zscore=1e-9",
        Ending,
    ),
    ("watchdog.window", "RISING --set watchdog.max_loss_zscore=1e-9", "watchdog.window=9", Ending),
    ("watchdog.action", "RISING --set watchdog.max_loss_zscore=1e-9", "watchdog.action=skip", Ending),
    ("sample.every", "--set model.vocab_size=50257", "sample.every=4", File("samples.txt")),
    (
        "sample.prompt",
        "--set model.vocab_size=50257 --set sample.every=4",
        "sample.prompt=Other",
        File("samples.txt"),
    ),
    (
        "sample.tokens",
        "--set model.vocab_size=50257 --set sample.every=4",
        "sample.tokens=5",
        File("samples.txt"),
    ),
    ("log.tensorboard", "", "log.tensorboard=true", EventFiles),
    ("lints.allow", "", "lints.allow=ugly-width", Plan("/lints")),
];

/// What the program shows of one case; an error is what it says on stderr with exit code 2.
fn observe(
    recipes: &Recipes,
    case: &str,
    recipe: &str,
    given: &str,
    shows: &Shows,
) -> Result<String, String> {
    let plan = |place: &str| {
        let output =
            runner(recipes.dir()).args(["plan", recipe, "--format", "json"]).args(split(given)).output();
        let output = output.expect("it runs");
        match output.status.code() {
            Some(0) => {
                let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                Ok(plan.pointer(place).unwrap_or_else(|| panic!("no {place} in the plan")).to_string())
            }
            Some(2) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            other => panic!("{given}: {other:?} {}", String::from_utf8_lossy(&output.stderr)),
        }
    };
    if let Plan(place) | PlanOrRefusal(place) = shows {
        return plan(place);
    }
    let given = &given.replace("RISING", RISING);
    let output = runner(recipes.dir())
        .args([recipe, "--runs-dir", case])
        .args(split(given))
        .output()
        .expect("it runs");
    if matches!(shows, Ending) {
        let errors = String::from_utf8_lossy(&output.stderr);
        let ending: Vec<_> = errors.lines().filter(|line| line.contains("standard deviations")).collect();
        return Ok(format!("{:?} {ending:?}", output.status.code()));
    }
    assert!(output.status.success(), "{given}: {}", String::from_utf8_lossy(&output.stderr));
    let run = String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned();
    let run = Path::new(&run);
    Ok(match shows {
        Name => run
            .file_name()
            .and_then(|name| name.to_str()?.rsplit_once('-'))
            .expect("a name and a hash")
            .0
            .to_owned(),
        Checkpoints => {
            let entries =
                std::fs::read_dir(recipes.path("").join(run).join("checkpoints")).expect("checkpoints");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            format!("{names:?}")
        }
        EventFiles => {
            let entries = std::fs::read_dir(recipes.dir().join(run)).expect("a run");
            let names = entries.map(|entry| entry.expect("an entry").file_name());
            names.filter(|name| name.to_string_lossy().contains(".tfevents.")).count().to_string()
        }
        File(TRAIN) => deterministic(&recipes.dir().join(run).join(TRAIN)),
        File(name) => std::fs::read_to_string(recipes.dir().join(run).join(name)).unwrap_or_default(),
        Ending | Plan(_) | PlanOrRefusal(_) => unreachable!("answered above"),
    })
}

/// Arguments at spaces; those inside brackets stay.
fn split(arguments: &str) -> Vec<String> {
    arguments.replace(", ", ",").split_whitespace().map(str::to_owned).collect()
}

/// The columns of `train.csv` that depend on the recipe only.
fn deterministic(path: &Path) -> String {
    log_support::deterministic(&std::fs::read_to_string(path).expect("a log"))
}

#[test]
fn every_key_changes_the_plan_the_computation_or_the_output() {
    let recipes = lab();
    recipes.write(
        "extending.toml",
        TINY.replace("n_layer = 1\n", "").replace("name =", "extends = \"two.toml\"\nname ="),
    );
    recipes.write("two.toml", "model.n_layer = 2\n");
    let weights =
        train(&recipes, "tiny.toml --runs-dir first --set seed=9").join("checkpoints/step-00000004");
    std::fs::rename(weights, recipes.path("weights")).expect("a checkpoint to start from");
    let before = |key: &Key| {
        let row = ROWS.iter().find(|row| row.0 == key.path);
        let row = row.unwrap_or_else(|| {
            panic!(
                "{}: say in ROWS where a change of it shows; a key that nothing reads must not be there",
                key.path
            )
        });
        let (_, given, _, shows) = row;
        // a run of an earlier key with this beginning is found again, finished; what shows an ending ends again
        let first = ROWS.iter().position(|row| row.1 == *given && !matches!(row.3, Ending));
        let unchanged = match (shows, first) {
            (Ending, _) | (_, None) => format!("{}-before", key.path),
            (_, Some(first)) => format!("{}-before", ROWS[first].0),
        };
        let before = observe(&recipes, &unchanged, "tiny.toml", given, shows);
        (row, before.unwrap_or_else(|error| panic!("{}: {error}", key.path)))
    };
    let befores: Vec<_> = KEYS.iter().map(before).collect();
    // each of these trains in a directory of its own
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((row, before)) = befores.get(next.fetch_add(1, Ordering::Relaxed)) {
                    changes(&recipes, row, before);
                }
            });
        }
    });
    for (path, ..) in ROWS {
        assert!(KEYS.iter().any(|key| key.path == *path), "{path} is no key");
    }
}

/// Changes one key, and looks whether that shows.
fn changes(recipes: &Recipes, (path, given, change, shows): &Row, before: &str) {
    let (recipe, arguments) = match change.strip_suffix(".toml") {
        Some(_) => (*change, (*given).to_owned()),
        None => ("tiny.toml", format!("{given} --set {change}")),
    };
    match observe(recipes, &format!("{path}-after"), recipe, &arguments, shows) {
        Ok(after) => assert_ne!(before, after, "{path} does nothing"),
        Err(error) => {
            assert!(matches!(shows, PlanOrRefusal(_)) && error.contains(path), "{path}: {error}");
        }
    }
}

/// Copies a directory tree.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
}

#[test]
fn a_run_and_its_recipe_are_one_experiment_wherever_they_are() {
    let recipes = lab();
    recipes.write("r/base.toml", TINY.replace("\"data/", "\"../data/"));
    recipes.write(
        "r/mine.toml",
        "extends = \"base.toml\"\nname = \"mine\"\n[data]\ntrain = \"../data/[a]*.bin\"\n",
    );
    for extra in [
        "",
        "--set schedule.kind=wsd",
        "--set schedule.kind=constant",
        "--set compute.engine=dfdx",
        "--set data.val=[]",
        "--set batch.micro_batch=auto --set compute.precision=bf16",
        "--set lints.allow=ugly-width --set checkpoint.every=2",
    ] {
        let run = train(&recipes, &format!("r/mine.toml {extra}"));
        let id = run.file_name().and_then(|name| name.to_str()).expect("an id").to_owned();
        // its own recipe, into another directory of runs, from two working directories
        let again = train(&recipes, &format!("runs/{id}/recipe.toml --runs-dir again"));
        assert_eq!(again.file_name(), run.file_name(), "{extra}");
        let from_inside = printed(&run, "recipe.toml --runs-dir ../../inside");
        assert!(from_inside.trim().ends_with(&id), "{extra}: {from_inside}");
        let recipe = |run: &Path| std::fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        assert_eq!(recipe(&again), recipe(&run), "{extra}");
        assert_eq!(deterministic(&again.join(TRAIN)), deterministic(&run.join(TRAIN)), "{extra}");
        // the whole tree somewhere else: the same run, already finished, and nothing of the old place is needed
        let moved = tempfile::tempdir().expect("a directory");
        let tree = moved.path().join("deep/er");
        for part in ["r", "data", "runs"] {
            copy(&recipes.path(part), &tree.join(part));
        }
        for recipe in ["r/mine.toml".to_owned(), format!("runs/{id}/recipe.toml")] {
            let extra = if recipe.starts_with("runs") { "" } else { extra };
            let output = runner(&tree).arg(&recipe).args(split(extra)).output().expect("it runs");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && errors.contains("already finished"),
                "{recipe} {extra}: {errors}"
            );
            assert!(String::from_utf8_lossy(&output.stdout).trim().ends_with(&id), "{recipe} {extra}");
        }
    }
}

#[test]
fn other_data_under_the_same_name_are_another_experiment() {
    let recipes = lab();
    let first = train(&recipes, "tiny.toml");
    std::fs::copy(recipes.path("data/b.bin"), recipes.path("data/a.bin")).expect("a copy");
    let second = train(&recipes, "tiny.toml");
    assert_ne!(first.file_name(), second.file_name());
    let (code, message) = refused(recipes.dir(), "tiny.toml --set data.train=data/c.bin");
    assert_eq!((code, message.contains("data/c.bin")), (Some(2), true), "{message}");
}
