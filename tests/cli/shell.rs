//! What shells and manuals get from the program: completions, which it answers itself, and pages.

use crate::support;

use std::path::Path;
use std::process::Command;
use support::Lab;

/// What a shell is offered for the last of these words, in the lab's directory.
fn offered(lab: &Lab, words: &[&str]) -> Vec<String> {
    let mut command = lab.command(["--", "runner"].iter().chain(words));
    command.env("_RUNNER_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("_CLAP_IFS", "\n");
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn keys_and_their_values_are_offered() {
    let lab = Lab::new();
    for (words, expected) in [
        (&["r.toml", "optimizer.ki"][..], &["optimizer.kind="][..]),
        (&["r.toml", "optimizer.kind="], &["optimizer.kind=adamw", "optimizer.kind=muon"]),
        (&["plan", "r.toml", "--set", "compute.precision=b"], &["compute.precision=bf16"]),
        (&["r.toml", "data.shuffle=f"], &["data.shuffle=false"]),
        (&["r.toml", "model.preset=gpt3-s"], &["model.preset=gpt3-small"]),
        (&["r.toml", "--unset", "model.n_l"], &["model.n_layer"]),
        (&["explain", "r.toml", "model.n_l"], &["model.n_layer"]),
        (&["r.toml", "model.n_layer="], &[]),
        (&["r.toml", "no.such.key=x"], &[]),
        (&["r.toml", "extend"], &[]),
        (&["compl"], &["completions"]),
        (&["plan", "r.toml", "--roofline", "h"], &["h100", "h200", "here"]),
    ] {
        assert_eq!(offered(&lab, words), expected, "{words:?}");
    }
}

#[test]
fn recipes_and_data_are_offered() {
    let lab = Lab::new();
    lab.write("mine.toml", "");
    lab.write("notes.txt", "");
    std::fs::create_dir(lab.path("more")).expect("a directory");
    let all = offered(&lab, &["plan", ""]);
    assert!(all.contains(&"mine.toml".to_owned()) && all.contains(&"more/".to_owned()), "{all:?}");
    assert!(!all.contains(&"notes.txt".to_owned()) && !all.iter().any(|word| word.contains('=')), "{all:?}");
    for (words, expected) in [
        (&["plan", "builtin:base/gpt2-1"][..], &["builtin:base/gpt2-124m", "builtin:base/gpt2-1558m"][..]),
        (&["init", "tinys"], &["tinyshakespeare"]),
        (&["data", "fetch", "fineweb-edu-1"], &["fineweb-edu-10b", "fineweb-edu-100b"]),
        (&["mine.toml", "data.train=not"], &["data.train=notes.txt"]),
    ] {
        assert_eq!(offered(&lab, words), expected, "{words:?}");
    }
}

#[test]
fn runs_are_offered_by_their_ids() {
    let lab = Lab::new();
    lab.write("runs/small-01234567/recipe.toml", "");
    lab.write("runs/no-run/notes.txt", "");
    lab.write("other/large-89abcdef/recipe.toml", "");
    for command in ["compare", "list", "watch", "sample", "eval", "--resume"] {
        assert_eq!(offered(&lab, &[command, "sm"]), ["small-01234567"], "{command}");
    }
    assert_eq!(offered(&lab, &["compare", "--runs-dir", "other", "la"]), ["large-89abcdef"]);
    assert_eq!(offered(&lab, &["--runs-dir", "other", "--resume", "la"]), ["large-89abcdef"]);
    assert_eq!(offered(&lab, &["compare", "no"]), [""; 0]);
    assert_eq!(offered(&lab, &["compare", "runs/no"]), ["runs/no-run/"]);
}

#[test]
fn every_shell_gets_a_script_that_asks_the_program() {
    let lab = Lab::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = lab.run(["completions", shell]).expect(0).stdout.clone();
        assert!(script.contains("_RUNNER_COMPLETE"), "{shell}: {script}");
    }
    lab.run(["completions", "tcsh"]).expect(2);
    let mut command = lab.command(["--", "runner", ""]);
    let ended = support::ended({
        command.env("_RUNNER_COMPLETE", "tcsh");
        command
    });
    ended.expect(2).says(&["_RUNNER_COMPLETE", "tcsh"]);
}

/// What bash puts on its line for a line that it has split into words as it does.
fn in_bash(lab: &Lab, line: &str, words: &[&str], typed: &str) -> Vec<String> {
    let quoted = |word: &str| format!("'{word}'");
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let script = format!(
        "compopt() {{ :; }}\nsource <(\"$RUNNER\" completions bash)\nCOMP_LINE={} COMP_POINT={} COMP_WORDS=({})\n\
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_runner runner {} ''\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        quoted(line),
        line.len(),
        words.join(" "),
        quoted(typed),
    );
    let mut bash: Command = lab.launcher("bash");
    let output = bash.args(["-c", &script]).output().expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_words_that_it_splits() {
    let lab = Lab::new();
    lab.write("my.toml", "");
    for (line, words, typed, expected) in [
        ("runner compl", &["runner", "compl"][..], "compl", &["completions"][..]),
        ("runner my", &["runner", "my"], "my", &["my.toml"]),
        (
            "runner my.toml optimizer.ki",
            &["runner", "my.toml", "optimizer.ki"],
            "optimizer.ki",
            &["optimizer.kind="],
        ),
        (
            "runner my.toml optimizer.kind=",
            &["runner", "my.toml", "optimizer.kind", "="],
            "",
            &["adamw", "muon"],
        ),
        (
            "runner my.toml optimizer.kind=mu",
            &["runner", "my.toml", "optimizer.kind", "=", "mu"],
            "mu",
            &["muon"],
        ),
        (
            "runner my.toml --set optimizer.kind=mu",
            &["runner", "my.toml", "--set", "optimizer.kind", "=", "mu"],
            "mu",
            &["muon"],
        ),
        (
            "runner seed=2 optimizer.kind=mu",
            &["runner", "seed", "=", "2", "optimizer.kind", "=", "mu"],
            "mu",
            &["muon"],
        ),
        ("runner plan builtin:quick", &["runner", "plan", "builtin", ":", "quick"], "quick", &["quickstart"]),
        ("runner plan builtin:", &["runner", "plan", "builtin", ":"], "", &["quickstart"]),
    ] {
        let found = in_bash(&lab, line, words, typed);
        match expected {
            ["quickstart"] if typed.is_empty() => {
                assert!(found.contains(&"quickstart".to_owned()), "{found:?}")
            }
            _ => assert_eq!(found, expected, "{line}"),
        }
    }
    assert!(in_bash(&lab, "runner my.toml ", &["runner", "my.toml", ""], "").contains(&"my.toml".to_owned()));
}

#[test]
fn a_name_that_a_shell_would_run_is_quoted_or_not_offered() {
    let lab = Lab::new();
    for name in ["zz$(touch pwned)", "zz`touch pwned`", "zz;touch pwned", "zz*"] {
        lab.write(&format!("runs/{name}/recipe.toml"), "");
    }
    lab.write("zz-a", "");
    let found = in_bash(&lab, "runner watch zz", &["runner", "watch", "zz"], "zz");
    let expected = [r"zz\$\(touch\ pwned\)", r"zz\*", r"zz\;touch\ pwned", r"zz\`touch\ pwned\`"];
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    let script = format!("printf '%s\n' {}", found.join(" "));
    let output = lab.launcher("bash").args(["-c", &script]).output().expect("bash");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("zz$(touch pwned)\n"),
        "they are the names again"
    );
    assert!(!lab.path("pwned").exists());

    let mut command = lab.command(["--", "runner", "watch", "zz"]);
    command.env("_RUNNER_COMPLETE", "powershell");
    assert_eq!(support::ended(command).expect(0).stdout, "");
}

#[test]
fn every_command_has_a_page_with_examples_files_environment_and_codes() {
    let lab = Lab::new();
    lab.run(["man", "share/man1"]).expect(0);
    let page = |name: &str| std::fs::read_to_string(lab.path("share/man1").join(name)).expect(name);
    for name in ["runner", "runner-plan", "runner-data", "runner-data-fetch", "runner-man"] {
        let text = page(&format!("{name}.1"));
        for head in ["NAME", "SYNOPSIS", "EXAMPLES", "FILES", "ENVIRONMENT", "\"EXIT STATUS\""] {
            assert!(text.contains(&format!(".SH {head}\n")), "{name} has no {head}:\n{text}");
        }
    }
    assert!(
        page("runner-plan.1").contains("\\-\\-roofline") && page("runner.1").contains("runner\\-plan(1)")
    );
    lab.write("file", "");
    lab.run(["man", "file"]).expect(1).says(&["could not make the directory `file`"]);
    assert!(Path::new(&lab.path("share/man1/runner-data-prepare.1")).exists());
}
