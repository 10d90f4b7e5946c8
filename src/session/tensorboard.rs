//! The event file of a run that is being trained.
//!
//! A thread of its own reads the logs back and writes the event file, as `runner export --follow` does. So training
//! waits for neither, and what goes wrong with the file does not end a run: the logs have everything.

use crate::regular::OpenDir;
use crate::report::tensorboard::Export;
use crate::run::RunError;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often the thread looks at the logs. TensorBoard itself looks every five seconds or less often.
const LOOK: Duration = Duration::from_secs(2);

/// The thread that writes the event file.
pub(super) struct Tensorboard {
    /// Nothing is sent: the thread ends when this is dropped.
    work: Sender<()>,
    failures: Receiver<RunError>,
    thread: Option<JoinHandle<Option<RunError>>>,
}

impl Tensorboard {
    /// Begins to follow the run in a directory, which gets the event file.
    pub(super) fn follow(run: &Arc<OpenDir>) -> Self {
        let mut export = Export::within(run);
        let (work, over) = channel::<()>();
        let (failed, failures) = channel();
        let tell = failed.clone();
        let follow = move || {
            let mut is_told = false;
            loop {
                let updated = export.update();
                is_told &= updated.is_err();
                if let Err(error) = updated
                    && !is_told
                {
                    is_told = true;
                    // if the run has ended meanwhile, the last update says it
                    let _ = tell.send(error);
                }
                if over.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return export.update().err();
                }
            }
        };
        let thread = Builder::new().name("tensorboard".to_owned()).spawn(follow);
        let thread = thread.map_err(|error| {
            let _ = failed.send(RunError::Io {
                action: "start a thread for",
                path: run.path().to_owned(),
                error,
            });
        });
        Self { work, failures, thread: thread.ok() }
    }

    /// Why the event file could not be written, if that is news.
    pub(super) fn failed(&self) -> Option<RunError> {
        self.failures.try_recv().ok()
    }

    /// Brings the event file up to date with a run that has ended. Returns why it is not, if that was not said before.
    pub(super) fn finish(self) -> Option<RunError> {
        let Self { work, failures, thread } = self;
        drop(work);
        let last = thread.and_then(|thread| thread.join().ok().flatten());
        failures.try_recv().ok().or(last)
    }
}
