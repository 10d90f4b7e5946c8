//! Which of CUDA's libraries are present, where they come from, and what follows when one is missing.
//!
//! This module says what makes a driver, compiler, matrix or collective library usable; `found.rs` says how
//! files are found and opened. The versions must fit each other and the device.

use super::CudaError;
use super::compile::{self, Compiler};
use super::cublaslt::CublasLt;
use super::device::DeviceInfo;
use super::driver::Driver;
use super::found::{Finding, Located, Version, Wanted};
use super::nccl::Nccl;
use super::nvrtc::Nvrtc;
use super::search::{LIBS_VARIABLE, Search, SearchDir};
use libloading::Library;
use std::sync::OnceLock;

/// The oldest supported compute capability: Ampere, the first with bf16 and asynchronous copies.
pub const OLDEST_DEVICE: (u32, u32) = (8, 0);

/// `CUDA_ERROR_STUB_LIBRARY`: the answer of a toolkit's stub, which exists only to be linked against.
const STUB: u32 = 34;

/// `CUDA_ERROR_NO_DEVICE`: the machine has none, or `CUDA_VISIBLE_DEVICES` hides them all.
const NO_DEVICE: u32 = 100;

/// CUDA's libraries on this machine. The driver is looked for at once, each other library when it is first
/// needed.
pub struct Libraries {
    search: Search,
    driver: Located<Driver>,
    /// What `cuInit` returned, 0 also where no driver was found.
    started: u32,
    nvrtc: OnceLock<Located<Nvrtc>>,
    cublaslt: OnceLock<Located<CublasLt>>,
    nccl: OnceLock<Located<Nccl>>,
}

/// Parts of a help that lead to the report of what was found.
const SEE_WHAT_IS_THERE: &str = ", see what is there with `runner doctor`";
const SEE: &str = "see `runner doctor`; ";

/// Why no CUDA device can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CudaMissing {
    /// What is missing, and what was looked for where.
    pub message: String,
    /// What to do about it.
    pub help: String,
}

impl CudaMissing {
    fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into() }
    }

    /// What to do about it, for readers of the report that [`help`](Self::help) may point to.
    pub fn help_beside_a_report(&self) -> String {
        self.help.replace(SEE_WHAT_IS_THERE, "").replace(SEE, "")
    }
}

impl Libraries {
    /// The libraries of this process, looked for once.
    pub fn get() -> &'static Self {
        static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
        LIBRARIES.get_or_init(|| Self::find(Search::from_environment()))
    }

    /// Looks for the libraries in these directories.
    pub fn find(search: Search) -> Self {
        let (driver, started) = find_driver(&search);
        let (nvrtc, cublaslt, nccl) = Default::default();
        Self { search, driver, started, nvrtc, cublaslt, nccl }
    }

    /// What was found of each library, the driver first.
    pub fn findings(&self) -> [&Finding; 4] {
        [&self.driver.finding, &self.nvrtc().finding, &self.cublaslt().finding, &self.nccl().finding]
    }

    /// The directories that are searched.
    pub fn places(&self) -> &[SearchDir] {
        &self.search.places
    }

    /// Whether there is a driver that does not start, for another reason than that it has no device.
    pub fn driver_fails(&self) -> bool {
        ![0, NO_DEVICE].contains(&self.started)
    }

    /// The driver, if it can be used.
    pub(super) fn usable_driver(&self) -> Option<&'static Driver> {
        self.driver.table.filter(|_| self.driver.finding.usable)
    }

    pub(super) fn driver_version(&self) -> Option<Version> {
        self.driver.finding.version
    }

    pub(super) fn nvrtc(&self) -> &Located<Nvrtc> {
        self.nvrtc.get_or_init(|| {
            let wanted = Wanted {
                name: "NVRTC",
                purpose: "compiles the kernels for the device at hand",
                meaning: "without it no kernel can be compiled, so CUDA devices cannot be used; install the Python \
                          package nvidia-cuda-nvrtc or a CUDA toolkit of the driver's release",
                names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"],
                first: Some("libnvrtc-builtins.so"),
                open: &|library| self.open_nvrtc(library),
            };
            wanted.find(&self.search)
        })
    }

    pub(super) fn cublaslt(&self) -> &Located<CublasLt> {
        self.cublaslt.get_or_init(|| {
            let wanted = Wanted {
                name: "cuBLASLt",
                purpose: "multiplies matrices on the device",
                meaning: "without it CUDA devices cannot be used; install the Python package nvidia-cublas or a CUDA \
                          toolkit of the driver's release",
                names: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"],
                first: None,
                open: &|library| {
                    let table = CublasLt::load(library).map_err(|missing| missing.to_string())?;
                    // SAFETY: it takes nothing and returns a number.
                    let version = unsafe { (table.version)() } as u32;
                    // major·10³ + minor·10² + patch in CUDA 11, major·10⁴ + minor·10² + patch since
                    // (cublas_api.h)
                    let version = match version {
                        ..100_000 => Version { major: 11, minor: version.saturating_sub(11_000) / 100 },
                        _ => Version { major: version / 10_000, minor: version / 100 % 100 },
                    };
                    self.not_too_new(version)?;
                    let address = table.version as usize;
                    Ok((table, address, version))
                },
            };
            wanted.find(&self.search)
        })
    }

    fn nccl(&self) -> &Located<Nccl> {
        self.nccl.get_or_init(|| {
            let wanted = Wanted {
                name: "NCCL",
                purpose: "sums over the devices of several ranks",
                meaning: "one device trains without it, several ranks on CUDA devices do not; install the Python \
                          package nvidia-nccl-cu13 (nvidia-nccl-cu12 for a driver of CUDA 12) or the system's libnccl2",
                names: &["libnccl.so.2", "libnccl.so"],
                first: None,
                open: &|library| {
                    let table = Nccl::load(library).map_err(|missing| missing.to_string())?;
                    let version = table.version().map_err(|error| error.to_string())?;
                    let address = table.ncclGetVersion as usize;
                    Ok((table, address, version))
                },
            };
            wanted.find(&self.search)
        })
    }

    /// NCCL, or an error that says where it was looked for.
    pub(super) fn usable_nccl(&self) -> Result<&'static Nccl, CudaError> {
        let Located { finding, table } = self.nccl();
        table.ok_or_else(|| {
            let why = self.complaint(finding).unwrap_or_else(|| "NCCL cannot be used".to_owned());
            let meaning = finding.meaning;
            CudaError::Unsupported(format!("{why}; {meaning}; name other directories in {LIBS_VARIABLE}"))
        })
    }

    /// Why a library cannot be used; `None` if it can.
    pub(super) fn complaint(&self, finding: &Finding) -> Option<String> {
        finding.complaint(&self.search)
    }

    fn open_nvrtc(&self, library: &Library) -> Result<(Nvrtc, usize, Version), String> {
        let table = Nvrtc::load(library).map_err(|missing| missing.to_string())?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two numbers.
        let status = unsafe { (table.nvrtcVersion)(&mut major, &mut minor) };
        table.check("nvrtcVersion", status).map_err(|error| error.to_string())?;
        let version = Version { major: major as u32, minor: minor as u32 };
        self.not_too_new(version)?;
        compile::probe(&table)?;
        let address = table.nvrtcVersion as usize;
        Ok((table, address, version))
    }

    /// Refuses a library whose major release is newer than the driver's: the code that it makes does not run
    /// there (CUDA Compatibility, minor version compatibility).
    fn not_too_new(&self, version: Version) -> Result<(), String> {
        match self.driver_version() {
            Some(driver) if version.major > driver.major => {
                Err(format!("it belongs to CUDA {version}, but the driver supports CUDA up to {driver}"))
            }
            _ => Ok(()),
        }
    }

    /// The compiler. It needs neither a driver nor a device.
    pub fn compiler(&self) -> Result<Compiler, CudaMissing> {
        let part = self.nvrtc();
        match (part.table, part.finding.version) {
            (Some(nvrtc), Some(version)) => Ok(Compiler::new(nvrtc, (version.major, version.minor))),
            _ => Err(CudaMissing {
                message: self.complaint(&part.finding).unwrap_or_default(),
                help: part.finding.meaning.to_owned(),
            }),
        }
    }

    /// The devices that the driver lists; empty without a driver.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let Some(driver) = self.usable_driver() else { return Vec::new() };
        let count = DeviceInfo::count(driver).unwrap_or(0);
        (0..count).filter_map(|index| DeviceInfo::query(driver, index).ok()).collect()
    }

    /// The device with this index, if everything that training on it needs is present.
    pub fn require_device(&self, index: usize) -> Result<DeviceInfo, CudaMissing> {
        let complain = |finding: &Finding| {
            self.complaint(finding).map(|text| {
                // another file helps where one is missing, not where a library says why it does not start
                let elsewhere = match finding.problem {
                    None => format!("; name other directories in {LIBS_VARIABLE}{SEE_WHAT_IS_THERE}"),
                    Some(_) => String::new(),
                };
                let help = format!("{}{elsewhere}, or use compute.device = \"cpu\"", finding.meaning);
                CudaMissing::new(text, help)
            })
        };
        let Some(driver) = self.usable_driver() else {
            return Err(complain(&self.driver.finding)
                .unwrap_or_else(|| CudaMissing::new("the CUDA driver cannot be used", "")));
        };
        let failed = |error: CudaError| CudaMissing::new(format!("the CUDA driver failed: {error}"), "");
        let count = DeviceInfo::count(driver).map_err(failed)?;
        if index >= count {
            return Err(CudaMissing::new(
                format!("there is no CUDA device {index}: the driver shows {count}, counted from 0"),
                format!("{SEE}CUDA_VISIBLE_DEVICES hides devices from a process"),
            ));
        }
        let device = DeviceInfo::query(driver, index).map_err(failed)?;
        let capability = device.compute_capability;
        if capability < OLDEST_DEVICE {
            return Err(CudaMissing::new(
                format!(
                    "{} has compute capability {}.{}, and the kernels need {}.{} (Ampere) or later",
                    device.name, capability.0, capability.1, OLDEST_DEVICE.0, OLDEST_DEVICE.1
                ),
                "use compute.device = \"cpu\"",
            ));
        }
        for finding in [&self.nvrtc().finding, &self.cublaslt().finding] {
            if let Some(missing) = complain(finding) {
                return Err(missing);
            }
        }
        if let Some(nvrtc) = self.nvrtc().table {
            compile::target(nvrtc, capability).map_err(|error| {
                CudaMissing::new(
                    format!("kernels cannot be compiled for {}: {error}", device.name),
                    "install a newer NVRTC",
                )
            })?;
        }
        Ok(device)
    }
}

/// What to do where `cuInit` returns this.
fn help_to_start(status: u32) -> &'static str {
    match status {
        NO_DEVICE => {
            "the driver has no device for this process: CUDA_VISIBLE_DEVICES hides devices, and `nvidia-smi` lists them"
        }
        // CUDA_ERROR_SYSTEM_NOT_READY
        802 => {
            "the devices' links are not set up: start the fabric manager (the service nvidia-fabricmanager, of the \
             driver's release), or wait until it is through"
        }
        // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        803 => {
            "the driver's library and its kernel module are of two releases, as after an update: reboot the machine"
        }
        // CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        804 => {
            "the library is that of a package for forward compatibility, which this device does not support: take its \
             directory out of LD_LIBRARY_PATH"
        }
        _ => "the driver is there and does not start: see whether `nvidia-smi` works",
    }
}

/// The driver, and what `cuInit` returned.
fn find_driver(search: &Search) -> (Located<Driver>, u32) {
    let problem = std::cell::RefCell::new(None);
    let code = std::cell::Cell::new(0);
    let wanted = Wanted {
        name: "the CUDA driver",
        purpose: "reaches the device",
        meaning: "without it there is no CUDA device to be used; it comes with NVIDIA's display driver",
        names: &["libcuda.so.1", "libcuda.so"],
        first: None,
        open: &|library| {
            let table = Driver::load(library).map_err(|missing| missing.to_string())?;
            // SAFETY: the flags must be 0.
            let started = unsafe { (table.cuInit)(0) };
            if started == STUB {
                return Err("it is a stub for linking; the driver itself is not installed".to_owned());
            }
            let mut version = 0;
            // SAFETY: it writes one number, whether or not the driver has started.
            let status = unsafe { (table.cuDriverGetVersion)(&mut version) };
            table.check("cuDriverGetVersion", status).map_err(|error| error.to_string())?;
            let version = version as u32;
            code.set(started);
            *problem.borrow_mut() = (started != 0).then(|| {
                let hidden = std::env::var("CUDA_VISIBLE_DEVICES")
                    .map_or(String::new(), |list| format!("; CUDA_VISIBLE_DEVICES is \"{list}\""));
                format!("cuInit: {}{hidden}", table.text(started))
            });
            let address = table.cuInit as usize;
            Ok((table, address, Version { major: version / 1000, minor: version % 1000 / 10 }))
        },
    };
    let mut part = wanted.find(search);
    part.finding.problem = problem.take();
    if part.finding.problem.is_some() {
        part.finding.usable = false;
        part.finding.meaning = help_to_start(code.get());
    }
    (part, code.get())
}
