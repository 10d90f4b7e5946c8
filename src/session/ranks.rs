//! The ranks of a run as processes: whether a launcher started this one, and what all of them must agree on before the
//! first step.

use super::ending::{Elsewhere, Ending, OnOthers, UsageError, in_short};
use super::secret::secret;
use crate::comm::launch::{self, Meeting, Placement};
use crate::comm::{Comm, CommError, Joining, Solo, Tcp, differing, named};
use crate::engine::{EngineError, cpu};
use crate::plan::Begun;
use crate::recipe::{self, Recipe};
use crate::wording::shortened;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long ranks that are started together may take to find each other, in seconds, where [`JOIN_VARIABLE`] does not
/// say. Ranks agree on the recipe, and so on `distributed.timeout_s`, only after they have met.
const JOINING_S: u64 = 600;
/// The longest time that [`JOIN_VARIABLE`] can ask for: a week.
const LONGEST_S: u64 = 7 * 24 * 3600;
/// Sets how long ranks may take to find each other.
const JOIN_VARIABLE: &str = "RUNNER_JOIN_TIMEOUT_S";

/// The place that a launcher gave this process, if one did.
///
/// # Errors
/// Where the launcher's variables contradict each other.
pub fn place() -> Result<Option<&'static Placement>, UsageError> {
    static PLACE: OnceLock<Result<Option<Placement>, String>> = OnceLock::new();
    let place = PLACE.get_or_init(|| launch::place(&|name| std::env::var(name).ok()));
    place.as_ref().map(Option::as_ref).map_err(|problem| UsageError(problem.clone()))
}

/// Joins the other ranks that the launcher started; `None` without a launcher. `warn` is told, in a sentence, of
/// processes that cannot take part.
///
/// # Errors
/// Where the others cannot be reached, the ranks have no secret that they share, or this build cannot meet them.
pub fn join(warn: &dyn Fn(&str)) -> anyhow::Result<Option<Arc<dyn Comm>>> {
    let Some(place) = place()? else { return Ok(None) };
    let timeout = joining_time(std::env::var_os(JOIN_VARIABLE).as_deref())?;
    let comm: Arc<dyn Comm> = match &place.meeting {
        // there is nobody to meet
        Meeting::At { .. } if place.size == 1 => Arc::new(Solo),
        Meeting::At { host, port } => {
            let joining = Joining { secret: &secret()?, timeout, warn };
            Arc::new(Tcp::join(place.rank, place.size, host, *port, &joining)?)
        }
        Meeting::Mpi => join_mpi(place, timeout, warn)?,
    };
    Ok(Some(comm))
}

/// How long ranks may take to find each other, from the variable that says so.
fn joining_time(said: Option<&OsStr>) -> Result<Duration, UsageError> {
    let Some(said) = said.map(OsStr::to_string_lossy) else { return Ok(Duration::from_secs(JOINING_S)) };
    let seconds = said.trim().parse().ok().filter(|seconds| (1..=LONGEST_S).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        UsageError(format!(
            "{JOIN_VARIABLE} is `{said}`, which is no whole number of seconds from 1 to {LONGEST_S}"
        ))
    })
}

#[cfg(feature = "mpi")]
fn join_mpi(place: &Placement, timeout: Duration, warn: &dyn Fn(&str)) -> anyhow::Result<Arc<dyn Comm>> {
    let comm = crate::comm::Mpi::join(timeout, warn)?;
    if (comm.rank(), comm.size()) != (place.rank, place.size) {
        return Err(UsageError(format!(
            "{} says that this is rank {} of {}, and the MPI that this build links that it is rank {} of {}: the \
             launcher belongs to another MPI; use the mpirun of the one that the build found, or set MASTER_ADDR and \
             MASTER_PORT",
            place.launcher,
            place.rank,
            place.size,
            comm.rank(),
            comm.size()
        ))
        .into());
    }
    Ok(Arc::new(comm))
}

#[cfg(not(feature = "mpi"))]
fn join_mpi(place: &Placement, _timeout: Duration, _warn: &dyn Fn(&str)) -> anyhow::Result<Arc<dyn Comm>> {
    Err(UsageError(format!(
        "{} started this process, and this build has no MPI: build it with `cargo build --release --features mpi`, \
         or set MASTER_ADDR and MASTER_PORT for the ranks to meet by TCP",
        place.launcher
    ))
    .into())
}

/// Goes on only if all ranks can. Otherwise rank 0 says what is wrong, with itself or, if nothing is, with the others;
/// the others say nothing, and all end alike.
pub(super) fn agree<T>(comm: Option<&dyn Comm>, own: anyhow::Result<T>) -> anyhow::Result<T> {
    let Some(comm) = comm else { return own };
    let mine: Failure = own.as_ref().err().map(|error| (Ending::of(error), in_short(error)));
    let all = comm.exchange(&serde_json::to_vec(&mine)?)?;
    let failed: Vec<(usize, (Ending, String))> =
        (all.iter().enumerate()).filter_map(|(rank, message)| Some((rank, failure(message)?))).collect();
    let Some((_, (ending, _))) = failed.first() else { return own };
    let ending = *ending;
    match own {
        Err(error) if comm.rank() == 0 => Err(error),
        _ if comm.rank() > 0 => Err(Elsewhere(ending).into()),
        _ => {
            let texts: Vec<String> =
                failed.iter().map(|(rank, (_, text))| format!("rank {rank}: {text}")).collect();
            Err(OnOthers { text: texts.join("; "), ending }.into())
        }
    }
}

/// Parts from the other ranks with what a call led to, if a launcher started them. It ends all ranks as soon as one has
/// failed, so the others wait until rank 0 is through with `say`.
pub(super) fn part<T>(
    comm: Option<&dyn Comm>,
    result: anyhow::Result<T>,
    say: impl FnOnce(&anyhow::Error),
) -> anyhow::Result<T> {
    let Some(comm) = comm else { return result };
    match result {
        Err(error) if comm.rank() == 0 => {
            say(&error);
            Err(Elsewhere(Ending::of(&error)).into())
        }
        // who fails alone must not leave the others waiting
        Err(error) if !error.is::<Elsewhere>() => {
            comm.abandon(&format!("{error:#}"));
            Err(error)
        }
        result => {
            if comm.rank() > 0 {
                // which fails when rank 0 has left
                drop(comm.broadcast(&mut Vec::new()));
            }
            result
        }
    }
}

/// What a rank says of itself where all have to agree; nothing if it can go on.
type Failure = Option<(Ending, String)>;

fn failure(message: &[u8]) -> Failure {
    serde_json::from_slice(message).unwrap_or_else(|_| {
        Some((Ending::Failed, "it sent what is no answer: are all ranks the same build?".to_owned()))
    })
}

/// Makes sure that all ranks were started with the same call: the others would wait for what one of them never does.
///
/// # Errors
/// What is asked of the first rank that differs, on rank 0; [`Elsewhere`] on the others.
pub(super) fn same_task(comm: &dyn Comm, task: &str) -> anyhow::Result<()> {
    let all = comm.exchange(task.as_bytes())?;
    let others = differing(&all);
    let Some(&other) = others.first() else { return Ok(()) };
    of_rank_0(comm, || {
        let theirs = shortened(&String::from_utf8_lossy(&all[other]), 80);
        format!(
            "all ranks must be started with the same command line, but {} was asked to {theirs} and rank 0 to {task}",
            named(&others)
        )
    })
}

/// Makes sure that all ranks have the same recipe, except for paths, and the same value of something further, which is
/// named first.
///
/// # Errors
/// The first key that differs, on rank 0; [`Elsewhere`] on the others.
pub fn same(comm: Option<&dyn Comm>, recipe: &Recipe, (further, value): (&str, &str)) -> anyhow::Result<()> {
    let Some(comm) = comm else { return Ok(()) };
    let values = recipe::leaves(recipe).into_iter().filter(|(key, _)| !key.is_path());
    let mut mine: BTreeMap<String, String> =
        values.map(|(key, value)| (format!("`{}`", key.path), value)).collect();
    mine.insert(further.to_owned(), value.to_owned());
    let all = comm.exchange(&serde_json::to_vec(&mine)?)?;
    let others = differing(&all);
    let Some(&other) = others.first() else { return Ok(()) };
    of_rank_0(comm, || {
        let theirs: BTreeMap<String, String> = serde_json::from_slice(&all[other]).unwrap_or_default();
        let what = mine.keys().chain(theirs.keys()).find(|key| mine.get(*key) != theirs.get(*key));
        let of = |values: &BTreeMap<String, String>, what: &str| match values.get(what) {
            Some(value) => format!("{what} ({value})"),
            None => format!("{what} (unset)"),
        };
        let what = what.map_or("the recipe", String::as_str);
        format!(
            "all ranks must have the same recipe and the same data, but {} of {} is not {} of rank 0",
            of(&theirs, what),
            named(&others),
            of(&mine, what)
        )
    })
}

/// Tells, on rank 0, which ranks have kernels that round in another way than its own. `device` is the rank's own, as a
/// plan names it.
pub(super) fn look_at_rounding(comm: &dyn Comm, device: &str, tell: impl FnOnce(&str)) -> anyhow::Result<()> {
    let level = cpu::level();
    let word = if device == "cpu" { level.word() } else { "cuda" };
    let is_fused = |word: &str| cpu::Level::of_word(word).map(cpu::Level::is_fused);
    let all = comm.exchange(word.as_bytes())?;
    let words: Vec<_> = all.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let others = (0..words.len()).filter(|&rank| is_fused(&words[rank]) != is_fused(word));
    let others: Vec<usize> = others.collect();
    if let (0, Some(&other)) = (comm.rank(), others.first()) {
        tell(&format!(
            "the kernels of {} are {} and those of rank 0 {word}, which round in other ways: numbers agree with those \
             of equal ranks in their first digits only",
            named(&others),
            words[other]
        ));
    }
    Ok(())
}

/// Refuses on all ranks; rank 0 says why.
fn of_rank_0(comm: &dyn Comm, why: impl FnOnce() -> String) -> anyhow::Result<()> {
    if comm.rank() > 0 { Err(Elsewhere(Ending::Refused).into()) } else { Err(UsageError(why()).into()) }
}

/// What rank 0 tells the others to do next.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Order {
    /// Train.
    Start {
        /// What all ranks do as rank 0 does, whatever memory each has.
        begun: Begun,
        /// The checkpoint to go on from.
        checkpoint: Option<std::path::PathBuf>,
    },
    /// Nothing more: how the run ended.
    End(Ending),
}

impl Order {
    /// Sends the order, on rank 0.
    pub(super) fn give(&self, comm: &dyn Comm) -> anyhow::Result<()> {
        Ok(comm.broadcast(&mut serde_json::to_vec(self)?)?)
    }

    /// Receives an order, on another rank.
    pub(super) fn receive(comm: &dyn Comm) -> anyhow::Result<Self> {
        let mut message = Vec::new();
        comm.broadcast(&mut message)?;
        serde_json::from_slice(&message).map_err(|_| {
            CommError::Failed("rank 0 gave an order that is none: are all ranks the same build?".into())
                .into()
        })
    }
}

/// Whether an error says that a rank has not answered in time. If it is a thread of this process, nothing can end it
/// but the end of the process.
pub fn is_hung(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_engine = match cause.downcast_ref::<EngineError>() {
            Some(EngineError::Comm(error)) => Some(error),
            _ => None,
        };
        matches!(of_engine.or(cause.downcast_ref()), Some(CommError::Silent { .. }))
    })
}
