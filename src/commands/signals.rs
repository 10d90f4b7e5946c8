//! Signals: the first SIGINT, SIGTERM or SIGHUP asks for a checkpoint and the end, the second ends at once; SIGUSR1
//! asks for a checkpoint.
//!
//! A thread receives them, so they are obeyed and answered whatever the process is doing; the training loop looks at
//! requests between passes and, where its engine lets it, between the kernels of a pass. SIGHUP stays ignored under
//! `nohup`. SIGBUS, which the system sends when mapped data is no longer there, becomes an error message in every
//! command.

use super::exit::Exit;
use super::terminal;
use crate::report::numbers::{bytes, roughly};
use crate::session::Requests;
use crate::session::pulse::Stopping;
use crate::train::Stop;
use anyhow::Context;
use signal_hook::consts::{SIGBUS, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, iterator, low_level};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const FILE_GONE: &[u8] =
    b"\nerror: a file of tokens or text could not be read while in use: it was cut short or its \
    disk failed; put it back as it was and run the same command again, which resumes a run\n";

/// How soon [`wait`] notices a signal.
const NAP: Duration = Duration::from_millis(50);

/// How long a terminal may take to clear the bar before the process ends regardless.
const PATIENCE: Duration = Duration::from_millis(200);

/// Starts to receive signals, as requests to a session. Until they are held, a signal ends the process as it would by
/// default.
pub(super) fn install() -> anyhow::Result<Arc<Requests>> {
    receive().context("could not install signal handlers")
}

fn receive() -> io::Result<Arc<Requests>> {
    let requests = Arc::new(Requests::default());
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut incoming = iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hang_up))?;
    let asked = requests.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in &mut incoming {
            let stop = match signal {
                SIGUSR1 => {
                    asked.ask_to_save();
                    continue;
                }
                SIGTERM => Stop::Terminate,
                SIGHUP => Stop::HangUp,
                _ => Stop::Interrupt,
            };
            if !asked.ask_to_stop(stop) {
                end_at_once(128 + signal);
            }
            answer(stop, asked.pulse().map(|pulse| pulse.stopping()));
        }
    })?;
    Ok(requests)
}

/// Says what a first signal does. Another thread speaks, so that a terminal that hangs does not keep the second signal
/// from being received. A process that does not write the run has nothing to say.
fn answer(stop: Stop, stopping: Option<Stopping>) {
    if let Some(stopping) = stopping {
        thread::spawn(move || terminal::say(&words(stop, &stopping)));
    }
}

fn words(stop: Stop, stopping: &Stopping) -> String {
    let (signal, again) = match stop {
        Stop::Interrupt => ("SIGINT", "Ctrl-C again"),
        Stop::Terminate => ("SIGTERM", "a second signal"),
        Stop::HangUp => ("SIGHUP", "a second signal"),
    };
    let about = |time: Duration| match time.as_secs() {
        0 => "within a second".to_owned(),
        _ => format!("in about {}", roughly(time)),
    };
    let when = stopping.within.map_or_else(|| "as soon as the operation at hand ends".to_owned(), about);
    match stopping.saving {
        Some((size, time)) => format!(
            "{signal}: stopping {when}, then saving step {} ({}, {}); {again} ends at once, without saving",
            stopping.step,
            bytes(size as f64),
            about(time)
        ),
        None => format!("{signal}: stopping {when}; step {} is saved; {again} ends at once", stopping.step),
    }
}

/// Waits for so long, or until a signal asks to stop; `meanwhile` is called again and again, a few times per second.
pub(super) fn wait(
    requests: &Requests,
    time: Duration,
    mut meanwhile: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Option<Stop>> {
    let end = Instant::now() + time;
    while requests.stop_asked().is_none() && Instant::now() < end {
        thread::sleep(NAP);
        meanwhile()?;
    }
    Ok(requests.stop_asked())
}

/// Shows the error of a rank that is a thread of this process and hangs, and ends the process: a thread cannot be
/// ended.
pub(super) fn end_hung(error: &anyhow::Error) -> ! {
    terminal::report(error);
    end_at_once(i32::from(Exit::Failure as u8));
}

/// Takes the bar away and ends the process. Does not wait for a terminal that hangs.
fn end_at_once(code: i32) -> ! {
    let (done, cleared) = mpsc::channel();
    thread::spawn(move || {
        terminal::clear_bars();
        done.send(())
    });
    let _ = cleared.recv_timeout(PATIENCE);
    low_level::exit(code)
}

/// Keeps two signals from ending a command. Where a file may not grow any further (`ulimit -f`), the write fails then,
/// and the error names the file. SIGUSR1 may come before a run has begun, when there is nothing to save.
pub(super) fn outlive() -> anyhow::Result<()> {
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGXFSZ, SIGUSR1] {
        flag::register(signal, noted.clone()).context("could not install signal handlers")?;
    }
    Ok(())
}

/// Makes SIGBUS print what it means and end the process with the code of a failure. Files are mapped for reading only,
/// so nothing is left half-written. Every command needs it that opens data.
pub(super) fn report_lost_files() -> anyhow::Result<()> {
    register_sigbus().context("could not install signal handlers")
}

fn register_sigbus() -> io::Result<()> {
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let report = move || {
        let _ = (&stderr).write_all(FILE_GONE);
        low_level::exit(1)
    };
    // SAFETY: the action makes the system calls `write` and `_exit` and nothing else: it takes no lock, does not
    // allocate and cannot panic, so it may run in a signal handler.
    unsafe { low_level::register(SIGBUS, report) }.map(drop)
}

/// Whether the process was started with a signal ignored; where the system does not tell, no.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_signal_is_told_what_it_does_and_how_long_that_takes() {
        let stopping = Stopping {
            step: 12,
            within: Some(Duration::from_millis(300)),
            saving: Some((1_493_277_696, Duration::from_secs(7))),
        };
        assert_eq!(
            words(Stop::Interrupt, &stopping),
            "SIGINT: stopping within a second, then saving step 12 (1.39 GiB, in about 7 s); Ctrl-C again ends at \
             once, without saving"
        );
        let saved = Stopping { within: Some(Duration::from_secs(32)), saving: None, ..stopping };
        assert_eq!(
            words(Stop::Terminate, &saved),
            "SIGTERM: stopping in about 32 s; step 12 is saved; a second signal ends at once"
        );
        let unknown = words(Stop::HangUp, &Stopping { within: None, ..saved });
        assert_eq!(
            unknown,
            "SIGHUP: stopping as soon as the operation at hand ends; step 12 is saved; a second signal ends at once"
        );
    }
}
