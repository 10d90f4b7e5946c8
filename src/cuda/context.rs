//! A device's context and what lives in it: memory and code.
//!
//! Each handle keeps its context alive and frees its object when it is dropped, so the order of destruction
//! cannot be wrong. Handles are not `Send`: a context is current only on the thread that opened it.

use super::driver::{Driver, OUT_OF_MEMORY};
use super::libraries::CudaMissing;
use super::{CudaError, DeviceInfo, Libraries};
use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUcontext, CUfunction, CUfunction_attribute, CUmodule};
use std::ffi::{CString, c_int, c_void};
use std::rc::Rc;

/// The primary context of a device, current on this thread.
///
/// The driver destroys a primary context when the last holder releases it, and takes some tenths of a second to make
/// another one. A process therefore keeps it until it ends: the handle is never released.
pub struct Context {
    pub(super) driver: &'static Driver,
    context: CUcontext,
}

impl Context {
    /// Opens the context of a device that [`require_device`](Libraries::require_device) has accepted.
    pub fn open(libraries: &Libraries, device: &DeviceInfo) -> Result<Rc<Self>, CudaError> {
        let driver = libraries
            .usable_driver()
            .ok_or_else(|| CudaError::Unsupported("the CUDA driver cannot be used".to_owned()))?;
        let mut handle = 0;
        // SAFETY: it writes one handle.
        let status = unsafe { (driver.cuDeviceGet)(&mut handle, device.index as c_int) };
        driver.check("cuDeviceGet", status)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, handle) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        let opened = Self { driver, context };
        opened.make_current()?;
        Ok(Rc::new(opened))
    }

    /// Makes this context current on this thread again, in case another library has changed it.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context was retained and is never released.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.cuCtxSetCurrent)(self.context) })
    }

    /// Bytes of device memory: (free, total).
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers.
        let status = unsafe { (self.driver.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check("cuMemGetInfo_v2", status)?;
        Ok((free, total))
    }

    pub(super) fn check(&self, call: &'static str, status: u32) -> Result<(), CudaError> {
        self.driver.check(call, status)
    }
}

impl Libraries {
    /// Bytes of a device's memory: (free, total). Opens the device's context to ask, which takes a moment the
    /// first time.
    pub fn memory(&self, index: usize) -> Result<(usize, usize), CudaMissing> {
        let device = self.require_device(index)?;
        let failed = |error: CudaError| CudaMissing {
            message: format!("cannot use {}: {error}", device.name),
            help: "see what else runs on it with nvidia-smi".to_owned(),
        };
        Context::open(self, &device).and_then(|context| context.memory()).map_err(failed)
    }
}

/// Memory on the device, freed when dropped.
pub struct Memory {
    context: Rc<Context>,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Allocates memory with undefined contents; `what` names its purpose in errors.
    pub fn new(context: &Rc<Context>, bytes: usize, what: &'static str) -> Result<Self, CudaError> {
        let mut address = 0;
        // zero bytes need an address too, but cannot be allocated
        let asked = bytes.max(1);
        // SAFETY: it writes one address.
        let status = unsafe { (context.driver.cuMemAlloc_v2)(&mut address, asked) };
        if status == OUT_OF_MEMORY {
            let (free, total) = context.memory().unwrap_or((0, 0));
            return Err(CudaError::OutOfMemory { what, bytes, free, total });
        }
        context.check("cuMemAlloc_v2", status)?;
        Ok(Self { context: context.clone(), address, bytes })
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated and not freed. The driver waits for work that still uses it.
        unsafe { (self.context.driver.cuMemFree_v2)(self.address) };
    }
}

/// Pinned host memory, which the device reads while the CPU goes on.
pub struct Pinned {
    context: Rc<Context>,
    pointer: *mut c_void,
    bytes: usize,
}

impl Pinned {
    /// Allocates memory filled with zeros.
    pub fn new(context: &Rc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let mut pointer = std::ptr::null_mut();
        let bytes = bytes.max(1);
        // SAFETY: it writes one pointer.
        let status =
            unsafe { (context.driver.cuMemHostAlloc)(&mut pointer, bytes, CU_MEMHOSTALLOC_PORTABLE) };
        context.check("cuMemHostAlloc", status)?;
        // SAFETY: this many bytes were just allocated, and nothing else refers to them.
        unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), pointer, bytes })
    }

    /// The bytes, for writing. What the device still copies must not be changed: wait for the copy's event
    /// first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size, initialized, and borrowed as long as this is. The device only
        // reads it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.bytes) }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, initialized, and borrowed as long as this is. The device only
        // reads it.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this driver and not freed.
        unsafe { (self.context.driver.cuMemFreeHost)(self.pointer) };
    }
}

/// Loaded device code.
pub struct Module {
    context: Rc<Context>,
    module: CUmodule,
}

impl Module {
    /// Loads machine code, an ELF file.
    pub fn new(context: &Rc<Context>, image: &[u8]) -> Result<Self, CudaError> {
        // the driver takes the length of an ELF file from its header and would read beyond a truncated one
        if !image.starts_with(b"\x7fELF") || image.len() < 64 {
            return Err(CudaError::Unsupported("this is not machine code for a device".to_owned()));
        }
        let mut module = std::ptr::null_mut();
        // SAFETY: the image came from the compiler, or from a file whose checksum was correct.
        let status = unsafe { (context.driver.cuModuleLoadData)(&mut module, image.as_ptr().cast()) };
        context.check("cuModuleLoadData", status)?;
        Ok(Self { context: context.clone(), module })
    }

    /// Finds a kernel by its name.
    pub fn function(self: &Rc<Self>, name: &str) -> Result<Function, CudaError> {
        let unknown = || CudaError::Unsupported(format!("there is no kernel `{name}` in the compiled code"));
        let symbol = CString::new(name).map_err(|_| unknown())?;
        let mut function = std::ptr::null_mut();
        let driver = self.context.driver;
        // SAFETY: it writes one handle; the name ends in a zero.
        let status = unsafe { (driver.cuModuleGetFunction)(&mut function, self.module, symbol.as_ptr()) };
        driver.check("cuModuleGetFunction", status).map_err(|_| unknown())?;
        Ok(Function { module: self.clone(), function, shared: 0 })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it was loaded and not unloaded; its functions keep it alive.
        unsafe { (self.context.driver.cuModuleUnload)(self.module) };
    }
}

/// A kernel of a loaded module.
pub struct Function {
    module: Rc<Module>,
    pub(super) function: CUfunction,
    /// The largest size of dynamic shared memory, in bytes, that was requested so far.
    shared: u32,
}

impl Function {
    /// Allows blocks to use this many bytes of dynamic shared memory. Required when static and dynamic shared
    /// memory together exceed 48 KiB.
    pub fn allow_shared(&mut self, bytes: u32) -> Result<(), CudaError> {
        if bytes > self.shared {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let driver = self.module.context.driver;
            // SAFETY: the function lives in a loaded module.
            let status = unsafe { (driver.cuFuncSetAttribute)(self.function, attribute, bytes as c_int) };
            driver.check("cuFuncSetAttribute", status)?;
            self.shared = bytes;
        }
        Ok(())
    }

    /// A thread's registers, and its bytes of local memory (spills and arrays).
    pub fn registers(&self) -> Result<(u32, u32), CudaError> {
        let driver = self.module.context.driver;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: it writes one number.
            let status = unsafe { (driver.cuFuncGetAttribute)(&mut value, attribute, self.function) };
            driver.check("cuFuncGetAttribute", status).map(|()| u32::try_from(value).unwrap_or(0))
        };
        Ok((
            attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        ))
    }
}
