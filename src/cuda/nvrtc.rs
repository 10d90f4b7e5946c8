//! The functions of NVIDIA's run-time compiler (`libnvrtc`) that are used here.

use super::table::table;
use super::{CudaError, c_text};
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use std::ffi::{c_char, c_int};

table! {
    /// The compiler, of CUDA 11.2 or later.
    struct Nvrtc: nvrtcResult;
    fn nvrtcVersion(*mut c_int, *mut c_int);
    fn nvrtcGetNumSupportedArchs(*mut c_int);
    fn nvrtcGetSupportedArchs(*mut c_int);
    fn nvrtcCreateProgram(
        *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
    );
    fn nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
    fn nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
    fn nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
    fn nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
    fn nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
    fn nvrtcDestroyProgram(*mut nvrtcProgram);
    own {
        /// Takes a number here, because the status may be newer than the header.
        fn error_string(u32) -> *const c_char = "nvrtcGetErrorString";
    }
}

impl Nvrtc {
    /// Turns the status of a call into an error.
    pub(super) fn check(&self, call: &'static str, status: u32) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it returns a pointer to a static string, whatever the number.
        let text = unsafe { c_text((self.error_string)(status)) };
        Err(CudaError::Call { call, status, text: text.unwrap_or_else(|| format!("status {status}")) })
    }
}
