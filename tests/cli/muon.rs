//! `optimizer.kind = "muon"` through the program: what holds of every optimizer holds of it.

use crate::{processes, support};

use runner::engine::cpu::{Level, best_level};
use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use support::{Lab, column, essence, record, results, rows, spawned, tiny, val_csv};

const MUON: [&str; 3] = ["optimizer.kind=muon", "optimizer.lr=3e-3", "optimizer.muon_lr=1e-2"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    MUON.iter().chain(more).copied().collect()
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs(), "step {step}: {a} and {b}");
    }
}

/// The names of the tensors in a checkpoint's optimizer file.
fn tensors(run: &Path, step: u64) -> Vec<String> {
    let file = run.join(format!("checkpoints/step-{step:08}/optimizer.safetensors"));
    let bytes = fs::read(file).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    file.names().into_iter().map(str::to_owned).collect()
}

#[test]
fn it_learns_and_is_another_rule_than_adamw() {
    let lab = Lab::new();
    let long = ["schedule.max_steps=60"];
    let (muon, adamw) = (lab.train(&with(&long)), lab.train(&long));
    let losses = column(&muon, "loss");
    assert!(losses[59] < 0.88 * losses[0], "{losses:?}");
    // the first step is that of the initial weights
    assert_eq!(losses[0], column(&adamw, "loss")[0]);
    assert_ne!(losses[1], column(&adamw, "loss")[1]);
    assert_eq!(
        column(&muon, "lr")[59],
        column(&lab.train(&["schedule.max_steps=60", "optimizer.lr=3e-3"]), "lr")[59]
    );
}

#[test]
fn the_plan_has_one_number_less_for_every_hidden_weight() {
    let lab = Lab::new();
    let moments = |run: &Path| {
        let plan = &record(run)["plan"];
        let kinds = plan["bytes"].as_array().expect("pairs of a kind and its bytes");
        let moments = kinds.iter().find(|kind| kind[0] == "moments").expect("a kind");
        moments[1].as_u64().expect("bytes")
    };
    let sets = ["schedule.max_steps=3"];
    let (muon, adamw) = (moments(&lab.train(&with(&sets))), moments(&lab.train(&sets)));
    assert_eq!(adamw - muon, 2 * 12 * 32 * 32 * 4);
}

#[test]
fn a_checkpoint_has_the_states_that_there_are() {
    let lab = Lab::new();
    let names = tensors(&lab.train(&MUON), 12);
    let of = |state: &str| {
        let mut found: Vec<_> =
            names.iter().filter_map(|name| name.strip_prefix(&format!("{state}."))).collect();
        found.sort_unstable();
        found
    };
    let hidden = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"];
    let expected: Vec<_> = (0..2).flat_map(|l| hidden.map(|name| format!("h.{l}.{name}.weight"))).collect();
    assert_eq!(of("momentum_buffer"), expected);
    assert_eq!(of("exp_avg"), of("exp_avg_sq"));
    assert_eq!(of("exp_avg").len(), 2 + 2 * 8 + 2);
    assert!(of("exp_avg").iter().all(|name| !expected.iter().any(|hidden| hidden == name)));
}

#[test]
fn threads_change_no_bit() {
    let lab = Lab::new();
    for (precision, ns) in [("fp32", "bf16"), ("bf16", "fp32")] {
        let train = |threads: u32| {
            let sets = [
                format!("compute.precision={precision}"),
                format!("optimizer.muon_ns_precision={ns}"),
                format!("compute.threads={threads}"),
                "schedule.max_steps=6".to_owned(),
            ];
            results(&lab.train(&with(&sets.each_ref().map(String::as_str))))
        };
        let one = train(1);
        assert!([2, 3].into_iter().all(|threads| train(threads) == one), "{precision} {ns}");
    }
}

#[test]
fn an_interrupted_run_and_a_branch_go_on_bit_for_bit() {
    let lab = Lab::new();
    for more in [
        &["checkpoint.keep=0"][..],
        &["checkpoint.keep=0", "compute.precision=fp16", "checkpoint.background=true"],
        &[
            "checkpoint.keep=0",
            "batch.world_size=2",
            "batch.micro_batch=2",
            "distributed.shard_optimizer=true",
        ],
    ] {
        let sets = with(more);
        let whole = lab.train_in("whole", &sets);
        let crashed = lab.crash("runs", &sets, "csv.before_row:6");
        let resumed = lab.train_in("runs", &sets);
        assert_eq!(resumed, crashed);
        assert!(essence(&resumed) == essence(&whole), "{more:?}");
        let name = whole.file_name().and_then(|name| name.to_str()).expect("a name");
        let from = format!("model.init_from={{run=\"whole/{name}\",step=4}}");
        let branch = lab.train_in("branches", &[&[from.as_str()], &sets[..]].concat());
        for step in [4, 8, 12] {
            for file in ["model.safetensors", "optimizer.safetensors"] {
                let bytes = |run: &Path| fs::read(run.join(format!("checkpoints/step-{step:08}/{file}")));
                assert!(
                    bytes(&branch).expect("a file") == bytes(&whole).expect("a file"),
                    "{step} {file} {more:?}"
                );
            }
        }
    }
}

#[test]
fn the_state_of_another_rule_is_refused_and_its_weights_are_not() {
    let lab = Lab::new();
    let adamw = lab.train(&["schedule.max_steps=4"]);
    let name = adamw.file_name().and_then(|name| name.to_str()).expect("a name");
    let from = |more: &str| format!("model.init_from={{run=\"runs/{name}\"{more}}}");
    let ended = lab.run(support::tiny("others", &with(&[&from("")])));
    ended.expect(2).says(&["`optimizer.kind` is \"muon\"", "is that of \"adamw\"", "optimizer = false"]);
    assert_eq!(rows(&lab.train_in("others", &with(&[&from(",optimizer=false")]))), 12);
}

#[test]
fn every_number_of_ranks_gives_the_same_losses() {
    let lab = Lab::new();
    let long = ["batch.total_tokens=384", "batch.micro_batch=1", "schedule.max_steps=40", "eval.every=20"];
    // what rounds to bf16 enlarges differences in the last digit
    let long = [&long[..], &["optimizer.muon_ns_precision=fp32"]].concat();
    let alone = lab.train(&with(&long));
    for (ranks, shard) in [(2, false), (2, true), (3, false), (3, true), (4, true)] {
        let sets = [format!("batch.world_size={ranks}"), format!("distributed.shard_optimizer={shard}")];
        let run = lab.train(&with(&[&long[..], &sets.each_ref().map(String::as_str)].concat()));
        close(&column(&run, "loss"), &column(&alone, "loss"), 1e-4);
        close(&val_csv(&run).numbers("val_loss"), &val_csv(&alone).numbers("val_loss"), 1e-4);
    }
}

/// A product has other last digits where a processor has no fused multiply-add. Each rank compares its parameters with
/// those of rank 0 at each checkpoint.
#[test]
fn ranks_on_different_processors_keep_the_same_weights() {
    let lab = Lab::new();
    let port = processes::port();
    let sets = with(&[
        "batch.world_size=2",
        "batch.micro_batch=1",
        "optimizer.muon_ns_precision=fp32",
        "schedule.max_steps=12",
        "checkpoint.every=4",
    ]);
    let args = tiny("runs", &sets);
    let ranks = [best_level(), Level::Baseline].into_iter().enumerate().map(|(index, level)| {
        let mut rank = processes::rank(&lab, index, 2, port, &args);
        rank.env("RUNNER_SIMD", level.word());
        spawned(rank)
    });
    let mut ranks: VecDeque<_> = ranks.collect();
    let [first, second] = [0, 1].map(|_| ranks.pop_front().expect("two ranks").end());
    second.expect(0);
    let said =
        first.expect(0).stderr.contains("warning: the kernels of rank 1 are baseline and those of rank 0");
    assert_eq!(said, best_level().is_fused() != Level::Baseline.is_fused(), "{}", first.stderr);
}

#[test]
fn a_run_goes_on_with_any_number_of_ranks() {
    let lab = Lab::new();
    let sets = ["batch.total_tokens=384", "batch.micro_batch=1", "schedule.max_steps=16"];
    let sets = [&sets[..], &["optimizer.muon_ns_precision=fp32"]].concat();
    let alone = lab.train_in("alone", &with(&sets));
    let run = lab.crash("runs", &with(&[&sets[..], &["batch.world_size=4"]].concat()), "csv.before_row:6");
    let name = run.file_name().and_then(|name| name.to_str()).expect("a name");
    for (ranks, shard, fault) in
        [(2, true, Some("csv.before_row:6")), (1, false, Some("csv.before_row:6")), (3, true, None)]
    {
        let sets = [format!("batch.world_size={ranks}"), format!("distributed.shard_optimizer={shard}")];
        let mut args = vec!["--resume", name, "--set", &sets[0]];
        if ranks > 1 {
            args.extend(["--set", &sets[1]]);
        }
        let mut command = lab.command(args);
        if let Some(fault) = fault {
            command.env("RUNNER_FAULT", fault);
        }
        let ended = support::ended(command);
        assert_eq!(ended.code, if fault.is_some() { None } else { Some(0) }, "{}", ended.stderr);
    }
    assert_eq!(rows(&run), 16);
    close(&column(&run, "loss"), &column(&alone, "loss"), 1e-4);
}

#[test]
fn a_step_on_cuda_is_modelled_with_muon_s_kernels() {
    let lab = Lab::new();
    let update = |sets: &[&str]| {
        let mut args = vec!["plan".to_owned(), "tiny.toml".to_owned()];
        args.extend(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
        args.extend(["--roofline", "h100"].map(str::to_owned));
        lab.run(&args).expect(0).stdout.clone()
    };
    let (muon, adamw) = (update(&MUON), update(&[]));
    // the first of these ranks has the embeddings and no matrix
    let ranks = update(&with(&["batch.world_size=2", "batch.micro_batch=2", "model.vocab_size=8192"]));
    assert!(ranks.contains("muon_combine"), "{ranks}");
    for kernel in ["muon_momentum", "muon_divide", "muon_combine", "muon_apply"] {
        assert!(muon.contains(kernel) && !adamw.contains(kernel), "{kernel}: {muon}");
    }
}
