//! The functions of `libnccl` that are used here.

use super::found::Version;
use super::table::table;
use super::{CudaError, c_text};
use cudarc::nccl::sys::{
    self, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

table! {
    /// Collectives, of NCCL 2.14 or later.
    struct Nccl: ncclResult_t;
    fn ncclGetVersion(*mut c_int);
    fn ncclGetUniqueId(*mut ncclUniqueId);
    fn ncclCommFinalize(ncclComm_t);
    fn ncclCommDestroy(ncclComm_t);
    fn ncclCommAbort(ncclComm_t);
    fn ncclGroupStart();
    fn ncclGroupEnd();
    fn ncclAllReduce(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t,
    );
    fn ncclReduce(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, cudaStream_t,
    );
    fn ncclBroadcast(*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t);
    own {
        /// The configuration, its last argument, grows with every release; [`Config`] is how it begins.
        fn init_rank_config(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config) -> u32 = "ncclCommInitRankConfig";
        /// Writes a number here, because the status may be newer than the header.
        fn async_error(ncclComm_t, *mut u32) -> u32 = "ncclCommGetAsyncError";
        /// Takes a number here, because the status may be newer than the header.
        fn error_string(u32) -> *const c_char = "ncclGetErrorString";
        /// Returns a string and no status.
        fn last_error(ncclComm_t) -> *const c_char = "ncclGetLastError";
    }
}

/// `ncclConfig_t` as of NCCL 2.14. A library reads `size` and `version` and treats later fields as undefined.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

const _: () = {
    assert!(offset_of!(Config, size) == offset_of!(ncclConfig_t, size));
    assert!(offset_of!(Config, magic) == offset_of!(ncclConfig_t, magic));
    assert!(offset_of!(Config, version) == offset_of!(ncclConfig_t, version));
    assert!(offset_of!(Config, blocking) == offset_of!(ncclConfig_t, blocking));
};

/// `NCCL_API_MAGIC`.
const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_VERSION(2, 14, 0)`.
const CONFIG_VERSION: c_uint = 21400;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: u32 = ncclResult_t::ncclInProgress as u32;

impl Config {
    /// The configuration of a non-blocking communicator.
    pub(super) fn non_blocking() -> Self {
        Self { size: size_of::<Self>(), magic: MAGIC, version: CONFIG_VERSION, blocking: 0 }
    }
}

impl Nccl {
    /// The library's version. nccl.h encodes it as 1000 major + 100 minor + patch up to 2.8, and as 10000 major +
    /// 100 minor + patch since.
    pub(super) fn version(&self) -> Result<Version, CudaError> {
        let mut version = 0;
        // SAFETY: it writes one number.
        let status = unsafe { (self.ncclGetVersion)(&mut version) };
        self.check("ncclGetVersion", status, std::ptr::null_mut())?;
        let version = version.unsigned_abs();
        Ok(match version {
            ..10_000 => Version { major: version / 1000, minor: version / 100 % 10 },
            _ => Version { major: version / 10_000, minor: version / 100 % 100 },
        })
    }

    /// Turns the status of a call into an error; "in progress" is not one.
    pub(super) fn check(&self, call: &'static str, status: u32, comm: ncclComm_t) -> Result<(), CudaError> {
        if status == 0 || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both return pointers to static strings; the second is empty if there is nothing to say.
        let (text, last) = unsafe { (c_text((self.error_string)(status)), c_text((self.last_error)(comm))) };
        let mut text = text.unwrap_or_else(|| format!("status {status}"));
        if let Some(last) = last.as_deref().map(str::trim).filter(|last| !last.is_empty()) {
            text += &format!(" ({last})");
        }
        text += "; with NCCL_DEBUG=WARN in the environment, NCCL says more";
        Err(CudaError::Call { call, status, text })
    }
}
