//! The names of files to be fetched. They come from a server, and must lead nowhere else than into the directory that
//! they are fetched into, and mean nothing there to programs that come by.

use super::download::PARTS;
use super::{FetchError, Wanted};
use crate::data::unfinished::PREPARE;
use std::path::{Component, Path, PathBuf};

/// Directories that mean something to this program, or to those that keep versions: these run commands that files in
/// them name. Windows also finds `.git` under `git~1`.
const RESERVED: [&str; 10] = [PARTS, PREPARE, ".git", "git~1", ".hg", ".svn", ".bzr", ".jj", ".sl", "_darcs"];

/// Checks all names.
///
/// # Errors
/// [`FetchError::Unsafe`].
pub(super) fn check(wanted: &[Wanted], out: &Path) -> Result<(), FetchError> {
    let is_unsafe = |name: &Path| {
        leads_elsewhere(name)
            || means_something(name)
            || is_bare_repository(name)
            || is_beyond_a_link(out, name)
    };
    match wanted.iter().find(|one| is_unsafe(&one.name)) {
        Some(Wanted { url, name, .. }) => Err(FetchError::Unsafe { url: url.clone(), name: name.clone() }),
        None => Ok(()),
    }
}

/// Whether a name has other parts than those of a path below a directory, or is another spelling of such a path.
fn leads_elsewhere(name: &Path) -> bool {
    let is_plain = name.components().collect::<PathBuf>().as_os_str() == name.as_os_str();
    !is_plain || name.components().any(|part| !matches!(part, Component::Normal(_)))
}

/// Whether a part of a name is one of [`RESERVED`], in any case. Windows leaves out dots and spaces behind a name, and
/// what follows a colon names a stream of the same file.
fn means_something(name: &Path) -> bool {
    let mut parts = name.components().map(|part| part.as_os_str().to_string_lossy().to_lowercase());
    let file = |part: &str| part.split(':').next().unwrap_or(part).trim_end_matches(['.', ' ']).to_owned();
    parts.any(|part| RESERVED.contains(&&*file(&part)))
}

/// Whether a name makes a repository of Git without a work tree, whose `config` names commands: one needs a `HEAD`.
fn is_bare_repository(name: &Path) -> bool {
    name.file_name().is_some_and(|name| name.eq_ignore_ascii_case("HEAD"))
}

/// Whether a directory on the way from `out` to a file is a link, which might lead anywhere.
fn is_beyond_a_link(out: &Path, name: &Path) -> bool {
    let above = name.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    above.map(|above| out.join(above)).any(|above| above.is_symlink())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_looks_like_a_reserved_name_is_none() {
        for name in [".gitattributes", "config", "a/.github/x.md", "git/objects", "headers", "HEAD.bin"] {
            let name = Path::new(name);
            assert!(!means_something(name) && !is_bare_repository(name), "{}", name.display());
        }
    }
}
