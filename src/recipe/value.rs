//! Values of keys, and the checks that turn a TOML value into one.

use super::keys::{Interval, Key, Kind};
use super::{init_from, presets, run_name, sources, suggest, tokens, validation};
use figment::value::{Dict, Value as Figment};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use toml::Spanned;
use toml::de::DeValue;

/// The checked value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Integer(i64),
    Number(f64),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<f64>),
    /// Sources of data with their weights.
    Mixture(Vec<(String, f64)>),
    /// Files of sets by their names.
    Sets(BTreeMap<String, Vec<String>>),
    /// The table form of `model.init_from`.
    Branch {
        run: String,
        step: Option<i64>,
        optimizer: bool,
    },
}

impl From<Value> for Figment {
    fn from(value: Value) -> Self {
        match value {
            Value::Integer(integer) => integer.into(),
            Value::Number(number) => number.into(),
            Value::Flag(flag) => flag.into(),
            Value::Text(text) => text.into(),
            Value::Texts(texts) => texts.into(),
            Value::Numbers(numbers) => numbers.into(),
            Value::Mixture(parts) => {
                let part = |(path, weight): (String, f64)| {
                    Dict::from([("path".into(), path.into()), ("weight".into(), weight.into())])
                };
                parts.into_iter().map(part).collect::<Vec<_>>().into()
            }
            // tables as arrays, which a stronger layer replaces as a whole: figment would merge them key by key
            Value::Sets(sets) => {
                let set = |(name, paths): (String, Vec<String>)| {
                    Figment::from(vec![name.into(), Figment::from(paths)])
                };
                sets.into_iter().map(set).collect::<Vec<_>>().into()
            }
            Value::Branch { run, step, optimizer } => {
                let step = step.map_or(Figment::from(figment::value::Empty::None), Figment::from);
                vec![run.into(), step, optimizer.into()].into()
            }
        }
    }
}

/// As TOML, on one line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Integer(integer) => write!(f, "{integer}"),
            Self::Number(number) => f.write_str(&float(*number)),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Texts(texts) => write!(f, "[{}]", comma(texts.iter().map(|text| quoted(text)))),
            Self::Numbers(numbers) => write!(f, "[{}]", comma(numbers.iter().map(|&number| float(number)))),
            Self::Mixture(parts) => {
                let part = |(path, weight): &(String, f64)| {
                    format!("{{ path = {}, weight = {} }}", quoted(path), float(*weight))
                };
                write!(f, "[{}]", comma(parts.iter().map(part)))
            }
            Self::Sets(sets) => {
                let paths = |paths: &[String]| comma(paths.iter().map(|path| quoted(path)));
                let set = |(name, own): (&String, &Vec<String>)| format!("{} = [{}]", bare(name), paths(own));
                write!(f, "{{ {} }}", comma(sets.iter().map(set)))
            }
            Self::Branch { run, step, optimizer } => {
                let step = step.map_or_else(String::new, |step| format!("step = {step}, "));
                write!(f, "{{ run = {}, {step}optimizer = {optimizer} }}", quoted(run))
            }
        }
    }
}

/// Items separated by commas.
pub(super) fn comma(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// The shortest TOML float that reads back as the same number.
pub(super) fn float(number: f64) -> String {
    // `Debug` keeps the point of whole numbers and turns to exponents for very small and large ones.
    format!("{number:?}")
}

/// A key of a TOML table: quoted where it has to be.
pub(super) fn bare(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { quoted(name) }
}

/// A TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other if other.is_control() => out.push_str(&format!("\\u{:04X}", other as u32)),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Text from a user, fit for one line of a message.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// Why a TOML value is not one of a key's values.
#[derive(Debug)]
pub(super) struct Fault {
    /// Follows the key's name.
    pub(super) what: String,
    pub(super) label: String,
    pub(super) help: Option<String>,
    /// The culprit inside the value.
    pub(super) span: Range<usize>,
}

type Checked = Result<Value, Fault>;

/// Checks type and range of the value of `key`.
pub(super) fn check(key: &Key, value: &Spanned<DeValue>) -> Checked {
    match key.kind {
        Kind::Integer { min, max } => integer(value, min, max, "an integer").map(Value::Integer),
        Kind::Tokens { max } => tokens::check(value, max).map(Value::Integer),
        Kind::MicroBatch { max } => match value.get_ref() {
            DeValue::String(text) if text == "auto" => Ok(Value::Text("auto".into())),
            _ => integer(value, 1, max, "an integer or \"auto\"").map(Value::Integer),
        },
        Kind::Number(interval) => number(value, interval).map(Value::Number),
        Kind::Betas => betas(value),
        Kind::Flag => match value.get_ref() {
            DeValue::Boolean(flag) => Ok(Value::Flag(*flag)),
            _ => Err(wrong_type(value, "true or false")),
        },
        Kind::Text => text(value).map(Value::Text),
        Kind::Name => run_name::check(value).map(Value::Text),
        Kind::Choice(words) => choice(value, || words.iter().copied()),
        Kind::Choices(words) => choices(value, words),
        Kind::Preset => choice(value, presets::names),
        Kind::Device => device(value),
        Kind::File => path(value).map(Value::Text),
        Kind::Start => init_from::check(value),
        Kind::Sources => sources::check(value),
        Kind::Files { min } => sources::files(value, min),
        Kind::Sets => validation::check(value),
        Kind::Extends => sources::files(value, 0),
    }
}

pub(super) fn wrong_type(value: &Spanned<DeValue>, expected: &str) -> Fault {
    Fault {
        what: format!("must be {expected}"),
        label: format!("expected {expected}, found {}", found(value.get_ref())),
        help: rewrite(value.get_ref(), expected),
        span: value.span(),
    }
}

pub(super) fn out_of_range(value: &Spanned<DeValue>, text: &str, range: &str) -> Fault {
    Fault {
        what: format!("is {text}, out of range"),
        label: format!("must be {range}"),
        help: None,
        span: value.span(),
    }
}

pub(super) fn found(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{}\"", shown(text)),
        DeValue::Integer(integer) => format!("the integer {}", shown(&integer.to_string())),
        DeValue::Float(float) => format!("the float {}", shown(float.as_str())),
        DeValue::Boolean(flag) => format!("the boolean {flag}"),
        DeValue::Datetime(_) => "a date or time".into(),
        DeValue::Array(_) => "an array".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// How the value would be written in the expected type, where that is obvious.
fn rewrite(value: &DeValue, expected: &str) -> Option<String> {
    let plain = |number: f64| number.fract() == 0.0 && number.abs() < 1e15;
    match value {
        DeValue::String(text)
            if expected.contains("integer")
                && let Ok(number) = text.parse::<i64>() =>
        {
            Some(unquoted(text, &number.to_string()))
        }
        DeValue::String(text)
            if expected.contains("number")
                && let Ok(number) = text.parse::<f64>()
                && number.is_finite() =>
        {
            Some(unquoted(text, &format!("{number:?}")))
        }
        DeValue::String(text) if expected.contains("true") && (text == "true" || text == "false") => {
            Some(format!("write it without quotes: {text}"))
        }
        DeValue::Float(float) if expected.contains("integer") => {
            let number: f64 = float.as_str().parse().ok()?;
            plain(number).then(|| format!("write it as an integer: {number}"))
        }
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_)
            if expected.contains("string") =>
        {
            Some("put it in quotes".into())
        }
        _ => None,
    }
}

/// How to write a number that is a string: one such as `.5` is a string without quotes as well.
fn unquoted(text: &str, number: &str) -> String {
    match DeValue::parse(text) {
        Ok(_) => format!("write it without quotes: {text}"),
        Err(_) => format!("write it as {number}"),
    }
}

pub(super) fn integer(value: &Spanned<DeValue>, min: i64, max: i64, expected: &str) -> Result<i64, Fault> {
    let DeValue::Integer(digits) = value.get_ref() else {
        return Err(wrong_type(value, expected));
    };
    match i64::from_str_radix(digits.as_str(), digits.radix()) {
        Ok(integer) if (min..=max).contains(&integer) => Ok(integer),
        _ if max == i64::MAX => {
            Err(out_of_range(value, &shown(digits.as_str()), &format!("from {min} to 2^63 - 1")))
        }
        _ => Err(out_of_range(value, &shown(digits.as_str()), &format!("from {min} to {max}"))),
    }
}

/// A number as text and as a value, which may not be finite; integers are numbers.
fn any_number<'a>(value: &'a Spanned<DeValue>) -> Result<(&'a str, f64), Fault> {
    let text = match value.get_ref() {
        DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str(),
        DeValue::Float(digits) => digits.as_str(),
        _ => return Err(wrong_type(value, "a number")),
    };
    // Adding zero turns -0 into 0, which would otherwise be another experiment.
    text.parse().map(|number: f64| (text, number + 0.0)).map_err(|_| wrong_type(value, "a number"))
}

fn number(value: &Spanned<DeValue>, interval: Interval) -> Result<f64, Fault> {
    let (text, number) = any_number(value)?;
    let (fits, range) = match interval {
        Interval::Positive if number > 0.0 && number.is_finite() => {
            // a smaller one is 0 where denormal numbers are flushed, a larger one infinite
            let range = f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX);
            (range.contains(&number), "from 1.2e-38 to 3.4e38, which fp32 can hold")
        }
        Interval::Positive => (false, "a finite number greater than 0"),
        Interval::Fraction => (number > 0.0 && number < 1.0, "greater than 0 and less than 1"),
        Interval::BelowOne => ((0.0..1.0).contains(&number), "0 or more and less than 1"),
        Interval::NonNegative => (number >= 0.0, "a finite number, 0 or more"),
        Interval::Unit => ((0.0..=1.0).contains(&number), "from 0 to 1"),
    };
    if fits && number.is_finite() { Ok(number) } else { Err(out_of_range(value, &shown(text), range)) }
}

fn betas(value: &Spanned<DeValue>) -> Checked {
    let DeValue::Array(items) = value.get_ref() else {
        return Err(wrong_type(value, "an array of two numbers"));
    };
    let mut numbers = Vec::with_capacity(2);
    for item in items.iter().take(2) {
        let (text, number) = any_number(item)?;
        if !(0.0..1.0).contains(&number) {
            let fault = out_of_range(item, &shown(text), "at least 0 and less than 1");
            return Err(Fault { what: format!("holds {}, out of range", shown(text)), ..fault });
        }
        numbers.push(number);
    }
    if items.len() != 2 {
        return Err(Fault {
            what: "must be an array of two numbers".into(),
            label: format!("expected two numbers, found {}", items.len()),
            help: Some("one for each of AdamW's moments, such as [0.9, 0.95]".into()),
            span: value.span(),
        });
    }
    Ok(Value::Numbers(numbers))
}

fn text(value: &Spanned<DeValue>) -> Result<String, Fault> {
    match value.get_ref() {
        DeValue::String(text) if text.is_empty() => Err(Fault {
            what: "is empty".into(),
            label: "expected some text".into(),
            help: None,
            span: value.span(),
        }),
        DeValue::String(text) => Ok(text.to_string()),
        _ => Err(wrong_type(value, "a string")),
    }
}

pub(super) fn path(value: &Spanned<DeValue>) -> Result<String, Fault> {
    let text = text(value)?;
    if text.contains('\0') {
        return Err(Fault {
            what: format!("is \"{}\", which no file can be called", shown(&text)),
            label: "holds a zero byte".into(),
            help: None,
            span: value.span(),
        });
    }
    Ok(text)
}

fn choice<I: Iterator<Item = &'static str>>(value: &Spanned<DeValue>, words: impl Fn() -> I) -> Checked {
    let list = comma(words().map(|word| format!("\"{word}\"")));
    let DeValue::String(text) = value.get_ref() else {
        let mut fault = wrong_type(value, "a string");
        fault.help = Some(format!("one of {list}"));
        return Err(fault);
    };
    if words().any(|word| word == text) {
        return Ok(Value::Text(text.to_string()));
    }
    Err(unknown_word(value, text, &list, suggest::nearest(text, words())))
}

fn choices(value: &Spanned<DeValue>, words: &'static [&'static str]) -> Checked {
    let one = |item| match choice(item, || words.iter().copied())? {
        Value::Text(word) => Ok(word),
        _ => Err(wrong_type(item, "a string")),
    };
    let chosen = match value.get_ref() {
        DeValue::String(_) => vec![one(value)?],
        DeValue::Array(items) => items.iter().map(one).collect::<Result<_, _>>()?,
        _ => return Err(wrong_type(value, "a string or an array of strings")),
    };
    Ok(Value::Texts(chosen))
}

fn unknown_word(value: &Spanned<DeValue>, text: &str, list: &str, near: Option<&str>) -> Fault {
    Fault {
        what: format!("is \"{}\", which is not one of its values", shown(text)),
        label: near.map_or_else(String::new, |near| format!("did you mean \"{near}\"?")),
        help: Some(format!("one of {list}")),
        span: value.span(),
    }
}

fn device(value: &Spanned<DeValue>) -> Checked {
    const LIST: &str = "\"auto\", \"cpu\", \"cuda\", \"cuda:N\" with a device number";
    let DeValue::String(text) = value.get_ref() else {
        let mut fault = wrong_type(value, "a string");
        fault.help = Some(format!("one of {LIST}"));
        return Err(fault);
    };
    match super::Device::try_from(text.to_string()) {
        Ok(device) => Ok(Value::Text(device.into())),
        Err(_) => {
            // The nearest word would be `cpu`.
            let is_gpu = text.eq_ignore_ascii_case("gpu");
            let near = || suggest::nearest(text, ["auto", "cpu", "cuda"].into_iter());
            Err(unknown_word(value, text, LIST, if is_gpu { Some("cuda") } else { near() }))
        }
    }
}
