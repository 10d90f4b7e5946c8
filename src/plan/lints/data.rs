//! Data that say less than they seem to.

use super::shape::cost;
use super::{Remark, Subject};
use crate::model::Dims;
use crate::plan::SourceSize;
use crate::wording::{count, thousands};

/// Up to this many repetitions are about as good as new data (Muennighoff et al., 2023).
const EPOCHS: f64 = 4.0;

/// What stands behind the first of so many, where there are others.
fn others(all: usize, in_words: impl Fn(usize) -> String) -> String {
    if all > 1 { in_words(all - 1) } else { String::new() }
}

fn more_like_it(others: usize) -> String {
    format!(" (and {others} more like it)")
}

/// Validation data that are trained on too, or were.
pub(super) fn overlap(subject: &Subject) -> Remark {
    let data = &subject.recipe.data;
    let mut is_certain = true;
    let shared: Vec<&str> = match subject.shards {
        Some(shards) => {
            let all = || shards.shared.iter();
            is_certain = all().any(|shard| shard.is_certain);
            all().filter(|shard| shard.is_certain == is_certain).map(|shard| shard.name.as_str()).collect()
        }
        // without the files, only what is named twice can be known
        None => data.val.iter().filter(|entry| data.train.contains(entry)).map(String::as_str).collect(),
    };
    const APART: &str = "keep them apart: a loss on seen data says nothing about new data";
    let seen_before = subject.shards.and_then(|shards| shards.seen_before.as_ref());
    if let Some(sets) = seen_before.filter(|_| shared.is_empty()) {
        let of = match &sets[..] {
            [] => "the validation data".to_owned(),
            sets => format!("validation data of {}", sets.join(", ")),
        };
        let message = format!("the weights that it begins with were trained on {of}");
        return Some(("data.val", message, APART.to_owned()));
    }
    let first = shared.first()?;
    let others = others(shared.len(), |n| format!(" and {n} more"));
    let some = if is_certain { "" } else { "some of " };
    Some((
        "data.val",
        format!("validation data are among the training data: {some}{first}{others}"),
        format!("{APART}; builtin texts differ by seed"),
    ))
}

/// Files of tasks that the run goes without.
pub(super) fn missing_task(subject: &Subject) -> Remark {
    let skipped = &subject.shards?.skipped;
    let (key, path) = skipped.first()?;
    let others = others(skipped.len(), |n| format!(", and {n} more"));
    Some((
        key,
        format!("there is no `{}`{others}: the run trains without it", path.display()),
        "`runner data fetch hellaswag` gets HellaSwag; `--unset eval.hellaswag` leaves it out".to_owned(),
    ))
}

/// Tasks with examples that lose their beginning.
pub(super) fn cut_task(subject: &Subject) -> Remark {
    let cut = &subject.shards?.cut;
    let of_task = |(name, cut, all): &(String, usize, usize)| format!("{cut} of {all} examples of {name}");
    let tasks: Vec<String> = cut.iter().map(of_task).collect();
    (!tasks.is_empty()).then(|| {
        let block_size = subject.recipe.model.block_size;
        (
            "model.block_size",
            format!(
                "{} are longer than the context of {block_size} tokens: they lose the beginning of their text",
                tasks.join(" and ")
            ),
            "scores of other context lengths say nothing about them; a larger model.block_size has room for more"
                .to_owned(),
        )
    })
}

/// Training data, or a source of a mixture, that are read too often.
pub(super) fn epochs(subject: &Subject) -> Remark {
    let plan = subject.plan;
    let all = plan.rows_seen(plan.steps);
    let source =
        |source: &'_ SourceSize| (source.epochs(all), source.name.clone(), source.rows as f64 / source.share);
    let sources = plan.data.sources.iter().map(source);
    let most = sources.max_by(|a, b| a.0.total_cmp(&b.0));
    let (epochs, what, rows) =
        most.unwrap_or_else(|| (plan.epochs, "its data".to_owned(), plan.data.train_rows as f64));
    (subject.shards.is_some() && epochs > EPOCHS).then(|| {
        let of_others = plan.sizes.rows_before(plan.steps) - all;
        let steps = plan.sizes.steps_within(((EPOCHS * rows) as u64 + of_others) * plan.sizes.block_size());
        let first = plan.before.steps;
        let help = match steps {
            // the other run has taken them
            steps if first > 0 && steps <= first => "use more data".to_owned(),
            steps => format!("use more data, or {} at most", count(steps.max(1), "step")),
        };
        (
            subject.recipe.schedule.length_key(),
            format!("the run goes through {what} {epochs:.1} times; beyond {EPOCHS} times little is learned"),
            help,
        )
    })
}

/// Fewer rows than a step takes.
pub(super) fn small(subject: &Subject) -> Remark {
    let (rows, wanted) = (subject.plan.data.train_rows, subject.plan.batch.rows_per_step);
    (subject.shards.is_some() && rows < wanted as u64).then(|| {
        (
            "data.train",
            format!(
                "the training data have {}, but a step takes {wanted}: it sees some twice",
                count(rows, "row")
            ),
            format!(
                "use more data, or a batch of {} tokens at most",
                rows * subject.plan.memory.dims.block_size as u64
            ),
        )
    })
}

/// The part of the tokens that may be behind the last rows of files before somebody should know.
const UNREAD: f64 = 0.1;

/// Short files, of which much is in no row: a row does not go on from one file into the next.
pub(super) fn unread(subject: &Subject) -> Remark {
    let (shards, data) = (subject.shards?, &subject.plan.data);
    let in_rows = data.train_rows * subject.plan.memory.dims.block_size as u64;
    let unread = data.train_tokens.saturating_sub(in_rows);
    let share = unread as f64 / data.train_tokens as f64;
    (shards.train > 1 && share > UNREAD).then(|| {
        (
            "data.train",
            format!(
                "{} of {} tokens are in no row, and the run never reads them: a row ends with its file",
                thousands(unread),
                thousands(data.train_tokens)
            ),
            "`runner data prepare` joins short files into shards; a smaller model.block_size leaves less out"
                .to_owned(),
        )
    })
}

/// Files with the contents of an earlier one, for example where a name and a pattern both match it.
pub(super) fn repeated(subject: &Subject) -> Remark {
    let repeated = &subject.shards?.repeated;
    let (is_trained_on, first) = repeated.first()?;
    let others = others(repeated.len(), more_like_it);
    let message =
        format!("{first}{others} repeats the contents of an earlier file, which are read once more");
    let help = "name each file once";
    // a part that is set aside is of the training data
    Some(match *is_trained_on || subject.recipe.data.val_fraction.is_some() {
        true => {
            let shares = "a mixture, [{ path = …, weight = … }], says how often parts are read";
            ("data.train", message, format!("{help}; {shares}"))
        }
        false => ("data.val", message, help.to_owned()),
    })
}

/// Files with holes. nanoGPT's `prepare.py`, for one, gives a file its length first, and may end before it is filled.
pub(super) fn unwritten(subject: &Subject) -> Remark {
    let unwritten = &subject.shards?.unwritten;
    let (key, first, bytes) = unwritten.first()?;
    let others = others(unwritten.len(), more_like_it);
    Some((
        key,
        format!("{} bytes of {first}{others} lie in holes, and are read as zeros", thousands(*bytes)),
        "make or get the file again: what wrote it may have ended early".to_owned(),
    ))
}

/// A vocabulary of which the data use less than half. Texts of some length use nearly all of the vocabulary that they
/// are encoded with.
pub(super) fn vocab(subject: &Subject) -> Remark {
    let (shards, dims) = (subject.shards?, subject.plan.memory.dims);
    let largest = shards.largest?;
    // trained weights bring their vocabulary with them
    let is_given = subject.recipe.model.init_from.is_some();
    (!is_given && 2 * (largest + 1) <= dims.vocab_size).then(|| {
        let used = largest + 1;
        let padded_vocab = used.next_multiple_of(subject.recipe.model.vocab_multiple);
        (
            "model.vocab_size",
            format!(
                "the largest token in the data is {largest}, but model.vocab_size is {}: most of it never occurs",
                dims.vocab_size
            ),
            format!(
                "if no other data will follow, model.vocab_size = {used}: {}",
                cost(&dims, Dims { vocab_size: used, padded_vocab, ..dims })
            ),
        )
    })
}

/// A part for validation of fewer rows than a batch: its loss is mostly chance.
pub(super) fn small_validation(subject: &Subject) -> Remark {
    let fraction = subject.recipe.data.val_fraction?;
    let (rows, wanted) = (subject.plan.data.val_rows, subject.plan.batch.rows_per_step as u64);
    let all = rows + subject.plan.data.train_rows;
    (subject.shards.is_some() && rows < wanted).then(|| {
        let message = format!(
            "data.val_fraction = {fraction} leaves {rows} rows for validation, fewer than the {wanted} of a step: \
             their loss varies with the cut"
        );
        // a tenth is common; half of the data is the most that makes sense
        let enough = wanted as f64 / all as f64;
        let help = match enough <= 0.5 {
            true => format!("data.val_fraction = {:.3} leaves about {wanted}", (enough * 1e3).ceil() / 1e3),
            false => "use more data".to_owned(),
        };
        ("data.val_fraction", message, help)
    })
}
