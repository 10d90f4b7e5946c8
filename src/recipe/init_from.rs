//! `model.init_from`: the weights or the run that a run begins from.

use super::paths::settled;
use super::value::{Fault, Value, path, wrong_type};
use crate::weights::checkpoint_name;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::DeValue;

/// What a run begins from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InitFrom {
    /// Weights: a file, or a directory that holds one.
    Weights(PathBuf),
    /// The state of another run.
    Run(Branch),
}

/// Where a run branches off another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// The directory of the other run.
    pub run: PathBuf,
    /// The step of its checkpoint; `None` for the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Whether its optimizer states, step and position in the data are taken as well; otherwise its weights only.
    pub optimizer: bool,
}

impl InitFrom {
    /// The file or directory that is named.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Weights(path) | Self::Run(Branch { run: path, .. }) => path,
        }
    }

    /// Whether a checkpoint of a run is named, and no file.
    pub(crate) fn is_of_run(&self) -> bool {
        matches!(self, Self::Run(_)) || checkpoint_name(self.path()).is_some()
    }

    /// What a checked value of the key names.
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Text(path) => Some(Self::Weights(path.into())),
            Value::Branch { run, step, optimizer } => Some(Self::Run(Branch {
                run: run.into(),
                step: step.map(i64::cast_unsigned),
                optimizer: *optimizer,
            })),
            _ => None,
        }
    }

    /// Whether a recipe that says this means what a run has `begun` from. A recipe may leave the step open, and a run
    /// never does.
    pub(crate) fn names(&self, begun: &Self) -> bool {
        let ((asked, asked_step), (begun, step)) = (self.place(), begun.place());
        asked == begun && (asked_step.is_none() || asked_step == step)
    }

    /// The file or directory that is meant, whether with the states of its optimizer, and the step where one is told.
    pub(crate) fn place(&self) -> ((PathBuf, bool), Option<u64>) {
        let (branch_step, optimizer) = match self {
            Self::Weights(_) => (None, false),
            Self::Run(Branch { step, optimizer, .. }) => (*step, *optimizer),
        };
        let (path, word) = match checkpoint_name(self.path()) {
            Some((run, word)) => (run, word.parse().ok()),
            None => (self.path(), None),
        };
        let path = settled(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        ((path, optimizer), branch_step.or(word))
    }
}

/// The members of the table, in the order in which a [`Branch`] is written.
pub(super) const MEMBERS: [&str; 3] = ["run", "step", "optimizer"];
/// The largest step of a run.
pub(super) const STEPS: u64 = 1 << 40;

/// Checks the value of the key: a path, or a table.
pub(super) fn check(value: &Spanned<DeValue>) -> Result<Value, Fault> {
    let table = match value.get_ref() {
        DeValue::Table(table) => table,
        DeValue::String(_) => return path(value).map(Value::Text),
        _ => return Err(wrong_type(value, "a string or a table")),
    };
    if let Some((name, _)) = table.iter().find(|(name, _)| !MEMBERS.contains(&name.get_ref().as_ref())) {
        let label = format!("its members are {}", MEMBERS.join(", "));
        let what = format!("has no member `{}`", super::value::shown(name.get_ref()));
        return Err(Fault { what, label, help: Some(EXAMPLE.into()), span: name.span() });
    }
    let Some(run) = table.get("run") else {
        return Err(fault(value, "names no run", "`run` is missing".into()));
    };
    let step = match table.get("step").map(|step| (step, step.get_ref())) {
        None => None,
        Some((_, DeValue::Integer(digits)))
            if let Ok(step) = u64::from_str_radix(digits.as_str(), digits.radix())
                && step <= STEPS =>
        {
            Some(step as i64)
        }
        Some((step, _)) => {
            return Err(fault(
                step,
                "has a `step` that is none",
                format!("expected an integer from 0 to {STEPS}"),
            ));
        }
    };
    let optimizer = match table.get("optimizer").map(|flag| (flag, flag.get_ref())) {
        None => true,
        Some((_, DeValue::Boolean(flag))) => *flag,
        Some((flag, _)) => {
            return Err(fault(flag, "has an `optimizer` that is no flag", "expected true or false".into()));
        }
    };
    Ok(Value::Branch { run: path(run)?, step, optimizer })
}

const EXAMPLE: &str = "write it as { run = \"runs/NAME-01234567\", step = 300, optimizer = true }, where a run without \
                       `step` means its newest checkpoint";

fn fault(value: &Spanned<DeValue>, what: &str, label: String) -> Fault {
    Fault { what: what.into(), label, help: Some(EXAMPLE.into()), span: value.span() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_names_what_a_run_began_from_at_the_same_step_or_at_one_it_leaves_open() {
        let weights = |path: &str| InitFrom::Weights(PathBuf::from(path));
        let branch = |run: &str, step, optimizer| InitFrom::Run(Branch { run: run.into(), step, optimizer });
        let begun = branch("/runs/trunk", Some(30), true);
        for asked in ["/runs/trunk", "/runs/trunk@best", "/runs/trunk@30", "/runs/x/../trunk"] {
            assert!(branch(asked, None, true).names(&begun), "{asked}");
        }
        assert!(begun.names(&begun));
        for other in [
            branch("/runs/trunk", Some(20), true),
            branch("/runs/trunk", Some(30), false),
            branch("/runs/trunk@20", None, true),
            branch("/runs/other", Some(30), true),
            weights("/runs/trunk@30"),
        ] {
            assert!(!other.names(&begun), "{other:?}");
        }
        assert!(weights("/w").names(&weights("/w")) && !weights("/w").names(&weights("/v")));
        assert!(weights("/runs/trunk@latest").names(&weights("/runs/trunk@30")));
        assert!(!weights("/runs/trunk@20").names(&weights("/runs/trunk@30")));
    }
}
