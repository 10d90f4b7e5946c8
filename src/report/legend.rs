//! What tells lines from each other: the labels of legends, in plots and on pages alike.

use super::differences::{self, short, shown};
use super::runs::Run;
use super::shorten::{Keep, shorten};
use crate::recipe::keys::{Identity, find};
use serde_json::Value as Json;
use std::collections::HashSet;

/// Characters of a label.
const MOST: usize = 40;
/// Fewer values of a number than these are told apart better by different colours than by shades.
const FEWEST_SHADES: usize = 3;

/// Labels that are short and never equal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Legend {
    /// The key that the labels are values of, if it is one.
    pub title: Option<String>,
    /// One for each line.
    pub labels: Vec<String>,
    /// The order in which lines are best listed, by their place: a sweep over numbers ascends.
    pub order: Vec<usize>,
    /// Where each line lies between the first and the last of a sweep over numbers, from 0 to 1; `None` for lines that
    /// have no such order.
    pub shades: Option<Vec<f64>>,
    /// Keys in which lines differ and whose values labels leave out for want of room.
    pub untold: Vec<String>,
}

impl Legend {
    /// The legend of lines that each stand for these runs, the first of which speaks for all. `keys` are those in which
    /// runs may differ.
    #[must_use]
    pub fn new(lines: &[Vec<&Run>], keys: &[String]) -> Self {
        let first: Vec<&Run> = lines.iter().filter_map(|runs| runs.first().copied()).collect();
        let telling = telling(&first, keys);
        let order: Vec<usize> = (0..first.len()).collect();
        let (labels, untold) = match telling.as_slice() {
            [key] => return Self::of_key(&first, key, keys),
            [] => (first.iter().map(|run| run.id.clone()).collect(), Vec::new()),
            telling => match names(lines) {
                Some(names) => (names, Vec::new()),
                None => described(&first, telling, keys),
            },
        };
        Self { title: None, labels: distinct(&first, labels), order, shades: None, untold }
    }

    /// The shades in the order of [`order`](Self::order).
    #[must_use]
    pub fn ordered_shades(&self) -> Option<Vec<f64>> {
        let shades = self.shades.as_ref()?;
        Some(self.order.iter().map(|&line| shades[line]).collect())
    }

    fn of_key(first: &[&Run], key: &str, keys: &[String]) -> Self {
        let values: Vec<Option<Json>> = first.iter().map(|run| differences::value(run, key)).collect();
        let text = |value: &Option<Json>| value.as_ref().map_or_else(|| "none".to_owned(), shown);
        let labels = distinct(first, values.iter().map(text).collect());
        let title = Some(short(key, keys).to_owned());
        let mut order: Vec<usize> = (0..first.len()).collect();
        let numbers: Option<Vec<f64>> = values.iter().map(|value| value.as_ref()?.as_f64()).collect();
        let Some(numbers) = numbers else { return Self { title, labels, order, ..Self::default() } };
        order.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]));
        // by rank: values of a sweep are often a factor apart, and each has to be told from the next
        let last = (first.len() - 1).max(1) as f64;
        let mut shades = vec![0.0; first.len()];
        order.iter().enumerate().for_each(|(rank, &line)| shades[line] = rank as f64 / last);
        let shades = (first.len() >= FEWEST_SHADES).then_some(shades);
        Self { title, labels, order, shades, untold: Vec::new() }
    }
}

/// The keys that tell lines apart: those of the experiment if they are enough, else all that differ.
fn telling<'a>(first: &[&Run], keys: &'a [String]) -> Vec<&'a String> {
    let differs = |key: &&String| {
        let value = |run: &Run| differences::value(run, key);
        first.iter().any(|run| value(run) != value(first[0]))
    };
    let all: Vec<&String> = keys.iter().filter(differs).collect();
    let decides = |key: &str| {
        find(key).is_none_or(|key| !matches!(key.identity, Identity::Never)) && !key.starts_with("run.")
    };
    let of_experiment: Vec<&String> = all.iter().copied().filter(|key| decides(key)).collect();
    if tells(first, &of_experiment) || !tells(first, &all) { of_experiment } else { all }
}

/// Whether no two lines have the same values of these keys.
fn tells(first: &[&Run], keys: &[&String]) -> bool {
    let values = |run: &Run| -> Vec<Option<String>> {
        keys.iter().map(|key| Some(differences::value(run, key)?.to_string())).collect()
    };
    first.iter().map(|run| values(run)).collect::<HashSet<_>>().len() == first.len()
}

/// The names of the recipes, if each line has one of its own.
fn names(lines: &[Vec<&Run>]) -> Option<Vec<String>> {
    let name = |run: &Run| run.value("name").and_then(Json::as_str).map(str::to_owned);
    let of_line = |runs: &Vec<&Run>| {
        let first = name(runs.first()?)?;
        runs.iter().all(|run| name(run).as_ref() == Some(&first)).then_some(first)
    };
    let names: Vec<String> = lines.iter().map(of_line).collect::<Option<_>>()?;
    (names.iter().collect::<HashSet<_>>().len() == names.len()).then_some(names)
}

/// The values of the keys behind their names; where that is too long, of as few keys as are enough. The names of the
/// keys that are left out.
fn described(first: &[&Run], telling: &[&String], keys: &[String]) -> (Vec<String>, Vec<String>) {
    let part = |run: &Run, key: &String| {
        let text = differences::value(run, key).map_or_else(|| "none".to_owned(), |value| shown(&value));
        format!("{} {text}", short(key, keys))
    };
    let describe = |telling: &[&String]| -> Vec<String> {
        let label = |run: &&Run| telling.iter().map(|key| part(run, key)).collect::<Vec<_>>().join(", ");
        first.iter().map(label).collect()
    };
    let longest = |key: &String| first.iter().map(|run| part(run, key).chars().count()).max();
    let mut wordy: Vec<&String> = telling.to_vec();
    wordy.sort_by_key(|key| std::cmp::Reverse(longest(key)));
    let mut kept = telling.to_vec();
    let is_long = |kept: &[&String]| describe(kept).iter().any(|label| label.chars().count() > MOST);
    for key in wordy {
        let others: Vec<&String> = kept.iter().copied().filter(|other| *other != key).collect();
        if is_long(&kept) && tells(first, &others) {
            kept = others;
        }
    }
    let untold = telling.iter().filter(|key| !kept.contains(key)).map(|key| short(key, keys).to_owned());
    (describe(&kept), untold.collect())
}

/// The labels in as much room as a legend has. A label that two lines share gets the end of each one's id.
fn distinct(first: &[&Run], labels: Vec<String>) -> Vec<String> {
    let is_shared = |label: &String| labels.iter().filter(|other| *other == label).count() > 1;
    let marked = |(label, run): (&String, &&Run)| match is_shared(label) {
        true if *label == run.id => run.path.display().to_string(),
        true => format!("{label} ({})", run.id.rsplit('-').next().unwrap_or(&run.id)),
        false => label.clone(),
    };
    let mut labels: Vec<String> = labels.iter().zip(first).map(marked).collect();
    for i in 0..labels.len() {
        if labels[..i].contains(&labels[i]) {
            labels[i] = format!("{} ({})", labels[i], first[i].path.display());
        }
    }
    let keep =
        if labels.iter().zip(first).all(|(label, run)| *label == run.id) { Keep::Ends } else { Keep::Start };
    shorten(&labels, MOST, keep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chosen::Chosen;
    use crate::report::gather::Results;
    use crate::report::parts::Parts;
    use crate::report::runs::Facts;
    use crate::run::RunStatus;
    use serde_json::json;

    fn run(id: &str, recipe: &[(&str, Json)]) -> Run {
        Run {
            path: id.into(),
            id: id.to_owned(),
            status: RunStatus::Finished,
            recipe: recipe.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
            facts: Facts::default(),
            parts: Parts::default(),
            chosen: Chosen::default(),
            results: Results::default(),
            complete: true,
            is_edited: false,
            warnings: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn legend(runs: &[Run]) -> Legend {
        let keys = crate::report::differences::differences(runs).differing;
        Legend::new(&runs.iter().map(|run| vec![run]).collect::<Vec<_>>(), &keys)
    }

    #[test]
    fn a_sweep_over_numbers_ascends_in_shades() {
        let lr = |lr: f64| run("a", &[("name", "a".into()), ("optimizer.lr", lr.into())]);
        let found = legend(&[lr(1e-2), lr(1e-4), lr(1e-3)]);
        assert_eq!((found.title.as_deref(), found.order.as_slice()), (Some("lr"), &[1, 2, 0][..]));
        assert_eq!(found.labels, ["0.01", "1e-4", "1e-3"]);
        assert_eq!(found.shades, Some(vec![1.0, 0.0, 0.5]));
        assert_eq!(legend(&[lr(1e-2), lr(1e-4)]).shades, None, "two colours are clearer than two shades");
    }

    #[test]
    fn names_that_were_set_are_used_where_several_keys_differ() {
        let of = |name: &str, lr: f64, layers: u64| {
            let recipe =
                [("name", name.into()), ("optimizer.lr", lr.into()), ("model.n_layer", layers.into())];
            run(&format!("{name}-0123abcd"), &recipe)
        };
        assert_eq!(legend(&[of("small", 1e-3, 2), of("large", 2e-3, 4)]).labels, ["small", "large"]);
        let alike = legend(&[of("small", 1e-3, 2), of("small", 2e-3, 4)]);
        assert_eq!(alike.labels, ["n_layer 2, lr 1e-3", "n_layer 4, lr 2e-3"]);
        assert_eq!(legend(&[of("a", 1e-3, 2), of("b", 1e-3, 4)]).labels, ["2", "4"], "one key says it all");
    }

    #[test]
    fn labels_are_short_and_never_equal() {
        let long = |i: u64| format!("../datasets/a-directory-with-a-long-name/of/many/parts/train-{i}.bin");
        let of = |i: u64, seed: u64| {
            let recipe =
                [("seed", seed.into()), ("data.train", json!([long(i)])), ("model.n_layer", i.into())];
            run(&format!("run-{i}{seed}"), &recipe)
        };
        let Legend { labels: found, untold, .. } = legend(&[of(1, 1), of(2, 1), of(3, 2)]);
        assert!(found.iter().all(|label| label.chars().count() <= MOST), "{found:?}");
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), 3, "{found:?}");
        assert_eq!(found, ["seed 1, n_layer 1", "seed 1, n_layer 2", "seed 2, n_layer 3"], "no paths");
        assert_eq!(untold, ["train"]);
        // nothing differs but where they are
        let same = legend(&[of(1, 1), of(1, 1)]).labels;
        assert_ne!(same[0], same[1]);
    }
}
