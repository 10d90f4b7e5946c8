//! The time that a run has left, from the pace of its latest steps.
//!
//! Steps of a batch that grows take longer and longer, so the pace is that of tokens where their number is known.

/// Steps whose pace is that of the rest.
pub const RECENT: usize = 50;

/// How far a run has come with a step.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The step, counted from 0.
    step: f64,
    /// Tokens up to its end.
    tokens: f64,
    /// Seconds up to its end.
    elapsed_s: f64,
}

impl Place {
    /// After a step, counted from 0, with the tokens and the seconds up to its end.
    #[must_use]
    pub fn new(step: f64, tokens: f64, elapsed_s: f64) -> Self {
        Self { step, tokens, elapsed_s }
    }
}

/// The length of a run.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// Its steps.
    pub steps: f64,
    /// Its tokens, if they are known.
    pub tokens: Option<f64>,
}

impl Way {
    /// Seconds from the last of these places to the end at the pace between them; `None` where they tell none.
    #[must_use]
    pub fn seconds(self, first: Place, last: Place) -> Option<f64> {
        // a log may lack the column
        let tokens = self.tokens.filter(|_| (last.tokens - first.tokens).is_finite());
        let (done, left) = match tokens {
            Some(tokens) => (last.tokens - first.tokens, tokens - last.tokens),
            None => (last.step - first.step, self.steps - last.step - 1.0),
        };
        let seconds = (last.elapsed_s - first.elapsed_s) / done * left;
        Some(seconds).filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_steps_to_come_take_longer() {
        let place = Place::new;
        // steps of 10 tokens in a second each, then 6 of 40 tokens
        let (first, last) = (place(0.0, 10.0, 1.0), place(3.0, 40.0, 4.0));
        let way = Way { steps: 10.0, tokens: Some(280.0) };
        assert_eq!(way.seconds(first, last), Some(24.0));
        assert_eq!(Way { tokens: None, ..way }.seconds(first, last), Some(6.0));
        // at the end, with one step, and by steps where the log lacks tokens
        assert_eq!(way.seconds(first, place(9.0, 280.0, 28.0)), Some(0.0));
        assert_eq!(way.seconds(first, first), None);
        assert_eq!(way.seconds(place(0.0, f64::NAN, 1.0), last), Some(6.0));
    }
}
