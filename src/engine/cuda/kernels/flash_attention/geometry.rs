//! The launches of the flash attention kernels: blocks, threads and shared memory for each precision and head
//! size.
//!
//! The kernels choose their tiles when they are compiled (`kernels/flash_attention/`); this module makes the
//! same choice for the host. If it assumes a larger tile than the kernel, nothing breaks; the emulator
//! catches a smaller one.
//!
//! | kernel | arguments |
//! | --- | --- |
//! | `flash_forward` | qkv, out, lse, cols, n_head, scale |
//! | `flash_delta` | out, dout, delta, cols, n_head |
//! | `flash_backward_keys_values` | qkv, dout, lse, delta, dqkv, cols, n_head, scale |
//! | `flash_backward_queries` | qkv, dout, lse, delta, dqkv, cols, n_head, scale |
//!
//! With C = n_head · head_size: qkv and dqkv `[rows · cols, 3C]`, out and dout `[rows · cols, C]` are
//! operands; lse and delta `[rows, n_head, cols]` are fp32. cols and n_head are `int`, scale is a `float`.
//! Both backward kernels must run after `flash_delta`; each writes its own columns of dqkv. Pointers are
//! aligned to 16 bytes.

use crate::engine::cuda::device::KernelConfig;
use crate::engine::fused::backend::AttentionShape;
use crate::recipe::Precision;

/// The widest head that the kernels support.
pub const LARGEST_HEAD: usize = 128;

/// Threads per block.
const THREADS: usize = 128;
const WARPS: usize = THREADS / 32;
/// The fewest rows of a result that a warp holds.
const ROWS: usize = 16;
/// Shared memory of a block that every supported device has: `SMALLEST_SHARED` of `tile.cuh`.
const SMALLEST_SHARED: usize = 99 * 1024;

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
    /// `flash_delta`.
    pub delta: Geometry,
    /// `flash_backward_keys_values`.
    pub backward_keys_values: Geometry,
    /// `flash_backward_queries`.
    pub backward_queries: Geometry,
    /// 1/√head_size.
    pub scale: f32,
}

/// The tile sizes of a configuration.
struct Tiles {
    /// Bytes of one row of a tile.
    row: usize,
    /// Queries per block of the forward kernel, and keys fetched at a time.
    forward: (usize, usize),
    /// Keys (or queries) per block of the backward kernels, and queries (or keys) fetched at a time.
    backward: (usize, usize),
}

impl Tiles {
    fn new(config: &KernelConfig) -> Self {
        let width = config.head_size.next_multiple_of(16);
        let narrow = matches!(config.precision, Precision::Bf16 | Precision::Fp16);
        let element = if narrow { 2 } else { 4 };
        let passes = if narrow { 64 } else { 32 };
        let (forward, backward) = if width <= 64 { (2, passes) } else { (1, passes / 2) };
        Self {
            row: width * element + 16,
            forward: (forward * WARPS * ROWS, passes),
            backward: (WARPS * ROWS, backward),
        }
    }
}

/// Bytes of the resident tiles and of one set of streamed tiles, or of two sets if they fit.
fn shared(resident: usize, streamed: usize) -> u32 {
    let two = resident + 2 * streamed;
    let bytes = if two <= SMALLEST_SHARED { two } else { resident + streamed };
    u32::try_from(bytes).expect("less than SMALLEST_SHARED")
}

impl Flash {
    /// The launches for heads of at most [`LARGEST_HEAD`]; `None` for wider heads, for which there are no
    /// kernels.
    pub fn new(config: &KernelConfig, shape: AttentionShape) -> Option<Self> {
        let AttentionShape { rows, cols, n_head, head_size } = shape;
        assert_eq!(head_size, config.head_size, "kernels are compiled for one head size");
        if head_size > LARGEST_HEAD {
            return None;
        }
        let Tiles { row, forward, backward } = Tiles::new(config);
        let geometry = |tile: usize, shared| {
            let grid = [cols.div_ceil(tile), n_head, rows];
            let grid = grid.map(|blocks| u32::try_from(blocks).expect("a shape that fits into memory"));
            Geometry { grid, block: THREADS as u32, shared }
        };
        // a query's statistics are streamed along with it
        let statistics = 2 * size_of::<f32>();
        let (stays, passes) = backward;
        Some(Self {
            forward: geometry(forward.0, shared(forward.0 * row, 2 * forward.1 * row)),
            delta: geometry(WARPS, 0),
            backward_keys_values: geometry(stays, shared(2 * stays * row, passes * (2 * row + statistics))),
            backward_queries: geometry(stays, shared(2 * stays * row, 2 * passes * row)),
            scale: 1.0 / (head_size as f32).sqrt(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flash(precision: Precision, head_size: usize, cols: usize) -> Option<Flash> {
        let shape = AttentionShape { rows: 3, cols, n_head: 12, head_size };
        Flash::new(&KernelConfig { precision, head_size }, shape)
    }

    #[test]
    fn launches_of_gpt2_in_bf16() {
        let flash = flash(Precision::Bf16, 64, 1000).expect("narrow enough");
        // a row is 64 elements and 16 bytes of padding
        let row = 2 * 64 + 16;
        let geometry = |tiles, shared| Geometry { grid: [tiles, 12, 3], block: 128, shared };
        // 128 queries, and two sets of 64 keys and 64 values
        assert_eq!(flash.forward, geometry(8, (128 + 2 * 2 * 64) * row));
        assert_eq!(flash.delta, geometry(250, 0));
        assert_eq!(flash.backward_keys_values, geometry(16, (2 * 64 + 2 * 2 * 64) * row + 2 * 64 * 8));
        assert_eq!(flash.backward_queries, geometry(16, (2 * 64 + 2 * 2 * 64) * row));
        assert_eq!(flash.scale, 0.125);
    }

    #[test]
    fn streamed_tiles_that_do_not_fit_twice_have_one_set() {
        let flash = flash(Precision::Fp32, 128, 1).expect("narrow enough");
        let row = 4 * 128 + 16;
        assert_eq!(flash.backward_queries.shared, (2 * 64 + 2 * 2 * 16) * row);
        assert_eq!(flash.backward_keys_values.shared, (2 * 64 + 2 * 16) * row + 16 * 8);
    }

    #[test]
    fn every_head_fits_every_device_and_every_row_is_covered() {
        for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
            for head_size in 1..=LARGEST_HEAD {
                for cols in [1, 64, 65, 1024] {
                    let flash = flash(precision, head_size, cols).expect("narrow enough");
                    for launch in [flash.forward, flash.backward_keys_values, flash.backward_queries] {
                        assert!(
                            launch.shared as usize <= SMALLEST_SHARED,
                            "{precision:?} {head_size}: {launch:?}"
                        );
                        assert!(launch.grid[0] as usize * 128 >= cols);
                    }
                    assert!(flash.delta.grid[0] as usize * 4 >= cols);
                }
            }
            assert_eq!(super::tests::flash(precision, LARGEST_HEAD + 1, 64), None);
        }
    }
}
