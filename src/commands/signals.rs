//! Signals: the first SIGINT, SIGTERM or SIGHUP asks for a checkpoint and the end, a second SIGINT or SIGTERM ends at
//! once; SIGUSR1 asks for a checkpoint.
//!
//! One event may send several signals: a shell and the kernel each tell of a closed terminal, `timeout` and launchers
//! signal a process and then its group. What comes within a [`MOMENT`] of the first signal repeats it.
//!
//! A thread receives them, so they are obeyed and answered whatever the process is doing; the training loop looks at
//! requests between passes and, where its engine lets it, between the kernels of a pass. SIGHUP stays ignored under
//! `nohup`. SIGBUS, which the system sends when mapped data is no longer there, becomes an error message in every
//! command.

use super::exit::Exit;
use super::{stderr, terminal};
use crate::report::numbers::{bytes, roughly};
use crate::session::pulse::Stopping;
use crate::session::{Ending, Requests};
use crate::train::Stop;
use anyhow::Context;
use signal_hook::consts::{SIGBUS, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, iterator, low_level};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const FILE_GONE: &[u8] =
    b"\nerror: a file of tokens or text could not be read while in use: it was cut short or its \
    disk failed; put it back as it was and run the same command again, which resumes a run\n";

/// For how long signals that ask to stop repeat the first one.
const MOMENT: Duration = Duration::from_secs(1);

/// How soon [`wait`] notices a signal.
const NAP: Duration = Duration::from_millis(50);

/// How long a terminal may take to clear the bar before the process ends regardless.
const PATIENCE: Duration = Duration::from_millis(200);

/// Starts to receive signals, as requests to a session. Until they are held, a signal ends the process as it would by
/// default.
pub(super) fn install() -> anyhow::Result<Arc<Requests>> {
    receive().context("could not install signal handlers")
}

/// Whether signals end process 1 as they end any other.
static ENDS: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Makes signals end this process with the usual code if it is process 1, as in a container: the system does not do so
/// by itself. Once they are received as requests, that is over.
pub(super) fn end_process_1() -> anyhow::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)) {
        flag::register_conditional_shutdown(signal, 128 + signal, ENDS.clone())
            .context("could not install signal handlers")?;
    }
    Ok(())
}

fn receive() -> io::Result<Arc<Requests>> {
    let requests = Arc::new(Requests::default());
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut incoming = iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hang_up))?;
    ENDS.store(false, Ordering::SeqCst);
    let asked = requests.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // when the request that is heeded came
        let mut first: Option<Instant> = None;
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
            stderr::hurry();
            if asked.ask_to_stop(stop) {
                answer(stop, asked.pulse().map(|pulse| pulse.stopping()));
                first = Some(Instant::now());
            } else if first.is_none_or(|first| !repeats(stop, first.elapsed())) {
                let trains = first.is_some() && asked.pulse().is_some();
                end_at_once(128 + signal, trains.then(|| last_words(stop)));
            }
        }
    })?;
    Ok(requests)
}

/// Whether a signal belongs to the first one, which came this long before. Nobody is there any more to mean SIGHUP.
fn repeats(stop: Stop, after: Duration) -> bool {
    stop == Stop::HangUp || after < MOMENT
}

/// Says what a first signal does. Another thread speaks, so that a terminal that hangs does not keep the second signal
/// from being received. A process that does not write the run has nothing to say.
fn answer(stop: Stop, stopping: Option<Stopping>) {
    if let Some(stopping) = stopping {
        thread::spawn(move || terminal::say(&words(stop, &stopping)));
    }
}

fn words(stop: Stop, stopping: &Stopping) -> String {
    let signal = name(stop);
    let again = match stop {
        Stop::Interrupt => "Ctrl-C again after more than a second",
        Stop::Terminate | Stop::HangUp => "SIGINT or SIGTERM after more than a second",
    };
    let about = |time: Duration| match time.as_secs() {
        0 => "within a second".to_owned(),
        _ => format!("in about {}", roughly(time)),
    };
    let when = stopping.within.map_or_else(|| "as soon as the operation at hand ends".to_owned(), about);
    let step = stopping.step;
    let next = Some(step + 1).filter(|_| stopping.may_finish);
    match stopping.saving {
        Some((size, time)) => {
            let next = next.map_or_else(String::new, |next| format!(", or {next} if that is finished first"));
            format!(
                "{signal}: stopping {when}, then saving step {step}{next} ({}, {}); {again} ends at once, without \
                 saving",
                bytes(size as f64),
                about(time)
            )
        }
        None => {
            let next = next.map_or_else(String::new, |next| {
                format!(", and step {next} will be if it is finished first")
            });
            format!("{signal}: stopping {when}; step {step} is saved{next}; {again} ends at once")
        }
    }
}

/// What a second signal leaves.
fn last_words(stop: Stop) -> String {
    format!(
        "{}: ended at once, without waiting for a checkpoint; the same command goes on from the last one, if there is \
         one",
        name(stop)
    )
}

fn name(stop: Stop) -> &'static str {
    match stop {
        Stop::Interrupt => "SIGINT",
        Stop::Terminate => "SIGTERM",
        Stop::HangUp => "SIGHUP",
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

/// Ends the process where it has not ended by itself this long after a signal asked it to stop. One that only reads may
/// hang in a write that nobody takes.
pub(super) fn insist(requests: Arc<Requests>, after: Duration) -> anyhow::Result<()> {
    let wait = move || loop {
        thread::sleep(NAP);
        if let Some(stop) = requests.stop_asked() {
            thread::sleep(after);
            end_at_once(i32::from(Exit::from(Ending::from(stop)) as u8), None);
        }
    };
    thread::Builder::new().name("insist".to_owned()).spawn(wait).map(drop).context("could not start a thread")
}

/// Shows the error of a rank that is a thread of this process and hangs, and ends the process: a thread cannot be
/// ended.
pub(super) fn end_hung(error: &anyhow::Error) -> ! {
    terminal::report(error);
    end_at_once(i32::from(Exit::Failure as u8), None);
}

/// Gives the terminal back, says the last words and ends the process. Does not wait for a terminal that hangs.
fn end_at_once(code: i32, last_words: Option<String>) -> ! {
    let (done, cleared) = mpsc::channel();
    thread::spawn(move || {
        terminal::clear_bars();
        terminal::leave_screen();
        if let Some(words) = last_words {
            terminal::say(&words);
        }
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
    // The runtime's own handler would be called before this one, and restores the default action where no stack is at
    // fault: a second thread that loses the file would then end the process without a word. On Linux an overflow of the
    // stack sends SIGSEGV.
    // SAFETY: no handler is installed, and no other thread runs yet that could be in the one that is taken away.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::signal(SIGBUS, libc::SIG_DFL);
    }
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

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_lose_a_file_at_once_end_their_process_as_one_does() {
        use memmap2::Mmap;
        use std::process::{Command, Stdio};
        use std::sync::Barrier;

        /// Set in the process that loses a file under eight threads.
        const LOSES: &str = "RUNNER_TEST_LOSES_A_FILE";

        if std::env::var_os(LOSES).is_some() {
            report_lost_files().expect("installed");
            let file = tempfile::tempfile().expect("a file");
            file.set_len(1 << 20).expect("a length");
            // SAFETY: the threads below end the process when they find that nothing is there.
            let lost = unsafe { Mmap::map(&file) }.expect("mapped");
            file.set_len(0).expect("cut");
            let at_once = Barrier::new(8);
            thread::scope(|threads| {
                for i in 0..8 {
                    let (lost, at_once) = (&lost, &at_once);
                    threads.spawn(move || {
                        at_once.wait();
                        std::hint::black_box(lost[i << 12]);
                    });
                }
            });
            unreachable!("nothing is there to be read");
        }
        let me = std::env::current_exe().expect("this test");
        let name = "commands::signals::tests::threads_that_lose_a_file_at_once_end_their_process_as_one_does";
        for _ in 0..30 {
            let mut child = Command::new(&me);
            child.args(["--exact", name]).env(LOSES, "yes").stdout(Stdio::null()).stderr(Stdio::null());
            assert_eq!(child.status().expect("it starts").code(), Some(1));
        }
    }

    #[test]
    fn a_first_signal_is_told_what_it_does_and_how_long_that_takes() {
        let stopping = Stopping {
            step: 12,
            may_finish: false,
            within: Some(Duration::from_millis(300)),
            saving: Some((1_493_277_696, Duration::from_secs(7))),
        };
        assert_eq!(
            words(Stop::Interrupt, &stopping),
            "SIGINT: stopping within a second, then saving step 12 (1.39 GiB, in about 7 s); Ctrl-C again after more \
             than a second ends at once, without saving"
        );
        let in_its_end = words(Stop::Interrupt, &Stopping { may_finish: true, ..stopping });
        assert!(
            in_its_end.contains("then saving step 12, or 13 if that is finished first (1.39"),
            "{in_its_end}"
        );
        let saved = Stopping { within: Some(Duration::from_secs(32)), saving: None, ..stopping };
        assert_eq!(
            words(Stop::Terminate, &saved),
            "SIGTERM: stopping in about 32 s; step 12 is saved; SIGINT or SIGTERM after more than a second ends at once"
        );
        let unknown = words(Stop::HangUp, &Stopping { within: None, may_finish: true, ..saved });
        assert_eq!(
            unknown,
            "SIGHUP: stopping as soon as the operation at hand ends; step 12 is saved, and step 13 will be if it is \
             finished first; SIGINT or SIGTERM after more than a second ends at once"
        );
    }

    #[test]
    fn what_comes_within_a_moment_and_a_terminal_that_closes_repeat_the_first_signal() {
        let [soon, late] = [5, 1005].map(Duration::from_millis);
        for stop in [Stop::Interrupt, Stop::Terminate] {
            assert_eq!([soon, late].map(|after| repeats(stop, after)), [true, false]);
        }
        assert!(repeats(Stop::HangUp, late));
    }
}
