//! The rows of the keys that only Muon reads; `training.rs` lists them in their place.

use super::Fallback::Is;
use super::Interval::{BelowOne, NonNegative, Positive};
use super::Kind::{Choice, Flag, Integer, Number};
use super::switch::MUON;
use super::{Fallback, Identity, Key, Kind};

const fn key(path: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Key {
    Key::new(path, kind, default, doc).silenced_by(&MUON).identity(Identity::While(&MUON))
}

pub(super) const LR: Key = key(
    "optimizer.muon_lr",
    Number(Positive),
    Is("1e-3"),
    "Muon's peak learning rate, which follows the schedule of optimizer.lr",
)
.example("2e-2");

pub(super) const MOMENTUM: Key = key(
    "optimizer.muon_momentum",
    Number(BelowOne),
    Is("0.95"),
    "decay rate of Muon's running mean of gradients",
)
.example("0.9");

pub(super) const NESTEROV: Key = key(
    "optimizer.muon_nesterov",
    Flag,
    Is("true"),
    "orthogonalize the gradient moved towards its running mean, not the mean itself",
)
.example("false");

pub(super) const NS_STEPS: Key = key(
    "optimizer.muon_ns_steps",
    Integer { min: 1, max: 99 },
    Is("5"),
    "steps of Newton and Schulz's iteration, which makes a matrix nearly orthogonal",
)
.example("6");

pub(super) const NS_PRECISION: Key = key(
    "optimizer.muon_ns_precision",
    Choice(&["bf16", "fp32"]),
    Is("\"bf16\""),
    "what that iteration rounds its matrices to; bf16 is what torch.optim.Muon does",
)
.example("\"fp32\"");

pub(super) const WEIGHT_DECAY: Key = key(
    "optimizer.muon_weight_decay",
    Number(NonNegative),
    Is("0.1"),
    "decay of the matrices that Muon updates",
)
.example("0.0");

pub(super) const ADJUST: Key = key(
    "optimizer.muon_adjust",
    Choice(&["match_rms_adamw", "original"]),
    Is("\"match_rms_adamw\""),
    "the factor on Muon's learning rate by a matrix's shape: 0.2·√max(out, in), or √max(1, out/in)",
)
.example("\"original\"");
