//! Faults planted into kernels: the checks of the kernels, which `runner doctor --selftest` makes too, must find each.

use super::{Behaviour, EmulatedDevice, Emulator, ThreadOrder};
use crate::engine::cuda::device::KernelConfig;
use crate::engine::cuda::kernels as sources;
use crate::engine::cuda::selftest::{RAGGED, kernels, pair::Pair};
use crate::model::Dims;
use crate::recipe::{Attention, Precision, Residual};

/// Rows of three warps, so that a block's reductions cross warps.
const DIMS: Dims = Dims { n_head: 15, n_embd: 300, ..RAGGED };

/// A fault: what it is, the file, the text that it replaces, by what, and the check that finds it.
type Fault = (&'static str, &'static str, &'static str, &'static str, &'static str);

const LAYERNORM: &str = "layernorm/layernorm.cu";
const COLUMNS: &str = "linear/columns.cu";
const LOSS: &str = "loss/cross_entropy.cu";

const FAULTS: &[Fault] = &[
    (
        "a missing barrier before the sums of warps are read",
        LAYERNORM,
        "    __syncthreads();\n    numbers = scratch[0];",
        "    numbers = scratch[0];",
        "layernorm",
    ),
    ("two turns that share their scratch: a race", LAYERNORM, "turn ^= 1", "turn ^= 0", "layernorm"),
    (
        "a wrong mask: columns beyond the row count towards its variance",
        LAYERNORM,
        "i + j < c ? values[r]",
        "true ? values[r]",
        "layernorm",
    ),
    (
        "a slice that ends behind the last row",
        LAYERNORM,
        "end = min(begin + per_slice, rows)",
        "end = begin + per_slice",
        "layernorm",
    ),
    (
        "a wrong stride of partial sums",
        LAYERNORM,
        "(i64)blockIdx.x * stride",
        "(i64)blockIdx.x * c",
        "layernorm",
    ),
    (
        "partial sums added up with a wrong stride",
        COLUMNS,
        "slice * stride",
        "slice * width",
        "linear layers",
    ),
    (
        "a missing barrier before the sums of columns are read",
        COLUMNS,
        "    __syncthreads();\n    for (int column",
        "    for (int column",
        "linear layers",
    ),
    (
        "a row of each slice left out",
        COLUMNS,
        "row = first + warp",
        "row = first + warp + 1",
        "linear layers",
    ),
    ("padding that counts", LOSS, "i + j >= vocab_size", "i + j > vocab_size", "head and loss"),
    (
        "a row that is not put into shared memory",
        LOSS,
        "if (KEPT) store(",
        "if (false) store(",
        "head and loss",
    ),
    ("the row of another block", LOSS, "targets[row]", "targets[row ? row - 1 : 0]", "head and loss"),
];

/// Makes a check with kernels in which a file's text is replaced, in an order of threads.
fn checked(file: &str, from: &str, to: &str, check: &str, order: ThreadOrder) -> Result<(), String> {
    let (precision, cache) = (Precision::Bf16, tempfile::tempdir().expect("a directory"));
    let config = KernelConfig { precision, head_size: DIMS.head_size() };
    let texts: Vec<(&str, String)> = sources::sources(&config)
        .filter(|(name, _)| !name.starts_with("flash_attention/"))
        .map(|(name, text)| (*name, if *name == file { text.replace(from, to) } else { (*text).to_owned() }))
        .collect();
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let emulator = Emulator::compile_files(&config, sources::HEADERS, &texts, cache.path())
        .unwrap_or_else(|error| panic!("{error}"));
    let behaviour = Behaviour { order, fuses: false, records: false };
    let device = EmulatedDevice::of(emulator, precision, behaviour);
    let pair = Pair::new(DIMS, precision, Attention::Flash, Residual::Fp32, device, 1.0);
    let checks = kernels::checks();
    let (_, run) = checks.iter().find(|(name, _)| *name == check).expect("a check");
    run(&mut pair.expect("host memory"))
}

#[test]
fn every_planted_fault_is_found_and_nothing_else() {
    for check in ["layernorm", "linear layers", "head and loss"] {
        checked("", "", "", check, ThreadOrder::Shuffled(2))
            .unwrap_or_else(|wrong| panic!("{check}: {wrong}"));
    }
    for &(what, file, from, to, check) in FAULTS {
        let (_, text) = sources::SOURCES.iter().find(|(name, _)| *name == file).expect("a source");
        assert!(text.contains(from), "{what}: {file} does not contain {from:?}");
        let found = [ThreadOrder::Ascending, ThreadOrder::Descending]
            .into_iter()
            .any(|order| checked(file, from, to, check, order).is_err());
        assert!(found, "{what}: the check of {check} holds all the same");
    }
}
