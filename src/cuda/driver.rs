//! The functions of the CUDA driver (`libcuda`) that are used here.

use super::table::table;
use super::{CudaError, c_text};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute,
    CUgraph, CUgraphExec, CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

table! {
    /// The driver. Functions newer than CUDA 11.4 are avoided, so that older drivers work too.
    struct Driver: CUresult;
    fn cuInit(c_uint);
    fn cuDriverGetVersion(*mut c_int);
    fn cuDeviceGetCount(*mut c_int);
    fn cuDeviceGet(*mut CUdevice, c_int);
    fn cuDeviceGetName(*mut c_char, c_int, CUdevice);
    fn cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    fn cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    fn cuDeviceTotalMem_v2(*mut usize, CUdevice);
    fn cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    fn cuCtxSetCurrent(CUcontext);
    fn cuMemGetInfo_v2(*mut usize, *mut usize);
    fn cuMemAlloc_v2(*mut CUdeviceptr, usize);
    fn cuMemFree_v2(CUdeviceptr);
    fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    fn cuMemFreeHost(*mut c_void);
    fn cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    fn cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    fn cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    fn cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
    fn cuStreamCreate(*mut CUstream, c_uint);
    fn cuStreamDestroy_v2(CUstream);
    fn cuStreamSynchronize(CUstream);
    fn cuStreamQuery(CUstream);
    fn cuStreamWaitEvent(CUstream, CUevent, c_uint);
    fn cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    fn cuStreamEndCapture(CUstream, *mut CUgraph);
    fn cuEventCreate(*mut CUevent, c_uint);
    fn cuEventDestroy_v2(CUevent);
    fn cuEventRecord(CUevent, CUstream);
    fn cuEventSynchronize(CUevent);
    fn cuEventQuery(CUevent);
    fn cuModuleLoadData(*mut CUmodule, *const c_void);
    fn cuModuleUnload(CUmodule);
    fn cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    fn cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
    fn cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    fn cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
        *mut *mut c_void,
    );
    fn cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    fn cuGraphDestroy(CUgraph);
    fn cuGraphExecDestroy(CUgraphExec);
    fn cuGraphLaunch(CUgraphExec, CUstream);
    own {
        /// Takes a number here, because the status may be newer than the header.
        fn error_name(c_uint, *mut *const c_char) -> c_uint = "cuGetErrorName";
        /// Takes a number here, because the status may be newer than the header.
        fn error_string(c_uint, *mut *const c_char) -> c_uint = "cuGetErrorString";
        /// The header gives this name to the function of CUDA 12.8; every driver has the older one, with the
        /// same signature.
        fn event_elapsed_time(*mut f32, CUevent, CUevent) -> c_uint = "cuEventElapsedTime";
    }
}

const _: unsafe fn(*mut f32, CUevent, CUevent) -> CUresult = sys::cuEventElapsedTime_v2;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: u32 = CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;

/// `CUDA_ERROR_NOT_READY`: not an error, but the answer to a query.
const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;

impl Driver {
    /// Whether queried work is done, from the status of the query.
    pub(super) fn done(&self, call: &'static str, status: u32) -> Result<bool, CudaError> {
        if status == NOT_READY { Ok(false) } else { self.check(call, status).map(|()| true) }
    }

    /// Turns the status of a call into an error.
    pub(super) fn check(&self, call: &'static str, status: u32) -> Result<(), CudaError> {
        if status == 0 { Ok(()) } else { Err(CudaError::Call { call, status, text: self.text(status) }) }
    }

    /// A status in the driver's words: `CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected`.
    pub(super) fn text(&self, status: u32) -> String {
        let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
        // SAFETY: both write a pointer to a static string, or none for a number that the driver does not know.
        let (name, text) = unsafe {
            (self.error_name)(status, &mut name);
            (self.error_string)(status, &mut text);
            (c_text(name), c_text(text))
        };
        match (name, text) {
            (Some(name), Some(text)) => format!("{name} ({status}): {text}"),
            (Some(name), None) => format!("{name} ({status})"),
            _ => format!("status {status}"),
        }
    }
}
