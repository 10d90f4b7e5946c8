use super::*;

fn sampling(temperature: f64, top_k: usize, top_p: f64) -> Sampling {
    Sampling { tokens: 1, temperature, top_k, top_p }
}

/// The tokens that can be drawn.
fn drawn(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let mut all: Vec<u32> = (0..1000).map(|i| draw(logits, sampling, f64::from(i) / 1000.0)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn frequencies_are_the_softmax() {
    let logits = [1.0, 3.0, 2.0];
    let total: f64 = logits.iter().map(|&x| libm::exp(f64::from(x))).sum();
    let mut counts = [0; 3];
    for i in 0..10_000 {
        counts[draw(&logits, &sampling(1.0, 0, 1.0), f64::from(i) / 10_000.0) as usize] += 1;
    }
    for (count, logit) in counts.iter().zip(logits) {
        assert!((f64::from(*count) / 10_000.0 - libm::exp(f64::from(logit)) / total).abs() < 1e-3);
    }
}

#[test]
fn top_k_top_p_and_temperature_narrow_the_choice() {
    let logits = [1.0, 3.0, 2.0, 2.0];
    assert_eq!(drawn(&logits, &sampling(0.0, 0, 1.0)), [1]);
    assert_eq!(drawn(&logits, &sampling(9.0, 1, 1.0)), [1]);
    // of equal logits, the lower id
    assert_eq!(drawn(&logits, &sampling(9.0, 2, 1.0)), [1, 2]);
    assert_eq!(drawn(&logits, &sampling(9.0, 0, 1.0)), [0, 1, 2, 3]);
    // probabilities of 0.53, 0.20, 0.20 and 0.07
    for (top_p, want) in
        [(1e-9, &[1][..]), (0.5, &[1]), (0.6, &[1, 2]), (0.8, &[1, 2, 3]), (0.99, &[0, 1, 2, 3])]
    {
        assert_eq!(drawn(&logits, &sampling(1.0, 0, top_p)), want, "{top_p}");
    }
    // of the two that top_k leaves, the first has 0.73
    assert_eq!(drawn(&logits, &sampling(1.0, 2, 0.7)), [1]);
    // equal logits: the lowest id is the most likely
    assert_eq!(draw(&[2.0, 2.0], &sampling(0.0, 0, 1.0), 0.9), 0);
}
