//! Compiles the kernels for the host: one library for each file with kernels, cached under a hash of what it is made
//! from.
//!
//! That is the file, what it includes, and the macros that occur in those texts, so one library serves all
//! configurations between which they see no difference.

use super::EmulatorError;
use crate::engine::cuda::device::KernelConfig;
use crate::engine::cuda::kernels;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The emulator's own headers.
const HEADERS: &[File] = &[
    ("emulator.h", include_str!("emulator.h")),
    ("fiber.h", include_str!("fiber.h")),
    ("machine.h", include_str!("machine.h")),
    ("language.h", include_str!("language.h")),
    ("tensor_core.h", include_str!("tensor_core.h")),
    ("launcher.h", include_str!("launcher.h")),
    ("count.h", include_str!("count.h")),
];
/// What is compiled once for all kernels.
const MACHINE: &[File] = &[
    ("emulator.cpp", include_str!("emulator.cpp")),
    ("machine.cpp", include_str!("machine.cpp")),
    ("launcher.cpp", include_str!("launcher.cpp")),
    ("count.cpp", include_str!("count.cpp")),
];

/// A name by which files include it, and a text.
pub(super) type File<'a> = (&'a str, &'a str);

/// Exact arithmetic: products and sums are not contracted, and operands may be accessed
/// as words. Fortified libraries refuse `_longjmp` between stacks. Kernels run for a short time: to optimize them
/// further takes longer than it saves.
const OPTIONS: &[&str] = &[
    "-O1",
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-DCUDA_EMULATOR",
    "-I.",
];

/// Compiler options with which kernels also count what they touch: those of all files, and those of kernels alone, by
/// which each access calls a function of `count.cpp`, in place of the sanitizer's library.
const COUNTING: (&[&str], &[&str]) = (&["-DEMULATOR_COUNTS"], &["-fsanitize=thread"]);

/// The translation unit: the kernels in an unnamed namespace, so that none of their symbols is exported and
/// all their shared arrays can be in one section, and the table of their names.
fn unit((name, text): File) -> String {
    let mut unit = format!("#include \"emulator.h\"\nnamespace {{\n#include \"{name}\"\n}}\n");
    unit.push_str("const emulator::Kernel emulator::kernels[] = {\n");
    for name in kernels::kernel_names(text) {
        writeln!(unit, "    {{\"{name}\", emulator::Call<{name}>::run}},").expect("strings can be written");
    }
    unit.push_str(
        "};\nconst size_t emulator::kernel_count = sizeof emulator::kernels / sizeof *emulator::kernels;\n",
    );
    unit
}

/// The source, and those of the headers that it includes, itself or through others.
fn reached<'a>(source: File<'a>, headers: &[File<'a>]) -> Vec<File<'a>> {
    let mut reached = vec![source];
    let mut next = 0;
    while let Some((_, text)) = reached.get(next).copied() {
        let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
        let found: Vec<File> =
            names.filter_map(|name| headers.iter().find(|(known, _)| *known == name)).copied().collect();
        for file in found {
            if !reached.contains(&file) {
                reached.push(file);
            }
        }
        next += 1;
    }
    reached
}

/// The macros of a configuration that occur in one of the files.
fn macros_in(files: &[File], config: &KernelConfig) -> Vec<String> {
    let mut macros = kernels::defines(config);
    macros.retain(|option| {
        let name = option.trim_start_matches("-D").split('=').next().unwrap_or_default();
        files.iter().any(|(_, text)| text.contains(name))
    });
    macros
}

/// The library of a file with kernels, for this configuration; compiled unless `cache` has it.
pub(super) fn library(
    config: &KernelConfig,
    headers: &[File],
    source: File,
    cache: &Path,
    counts: bool,
) -> Result<PathBuf, EmulatorError> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let (all, of_kernels) = if counts { COUNTING } else { Default::default() };
    let all = [OPTIONS, all].concat();
    let machine = Build {
        compiler: &compiler,
        steps: vec![[&all[..], &["-c", "emulator.cpp", "-o", OUTPUT]].concat()],
        files: [MACHINE, HEADERS].concat(),
    };
    let machine = machine.product(cache, "machine", "o")?;
    let unit = unit(source);
    let files = [&reached(source, headers), HEADERS, &[("unit.cpp", unit.as_str())]].concat();
    let macros = macros_in(&files, config);
    let macros: Vec<&str> = macros.iter().map(String::as_str).collect();
    let machine = machine.canonicalize().map_err(failed(&machine))?;
    let linked = ["-shared", "unit.o", &machine.to_string_lossy(), "-o", OUTPUT];
    let steps = vec![[&all[..], of_kernels, &macros, &["-c", "unit.cpp"]].concat(), linked.to_vec()];
    Build { compiler: &compiler, steps, files }.product(cache, "kernels", "so")
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> EmulatorError {
    let path = path.to_owned();
    move |error| EmulatorError::File { path, error }
}

/// The name of what a build makes.
const OUTPUT: &str = "made";

/// Steps that make one file of others.
struct Build<'a> {
    compiler: &'a str,
    /// The arguments of the compiler in each step.
    steps: Vec<Vec<&'a str>>,
    files: Vec<File<'a>>,
}

impl Build<'_> {
    /// What the build makes, under a name in `cache` that depends on all of its parts; made unless it is there.
    fn product(&self, cache: &Path, kind: &str, extension: &str) -> Result<PathBuf, EmulatorError> {
        let mut hasher = blake3::Hasher::new();
        let files = self.files.iter().flat_map(|(name, text)| [*name, *text]);
        for text in files.chain([self.compiler]).chain(self.steps.concat()) {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        let path = cache.join(format!("{kind}-{}.{extension}", &hasher.finalize().to_hex()[..16]));
        if !path.exists() {
            self.make(cache, &path)?;
        }
        Ok(path)
    }

    /// Takes the steps in a directory of their own, because another process may be doing the same, and moves what they
    /// make to `path`.
    fn make(&self, cache: &Path, path: &Path) -> Result<(), EmulatorError> {
        fs::create_dir_all(cache).map_err(failed(cache))?;
        let dir = tempfile::Builder::new().prefix("building-").tempdir_in(cache).map_err(failed(cache))?;
        for (name, text) in &self.files {
            let file = dir.path().join(name);
            let parent = file.parent().unwrap_or(dir.path());
            fs::create_dir_all(parent).map_err(failed(parent))?;
            fs::write(&file, text).map_err(failed(&file))?;
        }
        // CXX may contain options too, as in `ccache g++`
        for step in &self.steps {
            let compiler = self.compiler.to_owned();
            let mut words = compiler.split_whitespace();
            let output = Command::new(words.next().unwrap_or("c++"))
                .args(words)
                .args(step)
                .current_dir(dir.path())
                .output()
                .map_err(|error| EmulatorError::Compiler { compiler: compiler.clone(), error })?;
            if !output.status.success() {
                let log = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(EmulatorError::Sources { compiler, log });
            }
        }
        fs::rename(dir.path().join(OUTPUT), path).map_err(failed(path))
    }
}
