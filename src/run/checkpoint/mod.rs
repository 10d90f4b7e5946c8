//! Checkpoints: Hugging Face model directories that a run resumes from.
//!
//! `checkpoints/step-00001000/` holds `config.json` and `model.safetensors`, which
//! `GPT2LMHeadModel.from_pretrained` loads, the optimizer's states in `optimizer.safetensors`, and `state.json`
//! with everything else and the digests. A checkpoint is written under a temporary name and published whole, so
//! what has the name was complete; what happened to the disk since, the digests tell. Padding rows are not
//! stored: a checkpoint fits every `vocab_multiple`.

mod background;
mod read;
mod state;
mod write;

use super::error::Context;
use super::{RunError, deletion, dir, files};
use crate::engine::State;
use crate::model::{ParamLayout, Tensor};
use crate::regular::{self, OpenDir};
use crate::weights;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

pub use super::digest::FileDigest;
pub use background::{Background, Snapshot};
pub use read::{Reader, verify_model};
pub use state::{BestState, CheckpointState, ChosenState, FORMAT_VERSION, Scaler, TrainedOn, WatchdogState};
pub use write::{CheckpointData, Writer, write};

const CONFIG: &str = "config.json";
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STEP: &str = "step-";
/// What the name of a damaged checkpoint begins with that was set aside.
const ASIDE: &str = "damaged-";

/// How often the newest checkpoint of a run is looked for that removes what was found.
const ATTEMPTS: usize = 5;

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Rejected {
    /// Its directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: RunError,
}

/// What [`newest_intact`] found.
#[derive(Debug)]
pub struct Newest {
    /// The newest checkpoint with every digest right, if there is one.
    pub reader: Option<Reader>,
    /// Newer ones that are damaged, newest first. A caller that resumes regardless should tell the user and
    /// [`set_aside`] these; one that finds damage only should not start over without being told to.
    pub rejected: Vec<Rejected>,
}

/// Whether a directory is a checkpoint of a run, and not a Hugging Face model from elsewhere.
pub fn is_checkpoint(path: &Path) -> bool {
    path.join(state::FILE).is_file()
}

/// The directory of the checkpoint that weights are of; `None` for a file that is not called like the model of one:
/// what lies beside it is no state of it.
#[must_use]
pub fn of_weights(path: &Path) -> Option<&Path> {
    let is_model = || path.file_name().is_some_and(|name| name == MODEL);
    (path.is_dir() || is_model()).then(|| weights::dir_of(path))
}

/// The run that a directory of checkpoints is of, by where it lies: `RUN/checkpoints/NAME`.
#[must_use]
pub fn run_of(checkpoint: &Path) -> Option<&Path> {
    above(checkpoint, dir::RECIPE).filter(|above| dir::is_run(above))
}

/// The directory of a checkpoint's run, by where it lies, unless another user has put this file of a run there to whom
/// neither that directory nor the checkpoints belong.
pub(super) fn above<'a>(checkpoint: &'a Path, file: &str) -> Option<&'a Path> {
    let checkpoints =
        checkpoint.parent().filter(|above| above.file_name() == Some(dir::CHECKPOINTS.as_ref()))?;
    let is_planted = |above: &Path| regular::is_planted(&above.join(file), checkpoints);
    checkpoints.parent().filter(|above| !is_planted(above))
}

/// The directory of a step's checkpoint.
pub fn path_of(run_dir: &Path, step: u64) -> PathBuf {
    run_dir.join(dir::CHECKPOINTS).join(name_of(step))
}

fn name_of(step: u64) -> String {
    format!("{STEP}{step:08}")
}

/// The checkpoints of a run by step, oldest first, none of them checked. A run without any has an empty list.
pub fn list(run_dir: &Path) -> Result<Vec<(u64, PathBuf)>, RunError> {
    let dir = run_dir.join(dir::CHECKPOINTS);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context("read", &dir)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.context("read", &dir)?.path();
        if let Some(step) = stated_step(&path) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The step that the name of a checkpoint's directory states, as this program writes it: `step-5` is somebody else's.
fn stated_step(checkpoint: &Path) -> Option<u64> {
    let name = checkpoint.file_name()?.to_str()?;
    let step = name.strip_prefix(STEP)?.parse().ok()?;
    (name == name_of(step)).then_some(step)
}

/// Finds the newest checkpoint that is as it was written, reading every byte of those it tries.
///
/// Errors: [`RunError::NewerFormat`] at once, since an older checkpoint would not be where that run stands;
/// [`RunError::Io`] if the directory cannot be read, or a checkpoint in it for a reason that lies outside of
/// it, such as its permissions. Damage, a failing disk included, is in [`Newest::rejected`].
pub fn newest_intact(run_dir: &Path) -> Result<Newest, RunError> {
    let mut newest = search(run_dir)?;
    for _ in 1..ATTEMPTS {
        // a run that trains meanwhile removes old ones, when newer ones are there
        let before = newest.rejected.len();
        newest.rejected.retain(|rejected| rejected.path.symlink_metadata().is_ok());
        if newest.reader.is_some() || newest.rejected.len() == before {
            break;
        }
        newest = search(run_dir)?;
    }
    Ok(newest)
}

fn search(run_dir: &Path) -> Result<Newest, RunError> {
    let mut rejected = Vec::new();
    for (_, path) in list(run_dir)?.into_iter().rev() {
        match intact(&path) {
            Ok(reader) => return Ok(Newest { reader: Some(reader), rejected }),
            Err(reason) if reason.is_damage() => rejected.push(Rejected { path, reason }),
            Err(other) => return Err(other),
        }
    }
    Ok(Newest { reader: None, rejected })
}

/// Deletes all but the newest `keep` checkpoints (0 keeps all) and those of the steps in `besides`. Returns what was
/// deleted, oldest first.
///
/// Incomplete ones do not count towards `keep`, nor do those among the newest that the system cannot read now, which
/// stay. Nothing is deleted before one of those that stay has been read and found intact; if none is, the newest intact
/// one stays as well. `written` is a checkpoint that this process has just written, which need not be read again. Only
/// for the holder of the run's lock.
///
/// Fault points: `rotate.before_delete`, `rotate.mid_delete`.
pub fn rotate(
    run: &OpenDir,
    keep: usize,
    besides: &[u64],
    written: Option<&Path>,
) -> Result<Vec<PathBuf>, RunError> {
    let all = list(run.path())?;
    let (mut whole, mut unread) = (Vec::new(), Vec::new());
    for one in all.iter().rev() {
        if whole.len() == keep {
            break;
        }
        match Reader::open(&one.1) {
            Ok(_) => whole.push(one),
            Err(error) if error.is_of_the_look() => unread.push(one),
            Err(_) => {}
        }
    }
    let Some((newest, _)) = whole.first() else { return Ok(Vec::new()) };
    let is_kept =
        |one: &&(u64, PathBuf)| besides.contains(&one.0) || whole.contains(one) || unread.contains(one);
    // Damaged ones newer than what is kept are evidence; resuming sets them aside.
    let mut doomed: Vec<_> = all.iter().filter(|one| one.0 < *newest && !is_kept(one)).collect();
    let is_intact = |(_, path): &&(u64, PathBuf)| written == Some(path) || intact(path).is_ok();
    if !doomed.is_empty()
        && !whole.iter().copied().any(|kept| is_intact(&kept))
        && let Some(last_good) = doomed.iter().rposition(is_intact)
    {
        doomed.remove(last_good);
    }
    let above = run.join(dir::CHECKPOINTS);
    let checkpoints = run.own(dir::CHECKPOINTS).context("use", &above)?;
    for (_, path) in &doomed {
        deletion::remove(&checkpoints, path.file_name().unwrap_or_default(), "rotate")?;
    }
    Ok(doomed.into_iter().map(|(_, path)| path.clone()).collect())
}

/// Renames a damaged checkpoint of a run so that it is neither resumed from nor deleted, and returns its new path. Only
/// for the holder of the run's lock.
pub fn set_aside(run: &OpenDir, checkpoint: &Path) -> Result<PathBuf, RunError> {
    let checkpoints = run.own(dir::CHECKPOINTS).context("use", &run.join(dir::CHECKPOINTS))?;
    let name = checkpoint.file_name().unwrap_or_default();
    let numbered = |n: u64| format!("{ASIDE}{n}-{}", name.to_string_lossy());
    let aside = (1..).map(numbered).find(|aside| !checkpoints.has(aside)).expect("numbers do not end");
    checkpoints.rename_dir(name, &aside).context("rename", checkpoint)?;
    checkpoints.sync().context("sync", checkpoints.path())?;
    Ok(checkpoints.join(aside))
}

/// What lies in the directory of checkpoints that no run writes, by paths relative to the run's directory.
pub fn foreign(run_dir: &Path) -> Vec<PathBuf> {
    let dir = run_dir.join(dir::CHECKPOINTS);
    // behind a link nothing is deleted
    let names = |dir: &Path| -> Vec<OsString> {
        let Ok(entries) = fs::read_dir(dir).and_then(|entries| regular::refuse_link(dir).map(|()| entries))
        else {
            return Vec::new();
        };
        entries.filter_map(Result::ok).map(|entry| entry.file_name()).collect()
    };
    let mut foreign = Vec::new();
    for name in names(&dir) {
        let (path, shown) = (dir.join(&name), Path::new(dir::CHECKPOINTS).join(&name));
        let text = name.to_string_lossy();
        let is_checkpoint = stated_step(&path).is_some() || text.starts_with(ASIDE);
        if files::is_passing(&name) {
            continue;
        }
        if !is_checkpoint || !path.is_dir() {
            foreign.push(shown);
            continue;
        }
        let listed = CheckpointState::read(&path).map(|state| state.files).unwrap_or_default();
        let is_own = |name: &OsString| {
            let name = name.to_string_lossy();
            [state::FILE, CONFIG, MODEL, OPTIMIZER].contains(&&*name) || listed.contains_key(&*name)
        };
        foreign.extend(names(&path).iter().filter(|name| !is_own(name)).map(|name| shown.join(name)));
    }
    foreign.sort();
    foreign
}

fn intact(path: &Path) -> Result<Reader, RunError> {
    let mut reader = Reader::open(path)?;
    read::check_step(path, reader.state())?;
    reader.verify()?;
    Ok(reader)
}

fn file_of(state: State) -> &'static str {
    match state {
        State::Parameters | State::Gradients => MODEL,
        State::Optimizer(_) => OPTIMIZER,
    }
}

/// A tensor's name in its file: Hugging Face's for the weights, with the state's name before it for an optimizer's.
fn tensor_name(state: State, name: &str) -> String {
    match state {
        State::Parameters | State::Gradients => format!("transformer.{name}"),
        State::Optimizer(state) => format!("{}.{name}", state.name),
    }
}

/// The tensors that a file has of a state, each with the place in the state's buffer of its first element.
fn tensors(state: State, layout: &ParamLayout) -> Vec<(&Tensor, usize)> {
    let (mut places, mut before) = (Vec::new(), 0);
    for part in state.parts(layout) {
        let inside = layout.tensors.iter().filter(|tensor| part.contains(&tensor.offset));
        places.extend(inside.map(|tensor| (tensor, before + tensor.offset - part.start)));
        before += part.len();
    }
    places
}
