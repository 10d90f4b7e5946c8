//! What a run promises holds of its options together: a batch that grows, Muon, dropout and what is computed again.

use crate::support;

use proptest::prelude::*;
use support::{Lab, column, essence, results, rows};

/// The options of a run that are part of its result.
#[derive(Debug, Clone)]
struct Options {
    muon: bool,
    ramp: bool,
    dropout: bool,
    precision: &'static str,
    attention: &'static str,
    recompute: &'static str,
}

/// The step before which a run is killed: under a ramp, in its second stage.
const KILLED_BEFORE: u32 = 6;

fn options() -> impl Strategy<Value = Options> {
    let precision = prop::sample::select(vec!["fp32", "bf16", "fp16"]);
    let attention = prop::sample::select(vec!["flash", "naive"]);
    let recompute = prop::sample::select(vec!["mlp", "block"]);
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.8));
    (flags, precision, attention, recompute).prop_map(
        |((muon, ramp, dropout), precision, attention, recompute)| Options {
            muon,
            ramp,
            dropout,
            precision,
            attention,
            recompute,
        },
    )
}

impl Options {
    /// As `--set` takes them. Rows are 32 tokens; without a ramp a step has 6 of them, with one 2, 4 and then 6.
    fn sets(&self) -> Vec<String> {
        let mut sets = vec![
            format!("compute.precision={}", self.precision),
            format!("compute.attention={}", self.attention),
            "batch.total_tokens=192".to_owned(),
            "batch.micro_batch=1".to_owned(),
            "checkpoint.keep=0".to_owned(),
        ];
        if self.muon {
            // what rounds to bf16 enlarges differences in the last digit
            let muon = ["kind=muon", "lr=3e-3", "muon_lr=1e-2", "muon_ns_precision=fp32"];
            sets.extend(muon.map(|set| format!("optimizer.{set}")));
        }
        if self.dropout {
            sets.push("model.dropout=0.2".to_owned());
        }
        if self.ramp {
            let ramp = ["batch.ramp_start=64", "batch.ramp_tokens=768", "schedule.warmup_tokens=128"];
            sets.extend(ramp.map(str::to_owned));
        }
        sets
    }
}

/// The settings with some more, as the lab takes them.
fn train(lab: &Lab, runs: &str, sets: &[String], more: &[&str]) -> std::path::PathBuf {
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(more.iter().copied()).collect();
    lab.train_in(runs, &sets)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn threads_kills_and_computing_again_change_no_bit_and_ranks_only_the_last(options in options()) {
        let lab = Lab::new();
        let sets = options.sets();
        let whole = train(&lab, "whole", &sets, &["compute.threads=1"]);
        let found = results(&whole);
        prop_assert_eq!(rows(&whole), 12);
        let again = format!("compute.recompute={}", options.recompute);
        prop_assert!(results(&train(&lab, "again", &sets, &["compute.threads=3", &again])) == found, "{:?}", options);

        let killed: Vec<&str> = sets.iter().map(String::as_str).chain(["compute.threads=1"]).collect();
        let crashed = lab.crash("killed", &killed, &format!("csv.before_row:{KILLED_BEFORE}"));
        prop_assert_eq!(&lab.train_in("killed", &killed), &crashed);
        prop_assert!(essence(&crashed) == essence(&whole), "{:?}", options);

        let losses = column(&whole, "loss");
        let bound = if options.precision == "fp32" { 1e-4 } else { 2e-2 };
        for more in [
            &["batch.world_size=2", "distributed.shard_optimizer=true"][..],
            &["batch.world_size=2", &again],
            &["batch.micro_batch=2"],
        ] {
            let of_ranks = column(&train(&lab, "ranks", &sets, more), "loss");
            for (step, (a, b)) in of_ranks.iter().zip(&losses).enumerate() {
                prop_assert!((a - b).abs() <= bound * b, "{:?} {:?}: step {}: {} and {}", options, more, step, a, b);
            }
        }
    }
}

#[test]
fn three_ranks_leave_out_what_one_does() {
    let lab = Lab::new();
    let all = Options {
        muon: true,
        ramp: false,
        dropout: true,
        precision: "fp32",
        attention: "flash",
        recompute: "block",
    };
    let alone = column(&train(&lab, "alone", &all.sets(), &[]), "loss");
    let three = column(&train(&lab, "three", &all.sets(), &["batch.world_size=3"]), "loss");
    let without = column(&train(&lab, "without", &all.sets(), &["model.dropout=0"]), "loss");
    for (alone, three) in alone.iter().zip(&three) {
        assert!((alone - three).abs() <= 1e-4 * alone, "{alone} and {three}");
    }
    // the first steps are those of small weights, which change little when some of them are left out
    assert!((alone[11] - without[11]).abs() > 3e-4 * alone[11], "{alone:?} and {without:?}");
}
