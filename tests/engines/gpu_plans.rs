//! Which CUDA device the program takes, what it plans for it, and what it says of that, over fake drivers.

use crate::cuda_support;
use crate::support;

use cuda_support::Fakes;
use runner::run::checkpoint::CheckpointState;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use support::{Ended, Lab, ended};

/// The program with these words, on a machine with these libraries.
fn run(lab: &Lab, fakes: &Fakes, words: &str) -> Ended {
    let mut command = lab.command(words.split_whitespace());
    command.env_remove("CUDA_VISIBLE_DEVICES").env("RUNNER_CUDA_LIBS", fakes.path());
    ended(command)
}

fn plan(lab: &Lab, fakes: &Fakes, words: &str) -> Json {
    let said = run(lab, fakes, &format!("plan tiny.toml --format json {words}"));
    said.expect(0);
    serde_json::from_str(&said.stdout).expect("JSON")
}

/// A device with so many bytes.
fn with_memory(bytes: u64) -> Fakes {
    Fakes::whole(&[&format!("MEMORY={bytes}UL")])
}

fn bytes(plan: &Json) -> u64 {
    plan["total_bytes"].as_u64().expect("a number")
}

/// Changes the state of a checkpoint.
fn edit(checkpoint: &Path, change: impl FnOnce(&mut CheckpointState)) {
    let mut state = CheckpointState::read(checkpoint).expect("intact");
    change(&mut state);
    std::fs::write(checkpoint.join("state.json"), state.to_json()).expect("written");
}

#[test]
fn a_run_is_not_continued_with_less_memory_than_what_it_keeps_takes() {
    let lab = Lab::new();
    let run_dir: PathBuf = lab.crash("runs", &[], "csv.before_row:12");
    let checkpoint = run_dir.join("checkpoints/step-00000008");
    assert_eq!(CheckpointState::read(&checkpoint).expect("intact").keeps_outputs, None, "a CPU's");
    let on_cuda = "--set compute.device=cuda";
    let large = with_memory(256 << 20);
    let kept = plan(&lab, &large, on_cuda);
    assert_eq!(kept["keeps_outputs"], true);
    let small = with_memory(bytes(&kept) - 1);
    let again = plan(&lab, &small, on_cuda);
    assert_eq!((&again["keeps_outputs"], &again["refusal"]), (&false.into(), &Json::Null));
    let resume = format!("--resume {} --dry-run {on_cuda}", run_dir.display());
    let goes_on = |fakes: &Fakes| run(&lab, fakes, &resume);
    // as checkpoints of earlier versions, which do not say
    goes_on(&small).expect(0);
    edit(&checkpoint, |state| state.keeps_outputs = Some(false));
    goes_on(&small).expect(0);
    edit(&checkpoint, |state| state.keeps_outputs = Some(true));
    goes_on(&large).expect(0);
    goes_on(&small).expect(2).says(&["which this run has kept since it began", "is 2, or"]);
}

#[test]
fn an_automatic_micro_batch_of_the_beginning_is_what_must_fit() {
    let lab = Lab::new();
    lab.write("auto.toml", "extends = \"tiny.toml\"\n[batch]\nmicro_batch = \"auto\"\n");
    lab.write("one.toml", "extends = \"auto.toml\"\nname = \"one\"\n[batch]\nmicro_batch = 1\n");
    let run_dir = lab.crash("runs", &["batch.micro_batch=\"auto\""], "csv.before_row:12");
    // as a smaller machine would have chosen
    edit(&run_dir.join("checkpoints/step-00000008"), |state| state.micro_batch = 1);
    let whole = 256 << 20;
    let one_row = bytes(&plan(&lab, &with_memory(whole), "--set batch.micro_batch=1"));
    let taken = format!("TAKEN={}UL", whole - one_row);
    let busy = Fakes::whole(&[&format!("MEMORY={whole}UL"), &taken]);
    let on_busy = |words: &str| run(&lab, &busy, words);
    on_busy("auto.toml --set seed=2 --dry-run").expect(2).says(&["a micro_batch of 8 needs"]);
    let resume = format!("--resume {} --dry-run", run_dir.display());
    for words in ["auto.toml --dry-run", "one.toml auto.toml --dry-run", &resume] {
        on_busy(words).expect(0).says(&["step 8 of 12", "8 x 1 row of 32"]);
    }
    let json = |words: &str| plan(&lab, &busy, &format!("{words} --set batch.micro_batch=auto"));
    let (goes_on, begins) = (json(""), json("--set seed=2"));
    assert_eq!((&goes_on["micro_batch"], &goes_on["refusal"]), (&1.into(), &Json::Null));
    assert!(begins["micro_batch"] == 8 && begins["refusal"].is_string(), "{begins}");
    // what starts over has nothing to keep
    on_busy("auto.toml --fresh --dry-run").expect(2).says(&["a micro_batch of 8 needs"]);
}

#[test]
fn a_verification_names_its_device() {
    let lab = Lab::new();
    // the fakes have no kernels, so it ends after its first lines
    let said = run(&lab, &with_memory(1 << 30), "verify tiny.toml --steps 1 --set compute.device=cuda");
    let first =
        "tiny: the fused engine on cuda:0 (NVIDIA H200) in fp32 with flash attention against dfdx in fp32";
    assert!(said.stdout.starts_with(first), "{}{}", said.stdout, said.stderr);
}

#[test]
fn a_driver_that_does_not_start_is_not_passed_over_in_silence() {
    let lab = Lab::new();
    for (status, warns) in [(0, false), (34, false), (100, false), (802, true), (803, true), (999, true)] {
        let fakes = Fakes::whole(&["MEMORY=(256<<20)"]);
        fakes.driver(&[&format!("INIT_STATUS={status}")]);
        let said = run(&lab, &fakes, "plan tiny.toml");
        said.expect(0);
        let line =
            format!("the CUDA device is not used: the CUDA driver cannot be used: cuInit: status {status}");
        assert_eq!(said.stderr.contains(&line), warns, "{status}: {}", said.stderr);
        assert!(warns || said.stderr.is_empty(), "{status}: {}", said.stderr);
        assert_eq!(
            run(&lab, &fakes, "plan tiny.toml --set compute.device=cpu").expect(0).stderr,
            "",
            "{status}"
        );
    }
}

#[test]
fn auto_takes_the_first_device_that_can_be_used() {
    let lab = Lab::new();
    let room = "MEMORY=(256<<20)";
    let second = Fakes::whole(&["DEVICES=2", "OLD_FIRST", room]);
    let device = |words: &str| plan(&lab, &second, words)["device"].clone();
    assert_eq!(device(""), "cuda:1 (NVIDIA H200)");
    assert_eq!(device("--set compute.device=cuda:1"), "cuda:1 (NVIDIA H200)");
    let refused = run(&lab, &second, "plan tiny.toml --set compute.device=cuda");
    refused.expect(2).says(&["compute capability 7.5", "\"cuda:1\" (NVIDIA H200) can be used; "]);
    // ranks have a device each, counted from the first
    let ranks = "plan tiny.toml --set batch.world_size=2";
    run(&lab, &second, ranks).expect(0).says(&["the CUDA device is not used", "7.5"]);
    let mut launched = lab.command(["plan", "tiny.toml"]);
    launched.env_remove("CUDA_VISIBLE_DEVICES").env("RUNNER_CUDA_LIBS", second.path());
    for (name, value) in [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")]
    {
        launched.env(name, value);
    }
    launched.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "1");
    ended(launched).expect(0).says(&["the CUDA device is not used", "7.5"]);
    let none = Fakes::whole(&["DEVICES=2", "CAPABILITY=75", room]);
    let said = run(&lab, &none, "plan tiny.toml");
    said.expect(0).says(&["the CUDA device is not used", "7.5"]);
    assert!(!said.stderr.contains("can be used; "), "{}", said.stderr);
}

#[test]
fn what_is_free_is_of_the_device() {
    let lab = Lab::new();
    let fakes = with_memory(256 << 20);
    let on_cuda = plan(&lab, &fakes, "");
    assert_eq!(on_cuda["free_bytes"], 256 << 20);
    let on_cpu = plan(&lab, &fakes, "--set compute.device=cpu");
    assert_eq!(on_cpu["free_bytes"], on_cpu["host_free_bytes"]);
    assert!(on_cuda["host_free_bytes"].as_u64() > Some(256 << 20), "{}", on_cuda["host_free_bytes"]);
    let text = |words: &str| run(&lab, &fakes, &format!("plan tiny.toml {words}")).expect(0).stdout.clone();
    let found = text("--set checkpoint.background=true");
    assert!(found.contains("\n  free                256.0 MiB on the device\n"), "{found}");
    assert!(found.contains("if they are free then on the host, which has "), "{found}");
    assert!(!text("--set compute.device=cpu").contains("on the device"));
}

#[test]
fn what_becomes_of_outputs_is_said_under_every_recompute() {
    let lab = Lab::new();
    let fakes = with_memory(256 << 20);
    for (recompute, says) in [
        ("none", "the outputs of LayerNorm and GELU are kept for the backward pass"),
        ("mlp", "keeps the outputs of LayerNorm and GELU; recompute mlp keeps those of LayerNorm"),
        ("block", "keeps the outputs of LayerNorm and GELU; recompute block keeps neither"),
    ] {
        let set = format!("--set compute.recompute={recompute}");
        assert_eq!(plan(&lab, &fakes, &set)["keeps_outputs"], true, "{recompute}");
        let said = run(&lab, &fakes, &format!("plan tiny.toml {set}"));
        assert!(said.stdout.contains(says), "{recompute}: {}", said.stdout);
    }
}

#[test]
fn a_device_that_does_not_tell_its_memory_s_clock_is_not_modelled() {
    let lab = Lab::new();
    let fakes = Fakes::whole(&["MEMORY_CLOCK=0", "MEMORY=(256<<20)"]);
    let refused = run(&lab, &fakes, "plan tiny.toml --roofline here");
    refused
        .expect(2)
        .says(&["the driver does not tell the memory's clock of NVIDIA H200", "--roofline h100"]);
    run(&lab, &with_memory(256 << 20), "plan tiny.toml --roofline here").expect(0);
}
