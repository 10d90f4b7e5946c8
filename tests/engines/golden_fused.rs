//! The fused CPU engine against PyTorch.

use crate::golden;

use golden::Golden;
use runner::engine::cpu;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerKind;
use runner::recipe::{Attention, Precision};

fn check(name: &str, attention: Attention, threads: usize) {
    let golden = Golden::load(name);
    let config = MemoryConfig {
        dims: golden.dims,
        micro_batch: 4,
        precision: Precision::Fp32,
        attention,
        target: Target::Cpu { threads },
        mode: Mode::Train(OptimizerKind::AdamW),
        activations: Activations::default(),
    };
    let mut engine = cpu::engine(MemoryPlan::new(config)).expect("a small engine can be allocated");
    golden::check(&mut engine, &golden);
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
