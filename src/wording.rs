//! How counts stand in texts, for messages of all modules.

use std::fmt::Display;

/// A number with its digits grouped: `124,439,808`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A count and what is counted, as a noun in the singular whose plural ends in s: `1 step`, `3 steps`.
#[must_use]
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    format!("{number} {}", noun_of(number, noun))
}

/// A count with its digits grouped and what is counted: `1 step`, `19,073 steps`.
#[must_use]
pub fn grouped(number: u64, noun: &str) -> String {
    format!("{} {}", thousands(number), noun_of(number, noun))
}

/// A noun in the number that a count asks for: `step` for one, `steps` for none and for several.
#[must_use]
pub fn noun_of<N: PartialEq + From<u8>>(number: N, noun: &str) -> String {
    if number == N::from(1) { noun.to_owned() } else { format!("{noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0_u64, 1, 2].map(|n| count(n, "thread")), ["0 threads", "1 thread", "2 threads"]);
        assert_eq!([1, 19_073].map(|n| grouped(n, "step")), ["1 step", "19,073 steps"]);
        assert_eq!([0, 999, 1000, 124_439_808].map(thousands), ["0", "999", "1,000", "124,439,808"]);
        assert_eq!(count(1_usize, "seed"), "1 seed");
    }
}
