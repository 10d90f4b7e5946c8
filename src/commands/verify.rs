//! `runner verify RECIPE`: is the recipe's engine right, on this machine, for this model?

use super::exit::Exit;
use super::named::Named;
use super::voice::Voice;
use crate::cli::{Format, VerifyArgs};
use crate::engine::verify::Report;
use crate::recipe::{self, EngineKind, Precision, Recipe};
use crate::session::verification::{Scope, Verification};
use crate::session::{UsageError, supported};
use crate::wording::count;
use serde::Serialize;
use std::fmt::Write;

/// The JSON document; its keys are part of the interface.
#[derive(Serialize)]
struct Output<'a> {
    recipe: &'a str,
    device: String,
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
    let (recipe, overrides) = Named::here(&args.recipe).one("verify")?;
    let resolved = recipe::load_among(&recipe, &overrides, &args.runs.runs_dir)?;
    if resolved.recipe.compute.engine == EngineKind::Dfdx {
        let message = "compute.engine = \"dfdx\" is the reference itself, there is nothing to compare it with; verify \
                       the other engine with --set compute.engine=fused";
        return Err(UsageError(message.into()).into());
    }
    let voice = Voice::default();
    supported::check(&resolved, &voice)?;
    let recipe = &resolved.recipe;
    let verification = Verification::new(&resolved, args.steps, &args.runs.runs_dir, &voice)?;
    if args.format == Format::Text {
        super::print(&introduction(recipe, &verification, args.steps))?;
    }
    let report = verification.run()?;
    super::print(&match args.format {
        Format::Text => table(&report, recipe.compute.precision),
        Format::Json => {
            let output = Output {
                recipe: &recipe.name,
                device: verification.device(),
                precision: recipe.compute.precision,
                attention: recipe.compute.attention,
                rows: verification.rows(),
                declared: verification.declared,
                verified: verification.verified,
                report: &report,
            };
            format!("{:#}\n", serde_json::to_value(output)?)
        }
    })?;
    Ok(if report.passed { Exit::Finished } else { Exit::Failure })
}

/// What is compared, and what was cut down for it.
fn introduction(recipe: &Recipe, verification: &Verification, steps: u32) -> String {
    let (declared, verified, rows) = (&verification.declared, &verification.verified, verification.rows());
    let device = match verification.is_on_cuda() {
        true => verification.device(),
        false => "the CPU".to_owned(),
    };
    let mut text = format!(
        "{}: the fused engine on {device} in {} with {} attention against dfdx in fp32, {} on {rows}\n",
        recipe.name,
        recipe.compute.precision.as_str(),
        recipe.compute.attention.as_str(),
        count(steps, "step")
    );
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
        let _ = writeln!(text, "shrunk for the reference: {}", shrunk.join(", "));
    }
    text.push('\n');
    text
}

/// Every step and tensor, the bounds, and the verdict.
fn table(report: &Report, precision: Precision) -> String {
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
    out.push('\n');
    let left_out: usize = report.tensors.iter().map(|t| t.left_out).sum();
    if left_out > 0 {
        let elements = count(left_out, "element");
        let _ = writeln!(
            out,
            "parameters and change are without {elements} whose first gradient is mostly rounding"
        );
    }
    let _ = writeln!(
        out,
        "tolerances: loss {:.0e}, later {:.0e}, gradient {:.0e}, parameters {:.0e}, change {:.0e}",
        bounds.loss, bounds.later_loss, bounds.gradient, bounds.parameter, bounds.change
    );
    let exact = precision == Precision::Fp32;
    if !exact {
        out.push_str(
            "rounding allows for small faults: --set compute.precision=fp32 looks closer at the same kernels\n",
        );
    }
    if report.passed {
        out.push_str("passed\n");
        return out;
    }
    if let Some(first) = &report.first_failure {
        let _ = writeln!(out, "first tensor off, in order of computation: {first}");
    }
    let first_loss_agrees = report.steps.first().is_some_and(|s| s.loss_error <= bounds.loss);
    match (first_loss_agrees, &report.last_gradient_failure) {
        (false, _) => out.push_str("the first loss differs: look at the forward pass\n"),
        (true, Some(last)) if exact => {
            let _ = writeln!(
                out,
                "the first loss agrees, so the forward pass does; the backward pass goes wrong at or just above {last}"
            );
        }
        (true, Some(last)) => {
            let _ = writeln!(
                out,
                "the first loss agrees; unless rounding hides a fault in the forward pass, the backward pass goes \
                 wrong at or just above {last}"
            );
        }
        (true, None) => out.push_str(
            "the first loss and all gradients agree: look at the optimizer, or at a learning rate so high that \
             rounding grows\n",
        ),
    }
    out.push_str("FAILED\n");
    out
}
