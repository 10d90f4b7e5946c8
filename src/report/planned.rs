//! What reports take from the plan of a run on record.

use serde_json::Value as Json;

/// The rows of one evaluation of each further set in a plan, where it has some.
pub(super) fn eval_others(plan: &Json) -> Option<Vec<(String, u64)>> {
    let sets = plan.get("data")?.get("val_sets")?.as_array()?.iter();
    let rows = plan.get("eval_others")?.as_array()?.iter();
    let named =
        sets.zip(rows).map(|(set, rows)| Some((set.get("name")?.as_str()?.to_owned(), rows.as_u64()?)));
    named.collect()
}

/// The examples of each task in a plan, where it has some.
pub(super) fn examples(plan: &Json) -> Option<Vec<(String, u64)>> {
    let tasks = plan.get("data")?.get("tasks")?.as_array()?.iter();
    tasks
        .map(|task| Some((task.get("name")?.as_str()?.to_owned(), task.get("examples")?.as_u64()?)))
        .collect()
}
