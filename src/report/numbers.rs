//! Numbers as people read them, in tables, on axes and in messages.

pub use crate::wording::{count, grouped, thousands};
use std::time::Duration;

/// A duration in hours, minutes and seconds.
#[must_use]
pub fn duration(time: Duration) -> String {
    let s = time.as_secs();
    match (s / 3600, s / 60 % 60) {
        (0, 0) => format!("{:.1} s", time.as_secs_f64()),
        (0, minutes) => format!("{minutes} min {} s", s % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// A duration as exactly as an estimate deserves: `12 s`, `4 min 5 s`, `3 h 20 min`, `2 days 3 h`, `2.9 years`.
#[must_use]
pub fn roughly(time: Duration) -> String {
    const YEAR: f64 = 365.25 * 86_400.0;
    let s = time.as_secs_f64().round() as u64;
    match (s / 86_400, s / 3600, s / 60) {
        (_, _, 0) => format!("{s} s"),
        (_, 0, 10..) => format!("{} min", s / 60),
        (_, 0, minutes) => format!("{minutes} min {} s", s % 60),
        (0 | 1, hours, minutes) => format!("{hours} h {} min", minutes % 60),
        (2..60, hours, _) => format!("{} days {} h", hours / 24, hours % 24),
        (days @ ..730, _, _) => format!("{days} days"),
        _ => format!("{:.1} years", s as f64 / YEAR),
    }
}

/// Seconds as a duration; an empty text for what is none.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map(duration).unwrap_or_default()
}

/// A count in at most four characters of digits and a prefix: `307k`, `1.5M`.
#[must_use]
pub fn si(number: f64) -> String {
    si_in(number, 3)
}

/// A count in so many significant digits and a prefix: `100.02k` in five.
#[must_use]
pub fn si_in(number: f64, digits: usize) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    // half a unit of the last digit shown is rounded up into the next prefix
    let nearly = 1.0 - 0.5 * 0.1f64.powf(digits as f64);
    let unit = units.iter().find(|(unit, _)| number.abs() >= unit * nearly && number.abs() < HUGE * 1e3);
    let (scaled, suffix) = unit.map_or((number, ""), |(unit, suffix)| (number / unit, *suffix));
    format!("{}{suffix}", significant(scaled, digits))
}

/// Floating-point operations in the unit that suits them, in at most four digits: `13.5 TFLOP`, `8.65 EFLOP`.
#[must_use]
pub fn flop(operations: f64) -> String {
    let units = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")];
    // half a unit of the last digit shown is rounded up into the next prefix
    let (unit, prefix) =
        units.into_iter().find(|(unit, _)| operations >= unit * 0.9995).unwrap_or((1e6, "M"));
    let scaled = operations / unit;
    // beyond a thousand of the largest unit, every digit before the point is shown
    let text = if scaled < 999.5 { significant(scaled, 3) } else { thousands(scaled.round() as u64) };
    format!("{text} {prefix}FLOP")
}

/// Operations per second: `341 GFLOP/s`.
#[must_use]
pub fn flop_rate(operations_per_s: f64) -> String {
    format!("{}/s", flop(operations_per_s))
}

/// From here on the places before the point are no longer read one by one, and a 64-bit number does not know them all.
const HUGE: f64 = 1e15;

/// A number with so many digits behind the point; one that is huge in a few digits and an exponent.
#[must_use]
pub fn fixed(number: f64, digits: usize) -> String {
    if number.abs() < HUGE { format!("{number:.digits$}") } else { significant(number, 5) }
}

/// A number that is counted, 0 or more, in groups of three digits; one that is huge in a few digits and an exponent.
#[must_use]
pub fn whole(number: f64) -> String {
    if number < HUGE { thousands(number.round() as u64) } else { significant(number, 5) }
}

/// Bytes in binary units.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    let mib = bytes / f64::from(1 << 20);
    match mib >= 1024.0 {
        true => format!("{} GiB", fixed(mib / 1024.0, 2)),
        false => format!("{} MiB", fixed(mib, 1)),
    }
}

/// The size of a small file.
#[must_use]
pub fn kilobytes(bytes: usize) -> String {
    format!("{:.1} kB", bytes as f64 / 1e3)
}

/// A number rounded to so many significant digits, without trailing zeros, with an exponent where that is shorter to
/// read: `0.0006`, `3e-5`, `1.25`.
#[must_use]
pub fn significant(number: f64, digits: usize) -> String {
    if number == 0.0 || !number.is_finite() {
        return format!("{number}");
    }
    // through the exponent's form, which rounds to digits and not to places
    let scientific = format!("{number:.*e}", digits.saturating_sub(1));
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -3..=6 => trim(&format!("{number:.*}", (digits as i32 - 1 - exponent).max(0) as usize)),
        exponent => format!("{}e{exponent}", trim(mantissa)),
    }
}

/// A number in up to six digits, with or without an exponent, whichever is shorter: `2e-3`, `0.016`, `1337`.
#[must_use]
pub fn compact(number: f64) -> String {
    let plain = significant(number, 6);
    // the shortest form that reads back as what is shown
    let scientific = plain.parse::<f64>().map_or_else(|_| plain.clone(), |shown| format!("{shown:e}"));
    if scientific.len() < plain.len() { scientific } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_read_well() {
        assert_eq!([9.26, 61.0, 7384.0].map(seconds), ["9.3 s", "1 min 1 s", "2 h 3 min"]);
        assert_eq!(seconds(f64::NAN), "");
        let estimates = [0.2, 59.4, 60.0, 599.0, 3599.0, 12_000.0, 172_799.0, 183_600.0, 5_270_400.0, 9.15e7];
        let shown = [
            "0 s",
            "59 s",
            "1 min 0 s",
            "9 min 59 s",
            "59 min",
            "3 h 20 min",
            "47 h 59 min",
            "2 days 3 h",
            "61 days",
            "2.9 years",
        ];
        assert_eq!(estimates.map(|s| roughly(Duration::from_secs_f64(s))), shown);
        assert_eq!([0.0, 12.0, 999.9, 307_200.0, 1.5e9].map(si), ["0", "12", "1k", "307k", "1.5B"]);
        assert_eq!([3e5, 3e9].map(bytes), ["0.3 MiB", "2.79 GiB"]);
    }

    #[test]
    fn a_huge_number_is_no_row_of_digits_and_no_number_stays_none() {
        assert_eq!(
            [0.0, 12.34567, -3.5, 1e14].map(|x| fixed(x, 1)),
            ["0.0", "12.3", "-3.5", "100000000000000.0"]
        );
        assert_eq!([1e15, 1e300, -1e300].map(|x| fixed(x, 4)), ["1e15", "1e300", "-1e300"]);
        assert_eq!([5e-324, f64::NAN, f64::INFINITY].map(|x| fixed(x, 4)), ["0.0000", "NaN", "inf"]);
        assert_eq!([0.4, 12_345.0, 1e300, f64::INFINITY].map(whole), ["0", "12,345", "1e300", "inf"]);
        assert_eq!([si(1e300), bytes(1e300)], ["1e300", "9.3132e290 GiB"]);
    }

    #[test]
    fn operations_have_a_unit_that_suits_them() {
        let shown = [4.4e7, 1.35e13, 3.41e11, 8.6458160e18, 9.9996e14, 2e21, 1.23456e21].map(flop);
        let expected =
            ["44 MFLOP", "13.5 TFLOP", "341 GFLOP", "8.65 EFLOP", "1 PFLOP", "2,000 EFLOP", "1,235 EFLOP"];
        assert_eq!(shown, expected);
        assert_eq!(flop_rate(2.5e12), "2.5 TFLOP/s");
    }

    #[test]
    fn the_shorter_form_is_taken() {
        let shown = [2e-3, 5e-4, 0.016, 0.01, 0.95, 1e-8, 1.07652e-4, 100_000.0, 0.0].map(compact);
        assert_eq!(shown, ["2e-3", "5e-4", "0.016", "0.01", "0.95", "1e-8", "1.07652e-4", "1e5", "0"]);
    }

    #[test]
    fn significant_digits_are_counted_from_the_first() {
        let shown = [6e-4, 3e-5, 1.2499, 0.001, 10.0, 12345.678, -0.25, 1e9, 0.0].map(|x| significant(x, 3));
        assert_eq!(shown, ["6e-4", "3e-5", "1.25", "0.001", "10", "12346", "-0.25", "1e9", "0"]);
    }
}
