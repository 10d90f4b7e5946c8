//! What `runner list --remove` takes for a run, and what it leaves alone.

use crate::report_support;
use crate::support;

use report_support::Fake;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use support::{Lab, everything};

/// A finished, a failed and a killed run below `runs`.
fn lab() -> Lab {
    let lab = Lab::new();
    for (id, status) in [("fake-1", "finished"), ("fake-2", "failed"), ("fake-3", "running")] {
        Fake { status, ..Fake::new(id, 1, 1e-3, 3.0) }.write(&lab.path("runs"));
    }
    lab
}

#[test]
fn a_directory_of_runs_in_which_a_recipe_lies_is_none_itself() {
    let lab = lab();
    let below = lab.path("below");
    fs::create_dir(&below).expect("a directory");
    fs::rename(lab.path("runs"), below.join("mine")).expect("moved");
    lab.write("below/mine/recipe.toml", "name = \"mine\"\n");
    for call in [&["list", "below/mine"][..], &["list", "mine", "--runs-dir", "below"]] {
        let listed = lab.run(call).expect(0).stdout.clone();
        assert!(["fake-1", "fake-2", "fake-3"].iter().all(|id| listed.contains(id)), "{listed}");
        assert!(!listed.contains("mine"), "{listed}");
    }
    let remove = |status: &str| {
        lab.run(["list", "below/mine", "--status", status, "--older-than", "0s", "--remove", "--yes"])
    };
    assert_eq!(remove("interrupted").expect(0).stdout, "below/mine/fake-3\n");
    assert_eq!(remove("failed").expect(0).stdout, "below/mine/fake-2\n");
    assert!(below.join("mine/fake-1/train.csv").exists() && below.join("mine/recipe.toml").exists());
}

#[test]
fn what_was_never_made_as_a_run_is_not_removed() {
    let lab = lab();
    let projects = ["project", "runs/project", "runs/project-20261125"];
    for project in projects {
        lab.write(&format!("{project}/recipe.toml"), "name = \"mine\"\n");
        lab.write(&format!("{project}/notes.md"), "mine");
        Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path(project).join("runs"));
    }
    let before = projects.map(|project| everything(&lab.path(project)));
    for named in ["project", "runs/project/", "project-20261125"] {
        lab.run(["list", named]).expect(0);
        for yes in [&[][..], &["--yes"]] {
            let refused = lab.run([&["list", named, "--remove"], yes].concat());
            refused.expect(2).says(&["not removed: `", "may be no run", "delete it by hand"]);
        }
    }
    let mut inside = lab.command(["list", ".", "--remove", "--yes"]);
    inside.current_dir(lab.path("project"));
    support::ended(inside).expect(2).says(&["`.` may be no run"]);
    // the others go
    let removed = lab.run(["list", "--status", "interrupted", "--remove", "--yes"]);
    removed.expect(2).says(&["`runs/project` may be no run", "`runs/project-20261125` may be no run"]);
    assert_eq!(removed.stdout, "runs/fake-3\n");
    assert!(projects.map(|project| everything(&lab.path(project))) == before, "nor is a lock left there");
}

#[test]
fn a_run_that_was_killed_before_its_first_record_is_listed_and_removed() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "run_json.before_rename");
    assert!(!run.join("run.json").exists());
    let path = run.display().to_string();
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(lab.run(["list", "--status", "interrupted"]).expect(0).stdout.contains(&id));
    // what somebody has put there is not deleted without a question
    let notes = run.join("notes.md");
    fs::write(&notes, "mine").expect("written");
    let refused = lab.run(["list", &path, "--remove", "--yes"]);
    refused.expect(2).says(&["1 file that the run has not written: notes.md", "leave --yes out"]);
    lab.run(["list", &path, "--remove"]).expect(2).says(&["0 steps", "notes.md", "no terminal to ask on"]);
    fs::remove_file(&notes).expect("removed");
    lab.run(["list", "tiny", "--remove", "--yes"]).expect(0);
    assert!(lab.runs("runs").is_empty());
}

#[test]
fn a_run_behind_a_link_of_another_user_stays() {
    let lab = lab();
    fs::create_dir(lab.path("private")).expect("a directory");
    fs::rename(lab.path("runs/fake-1"), lab.path("private/fake-1")).expect("moved");
    for (target, link) in [("private/fake-1", "runs/zz"), ("private", "runs/sweep")] {
        std::os::unix::fs::symlink(lab.path(target), lab.path(link)).expect("a link");
    }
    // whoever has made a link, only root can give it away
    let given = |name: &str| std::os::unix::fs::lchown(lab.path(name), Some(12345), None);
    if given("runs/zz").and_then(|()| given("runs/sweep")).is_ok() {
        for named in [&["--runs-dir", "runs"][..], &["runs/*/*"], &["zz"], &["runs/sweep/fake-1"]] {
            let args = [&["list"], named, &["--status", "finished", "--remove", "--yes"]].concat();
            let ended = lab.run(args);
            assert!(ended.stderr.contains("is a link of another user"), "{named:?}: {}", ended.stderr);
            assert!(lab.path("private/fake-1/run.json").exists() && lab.path("runs/zz").is_symlink());
        }
        fs::remove_file(lab.path("runs/zz")).expect("removed");
        std::os::unix::fs::symlink(lab.path("private/fake-1"), lab.path("runs/zz")).expect("a link");
    }
    // one's own stands for the run
    lab.run(["list", "zz", "--remove", "--yes"]).expect(0).says(&["which is removed too"]);
    assert!(!lab.path("private/fake-1").exists() && !lab.path("runs/zz").is_symlink());
}

#[test]
fn a_project_made_of_a_copied_run_is_not_removed_unasked() {
    let lab = lab();
    fs::rename(lab.path("runs/fake-1"), lab.path("runs/model")).expect("renamed");
    fs::rename(lab.path("runs/fake-2"), lab.path("runs/fake-2-backup")).expect("renamed");
    lab.write("runs/model/README.md", "mine");
    lab.write("runs/fake-2-backup/notes.md", "mine");
    let refused = lab.run(["list", "model", "--remove", "--yes"]);
    refused.expect(2).says(&["`runs/model` has no record of a run of this name", "README.md", "move them"]);
    lab.run(["list", "model", "--remove"]).expect(2).says(&["runs/model: finished", "README.md"]);
    // neither is one whose name only begins with the run's
    lab.run(["list", "fake-2-b", "--remove", "--yes"]).expect(2).says(&["notes.md"]);
    fs::remove_file(lab.path("runs/model/README.md")).expect("removed");
    fs::remove_file(lab.path("runs/fake-2-backup/notes.md")).expect("removed");
    lab.run(["list", "model", "fake-2-b", "--remove", "--yes"]).expect(0);
    assert_eq!(lab.runs("runs"), ["fake-3"]);
}

#[test]
fn a_run_in_which_another_one_lies_is_not_removed() {
    let lab = lab();
    let inner = Fake::new("inner", 1, 1e-3, 3.0).write(&lab.path("runs/fake-2/mine"));
    for kept in ["recipe.toml", "run.json"] {
        for yes in [&[][..], &["--yes"]] {
            let refused = lab.run([&["list", "fake-2", "--remove"], yes].concat());
            refused.expect(2).says(&["`runs/fake-2` holds another run or project, `runs/fake-2/mine/inner`"]);
        }
        // either file is enough
        let aside = inner.join("aside");
        fs::rename(inner.join(kept), &aside).expect("renamed");
        lab.run(["list", "fake-2", "--remove", "--yes"]).expect(2).says(&["mine/inner"]);
        fs::rename(&aside, inner.join(kept)).expect("renamed");
    }
    lab.run(["list", "runs/fake-2/mine", "fake-1", "--remove", "--yes"]).expect(0);
    lab.run(["list", "fake-2", "--remove", "--yes"]).expect(0);
    assert_eq!(lab.runs("runs"), ["fake-3"]);
}

/// While the list is made, which takes long where there are many files, somebody goes on with a run that is on it.
#[test]
fn a_run_that_was_trained_to_its_end_since_it_was_read_is_not_removed() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "csv.before_row:9");
    for n in 0..200 {
        let fake = Fake { status: "interrupted", ..Fake::new(&format!("fake-{n}"), 1, 1e-3, 3.0) };
        let fake = fake.write(&lab.path("runs"));
        for letter in ["a", "b", "c"] {
            fs::write(fake.join(letter.repeat(200)), "").expect("written");
        }
    }
    let mut command = lab.command(["list", "--status", "interrupted", "--remove", "--yes"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // its lines do not fit into a pipe, so after the first byte all runs are read and it waits for a reader
    let mut stderr = child.stderr.take().expect("piped");
    stderr.read_exact(&mut [0]).expect("a line");
    lab.run(["--resume", &run.display().to_string()]).expect(0);
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).expect("text");
        rest
    });
    let output = child.wait_with_output().expect("it ends");
    let said = rest.join().expect("read");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("has been trained or evaluated since it was listed"), "{said}");
    assert_eq!(lab.runs("runs").len(), 1);
    assert!(run.join("run.json").exists(), "{said}");
}

#[test]
fn a_run_that_was_evaluated_since_it_was_listed_is_not_removed() {
    let lab = lab();
    // what an interrupted removal had left is deleted between the question and the first run
    lab.write("runs/.tmp-fake-0-1-0/lock", "");
    let command = lab.command(["list", "fake-1", "--remove", "--yes"]);
    let (live, gate) = lab.held(command, "sweep.mid_delete");
    gate.reached();
    lab.write("runs/fake-1/eval.csv", "step\n");
    gate.open();
    live.end().expect(1).says(&["not removed", "evaluated since it was listed"]);
    assert!(lab.path("runs/fake-1/train.csv").exists());
}

/// Copies of the finished run below other directories of runs, each by its path.
fn copies(lab: &Lab, paths: &[&str]) {
    for path in paths {
        let path = Path::new(path);
        let id = path.file_name().expect("a name").to_string_lossy();
        Fake::new(&id, 1, 1e-3, 3.0).write(&lab.path(path.parent().expect("a parent")));
    }
}

#[test]
fn characters_of_patterns_in_a_directory_that_exists_stand_for_themselves() {
    let lab = Lab::new();
    copies(&lab, &["exp[1]/t-1", "exp1/t-2", "exp1/t-3", "what?/t-4", "whatx/t-5"]);
    let listed = |args: &[&str]| lab.run([&["list"], args].concat()).expect(0).stdout.clone();
    for args in [&["t-*", "--runs-dir", "exp[1]"][..], &["exp[1]/t-*"], &["*", "--runs-dir", "./exp[1]/"]] {
        let text = listed(args);
        assert!(text.contains("t-1") && !text.contains("t-2"), "{args:?}: {text}");
    }
    let absolute = lab.path("exp[1]").display().to_string();
    assert!(listed(&["t-?", "--runs-dir", &absolute]).contains("t-1"));
    lab.run(["list", "t-*", "--runs-dir", "what?", "--remove", "--yes"]).expect(0);
    assert_eq!((lab.runs("what?").len(), lab.runs("whatx").len()), (0, 1));
    // where there is no such directory it is a pattern
    fs::rename(lab.path("exp[1]"), lab.path("exp2")).expect("renamed");
    assert!(listed(&["exp[1]/*"]).contains("t-2"));
    lab.run(["list", "*", "--runs-dir", "exp[1]", "--remove", "--yes"]).expect(2).says(&["is not a run"]);
    assert_eq!((lab.runs("exp1").len(), lab.runs("exp2").len()), (2, 1));
}

#[test]
fn a_pattern_is_one_for_the_names_in_the_directory_of_runs_that_is_named() {
    let lab = Lab::new();
    copies(&lab, &["here/t-1", "other/t-2", "here/runs/t-3"]);
    let here = |args: &[&str]| {
        let mut command = lab.command([&["list"], args].concat());
        command.current_dir(lab.path("here"));
        support::ended(command)
    };
    assert_eq!(
        here(&["t-*", "--runs-dir", "../other", "--remove", "--yes"]).expect(0).stdout,
        "../other/t-2\n"
    );
    here(&["t-*", "--runs-dir", "../other", "--remove", "--yes"]).expect(2).says(&["is not a run"]);
    // where none is named, the current directory counts if it alone has such runs
    let listed = here(&["t-*"]).expect(0).stdout.clone();
    assert!(listed.contains("t-3") && !listed.contains("t-1"), "{listed}");
    assert!(here(&["./t-*"]).expect(0).stdout.contains("t-1"));
    assert_eq!(here(&["t-*", "--remove", "--yes"]).expect(0).stdout, "runs/t-3\n");
    assert_eq!(here(&["t-*", "--remove", "--yes"]).expect(0).stdout, "t-1\n");
}

#[test]
fn a_directory_that_holds_no_run_may_be_called_as_ids_begin() {
    let lab = lab();
    lab.write("fake/notes.md", "mine");
    for named in ["fake", "fake-"] {
        let listed = lab.run(["list", named]);
        assert!(listed.expect(0).stdout.contains("fake-1") && listed.stderr.is_empty(), "{}", listed.stderr);
    }
    lab.run(["list", "./fake"]).expect(0).says(&["holds none; left out"]);
}
