//! Signals: the first SIGINT, SIGTERM or SIGHUP asks for a checkpoint and the end, the second ends at once; SIGUSR1 asks for
//! a checkpoint.
//!
//! A thread of their own receives them, so they are obeyed whatever the process is doing; the training loop looks at what
//! was asked for between forward passes. SIGHUP keeps what `nohup` made of it. SIGBUS, with which the system answers a
//! read of mapped data that are no longer there, becomes an error message.

use super::terminal;
use crate::train::Stop;
use signal_hook::consts::{SIGBUS, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, iterator, low_level};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const DATA_GONE: &[u8] =
    b"\nerror: a file of data.train or data.val could not be read while in use: it was cut short or \
    its disk failed; put it back as it was and run the same command again, which resumes\n";

/// How long a terminal gets to take the bar away before the process ends regardless.
const PATIENCE: Duration = Duration::from_millis(200);

/// The signals of this process.
pub(super) struct Signals {
    /// While true, a signal ends the process at once: there is nothing to save yet, or a first one came before.
    at_once: Arc<AtomicBool>,
    received: Arc<AtomicUsize>,
    save: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to receive. Until [`hold`](Self::hold), a signal ends the process as it would by default.
    pub(super) fn install() -> io::Result<Self> {
        let signals = Self {
            at_once: Arc::new(AtomicBool::new(true)),
            received: Arc::new(AtomicUsize::new(0)),
            save: Arc::new(AtomicBool::new(false)),
        };
        flag::register(SIGUSR1, signals.save.clone())?;
        report_lost_data()?;
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        let mut incoming = iterator::Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up))?;
        let (at_once, received) = (signals.at_once.clone(), signals.received.clone());
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in &mut incoming {
                if at_once.swap(true, Ordering::SeqCst) {
                    end_at_once(128 + signal);
                }
                received.store(signal as usize, Ordering::SeqCst);
            }
        })?;
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
            SIGHUP => Some(Stop::HangUp),
            _ => None,
        }
    }

    /// Whether SIGUSR1 came since this was last asked.
    pub(super) fn save_asked(&self) -> bool {
        self.save.swap(false, Ordering::SeqCst)
    }
}

/// Takes the bar away and ends the process, without waiting for anything that a terminal may not do.
pub(super) fn end_at_once(code: i32) -> ! {
    let (done, cleared) = mpsc::channel();
    thread::spawn(move || {
        terminal::clear_bars();
        done.send(())
    });
    let _ = cleared.recv_timeout(PATIENCE);
    low_level::exit(code)
}

/// Has SIGBUS say what it means and end the process with the code of a failure. Files are mapped for reading only, so there
/// is nothing half-done.
fn report_lost_data() -> io::Result<()> {
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let report = move || {
        let _ = (&stderr).write_all(DATA_GONE);
        low_level::exit(1)
    };
    // SAFETY: the action makes the system calls `write` and `_exit` and nothing else: it takes no lock, does not allocate
    // and cannot panic, so it may run in a signal handler.
    unsafe { low_level::register(SIGBUS, report) }.map(drop)
}

/// Whether the process was started with a signal ignored; where the system does not tell, no.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// See [`Signals::hold`].
pub(super) struct Held<'a>(&'a Signals);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.at_once.store(true, Ordering::SeqCst);
    }
}
