//! Machines whose processors have one name, as those of virtual machines often have, and are not equally fast.

use super::super::runs::Run;
use super::{Basis, MACHINE};
use std::cmp::Reverse;
use std::collections::HashMap;

/// A host whose peak rate is below this part of another one's, of the same name and measured alike, is another machine.
/// What is measured on a busy machine is too low, so the highest rate of each host counts, and little is no difference.
const OTHER: f64 = 0.75;

/// The peak rate of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HostPeak {
    /// The processor, and how the rate was measured.
    kind: String,
    host: String,
    /// Operations per second.
    flops: u64,
}

impl HostPeak {
    /// That of the host on which a run was trained last; `None` for a CUDA device, whose name tells, and where the
    /// record does not say.
    pub(super) fn of(run: &Run) -> Option<Self> {
        let facts = &run.facts;
        let flops = facts.peak_flops.filter(|_| !facts.processor.is_empty() && !facts.host.is_empty())?;
        // the rate is that of all ranks together
        let ranks = run.value("batch.world_size").and_then(serde_json::Value::as_u64).unwrap_or(1);
        let kind = format!("{}, {} x {} of {}", facts.processor, ranks, facts.threads, facts.simd);
        Some(Self { kind, host: facts.host.clone(), flops })
    }
}

/// Tells machines apart by the peak rates of their hosts, where their processors have one name.
pub(super) fn settle(bases: &mut [Basis]) {
    let found: Vec<Option<HostPeak>> = bases.iter_mut().map(|basis| basis.host_peak.take()).collect();
    let mut known: HashMap<&str, HashMap<&str, u64>> = HashMap::new();
    for HostPeak { kind, host, flops } in found.iter().flatten() {
        let highest = known.entry(kind).or_default().entry(host).or_default();
        *highest = (*highest).max(*flops);
    }
    // of each host, the highest rate among those that are as fast
    let mut rates: HashMap<(&str, &str), u64> = HashMap::new();
    for (kind, hosts) in known {
        let mut hosts: Vec<(&str, u64)> = hosts.into_iter().collect();
        hosts.sort_unstable_by_key(|(host, flops)| (Reverse(*flops), *host));
        let (highest, mut rate) = (hosts[0].1, hosts[0].1);
        let are_several = hosts.last().is_some_and(|(_, lowest)| (*lowest as f64) < OTHER * highest as f64);
        for (host, flops) in hosts.into_iter().filter(|_| are_several) {
            if (flops as f64) < OTHER * rate as f64 {
                rate = flops;
            }
            rates.insert((kind, host), rate);
        }
    }
    for (basis, found) in bases.iter_mut().zip(&found) {
        let rate = found.as_ref().and_then(|of| rates.get(&(&*of.kind, &*of.host)));
        let machine = basis.facts.iter_mut().find(|(name, _)| *name == MACHINE);
        if let (Some(rate), Some((_, Some(machine)))) = (rate, machine) {
            machine.push_str(&format!(" of {rate} FLOP/s"));
        }
    }
}
