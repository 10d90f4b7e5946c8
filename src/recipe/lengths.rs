//! Relations between lengths: of the batch while it grows, of the run, its warm-up and its decay.

use super::check::{Relation, multiples};
use super::schema::{Recipe, ScheduleConfig};
use super::steps::{Lengths, MOST_STAGES, StepSizes};
use super::words::{MicroBatch, ScheduleKind};

/// What does not hold among the lengths of a recipe.
pub(super) fn relations(recipe: &Recipe) -> impl Iterator<Item = Relation> {
    let schedule = &recipe.schedule;
    let batch = batch(recipe).or_else(|| ramp(recipe));
    // in tokens they depend on the size of a step
    let is_known = batch.is_none() || !(schedule.counts_tokens() || recipe.batch.ramp_start > 0);
    let sizes = is_known.then(|| recipe.step_sizes());
    let of_lengths = sizes.map(|sizes| {
        let of = Measured { schedule, lengths: schedule.lengths(&sizes), sizes: &sizes };
        [of.run(), of.warmup(), of.final_decay(), of.early_decay()]
    });
    let forms = [run_forms(schedule), warmup_forms(schedule), decay_forms(schedule)];
    let is_said_once = forms.iter().all(Option::is_none);
    let of_lengths = of_lengths.filter(|_| is_said_once).into_iter().flatten();
    [batch, steps_of_one_size(recipe)].into_iter().chain(forms).chain(of_lengths).flatten()
}

/// What a step's tokens must be a multiple of, and how that is written.
fn unit(recipe: &Recipe) -> (usize, String) {
    let (block, ranks) = (recipe.model.block_size, recipe.batch.world_size);
    match recipe.batch.micro_batch {
        MicroBatch::Auto => (block * ranks, format!("block_size · world_size = {block} · {ranks}")),
        MicroBatch::Rows(rows) => (
            rows * block * ranks,
            format!("micro_batch · block_size · world_size = {rows} · {block} · {ranks}"),
        ),
    }
}

/// The relation that a number of tokens is no multiple of a [`unit`].
fn not_whole(key: &'static str, tokens: usize, unit: usize, name: &str) -> Relation {
    let leaf = key.rsplit('.').next().unwrap_or(key);
    let title = format!("`{key}` is {tokens}, not a multiple of {name} = {unit}");
    Relation::broken_by(key, title)
        .and("batch.micro_batch")
        .and("model.block_size")
        .and("batch.world_size")
        .help(match multiples(key, tokens, unit) {
            Some(fits) => format!("{leaf} = {fits} would fit"),
            None => format!("no {leaf} fits: {name} is more than the largest, use smaller ones"),
        })
}

fn batch(recipe: &Recipe) -> Option<Relation> {
    let total = recipe.batch.total_tokens;
    let (unit, name) = unit(recipe);
    if total.is_multiple_of(unit) {
        return None;
    }
    let relation = not_whole("batch.total_tokens", total, unit, &name);
    let per_row = recipe.model.block_size * recipe.batch.world_size;
    match recipe.batch.micro_batch {
        MicroBatch::Rows(rows) if total.is_multiple_of(per_row) => {
            let per_rank = total / per_row;
            let fewer = (1..rows).rev().find(|rows| per_rank.is_multiple_of(*rows)).unwrap_or(1);
            Some(relation.help(format!("so would micro_batch = {fewer}, with total_tokens as it is")))
        }
        _ => Some(relation),
    }
}

/// A batch that grows does so in whole stages, each of whole micro-batches on every rank.
fn ramp(recipe: &Recipe) -> Option<Relation> {
    let (start, total) = (recipe.batch.ramp_start, recipe.batch.total_tokens);
    if start == 0 {
        return None;
    }
    let Some(ramp) = recipe.batch.ramp() else {
        let title =
            format!("`batch.ramp_start` is {start}, but nothing says over how many tokens the batch grows");
        let help =
            "write `batch.ramp_tokens`, such as ramp_tokens = 4e9; GPT-3's batches grew over 4 to 12 billion";
        return Some(Relation::broken_by("batch.ramp_start", title).help(help));
    };
    if start >= total {
        let title = format!(
            "`batch.ramp_start` is {start}, not less than `batch.total_tokens` = {total}, to which it grows"
        );
        let relation = Relation::broken_by("batch.ramp_start", title).and("batch.total_tokens");
        return Some(relation.help("ramp_start = 0 has the batch stay as it is"));
    }
    let every = "every stage of the batch must divide into whole micro-batches on every rank";
    let (unit, name) = unit(recipe);
    if !start.is_multiple_of(unit) {
        return Some(not_whole("batch.ramp_start", start, unit, &name).help(every));
    }
    let (increment, missing) = (ramp.increment, total - start);
    if !increment.is_multiple_of(unit) {
        return Some(not_whole("batch.ramp_increment", increment, unit, &name).help(every));
    }
    let relation = |title| {
        Relation::broken_by("batch.ramp_increment", title).and("batch.ramp_start").and("batch.total_tokens")
    };
    if !missing.is_multiple_of(increment) {
        let title = format!(
            "`batch.ramp_increment` is {increment}, of which no number leads from `batch.ramp_start` = {start} to \
             `batch.total_tokens` = {total}"
        );
        let fits = gcd(missing, increment);
        return Some(
            relation(title).help(format!("ramp_increment = {fits} divides the {missing} between them")),
        );
    }
    let stages = missing / increment;
    (stages > MOST_STAGES).then(|| {
        let title = format!(
            "`batch.ramp_increment` is {increment}, so the batch grows in {stages} stages, more than {MOST_STAGES}"
        );
        relation(title).help("use a larger one")
    })
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Where the batch grows, a number of steps is no length.
fn steps_of_one_size(recipe: &Recipe) -> Option<Relation> {
    let schedule = &recipe.schedule;
    let (key, steps, instead) = match (schedule.warmup_steps, schedule.decay_steps) {
        _ if recipe.batch.ramp_start == 0 => return None,
        (Some(steps @ 1..), _) => ("schedule.warmup_steps", steps, "warmup_tokens"),
        (_, Some(steps)) => ("schedule.decay_steps", steps, "decay_tokens"),
        _ => return None,
    };
    let title = format!(
        "`{key}` is {steps}, but the batch grows (`batch.ramp_start` = {}): its steps take more and more tokens",
        recipe.batch.ramp_start
    );
    let relation = Relation::broken_by(key, title).and("batch.ramp_start").help(format!(
        "say it in tokens, in schedule.{instead}: a number of steps would be another length with every other ramp"
    ));
    Some(relation)
}

/// A length is said once, in steps or in tokens.
fn once(
    steps_key: &'static str,
    steps: Option<u64>,
    key: &'static str,
    tokens: Option<u64>,
) -> Option<Relation> {
    let title = format!("`{key}` is {}, but `{steps_key}` is {}: keep one", tokens?, steps?);
    let relation = Relation::broken_by(key, title).and(steps_key);
    Some(relation.help("leave the other one out, or --unset it: it follows from the size of a step"))
}

fn run_forms(schedule: &ScheduleConfig) -> Option<Relation> {
    once("schedule.max_steps", schedule.max_steps, "schedule.max_tokens", schedule.max_tokens)
}

fn warmup_forms(schedule: &ScheduleConfig) -> Option<Relation> {
    once("schedule.warmup_steps", schedule.warmup_steps, "schedule.warmup_tokens", schedule.warmup_tokens)
}

fn decay_forms(schedule: &ScheduleConfig) -> Option<Relation> {
    once("schedule.decay_steps", schedule.decay_steps, "schedule.decay_tokens", schedule.decay_tokens)
}

/// The lengths of a schedule over steps of known sizes.
struct Measured<'a> {
    schedule: &'a ScheduleConfig,
    lengths: Lengths,
    sizes: &'a StepSizes,
}

impl Measured<'_> {
    /// The length of the run in tokens or in steps.
    fn run_in(&self, tokens: bool) -> u64 {
        let steps = self.schedule.steps(self.sizes);
        if tokens { self.sizes.checked_tokens_before(steps).unwrap_or(u64::MAX) } else { steps }
    }

    /// The key of the run's length with its value, in words that compare with a length in tokens or in steps.
    fn run_said(&self, tokens: bool, is: &str) -> String {
        let (key, run) = (self.schedule.length_key(), self.run_in(tokens));
        match (self.schedule.max_tokens, tokens) {
            (None, false) => format!("`{key}`{is}{run}"),
            (Some(said), true) => format!("`{key}`{is}{said}"),
            (Some(said), false) => format!("`{key}` = {said}, which is {run} steps"),
            (None, true) => format!("`{key}` = {}, which is {run} tokens", self.run_in(false)),
        }
    }

    /// A run that has a step.
    fn run(&self) -> Option<Relation> {
        let (said, least) = (self.schedule.max_tokens?, self.sizes.tokens(0));
        let title = format!("`schedule.max_tokens` is {said}, fewer than the {least} of the first step");
        (said < least).then(|| Relation::broken_by("schedule.max_tokens", title))
    }

    fn warmup(&self) -> Option<Relation> {
        let schedule = self.schedule;
        let said = schedule.warmup_steps.or(schedule.warmup_tokens)?;
        let (key, tokens) = (schedule.warmup_key(), schedule.warmup_tokens.is_some());
        let leaf = if tokens { "warmup_tokens" } else { "warmup_steps" };
        let title = || format!("`{key}` is {said}, longer than the run: {}", self.run_said(tokens, " is "));
        (self.lengths.warmup > self.lengths.run).then(|| {
            Relation::broken_by(key, title())
                .and(schedule.length_key())
                .help(format!("{leaf} = {} or less would fit", self.run_in(tokens)))
        })
    }

    /// The last steps of a run, which the warm-up must leave.
    fn final_decay(&self) -> Option<Relation> {
        let (schedule, lengths) = (self.schedule, self.lengths);
        let said = schedule.decay_steps.or(schedule.decay_tokens)?;
        let (key, tokens) = (schedule.decay_key(), schedule.decay_tokens.is_some());
        let warmup = schedule.warmup_steps.or(schedule.warmup_tokens).unwrap_or(0);
        // a warm-up that is too long by itself has its own message
        let is_known = schedule.kind == ScheduleKind::Wsd && lengths.warmup <= lengths.run;
        let decay = match tokens && self.sizes.is_constant() {
            true => self.sizes.steps_within(said).max(1),
            false => said,
        };
        if !is_known || lengths.warmup + decay <= lengths.run {
            return None;
        }
        let title = format!(
            "`{key}` is {said}: with `{}` = {warmup} that is longer than {}",
            schedule.warmup_key(),
            self.run_said(tokens, " = ")
        );
        let left = match tokens && self.sizes.is_constant() {
            true => (lengths.run - lengths.warmup) * self.sizes.tokens(0),
            false => lengths.run - lengths.warmup,
        };
        let leaf = if tokens { "decay_tokens" } else { "decay_steps" };
        let help = match left {
            0 => "shorten the warm-up: it leaves no step for the decay".into(),
            left => format!("{leaf} = {left} or less would fit"),
        };
        let relation = Relation::broken_by(key, title).and(schedule.warmup_key());
        Some(relation.and(schedule.length_key()).help(help))
    }

    /// A decay that ends at some point of the run, which lies behind the warm-up.
    fn early_decay(&self) -> Option<Relation> {
        let (schedule, lengths) = (self.schedule, self.lengths);
        let said = schedule.decay_steps.or(schedule.decay_tokens)?;
        let is_early = matches!(schedule.kind, ScheduleKind::Cosine | ScheduleKind::Linear);
        if !is_early || lengths.decay_end > lengths.warmup {
            return None;
        }
        let (key, warmup_key) = (schedule.decay_key(), schedule.warmup_key());
        let warmup = schedule.warmup_steps.or(schedule.warmup_tokens).unwrap_or(0);
        let title = format!("`{key}` is {said}, where the warm-up is not over: `{warmup_key}` is {warmup}");
        let relation = Relation::broken_by(key, title).and(warmup_key);
        Some(
            relation.help("it counts from the start of the run, to where the rate has fallen to its minimum"),
        )
    }
}
