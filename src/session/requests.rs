//! What may be asked of a session while it works: to stop, and to save.

use super::pulse::Pulse;
use crate::train::Stop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Requests from outside, such as signals. The training loop looks at them between passes and, where its engine lets
/// it, between the kernels of a pass.
#[derive(Debug, Default)]
pub struct Requests {
    stop: Mutex<Stopping>,
    /// Whether a stop is noted there, to be looked at often.
    is_stopping: AtomicBool,
    save: AtomicBool,
    pulse: Mutex<Option<Arc<Pulse>>>,
}

#[derive(Debug, Default)]
struct Stopping {
    /// Whether a request would be heeded: a session has something to save, and no request came before.
    is_held: bool,
    received: Option<Stop>,
}

impl Requests {
    /// Asks for a checkpoint and the end. Returns false if nothing heeds the request, because no session holds
    /// requests or one came before; unless it only repeats that one, the caller should then end the process at once.
    pub fn ask_to_stop(&self, why: Stop) -> bool {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        let is_heeded = std::mem::take(&mut stop.is_held);
        if is_heeded {
            stop.received = Some(why);
            self.is_stopping.store(true, Ordering::SeqCst);
        }
        is_heeded
    }

    /// Asks for a checkpoint as soon as one can be made.
    pub fn ask_to_save(&self) {
        self.save.store(true, Ordering::SeqCst);
    }

    /// From now on the first request to stop is noted, until the guard is dropped.
    pub fn hold(&self) -> Held<'_> {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        stop.is_held |= stop.received.is_none();
        Held(self)
    }

    /// The request to stop that was noted, if any.
    pub fn stop_asked(&self) -> Option<Stop> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).received
    }

    /// Whether a request to stop was noted.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// The pulse of the run that was last begun, by which a request can be answered; `None` in a process that trains
    /// none or is not the rank that writes it.
    pub fn pulse(&self) -> Option<Arc<Pulse>> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on requests concern this run.
    pub(super) fn concern(&self, pulse: Arc<Pulse>) {
        *self.pulse.lock().unwrap_or_else(PoisonError::into_inner) = Some(pulse);
    }

    /// Whether a checkpoint was asked for since the last call.
    pub fn save_asked(&self) -> bool {
        self.save.swap(false, Ordering::SeqCst)
    }
}

/// Keeps requests to stop from being refused; see [`Requests::hold`].
#[derive(Debug)]
pub struct Held<'a>(&'a Requests);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.stop.lock().unwrap_or_else(PoisonError::into_inner).is_held = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_is_noted_while_held_and_every_other_one_refused() {
        let requests = Requests::default();
        assert!(!requests.ask_to_stop(Stop::Interrupt), "there is nothing to save yet");
        assert_eq!((requests.stop_asked(), requests.is_stopping()), (None, false));
        let held = requests.hold();
        assert!(requests.ask_to_stop(Stop::Terminate));
        assert!(!requests.ask_to_stop(Stop::Interrupt), "the second one");
        assert_eq!((requests.stop_asked(), requests.is_stopping()), (Some(Stop::Terminate), true));
        drop(held);
        let _held = requests.hold();
        assert!(!requests.ask_to_stop(Stop::Interrupt), "a stop is on its way");
    }

    #[test]
    fn nothing_is_noted_after_the_guard_is_gone() {
        let requests = Requests::default();
        drop(requests.hold());
        assert!(!requests.ask_to_stop(Stop::HangUp));
    }

    #[test]
    fn a_request_to_save_is_answered_once() {
        let requests = Requests::default();
        requests.ask_to_save();
        assert!(requests.save_asked());
        assert!(!requests.save_asked());
    }
}
