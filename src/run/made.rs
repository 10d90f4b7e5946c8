//! What tells a run's directory from one that looks like it. A `recipe.toml` alone may as well be somebody's project.

use super::lock;
use super::record::RunRecord;
use std::fs;
use std::iter;
use std::path::Path;

/// Digits of the hash in an id, and the hyphen before them is no part of it.
pub(super) const HASH: usize = 8;

/// How long the id is that a directory's name is or begins with.
pub(super) fn whole_id(name: &str) -> Option<usize> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let ends_an_id = |end: &usize| {
        let hash = &name.as_bytes()[end - HASH..*end];
        let is_over = !name.as_bytes().get(*end).is_some_and(u8::is_ascii_alphanumeric);
        is_over && hash.iter().all(is_digit) && name.as_bytes()[end - HASH - 1] == b'-'
    };
    (HASH + 1..=name.len()).rev().find(ends_an_id)
}

/// Whether a name is an id and nothing else.
pub(super) fn is_id(name: &str) -> bool {
    whole_id(name) == Some(name.len())
}

/// Whether this program has surely made a directory as a run: a record lies in it or, if a process was killed before
/// it wrote one, the lock that it took under the name of a run.
pub fn is_made(run: &Path) -> bool {
    let is_locked = || fs::symlink_metadata(run.join(lock::FILE)).is_ok_and(|file| file.is_file());
    // most runs have both, and a record takes reading
    names(run).any(|name| is_id(&name)) && is_locked() || recorded(run).is_some()
}

/// Whether a directory still is what its run was made as: the record is of the run that the name says. Somebody may
/// have made a project of a copy under another name, or trained in a directory that was a project before.
pub fn keeps_its_name(run: &Path) -> bool {
    recorded(run).is_some_and(|record| {
        is_of_hash(&record.id, &record.hash) && names(run).any(|name| name == record.id)
    })
}

/// Whether an id ends with the beginning of this hash, as that of a run does.
#[must_use]
pub fn is_of_hash(id: &str, hash: &str) -> bool {
    id.ends_with(hash.get(..HASH).unwrap_or(hash))
}

/// The record of a run, if it can be read.
fn recorded(run: &Path) -> Option<RunRecord> {
    RunRecord::read(run).ok().flatten().filter(|record| !record.id.is_empty())
}

/// The names of a directory: the one that it is called by, which may be a link's, and its own.
fn names(run: &Path) -> impl Iterator<Item = String> {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let own = move || run.canonicalize().ok().and_then(|run| name(&run));
    // a directory is seldom called by another name than its own, and to find that takes the disk
    iter::once_with(move || name(run)).chain(iter::once_with(own)).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::RunDir;
    use super::*;
    use crate::regular::OpenDir;

    /// A directory with a recipe and, if asked for, a file in the place of a lock.
    fn project(at: &Path, name: &str, has_lock: bool) -> std::path::PathBuf {
        let project = at.join(name);
        fs::create_dir(&project).expect("a directory");
        fs::write(project.join("recipe.toml"), "").expect("a file");
        if has_lock {
            fs::write(project.join(lock::FILE), "").expect("a file");
        }
        project
    }

    #[test]
    fn a_record_or_the_lock_under_an_id_make_a_run() {
        let dir = tempfile::tempdir().expect("tempdir");
        let project = |name, has_lock| project(dir.path(), name, has_lock);
        for (name, has_lock, made) in [
            ("project", true, false),
            ("project-20261125", false, false),
            ("small-0123abcd", true, true),
            ("small-0123abcd-backup", true, false),
        ] {
            assert_eq!(is_made(&project(name, has_lock)), made, "{name}");
        }
        let run = project("renamed", false);
        for (record, made) in [
            ("{\"format_version\": 1, \"id\": \"small-0123abcd\"}", true),
            ("{\"format_version\": 1}", false),
            ("{}", false),
            ("", false),
        ] {
            fs::write(run.join("run.json"), record).expect("a file");
            assert_eq!((is_made(&run), keeps_its_name(&run)), (made, false), "{record}");
        }
    }

    #[test]
    fn a_run_keeps_its_name_and_a_project_that_was_trained_in_has_none() {
        let dir = tempfile::tempdir().expect("tempdir");
        let recorded = |name: &str, id: &str| {
            let run = RunDir::create_or_open(dir.path(), name, "", false).expect("a run");
            let record = RunRecord::new(id, "small", &format!("0123abcd{}", "0".repeat(56)));
            record.write(&OpenDir::open(run.path()).expect("open")).expect("written");
            keeps_its_name(run.path())
        };
        assert!(recorded("small-0123abcd", "small-0123abcd"));
        assert!(!recorded("small-0123abcd-backup", "small-0123abcd"));
        assert!(!recorded("model", "small-0123abcd"));
        assert!(!recorded("project", "project"));
    }
}
