//! The learning rate over the steps.

use crate::recipe::{ScheduleConfig, ScheduleKind};

/// A resolved schedule.
#[derive(Debug, Clone)]
pub struct Schedule {
    kind: ScheduleKind,
    peak: f64,
    min: f64,
    warmup: u64,
    max_steps: u64,
    decay: u64,
}

impl Schedule {
    /// The schedule of a `[schedule]` table with the given peak learning rate.
    pub fn new(config: &ScheduleConfig, lr: f64) -> Self {
        Self {
            kind: config.kind,
            peak: lr,
            min: lr * config.min_lr_ratio.unwrap_or(1.0),
            warmup: config.warmup_steps.unwrap_or(0),
            max_steps: config.max_steps,
            decay: config.decay_steps.unwrap_or(0),
        }
    }

    /// Learning rate of a step, counted from 0: linear warm-up to the peak, then the kind's shape down to the minimum,
    /// which is reached at `max_steps` and kept.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup {
            // exactly the peak at its end, whatever the division rounds to
            let is_last = step + 1 == self.warmup;
            return if is_last { self.peak } else { self.peak * (step + 1) as f64 / self.warmup as f64 };
        }
        let through = |start: u64| {
            let length = self.max_steps.saturating_sub(start);
            if length == 0 { 1.0 } else { ((step.saturating_sub(start)) as f64 / length as f64).min(1.0) }
        };
        // the fraction of the way from peak to minimum
        let fallen = match self.kind {
            ScheduleKind::Constant => return self.peak,
            ScheduleKind::Cosine => 0.5 * (1.0 - (std::f64::consts::PI * through(self.warmup)).cos()),
            ScheduleKind::Linear => through(self.warmup),
            ScheduleKind::Wsd => through(self.max_steps.saturating_sub(self.decay).max(self.warmup)),
        };
        // minimum and difference need not add up to the peak in floating point
        if fallen == 0.0 { self.peak } else { self.min + (1.0 - fallen) * (self.peak - self.min) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(kind: ScheduleKind) -> Schedule {
        let config = ScheduleConfig {
            kind,
            max_steps: 100,
            warmup_steps: Some(10),
            min_lr_ratio: Some(0.1),
            decay_steps: Some(20),
            stop_at_val_loss: None,
        };
        Schedule::new(&config, 1.0)
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn warm_up_is_linear_and_never_zero() {
        for kind in [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd] {
            close(schedule(kind).lr(0), 0.1);
            close(schedule(kind).lr(4), 0.5);
            close(schedule(kind).lr(9), 1.0);
            close(schedule(kind).lr(10), 1.0);
            close(schedule(kind).lr(100), 0.1);
            close(schedule(kind).lr(1000), 0.1);
        }
    }

    #[test]
    fn shapes() {
        close(schedule(ScheduleKind::Cosine).lr(55), 0.55);
        let quarter = 0.1 + 0.5 * (1.0 + (std::f64::consts::PI * 9.0 / 90.0).cos()) * 0.9;
        close(schedule(ScheduleKind::Cosine).lr(19), quarter);
        close(schedule(ScheduleKind::Linear).lr(55), 0.55);
        close(schedule(ScheduleKind::Linear).lr(19), 0.91);
        close(schedule(ScheduleKind::Wsd).lr(80), 1.0);
        close(schedule(ScheduleKind::Wsd).lr(90), 0.55);
        let constant = ScheduleConfig {
            kind: ScheduleKind::Constant,
            max_steps: 5,
            warmup_steps: None,
            min_lr_ratio: None,
            decay_steps: None,
            stop_at_val_loss: None,
        };
        assert!([0, 4, 50].iter().all(|&s| Schedule::new(&constant, 0.3).lr(s) == 0.3));
    }

    /// The formula of versions up to 0.1, whose first rate after the warm-up could be off by a unit in the last place.
    fn unmended(schedule: &Schedule, step: u64) -> f64 {
        if step < schedule.warmup {
            return schedule.peak * (step + 1) as f64 / schedule.warmup as f64;
        }
        let way = (step - schedule.warmup) as f64 / (schedule.max_steps - schedule.warmup) as f64;
        let fallen = 0.5 * (1.0 - (std::f64::consts::PI * way.min(1.0)).cos());
        schedule.min + (1.0 - fallen) * (schedule.peak - schedule.min)
    }

    #[test]
    fn the_peak_is_exact_and_every_other_rate_has_the_bits_that_it_had() {
        let config = |warmup| ScheduleConfig {
            kind: ScheduleKind::Cosine,
            max_steps: 19_073,
            warmup_steps: Some(warmup),
            min_lr_ratio: Some(0.1),
            decay_steps: None,
            stop_at_val_loss: None,
        };
        let without = Schedule::new(&config(0), 6e-4);
        assert_eq!((unmended(&without, 0), without.lr(0)), (0.0005999999999999998, 6e-4));
        for peak in [6e-4, 3e-4, 2.5e-4, 1e-2, 0.7] {
            for warmup in [0, 1, 7, 715] {
                let schedule = Schedule::new(&config(warmup), peak);
                for step in 0..19_080 {
                    let is_peak = [warmup, warmup + 1].contains(&(step + 1));
                    let expected = if is_peak { peak } else { unmended(&schedule, step) };
                    assert_eq!(
                        schedule.lr(step).to_bits(),
                        expected.to_bits(),
                        "step {step} of {peak}, {warmup}"
                    );
                }
            }
        }
        // a run that ends with its warm-up has nothing to fall over
        let short = ScheduleConfig { max_steps: 5, ..config(5) };
        let short = Schedule::new(&short, 0.3);
        assert_eq!(short.lr(4), 0.3);
        assert!((short.lr(5) - 0.03).abs() < 1e-12);
        let wsd = ScheduleConfig { kind: ScheduleKind::Wsd, decay_steps: Some(100), ..config(10) };
        assert!((9..18_973).all(|step| Schedule::new(&wsd, 6e-4).lr(step) == 6e-4));
    }

    proptest! {
        #[test]
        fn stays_between_minimum_and_peak_and_falls_after_warm_up(
            kind in prop::sample::select(vec![ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd]),
            max_steps in 1u64..500,
            warmup in 0u64..500,
            decay in 0u64..500,
            ratio in 0.0f64..=1.0,
        ) {
            let warmup = warmup.min(max_steps);
            let decay = decay.min(max_steps - warmup);
            let (warmup_steps, min_lr_ratio, decay_steps) = (Some(warmup), Some(ratio), Some(decay));
            let stop_at_val_loss = None;
            let config =
                ScheduleConfig { kind, max_steps, warmup_steps, min_lr_ratio, decay_steps, stop_at_val_loss };
            let schedule = Schedule::new(&config, 0.5);
            for step in 0..max_steps + 10 {
                let lr = schedule.lr(step);
                prop_assert!(lr > 0.0 || ratio == 0.0);
                prop_assert!(lr <= 0.5 + 1e-15);
                if step >= warmup {
                    prop_assert!(lr >= 0.5 * ratio - 1e-15);
                    prop_assert!(schedule.lr(step + 1) <= lr + 1e-15);
                }
            }
        }
    }
}
