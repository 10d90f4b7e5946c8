//! The dynamic loss scale that keeps fp16 gradients out of the subnormals (Micikevicius et al., 2018, §3.2).

use crate::recipe::Precision;

const START: f64 = 65536.0;
const GROWTH_INTERVAL: u64 = 2000;
const MAX: f64 = 16_777_216.0;

/// As `torch.amp.GradScaler`: halved when a gradient overflows (and the step is skipped), doubled after 2000 good
/// steps. In other precisions the scale is 1 and never moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaler {
    /// None where the precision needs no scaling.
    dynamic: bool,
    scale: f64,
    good_steps: u64,
}

impl LossScaler {
    /// The scaler at the start of a run.
    pub fn new(precision: Precision) -> Self {
        let dynamic = precision == Precision::Fp16;
        Self { dynamic, scale: if dynamic { START } else { 1.0 }, good_steps: 0 }
    }

    /// A scaler as a checkpoint describes it.
    pub fn restore(precision: Precision, scale: f64, good_steps: u64) -> Self {
        Self { dynamic: precision == Precision::Fp16, scale, good_steps }
    }

    /// The factor on the loss.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Good steps since the scale last changed.
    pub fn good_steps(&self) -> u64 {
        self.good_steps
    }

    /// Takes in whether a step's gradients were finite. False if no smaller scale can help: the run has diverged.
    pub fn update(&mut self, finite: bool) -> bool {
        match (self.dynamic, finite) {
            (false, _) => return finite,
            (true, true) => {
                self.good_steps += 1;
                if self.good_steps == GROWTH_INTERVAL {
                    self.scale = (self.scale * 2.0).min(MAX);
                    self.good_steps = 0;
                }
            }
            (true, false) => {
                // at scale 1 the gradients themselves are not finite
                if self.scale <= 1.0 {
                    return false;
                }
                self.scale *= 0.5;
                self.good_steps = 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_on_overflow_and_doubles_after_two_thousand_good_steps() {
        let mut scaler = LossScaler::new(Precision::Fp16);
        assert!(scaler.update(false));
        assert_eq!(scaler.scale(), 32768.0);
        for _ in 0..1999 {
            assert!(scaler.update(true));
        }
        assert_eq!(scaler.scale(), 32768.0);
        assert!(scaler.update(true));
        assert_eq!((scaler.scale(), scaler.good_steps()), (65536.0, 0));
    }

    #[test]
    fn gives_up_at_one() {
        let mut scaler = LossScaler::new(Precision::Fp16);
        assert_eq!((0..100).take_while(|_| scaler.update(false)).count(), 16);
    }

    #[test]
    fn other_precisions_are_not_scaled() {
        let mut scaler = LossScaler::new(Precision::Bf16);
        assert!(scaler.update(true) && !scaler.update(false));
        assert_eq!(scaler.scale(), 1.0);
    }
}
