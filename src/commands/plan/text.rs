//! The plan for people: a name and a figure per line.

use super::{FORMULA, FORMULA_FROM, Outlook, Run, roofline};
use crate::commands::voice::{peak_text, ranks, standing_text};
use crate::engine::memory::Recompute;
use crate::plan::document::StageDocument;
use crate::plan::recompute::RecomputeOption;
use crate::plan::{Before, PROGRAM_BYTES, gib};
use crate::recipe::{EngineKind, Lengths, RecomputeName, ScheduleKind};
use crate::report::numbers::{count, duration, flop, grouped, thousands};
use std::fmt::Write;
use std::time::Duration;

/// Of more stages than these not all are shown.
const MOST_STAGES: usize = 12;

impl Outlook<'_> {
    pub(super) fn text(&self) -> String {
        let plan = &self.plan;
        let dims = &plan.memory.dims;
        let number = |n: usize| thousands(n as u64);
        let mut out = String::new();
        let mut line = |name: &str, text: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<22}{text}");
        };
        line("recipe", self.recipe.name.clone());
        line("directory", self.run_text());
        line("model", grouped(plan.parameters.total as u64, "parameter"));
        for (name, group) in
            [("  decayed", plan.parameters.decayed), ("  not decayed", plan.parameters.not_decayed)]
        {
            line(name, format!("{} in {}", number(group.elements), count(group.tensors, "tensor")));
        }
        let padding = plan.memory.dims.padded_vocab - dims.vocab_size;
        line(
            "  vocabulary",
            format!("{} and {} of padding", grouped(dims.vocab_size as u64, "token"), count(padding, "row")),
        );
        line(
            "batch",
            format!(
                "{} per step = {}{} x {} of {}",
                grouped(plan.batch.tokens_per_step as u64, "token"),
                ranks(plan.ranks.world_size),
                plan.batch.micro_steps,
                count(plan.batch.micro_batch, "row"),
                count(dims.block_size, "token")
            ),
        );
        for (i, text) in self.ramp_lines().into_iter().enumerate() {
            line(if i == 0 { "ramp" } else { "" }, text);
        }
        if plan.ranks.world_size > 1 {
            line("ranks", self.ranks_text());
            line("", format!("each sends {} per step", grouped(plan.wire_bytes_per_step, "byte")));
        }
        for (i, text) in self.begins.iter().enumerate() {
            line(if i == 0 { "begins" } else { "" }, text.clone());
        }
        line("run", format!("{}, {}", grouped(plan.steps, "step"), grouped(plan.tokens, "token")));
        if plan.before.steps > 0 {
            let (steps, tokens) = (plan.own_steps(), plan.own_tokens());
            line("", format!("{}, {} of its own", grouped(steps, "step"), grouped(tokens, "token")));
        }
        for text in self.schedule_lines() {
            line("", text);
        }
        if let Some(target) = plan.target {
            line("", format!("it may end earlier: after the first evaluation with val_loss <= {target}"));
        }
        for (i, text) in self.data_lines().into_iter().enumerate() {
            line(if i == 0 { "data" } else { "" }, text);
        }
        line("compute", format!("{:.1} MFLOP per token = {FORMULA}", plan.flops_per_token as f64 / 1e6));
        line("", FORMULA_FROM.to_owned());
        line("", format!("{} in all", flop(plan.flops)));
        let precision = if plan.emulated { " (emulated by rounding)" } else { "" };
        line(
            "device",
            format!(
                "{}, {}{}, {}{precision}",
                plan.device,
                ranks(plan.ranks.here),
                count(plan.threads, "thread"),
                self.recipe.compute.precision.as_str()
            ),
        );
        line("  peak", peak_text(&self.peak));
        let exact = if plan.bytes.exact { "" } else { "about " };
        let each = match (plan.ranks.world_size, plan.shard.count) {
            (1, _) => "",
            (_, 1) => " for each rank",
            _ => " for each rank at most",
        };
        line(
            "memory",
            format!("{exact}{} = {} bytes{each}", gib(plan.bytes.total), number(plan.bytes.total)),
        );
        if self.recipe.compute.engine == EngineKind::Dfdx {
            line("", "an estimate: the dfdx engine allocates as it goes".to_owned());
        }
        for (kind, bytes) in &plan.bytes.kinds {
            line(&format!("  {}", kind.replace('_', " ")), format!("{} bytes", number(*bytes)));
        }
        for option in plan.recompute_options() {
            line(&format!("  recompute {}", option.recompute.as_str()), self.recompute_text(option));
        }
        if plan.cuda.is_some() {
            line("", outputs_text(plan.memory.keeps_outputs(), plan.memory.recompute()));
        }
        if plan.bytes.snapshot > 0 {
            let bytes = number(plan.bytes.snapshot);
            let host = match plan.cuda {
                Some(_) => format!(" on the host, which has {}", gib(self.hardware.free_memory)),
                None => String::new(),
            };
            line(
                "  checkpoint copy",
                format!("{bytes} bytes more while one is written, if they are free then{host}"),
            );
        }
        if plan.bytes.gathered > 0 {
            let bytes = number(plan.bytes.gathered);
            let otherwise = if plan.bytes.snapshot > 0 { ", if no copy is made" } else { "" };
            line(
                "  gathered",
                format!("{bytes} bytes more on rank 0 while a checkpoint is written{otherwise}"),
            );
        }
        if plan.cuda.is_none() {
            line(
                "  program",
                format!("some {} besides: code, tokenizer, stacks, buffers", gib(PROGRAM_BYTES)),
            );
        }
        let on = if plan.cuda.is_some() { " on the device" } else { "" };
        line("  free", format!("{}{on}", gib(self.free())));
        line("predicted", self.prediction_text());
        if plan.ranks.world_size > 1 {
            line("", self.scaling_text());
        }
        if let Some(refusal) = &self.refusal {
            let _ = writeln!(out, "\nthis run would be refused: {refusal}");
        }
        if let Some(roofline) = &self.roofline {
            let _ = write!(out, "\n{}", roofline::text(roofline));
        }
        for lint in &self.lints {
            let code = lint.code.as_str();
            let _ = write!(
                out,
                "\nlint {code}: {}\n  {}\n  to silence it: [lints] allow = [\"{code}\"]\n",
                lint.message, lint.help
            );
        }
        out
    }

    /// What one value of `compute.recompute` comes to.
    fn recompute_text(&self, option: RecomputeOption) -> String {
        let plan = &self.plan;
        let RecomputeOption { recompute, total_bytes, extra_flops_per_token } = option;
        let bytes = format!("{} bytes in all", thousands(total_bytes as u64));
        let operations = match extra_flops_per_token {
            0 => "no more operations".to_owned(),
            extra => format!(
                "{:.1} % more operations, {:.1} MFLOP per token",
                100.0 * extra as f64 / plan.flops_per_token as f64,
                extra as f64 / 1e6
            ),
        };
        let chosen = match recompute == plan.memory.recompute() {
            true if self.recipe.compute.recompute == RecomputeName::Auto => ": chosen",
            true => ": as the recipe says",
            false => "",
        };
        format!("{bytes}, {operations}{chosen}")
    }

    fn data_lines(&self) -> Vec<String> {
        let plan = &self.plan;
        if let Err(why) = &self.data {
            return vec![format!("could not be opened, so epochs are unknown: {why}")];
        }
        let Before { steps, data_from } = plan.before;
        let seen = match (plan.epochs.floor(), plan.epochs.ceil()) {
            // which rows they are depends on two orders, and on where an epoch ends
            _ if steps > 0 && data_from == steps => "by the run's own steps".to_owned(),
            _ if steps > 0 => "with those of the other run".to_owned(),
            (low, high) if low == high => format!("each row is seen {}", count(low as u64, "time")),
            (low, high) => format!("each row is seen {low} or {high} times"),
        };
        let mut lines = vec![format!(
            "{} for training in {}",
            grouped(plan.data.train_tokens, "token"),
            grouped(plan.data.train_rows, "row")
        )];
        if plan.data.sources.is_empty() {
            lines.push(format!("{:.2} epochs: {seen}", plan.epochs));
        }
        let rows = plan.rows_seen(plan.steps);
        lines.extend(plan.data.sources.iter().map(|source| {
            format!(
                "{:.1} % of the rows from {}: {:.2} epochs of its {}",
                100.0 * source.share,
                source.name,
                source.epochs(rows),
                grouped(source.rows, "row")
            )
        }));
        if let Some(fraction) = self.recipe.data.val_fraction {
            lines.push(format!("the last {fraction} of data.train's tokens are kept for validation"));
        }
        lines.push(match (plan.eval_rows, self.recipe.eval.every) {
            (0, _) => "no validation".to_owned(),
            (rows, 0) => {
                format!("{} for validation, never used: eval.every = 0", grouped(rows as u64, "row"))
            }
            (rows, every) => format!(
                "validation on {} of {}{} every {}",
                thousands(rows as u64),
                grouped(plan.data.val_rows, "row"),
                self.recipe.eval.tokens.map_or_else(String::new, |_| {
                    let tokens = rows as u64 * self.recipe.model.block_size as u64;
                    format!(" ({})", grouped(tokens, "token"))
                }),
                grouped(every, "step")
            ),
        });
        let others = plan.data.val_sets.iter().zip(&plan.eval_others);
        lines.extend(others.map(|(set, &rows)| {
            format!("and on {} of {} of `{}`", thousands(rows as u64), grouped(set.rows, "row"), set.name)
        }));
        lines.extend(plan.data.tasks.iter().map(|task| {
            let (examples, tokens) = (grouped(task.examples, "example"), grouped(task.tokens, "token"));
            format!("with the task {}: {examples}, {tokens}", task.name)
        }));
        lines
    }

    /// The stages of a batch that grows; of many the first and the last.
    fn ramp_lines(&self) -> Vec<String> {
        let (plan, stages) = (&self.plan, self.plan.stages());
        let Some((last, before)) = stages.split_last() else { return Vec::new() };
        let from = |stage: &StageDocument| {
            format!(
                "from step {}: {} = {}{} x {}",
                thousands(stage.first_step),
                grouped(stage.tokens_per_step, "token"),
                ranks(plan.ranks.world_size),
                thousands(stage.micro_steps),
                count(plan.batch.micro_batch, "row"),
            )
        };
        let is_full = last.tokens_per_step == plan.batch.tokens_per_step as u64;
        let mut lines = vec![match is_full {
            true => format!(
                "in {} over {}, then the full batch",
                grouped(before.len() as u64, "stage"),
                grouped(last.first_token, "token")
            ),
            false => format!("the run ends in stage {} of its growth", thousands(stages.len() as u64)),
        }];
        match before {
            [first, second, third, .., nearly] if before.len() > MOST_STAGES => {
                lines.extend([first, second, third].map(from));
                lines.push(format!("… {} more", grouped(before.len() as u64 - 4, "stage")));
                lines.push(from(nearly));
            }
            all => lines.extend(all.iter().map(from)),
        }
        lines.push(from(last));
        lines
    }

    /// Lengths in tokens with the steps that they take.
    fn schedule_lines(&self) -> Vec<String> {
        let (plan, schedule) = (&self.plan, &self.recipe.schedule);
        let Lengths { run, warmup, decay_start, decay_end } = schedule.lengths(&plan.sizes);
        if schedule.kind == ScheduleKind::Constant || !schedule.counts_tokens() {
            return Vec::new();
        }
        let steps = |length: u64| match plan.sizes.is_constant() {
            true => grouped(length, "step"),
            false => {
                format!("{} = {}", grouped(length, "token"), grouped(plan.sizes.steps_for(length), "step"))
            }
        };
        let mut lines = vec![];
        if warmup > 0 {
            lines.push(format!("warm-up over {}", steps(warmup)));
        }
        if decay_start > warmup {
            lines.push(format!("the rate falls from its peak after {}", steps(decay_start)));
        }
        if decay_end < run {
            lines.push(format!("the rate stays at its minimum after {}", steps(decay_end)));
        }
        lines
    }

    fn ranks_text(&self) -> String {
        let plan = &self.plan;
        let moments = if plan.shard.count > 1 { ", with a part of the moments each" } else { "" };
        format!(
            "{} of {} per step{moments}, {}",
            thousands(plan.ranks.world_size as u64),
            grouped(plan.batch.rows_per_rank as u64, "row"),
            match plan.ranks.here {
                here if here == plan.ranks.world_size => "all on this machine".to_owned(),
                here => format!("{here} on each machine like this one"),
            }
        )
    }

    fn scaling_text(&self) -> String {
        match &self.scaling {
            None => "without the time in which gradients are added up: give --link GB/S, as `runner bench` measures \
                     it"
                .into(),
            Some(scaling) => format!(
                "of a step of {:.3} s, {:.3} s go into adding up gradients at {:.2} GB/s: {:.1} % of what {} could do",
                scaling.step_s,
                scaling.exposed_s,
                scaling.bytes_per_s / 1e9,
                scaling.efficiency * 100.0,
                count(self.plan.ranks.world_size, "rank")
            ),
        }
    }

    fn prediction_text(&self) -> String {
        match &self.prediction {
            Ok((prediction, basis)) => {
                let predicted = self.with_ranks(prediction);
                format!(
                    "{}{} for the run at {} tokens/s, {:.0} % of the peak, from {basis}",
                    if self.plan.target.is_some() { "at most " } else { "" },
                    time(predicted.total_s),
                    rate(predicted.tokens_per_s),
                    self.mfu().unwrap_or_default() * 100.0
                )
            }
            Err(why) => format!("nothing: {why}"),
        }
    }

    fn run_text(&self) -> String {
        match &self.run {
            None => "known once the data can be opened: their contents are part of its name".to_owned(),
            Some(Run { path, standing, .. }) => {
                let how = match standing {
                    Ok(standing) => standing_text(standing, self.plan.steps),
                    Err(why) => format!("cannot be read: {why}"),
                };
                format!("{}, {how}", path.display())
            }
        }
    }
}

/// What becomes of the outputs of LayerNorm and GELU. That there is memory for them, `keeps`, also decides about the
/// result where some are computed again.
fn outputs_text(keeps: bool, recompute: Recompute) -> String {
    let outputs = "the outputs of LayerNorm and GELU";
    match (keeps, recompute) {
        (true, Recompute::None) => format!("{outputs} are kept for the backward pass"),
        (true, again) => format!(
            "the results are those of a run that keeps {outputs}; recompute {} keeps {}",
            again.as_str(),
            if again == Recompute::Mlp { "those of LayerNorm" } else { "neither" }
        ),
        (false, _) => format!("{outputs} are computed again in the backward pass: to keep them takes more"),
    }
}

/// Tokens per second, with a decimal where that matters.
fn rate(tokens_per_s: f64) -> String {
    if tokens_per_s < 10.0 { format!("{tokens_per_s:.1}") } else { thousands(tokens_per_s as u64) }
}

/// Seconds, in the units that suit them.
fn time(seconds: f64) -> String {
    const DAY: f64 = 86_400.0;
    if seconds > 2.0 * DAY {
        return format!("{} days", thousands((seconds / DAY) as u64));
    }
    duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO))
}
