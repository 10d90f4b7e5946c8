//! The faults that are planted into the kernels.

/// A fault: what it is, the file, and the text that another one replaces.
pub(crate) type Fault = (&'static str, &'static str, &'static str, &'static str);

pub(crate) const BACKWARD: &str = "flash_attention/backward.cu";
pub(crate) const FORWARD: &str = "flash_attention/forward.cu";
pub(crate) const TILE: &str = "flash_attention/tile.cuh";
pub(crate) const DRAWS: &str = "dropout/draws.cuh";
pub(crate) const LAYERNORM: &str = "layernorm/layernorm.cuh";
const BIASES: &str = "layernorm/layernorm.cu";
pub(crate) const HALVES: &str = "halves/halves.cuh";
pub(crate) const COLUMNS: &str = "linear/columns.cu";
pub(crate) const LOSS: &str = "loss/cross_entropy.cu";
pub(crate) const MUON: &str = "muon/muon.cu";

/// Where the forward pass fetches the next keys.
const FETCH_AHEAD: &str = "__syncthreads();
        // every warp is done with the previous tile, whose place the next one takes
        if (tile + 1 < key_tiles) fetch_keys(tile + 1);";

/// In the kernels of flash attention, which are held against the definition.
pub(crate) const OF_ATTENTION: &[Fault] = &[
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
pub(crate) const OTHERS: &[(&str, &[Fault])] = &[
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
            (
                "the forward pass forgets what the stream lacks",
                LAYERNORM,
                "            add(value, lacked);",
                "",
            ),
            ("the backward pass forgets what the stream lacks", LAYERNORM, "add(h[r], lacked);", ""),
            ("the second bias of a block is the first again", BIASES, "+ k % 2 * between", ""),
            ("a rest counts upwards only", HALVES, "(u32)(int)(short)rest", "(u32)rest"),
            ("rests change places", HALVES, "<< j % 2 * 16", "<< (1 - j % 2) * 16"),
            (
                "a rest is not kept",
                HALVES,
                "store_word<USE>(row.rest + i, make_uint2(rests[0], rests[1]));",
                "",
            ),
        ],
    ),
    (
        "embedding",
        &[
            ("the embedding of another position", LAYERNORM, "row % cols * c", "row / cols * c"),
            (
                "embeddings that are not kept",
                LAYERNORM,
                "if (ADDED != NOTHING) store",
                "if (ADDED == PROJECTION) store",
            ),
            (
                "positions end with another row",
                LAYERNORM,
                "(first + r + 1) % positions.sequences == 0",
                "(first + r + 2) % positions.sequences == 0",
            ),
            (
                "the sum of a position goes on into the next",
                LAYERNORM,
                "                    sum_at = Quad{};\n",
                "",
            ),
            ("the gradient of positions is overwritten", LAYERNORM, "add(sum_at, load<4>(at, i, c));", ""),
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
            ("positions draw alike", DRAWS, "token % tokens", "0u"),
            (
                "sums of columns are of what came before",
                LAYERNORM,
                "old[r].x[j] *= factors[j]",
                "(void)factors[j]",
            ),
        ],
    ),
];
