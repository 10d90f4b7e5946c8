//! Steps that stand out: a loss or a gradient norm far above those of the steps before, judged by its z-score.
//!
//! A spike (a bad shard, a run about to diverge) is found before its update is applied. The window is part of the
//! run's state, so a resumed run judges as the uninterrupted one would, and holds numbers of applied updates only: a
//! value that is not finite or that was skipped would make the next outlier look normal.

use crate::recipe::{WatchdogAction, WatchdogConfig};
use crate::wording::count;
use std::collections::VecDeque;

/// A spread below this fraction of the mean counts as that fraction: numbers that hardly vary vary by rounding.
const MIN_SPREAD: f64 = 1e-6;

/// What the watchdog remembers; part of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Window {
    /// Losses of the newest applied updates, oldest first, in nats per token.
    pub losses: VecDeque<f64>,
    /// Their gradient norms before clipping.
    pub grad_norms: VecDeque<f64>,
    /// Steps that were skipped since the last applied update.
    pub skipped: u64,
}

/// Judges steps by the ones before.
#[derive(Debug, Clone, PartialEq)]
pub struct Watchdog {
    config: WatchdogConfig,
    window: Window,
}

/// What to do about a step that stands out.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Leave its update out.
    Skip(String),
    /// End the run.
    Stop(String),
}

impl Watchdog {
    /// A watchdog that remembers what a checkpoint says; of a longer window, the newest values.
    pub fn new(config: WatchdogConfig, mut window: Window) -> Self {
        if !config.is_on() {
            window = Window::default();
        }
        for values in [&mut window.losses, &mut window.grad_norms] {
            values.drain(..values.len().saturating_sub(config.window));
        }
        Self { config, window }
    }

    /// What has to be kept for a resumed run; empty if nothing is watched.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Whether losses are watched.
    pub fn watches_loss(&self) -> bool {
        self.config.max_loss_zscore > 0.0
    }

    /// Whether gradient norms are watched.
    pub fn watches_grad_norm(&self) -> bool {
        self.config.max_grad_zscore > 0.0
    }

    /// Judges a step before its update by its loss and gradient norm, `None` where one is not watched. Takes nothing
    /// in.
    ///
    /// Numbers that are not finite are not its business: the engine does not apply them.
    pub fn judge(&mut self, loss: Option<f64>, grad_norm: Option<f64>) -> Option<Verdict> {
        let Self { config, window } = self;
        let outlier = [
            ("loss", loss, &window.losses, config.max_loss_zscore),
            ("gradient norm", grad_norm, &window.grad_norms, config.max_grad_zscore),
        ]
        .into_iter()
        .find_map(|(what, value, values, most)| {
            let value = value.filter(|value| value.is_finite())?;
            let (mean, z) = zscore(values, value).filter(|_| values.len() >= config.window)?;
            (z > most).then(|| {
                let steps = count(values.len(), "step");
                format!(
                    "the {what} {value:.4} is {z:.1} standard deviations above {mean:.4}, the mean of {steps}"
                )
            })
        })?;
        if config.action == WatchdogAction::Stop {
            return Some(Verdict::Stop(outlier));
        }
        window.skipped += 1;
        // what does not come back to normal is no outlier, and no update would ever be applied again
        if window.skipped > config.window as u64 {
            let times = window.skipped - 1;
            let before = match times {
                1 => "so was the step before, which was skipped".to_owned(),
                _ => format!("so were the {times} steps before, all skipped"),
            };
            return Some(Verdict::Stop(format!("{outlier}; {before}")));
        }
        Some(Verdict::Skip(outlier))
    }

    /// Takes in a step whose update was applied.
    pub fn take(&mut self, loss: f64, grad_norm: f64) {
        if !self.config.is_on() {
            return;
        }
        self.window.skipped = 0;
        for (values, value) in [(&mut self.window.losses, loss), (&mut self.window.grad_norms, grad_norm)] {
            if value.is_finite() {
                values.push_back(value);
                values.drain(..values.len().saturating_sub(self.config.window));
            }
        }
    }
}

/// Mean of the values, and how many (population) standard deviations `value` lies above it; `None` without values.
fn zscore(values: &VecDeque<f64>, value: f64) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let spread = (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n).sqrt();
    let spread = spread.max(MIN_SPREAD * mean.abs()).max(f64::MIN_POSITIVE);
    Some((mean, (value - mean) / spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(action: WatchdogAction) -> WatchdogConfig {
        WatchdogConfig { max_loss_zscore: 3.0, max_grad_zscore: 5.0, window: 4, action }
    }

    fn settled(action: WatchdogAction) -> Watchdog {
        let mut dog = Watchdog::new(config(action), Window::default());
        [1.0, 3.0, 1.0, 3.0].into_iter().for_each(|value| dog.take(value, 10.0 * value));
        dog
    }

    #[test]
    fn a_rise_above_the_limit_is_an_outlier_and_a_fall_is_not() {
        // mean 2, spread 1; of the norm mean 20, spread 10
        let mut dog = settled(WatchdogAction::Skip);
        for good in [(5.0, 70.0), (-100.0, 0.0), (2.0, -1e9), (f64::NAN, f64::INFINITY)] {
            assert_eq!(dog.judge(Some(good.0), Some(good.1)), None, "{good:?}");
        }
        let Some(Verdict::Skip(what)) = dog.judge(Some(5.01), None) else { panic!("an outlier") };
        assert!(what.contains("the loss 5.0100 is 3.0 standard deviations above 2.0000"), "{what}");
        let Some(Verdict::Skip(what)) = dog.judge(Some(2.0), Some(71.0)) else { panic!("an outlier") };
        assert!(what.contains("gradient norm 71.0000 is 5.1"), "{what}");
        assert!(matches!(settled(WatchdogAction::Stop).judge(Some(6.0), None), Some(Verdict::Stop(_))));
    }

    #[test]
    fn nothing_is_judged_before_the_window_is_full() {
        let mut dog = Watchdog::new(config(WatchdogAction::Skip), Window::default());
        for n in 0..4 {
            assert_eq!(dog.judge(Some(1e9), Some(1e9)), None, "after {n} steps");
            dog.take(1.0, 1.0);
        }
        assert!(dog.judge(Some(1e9), None).is_some());
    }

    #[test]
    fn the_window_takes_in_applied_finite_values_only_and_forgets_the_oldest() {
        let mut dog = settled(WatchdogAction::Skip);
        let before = dog.window().losses.clone();
        dog.judge(Some(100.0), None);
        assert_eq!(dog.window().losses, before);
        dog.take(f64::NAN, f64::INFINITY);
        assert_eq!(dog.window().losses, before);
        dog.take(2.0, 2.0);
        assert_eq!(dog.window().losses, [3.0, 1.0, 3.0, 2.0]);
        assert_eq!(dog.window().grad_norms, [30.0, 10.0, 30.0, 2.0]);
    }

    #[test]
    fn a_level_that_stays_high_ends_the_run_instead_of_skipping_for_ever() {
        let mut dog = settled(WatchdogAction::Skip);
        for _ in 0..4 {
            assert!(matches!(dog.judge(Some(50.0), None), Some(Verdict::Skip(_))));
        }
        let Some(Verdict::Stop(what)) = dog.judge(Some(50.0), None) else { panic!("enough") };
        assert!(what.contains("the 4 steps before"), "{what}");
        let mut dog = settled(WatchdogAction::Skip);
        for _ in 0..20 {
            assert!(matches!(dog.judge(Some(50.0), None), Some(Verdict::Skip(_))));
            dog.take(2.0, 20.0);
        }
    }

    #[test]
    fn equal_numbers_differ_by_rounding_only() {
        let mut dog = Watchdog::new(config(WatchdogAction::Skip), Window::default());
        (0..4).for_each(|_| dog.take(2.0, 0.0));
        assert_eq!(dog.judge(Some(2.0 + 1e-9), Some(0.0)), None);
        assert!(dog.judge(Some(2.1), None).is_some());
    }

    #[test]
    fn a_restored_window_keeps_its_newest_values_and_one_that_is_off_none() {
        let window = Window { losses: (0..9).map(f64::from).collect(), ..Window::default() };
        let dog = Watchdog::new(config(WatchdogAction::Skip), window.clone());
        assert_eq!(dog.window().losses, [5.0, 6.0, 7.0, 8.0]);
        let off =
            WatchdogConfig { max_loss_zscore: 0.0, max_grad_zscore: 0.0, ..config(WatchdogAction::Skip) };
        let mut dog = Watchdog::new(off, window);
        dog.take(1.0, 1.0);
        assert_eq!(dog.judge(Some(1e9), Some(1e9)), None);
        assert_eq!(dog.window(), &Window::default());
    }
}
