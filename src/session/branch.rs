//! Whether a recipe can go on from the state of another run, and what that changes.

use super::inputs::{Data, relative};
use super::model::other_tokens;
use super::seen::perhaps_seen;
use crate::model::Dims;
use crate::recipe::keys::INIT_FROM;
use crate::recipe::{self, Branch, Diagnostics, OptimizerName, Recipe, Resolved};
use crate::run::checkpoint::{CheckpointState, Reader};
use crate::run::import;
use crate::wording::count;
use serde_json::json;

/// The key that decides which states there are.
const OPTIMIZER_KIND: &str = "optimizer.kind";

/// Refuses a recipe under which the state would mean something else.
pub(super) fn check(resolved: &Resolved, branch: &Branch, reader: &Reader) -> Result<(), Diagnostics> {
    let (recipe, state) = (&resolved.recipe, reader.state());
    let shown = relative(&branch.run.display().to_string());
    let mut problems = Diagnostics::default();
    let mut refuse =
        |key: &str, message: String, help: &str| problems.append(resolved.complain(key, &message, help));
    let ours = Dims { padded_vocab: recipe.model.vocab_size, ..Dims::new(&recipe.model) };
    match import::dims(reader.path()) {
        Ok(theirs) if theirs == ours => {}
        // a recipe in the run's directory that was edited, for the recipe is what the loader holds this one against
        Ok(theirs) => {
            let message = format!(
                "`{INIT_FROM}`: the state of `{shown}` is of another model: {theirs:?}, not {ours:?}"
            );
            refuse(INIT_FROM, message, TAKE_WEIGHTS);
        }
        Err(error) => refuse(INIT_FROM, error.to_string(), ""),
    }
    let ours = serde_json::to_value(recipe.optimizer.kind).unwrap_or_default();
    let theirs = recipe::values_of(&branch.run)
        .unwrap_or_default()
        .into_iter()
        .find(|(key, _)| key.as_str() == OPTIMIZER_KIND);
    // a run of an earlier version does not say which rule it had: there was one
    let theirs = theirs.map_or_else(|| json!(OptimizerName::Adamw), |(_, value)| value);
    if ours != theirs {
        let message = format!("`{OPTIMIZER_KIND}` is {ours}, and the state of `{shown}` is that of {theirs}");
        refuse(
            OPTIMIZER_KIND,
            message,
            "optimizer = false takes the weights alone, with which any rule can begin",
        );
    }
    let (total, sizes) = (recipe.batch.total_tokens as u64, recipe.step_sizes());
    let (step, tokens) = (state.step, state.tokens);
    if sizes.checked_tokens_before(step) != Some(tokens) {
        let before = tokens.checked_div(step).unwrap_or_default();
        if sizes.is_constant() && before * step == tokens {
            let message =
                format!("`batch.total_tokens` is {total}, and the steps of `{shown}` took {before}");
            refuse("batch.total_tokens", message, TAKE_WEIGHTS);
        } else {
            let ours = sizes.checked_tokens_before(step).unwrap_or(u64::MAX);
            let message = format!(
                "the first {step} steps of this recipe take {ours} tokens, and those of `{shown}` took {tokens}: \
                 `batch.ramp_start`, `ramp_tokens` and `ramp_increment` decide how the batch grows"
            );
            refuse("batch.ramp_start", message, TAKE_WEIGHTS);
        }
    }
    let schedule = &recipe.schedule;
    if schedule.steps(&sizes) <= step {
        let key = schedule.length_key();
        let (run, of) = match schedule.max_tokens {
            Some(tokens) => (tokens, format!(" = {}", count(schedule.steps(&sizes), "step"))),
            None => (schedule.steps(&sizes), String::new()),
        };
        let message = format!("`{key}` is {run}{of}, and the state of `{shown}` is that of step {step}");
        refuse(key, message, "the steps count from the other run's first: ask for more");
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

const TAKE_WEIGHTS: &str = "the step and the position in the data go on only with the same; optimizer = false takes \
                            the weights alone";

/// Whether a state was trained on other data than these.
pub(super) fn has_other_data(state: &CheckpointState, data: Option<&Data>) -> bool {
    let theirs = state.data_digests.get("train");
    data.zip(theirs).is_some_and(|(data, theirs)| data.digests.train != *theirs)
}

/// What differs from the other run and changes what its rows or numbers mean.
pub(super) fn notes(recipe: &Recipe, branch: &Branch, reader: &Reader, data: Option<&Data>) -> Vec<String> {
    let state = reader.state();
    let tokens = data.and_then(|data| other_tokens(reader.path(), recipe.model.vocab_size, &data.tokenizer));
    let mut notes = Vec::from_iter(tokens);
    let position = state.rows_consumed;
    if has_other_data(state, data) {
        notes.push(format!(
            "the training data are not those of the other run: row {position} of theirs comes next"
        ));
    }
    notes.extend(data.and_then(|data| perhaps_seen(data, &state.trained_on())));
    let theirs = recipe::values_of(&branch.run).unwrap_or_default();
    let differs = |key: &str, ours: serde_json::Value| {
        theirs.iter().any(|(known, theirs)| known == key && *theirs != ours)
    };
    if differs("seed", recipe.seed.into()) || differs("data.shuffle", recipe.data.shuffle.into()) {
        notes.push(format!(
            "the order of rows is another (seed, data.shuffle): row {position} of it comes next, and rows may come \
             twice"
        ));
    }
    notes
}
