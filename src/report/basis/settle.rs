//! Bases are of single runs. What is on record of several decides which of them allow a comparison.

use super::{Basis, CHOSEN, Fact, MACHINE, MAIN, PEAK, RANKS, ROWS, TOKENS, When, hosts};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

impl Basis {
    /// Bases such that equal ones allow a comparison. Where a record of an earlier version says less, no more is asked
    /// of runs on the same sets. A value of the end that is of the best checkpoint, too, goes with those of best ones,
    /// unless others of the same data are of an end that is not. What is alike stays as it is.
    #[must_use]
    pub fn settled(mut bases: Vec<Self>) -> Vec<Self> {
        if Self::alike(&bases) {
            return bases;
        }
        settle_peaks(&mut bases);
        hosts::settle(&mut bases);
        settle_machines(&mut bases, |basis| basis.threads.take().map(|threads| threads.to_string()));
        settle_machines(&mut bases, |basis| basis.simd.take());
        settle_asked(&mut bases, CHOSEN, |basis| basis.chosen.take());
        settle_asked(&mut bases, RANKS, |basis| basis.ranks.take());
        let is_coarse = |basis: &&Self| basis.facts.iter().any(|(name, _)| *name == MAIN);
        let coarse: HashSet<Vec<Fact>> =
            bases.iter().filter(is_coarse).map(|basis| basis.facts.clone()).collect();
        for basis in &mut bases {
            if let Some(of_all) = basis.of_all_sets.take().filter(|of_all| coarse.contains(of_all)) {
                basis.facts = of_all;
            }
        }
        let earlier: HashSet<Vec<Fact>> =
            bases.iter().filter(|basis| basis.is_of_earlier).map(|basis| basis.facts.clone()).collect();
        for basis in &mut bases {
            basis.is_of_earlier = false;
            if let Some(without) = basis.without_rows.take().filter(|without| earlier.contains(without)) {
                basis.facts = without;
            }
        }
        let with = |when: When| {
            let of = bases.iter().filter(|basis| basis.when == when && !basis.is_open);
            of.map(|basis| basis.facts.clone()).collect::<HashSet<_>>()
        };
        let (best, at_end) = (with(When::Best), with(When::Now));
        for basis in &mut bases {
            if basis.when == When::BestAtEnd {
                let is_best = best.contains(&basis.facts) && !at_end.contains(&basis.facts);
                basis.when = if is_best { When::Best } else { When::Now };
            }
            basis.is_open = false;
        }
        bases
    }
}

/// Facts without the tokens of a row.
pub(super) fn without_rows(facts: &[Fact]) -> Vec<Fact> {
    let plain = |(name, said): &Fact| match said.as_deref().and_then(|said| said.split_once('/')) {
        Some((tokens, _)) if *name == TOKENS => (*name, Some(tokens.to_owned())),
        _ => (*name, said.clone()),
    };
    facts.iter().filter(|(name, _)| *name != ROWS).map(plain).collect()
}

/// Peak rates that differ by less than this, relatively, are one: each is measured.
const SAME_PEAK: f64 = 0.02;

/// Makes facts of peak rates, such that those of nearly the same rate are equal.
fn settle_peaks(bases: &mut [Basis]) {
    let mut peaks: Vec<u64> = bases.iter().filter_map(|basis| basis.peak).collect();
    peaks.sort_unstable_by(|a, b| b.cmp(a));
    let mut known: Vec<u64> = Vec::new();
    for peak in peaks {
        if known.last().is_none_or(|last| (peak as f64) < (1.0 - SAME_PEAK) * *last as f64) {
            known.push(peak);
        }
    }
    for basis in bases {
        let Some(peak) = basis.peak.take() else { continue };
        let of = known.iter().rev().find(|known| **known >= peak);
        basis.facts.push((PEAK, of.map(u64::to_string)));
    }
}

/// Makes facts of what was `found` of runs that ask for steps of the same memory, where it is not what most of them
/// have: a single other one keeps none of those from being compared.
fn settle_asked<T: Eq + Hash + ToString>(
    bases: &mut [Basis],
    name: &'static str,
    found: impl Fn(&mut Basis) -> Option<(u64, T)>,
) {
    let found: Vec<_> = bases.iter_mut().map(found).collect();
    let mut known: HashMap<u64, HashMap<&T, usize>> = HashMap::new();
    for (asked, of) in found.iter().flatten() {
        *known.entry(*asked).or_default().entry(of).or_default() += 1;
    }
    let usual = |of: HashMap<&T, usize>| of.into_iter().map(|(of, count)| (count, of.to_string())).max();
    let usual: HashMap<u64, String> =
        known.into_iter().filter_map(|(asked, of)| Some((asked, usual(of)?.1))).collect();
    for (basis, of) in bases.iter_mut().zip(&found) {
        let of = of.as_ref().map(|(asked, of)| (asked, of.to_string()));
        let other = of.filter(|(asked, of)| usual[*asked] != *of);
        basis.facts.extend(other.map(|(_, of)| (name, Some(of))));
    }
}

/// Makes facts of what is `found` of machines beside their processors, where those of one processor differ in it. A run
/// without it is taken for what is usual there: an engine that does not say which vector instructions it uses has those
/// of the machine.
fn settle_machines(bases: &mut [Basis], found: impl Fn(&mut Basis) -> Option<String>) {
    let mut known: HashMap<String, HashSet<String>> = HashMap::new();
    let mut said = Vec::new();
    for basis in bases {
        let found = found(basis);
        let machine = basis.facts.iter_mut().find(|(name, _)| *name == MACHINE);
        if let (Some(found), Some((_, Some(machine)))) = (found, machine) {
            known.entry(machine.clone()).or_default().insert(found.clone());
            said.push((machine, found));
        }
    }
    for (machine, found) in said.into_iter().filter(|(machine, _)| known[machine.as_str()].len() > 1) {
        machine.push(' ');
        machine.push_str(&found);
    }
}
