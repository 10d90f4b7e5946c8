//! The codes of the plan's lints. They live here because `lints.allow` names the ones to silence.

use serde::{Deserialize, Serialize};

macro_rules! lints {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)+) => {
        /// A remark about a plan; see `plan::lints`.
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
    /// The number of embedding rows does not suit matrix units.
    UglyVocab = "ugly-vocab";
    /// The width does not suit matrix units.
    UglyWidth = "ugly-width";
    /// The size of a head does not divide into tiles.
    UglyHeads = "ugly-heads";
    /// A batch with few factors of two.
    UglyBatch = "ugly-batch";
    /// The shape of the learning rate does not fit the length of the run.
    ScheduleHorizon = "schedule-horizon";
    /// The learning rate is far from those of published models of this size.
    UnusualLr = "unusual-lr";
    /// The batch is far from those of published models of this size.
    UnusualBatch = "unusual-batch";
    /// A weight decay was chosen, and nothing decays by it.
    UnusedDecay = "unused-decay";
    /// Some validation data are training data as well.
    ValOverlap = "val-overlap";
    /// The run reads the data many times.
    ManyEpochs = "many-epochs";
    /// The data are fewer than one step reads.
    SmallData = "small-data";
    /// Many tokens of the data are in no row, because files are short.
    UnreadTokens = "unread-tokens";
    /// The contents of a file are among the data more than once.
    RepeatedData = "repeated-data";
    /// Files of the data have holes, which are read as zeros.
    UnwrittenData = "unwritten-data";
    /// The data use a small part of the model's vocabulary.
    UnusedVocab = "unused-vocab";
    /// The file of a task is not there, and the run trains without it.
    MissingTask = "missing-task";
    /// Examples of a task are longer than the model's context.
    CutTask = "cut-task";
    /// The part of the training data that is validated on is smaller than a batch.
    SmallVal = "small-val";
    /// The device emulates the precision.
    EmulatedPrecision = "emulated-precision";
    /// The run needs nearly all free memory.
    TightMemory = "tight-memory";
    /// The run takes more than a month.
    LongRun = "long-run";
}
