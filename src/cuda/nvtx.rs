//! NVTX: names for ranges of work, which NVIDIA's profilers show beside the kernels.
//!
//! Nothing is linked, and without a profiler nothing happens. A profiler names a library of its own in
//! `NVTX_INJECTION64_PATH`; since version 3, NVTX is a header whose code loads that library and lets it fill a table of
//! functions. This module does the same for the two functions that it calls (nvtx3/nvtxDetail/nvtxInit.h). Toolkits up
//! to CUDA 12 also had the library `libnvToolsExt.so.1`, which is the second choice.

use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The variable in which a profiler names its library.
const INJECTION: &str = "NVTX_INJECTION64_PATH";
/// The library of earlier toolkits.
const LIBRARY: &str = "libnvToolsExt.so.1";

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// The functions that begin and end a range of this thread's work.
#[derive(Debug, Clone, Copy)]
pub struct Ranges {
    push: Push,
    pop: Pop,
}

impl Ranges {
    /// The functions of the profiler that watches this process, if one does.
    pub fn get() -> Option<&'static Self> {
        static RANGES: OnceLock<Option<Ranges>> = OnceLock::new();
        RANGES
            .get_or_init(|| {
                let named = std::env::var_os(INJECTION).filter(|path| !path.is_empty());
                let injected = named.and_then(|path| Self::injected(Path::new(&path)));
                injected.or_else(|| Self::of_library(Path::new(LIBRARY)))
            })
            .as_ref()
    }

    /// Loads a profiler's library and lets it fill the table of functions. The table is one for the process.
    pub fn injected(library: &Path) -> Option<Self> {
        // SAFETY: the user, or the profiler that started this process, names a library to be loaded for this purpose.
        let library = unsafe { Library::new(library) }.ok()?;
        // the profiler's threads run in it until the process ends
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: NVTX defines the function's name and type.
        let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }.ok()?;
        // SAFETY: the argument returns tables of the layout that NVTX defines, which live as long as the process.
        if unsafe { initialize(export_table) } == 0 {
            return None;
        }
        let filled = |id: usize| {
            Some(FUNCTIONS[MODULE_CORE][id].load(Ordering::Acquire)).filter(|function| !function.is_null())
        };
        let (push, pop) = (filled(RANGE_PUSH_A)?, filled(RANGE_POP)?);
        // SAFETY: the library has put functions of these types into these places of the table.
        Some(unsafe {
            Self {
                push: std::mem::transmute::<*mut c_void, Push>(push),
                pop: std::mem::transmute::<*mut c_void, Pop>(pop),
            }
        })
    }

    fn of_library(library: &Path) -> Option<Self> {
        // SAFETY: loading NVIDIA's library runs its constructors only.
        let library: &'static Library = Box::leak(Box::new(unsafe { Library::new(library) }.ok()?));
        // SAFETY: NVTX declares the functions with these types.
        unsafe {
            let push = *library.get::<Push>(b"nvtxRangePushA\0").ok()?;
            let pop = *library.get::<Pop>(b"nvtxRangePop\0").ok()?;
            Some(Self { push, pop })
        }
    }

    /// Begins a range of this thread's work.
    pub fn push(&self, name: &str) {
        let Ok(name) = CString::new(name) else { return };
        // SAFETY: the text ends in a zero and is copied before the call returns.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Ends the range that was begun last.
    pub fn pop(&self) {
        // SAFETY: it takes nothing.
        unsafe { (self.pop)() };
    }
}

type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;

/// `NVTX_ETID_CALLBACKS` and `NVTX_ETID_VERSIONINFO`.
const TABLE_OF_CALLBACKS: u32 = 1;
const TABLE_OF_VERSION: u32 = 3;
/// `NVTX_CB_MODULE_CORE` and `NVTX_CB_MODULE_SIZE`.
const MODULE_CORE: usize = 1;
const MODULES: usize = 7;
/// `NVTX_CBID_CORE_RangePushA` and `NVTX_CBID_CORE_RangePop`.
const RANGE_PUSH_A: usize = 9;
const RANGE_POP: usize = 11;
/// `NVTX_CBID_CORE_SIZE`; no other module has more functions.
const SIZE: usize = 16;

/// The functions of each module, which the profiler fills in. Some profilers refuse a process without the modules that
/// are never called here.
static FUNCTIONS: [[AtomicPtr<c_void>; SIZE]; MODULES] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; SIZE] }; MODULES];

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    module_functions: unsafe extern "C" fn(c_int, *mut *const Place, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { struct_size: size_of::<Callbacks>(), module_functions };
static VERSION: VersionInfo = VersionInfo {
    struct_size: size_of::<VersionInfo>(),
    version: 3,
    reserved: 0,
    set_injection_version: ignore_version,
};

extern "C" fn ignore_version(_version: u32) {}

unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        TABLE_OF_CALLBACKS => (&raw const CALLBACKS).cast(),
        TABLE_OF_VERSION => (&raw const VERSION).cast(),
        _ => std::ptr::null(),
    }
}

/// The address of one place of the table; null at both ends.
#[repr(transparent)]
struct Place(*const AtomicPtr<c_void>);

// SAFETY: it points to a static of atomics.
unsafe impl Sync for Place {}

/// The table of a module: the addresses of the places that the profiler may fill.
unsafe extern "C" fn module_functions(module: c_int, table: *mut *const Place, size: *mut c_uint) -> c_int {
    static PLACES: [[Place; SIZE + 1]; MODULES] = {
        let mut places = [const { [const { Place(std::ptr::null()) }; SIZE + 1] }; MODULES];
        let mut module = MODULE_CORE;
        while module < MODULES {
            let mut id = 1;
            while id < SIZE {
                places[module][id] = Place(&raw const FUNCTIONS[module][id]);
                id += 1;
            }
            module += 1;
        }
        places
    };
    let Some(places) = usize::try_from(module).ok().and_then(|module| PLACES.get(module)) else { return 0 };
    // SAFETY: the profiler passes null or the address of a variable of this type.
    unsafe {
        if !table.is_null() {
            *table = places.as_ptr();
        }
        if !size.is_null() {
            *size = SIZE as c_uint;
        }
    }
    1
}
