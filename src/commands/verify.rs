//! `runner verify RECIPE`: is the recipe's engine right, on this machine, for this model?

use super::build::{self, Data};
use super::exit::{Exit, UsageError};
use super::terminal::say;
use crate::cli::{Format, VerifyArgs};
use crate::data::Stream;
use crate::engine::verify::{MicroBatch, Report, Tolerances, verify};
use crate::engine::{Update, cpu};
use crate::model::init::{initialize, random_bits};
use crate::model::{Dims, ParamLayout};
use crate::plan::flops_per_token;
use crate::plan::hardware::Hardware;
use crate::plan::memory::{MemoryConfig, MemoryPlan, Mode};
use crate::recipe::{self, EngineKind, MicroBatch as MicroBatchSize, Recipe, Resolved};
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Operations that the reference may be asked for in all: about a minute and a half on two cores.
const BUDGET: f64 = 1.5e12;
/// A context that still takes several tiles of flash attention, the last one ragged.
const TILES: usize = 161;

/// What is verified: the recipe's model, or as much of it as the reference can do in a few minutes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Scope {
    n_layer: usize,
    block_size: usize,
    micro_batch: usize,
    micro_steps: usize,
}

#[derive(Serialize)]
struct Output<'a> {
    recipe: &'a str,
    precision: recipe::Precision,
    attention: recipe::Attention,
    rows: &'a str,
    declared: Scope,
    verified: Scope,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs both engines and shows where they differ. Exit code 0 if everything is within its tolerance, else 1.
pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<Exit> {
    let resolved = recipe::load(&args.recipe, &super::overrides(&args.overrides))?;
    build::check_supported(&resolved)?;
    let recipe = &resolved.recipe;
    if recipe.compute.engine == EngineKind::Dfdx {
        let message =
            "the dfdx engine is the reference itself; verify the other one with --set compute.engine=fused";
        return Err(UsageError(message.into()).into());
    }
    let (declared, verified) = scopes(recipe, args.steps as usize);
    let dims =
        Dims { n_layer: verified.n_layer, block_size: verified.block_size, ..Dims::new(&recipe.model) };
    let threads = match recipe.compute.threads {
        0 => Hardware::detect().threads,
        threads => threads,
    };
    let config = MemoryConfig {
        dims,
        micro_batch: verified.micro_batch,
        precision: recipe.compute.precision,
        attention: recipe.compute.attention,
        threads,
        mode: Mode::Train,
    };
    let (rows, mut source) = rows(&resolved, &dims, verified, &args.runs.runs_dir);
    if args.format == Format::Text {
        say(&introduction(recipe, &declared, &verified, rows, args.steps));
    }
    let mut engine = cpu::engine(MemoryPlan::new(config))?;
    let mut reference = build::reference(dims, threads)?;
    let layout = ParamLayout::new(&dims);
    let mut initial = vec![0.0; layout.len];
    initialize(&dims, &layout, recipe.seed, &mut initial);
    disturb(&layout, &mut initial);
    let updates = updates(recipe, args.steps);
    let tolerances = Tolerances::new(recipe.compute.precision);
    let report = verify(&mut engine, &mut reference, &initial, &mut source, &updates, tolerances)?;
    super::print(&match args.format {
        Format::Text => table(&report),
        Format::Json => {
            let output = Output {
                recipe: &recipe.name,
                precision: recipe.compute.precision,
                attention: recipe.compute.attention,
                rows,
                declared,
                verified,
                report: &report,
            };
            format!("{:#}\n", serde_json::to_value(output)?)
        }
    })?;
    Ok(if report.passed { Exit::Finished } else { Exit::Failure })
}

/// What the recipe declares, and what of it is verified: at most 4 rows at a time and two micro-steps, then fewer layers
/// (they are alike), then less context, until the reference's work is within its budget.
fn scopes(recipe: &Recipe, steps: usize) -> (Scope, Scope) {
    let dims = Dims::new(&recipe.model);
    let rows = (recipe.batch.total_tokens / dims.block_size).max(1);
    let micro_batch = match recipe.batch.micro_batch {
        MicroBatchSize::Rows(rows) => rows,
        MicroBatchSize::Auto => rows.min(4),
    };
    let declared = Scope {
        n_layer: dims.n_layer,
        block_size: dims.block_size,
        micro_batch,
        micro_steps: (rows / micro_batch).max(1),
    };
    let work = |scope: &Scope| {
        let dims = Dims { n_layer: scope.n_layer, block_size: scope.block_size, ..dims };
        let tokens = scope.block_size * scope.micro_batch * scope.micro_steps;
        flops_per_token(&dims, ParamLayout::new(&dims).len) as f64 * tokens as f64 * steps as f64
    };
    let mut scope =
        Scope { micro_batch: micro_batch.min(4), micro_steps: declared.micro_steps.min(2), ..declared };
    let smaller: [fn(&mut Scope) -> bool; 6] = [
        |s| shrink(&mut s.n_layer, 2),
        |s| shrink(&mut s.block_size, TILES),
        |s| shrink(&mut s.micro_batch, 1),
        |s| shrink(&mut s.micro_steps, 1),
        |s| shrink(&mut s.block_size, 32),
        |s| shrink(&mut s.n_layer, 1),
    ];
    for step in smaller {
        while work(&scope) > BUDGET && step(&mut scope) {}
    }
    (declared, scope)
}

/// Halves a number, but not below `least`; false if it was there already.
fn shrink(number: &mut usize, least: usize) -> bool {
    let before = *number;
    *number = (before / 2).max(least).min(before);
    *number < before
}

/// Rows of the recipe's own data where it can be opened, else random tokens; and which of the two.
fn rows(
    resolved: &Resolved,
    dims: &Dims,
    scope: Scope,
    runs_dir: &Path,
) -> (&'static str, Box<dyn FnMut(usize) -> Vec<MicroBatch>>) {
    let (rows, cols, vocab) = (scope.micro_batch, scope.block_size, dims.vocab_size as u64);
    let micro_batch = move |mut fill: Box<dyn FnMut(&mut [u32], &mut [u32])>| {
        let (mut inputs, mut targets) = (vec![0; rows * cols], vec![0; rows * cols]);
        fill(&mut inputs, &mut targets);
        MicroBatch { inputs, targets, rows, cols }
    };
    let recipe = &resolved.recipe;
    let mut shrunk = resolved.clone();
    shrunk.recipe.model.block_size = cols;
    let seed = recipe.seed;
    match Data::open(&shrunk, runs_dir) {
        Ok(data) => {
            let (data, shuffle) = (std::rc::Rc::new(data), recipe.data.shuffle);
            let source = move |step: usize| {
                let micro_steps = 0..scope.micro_steps;
                micro_steps
                    .map(|i| {
                        let (data, first) = (data.clone(), ((step * scope.micro_steps + i) * rows) as u64);
                        micro_batch(Box::new(move |inputs, targets| {
                            Stream::new(&data.train, seed, shuffle).fill(first, rows, inputs, targets);
                        }))
                    })
                    .collect()
            };
            ("the recipe's data", Box::new(source))
        }
        Err(_) => {
            let source = move |step: usize| {
                let micro_steps = 0..scope.micro_steps;
                micro_steps
                    .map(|i| {
                        let key = random_bits(seed, (step * scope.micro_steps + i) as u64);
                        micro_batch(Box::new(move |inputs, targets| {
                            let token = |i: usize| (random_bits(key, i as u64) % vocab) as u32;
                            inputs.iter_mut().enumerate().for_each(|(i, t)| *t = token(i));
                            targets.iter_mut().enumerate().for_each(|(i, t)| *t = token(i + 1));
                        }))
                    })
                    .collect()
            };
            ("random tokens", Box::new(source))
        }
    }
}

/// Moves the vectors off their initial ones and zeros, which would hide a factor or a term left out.
fn disturb(layout: &ParamLayout, parameters: &mut [f32]) {
    for (i, x) in parameters[layout.decayed..].iter_mut().enumerate() {
        *x += ((random_bits(7, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.05;
    }
    // gaps between tensors stay zero
    let mut end = layout.decayed;
    for tensor in layout.tensors.iter().filter(|t| !t.decayed) {
        parameters[end..tensor.offset].fill(0.0);
        end = tensor.range().end;
    }
    parameters[end..].fill(0.0);
}

fn updates(recipe: &Recipe, steps: u32) -> Vec<Update> {
    let schedule = Schedule::new(&recipe.schedule, recipe.optimizer.lr);
    let loss_scale = LossScaler::new(recipe.compute.precision).scale();
    let recipe::OptimizerConfig { betas, eps, weight_decay, clip_norm, .. } = recipe.optimizer;
    (0..u64::from(steps))
        .map(|step| Update {
            lr: schedule.lr(step),
            betas,
            eps,
            weight_decay,
            clip_norm,
            t: step + 1,
            loss_scale,
        })
        .collect()
}

fn introduction(recipe: &Recipe, declared: &Scope, verified: &Scope, rows: &str, steps: u32) -> String {
    let mut text = format!(
        "{}: the fused engine on the CPU in {:?} with {:?} attention against dfdx in fp32, {steps} steps on {rows}",
        recipe.name, recipe.compute.precision, recipe.compute.attention
    )
    .to_lowercase();
    let changes = [
        ("n_layer", declared.n_layer, verified.n_layer),
        ("block_size", declared.block_size, verified.block_size),
        ("micro_batch", declared.micro_batch, verified.micro_batch),
        ("micro-steps", declared.micro_steps, verified.micro_steps),
    ];
    let shrunk: Vec<String> = (changes.iter().filter(|(_, from, to)| from != to))
        .map(|(what, from, to)| format!("{what} {from} -> {to}"))
        .collect();
    if !shrunk.is_empty() {
        let _ = write!(text, "\nshrunk for the reference: {}", shrunk.join(", "));
    }
    text
}

fn table(report: &Report) -> String {
    let mut out = String::new();
    let verdict = |passed: bool| if passed { "ok" } else { "FAIL" };
    let bounds = &report.tolerances;
    let _ = writeln!(
        out,
        "{:>4}  {:>10}  {:>10}  {:>8}  {:>10}  {:>10}",
        "step", "loss", "reference", "error", "grad_norm", "reference"
    );
    for s in &report.steps {
        let _ = writeln!(
            out,
            "{:>4}  {:>10.6}  {:>10.6}  {:>8.1e}  {:>10.5}  {:>10.5}  {}",
            s.step,
            s.loss,
            s.reference_loss,
            s.loss_error,
            s.grad_norm,
            s.reference_grad_norm,
            verdict(s.passed)
        );
    }
    let width = report.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "\n{:<width$}  {:>8}  {:>11}  {:>10}  {:>8}",
        "tensor", "gradient", "cosine", "parameters", "change"
    );
    for t in &report.tensors {
        let _ = writeln!(
            out,
            "{:<width$}  {:>8.1e}  {:>11.8}  {:>10.1e}  {:>8.1e}  {}",
            t.name,
            t.gradient_error,
            t.gradient_cosine,
            t.parameter_error,
            t.change_error,
            verdict(t.gradient_passed && t.parameter_passed)
        );
    }
    let _ = writeln!(
        out,
        "\ntolerances: loss {:.0e}, gradient {:.0e}, parameters {:.0e}, change {:.0e}",
        bounds.loss, bounds.gradient, bounds.parameter, bounds.change
    );
    if report.passed {
        out.push_str("passed\n");
        return out;
    }
    if let Some(first) = &report.first_failure {
        let _ = writeln!(out, "first tensor off, in order of computation: {first}");
    }
    match (report.steps.first().is_some_and(|s| s.loss_error > bounds.loss), &report.last_gradient_failure) {
        (true, _) => out.push_str("the first loss differs: look at the forward pass\n"),
        (false, Some(last)) => {
            let _ = writeln!(
                out,
                "the first loss agrees, so the forward pass does; the backward pass goes wrong at or just above {last}"
            );
        }
        (false, None) => out.push_str("all gradients agree: look at the optimizer\n"),
    }
    out.push_str("FAILED\n");
    out
}
