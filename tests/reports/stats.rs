//! The statistics, held against scipy on generated samples; `scripts/make_stats_golden.py` makes the file.

use runner::report::stats::{ALPHA, holm, seeds_needed, spread, welch};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("stats.json")).expect("JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn assert_close(ours: f64, theirs: f64, tolerance: f64, what: &str) {
    let error = (ours - theirs).abs() / theirs.abs().max(1e-12);
    assert!(error <= tolerance, "{what}: {ours} is not {theirs}, off by {error:e}");
}

#[test]
fn welch_says_what_scipy_says() {
    let golden = golden();
    let cases = golden["cases"].as_array().expect("cases");
    assert!(cases.len() >= 100);
    for (i, case) in cases.iter().enumerate() {
        let [first, second] = ["first", "second"].map(|name| spread(&numbers(&case[name])).expect("values"));
        for (k, ours) in [first, second].into_iter().enumerate() {
            assert_close(ours.mean, number(&case["means"][k]), 1e-12, "mean");
            assert_close(ours.sd.expect("two values"), number(&case["sds"][k]), 1e-9, "standard deviation");
        }
        let test = welch(first, second).expect("both vary");
        let what = |name: &str| format!("case {i}: {name}");
        assert_close(test.t, number(&case["t"]), 1e-8, &what("t"));
        assert_close(test.df, number(&case["df"]), 1e-8, &what("df"));
        assert_close(test.p, number(&case["p"]), 1e-6, &what("p"));
        // the ends may be near zero, so their error is held against the width
        let (low, high) = (number(&case["interval"][0]), number(&case["interval"][1]));
        let width = high - low;
        let interval = test.interval(ALPHA);
        assert!((interval.0 - low).abs() < 1e-6 * width, "case {i}: {interval:?}");
        assert!((interval.1 - high).abs() < 1e-6 * width, "case {i}: {interval:?}");
    }
}

/// The program integrates the power of the test; the file has it from the noncentral distribution.
#[test]
fn the_seeds_that_would_settle_it_are_those_of_the_noncentral_distribution() {
    let golden = golden();
    let mut compared = 0;
    for (i, case) in golden["cases"].as_array().expect("cases").iter().enumerate() {
        let (means, sds) = (numbers(&case["means"]), numbers(&case["sds"]));
        for (name, tests) in [("seeds", 1.0), ("seeds_of_ten", 10.0)] {
            let Some(exact) = case[name].as_u64() else { continue };
            let ours = seeds_needed(means[1] - means[0], sds[0], sds[1], ALPHA / tests);
            compared += 1;
            assert_eq!(ours.map(u64::from), Some(exact), "case {i}: {name}");
        }
    }
    assert!(compared > 100, "only {compared} cases");
}

#[test]
fn adjusted_p_values_follow_the_definition() {
    for case in golden()["adjusted"].as_array().expect("cases") {
        let theirs = numbers(&case["holm"]);
        let p = numbers(&case["p"]);
        for (ours, theirs) in holm(&p, p.len()).into_iter().zip(theirs) {
            assert_close(ours, theirs, 1e-12, "p");
        }
    }
}
