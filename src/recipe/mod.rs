//! Recipes: the keys, the layers that set them, and the origin of every value.
//!
//! [`load`] reads a recipe file with everything that it extends, the environment and the command line's overrides,
//! checks all of it against [`keys::KEYS`] and merges it. All problems come back at once, as [`Diagnostics`].

mod check;
mod diagnostics;
mod effect;
mod files;
mod identity;
mod init_from;
mod json_schema;
mod key_reference;
pub mod keys;
mod layers;
mod leaves;
mod lengths;
mod lint;
mod origin;
mod overrides;
mod parse;
mod paths;
mod presets;
mod resolved;
mod run_name;
mod runs;
pub mod schema;
pub mod shipped;
mod source;
mod sources;
mod stated;
pub mod steps;
mod suggest;
mod tokens;
mod validation;
mod value;
mod vocabulary;
pub mod words;
mod write;
mod written;

pub use diagnostics::Diagnostics;
pub use effect::silenced_by;
pub use identity::{DataDigests, identity, identity_of_file};
pub use init_from::{Branch, InitFrom};
pub use json_schema::json_schema;
pub use key_reference::key_reference;
pub use leaves::{Difference, changeable, diff, leaves};
pub use lint::LintCode;
pub use origin::Origin;
pub use overrides::Overrides;
pub use parse::find_key;
pub use paths::at_home;
pub(crate) use paths::settled;
pub use resolved::{Resolved, Setting, load, load_among};
pub use runs::values_of;
pub use schema::{
    BatchConfig, CheckpointConfig, ComputeConfig, DataConfig, DistributedConfig, EvalConfig, LintsConfig,
    LogConfig, ModelConfig, OptimizerConfig, Recipe, SampleConfig, ScheduleConfig, ValidationSet,
    WatchdogConfig,
};
pub use source::similar;
pub use sources::Sources;
pub use steps::{Lengths, Ramp, Stage, StepSizes};
pub use validation::Validation;
pub(crate) use value::quoted;
pub use words::{
    Attention, Device, EngineKind, MicroBatch, Missing, MuonAdjust, MuonPrecision, OptimizerName, Precision,
    RecomputeName, Residual, ScheduleKind, WatchdogAction,
};
pub use write::to_toml;
pub use written::{asks_the_disk, digest_of_values, is_default, rank, spelled, written};
