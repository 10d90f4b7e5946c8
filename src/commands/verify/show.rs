//! A verification as text for people.

use super::scope::Scope;
use crate::engine::verify::Report;
use crate::recipe::{Precision, Recipe};
use std::fmt::Write;

/// What is compared, and what was cut down for it.
pub(super) fn introduction(
    recipe: &Recipe,
    declared: &Scope,
    verified: &Scope,
    rows: &str,
    steps: u32,
) -> String {
    let mut text = format!(
        "{}: the fused engine on the CPU in {} with {} attention against dfdx in fp32, {steps} steps on {rows}\n",
        recipe.name,
        recipe.compute.precision.as_str(),
        recipe.compute.attention.as_str()
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
pub(super) fn table(report: &Report, precision: Precision) -> String {
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
        "\ntolerances: loss {:.0e}, later {:.0e}, gradient {:.0e}, parameters {:.0e}, change {:.0e}",
        bounds.loss, bounds.later_loss, bounds.gradient, bounds.parameter, bounds.change
    );
    let exact = precision == Precision::Fp32;
    if !exact {
        out.push_str("rounding allows for small faults: --set compute.precision=fp32 looks closer at the same kernels\n");
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
                "the first loss agrees; unless rounding hides a fault in the forward pass, the backward pass goes wrong at or just \
                 above {last}"
            );
        }
        (true, None) => out.push_str(
            "the first loss and all gradients agree: look at the optimizer, or at a learning rate so high that rounding grows\n",
        ),
    }
    out.push_str("FAILED\n");
    out
}
