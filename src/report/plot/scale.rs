//! From values to places along an axis, and the values that an axis names.

use crate::report::axis::Axis;
use crate::report::numbers::{si_in, significant};

/// Greater numbers have no place on an axis, and on a logarithmic one neither have those that are smaller than their
/// inverse: what such an axis spans is more than a number can say.
const LARGEST: f64 = 1e100;

/// An axis with a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Scale {
    /// An axis over these values; a logarithmic one passes over those that are not positive, and both over those whose
    /// size only a fault explains (above 1e100). `None` without values.
    ///
    /// With `margin`, a part of the range, there is room at both ends.
    #[must_use]
    pub fn over(values: impl Iterator<Item = f64>, is_log: bool, margin: f64) -> Option<Self> {
        let usable = values.filter(|value| has_place(*value, is_log));
        let (low, high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return None;
        }
        let (mut a, mut b) = if is_log { (low.ln(), high.ln()) } else { (low, high) };
        if b - a <= (f64::EPSILON * a.abs().max(b.abs())).max(1.0 / LARGEST) {
            // a single value gets a range around it
            let room = if is_log { 0.5 } else { (a.abs() * 0.05).max(1e-9) };
            (a, b) = (a - room, b + room);
        }
        let room = (b - a) * margin;
        (a, b) = (a - room, b + room);
        let (low, high) = if is_log { (a.exp(), b.exp()) } else { (a, b) };
        Some(Self { low, high, is_log })
    }

    /// Where a value lies: 0 at the low end, 1 at the high one; `None` for what has no place on this axis.
    #[must_use]
    pub fn place(&self, value: f64) -> Option<f64> {
        has_place(value, self.is_log).then(|| match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        })
    }

    /// About `count` round values on the axis.
    #[must_use]
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        if self.is_log && decades > 1.2 {
            return self.log_ticks(count);
        }
        let step = round_step((self.high - self.low) / count.max(1) as f64);
        // an end that is round itself counts, whatever division makes of it
        let (first, last) = ((self.low / step - 1e-9).ceil(), (self.high / step + 1e-9).floor());
        // adding zero turns minus zero into zero
        (0..=(last - first).max(0.0) as usize).map(|i| (first + i as f64) * step + 0.0).collect()
    }

    fn log_ticks(&self, count: usize) -> Vec<f64> {
        let (from, to) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let on_axis = |v: &f64| *v >= self.low * (1.0 - 1e-9) && *v <= self.high * (1.0 + 1e-9);
        let all = |digits: &[f64]| -> Vec<f64> {
            let decade = |power: i32| digits.iter().map(move |digit| digit * 10f64.powi(power));
            (from..=to).flat_map(decade).filter(on_axis).collect()
        };
        let fitting =
            [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]].into_iter().map(all).find(|t| t.len() <= count + 2);
        fitting.unwrap_or_else(|| {
            let decades = all(&[1.0]);
            let stride = decades.len().div_ceil(count.max(1));
            decades.into_iter().step_by(stride).collect()
        })
    }

    /// Whether it is logarithmic.
    #[must_use]
    pub fn is_log(&self) -> bool {
        self.is_log
    }
}

fn has_place(value: f64, is_log: bool) -> bool {
    value.abs() <= LARGEST && (!is_log || value >= 1.0 / LARGEST)
}

/// The nearest of 1, 2, 2.5 and 5 times a power of ten that is not smaller.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0].into_iter().find(|digit| digit * power >= step * (1.0 - 1e-9));
    round.unwrap_or(10.0) * power
}

/// The labels of ticks at an axis, with as many digits as are needed to tell them apart.
#[must_use]
pub fn labels(ticks: &[f64], is_log: bool) -> Vec<String> {
    let largest = ticks.iter().fold(0.0, |most: f64, tick| most.max(tick.abs()));
    let gap = ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(largest, f64::min);
    // a label that is rounded by less is read as its tick
    let is_near =
        |tick: f64, text: String| text.parse().is_ok_and(|read: f64| (read - tick).abs() <= gap / 100.0);
    let fewest = |from: usize, text: &dyn Fn(f64, usize) -> String| {
        let tells = |digits: &usize| ticks.iter().all(|&tick| is_near(tick, text(tick, *digits)));
        (from..MOST_DIGITS).find(tells).unwrap_or(MOST_DIGITS)
    };
    if largest >= 1e4 || is_log || largest < 1e-2 {
        let digits = fewest(3, &|tick, digits| format!("{tick:.*e}", digits - 1));
        let label =
            |&tick: &f64| if largest >= 1e4 { si_in(tick, digits) } else { significant(tick, digits) };
        return ticks.iter().map(label).collect();
    }
    let places = fewest(0, &|tick, places| format!("{tick:.places$}"));
    ticks.iter().map(|tick| format!("{tick:.places$}")).collect()
}

/// A 64-bit number has no more digits.
const MOST_DIGITS: usize = 17;

/// Seconds, minutes, hours or days, whichever suits the range: the divisor and the name.
#[must_use]
pub fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        s if s >= 3.0 * 86_400.0 => (86_400.0, "days"),
        s if s >= 3.0 * 3600.0 => (3600.0, "h"),
        s if s >= 180.0 => (60.0, "min"),
        _ => (1.0, "s"),
    }
}

/// What stands at a horizontal axis that ends at `high`, and what its values are divided by.
#[must_use]
pub fn horizontal(axis: Axis, high: f64) -> (String, f64) {
    match axis {
        Axis::Time => {
            let (divisor, unit) = time_unit(high);
            (format!("{} ({unit})", axis.title()), divisor)
        }
        Axis::Step | Axis::Tokens => (axis.title().to_owned(), 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn over(values: [f64; 2], is_log: bool) -> Scale {
        Scale::over(values.into_iter(), is_log, 0.0).expect("values")
    }

    #[test]
    fn ticks_are_round_and_few() {
        let shown = |scale: Scale, count| labels(&scale.ticks(count), scale.is_log());
        assert_eq!(shown(over([0.0, 300.0], false), 6), ["0", "50", "100", "150", "200", "250", "300"]);
        assert_eq!(shown(over([3.31, 3.52], false), 5), ["3.35", "3.40", "3.45", "3.50"]);
        assert_eq!(shown(over([0.0, 307_200.0], false), 5), ["0", "100k", "200k", "300k"]);
        assert_eq!(shown(over([0.0, 6e-4], false), 4), ["0", "2e-4", "4e-4", "6e-4"]);
        assert_eq!(shown(over([1.0, 1e4], true), 6), ["1", "10", "100", "1k", "10k"]);
        assert_eq!(shown(over([3.0, 11.0], true), 5), ["4", "6", "8", "10"]);
        assert_eq!(shown(over([1e-5, 1e-3], true), 8).len(), 7);
        assert!(over([1e-30, 1e30], true).ticks(5).len() <= 7);
        // far from zero
        assert_eq!(
            shown(over([1e5, 100_020.0], false), 4),
            ["100k", "100.005k", "100.01k", "100.015k", "100.02k"]
        );
        assert_eq!(shown(over([15.2e6, 16e6], false), 4), ["15.2M", "15.4M", "15.6M", "15.8M", "16M"]);
        assert_eq!(shown(over([3.0, 3.000_000_04], false), 2), ["3.000000000", "3.000000025"]);
        assert_eq!(shown(over([1.0001e-3, 1.0002e-3], false), 2), ["0.0010001", "0.00100015", "0.0010002"]);
    }

    proptest! {
        #[test]
        fn an_axis_over_any_values_has_few_ticks_and_ends(
            bits in proptest::collection::vec(any::<u64>(), 1..4),
            special in proptest::sample::select(vec![0.0, -0.0, 5e-324, -5e-324, f64::MAX, f64::MIN, 1e100, 1e-100]),
            is_log: bool,
            margin in 0.0..0.05,
            count in 0usize..20,
        ) {
            let values: Vec<f64> = bits.into_iter().map(f64::from_bits).chain([special]).collect();
            if let Some(scale) = Scale::over(values.iter().copied(), is_log, margin) {
                let ticks = scale.ticks(count);
                prop_assert!(ticks.len() <= 3 * count.max(1) + 3, "{} ticks on {scale:?}", ticks.len());
                prop_assert_eq!(labels(&ticks, is_log).len(), ticks.len());
                for place in values.iter().filter_map(|&value| scale.place(value)) {
                    prop_assert!((-1e-6..=1.0 + 1e-6).contains(&place), "{place} on {scale:?}");
                }
            }
        }
    }

    #[test]
    fn places_run_from_end_to_end() {
        let scale = over([1.0, 100.0], true);
        assert_eq!([1.0, 10.0, 100.0].map(|v| scale.place(v)), [Some(0.0), Some(0.5), Some(1.0)]);
        assert_eq!([0.0, -1.0, f64::NAN, f64::INFINITY].map(|v| scale.place(v)), [None; 4]);
        let one = over([5.0, 5.0], false);
        assert_eq!(one.place(5.0), Some(0.5));
        assert_eq!(Scale::over([f64::NAN].into_iter(), false, 0.1), None);
        assert_eq!(Scale::over([0.0, -1.0].into_iter(), true, 0.1), None);
    }
}
