//! The page of `runner watch --serve`: the page of a comparison, whose runs and curves grow.
//!
//! [`Live`] knows what every reader may see, a [`Reader`] how much one of them has. What a reader lacks is computed
//! when it asks, so a slow one costs no memory. Nothing here writes, and nothing knows how readers are reached.

mod followed;
mod panels;

pub use panels::{results, samples};

use super::axis::Axis;
use super::differences::differences;
use super::groups::groups;
use super::page::document::{Document, axes, described};
use super::page::drawn;
use super::page::lines::lines;
use super::plot::palette::{Ink, MOST_SERIES};
use super::plot::{Quantity, quantities};
use super::runs::Run;
use crate::regular;
use crate::run::{RunError, find};
use crate::wording::tame_line;
use followed::{CELLS, Followed, Found, Seen};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ABOVE: &str = include_str!("above.html");
const BELOW: &str = include_str!("below.html");
const CSS: &str = include_str!("live.css");
const JS: &str = include_str!("live.js");

/// Runs that a page offers; a browser with more of them is slow.
const MOST_RUNS: usize = 500;
/// Points of all curves of a quantity that a page begins with.
const MOST_POINTS: usize = 25_000;
/// Quantities beside those of the table of columns.
const MOST_FURTHER: usize = 64;
/// Time between two looks for further runs.
const SEARCH: Duration = Duration::from_secs(2);
/// Time between two looks that a caller should leave.
pub const PACE: Duration = followed::LIVE;

/// What a page shows at first.
#[derive(Debug, Clone)]
pub struct View {
    /// The horizontal axis.
    pub axis: Axis,
    /// The column that is drawn.
    pub quantity: Quantity,
    /// In the window's title and over everything.
    pub title: String,
}

/// Runs that are followed for readers.
#[derive(Debug)]
pub struct Live {
    runs_dir: PathBuf,
    named: Vec<PathBuf>,
    view: View,
    runs: Vec<Followed>,
    left_out: usize,
    /// The number of the latest change, and of that which concerns all runs together.
    version: u64,
    of_all: u64,
    next_key: u64,
    next_search: Option<Instant>,
}

/// How much one reader has.
#[derive(Debug, Default)]
pub struct Reader {
    of_all: u64,
    seen: HashMap<u64, Seen>,
}

/// Something that a reader lacks.
#[derive(Debug, Clone, PartialEq)]
pub struct News {
    /// What it is: `runs` has all runs and how they are drawn, `run` what is new about one of them.
    pub name: &'static str,
    /// A JSON document.
    pub data: Value,
}

impl Live {
    /// Follows the runs that are named, and those of a directory of runs that one may choose besides. Without a name,
    /// all runs of the directory are shown.
    ///
    /// Errors: those of [`find::all`] for what is named.
    pub fn new(runs_dir: &Path, named: &[PathBuf], view: View) -> Result<Self, RunError> {
        find::all(runs_dir, named, |_| {})?;
        Ok(Self {
            runs_dir: runs_dir.to_owned(),
            named: named.to_owned(),
            view,
            runs: Vec::new(),
            left_out: 0,
            version: 0,
            of_all: 1,
            next_key: 0,
            next_search: None,
        })
    }

    /// The number of runs that are offered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.runs.len()
    }

    /// Looks at what is due; true if there is something new.
    pub fn look(&mut self, now: Instant) -> bool {
        let before = self.version;
        let mut is_other = false;
        if self.next_search.is_none_or(|next| next <= now) {
            self.next_search = Some(now + SEARCH);
            is_other = self.search();
        }
        let mut version = self.version;
        self.runs.retain_mut(|run| match run.look(now, &self.runs_dir) {
            Ok(Found::Nothing) => true,
            Ok(found) => {
                version += 1;
                run.version = version;
                is_other |= found == Found::Facts;
                true
            }
            // it was removed
            Err(_) => {
                is_other = true;
                false
            }
        });
        self.version = version;
        if is_other {
            // runs in the order in which they were made keep their colours when another one comes
            self.runs.sort_by(|a, b| order(&a.run).cmp(&order(&b.run)));
            self.version += 1;
            self.of_all = self.version;
        }
        self.version > before
    }

    /// Looks for runs that have come or gone; true if there are some.
    fn search(&mut self) -> bool {
        let named = self.named.iter().flat_map(|name| {
            // what was there at the start may be gone
            find::all(&self.runs_dir, std::slice::from_ref(name), |_| {}).unwrap_or_default()
        });
        let others = find::list(&self.runs_dir).unwrap_or_default();
        let all = named.map(|path| (path, true)).chain(others.into_iter().map(|path| (path, false)));
        let mut seen = HashSet::new();
        let mut all: Vec<(PathBuf, bool)> = all
            // somebody else's link may lead to what readers of the page must not see
            .filter(|(path, _)| regular::followed(path, &self.runs_dir).is_ok())
            .filter(|(path, _)| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())))
            .collect();
        self.left_out = all.len().saturating_sub(MOST_RUNS);
        all.truncate(MOST_RUNS);
        let before = self.runs.len();
        let there: HashSet<&PathBuf> = all.iter().map(|(path, _)| path).collect();
        self.runs.retain(|run| there.contains(run.path()));
        let mut is_other = self.runs.len() < before;
        let known: HashSet<PathBuf> = self.runs.iter().map(|run| run.path().clone()).collect();
        let most = (MOST_POINTS / all.len().max(1)).clamp(60, 600);
        for (path, is_named) in all.iter().filter(|(path, _)| !known.contains(path)) {
            let is_chosen = *is_named || self.named.is_empty();
            if let Ok(run) = Followed::new(self.next_key, path, is_chosen, most) {
                self.next_key += 1;
                self.runs.push(run);
                is_other = true;
            }
        }
        is_other
    }

    /// The next thing that a reader lacks, who has it then; `None` if it has everything.
    pub fn news(&self, reader: &mut Reader) -> Option<News> {
        if reader.of_all < self.of_all {
            reader.of_all = self.of_all;
            reader.seen.retain(|key, _| self.runs.iter().any(|run| run.key == *key));
            return Some(News { name: "runs", data: self.all() });
        }
        let lacking = |run: &Followed| run.news(reader.seen.entry(run.key).or_default());
        self.runs.iter().find_map(lacking).map(|data| News { name: "run", data })
    }

    /// All runs, how they are drawn, and what can be drawn of them.
    fn all(&self) -> Value {
        let runs: Vec<Run> = self.runs.iter().map(|run| run.run.clone()).collect();
        let differing = differences(&runs).differing;
        let line = |line: super::page::lines::Line| {
            let run = &self.runs[line.run];
            let mut value: Map<String, Value> = drawn(&line, run.key);
            value.insert("id".to_owned(), tame_line(&run.run.id).into());
            value.insert("chosen".to_owned(), run.is_chosen.into());
            Value::from(value)
        };
        let lines = lines(&runs, &groups(&runs, &differing), &differing);
        json!({
            "runs": lines.into_iter().map(line).collect::<Vec<_>>(),
            "quantities": described(&self.quantities()),
            "leftOut": self.left_out,
        })
    }

    /// What can be drawn: the quantities of the table of columns, and further columns that runs have.
    #[must_use]
    pub fn quantities(&self) -> Vec<Quantity> {
        let mut all = quantities().to_vec();
        let most = all.len() + MOST_FURTHER;
        let asked = std::iter::once(self.view.quantity.clone());
        for quantity in asked.chain(self.runs.iter().flat_map(Followed::further)) {
            if all.len() < most && all.iter().all(|known| known.name != quantity.name) {
                all.push(quantity);
            }
        }
        all
    }

    /// The paths of runs, each with its key.
    #[must_use]
    pub fn paths(&self, keys: &[u64]) -> Vec<(u64, PathBuf)> {
        let is_meant = |run: &&Followed| keys.contains(&run.key);
        self.runs.iter().filter(is_meant).map(|run| (run.key, run.path().clone())).collect()
    }

    /// The page, without runs. Its browser runs the script only if a header of the page names `nonce`.
    #[must_use]
    pub fn page(&self, nonce: &str) -> String {
        // what runs have besides comes with them: the page itself holds no text of theirs
        let asked = Some(&self.view.quantity).filter(|asked| !quantities().contains(asked));
        let columns = std::iter::once(("status", false)).chain(CELLS);
        let columns: Vec<Value> =
            columns.map(|(title, numeric)| json!({"title": title, "numeric": numeric})).collect();
        let data = json!({
            "runs": [],
            "quantities": described(quantities().iter().chain(asked)),
            "axes": axes(),
            "axis": self.view.axis.column(),
            "quantity": self.view.quantity.name,
            "logX": false,
            "logY": false,
            "window": null,
            "targets": [],
            "ends": {},
            "columns": columns,
        });
        // any of them may be needed later
        let inks: Vec<Ink> = (0..MOST_SERIES).map(Ink::Series).chain((0..=255).map(Ink::Shade)).collect();
        let document = Document {
            title: &self.view.title,
            theme: None,
            inks: &inks,
            parts: [ABOVE, BELOW],
            data: &data,
            nonce: Some(nonce),
            further: [CSS, JS],
        };
        document.text()
    }
}

/// What runs are listed by: when they were made, then their names.
fn order(run: &Run) -> (&str, &str) {
    (&run.facts.created, &run.id)
}
