//! What the driver tells about a device.

use super::driver::Driver;
use super::peak::{Peaks, peaks};
use super::{CudaError, c_text};
use cudarc::driver::sys::CUdevice_attribute;
use serde::Serialize;
use std::ffi::c_int;

/// A CUDA device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceInfo {
    /// Its index, as in `compute.device = "cuda:0"`.
    pub index: usize,
    /// The name of the GPU model.
    pub name: String,
    /// Compute capability: major and minor number.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors; for a slice, those of the slice.
    pub multiprocessors: u32,
    /// The highest clock of the multiprocessors, Hz.
    pub clock_hz: f64,
    /// Memory bandwidth, bytes/s, from memory clock and bus width: two transfers per cycle.
    pub memory_bandwidth: f64,
    /// Total device memory, bytes.
    pub total_memory: u64,
    /// The largest shared memory of a block, bytes.
    pub shared_per_block: u32,
    /// Its address on the bus, `domain:bus:device.function`.
    pub pci_bus_id: String,
    /// Whether it is a slice of a device (Multi-Instance GPU).
    pub mig: bool,
    /// Its peak rates.
    pub peaks: Peaks,
}

impl DeviceInfo {
    /// The number of devices that the driver lists.
    pub(super) fn count(driver: &Driver) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: it writes one number.
        driver.check("cuDeviceGetCount", unsafe { (driver.cuDeviceGetCount)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Asks the driver about a device, without making a context on it.
    pub(super) fn query(driver: &Driver, index: usize) -> Result<Self, CudaError> {
        use CUdevice_attribute as Attribute;
        let mut device = 0;
        // SAFETY: it writes one number.
        driver.check("cuDeviceGet", unsafe { (driver.cuDeviceGet)(&mut device, index as c_int) })?;
        let attribute = |attribute: Attribute| {
            let mut value = 0;
            // SAFETY: it writes one number.
            let status = unsafe { (driver.cuDeviceGetAttribute)(&mut value, attribute, device) };
            driver.check("cuDeviceGetAttribute", status).map(|()| u32::try_from(value).unwrap_or(0))
        };
        let text = |call, write: &dyn Fn(*mut std::ffi::c_char, c_int) -> u32| {
            let mut buffer = [0u8; 256];
            driver.check(call, write(buffer.as_mut_ptr().cast(), 255))?;
            // SAFETY: at most 255 bytes were written, so the buffer ends in a zero.
            Ok::<_, CudaError>(unsafe { c_text(buffer.as_ptr().cast()) }.unwrap_or_default())
        };
        // SAFETY: it writes at most as many bytes as it is told.
        let name = text("cuDeviceGetName", &|at, len| unsafe { (driver.cuDeviceGetName)(at, len, device) })?;
        // SAFETY: it writes at most as many bytes as it is told.
        let pci =
            text("cuDeviceGetPCIBusId", &|at, len| unsafe { (driver.cuDeviceGetPCIBusId)(at, len, device) });
        let mut total = 0;
        // SAFETY: it writes one number.
        let status = unsafe { (driver.cuDeviceTotalMem_v2)(&mut total, device) };
        driver.check("cuDeviceTotalMem_v2", status)?;
        let compute_capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // the driver counts in kHz
        // these are only shown, so a driver that cannot tell them is no error
        let shown = |name| f64::from(attribute(name).unwrap_or(0));
        let clock_hz = 1e3 * shown(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
        let memory_hz = 1e3 * shown(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
        let bus_bits = shown(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
        let mig = name.split_whitespace().any(|word| word == "MIG");
        Ok(Self {
            index,
            peaks: peaks(&name, compute_capability, multiprocessors, clock_hz, mig),
            name,
            compute_capability,
            multiprocessors,
            clock_hz,
            memory_bandwidth: 2.0 * memory_hz * bus_bits / 8.0,
            total_memory: total as u64,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            // a slice may have none
            pci_bus_id: pci.unwrap_or_default(),
            mig,
        })
    }
}
