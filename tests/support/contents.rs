//! What is in a run directory, and which part of it is a function of the recipe.

use super::log_support;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// Files by their path below a directory.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// A log as text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Csv {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Csv {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.ends_with('\n') && !text.contains(['\r', '"']), "{text}");
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let header = lines.next().expect("a header");
        let rows: Vec<_> = lines.collect();
        assert!(rows.iter().all(|row| row.len() == header.len()), "{text}");
        Self { header, rows }
    }

    /// The texts of a column.
    pub(crate) fn cells(&self, column: &str) -> impl Iterator<Item = &str> {
        let at = self.header.iter().position(|name| name == column).expect("a column");
        self.rows.iter().map(move |row| row[at].as_str())
    }

    /// A column as numbers.
    pub(crate) fn numbers(&self, column: &str) -> Vec<f64> {
        self.cells(column).map(|cell| cell.parse().expect("a number")).collect()
    }
}

/// `train.csv` of a run.
pub(crate) fn train_csv(run: &Path) -> Csv {
    Csv::read(&run.join("train.csv"))
}

/// `val.csv` of a run.
pub(crate) fn val_csv(run: &Path) -> Csv {
    Csv::read(&run.join("val.csv"))
}

/// A column of `train.csv` as numbers.
pub(crate) fn column(run: &Path, name: &str) -> Vec<f64> {
    train_csv(run).numbers(name)
}

/// How many whole rows `train.csv` has by now; 0 before there is one.
pub(crate) fn rows(run: &Path) -> usize {
    let text = fs::read_to_string(run.join("train.csv")).unwrap_or_default();
    text.matches('\n').count().saturating_sub(1)
}

/// `run.json` of a run.
pub(crate) fn record(run: &Path) -> Value {
    let bytes = fs::read(run.join("run.json")).expect("a record");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// Every file below a directory with its bytes and the time of its last change.
pub(crate) fn everything(dir: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    visit(dir, "", &mut |name, path| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a time");
        found.insert(name, (fs::read(path).expect("readable"), modified));
    });
    found
}

/// What a run computed: the logs without times, the samples and the checkpoints' tensors.
pub(crate) fn results(run: &Path) -> Files {
    essence(run)
        .into_iter()
        .filter(|(name, _)| !name.ends_with("state.json") && name != "recipe.toml")
        .collect()
}

/// Everything in a run that is a function of its recipe: all but times, and what tells of processes.
pub(crate) fn essence(run: &Path) -> Files {
    let mut found = Files::new();
    visit(run, "", &mut |name, path| {
        let bytes = fs::read(path).expect("readable");
        let kept = match name.rsplit('/').next().unwrap_or_default() {
            "lock" | "run.json" => return,
            "train.csv" => {
                log_support::deterministic(std::str::from_utf8(&bytes).expect("text")).into_bytes()
            }
            "state.json" => timeless(&bytes),
            _ => bytes,
        };
        found.insert(name, kept);
    });
    found
}

/// Files but those whose name contains `part`.
pub(crate) fn without(files: Files, part: &str) -> Files {
    files.into_iter().filter(|(name, _)| !name.contains(part)).collect()
}

fn timeless(state: &[u8]) -> Vec<u8> {
    let mut state: Value = serde_json::from_slice(state).expect("JSON");
    let fields = state.as_object_mut().expect("an object");
    for field in ["elapsed_s", "checksum"] {
        fields.remove(field).expect(field);
    }
    // of the log that has times in it
    if let Some(logs) = fields.get_mut("logs").and_then(Value::as_object_mut) {
        logs.remove("train.csv").expect("a digest");
    }
    state.to_string().into_bytes()
}

fn visit(dir: &Path, below: &str, each: &mut impl FnMut(String, &Path)) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("an entry").path();
        let name = format!("{below}{}", path.file_name().expect("a name").to_string_lossy());
        match path.is_dir() {
            true => visit(&path, &format!("{name}/"), each),
            false => each(name, &path),
        }
    }
}

/// Names of a run's checkpoints, oldest first; none before the run has begun to write the first one.
pub(crate) fn checkpoints(run: &Path) -> Vec<String> {
    let entries = match fs::read_dir(run.join("checkpoints")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        entries => entries.expect("checkpoints"),
    };
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
