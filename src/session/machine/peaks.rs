//! The peak rate of this machine, which MFU is a fraction of.
//!
//! A processor's peak is measured, and what is measured while other programs run is too low. So the highest rate ever
//! measured counts, of one processor with so many threads and one level of vector instructions; it only rises.

use super::cache::Cache;
use super::cpu_model;
use crate::cuda::Libraries;
use crate::engine::cpu;
use crate::plan::Plan;
use crate::plan::hardware::available_threads;
use crate::recipe::Precision;
use crate::run::facts;
use crate::run::record::Peak;
use crate::session::ranks;
use crate::wording::count;

/// The file of the cache that remembers peaks.
const FILE: &str = "peaks.json";
/// Tries of a thorough measurement.
const TRIES: usize = 12;
/// No machine is faster, so a file that says so is wrong.
const IMPLAUSIBLE: f64 = 1e18;

/// The peak of a plan's device: the highest ever measured for the CPU, looked up for a CUDA device.
pub fn peak(plan: &Plan, cache: &Cache) -> Peak {
    let info = plan.cuda.and_then(|index| Libraries::get().require_device(index).ok());
    let Some(info) = info else {
        // ranks that are threads of this process are measured together
        let together = if ranks::place().is_ok_and(|place| place.is_some()) { 1 } else { plan.ranks.here };
        let peak = of_processor(plan.threads.saturating_mul(together), cache);
        return times(peak, plan.ranks.world_size / together);
    };
    let (flops, unit) = match plan.memory.precision {
        Precision::Bf16 | Precision::Fp16 => (info.peaks.half, "tensor cores on 16-bit operands"),
        Precision::Tf32 => (info.peaks.tf32, "tensor cores on tf32"),
        Precision::Fp32 => (info.peaks.fp32, "fp32 without tensor cores"),
    };
    let ranks = match plan.ranks.world_size {
        1 => String::new(),
        ranks => format!("{ranks} times "),
    };
    Peak {
        flops: flops * plan.ranks.world_size as f64,
        how: format!("{ranks}{}, {unit}: {}", info.name, info.peaks.source),
        processor: info.name,
        ..Peak::default()
    }
}

/// The peak of as many machines or shares of one as there are `processes`.
fn times(peak: Peak, processes: usize) -> Peak {
    match processes {
        0 | 1 => peak,
        _ => Peak {
            flops: peak.flops * processes as f64,
            how: format!("{}, times {}", peak.how, count(processes, "rank")),
            ..peak
        },
    }
}

/// The highest fp32 rate that this processor was ever measured to reach with so many threads, after another look: one
/// try, for every run begins with it, and a thorough measurement where that finds more. Threads beyond those that the
/// processor has count as those that it has.
pub fn of_processor(threads: usize, cache: &Cache) -> Peak {
    let threads = threads.clamp(1, available_threads());
    let known = remembered(threads, cache);
    let look = known.as_ref().map_or(0.0, |_| cpu::peak::measure(threads, 1));
    match known {
        Some(known) if known.flops >= look => known,
        _ => {
            let flops = cpu::peak::measure(threads, TRIES).max(look);
            let peak = Peak {
                flops,
                how: format!(
                    "measured: {} fp32 {} loop on {}",
                    cpu::level().name(),
                    if cpu::level().is_fused() { "FMA" } else { "multiply-add" },
                    count(threads, "thread")
                ),
                processor: cpu_model(),
                threads,
                simd: cpu::level().word().to_owned(),
                measured: Some(facts::now()),
            };
            cache.update(FILE, |peaks| {
                let kept = peaks.entry(key(threads)).or_insert_with(|| peak.clone());
                if !is_plausible(kept) || kept.flops < peak.flops {
                    kept.clone_from(&peak);
                }
            });
            peak
        }
    }
}

/// The highest rate that was measured before, if one was.
pub fn remembered(threads: usize, cache: &Cache) -> Option<Peak> {
    cache.read(FILE).remove(&key(threads)).filter(is_plausible)
}

fn is_plausible(peak: &Peak) -> bool {
    peak.flops > 0.0 && peak.flops < IMPLAUSIBLE
}

fn key(threads: usize) -> String {
    let level = cpu::level().word();
    format!("{} | {} | {} | {level}", facts::host(), cpu_model(), count(threads, "thread"))
}

/// The peak that a run goes on with: the one that it began with, as long as that is of the same kind of processor, with
/// as many threads, ranks and the same vector instructions. So `mfu` means the same in all rows of a machine.
pub fn of_run(begun: Option<Peak>, here: Peak) -> Peak {
    let same = |begun: &Peak| {
        !begun.processor.is_empty() && (&begun.processor, &begun.how) == (&here.processor, &here.how)
    };
    begun.filter(same).unwrap_or(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_measurement_is_remembered() {
        let dir = tempfile::tempdir().expect("tempdir");
        let cache = Cache::at(dir.path());
        let first = of_processor(1, &cache);
        assert_eq!(remembered(1, &cache), Some(first.clone()));
        let plant = |flops| {
            cache.update(FILE, |peaks| drop(peaks.insert(key(1), Peak { flops, ..first.clone() })));
            of_processor(1, &cache).flops
        };
        assert_eq!(plant(1e15), 1e15, "a higher one stays");
        for low in [1e6, 0.0, -1.0, 1e30] {
            let flops = plant(low);
            assert!(flops > 1e8 && flops < 1e15, "{low} does not count: {flops}");
            assert_eq!(remembered(1, &cache).map(|peak| peak.flops), Some(flops));
        }
        // more threads than there are wait for each other
        assert_eq!(of_processor(1 << 40, &cache).threads, available_threads());
    }

    #[test]
    fn a_run_keeps_the_peak_of_its_machine_and_takes_that_of_another() {
        let peak = |flops, processor: &str, how: &str| Peak {
            flops,
            how: how.to_owned(),
            processor: processor.to_owned(),
            ..Peak::default()
        };
        let here = peak(2.0, "a", "on 2 threads");
        assert_eq!(of_run(Some(peak(1.0, "a", "on 2 threads")), here.clone()).flops, 1.0);
        for other in
            [peak(1.0, "b", "on 2 threads"), peak(1.0, "a", "on 1 thread"), peak(1.0, "", "on 2 threads")]
        {
            assert_eq!(of_run(Some(other), here.clone()), here);
        }
        assert_eq!(of_run(None, here.clone()), here);
        assert_eq!(times(here.clone(), 1), here);
        assert_eq!(times(here, 3).flops, 6.0);
    }
}
