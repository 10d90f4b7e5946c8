//! A directory of data and recipes, and the built program to run in it.
//!
//! The recipe trains a model of a few thousand parameters on a few thousand tokens, so that a run takes a fraction of a
//! second and a test may afford many. Tests change it with `--set`, as people do.

#![allow(dead_code, unused_imports, reason = "every test file uses its own part")]

mod contents;
#[path = "../log_support/mod.rs"]
mod log_support;
#[path = "../program/mod.rs"]
mod program;

pub(crate) use contents::{
    Csv, checkpoints, column, essence, everything, record, results, rows, train_csv, val_csv, without,
};

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Two layers, 32 wide, 256 ids, rows of 32 tokens, 8 rows per step in two micro-batches, 12 steps.
const TINY: &str = "\
name = \"tiny\"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 32
vocab_size = 256
[data]
train = \"data/train.bin\"
val = \"data/val.bin\"
[batch]
total_tokens = 256
micro_batch = 4
[optimizer]
lr = 1e-2
[schedule]
max_steps = 12
warmup_steps = 3
[eval]
every = 5
batches = 1
[checkpoint]
every = 4
background = false
[compute]
threads = 1
";

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A temporary directory with `tiny.toml` and its data, and everything that is run there.
pub(crate) struct Lab(tempfile::TempDir);

impl Lab {
    pub(crate) fn new() -> Self {
        let lab = Self(tempfile::tempdir().expect("a temporary directory"));
        lab.write("tiny.toml", TINY);
        lab.shard("data/train.bin", &tokens(4000, 1));
        lab.shard("data/val.bin", &tokens(600, 2));
        lab
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join(name)
    }

    /// Writes a file, its directories included.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(&path, bytes).expect("a file");
        path
    }

    /// Writes a llm.c shard.
    pub(crate) fn shard(&self, name: &str, tokens: &[u16]) -> PathBuf {
        self.write(name, shard(tokens))
    }

    /// The program, ready to start in this directory.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = program::program(self.dir());
        command.args(args);
        command
    }

    /// A program that starts the one under test in this directory and finds its path in `$RUNNER`.
    pub(crate) fn launcher(&self, name: &str) -> Command {
        program::launcher(name, self.dir())
    }

    /// Runs the program to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        ended(self.command(args))
    }

    /// Runs `tiny.toml` with changes, spelled `key=value`, to its end; it must finish.
    pub(crate) fn train(&self, sets: &[&str]) -> PathBuf {
        self.train_in("runs", sets)
    }

    /// The same under another directory of runs, which is created.
    pub(crate) fn train_in(&self, runs: &str, sets: &[&str]) -> PathBuf {
        let ended = self.run(tiny(runs, sets));
        ended.expect(0);
        self.run_of(&ended)
    }

    /// The directory that stdout names.
    pub(crate) fn run_of(&self, ended: &Ended) -> PathBuf {
        let line = ended.stdout.strip_suffix('\n').filter(|line| !line.contains('\n'));
        self.path(line.unwrap_or_else(|| panic!("stdout is not one line: {:?}", ended.stdout)))
    }

    /// Starts a run of `tiny.toml` that the program's own fault injection aborts, e.g. at `csv.before_row:7`.
    pub(crate) fn crash(&self, runs: &str, sets: &[&str], fault: &str) -> PathBuf {
        let mut command = self.command(tiny(runs, sets));
        command.env("RUNNER_FAULT", fault);
        let ended = ended(command);
        assert_eq!(ended.code, None, "{fault} was never reached: {}", ended.stderr);
        self.run_of(&ended)
    }

    /// Starts the program and lets it run.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Live {
        spawned(self.command(args))
    }

    /// Starts a command whose program waits at one of its writes, such as `csv.before_row:7`, until the gate is opened.
    pub(crate) fn held(&self, mut command: Command, point: &str) -> (Live, Gate) {
        let gate = Gate(tempfile::NamedTempFile::new_in(self.dir()).expect("a file").into_temp_path());
        command.env("RUNNER_FAULT", format!("pause:{point}")).env("RUNNER_FAULT_WHILE", &gate.0);
        (spawned(command), gate)
    }

    /// The runs in a directory of runs, by name. What is hidden there is no run.
    pub(crate) fn runs(&self, runs: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(runs)) else { return Vec::new() };
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    /// The one run in a directory of runs, once it is there.
    pub(crate) fn only_run(&self, runs: &str) -> PathBuf {
        wait("a run", || self.runs(runs).len() == 1);
        self.path(runs).join(&self.runs(runs)[0])
    }
}

/// A file that holds a process for as long as it exists.
pub(crate) struct Gate(tempfile::TempPath);

impl Gate {
    /// Waits until the process has got to the point that holds it.
    pub(crate) fn reached(&self) {
        wait("the point that holds a process", || fs::metadata(&self.0).is_ok_and(|file| file.len() > 0));
    }

    pub(crate) fn open(self) {
        self.0.close().expect("removed");
    }
}

/// Whether an evaluation of a run says that the model was trained on some of the data.
pub(crate) fn seen(lab: &Lab, run: &Path, args: &[&str]) -> bool {
    let run = run.to_str().expect("a path of this test");
    let ended = lab.run([&["eval", run, "--format", "json"], args].concat());
    let found: serde_json::Value = serde_json::from_str(&ended.expect(0).stdout).expect("JSON");
    match &found[0]["data"]["seen"] {
        serde_json::Value::Null => false,
        seen => seen.as_bool().filter(|seen| *seen).unwrap_or_else(|| panic!("true or null, not {found}")),
    }
}

/// The arguments that train `tiny.toml`.
pub(crate) fn tiny(runs: &str, sets: &[&str]) -> Vec<String> {
    let mut args = vec!["tiny.toml".to_owned(), "--runs-dir".to_owned(), runs.to_owned()];
    args.extend(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    args
}

/// Tokens below 256 with something to learn: each follows from the one before, but for one of three steps.
pub(crate) fn tokens(count: usize, seed: u64) -> Vec<u16> {
    let (mut state, mut token) = (seed, 0u64);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        token = (token * 5 + 1 + (state >> 33) % 3) % 256;
        token as u16
    };
    (0..count).map(|_| next()).collect()
}

/// The bytes of a llm.c shard.
pub(crate) fn shard(tokens: &[u16]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [20_240_520, 1, tokens.len() as i32].iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.resize(1024, 0);
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes
}

/// Waits until something holds.
pub(crate) fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// The number of that signal.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts the exit code.
    pub(crate) fn expect(&self, code: i32) -> &Self {
        let Self { stdout, stderr, signal, .. } = self;
        assert_eq!(self.code, Some(code), "signal: {signal:?}\nstdout: {stdout}\nstderr: {stderr}");
        self
    }

    /// Asserts that the message holds every one of these.
    pub(crate) fn says(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in:\n{}", self.stderr);
        }
        self
    }
}

/// Starts a command and lets it run.
pub(crate) fn spawned(command: Command) -> Live {
    spawned_with(command, Stdio::piped())
}

/// [`spawned`] with this as its stderr.
pub(crate) fn spawned_with(mut command: Command, stderr: impl Into<Stdio>) -> Live {
    command.stdout(Stdio::piped()).stderr(stderr);
    Live(Some(command.spawn().expect("the program starts")))
}

/// Runs a command to its end.
pub(crate) fn ended(mut command: Command) -> Ended {
    let output = command.output().expect("the program starts");
    of(&output)
}

fn of(output: &std::process::Output) -> Ended {
    Ended {
        code: output.status.code(),
        signal: output.status.signal(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a command as a user without rights here, after root has done what these words of a shell say; `None` where this
/// process may not become another user.
pub(crate) fn as_nobody(
    lab: &Lab,
    before: &str,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Option<Ended> {
    let mut command = lab.launcher("sh");
    let script = "[ \"$(id -u)\" = 0 ] && cp \"$RUNNER\" copy && chmod 755 copy . && eval \"$0\" || exit 99\n\
                  exec setpriv --reuid 65534 --clear-groups ./copy \"$@\"";
    command.args(["-c", script, before]).args(args);
    let ended = ended(command);
    (ended.code != Some(99)).then_some(ended)
}

/// A running process, killed if a test forgets it.
pub(crate) struct Live(Option<Child>);

impl Live {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("not ended yet")
    }

    pub(crate) fn id(&mut self) -> u32 {
        self.child().id()
    }

    /// Sends a signal by name, such as `INT`.
    pub(crate) fn signal(&mut self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("sh").args(["-c", "kill -\"$0\" \"$1\"", name, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "SIG{name} was not sent");
    }

    /// Kills it at once; true if it was still running.
    pub(crate) fn kill(&mut self) -> bool {
        let child = self.child();
        let running = child.try_wait().expect("a child").is_none();
        child.kill().expect("a child of ours");
        running
    }

    /// The next line on its stdout, which is empty if it has ended.
    pub(crate) fn line(&mut self) -> String {
        let stdout = self.child().stdout.as_mut().expect("piped");
        let (mut line, mut byte) = (Vec::new(), [0]);
        // one by one: what follows is left to `end`
        while stdout.read(&mut byte).expect("a pipe") == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).expect("UTF-8")
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child().try_wait().expect("a child").is_some()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        let child = self.0.take().expect("not ended yet");
        of(&child.wait_with_output().expect("a child"))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
