//! Where dependencies come from: Cargo.lock, and every command that builds by it.

use crate::document_support;

use document_support::{read, root};

/// The package registry that Cargo.lock may name.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn every_dependency_comes_from_the_registry_with_its_checksum() {
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let lock: toml::Table = read(lock).parse().expect("TOML");
        let packages = lock["package"].as_array().expect("packages");
        let mut own = Vec::new();
        for package in packages {
            let name = package["name"].as_str().expect("a name");
            match package.get("source") {
                None => own.push(name),
                Some(source) => {
                    assert_eq!(source.as_str(), Some(REGISTRY), "{name}");
                    let checksum = package.get("checksum").and_then(toml::Value::as_str);
                    assert!(checksum.is_some_and(|sum| sum.len() == 64), "{name} has no checksum");
                }
            }
        }
        assert!(own.iter().all(|name| ["runner", "runner-fuzz"].contains(name)), "{own:?}");
        assert!(packages.len() > 100);
    }
}

/// Whether a line of a script calls cargo so that it may resolve dependencies, but not by Cargo.lock alone.
fn is_unlocked(line: &str) -> bool {
    let resolves = |after: &str| {
        let word = after.split_whitespace().next().unwrap_or_default();
        ["build", "run", "test", "check", "clippy", "doc", "bench", "install", "package", "metadata", "deny"]
            .contains(&word)
    };
    let call = line.trim_start().trim_start_matches("- run: ");
    let is_comment = call.starts_with('#');
    !is_comment && call.split("cargo ").skip(1).any(resolves) && !line.contains("--locked")
}

#[test]
fn what_builds_keeps_to_the_lock_file() {
    let mut scripts = vec![".ci/run".to_owned()];
    for (directory, extension) in [("scripts", ".sh"), (".github/workflows", ".yml")] {
        for entry in std::fs::read_dir(root().join(directory)).expect("a directory") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if name.ends_with(extension) {
                scripts.push(format!("{directory}/{name}"));
            }
        }
    }
    let mut unlocked = Vec::new();
    for script in &scripts {
        // a command that goes on in the next line is one line
        for line in read(script).replace("\\\n", " ").lines() {
            // what is only said, and the README's own commands, before which Cargo.lock is held against Cargo.toml
            let is_said = ["echo ", "fail \"", "printf ", "step \""].iter().any(|word| line.contains(word));
            let is_the_readme_s =
                line.contains("cargo run --release") && line.contains("recipes/quickstart.toml");
            if is_unlocked(line) && !is_said && !is_the_readme_s {
                unlocked.push(format!("{script}: {}", line.trim()));
            }
        }
    }
    assert_eq!(unlocked, [""; 0], "these need --locked");
    assert!(read(".ci/run").contains("\ncargo metadata --locked "));
    assert!(read("README.md").contains("cargo install --path . --locked"));
    let wheel: toml::Table = read("pyproject.toml").parse().expect("TOML");
    assert_eq!(wheel["tool"]["maturin"]["locked"].as_bool(), Some(true));
    for line in read(".github/workflows/release.yml").lines().chain(read("scripts/wheel.sh").lines()) {
        let builds = line.contains("maturin build") || line.contains("maturin\" build");
        assert!(!builds || line.contains("--locked"), "{line}");
    }
}

#[test]
fn a_call_without_the_lock_file_is_seen() {
    for line in
        ["cargo build --release", "tests plain cargo test --release", "      - run: cargo install mdbook"]
    {
        assert!(is_unlocked(line), "{line}");
    }
    for line in
        ["cargo build --locked", "cargo fmt --check", "# cargo build", "cargo --version", "maturin build"]
    {
        assert!(!is_unlocked(line), "{line}");
    }
}
