//! `runner watch`: following runs as they grow, end and start again.

use crate::live::{row, training};
use crate::report_support;
use crate::support;

use report_support::Fake;
use std::fs;
use support::{Lab, rows, tiny, wait};

#[test]
fn a_finished_run_is_told_in_a_line() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let ended = lab.run(["watch", "fake"]);
    let line = &ended.expect(0).stdout;
    assert!(
        line.starts_with(
            "fake-1: finished, step 4/4  loss 3.0000  lr 0.001  norm 1.5  tok/s 1,000  MFU 25.0 %  val 3.5000"
        ),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
    lab.run(["watch", "nothing"]).expect(2).says(&["`nothing` is not a run"]);
}

#[test]
fn any_column_of_the_logs_can_be_watched() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let said = |y: &str| lab.run(["watch", "fake", "--y", y, "--x", "tokens"]).expect(0).stdout.clone();
    assert!(said("memory_bytes").trim_end().ends_with("memory_bytes 1.0 MiB"), "{}", said("memory_bytes"));
    assert_eq!(said("loss"), lab.run(["watch", "fake"]).expect(0).stdout);
    lab.run(["watch", "fake", "--y", "los"]).expect(2).says(&["`los` is no column", "grad_norm"]);
    lab.run(["watch", "fake", "--x", "epochs"]).expect(2).says(&["tokens"]);
}

#[test]
fn a_run_is_followed_to_its_end_with_a_restart_on_the_way() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=400", "checkpoint.every=50"];
    let live = lab.start(tiny("runs", &sets));
    let run = lab.only_run("runs");
    wait("some rows", || rows(&run) > 60);
    let mut watch = lab.start(["watch", "tiny"]);
    wait("a look", || rows(&run) > 120 || watch.is_over());
    live.end().expect(0);
    let said = watch.end();
    said.expect(0);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines.last().is_some_and(|line| line.contains(": finished, step 400/400")), "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("tiny-")), "{lines:?}");
}

#[test]
fn a_run_that_goes_back_is_told_from_where_it_goes_on_and_how_it_stands() {
    let lab = Lab::new();
    let (run, lock) = training(&lab, "fake-1");
    let mut watch = lab.start(["watch", "fake-1"]);
    assert!(watch.line().starts_with("fake-1: running, step 4/4  loss 3.0000"));
    // back to the checkpoint of step 2, and a step further by the next look: the same step, which took another time
    let log = run.join("train.csv");
    let text = fs::read_to_string(&log).expect("a log");
    let kept: String = text.split_inclusive('\n').take(3).collect();
    fs::write(run.join("new"), kept + &row(2, 6.0)).expect("a file");
    fs::rename(run.join("new"), &log).expect("renamed");
    assert_eq!(watch.line().trim_end(), "fake-1: went back to step 2");
    let line = watch.line();
    assert!(line.starts_with("fake-1: running, step 3/4  loss 6.0000"), "{line}");
    let record = fs::read_to_string(run.join("run.json")).expect("a record");
    fs::write(run.join("new"), record.replace("\"running\"", "\"finished\"")).expect("a file");
    fs::rename(run.join("new"), run.join("run.json")).expect("renamed");
    drop(lock);
    let said = watch.end();
    assert!(said.expect(0).stdout.starts_with("fake-1: finished, step 3/4"), "{}", said.stdout);
}

#[test]
fn a_run_that_is_removed_or_moved_ends_the_watch() {
    let lab = Lab::new();
    let (run, lock) = training(&lab, "fake-1");
    let mut watch = lab.start(["watch", "fake-1"]);
    assert!(watch.line().contains("fake-1: running"));
    fs::rename(&run, lab.path("away")).expect("moved");
    wait("the end", || watch.is_over());
    let ended = watch.end();
    ended.expect(1);
    assert!(ended.stdout.contains("is not there any more"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("went back"), "{}", ended.stdout);
    drop(lock);
}

#[test]
fn what_a_removal_left_of_a_run_ends_the_watch_and_the_export() {
    let lab = Lab::new();
    let (run, lock) = training(&lab, "fake-1");
    let mut watch = lab.start(["watch", "fake-1"]);
    let mut export = lab.start(["export", "fake-1", "--tensorboard", "board", "--follow"]);
    assert!(watch.line().contains("fake-1: running"));
    wait("the first events", || {
        lab.path("board/fake-1").read_dir().is_ok_and(|mut all| all.next().is_some())
    });
    fs::create_dir(run.join("checkpoints")).expect("a directory");
    let entries = fs::read_dir(&run).expect("entries").map(|entry| entry.expect("an entry").path());
    // the lock last: a run with a record that nothing holds is interrupted
    let (locks, files): (Vec<_>, Vec<_>) =
        entries.filter(|path| path.is_file()).partition(|path| path.ends_with("lock"));
    files.into_iter().chain(locks).for_each(|path| fs::remove_file(path).expect("removed"));
    drop(lock);
    wait("the end of the watch", || watch.is_over());
    let ended = watch.end();
    let last = ended.expect(1).stdout.lines().last().unwrap_or_default().to_owned();
    assert!(last.contains("fake-1: unknown") && last.contains("is not a run"), "{}", ended.stdout);
    wait("the end of the export", || export.is_over());
}

#[test]
fn an_interrupted_run_ends_the_watch_without_a_terminal() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "csv.before_row:7");
    let id = run.file_name().expect("a name").to_str().expect("UTF-8");
    let line = lab.run(["watch", id]).expect(0).stdout.clone();
    assert!(line.contains(&format!(": interrupted, step {}/12", rows(&run))), "{line}");
}

/// Runs `watch` on a terminal of python's making, changes its size and its run meanwhile, and ends it with Ctrl-C.
const PTY: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
runner, log = os.environ["RUNNER"], sys.argv[1]
def resize(fd, rows, cols):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
def wait_for_size():
    while os.get_terminal_size(0) != (80, 24): time.sleep(0.005)
pid, fd = pty.fork()
if pid == 0:
    wait_for_size()
    os.execv(runner, [runner, "watch", "fake-1"])
resize(fd, 24, 80)
seen = b""
def read(seconds, until=None):
    global seen
    start, begin = time.time(), len(seen)
    while time.time() - start < seconds:
        ready, _, _ = select.select([fd], [], [], 0.05)
        if ready:
            try: data = os.read(fd, 65536)
            except OSError: break
            if not data: break
            seen += data
        if until and until in seen[begin:]: return True
    return until is None
assert read(60, b"step 4/400"), seen
with open(log, "a") as f: f.write("4,1280,5.5,1e-3,1.5,0.1,1,0,256,1000,0.25,1048576,1.28\n")
assert read(60, b"step 5/400"), seen
resize(fd, 10, 40)
begin = len(seen)
assert read(60, b"\x1b[2J"), "no redraw after the size changed"
read(1)
frame = seen.rsplit(b"\x1b[H", 1)[-1].decode()
import re
lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).split("\r\n")
assert len(lines) <= 10 and max(map(len, lines)) <= 40, lines
assert "loss 5.5000" in lines[0], lines
text = open(log).read().splitlines()
with open(log + ".new", "w") as f: f.write("\n".join(text[:3]) + "\n")
os.rename(log + ".new", log)
assert read(60, b"step 2/400"), seen
os.write(fd, b"\x03")
read(20)
_, status = os.waitpid(pid, 0)
assert b"\x1b[?1049l" in seen[-400:] and b"\x1b[?25h" in seen[-400:], seen[-400:]
sys.exit(os.waitstatus_to_exitcode(status))
"#;

#[test]
#[ignore = "needs python3, whose pty is the terminal"]
fn on_a_terminal_the_chart_survives_resizing_restarts_and_ends_cleanly() {
    let lab = Lab::new();
    let mut fake = Fake { status: "running", ..Fake::new("fake-1", 1, 1e-3, 3.0) };
    fake.val.clear();
    let run = fake.write(&lab.path("runs"));
    let recipe = fs::read_to_string(run.join("recipe.toml"))
        .expect("a recipe")
        .replace("max_steps = 4", "max_steps = 400");
    fs::write(run.join("recipe.toml"), recipe).expect("a file");
    let mut command = lab.launcher("python3");
    command.args(["-c", PTY]).arg(run.join("train.csv")).env("TERM", "xterm");
    support::ended(command).expect(130);
}

/// What is written at first is more than a pipe holds.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_a_watch_that_nobody_reads() {
    let lab = Lab::new();
    let (_run, _lock) = training(&lab, "fake-0");
    for i in 1..1000 {
        Fake::new(&format!("fake-{i}-{}", "x".repeat(60)), 1, 1e-3, 3.0).write(&lab.path("runs"));
    }
    let mut live = lab.start(["watch", "runs"]);
    let status = format!("/proc/{}/status", live.id());
    // the bit of SIGTERM, 15
    let catches = |line: &str| u64::from_str_radix(line.trim(), 16).is_ok_and(|caught| caught >> 14 & 1 == 1);
    let caught = || fs::read_to_string(&status).expect("a process");
    wait("a handler", || caught().lines().filter_map(|line| line.strip_prefix("SigCgt:")).any(catches));
    live.signal("TERM");
    wait("the end", || live.is_over());
    assert_eq!(live.end().code, Some(143));
}
