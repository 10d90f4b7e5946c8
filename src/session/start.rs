//! What a run begins from: random weights, weights from elsewhere, or the state of another run.
//!
//! A run that branches off another one takes its weights, all states of its optimizer, its loss scale and what
//! its watchdog remembers, and goes on at its step: what follows is what the other run would have done under
//! the new recipe. The identity covers the contents of that state, not its path, and the first thing that the
//! new run does is to save it, so it does not need the other run again.

use super::audience::{Audience, of_damage};
use super::branch::{check, has_other_data, notes};
use super::inputs::{Data, relative};
use super::model::other_tokens;
use super::seen::perhaps_seen;
use crate::model::{Dims, ParamLayout};
use crate::plan::Before;
use crate::recipe::keys::INIT_FROM;
use crate::recipe::{self, Branch, InitFrom, Recipe, Resolved};
use crate::run::checkpoint::{self, CheckpointState, Reader, TrainedOn};
use crate::run::named::{checkpoint_of, latest, own};
use crate::run::record::Parent;
use crate::run::{RunError, RunRecord, dir, find, import};
use crate::weights::{self, checkpoint_name};
use anyhow::Context;
use serde_json::json;
use std::path::{Path, PathBuf};

/// What a run begins from.
#[derive(Debug, Clone, Default)]
pub enum Start {
    /// Random weights.
    #[default]
    Random,
    /// Weights.
    Weights {
        /// The file or directory that holds them.
        path: PathBuf,
        /// The digest of what it held when it was found.
        digest: String,
        /// The run that they are of, if it was named as a run.
        parent: Option<Parent>,
        /// The training data that they have seen.
        trained_on: TrainedOn,
        /// What is left out of them or made up, one sentence each.
        notes: Vec<String>,
    },
    /// The whole state of another run.
    State {
        /// The directory of its checkpoint.
        checkpoint: PathBuf,
        /// Of what is taken of it.
        digest: String,
        /// The run.
        parent: Parent,
        /// The step from which on its rows were those of the new run's training data; its own step if they are others.
        data_from: u64,
        /// The training data that its weights have seen.
        trained_on: TrainedOn,
        /// What differs between the runs and matters, one sentence each.
        notes: Vec<String>,
    },
    /// Nothing: the run has begun before, and goes on from a checkpoint of its own.
    Own {
        /// What its recipe names, where that is not the recipe at hand.
        named: Option<InitFrom>,
        /// What another run has done of its steps, where that is not said by its checkpoint.
        before: Before,
        /// What a person should know of its going on.
        note: Option<String>,
    },
}

impl Start {
    /// What `model.init_from` names, with its digest; `data` is what the new run reads, where it can be used.
    ///
    /// # Errors
    /// Where it is not there, is not intact, does not fit the recipe, or another user has called it like a run of the
    /// directory of runs.
    pub(super) fn find(
        resolved: &Resolved,
        data: Option<&Data>,
        runs_dir: &Path,
        audience: &dyn Audience,
    ) -> anyhow::Result<(Self, Option<String>)> {
        let recipe = &resolved.recipe;
        let Some(from) = &recipe.model.init_from else { return Ok((Self::Random, None)) };
        check_meant(resolved, from, runs_dir)?;
        let found = match from {
            InitFrom::Weights(run) if dir::is_run(run) && checkpoint_name(run).is_none() => {
                let shown = run.display();
                let help = format!(
                    "for its weights, name one of its checkpoints, such as {shown}/checkpoints/step-00000100; for its \
                     whole state, write {{ run = \"{shown}\" }}"
                );
                return Err(resolved
                    .complain(INIT_FROM, &format!("`{INIT_FROM}`: `{shown}` is a run"), &help)
                    .into());
            }
            InitFrom::Weights(path) => {
                let named = named(resolved, path, audience)?;
                let path = named.as_ref().map_or(path, |named| &named.checkpoint);
                checkpoint::verify_model(path).context(INIT_FROM)?;
                weights(recipe, path, named.as_ref().map(|named| named.parent(false)).transpose()?, data)
            }
            InitFrom::Run(branch) => {
                let branch = &meant(resolved, branch, audience)?;
                let path = &place(resolved, branch, audience)?;
                if !branch.optimizer {
                    checkpoint::verify_model(path).context(INIT_FROM)?;
                    let state = CheckpointState::read(path).context(INIT_FROM)?;
                    return weights(recipe, path, Some(parent(branch, &state)?), data).context(INIT_FROM);
                }
                let mut reader = Reader::open(path).context(INIT_FROM)?;
                reader.verify().context(INIT_FROM)?;
                let parent = parent(branch, reader.state())?;
                check(resolved, branch, &reader)?;
                let notes = notes(recipe, branch, &reader, data);
                let digest = digest(reader.state());
                let checkpoint = reader.path().to_owned();
                let state = reader.state();
                let data_from = if has_other_data(state, data) { state.step } else { state.data_from };
                let trained_on = state.trained_on();
                let state =
                    Self::State { checkpoint, digest: digest.clone(), parent, data_from, trained_on, notes };
                return Ok((state, Some(digest)));
            }
        };
        found.context(INIT_FROM)
    }

    /// The state that a run begins with, opened.
    ///
    /// # Errors
    /// Where it is no longer what it was when it was found.
    pub(super) fn open_state(checkpoint: &Path, expected: &str) -> anyhow::Result<Reader> {
        let reader = Reader::open(checkpoint).context(INIT_FROM)?;
        let shown = checkpoint.display();
        anyhow::ensure!(
            digest(reader.state()) == expected,
            "{INIT_FROM}: `{shown}` was replaced by another checkpoint meanwhile: start again"
        );
        Ok(reader)
    }

    /// The run that was named, if one was.
    #[must_use]
    pub fn parent(&self) -> Option<&Parent> {
        match self {
            Self::Weights { parent, .. } => parent.as_ref(),
            Self::State { parent, .. } => Some(parent),
            Self::Random | Self::Own { .. } => None,
        }
    }

    /// The training data that the weights have seen which a run begins with.
    #[must_use]
    pub fn trained_on(&self) -> TrainedOn {
        match self {
            Self::Weights { trained_on, .. } | Self::State { trained_on, .. } => trained_on.clone(),
            Self::Random | Self::Own { .. } => TrainedOn::default(),
        }
    }

    /// What another run has done of the steps of a run that begins so.
    #[must_use]
    pub fn before(&self) -> Before {
        match self {
            Self::State { parent, data_from, .. } => Before { steps: parent.step, data_from: *data_from },
            Self::Own { before, .. } => *before,
            Self::Random | Self::Weights { .. } => Before::default(),
        }
    }

    /// What people should know about it before the first step, one sentence each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let begins = self.parent().map(|Parent { run, step, optimizer, .. }| match optimizer {
            true => {
                format!("branches off {run} at step {step}, with its optimizer and its position in the data")
            }
            false => format!("begins at step 0 with the weights of {run} at step {step}"),
        });
        let notes = match self {
            Self::Weights { notes, .. } | Self::State { notes, .. } => &notes[..],
            Self::Own { note, .. } => note.as_slice(),
            Self::Random => &[],
        };
        begins.into_iter().chain(notes.iter().cloned()).collect()
    }

    /// The recipe with the step that was found written out: the newest checkpoint is another one tomorrow.
    #[must_use]
    pub fn pinned(&self, mut resolved: Resolved) -> Resolved {
        if let Self::Own { named: Some(named), .. } = self {
            resolved.recipe.model.init_from = Some(named.clone());
        }
        match (self.parent(), &mut resolved.recipe.model.init_from) {
            (Some(parent), Some(InitFrom::Run(branch))) => {
                branch.step = Some(parent.step);
                if let Some((run, _)) = checkpoint_name(&branch.run) {
                    branch.run = run.to_owned();
                }
            }
            (Some(parent), Some(InitFrom::Weights(path))) => {
                if let Some((run, _)) = checkpoint_name(path) {
                    *path = PathBuf::from(format!("{}@{}", run.display(), parent.step));
                }
            }
            _ => {}
        }
        resolved
    }
}

/// Where the weights of `model.init_from` lie; `None` for random ones.
///
/// # Errors
/// Where it names a run that has no such checkpoint, or a checkpoint that is not what was saved.
pub(super) fn weights_of(resolved: &Resolved, audience: &dyn Audience) -> anyhow::Result<Option<PathBuf>> {
    let path = match &resolved.recipe.model.init_from {
        None => return Ok(None),
        Some(InitFrom::Weights(path)) => {
            named(resolved, path, audience)?.map_or_else(|| path.clone(), |found| found.checkpoint)
        }
        Some(InitFrom::Run(branch)) => place(resolved, &meant(resolved, branch, audience)?, audience)?,
    };
    checkpoint::verify_model(&path).context(INIT_FROM)?;
    Ok(Some(path))
}

fn weights(
    recipe: &Recipe,
    path: &Path,
    parent: Option<Parent>,
    data: Option<&Data>,
) -> anyhow::Result<(Start, Option<String>)> {
    let digest = import::content_digest(path)?;
    let dims = Dims::new(&recipe.model);
    let mut notes = import::check(path, &dims, &ParamLayout::new(&dims))?;
    notes.extend(data.and_then(|data| other_tokens(path, dims.vocab_size, &data.tokenizer)));
    let state = checkpoint::of_weights(path).and_then(|checkpoint| CheckpointState::read(checkpoint).ok());
    let trained_on = state.map(|state| state.trained_on()).unwrap_or_default();
    notes.extend(data.and_then(|data| perhaps_seen(data, &trained_on)));
    let start = Start::Weights { path: path.to_owned(), digest: digest.clone(), parent, trained_on, notes };
    Ok((start, Some(digest)))
}

/// A checkpoint that is named as `RUN@WORD`.
struct Named {
    run: PathBuf,
    checkpoint: PathBuf,
}

impl Named {
    fn step(&self) -> anyhow::Result<u64> {
        Ok(CheckpointState::read(&self.checkpoint).context(INIT_FROM)?.step)
    }

    fn parent(&self, optimizer: bool) -> anyhow::Result<Parent> {
        Ok(Parent { run: run_id(&self.run)?, step: self.step()?, optimizer, with_weights: false })
    }
}

/// The checkpoint that a path names as `RUN@WORD`; `None` where it is no such name.
fn named(resolved: &Resolved, path: &Path, audience: &dyn Audience) -> anyhow::Result<Option<Named>> {
    let Some((run, word)) = checkpoint_name(path).filter(|(run, _)| dir::is_run(run)) else {
        return Ok(None);
    };
    match checkpoint_of(run, word, of_damage(audience)) {
        Ok(checkpoint) => Ok(Some(Named { run: run.to_owned(), checkpoint })),
        Err(error) if error.is_usage() => {
            let message = relative(&format!("`{INIT_FROM}`: {error}"));
            Err(resolved.complain(INIT_FROM, &message, "").into())
        }
        Err(error) => Err(error).context(INIT_FROM),
    }
}

/// Refuses a run, or what is called like a checkpoint of one, that another user has put into the current directory
/// under the name of a run that may be meant. Other weights are what they are: a name in a recipe is a path.
fn check_meant(resolved: &Resolved, from: &InitFrom, runs_dir: &Path) -> anyhow::Result<()> {
    let path = from.path();
    let run = checkpoint_name(path).filter(|_| !path.exists()).map_or(path, |(run, _)| run);
    let is_run = matches!(from, InitFrom::Run(_)) || dir::is_run(run);
    let is_of_run = is_run || weights::is_called_checkpoint(path);
    let above = run.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = run.file_name().map(Path::new).filter(|_| is_of_run) else { return Ok(()) };
    if whole(above)? != whole(Path::new("."))? {
        return Ok(());
    }
    find::check_meant(runs_dir, name, run).map_err(|error| {
        if !matches!(error, RunError::Planted { .. }) {
            return anyhow::Error::from(error).context(INIT_FROM);
        }
        let shown = name.display();
        let help = format!(
            "if `{shown}` is the one that you mean, make a link to it under another name, as with `ln -s {shown} \
             theirs`, and name the link"
        );
        resolved.complain(INIT_FROM, &relative(&format!("`{INIT_FROM}`: {error}")), &help).into()
    })
}

/// A path as the system takes it from its root on.
pub(super) fn whole(path: &Path) -> std::io::Result<PathBuf> {
    std::path::absolute(path).map(|path| recipe::settled(&path))
}

/// A branch with the step that `RUN@WORD` names in its run, if it does.
fn meant(resolved: &Resolved, branch: &Branch, audience: &dyn Audience) -> anyhow::Result<Branch> {
    let Some(found) = named(resolved, &branch.run, audience)? else { return Ok(branch.clone()) };
    let step = found.step()?;
    if let Some(asked) = branch.step.filter(|asked| *asked != step) {
        let shown = relative(&branch.run.display().to_string());
        let message = format!("`{INIT_FROM}`: `{shown}` names step {step}, and `step` is {asked}: keep one");
        return Err(resolved.complain(INIT_FROM, &message, "").into());
    }
    Ok(Branch { run: found.run, step: Some(step), optimizer: branch.optimizer })
}

/// Where the checkpoint lies that is meant.
fn place(resolved: &Resolved, branch: &Branch, audience: &dyn Audience) -> anyhow::Result<PathBuf> {
    let (run, shown) = (&branch.run, relative(&branch.run.display().to_string()));
    let complain = |message: String, help: &str| {
        resolved.complain(INIT_FROM, &format!("`{INIT_FROM}`: {message}"), help)
    };
    if !dir::is_run(run) {
        let help = "`run` names the directory of a run, relative to the file that names it; a run that has a \
                    checkpoint of its own goes on without it: runner --resume";
        return Err(complain(format!("`{shown}` is not a run: it has no recipe.toml"), help).into());
    }
    let steps: Vec<u64> =
        checkpoint::list(run).context(INIT_FROM)?.into_iter().map(|(step, _)| step).collect();
    let known = || steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let path = match branch.step {
        Some(step) if !steps.contains(&step) => {
            let has = if steps.is_empty() { "none yet".to_owned() } else { known() };
            let help = format!(
                "it has {has}; a run that has a checkpoint of its own goes on without it: runner --resume"
            );
            return Err(complain(format!("`{shown}` has no checkpoint of step {step}"), &help).into());
        }
        Some(step) => checkpoint::path_of(run, step),
        None => latest(run, of_damage(audience)).context(INIT_FROM)?,
    };
    own(&path).context(INIT_FROM)?;
    Ok(path)
}

fn parent(branch: &Branch, state: &CheckpointState) -> anyhow::Result<Parent> {
    // of a run without a record nothing is known
    let record = RunRecord::read(&branch.run).ok().flatten();
    let with_weights = branch.optimizer && record.is_some_and(|record| record.began_with_weights());
    Ok(Parent { run: run_id(&branch.run)?, step: state.step, optimizer: branch.optimizer, with_weights })
}

fn run_id(run: &Path) -> anyhow::Result<String> {
    // of `.` the path does not tell
    let run = run.canonicalize().with_context(|| format!("could not read `{}`", run.display()))?;
    Ok(run.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// The digest of everything that is taken of a state, its files included.
pub(super) fn digest(state: &CheckpointState) -> String {
    let taken = json!({
        "step": state.step,
        "tokens": state.tokens,
        "updates_applied": state.updates_applied,
        "rows_consumed": state.rows_consumed,
        "scaler": state.scaler,
        "watchdog": state.watchdog,
        "files": state.files,
    });
    blake3::hash(format!("runner branch 1\n{taken}\n").as_bytes()).to_hex().to_string()
}
