//! The program under test, and the one way in which tests start it.
//!
//! It sees none of the settings of the shell that runs the tests, and it never touches the user's cache.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::path::Path;
use std::process::{Command, Stdio};

/// The built program.
const PATH: &str = env!("CARGO_BIN_EXE_runner");

/// Where it keeps what it measured: in the build directory, which git ignores.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/user-cache");

/// Variables of a launcher that the tests themselves may run under.
const LAUNCHERS: [&str; 5] =
    ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// Variables that decide where data are fetched from.
const NETWORK: [&str; 11] = [
    "HF_ENDPOINT",
    "HF_TOKEN",
    "SSL_CERT_FILE",
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// The program, ready to start in `dir`.
pub(crate) fn program(dir: &Path) -> Command {
    isolated(PATH, dir)
}

/// A program that starts the one under test, such as a shell or `mpirun`. It finds the path in `$RUNNER`.
pub(crate) fn launcher(name: &str, dir: &Path) -> Command {
    let mut command = isolated(name, dir);
    command.env("RUNNER", PATH);
    command
}

fn isolated(name: &str, dir: &Path) -> Command {
    let mut command = Command::new(name);
    let settings = std::env::vars_os().map(|(name, _)| name);
    for name in settings.filter(|name| name.to_string_lossy().starts_with("RUNNER_")) {
        command.env_remove(name);
    }
    for name in LAUNCHERS.iter().chain(&NETWORK) {
        command.env_remove(name);
    }
    command.env_remove("NO_COLOR").env("XDG_CACHE_HOME", CACHE);
    // the tests are about the CPU, whatever else a machine has
    command.env("CUDA_VISIBLE_DEVICES", "");
    command.current_dir(dir).stdin(Stdio::null());
    command
}
