//! The peak rates of devices, to express a measured rate as a fraction of the peak.
//!
//! For known GPU models these are the rates that NVIDIA publishes: *dense* (data sheets often show twice as
//! much, for sparse matrices) and, for half precision, with sums in fp32. They assume boost clocks that no
//! device holds during a long matrix product, so no measurement reaches 100 %. For other devices the rates
//! are computed from the operations of a multiprocessor per clock.

use serde::Serialize;

/// Peak rates in operations per second; a multiplication and an addition count as two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peaks {
    /// Tensor cores in fp16, and in bf16 from compute capability 8.0 on, with sums in fp32.
    pub half: f64,
    /// Tensor cores in TF32; the fp32 rate on devices without TF32.
    pub tf32: f64,
    /// fp32 without tensor cores.
    pub fp32: f64,
    /// Where the figures come from.
    pub source: String,
}

/// A GPU model: words of its name, its multiprocessors, and its half, TF32 and fp32 rates in TFLOP/s.
struct GpuModel(&'static str, u32, [f64; 3]);

const VOLTA: &str = "Tesla V100 data sheet, 2020";
const TURING: &str = "Turing architecture white paper, 2018";
const AMPERE: &str = "A100 white paper and data sheets of A10, A30, A40, 2020 to 2022";
const AMPERE_GA10X: &str = "GA102 white paper, 2021";
const ADA: &str = "Ada architecture white paper and data sheets of L4, L40, L40S, 2023";
const HOPPER: &str = "H100 white paper and data sheets of H100, H200, H20, 2022 to 2024";
const BLACKWELL: &str = "Blackwell data sheets of HGX and DGX, 2024 and 2025";
const BLACKWELL_RTX: &str = "RTX Blackwell architecture white paper, 2025";

/// Known GPU models by source. If several match a name, the one with more words in common wins.
const TABLE: &[(&str, &[GpuModel])] = &[
    (
        VOLTA,
        &[
            GpuModel("V100 SXM2", 80, [125.0, 15.7, 15.7]),
            GpuModel("V100 SXM3", 80, [125.0, 15.7, 15.7]),
            GpuModel("V100 PCIE", 80, [112.0, 14.0, 14.0]),
            GpuModel("V100S PCIE", 80, [130.0, 16.4, 16.4]),
        ],
    ),
    (TURING, &[GpuModel("T4", 40, [65.0, 8.1, 8.1])]),
    (
        AMPERE,
        &[
            GpuModel("A100", 108, [312.0, 156.0, 19.5]),
            GpuModel("A800", 108, [312.0, 156.0, 19.5]),
            GpuModel("A30", 56, [165.0, 82.0, 10.3]),
            GpuModel("A10", 72, [125.0, 62.5, 31.2]),
            GpuModel("A40", 84, [149.7, 74.8, 37.4]),
        ],
    ),
    (
        AMPERE_GA10X,
        &[
            GpuModel("RTX A6000", 84, [154.8, 77.4, 38.7]),
            GpuModel("RTX 3090 Ti", 84, [80.0, 40.0, 40.0]),
            GpuModel("RTX 3090", 82, [71.0, 35.6, 35.6]),
            GpuModel("RTX 3080 Ti", 80, [68.2, 34.1, 34.1]),
            GpuModel("RTX 3080", 68, [59.5, 29.8, 29.8]),
            GpuModel("RTX 3070 Ti", 48, [43.5, 21.7, 21.7]),
            GpuModel("RTX 3070", 46, [40.6, 20.3, 20.3]),
            GpuModel("RTX 3060 Ti", 38, [32.4, 16.2, 16.2]),
            GpuModel("RTX 3060", 28, [25.5, 12.7, 12.7]),
        ],
    ),
    (
        ADA,
        &[
            GpuModel("L4", 58, [121.0, 60.5, 30.3]),
            GpuModel("L40", 142, [181.05, 90.5, 90.5]),
            GpuModel("L40S", 142, [362.05, 183.0, 91.6]),
            GpuModel("RTX 6000 Ada", 142, [364.2, 182.1, 91.1]),
            GpuModel("RTX 4090", 128, [165.2, 82.6, 82.6]),
            GpuModel("RTX 4080 SUPER", 80, [104.4, 52.2, 52.2]),
            GpuModel("RTX 4080", 76, [97.5, 48.7, 48.7]),
            GpuModel("RTX 4070 Ti SUPER", 66, [88.2, 44.1, 44.1]),
            GpuModel("RTX 4070 Ti", 60, [80.2, 40.1, 40.1]),
            GpuModel("RTX 4070 SUPER", 56, [71.0, 35.5, 35.5]),
            GpuModel("RTX 4070", 46, [58.3, 29.1, 29.1]),
            GpuModel("RTX 4060 Ti", 34, [44.1, 22.1, 22.1]),
            GpuModel("RTX 4060", 24, [30.2, 15.1, 15.1]),
        ],
    ),
    (
        HOPPER,
        &[
            GpuModel("H100 HBM3", 132, [989.4, 494.7, 66.9]),
            GpuModel("H100 PCIe", 114, [756.4, 378.2, 51.2]),
            GpuModel("H100 NVL", 132, [835.5, 417.5, 60.0]),
            GpuModel("H800", 132, [989.4, 494.7, 66.9]),
            GpuModel("H200", 132, [989.4, 494.7, 66.9]),
            GpuModel("H200 NVL", 132, [835.5, 417.5, 60.0]),
            GpuModel("GH200", 132, [989.4, 494.7, 66.9]),
            GpuModel("H20", 78, [148.0, 74.0, 44.0]),
        ],
    ),
    (
        BLACKWELL,
        &[GpuModel("B200", 148, [2250.0, 1125.0, 75.0]), GpuModel("GB200", 152, [2500.0, 1250.0, 80.0])],
    ),
    (
        BLACKWELL_RTX,
        &[
            GpuModel("RTX 5090", 170, [209.5, 104.8, 104.8]),
            GpuModel("RTX 5080", 84, [112.6, 56.3, 56.3]),
            GpuModel("RTX 5070 Ti", 70, [87.9, 43.9, 43.9]),
            GpuModel("RTX 5070", 48, [61.7, 30.9, 30.9]),
        ],
    ),
];

/// Operations per clock and multiprocessor (half, TF32, fp32) of a compute capability, with sums in fp32.
///
/// The tensor figures are the fused multiply-adds per clock in the architectures' white papers, times two;
/// fp32 is twice the number of fp32 cores of a multiprocessor (CUDA C++ Programming Guide, arithmetic
/// instructions). From Turing to Blackwell, GeForce cards run half precision with fp32 sums at half the rate
/// of the professional cards.
fn per_clock((major, minor): (u32, u32), geforce: bool) -> [f64; 3] {
    let [half, tf32, fp32] = match (major, minor) {
        (7, 5) => [1024.0, 128.0, 128.0],
        (..=7, _) => [1024.0, 128.0, 128.0],
        (8, 0) => [2048.0, 1024.0, 128.0],
        (8, _) => [1024.0, 512.0, 256.0],
        (9, _) => [4096.0, 2048.0, 256.0],
        (10, _) => [8192.0, 4096.0, 256.0],
        // consumer and workstation Blackwell, and unknown architectures: a lower bound
        _ => [1024.0, 512.0, 256.0],
    };
    let has_halves =
        geforce && major != 9 && major != 10 && (major, minor) >= (7, 5) && (major, minor) != (8, 0);
    if !has_halves {
        return [half, tf32, fp32];
    }
    // without TF32 tensor cores, products in TF32 run at the fp32 rate
    [half / 2.0, if tf32 > fp32 { tf32 / 2.0 } else { tf32 }, fp32]
}

/// The words that identify a GPU model. `NVIDIA`, `Tesla` and memory sizes do not matter.
fn words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect()
}

/// The peak rates of a device; a slice has the share of its multiprocessors.
pub(super) fn peaks(
    name: &str,
    capability: (u32, u32),
    multiprocessors: u32,
    clock_hz: f64,
    mig: bool,
) -> Peaks {
    let named = words(name);
    let mut best: Option<(usize, &str, &GpuModel)> = None;
    for (source, model) in TABLE.iter().flat_map(|(source, models)| models.iter().map(move |p| (*source, p)))
    {
        let known = words(model.0);
        // a cut-down chip of the same name, as in laptops, is another model
        let same_chip = model.1 == multiprocessors || mig && multiprocessors < model.1;
        let better = best.is_none_or(|(words, ..)| known.len() > words);
        if same_chip && better && known.iter().all(|word| named.contains(word)) {
            best = Some((known.len(), source, model));
        }
    }
    if let Some((_, source, GpuModel(_, whole, rates))) = best {
        let share = f64::from(multiprocessors) / f64::from(*whole);
        let [half, tf32, fp32] = rates.map(|tera| tera * 1e12 * share);
        let slice =
            if mig { format!(", {multiprocessors} of {whole} multiprocessors") } else { String::new() };
        return Peaks { half, tf32, fp32, source: format!("published: {source}{slice}") };
    }
    let geforce = named.iter().any(|word| word == "geforce" || word == "titan");
    let [half, tf32, fp32] =
        per_clock(capability, geforce).map(|per_clock| per_clock * f64::from(multiprocessors) * clock_hz);
    let source = format!(
        "computed: {multiprocessors} multiprocessors at {:.0} MHz of compute capability {}.{}",
        clock_hz / 1e6,
        capability.0,
        capability.1
    );
    Peaks { half, tf32, fp32, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_recognized_by_the_names_that_drivers_report() {
        for (name, capability, multiprocessors, half) in [
            ("NVIDIA H200", (9, 0), 132, 989.4),
            ("NVIDIA H200 NVL", (9, 0), 132, 835.5),
            ("NVIDIA H100 80GB HBM3", (9, 0), 132, 989.4),
            ("NVIDIA H100 PCIe", (9, 0), 114, 756.4),
            ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 312.0),
            ("NVIDIA A10", (8, 6), 72, 125.0),
            ("NVIDIA L40S", (8, 9), 142, 362.05),
            ("NVIDIA L40", (8, 9), 142, 181.05),
            ("Tesla V100-SXM2-16GB", (7, 0), 80, 125.0),
            ("NVIDIA B200", (10, 0), 148, 2250.0),
            ("NVIDIA GeForce RTX 3080 Ti", (8, 6), 80, 68.2),
            ("NVIDIA GeForce RTX 3090", (8, 6), 82, 71.0),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", (8, 9), 66, 88.2),
        ] {
            let peaks = peaks(name, capability, multiprocessors, 1e9, false);
            assert!(peaks.source.starts_with("published"), "{name}: {}", peaks.source);
            assert!((peaks.half / 1e12 - half).abs() < 1e-9, "{name}: {}", peaks.half);
        }
    }

    #[test]
    fn a_cut_down_model_is_computed_and_a_slice_has_its_share() {
        let laptop = peaks("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76, 2.04e9, false);
        assert!(laptop.source.starts_with("computed"), "{}", laptop.source);
        assert!((laptop.half - 76.0 * 2.04e9 * 512.0).abs() < 1.0);
        let slice = peaks("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), 14, 1.41e9, true);
        assert!((slice.half / 1e12 - 312.0 * 14.0 / 108.0).abs() < 1e-9, "{slice:?}");
        let turing = peaks("NVIDIA GeForce GTX 1650", (7, 5), 14, 1.6e9, false);
        assert_eq!(turing.tf32, turing.fp32, "no tensor cores of this kind");
    }

    /// At the boost clocks of the data sheets, in GHz, the formula gives the published figures.
    #[test]
    fn the_formula_agrees_with_published_rates() {
        for (name, capability, multiprocessors, clock) in [
            ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41),
            ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.83),
            ("NVIDIA GeForce RTX 3090", (8, 6), 82, 1.695),
            ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52),
            ("NVIDIA L40S", (8, 9), 142, 2.52),
            ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2.407),
            ("Tesla V100-SXM2-16GB", (7, 0), 80, 1.53),
            ("NVIDIA B200", (10, 0), 148, 1.85),
        ] {
            let published = peaks(name, capability, multiprocessors, 1.0, false);
            assert!(published.source.starts_with("published"), "{name}");
            let [half, tf32, _] = per_clock(capability, name.contains("GeForce"))
                .map(|per_clock| per_clock * f64::from(multiprocessors) * clock * 1e9);
            for (computed, published) in [(half, published.half), (tf32, published.tf32)] {
                assert!((computed / published - 1.0).abs() < 0.02, "{name}: {computed:e}, {published:e}");
            }
        }
    }
}
