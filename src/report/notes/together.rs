//! The note on runs that trained at the same time as others on one machine.

use super::super::axis::Axis;
use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::parts::Span;
use super::super::runs::Run;
use super::names;
use crate::run::column::Unit;

/// Which runs shared their machine with others of these while the rest did not, where figures of time are compared.
pub(super) fn together(comparison: &Comparison) -> Option<String> {
    let runs = &comparison.runs;
    let judged = comparison.judged.iter().map(|(metric, _)| metric);
    let is_of_time = |metric: &Metric| matches!(metric.unit, Unit::Rate | Unit::Milliseconds | Unit::Seconds);
    if !judged.chain(&comparison.asked).any(is_of_time)
        && comparison.cut.is_none_or(|cut| cut.axis != Axis::Time)
    {
        return None;
    }
    let shared = seconds_shared(runs);
    // the end of one and the start of the next are rounded to seconds
    let shares = |(_, [shared, all]): &(&Run, [u64; 2])| 2 * shared > *all;
    let known = runs.iter().zip(shared).filter(|(run, _)| !run.facts.spans.is_empty());
    let (shared, others): (Vec<_>, Vec<_>) = known.partition(shares);
    (!shared.is_empty() && !others.is_empty()).then(|| {
        format!(
            "{} trained at the same time as others of these on one machine, and {} did not: speeds and seconds may \
             differ by that as well",
            names(runs, shared.into_iter().map(|(run, _)| run)),
            names(runs, others.into_iter().map(|(run, _)| run))
        )
    })
}

/// More sessions than are looked at.
const MOST_SESSIONS: usize = 10_000;

/// For how many seconds others of these runs trained as well, on the same device, while each did, and for how many it
/// did. A copy of a run is no other.
fn seconds_shared(runs: &[Run]) -> Vec<[u64; 2]> {
    let mut seconds = vec![[0; 2]; runs.len()];
    let mut spans: Vec<(usize, &Span)> = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        let is_long = |span: &&Span| span.seconds[0] < span.seconds[1];
        spans.extend(run.facts.spans.iter().filter(is_long).map(|span| (i, span)));
    }
    if spans.len() > MOST_SESSIONS {
        return seconds;
    }
    // at each place in the order of time, an end before a begin
    let mut turns: Vec<(&[String; 2], u64, bool, usize)> = Vec::new();
    for (i, Span { place, seconds: [from, to] }) in &spans {
        turns.extend([(place, *from, true, *i), (place, *to, false, *i)]);
    }
    turns.sort_unstable();
    let is_one =
        |a: usize, b: usize| !runs[a].facts.hash.is_empty() && runs[a].facts.hash == runs[b].facts.hash;
    let mut active: Vec<usize> = Vec::new();
    for (turn, next) in turns.iter().zip(turns.iter().skip(1)) {
        let (place, at, begins, i) = *turn;
        match active.iter().position(|other| *other == i) {
            Some(place) if !begins => drop(active.swap_remove(place)),
            _ if begins => active.push(i),
            _ => {}
        }
        let length = if place == next.0 { next.1 - at } else { 0 };
        if length > 0 {
            let is_shared = active.iter().any(|&run| run != active[0] && !is_one(run, active[0]));
            for &run in &active {
                seconds[run][0] += if is_shared { length } else { 0 };
                seconds[run][1] += length;
            }
        }
    }
    seconds
}
