//! Writing to stderr, which may be a pipe that is full or a terminal that is stopped.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a reader that does not read is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Whether this process is asked to end.
static HURRIES: AtomicBool = AtomicBool::new(false);

/// From now on, what nobody reads is left unsaid.
pub(super) fn hurry() {
    HURRIES.store(true, Ordering::Relaxed);
}

/// Writes to stderr, in one piece, or lines of processes that share it would mix. It waits while nobody reads, as every
/// program does, but not once this process is [asked to end](hurry): a checkpoint waits for no reader.
pub(super) fn put(text: &str) {
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *writer {
        Some(writer) => writer.put(text),
        // where there can be no other thread
        none => match Writer::start() {
            Ok(started) => none.insert(started).put(text),
            Err(_) => drop(io::stderr().lock().write_all(text.as_bytes())),
        },
    }
}

/// A thread that writes to stderr. What a terminal or a pipe takes without waiting cannot be known before, so that it
/// is this thread that waits.
struct Writer {
    texts: Sender<String>,
    written: Receiver<()>,
    /// Whether a text is on its way.
    busy: bool,
}

static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

impl Writer {
    fn start() -> io::Result<Self> {
        let (texts, received) = mpsc::channel::<String>();
        let (done, written) = mpsc::channel();
        thread::Builder::new().name("stderr".to_owned()).spawn(move || {
            for text in received {
                // what is wrong with it is no failure
                let _ = io::stderr().lock().write_all(text.as_bytes());
                if done.send(()).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { texts, written, busy: false })
    }

    fn put(&mut self, text: &str) {
        self.wait();
        if !self.busy {
            self.busy = self.texts.send(text.to_owned()).is_ok();
            self.wait();
        }
    }

    /// Waits until the text has been written, or until the process is to end and nobody reads.
    fn wait(&mut self) {
        while self.busy {
            match self.written.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if HURRIES.load(Ordering::Relaxed) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => self.busy = false,
            }
        }
    }
}
