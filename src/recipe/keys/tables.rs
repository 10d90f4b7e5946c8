//! The tables that hold the keys.

/// A table of the recipe language.
#[derive(Debug)]
pub struct Table {
    /// As in its header.
    pub name: &'static str,
    /// What its keys are about, without a full stop.
    pub doc: &'static str,
    /// What a run takes longer for under other values of its keys, where those may change on resume.
    pub slows: Slows,
    /// Whether its keys decide what memory a step needs.
    pub decides_memory: bool,
}

/// What settings of a run make slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slows {
    /// Nothing.
    Nothing,
    /// The run, besides its steps.
    Run,
    /// Each step.
    Steps,
}

/// The tables that hold the keys, in the order in which messages list them.
pub const TABLES: &[Table] = &[
    Table::new("model", "the network: a GPT-2").decides_memory(),
    Table::new("compute", "where and how it is computed").decides_memory().slows(Slows::Steps),
    Table::new("data", "what it is trained and validated on"),
    Table::new("batch", "how much data one optimizer step reads").decides_memory().slows(Slows::Steps),
    Table::new("distributed", "how the ranks of one run work together").decides_memory(),
    Table::new("optimizer", "AdamW, Muon and gradient clipping"),
    Table::new("schedule", "the learning rate over the steps"),
    Table::new("eval", "validation during training").slows(Slows::Run),
    // it is written while the next steps are taken
    Table::new("checkpoint", "what is saved, and how often").slows(Slows::Steps),
    Table::new("watchdog", "steps whose loss or gradient norm stands out"),
    Table::new("sample", "text generated during training").slows(Slows::Run),
    Table::new("log", "logs for other programs"),
    Table::new("lints", "remarks about the plan"),
];

impl Table {
    const fn new(name: &'static str, doc: &'static str) -> Self {
        Self { name, doc, slows: Slows::Nothing, decides_memory: false }
    }

    const fn decides_memory(self) -> Self {
        Self { decides_memory: true, ..self }
    }

    const fn slows(self, slows: Slows) -> Self {
        Self { slows, ..self }
    }
}

/// The table with this name.
#[must_use]
pub fn find_table(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name)
}

/// The names of the tables, for messages.
pub(in crate::recipe) fn table_names() -> String {
    TABLES.iter().map(|table| table.name).collect::<Vec<_>>().join(", ")
}
