//! What is remembered about a machine: the highest peak that it was ever measured to reach, and how long steps take.

use crate::support;

use serde_json::{Value as Json, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use support::{Lab, column, ended, record, tiny};

/// No processor does this many operations per second.
const FAST: f64 = 1e15;

/// A lab whose program has a cache of its own.
struct Machine {
    lab: Lab,
}

impl Machine {
    fn new() -> Self {
        Self { lab: Lab::new() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.lab.path("cache/runner").join(name)
    }

    fn command(&self, args: Vec<String>) -> Command {
        let mut command = self.lab.command(args);
        command.env("XDG_CACHE_HOME", self.lab.path("cache"));
        command
    }

    /// What the program prints; it must succeed.
    fn run(&self, args: &[&str]) -> String {
        let args = args.iter().map(|word| (*word).to_owned()).collect();
        ended(self.command(args)).expect(0).stdout.clone()
    }

    fn json(&self, args: &[&str]) -> Json {
        let text = self.run(&[args, &["--format", "json"]].concat());
        serde_json::from_str(&text).expect("JSON")
    }

    fn train(&self, runs: &str, sets: &[&str]) -> PathBuf {
        let ended = ended(self.command(tiny(runs, sets)));
        ended.expect(0);
        self.lab.run_of(&ended)
    }

    /// The only entry of a file of the cache.
    fn only(&self, name: &str) -> Json {
        let all: Json = serde_json::from_slice(&fs::read(self.file(name)).expect("a cache")).expect("JSON");
        let all = all.as_object().expect("entries");
        assert_eq!(all.len(), 1, "{all:?}");
        all.values().next().expect("one").clone()
    }

    /// Sets the peak that all entries remember.
    fn plant(&self, flops: f64) {
        let path = self.file("peaks.json");
        let mut all: Json = serde_json::from_slice(&fs::read(&path).expect("a cache")).expect("JSON");
        for peak in all.as_object_mut().expect("entries").values_mut() {
            peak["flops"] = json!(flops);
        }
        fs::write(path, all.to_string()).expect("written");
    }
}

/// The peak of which `mfu` is a fraction in a run's log: the same in all rows.
fn peak_of_log(run: &std::path::Path, plan: &Json) -> f64 {
    let flops_per_token = plan["flops_per_token"].as_f64().expect("a number");
    let (speed, mfu) = (column(run, "tokens_per_s"), column(run, "mfu"));
    let peaks: Vec<f64> = speed.iter().zip(&mfu).map(|(speed, mfu)| speed * flops_per_token / mfu).collect();
    assert!(peaks.iter().all(|peak| (peak / peaks[0] - 1.0).abs() < 1e-9), "{peaks:?}");
    peaks[0]
}

#[test]
fn a_peak_only_rises_and_everything_says_the_same() {
    let machine = Machine::new();
    let first = machine.train("first", &[]);
    let peak = record(&first)["peak"].clone();
    let measured = peak["flops"].as_f64().expect("a number");
    assert!(measured > 1e8 && measured < FAST);
    for key in ["processor", "how", "simd", "measured"] {
        assert!(peak[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {peak}");
    }
    assert_eq!((&peak["threads"], &record(&first)["simd"]), (&json!(1), &peak["simd"]));
    assert_eq!(machine.only("peaks.json"), peak);
    assert!((peak_of_log(&first, &record(&first)["plan"]) / measured - 1.0).abs() < 1e-9);
    // what a quiet moment has shown stays
    machine.plant(FAST);
    let second = machine.train("second", &[]);
    let of_second = record(&second);
    assert_eq!(of_second["peak"]["flops"], json!(FAST));
    assert_eq!(of_second["sessions"][0]["peak_flops"], json!(FAST));
    assert!((peak_of_log(&second, &of_second["plan"]) / FAST - 1.0).abs() < 1e-9);
    assert_eq!(machine.json(&["plan", "tiny.toml"])["peak"]["flops"], json!(FAST));
    assert_eq!(machine.json(&["bench", "tiny.toml", "--steps", "1"])["peak_flops"], json!(FAST));
    let text = machine.run(&["plan", "tiny.toml"]);
    assert!(
        text.contains("  peak                1 PFLOP/s (measured: ")
            && text.contains(", the highest so far)"),
        "{text}"
    );
    // what a busy moment has shown does not
    machine.plant(1e6);
    let third = machine.train("third", &[]);
    let raised = record(&third)["peak"]["flops"].as_f64().expect("a number");
    assert!(raised > 1e8 && raised < FAST, "{raised}");
    assert_eq!(machine.only("peaks.json")["flops"], json!(raised));
}

#[test]
fn doctor_says_the_peak_that_is_remembered() {
    let machine = Machine::new();
    let before = machine.json(&["doctor"]);
    assert_eq!(before["cpu"]["peak"], Json::Null);
    assert!(machine.run(&["doctor"]).contains("not measured yet"));
    machine.json(&["plan", "tiny.toml", "--set", "compute.threads=0"]);
    let peak = machine.json(&["doctor"])["cpu"]["peak"].clone();
    assert_eq!(machine.only("peaks.json"), peak);
    assert_eq!(peak["threads"], before["cpu"]["threads"]);
    machine.plant(FAST);
    assert!(machine.run(&["doctor"]).contains("  peak       1 PFLOP/s (measured: "));
}

#[test]
fn a_run_keeps_the_peak_that_it_began_with_on_the_same_kind_of_processor() {
    let machine = Machine::new();
    let mut command = machine.command(tiny("runs", &[]));
    command.env("RUNNER_FAULT", "csv.before_row:8");
    assert_eq!(ended(command).code, None);
    let run = machine.lab.only_run("runs");
    let begun = record(&run)["peak"]["flops"].clone();
    machine.plant(FAST);
    machine.train("runs", &[]);
    assert_eq!(record(&run)["peak"]["flops"], begun);
    peak_of_log(&run, &record(&run)["plan"]);
    // on another processor it goes on with the peak of that one
    let run = machine.lab.crash("moved", &[], "csv.before_row:8");
    let mut before = record(&run);
    before["peak"]["processor"] = json!("another one");
    fs::write(run.join("run.json"), before.to_string()).expect("written");
    machine.train("moved", &[]);
    let after = record(&run);
    assert_eq!(after["peak"]["flops"], json!(FAST));
    let sessions = after["sessions"].as_array().expect("sessions").iter();
    let peaks: Vec<&Json> = sessions.map(|session| &session["peak_flops"]).collect();
    assert_eq!(peaks, [&before["peak"]["flops"], &json!(FAST)]);
}

fn prediction(machine: &Machine, more: &[&str]) -> (f64, String) {
    let plan = machine.json(&[&["plan", "tiny.toml"], more].concat());
    let text = machine.run(&[&["plan", "tiny.toml"], more].concat());
    let line = text.lines().find(|line| line.starts_with("predicted")).expect("a line").to_owned();
    (plan["predicted"]["step_s"].as_f64().expect("seconds"), line)
}

#[test]
fn a_timing_is_remembered_and_a_broken_memory_is_no_harm() {
    let machine = Machine::new();
    let line = || {
        let text = machine.run(&["plan", "tiny.toml"]);
        text.lines().find(|line| line.starts_with("predicted")).expect("a line").to_owned()
    };
    let (first, again) = (line(), line());
    assert!(first.ends_with("from a small step timed now"), "{first}");
    assert!(again.contains("from a small step timed on 20"), "{again}");
    let figures = |line: &str| line.split(" tokens/s").next().expect("a speed").to_owned();
    assert_eq!(figures(&first), figures(&again), "the same prediction");
    let remembered = machine.file("calibration.json");
    for broken in ["", "{", "[]", "{\"x\": {\"seconds_per_flop\": 0}}"] {
        fs::write(&remembered, broken).expect("writable");
        assert!(line().ends_with("timed now"), "{broken}");
    }
    // one of an earlier version
    let mut old: Json = serde_json::from_slice(&fs::read(&remembered).expect("there")).expect("JSON");
    for entry in old.as_object_mut().expect("entries").values_mut() {
        entry.as_object_mut().expect("rates").remove("basis");
    }
    fs::write(&remembered, old.to_string()).expect("writable");
    assert!(line().ends_with("timed earlier"), "{}", line());
    fs::remove_dir_all(machine.lab.path("cache")).expect("there");
    fs::write(machine.lab.path("cache"), "no directory").expect("writable");
    assert!(line().ends_with("timed now"));
    // the reference engine is timed as well
    machine.run(&["plan", "tiny.toml", "--set", "compute.engine=dfdx"]);
}

#[test]
fn runs_correct_a_prediction_and_measuring_forgets_them() {
    let machine = Machine::new();
    prediction(&machine, &[]);
    // a timing of a busy moment
    let path = machine.file("calibration.json");
    let mut all: Json = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
    for entry in all.as_object_mut().expect("entries").values_mut() {
        entry["seconds_per_flop"] = json!(1.0);
    }
    fs::write(&path, all.to_string()).expect("written");
    assert!(prediction(&machine, &[]).0 > 1e6);
    // too short to count
    machine.train("runs", &["schedule.max_steps=9", "name=short"]);
    assert!(prediction(&machine, &[]).0 > 1e6);
    let run = machine.train("runs", &[]);
    let id = run.file_name().expect("a name").to_str().expect("UTF-8");
    let mut step_ms = column(&run, "step_ms");
    step_ms.sort_by(f64::total_cmp);
    let (step_s, line) = prediction(&machine, &[]);
    let middle = step_ms[5] / 1e3 * (1.0 - 1e-9)..step_ms[6] / 1e3 * (1.0 + 1e-9);
    assert!(middle.contains(&step_s), "{step_s} is not in the middle: {middle:?}");
    assert!(line.contains(&format!("from the median of 12 steps of {id} on 20")), "{line}");
    let from = machine.json(&["plan", "tiny.toml"])["predicted_from"].clone();
    assert_eq!((&from["kind"], &from["id"], &from["steps"]), (&json!("run"), &json!(id), &json!(12)));
    // what a plan for several ranks has timed says nothing about the run
    let ranks = prediction(&machine, &["--set", "batch.world_size=2"]).1;
    assert!(ranks.contains("from a small step timed"), "{ranks}");
    // which has found the peak rate anew, on a machine that may be busy
    let but_for_peak = |line: &str| {
        line.split(", ").filter(|part| !part.contains("of the peak")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(but_for_peak(&prediction(&machine, &[]).1), but_for_peak(&line));
    // a run that is stopped counts, and is newer
    let mut command = machine.command(tiny("runs", &["seed=2", "schedule.max_steps=100000000"]));
    command.args(["--set", "eval.every=0", "--set", "checkpoint.every=0"]);
    let mut live = support::spawned(command);
    support::wait("two runs", || machine.lab.runs("runs").len() == 3);
    let stopped = machine.lab.runs("runs").into_iter().map(|id| machine.lab.path("runs").join(id));
    let stopped = stopped.into_iter().find(|path| record_of(path, "total_steps") == json!(100_000_000_u64));
    let stopped = stopped.unwrap_or_else(|| machine.lab.path("none"));
    support::wait("steps", || support::rows(&stopped) > 12);
    live.signal("INT");
    live.end().expect(130);
    let id = stopped.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    assert!(prediction(&machine, &[]).1.contains(&format!(" steps of {id} on 20")));
    // other kinds are timed
    let other = prediction(&machine, &["--set", "batch.micro_batch=2"]).1;
    assert!(other.contains("timed on 20"), "{other}");
    let now = machine.run(&["plan", "tiny.toml", "--measure"]);
    assert!(now.contains("from a small step timed now"), "{now}");
    let (step_s, line) = prediction(&machine, &[]);
    assert!(line.contains("from a small step timed on 20") && step_s < 1e6, "{line}");
}

fn record_of(run: &std::path::Path, key: &str) -> Json {
    let mut value = Json::Null;
    support::wait("a record", || {
        let bytes = fs::read(run.join("run.json")).unwrap_or_default();
        serde_json::from_slice::<Json>(&bytes).is_ok_and(|record| {
            value = record[key].clone();
            true
        })
    });
    value
}
