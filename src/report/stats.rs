//! Is a difference real? Means, Welch's test, and how many seeds would settle it.
//!
//! A replica of a run, that is, the same recipe under another seed, is the only honest source of an error bar: the
//! noise along one curve says nothing about what another seed would have given.

use statrs::distribution::{ChiSquared, Continuous, ContinuousCDF, StudentsT};
use statrs::function::erf::erfc;

/// Two-sided significance level of every test.
pub const ALPHA: f64 = 0.05;
/// How often a test of the recommended size should find a difference that is there.
pub const POWER: f64 = 0.8;
/// A recommendation of more seeds than this is replaced by the remark that no affordable number would do.
const MOST_SEEDS: u32 = 10_000;

/// Mean and spread of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// How many.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (n − 1); `None` for one value.
    pub sd: Option<f64>,
}

/// Mean and standard deviation; `None` for no values. Equal values have exactly themselves as the mean, and a deviation
/// of exactly 0: what rounding leaves would be taken for the noise of seeds.
#[must_use]
pub fn spread(values: &[f64]) -> Option<Spread> {
    let (n, &first) = (values.len(), values.first()?);
    if values.iter().all(|value| *value == first) {
        return Some(Spread { n, mean: first, sd: (n > 1).then_some(0.0) });
    }
    // in units in which no sum and no square overflows or vanishes
    let unit = unit(values);
    let mean = values.iter().map(|value| value / unit).sum::<f64>() / n as f64;
    let squares: f64 = values.iter().map(|value| (value / unit - mean).powi(2)).sum();
    Some(Spread { n, mean: mean * unit, sd: Some((squares / (n - 1) as f64).sqrt() * unit) })
}

/// What to divide numbers by before they are squared: 1 unless they are huge or tiny.
fn unit(values: &[f64]) -> f64 {
    let largest = values.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let is_plain = largest == 0.0 || !largest.is_finite() || (1e-100..1e100).contains(&largest);
    if is_plain { 1.0 } else { largest }
}

/// The middle value, or the mean of the middle two; `None` for no values. Changes the order of `values`.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let (middle, is_even) = (values.len() / 2, values.len().is_multiple_of(2));
    let (below, &mut upper, _) =
        (!values.is_empty()).then(|| values.select_nth_unstable_by(middle, f64::total_cmp))?;
    let lower = if is_even { below.iter().copied().max_by(f64::total_cmp) } else { None };
    Some(lower.map_or(upper, |lower| f64::midpoint(lower, upper)))
}

/// The result of Welch's t-test of two samples (Welch, 1947).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Welch {
    /// Mean of the second sample minus mean of the first.
    pub difference: f64,
    /// Standard error of the difference.
    pub error: f64,
    /// The statistic, with the sign of the difference.
    pub t: f64,
    /// Degrees of freedom by Welch and Satterthwaite.
    pub df: f64,
    /// Two-sided p-value.
    pub p: f64,
}

/// Welch's t-test, which does not assume equal variances. `None` if a sample has fewer than two values or neither
/// varies: then there is nothing to measure the difference against.
#[must_use]
pub fn welch(first: Spread, second: Spread) -> Option<Welch> {
    let unit = unit(&[first.sd?, second.sd?]);
    let error = |s: Spread| Some((s.sd? / unit).powi(2) / s.n as f64);
    let (a, b) = (error(first)?, error(second)?);
    let variance = a + b;
    let freedom = |s: Spread, error: f64| error.powi(2) / (s.n as f64 - 1.0);
    let df = variance.powi(2) / (freedom(first, a) + freedom(second, b));
    let difference = second.mean - first.mean;
    let deviation = variance.sqrt() * unit;
    let t = difference / deviation;
    let student = StudentsT::new(0.0, 1.0, df).ok().filter(|_| t.is_finite())?;
    let p = (2.0 * student.cdf(-t.abs())).min(1.0);
    Some(Welch { difference, error: deviation, t, df, p })
}

impl Welch {
    /// The confidence interval of the difference that misses the true one with the probability `alpha`.
    #[must_use]
    pub fn interval(&self, alpha: f64) -> (f64, f64) {
        let quantile =
            StudentsT::new(0.0, 1.0, self.df).map(|student| student.inverse_cdf(1.0 - alpha / 2.0));
        let half = quantile.unwrap_or(f64::INFINITY) * self.error;
        (self.difference - half, self.difference + half)
    }
}

/// The power of Welch's test at the level `alpha`: how often it finds a difference of this size between two groups of n
/// values with these standard deviations.
///
/// The statistic is (Z + δ)/S with a standard normal Z and δ the difference over its standard error; S² is χ²
/// over its degrees of freedom. The integral over S is taken by the midpoint rule.
fn power(n: u32, difference: f64, sd_first: f64, sd_second: f64, alpha: f64) -> Option<f64> {
    const POINTS: u32 = 400;
    let (a, b) = (sd_first.powi(2), sd_second.powi(2));
    let df = f64::from(n - 1) * (a + b).powi(2) / (a.powi(2) + b.powi(2));
    let shift = difference.abs() / ((a + b) / f64::from(n)).sqrt();
    let critical = StudentsT::new(0.0, 1.0, df).ok()?.inverse_cdf(1.0 - alpha / 2.0);
    let chi_squared = ChiSquared::new(df).ok()?;
    let normal = |x: f64| 0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    // twelve standard deviations of S around 1, which is more than double precision sees
    let reach = 12.0 / (2.0 * df).sqrt();
    let (low, high) = ((1.0 - reach).max(0.0), 1.0 + reach);
    let width = (high - low) / f64::from(POINTS);
    let part = |i: u32| {
        let s = low + (f64::from(i) + 0.5) * width;
        // by its logarithm: the density itself overflows on the way at some hundreds of degrees of freedom
        let density = 2.0 * s * df * chi_squared.ln_pdf(df * s * s).exp();
        density * (normal(shift - critical * s) + normal(-shift - critical * s))
    };
    Some((0..POINTS).map(part).sum::<f64>() * width)
}

/// The number of seeds per group with which Welch's test at the level `alpha` would find a difference of this size
/// between groups of these standard deviations in [`POWER`] of all cases; `None` above 10,000. One of several tests is
/// sure to pass Holm's adjustment at the level [`ALPHA`] divided by their number.
#[must_use]
pub fn seeds_needed(difference: f64, sd_first: f64, sd_second: f64, alpha: f64) -> Option<u32> {
    let unit = unit(&[sd_first, sd_second]);
    let [difference, sd_first, sd_second] = [difference, sd_first, sd_second].map(|x| x / unit);
    let enough =
        |n: u32| power(n, difference, sd_first, sd_second, alpha).is_some_and(|power| power >= POWER);
    if !enough(MOST_SEEDS) {
        return None;
    }
    let (mut low, mut high) = (2, MOST_SEEDS);
    while low < high {
        let middle = (low + high) / 2;
        if enough(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

/// p-values adjusted for being some of `tests` tests: Holm's step-down method (Holm, 1979), in the order given. Those
/// that are not given count as larger ones, which adjusts the given ones by no less than it should.
#[must_use]
pub fn holm(p: &[f64], tests: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, &i) in order.iter().enumerate() {
        largest = largest.max(p[i] * (tests - rank) as f64).min(1.0);
        adjusted[i] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_tested_is_not() {
        let of = |values: &[f64]| spread(values).expect("values");
        assert_eq!(spread(&[]), None);
        assert_eq!(of(&[3.0]), Spread { n: 1, mean: 3.0, sd: None });
        assert_eq!(welch(of(&[3.0]), of(&[1.0, 2.0])), None, "one seed has no spread");
        assert_eq!(welch(of(&[3.0, 3.0]), of(&[2.0, 2.0])), None, "no noise to measure against");
        assert!(welch(of(&[3.0, 3.0]), of(&[2.0, 2.5])).is_some());
        assert_eq!(seeds_needed(0.0, 1.0, 1.0, ALPHA), None);
        assert_eq!(seeds_needed(1e-9, 1.0, 1.0, ALPHA), None);
        assert_eq!(seeds_needed(1e9, 1.0, 1.0, ALPHA), Some(2));
    }

    #[test]
    fn equal_values_do_not_vary() {
        for value in [0.1, 3.3951657, 1e-3, -0.7, 1e300, 5e-324] {
            for n in 2..40 {
                let found = spread(&vec![value; n]);
                assert_eq!(found, Some(Spread { n, mean: value, sd: Some(0.0) }), "{n} times {value}");
            }
        }
        let of = |value: f64| spread(&[value; 3]).expect("values");
        assert_eq!(welch(of(0.1), of(0.2)), None, "there is no noise to measure the difference against");
    }

    #[test]
    fn huge_and_tiny_values_have_means_and_tests_as_others_have() {
        let plain = [[3.0, 4.0, 5.0], [6.0, 8.0, 9.0]].map(|values| spread(&values).expect("values"));
        let expected = welch(plain[0], plain[1]).expect("both vary");
        for unit in [1e300, 1e-300, 1e160, 1e-160] {
            let of = |values: [f64; 3]| spread(&values.map(|value| value * unit)).expect("values");
            let [first, second] = [of([3.0, 4.0, 5.0]), of([6.0, 8.0, 9.0])];
            assert!((first.mean / unit - 4.0).abs() < 1e-12, "{first:?}");
            assert!((first.sd.expect("several") / unit - 1.0).abs() < 1e-12, "{first:?}");
            let found = welch(first, second).expect("both vary");
            assert!((found.p - expected.p).abs() < 1e-9, "{found:?}");
            assert!((found.interval(ALPHA).0 / unit - expected.interval(ALPHA).0).abs() < 1e-9, "{found:?}");
            let needed = |a: Spread, b: Spread| {
                seeds_needed(b.mean - a.mean, a.sd.expect("several"), b.sd.expect("several"), ALPHA)
            };
            assert_eq!(needed(first, second), needed(plain[0], plain[1]));
        }
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [7.0]), Some(7.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn several_tests_are_each_held_to_more() {
        assert_eq!(holm(&[0.01, 0.04, 0.03], 3), [0.03, 0.06, 0.06]);
        assert_eq!(holm(&[0.9, 0.8], 2), [1.0, 1.0]);
        assert_eq!(holm(&[0.25, 0.125], 3), [0.5, 0.375], "some of more tests");
    }
}
