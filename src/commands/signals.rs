//! SIGINT and SIGTERM: the first asks for a checkpoint and the end, the second ends at once.

use crate::train::Stop;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The signals of this process.
pub(super) struct Signals {
    /// While true, a signal ends the process at once: there is nothing to save yet, or a first one came before.
    at_once: Arc<AtomicBool>,
    received: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handlers. Until [`hold`](Self::hold), a signal ends the process as it would by default.
    pub(super) fn install() -> io::Result<Self> {
        let signals =
            Self { at_once: Arc::new(AtomicBool::new(true)), received: Arc::new(AtomicUsize::new(0)) };
        for signal in [SIGINT, SIGTERM] {
            // in this order: the second signal finds what the first one set
            flag::register_conditional_shutdown(signal, 128 + signal, signals.at_once.clone())?;
            flag::register(signal, signals.at_once.clone())?;
            flag::register_usize(signal, signals.received.clone(), signal as usize)?;
        }
        Ok(signals)
    }

    /// From now on the first signal is only noted, until the guard is dropped.
    pub(super) fn hold(&self) -> Held<'_> {
        if self.received().is_none() {
            self.at_once.store(false, Ordering::SeqCst);
        }
        Held(self)
    }

    /// The signal that came, if any.
    pub(super) fn received(&self) -> Option<Stop> {
        match self.received.load(Ordering::SeqCst) as i32 {
            SIGINT => Some(Stop::Interrupt),
            SIGTERM => Some(Stop::Terminate),
            _ => None,
        }
    }
}

/// See [`Signals::hold`].
pub(super) struct Held<'a>(&'a Signals);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.at_once.store(true, Ordering::SeqCst);
    }
}
