//! The rules of ARCHITECTURE.md, held against the source: who imports whom, and what each place may touch.
//!
//! Comments and strings are taken out first, so a link in a document is no import. A rule that is in the way is changed
//! here and in ARCHITECTURE.md together, with its reason.

use crate::document_support::read;
use crate::source_support;

use source_support::{code_of, is_word, source_files};
use std::collections::BTreeSet;

/// What each top-level module may import of the others.
const IMPORTS: &[(&str, &[&str])] = &[
    ("wording", &[]),
    ("regular", &[]),
    ("sync", &[]),
    ("json", &[]),
    ("weights", &[]),
    ("data", &["weights"]),
    ("recipe", &["data", "weights"]),
    ("cuda", &[]),
    // the words of options, and what options are where they are not given
    ("cli", &["data", "session"]),
    ("comm", &[]),
    ("model", &["recipe"]),
    ("engine", &["comm", "cuda", "model", "recipe"]),
    ("plan", &["engine", "model", "recipe"]),
    ("eval", &["data", "engine"]),
    ("train", &["comm", "engine", "eval", "model", "recipe"]),
    ("run", &["engine", "model", "weights"]),
    ("web", &[]),
    ("report", &["run", "recipe"]),
    (
        "session",
        &[
            "comm", "cuda", "data", "engine", "eval", "model", "plan", "recipe", "report", "run", "train",
            "weights",
        ],
    ),
    (
        "commands",
        &[
            "cli", "cuda", "data", "engine", "eval", "plan", "recipe", "report", "run", "session", "train",
            "web",
        ],
    ),
];

/// What every module may import.
const COMMON: &[&str] = &["json", "regular", "sync", "wording"];

/// Something that only some places may do.
struct Rule {
    why: &'static str,
    /// As they stand in code, at the beginning of a word.
    words: &'static [&'static str],
    /// Paths below `src` that may; a directory ends in a slash.
    places: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        why: "only commands talk to people",
        words: &[
            "print!",
            "println!",
            "eprint!",
            "eprintln!",
            "io::stdout",
            "io::stderr",
            "stdout()",
            "stderr()",
        ],
        places: &["commands/"],
    },
    Rule {
        why: "the exit code is what main returns, so that everything is dropped in order",
        words: &["process::exit", "process::abort"],
        // a rank that panics while others work on its memory
        places: &["run/fault.rs", "comm/threads.rs"],
    },
    Rule {
        why: "only commands know the terminal",
        words: &["indicatif::", "console::"],
        places: &["commands/"],
    },
    Rule {
        why: "the command line is defined once",
        words: &["clap::"],
        places: &["cli.rs", "cli/", "commands/", "main.rs"],
    },
    Rule { why: "only the recipe layer knows TOML", words: &["figment::", "toml::"], places: &["recipe/"] },
    Rule {
        why: "a component receives its own configuration, never the whole recipe",
        words: &["Recipe", "Resolved"],
        places: &["recipe/", "plan/", "session/", "commands/"],
    },
    Rule {
        // the emulator is test equipment behind a feature: it calls the C++ compiler and keeps what that made
        why: "model, engine and train know nothing of files and of the environment",
        words: &["std::fs", "std::io", "std::env", "fs::", "File::"],
        places: &[
            // connections, and what they fail with
            "comm/tcp.rs",
            "comm/frame.rs",
            "comm/listening.rs",
            "comm/meeting.rs",
            "regular/",
            "recipe/",
            "weights/",
            "cuda/",
            "data/",
            // files of tasks
            "eval/",
            "plan/",
            "run/",
            "report/",
            "session/",
            "web/",
            "commands/",
            "engine/cuda/emulator/",
            // a variable forces the vector instructions of every kernel, also where no command was started
            "engine/cpu/simd.rs",
        ],
    },
    Rule {
        why: "safetensors files are written by one module and read by one more",
        words: &["safetensors::"],
        places: &["run/", "weights/"],
    },
    Rule {
        why: "logs are written by one module and read by one more",
        words: &["csv::"],
        places: &["run/", "report/"],
    },
    Rule { why: "kernels live in the engine", words: &["dfdx::tensor", "std::arch"], places: &["engine/"] },
    Rule {
        why: "CUDA's libraries are called from one place, which knows when they are missing",
        words: &["cudarc::", "libloading::"],
        places: &["cuda/", "engine/cuda/emulator/"],
    },
    Rule {
        // glibc chooses among its functions by the processor, and they differ in the last digit
        why: "what a run computes is the same everywhere, so functions like these come from the crate libm",
        words: &[
            ".cos()",
            ".sin()",
            ".sin_cos()",
            ".tanh()",
            ".exp()",
            ".exp2()",
            ".ln()",
            ".log2()",
            ".log10()",
            ".powf(",
        ],
        places: &[
            "cli/",
            "commands/",
            "data/",
            "plan/",
            "report/",
            "run/",
            "session/",
            "web/",
            // the engine that results are held against, and what only tests run
            "engine/dfdx/",
            "engine/cpu/gradcheck.rs",
        ],
    },
    Rule { why: "MPI is called from one place", words: &["mpi::"], places: &["comm/mpi.rs", "comm/mod.rs"] },
];

/// A source file: its path below `src` and its code without comments and strings.
struct Source {
    path: String,
    code: String,
}

fn sources() -> Vec<Source> {
    source_files("src").into_iter().map(|(path, text)| Source { path, code: code_of(&text) }).collect()
}

/// The places where a word begins, with what follows it.
fn occurrences<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let ends_in_word = word.ends_with(is_word);
    code.match_indices(word).filter_map(move |(at, _)| {
        let after = &code[at + word.len()..];
        let continued = word == "super::" && code[..at].ends_with(word);
        let within = word.starts_with(is_word) && code[..at].ends_with(is_word);
        let begins = !within && !continued;
        let ends = !ends_in_word || !after.starts_with(is_word);
        (begins && ends).then(|| (code[..at].matches('\n').count() + 1, after))
    })
}

/// The first names of what follows `crate::`, as in `engine::Engine` or `{engine::{self, State}, run}`.
fn first_names(path: &str) -> Vec<String> {
    let word = |text: &str| text.trim_start().chars().take_while(|&c| is_word(c)).collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let mut names = vec![word(group)];
    let mut depth = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(word(&group[at + 1..])),
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The top-level modules that a file names, each with the line.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (line, path) in occurrences(&source.code, "crate::") {
        found.extend(first_names(path).into_iter().map(|name| (line, name)));
    }
    // enough steps up lead to the root as well
    let to_root = source.path.matches('/').count() + usize::from(!source.path.ends_with("/mod.rs"));
    for (line, mut path) in occurrences(&source.code, "super::") {
        let mut steps = 1;
        while let Some(above) = path.strip_prefix("super::") {
            (steps, path) = (steps + 1, above);
        }
        if steps >= to_root {
            found.extend(
                first_names(path).into_iter().filter(|name| is_module(name)).map(|name| (line, name)),
            );
        }
    }
    found
}

fn is_module(name: &str) -> bool {
    IMPORTS.iter().any(|(module, _)| *module == name)
}

fn module(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// Whether a path is the place, or lies in it if that is a directory.
fn lies_in(path: &str, place: &str) -> bool {
    path == place || place.ends_with('/') && path.starts_with(place)
}

fn breaches(source: &Source) -> Vec<String> {
    let own = module(&source.path);
    let mut breaches = Vec::new();
    if !["lib", "main"].contains(&own) {
        let Some((_, allowed)) = IMPORTS.iter().find(|(module, _)| *module == own) else {
            return vec![format!(
                "src/{}: the module `{own}` has no row in tests/documents/architecture.rs",
                source.path
            )];
        };
        for (line, name) in imports(source) {
            if name != own && !allowed.contains(&name.as_str()) && !COMMON.contains(&name.as_str()) {
                breaches.push(format!("src/{}:{line}: `{own}` must not import `{name}`", source.path));
            }
        }
    }
    for rule in RULES.iter().filter(|rule| !rule.places.iter().any(|place| lies_in(&source.path, place))) {
        for word in rule.words {
            for (line, _) in occurrences(&source.code, word) {
                breaches.push(format!("src/{}:{line}: `{word}`, but {}", source.path, rule.why));
            }
        }
    }
    breaches
}

#[test]
fn every_file_keeps_to_its_place() {
    let sources = sources();
    assert!(sources.len() > 50, "only {} files found below src", sources.len());
    let breaches: Vec<String> = sources.iter().flat_map(breaches).collect();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

/// Words that find the built program, and the one file whose functions give it an environment and a cache of its own.
const PROGRAM: (&[&str], &str) = (&["BIN_EXE_", "cargo_bin", "release/runner"], "program/mod.rs");

fn starts_the_program(text: &str) -> bool {
    PROGRAM.0.iter().any(|word| text.contains(word))
}

/// The files below `src` that contain unsafe code.
fn with_unsafe_code(sources: &[Source]) -> BTreeSet<&str> {
    let unsafe_code = |source: &&Source| occurrences(&source.code, "unsafe").next().is_some();
    sources.iter().filter(unsafe_code).map(|source| source.path.as_str()).collect()
}

/// The files in the first cells of the table of unsafe code.
fn listed_as_unsafe(map: &str) -> Vec<&str> {
    let (_, table) = map.split_once("| file | why | what checks it |\n").expect("a table of unsafe code");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(cells.len() == 5 && cells[1..4].iter().all(|cell| !cell.is_empty()), "three cells: {row}");
        cells[1]
    });
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn every_file_with_unsafe_code_has_a_row_that_says_why() {
    let (sources, map) = (sources(), read("ARCHITECTURE.md"));
    let (found, listed) = (with_unsafe_code(&sources), listed_as_unsafe(&map));
    let known: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(known.len(), listed.len(), "a file is listed twice under `Unsafe code` in ARCHITECTURE.md");
    let new: Vec<_> = found.difference(&known).collect();
    assert!(
        new.is_empty(),
        "do without unsafe code, or give a row under `Unsafe code` in ARCHITECTURE.md: {new:?}"
    );
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "there is no unsafe code left in these; take their rows out: {gone:?}");
}

#[test]
fn unsafe_code_is_seen_in_code_only() {
    let source = |path: &str, text: &str| Source { path: path.to_owned(), code: code_of(text) };
    let sources = [
        source("a.rs", "fn f() { unsafe { g() } }"),
        source("b.rs", "unsafe impl Send for A {}"),
        source("c.rs", "// unsafe\nlet s = \"unsafe\"; let unsafely = 1;"),
        source("d.rs", "#![deny(unsafe_op_in_unsafe_fn)]"),
    ];
    assert_eq!(with_unsafe_code(&sources), BTreeSet::from(["a.rs", "b.rs"]));
    let map = "| file | why | what checks it |\n| --- | --- | --- |\n| `a.rs`, `b.rs` | `x` | y |\n\n| `c.rs` | x | y |";
    assert_eq!(listed_as_unsafe(map), ["a.rs", "b.rs"]);
}

#[test]
fn tests_start_the_program_in_one_place_which_keeps_the_users_cache_out() {
    let (here, tests) = ("documents/architecture.rs", source_files("tests"));
    let starting: Vec<_> =
        tests.iter().filter(|(path, text)| path != here && starts_the_program(text)).collect();
    assert!(
        starting.len() == 1 && starting[0].0 == PROGRAM.1,
        "only tests/{} may name the program's path, not {:?}",
        PROGRAM.1,
        starting.iter().map(|(path, _)| path).collect::<Vec<_>>()
    );
    assert!(starting[0].1.contains("XDG_CACHE_HOME"), "the cache of tests is not the user's");
    assert!(starts_the_program("Command::new(env!(\"CARGO_BIN_EXE_runner\"))"));
}

#[test]
fn no_test_is_skipped_without_a_reason_beside_it() {
    for (path, text) in source_files("tests") {
        assert!(
            path == "documents/architecture.rs" || !text.contains("#[ignore]"),
            "tests/{path}: why is it ignored?"
        );
    }
}

#[test]
fn no_rule_is_about_nothing() {
    let sources = sources();
    let modules: BTreeSet<&str> = sources.iter().map(|source| module(&source.path)).collect();
    for (module, allowed) in IMPORTS {
        assert!(modules.contains(module), "there is no module `{module}`");
        assert!(allowed.iter().all(|name| is_module(name)), "`{module}` may import what does not exist");
    }
    for rule in RULES {
        for place in rule.places {
            assert!(sources.iter().any(|source| lies_in(&source.path, place)), "there is no src/{place}");
        }
        let used =
            |source: &Source| rule.words.iter().any(|word| occurrences(&source.code, word).next().is_some());
        assert!(sources.iter().any(used), "nobody does what this forbids: {}", rule.why);
    }
}

fn found(path: &str, text: &str) -> Vec<String> {
    breaches(&Source { path: path.to_owned(), code: code_of(text) })
}

#[test]
fn imports_are_seen_in_every_form() {
    for text in [
        "use crate::run::RunDir;",
        "use crate::{\n    model::{Dims, layout},\n    run,\n};",
        "fn f() { crate::run::status(path) }",
        "mod inner { use super::super::super::run::log; }",
    ] {
        let found = found("engine/cpu/mod.rs", text);
        assert!(found.len() == 1 && found[0].contains("`engine` must not import `run`"), "{text}: {found:?}");
    }
    assert_eq!(found("recipe/check.rs", "use super::super::engine;").len(), 1);
    assert_eq!(found("novelty/mod.rs", "").len(), 1, "a new module needs a row");
    for text in ["use crate::model::Dims;", "// crate::run", "let s = \"crate::run\";", "use super::run;"] {
        assert_eq!(found("engine/fused/mod.rs", text), [""; 0], "{text}");
    }
}

#[test]
fn words_are_seen_only_in_code_and_only_whole() {
    assert_eq!(
        found("train/mod.rs", "fn f() {\n    println!(\"x\");\n}"),
        ["src/train/mod.rs:2: `println!`, but only commands talk to people"]
    );
    for text in ["print!(\"x\")", "use std::fs::File;", "config: &Recipe,", "std::process::exit(1)"] {
        assert!(!found("train/mod.rs", text).is_empty(), "{text}");
    }
    for text in [
        "let c = '\"'; // print!",
        "r#\"a \" print!\"#",
        "fn f<'a>(x: &'a str) {}",
        "\"\\\" print!\"",
        "RecipeLike",
    ] {
        assert_eq!(found("train/mod.rs", text), [""; 0], "{text}");
    }
    assert_eq!(found("train/mod.rs", "let c = '\\''; print!()").len(), 1);
    assert_eq!(found("train/mod.rs", "fn f<'a>(x: &'a str) { print!() }").len(), 1);
}
