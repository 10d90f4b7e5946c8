//! The codes of the plan's lints: here, because a recipe names those that it does not want to hear.

use serde::{Deserialize, Serialize};

macro_rules! lints {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)+) => {
        /// A remark that a plan may give rise to; see `plan::lints`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum LintCode {
            $($(#[doc = $doc])+ #[serde(rename = $code)] $name,)+
        }

        impl LintCode {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// As written in a recipe, e.g. `ugly-vocab`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),+ }
            }
        }

        /// The codes as words.
        pub(super) const CODES: &[&str] = &[$($code),+];
    };
}

lints! {
    /// Rows of the embedding that matrix units do not like.
    UglyVocab = "ugly-vocab";
    /// A width that matrix units do not like.
    UglyWidth = "ugly-width";
    /// Heads that do not divide among tiles.
    UglyHeads = "ugly-heads";
    /// A batch with few factors of two.
    UglyBatch = "ugly-batch";
    /// A learning rate whose shape does not fit the run.
    ScheduleHorizon = "schedule-horizon";
    /// A learning rate far from what models of this size take.
    UnusualLr = "unusual-lr";
    /// A batch far from what models of this size take.
    UnusualBatch = "unusual-batch";
    /// Validation data that are also trained on.
    ValOverlap = "val-overlap";
    /// Data that are read too often.
    ManyEpochs = "many-epochs";
    /// Less data than one step takes.
    SmallData = "small-data";
    /// A precision that the device does not have.
    EmulatedPrecision = "emulated-precision";
    /// Hardly enough memory.
    TightMemory = "tight-memory";
}
