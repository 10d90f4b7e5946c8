//! The documents, held against the source: what they list must be what there is, and their links must lead somewhere.
//!
//! Each test names the line to add or to change when it fails.

use crate::document_support;
use crate::source_support;

use clap::CommandFactory;
use document_support::{DOCUMENTS, blocks, links, read, root};
use runner::cli::Cli;
use runner::recipe::keys::{Identity, KEYS, Key, OnResume, find};
use runner::report::{metrics::metrics, plot::quantities};
use runner::run::columns::LOGS;
use runner::run::{dir, lock, record};
use runner::session::missing::SHIPPED;
use source_support::{character, comment, raw_string, source_files, string};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The part of a document under a heading, up to the next one of the second level. A single `#` may begin a comment.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, after) =
        text.split_once(&format!("# {heading}\n")).unwrap_or_else(|| panic!("no heading `{heading}`"));
    after.split("\n## ").next().unwrap_or(after)
}

/// The first cell of each row of the table with this head, without its backticks.
fn first_cells<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let (_, table) = text.split_once(head).unwrap_or_else(|| panic!("no table `{head}`"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('|').nth(1)).map(|cell| cell.trim().trim_matches('`')).collect()
}

#[test]
fn the_readme_lists_the_exit_codes_that_there_are() {
    let source = read("src/commands/exit.rs");
    let body = source
        .split_once("pub enum Exit {")
        .and_then(|(_, rest)| rest.split_once("\n}"))
        .expect("the enum")
        .0;
    let codes: Vec<&str> = body
        .lines()
        .filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "))
        .map(|(_, code)| code)
        .collect();
    assert!(codes.len() >= 7, "found only {codes:?}");
    assert_eq!(first_cells(section(&read("README.md"), "Exit codes"), "| code | means |"), codes);
    let help = Cli::command().render_long_help().to_string();
    let said = help.split_once("Exit codes:").expect("--help lists the exit codes").1;
    let said = said.split("\n\n").next().expect("a paragraph");
    for code in codes {
        let numbers: Vec<&str> = said.split(|c: char| !c.is_ascii_digit()).collect();
        assert!(numbers.contains(&code), "--help does not mention exit code {code}: {said}");
    }
}

/// The strings of the source, one per line. A string that goes on after a backslash is joined.
fn messages() -> String {
    let mut messages = String::new();
    for (_, text) in source_files("src") {
        let mut rest = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        while let Some(first) = rest.chars().next() {
            let literal = raw_string(rest).or_else(|| string(rest));
            let taken = literal.or_else(|| comment(rest)).or_else(|| character(rest));
            let (token, after) = rest.split_at(taken.unwrap_or(first.len_utf8()));
            if literal.is_some() {
                messages.extend(token.split("\\\n").map(str::trim_start));
                messages.push('\n');
            }
            rest = after;
        }
    }
    messages
}

/// Whether the program's strings have three words in a row of the message, or both of two words that stand between what
/// it fills in (`…`, numbers, quoted names).
fn says(messages: &str, message: &str) -> bool {
    let is_filled_in = |word: &&str| word.contains(|c: char| c.is_ascii_digit() || "…`\"".contains(c));
    let words: Vec<&str> = message.split(' ').collect();
    let fixed = words.split(is_filled_in).filter(|words| words.len() > 1);
    fixed.flat_map(|words| words.windows(words.len().min(3))).any(|words| messages.contains(&words.join(" ")))
}

#[test]
fn a_message_is_known_by_its_words() {
    let source = "could not read {path}: no such file\nthe recipe names\n";
    for message in ["could not read runs/x", "… : no such file", "the recipe names …"] {
        assert!(says(source, message), "{message}");
    }
    for message in ["could not write runs/x", "`…` the recipe is wrong", "3 steps", "…"] {
        assert!(!says(source, message), "{message}");
    }
}

#[test]
fn troubleshooting_has_messages_and_codes_that_exist() {
    let readme = read("README.md");
    let known: BTreeSet<&str> = first_cells(&readme, "| code | means |").into_iter().collect();
    let (page, source) = (read("docs/troubleshooting.md"), messages());
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let rows: Vec<&str> = rows.filter(|line| !line.starts_with("| message ")).collect();
    assert!(rows.len() > 30, "{rows:?}");
    for row in rows {
        let message = row.split('|').nth(1).expect("a cell").trim().trim_matches('`').trim();
        assert!(says(&source, message), "no message of the program is like this: {message}");
        let codes = row.rsplit('|').nth(2).expect("three cells");
        for code in codes.split(',').map(str::trim) {
            assert!(known.contains(code), "no exit code {code}: {row}");
        }
    }
}

#[test]
fn the_columns_of_the_logs_are_listed_with_their_meanings() {
    let document = read("runs/README.md");
    for (log, columns) in LOGS {
        let mut table = "| column | meaning |\n| --- | --- |\n".to_owned();
        for column in columns {
            table += &format!("| `{}` | {} |\n", column.name, column.meaning.trim_end_matches('.'));
        }
        let shown = section(&document, &format!("The columns of {log}"));
        assert!(shown.contains(&format!("\n{table}")), "the table in runs/README.md is not\n{table}");
    }
}

#[test]
fn the_keys_that_a_resumed_run_may_change_are_listed() {
    let guide = read("runs/README.md");
    let spans = section(&guide, "Resuming").split('`').skip(1).step_by(2);
    let listed: BTreeSet<&str> = spans.filter(|span| find(span).is_some()).collect();
    let free = KEYS.iter().filter(|key| key.on_resume == OnResume::Free).map(|key| key.path);
    assert_eq!(listed, free.collect(), "the keys under `Resuming` in runs/README.md");
}

#[test]
fn the_keys_that_the_name_of_a_run_leaves_out_are_listed() {
    let guide = read("runs/README.md");
    let (_, after) = guide.split_once("it leaves out `name`").expect("the list begins");
    let (list, _) = after.split_once("It also leaves out").expect("the list ends");
    let spans: BTreeSet<&str> = list.split('`').skip(1).step_by(2).chain(["name"]).collect();
    let is_listed = |key: &&Key| spans.contains(key.path) || spans.contains(key.table());
    let listed: BTreeSet<&str> = KEYS.iter().filter(is_listed).map(|key| key.path).collect();
    let left_out = KEYS.iter().filter(|key| matches!(key.identity, Identity::Never)).map(|key| key.path);
    assert_eq!(listed, left_out.collect(), "the keys that the hash leaves out in runs/README.md");
}

#[test]
fn recipes_and_the_guide_of_datasets_agree_about_names() {
    let guide = read("datasets/README.md");
    let mut known = 0;
    for entry in glob::glob(&format!("{}/recipes/**/*.toml", root().display())).expect("a pattern") {
        let path = entry.expect("readable");
        let text = std::fs::read_to_string(&path).expect("readable");
        let table: toml::Table = text.parse().expect("TOML");
        let data = table.get("data").and_then(toml::Value::as_table);
        let files = data.into_iter().flatten().filter(|(key, _)| ["train", "val"].contains(&key.as_str()));
        let named = files.flat_map(|(key, value)| {
            let several = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            several.into_iter().map(move |value| (key.clone(), value))
        });
        for (key, value) in named {
            let Some(name) = value.as_str().filter(|name| !name.starts_with("builtin:")) else { continue };
            let (_, below) =
                name.split_once("datasets/").unwrap_or_else(|| panic!("{}: {name}", path.display()));
            let shipped = SHIPPED.iter().find(|shipped| below.starts_with(shipped.name));
            let shipped = shipped.unwrap_or_else(|| panic!("{}: {name} is not in SHIPPED", path.display()));
            let pattern = glob::Pattern::new(below.rsplit('/').next().expect("a name")).expect("a pattern");
            let section = section(&guide, shipped.heading);
            if glob::Pattern::escape(below) == below {
                // a single file, which the section names
                assert!(section.contains(&format!("`{below}`")), "{}: {below}", shipped.heading);
                known += 1;
                continue;
            }
            // every name that the section gives for this key matches, and there is one
            let names = section.split('`').skip(1).step_by(2).filter(|name| name.ends_with(['t', 'n', 'y']));
            let names: Vec<&str> = names
                .filter(|name| {
                    let is_file = !name.contains(['/', '*', ' ']) && name.contains('.');
                    is_file && (name.contains(key.as_str()) || *name == below)
                })
                .collect();
            assert!(key != "train" || !names.is_empty(), "{}: {key}", shipped.heading);
            for name in names {
                assert!(pattern.matches(name), "{}: {pattern} does not match {name}", path.display());
                known += 1;
            }
        }
    }
    assert!(known > 6, "only {known} names were compared");
}

#[test]
fn the_number_of_deterministic_columns_is_as_documented() {
    let numbers =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"];
    let columns = LOGS[0].1;
    let first = columns.iter().take_while(|column| column.is_deterministic).count();
    for document in ["runs/README.md", "docs/guarantees.md"] {
        let said = format!("The first {} columns", numbers[first]);
        assert!(read(document).contains(&said), "{document} does not say `{said}`");
    }
    let later: Vec<&str> = columns
        .iter()
        .skip(first)
        .filter(|column| column.is_deterministic)
        .map(|column| column.name)
        .collect();
    let said = section(&read("runs/README.md"), "The columns of train.csv").to_owned();
    let said = said.split("\n\n").next().expect("a paragraph");
    let named: Vec<&str> = said.split('`').skip(1).step_by(2).collect();
    assert_eq!(named, later, "runs/README.md names the deterministic columns behind the first ones: {said}");
}

#[test]
fn the_help_lists_the_metrics_and_curves_that_there_are() {
    let compare = Cli::command();
    let compare = compare.find_subcommand("compare").expect("a command");
    let help = |option: &str| {
        let argument =
            compare.get_arguments().find(|argument| argument.get_id() == option).expect("an option");
        argument.get_help().expect("a text").to_string()
    };
    let metrics: Vec<&str> = metrics().iter().map(|metric| metric.name.as_str()).collect();
    assert!(help("metrics").contains(&format!(": {};", metrics.join(", "))), "{}", help("metrics"));
    let curves: Vec<&str> = quantities().iter().map(|quantity| quantity.name.as_str()).collect();
    assert!(help("y").contains(&format!(": {}", curves.join(", "))), "{}", help("y"));
}

#[test]
fn the_readme_lists_the_commands_that_there_are() {
    let readme = read("README.md");
    let command = Cli::command();
    let mut there: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let listed = first_cells(&readme, "| command | does |");
    let mut named: Vec<&str> = listed
        .iter()
        .filter_map(|cell| cell.strip_prefix("runner ")?.split(' ').next())
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    there.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, there, "the table under `Commands` in README.md is out of date");
}

#[test]
fn the_guide_shows_the_shipped_recipe() {
    let guide = read("recipes/README.md");
    let shown = blocks("recipes/README.md", section(&guide, "A recipe with most keys"));
    let shipped = read("recipes/gpt3-small.toml");
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].text, shipped, "recipes/gpt3-small.toml has changed");
}

#[test]
fn the_two_commands_of_the_readme_are_those_that_ci_runs() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    for command in ["cargo run --release -- recipes/quickstart.toml", "cargo test --release"] {
        let shown =
            section(&readme, "Quickstart").lines().any(|line| line.trim_start_matches("$ ") == command);
        assert!(shown && ci.contains(command), "`{command}` is not in README.md and in .ci/run");
    }
}

#[test]
fn every_file_of_a_run_is_explained() {
    let text = read("runs/README.md");
    let files = first_cells(&text, "| file | contents |");
    for name in [dir::RECIPE, dir::TRAIN_CSV, dir::VAL_CSV, dir::SAMPLES, record::FILE, lock::FILE] {
        assert!(files.contains(&name), "runs/README.md does not list {name}");
    }
    assert!(files.contains(&format!("{}/", dir::CHECKPOINTS).as_str()));
    let record = serde_json::to_value(record::RunRecord::new("id", "name", "hash")).expect("plain data");
    let table = section(&text, "run.json");
    for field in record.as_object().expect("an object").keys() {
        let obvious =
            ["format_version", "id", "name", "created", "started", "ended"].contains(&field.as_str());
        assert!(
            obvious || table.contains(&format!("`{field}`")),
            "runs/README.md does not explain `{field}` of run.json"
        );
    }
}

#[test]
fn the_map_has_every_module_and_no_path_that_is_gone() {
    let text = read("ARCHITECTURE.md");
    let listed: BTreeSet<&str> = first_cells(&text, "| module | is | imports |").into_iter().collect();
    let modules: BTreeSet<String> = std::fs::read_dir(root().join("src"))
        .expect("src")
        .map(|entry| entry.expect("src").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .filter(|name| !["lib", "main"].contains(&name.as_str()))
        .collect();
    assert_eq!(
        listed,
        modules.iter().map(String::as_str).collect(),
        "the code map in ARCHITECTURE.md is out of date"
    );
    for path in text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|span| span.starts_with("src/") || span.starts_with("tests/"))
    {
        assert!(root().join(path).exists(), "ARCHITECTURE.md names {path}, which does not exist");
    }
}

/// The paths of Rust files in backticks; one with a `<` stands for several.
fn rust_files(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.split('`').skip(1).step_by(2);
    spans.filter(|span| span.ends_with(".rs") && !span.contains(['<', ' ', '*']))
}

#[test]
fn the_map_and_the_guide_name_rust_files_that_exist() {
    let files: Vec<String> = ["src", "tests"]
        .iter()
        .flat_map(|folder| source_files(folder).into_iter().map(move |(path, _)| format!("/{folder}/{path}")))
        .collect();
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = read(document);
        assert!(rust_files(&text).count() > 10, "{document}");
        for path in rust_files(&text) {
            let is_there = files.iter().any(|file| file.ends_with(&format!("/{path}")));
            assert!(is_there, "{document} names {path}, which does not exist");
        }
    }
}

#[test]
fn comments_of_modules_name_rust_files_that_exist() {
    let mut checked = 0;
    for (file, text) in source_files("src") {
        let comment: String = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        for path in rust_files(&comment) {
            checked += 1;
            // a name is relative to the file's folder or to one above it
            let file = root().join("src").join(&file);
            let mut folders = file.ancestors().skip(1).take_while(|folder| folder.starts_with(root()));
            let is_there = folders.any(|folder| folder.join(path).exists());
            assert!(is_there, "{} names {path}, which does not exist", file.display());
        }
    }
    assert!(checked > 5, "only {checked} names found");
}

/// Headings as link targets: lower case, spaces as hyphens, other signs left out.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect()
    };
    headings.map(slug).collect()
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut checked = 0;
    for document in DOCUMENTS {
        let text = read(document);
        let mut known: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
        for link in links(&text) {
            if link.starts_with("http") {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = match file {
                "" => root().join(document),
                file => root().join(document).parent().unwrap_or(Path::new("")).join(file),
            };
            assert!(path.exists(), "{document}: the link to {link} leads nowhere");
            if !anchor.is_empty() {
                let anchors = known.entry(path.clone()).or_insert_with(|| {
                    anchors(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{link}: {error}")))
                });
                assert!(anchors.contains(anchor), "{document}: {link} names no heading");
            }
        }
    }
    assert!(checked > 8, "only {checked} links found");
}
