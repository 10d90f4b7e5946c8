//! Initial weights.
//!
//! They are GPT-2's (Radford et al., 2019, as in the released code): N(0, 0.02²), with the projections onto
//! the residual stream scaled by 1/√(2·n_layer), LayerNorm scales 1, biases 0. Every value is a pure function
//! of (seed, tensor name, element), so it depends on neither the order of generation nor padding, device or
//! number of threads.

use super::{Dims, ParamLayout, Tensor};
use rayon::prelude::*;

/// Standard deviation of embeddings and matrices.
const STD: f64 = 0.02;
/// Elements that one task generates; even, because normal numbers come in pairs.
const GRAIN: usize = 16 * 1024;

/// Fills a flat parameter buffer (`layout.len` elements); padded embedding rows and gaps become zero.
pub fn initialize(dims: &Dims, layout: &ParamLayout, seed: u64, parameters: &mut [f32]) {
    parameters.fill(0.0);
    for tensor in &layout.tensors {
        let values = &mut parameters[tensor.range()];
        if tensor.name.ends_with("bias") {
            continue;
        }
        if !tensor.decayed {
            values.fill(1.0);
            continue;
        }
        let real = if tensor.name == "wte.weight" { dims.vocab_size * dims.n_embd } else { tensor.len() };
        normal(key(seed, &tensor.name), deviation(tensor, dims), &mut values[..real]);
    }
}

fn deviation(tensor: &Tensor, dims: &Dims) -> f64 {
    let onto_residual = tensor.name.ends_with("c_proj.weight");
    if onto_residual { STD / (2.0 * dims.n_layer as f64).sqrt() } else { STD }
}

/// The generator's key for one tensor.
fn key(seed: u64, name: &str) -> u64 {
    let digest = blake3::Hasher::new().update(&seed.to_le_bytes()).update(name.as_bytes()).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// SplitMix64 (Steele, Lea and Flood, 2014) indexed by a counter: the `index`-th output of the stream that
/// starts at `key`.
pub fn random_bits(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Normal numbers by the method of Box and Muller (1958): elements 2i and 2i+1 come from the i-th 64 random
/// bits.
fn normal(key: u64, std: f64, out: &mut [f32]) {
    out.par_chunks_mut(GRAIN).enumerate().for_each(|(chunk, out)| {
        for (i, pair) in out.chunks_mut(2).enumerate() {
            let bits = random_bits(key, (chunk * GRAIN / 2 + i) as u64);
            // uniform in (0, 1) and in [0, 1)
            let u = ((bits >> 32) as f64 + 0.5) / 4_294_967_296.0;
            let angle = (bits & 0xffff_ffff) as f64 / 4_294_967_296.0 * std::f64::consts::TAU;
            let radius = std * (-2.0 * libm::log(u)).sqrt();
            let (sin, cos) = libm::sincos(angle);
            pair[0] = (radius * cos) as f32;
            if let Some(second) = pair.get_mut(1) {
                *second = (radius * sin) as f32;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(vocab_size: usize, padded_vocab: usize) -> Dims {
        Dims { n_layer: 8, n_head: 4, n_embd: 64, block_size: 32, vocab_size, padded_vocab }
    }

    fn weights(dims: &Dims, seed: u64) -> (ParamLayout, Vec<f32>) {
        let layout = ParamLayout::new(dims);
        let mut values = vec![f32::NAN; layout.len];
        initialize(dims, &layout, seed, &mut values);
        (layout, values)
    }

    fn std_of(layout: &ParamLayout, values: &[f32], name: &str) -> f64 {
        let values = &values[layout.tensor(name).expect("the tensor exists").range()];
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        (values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    }

    #[test]
    fn deviations_are_gpt2s() {
        let (layout, values) = weights(&dims(1000, 1000), 1);
        assert!((std_of(&layout, &values, "wte.weight") - 0.02).abs() < 3e-4);
        assert!((std_of(&layout, &values, "h.3.mlp.c_fc.weight") - 0.02).abs() < 5e-4);
        assert!((std_of(&layout, &values, "h.3.mlp.c_proj.weight") - 0.005).abs() < 2e-4);
        assert!((std_of(&layout, &values, "h.3.attn.c_proj.weight") - 0.005).abs() < 2e-4);
        assert!(values[layout.ln_f_weight.clone()].iter().all(|&x| x == 1.0));
        assert!(values[layout.blocks[0].c_fc_bias.clone()].iter().all(|&x| x == 0.0));
    }

    #[test]
    fn padding_changes_no_weight_and_seeds_change_all() {
        let (plain, a) = weights(&dims(97, 97), 1);
        let (padded, b) = weights(&dims(97, 128), 1);
        let (_, c) = weights(&dims(97, 97), 2);
        for (x, y) in plain.tensors.iter().zip(&padded.tensors) {
            assert_eq!(a[x.range()], b[y.offset..][..x.len()], "{}", x.name);
        }
        assert!(b[97 * 64..128 * 64].iter().all(|&x| x == 0.0));
        let differing = a[plain.wpe.clone()].iter().zip(&c[plain.wpe.clone()]).filter(|(x, y)| x != y);
        assert!(differing.count() > 32 * 64 - 3);
    }
}
