//! The same recipe gives the same bytes; what must not matter to the numbers does not.

use crate::support;

use std::path::Path;
use support::{Lab, column, essence, record, results, val_csv};

/// Largest relative difference of two columns of the same length.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

fn losses(run: &Path) -> Vec<f64> {
    let mut losses = column(run, "loss");
    losses.extend(val_csv(run).numbers("val_loss"));
    losses
}

#[test]
fn the_same_recipe_twice_gives_the_same_bytes() {
    let lab = Lab::new();
    let sets = ["sample.every=5", "sample.prompt=!", "checkpoint.keep=0"];
    let (a, b) = (lab.train_in("a", &sets), lab.train_in("b", &sets));
    let (first, second) = (essence(&a), essence(&b));
    assert!(first == second, "{:?} and {:?} differ", a, b);
    let names: Vec<_> = first.keys().filter(|name| !name.contains('/')).map(String::as_str).collect();
    assert_eq!(names, ["recipe.toml", "samples.txt", "train.csv", "val.csv"]);
    assert_eq!(first.len(), 4 + 3 * 7, "three checkpoints of seven files: {:?}", first.keys());
}

#[test]
fn another_seed_gives_other_numbers() {
    let lab = Lab::new();
    let sets = |seed| ["schedule.max_steps=3", seed];
    let (a, b) = (lab.train(&sets("seed=1")), lab.train(&sets("seed=2")));
    assert!(losses(&a).iter().zip(losses(&b)).all(|(a, b)| *a != b));
}

#[test]
fn threads_change_no_bit_in_any_precision_and_attention() {
    let lab = Lab::new();
    for precision in ["fp32", "tf32", "bf16", "fp16"] {
        for attention in ["flash", "naive"] {
            let (precision, attention) =
                (format!("compute.precision={precision}"), format!("compute.attention={attention}"));
            let train = |threads: &str| {
                let threads = format!("compute.threads={threads}");
                let steps = ["schedule.max_steps=6", "checkpoint.every=0"];
                lab.train(&[&precision, &attention, &threads, steps[0], steps[1]])
            };
            let one = results(&train("1"));
            assert_eq!(one.len(), 2 + 6, "two logs, one checkpoint: {:?}", one.keys());
            for threads in ["2", "3"] {
                assert!(results(&train(threads)) == one, "{precision} {attention} on {threads} threads");
            }
        }
    }
}

#[test]
fn flash_and_naive_attention_agree() {
    let lab = Lab::new();
    let (flash, naive) = (lab.train(&[]), lab.train(&["compute.attention=naive"]));
    let distance = distance(&losses(&flash), &losses(&naive));
    assert!(distance < 1e-5, "{distance}");
}

#[test]
fn the_micro_batch_changes_losses_by_rounding_only() {
    let lab = Lab::new();
    let whole = losses(&lab.train(&["batch.micro_batch=8"]));
    for micro_batch in [1, 2, 4] {
        let split = losses(&lab.train(&[&format!("batch.micro_batch={micro_batch}")]));
        let distance = distance(&split, &whole);
        assert!(distance < 1e-5, "micro_batch {micro_batch}: {distance}");
    }
}

#[test]
fn padding_of_the_vocabulary_changes_no_loss() {
    let lab = Lab::new();
    // 201 pads to 256 and 384; the data has ids below 200 only
    let few: Vec<u16> = support::tokens(4000, 1).into_iter().map(|token| token % 200).collect();
    lab.shard("data/few.bin", &few);
    let train = |multiple: u32| {
        let multiple = format!("model.vocab_multiple={multiple}");
        let data = ["data.train=data/few.bin", "data.val=data/few.bin", "model.vocab_size=201"];
        let run = lab.train(&[data[0], data[1], data[2], &multiple]);
        (losses(&run), record(&run)["plan"]["padded_vocab"].clone())
    };
    let (unpadded, rows) = train(1);
    assert_eq!(rows, 201);
    for (multiple, padded) in [(64, 256), (128, 256), (384, 384)] {
        let (losses, rows) = train(multiple);
        assert_eq!(rows, padded);
        let distance = distance(&losses, &unpadded);
        assert!(distance < 1e-6, "vocab_multiple {multiple}: {distance}");
    }
}

#[test]
fn precisions_differ_from_each_other_and_the_record_says_emulated() {
    let lab = Lab::new();
    let precisions = ["fp32", "tf32", "bf16", "fp16"];
    let runs = precisions.map(|precision| lab.train(&[&format!("compute.precision={precision}")]));
    for (i, run) in runs.iter().enumerate() {
        let record = record(run);
        assert_eq!(record["precision"], precisions[i]);
        assert_eq!(record["emulated"], precisions[i] != "fp32");
        assert_eq!(record["plan"]["emulated"], precisions[i] != "fp32");
        for (j, other) in runs.iter().enumerate().take(i) {
            let (these, those) = (losses(run), losses(other));
            assert_ne!(these, those, "{} is {}", precisions[i], precisions[j]);
            assert!(distance(&these, &those) < 1e-2, "{} is far from {}", precisions[i], precisions[j]);
        }
    }
}
