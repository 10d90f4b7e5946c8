//! The functions of `libcublasLt` that are used here.

use super::CudaError;
use super::c_text;
use super::table::table;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
    cublasStatus_t, cudaDataType_t, cudaStream_t,
};
use std::ffi::{c_char, c_int, c_void};

table! {
    /// Matrix products, of CUDA 11.6 or later.
    struct CublasLt: cublasStatus_t;
    fn cublasLtCreate(*mut cublasLtHandle_t);
    fn cublasLtDestroy(cublasLtHandle_t);
    fn cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t);
    fn cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
    fn cublasLtMatmulDescSetAttribute(
        cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize,
    );
    fn cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, cudaDataType_t, u64, u64, i64);
    fn cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
    fn cublasLtMatrixLayoutSetAttribute(
        cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, *const c_void, usize,
    );
    fn cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t);
    fn cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
    fn cublasLtMatmulPreferenceSetAttribute(
        cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize,
    );
    fn cublasLtMatmulAlgoGetHeuristic(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int,
        *mut cublasLtMatmulHeuristicResult_t, *mut c_int,
    );
    fn cublasLtMatmulAlgoCheck(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t,
        *mut cublasLtMatmulHeuristicResult_t,
    );
    fn cublasLtMatmul(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
        *const c_void, cublasLtMatrixLayout_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
        *mut c_void, cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t,
    );
    own {
        /// Returns the version and no status.
        fn version() -> usize = "cublasLtGetVersion";
        /// Takes a number here, because the status may be newer than the header.
        fn status_string(u32) -> *const c_char = "cublasLtGetStatusString";
    }
}

impl CublasLt {
    /// Turns the status of a call into an error.
    pub(super) fn check(&self, call: &'static str, status: u32) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it returns a pointer to a static string, whatever the number.
        let text = unsafe { c_text((self.status_string)(status)) };
        let text = match text {
            Some(text) => format!("{text} (status {status})"),
            None => format!("status {status}"),
        };
        Err(CudaError::Call { call, status, text })
    }
}
