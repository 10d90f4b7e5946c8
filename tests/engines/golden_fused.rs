//! The fused CPU engine against PyTorch.

use crate::golden;

use golden::Golden;
use runner::engine::cpu;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerKind;
use runner::model::Dims;
use runner::recipe::{Attention, Precision};

fn engine(dims: Dims, optimizer: OptimizerKind, attention: Attention, threads: usize) -> cpu::CpuEngine {
    let config = MemoryConfig {
        dims,
        micro_batch: 4,
        precision: Precision::Fp32,
        attention,
        target: Target::Cpu { threads },
        mode: Mode::Train(optimizer),
        activations: Activations::default(),
    };
    cpu::engine(MemoryPlan::new(config)).expect("a small engine can be allocated")
}

fn check(name: &str, attention: Attention, threads: usize) {
    let golden = Golden::load(name);
    golden::check(&mut engine(golden.dims, OptimizerKind::AdamW, attention, threads), &golden);
}

#[test]
fn flash_attention_follows_pytorch() {
    check("a", Attention::Flash, 2);
    check("b", Attention::Flash, 1);
}

#[test]
fn naive_attention_follows_pytorch() {
    check("a", Attention::Naive, 1);
    check("b", Attention::Naive, 3);
}

#[test]
fn muon_follows_pytorch_on_any_number_of_threads() {
    for case in golden::muon::cases() {
        for threads in [1, 3] {
            let mut engine = engine(case.1.dims, OptimizerKind::Muon, Attention::Flash, threads);
            golden::muon::check(&mut engine, &case);
        }
    }
}

#[test]
fn embeddings_have_settings_of_their_own() {
    for case in golden::groups::cases() {
        for threads in [1, 3] {
            let mut engine = engine(case.1.dims, OptimizerKind::AdamW, Attention::Flash, threads);
            assert_eq!(golden::groups::compare(&mut engine, &case), Ok(()), "{}", case.0);
        }
        for (what, wrong) in golden::groups::wrong(&case) {
            let mut engine = engine(wrong.1.dims, OptimizerKind::AdamW, Attention::Flash, 1);
            golden::groups::compare(&mut engine, &wrong).expect_err(what);
        }
    }
}
