//! Settings far from what has worked: the learning rate, its shape, and the batch.

use super::{Remark, Subject};
use crate::recipe::{Lengths, OptimizerName, ScheduleKind, is_default};
use crate::wording::count;

/// GPT-3's models (Brown et al., 2020, table 2.1): parameters, peak learning rate, tokens per batch.
const GPT3: [(f64, f64, f64); 8] = [
    (125e6, 6e-4, 0.5e6),
    (350e6, 3e-4, 0.5e6),
    (760e6, 2.5e-4, 0.5e6),
    (1.3e9, 2e-4, 1e6),
    (2.7e9, 1.6e-4, 1e6),
    (6.7e9, 1.2e-4, 2e6),
    (13e9, 1e-4, 2e6),
    (175e9, 0.6e-4, 3.2e6),
];
/// Models smaller than the table's first by more than this have no entry in it.
const SMALLEST: f64 = 100e6;
const LR_FACTOR: f64 = 3.0;
const BATCH_FACTOR: f64 = 4.0;

/// A schedule that does not do within the run what it is for.
pub(super) fn horizon(subject: &Subject) -> Remark {
    let (schedule, plan) = (&subject.recipe.schedule, subject.plan);
    let Lengths { run, warmup, decay_start, decay_end } = schedule.lengths(&plan.sizes);
    let run_text = count(run, if plan.sizes.is_constant() { "step" } else { "token" });
    let kind = match schedule.kind {
        ScheduleKind::Constant => return None,
        ScheduleKind::Cosine => "cosine",
        ScheduleKind::Linear => "linear",
        ScheduleKind::Wsd => "wsd",
    };
    // in the unit of the key that it is a value for
    let length = |in_tokens: bool| if in_tokens { plan.tokens } else { plan.steps };
    let warmup_key = schedule.warmup_key();
    let shorter =
        || format!("shorten {warmup_key}, to {} for example", length(schedule.warmup_tokens.is_some()) / 10);
    if warmup >= run {
        let message =
            format!("the warm-up takes the whole run of {run_text}, so the rate never falls to its minimum");
        return Some((warmup_key, message, shorter()));
    }
    if schedule.min_lr_ratio == Some(1.0) {
        return Some((
            "schedule.min_lr_ratio",
            format!("schedule.min_lr_ratio = 1.0 makes the {kind} schedule constant after the warm-up"),
            "choose a smaller ratio, 0.1 for example".to_owned(),
        ));
    }
    let decay_key = schedule.decay_key();
    let decay = length(schedule.decay_tokens.is_some());
    if schedule.kind == ScheduleKind::Wsd && decay_start <= warmup {
        return Some((
            decay_key,
            format!("warm-up and decay take the whole run of {run_text}, so the rate is never stable"),
            format!("shorten {decay_key}, to {} for example", decay.div_ceil(5)),
        ));
    }
    if decay_end > run {
        return Some((
            decay_key,
            format!("the decay ends after the run of {run_text}, so the rate never falls to its minimum"),
            format!("leave {decay_key} out to have it end with the run, or take {decay} at most"),
        ));
    }
    (2 * warmup > run).then(|| {
        let message = format!("the warm-up takes {warmup} of {run_text}, more than half of the run");
        (warmup_key, message, shorter())
    })
}

/// A learning rate far from the usual.
pub(super) fn lr(subject: &Subject) -> Remark {
    // a model that goes on from trained weights takes less, and how much less is the experiment
    if subject.recipe.model.init_from.is_some() {
        return None;
    }
    let (lr, parameters) = (subject.recipe.optimizer.lr, subject.plan.parameters.total as f64);
    let (usual, source) = if parameters < SMALLEST {
        // Kaplan et al., 2020, equation D.1, in which N is without the embeddings
        let dims = &subject.plan.memory.dims;
        let embeddings = ((dims.vocab_size + dims.block_size) * dims.n_embd) as f64;
        (0.003239 - 0.0001395 * (parameters - embeddings).max(1.0).ln(), "Kaplan et al., 2020")
    } else {
        (interpolate(parameters, |row| row.1), "GPT-3's table")
    };
    let (factor, than) = apart(lr, usual, LR_FACTOR)?;
    Some((
        "optimizer.lr",
        format!(
            "optimizer.lr = {lr:e} is {factor:.1} times {than} than is usual for {} parameters",
            rounded(parameters)
        ),
        format!("{source} has {usual:.1e} for this size"),
    ))
}

/// A batch far from the usual.
pub(super) fn batch(subject: &Subject) -> Remark {
    let (tokens, parameters) =
        (subject.plan.batch.tokens_per_step as f64, subject.plan.parameters.total as f64);
    if parameters < SMALLEST {
        return None;
    }
    let usual = interpolate(parameters, |row| row.2);
    let (factor, than) = apart(tokens, usual, BATCH_FACTOR)?;
    Some((
        "batch.total_tokens",
        format!("batch.total_tokens = {tokens} is {factor:.1} times {than} than is usual for this size"),
        format!("GPT-3's table has {:.1} million tokens for it", usual / 1e6),
    ))
}

/// A number of parameters as models are named: 124M, 1.6B.
fn rounded(parameters: f64) -> String {
    match parameters {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e7 => format!("{:.0}M", n / 1e6),
        n if n >= 1e5 => format!("{:.1}M", n / 1e6),
        n => n.to_string(),
    }
}

/// A weight decay that no tensor has: under Muon AdamW's is that of the embeddings, which may have one of their own.
pub(super) fn decay(subject: &Subject) -> Remark {
    const KEY: &str = "optimizer.weight_decay";
    let optimizer = &subject.recipe.optimizer;
    let of_embeddings =
        optimizer.weight_decay_embeddings.filter(|_| optimizer.kind == OptimizerName::Muon)?;
    let (unused, of_matrices) = (optimizer.weight_decay, optimizer.muon_weight_decay);
    // the default is not a choice
    (!is_default(KEY, &unused.into())).then(|| {
        let message = format!(
            "{KEY} = {unused} has no effect: under Muon the embeddings decay by weight_decay_embeddings = \
             {of_embeddings}, the matrices of the blocks by muon_weight_decay = {of_matrices}, and nothing else does"
        );
        (KEY, message, "leave it out, or set optimizer.muon_weight_decay if the matrices are meant".to_owned())
    })
}

/// How far apart two numbers are, if by more than `limit`: the factor and in which direction.
fn apart(value: f64, usual: f64, limit: f64) -> Option<(f64, &'static str)> {
    let ratio = value / usual;
    // a little slack: the limit itself is not far
    let limit = limit * (1.0 + 1e-9);
    if ratio > limit {
        Some((ratio, "larger"))
    } else if ratio < 1.0 / limit {
        Some((1.0 / ratio, "smaller"))
    } else {
        None
    }
}

/// A column of the table between its rows, linear in the logarithms.
fn interpolate(parameters: f64, column: impl Fn(&(f64, f64, f64)) -> f64) -> f64 {
    let above = GPT3.iter().position(|row| row.0 >= parameters);
    match above {
        None => column(&GPT3[GPT3.len() - 1]),
        Some(0) => column(&GPT3[0]),
        Some(above) => {
            let (low, high) = (&GPT3[above - 1], &GPT3[above]);
            let way = (parameters / low.0).ln() / (high.0 / low.0).ln();
            (column(low).ln() * (1.0 - way) + column(high).ln() * way).exp()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_at_its_rows_and_between_them() {
        for row in &GPT3 {
            assert!((interpolate(row.0, |row| row.1) / row.1 - 1.0).abs() < 1e-12);
        }
        let between = interpolate(2e8, |row| row.1);
        assert!(between < 6e-4 && between > 3e-4, "{between}");
        assert_eq!(interpolate(1e12, |row| row.2), 3.2e6);
    }

    #[test]
    fn numbers_of_parameters_read_as_models_are_named() {
        let shown = [4592.0, 7_242_624.0, 124_439_808.0, 1_557_611_200.0].map(rounded);
        assert_eq!(shown, ["4592", "7.2M", "124M", "1.6B"]);
    }

    #[test]
    fn far_means_beyond_the_factor() {
        assert_eq!(apart(3.0, 1.0, 3.0), None);
        assert_eq!(apart(1.0, 3.0, 3.0), None);
        assert_eq!(apart(4.0, 1.0, 3.0), Some((4.0, "larger")));
        assert_eq!(apart(1.0, 4.0, 3.0), Some((4.0, "smaller")));
    }
}
