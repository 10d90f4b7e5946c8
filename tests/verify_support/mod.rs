//! A tiny experiment in a temporary directory, and the binary to run on it.

#[path = "../program/mod.rs"]
mod program;

use runner::data::write_llmc;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Small and uneven: three heads, a vocabulary that padding matters to, a context over one tile of flash attention.
const RECIPE: &str = r#"
[model]
n_layer = 2
n_head = 3
n_embd = 48
block_size = 70
vocab_size = 101
vocab_multiple = 32

[compute]
threads = 2

[data]
train = "tokens.bin"
val = "tokens.bin"

[batch]
total_tokens = 560
micro_batch = 4

[optimizer]
lr = 1e-3

[schedule]
max_steps = 30
warmup_steps = 5

[eval]
every = 10
batches = 1

[checkpoint]
every = 10

[sample]
every = 15
prompt = "!"
tokens = 8
"#;

/// A directory with `tiny.toml` and its data.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        fs::write(dir.path().join("tiny.toml"), RECIPE).expect("the recipe is written");
        write_llmc(&dir.path().join("tokens.bin"), tokens()).expect("the shard is written");
        Self(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The program, ready to start in this directory.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program::program(self.path());
        command.args(arguments);
        command
    }

    /// What the binary says to these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        Said::of(self.command(arguments).output().expect("the binary starts"))
    }

    /// Trains `tiny.toml` with these settings under `runs_dir`; the run's directory.
    pub(crate) fn train(&self, runs_dir: &str, settings: &[&str]) -> PathBuf {
        let mut arguments = vec!["tiny.toml", "--runs-dir", runs_dir];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        let said = self.run(&arguments);
        assert_eq!(said.code, 0, "{}", said.stderr);
        self.path().join(said.stdout.trim())
    }
}

/// How a process ended.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("no signal ended it"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

/// 6,000 tokens below 101 that follow a rule with exceptions, so that there is something to learn.
fn tokens() -> impl Iterator<Item = u16> {
    let (mut token, mut state) = (1u32, 1u32);
    (0..6_000).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        token = if state >> 29 == 0 { (state >> 8) % 101 } else { (token * 3 + 7) % 101 };
        token as u16
    })
}
