//! A directory in which the commands of the documents can be carried out: the recipes, runs that are finished,
//! shards.

#[path = "../program/mod.rs"]
mod program;

use super::root;
use program::{launcher, program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The finished runs that documents speak of: their logs and records, without checkpoints.
pub(crate) const RUNS: &str = "tests/document_runs";

/// The programs that a block of `sh` only pretends to start.
const STAND_INS: &[&str] =
    &["runner", "cargo", "torchrun", "srun", "mpirun", "python", "python3", "pip", "git", "sh"];

/// Notes how it was called, and goes on as far as that costs nothing: a launcher starts what it is to launch, and the
/// scripts of sweeps run.
const STAND_IN: &str = r#"#!/bin/sh
name=${0##*/}
case "$name $*" in "sh -c "*) exec /bin/sh "$@" ;; esac
call=$name
for word; do
    call=$call$(printf '\037')$word
done
printf '%s\n' "$call" >>"$CALLS"
case "$name $*" in
runner*) echo runs/quickstart-da8aeaa3 ;;
torchrun* | srun* | mpirun* | "cargo run"*)
    while [ $# -gt 0 ] && [ "$1" != runner ] && [ "$1" != -- ]; do shift; done
    if [ "${1:-}" = -- ]; then
        shift
        set -- runner "$@"
    fi
    "$@"
    ;;
"sh recipes/sweeps/"*) exec /bin/sh "$@" ;;
esac
"#;

/// A temporary directory, removed at the end.
pub(crate) struct Lab(tempfile::TempDir);

impl Lab {
    /// What a user has who follows the documents, at the size of a test.
    pub(crate) fn new() -> Self {
        let lab = Self(tempfile::tempdir().expect("a temporary directory"));
        copy(&root().join("recipes"), &lab.path("recipes"));
        copy(&root().join(RUNS), &lab.path("runs"));
        // words in capitals stand for any recipe and any run
        fs::copy(root().join("recipes/quickstart.toml"), lab.path("RECIPE")).expect("a copy");
        copy(&lab.run("quickstart"), &lab.path("RUN"));
        for name in ["train_000001", "val_000000"] {
            let path = lab.path(&format!("datasets/fineweb-edu/edu_fineweb_{name}.bin"));
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            runner::data::write_llmc(&path, (0..3000).map(|i| (i * 7 % 1000) as u16)).expect("a shard");
        }
        let shakespeare = "datasets/tinyshakespeare.txt";
        fs::copy(root().join(shakespeare), lab.path(shakespeare)).expect("a copy");
        lab.write("datasets/all.txt", &"To be, or not to be, that is the question.\n".repeat(40));
        for name in STAND_INS {
            let path = lab.write(&format!("stand-ins/{name}"), STAND_IN);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, mode).expect("executable");
        }
        fs::create_dir(lab.path("bin")).expect("a directory");
        let path = program(lab.0.path()).get_program().to_owned();
        std::os::unix::fs::symlink(path, lab.path("bin/runner")).expect("a link");
        lab
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, its directories included.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(&path, text).expect("a file");
        path
    }

    /// The finished run whose id begins like this.
    pub(crate) fn run(&self, name: &str) -> PathBuf {
        let runs = fs::read_dir(self.path("runs")).expect("runs").map(|run| run.expect("a run").path());
        let mut named =
            runs.filter(|run| run.file_name().is_some_and(|id| id.to_string_lossy().starts_with(name)));
        named.next().unwrap_or_else(|| panic!("no run {name}"))
    }

    /// The program, ready to start here.
    pub(crate) fn runner(&self) -> Command {
        self.plain(program(self.0.path()))
    }

    /// A shell script, ready to start here, which finds programs in this directory of the lab first. It is ended
    /// after some minutes: if a run is not the one on record any more, its command would train it.
    pub(crate) fn shell(&self, programs: &str, script: &str) -> Command {
        let mut command = self.plain(launcher("/usr/bin/timeout", self.0.path()));
        command.args(["180", "/bin/sh", "-c", script]);
        command.env("PATH", format!("{}:/usr/bin:/bin", self.path(programs).display()));
        command.env("CALLS", self.path("calls"));
        command
    }

    /// A command without colours and with a cache of this directory; scripts find the program on the path alone.
    fn plain(&self, mut command: Command) -> Command {
        command.env("NO_COLOR", "1").env("XDG_CACHE_HOME", self.path(".user-cache")).env_remove("RUNNER");
        command
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).expect("a copy")),
        }
    }
}
