//! The trajectories of `torch.optim.AdamW` with settings of their own for embeddings, which `groups.py` made on the
//! models of `make.py`.

use super::{FINAL, Golden, StepInfo, TRAJECTORY, near, padding_is_zero, trajectory};
use runner::engine::optimizer::Rule;
use runner::engine::optimizer::adamw::AdamW;
use runner::engine::{Engine, EngineError, State};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Info {
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    groups: Groups,
    trajectory: Vec<StepInfo>,
}

#[derive(Deserialize)]
struct Groups {
    model: String,
    embedding_lr_factor: f64,
    weight_decay_embeddings: f64,
}

/// Every case: its name, and the model with its trajectory.
pub(crate) fn cases() -> Vec<(String, Golden)> {
    let info: Info = serde_json::from_str(include_str!("groups.json")).expect("golden JSON parses");
    let case = |(name, Case { groups, trajectory }): (String, Case)| {
        let mut golden = Golden::load(&groups.model);
        golden.rule = Rule::AdamW(AdamW {
            embedding_lr_factor: groups.embedding_lr_factor,
            weight_decay_embeddings: Some(groups.weight_decay_embeddings),
            ..*golden.rule.adamw()
        });
        golden.info.trajectory = trajectory;
        (name, golden)
    };
    info.cases.into_iter().map(case).collect()
}

/// The case under rules that are not its own, which must not follow its trajectory.
pub(crate) fn wrong((name, golden): &(String, Golden)) -> [(&'static str, (String, Golden)); 2] {
    let rule = *golden.rule.adamw();
    let faster = AdamW { embedding_lr_factor: rule.embedding_lr_factor * 1.1, ..rule };
    let like_matrices = AdamW { weight_decay_embeddings: None, ..rule };
    [("a tenth faster", faster), ("the decay of matrices", like_matrices)].map(|(what, rule)| {
        let golden = Golden { rule: Rule::AdamW(rule), ..golden.clone() };
        (what, (name.clone(), golden))
    })
}

/// What is off and by how much, unless a new engine of `golden.dims` follows the case's trajectory.
pub(crate) fn compare(engine: &mut dyn Engine, (name, golden): &(String, Golden)) -> Result<(), String> {
    let layout = engine.layout().clone();
    let failed = |e: EngineError| format!("the engine failed: {e}");
    engine.write(State::Parameters, &golden.flat("params", &layout)).map_err(failed)?;
    trajectory(engine, golden, TRAJECTORY)?;
    let read = engine.read(State::Parameters).map_err(failed)?;
    padding_is_zero("parameters", &read, &golden.dims, &layout)?;
    let finals =
        SafeTensors::deserialize(include_bytes!("groups.safetensors")).expect("golden tensors parse");
    for (tensor, range) in [("wte.weight", &layout.wte), ("wpe.weight", &layout.wpe)] {
        let view = finals.tensor(&format!("{name}.{tensor}")).expect("a golden tensor");
        let expected = super::floats(view.dtype(), view.data());
        let pairs = read[range.start..].iter().copied().zip(expected);
        near("after the last step", tensor, pairs, FINAL)?;
    }
    Ok(())
}
