//! The points of a curve: read, smoothed, averaged over replicas, and thinned to what a picture can show.

use super::scale::Scale;
use crate::report::axis::Axis;
use crate::report::scan::scan;
use crate::report::stats::spread;
use crate::run::dir;
use std::path::Path;

/// More points than this along a curve are finer than a line is wide.
pub const MOST_POINTS: usize = 400;

/// Points in order of their row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// Along the horizontal axis.
    pub x: Vec<f64>,
    /// Values; one that is not finite is a gap.
    pub y: Vec<f64>,
}

impl Curve {
    /// The curve as far as a place along the axis, where it ends on the way to its next point.
    #[must_use]
    pub fn up_to(&self, end: f64) -> Self {
        let inside = self.x.partition_point(|x| *x <= end);
        let mut cut = Self { x: self.x[..inside].to_vec(), y: self.y[..inside].to_vec() };
        let before = inside.checked_sub(1).map(|last| (self.x[last], self.y[last]));
        if let (Some((x, y)), Some(next)) = (before.filter(|(x, _)| *x < end), self.x.get(inside)) {
            cut.x.push(end);
            cut.y.push(y + (end - x) / (next - x) * (self.y[inside] - y));
        }
        cut
    }
}

/// A column of a log, row by row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Logged {
    /// The steps of the rows.
    pub steps: Vec<f64>,
    /// The values along the axis that was asked for.
    pub curve: Curve,
}

/// Reads a column of the training log of `run` along an axis. A log that cannot be read has no points.
pub fn read(run: &Path, axis: Axis, column: &str, buffer: &mut Vec<u8>) -> Logged {
    // a column may be asked for twice, once as the axis
    let mut wanted: Vec<&str> = Vec::new();
    let [step, along, value] = ["step", axis.column(), column].map(|name| {
        wanted.iter().position(|known| *known == name).unwrap_or_else(|| {
            wanted.push(name);
            wanted.len() - 1
        })
    });
    let mut logged = Logged::default();
    scan(&run.join(dir::TRAIN_CSV), &wanted, buffer, |row| {
        if !row[along].is_nan() {
            logged.steps.push(row[step]);
            logged.curve.x.push(row[along]);
            logged.curve.y.push(row[value]);
        }
    });
    logged
}

/// Reads a column of the validation log of `run` along an axis. Evaluations have no clock of their own: each is as old
/// as the training step before it. A log that cannot be read has no points.
pub fn read_val(run: &Path, axis: Axis, column: &str, buffer: &mut Vec<u8>) -> Logged {
    let mut rows: Vec<[f64; 3]> = Vec::new();
    scan(&run.join(dir::VAL_CSV), &["step", "tokens", column], buffer, |row| {
        rows.push([row[0], row[1], row[2]])
    });
    let mut times = Vec::new();
    if axis == Axis::Time {
        scan(&run.join(dir::TRAIN_CSV), &["step", "elapsed_s"], buffer, |row| times.push((row[0], row[1])));
    }
    let elapsed = |step: f64| match times.partition_point(|(done, _)| *done < step) {
        0 => 0.0,
        after => times[after - 1].1,
    };
    let x = |row: &[f64; 3]| match axis {
        Axis::Step => row[0],
        Axis::Tokens => row[1],
        Axis::Time => elapsed(row[0]),
    };
    let curve = Curve { x: rows.iter().map(x).collect(), y: rows.iter().map(|row| row[2]).collect() };
    Logged { steps: rows.iter().map(|row| row[0]).collect(), curve }
}

/// A weighted mean over a window of `window` rows around each row, the nearest counting most, which shrinks evenly at
/// the ends, so that nothing is shifted. Values that are not finite are left out of the mean and stay gaps.
#[must_use]
pub fn smooth(values: &[f64], window: usize) -> Vec<f64> {
    match window {
        0 | 1 => values.to_vec(),
        2 | 3 => mean_around(values, 1),
        // twice over half of it: one pass would make a plateau of every spike
        _ => mean_around(&mean_around(values, (window + 1) / 4), (window + 1) / 4),
    }
}

/// The mean of each value with `reach` others on both sides, fewer at the ends.
fn mean_around(values: &[f64], reach: usize) -> Vec<f64> {
    let mut sums = Vec::with_capacity(values.len() + 1);
    let (mut sum, mut count) = (0.0, 0u32);
    sums.push((sum, count));
    for value in values {
        if value.is_finite() {
            (sum, count) = (sum + value, count + 1);
        }
        sums.push((sum, count));
    }
    let mean = |i: usize| {
        let reach = reach.min(i).min(values.len() - 1 - i);
        let ((before, skipped), (after, counted)) = (sums[i - reach], sums[i + reach + 1]);
        (after - before) / f64::from(counted - skipped)
    };
    (0..values.len()).map(|i| if values[i].is_finite() { mean(i) } else { f64::NAN }).collect()
}

/// The default window of a moving average over a curve of `rows` rows: a fiftieth of it.
#[must_use]
pub fn usual_window(rows: usize) -> usize {
    (rows / 50).max(1)
}

/// The mean of curves step by step, and the standard deviation where there are two at least, at the steps that all of
/// them have: a mean over other members at each step would jump. The rows of a log are in the order of their steps.
#[must_use]
pub fn average(logged: &[Logged]) -> (Curve, Vec<f64>) {
    let (mut mean, mut deviations) = (Curve::default(), Vec::new());
    let first = match logged {
        [] => return (mean, deviations),
        [alone] => return (alone.curve.clone(), vec![0.0; alone.steps.len()]),
        [first, ..] => first,
    };
    let mut at = vec![0; logged.len()];
    for step in &first.steps {
        let mut is_everywhere = true;
        for (one, at) in logged.iter().zip(&mut at) {
            *at += one.steps[*at..].iter().take_while(|other| *other < step).count();
            is_everywhere &= one.steps.get(*at) == Some(step);
        }
        if !is_everywhere {
            continue;
        }
        let of_all = |values: fn(&Curve) -> &[f64]| {
            let values: Vec<f64> = logged.iter().zip(&at).map(|(one, &at)| values(&one.curve)[at]).collect();
            spread(&values)
        };
        let (Some(x), Some(y)) = (of_all(|curve| &curve.x), of_all(|curve| &curve.y)) else { continue };
        mean.x.push(x.mean);
        mean.y.push(y.mean);
        deviations.push(y.sd.unwrap_or(0.0));
        // the next row may have the same step
        at.iter_mut().for_each(|at| *at += 1);
    }
    (mean, deviations)
}

/// The rows that a picture needs: of those that share a place along the axis the first, the lowest and the highest, and
/// the last row of all.
#[must_use]
pub fn thin(curve: &Curve, scale: &Scale) -> Vec<usize> {
    if curve.x.len() <= MOST_POINTS {
        return (0..curve.x.len()).collect();
    }
    // three rows of a place are kept
    let places = (MOST_POINTS / 3) as f64;
    let place = |i: usize| scale.place(curve.x[i]).map(|along| (along * places) as i64);
    let mut kept = Vec::new();
    let mut from = 0;
    while from < curve.x.len() {
        let here = place(from);
        let to = (from..curve.x.len()).find(|&i| place(i) != here).unwrap_or(curve.x.len());
        // gaps compare as neither
        let finite = || (from..to).filter(|&i| curve.y[i].is_finite());
        let lowest = finite().min_by(|&a, &b| curve.y[a].total_cmp(&curve.y[b]));
        let highest = finite().max_by(|&a, &b| curve.y[a].total_cmp(&curve.y[b]));
        let mut rows: Vec<usize> = [Some(from), lowest, highest].into_iter().flatten().collect();
        rows.sort_unstable();
        kept.extend(rows);
        from = to;
    }
    kept.push(curve.x.len() - 1);
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_shifts_nothing_and_keeps_gaps() {
        let line: Vec<f64> = (0..20).map(f64::from).collect();
        for window in [0, 1, 2, 5, 100] {
            let smoothed = smooth(&line, window);
            assert!(smoothed.iter().zip(&line).all(|(a, b)| (a - b).abs() < 1e-9), "{window}: {smoothed:?}");
        }
        let smoothed = smooth(&[1.0, f64::NAN, 3.0, 8.0, 1.0], 3);
        assert!(smoothed[1].is_nan());
        assert_eq!((smoothed[0], smoothed[2], smoothed[3]), (1.0, 5.5, 4.0));
        assert_eq!(smooth(&[], 9), Vec::<f64>::new());
    }

    #[test]
    fn replicas_are_averaged_at_the_steps_that_all_have() {
        let logged = |points: &[(f64, f64)]| {
            let (steps, y): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
            Logged { curve: Curve { x: steps.iter().map(|step| 8.0 * step).collect(), y }, steps }
        };
        let of = |all: &[Logged]| average(all);
        let whole = logged(&[(0.0, 1.0), (1.0, 2.0), (2.0, 9.0)]);
        let (mean, sd) = of(&[whole.clone(), logged(&[(0.0, 3.0), (1.0, 2.0)])]);
        assert_eq!((mean, sd), (Curve { x: vec![0.0, 8.0], y: vec![2.0, 2.0] }, vec![2f64.sqrt(), 0.0]));
        // evaluated every 20 and every 30 steps, and a row was lost
        let twenty = logged(&[(0.0, 6.0), (20.0, 5.0), (40.0, 4.0), (60.0, 3.0)]);
        let thirty = logged(&[(0.0, 8.0), (30.0, 4.0), (60.0, 1.0)]);
        for all in [[twenty.clone(), thirty.clone()], [thirty, twenty]] {
            assert_eq!(of(&all).0, Curve { x: vec![0.0, 480.0], y: vec![7.0, 2.0] });
        }
        let lost = logged(&[(0.0, 3.0), (2.0, 1.0)]);
        assert_eq!(of(&[whole.clone(), lost]).0, Curve { x: vec![0.0, 16.0], y: vec![2.0, 5.0] });
        assert_eq!(of(std::slice::from_ref(&whole)), (whole.curve, vec![0.0; 3]));
        assert_eq!(of(&[]).0, Curve::default());
    }

    #[test]
    fn a_curve_ends_on_the_way_to_its_next_point() {
        let curve = |x: &[f64], y: &[f64]| Curve { x: x.to_vec(), y: y.to_vec() };
        let whole = curve(&[0.0, 10.0, 20.0], &[6.0, 4.0, 3.0]);
        assert_eq!(whole.up_to(15.0), curve(&[0.0, 10.0, 15.0], &[6.0, 4.0, 3.5]));
        assert_eq!(whole.up_to(10.0), curve(&[0.0, 10.0], &[6.0, 4.0]));
        assert_eq!(whole.up_to(99.0), whole);
        assert_eq!(whole.up_to(-1.0), Curve::default());
    }

    #[test]
    fn a_spike_survives_thinning() {
        let x: Vec<f64> = (0..100_000).map(f64::from).collect();
        let mut y = vec![1.0; x.len()];
        (y[77_777], y[3]) = (9.0, -4.0);
        let curve = Curve { x, y };
        let scale = Scale::over(curve.x.iter().copied(), false, 0.0).expect("values");
        let kept = thin(&curve, &scale);
        assert!(kept.len() <= MOST_POINTS + 3, "{}", kept.len());
        assert!([0, 3, 77_777, 99_999].iter().all(|row| kept.contains(row)));
        assert!(kept.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
