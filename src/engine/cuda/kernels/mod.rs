//! The sources of the CUDA kernels, which are compiled when a run begins, for its device, precision and head
//! size.
//!
//! All of them form one translation unit, both for NVRTC and for the emulator. Add new files to the lists
//! below.

pub(super) mod dropout;
pub(super) mod embedding;
pub mod flash_attention;
pub(super) mod layernorm;
pub(super) mod linear;
pub(super) mod loss;
pub(super) mod muon;
pub(super) mod naive_attention;
pub(super) mod next;
pub(super) mod optimizer;
pub(super) mod ready;

use super::device::{Address, KernelConfig};
use super::scratch::{PARTIAL_ROWS, PARTIALS};
use crate::engine::memory::Element;
use crate::recipe::Precision;

/// The headers: (name in `#include`, text).
pub const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("common.cuh")),
    ("numbers.cuh", include_str!("numbers.cuh")),
    ("tensor_core.cuh", include_str!("tensor_core.cuh")),
    ("embedding/embedding.cuh", include_str!("embedding/embedding.cuh")),
    ("layernorm/layernorm.cuh", include_str!("layernorm/layernorm.cuh")),
    ("halves/halves.cuh", include_str!("halves/halves.cuh")),
    ("dropout/draws.cuh", include_str!("dropout/draws.cuh")),
    ("linear/gelu.cuh", include_str!("linear/gelu.cuh")),
    ("flash_attention/tile.cuh", include_str!("flash_attention/tile.cuh")),
];

/// The files with kernels: (name, text).
pub const SOURCES: &[(&str, &str)] = &[
    ("embedding/embedding.cu", include_str!("embedding/embedding.cu")),
    ("dropout/dropout.cu", include_str!("dropout/dropout.cu")),
    ("layernorm/layernorm.cu", include_str!("layernorm/layernorm.cu")),
    ("halves/halves.cu", include_str!("halves/halves.cu")),
    ("linear/linear.cu", include_str!("linear/linear.cu")),
    ("linear/columns.cu", include_str!("linear/columns.cu")),
    ("naive_attention/softmax.cu", include_str!("naive_attention/softmax.cu")),
    ("next/next.cu", include_str!("next/next.cu")),
    ("loss/cross_entropy.cu", include_str!("loss/cross_entropy.cu")),
    ("optimizer/step.cu", include_str!("optimizer/step.cu")),
    ("optimizer/adamw.cu", include_str!("optimizer/adamw.cu")),
    ("muon/muon.cu", include_str!("muon/muon.cu")),
    ("flash_attention/forward.cu", include_str!("flash_attention/forward.cu")),
    ("flash_attention/backward.cu", include_str!("flash_attention/backward.cu")),
];

/// NVRTC's options other than the architecture and the [`defines`]. `scripts/nvrtc_check.py` reads this list.
pub const NVRTC_OPTIONS: &[&str] =
    &["--std=c++17", "--fmad=true", "--ptxas-options=-O3", "--generate-line-info"];

/// The sizes that sources and launches share, each said once, beside the launches. `scripts/nvrtc_check.py` reads them.
const SIZES: [&[(&str, u32)]; 9] = [
    dropout::DEFINES,
    embedding::DEFINES,
    layernorm::DEFINES,
    linear::DEFINES,
    loss::DEFINES,
    muon::DEFINES,
    naive_attention::DEFINES,
    next::DEFINES,
    optimizer::DEFINES,
];

/// The macros of a configuration, as compiler options.
pub fn defines(config: &KernelConfig) -> Vec<String> {
    let precision = match config.precision {
        Precision::Fp32 => "FP32",
        Precision::Tf32 => "TF32",
        Precision::Bf16 => "BF16",
        Precision::Fp16 => "FP16",
    };
    let mut macros = vec![format!("-DOPERAND_{precision}"), format!("-DHEAD_SIZE={}", config.head_size)];
    macros.push(format!("-DDROPOUT={}", u8::from(config.dropout)));
    macros.extend(SIZES.iter().copied().flatten().map(|(name, size)| format!("-D{name}={size}")));
    macros.extend(flash_attention::defines(config));
    macros
}

/// The files with kernels of a configuration: all files, without flash attention if the heads are too wide for it, and
/// without numbers in halves if operands are not the first halves of fp32.
pub fn sources(config: &KernelConfig) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let flash = config.head_size <= flash_attention::LARGEST_HEAD;
    let halves = config.precision == Precision::Bf16;
    SOURCES.iter().filter(move |(name, _)| {
        (flash || !name.starts_with("flash_attention/")) && (halves || !name.starts_with("halves/"))
    })
}

/// The translation unit: one `#include` for each source.
pub fn unit(config: &KernelConfig) -> String {
    sources(config).map(|(name, _)| format!("#include \"{name}\"\n")).collect()
}

/// The names of all kernels, in the order of the sources.
pub fn names(config: &KernelConfig) -> Vec<&'static str> {
    sources(config).flat_map(|(_, text)| kernel_names(text)).collect()
}

/// The widest residual stream that the kernels support.
pub const WIDEST: usize = layernorm::WIDEST;

/// Of two kernels, that for a residual stream in fp32 and that for one of operands, the one that this stream needs.
fn for_residual(stored: Element, [number, operand]: [&'static str; 2]) -> &'static str {
    match stored {
        Element::F32 => number,
        Element::Half => operand,
    }
}

/// Rows cut into slices with one partial sum each. The cut depends on the number of rows only, so sums have
/// one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slices {
    /// Rows per slice; the last slice may have fewer.
    pub(super) rows: usize,
    /// Number of slices.
    pub(super) count: usize,
}

impl Slices {
    pub(super) fn of(rows: usize) -> Self {
        let each = rows.div_ceil(PARTIALS).max(PARTIAL_ROWS);
        Self { rows: each, count: rows.div_ceil(each) }
    }
}

/// The gradient of the residual stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gradient {
    /// Its numbers, or their second halves.
    pub(super) at: Address,
    /// What is left of it by dropout, as operands of matrix products.
    pub(super) low: Option<Address>,
    /// Whether the numbers are in halves, of which `low` has the first.
    pub(super) halves: bool,
}

/// Where the partial sums of some columns are: those of slice `i` begin `i * stride` floats behind `at`.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialSums {
    pub(super) at: Address,
    pub(super) stride: usize,
    pub(super) slices: Slices,
}

/// GELU (tanh approximation) and its derivative, on the host: what a fused epilogue must compute.
pub(super) fn gelu(x: f64) -> (f64, f64) {
    let (a, b) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044_715);
    let tanh = libm::tanh(a * (x + b * x * x * x));
    let slope = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * a * (1.0 + 3.0 * b * x * x);
    (0.5 * x * (1.0 + tanh), slope)
}

/// Decodes numbers as a device stores them.
pub(super) fn floats(bytes: &[u8], element: Element, precision: Precision) -> Vec<f32> {
    match (element, precision) {
        (Element::F32, _) => bytes.as_chunks().0.iter().copied().map(f32::from_ne_bytes).collect(),
        (Element::Half, Precision::Fp16) => {
            bytes.as_chunks().0.iter().map(|b| half::f16::from_ne_bytes(*b).to_f32()).collect()
        }
        (Element::Half, _) => {
            bytes.as_chunks().0.iter().map(|b| half::bf16::from_ne_bytes(*b).to_f32()).collect()
        }
    }
}

/// Encodes numbers as a device stores them.
pub(super) fn bytes(values: &[f32], element: Element, precision: Precision) -> Vec<u8> {
    match (element, precision) {
        (Element::F32, _) => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        (Element::Half, Precision::Fp16) => {
            values.iter().flat_map(|&x| half::f16::from_f32(x).to_ne_bytes()).collect()
        }
        (Element::Half, _) => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_ne_bytes()).collect(),
    }
}

/// The names of the functions that a source declares as `extern "C" __global__ void`, with or without launch bounds.
pub(super) fn kernel_names(source: &str) -> impl Iterator<Item = &str> {
    source.split("extern \"C\" __global__ void").skip(1).filter_map(|after| {
        let mut after = after.trim_start();
        if let Some(bounds) = after.strip_prefix("__launch_bounds__") {
            after = bounds.split_once(')')?.1.trim_start();
        }
        after.split('(').next().map(str::trim_end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_and_without_launch_bounds() {
        let source = "extern \"C\" __global__ void a(int n) {}\n\
            extern \"C\" __global__ void __launch_bounds__(THREADS, 2)\nb(float x) {}\n__global__ void not_c() {}";
        assert_eq!(kernel_names(source).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn every_source_declares_kernels_and_no_name_occurs_twice() {
        for (file, text) in SOURCES {
            assert!(kernel_names(text).next().is_some(), "{file}");
        }
        let all = names(&KernelConfig { precision: Precision::Bf16, head_size: 64, dropout: false });
        for (at, name) in all.iter().enumerate() {
            assert!(!all[..at].contains(name), "two kernels are called {name}");
        }
    }

    #[test]
    fn wide_heads_have_no_flash_attention() {
        let names =
            |head_size| names(&KernelConfig { precision: Precision::Fp32, head_size, dropout: false });
        assert!(names(128).contains(&"flash_forward"));
        assert!(!names(129).iter().any(|name| name.starts_with("flash_")));
    }

    #[test]
    fn every_include_is_listed() {
        for (file, text) in HEADERS.iter().chain(SOURCES) {
            for name in text.split("#include \"").skip(1).filter_map(|after| after.split('"').next()) {
                assert!(HEADERS.iter().any(|(header, _)| *header == name), "{file} includes {name}");
            }
        }
    }
}
