//! The secret by which the ranks of a run know each other when they meet by TCP: named by the environment, or a file in
//! the user's cache that is made when it is first needed. On one machine, and where nodes share a home, nobody has to
//! set anything.

use super::ending::UsageError;
use super::machine::{cache_dir, is_own};
use crate::comm::Secret;
use crate::regular;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Names a file that holds the secret.
const FILE_VARIABLE: &str = "RUNNER_SECRET_FILE";
/// Holds the secret itself.
const VARIABLE: &str = "RUNNER_SECRET";

/// The file in the user's cache.
const FILE: &str = "ranks.secret";
/// More than any secret has, in bytes.
const LONGEST: u64 = 4096;
/// How often a file is looked for that another process, maybe on another machine, has just made, and the pause in
/// between: what a network file system remembers of a directory lags behind.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The secret of this process's ranks.
///
/// # Errors
/// Where the one that is named cannot be used, or none is named and none can be made.
pub(super) fn secret() -> Result<Secret, UsageError> {
    let file = std::env::var_os(FILE_VARIABLE).map(PathBuf::from);
    let word = std::env::var_os(VARIABLE).map(OsStringExt::into_vec);
    find(file.as_deref(), word, cache_dir().as_deref()).map_err(UsageError)
}

/// The secret of a named file, of a variable, or of the user's cache: the first that is there.
fn find(file: Option<&Path>, word: Option<Vec<u8>>, cache: Option<&Path>) -> Result<Secret, String> {
    if let Some(file) = file {
        let origin = format!("{}, by {FILE_VARIABLE}", file.display());
        let bytes = read(file).map_err(|problem| format!("{FILE_VARIABLE}={}: {problem}", file.display()))?;
        return of(&bytes, &origin);
    }
    if let Some(word) = word {
        return of(&word, VARIABLE);
    }
    let instead = format!("set {FILE_VARIABLE} or {VARIABLE}, the same for all ranks");
    let dir = cache.ok_or_else(|| {
        format!("ranks share a secret, and neither HOME nor XDG_CACHE_HOME says where: {instead}")
    })?;
    if !is_own(dir) {
        return Err(format!(
            "ranks share a secret, and `{}` is another user's directory: {instead}",
            dir.display()
        ));
    }
    let path = dir.join(FILE);
    let bytes = made(dir, &path).map_err(|problem| format!("{}: {problem}; or {instead}", path.display()))?;
    of(&bytes, &path.display().to_string())
}

/// A secret of these bytes without white space around them.
fn of(bytes: &[u8], origin: &str) -> Result<Secret, String> {
    Secret::new(bytes.trim_ascii().to_vec(), origin).ok_or_else(|| {
        format!(
            "the secret of {origin} is too short: it must have at least {} bytes, such as those that `openssl rand \
             -hex 32` prints",
            Secret::SHORTEST
        )
    })
}

/// The bytes of a file that nobody else can read.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("the secret of the ranks cannot be read: {error}");
    let file = regular::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // its own directory there belongs to the user that a process acts for
    let me = fs::metadata("/proc/self").map_err(failed)?.uid();
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if owner != me && owner != 0 {
        return Err(format!(
            "it belongs to user {owner}, who would know the secret of the ranks of user {me}: make a file of your own"
        ));
    }
    if mode & 0o077 != 0 {
        return Err(format!(
            "others can read or change the secret of the ranks (mode {mode:03o}): `chmod 600 {}` keeps it",
            path.display()
        ));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST {
        return Err(format!("it is longer than the {LONGEST} bytes that a secret of ranks can have"));
    }
    Ok(bytes)
}

/// The bytes of the file at `path` in `dir`, which is made if there is none. Of processes that make it at the same time
/// one succeeds, and all read what that one has made.
fn made(dir: &Path, path: &Path) -> Result<Vec<u8>, String> {
    if !path.exists() {
        let failed =
            |error: &dyn std::fmt::Display| format!("a secret for the ranks cannot be made: {error}");
        let word: String = Secret::random()?.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::create_dir_all(dir).map_err(|error| failed(&error))?;
        // only its owner can read a temporary file
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(|error| failed(&error))?;
        let written = writeln!(file, "{word}").and_then(|()| file.as_file().sync_all());
        written.map_err(|error| failed(&error))?;
        match file.persist_noclobber(path) {
            Err(error) if error.error.kind() != ErrorKind::AlreadyExists => return Err(failed(&error.error)),
            _ => {}
        }
    }
    for _ in 0..ATTEMPTS {
        if path.exists() {
            break;
        }
        sleep(PAUSE);
    }
    read(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The secret that was found, as far as another can tell.
    fn found(file: Option<&Path>, word: Option<&str>, cache: Option<&Path>) -> Result<String, String> {
        find(file, word.map(|word| word.as_bytes().to_vec()), cache).map(|secret| secret.origin().to_owned())
    }

    fn restrict(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn the_first_source_that_is_there_counts() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("named");
        fs::write(&file, "0123456789abcdef\n").expect("write");
        restrict(&file, 0o400);
        let (cache, word) = (dir.path().join("cache"), "fedcba9876543210");
        let of_file = found(Some(&file), Some(word), Some(&cache)).expect("a secret");
        assert!(of_file.contains("named") && of_file.contains(FILE_VARIABLE));
        assert_eq!(found(None, Some(word), Some(&cache)), Ok(VARIABLE.to_owned()));
        assert!(!cache.exists());
        assert!(found(None, None, Some(&cache)).expect("a secret").contains(FILE));
        let mode = fs::metadata(cache.join(FILE)).expect("it was made").mode();
        assert_eq!((mode & 0o777, fs::read(cache.join(FILE)).expect("it is ours").len()), (0o600, 65));
        let nowhere = found(None, None, None).expect_err("no home");
        assert!(nowhere.contains(FILE_VARIABLE) && nowhere.contains("HOME"), "{nowhere}");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("named");
        fs::write(&file, "0123456789abcdef").expect("write");
        for mode in [0o640, 0o604, 0o620, 0o644] {
            restrict(&file, mode);
            let problem = found(Some(&file), None, None).expect_err("others can read it");
            assert!(problem.contains("chmod 600") && problem.contains(&format!("{mode:o}")), "{problem}");
        }
        restrict(&file, 0o600);
        for text in ["", "   0123456789abcde  \n"] {
            fs::write(&file, text).expect("write");
            let problem = found(Some(&file), None, None).expect_err("it is too short");
            assert!(problem.contains("too short") && !problem.contains("0123"), "{problem}");
        }
        assert!(found(None, Some("0123456789abcde"), None).is_err_and(|problem| !problem.contains("0123")));
        assert!(found(None, Some(""), None).is_err());
        fs::write(&file, [b'a'; 5000]).expect("write");
        assert!(found(Some(&file), None, None).is_err_and(|problem| problem.contains("longer")));
        for name in ["nothing", "."] {
            assert!(found(Some(&dir.path().join(name)), None, None).is_err(), "{name}");
        }
        // a cache that is no directory
        assert!(found(None, None, Some(&file)).is_err_and(|problem| problem.contains(FILE_VARIABLE)));
    }

    #[test]
    fn processes_that_make_it_at_the_same_time_have_the_same() {
        let dir = tempfile::tempdir().expect("tempdir");
        let cache = dir.path().join("deep/cache");
        let all: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let make = || scope.spawn(|| made(&cache, &cache.join(FILE)).expect("a secret"));
            let threads: Vec<_> = (0..16).map(|_| make()).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(all[0].len() == 65 && all.iter().all(|one| *one == all[0]));
        assert_eq!(fs::read_dir(&cache).expect("it was made").count(), 1, "a temporary file is left");
    }
}
