//! Sums over the answers of a task, and the scores that follow from them.

use super::score::{Answer, Scored};
use super::{Definition, Kind, Task};

/// Sums over answers, which ranks may add up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Examples.
    pub examples: u64,
    /// Examples of which the right ending has the lowest sum, or whose last word is what a greedy choice gives.
    pub right: u64,
    /// Examples of which the right ending has the lowest normalized sum.
    pub right_norm: u64,
    /// Endings whose loss is no finite number; they are never chosen.
    pub not_finite: u64,
    /// The sum over the examples of the right ending's loss, in nats.
    pub loss: f64,
    /// Tokens that were read.
    pub tokens: u64,
    /// Tokens that were computed, with those that fill up rows.
    pub computed: u64,
}

/// A number that stands for a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The name: that of the task, and what is measured.
    pub name: String,
    /// The number; an accuracy is from 0 to 1.
    pub value: f64,
    /// Its standard error, of an accuracy.
    pub standard_error: Option<f64>,
    /// What it is, as a phrase.
    pub definition: &'static str,
}

/// The first of the lowest numbers.
fn lowest(numbers: impl Iterator<Item = f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (place, number) in numbers.enumerate() {
        if number.is_finite() && best.is_none_or(|(_, lowest)| number < lowest) {
            best = Some((place, number));
        }
    }
    best.map(|(place, _)| place)
}

impl Tally {
    /// The sums over these answers to a task.
    #[must_use]
    pub fn of(task: &Task, scored: &Scored) -> Self {
        let mut tally = Self { tokens: scored.tokens, computed: scored.computed, ..Self::default() };
        for answer in &scored.answers {
            tally.take(task, answer);
        }
        tally
    }

    fn take(&mut self, task: &Task, answer: &Answer) {
        let example = &task.examples[answer.example];
        self.examples += 1;
        self.not_finite += answer.sums.iter().filter(|sum| !sum.is_finite()).count() as u64;
        self.loss += answer.sums[example.label];
        let divisors = example.candidates.iter().map(|candidate| match task.definition {
            Definition::PerToken => candidate.scored(),
            Definition::LmEval => candidate.characters().max(1),
        });
        let sums = || answer.sums.iter().copied();
        let normalized = sums().zip(divisors).map(|(sum, divisor)| sum / divisor as f64);
        self.right += u64::from(match task.kind {
            Kind::Choice => lowest(sums()) == Some(example.label),
            Kind::LastWord => answer.is_greedy && answer.sums[0].is_finite(),
        });
        self.right_norm += u64::from(lowest(normalized) == Some(example.label));
    }

    /// Adds the sums over other answers.
    pub fn add(&mut self, other: &Self) {
        self.examples += other.examples;
        self.right += other.right;
        self.right_norm += other.right_norm;
        self.not_finite += other.not_finite;
        self.loss += other.loss;
        self.tokens += other.tokens;
        self.computed += other.computed;
    }

    /// As bytes, for ranks that tell each other.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { examples, right, right_norm, not_finite, loss, tokens, computed } = *self;
        let words = [examples, right, right_norm, not_finite, loss.to_bits(), tokens, computed];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// What [`to_bytes`](Self::to_bytes) wrote; `None` for other bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [examples, right, right_norm, not_finite, loss, tokens, computed] = words.try_into().ok()?;
        Some(Self { examples, right, right_norm, not_finite, loss: f64::from_bits(loss), tokens, computed })
    }

    /// The scores of a task from the sums over all of its answers.
    #[must_use]
    pub fn scores(&self, task: &Task) -> Vec<Score> {
        let accuracy = |end: &str, right: u64, definition| {
            let (n, p) = (self.examples as f64, right as f64 / self.examples as f64);
            // of a mean of zeros and ones, with the deviation of a sample
            let standard_error = (self.examples > 1).then(|| (p * (1.0 - p) / (n - 1.0)).sqrt());
            Score { name: format!("{}_{end}", task.prefix()), value: p, standard_error, definition }
        };
        match (task.kind, task.definition) {
            (Kind::Choice, Definition::PerToken) => vec![
                accuracy(
                    "acc",
                    self.right,
                    "lowest sum of losses over the ending's tokens (llm.c, build-nanogpt)",
                ),
                accuracy(
                    "acc_norm",
                    self.right_norm,
                    "lowest mean loss per token of the ending (llm.c, build-nanogpt)",
                ),
            ],
            (Kind::Choice, Definition::LmEval) => vec![
                accuracy(
                    "acc",
                    self.right,
                    "lowest sum of losses over the ending's text, as lm-evaluation-harness takes it",
                ),
                accuracy(
                    "acc_norm",
                    self.right_norm,
                    "lowest loss per character of the ending's text, as lm-evaluation-harness takes it",
                ),
            ],
            (Kind::LastWord, _) => vec![
                accuracy("acc", self.right, "greedy choice gives every token of the last word"),
                Score {
                    name: format!("{}_perplexity", task.name),
                    value: libm::exp(self.loss / self.examples as f64),
                    standard_error: None,
                    definition: "exp of the mean loss of a last word",
                },
            ],
        }
    }
}
