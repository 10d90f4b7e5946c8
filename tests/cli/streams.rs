//! What goes where: stdout is for programs, stderr for people, and neither has to be listened to.

use crate::support;

use std::process::Stdio;
use support::{Lab, ended, tiny};

#[test]
fn stdout_has_the_run_directory_and_nothing_else() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=3", "sample.every=2", "sample.prompt=!"];
    let first = lab.run(tiny("runs", &sets));
    first.expect(0).says(&[
        "step 0 of 3",
        "step 1/3 loss ",
        "step 3/3 loss ",
        "validation loss",
        "finished in",
    ]);
    assert_eq!(first.stdout, format!("runs/{}\n", lab.runs("runs")[0]));
    assert!(lab.run_of(&first).join("run.json").is_file());
    let again = lab.run(tiny("runs", &sets));
    again.expect(0).says(&["already finished", "--fresh"]);
    assert_eq!(again.stdout, first.stdout);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let there = lab.run(tiny(&elsewhere.path().display().to_string(), &sets));
    assert_eq!(there.expect(0).stdout, format!("{}/{}\n", elsewhere.path().display(), lab.runs("runs")[0]));
}

#[test]
fn lines_of_runs_that_share_a_terminal_have_their_names() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=3", "sample.every=2", "sample.prompt=!", "eval.every=1"];
    let named = lab.run(tiny("runs", &sets).into_iter().chain(["--named".to_owned()]));
    let (id, again) = (lab.runs("runs")[0].clone(), lab.run(tiny("runs", &sets)));
    again.expect(0).says(&[&format!("runs/{id}: already finished")]);
    named.expect(0).says(&[
        &format!("{id}: step 1/3 loss "),
        &format!("{id}: step 3/3 validation loss "),
        &format!("runs/{id}: finished in"),
        &format!("{id}:   batch    256 tokens"),
    ]);
    let is_named =
        |line: &str| line.starts_with(&format!("{id}: ")) || line.starts_with(&format!("runs/{id}: "));
    assert!(named.stderr.lines().all(is_named), "{}", named.stderr);
    assert_eq!(named.stdout, format!("runs/{id}\n"));
    // one run needs no name
    let plain = lab.run(tiny("plain", &sets));
    assert!(plain.expect(0).stderr.contains("\nstep 1/3 loss "), "{}", plain.stderr);
    // where no directory is named, the id is found nonetheless
    let mut here = lab.command(["--resume", ".", "--named"]);
    here.current_dir(lab.path(format!("runs/{id}")));
    ended(here).expect(0).says(&[&format!("{id}: .: already finished")]);
}

#[test]
fn a_stdout_that_takes_nothing_is_named() {
    let lab = Lab::new();
    for args in
        [&["schema"][..], &["--help"], &["-h"], &["plan", "--help"], &["help", "data"], &["--version"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device");
        let mut command = lab.command(args);
        command.stdout(full).stderr(Stdio::piped());
        let output =
            command.spawn().and_then(std::process::Child::wait_with_output).expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("could not write to stdout: No space left on device"), "{args:?}: {said}");
    }
}

#[test]
fn paths_are_shown_as_they_were_given() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=3"];
    lab.train_in("first", &sets);
    let id = lab.runs("first")[0].clone();
    let here = lab.dir().display().to_string();
    let name = lab.dir().file_name().expect("a name").to_string_lossy().into_owned();
    for runs in ["runs", "./there", "runs/deep/er", &format!("../{name}/up"), &format!("{here}/absolute")] {
        let shown = format!("{runs}/{id}");
        let ended = lab.run(tiny(runs, &sets));
        ended.expect(0).says(&[&format!("{shown}: step 0 of 3\n"), &format!("{shown}: finished in")]);
        assert_eq!(ended.stdout, format!("{shown}\n"));
        let lock = std::fs::File::open(lab.path(format!("{shown}/lock"))).expect("a lock");
        lock.try_lock().expect("nobody trains");
        let mut fresh = tiny(runs, &sets);
        fresh.push("--fresh".to_owned());
        let locked = lab.run(fresh);
        locked.expect(3).says(&[&format!("the run `{shown}` is being written by ")]);
        drop(lock);
        for named in [&shown, &id] {
            let again = lab.run(["--resume", named, "--runs-dir", runs]);
            again.expect(0).says(&[&format!("{shown}: already finished\n")]);
            assert_eq!(again.stdout, format!("{shown}\n"));
        }
        let relative = !runs.starts_with('/');
        assert!(!relative || !(ended.stderr + &locked.stderr).contains(&here), "{runs}: {}", locked.stderr);
    }
    // the current directory is a run, or the directory of runs
    for (inside, named) in [(format!("runs/{id}"), "."), ("runs".to_owned(), id.as_str())] {
        let mut command = lab.command(["--resume", named]);
        command.current_dir(lab.path(inside));
        let again = ended(command);
        assert_eq!(again.expect(0).stdout, format!("{named}\n"));
    }
    // what is kept for all runs lies beside the run, from wherever the run is named
    lab.write("verse.txt", "the sea and the sky. ".repeat(400));
    let args = tiny(
        "texts",
        &["data.train=[\"verse.txt\"]", "data.val=[]", "model.vocab_size=50257", "schedule.max_steps=3"],
    );
    let run = lab.run_of(lab.run(args).expect(0));
    for (inside, named) in [(run.clone(), "."), (run.join("checkpoints"), "..")] {
        let mut command = lab.command(["--resume", named]);
        command.current_dir(&inside);
        ended(command).expect(0);
        assert!(!inside.join(".cache").exists() && !run.join(".cache").exists(), "{}", inside.display());
    }
    let file = lab.run(tiny("tiny.toml/runs", &sets));
    file.expect(2).says(&["cannot write runs to `tiny.toml/runs`"]);
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let lab = Lab::new();
    // the untrained model says any byte, control characters too
    let sets = ["schedule.max_steps=8", "sample.every=8", "sample.prompt=!", "sample.tokens=400"];
    for no_color in [None, Some("1")] {
        let mut command = lab.command(tiny("runs", &sets));
        command.args(["--fresh"]).envs(no_color.map(|value| ("NO_COLOR", value)));
        let ended = ended(command);
        ended.expect(0).says(&["model", "parameters", "step 8/8 loss", "sample: !"]);
        let control = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!ended.stderr.contains(control), "{:?}", ended.stderr);
        let samples = std::fs::read(lab.run_of(&ended).join("samples.txt")).expect("samples");
        assert!(
            samples.contains(&0x1b),
            "the sample is long enough to have an escape character, and kept as it is"
        );
    }
    for no_color in [None, Some("1")] {
        let mut command = lab.command(["tiny.toml", "--set", "optimizer.lrr=1"]);
        command.envs(no_color.map(|value| ("NO_COLOR", value))).env("CLICOLOR_FORCE", "1");
        let ended = ended(command);
        ended.expect(2).says(&["optimizer.lrr"]);
        assert!(!ended.stderr.contains('\x1b'), "{:?}", ended.stderr);
    }
}

#[test]
fn nobody_has_to_listen() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=3"];
    for close in [(true, false), (false, true), (true, true)] {
        let mut command = lab.command(tiny("runs", &sets));
        command.arg("--fresh").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        if close.0 {
            drop(child.stdout.take());
        }
        if close.1 {
            drop(child.stderr.take());
        }
        let output = child.wait_with_output().expect("a child");
        assert_eq!(output.status.code(), Some(0), "{close:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(support::record(&lab.only_run("runs"))["status"], "finished");
    }
    let mut child = lab.command(["--help"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

#[test]
fn help_and_version_go_to_stdout_and_usage_to_stderr() {
    let lab = Lab::new();
    for flag in ["--help", "-h"] {
        let help = lab.run([flag]);
        help.expect(0);
        for part in
            ["Usage: runner", "RECIPE", "--set", "--unset", "--runs-dir", "--fresh", "--resume", "sample"]
        {
            assert!(help.stdout.contains(part), "{part} is not in the help");
        }
        assert_eq!(help.stderr, "");
    }
    let version = lab.run(["--version"]);
    assert_eq!(version.expect(0).stdout, format!("runner {}\n", env!("CARGO_PKG_VERSION")));
    let nothing = lab.run([""; 0]);
    nothing.expect(2).says(&["Usage: runner", "--help"]);
    assert_eq!(nothing.stdout, "");
    for (args, part) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["--resume", "x", "--fresh"], "--fresh"),
        (&["tiny.toml", "--set"], "a value is required for '--set"),
        (&["sample"], "RUN|CHECKPOINT"),
    ] {
        let ended = lab.run(args);
        ended.expect(2).says(&[part, "--help"]);
        assert_eq!(ended.stdout, "");
    }
    let both = lab.run(["tiny.toml", "--resume", "x"]);
    both.expect(2).says(&["--resume continues a run from its own recipe", "leave `tiny.toml` out"]);
    assert_eq!(both.stdout, "");
    assert!(lab.runs("runs").is_empty());
}
