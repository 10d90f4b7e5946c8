//! The rows of `eval.csv`: evaluations that were asked for, each on data of its own.
//!
//! Of a column, the row that was written last for the furthest step decides what it is of; rows on other data are no
//! part of the same curve. Where `val.csv` has the column, rows on its data come before any others. Of several rows of
//! one step, the last one counts. Rows of earlier versions lack digests: names and tokens tell them apart.

use super::basis::{Asked, Basis, TEXTS};
use super::scan::{Scanned, load, scan_texts};
use crate::run::evaluations;
use crate::run::files::whole_lines;
use std::path::Path;

/// [`scan`](super::scan::scan) of an `eval.csv`, which hands out one row per step, in which what was measured on other
/// data is not a number. Gives what each column of the last rows was measured on and how, too. `goes_on` says whether
/// that is what the run's own rows of a column, which `val.csv` has, were measured on.
pub(super) fn scan_asked(
    path: &Path,
    wanted: &[&str],
    goes_on: impl Fn(&Basis, &str) -> bool,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&[f64]),
) -> (Scanned, Vec<Asked>) {
    let mut found = vec![Asked::default(); wanted.len()];
    if let Err(nothing) = load(path, buffer) {
        return (nothing, found);
    }
    // the file is written whole: of a last row without its newline nobody knows what is missing
    buffer.truncate(whole_lines(buffer).len());
    let mut deciding = vec![[const { String::new() }; TEXTS.len()]; wanted.len()];
    // whether it goes on with what is known comes before how far it is
    let mut furthest = vec![(false, f64::NEG_INFINITY); wanted.len()];
    let step = wanted.iter().position(|column| *column == "step");
    let step = |row: &[f64]| step.map_or(f64::NAN, |step| row[step]);
    scan_texts(buffer, wanted, TEXTS, |row, texts| {
        for (place, column) in wanted.iter().enumerate() {
            if row[place].is_nan() {
                continue;
            }
            let basis = Basis::of_row(column, texts);
            let this = (goes_on(&basis, column), step(row));
            if this >= furthest[place] {
                furthest[place] = this;
                let is_seen = evaluations::is_seen(texts[2], column);
                found[place] = Asked { basis, precision: texts[3].to_owned(), is_seen };
                deciding[place] = texts.map(str::to_owned);
            }
        }
    });
    let mut pending: Option<Vec<f64>> = None;
    let scanned = scan_texts(buffer, wanted, TEXTS, |row, texts| {
        let is_of_all = |place: usize| wanted[place] == "step" || wanted[place] == "tokens";
        let by_name = |column: &str, [data, tokens, ..]: [&str; TEXTS.len()]| {
            Basis::of_row(column, [data, tokens, "", ""])
        };
        let is_alike = |place: usize| {
            let (column, other) = (wanted[place], deciding[place].each_ref().map(String::as_str));
            let (own, decided) = (Basis::of_row(column, texts), &found[place].basis);
            let is_vague = own.is_vague() || decided.is_vague();
            row[place].is_nan()
                || is_of_all(place)
                || own == *decided
                || is_vague && by_name(column, texts) == by_name(column, other)
        };
        let own = |place: usize| if is_alike(place) { row[place] } else { f64::NAN };
        match &mut pending {
            Some(before) if step(before) == step(row) => {
                for (place, value) in before.iter_mut().enumerate() {
                    *value = Some(own(place)).filter(|own| !own.is_nan()).unwrap_or(*value);
                }
            }
            _ => {
                pending.iter().for_each(|row| each(row));
                pending = Some((0..row.len()).map(own).collect());
            }
        }
    });
    pending.iter().for_each(|row| each(row));
    (scanned, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> (Vec<Vec<f64>>, Scanned, Vec<Basis>) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("write");
        let (mut rows, mut buffer) = (Vec::new(), Vec::new());
        let wanted = ["a_acc", "perplexity", "step"];
        let (scanned, found) =
            scan_asked(file.path(), &wanted, |_, _| false, &mut buffer, |row| rows.push(row.to_vec()));
        (rows, scanned, found.into_iter().map(|asked| asked.basis).collect())
    }

    #[test]
    fn of_one_step_the_last_row_counts_and_rows_on_other_data_do_not() {
        let text = "step,data,data_tokens,measured,perplexity,a_acc\n\
                    1,x,64,val_loss=aa:64;a=cc,9,0.5\n\
                    2,x,64,val_loss=aa:64;a=dd,8,0.25\n\
                    2,x,64,val_loss=aa:64,7,\n\
                    3,y,64,val_loss=bb:64;a=cc,1,0.75\n\
                    3,x,64,val_loss=aa:64,6,\n\
                    4,x,64,val_loss=aa:64,5,0.1";
        let (rows, scanned, bases) = rows(text);
        let shown: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        assert_eq!(shown, ["[0.5, 9.0, 1.0]", "[NaN, 7.0, 2.0]", "[0.75, 6.0, 3.0]"]);
        assert_eq!(scanned.malformed, 0);
        assert!(bases.iter().take(2).all(|basis| !basis.is_vague()), "{bases:?}");
    }

    #[test]
    fn a_row_that_is_measured_again_leaves_those_of_earlier_versions() {
        let text = "step,data,data_tokens,perplexity,a_acc,measured\n1,x,64,9,0.5,\n2,y,64,8,0.25,\n\
                    3,x,64,7,0.75,val_loss=aa:64;a=cc\n";
        let (rows, _, bases) = rows(text);
        let shown: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        assert_eq!(shown, ["[0.5, 9.0, 1.0]", "[0.25, NaN, 2.0]", "[0.75, 7.0, 3.0]"]);
        assert!(!bases[0].is_vague());
    }

    #[test]
    fn names_tell_the_rows_of_earlier_versions_apart() {
        let text = "step,data,data_tokens,perplexity,a_acc\n1,x,64,9,0.5\n2,y,64,8,\n3,x,64,7,\n";
        let (rows, _, bases) = rows(text);
        let perplexities: Vec<String> = rows.iter().map(|row| row[1].to_string()).collect();
        assert_eq!(perplexities, ["9", "NaN", "7"]);
        assert!(bases.iter().take(2).all(Basis::is_vague), "{bases:?}");
    }
}
