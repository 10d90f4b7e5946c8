//! The trajectories of `torch.optim.Muon` with `torch.optim.AdamW`, which `muon.py` made on the models of `make.py`.

use super::{FINAL, Golden, StepInfo, padding_is_zero, tensors, trajectory};
use runner::engine::optimizer::Rule;
use runner::engine::optimizer::muon::Muon;
use runner::engine::verify::determined;
use runner::engine::{Engine, EngineError, State};
use runner::model::ParamLayout;
use runner::recipe::{MuonAdjust, MuonPrecision};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Relative differences of the loss and of the gradient norm at each step, where the iteration rounds nothing.
const FP32: [f64; 2] = [1e-4, 1e-3];
/// Where it rounds to bf16. What lies between two numbers of 8 bits goes to the one or the other by the last digit of a
/// sum, whose order differs, and that changes an element of an update by 1/256 of itself. About three times what that
/// was seen to do to the gradient norm within 60 steps.
const BF16: [f64; 2] = [5e-3, 8e-2];

#[derive(Deserialize)]
struct Info {
    train: Peak,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Peak {
    lr: f64,
}

#[derive(Deserialize)]
struct Case {
    muon: MuonInfo,
    trajectory: Vec<StepInfo>,
}

#[derive(Deserialize)]
struct MuonInfo {
    model: String,
    adjust: MuonAdjust,
    precision: MuonPrecision,
    lr: f64,
    momentum: f64,
    nesterov: bool,
    ns_steps: u32,
    weight_decay: f64,
}

/// Every case: its name, the model with its trajectory, and whether the iteration rounds.
pub(crate) fn cases() -> Vec<(String, Golden, MuonPrecision)> {
    let info: Info = serde_json::from_str(include_str!("muon.json")).expect("golden JSON parses");
    let peak = info.train.lr;
    let case = |(name, Case { muon, trajectory }): (String, Case)| {
        let mut golden = Golden::load(&muon.model);
        golden.rule = Rule::Muon(Muon {
            adamw: *golden.rule.adamw(),
            lr_ratio: muon.lr / peak,
            momentum: muon.momentum,
            nesterov: muon.nesterov,
            ns_steps: muon.ns_steps,
            ns_precision: muon.precision,
            weight_decay: muon.weight_decay,
            adjust: muon.adjust,
        });
        golden.info.trajectory = trajectory;
        (name, golden, muon.precision)
    };
    info.cases.into_iter().map(case).collect()
}

/// Panics, naming what is off and by how much, unless a new engine of `golden.dims` follows the case's trajectory.
pub(crate) fn check(engine: &mut dyn Engine, (name, golden, precision): &(String, Golden, MuonPrecision)) {
    if let Err(message) = compare(engine, name, golden, *precision) {
        panic!("{name}: {message}");
    }
}

fn compare(
    engine: &mut dyn Engine,
    name: &str,
    golden: &Golden,
    precision: MuonPrecision,
) -> Result<(), String> {
    let layout = engine.layout().clone();
    assert_eq!(layout, ParamLayout::new(&golden.dims), "{name}");
    let failed = |e: EngineError| format!("the engine failed: {e}");
    engine.write(State::Parameters, &golden.flat("params", &layout)).map_err(failed)?;
    trajectory(engine, golden, if precision == MuonPrecision::Fp32 { FP32 } else { BF16 })?;
    let read = engine.read(State::Parameters).map_err(failed)?;
    padding_is_zero("parameters", &read, &golden.dims, &layout)?;
    let finals = include_bytes!("muon.safetensors");
    let finals = SafeTensors::deserialize(finals).expect("golden tensors parse");
    let mut expected = vec![0.0; layout.len];
    for tensor in &layout.tensors {
        let Ok(view) = finals.tensor(&format!("{name}.{}", tensor.name)) else { return Ok(()) };
        let values = super::floats(view.dtype(), view.data());
        expected[tensor.offset..][..values.len()].copy_from_slice(&values);
    }
    tensors("after the last step", &read, &expected, &layout, determined, FINAL)
}
