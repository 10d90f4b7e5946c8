//! Runs that were never trained: directories as the program leaves them, with made-up logs.

#![allow(dead_code, reason = "every test file uses its own part")]

use crate::support::Lab;
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The columns of the rows below. Readers go by name, so a further column needs nothing here.
pub(crate) const HEADER: &str = "step,tokens,loss,lr,grad_norm,epoch,loss_scale,skipped,step_ms,tokens_per_s,mfu,memory_bytes,elapsed_s\n";

/// A run to be written.
pub(crate) struct Fake {
    pub(crate) id: String,
    pub(crate) seed: u64,
    pub(crate) lr: f64,
    pub(crate) precision: &'static str,
    pub(crate) status: &'static str,
    pub(crate) losses: Vec<f64>,
    pub(crate) val: Vec<(u64, f64)>,
    pub(crate) tokens_per_s: f64,
    pub(crate) extra: Value,
}

impl Fake {
    /// A finished run of four steps.
    pub(crate) fn new(id: &str, seed: u64, lr: f64, last: f64) -> Self {
        Self {
            id: id.to_owned(),
            seed,
            lr,
            precision: "fp32",
            status: "finished",
            losses: vec![10.0, 8.0, 6.0, last],
            val: vec![(0, 10.5), (4, last + 0.5)],
            tokens_per_s: 1000.0,
            extra: json!({}),
        }
    }

    /// Writes the directory below `runs`.
    pub(crate) fn write(&self, runs: &Path) -> PathBuf {
        let run = runs.join(&self.id);
        fs::create_dir_all(&run).expect("a directory");
        let recipe = format!(
            "name = \"fake\"\nseed = {}\n\n[compute]\nprecision = \"{}\"\n\n[data]\ntrain = [\"x.bin\"]\n\n\
             [optimizer]\nlr = {:?}\n\n[schedule]\nmax_steps = {}\n",
            self.seed,
            self.precision,
            self.lr,
            self.losses.len()
        );
        fs::write(run.join("recipe.toml"), recipe).expect("a file");
        let mut record = json!({
            "format_version": 1, "id": self.id, "name": "fake", "status": self.status,
            "total_steps": self.losses.len(), "device": "cpu", "versions": {"runner": "0.1.0"},
        });
        let fields = record.as_object_mut().expect("an object");
        fields.extend(self.extra.as_object().expect("an object").clone());
        fs::write(run.join("run.json"), record.to_string()).expect("a file");
        let mut train = HEADER.to_owned();
        for (step, loss) in self.losses.iter().enumerate() {
            let (tokens, ms) = ((step + 1) * 256, 256e3 / self.tokens_per_s);
            let elapsed = (step + 1) as f64 * ms / 1e3;
            writeln!(
                train,
                "{step},{tokens},{loss},{},1.5,0.1,1,0,{ms},{},0.25,1048576,{elapsed}",
                self.lr, self.tokens_per_s
            )
            .expect("memory");
        }
        fs::write(run.join("train.csv"), train).expect("a file");
        let mut val = "step,tokens,val_loss\n".to_owned();
        for (step, loss) in &self.val {
            writeln!(val, "{step},{},{loss}", step * 256).expect("memory");
        }
        fs::write(run.join("val.csv"), val).expect("a file");
        run
    }
}

/// Adds tables to the recipe of a run that was written.
pub(crate) fn with_recipe(run: &Path, more: &str) {
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    fs::write(run.join("recipe.toml"), format!("{recipe}\n{more}")).expect("a recipe");
}

/// Two learning rates with three seeds each, far apart.
pub(crate) fn sweep(runs: &Path) {
    for (i, (lr, last)) in [(1e-3, 4.0), (3e-3, 3.0)].into_iter().enumerate() {
        for seed in 1..=3u64 {
            let noise = [-0.02, 0.01, 0.015][seed as usize - 1];
            Fake::new(&format!("fake-{i}{seed}"), seed, lr, last + noise).write(runs);
        }
    }
}

/// Fifteen learning rates, 0.04 apart and with two finished seeds each; fourteen have a third one that failed.
pub(crate) fn many(runs: &Path) {
    for i in 0..15u32 {
        let (lr, last) = (1e-3 * f64::from(i + 1), 3.0 + 0.04 * f64::from(i));
        for (seed, noise) in [(1, -0.01), (2, 0.01)] {
            Fake::new(&format!("fake-{i}-{seed}"), seed, lr, last + noise).write(runs);
        }
        if i > 0 {
            let extra = json!({"error": "the disk is full"});
            Fake { status: "failed", extra, ..Fake::new(&format!("fake-{i}-3"), 3, lr, last) }.write(runs);
        }
    }
}

/// What `runner compare` says of all runs of a directory, as JSON.
pub(crate) fn compared(lab: &Lab, args: &[&str]) -> Value {
    let ended = lab.run([&["compare", "runs"], args, &["--format", "json"]].concat());
    ended.expect(0);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

/// What `runner compare` prints of all runs of a directory.
pub(crate) fn printed(lab: &Lab, args: &[&str]) -> String {
    lab.run([&["compare", "runs"], args].concat()).expect(0).stdout.clone()
}

/// The texts of a picture or a page as one line: a picture's are broken between words.
pub(crate) fn prose(drawn: &str) -> String {
    let texts = drawn.split('>').map(|part| part.split('<').next().unwrap_or(part).trim());
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

/// RFC 4180, read by its grammar: quotes around fields, doubled inside, lines ended by CRLF. Panics at anything else.
pub(crate) fn rfc4180(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if field.is_empty() => loop {
                match rest.next().expect("a quote that closes") {
                    '"' if rest.peek() == Some(&'"') => field.push(rest.next().expect("peeked")),
                    '"' => {
                        assert!(matches!(rest.peek(), Some(',' | '\r')), "text after a closing quote");
                        break;
                    }
                    c => field.push(c),
                }
            },
            ',' => record.push(std::mem::take(&mut field)),
            '\r' => {
                assert_eq!(rest.next(), Some('\n'), "a bare CR");
                record.push(std::mem::take(&mut field));
                records.push(std::mem::take(&mut record));
            }
            '"' | '\n' => panic!("a bare {c:?} in a field"),
            c => field.push(c),
        }
    }
    assert!(record.is_empty() && field.is_empty(), "the last line is not ended");
    assert!(records.iter().all(|r| r.len() == records[0].len()), "rows of different lengths");
    records
}

/// Whether a document is what a JSON Schema says, as far as ours go; where it is not.
pub(crate) fn violation(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let wrong = |what: &str| Some(format!("{at}: {value} {what}"));
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = any.iter().any(|schema| violation(schema, value, at).is_none());
        return if fits { None } else { wrong("fits none of anyOf") };
    }
    if !schema["const"].is_null() && schema["const"] != *value {
        return wrong("is not the constant");
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        return wrong("is not in the enum");
    }
    let is_type = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some(other) => panic!("{at}: a type that the schema should not have: {other}"),
    };
    if !is_type {
        return wrong("has another type");
    }
    if schema["minimum"].as_f64().is_some_and(|min| value.as_f64().is_some_and(|v| v < min)) {
        return wrong("is too small");
    }
    for item in value.as_array().into_iter().flatten() {
        if let Some(found) = violation(&schema["items"], item, &format!("{at}[]")) {
            return Some(found);
        }
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        if value.get(required.as_str().expect("a name")).is_none() {
            return wrong(&format!("lacks {required}"));
        }
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(schema) => {
                if let Some(found) = violation(schema, member, &format!("{at}.{name}")) {
                    return Some(found);
                }
            }
            None if schema["additionalProperties"] == false => return wrong(&format!("has {name}")),
            None if schema["additionalProperties"].is_object() => {
                let further = &schema["additionalProperties"];
                if let Some(found) = violation(further, member, &format!("{at}.{name}")) {
                    return Some(found);
                }
            }
            None => {}
        }
    }
    None
}
