//! What stderr gets: JSON for programs (`--log-format json`), less (`--quiet`) and more (`--verbose`) for people.

use crate::support;

use serde_json::Value as Json;
use support::{Ended, Lab, tiny};
use support::{train_csv, val_csv};

const COMMITTED: &str = include_str!("../../docs/events.schema.json");

/// The events on stderr, each held against the schema.
fn events(ended: &Ended) -> Vec<Json> {
    let schema: Json = serde_json::from_str(COMMITTED).expect("JSON");
    let kinds = schema["oneOf"].as_array().expect("kinds");
    let parsed = |line: &str| {
        let event: Json = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        let is_kind = |kind: &&Json| kind["properties"]["event"]["const"] == event["event"];
        let kind = kinds.iter().find(is_kind).unwrap_or_else(|| panic!("an unknown event: {line}"));
        let fields = event.as_object().expect("an object");
        for (name, value) in fields {
            let wanted = &kind["properties"][name];
            assert!(wanted.is_object(), "the schema has no {name}: {line}");
            assert!(allows(wanted, value), "{name} is not {wanted}: {line}");
        }
        for name in kind["required"].as_array().expect("names") {
            assert!(fields.contains_key(name.as_str().expect("a name")), "{name} is missing: {line}");
        }
        event
    };
    ended.stderr.lines().map(parsed).collect()
}

/// Whether a schema allows a value, as far as the events need it.
fn allows(schema: &Json, value: &Json) -> bool {
    if let Some(words) = schema["enum"].as_array() {
        return words.contains(value);
    }
    if !schema["const"].is_null() {
        return schema["const"] == *value;
    }
    let of = |name: &Json| match name.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => {
            value.as_array().is_some_and(|items| items.iter().all(|item| allows(&schema["items"], item)))
        }
        Some("object") => value.is_object(),
        _ => panic!("{schema} has no type"),
    };
    match &schema["type"] {
        Json::Array(names) => names.iter().any(of),
        name => of(name),
    }
}

fn of_kind<'a>(events: &'a [Json], kind: &str) -> Vec<&'a Json> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

#[test]
fn the_committed_schema_is_the_one_that_is_printed() {
    let lab = Lab::new();
    let printed = lab.run(["schema", "events"]).expect(0).stdout.clone();
    assert!(COMMITTED == printed, "refresh it: runner schema events > docs/events.schema.json");
}

#[test]
fn every_event_of_a_run_is_a_line_of_json() {
    let lab = Lab::new();
    let mut words =
        tiny("runs", &["eval.every=4", "sample.every=6", "sample.prompt=!", "checkpoint.every=5"]);
    words.extend(["--log-format".into(), "json".into()]);
    let ended = lab.run(&words);
    ended.expect(0);
    let run = lab.run_of(&ended);
    let all = events(&ended);
    let named = run.strip_prefix(lab.dir()).expect("below").display().to_string();
    assert!(
        all.iter().filter(|event| event["event"] != "message").all(|event| event["run"] == named.as_str())
    );
    let kinds: Vec<&str> = all.iter().map(|event| event["event"].as_str().expect("a word")).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"plan"), Some(&"end")), "{kinds:?}");
    // as the logs have it
    let (train, val) = (train_csv(&run), val_csv(&run));
    let steps = of_kind(&all, "step");
    assert_eq!(steps.len(), train.rows.len());
    for name in &train.header {
        // the log has the loss in single precision
        let close = if name == "loss" { 1e-6 } else { 0.0 };
        for (event, logged) in steps.iter().zip(train.cells(name)) {
            let said = &event[name];
            let said = said.as_f64().or_else(|| said.as_bool().map(|flag| f64::from(u8::from(flag))));
            assert_eq!(said.is_none(), logged.is_empty(), "{name}: {event}");
            let (said, logged) = (said.unwrap_or(0.0), logged.parse().unwrap_or(0.0));
            assert!((said - logged).abs() <= close * logged.abs(), "{name}: {said} and {logged}");
        }
    }
    let evals = of_kind(&all, "eval");
    for name in ["step", "tokens"] {
        let said: Vec<f64> = evals.iter().map(|event| event[name].as_f64().expect("a number")).collect();
        assert_eq!(said, val.numbers(name), "{name}");
    }
    let steps_of = |kind: &str| -> Vec<u64> {
        of_kind(&all, kind).iter().map(|event| event["step"].as_u64().expect("a step")).collect()
    };
    let samples = std::fs::read_to_string(run.join("samples.txt")).expect("samples");
    let heads = samples.lines().filter_map(|line| line.strip_prefix("=== step ")?.strip_suffix(" ==="));
    assert_eq!(steps_of("sample"), heads.map(|step| step.parse().expect("a step")).collect::<Vec<u64>>());
    assert!(!steps_of("sample").is_empty());
    for event in of_kind(&all, "checkpoint") {
        let path = event["path"].as_str().expect("a path");
        assert!(path.ends_with(&format!("{:08}", event["step"].as_u64().expect("a step"))), "{event}");
    }
    let saved = of_kind(&all, "checkpoint");
    assert!(saved.len() >= 2 && lab.path(saved[saved.len() - 1]["path"].as_str().expect("a path")).is_dir());
    let end = all.last().expect("an end");
    assert_eq!((&end["status"], &end["step"]), (&Json::from("finished"), &end["steps"]));
    // again: it had ended before
    let again = events(lab.run(&words).expect(0));
    assert_eq!(again.len(), 1);
    assert_eq!((&again[0]["status"], &again[0]["before"]), (&Json::from("finished"), &Json::from(true)));
}

#[test]
fn what_goes_wrong_is_json_too() {
    let lab = Lab::new();
    let json = ["--log-format", "json"];
    let bad = lab.run(["tiny.toml", "model.n_layers=3"].iter().chain(&json));
    let said = events(bad.expect(2));
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["event"], "error");
    let message = said[0]["message"].as_str().expect("a text");
    assert!(
        message.starts_with("unknown key `model.n_layers`") && message.contains("did you mean"),
        "{message}"
    );
    assert!(!message.contains('\u{1b}'));
    let mut words = tiny("runs", &["optimizer.lr=1e9", "optimizer.clip_norm=0", "schedule.warmup_steps=0"]);
    words.extend(json.map(str::to_owned));
    let diverged = lab.run(&words);
    if diverged.code == Some(4) {
        let end = events(&diverged).pop().expect("an end");
        assert_eq!(end["status"], "diverged");
        assert!(end["error"].is_string());
        let again = events(lab.run(&words).expect(4)).pop().expect("an end");
        assert_eq!((&again["status"], &again["before"]), (&Json::from("diverged"), &Json::from(true)));
    } else {
        panic!("{}", diverged.stderr);
    }
    let rehearsed = events(
        lab.run(tiny("else", &[]).iter().map(String::as_str).chain(["--dry-run"]).chain(json)).expect(0),
    );
    assert_eq!(of_kind(&rehearsed, "rehearsal").len(), 1);
    for (flag, says) in [("--named", "names the run already"), ("--verbose", "has every step already")] {
        lab.run(["tiny.toml", flag].iter().chain(&json)).expect(2).says(&[says]);
    }
}

#[test]
fn quiet_says_what_is_wrong_and_nothing_else() {
    let lab = Lab::new();
    for format in ["text", "json"] {
        let ended =
            lab.run(tiny(format, &[]).iter().map(String::as_str).chain(["-q", "--log-format", format]));
        assert_eq!(ended.expect(0).stderr, "");
        assert!(lab.run_of(&ended).is_dir());
    }
    lab.run(["tiny.toml", "-q", "model.n_layers=3"]).expect(2).says(&["unknown key"]);
    lab.run(["tiny.toml", "-q", "-v"]).expect(2);
}

#[test]
fn verbose_says_every_step_and_every_checkpoint() {
    let lab = Lab::new();
    let words = tiny("runs", &["checkpoint.every=5"]);
    let ended = lab.run(words.iter().map(String::as_str).chain(["-v"]));
    let run = lab.run_of(ended.expect(0));
    let steps = support::rows(&run);
    let lines = |end: &str| ended.stderr.lines().filter(|line| line.starts_with(end)).count();
    assert_eq!(lines("step ") - ended.stderr.matches(" validation loss ").count(), steps, "{}", ended.stderr);
    ended.says(&["checkpoint of step 5 is on the disk"]);
}
