//! The manual pages say what the definitions and README.md say.

use crate::document_support;

use clap::{CommandFactory, Parser};
use document_support::read;
use runner::cli::Cli;
use runner::cli::manual::{ENVIRONMENT, EXAMPLES, EXIT_CODES};

/// The words of a line of which a single quote surrounds what holds blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// The names of all commands, each with those above it.
fn commands(command: &clap::Command, above: &str, all: &mut Vec<String>) {
    let name = format!("{above}{}", command.get_name());
    command.get_subcommands().for_each(|below| commands(below, &format!("{name} "), all));
    all.push(name);
}

#[test]
fn every_command_has_examples_that_parse() {
    let mut all = Vec::new();
    commands(&Cli::command(), "", &mut all);
    let mut shown: Vec<String> = EXAMPLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    all.sort();
    shown.sort();
    assert_eq!(shown, all);
    for (name, examples) in EXAMPLES {
        assert!(!examples.is_empty(), "{name}");
        for (line, about) in *examples {
            let parsed = Cli::try_parse_from(words(line));
            assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("wrong"));
            // that of a group of commands is of one of them
            assert!(line.starts_with(name) && !about.is_empty(), "{name}: {line}");
        }
    }
}

#[test]
fn the_manual_has_the_exit_codes_and_variables_of_the_readme() {
    let readme = read("README.md");
    let rows = |head: &str| -> Vec<Vec<String>> {
        let (_, table) = readme.split_once(head).unwrap_or_else(|| panic!("no {head}"));
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.split('|').map(|cell| cell.trim().replace('`', "")).collect()).collect()
    };
    let codes = rows("| code | means |");
    assert_eq!(codes.len(), EXIT_CODES.len());
    for (row, (code, means)) in codes.iter().zip(EXIT_CODES) {
        assert_eq!((&row[1], row[2].as_str()), (&code.to_string(), *means));
    }
    let variables = rows("| variable | does |");
    let first = |names: &str| names.split(',').next().unwrap_or_default().to_owned();
    let listed: Vec<String> = variables
        .iter()
        .skip(1)
        .map(|row| first(&row[1]).split('=').next().unwrap_or_default().to_owned())
        .collect();
    let ours: Vec<String> = ENVIRONMENT.iter().skip(1).map(|(names, _)| first(names)).collect();
    assert_eq!(ours, listed);
    assert!(
        variables[0][1].starts_with("RUNNER_MODEL__N_LAYER")
            && ENVIRONMENT[0].1.contains("RUNNER_MODEL__N_LAYER")
    );
}
