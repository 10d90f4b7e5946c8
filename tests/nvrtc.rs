//! Compiles every kernel for real devices, which needs NVRTC but no GPU.
//!
//! NVRTC is looked for as the program does, for instance in the directory that `RUNNER_CUDA_LIBS` names. The tests are
//! ignored unless asked for, as `.ci/run` does once it has installed NVRTC: `cargo test --test nvrtc -- --ignored`.

use runner::cuda::Libraries;
use runner::cuda::compile::{Compiler, Program, USAGE, Usage, usage};
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::kernels;
use runner::recipe::Precision;
use std::collections::BTreeSet;

const PRECISIONS: [Precision; 4] = [Precision::Bf16, Precision::Fp16, Precision::Tf32, Precision::Fp32];
/// GPT-2's head size, for which all kernels are compiled, and others, for which those of flash attention are.
const HEAD: usize = 64;
const OTHER_HEADS: [usize; 4] = [32, 80, 96, 128];
/// Where the kernels of flash attention are, and how their names begin.
const FLASH: [&str; 2] = ["flash_attention/", "flash_"];
const ALL: [&str; 2] = ["", ""];
/// Ampere, Ada, Hopper and Blackwell: A100; L40S and RTX 40; H100 and H200; B200.
const ARCHS: [&str; 4] = ["sm_80", "sm_89", "sm_90", "sm_100"];
/// The most bytes that a thread of any kernel may spill to memory for lack of registers.
const SPILLS: u32 = 0;

fn compiler() -> Compiler {
    Libraries::get().compiler().unwrap_or_else(|missing| panic!("{missing}"))
}

fn compile(
    compiler: &Compiler,
    arch: &str,
    config: &KernelConfig,
    place: &str,
) -> Result<Vec<Usage>, String> {
    let files: Vec<_> = kernels::HEADERS.iter().chain(kernels::sources(config)).copied().collect();
    let mut options = kernels::defines(config);
    options.extend(kernels::NVRTC_OPTIONS.iter().chain(&[USAGE]).map(|&option| option.to_owned()));
    let sources = kernels::sources(config).filter(|(name, _)| name.starts_with(place));
    let unit: String = sources.map(|(name, _)| format!("#include \"{name}\"\n")).collect();
    let program = Program { unit: &unit, files: &files, options: &options };
    let cubin = compiler.compile(&program, arch).map_err(|error| error.to_string())?;
    assert!(cubin.image.starts_with(b"\x7fELF"), "{arch}: this is not machine code");
    Ok(usage(&cubin.log))
}

#[test]
#[ignore = "needs NVRTC"]
fn every_kernel_compiles_for_every_architecture_and_nothing_spills() {
    let compiler = compiler();
    let mut work = Vec::new();
    for arch in ARCHS {
        for (precision, dropout) in PRECISIONS.iter().flat_map(|one| [(*one, false), (*one, true)]) {
            work.push((arch, KernelConfig { precision, head_size: HEAD, dropout }, ALL));
            for head_size in OTHER_HEADS {
                work.push((arch, KernelConfig { precision, head_size, dropout }, FLASH));
            }
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let problems: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mut problems = Vec::new();
            while let Some((arch, config, which)) =
                work.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
            {
                let wrong = check(&compiler, arch, config, *which);
                problems.extend(wrong.into_iter().map(|wrong| format!("{arch}, {config:?}: {wrong}")));
            }
            problems
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

fn check(compiler: &Compiler, arch: &str, config: &KernelConfig, [place, prefix]: [&str; 2]) -> Vec<String> {
    let used = match compile(compiler, arch, config, place) {
        Ok(used) => used,
        Err(error) => return vec![error],
    };
    let found: BTreeSet<&str> = used.iter().map(|usage| usage.kernel.as_str()).collect();
    let expected: BTreeSet<&str> =
        kernels::names(config).into_iter().filter(|name| name.starts_with(prefix)).collect();
    let mut problems = Vec::new();
    if found != expected {
        problems.push(format!("the kernels are {found:?}, not {expected:?}"));
    }
    for Usage { kernel, registers, spill_stores, .. } in used {
        if spill_stores > SPILLS {
            problems.push(format!("{kernel} spills {spill_stores} bytes, at {registers} registers"));
        }
        if registers == 0 {
            problems.push(format!("it is not known what {kernel} uses"));
        }
    }
    problems
}

#[test]
#[ignore = "needs NVRTC"]
fn a_spill_is_detected() {
    let compiler = compiler();
    let body = "extern \"C\" __global__ void __launch_bounds__(1024) many(float* x) {\n\
        float a[120];\n#pragma unroll\n for (int i = 0; i < 120; i++) a[i] = x[i * 1024];\n\
        for (int n = 0; n < 100; n++) {\n#pragma unroll\n\
         for (int i = 0; i < 120; i++) a[i] = a[i] * a[(i + 1) % 120] + x[n];\n}\n\
        float s = 0;\n#pragma unroll\n for (int i = 0; i < 120; i++) s += a[i] * x[i];\n x[threadIdx.x] = s;\n}\n";
    let options = [USAGE.to_owned()];
    let program = Program { unit: "#include \"many.cu\"", files: &[("many.cu", body)], options: &options };
    let cubin = compiler.compile(&program, "sm_90").expect("it compiles");
    let used = usage(&cubin.log);
    assert!(used.len() == 1 && used[0].spill_stores > SPILLS, "{used:?}\n{}", cubin.log);
    let broken = Program { files: &[("many.cu", "int x = y;")], ..program };
    let error = compiler.compile(&broken, "sm_90").expect_err("it does not compile").to_string();
    assert!(error.contains("many.cu(1): error: identifier \"y\" is undefined"), "{error}");
}
