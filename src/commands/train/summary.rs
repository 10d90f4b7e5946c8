//! What is said before and after training.

use crate::plan::{Plan, gib};
use std::time::Duration;

/// The plan, for people.
pub(super) fn plan_lines(plan: &Plan) -> String {
    let emulated = if plan.emulated { " (emulated by rounding)" } else { "" };
    let bytes: Vec<String> = (plan.bytes.iter().filter(|(_, bytes)| *bytes > 0))
        .map(|(kind, bytes)| format!("{} {}", kind.replace('_', " "), gib(*bytes)))
        .collect();
    format!(
        "  model    {} parameters: {} in {} tensors decayed, {} in {} not\n\
         \x20 batch    {} tokens = {} x {} rows of {}\n\
         \x20 run      {} steps, {} tokens, {:.2} epochs of {} rows\n\
         \x20 compute  {:.1} MFLOP per token, {:.4} PFLOP in all, on {} with {} threads, {}{emulated}\n\
         \x20 memory   {}{}: {}{}",
        thousands(plan.parameters as u64),
        thousands(plan.decayed.elements as u64),
        plan.decayed.tensors,
        thousands(plan.not_decayed.elements as u64),
        plan.not_decayed.tensors,
        thousands(plan.tokens_per_step as u64),
        plan.micro_steps,
        plan.micro_batch,
        plan.memory.dims.block_size,
        thousands(plan.steps),
        thousands(plan.tokens),
        plan.epochs,
        thousands(plan.data.train_rows),
        plan.flops_per_token as f64 / 1e6,
        plan.flops / 1e15,
        plan.device,
        plan.threads,
        precision(plan),
        if plan.bytes_exact { "" } else { "about " },
        gib(plan.total_bytes),
        bytes.join(", "),
        match plan.snapshot_bytes {
            0 => String::new(),
            more => format!("; {} more while a checkpoint is written", gib(more)),
        }
    )
}

fn precision(plan: &Plan) -> String {
    format!("{:?}", plan.memory.precision).to_lowercase()
}

/// A number with its digits grouped.
pub(in crate::commands) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A duration in hours, minutes and seconds.
pub(in crate::commands) fn duration(time: Duration) -> String {
    let s = time.as_secs();
    match (s / 3600, s / 60 % 60) {
        (0, 0) => format!("{:.1} s", time.as_secs_f64()),
        (0, minutes) => format!("{minutes} min {} s", s % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_read_well() {
        assert_eq!([0, 999, 1000, 124_439_808].map(thousands), ["0", "999", "1,000", "124,439,808"]);
        let shown = [9.26, 61.0, 7384.0].map(|s| duration(Duration::from_secs_f64(s)));
        assert_eq!(shown, ["9.3 s", "1 min 1 s", "2 h 3 min"]);
    }
}
