//! What the user wrote: the schema of a recipe, its layers, and where every value came from.

pub mod schema;

pub use schema::{
    Attention, BatchConfig, CheckpointConfig, ComputeConfig, DataConfig, Device, EngineKind, EvalConfig,
    MicroBatch, ModelConfig, OptimizerConfig, Precision, Recipe, SampleConfig, ScheduleConfig, ScheduleKind,
};
