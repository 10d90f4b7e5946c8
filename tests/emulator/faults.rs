//! Faults planted into the kernels, one at a time: the tests of the emulator and the checks of `runner doctor
//! --selftest` must notice each.
//!
//! Only what a check needs is compiled again for a fault, and one thread per core plants them.

use crate::flash;
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, EmulatedDevice, Emulator, ThreadOrder};
use runner::engine::cuda::kernels as sources;
use runner::engine::cuda::selftest::{RAGGED, kernels, pair::Pair};
use runner::engine::fused::backend::AttentionShape;
use runner::model::Dims;
use runner::recipe::{Attention, Precision};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

/// A fault: what it is, the file, and the text that another one replaces.
type Fault = (&'static str, &'static str, &'static str, &'static str);

const BACKWARD: &str = "flash_attention/backward.cu";
const FORWARD: &str = "flash_attention/forward.cu";
const TILE: &str = "flash_attention/tile.cuh";
const DRAWS: &str = "dropout/draws.cuh";
const LAYERNORM: &str = "layernorm/layernorm.cu";
const COLUMNS: &str = "linear/columns.cu";
const LOSS: &str = "loss/cross_entropy.cu";
const MUON: &str = "muon/muon.cu";

/// Rows of three warps, so that a block's reductions cross warps.
const DIMS: Dims = Dims { n_head: 15, n_embd: 300, ..RAGGED };

/// Where the forward pass fetches the next keys.
const FETCH_AHEAD: &str = "__syncthreads();
        // every warp is done with the previous tile, whose place the next one takes
        if (tile + 1 < key_tiles) fetch_keys(tile + 1);";

/// In the kernels of flash attention, which are held against the definition.
const OF_ATTENTION: &[Fault] = &[
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
    (
        "no barrier before delta is used",
        BACKWARD,
        "                }\n                __syncthreads();\n            }\n            // the keys",
        "                }\n            }\n            // the keys",
    ),
    ("delta is forgotten after the first keys", BACKWARD, "if (round > 0) {", "if (false) {"),
    ("delta of the first keys is not kept", BACKWARD, "own_deltas()[first_query + query] = delta;", "{}"),
    (
        "delta of other queries",
        BACKWARD,
        "source + (i64)query * pitch) + chunk",
        "source + (i64)lane * pitch) + chunk",
    ),
    (
        "no barrier before the warps' sums of columns are read",
        BACKWARD,
        "dvalues, 1.0f);\n        __syncthreads();",
        "dvalues, 1.0f);",
    ),
    (
        "a warp's sums of columns are left out",
        BACKWARD,
        "other < WARPS; other++",
        "other < WARPS - 1; other++",
    ),
    ("the columns of earlier keys are forgotten", BACKWARD, "round > 0 ? *to + sum : sum", "sum"),
    ("the columns of earlier queries are forgotten", BACKWARD, "column_sums[i][e] +=", "column_sums[i][e] ="),
    (
        "the sums of the queries' columns are not scaled",
        BACKWARD,
        "(column_sums[i][e]) * scale",
        "(column_sums[i][e])",
    ),
    (
        "lanes with the same column are left out",
        BACKWARD,
        "distance < WARP; distance",
        "distance < WARP / 2; distance",
    ),
    (
        "all parts leave their sums of columns in one place",
        BACKWARD,
        "((i64)row * parts + part) * pitch",
        "(i64)row * parts * pitch",
    ),
    (
        "sums of columns are written to another third",
        BACKWARD,
        "(1 + i / WIDTH) * width",
        "(2 - i / WIDTH) * width",
    ),
];

/// In other kernels, by the check of `runner doctor --selftest` that must notice them.
const OTHERS: &[(&str, &[Fault])] = &[
    (
        "layernorm",
        &[
            (
                "a missing barrier before the sums of warps are read",
                LAYERNORM,
                "    __syncthreads();\n    numbers = scratch[0];",
                "    numbers = scratch[0];",
            ),
            ("two turns that share their scratch: a race", LAYERNORM, "turn ^= 1", "turn ^= 0"),
            (
                "a wrong mask: columns beyond the row count towards its variance",
                LAYERNORM,
                "i + j < c ? values[r]",
                "true ? values[r]",
            ),
            (
                "a slice that ends behind the last row",
                LAYERNORM,
                "end = min(begin + per_slice, rows)",
                "end = begin + per_slice",
            ),
            ("a wrong stride of partial sums", LAYERNORM, "(i64)blockIdx.x * stride", "(i64)blockIdx.x * c"),
        ],
    ),
    (
        "linear layers",
        &[
            ("partial sums added up with a wrong stride", COLUMNS, "slice * stride", "slice * width"),
            (
                "a missing barrier before the sums of columns are read",
                COLUMNS,
                "    __syncthreads();\n    for (int column",
                "    for (int column",
            ),
            ("a row of each slice left out", COLUMNS, "row = first + warp", "row = first + warp + 1"),
        ],
    ),
    (
        "head and loss",
        &[
            ("padding that counts", LOSS, "i + j >= vocab_size", "i + j > vocab_size"),
            ("a row that is not put into shared memory", LOSS, "if (KEPT) store(", "if (false) store("),
            ("the row of another block", LOSS, "targets[row]", "targets[row ? row - 1 : 0]"),
        ],
    ),
    (
        "muon",
        &[
            ("the gradient is not looked ahead along", MUON, " + (x - ms.x[j]) * ahead", ""),
            ("gradients that stay", MUON, "*gradient = Quad{};", ""),
            ("a norm of some of the sums", MUON, "i < count;", "i < count / 8;"),
            ("the sum of squares of a warp", MUON, "block_sum(squares, scratch)", "squares"),
            ("a product without what is added", MUON, " + more.x[j] * other", ""),
            ("an update without decay", MUON, "ps.x[j] * keep", "ps.x[j]"),
            ("operands of before the update", MUON, "store_operands(low + i, 0, 4, ps)", "(void)low"),
        ],
    ),
    (
        "attention",
        &[
            ("sums elsewhere are added up with a wrong stride", COLUMNS, "stride = other_width;", ""),
            (
                "of the sums elsewhere too few are added",
                COLUMNS,
                "count = other_count;",
                "count = other_count - 1;",
            ),
        ],
    ),
    (
        "dropped attention",
        &[
            ("queries and keys draw each other's", TILE, "factors[TRANSPOSED ? 2 : 1]", "factors[1]"),
            ("all heads draw the same", DRAWS, "((u32)head << 10)", "0u"),
            ("rows beyond the first 2^32 draw those before", DRAWS, "(u64)of_batch[1] << 32", "(u64)0"),
            ("what is left out is not scaled back", BACKWARD, "ds * draws.scale()", "ds"),
            ("delta is forgotten", BACKWARD, "through - (e % 2 ? of_query.y : of_query.x)", "through"),
            (
                "what is left out adds to values",
                BACKWARD,
                "is_left_out(x) ? 0.0f : x * scale",
                "fabsf(x) * scale",
            ),
        ],
    ),
    (
        "dropped layernorm",
        &[
            ("positions draw alike", DRAWS, "(u32)(n % cols)", "0u"),
            (
                "sums of columns are of what came before",
                LAYERNORM,
                "old[r].x[j] *= factors[j]",
                "(void)factors[j]",
            ),
        ],
    ),
];

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator")
}

/// These files with kernels, with a fault or as they are.
fn compiled(config: &KernelConfig, files: &[&str], fault: Option<&Fault>) -> Emulator {
    let with_fault = |(name, text): &(&'static str, &'static str)| match fault {
        Some((what, file, from, to)) if file == name => {
            assert_eq!(text.matches(from).count(), 1, "{what}: {from:?} must be in one place of {file}");
            (*name, text.replace(from, to))
        }
        _ => (*name, (*text).to_owned()),
    };
    let headers: Vec<_> = sources::HEADERS.iter().map(with_fault).collect();
    let kernels = sources::SOURCES.iter().filter(|(name, _)| files.contains(name));
    let kernels: Vec<_> = kernels.map(with_fault).collect();
    let [headers, kernels] = [&headers, &kernels]
        .map(|files| files.iter().map(|(name, text)| (*name, text.as_str())).collect::<Vec<_>>());
    Emulator::compile_files(config, &headers, &kernels, &cache())
        .unwrap_or_else(|error| panic!("{fault:?}: {error}"))
}

/// The checks of these names are made of passes that leave nothing out, but for this prefix.
const DROPPED: &str = "dropped ";

const OF_FLASH: KernelConfig = KernelConfig { precision: Precision::Bf16, head_size: 32, dropout: false };
/// Both passes as they are.
static PASSES: LazyLock<[Emulator; 2]> =
    LazyLock::new(|| [FORWARD, BACKWARD].map(|file| compiled(&OF_FLASH, &[file], None)));

/// What is found of a fault in attention, with two tiles of keys and a part of one. A pass without the fault is not
/// compiled again.
fn attention(fault: Option<&Fault>) -> Result<(), String> {
    let shape = AttentionShape { rows: 1, cols: 290, n_head: 2, head_size: 32 };
    let [forward, backward] = &*PASSES;
    let again = |pass: &str| {
        let fault = fault.filter(|(_, file, ..)| [pass, TILE].contains(file));
        fault.map(|fault| compiled(&OF_FLASH, &[pass], Some(fault)))
    };
    let (faulty_forward, faulty_backward) = (again(FORWARD), again(BACKWARD));
    let passes = [faulty_forward.as_ref().unwrap_or(forward), faulty_backward.as_ref().unwrap_or(backward)];
    flash::examine(passes, &OF_FLASH, shape)
}

/// What a check finds of a fault in other kernels than those of attention.
fn others(check: &str, fault: Option<&Fault>, orders: &[ThreadOrder]) -> Result<(), String> {
    let dropped = check.strip_prefix(DROPPED);
    let check = dropped.unwrap_or(check);
    let (head_size, dropout) = (DIMS.head_size(), dropped.is_some());
    let config = KernelConfig { precision: Precision::Bf16, head_size, dropout };
    let way = kernels::ways(check, Precision::Bf16).into_iter().find(|way| way.dropout.is_some() == dropout);
    let way = way.expect("a way to check it");
    // what every check needs: the batch, the operands, and sums; and the kernels of this check
    let own: &[&str] = match check {
        "layernorm" => &[LAYERNORM],
        "muon" => &[MUON],
        "linear layers" => &["linear/linear.cu"],
        "attention" => &[FORWARD, BACKWARD],
        _ => &[],
    };
    let files = [&[LOSS, COLUMNS, "optimizer/step.cu"], own].concat();
    for &order in orders {
        let behaviour = Behaviour { order, fuses: false, records: false };
        let device = EmulatedDevice::of(compiled(&config, &files, fault), Precision::Bf16, behaviour);
        let pair = Pair::new(DIMS, Precision::Bf16, Attention::Flash, way, device, 1.0);
        let checks = kernels::checks();
        let (_, run) = checks.iter().find(|(name, _)| *name == check).expect("a check");
        run(&mut pair.expect("host memory"))?;
    }
    Ok(())
}

/// Plants faults on all cores at once, and returns those that nothing notices.
fn missed<F: Sync>(faults: &[F], is_missed: impl Fn(&F) -> Option<&'static str> + Sync) -> Vec<&'static str> {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    missed.lock().expect("no panic").extend(is_missed(fault));
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
    let missed = missed(OF_ATTENTION, |fault| attention(Some(fault)).is_ok().then_some(fault.0));
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}

#[test]
fn faults_of_other_kernels_are_noticed() {
    let orders = [ThreadOrder::Ascending, ThreadOrder::Descending];
    let faults: Vec<_> =
        OTHERS.iter().flat_map(|(check, faults)| faults.iter().map(move |fault| (check, fault))).collect();
    let missed =
        missed(&faults, |(check, fault)| others(check, Some(*fault), &orders).is_ok().then_some(fault.0));
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}
