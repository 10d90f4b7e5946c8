//! Compiles the kernels for the host, once per configuration: libraries are cached under a hash of their
//! inputs.

use super::EmulatorError;
use crate::engine::cuda::device::KernelConfig;
use crate::engine::cuda::kernels;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The emulator's own headers.
const HEADERS: &[(&str, &str)] = &[
    ("emulator.h", include_str!("emulator.h")),
    ("fiber.h", include_str!("fiber.h")),
    ("machine.h", include_str!("machine.h")),
    ("language.h", include_str!("language.h")),
    ("tensor_core.h", include_str!("tensor_core.h")),
    ("launcher.h", include_str!("launcher.h")),
    ("count.h", include_str!("count.h")),
    ("count.cpp", include_str!("count.cpp")),
];

/// Exact arithmetic: products and sums are not contracted, and operands may be accessed
/// as words. Fortified libraries refuse `_longjmp` between stacks.
const OPTIONS: &[&str] = &[
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-DCUDA_EMULATOR",
    "-I.",
];

/// What kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// To run often.
    Often,
    /// To run once or twice: less time is spent on optimizing them. The results are the same, for arithmetic is exact.
    Once,
    /// To count what they touch.
    Counted,
}

/// For kernels that count what they touch: every access calls a function of `count.cpp`.
const COUNTING: &[&str] = &["-DEMULATOR_COUNTS", "-fsanitize=thread"];

/// The translation unit: the kernels in an unnamed namespace, so that none of their symbols is exported and
/// all their shared arrays can be in one section, and the table of their names.
fn unit(sources: &[(&str, &str)]) -> String {
    let includes: String = sources.iter().map(|(name, _)| format!("#include \"{name}\"\n")).collect();
    let mut unit = format!("#include \"emulator.h\"\nnamespace {{\n{includes}}}\n");
    unit.push_str("const emulator::Kernel emulator::kernels[] = {\n");
    for name in sources.iter().flat_map(|(_, text)| kernels::kernel_names(text)) {
        writeln!(unit, "    {{\"{name}\", emulator::Call<{name}>::run}},").expect("strings can be written");
    }
    unit.push_str(
        "};\nconst size_t emulator::kernel_count = sizeof emulator::kernels / sizeof *emulator::kernels;\n",
    );
    unit
}

/// The library for these headers, sources and this configuration, compiled unless `cache` has it.
pub(super) fn library(
    config: &KernelConfig,
    headers: &[(&str, &str)],
    sources: &[(&str, &str)],
    cache: &Path,
    usage: Usage,
) -> Result<PathBuf, EmulatorError> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let unit = unit(sources);
    let files: Vec<(&str, &str)> = [headers, sources, HEADERS, &[("unit.cpp", &unit)]].concat();
    let defines = kernels::defines(config);
    let counts = usage == Usage::Counted;
    let level = if usage == Usage::Once { "-O1" } else { "-O2" };
    let plain: Vec<&str> = [level]
        .into_iter()
        .chain(OPTIONS.iter().copied())
        .chain(defines.iter().map(String::as_str))
        .collect();
    let counting = if counts { COUNTING } else { &[] };
    let instrumented = [&plain[..], counting].concat();
    let mut steps = vec![[&instrumented[..], &["-c", "unit.cpp"]].concat()];
    if counts {
        steps.push([&plain[..], &["-c", "count.cpp"]].concat());
    }
    // without the sanitizer's library, whose place count.cpp takes
    steps.push(vec!["-shared", "unit.o", "-o", "kernels.so"]);
    if counts {
        steps.last_mut().expect("there are steps").push("count.o");
    }
    let mut hasher = blake3::Hasher::new();
    for text in
        files.iter().flat_map(|(name, text)| [*name, *text]).chain([compiler.as_str()]).chain(steps.concat())
    {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    let path = cache.join(format!("kernels-{}.so", &hasher.finalize().to_hex()[..16]));
    if !path.exists() {
        build(&compiler, &steps, &files, cache, &path)?;
    }
    Ok(path)
}

/// Runs the compiler with the arguments of each step in a directory of its own, because another process may be doing
/// the same, and moves the library to `path`.
fn build(
    compiler: &str,
    steps: &[Vec<&str>],
    files: &[(&str, &str)],
    cache: &Path,
    path: &Path,
) -> Result<(), EmulatorError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| EmulatorError::File { path, error }
    };
    fs::create_dir_all(cache).map_err(failed(cache))?;
    let dir = tempfile::Builder::new().prefix("building-").tempdir_in(cache).map_err(failed(cache))?;
    for (name, text) in files {
        let file = dir.path().join(name);
        let parent = file.parent().unwrap_or(dir.path());
        fs::create_dir_all(parent).map_err(failed(parent))?;
        fs::write(&file, text).map_err(failed(&file))?;
    }
    // CXX may contain options too, as in `ccache g++`
    for step in steps {
        let mut words = compiler.split_whitespace();
        let output = Command::new(words.next().unwrap_or("c++"))
            .args(words)
            .args(step)
            .current_dir(dir.path())
            .output()
            .map_err(|error| EmulatorError::Compiler { compiler: compiler.to_owned(), error })?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(EmulatorError::Sources { compiler: compiler.to_owned(), log });
        }
    }
    fs::rename(dir.path().join("kernels.so"), path).map_err(failed(path))
}
