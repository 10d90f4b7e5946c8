//! Gathering the metrics of a run, in one pass over each log.

use super::around::Clock;
use super::asked::scan_asked;
use super::axis::{Axis, Cut};
use super::basis::Basis;
use super::fold::{Fold, column_of, finish, place};
use super::metrics::Metric;
use super::own::other_log;
pub use super::results::Results;
use super::runs::Facts;
use super::scan::{last_of, scan};
use super::search::Search;
use super::target::Target;
use crate::run::checkpoint::FileDigest;
use crate::run::dir;
use crate::run::log::EarlierRow;
use std::cell::Cell;
use std::path::Path;

/// Memory that is reused from run to run.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The bytes of a log.
    pub(super) bytes: Vec<u8>,
    /// The values that a median is taken of.
    values: Vec<Vec<f64>>,
}

/// What is taken from the logs besides the metrics of the table of columns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The point up to which rows count.
    pub cut: Option<Cut>,
    /// Further metrics.
    pub further: &'a [Metric],
    /// Targets, to which the ways are measured.
    pub targets: &'a [Target],
}

/// What a pass over a run's logs gives.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gathered {
    /// The results up to the cut.
    pub results: Results,
    /// Malformed rows that were left out.
    pub malformed: u64,
    /// Whether the run came as far as the cut; false without one.
    pub reached: bool,
    /// Why a log could not be read, one line each, naming it.
    pub unreadable: Vec<String>,
    /// How a log is not the one that the run finished with, one line each, naming it.
    pub changed: Vec<String>,
}

/// Gathers the metrics of the table and what else is `wanted` of the run in `run`, of which these `facts` are known.
/// `goes_on` says whether what a row of `eval.csv` was measured on is what the run's own rows of a column were.
pub fn gather(
    run: &Path,
    facts: &Facts,
    wanted: Wanted,
    goes_on: impl Fn(&Basis, &str) -> bool,
    scratch: &mut Scratch,
) -> Gathered {
    let logs = &facts.logs;
    let Wanted { cut, further, targets } = wanted;
    let Scratch { bytes, values } = scratch;
    let mut search = Search::new(targets);
    let mut reached = false;
    // evaluations have no clock of their own: they are as old as the step before them
    let mut clock = Clock::new(cut, search.is_on(), facts.steps_before());
    let (mut each, mut last) = Fold::of_log(dir::TRAIN_CSV, further, values);
    if cut.is_some() {
        each.append(&mut last);
    }
    let mut wanted = place(&mut each);
    let axis = cut.map(|cut| column_of(&mut wanted, cut.axis.column()));
    search.columns(dir::TRAIN_CSV, |column| column_of(&mut wanted, column));
    let of_axes = [Axis::Step, Axis::Tokens, Axis::Time].map(Axis::column);
    let of_axes = clock.is_needed().then(|| of_axes.map(|column| column_of(&mut wanted, column)));
    let trained = scan(&run.join(dir::TRAIN_CSV), &wanted, bytes, |row| {
        if let Some([step, tokens, seconds]) = of_axes {
            clock.take(row[step], row[seconds]);
            search.take(dir::TRAIN_CSV, row, [row[step] + 1.0, row[tokens], row[seconds]]);
        }
        if let (Some(cut), Some(axis)) = (cut, axis) {
            let at = cut.axis.reached(row[axis]);
            reached |= at >= cut.at;
            if at > cut.at {
                return;
            }
        }
        each.iter_mut().for_each(|fold| fold.take(row));
    });
    // of what could not be read, it is said elsewhere
    let other_log = |log, unreadable: &Option<String>, bytes: &[u8]| match unreadable {
        Some(_) => None,
        None => other_log(run, log, logs, |noted| *noted == FileDigest::of(bytes)),
    };
    let mut changed: Vec<String> =
        other_log(dir::TRAIN_CSV, &trained.unreadable, bytes).into_iter().collect();
    let wanted = place(&mut last);
    if let Some(row) = last_of(bytes, &wanted).filter(|_| !last.is_empty()) {
        last.iter_mut().for_each(|fold| fold.take(&row));
    }
    each.append(&mut last);
    let mut results = Results::default();
    finish(each, &trained.header, values, &mut results);
    let mut malformed = trained.malformed;
    let mut unreadable: Vec<String> = trained.unreadable.into_iter().collect();
    // the evaluations in `val.csv` of what `eval.csv` may have later
    let mut earlier: Vec<(String, Vec<f64>)> = Vec::new();
    for log in [dir::VAL_CSV, dir::EVAL_CSV] {
        let (mut each, mut last) = Fold::of_log(log, further, values);
        each.append(&mut last);
        if log == dir::EVAL_CSV {
            search.go_elsewhere();
            each.extend(Fold::elsewhere(further, &results));
            if each.is_empty() && !search.reads(log) {
                break;
            }
        }
        let mut wanted = place(&mut each);
        let [step, tokens] = ["step", "tokens"].map(|column| column_of(&mut wanted, column));
        search.columns(log, |column| column_of(&mut wanted, column));
        let is_told = |column: &&&str| {
            log == dir::EVAL_CSV && (results.get(column).is_some() || search.has_told(column))
        };
        let told: Vec<&str> = wanted.iter().filter(is_told).copied().collect();
        let furthest = Cell::new(f64::NEG_INFINITY);
        let rows = Cell::new(0);
        let mut take = |row: &[f64]| {
            furthest.set(furthest.get().max(row[step]));
            let at = [row[step], row[tokens], clock.at(row[step])];
            search.take(log, row, at);
            let is_within = cut.is_none_or(|cut| at[cut.axis.place()] <= cut.at);
            rows.set(rows.get() + u64::from(is_within));
            match cut {
                None => each.iter_mut().for_each(|fold| fold.take_of(row, row[step])),
                Some(cut) => {
                    let at = at[cut.axis.place()];
                    each.iter_mut().for_each(|fold| fold.take_around(row, row[step], at, cut.at));
                }
            }
        };
        let is_further = |basis: &Basis, column: &str| told.contains(&column) && goes_on(basis, column);
        let (evaluated, asked) = match log == dir::EVAL_CSV {
            true => scan_asked(&run.join(log), &wanted, is_further, bytes, &mut take),
            false => (scan(&run.join(log), &wanted, bytes, &mut take), Vec::new()),
        };
        if let Some(row) = facts.evaluated_before.as_ref().filter(|_| log == dir::VAL_CSV) {
            let row = cells(row, &evaluated.header, &wanted);
            if row[step] > furthest.get() {
                take(&row);
            }
        }
        if log == dir::EVAL_CSV {
            let asked = |column: &str| asked.get(wanted.iter().position(|name| *name == column)?);
            search.join(|column| asked(column).is_some_and(|asked| goes_on(&asked.basis, column)));
        }
        changed.extend(other_log(log, &evaluated.unreadable, bytes));
        match cut {
            Some(cut) => {
                each.iter_mut().for_each(|fold| fold.cut(cut.at, &evaluated.header, &mut results));
                if log == dir::VAL_CSV {
                    results.count_best(&each, rows.get());
                }
            }
            None if log == dir::EVAL_CSV => {
                let is_own = |fold: &Fold| {
                    let asked = asked.get(fold.place);
                    asked.is_some_and(|asked| goes_on(&asked.basis, &fold.metric.column))
                };
                for fold in each.iter_mut().filter(|fold| is_own(fold)) {
                    let known = earlier.iter().find(|(name, _)| *name == fold.metric.name);
                    fold.count_also(known.map_or(&[], |(_, steps)| steps));
                }
                let supersedes = |fold: &mut Fold| fold.supersedes(&results, is_own);
                let better: Vec<Fold> = each.extract_if(.., supersedes).collect();
                // a value that stays is the best of these as well
                let steps = results.get("steps").unwrap_or(f64::NAN);
                each.iter().filter(|fold| is_own(fold)).for_each(|fold| results.count_again(fold, steps));
                each = better;
                each.iter().for_each(|fold| results.forget(&fold.metric.name));
                results.count_best(&each, 0);
            }
            None => results.count_best(&each, rows.get()),
        }
        if let Some(steps) = results.get("steps") {
            results.earlier.extend(each.iter().filter_map(|fold| fold.earlier(steps)));
            if log == dir::VAL_CSV {
                for fold in each.iter_mut().filter(|fold| fold.is_behind(steps)) {
                    results.behind.push(fold.metric.column.clone());
                    earlier.push((fold.metric.name.clone(), std::mem::take(&mut fold.evaluated)));
                }
            }
        }
        let asked = |fold: &Fold| Some((fold.metric.name.clone(), asked.get(fold.place)?.clone()));
        results.asked.extend(each.iter().filter_map(asked));
        finish(each, &evaluated.header, values, &mut results);
        malformed += evaluated.malformed;
        unreadable.extend(evaluated.unreadable);
    }
    search.finish(cut, facts.steps_before() > 0, &mut results);
    Gathered { results, malformed, reached, unreadable, changed }
}

/// The cells of the row of a step that a run goes on from, which `val.csv` lacks until it is made again. One that is no
/// number or that the log has no column for is not a number.
pub fn cells(row: &EarlierRow, header: &[String], wanted: &[&str]) -> Vec<f64> {
    let cell = |column: &&str| {
        let place = header.iter().position(|name| name == column)?;
        row.cells.get(place)?.parse().ok()
    };
    wanted.iter().map(|column| cell(column).unwrap_or(f64::NAN)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{further, metrics};
    use super::*;
    use crate::run::column::Better;

    fn run(train: &str, val: &str) -> tempfile::TempDir {
        let run = tempfile::tempdir().expect("tempdir");
        std::fs::write(run.path().join("train.csv"), train).expect("write");
        std::fs::write(run.path().join("val.csv"), val).expect("write");
        run
    }

    const TRAIN: &str = "step,tokens,loss,mfu,tokens_per_s,elapsed_s,memory_bytes\n\
                         0,8,5,,10,1.5,100\n1,16,3,,30,2.5,300\n2,24,4,,20,3.5,200\n";
    const VAL: &str = "step,tokens,val_loss\n0,0,6\n2,16,4.5\n3,24,5.5\n";

    fn results(run: &tempfile::TempDir, cut: Option<(Axis, f64)>) -> Results {
        let cut = cut.map(|(axis, at)| Cut { axis, at });
        gather(
            run.path(),
            &Facts::default(),
            Wanted { cut, ..Wanted::default() },
            |_, _| true,
            &mut Scratch::default(),
        )
        .results
    }

    #[test]
    fn the_last_the_best_and_the_middle() {
        let found = results(&run(TRAIN, VAL), None);
        let expected = [
            ("steps", Some(3.0)),
            ("tokens", Some(24.0)),
            ("loss", Some(4.0)),
            ("best_loss", Some(3.0)),
            ("val_loss", Some(5.5)),
            ("best_val_loss", Some(4.5)),
            ("tokens_per_s", Some(20.0)),
            ("step_ms", None),
            ("mfu", None),
            ("memory_bytes", Some(300.0)),
            ("elapsed_s", Some(3.5)),
            ("skipped_steps", None),
        ];
        let names: Vec<&str> = metrics().iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names, expected.map(|(name, _)| name), "and in this order");
        for (name, value) in expected {
            assert_eq!(found.get(name), value, "{name}");
        }
    }

    #[test]
    fn what_lies_beyond_the_cut_does_not_count() {
        let run = run(TRAIN, VAL);
        for (axis, at) in [(Axis::Step, 2.0), (Axis::Tokens, 16.0), (Axis::Time, 2.5)] {
            let found = results(&run, Some((axis, at)));
            let of = ["steps", "loss", "memory_bytes", "val_loss"].map(|name| found.get(name));
            assert_eq!(of, [Some(2.0), Some(3.0), Some(300.0), Some(4.5)], "{axis:?}");
        }
        let before = ["val_loss", "best_val_loss"].map(|name| (name.to_owned(), 6.0)).to_vec();
        let ranges = before.iter().map(|(name, value)| (name.clone(), [*value; 2])).collect();
        let best_of = vec![("best_val_loss".to_owned(), 1)];
        let before = Results { values: before, ranges, best_of, ..Results::default() };
        assert_eq!(results(&run, Some((Axis::Step, 0.0))), before);
    }

    #[test]
    fn between_two_evaluations_the_loss_is_interpolated_and_beyond_the_last_it_is_unknown() {
        let run = run(TRAIN, VAL);
        let of = |axis, at| {
            let found = results(&run, Some((axis, at)));
            assert!(found.unknown().is_empty(), "{found:?}");
            (found.get("val_loss"), found.get("best_val_loss"), found.interpolated().to_vec())
        };
        let both = ["val_loss", "best_val_loss"].map(str::to_owned).to_vec();
        // a quarter of the way from 6 to 4.5, and half of the way from there to 5.5
        assert_eq!(of(Axis::Step, 0.5), (Some(5.625), Some(5.625), both.clone()));
        assert_eq!(of(Axis::Tokens, 4.0), (Some(5.625), Some(5.625), both.clone()));
        assert_eq!(of(Axis::Time, 3.0), (Some(5.0), Some(4.5), both[..1].to_vec()));
        assert_eq!(of(Axis::Step, 3.0), (Some(5.5), Some(4.5), Vec::new()));
        for (axis, at) in [(Axis::Step, 4.0), (Axis::Tokens, 25.0), (Axis::Time, 3.6)] {
            let beyond = results(&run, Some((axis, at)));
            assert_eq!((beyond.get("val_loss"), beyond.get("best_val_loss")), (None, None), "{axis:?}");
            assert_eq!(beyond.unknown(), both);
            assert_eq!(beyond.get("loss"), Some(4.0));
        }
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_told_from_one_that_is_not_there() {
        let found = results(&run("step,loss\n0,2\n1,NaN\n", ""), None);
        assert!(found.get("loss").is_some_and(f64::is_nan));
        assert_eq!(found.get("best_loss"), Some(2.0));
        assert_eq!(results(&run("step,tokens\n0,2\n", ""), None).get("loss"), None);
    }

    #[test]
    fn evaluations_that_were_asked_for_are_read_where_val_csv_lacks_the_column() {
        let run = run(TRAIN, "step,tokens,val_loss,poems_acc\n0,0,6,0.25\n");
        let asked = "step,tokens,evaluated,data,val_loss,poems_acc,songs_acc\n\
                     2,16,now,a;b,1,0.5,0.75\n2,16,now,,1,0.5,\n";
        std::fs::write(run.path().join("eval.csv"), asked).expect("write");
        let runs = [run.path().to_owned()];
        let metric = |name: &str| further(&runs, name);
        assert!([metric("val_loss"), metric("evaluated"), metric("data")].iter().all(Option::is_none));
        let metrics = ["poems_acc", "songs_acc"].map(|name| metric(name).expect("a column"));
        let wanted = Wanted { further: &metrics, ..Wanted::default() };
        // what was measured on other data takes the place of no value, later ones on the same do
        for (is_own, poems, loss) in [(false, 0.25, 6.0), (true, 0.5, 1.0)] {
            let goes_on = |_: &Basis, _: &str| is_own;
            let found = gather(run.path(), &Facts::default(), wanted, goes_on, &mut Scratch::default());
            let values = ["poems_acc", "songs_acc", "val_loss"].map(|name| found.results.get(name));
            assert_eq!((values, found.malformed), ([Some(poems), Some(0.75), Some(loss)], 0));
        }
    }

    #[test]
    fn further_columns_of_evaluations_are_read_by_name() {
        let with = run(
            TRAIN,
            "step,tokens,val_loss,val_loss_poems,poems_acc\n0,0,6,7,0.25\n2,16,5,9,0.5\n3,24,4,,\n",
        );
        let without = run(TRAIN, VAL);
        let runs = [without.path().to_owned(), with.path().to_owned()];
        let metric = |name: &str| further(&runs, name);
        assert!(
            [metric("step"), metric("loss"), metric("poems"), metric("best_loss")]
                .iter()
                .all(Option::is_none)
        );
        let names = ["val_loss_poems", "best_val_loss_poems", "poems_acc", "best_poems_acc"];
        let asked = names.map(|name| metric(name).expect("a column"));
        assert_eq!(
            asked.each_ref().map(|m| m.better),
            [Better::Lower, Better::Lower, Better::Higher, Better::Higher]
        );
        let read = |run: &tempfile::TempDir| {
            let wanted = Wanted { further: &asked, ..Wanted::default() };
            let found = gather(run.path(), &Facts::default(), wanted, |_, _| true, &mut Scratch::default());
            assert_eq!((found.malformed, found.results.get("steps")), (0, Some(3.0)));
            names.map(|name| found.results.get(name))
        };
        assert_eq!(read(&with), [Some(9.0), Some(7.0), Some(0.5), Some(0.5)], "an empty cell is no value");
        assert_eq!(read(&without), [None; 4]);
    }
}
