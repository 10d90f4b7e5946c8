//! The note on runs that trained at the same time as others on one machine.

use super::super::axis::Axis;
use super::super::basis::is_of_time;
use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::parts::Span;
use super::super::runs::Run;
use super::names;
use crate::run::column::Unit;
use std::collections::{BTreeMap, BTreeSet};

/// Which runs shared their machine with others of these while the rest did not, where figures of time are shown.
pub(super) fn together(comparison: &Comparison, shown: &[Metric]) -> Vec<String> {
    let runs = &comparison.runs;
    let is_cut_by_time = comparison.cut.is_some_and(|cut| cut.axis == Axis::Time);
    if !shown.iter().any(is_of_time) && !is_cut_by_time {
        return Vec::new();
    }
    let has_sums = is_cut_by_time || shown.iter().any(|metric| metric.unit == Unit::Seconds);
    // a process that was killed has trained until its last row at least
    let are_traced = |spans: &[Span]| spans.iter().all(|span| span.is_certain || span.is_traced());
    let is_traced = |run: &Run| !run.facts.spans.is_empty() && are_traced(&run.facts.spans);
    let traced: Vec<_> = runs.iter().zip(shares(runs)).filter(|(run, _)| is_traced(run)).collect();
    let among = |is_one: &dyn Fn(&Run, &Share) -> bool| {
        let found = traced.iter().filter(|(run, share)| is_one(run, share));
        let found: Vec<&Run> = found.map(|(run, _)| *run).collect();
        Some(found).filter(|found| !found.is_empty())
    };
    let is_known = |run: &Run| run.facts.spans.iter().all(|span| span.is_certain);
    let those = |is_one: &dyn Fn(&Share) -> bool| among(&|run, share| is_known(run) && is_one(share));
    let note = |part: u64, for_how_long: &str, what: &str| {
        // the end of one and the start of the next are rounded to seconds
        let least = |share: &Share| (share.all / part).max(ROUNDING);
        let shared = among(&|_, share| share.certain > (share.known / part).max(ROUNDING))?;
        let others = those(&|share| share.possible <= least(share) && !share.is_unknown);
        // beside a process that was killed, nobody knows when
        let perhaps = || those(&|share| share.certain <= least(share) && !share.is_unknown);
        let others = match others {
            Some(others) => format!("{} did not", names(runs, others.into_iter())),
            None => format!("whether {} did is not known", names(runs, perhaps()?.into_iter())),
        };
        let shared = names(runs, shared.into_iter());
        let sentence = format!(
            "{shared} trained at the same time as others of these on one machine for {for_how_long} of their time, \
             and {others}: {what} may differ by that as well"
        );
        Some((shared, sentence))
    };
    // a median of steps withstands less than half of them, a sum nothing
    let of_medians = note(2, "most", "speeds and seconds");
    // who shared most of the time is among those who shared a tenth of it
    let is_told = |(shared, _): &(String, String)| of_medians.as_ref().is_some_and(|(of, _)| of == shared);
    let of_sums = note(10, "a tenth or more", "seconds").filter(|note| has_sums && !is_told(note));
    let notes: Vec<String> =
        of_medians.iter().chain(&of_sums).map(|(_, sentence)| sentence.clone()).collect();
    match notes.is_empty() {
        true => unequally(comparison, &traced, has_sums).into_iter().collect(),
        false => notes,
    }
}

/// That runs which all shared their machine did so with unequally many others. A median of steps feels that where they
/// did so for most of their time.
fn unequally(comparison: &Comparison, traced: &[(&Run, Share)], has_sums: bool) -> Option<String> {
    let load = |others: u64, share: &Share| others as f64 / share.known as f64;
    // the least and the most that it may have been
    let loads = traced.iter().filter(|(_, share)| share.known > 0).map(|(run, share)| {
        let most = if share.is_unknown { f64::INFINITY } else { load(share.perhaps_others, share) };
        let is_felt = has_sums || share.certain > share.known / 2;
        (*run, [if is_felt { load(share.of_others, share) } else { 0.0 }, most])
    });
    let loads: Vec<(&Run, [f64; 2])> = loads.collect();
    let fewest = loads.iter().map(|(_, [_, most])| *most).fold(f64::INFINITY, f64::min);
    let is_more = |[least, _]: [f64; 2]| least >= fewest + MORE;
    loads.iter().any(|(_, load)| is_more(*load)).then(|| {
        let of = |is_it: &dyn Fn([f64; 2]) -> bool, side: usize| {
            let some = loads.iter().filter(|(_, load)| is_it(*load));
            let loads: Vec<f64> = some.clone().map(|(_, load)| load[side]).collect();
            let mean = loads.iter().sum::<f64>() / loads.len() as f64;
            (names(&comparison.runs, some.map(|(run, _)| *run)), format!("{mean:.1}"))
        };
        let ((more, many), (fewer, few)) = (of(&is_more, 0), of(&|[_, most]| most < fewest + MORE, 1));
        format!(
            "on one machine {many} others of these trained at the same time as {more} on average, and {few} at that \
             of {fewer}: speeds and seconds may differ by that as well"
        )
    })
}

/// Others at the same time, on average, that make a difference.
const MORE: f64 = 0.75;

/// Seconds by which two processes can seem to overlap that followed one another.
const ROUNDING: u64 = 1;

/// More sessions than are looked at, and of those that do not say where they were.
const MOST_SESSIONS: usize = 10_000;
const MOST_UNPLACED: usize = 1000;

/// How many seconds of a training others trained as well, on the same device.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    /// In which others are known to have.
    certain: u64,
    /// In which others may have.
    possible: u64,
    /// Of the training.
    all: u64,
    /// In which it is known to have trained.
    known: u64,
    /// Of the others that are known to have trained in that time, all together.
    of_others: u64,
    /// Of the others that may have trained in that time, all together.
    perhaps_others: u64,
    /// Whether one that is on record without its machine trained within that time.
    is_unknown: bool,
}

/// How much of the time of each run others of these trained as well.
fn shares(runs: &[Run]) -> Vec<Share> {
    let mut shares = vec![Share::default(); runs.len()];
    let mut spans: Vec<(usize, Span)> = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        let is_long = |span: &Span| span.seconds[0] < span.seconds[1];
        spans.extend(run.facts.spans.iter().flat_map(Span::halves).filter(is_long).map(|span| (i, span)));
    }
    if spans.len() > MOST_SESSIONS {
        return shares;
    }
    // at each place in the order of time, an end before a begin
    let mut turns: Vec<(&Option<[String; 2]>, u64, bool, usize)> = Vec::new();
    for (i, (_, Span { place, seconds: [from, to], .. })) in spans.iter().enumerate() {
        turns.extend([(place, *from, true, i), (place, *to, false, i)]);
    }
    let unplaced: Vec<_> =
        spans.iter().filter(|(_, span)| span.place.is_none()).take(MOST_UNPLACED).collect();
    for (run, Span { seconds: [from, to], .. }) in &spans {
        let overlaps = |(other, span): &&&(usize, Span)| {
            other != run && span.seconds[0] < *to && *from < span.seconds[1]
        };
        shares[*run].is_unknown |= unplaced.iter().any(|span| overlaps(&span));
    }
    turns.sort_unstable();
    // a copy of a run has its sessions
    let is_one = |a: &(usize, Span), b: &(usize, Span)| {
        let [one, other] = [a, b].map(|(run, _)| &runs[*run].facts.hash);
        a.0 == b.0 || !one.is_empty() && one == other && a.1 == b.1
    };
    let are_several = |active: &[&(usize, Span)]| {
        active.first().is_some_and(|first| active.iter().any(|other| !is_one(first, other)))
    };
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
            let now: Vec<_> = active.iter().map(|&i| &spans[i]).collect();
            let known: Vec<_> = now.iter().copied().filter(|(_, span)| span.is_certain).collect();
            let [others, perhaps] = [&known, &now].map(|some| trainings(runs, some).saturating_sub(1));
            let [certain, possible] =
                [known, now.clone()].map(|some| if are_several(&some) { length } else { 0 });
            for (run, span) in now {
                let share = &mut shares[*run];
                share.all = share.all.saturating_add(length);
                share.possible = share.possible.saturating_add(possible);
                share.certain = share.certain.saturating_add(certain);
                if span.is_certain {
                    share.known = share.known.saturating_add(length);
                    let sum = |sum: u64, others: u64| sum.saturating_add(length.saturating_mul(others));
                    share.of_others = sum(share.of_others, others);
                    share.perhaps_others = sum(share.perhaps_others, perhaps);
                }
            }
        }
    }
    shares
}

/// How many trainings these are. A copy of a run has its hash and its sessions.
fn trainings(runs: &[Run], active: &[&(usize, Span)]) -> u64 {
    let mut of_runs: BTreeMap<usize, (&str, [u64; 2])> = BTreeMap::new();
    for (run, span) in active {
        of_runs.entry(*run).or_insert((&runs[*run].facts.hash, span.seconds));
    }
    let keys = of_runs.into_iter().map(|(run, (hash, seconds))| match hash {
        "" => (run, hash, seconds),
        _ => (0, hash, seconds),
    });
    keys.collect::<BTreeSet<_>>().len() as u64
}
