//! The device's clock: events between launches, read after one wait, and names for profilers.

use super::{Gpu, GraphState};
use crate::cuda::Event;
use crate::cuda::nvtx::Ranges;
use crate::engine::EngineError;
use crate::engine::cuda::device::Device;
use crate::engine::traffic::Mark;
use std::fmt::Display;

/// Events that record the time at which the stream passes them, used again after each reading.
#[derive(Default)]
pub(super) struct Clock {
    events: Vec<Event>,
    used: usize,
}

impl Gpu {
    /// Records an event. A recording has none: it would be passed whenever the recording is played.
    pub(super) fn place_mark(&mut self) -> Result<Option<Mark>, EngineError> {
        if self.state != GraphState::Running {
            return Ok(None);
        }
        self.context.make_current()?;
        let place = self.clock.used;
        if place == self.clock.events.len() {
            self.clock.events.push(Event::timed(&self.context)?);
        }
        self.clock.events[place].record(&self.stream).map_err(|error| self.blame(error))?;
        self.clock.used += 1;
        Ok(Some(Mark(place)))
    }

    /// Waits for all work and reads the events.
    pub(super) fn seconds_between(&mut self, pairs: &[(Mark, Mark)]) -> Result<Vec<f64>, EngineError> {
        if !pairs.is_empty() {
            self.synchronize()?;
        }
        let placed = &self.clock.events[..self.clock.used];
        let event = |mark: Mark| {
            let forgotten = || EngineError::Device("a moment was asked for that is forgotten".to_owned());
            placed.get(mark.0).ok_or_else(forgotten)
        };
        let between = |&(begin, end): &(Mark, Mark)| Ok(event(begin)?.seconds_to(event(end)?)?);
        let seconds = pairs.iter().map(between).collect();
        self.clock.used = 0;
        seconds
    }
}

/// Begins or ends a range of work that a profiler shows.
pub(super) fn annotate(name: Option<&dyn Display>) {
    let Some(ranges) = Ranges::get() else { return };
    match name {
        Some(name) => ranges.push(&name.to_string()),
        None => ranges.pop(),
    }
}
