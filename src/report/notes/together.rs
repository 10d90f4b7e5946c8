//! The notes on runs that trained at the same time as others on one machine.

use super::super::axis::Axis;
use super::super::basis::is_of_time;
use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::super::spans::Span;
use super::names;
use crate::run::column::Unit;
use std::collections::BTreeSet;

/// Which runs shared their machine with others while the rest did not, where figures of time are shown: of their whole
/// time, and of that to each target.
pub(super) fn together(comparison: &Comparison, shown: &[Metric]) -> Vec<String> {
    let until = |run: &Run, metric: &str| run.results.get(metric).filter(|seconds| seconds.is_finite());
    let is_cut_by_time = comparison.cut.is_some_and(|cut| cut.axis == Axis::Time);
    let of_whole: Vec<&Metric> =
        shown.iter().filter(|metric| metric.target.is_none() && is_of_time(metric)).collect();
    let mut notes: Vec<Note> = Vec::new();
    if !of_whole.is_empty() || is_cut_by_time {
        let has_sums = is_cut_by_time || of_whole.iter().any(|metric| metric.unit == Unit::Seconds);
        let has_ended = |run: &Run| until(run, "steps") >= Some(run.facts.total_steps as f64);
        let is_cut = |run: &Run| comparison.cut.is_some() && !has_ended(run);
        let of_cut = |run: &Run| if is_cut(run) { until(run, "elapsed_s") } else { None };
        let parts = |run: &Run| Part::of(run, of_cut(run));
        notes.extend(notes_on(comparison, &parts, "", (true, has_sums)));
    }
    for target in &comparison.targets {
        let of_target =
            |metric: &&Metric| metric.target.as_deref() == Some(target) && metric.unit == Unit::Seconds;
        if let Some(way) = shown.iter().find(of_target) {
            // who has not reached it has no time to it, and is a mere neighbour
            let parts = |run: &Run| Part::of(run, until(run, &way.name).or(Some(0.0)));
            let of_way = notes_on(comparison, &parts, &format!(" to {}", target.shown()), (false, true));
            let is_told = |note: &Note| notes.iter().any(|told| told.runs == note.runs);
            let news: Vec<Note> = of_way.into_iter().filter(|note| !is_told(note)).collect();
            notes.extend(news);
        }
    }
    notes.into_iter().map(|note| note.sentence).collect()
}

/// A sentence, and of which runs it is.
struct Note {
    runs: [String; 2],
    sentence: String,
}

/// The notes on what `parts` has of each run. `of_what` goes on with `time`. Medians of speeds are felt by most of the
/// time alone, sums of seconds by some of it.
fn notes_on(
    comparison: &Comparison,
    parts: &dyn Fn(&Run) -> Vec<Part>,
    of_what: &str,
    (has_medians, has_sums): (bool, bool),
) -> Vec<Note> {
    let runs = &comparison.runs;
    let parts: Vec<Vec<Part>> = runs.iter().map(parts).collect();
    let shares = shares(comparison, &parts);
    let own = |run: usize| {
        parts[run].iter().filter(|part| part.is_own && !part.span.is_empty()).map(|part| &part.span)
    };
    // a process that was killed has trained until its last row at least
    let is_traced =
        |run: usize| own(run).next().is_some() && own(run).all(|span| span.is_certain || span.is_traced());
    let traced: Vec<(usize, Share)> =
        shares.into_iter().enumerate().filter(|(run, _)| is_traced(*run)).collect();
    let among = |is_one: &dyn Fn(usize, &Share) -> bool| {
        let found = traced.iter().filter(|(run, share)| is_one(*run, share));
        let found: Vec<&Run> = found.map(|(run, _)| &runs[*run]).collect();
        Some(found).filter(|found| !found.is_empty())
    };
    let those = |is_one: &dyn Fn(&Share) -> bool| {
        among(&|run, share| own(run).all(|span| span.is_certain) && is_one(share))
    };
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
            "{shared} trained at the same time as other runs on one machine for {for_how_long} of their time\
             {of_what}, and {others}: {what} may differ by that as well"
        );
        Some(Note { runs: [shared, others], sentence })
    };
    // a median of steps withstands less than half of them, a sum nothing
    let of_medians = has_medians.then(|| note(2, "most", "speeds and seconds")).flatten();
    // who shared most of the time is among those who shared a tenth of it
    let is_told = |note: &Note| of_medians.as_ref().is_some_and(|told| told.runs[0] == note.runs[0]);
    let of_sums = note(10, "a tenth or more", "seconds").filter(|note| has_sums && !is_told(note));
    let notes: Vec<Note> = of_medians.into_iter().chain(of_sums).collect();
    match notes.is_empty() {
        true => unequally(comparison, &traced, of_what, has_sums).into_iter().collect(),
        false => notes,
    }
}

/// That runs which all shared their machine did so with unequally many others. A median of steps feels that where they
/// did so for most of their time.
fn unequally(
    comparison: &Comparison,
    traced: &[(usize, Share)],
    of_what: &str,
    has_sums: bool,
) -> Option<Note> {
    let load = |others: u64, share: &Share| others as f64 / share.known as f64;
    // the least and the most that it may have been
    let loads = traced.iter().filter(|(_, share)| share.known > 0).map(|(run, share)| {
        let most = if share.is_unknown { f64::INFINITY } else { load(share.perhaps_others, share) };
        let is_felt = has_sums || share.certain > share.known / 2;
        (&comparison.runs[*run], [if is_felt { load(share.of_others, share) } else { 0.0 }, most])
    });
    let loads: Vec<(&Run, [f64; 2])> = loads.collect();
    let fewest = loads.iter().map(|(_, [_, most])| *most).fold(f64::INFINITY, f64::min);
    // what each has of the machine; of a median, a part of the time is not felt
    let more = if has_sums { 1.1 } else { 1.2 };
    let is_more = |[least, _]: [f64; 2]| (1.0 + least) / (1.0 + fewest) >= more;
    loads.iter().any(|(_, load)| is_more(*load)).then(|| {
        let of = |is_it: &dyn Fn([f64; 2]) -> bool, side: usize| {
            let some = loads.iter().filter(|(_, load)| is_it(*load));
            let loads: Vec<f64> = some.clone().map(|(_, load)| load[side]).collect();
            let mean = loads.iter().sum::<f64>() / loads.len() as f64;
            (names(&comparison.runs, some.map(|(run, _)| *run)), format!("{mean:.1}"))
        };
        let ((more, many), (fewer, few)) = (of(&is_more, 0), of(&|load| !is_more([load[1]; 2]), 1));
        let way = if of_what.is_empty() { String::new() } else { format!(", on their way{of_what},") };
        let sentence = format!(
            "on one machine at least {many} other runs trained at the same time as {more}{way} on average, and at \
             most {few} at that of {fewer}: speeds and seconds may differ by that as well"
        );
        Note { runs: [more, fewer], sentence }
    })
}

/// Seconds by which two processes can seem to overlap that followed one another.
const ROUNDING: u64 = 1;

/// More sessions than are looked at, and of those that do not say where they were.
const MOST_SESSIONS: usize = 10_000;
const MOST_UNPLACED: usize = 1000;

/// A session of a run, or a part of one.
struct Part {
    span: Span,
    /// Whether it is of what is compared, and no mere neighbour of others.
    is_own: bool,
}

impl Part {
    /// Those of a run, of which so many seconds of training are compared; all without such a number. Of a session of
    /// which no step is left none are.
    fn of(run: &Run, seconds: Option<f64>) -> Vec<Self> {
        let mut more = seconds.unwrap_or(f64::INFINITY);
        let mut parts = Vec::new();
        for span in &run.facts.spans {
            let [from, to] = span.seconds;
            let length = span.until.clamp(from, to.max(from)) - from;
            if !span.is_left || more >= length as f64 {
                more -= if span.is_left { length as f64 } else { 0.0 };
                parts.push(Self { span: span.clone(), is_own: span.is_left });
                continue;
            }
            let at = from + more.max(0.0).ceil() as u64;
            more = 0.0;
            let part =
                |seconds: [u64; 2]| Span { seconds, until: span.until.min(seconds[1]), ..span.clone() };
            parts.push(Self { span: part([from, at]), is_own: true });
            parts.push(Self { span: part([at, to]), is_own: false });
        }
        parts
    }
}

/// A time at which one of the runs, or one beside them, trained.
struct Time<'a> {
    /// Of which run it is a share.
    owner: Option<usize>,
    /// What tells a training from others at its place: a copy of a run has its hash, and sessions that began when those
    /// of the run did.
    training: (&'a str, u64),
    span: Span,
}

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

/// The times of these parts of the runs and of the sessions beside them.
fn times<'a>(comparison: &'a Comparison, parts: &[Vec<Part>]) -> Vec<Time<'a>> {
    let training = |hash: &'a str, place: usize, span: &Span| match hash {
        "" => ("", place as u64),
        hash => (hash, span.began),
    };
    let mut times = Vec::new();
    let mut add = |owner: Option<usize>, training: (&'a str, u64), span: &Span| {
        let halves = span.halves().into_iter().filter(|span| !span.is_empty());
        times.extend(halves.map(|span| Time { owner, training, span }));
    };
    for (i, (run, parts)) in comparison.runs.iter().zip(parts).enumerate() {
        let mut last: Option<(u64, (&str, u64))> = None;
        for Part { span, is_own } in parts {
            // where a clock was set back, a run is not beside itself
            let same = last.filter(|(end, _)| span.seconds[0] < *end).map(|(_, training)| training);
            let training = same.unwrap_or_else(|| training(&run.facts.hash, i, span));
            add(is_own.then_some(i), training, span);
            last = Some((span.seconds[1], training));
        }
    }
    let own = comparison.runs.iter().flat_map(|run| &run.facts.spans).map(|span| span.seconds);
    let around = own.reduce(|[a, b], [c, d]| [a.min(c), b.max(d)]).unwrap_or([0, 0]);
    let near = comparison.beside.iter().enumerate().filter(|(_, (_, span))| span.overlaps(around));
    for (i, (hash, span)) in near {
        add(None, training(hash, comparison.runs.len() + i, span), span);
    }
    times
}

/// How much of its time each run shared, of that which `parts` has as its own.
fn shares(comparison: &Comparison, parts: &[Vec<Part>]) -> Vec<Share> {
    let mut shares = vec![Share::default(); comparison.runs.len()];
    let times = times(comparison, parts);
    if times.len() > MOST_SESSIONS {
        return shares;
    }
    // at each place in the order of time, an end before a begin
    let mut turns: Vec<(&Option<[String; 2]>, u64, bool, usize)> = Vec::new();
    for (i, Time { span: Span { place, seconds: [from, to], .. }, .. }) in times.iter().enumerate() {
        turns.extend([(place, *from, true, i), (place, *to, false, i)]);
    }
    let unplaced: Vec<_> =
        times.iter().filter(|time| time.span.place.is_none()).take(MOST_UNPLACED).collect();
    for time in &times {
        let overlaps =
            |other: &&Time| other.training != time.training && other.span.overlaps(time.span.seconds);
        if let Some(run) = time.owner {
            shares[run].is_unknown |= unplaced.iter().any(overlaps);
        }
    }
    turns.sort_unstable();
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
            let now = || active.iter().map(|&i| &times[i]);
            let count = |is_one: &dyn Fn(&Time) -> bool| {
                let trainings: BTreeSet<_> =
                    now().filter(|time| is_one(time)).map(|time| time.training).collect();
                trainings.len() as u64
            };
            let [certain, possible] = [count(&|time| time.span.is_certain), count(&|_| true)];
            for time in now() {
                let Some(share) = time.owner.map(|run| &mut shares[run]) else { continue };
                let add = |sum: &mut u64, seconds: u64| *sum = sum.saturating_add(seconds);
                add(&mut share.all, length);
                add(&mut share.possible, if possible > 1 { length } else { 0 });
                add(&mut share.certain, if certain > 1 { length } else { 0 });
                if time.span.is_certain {
                    add(&mut share.known, length);
                    add(&mut share.of_others, length.saturating_mul(certain - 1));
                    add(&mut share.perhaps_others, length.saturating_mul(possible - 1));
                }
            }
        }
    }
    shares
}
