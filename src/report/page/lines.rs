//! How each run is drawn on a page: a line of its own, in the colour of its group.

use crate::report::groups::Group;
use crate::report::legend::Legend;
use crate::report::plot::legend;
use crate::report::plot::palette::{DASHES, Ink, Look, MOST_SERIES, looks};
use crate::report::runs::Run;
use crate::wording::tame_line;

/// The line of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The run, by its place among all.
    pub run: usize,
    /// What tells it from the others, in few words.
    pub label: String,
    /// Its colour.
    pub ink: Ink,
    /// Its dash, by its place among those of the palette.
    pub dash: usize,
}

/// The lines of runs in the order of a legend. `differing` are the keys in which the runs differ.
#[must_use]
pub fn lines(runs: &[Run], groups: &[Group], differing: &[String]) -> Vec<Line> {
    let of_groups = legend(runs, groups, differing);
    let looks = looks(of_groups.order.len(), of_groups.shades.as_deref());
    let mut places = vec![(0, 0); runs.len()];
    for (place, group) in groups.iter().enumerate() {
        group.runs.iter().enumerate().for_each(|(replica, &run)| places[run] = (place, replica));
    }
    let alone: Vec<Vec<&Run>> = runs.iter().map(|run| vec![run]).collect();
    let labels = Legend::new(&alone, differing);
    let titled = |label: &String| match &labels.title {
        Some(title) => format!("{title} {label}"),
        None => label.clone(),
    };
    let mut order: Vec<usize> = (0..runs.len()).collect();
    if of_groups.shades.is_some() {
        let of_group = |group: usize| of_groups.order.iter().position(|&place| place == group);
        order.sort_by_key(|&run| (of_group(places[run].0), places[run].1));
    }
    let line = |run: usize| {
        let (group, replica) = places[run];
        // a page shows every line, also those that a picture has no colour for
        let cycled = Look { ink: Ink::Series(group % MOST_SERIES), place: group };
        let look = looks.get(group).copied().flatten().unwrap_or(cycled);
        let dash = (look.place + replica) % DASHES.len();
        Line { run, label: tame_line(&titled(&labels.labels[run])), ink: look.ink, dash }
    };
    order.into_iter().map(line).collect()
}
