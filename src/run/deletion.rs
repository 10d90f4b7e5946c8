//! Deleting what belongs to runs: a name is gone before anything that it stood for is, so nothing half-deleted carries
//! a real name.

use super::error::Context;
use super::files::parent;
use super::made::is_made;
use super::{RunDir, RunError, dir, fault, lock, record};
use crate::regular::{self, OpenDir, is_temporary, temporary_name};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Deletes a file or a directory tree; its name is gone before anything in it is.
///
/// Fault points: `before_delete`, `mid_delete` (before each file of a directory).
pub fn remove(dir: &OpenDir, name: impl AsRef<OsStr>, scope: &str) -> Result<(), RunError> {
    let name = name.as_ref();
    let doomed = hide(dir, name, scope).and_then(|doomed| delete_unless_kept(dir, &doomed, scope));
    doomed.context("delete", &dir.join(name))
}

/// [`delete`], of what nobody misses if it stays under the name of a temporary: what another user has put into it, or
/// what a reader still has open on NFS, does not end a run.
pub fn delete_unless_kept(dir: &OpenDir, name: impl AsRef<OsStr>, scope: &str) -> io::Result<()> {
    use io::ErrorKind::{DirectoryNotEmpty, PermissionDenied, ResourceBusy};
    match delete(dir, name, scope) {
        Err(error) if [DirectoryNotEmpty, PermissionDenied, ResourceBusy].contains(&error.kind()) => Ok(()),
        deleted => deleted,
    }
}

/// Takes the name from what is to be deleted, durably, and returns the one that it has until then. A directory in a
/// layer below an overlay keeps its own: it can be deleted and not renamed.
///
/// Fault point: `before_delete`.
pub fn hide(dir: &OpenDir, name: &OsStr, scope: &str) -> io::Result<OsString> {
    fault::point(scope, "before_delete")?;
    let doomed = temporary_name(name);
    match dir.rename(name, &doomed) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return Ok(name.to_owned()),
        renamed => renamed?,
    }
    dir.sync()?;
    Ok(doomed)
}

/// Deletes a file or a directory tree that nothing needs any more. What is gone already is no error: another process
/// may delete the same.
///
/// Fault point: `mid_delete` (before each file of a directory).
pub fn delete(dir: &OpenDir, name: impl AsRef<OsStr>, scope: &str) -> io::Result<()> {
    // a run is known by its lock to the end
    dir.remove_tree(name, lock::FILE, &mid_delete(scope))
}

/// What happens before each entry of a directory is deleted.
fn mid_delete(scope: &str) -> impl Fn() -> io::Result<()> {
    move || fault::point(scope, "mid_delete")
}

/// Checks that a directory may be removed as a run: this program has made it as one, and no other lies below it.
///
/// Errors: [`RunError::NotMade`], [`RunError::HoldsAnother`]; [`RunError::Locked`] if a live process writes a run, or
/// anything else that has a lock, below it; [`RunError::Io`] where it may not be looked into.
pub fn check_removable(run: &Path) -> Result<(), RunError> {
    fs::read_dir(run).context("read", run)?;
    if !is_made(run) {
        return Err(RunError::NotMade { path: run.to_owned() });
    }
    check_below(run, run, 1)
}

/// Deletes a run with everything that lies in its directory. Its lock is held until nothing else is left, so that
/// no process starts to train it. [`check_removable`] was asked before: a lock is there once a run is open. Links of
/// other users are followed on the way to `trusted` alone.
///
/// Fault points: `before_delete`, `mid_delete` (before each entry of a directory).
///
/// Errors: [`RunError::HoldsAnother`], [`RunError::Locked`] as there;
/// [`RunError::Gone`] if something else has taken the directory's place, which is left as it is;
/// [`RunError::Io`].
pub fn remove_run(run: RunDir, trusted: &Path) -> Result<(), RunError> {
    let path = run.path();
    check_below(path, path, 1)?;
    // nothing of it could be deleted, and it would only lose its name
    if !run.open_dir().may_write() {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied)).context("delete what is in", path);
    }
    // what a link leads to is the run; the link alone would be taken away and the run stay
    let real = regular::followed(path, trusted).context("delete", path)?;
    let link = path.is_symlink().then_some(path);
    let name = real.file_name().unwrap_or_default();
    let above = OpenDir::open(parent(&real)).context("delete", path)?;
    let doomed = hide(&above, name, "remove").context("delete", path)?;
    let found = above.inside(&doomed);
    let Some(found) = found.ok().filter(|found| found.is(run.open_dir()).unwrap_or(false)) else {
        above.rename(&doomed, name).context("restore", path)?;
        return Err(RunError::Gone { path: path.to_owned() });
    };
    let link = link.map(Path::to_owned);
    let deleted = above.remove_held(&doomed, &found, &mid_delete("remove"), (lock::FILE, run));
    // which has another name by now, and may be gone in part
    deleted.context("delete the rest of", &above.join(&doomed))?;
    let Some(link) = link.as_deref() else { return Ok(()) };
    let beside = OpenDir::open(parent(link)).context("delete", link)?;
    match link.file_name().filter(|name| beside.is_link(name)) {
        Some(name) => remove(&beside, name, "remove"),
        None => Ok(()),
    }
}

/// How deep is looked for other runs.
const DEEPEST: usize = 32;

/// Checks that no live process holds a lock in the directories below one, and no other run or project lies there: who
/// removes a run has chosen none of them. What cannot be read is passed over.
fn check_below(run: &Path, dir: &Path, depth: usize) -> Result<(), RunError> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && depth < DEEPEST {
            let path = entry.path();
            if let Ok(Some(holder)) = lock::holder(&path.join(lock::FILE)) {
                return Err(RunError::Locked { path, holder });
            }
            if dir::is_run(&path) || path.join(record::FILE).is_file() {
                return Err(RunError::HoldsAnother { path: run.to_owned(), inner: path });
            }
            check_below(run, &path, depth + 1)?;
        }
    }
    Ok(())
}

/// Deletes what a removal that was killed has left of runs beside others, and returns it: directories with a
/// temporary's name, with the lock of a run that no process holds and nothing that runs do not write.
///
/// Errors: [`RunError::Io`].
pub fn sweep_removed(runs_dir: &Path) -> Result<Vec<PathBuf>, RunError> {
    let left = |path: &Path| {
        let is_named = path.file_name().is_some_and(is_temporary) && !path.is_symlink();
        let lock = path.join(lock::FILE);
        let is_run =
            fs::symlink_metadata(&lock).is_ok_and(|lock| lock.is_file()) && dir::foreign(path).is_empty();
        is_named && is_run && !lock::is_held(&lock).unwrap_or(true)
    };
    let above = OpenDir::open(runs_dir).context("open", runs_dir)?;
    let names = above.names().context("read", runs_dir)?;
    let mut swept: Vec<_> = names.iter().map(|name| above.join(name)).filter(|path| left(path)).collect();
    swept.sort();
    for path in &swept {
        delete(&above, path.file_name().unwrap_or_default(), "sweep").context("delete", path)?;
    }
    Ok(swept)
}
