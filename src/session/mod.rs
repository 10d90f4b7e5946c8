//! Carrying out what a recipe asks for: the parts of an experiment, and the runs that are made of them.
//!
//! A run is trained by [`Call::train`] and continued by [`Call::resume`]. Neither knows a terminal, a command line or
//! the exit code of a process: what people should know goes to an [`Audience`], what they ask for meanwhile comes in
//! through [`Requests`], and how a call ended is an [`Ending`]. A model that is only to be used is opened by
//! [`model::open`].

pub mod audience;
mod begun;
mod best;
mod branch;
mod call;
mod continued;
mod data_watch;
mod encoded;
pub mod ending;
pub mod engines;
mod evaluated;
pub mod evaluation;
mod follower;
pub mod generation;
pub mod inputs;
mod instead;
mod job;
mod leader;
pub mod machine;
mod meaning;
mod measured;
mod member;
pub mod missing;
pub mod model;
pub mod pulse;
pub mod ranks;
mod recipes;
mod recorder;
mod rehearsal;
mod relative;
mod requests;
mod resume;
mod saved;
mod saver;
mod secret;
mod seen;
mod source;
pub mod standing;
mod start;
mod step_times;
pub mod supported;
pub mod task_names;
mod tensorboard;
pub mod throughput;
mod unusable;
pub mod verification;
mod watching;

pub use crate::recipe::at_home;
pub use crate::run::find::RUNS_DIR;
pub use audience::{Audience, Event, Silence};
pub use call::Call;
pub use ending::{End, Ending, UsageError};
pub use inputs::Data;
pub use pulse::Pulse;
pub use recorder::{SAMPLE_TEMPERATURE, SAMPLE_TOP_K};
pub use requests::{Held, Requests};
pub use start::Start;
