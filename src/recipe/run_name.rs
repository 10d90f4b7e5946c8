//! `name`, and what else becomes a part of a file's name or a column's: plain characters only.

use super::value::{Fault, shown, wrong_type};
use toml::Spanned;
use toml::de::DeValue;

/// Whether a name may name a run's directory; the error is the reason.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.chars().all(plain) {
        Err("may hold letters, digits, `.`, `_` and `-` only")
    } else if name.is_empty() || name.starts_with(['.', '-']) {
        Err("must start with a letter, a digit or `_`")
    } else if name.len() > 100 {
        Err("may be 100 characters long at most")
    } else {
        Ok(())
    }
}

/// A name like this one that may name a run's directory.
pub(super) fn suggest_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' };
    let name: String = name.chars().take(100).map(plain).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "experiment".into() } else { name.into() }
}

/// Checks the value of the key.
pub(super) fn check(value: &Spanned<DeValue>) -> Result<String, Fault> {
    let DeValue::String(name) = value.get_ref() else {
        return Err(wrong_type(value, "a string"));
    };
    check_name(name).map_err(|reason| Fault {
        what: format!("is \"{}\", which cannot name a run", shown(name)),
        label: reason.into(),
        help: Some(format!("for example \"{}\"", suggest_name(name))),
        span: value.span(),
    })?;
    Ok(name.to_string())
}
