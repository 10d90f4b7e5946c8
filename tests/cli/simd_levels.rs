//! `RUNNER_SIMD`: forcing the vector instructions of the kernels.

use crate::support;

use runner::engine::cpu::{Level, best_level};
use serde_json::{Value as Json, json};
use std::fs;
use support::{Lab, column, ended, record, results, tiny};

/// The levels that this machine has, lowest first.
fn levels() -> Vec<Level> {
    let all = [Level::Baseline, Level::Avx2, Level::Avx512];
    all.into_iter().filter(|level| *level <= best_level()).collect()
}

#[test]
fn every_level_trains_and_those_with_fused_multiply_adds_give_the_same_bytes() {
    let lab = Lab::new();
    let trained = levels().into_iter().map(|level| {
        let mut command = lab.command(tiny(level.word(), &["compute.threads=2"]));
        command.env("RUNNER_SIMD", level.word());
        let ended = ended(command);
        ended.expect(0);
        let run = lab.run_of(&ended);
        let record = record(&run);
        assert_eq!(record["simd"], json!(level.word()));
        let how = record["peak"]["how"].as_str().expect("text");
        assert!(how.contains(level.name()), "{how}");
        (level, run)
    });
    let trained: Vec<_> = trained.collect();
    let (_, baseline) = &trained[0];
    for (level, run) in &trained[1..] {
        let (ours, theirs) = (column(run, "loss"), column(baseline, "loss"));
        assert_eq!(ours.len(), 12);
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() <= 1e-5 * b, "{}: {a} is not {b}", level.word());
        }
    }
    for pair in trained[1..].windows(2) {
        assert!(results(&pair[0].1) == results(&pair[1].1), "{:?} differs from {:?}", pair[0].0, pair[1].0);
    }
}

/// A resumed run writes other last digits where the processor has no fused multiply-adds, and says so.
#[test]
fn a_run_that_goes_on_at_another_rounding_says_so() {
    let all = levels();
    for (began, here, differs) in
        all.iter().flat_map(|began| all.iter().map(move |here| (began, here))).map(|(began, here)| {
            (
                began,
                here,
                (*began == Level::Baseline) != (*here == Level::Baseline) && cfg!(target_arch = "x86_64"),
            )
        })
    {
        let lab = Lab::new();
        let command = |level: &Level| {
            let mut command = lab.command(tiny("runs", &[]));
            command.env("RUNNER_SIMD", level.word());
            command
        };
        let mut first = command(began);
        first.env("RUNNER_FAULT", "csv.before_row:7");
        assert_eq!(ended(first).code, None);
        let resumed = ended(command(here));
        let said = format!(
            "warning: the run began on cpu with {} instructions and goes on on cpu with {} instructions, which rounds",
            began.word(),
            here.word()
        );
        assert_eq!(resumed.expect(0).stderr.contains(&said), differs, "{}", resumed.stderr);
    }
}

#[test]
fn a_level_that_is_unknown_or_not_there_is_refused() {
    let lab = Lab::new();
    let said = |word: &str, args: &[&str]| {
        let mut command = lab.command(args);
        command.env("RUNNER_SIMD", word);
        ended(command)
    };
    for args in [&["tiny.toml"][..], &["plan", "tiny.toml"], &["bench", "tiny.toml"], &["doctor"]] {
        let refused = said("sse9", args);
        refused.expect(2).says(&["RUNNER_SIMD=sse9: no such vector level; this processor has", "baseline"]);
    }
    assert_eq!(lab.runs("runs"), [""; 0]);
    if best_level() < Level::Avx512 {
        said("avx512", &["doctor"]).expect(2).says(&["this processor has no AVX-512; it has"]);
    }
    said("", &["doctor"]).expect(0);
}

#[test]
fn doctor_says_what_is_forced_and_measurements_are_kept_apart() {
    let lab = Lab::new();
    let run = |word: Option<&str>, args: &[&str]| {
        let mut command = lab.command(args);
        command.env("XDG_CACHE_HOME", lab.path("cache"));
        if let Some(word) = word {
            command.env("RUNNER_SIMD", word);
        }
        ended(command).expect(0).stdout.clone()
    };
    let report: Json =
        serde_json::from_str(&run(Some("baseline"), &["doctor", "--format", "json"])).expect("JSON");
    assert_eq!(report["cpu"]["vectors"], json!("baseline"));
    assert_eq!(report["cpu"]["widest_vectors"], json!(best_level().name()));
    let plan = ["plan", "tiny.toml"];
    let (first, forced) = (run(None, &plan), run(Some("baseline"), &plan));
    assert!(first.contains("timed now"), "{first}");
    if best_level() > Level::Baseline {
        let text = run(Some("baseline"), &["doctor"]);
        let forced_text = format!("baseline, as RUNNER_SIMD says; the processor has {}", best_level().name());
        assert!(text.contains(&forced_text), "{text}");
        assert!(forced.contains("timed now"), "timed for this level: {forced}");
        let peaks: Json =
            serde_json::from_slice(&fs::read(lab.path("cache/runner/peaks.json")).expect("there"))
                .expect("JSON");
        assert_eq!(peaks.as_object().expect("entries").len(), 2, "{peaks}");
    }
    let again = run(None, &plan);
    assert!(again.contains("timed on"), "{again}");
}
