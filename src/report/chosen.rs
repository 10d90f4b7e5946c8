//! What `auto` came to in a run, which decides its memory and its speed, and what that was asked for.

use crate::recipe::keys::find_table;
use serde_json::Value as Json;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A key that may be `auto`, and what came of it.
pub(super) type Choice = (&'static str, fn(&Chosen) -> Option<&str>);

/// The keys that may be `auto`.
pub(super) const CHOICES: [Choice; 2] = [
    (MICRO_BATCH, |chosen| chosen.micro_batch.as_deref()),
    (RECOMPUTE, |chosen| chosen.recompute.as_deref()),
];

const MICRO_BATCH: &str = "batch.micro_batch";
/// The key of what changes the speed and the memory of a step, and nothing that it computes.
pub(super) const RECOMPUTE: &str = "compute.recompute";

/// What a plan calls the bytes of weights and of the optimizer's states.
const PARAMETERS: &str = "parameters";
const MOMENTS: &str = "moments";

/// What `auto` came to in a run; nothing for what its recipe asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Chosen {
    /// The rows of a micro-batch.
    micro_batch: Option<String>,
    /// What the backward pass computes again.
    recompute: Option<String>,
    /// Equal where recipes ask for steps of the same memory, so that other choices are those of machines.
    pub(super) asked: u64,
    /// Equal where all of it came to the same; `None` where the recipe leaves nothing open.
    pub(super) came_to: Option<u64>,
}

impl Chosen {
    /// Takes from a run's plan what its recipe leaves open.
    pub(super) fn new(plan: &Json, recipe: &[(String, Json)]) -> Self {
        let is_auto = |key: &str| {
            let value = recipe.iter().find(|(path, _)| path == key).map(|(_, value)| value);
            !recipe.is_empty() && value.is_none_or(|value| value.as_str() == Some("auto"))
        };
        let micro_batch = plan.get("micro_batch").and_then(Json::as_u64).filter(|_| is_auto(MICRO_BATCH));
        let recompute = plan.get("recompute").and_then(Json::as_str).filter(|_| is_auto(RECOMPUTE));
        let mut hasher = DefaultHasher::new();
        (micro_batch, recompute).hash(&mut hasher);
        let is_any = micro_batch.is_some() || recompute.is_some();
        Self {
            micro_batch: micro_batch.map(|rows| rows.to_string()),
            recompute: recompute.map(str::to_owned),
            asked: asked(plan, recipe),
            came_to: is_any.then(|| hasher.finish()),
        }
    }
}

/// A hash of the settings that decide what memory a step needs, and of what the weights and the optimizer's states
/// take, which depends on nothing that `auto` leaves open.
fn asked(plan: &Json, recipe: &[(String, Json)]) -> u64 {
    let decides = |key: &str| {
        let table = key.split_once('.').and_then(|(table, _)| find_table(table));
        table.is_some_and(|table| table.decides_memory)
    };
    let of_weights = |kind: &&Json| [PARAMETERS, MOMENTS].map(Some).contains(&kind[0].as_str());
    let mut hasher = DefaultHasher::new();
    recipe.iter().filter(|(key, _)| decides(key)).for_each(|setting| setting.hash(&mut hasher));
    let kinds = plan.get("bytes").and_then(Json::as_array);
    kinds.into_iter().flatten().filter(of_weights).for_each(|kind| kind.hash(&mut hasher));
    hasher.finish()
}
