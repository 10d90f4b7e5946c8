//! Keys that turn other keys off: a prompt has no effect where no text is generated.

/// A setting that leaves the keys whose rows name it without effect.
#[derive(Debug)]
pub struct Switch {
    /// The keys that must all be off; messages name the first as the cause.
    pub keys: &'static [&'static str],
    /// Whether this value of such a key, as TOML, is off; a key without a value has an empty one.
    pub is_off: fn(&str) -> bool,
    /// The one TOML value of a silenced key that has no effect; `None` if no value has one.
    pub only: Option<&'static str>,
    /// What setting the first key to `on` does, as an imperative.
    pub remedy: &'static str,
    /// A TOML value that turns the first key on.
    pub on: &'static str,
}

impl Switch {
    /// Whether all of its keys are off, given the TOML value of each key.
    pub(in crate::recipe) fn is_off(&self, value: impl Fn(&'static str) -> String) -> bool {
        self.keys.iter().all(|key| (self.is_off)(&value(key)))
    }

    /// Whether a switch that is off leaves this TOML value of a key that names it without effect.
    pub(in crate::recipe) fn silences(&self, value: &str) -> bool {
        self.only.is_none_or(|only| only == value)
    }
}

/// Without validation data nothing is evaluated.
pub(super) static VALIDATION: Switch = Switch {
    keys: &["data.val", "data.val_fraction"],
    is_off: |value| value == "[]" || value.is_empty(),
    only: None,
    remedy: "name validation data",
    on: "\"builtin:lipsum:seed=2\"",
};

/// No text is generated.
pub(super) static SAMPLES: Switch = Switch {
    keys: &["sample.every"],
    is_off: |value| value == "0",
    only: None,
    remedy: "have text generated",
    on: "250",
};

/// One rank has no other to share work with or to wait for.
pub(super) static RANKS: Switch = Switch {
    keys: &["batch.world_size"],
    is_off: |value| value == "1",
    only: None,
    remedy: "train on several ranks",
    on: "2",
};

/// A batch that does not grow.
pub(super) static RAMP: Switch = Switch {
    keys: &["batch.ramp_start"],
    is_off: |value| value == "0",
    only: None,
    remedy: "have the batch grow",
    on: "32768",
};

/// No step is judged.
pub(super) static WATCHDOG: Switch = Switch {
    keys: &["watchdog.max_loss_zscore", "watchdog.max_grad_zscore"],
    is_off: |value| value.parse() == Ok(0.0),
    only: None,
    remedy: "have something watched",
    on: "6",
};

/// AdamW has no use for Muon's numbers.
pub(super) static MUON: Switch = Switch {
    keys: &["optimizer.kind"],
    is_off: |value| value == "\"adamw\"",
    only: None,
    remedy: "train the matrices of the blocks with Muon",
    on: "\"muon\"",
};

/// CUDA devices have no threads to count.
pub(super) static CPU: Switch = Switch {
    keys: &["compute.device"],
    is_off: |value| value.starts_with("\"cuda"),
    only: None,
    remedy: "train on the CPU",
    on: "\"cpu\"",
};

/// The reference engine always materializes the attention matrix.
pub(super) static FUSED: Switch = Switch {
    keys: &["compute.engine"],
    is_off: |value| value == "\"dfdx\"",
    only: Some("\"flash\""),
    remedy: "write \"naive\", since the dfdx engine always materializes the attention matrix, or take the other engine",
    on: "\"fused\"",
};

/// The reference engine keeps everything on its tape, whatever a recipe would have computed again.
pub(super) static TAPE: Switch = Switch {
    keys: &["compute.engine"],
    is_off: |value| value == "\"dfdx\"",
    only: None,
    remedy: "take the engine that can compute activations again",
    on: "\"fused\"",
};
