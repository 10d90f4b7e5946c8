//! The table of the runs of a comparison.

use super::compare::Comparison;
use super::differences::{self, short};
use super::export::{Cell, Column, Table};
use super::measures::Measure;
use super::runs::Run;
use crate::recipe::keys::PRECISION;
use crate::run::RunStatus;

/// One row per run: its id, the keys that differ, its status, and the measures. Programs get more, with notes on each
/// run; people read these elsewhere.
pub(super) fn table(
    comparison: &Comparison,
    measures: &[Measure],
    notes_of_each: Option<Vec<Vec<String>>>,
) -> Table {
    let for_people = notes_of_each.is_none();
    let keys = &comparison.differences.differing;
    let mut columns = vec![Column::words("run", "run")];
    let shows_sets = comparison.footing().is_mixed();
    if shows_sets && for_people {
        columns.push(Column::words("set", "set"));
    }
    for key in keys {
        let values = || comparison.runs.iter().filter_map(|run| differences::value(run, key));
        let is_numeric = values().all(|value| value.is_number());
        let title = if for_people { short(key, keys) } else { key };
        columns.push(Column { name: key.clone(), title: title.to_owned(), is_numeric });
    }
    let all_finished = comparison.runs.iter().all(|run| run.status == RunStatus::Finished);
    let shows_status = !for_people || !all_finished;
    let shows_marks = comparison.cut.is_some() || !comparison.targets.is_empty();
    let mut notes = notes_of_each.unwrap_or_default();
    if let Some(cut) = comparison.cut {
        notes.iter_mut().for_each(|notes| notes.insert(0, cut.shown()));
    }
    let shows_notes = notes.iter().any(|notes| !notes.is_empty());
    if shows_status {
        columns.push(Column::words("status", "status"));
    }
    columns.extend(measures.iter().map(|measure| measure.column()));
    if !for_people {
        columns.push(Column::words("emulated", "emulated"));
        columns.push(Column::words("path", "path"));
        columns.extend(shows_marks.then(|| Column::words("interpolated", "interpolated")));
        columns.extend(shows_sets.then(|| Column::numbers("set", "set")));
        columns.extend(shows_notes.then(|| Column::words("notes", "notes")));
    }
    let set = |i: usize| comparison.footing().sets[i];
    let row = |(i, run): (usize, &Run)| {
        let mut cells = vec![Cell::text(&*run.id)];
        if shows_sets && for_people {
            cells.push(set(i).map_or_else(Cell::empty, |set| Cell::text((set + 1).to_string())));
        }
        for key in keys {
            let cell = |value| {
                let mark = if run.facts.emulated && key == PRECISION { " (emulated)" } else { "" };
                Cell { shown: format!("{}{mark}", differences::shown(&value)), value }
            };
            cells.push(differences::value(run, key).map_or_else(Cell::empty, cell));
        }
        if shows_status {
            cells.push(Cell { value: run.status.to_string().into(), shown: run.status_shown() });
        }
        cells.extend(measures.iter().map(|measure| measure.cell(comparison, i)));
        if !for_people {
            cells.push(Cell { value: run.facts.emulated.into(), shown: run.facts.emulated.to_string() });
            cells.push(Cell::text(run.path.display().to_string()));
            cells.extend(shows_marks.then(|| Cell::text(run.results.interpolated().join(" "))));
            cells.extend(
                shows_sets.then(|| Cell::number(set(i).map(|set| (set + 1) as f64), |n| n.to_string())),
            );
            cells.extend(shows_notes.then(|| Cell::text(notes[i].join("; "))));
        }
        cells
    };
    let mut table = Table { rows: comparison.runs.iter().enumerate().map(row).collect(), columns };
    if for_people {
        table.drop_empty_columns();
    }
    table
}
