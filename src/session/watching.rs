//! Looking up between two kernels of a pass.

use super::pulse::Pulse;
use super::requests::Requests;
use crate::run::fault;
use crate::train::{Doing, Watcher, Within};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Notes where the run is, and looks for requests to stop.
pub(super) struct Watching<'a> {
    pub(super) requests: &'a Requests,
    pub(super) pulse: Arc<Pulse>,
}

impl Watcher for Watching<'_> {
    fn within(&self, at: Within) -> ControlFlow<()> {
        self.pulse.within(at);
        fault::between(if at.doing == Doing::Step { "step" } else { "evaluation" }, "part");
        if self.requests.is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
