//! Numbers of tokens as people write them: `12e9`, where TOML has no integer with an exponent.

use super::value::{Fault, integer, out_of_range, shown, wrong_type};
use toml::Spanned;
use toml::de::DeValue;

/// A number of tokens: an integer, or a float without a fraction, such as `12e9`.
pub(super) fn check(value: &Spanned<DeValue>, max: i64) -> Result<i64, Fault> {
    let expected = "an integer, or a float without a fraction such as 12e9";
    let DeValue::Float(digits) = value.get_ref() else { return integer(value, 1, max, expected) };
    match digits.as_str().parse() {
        // the bounds lie far below the integers that a float cannot hold
        Ok(number) if f64::fract(number) == 0.0 => match (1.0..=max as f64).contains(&number) {
            true => Ok(number as i64),
            false => Err(out_of_range(value, &shown(digits.as_str()), &format!("from 1 to {max}"))),
        },
        _ => Err(wrong_type(value, expected)),
    }
}
