//! Whether a CUDA device keeps the outputs of LayerNorm and GELU: decided by its memory once, and part of the result.

use crate::recipe_support;

use recipe_support::{Recipes, set};
use runner::engine::memory::Recompute;
use runner::plan::hardware::{CudaDevice, Hardware};
use runner::plan::roofline::Limits;
use runner::plan::{Begun, DataSize, Plan, PlanError};
use runner::recipe::{MicroBatch, Recipe, RecomputeName};

const GIB: usize = 1 << 30;
const RECIPE: &str = "\
[model]
n_layer = 4
n_head = 2
n_embd = 64
block_size = 32
vocab_size = 50257
[data]
train = \"builtin:lipsum\"
[batch]
total_tokens = 2048
micro_batch = 16
[schedule]
max_steps = 4
";

fn recipe() -> Recipe {
    Recipes::with(RECIPE).good(&set(&[])).recipe
}

/// A machine with a device that has so many bytes, all of them free.
fn machine(bytes: usize) -> Hardware {
    let cuda = CudaDevice { index: 0, name: "H100".to_owned(), total_memory: bytes, free_memory: bytes };
    Hardware { threads: 2, total_memory: GIB, free_memory: GIB, ranks: 1, cuda: Some(cuda) }
}

fn derived(recipe: &Recipe, machine: &Hardware, begun: Option<Begun>) -> Plan {
    let data = DataSize { train_tokens: 10_000, train_rows: 300, val_rows: 20, ..DataSize::default() };
    Plan::derive(recipe, machine, data, begun).expect("a plan")
}

fn refused(plan: &Plan, machine: &Hardware) -> PlanError {
    plan.check_fit(machine).expect_err("it takes more than there is")
}

/// The bytes of the recipe's plan with the outputs kept, and without.
fn bytes(recipe: &Recipe) -> [usize; 2] {
    [true, false].map(|kept| {
        let begun = Begun { micro_batch: 16, keeps_outputs: Some(kept) };
        derived(recipe, &machine(GIB), Some(begun)).bytes.total
    })
}

#[test]
fn a_run_that_goes_on_keeps_what_it_began_with() {
    let recipe = recipe();
    let [kept, again] = bytes(&recipe);
    assert!(again < kept);
    for (begun, other) in [(machine(GIB), machine(again)), (machine(again), machine(GIB))] {
        let first = derived(&recipe, &begun, None);
        assert_eq!(first.memory.keeps_outputs(), begun == machine(GIB));
        assert_eq!(derived(&recipe, &other, Some(first.begun())).memory, first.memory);
        assert_ne!(derived(&recipe, &other, None).memory, first.memory, "the memory would decide otherwise");
        // a checkpoint of an earlier version does not say
        let old = Begun { keeps_outputs: None, ..first.begun() };
        assert_eq!(derived(&recipe, &other, Some(old)).memory, derived(&recipe, &other, None).memory);
    }
}

#[test]
fn what_is_kept_and_fits_no_more_is_refused_with_what_would_fit() {
    let mut recipe = recipe();
    let [kept, again] = bytes(&recipe);
    let begun = derived(&recipe, &machine(GIB), None).begun();
    assert_eq!(begun, Begun { micro_batch: 16, keeps_outputs: Some(true) });
    assert!(derived(&recipe, &machine(kept), Some(begun)).check_fit(&machine(kept)).is_ok());
    // the micro-batch alone would fit, with other results
    let small = machine(again.max(kept - 1));
    let error = refused(&derived(&recipe, &small, Some(begun)), &small);
    assert!(error.message.contains("which this run has kept since it began"), "{error}");
    assert_eq!(
        error.help,
        "the largest micro_batch that fits is 8, or compute.recompute = \"mlp\" makes this one fit"
    );
    recipe.compute.recompute = RecomputeName::Auto;
    let plan = derived(&recipe, &small, Some(begun));
    assert_eq!((plan.memory.keeps_outputs(), plan.memory.recompute()), (true, Recompute::Mlp));
    assert!(plan.check_fit(&small).is_ok() && plan.document().keeps_outputs);
    // and so does a smaller one, which chooses anew
    recipe.batch.micro_batch = MicroBatch::Rows(8);
    let plan = derived(&recipe, &machine(again / 2), Some(begun));
    assert!(!plan.memory.keeps_outputs());
    recipe.batch.micro_batch = MicroBatch::Rows(1);
    let tiny = machine(1 << 20);
    let begun = Begun { micro_batch: 1, ..begun };
    let help = refused(&derived(&recipe, &tiny, Some(begun)), &tiny).help;
    assert_eq!(help, "free memory on the device, or start over with --fresh");
}

#[test]
fn a_cpu_decides_nothing() {
    let cpu = Hardware { cuda: None, ..machine(GIB) };
    let recipe = recipe();
    let plan = derived(&recipe, &cpu, None);
    assert_eq!(plan.begun(), Begun { micro_batch: 16, keeps_outputs: None });
    let of_cuda = Begun { micro_batch: 16, keeps_outputs: Some(true) };
    assert_eq!(derived(&recipe, &cpu, Some(of_cuda)).bytes, plan.bytes);
}

#[test]
fn a_modelled_device_decides_by_its_own_memory() {
    let mut recipe = recipe();
    recipe.compute.recompute = RecomputeName::Auto;
    recipe.batch.micro_batch = MicroBatch::Auto;
    // too little for a row
    let host = Hardware { total_memory: 1 << 20, free_memory: 1 << 20, cuda: None, ..machine(GIB) };
    let here = derived(&recipe, &host, None);
    assert_eq!((here.batch.micro_batch, here.memory.recompute()), (1, Recompute::Block));
    let h100 = Limits::named("h100").expect("a data sheet").hardware(&host);
    let there = derived(&recipe, &h100, None);
    assert_eq!((there.batch.micro_batch, there.memory.recompute()), (64, Recompute::None));
    assert!(there.memory.keeps_outputs() && there.check_fit(&h100).is_ok());
}
