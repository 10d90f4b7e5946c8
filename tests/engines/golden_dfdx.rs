//! The reference engine follows PyTorch.

use crate::golden;

use golden::Golden;
use runner::engine::dfdx::CpuEngine;
use runner::engine::optimizer::{OptimizerKind, OptimizerState, OptimizerStep};
use runner::engine::{Applied, Batch, Engine, EngineError, State, TokenLosses};
use runner::model::ParamLayout;
use std::borrow::Cow;

fn engine(golden: &Golden) -> CpuEngine {
    CpuEngine::new(golden.dims, OptimizerKind::AdamW).expect("the golden configurations are valid")
}

#[test]
fn three_heads_and_an_odd_vocabulary() {
    let golden = Golden::load("a");
    golden::check(&mut engine(&golden), &golden);
}

#[test]
fn a_padded_vocabulary() {
    let golden = Golden::load("b");
    assert!(golden.dims.padded_vocab > golden.dims.vocab_size);
    golden::check(&mut engine(&golden), &golden);
}

#[test]
fn embeddings_with_settings_of_their_own() {
    for case in golden::groups::cases() {
        let mut engine =
            CpuEngine::new(case.1.dims, OptimizerKind::AdamW).expect("the golden configurations are valid");
        assert_eq!(golden::groups::compare(&mut engine, &case), Ok(()), "{}", case.0);
    }
}

#[test]
fn dropout_by_factors() {
    for case in golden::dropout::cases() {
        let engine = || CpuEngine::new(case.golden.dims, OptimizerKind::AdamW).expect("valid dimensions");
        let mut right = engine().with_dropout(case.dropout);
        assert_eq!(golden::dropout::compare(&mut right, &case), Ok(()));
        golden::dropout::compare(&mut engine(), &case).expect_err("nothing is left out");
    }
}

#[test]
fn muon_s_trajectories() {
    for case in golden::muon::cases() {
        let mut engine =
            CpuEngine::new(case.1.dims, OptimizerKind::Muon).expect("the golden configurations are valid");
        golden::muon::check(&mut engine, &case);
    }
}

/// The reference with one thing wrong, to see that the harness would notice and name it.
struct Broken(CpuEngine, Fault);

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Gradients of one tensor a little too large.
    Gradient(&'static str),
    /// Micro-batches weighted as if each were the whole batch.
    Weight,
    /// The norm clipped to is twice what was asked for.
    Clip,
    /// Weight decay left out.
    Decay,
    /// No bias correction, as if training had gone on for long.
    Correction,
}

impl Engine for Broken {
    fn layout(&self) -> &ParamLayout {
        self.0.layout()
    }

    fn optimizer_states(&self) -> &'static [OptimizerState] {
        self.0.optimizer_states()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        self.0.read(state)
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        self.0.write(state, values)
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        let weight = if self.1 == Fault::Weight && weight < 1.0 { 1.0 } else { weight };
        self.0.accumulate(batch, weight)?;
        if let Fault::Gradient(name) = self.1 {
            let range = self.layout().tensor(name).expect("the tensor exists").range();
            let mut gradients = self.read(State::Gradients)?.into_owned();
            gradients[range].iter_mut().for_each(|g| *g *= 1.001);
            self.write(State::Gradients, &gradients)?;
        }
        Ok(())
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        self.0.loss()
    }

    fn applied(&mut self) -> Result<Applied, EngineError> {
        self.0.applied()
    }

    fn discard(&mut self) -> Result<(), EngineError> {
        self.0.discard()
    }

    fn update(&mut self, update: &OptimizerStep) -> Result<(), EngineError> {
        let mut update = *update;
        match self.1 {
            Fault::Clip => update.clip_norm *= 2.0,
            Fault::Decay => {
                update.rule.adamw_mut().weight_decay = 0.0;
            }
            Fault::Correction => update.t += 1000,
            Fault::Gradient(_) | Fault::Weight => {}
        }
        self.0.update(&update)
    }

    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        self.0.evaluate(batch)
    }

    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError> {
        self.0.token_losses(batch)
    }

    fn losses_at(&mut self, batch: Batch, at: &[usize], greedy: bool) -> Result<TokenLosses, EngineError> {
        self.0.losses_at(batch, at, greedy)
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        self.0.logits(tokens, last_only)
    }
}

#[test]
fn the_harness_names_what_is_wrong() {
    let golden = Golden::load("a");
    for (fault, named) in [
        (Fault::Gradient("h.1.mlp.c_fc.bias"), "gradient: h.1.mlp.c_fc.bias is off by 1.0e-3"),
        (Fault::Weight, "step 0: the gradient norm"),
        (Fault::Clip, "step"),
        (Fault::Decay, "step"),
        (Fault::Correction, "step 1"),
    ] {
        let message = golden::compare(&mut Broken(engine(&golden), fault), &golden).expect_err("a fault");
        assert!(message.contains(named), "expected `{named}` in: {message}");
    }
}
