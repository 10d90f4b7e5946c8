//! `RUN@best`, `RUN@latest`, `RUN@1000`: a checkpoint by the run that it is of.

use crate::regular::is_put_beside;
use std::path::Path;

/// The run and the word for one of its checkpoints in `RUN@WORD`; `None` for a path that exists as it is written, and
/// for one without both parts. What another user has put beside the run is not meant.
#[must_use]
pub fn checkpoint_name(path: &Path) -> Option<(&Path, &str)> {
    let (run, word) = parts(path)?;
    let is_planted = || is_called_checkpoint(path) && run.exists() && is_put_beside(path, run);
    (!path.exists() || is_planted()).then_some((run, word))
}

/// Whether a path, which may exist, is called like a checkpoint of a run.
#[must_use]
pub fn is_called_checkpoint(path: &Path) -> bool {
    let is_word =
        |word: &str| ["best", "latest"].contains(&word) || word.bytes().all(|byte| byte.is_ascii_digit());
    parts(path).is_some_and(|(_, word)| is_word(word))
}

/// The parts of `RUN@WORD`, whether or not such a path exists; `None` for a path without both.
#[must_use]
pub fn parts(path: &Path) -> Option<(&Path, &str)> {
    let (run, word) = path.to_str()?.rsplit_once('@')?;
    let is_name = !run.is_empty() && !word.is_empty() && !word.contains(['/', '\\']);
    is_name.then_some((Path::new(run), word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_holds_the_sign_stays_a_path() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().join("a@best");
        assert!(checkpoint_name(&real).is_some());
        std::fs::create_dir(&real).expect("mkdir");
        assert_eq!(checkpoint_name(&real), None);
        for (path, expected) in [
            ("runs/a@best", Some(("runs/a", "best"))),
            ("a@b@12", Some(("a@b", "12"))),
            ("me@host/a", None),
            ("a@", None),
            ("@best", None),
            ("a", None),
        ] {
            let expected = expected.map(|(run, word)| (Path::new(run), word));
            assert_eq!(checkpoint_name(Path::new(path)), expected, "{path}");
        }
    }
}
