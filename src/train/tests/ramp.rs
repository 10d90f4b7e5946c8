//! A batch that grows: which rows the ranks take in which step, wherever the run is interrupted.

use super::*;
use crate::comm::Threads;
use crate::recipe::{BatchConfig, MicroBatch, ScheduleConfig};
use proptest::prelude::*;

/// A schedule of so many steps that says nothing else.
pub(in crate::train) fn schedule(kind: ScheduleKind, max_steps: u64) -> ScheduleConfig {
    ScheduleConfig {
        kind,
        max_steps: Some(max_steps),
        max_tokens: None,
        warmup_steps: None,
        warmup_tokens: None,
        min_lr_ratio: None,
        decay_steps: None,
        decay_tokens: None,
        stop_at_val_loss: None,
    }
}

/// Trains from a step to the last, or until a stop; the rows of each rank, their reports, and the step reached.
fn rows_of(
    config: &TrainConfig,
    ranks: usize,
    from: u64,
    stop_after: Option<usize>,
) -> (Vec<Vec<u32>>, Vec<StepReport>, u64) {
    let one = |comm: &dyn Comm| {
        let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp16));
        (progress.step, progress.updates) = (from, from);
        let mut events = Recorder { stop_after_micro_steps: stop_after, ..Recorder::default() };
        train(comm, &mut engine, &Numbered, &Evaluations::default(), config, &mut progress, &mut events)
            .expect("nothing fails");
        (engine.rows, events.reports, progress.step)
    };
    let ranks = Threads::group(ranks, Duration::from_secs(60));
    let mut ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || one(&comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let (_, reports, step) = ends[0].clone();
    (ends.drain(..).map(|(rows, ..)| rows).collect(), reports, step)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The engine holds that the weights of each step add up to one; see [`Counting`].
    #[test]
    fn every_row_comes_once_and_in_its_step(
        (first, increments, ramp_tokens) in (1..4_usize, 1..5_usize, 1..400_u64),
        (ranks, passes, cut) in (1..4_usize, 1..3_usize, 1..40_usize),
    ) {
        // twelve rows divide among all of these ranks and micro-batches
        let (start, micro_batch) = (12 * first, 12 / (ranks * passes));
        let batch = BatchConfig {
            total_tokens: 2 * (start + 12 * increments),
            micro_batch: MicroBatch::Auto,
            world_size: ranks,
            ramp_start: 2 * start,
            ramp_tokens: Some(ramp_tokens),
            ramp_increment: Some(24),
        };
        let sizes = StepSizes::new(&batch, 2);
        let rule = ScheduleConfig {
            warmup_tokens: Some(100),
            min_lr_ratio: Some(0.1),
            decay_tokens: Some(500),
            ..schedule(ScheduleKind::Cosine, 9)
        };
        let config = TrainConfig {
            max_steps: 9,
            schedule: Schedule::new(&rule, 0.1, &sizes),
            sizes: sizes.clone(),
            micro_batch,
            eval_every: 0,
            sample_every: 0,
            ..config()
        };
        let (whole, reports, step) = rows_of(&config, ranks, 0, None);
        prop_assert_eq!(step, 9);
        // each rank's share of each step
        for (rank, taken) in whole.iter().enumerate() {
            let expected: Vec<u32> = (0..9)
                .flat_map(|step| {
                    let share = sizes.rows(step) / ranks as u64;
                    let begin = sizes.rows_before(step) + rank as u64 * share;
                    (begin..begin + share).map(|row| row as u32)
                })
                .collect();
            prop_assert_eq!(taken, &expected);
        }
        // a run that is stopped goes on, with other ranks as well, and takes what is left
        let (before, _, reached) = rows_of(&config, ranks, 0, Some(cut));
        let alone = TrainConfig { micro_batch: 6, ..config };
        let (after, rest, _) = rows_of(&alone, 1, reached, None);
        let all: Vec<u32> = (sizes.rows_before(reached)..sizes.rows_before(9)).map(|row| row as u32).collect();
        prop_assert_eq!(&after[0], &all);
        prop_assert!(before[0].len() <= whole[0].len());
        let rates = |reports: &[StepReport]| -> Vec<(u64, u64)> {
            reports.iter().map(|report| (report.step, report.lr.to_bits())).collect()
        };
        prop_assert_eq!(rates(&rest), rates(&reports[reached as usize..]));
    }
}
