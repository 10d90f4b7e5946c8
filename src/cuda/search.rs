//! Where CUDA's libraries may be installed.
//!
//! There is no single place: the driver comes with the system, the other libraries with a toolkit, a
//! distribution's package, or the wheels that PyTorch installs into a Python environment. The search runs no
//! program, so it is cheap.
//!
//! What is found is executed. So below a directory that is only implied, as that of the environment around the program,
//! nothing counts that was made by others than this user, root, and the owner of what implies it: where several users
//! may write, as in `/tmp`, each could put a library beside the program of somebody else.

use crate::regular::is_of_one_owner;
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable whose directories are searched first: a list as in `PATH`.
pub const LIBS_VARIABLE: &str = "RUNNER_CUDA_LIBS";

/// A directory to search for a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SearchDir {
    /// The directory; `None` for the system's loader, which has its own list.
    pub directory: Option<PathBuf>,
    /// Why it is searched, such as `CUDA_HOME`.
    pub because: String,
}

impl std::fmt::Display for SearchDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.directory {
            Some(directory) => write!(f, "{} ({})", directory.display(), self.because),
            None => f.write_str(&self.because),
        }
    }
}

/// The directories to search, in order.
#[derive(Debug, Clone)]
pub struct Search {
    /// The directories. Each exists, and none occurs twice.
    pub places: Vec<SearchDir>,
    /// Directories that are implied and passed over, because others may have put them there.
    pub of_others: Vec<SearchDir>,
}

impl Search {
    /// The directories that this process's environment and the place of its program imply.
    pub fn from_environment() -> Self {
        let program = std::env::current_exe().ok();
        Self::new(|name| std::env::var_os(name), program.as_deref(), Path::new("/"))
    }

    /// The directories that these environment variables and the path of the program imply, with the system's
    /// directories below `root`.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>, program: Option<&Path>, root: &Path) -> Self {
        let mut places = Places::default();
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let paths = |name: &str| set(name).map(|v| std::env::split_paths(&v).collect()).unwrap_or_default();
        let directories: Vec<PathBuf> = paths(LIBS_VARIABLE);
        for directory in directories {
            places.add(directory, LIBS_VARIABLE);
        }
        // a wheel puts the program in the `bin` of an environment, which need not be the active one
        if let Some(program) = program {
            places.around(program, "the program's Python environment");
        }
        places.searched.push(SearchDir { directory: None, because: "the system's loader".to_owned() });
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            if let Some(toolkit) = set(name) {
                places.toolkit(Path::new(&toolkit), name);
            }
        }
        places.toolkit(&root.join("usr/local/cuda"), "toolkit");
        for toolkit in newest_first(children(&root.join("usr/local"), "cuda-")) {
            places.toolkit(&toolkit, "toolkit");
        }
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(prefix) = set(name) {
                let prefix = Path::new(&prefix);
                places.python(prefix, (prefix, prefix), name);
            }
        }
        if let Some(conda) = set("CONDA_PREFIX") {
            let conda = Path::new(&conda);
            places.below(conda.join("lib"), (conda, conda), "CONDA_PREFIX");
        }
        let path: Vec<PathBuf> = paths("PATH");
        if let Some(python) = path.iter().map(|bin| bin.join("python3")).find(|python| python.is_file()) {
            // both the path as given and the file it links to: the interpreter of a virtual environment is a
            // link to another one
            let real = std::fs::canonicalize(&python).ok();
            for python in [Some(python), real].into_iter().flatten() {
                places.around(&python, "python3 on PATH");
            }
        }
        if let Some(home) = set("HOME") {
            let home = Path::new(&home);
            places.python(&home.join(".local"), (home, home), "the user's Python packages");
        }
        places.python(&root.join("usr/local"), (root, root), "the system's Python packages");
        // Debian and Ubuntu, Fedora and SUSE, Windows' subsystem for Linux, containers, NixOS
        for directory in [
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/aarch64-linux-gnu",
            "usr/lib/sbsa-linux-gnu",
            "usr/lib64",
            "usr/lib/wsl/lib",
            "usr/local/nvidia/lib64",
            "run/opengl-driver/lib",
        ] {
            places.add(root.join(directory), "system");
        }
        Self { places: places.searched, of_others: places.of_others }
    }
}

#[derive(Default)]
struct Places {
    searched: Vec<SearchDir>,
    of_others: Vec<SearchDir>,
}

impl Places {
    fn add(&mut self, directory: PathBuf, because: &str) {
        add(&mut self.searched, directory, because);
    }

    /// Adds a directory below `above` if all of the way there is [of the owner](is_of_one_owner) of `anchor`, and notes
    /// it as one of others if not.
    fn below(&mut self, directory: PathBuf, (above, anchor): (&Path, &Path), because: &str) {
        let is_trusted = is_of_one_owner(above, &directory, anchor);
        let to = if is_trusted { &mut self.searched } else { &mut self.of_others };
        add(to, directory, because);
    }

    /// Adds the directories of the Python environment in whose `bin` a program lies, or may lie.
    fn around(&mut self, program: &Path, because: &str) {
        if let Some(prefix) = program.parent().and_then(Path::parent) {
            self.python(prefix, (prefix, program), because);
        }
    }

    /// Adds the directories of a toolkit, except `stubs`, which holds libraries for linking only.
    fn toolkit(&mut self, root: &Path, because: &str) {
        for below in [
            "lib64",
            "targets/x86_64-linux/lib",
            "targets/sbsa-linux/lib",
            "targets/aarch64-linux/lib",
            "lib",
        ] {
            self.below(root.join(below), (root, root), because);
        }
    }

    /// Adds the directories of NVIDIA's wheels below a Python prefix: one per library
    /// (`nvidia/cuda_nvrtc/lib`) up to CUDA 12, one for all (`nvidia/cu13/lib`) since 13. `of` is as in
    /// [`below`](Self::below).
    fn python(&mut self, prefix: &Path, of: (&Path, &Path), because: &str) {
        for python in newest_first(children(&prefix.join("lib"), "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                for wheel in newest_first(children(&python.join(packages).join("nvidia"), "")) {
                    self.below(wheel.join("lib"), of, because);
                }
            }
        }
    }
}

/// Adds a directory that exists, once.
fn add(places: &mut Vec<SearchDir>, directory: PathBuf, because: &str) {
    let known = |place: &SearchDir| place.directory.as_deref() == Some(directory.as_path());
    if directory.is_dir() && !places.iter().any(known) {
        places.push(SearchDir { directory: Some(directory), because: because.to_owned() });
    }
}

/// The entries of a directory whose names begin with `prefix`, sorted by name.
pub(super) fn children(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect();
    found.sort();
    found
}

/// Sorts by the numbers in the names, highest first: `cuda-12.10` before `cuda-12.9`, `libnvrtc.so.13` before
/// `libnvrtc.so`.
pub(super) fn newest_first(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let numbers = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbers = name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        numbers.collect::<Vec<u64>>()
    };
    paths.sort_by_key(|path| std::cmp::Reverse(numbers(path)));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashMap};
    use std::os::unix::fs::lchown;

    fn search_of(root: &Path, variables: &[(&str, String)]) -> Search {
        let variables: HashMap<_, _> = variables.iter().cloned().collect();
        let program = root.join("wheel/bin/runner");
        Search::new(|name| variables.get(name).map(OsString::from), Some(&program), root)
    }

    fn search(root: &Path, variables: &[(&str, String)]) -> Vec<String> {
        let search = search_of(root, variables);
        let short = |place: SearchDir| match place.directory {
            Some(path) => {
                format!("{}: {}", place.because, path.strip_prefix(root).expect("below root").display())
            }
            None => place.because,
        };
        search.places.into_iter().map(short).collect()
    }

    #[test]
    fn directories_are_in_order_and_exist() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path).display().to_string();
        for directory in [
            "own",
            "opt/cuda/lib64",
            "opt/cuda/lib64/stubs",
            "usr/local/cuda-12.9/lib64",
            "usr/local/cuda-12.10/lib64",
            "usr/local/cuda-13.0/targets/sbsa-linux/lib",
            "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "venv/lib/python3.12/site-packages/nvidia/cu13/include",
            "conda/lib",
            "usr/lib/x86_64-linux-gnu",
        ] {
            std::fs::create_dir_all(root.path().join(directory)).expect("a directory");
        }
        let own = format!("{}:{}", at("own"), at("absent"));
        let variables = [
            (LIBS_VARIABLE, own),
            ("CUDA_HOME", at("opt/cuda")),
            ("CUDA_PATH", at("opt/cuda")),
            ("VIRTUAL_ENV", at("venv")),
            ("CONDA_PREFIX", at("conda")),
        ];
        assert_eq!(
            search(root.path(), &variables),
            [
                "RUNNER_CUDA_LIBS: own",
                "the system's loader",
                "CUDA_HOME: opt/cuda/lib64",
                "toolkit: usr/local/cuda-13.0/targets/sbsa-linux/lib",
                "toolkit: usr/local/cuda-12.10/lib64",
                "toolkit: usr/local/cuda-12.9/lib64",
                "VIRTUAL_ENV: venv/lib/python3.12/site-packages/nvidia/cu13/lib",
                "VIRTUAL_ENV: venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
                "CONDA_PREFIX: conda/lib",
                "system: usr/lib/x86_64-linux-gnu",
            ]
        );
        assert_eq!(
            search(root.path(), &[("CUDA_HOME", String::new())])[0],
            "the system's loader",
            "an empty variable is none"
        );
    }

    #[test]
    fn a_wheel_s_program_finds_the_libraries_beside_it_whatever_is_active() {
        let root = tempfile::tempdir().expect("a directory");
        for directory in ["wheel/lib/python3.13/site-packages/nvidia/cu13/lib", "usr/local/cuda/lib64"] {
            std::fs::create_dir_all(root.path().join(directory)).expect("a directory");
        }
        let other = root.path().join("other").display().to_string();
        let beside =
            "the program's Python environment: wheel/lib/python3.13/site-packages/nvidia/cu13/lib".to_owned();
        for variables in [vec![], vec![("VIRTUAL_ENV", other)]] {
            assert_eq!(
                search(root.path(), &variables)[..2],
                [beside.clone(), "the system's loader".to_owned()]
            );
        }
    }

    /// Where several users may write, anybody can put an environment around somebody's program.
    #[test]
    fn libraries_that_others_have_put_around_a_program_are_not_searched() {
        let root = tempfile::tempdir().expect("a directory");
        let packages = "lib/python3.13/site-packages/nvidia/cu13/lib";
        let prefixes = ["wheel", "env", "home/.local", "venv"];
        for prefix in prefixes {
            std::fs::create_dir_all(root.path().join(prefix).join(packages)).expect("a directory");
        }
        let program = root.path().join("wheel/bin/runner");
        for file in [&program, &root.path().join("env/bin/python3")] {
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
            std::fs::write(file, "").expect("a file");
        }
        let at = |path: &str| root.path().join(path).display().to_string();
        let variables = [("PATH", at("env/bin")), ("HOME", at("home")), ("VIRTUAL_ENV", at("venv"))];
        let found = || search(root.path(), &variables).len();
        assert_eq!(found(), prefixes.len() + 1);
        // only root can give something away
        let give = |path: &str, user: u32| lchown(root.path().join(path), Some(user), None);
        if give("wheel/lib", 12345).is_err() {
            return;
        }
        assert_eq!(found(), prefixes.len());
        // who has made the program may have made its libraries
        give("wheel/bin/runner", 12345).expect("given");
        assert_eq!(found(), prefixes.len() + 1);
        for (i, prefix) in prefixes.iter().enumerate().skip(1) {
            give(&format!("{prefix}/lib/python3.13/site-packages/nvidia/cu13"), 12345).expect("given");
            assert_eq!(found(), prefixes.len() + 1 - i, "{prefix}");
        }
        // and are told of
        let of_others = search_of(root.path(), &variables).of_others;
        let directories = of_others.iter().filter_map(|place| place.directory.clone());
        let expected = prefixes.iter().skip(1).map(|prefix| root.path().join(prefix).join(packages));
        assert_eq!(BTreeSet::from_iter(directories), BTreeSet::from_iter(expected));
    }

    #[test]
    fn the_python_on_the_path_is_followed_without_running_it() {
        let root = tempfile::tempdir().expect("a directory");
        let packages = root.path().join("env/lib/python3.11/site-packages/nvidia/cublas/lib");
        std::fs::create_dir_all(packages).expect("a directory");
        std::fs::create_dir_all(root.path().join("env/bin")).expect("a directory");
        std::fs::write(root.path().join("env/bin/python3"), "not a program").expect("a file");
        let path = root.path().join("env/bin").display().to_string();
        assert!(
            search(root.path(), &[("PATH", path)])
                .contains(&"python3 on PATH: env/lib/python3.11/site-packages/nvidia/cublas/lib".to_owned())
        );
    }
}
