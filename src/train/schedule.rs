//! The learning rate over the steps.
//!
//! Where all steps are of one size, the rate is a function of the steps. Where the batch grows, it is the same function
//! of the tokens: Brown et al. (2020, appendix B) state GPT-3's warm-up and decay in tokens.

use crate::recipe::{Lengths, ScheduleConfig, ScheduleKind, StepSizes};

/// A resolved schedule.
#[derive(Debug, Clone)]
pub struct Schedule {
    kind: ScheduleKind,
    peak: f64,
    min: f64,
    lengths: Lengths,
    /// The unit of the lengths is a token of these steps; `None` where it is a step.
    sizes: Option<StepSizes>,
}

impl Schedule {
    /// The schedule of a `[schedule]` table with the given peak learning rate, over steps of these sizes.
    pub fn new(config: &ScheduleConfig, lr: f64, sizes: &StepSizes) -> Self {
        Self {
            kind: config.kind,
            peak: lr,
            min: lr * config.min_lr_ratio.unwrap_or(1.0),
            lengths: config.lengths(sizes),
            sizes: (!sizes.is_constant()).then(|| sizes.clone()),
        }
    }

    /// What lies before a step, in the unit of the lengths.
    fn before(&self, step: u64) -> u64 {
        self.sizes.as_ref().map_or(step, |sizes| sizes.tokens_before(step))
    }

    /// Learning rate of a step, counted from 0: linear warm-up to the peak, then the kind's shape down to the minimum,
    /// which is reached at the end of the decay and kept.
    pub fn lr(&self, step: u64) -> f64 {
        let (before, after) = (self.before(step), self.before(step + 1));
        let Lengths { warmup, decay_start, decay_end, .. } = self.lengths;
        if before < warmup {
            // exactly the peak at its end, whatever the division rounds to
            let is_last = after >= warmup;
            return if is_last { self.peak } else { self.peak * after as f64 / warmup as f64 };
        }
        let length = decay_end.saturating_sub(decay_start);
        let through = match length {
            0 => 1.0,
            _ => (before.saturating_sub(decay_start) as f64 / length as f64).min(1.0),
        };
        // the fraction of the way from peak to minimum
        let fallen = match self.kind {
            ScheduleKind::Constant => return self.peak,
            ScheduleKind::Cosine => 0.5 * (1.0 - libm::cos(std::f64::consts::PI * through)),
            ScheduleKind::Linear | ScheduleKind::Wsd => through,
        };
        // minimum and difference need not add up to the peak in floating point
        if fallen == 0.0 { self.peak } else { self.min + (1.0 - fallen) * (self.peak - self.min) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{BatchConfig, MicroBatch};
    use crate::train::tests::ramp::schedule as schedule_of;
    use proptest::prelude::*;

    fn config(kind: ScheduleKind, max_steps: u64) -> ScheduleConfig {
        ScheduleConfig { min_lr_ratio: Some(0.1), ..schedule_of(kind, max_steps) }
    }

    fn equal() -> StepSizes {
        StepSizes::constant(8, 16)
    }

    fn schedule(kind: ScheduleKind) -> Schedule {
        let decay_steps = (kind == ScheduleKind::Wsd).then_some(20);
        let config = ScheduleConfig { warmup_steps: Some(10), decay_steps, ..config(kind, 100) };
        Schedule::new(&config, 1.0, &equal())
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
        let quarter = 0.1 + 0.5 * (1.0 + libm::cos(std::f64::consts::PI * 9.0 / 90.0)) * 0.9;
        close(schedule(ScheduleKind::Cosine).lr(19), quarter);
        close(schedule(ScheduleKind::Linear).lr(55), 0.55);
        close(schedule(ScheduleKind::Linear).lr(19), 0.91);
        close(schedule(ScheduleKind::Wsd).lr(80), 1.0);
        close(schedule(ScheduleKind::Wsd).lr(90), 0.55);
        let constant = ScheduleConfig { min_lr_ratio: None, ..config(ScheduleKind::Constant, 5) };
        assert!([0, 4, 50].iter().all(|&s| Schedule::new(&constant, 0.3, &equal()).lr(s) == 0.3));
    }

    /// The formula of versions up to 0.1, whose first rate after the warm-up could be off by a unit in the last place.
    fn unmended(schedule: &Schedule, step: u64) -> f64 {
        let Lengths { run, warmup, .. } = schedule.lengths;
        if step < warmup {
            return schedule.peak * (step + 1) as f64 / warmup as f64;
        }
        let way = (step - warmup) as f64 / (run - warmup) as f64;
        let fallen = 0.5 * (1.0 - libm::cos(std::f64::consts::PI * way.min(1.0)));
        schedule.min + (1.0 - fallen) * (schedule.peak - schedule.min)
    }

    #[test]
    fn the_peak_is_exact_and_every_other_rate_has_the_bits_that_it_had() {
        let config =
            |warmup| ScheduleConfig { warmup_steps: Some(warmup), ..config(ScheduleKind::Cosine, 19_073) };
        let without = Schedule::new(&config(0), 6e-4, &equal());
        assert_eq!((unmended(&without, 0), without.lr(0)), (0.0005999999999999998, 6e-4));
        for peak in [6e-4, 3e-4, 2.5e-4, 1e-2, 0.7] {
            for warmup in [0, 1, 7, 715] {
                let schedule = Schedule::new(&config(warmup), peak, &equal());
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
        let short = ScheduleConfig { max_steps: Some(5), ..config(5) };
        let short = Schedule::new(&short, 0.3, &equal());
        assert_eq!(short.lr(4), 0.3);
        assert!((short.lr(5) - 0.03).abs() < 1e-12);
        let wsd = ScheduleConfig { kind: ScheduleKind::Wsd, decay_steps: Some(100), ..config(10) };
        assert!((9..18_973).all(|step| Schedule::new(&wsd, 6e-4, &equal()).lr(step) == 6e-4));
    }

    #[test]
    fn lengths_in_tokens_are_whole_steps_where_all_steps_are_equal() {
        // 128 tokens a step
        for kind in [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd] {
            let steps = ScheduleConfig { warmup_steps: Some(10), decay_steps: Some(20), ..config(kind, 100) };
            let tokens = ScheduleConfig {
                max_steps: None,
                max_tokens: Some(100 * 128 + 127),
                warmup_steps: None,
                warmup_tokens: Some(10 * 128 + 127),
                decay_steps: None,
                decay_tokens: Some(20 * 128 + 127),
                ..config(kind, 1)
            };
            assert_eq!(tokens.steps(&equal()), 100);
            let [steps, tokens] = [steps, tokens].map(|config| Schedule::new(&config, 0.3, &equal()));
            assert!((0..110).all(|step| steps.lr(step).to_bits() == tokens.lr(step).to_bits()));
        }
    }

    #[test]
    fn after_the_decay_the_minimum_is_kept() {
        for kind in [ScheduleKind::Cosine, ScheduleKind::Linear] {
            let config = ScheduleConfig { decay_steps: Some(60), ..config(kind, 100) };
            let [long, short] = [config.clone(), ScheduleConfig { max_steps: Some(60), ..config }]
                .map(|config| Schedule::new(&config, 0.3, &equal()));
            assert!((0..60).all(|step| long.lr(step) == short.lr(step)));
            assert!((60..110).all(|step| long.lr(step) == 0.3 * 0.1));
        }
    }

    #[test]
    fn where_the_batch_grows_the_rate_is_a_function_of_the_tokens() {
        let batch = BatchConfig {
            total_tokens: 64,
            micro_batch: MicroBatch::Auto,
            world_size: 1,
            ramp_start: 16,
            ramp_tokens: Some(480),
            ramp_increment: Some(16),
        };
        let sizes = StepSizes::new(&batch, 16);
        let tokens = |warmup, decay| ScheduleConfig {
            max_steps: None,
            max_tokens: Some(2000),
            warmup_tokens: Some(warmup),
            decay_tokens: Some(decay),
            ..config(ScheduleKind::Linear, 1)
        };
        let schedule = Schedule::new(&tokens(96, 1056), 1.0, &sizes);
        // steps of 16 tokens
        close(schedule.lr(0), 16.0 / 96.0);
        close(schedule.lr(4), 80.0 / 96.0);
        assert_eq!([5, 6].map(|step| schedule.lr(step)), [1.0; 2]);
        for step in 6..60 {
            let way = (sizes.tokens_before(step) - 96) as f64 / 960.0;
            close(schedule.lr(step), 0.1 + 0.9 * (1.0 - way.min(1.0)));
        }
        // a final decay begins so many tokens before the last step ends: 1984 of the 2000 are whole steps
        let wsd = ScheduleConfig { kind: ScheduleKind::Wsd, ..tokens(96, 640) };
        assert_eq!(sizes.tokens_before(wsd.steps(&sizes)), 1984);
        let schedule = Schedule::new(&wsd, 1.0, &sizes);
        let begin = sizes.steps_within(1344);
        assert_eq!((schedule.lr(begin - 1), schedule.lr(begin)), (1.0, 1.0));
        close(schedule.lr(begin + 1), 1.0 - 0.9 * (sizes.tokens_before(begin + 1) - 1344) as f64 / 640.0);
        close(schedule.lr(wsd.steps(&sizes)), 0.1);
        // without a word about it, a fifth
        let wsd = ScheduleConfig { decay_tokens: None, ..wsd };
        assert_eq!(wsd.lengths(&sizes).decay_start, 1984 - 397);
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
            let decay_steps = Some(if kind == ScheduleKind::Wsd { decay } else { warmup + decay });
            let (warmup_steps, min_lr_ratio) = (Some(warmup), Some(ratio));
            let config = ScheduleConfig { warmup_steps, min_lr_ratio, decay_steps, ..config(kind, max_steps) };
            let schedule = Schedule::new(&config, 0.5, &equal());
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
