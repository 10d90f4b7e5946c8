//! `runner doctor` and what it finds of CUDA: with fake libraries that work, with broken ones, and with none.

use crate::cuda_support;
use crate::program;

use cuda_support::Fakes;
use runner::cuda::search::Search;
use runner::cuda::{CudaMissing, Libraries};
use serde_json::Value as Json;
use std::path::Path;

/// Runs the program so that it finds these libraries before all others.
fn doctor(fakes: Option<&Fakes>, arguments: &[&str]) -> String {
    let mut command = program::program(Path::new(env!("CARGO_TARGET_TMPDIR")));
    command.arg("doctor").args(arguments).env_remove("CUDA_VISIBLE_DEVICES");
    if let Some(fakes) = fakes {
        command.env("RUNNER_CUDA_LIBS", fakes.path());
    }
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(fakes: Option<&Fakes>) -> Json {
    serde_json::from_str(&doctor(fakes, &["--format", "json"])).expect("JSON")
}

fn library<'a>(report: &'a Json, name: &str) -> &'a Json {
    let libraries = report["cuda"]["libraries"].as_array().expect("a list");
    libraries.iter().find(|library| library["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn missing(libraries: &Libraries, index: usize) -> CudaMissing {
    libraries.require_device(index).expect_err("something is missing")
}

#[test]
fn the_report_succeeds_and_is_consistent_on_any_machine() {
    let text = doctor(None, &[]);
    for heading in ["CPU\n", "CUDA libraries\n", "CUDA devices\n"] {
        assert!(text.contains(heading), "{text}");
    }
    // readers of the report need no advice to read it
    assert!(text.contains("CUDA can") && !text.contains("runner doctor"), "{text}");
    let report = json(None);
    assert!(!report["cuda"]["help"].to_string().contains("runner doctor"), "{}", report["cuda"]["help"]);
    assert!(report["cpu"]["threads"].as_u64().expect("a number") > 0);
    assert!(report["cpu"]["measured"].is_null(), "nothing is measured unasked");
    let cuda = &report["cuda"];
    assert_eq!(cuda["usable"].as_bool().expect("a flag"), cuda["problem"].is_null());
    for library in cuda["libraries"].as_array().expect("a list") {
        let usable = library["usable"].as_bool().expect("a flag");
        assert!(!usable || library["path"].is_string() && library["version"].is_object(), "{library}");
    }
}

#[test]
fn a_machine_without_cuda_is_told_what_was_looked_for_and_where() {
    let fakes = Fakes::new();
    let missing = missing(&fakes.libraries(), 0);
    let directory = fakes.path().display();
    assert_eq!(
        missing.to_string(),
        format!(
            "the CUDA driver was not found: looked for libcuda.so.1, libcuda.so in {directory} (the test)"
        )
    );
    assert!(missing.help.contains("RUNNER_CUDA_LIBS"), "{}", missing.help);
    assert!(fakes.libraries().devices().is_empty());
}

#[test]
fn a_whole_installation_is_shown_with_its_device() {
    let fakes = Fakes::whole(&["DEVICES=2"]);
    let report = json(Some(&fakes));
    let cuda = &report["cuda"];
    assert_eq!(cuda["usable"], true, "{cuda:#}");
    assert_eq!(library(&report, "NVRTC")["version"]["major"], 13);
    assert_eq!(library(&report, "NVRTC")["because"], "RUNNER_CUDA_LIBS");
    assert_eq!(library(&report, "cuBLASLt")["version"]["minor"], 1);
    let devices = cuda["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 2);
    let device = &devices[0];
    assert_eq!(device["name"], "NVIDIA H200");
    assert_eq!(device["compute_capability"], serde_json::json!([9, 0]));
    assert_eq!(device["pci_bus_id"], "0000:01:00.0");
    assert_eq!(device["peaks"]["half"], 989.4e12);
    assert_eq!(device["total_memory"], 64 << 20);
    assert_eq!(device["free_memory"], 64 << 20);
    let bandwidth = device["memory_bandwidth"].as_f64().expect("a number");
    assert!((bandwidth - 2.0 * 3.201e9 * 6144.0 / 8.0).abs() < 1.0, "{bandwidth}");
    let text = doctor(Some(&fakes), &[]);
    assert!(text.contains("cuda:1     NVIDIA H200"), "{text}");
    assert!(text.contains("CUDA can be used"), "{text}");
}

#[test]
fn nccl_is_shown_and_nothing_needs_it_on_one_device() {
    let fakes = Fakes::whole(&[]);
    let libraries = fakes.libraries();
    let [.., nccl] = libraries.findings();
    assert!(!nccl.usable && nccl.path.is_none(), "{nccl:?}");
    assert!(nccl.meaning.contains("nvidia-nccl-cu13"), "{nccl:?}");
    libraries.require_device(0).expect("one device is trained on without");

    fakes.nccl(&[]);
    let report = json(Some(&fakes));
    let nccl = library(&report, "NCCL");
    assert_eq!(nccl["usable"], true, "{nccl}");
    assert_eq!(nccl["version"], serde_json::json!({ "major": 2, "minor": 27 }));
    let path = std::fs::canonicalize(fakes.path()).expect("a directory").join("libnccl.so.2");
    assert_eq!(nccl["path"], path.to_str().expect("text"));
    let text = doctor(Some(&fakes), &[]);
    assert!(text.contains("NCCL") && text.contains("libnccl.so.2"), "{text}");
}

#[test]
fn an_unusable_nccl_is_skipped_with_the_reason() {
    let fakes = Fakes::whole(&[]);
    fakes.file("libnccl.so.2", b"");
    let libraries = fakes.libraries();
    let [.., nccl] = libraries.findings();
    assert_eq!(nccl.refused[0].reason, "file too short");
    // older than 2.14
    fakes.nccl(&["OLD"]);
    let libraries = fakes.libraries();
    let [.., nccl] = libraries.findings();
    assert_eq!(nccl.refused[0].reason, "it has no function `ncclCommFinalize`");
    assert!(!nccl.usable);
}

/// Libraries are executed, and an environment that is shared may have those of anybody.
#[test]
fn a_library_that_another_user_has_put_into_an_environment_is_passed_over_and_named() {
    let environment = tempfile::tempdir().expect("a directory");
    let packages = environment.path().join("lib/python3.13/site-packages/nvidia");
    for wheel in ["nccl", "curand"] {
        std::fs::create_dir_all(packages.join(wheel).join("lib")).expect("a directory");
    }
    let library = packages.join("nccl/lib/libnccl.so.2");
    std::fs::write(&library, "").expect("a file");
    let find = || {
        let variable = |name: &str| (name == "VIRTUAL_ENV").then(|| environment.path().into());
        let libraries = Libraries::find(Search::new(variable, None, environment.path()));
        let [.., nccl] = libraries.findings();
        nccl.refused.iter().map(|refused| (refused.file.clone(), refused.reason.clone())).collect::<Vec<_>>()
    };
    let of_ours = find();
    assert!(of_ours.iter().any(|(_, reason)| reason == "file too short"), "{of_ours:?}");
    // only root can give something away
    if std::os::unix::fs::lchown(packages.join("nccl"), Some(12345), None).is_ok() {
        let passed_over = find();
        let named: Vec<_> =
            passed_over.iter().filter(|(_, reason)| reason.contains("another user")).collect();
        assert_eq!(named.len(), 1, "{passed_over:?}");
        assert!(named[0].0.ends_with("nccl/lib/libnccl.so.2") && named[0].1.contains("RUNNER_CUDA_LIBS"));
    }
}

#[test]
fn unusable_libraries_are_skipped_with_the_reason() {
    let fakes = Fakes::new();
    fakes.driver(&[]);
    fakes.cublaslt(&[]);
    fakes.file("libnvrtc.so.13", b"");
    // the loader and other directories may have a real one; only this directory counts here
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("NVRTC was not found"), "{reason}");
    assert!(reason.contains("libnvrtc.so.13` cannot be used: file too short"), "{reason}");
    let refused = library(&json(Some(&fakes)), "NVRTC")["refused"].clone();
    assert!(refused[0]["reason"].as_str().expect("text").contains("file too short"), "{refused}");

    fakes.file(
        "libnvrtc.so.13",
        b"not a library, but long enough to have a header, which it has not, and so on",
    );
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("libnvrtc.so.13` cannot be used: invalid ELF header"), "{reason}");
}

#[test]
fn a_library_of_another_kind_is_refused() {
    let fakes = Fakes::new();
    fakes.cublaslt(&[]);
    std::fs::rename(fakes.path().join("libcublasLt.so.13"), fakes.path().join("libcuda.so.1"))
        .expect("moved");
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("libcuda.so.1` cannot be used: it has no function `cu"), "{reason}");
}

#[test]
fn a_stub_is_not_a_driver() {
    let fakes = Fakes::new();
    fakes.driver(&["INIT_STATUS=34"]);
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("the CUDA driver was not found"), "{reason}");
    assert!(reason.contains("is a stub"), "{reason}");
}

#[test]
fn a_driver_without_a_device_says_so() {
    let fakes = Fakes::new();
    fakes.driver(&["INIT_STATUS=100"]);
    let libraries = fakes.libraries();
    let reason = missing(&libraries, 0).to_string();
    assert!(
        reason.starts_with(
            "the CUDA driver cannot be used: cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected"
        ),
        "{reason}"
    );
    assert!(libraries.devices().is_empty());
    let report = json(Some(&fakes));
    assert_eq!(library(&report, "the CUDA driver")["usable"], false);
    assert_eq!(report["cuda"]["usable"], false);
}

#[test]
fn what_helps_a_driver_to_start_depends_on_its_status() {
    for (status, helps) in [
        (100, "CUDA_VISIBLE_DEVICES"),
        (802, "nvidia-fabricmanager"),
        (803, "reboot"),
        (804, "LD_LIBRARY_PATH"),
        (999, "`nvidia-smi`"),
    ] {
        let fakes = Fakes::new();
        fakes.driver(&[&format!("INIT_STATUS={status}")]);
        let libraries = fakes.libraries();
        let help = missing(&libraries, 0).help;
        assert!(help.contains(helps) && help.contains("compute.device = \"cpu\""), "{status}: {help}");
        assert!(!help.contains("RUNNER_CUDA_LIBS"), "the driver is there: {help}");
        assert!(libraries.findings()[0].meaning.contains(helps), "{:?}", libraries.findings()[0]);
    }
}

#[test]
fn a_device_is_usable_whatever_precedes_it() {
    let fakes = Fakes::whole(&["DEVICES=2", "OLD_FIRST"]);
    let report = json(Some(&fakes));
    let devices = report["cuda"]["devices"].as_array().expect("a list");
    assert_eq!([&devices[0]["usable"], &devices[1]["usable"]], [false, true]);
    assert_eq!((&report["cuda"]["usable"], &report["cuda"]["problem"]), (&true.into(), &Json::Null));
}

#[test]
fn a_status_newer_than_the_header_is_a_message() {
    let fakes = Fakes::new();
    fakes.driver(&["INIT_STATUS=4711"]);
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("cuInit: status 4711"), "{reason}");
}

#[test]
fn a_device_that_is_not_there_or_too_old_is_refused() {
    let fakes = Fakes::whole(&["CAPABILITY=75", "NAME=\"Tesla T4\""]);
    let libraries = fakes.libraries();
    let reason = missing(&libraries, 3).to_string();
    assert!(reason.contains("there is no CUDA device 3: the driver shows 1"), "{reason}");
    let reason = missing(&libraries, 0).to_string();
    assert!(reason.contains("Tesla T4 has compute capability 7.5, and the kernels need 8.0"), "{reason}");
}

#[test]
fn a_compiler_without_its_second_library_is_refused() {
    let fakes = Fakes::new();
    fakes.driver(&[]);
    fakes.cublaslt(&[]);
    fakes.nvrtc(&["NO_BUILTINS"]);
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("failed to open libnvrtc-builtins.so.13.1"), "{reason}");
}

#[test]
fn libraries_newer_than_the_driver_are_skipped() {
    let fakes = Fakes::whole(&["DRIVER_VERSION=12040"]);
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(
        reason.contains("cannot be used: it belongs to CUDA 13.1, but the driver supports CUDA up to 12.4"),
        "{reason}"
    );
    // an older one beside it is used
    fakes.nvrtc(&["NVRTC_MAJOR=12"]);
    let at = |name: &str| fakes.path().join(name);
    std::fs::rename(at("libnvrtc.so.13"), at("libnvrtc.so.12")).expect("moved");
    fakes.nvrtc(&[]);
    let libraries = fakes.libraries();
    let [_, nvrtc, ..] = libraries.findings();
    assert_eq!(nvrtc.version.expect("a version").major, 12);
    assert_eq!(nvrtc.refused.len(), 1);
}

#[test]
fn a_device_newer_than_the_compiler_is_refused() {
    let fakes = Fakes::whole(&["CAPABILITY=120"]);
    let reason = missing(&fakes.libraries(), 0).to_string();
    assert!(reason.contains("does not know compute capability 12.0, only 80, 90, 100"), "{reason}");
}

#[test]
fn rates_are_measured_through_the_device_that_trains() {
    // little memory, so that the matrices are small
    let fakes = Fakes::whole(&["MEMORY=(40<<20)"]);
    let text = doctor(Some(&fakes), &["--measure", "--format", "json"]);
    let report: Json = serde_json::from_str(&text).expect("JSON");
    let device = &report["cuda"]["devices"][0];
    assert!(device["not_measured"].is_null(), "{device:#}");
    assert_eq!(device["measured"]["matmul_size"], 256);
    let positive = |rates: &Json| {
        let rates = rates.as_object().expect("an object");
        assert!(
            rates.len() > 2 && rates.values().all(|rate| rate.as_f64().is_some_and(|rate| rate > 0.0)),
            "{rates:?}"
        );
    };
    positive(&device["measured"]);
    positive(&report["cpu"]["measured"]);
}

/// The lines of a self-test over these libraries, which fails: the fakes have none of the kernels.
fn selftest(fakes: &Fakes) -> Vec<String> {
    let cache = tempfile::tempdir().expect("a directory");
    let mut command = program::program(Path::new(env!("CARGO_TARGET_TMPDIR")));
    command.args(["doctor", "--selftest"]).env_remove("CUDA_VISIBLE_DEVICES");
    command.env("RUNNER_CUDA_LIBS", fakes.path()).env("XDG_CACHE_HOME", cache.path());
    let output = command.output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

fn starting<'a>(lines: &'a [String], beginning: &str) -> Vec<&'a str> {
    lines.iter().map(String::as_str).filter(|line| line.starts_with(beginning)).collect()
}

#[test]
fn a_self_test_tries_everything_though_some_of_it_fails() {
    let lines = selftest(&Fakes::whole(&["MEMORY=(256 << 20)"]));
    for holds in [
        "ok   context and free memory: ",
        "ok   copies from and to pinned memory: 1024 KiB came back unchanged",
        "ok   the device's clock: clearing 1 MiB took ",
        "ok   rows staged beside the stream: 4 steps found their own rows",
    ] {
        assert_eq!(starting(&lines, holds).len(), 1, "{holds}: {lines:#?}");
    }
    // the fakes know two kernels, which training does not use
    let compiled = starting(&lines, "FAIL compile and load the kernels, ");
    assert_eq!(compiled.len(), 4 + 2, "two precisions with dropout, too: {lines:#?}");
    assert!(compiled.iter().all(|line| line.contains("there is no kernel `")), "{compiled:#?}");
    assert_eq!(starting(&lines, "FAIL a CUDA graph of ").len(), 1, "{lines:#?}");
    // fakes multiply: every product is right, and none is fused, since the kernel to compare with is missing
    let products = starting(&lines, "ok   product 64 x ");
    assert!(products.len() > 10 && starting(&lines, "FAIL product").is_empty(), "{lines:#?}");
    let followed = products.iter().filter(|line| line.contains("not fused")).count();
    // in bf16 two biases, with and without GELU, two sums, and GELU's slope; in fp32 a bias and two sums
    assert_eq!(followed, 5 + 3, "{products:#?}");
    // with heads of 64 and ragged, 4 precisions, 2 of them with dropout too, 5 operations and two attentions; flash also
    // longer and with many heads
    assert_eq!(starting(&lines, "FAIL flash attention, ").len(), 4 * (4 + 2), "{lines:#?}");
    assert_eq!(starting(&lines, "FAIL naive attention, ").len(), 2 * (4 + 2), "{lines:#?}");
    assert_eq!(starting(&lines, "FAIL update, ").len(), 8, "{lines:#?}");
    let failed = lines.iter().filter(|line| line.starts_with("FAIL")).count();
    assert_eq!(lines.last(), Some(&format!("{failed} of {} trials failed", lines.len() - 1)));
}

#[test]
fn a_self_test_says_which_call_failed() {
    let fakes = Fakes::whole(&["MEMORY=(256 << 20)"]);
    fakes.cublaslt(&["INVALID_EPILOGUES"]);
    let lines = selftest(&fakes);
    let c_fc = starting(&lines, "ok   product 64 x 256 x 64, bf16, c_fc: ");
    let [line] = c_fc[..] else { panic!("{lines:#?}") };
    assert!(line.contains("; not fused: "), "{line}");
    assert!(line.contains("cublasLtMatmulAlgoGetHeuristic: invalid value (status 7)"), "{line}");
}

#[test]
fn a_self_test_without_a_device_says_what_is_missing() {
    let cache = tempfile::tempdir().expect("a directory");
    let fakes = Fakes::whole(&["DEVICES=0"]);
    let mut command = program::program(Path::new(env!("CARGO_TARGET_TMPDIR")));
    command.args(["doctor", "--selftest"]).env("RUNNER_CUDA_LIBS", fakes.path());
    let output = command.env("XDG_CACHE_HOME", cache.path()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).expect("text");
    assert!(message.contains("device"), "{message}");
}
