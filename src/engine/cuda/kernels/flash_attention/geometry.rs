//! The tiles of the flash attention kernels, and their launches: blocks, threads, shared memory and scratch for each
//! precision and head size.
//!
//! The table below is the only place that knows the sizes of tiles. The kernels get them as macros when they are
//! compiled ([`defines`]).
//!
//! | kernel | arguments |
//! | --- | --- |
//! | `flash_forward` | qkv, out, lse, cols, n_head, scale, draws, site |
//! | `flash_backward` | qkv, out, dout, lse, dqkv, sums, delta, columns, cols, n_head, scale, draws, site |
//! | `flash_backward_sum` | sums, dqkv, cols, n_head, parts, scale |
//!
//! With C = n_head · head_size: qkv and dqkv `[rows · cols, 3C]`, out and dout `[rows · cols, C]` are operands; lse
//! (to base 2) `[rows, n_head, cols]`, delta `[rows, n_head, parts, cols]`, columns `[rows, parts, 3C]` and sums are
//! fp32. cols, n_head and parts are `int`, scale is a `float`; draws and site are what probabilities are dropped by
//! (`dropout/draws.cuh`), null and -1 for nothing. `flash_backward_sum` runs after `flash_backward`, only
//! if heads have several parts. Pointers are aligned to 16 bytes, but for those of delta and columns.

use crate::engine::cuda::device::KernelConfig;
use crate::engine::fused::backend::AttentionShape;
use crate::recipe::Precision;

/// The widest head that the kernels support.
pub const LARGEST_HEAD: usize = 128;

/// Threads that run together.
const WARP: usize = 32;
/// Shared memory that a block can have on every device from sm_80 on; sm_86 and sm_89 have the least.
const SMALLEST_SHARED: usize = 99 * 1024;
/// Blocks of the backward pass that are enough for any device: six for each multiprocessor of an H100, which two at a
/// time share. Fewer heads are cut into parts.
const ENOUGH_BLOCKS: usize = 6 * 132;
/// The most parts of a head. Each has sums of its own, and memory is to stay linear in the number of tokens.
const MOST_PARTS: usize = 4;

/// The sizes of tiles for operands of some bytes, and heads up to some width. Each field but the first two is a macro
/// of the kernels, `FLASH_` and its name in capitals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiles {
    /// Bytes of an operand.
    operand: usize,
    /// The widest head.
    widest: usize,
    /// Warps of a block of `flash_forward`.
    forward_warps: usize,
    /// Queries of a block, which stay.
    forward_queries: usize,
    /// Keys that are fetched at a time, into one of two places.
    forward_keys: usize,
    /// Blocks for which a multiprocessor must have registers.
    forward_blocks: usize,
    /// Warps of a block of `flash_backward`.
    backward_warps: usize,
    /// Keys of a block, which stay until all queries have seen them.
    backward_keys: usize,
    /// Queries that are fetched at a time.
    backward_queries: usize,
    /// Places for them: with 2, the next ones are fetched while these are used.
    backward_stages: usize,
    /// Blocks for which a multiprocessor must have registers.
    backward_blocks: usize,
}

/// The first row that fits counts. Within what registers and shared memory allow, a warp holds 32 rows of the
/// resident tile instead of 16, so that it uses each fragment of the streamed tile twice. `scripts/nvrtc_check.py`
/// reads this table.
#[rustfmt::skip]
const TILES: [Tiles; 6] = [
    Tiles {
        operand: 2, widest: 64,
        forward_warps: 4, forward_queries: 128, forward_keys: 64, forward_blocks: 2,
        backward_warps: 4, backward_keys: 128, backward_queries: 32, backward_stages: 2, backward_blocks: 2,
    },
    Tiles {
        operand: 2, widest: 96,
        forward_warps: 4, forward_queries: 128, forward_keys: 32, forward_blocks: 2,
        backward_warps: 8, backward_keys: 128, backward_queries: 32, backward_stages: 2, backward_blocks: 1,
    },
    Tiles {
        operand: 2, widest: 128,
        forward_warps: 4, forward_queries: 128, forward_keys: 32, forward_blocks: 2,
        backward_warps: 8, backward_keys: 128, backward_queries: 32, backward_stages: 1, backward_blocks: 1,
    },
    Tiles {
        operand: 4, widest: 64,
        forward_warps: 4, forward_queries: 128, forward_keys: 32, forward_blocks: 2,
        backward_warps: 4, backward_keys: 64, backward_queries: 32, backward_stages: 2, backward_blocks: 2,
    },
    Tiles {
        operand: 4, widest: 112,
        forward_warps: 4, forward_queries: 64, forward_keys: 32, forward_blocks: 2,
        backward_warps: 4, backward_keys: 64, backward_queries: 16, backward_stages: 2, backward_blocks: 2,
    },
    Tiles {
        operand: 4, widest: 128,
        forward_warps: 4, forward_queries: 64, forward_keys: 32, forward_blocks: 2,
        backward_warps: 4, backward_keys: 64, backward_queries: 16, backward_stages: 1, backward_blocks: 2,
    },
];

const _: () = {
    let mut i = 0;
    while i < TILES.len() {
        let tiles = &TILES[i];
        assert!(tiles.forward_shared(tiles.widest) <= SMALLEST_SHARED, "tiles must fit every device");
        assert!(tiles.backward_shared(tiles.widest) <= SMALLEST_SHARED, "tiles must fit every device");
        i += 1;
    }
};

impl Tiles {
    /// The tiles of a configuration; `None` for heads that are too wide.
    fn of(config: &KernelConfig) -> Option<Self> {
        let operand = if matches!(config.precision, Precision::Bf16 | Precision::Fp16) { 2 } else { 4 };
        TILES.into_iter().find(|tiles| tiles.operand == operand && config.head_size <= tiles.widest)
    }

    /// Bytes of the shared memory of `flash_forward`: queries, and two places for keys and values.
    const fn forward_shared(&self, head_size: usize) -> usize {
        (self.forward_queries + 2 * 2 * self.forward_keys) * self.row(padded(head_size))
    }

    /// Bytes of the shared memory of `flash_backward`: keys and values, places for queries and the gradients of their
    /// outputs with two statistics, and the gradients of scores.
    const fn backward_shared(&self, head_size: usize) -> usize {
        let row = self.row(padded(head_size));
        let streamed = self.backward_queries * (2 * row + 2 * size_of::<f32>());
        let dscores = self.backward_keys * self.row(self.backward_queries);
        2 * self.backward_keys * row + self.backward_stages * streamed + dscores
    }

    /// Blocks that share a head in the backward pass.
    fn parts(&self, shape: AttentionShape) -> usize {
        // with two tiles of keys, an early and a late one, a part sees as much as any other
        let most = shape.cols.div_ceil(self.backward_keys).div_ceil(2).clamp(1, MOST_PARTS);
        (ENOUGH_BLOCKS / (shape.rows * shape.n_head).max(1)).clamp(1, most)
    }

    /// Elements of the sums that the blocks of the backward pass keep.
    fn sums(&self, shape: AttentionShape) -> usize {
        let queries = shape.cols.next_multiple_of(self.backward_queries);
        shape.rows * shape.n_head * self.parts(shape) * queries * padded(shape.head_size)
    }

    /// Elements of the sums that one launch writes: a part begins at the tile of keys with its number, and a block that
    /// has its head alone keeps no sum of queries which see one tile of keys only.
    fn kept(&self, shape: AttentionShape) -> usize {
        let queries = shape.cols.next_multiple_of(self.backward_queries);
        let parts = self.parts(shape);
        let begins = if parts == 1 { 1..2 } else { 0..parts };
        let seen: usize = begins.map(|tile| queries.saturating_sub(tile * self.backward_keys)).sum();
        shape.rows * shape.n_head * seen * padded(shape.head_size)
    }

    /// Elements of delta: of every query, for each part.
    fn delta(&self, shape: AttentionShape) -> usize {
        shape.rows * shape.n_head * self.parts(shape) * shape.cols
    }

    /// Elements of delta that one launch writes: a part begins at the tile of keys with its number.
    fn deltas_kept(&self, shape: AttentionShape) -> usize {
        let seen = |part: usize| shape.cols.saturating_sub(part * self.backward_keys);
        shape.rows * shape.n_head * (0..self.parts(shape)).map(seen).sum::<usize>()
    }

    /// Elements of the sums of columns: of queries, keys and values, for each part of each row of the batch.
    fn columns(&self, shape: AttentionShape) -> usize {
        shape.rows * self.parts(shape) * 3 * shape.n_head * shape.head_size
    }

    /// All that the backward pass keeps beside its results.
    fn scratch(&self, shape: AttentionShape) -> usize {
        self.sums(shape) + self.delta(shape) + self.columns(shape)
    }

    /// Bytes from one row of a tile to the next: 16 more than its elements take.
    const fn row(&self, elements: usize) -> usize {
        elements * self.operand + 16
    }
}

/// Columns of a head in shared memory and in the sums of the backward pass.
const fn padded(head_size: usize) -> usize {
    head_size.next_multiple_of(16)
}

/// The macros that give the kernels of a configuration their tiles, as compiler options; none for heads that are too
/// wide for flash attention.
pub fn defines(config: &KernelConfig) -> Vec<String> {
    let Some(tiles) = Tiles::of(config) else { return Vec::new() };
    let macros = [
        ("FORWARD_WARPS", tiles.forward_warps),
        ("FORWARD_QUERIES", tiles.forward_queries),
        ("FORWARD_KEYS", tiles.forward_keys),
        ("FORWARD_BLOCKS", tiles.forward_blocks),
        ("BACKWARD_WARPS", tiles.backward_warps),
        ("BACKWARD_KEYS", tiles.backward_keys),
        ("BACKWARD_QUERIES", tiles.backward_queries),
        ("BACKWARD_STAGES", tiles.backward_stages),
        ("BACKWARD_BLOCKS", tiles.backward_blocks),
    ];
    macros.map(|(name, value)| format!("-DFLASH_{name}={value}")).into()
}

/// The configuration of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory; more than 48 KiB must be requested with
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub shared: u32,
}

/// The launches of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flash {
    /// `flash_forward`.
    pub forward: Geometry,
    /// `flash_backward`.
    pub backward: Geometry,
    /// `flash_backward_sum`, needed if there are several parts.
    pub backward_sum: Geometry,
    /// Blocks that share a head in the backward pass. It depends on the shape only, so equal inputs give equal bits.
    pub parts: usize,
    /// Elements (fp32) of the sums that the blocks of the backward pass keep.
    pub sums: usize,
    /// Those of them that are written for this shape.
    pub kept: usize,
    /// Elements (fp32) of delta, of which each part has its own.
    pub delta: usize,
    /// Those of them that are written for this shape.
    pub deltas_kept: usize,
    /// Elements (fp32) of the sums of columns of dqkv, of which each part of each row of the batch has its own.
    pub columns: usize,
    /// 1/√head_size.
    pub scale: f32,
}

impl Flash {
    /// The launches for heads of at most [`LARGEST_HEAD`]; `None` for wider heads, for which there are no kernels.
    pub fn new(config: &KernelConfig, shape: AttentionShape) -> Option<Self> {
        let AttentionShape { rows, cols, n_head, head_size } = shape;
        assert_eq!(head_size, config.head_size, "kernels are compiled for one head size");
        let tiles = Tiles::of(config)?;
        let geometry = |blocks: usize, warps: usize, shared: usize| {
            let narrow = |number| u32::try_from(number).expect("a shape that fits into memory");
            Geometry {
                grid: [blocks, n_head, rows].map(narrow),
                block: narrow(warps * WARP),
                shared: narrow(shared),
            }
        };
        let parts = tiles.parts(shape);
        let query_tiles = cols.div_ceil(tiles.backward_queries);
        Some(Self {
            forward: geometry(
                cols.div_ceil(tiles.forward_queries),
                tiles.forward_warps,
                tiles.forward_shared(head_size),
            ),
            backward: geometry(parts, tiles.backward_warps, tiles.backward_shared(head_size)),
            backward_sum: geometry(query_tiles, tiles.backward_warps, 0),
            parts,
            sums: tiles.sums(shape),
            kept: tiles.kept(shape),
            delta: tiles.delta(shape),
            deltas_kept: tiles.deltas_kept(shape),
            columns: tiles.columns(shape),
            scale: 1.0 / (head_size as f32).sqrt(),
        })
    }
}

/// Elements of the backward pass's scratch that suffice for this shape and for every one with fewer rows or columns; 0
/// for heads that are too wide.
pub(super) fn most_scratch(config: &KernelConfig, shape: AttentionShape) -> usize {
    let Some(tiles) = Tiles::of(config) else { return 0 };
    // fewer rows may have more parts: the most rows that have at least so many
    let turns =
        (1..=MOST_PARTS).map(|parts| (ENOUGH_BLOCKS / (parts * shape.n_head)).clamp(1, shape.rows.max(1)));
    let scratch = turns.chain([shape.rows]).map(|rows| tiles.scratch(AttentionShape { rows, ..shape }));
    scratch.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRECISIONS: [Precision; 4] = [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16];

    fn flash(precision: Precision, head_size: usize, rows: usize, cols: usize) -> Option<Flash> {
        let shape = AttentionShape { rows, cols, n_head: 12, head_size };
        Flash::new(&KernelConfig { precision, head_size, dropout: false }, shape)
    }

    #[test]
    fn launches_of_gpt2_in_bf16() {
        let flash = flash(Precision::Bf16, 64, 64, 1000).expect("narrow enough");
        // a row is 64 elements and 16 bytes of padding
        let row = 2 * 64 + 16;
        let geometry = |blocks, shared| Geometry { grid: [blocks, 12, 64], block: 128, shared };
        // 128 queries, and two sets of 64 keys and 64 values
        assert_eq!(flash.forward, geometry(8, (128 + 2 * 2 * 64) * row));
        // one part: a number for each query and head, and three times the width for each row of the batch
        assert_eq!(
            [flash.delta, flash.deltas_kept, flash.columns],
            [64 * 12 * 1000, 64 * 12 * 1000, 64 * 3 * 768]
        );
        // 128 keys and values, two sets of 32 queries, gradients and statistics, and 128 rows of 32 gradients
        let shared = (2 * 128 + 2 * 2 * 32) * row + 2 * 32 * 8 + 128 * (2 * 32 + 16);
        assert_eq!(flash.backward, geometry(1, shared));
        assert_eq!(flash.backward_sum, geometry(32, 0));
        assert_eq!((flash.parts, flash.sums), (1, 64 * 12 * 1024 * 64));
        assert_eq!(flash.kept, 64 * 12 * (1024 - 128) * 64);
        assert_eq!(flash.scale, 0.125);
    }

    #[test]
    fn few_heads_are_cut_into_parts_of_two_tiles_at_least() {
        let parts = |rows, cols| flash(Precision::Bf16, 64, rows, cols).expect("narrow enough").parts;
        assert_eq!([1, 8, 16, 32, 64].map(|rows| parts(rows, 1024)), [4, 4, 4, 2, 1]);
        assert_eq!([1, 128, 129, 256, 257, 385, 4096].map(|cols| parts(1, cols)), [1, 1, 1, 1, 2, 2, 4]);
    }

    #[test]
    fn the_scratch_of_a_plan_suffices_for_every_smaller_batch() {
        let config = KernelConfig { precision: Precision::Bf16, head_size: 64, dropout: false };
        for rows in [1, 3, 40, 70] {
            let shape = AttentionShape { rows, cols: 600, n_head: 12, head_size: 64 };
            let (tiles, most) = (Tiles::of(&config).expect("narrow enough"), most_scratch(&config, shape));
            let scratch = |rows, cols| tiles.scratch(AttentionShape { rows, cols, ..shape });
            for rows in 1..=rows {
                for cols in [1, 128, 129, 500, 600] {
                    assert!(scratch(rows, cols) <= most, "{rows} x {cols}");
                }
            }
            assert_eq!((1..=rows).map(|rows| scratch(rows, 600)).max(), Some(most), "no more than that");
            // for each part of a head: sums of its queries, delta, and sums of its columns
            assert!(most <= ENOUGH_BLOCKS.max(rows * 12) * (608 * 64 + 600 + 3 * 64), "{most}");
        }
        let wide = AttentionShape { rows: 1, cols: 64, n_head: 1, head_size: LARGEST_HEAD + 1 };
        assert_eq!(most_scratch(&KernelConfig { head_size: LARGEST_HEAD + 1, ..config }, wide), 0);
    }

    #[test]
    fn every_head_fits_every_device_and_every_row_is_covered() {
        for precision in PRECISIONS {
            for head_size in 1..=LARGEST_HEAD {
                let config = KernelConfig { precision, head_size, dropout: false };
                let tiles = Tiles::of(&config).expect("narrow enough");
                assert_eq!(defines(&config).len(), 9);
                for cols in [1, 64, 65, 1024] {
                    let flash = flash(precision, head_size, 3, cols).expect("narrow enough");
                    for launch in [flash.forward, flash.backward] {
                        let fits = launch.shared as usize <= SMALLEST_SHARED;
                        assert!(fits, "{precision:?} {head_size}: {launch:?}");
                    }
                    for (launch, tile) in
                        [(flash.forward, tiles.forward_queries), (flash.backward_sum, tiles.backward_queries)]
                    {
                        let covered = launch.grid[0] as usize * tile;
                        assert!((cols..cols + tile).contains(&covered), "{launch:?}");
                    }
                }
            }
            assert_eq!(flash(precision, LARGEST_HEAD + 1, 3, 64), None);
            assert!(
                defines(&KernelConfig { precision, head_size: LARGEST_HEAD + 1, dropout: false }).is_empty()
            );
        }
    }
}
