//! The directory of one run: created without a race, locked, cleaned, and where everything in it lies.

use super::RunError;
use super::digest::FileDigest;
use super::error::Context;
use super::lock::{self, Lock};
use super::record::{self, RunRecord};
use super::{deletion, fault, files};
use crate::regular::{self, OpenDir};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Name of the resolved recipe in a run directory.
pub const RECIPE: &str = "recipe.toml";
/// Name of the directory of checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// Name of the training log.
pub const TRAIN_CSV: &str = "train.csv";
/// Name of the validation log.
pub const VAL_CSV: &str = "val.csv";
/// Name of the log of evaluations that were asked for.
pub const EVAL_CSV: &str = "eval.csv";
/// Name of the generated text.
pub const SAMPLES: &str = "samples.txt";

/// What the names of our event files for TensorBoard begin and end with; a number stands between.
pub const EVENT_FILE: (&str, &str) = ("events.out.tfevents.", ".runner");

/// A run directory that this process may write: it holds the lock until dropped.
#[derive(Debug)]
pub struct RunDir {
    /// The directory itself, wherever it is moved.
    dir: Arc<OpenDir>,
    lock: Lock,
}

impl RunDir {
    /// Makes or takes over `runs_dir/id` as its only writer, and writes `recipe_toml` unless a recipe is there.
    ///
    /// If several processes ask at once, one gets the run and the others get [`RunError::Locked`]. Files that a crash
    /// left half-written are removed. With `fresh`, the run is discarded first; files that no run writes stay.
    pub fn create_or_open(
        runs_dir: &Path,
        id: &str,
        recipe_toml: &str,
        fresh: bool,
    ) -> Result<Self, RunError> {
        if !is_one_name(id) {
            return Err(RunError::InvalidId { id: id.to_owned() });
        }
        let path = runs_dir.join(id);
        files::create_dir_all(runs_dir)?;
        let runs = OpenDir::open(runs_dir).context("open", runs_dir)?;
        if runs.make(id).context("create", &path)? {
            runs.sync().context("sync", runs_dir)?;
        }
        // runs may be moved and linked, but what lies behind another link is nothing to write into
        let dir = runs.inside(id).or_else(|refused| match regular::open_followed(&path, runs_dir)? {
            run if run.has(RECIPE) => Ok(run),
            _ => Err(refused),
        });
        let run = Self::lock(dir.context("begin a run in", &path)?)?;
        if fresh {
            run.discard()?;
        }
        run.keep_recipe(recipe_toml)?;
        Ok(run)
    }

    /// Takes over the run at `path`, or what is left of one that has lost its recipe. Links of other users are followed
    /// on the way to `runs_dir` alone.
    ///
    /// Errors: [`RunError::NotARun`] where there is none, [`RunError::Locked`] if a live process writes it.
    pub fn open(path: &Path, runs_dir: &Path) -> Result<Self, RunError> {
        if !is_run(path) && !path.join(record::FILE).is_file() {
            return Err(RunError::NotARun { path: path.to_owned() });
        }
        let dir = regular::open_followed(path, runs_dir);
        Self::lock(dir.context("open", path)?)
    }

    /// Checks that the directory at `path` holds no record of another run ([`RunError::IsAnother`]), which somebody has
    /// copied or linked there.
    pub fn check_id(path: &Path, id: &str) -> Result<(), RunError> {
        match RunRecord::read(path) {
            Ok(Some(record)) if !record.id.is_empty() && record.id != id => {
                Err(RunError::IsAnother { path: path.to_owned(), id: record.id })
            }
            // what cannot be read is said by what needs it
            _ => Ok(()),
        }
    }

    fn lock(dir: OpenDir) -> Result<Self, RunError> {
        let lock = Lock::acquire(&dir)?;
        let run = Self { dir: Arc::new(dir), lock };
        run.check()?;
        files::sweep(&run.dir)?;
        if run.dir.has(CHECKPOINTS) {
            let checkpoints = run.dir.own(CHECKPOINTS).context("use", &run.checkpoints())?;
            files::sweep(&checkpoints)?;
        }
        Ok(run)
    }

    /// Empties the run but for its lock and what no run has written. The record goes first and the checkpoints second:
    /// a crash on the way leaves a run that resumes or starts over, never one that claims to be finished and has lost
    /// its files.
    fn discard(&self) -> Result<(), RunError> {
        check_discarded(&self.dir)?;
        for name in [record::FILE, CHECKPOINTS] {
            if self.dir.has(name) {
                deletion::remove(&self.dir, name, "discard")?;
            }
        }
        for name in self.dir.names().context("read", self.path())? {
            if name != lock::FILE && is_own(&name) {
                fault::point("discard", "between").context("delete", &self.dir.join(&name))?;
                deletion::remove(&self.dir, &name, "discard")?;
            }
        }
        Ok(())
    }

    /// Checks that the directory at the path is still the one that was opened. Every writer asks first.
    ///
    /// Errors: [`RunError::Gone`] if it was moved, removed or replaced; [`RunError::Io`] if the directory of
    /// checkpoints is a link or another one than before, which may be another run's, or if the lock is no longer there.
    pub fn check(&self) -> Result<(), RunError> {
        if !self.dir.is_in_place().context("read", self.path())? {
            return Err(RunError::Gone { path: self.path().to_owned() });
        }
        self.dir.check_own(CHECKPOINTS).context("use", &self.checkpoints())?;
        self.lock.check(&self.dir)
    }

    /// Replaces the resolved recipe.
    pub fn write_recipe(&self, recipe_toml: &str) -> Result<(), RunError> {
        files::write_in(&self.dir, RECIPE, recipe_toml.as_bytes(), "recipe")
    }

    /// The resolved recipe, as it lies in the run.
    ///
    /// Errors: [`RunError::Io`].
    pub fn read_recipe(&self) -> Result<String, RunError> {
        let path = self.recipe();
        regular::read_text(&path, regular::RECIPE).context("read", &path)
    }

    /// Writes the resolved recipe again where somebody has removed it; whether that was so.
    ///
    /// Errors: [`RunError::Io`].
    pub fn keep_recipe(&self, recipe_toml: &str) -> Result<bool, RunError> {
        let is_gone = !self.dir.has(RECIPE);
        if is_gone {
            self.write_recipe(recipe_toml)?;
        }
        Ok(is_gone)
    }

    /// The run directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The run directory, held open: what is written goes there, whatever takes its name.
    pub fn open_dir(&self) -> &Arc<OpenDir> {
        &self.dir
    }

    /// The resolved recipe's file.
    pub fn recipe(&self) -> PathBuf {
        self.dir.join(RECIPE)
    }

    /// Size and digest of the resolved recipe's file.
    ///
    /// Errors: [`RunError::Io`].
    pub fn recipe_digest(&self) -> Result<FileDigest, RunError> {
        let path = self.recipe();
        Ok(FileDigest::of(&regular::read(&path).context("read", &path)?))
    }

    /// The training log's file.
    pub fn train_csv(&self) -> PathBuf {
        self.dir.join(TRAIN_CSV)
    }

    /// The validation log's file.
    pub fn val_csv(&self) -> PathBuf {
        self.dir.join(VAL_CSV)
    }

    /// The generated text's file.
    pub fn samples(&self) -> PathBuf {
        self.dir.join(SAMPLES)
    }

    /// The directory of checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.join(CHECKPOINTS)
    }

    /// The run's record, if one has been written.
    pub fn record(&self) -> Result<Option<RunRecord>, RunError> {
        RunRecord::read(self.path())
    }

    /// Replaces the run's record.
    ///
    /// Errors: as those of [`check`](Self::check); [`RunError::Io`].
    pub fn write_record(&self, record: &RunRecord) -> Result<(), RunError> {
        self.check()?;
        record.write(&self.dir)
    }
}

/// Whether a directory is a run: it holds a resolved recipe.
pub fn is_run(path: &Path) -> bool {
    path.join(RECIPE).is_file()
}

/// Checks that what is discarded with a run was written by runs: a directory in the place of a file, with something in
/// it, was not.
///
/// Errors: [`RunError::Io`] naming it.
pub fn check_discarded(run: &OpenDir) -> Result<(), RunError> {
    for name in run.names().context("read", run.path())? {
        let is_file = is_own(&name) && name != CHECKPOINTS && !regular::is_temporary(&name);
        let path = run.join(&name);
        let is_dir = || path.symlink_metadata().is_ok_and(|found| found.is_dir());
        let holds_some = || fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        if is_file && is_dir() && holds_some() {
            return Err(io::Error::from(ErrorKind::IsADirectory)).context("discard", &path);
        }
    }
    Ok(())
}

/// What lies in a run's directory that no run writes, by name.
pub fn foreign(run: &Path) -> Vec<OsString> {
    let Ok(entries) = fs::read_dir(run) else { return Vec::new() };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    let mut foreign: Vec<_> = names.filter(|name| !is_own(name)).collect();
    foreign.sort();
    foreign
}

/// Whether runs write a file or directory of this name.
fn is_own(name: &OsStr) -> bool {
    let own = [RECIPE, TRAIN_CSV, VAL_CSV, EVAL_CSV, SAMPLES, CHECKPOINTS, record::FILE, lock::FILE];
    own.iter().any(|known| name == *known) || regular::is_temporary(name) || is_event_file(name)
}

/// Whether a name is that of an event file of ours.
pub fn is_event_file(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(EVENT_FILE.0)?.strip_suffix(EVENT_FILE.1));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Checks that runs can be made in `dir`, which need not exist yet. Leaves nothing behind.
///
/// Errors: [`RunError::NotWritable`] with the system's reason.
pub fn ensure_writable(dir: &Path) -> Result<(), RunError> {
    probe(dir).map_err(|error| RunError::NotWritable { dir: dir.to_owned(), error })
}

/// Writes a nameless file into the nearest ancestor that exists.
fn probe(dir: &Path) -> io::Result<()> {
    let mut nearest = dir;
    loop {
        let missing = match fs::metadata(nearest) {
            Ok(metadata) if metadata.is_dir() => return tempfile::tempfile_in(nearest).map(drop),
            Ok(_) => return Err(ErrorKind::NotADirectory.into()),
            Err(error) => error,
        };
        let dangling = fs::symlink_metadata(nearest).is_ok();
        let above = files::parent(nearest);
        if missing.kind() != ErrorKind::NotFound || dangling || above == nearest {
            return Err(missing);
        }
        nearest = above;
    }
}

fn is_one_name(id: &str) -> bool {
    let mut parts = Path::new(id).components();
    let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    // A trailing slash is no part of a name.
    one && !regular::is_hidden(id) && !id.contains(['/', '\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::names;
    use super::*;

    #[test]
    fn of_fifty_starts_one_writes_the_run() {
        let runs = tempfile::tempdir().expect("tempdir");
        let barrier = std::sync::Barrier::new(50);
        let results: Vec<_> = std::thread::scope(|scope| {
            let start = |n: usize| {
                let (barrier, runs) = (&barrier, runs.path());
                move || {
                    barrier.wait();
                    RunDir::create_or_open(&runs.join("deep"), "r-1", &format!("seed = {n}\n"), false)
                }
            };
            let threads: Vec<_> = (0..50).map(|n| scope.spawn(start(n))).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 49));
        assert!(lost.into_iter().all(|result| result.is_err_and(|error| error.is_locked())));
        assert_eq!(names(&runs.path().join("deep/r-1")), [lock::FILE, RECIPE]);
    }

    #[test]
    fn an_existing_recipe_is_kept_and_a_fresh_run_discards_everything() {
        let runs = tempfile::tempdir().expect("tempdir");
        let open = |text, fresh| RunDir::create_or_open(runs.path(), "r", text, fresh);
        let run = open("a = 1\n", false).expect("create");
        fs::create_dir_all(run.checkpoints().join("step-00000001")).expect("mkdir");
        fs::write(run.checkpoints().join("step-00000001/state.json"), "{}").expect("write");
        fs::write(run.train_csv(), "step\n").expect("write");
        assert!(open("a = 1\n", true).expect_err("locked").is_locked());
        assert!(run.train_csv().exists(), "a locked run is not discarded");
        let run_path = run.path().to_owned();
        drop(run);
        let run = open("a = 2\n", false).expect("reopen");
        assert_eq!(fs::read_to_string(run.recipe()).expect("read"), "a = 1\n");
        drop(run);
        fs::write(run_path.join("notes"), "mine").expect("write");
        let run = open("a = 2\n", true).expect("fresh");
        assert_eq!(fs::read_to_string(run.recipe()).expect("read"), "a = 2\n");
        assert_eq!(names(run.path()), [lock::FILE, "notes", RECIPE]);
        assert_eq!(foreign(run.path()), ["notes"]);
    }

    #[test]
    fn opening_sweeps_what_a_crash_left() {
        let runs = tempfile::tempdir().expect("tempdir");
        let run = RunDir::create_or_open(runs.path(), "r", "", false).expect("create");
        fs::create_dir_all(run.checkpoints().join(".tmp-step-00000001-1-0")).expect("mkdir");
        fs::write(run.path().join(".tmp-run.json-1-0"), "{").expect("write");
        let path = run.path().to_owned();
        drop(run);
        let run = RunDir::open(&path, runs.path()).expect("open");
        assert_eq!(names(run.path()), [CHECKPOINTS, lock::FILE, RECIPE]);
        assert_eq!(names(&run.checkpoints()), [""; 0]);
        assert_eq!(super::super::find::list(runs.path()).expect("list"), [path]);
    }

    #[test]
    fn what_is_no_run_is_not_opened_and_gets_no_lock_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let error = RunDir::open(dir.path(), dir.path()).expect_err("empty");
        assert!(error.is_usage(), "{error}");
        assert_eq!(names(dir.path()), [""; 0]);
        for id in ["", ".", "..", "a/b", "/a", "a/", ".tmp-x"] {
            let error = RunDir::create_or_open(dir.path(), id, "", false).expect_err(id);
            assert!(matches!(error, RunError::InvalidId { .. }), "{id}: {error}");
        }
    }

    #[test]
    fn a_runs_directory_is_probed_without_a_trace() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("file"), "").expect("write");
        for good in [dir.path().to_owned(), dir.path().join("not/yet/there")] {
            ensure_writable(&good).expect("writable");
        }
        for bad in [dir.path().join("file"), dir.path().join("file/runs")] {
            let error = ensure_writable(&bad).expect_err("below a file");
            let text = error.to_string();
            assert!(error.is_usage() && text.contains("file") && text.contains("--runs-dir"), "{text}");
        }
        assert_eq!(names(dir.path()), ["file"]);
    }
}
