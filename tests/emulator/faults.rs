//! Faults planted into the kernels, one at a time: the tests of the emulator and the checks of `runner doctor
//! --selftest` must notice each.
//!
//! Only what a fault changes is compiled again, and one thread per core plants them.

use crate::flash;
use crate::planted::{BACKWARD, FORWARD, Fault, OF_ATTENTION, OTHERS, TILE};
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, EmulatedDevice, Emulator, ThreadOrder};
use runner::engine::cuda::kernels as sources;
use runner::engine::cuda::selftest::{RAGGED, kernels, pair::Pair};
use runner::engine::fused::backend::AttentionShape;
use runner::model::Dims;
use runner::recipe::{Attention, Precision};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of three warps, so that a block's reductions cross warps.
const DIMS: Dims = Dims { n_head: 15, n_embd: 300, ..RAGGED };

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator")
}

/// All kernels, with a fault or as they are.
fn kernels_with(fault: Option<&Fault>, config: &KernelConfig) -> Emulator {
    let with_fault = |(name, text): &(&'static str, &'static str)| match fault {
        Some((what, file, from, to)) if file == name => {
            assert_eq!(text.matches(from).count(), 1, "{what}: {from:?} must be in one place of {file}");
            (*name, text.replace(from, to))
        }
        _ => (*name, (*text).to_owned()),
    };
    let files =
        [sources::HEADERS, sources::SOURCES].map(|files| files.iter().map(with_fault).collect::<Vec<_>>());
    let [headers, kernels] = files
        .each_ref()
        .map(|files| files.iter().map(|(name, text)| (*name, text.as_str())).collect::<Vec<_>>());
    Emulator::of_files(config, &headers, &kernels, &cache())
}

/// Checks with this prefix run with dropout.
const DROPPED: &str = "dropped ";

const OF_FLASH: KernelConfig = KernelConfig { precision: Precision::Bf16, head_size: 32, dropout: false };

/// What is found of a fault in attention, with two tiles of keys and a part of one.
fn attention(fault: Option<&Fault>) -> Result<(), String> {
    let shape = AttentionShape { rows: 1, cols: 290, n_head: 2, head_size: 32 };
    flash::examine(&kernels_with(fault, &OF_FLASH), &OF_FLASH, shape)
}

/// What a check finds of a fault in other kernels than those of attention.
fn others(check: &str, fault: Option<&Fault>, orders: &[ThreadOrder]) -> Result<(), String> {
    let dropped = check.strip_prefix(DROPPED);
    let check = dropped.unwrap_or(check);
    let (head_size, dropout) = (DIMS.head_size(), dropped.is_some());
    let config = KernelConfig { precision: Precision::Bf16, head_size, dropout };
    let way = kernels::ways(check, Precision::Bf16).into_iter().find(|way| way.dropout.is_some() == dropout);
    let way = way.expect("a way to check it");
    for &order in orders {
        let behaviour = Behaviour { order, fuses: false, records: false };
        let device = EmulatedDevice::of(kernels_with(fault, &config), Precision::Bf16, behaviour);
        let pair = Pair::new(DIMS, Precision::Bf16, Attention::Flash, way, device, 1.0);
        let checks = kernels::checks();
        let (_, run) = checks.iter().find(|(name, _)| *name == check).expect("a check");
        run(&mut pair.expect("host memory"))?;
    }
    Ok(())
}

/// Plants faults on all cores at once, and returns those of which nothing is found. A fault has to compile.
fn missed<F: Sync>(
    faults: &[F],
    find: impl Fn(&F) -> (&'static str, Result<(), String>) + Sync,
) -> Vec<&'static str> {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match find(fault) {
                        (what, Ok(())) => missed.lock().expect("no panic").push(what),
                        (what, Err(wrong)) => {
                            assert!(!wrong.contains("could not compile"), "{what}: {wrong}");
                        }
                    }
                }
            });
        }
    });
    missed.into_inner().expect("no panic")
}

#[test]
fn without_a_fault_nothing_is_found() {
    attention(None).expect("right kernels");
    for (check, _) in OTHERS {
        others(check, None, &[ThreadOrder::Shuffled(2)]).unwrap_or_else(|wrong| panic!("{check}: {wrong}"));
    }
}

#[test]
fn faults_of_attention_are_noticed() {
    for file in [FORWARD, BACKWARD, TILE] {
        assert!(OF_ATTENTION.iter().filter(|(_, of, ..)| *of == file).count() >= 4, "{file}");
    }
    let missed = missed(OF_ATTENTION, |fault| (fault.0, attention(Some(fault))));
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}

#[test]
fn faults_of_other_kernels_are_noticed() {
    let orders = [ThreadOrder::Ascending, ThreadOrder::Descending];
    let faults: Vec<_> =
        OTHERS.iter().flat_map(|(check, faults)| faults.iter().map(move |fault| (check, fault))).collect();
    let missed = missed(&faults, |(check, fault)| (fault.0, others(check, Some(*fault), &orders)));
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}
