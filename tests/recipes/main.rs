//! Recipes: layers, checks, identity, provenance, and the plan that follows from them.

#![allow(clippy::duplicate_mod, reason = "what tests share may be used alone, and brings what it needs")]

#[path = "../log_support/mod.rs"]
mod log_support;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
#[path = "../source_support/mod.rs"]
mod source_support;
#[path = "../support/mod.rs"]
mod support;

mod carried;
mod effect;
mod explain;
mod gpt3;
mod identity;
mod ids;
mod kept;
mod keys;
mod laws;
mod layers;
mod links;
mod plan;
mod plan_laws;
mod plan_roofline;
mod plan_scaling;
mod ramp;
mod recompute;
mod runs;
mod shipped;
mod wrong;
