//! What is said before and after training.

use crate::plan::{Plan, gib};
pub(in crate::commands) use crate::report::numbers::{duration, thousands};

/// The plan, for people.
pub(super) fn plan_lines(plan: &Plan) -> String {
    let emulated = if plan.emulated { " (emulated by rounding)" } else { "" };
    let bytes: Vec<String> = (plan.bytes.kinds.iter().filter(|(_, bytes)| *bytes > 0))
        .map(|(kind, bytes)| format!("{} {}", kind.replace('_', " "), gib(*bytes)))
        .collect();
    format!(
        "  model    {} parameters: {} in {} tensors decayed, {} in {} not\n\
         \x20 batch    {} tokens = {}{} x {} rows of {}\n\
         \x20 run      {} steps, {} tokens, {:.2} epochs of {} rows\n\
         \x20 compute  {:.1} MFLOP per token, {:.4} PFLOP in all, on {} with {}{} threads, {}{emulated}\n\
         \x20 memory   {}{}{}: {}{}",
        thousands(plan.parameters.total as u64),
        thousands(plan.parameters.decayed.elements as u64),
        plan.parameters.decayed.tensors,
        thousands(plan.parameters.not_decayed.elements as u64),
        plan.parameters.not_decayed.tensors,
        thousands(plan.batch.tokens_per_step as u64),
        ranks(plan.ranks.world_size),
        plan.batch.micro_steps,
        plan.batch.micro_batch,
        plan.memory.dims.block_size,
        thousands(plan.steps),
        thousands(plan.tokens),
        plan.epochs,
        thousands(plan.data.train_rows),
        plan.flops_per_token as f64 / 1e6,
        plan.flops / 1e15,
        plan.device,
        ranks(plan.ranks.here),
        plan.threads,
        precision(plan),
        if plan.bytes.exact { "" } else { "about " },
        gib(plan.bytes.total),
        if plan.ranks.world_size > 1 { " for each rank" } else { "" },
        bytes.join(", "),
        match plan.bytes.snapshot {
            0 => String::new(),
            more => format!("; {} more while a checkpoint is written", gib(more)),
        }
    )
}

/// A number of ranks as a factor before what each of them has; nothing for one.
pub(in crate::commands) fn ranks(ranks: usize) -> String {
    if ranks > 1 { format!("{ranks} ranks x ") } else { String::new() }
}

fn precision(plan: &Plan) -> String {
    format!("{:?}", plan.memory.precision).to_lowercase()
}
