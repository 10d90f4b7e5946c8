//! The trajectories of PyTorch under dropout, which `dropout.py` made on the models of `make.py`, with factors of its
//! own.

use super::{
    FINAL, GRADIENT, Golden, LOSS, StepInfo, TRAJECTORY, floats, near, relative, start_over, trajectory,
};
use runner::engine::dropout::Dropout;
use runner::engine::{Engine, EngineError, State};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Info {
    cases: BTreeMap<String, CaseInfo>,
}

#[derive(Deserialize)]
struct CaseInfo {
    dropout: DropoutInfo,
    first_loss: f64,
    trajectory: Vec<StepInfo>,
}

#[derive(Deserialize)]
struct DropoutInfo {
    model: String,
    rate: f64,
    seed: u64,
}

/// A model with its trajectory, and what is left out on the way.
pub(crate) struct Case {
    name: String,
    pub(crate) golden: Golden,
    pub(crate) dropout: Option<Dropout>,
    first_loss: f64,
}

/// Every case.
pub(crate) fn cases() -> Vec<Case> {
    let info: Info = serde_json::from_str(include_str!("dropout.json")).expect("golden JSON parses");
    let case = |(name, CaseInfo { dropout, first_loss, trajectory }): (String, CaseInfo)| {
        let mut golden = Golden::load(&dropout.model);
        golden.info.trajectory = trajectory;
        Case { name, golden, dropout: Dropout::new(dropout.rate, dropout.seed), first_loss }
    };
    info.cases.into_iter().map(case).collect()
}

/// What is off and by how much, unless a new engine of the case's dimensions and dropout follows its trajectory.
pub(crate) fn compare(engine: &mut dyn Engine, case: &Case) -> Result<(), String> {
    let Case { name, golden, first_loss, .. } = case;
    let layout = engine.layout().clone();
    let failed = |e: EngineError| format!("the engine failed: {e}");
    engine.write(State::Parameters, &golden.flat("params", &layout)).map_err(failed)?;
    let stored =
        SafeTensors::deserialize(include_bytes!("dropout.safetensors")).expect("golden tensors parse");
    let matches = |what: &str, kind: &str, ours: &[f32], bound: f64| {
        let prefix = format!("{name}.{kind}.");
        let mut compared = 0;
        for (tensor, view) in stored.tensors() {
            let Some(tensor) = tensor.strip_prefix(&prefix) else { continue };
            let range = layout.tensor(tensor).expect("a tensor of the model").range();
            // the keys' bias has no gradient but for rounding
            if tensor.ends_with("c_attn.bias") {
                continue;
            }
            let pairs = ours[range].iter().copied().zip(floats(view.dtype(), view.data()));
            near(what, tensor, pairs, bound)?;
            compared += 1;
        }
        assert!(compared >= 6, "{kind}: {compared} tensors");
        Ok(())
    };
    // evaluation leaves nothing out
    relative(
        "the evaluated loss",
        engine.evaluate(golden.batch(0)).map_err(failed)?,
        golden.info.first_loss,
        LOSS,
    )?;
    engine.accumulate(golden.batch(0), 1.0).map_err(failed)?;
    relative("the loss", engine.loss().map_err(failed)?, *first_loss, LOSS)?;
    let gradients = engine.read(State::Gradients).map_err(failed)?.into_owned();
    matches("gradient", "grads", &gradients, GRADIENT)?;
    start_over(engine, golden, &layout).map_err(failed)?;
    trajectory(engine, golden, TRAJECTORY)?;
    matches("after the last step", "final", &engine.read(State::Parameters).map_err(failed)?, FINAL)
}
