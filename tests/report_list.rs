//! `runner list`: what is there, and removing it with care.

mod report_support;
mod support;

use report_support::{Fake, rfc4180};
use serde_json::{Value, json};
use support::Lab;

fn lab() -> Lab {
    let lab = Lab::new();
    let runs = lab.path("runs");
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&runs);
    Fake { status: "failed", ..Fake::new("fake-2", 2, 1e-3, 4.0) }.write(&runs);
    Fake { status: "running", val: vec![], ..Fake::new("fake-3", 3, 1e-3, 5.0) }.write(&runs);
    lab
}

#[test]
fn every_run_is_listed_with_what_it_is_doing() {
    let lab = lab();
    let found: Value =
        serde_json::from_str(&lab.run(["list", "--format", "json"]).expect(0).stdout).expect("JSON");
    assert_eq!(found[0]["run"], "fake-1");
    let of = |i: usize, name: &str| found[i][name].clone();
    assert_eq!(
        (of(0, "status"), of(0, "steps"), of(0, "total_steps"), of(0, "progress")),
        ("finished".into(), 4.into(), 4.into(), 1.into())
    );
    assert_eq!((of(0, "loss"), of(0, "val_loss")), (json!(3), json!(3.5)));
    assert_eq!(
        (of(2, "status"), of(2, "val_loss")),
        ("interrupted".into(), Value::Null),
        "its process is gone"
    );
    assert!(of(0, "age_s").as_u64().is_some_and(|age| age < 600));
    let text = lab.run(["list"]).expect(0).stdout.clone();
    assert!(
        text.lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("fake-1  finished") && line.contains("100 %")),
        "{text}"
    );
    assert_eq!(rfc4180(&lab.run(["list", "--format", "csv"]).expect(0).stdout).len(), 4);
    let names = |args: &[&str]| {
        let ended = lab.run([&["list", "--format", "csv"], args].concat());
        rfc4180(&ended.expect(0).stdout).iter().skip(1).map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--status", "failed,interrupted"]), ["fake-2", "fake-3"]);
    assert_eq!(names(&["fake-1", "*-3"]), ["fake-1", "fake-3"]);
    assert_eq!(names(&["--older-than", "1d"]), [""; 0]);
    lab.run(["list", "--status", "ended"]).expect(2).says(&["`ended` is not a status", "interrupted"]);
    lab.run(["list", "--older-than", "soon"]).expect(2);
    lab.run(["list", "--runs-dir", "none"]).expect(0).says(&["there are no such runs"]);
}

#[test]
fn nothing_is_removed_unasked() {
    let lab = lab();
    lab.run(["list", "--remove"]).expect(2).says(&["needs to know which"]);
    lab.run(["list", "--remove", "--yes"]).expect(2).says(&["needs to know which"]);
    lab.run(["list", "fake-1", "--remove"]).expect(2).says(&["no terminal to ask on", "--yes"]);
    lab.run(["list", "fake-1", "--yes"]).expect(2);
    lab.run(["list", "--status", "diverged", "--remove", "--yes"]).expect(0).says(&["nothing to remove"]);
    assert_eq!(lab.runs("runs").len(), 3);
    let removed = lab.run(["list", "--status", "failed", "--remove", "--yes"]);
    assert_eq!(removed.expect(0).says(&["fake-2: failed, 4 steps"]).stdout, "runs/fake-2\n");
    assert_eq!(lab.runs("runs"), ["fake-1", "fake-3"]);
}

#[test]
#[ignore = "needs python3, whose pty is the terminal"]
fn a_question_on_a_terminal_takes_only_yes_for_yes() {
    let lab = lab();
    // python's pty gives the program a terminal to ask on
    let ask = |answer: &str| {
        let script = format!(
            "import os,pty,sys\n\
             def read(fd):\n    data = os.read(fd, 1024)\n    if b'[y/N]' in data: os.write(fd, b'{answer}\\n')\n    return data\n\
             status = pty.spawn([os.environ['RUNNER'], 'list', 'fake-1', '--remove'], read, lambda fd: b'')\n\
             sys.exit(os.waitstatus_to_exitcode(status))"
        );
        let mut command = lab.launcher("python3");
        command.args(["-c", &script]);
        support::ended(command).code
    };
    assert_eq!((ask("no"), lab.runs("runs").len()), (Some(1), 3));
    assert_eq!((ask(""), lab.runs("runs").len()), (Some(1), 3));
    assert_eq!((ask("y"), lab.runs("runs").len()), (Some(0), 2));
}

#[test]
fn a_run_that_is_trained_is_never_removed() {
    let lab = lab();
    let mut live = lab.start(support::tiny("runs", &["schedule.max_steps=100000"]));
    support::wait("a row", || {
        lab.runs("runs")
            .iter()
            .any(|id| id.starts_with("tiny") && support::rows(&lab.path("runs").join(id)) > 0)
    });
    let refused = lab.run(["list", "tiny", "fake-1", "--remove", "--yes"]);
    refused.expect(3).says(&["not removed", "is being written by process"]);
    assert_eq!(refused.stdout, "runs/fake-1\n", "the others are");
    assert!(!live.is_over());
    live.signal("INT");
    live.end().expect(130);
    lab.run(["list", "tiny", "--remove", "--yes"]).expect(0);
    assert_eq!(lab.runs("runs"), ["fake-2", "fake-3"]);
}
