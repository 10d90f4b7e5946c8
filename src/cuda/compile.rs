//! Compiles CUDA C++ to the machine code of one device, with NVRTC, at start-up.
//!
//! The result is machine code (a cubin) and not PTX, because a driver refuses PTX from a compiler newer than
//! itself. Compiled code is cached, so a later start takes milliseconds instead of seconds.

use super::nvrtc::Nvrtc;
use super::{CudaError, c_text, cache};
use std::ffi::{CString, c_char, c_int};
use std::path::Path;

/// Sources and options that are compiled together.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The text of the compilation unit, which may consist of `#include` lines only.
    pub unit: &'a str,
    /// The files that it may include: names and texts.
    pub files: &'a [(&'a str, &'a str)],
    /// Options other than the target, such as `--std=c++17` and `-DNAME=VALUE`.
    pub options: &'a [String],
}

/// Machine code, and the compiler's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// An ELF file for the driver.
    pub image: Vec<u8>,
    /// Warnings, and the resource usage if [`USAGE`] was among the options. Empty if the code came from the
    /// cache.
    pub log: String,
}

/// The option that makes the log report what each kernel uses.
pub const USAGE: &str = "--ptxas-options=-v";

/// The resources of a kernel, as the assembler reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// The kernel's name.
    pub kernel: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes per thread that are spilled to memory for lack of registers.
    pub spill_stores: u32,
    /// Bytes of spilled values that a thread reads back.
    pub spill_loads: u32,
    /// Bytes of static shared memory per block.
    pub shared: u32,
}

/// A usable NVRTC.
#[derive(Clone, Copy)]
pub struct Compiler {
    nvrtc: &'static Nvrtc,
    version: (u32, u32),
}

impl Compiler {
    /// The compiler of these functions and this release, (major, minor).
    pub(super) fn new(nvrtc: &'static Nvrtc, version: (u32, u32)) -> Self {
        Self { nvrtc, version }
    }

    /// The target for a device of this compute capability, such as `sm_90`.
    pub fn target(&self, capability: (u32, u32)) -> Result<String, CudaError> {
        target(self.nvrtc, capability).map(|number| format!("sm_{number}"))
    }

    /// Compiles for a target, or takes the code from the cache in `directory` if it is there; stores new code
    /// in it.
    pub fn compile_cached(
        &self,
        program: &Program,
        arch: &str,
        directory: Option<&Path>,
    ) -> Result<Cubin, CudaError> {
        let Some(directory) = directory else { return self.compile(program, arch) };
        let path = directory.join(self.cache_name(program, arch));
        if let Some(image) = cache::read(&path) {
            return Ok(Cubin { image, log: String::new() });
        }
        self.compile_anew(program, arch, Some(directory))
    }

    /// Compiles for a target and replaces the code in the cache, for when the driver has refused what was
    /// cached.
    pub fn compile_anew(
        &self,
        program: &Program,
        arch: &str,
        directory: Option<&Path>,
    ) -> Result<Cubin, CudaError> {
        let cubin = self.compile(program, arch)?;
        if let Some(directory) = directory {
            cache::write(&directory.join(self.cache_name(program, arch)), &cubin.image);
        }
        Ok(cubin)
    }

    /// The name of a cache file: a hash of everything that the machine code depends on.
    fn cache_name(&self, program: &Program, arch: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(&format!("{:?}", self.version));
        add(arch);
        add(program.unit);
        add(&program.files.len().to_string());
        for (name, text) in program.files {
            add(name);
            add(text);
        }
        for option in program.options {
            add(option);
        }
        format!("{arch}-{}.cubin", &hasher.finalize().to_hex()[..24])
    }

    /// Compiles for a [target](Self::target).
    pub fn compile(&self, program: &Program, arch: &str) -> Result<Cubin, CudaError> {
        compile(self.nvrtc, program, arch)
    }
}

fn compile(nvrtc: &Nvrtc, program: &Program, arch: &str) -> Result<Cubin, CudaError> {
    let texts = |items: &mut dyn Iterator<Item = &str>| {
        let made: Result<Vec<CString>, _> = items.map(CString::new).collect();
        made.map_err(|_| CudaError::Unsupported("a kernel's source or a macro has a zero byte".to_owned()))
    };
    let target = format!("--gpu-architecture={arch}");
    let unit = texts(&mut std::iter::once(program.unit))?;
    let names = texts(&mut program.files.iter().map(|(name, _)| *name))?;
    let bodies = texts(&mut program.files.iter().map(|(_, text)| *text))?;
    let options =
        texts(&mut std::iter::once(target.as_str()).chain(program.options.iter().map(String::as_str)))?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let (name_pointers, body_pointers) = (pointers(&names), pointers(&bodies));
    let option_pointers = pointers(&options);
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings end in a zero and outlive the program; the counts are those of the lists.
    let status = unsafe {
        (nvrtc.nvrtcCreateProgram)(
            &mut program,
            pointers(&unit)[0],
            c"kernels.cu".as_ptr(),
            name_pointers.len() as c_int,
            body_pointers.as_ptr(),
            name_pointers.as_ptr(),
        )
    };
    nvrtc.check("nvrtcCreateProgram", status)?;
    // SAFETY: the program was created above; sizes are asked for before the buffers are filled.
    let (compiled, log) = unsafe {
        let status =
            (nvrtc.nvrtcCompileProgram)(program, option_pointers.len() as c_int, option_pointers.as_ptr());
        let log = text_of(
            |size| (nvrtc.nvrtcGetProgramLogSize)(program, size),
            |at| (nvrtc.nvrtcGetProgramLog)(program, at),
        );
        let image = nvrtc.check("nvrtcCompileProgram", status).and_then(|()| {
            let mut size = 0;
            nvrtc.check("nvrtcGetCUBINSize", (nvrtc.nvrtcGetCUBINSize)(program, &mut size))?;
            let mut image = vec![0u8; size];
            nvrtc.check("nvrtcGetCUBIN", (nvrtc.nvrtcGetCUBIN)(program, image.as_mut_ptr().cast()))?;
            Ok(image)
        });
        (nvrtc.nvrtcDestroyProgram)(&mut program);
        (image, log)
    };
    match compiled {
        Ok(image) => Ok(Cubin { image, log }),
        Err(error) => {
            let log = if log.trim().is_empty() { error.to_string() } else { log };
            Err(CudaError::Compile { arch: arch.to_owned(), log })
        }
    }
}

/// Reads a text that the compiler writes into a buffer of the size that it asks for.
unsafe fn text_of(size_of: impl FnOnce(*mut usize) -> u32, write: impl FnOnce(*mut c_char) -> u32) -> String {
    let mut size = 0;
    if size_of(&mut size) != 0 {
        return String::new();
    }
    // one byte more than asked for, so that it ends in a zero whatever is written
    let mut buffer = vec![0u8; size + 1];
    if write(buffer.as_mut_ptr().cast()) != 0 {
        return String::new();
    }
    // SAFETY: the buffer ends in a zero.
    unsafe { c_text(buffer.as_ptr().cast()) }.unwrap_or_default()
}

/// Checks that the compiler works: on first use it opens a second library, which may be missing.
pub(super) fn probe(nvrtc: &Nvrtc) -> Result<(), String> {
    let newest = archs(nvrtc).map_err(|error| error.to_string())?.pop().unwrap_or_default();
    let arch = format!("sm_{newest}");
    match compile(nvrtc, &Program { unit: "", files: &[], options: &[] }, &arch) {
        Ok(_) => Ok(()),
        Err(CudaError::Compile { log, .. }) => {
            Err(log.lines().map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The targets that the compiler knows, in ascending order: 80 for `sm_80`.
fn archs(nvrtc: &Nvrtc) -> Result<Vec<u32>, CudaError> {
    let mut count = 0;
    // SAFETY: it writes one number.
    let status = unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&mut count) };
    nvrtc.check("nvrtcGetNumSupportedArchs", status)?;
    let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
    if !archs.is_empty() {
        // SAFETY: the buffer has as many numbers as the compiler said it would write.
        let status = unsafe { (nvrtc.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) };
        nvrtc.check("nvrtcGetSupportedArchs", status)?;
    }
    let mut archs: Vec<u32> = archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect();
    archs.sort_unstable();
    Ok(archs)
}

/// Compute capabilities of Tegra: of Xavier, of Orin, and of Thor by both its numbers. Machine code for them runs on no
/// other device, and they run no other (CUDA C++ Programming Guide, binary compatibility).
const TEGRA: [u32; 4] = [72, 87, 101, 110];

/// The target for a device: its own, or the nearest older one with the same major number, whose machine code
/// the device runs (CUDA C++ Programming Guide, binary compatibility).
pub(super) fn target(nvrtc: &Nvrtc, capability: (u32, u32)) -> Result<u32, CudaError> {
    nearest(&archs(nvrtc)?, capability).ok_or_else(|| {
        let known: Vec<String> = archs(nvrtc).unwrap_or_default().iter().map(u32::to_string).collect();
        CudaError::Unsupported(format!(
            "this NVRTC does not know compute capability {}.{}, only {}",
            capability.0,
            capability.1,
            known.join(", ")
        ))
    })
}

fn nearest(archs: &[u32], (major, minor): (u32, u32)) -> Option<u32> {
    let own = 10 * major + minor;
    let runs = |arch: &u32| arch / 10 == major && *arch <= own;
    let of_its_kind = |arch: &u32| *arch == own || ![arch, &own].iter().any(|arch| TEGRA.contains(arch));
    archs.iter().copied().filter(|arch| runs(arch) && of_its_kind(arch)).max()
}

/// The resources of each kernel of a program compiled with [`USAGE`], in the order of the log.
pub fn usage(log: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    let number_before = |line: &str, what: &str| {
        let before = &line[..line.find(what)?];
        before.split_whitespace().next_back()?.parse::<u32>().ok()
    };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Usage { kernel, ..Usage::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        if let Some(bytes) = number_before(line, "bytes spill stores") {
            last.spill_stores = last.spill_stores.max(bytes);
        }
        if let Some(bytes) = number_before(line, "bytes spill loads") {
            last.spill_loads = last.spill_loads.max(bytes);
        }
        if let Some((_, rest)) = line.split_once(": Used ") {
            last.registers = rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            last.shared = number_before(rest, "bytes smem").unwrap_or(0);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_its_own_target_or_the_nearest_that_it_runs() {
        let archs = [75, 80, 86, 90, 100, 103, 120];
        for (capability, expected) in [
            ((8, 0), Some(80)),
            ((8, 6), Some(86)),
            ((8, 9), Some(86)),
            ((9, 0), Some(90)),
            ((10, 0), Some(100)),
            ((12, 1), Some(120)),
            ((11, 0), None),
            ((7, 0), None),
        ] {
            assert_eq!(nearest(&archs, capability), expected, "{capability:?}");
        }
    }

    #[test]
    fn machine_code_does_not_cross_between_tegra_and_other_devices() {
        // as NVRTC 11.4 and NVRTC 12.8 know them
        let (old, new) = ([70, 72, 75, 80, 86, 87], [75, 80, 86, 87, 89, 90, 100, 101, 120]);
        for (archs, capability, expected) in [
            (&old[..], (8, 9), Some(86)),
            (&old[..], (8, 7), Some(87)),
            (&old[..5], (8, 7), None),
            (&new[..], (10, 3), Some(100)),
            (&new[..], (10, 1), Some(101)),
            (&new[..], (11, 0), None),
            (&[100, 110], (10, 1), None),
        ] {
            assert_eq!(nearest(archs, capability), expected, "{capability:?} of {archs:?}");
        }
    }

    #[test]
    fn the_assembler_s_report_is_understood() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 256 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 58.402 ms
ptxas info    : Compiling entry function 'other' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
";
        let k =
            Usage { kernel: "k".to_owned(), registers: 32, spill_stores: 12, spill_loads: 16, shared: 1024 };
        let other = Usage { kernel: "other".to_owned(), registers: 255, ..Usage::default() };
        assert_eq!(usage(log), [k, other]);
    }
}
