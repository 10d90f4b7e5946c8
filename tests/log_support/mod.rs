//! Which part of a log a recipe determines.

use runner::run::TrainRow;
use runner::run::row::Row;

/// A `train.csv` without the columns that are measured.
pub(crate) fn deterministic(csv: &str) -> String {
    let Some(header) = csv.lines().next() else { return String::new() };
    let names: Vec<&str> = header.split(',').collect();
    let is_kept = |name: &str| {
        let known = TrainRow::COLUMNS.iter().find(|column| column.name == name);
        known.unwrap_or_else(|| panic!("an unknown column `{name}`")).is_deterministic
    };
    let kept: Vec<bool> = names.iter().map(|name| is_kept(name)).collect();
    assert!(kept.contains(&true) && kept.contains(&false), "{names:?}");
    let cut = |line: &str| {
        let cells = line.split(',').zip(&kept).filter(|(_, is_kept)| **is_kept);
        cells.map(|(cell, _)| cell).collect::<Vec<_>>().join(",") + "\n"
    };
    csv.lines().map(cut).collect()
}
