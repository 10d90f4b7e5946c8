//! Faults planted into the flash attention kernels, one at a time: the tests of the emulator must notice each.

use crate::flash;
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::Emulator;
use runner::engine::cuda::kernels;
use runner::engine::fused::backend::AttentionShape;
use runner::recipe::Precision;
use std::path::Path;

/// A fault: what it is, the file, and the text that another one replaces.
type Fault = (&'static str, &'static str, &'static str, &'static str);

const BACKWARD: &str = "flash_attention/backward.cu";
const FORWARD: &str = "flash_attention/forward.cu";
const TILE: &str = "flash_attention/tile.cuh";

/// Where the forward pass fetches the next keys.
const FETCH_AHEAD: &str = "__syncthreads();
        // every warp is done with the previous tile, whose place the next one takes
        if (tile + 1 < key_tiles) fetch_keys(tile + 1);";

const FAULTS: &[Fault] = &[
    (
        "no barrier before keys and values are used",
        FORWARD,
        "copy_async_wait<0>();\n        __syncthreads();",
        "copy_async_wait<0>();",
    ),
    (
        "the place of keys that others still use is filled",
        FORWARD,
        FETCH_AHEAD,
        "if (tile + 1 < key_tiles) fetch_keys(tile + 1);\n        __syncthreads();",
    ),
    ("keys are used before they arrive", FORWARD, "copy_async_wait<0>()", "copy_async_wait<1>()"),
    ("a warp leaves out the keys on the diagonal", FORWARD, "own + ROWS * M) {", "own) {"),
    ("a query does not see itself", TILE, ": column > row)", ": column >= row)"),
    ("a key is not seen by its own query", TILE, "? row > column :", "? row >= column :"),
    ("a key is seen by earlier queries", TILE, "? row > column :", "? row > column + 1 :"),
    (
        "chunks go to the wrong lane",
        TILE,
        "swap_halves(piece[0], piece[2], 2)",
        "swap_halves(piece[0], piece[2], 1)",
    ),
    (
        "rows and columns of a left factor are swapped",
        TILE,
        "(lane % 8 + lane / 16 * 8) * LEFT_STRIDE + lane / 8 % 2 * 8",
        "lane % 16 * LEFT_STRIDE + lane / 16 * 8",
    ),
    (
        "gradients of scores are kept with another stride",
        BACKWARD,
        "keep<DSCORES_STRIDE>",
        "keep<DSCORES_STRIDE - 8>",
    ),
    (
        "no barrier before queries are used",
        BACKWARD,
        "copy_async_wait<0>();\n            __syncthreads();",
        "copy_async_wait<0>();",
    ),
    ("queries are used before they arrive", BACKWARD, "copy_async_wait<0>()", "copy_async_wait<1>()"),
    (
        "no barrier before gradients of scores are used",
        BACKWARD,
        "__syncthreads();\n            if (STAGES == 1)",
        "if (STAGES == 1)",
    ),
    ("no barrier before keys are replaced", BACKWARD, "if (round > 0) __syncthreads();", ""),
    (
        "the next queries take the place of these",
        BACKWARD,
        "stage = tile % STAGES * QUERIES;\n            fetch",
        "stage = tile % 1 * QUERIES;\n            fetch",
    ),
    (
        "queries on the diagonal see too few keys",
        BACKWARD,
        "min(KEYS, first_query + QUERIES - first_key)",
        "min(KEYS, first_query + ROWS - first_key)",
    ),
    ("sums that nothing has written are read", BACKWARD, "if (round > 0 && warp", "if (warp"),
    ("what earlier keys have added is lost", BACKWARD, "sum.add(before[i]);", ""),
    (
        "all parts keep their sums in one place",
        BACKWARD,
        "(task * parts + part) * query_tiles",
        "task * parts * query_tiles",
    ),
    (
        "all heads keep their sums in one place",
        BACKWARD,
        "(task * parts + part) * query_tiles",
        "part * query_tiles",
    ),
    (
        "parts take tiles twice",
        BACKWARD,
        "round % 2 ? parts - 1 - part : part",
        "round % 2 ? parts - 2 - part : part",
    ),
    (
        "a part is left out of the sum",
        BACKWARD,
        "first_query / BACKWARD_KEYS + 1",
        "max(first_query / BACKWARD_KEYS, 1)",
    ),
    ("a part that has seen nothing is added", BACKWARD, "first_query / BACKWARD_KEYS + 1", "parts"),
    ("queries are written before their last keys", BACKWARD, "first_key + KEYS;", "first_key + KEYS + KEYS;"),
    (
        "the last queries of a tile are not written",
        BACKWARD,
        "QUERIES <= first_key + KEYS;",
        "QUERIES < first_key + KEYS;",
    ),
    ("the gradients of keys are not scaled", BACKWARD, "0, dkeys, scale)", "0, dkeys, 1.0f)"),
    ("delta leaves out half of a head", BACKWARD, "int distance = LANES / 2;", "int distance = LANES / 4;"),
];

/// The kernels of flash attention, with a fault or as they are.
fn compiled(config: &KernelConfig, fault: Option<&Fault>) -> Emulator {
    let flash = kernels::SOURCES.iter().filter(|(name, _)| name.starts_with("flash_attention/"));
    let mut files: Vec<(&str, String)> =
        kernels::HEADERS.iter().chain(flash).map(|(name, text)| (*name, (*text).to_owned())).collect();
    if let Some((what, file, from, to)) = fault {
        let (_, text) = files.iter_mut().find(|(name, _)| name == file).expect("a file of the kernels");
        assert_eq!(text.matches(from).count(), 1, "{what}: {from:?} must be in one place of {file}");
        *text = text.replace(from, to);
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (headers, sources) = files.split_at(kernels::HEADERS.len());
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    Emulator::compile_files(config, headers, sources, &cache)
        .unwrap_or_else(|error| panic!("{fault:?}: {error}"))
}

/// What is found of a fault, with two tiles of keys and a part of one.
fn examined(fault: Option<&Fault>) -> Result<(), String> {
    let config = KernelConfig { precision: Precision::Bf16, head_size: 32 };
    let shape = AttentionShape { rows: 1, cols: 290, n_head: 2, head_size: 32 };
    flash::examine(&compiled(&config, fault), &config, shape)
}

/// Plants the faults of these files.
fn all_are_noticed(files: &[&str]) {
    let here: Vec<_> = FAULTS.iter().filter(|(_, file, _, _)| files.contains(file)).collect();
    assert!(here.len() >= 4, "{files:?}");
    let missed: Vec<_> = here.into_iter().filter(|fault| examined(Some(fault)).is_ok()).collect();
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}

#[test]
fn without_a_fault_nothing_is_found() {
    examined(None).expect("right kernels");
}

#[test]
fn faults_of_the_forward_pass_are_noticed() {
    all_are_noticed(&[FORWARD]);
}

#[test]
fn faults_of_tiles_are_noticed() {
    all_are_noticed(&[TILE]);
}

#[test]
fn faults_of_the_backward_pass_are_noticed() {
    all_are_noticed(&[BACKWARD]);
}
