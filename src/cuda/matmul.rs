//! Matrix products by cuBLASLt.
//!
//! A product is described once per [`Shape`]; algorithms are found, checked and run on that description. The
//! library's attributes and their types are documented in cuBLAS, "Using the cuBLASLt API".

use super::cublaslt::CublasLt;
use super::product::{Addresses, Algorithm, Epilogue, Matrix, Shape, Type};
use super::stream::Stream;
use super::{Context, CudaError, Libraries};
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Desc, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as Preference, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as Layout, cublasLtReductionScheme_t, cudaDataType_t,
};
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// The most algorithms that are tried for one shape.
const CANDIDATES: usize = 32;
/// `CUBLAS_STATUS_NOT_SUPPORTED`: there is no algorithm for this product. Every other status is a fault of the
/// description.
const NOT_SUPPORTED: u32 = 15;

/// cuBLASLt, opened on a context.
pub struct MatrixProducts {
    context: Rc<Context>,
    library: &'static CublasLt,
    handle: cublasLtHandle_t,
}

/// `cublasLtMatmulHeuristicResult_t`, with a status that may be any number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(
    size_of::<Heuristic>() == size_of::<cublasLtMatmulHeuristicResult_t>()
        && size_of::<cublasLtMatmulAlgo_t>() == 64
        && std::mem::offset_of!(Heuristic, workspace)
            == std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, workspaceSize)
        && std::mem::offset_of!(Heuristic, state)
            == std::mem::offset_of!(cublasLtMatmulHeuristicResult_t, state)
);

impl Heuristic {
    /// Room for a result, with a status that is not success.
    const EMPTY: Self = Self { algorithm: [0; 8], workspace: 0, state: 1, waves: 0.0, reserved: [0; 4] };
}

impl MatrixProducts {
    /// Opens the library.
    pub fn new(libraries: &Libraries, context: &Rc<Context>) -> Result<Self, CudaError> {
        let missing = || CudaError::Unsupported("cuBLASLt cannot be used".to_owned());
        let library = libraries.cublaslt().table.ok_or_else(missing)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        library.check("cublasLtCreate", unsafe { (library.cublasLtCreate)(&mut handle) })?;
        Ok(Self { context: context.clone(), library, handle })
    }

    /// The library's release with its patch number, as one number: 130100 for 13.1.0. Algorithms of one release are
    /// not valid for another one.
    pub fn release(&self) -> usize {
        // SAFETY: it takes nothing and returns a number.
        unsafe { (self.library.version)() }
    }

    /// Describes products of a shape.
    pub fn describe(self: &Rc<Self>, shape: &Shape) -> Result<Described, CudaError> {
        Described::new(self, shape)
    }
}

impl Drop for MatrixProducts {
    fn drop(&mut self) {
        // the handle belongs to a context, and another library may have changed the current one
        let _ = self.context.make_current();
        // SAFETY: it was created and not destroyed.
        unsafe { (self.library.cublasLtDestroy)(self.handle) };
    }
}

/// The library's description of a product of one shape.
pub struct Described {
    products: Rc<MatrixProducts>,
    accumulate: bool,
    epilogue: Epilogue,
    alignments: [u32; 3],
    // null until they are made, so that dropping a half-made description is safe
    desc: cublasLtMatmulDesc_t,
    a: cublasLtMatrixLayout_t,
    b: cublasLtMatrixLayout_t,
    out: cublasLtMatrixLayout_t,
}

impl Described {
    fn new(products: &Rc<MatrixProducts>, shape: &Shape) -> Result<Self, CudaError> {
        let mut described = Self {
            products: products.clone(),
            accumulate: shape.accumulate,
            epilogue: shape.epilogue,
            alignments: [shape.a, shape.b, shape.out].map(|matrix| matrix.alignment),
            desc: std::ptr::null_mut(),
            a: std::ptr::null_mut(),
            b: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
        };
        let library = products.library;
        let compute = match shape.tf32 {
            true => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        // SAFETY: it writes one handle.
        let status = unsafe {
            (library.cublasLtMatmulDescCreate)(&mut described.desc, compute, cudaDataType_t::CUDA_R_32F)
        };
        library.check("cublasLtMatmulDescCreate", status)?;
        // CUBLAS_OP_N and CUBLAS_OP_T of cublas_api.h
        let operation = |transposed| i32::from(transposed);
        described.set(Desc::CUBLASLT_MATMUL_DESC_TRANSA, &operation(shape.a.transposed))?;
        described.set(Desc::CUBLASLT_MATMUL_DESC_TRANSB, &operation(shape.b.transposed))?;
        let epilogue = match shape.epilogue {
            Epilogue::None | Epilogue::Add => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasGelu => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluSlope => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU_BGRAD,
        };
        described.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        if matches!(shape.epilogue, Epilogue::BiasGelu | Epilogue::GeluSlope) {
            described.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(shape.out.stride as i64))?;
            if shape.count > 1 {
                let stack = shape.out.stack as i64;
                described.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &stack)?;
            }
        }
        let Shape { m, n, k, count, .. } = *shape;
        let size = |matrix: Matrix, rows, cols| if matrix.transposed { (cols, rows) } else { (rows, cols) };
        described.a = layout(library, shape.a, size(shape.a, m, k), count)?;
        described.b = layout(library, shape.b, size(shape.b, k, n), count)?;
        described.out = layout(library, shape.out, (m, n), count)?;
        Ok(described)
    }

    /// Sets an attribute of the description, whose type must be the documented one.
    fn set<T>(&self, attribute: Desc, value: &T) -> Result<(), CudaError> {
        let library = self.products.library;
        // SAFETY: the description lives; this many bytes are read from the value.
        let status = unsafe {
            (library.cublasLtMatmulDescSetAttribute)(
                self.desc,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        library.check("cublasLtMatmulDescSetAttribute", status)
    }

    /// Sets the addresses of the epilogue's bias, or its gradient, and auxiliary matrix.
    fn point(&self, at: &Addresses) -> Result<(), CudaError> {
        if self.epilogue.has_bias() {
            self.set(Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at.bias)?;
        }
        if matches!(self.epilogue, Epilogue::BiasGelu | Epilogue::GeluSlope) {
            self.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &at.aux)?;
        }
        Ok(())
    }

    /// Algorithms that can compute this product with `workspace` bytes, the one expected to be fastest first;
    /// empty if there is none.
    ///
    /// Partial sums of split products are added in fp32 and in a fixed order: the library's other schemes
    /// round them to the type of the result.
    ///
    /// # Errors
    /// Where the library refuses the description itself: only "not supported" means that there is no algorithm.
    pub fn algorithms(&self, at: &Addresses, workspace: usize) -> Result<Vec<Algorithm>, CudaError> {
        self.point(at)?;
        let library = self.products.library;
        let preference = Preferences::new(library)?;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace)?;
        let schemes = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes)?;
        let [a, b, out] = self.alignments;
        // without this, the library assumes that every address is a multiple of 256
        preference.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a)?;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b)?;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out)?;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out)?;
        let mut found = [Heuristic::EMPTY; CANDIDATES];
        let mut count = 0;
        // SAFETY: all handles live; at most as many results are written as the array holds, of the same layout.
        let status = unsafe {
            (library.cublasLtMatmulAlgoGetHeuristic)(
                self.products.handle,
                self.desc,
                self.a,
                self.b,
                self.out,
                self.out,
                preference.handle,
                CANDIDATES as c_int,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        if status == NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        library.check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let count = usize::try_from(count).unwrap_or(0).min(CANDIDATES);
        let usable = found[..count].iter().filter(|found| found.state == 0 && found.workspace <= workspace);
        Ok(usable.map(|found| Algorithm { words: found.algorithm, workspace: found.workspace }).collect())
    }

    /// Checks whether a remembered algorithm can compute this product with `workspace` bytes.
    pub fn check(&self, at: &Addresses, words: [u64; 8], workspace: usize) -> Option<Algorithm> {
        self.point(at).ok()?;
        let library = self.products.library;
        let mut result = Heuristic::EMPTY;
        // SAFETY: all handles live; the algorithm is as large as the library's, and one result is written.
        let status = unsafe {
            (library.cublasLtMatmulAlgoCheck)(
                self.products.handle,
                self.desc,
                self.a,
                self.b,
                self.out,
                self.out,
                words.as_ptr().cast(),
                (&raw mut result).cast(),
            )
        };
        let fits = status == 0 && result.workspace <= workspace;
        fits.then_some(Algorithm { words, workspace: result.workspace })
    }

    /// Starts a product. `workspace` is the address of at least as many bytes as the algorithm was requested
    /// with.
    pub fn run(
        &self,
        at: &Addresses,
        alpha: f32,
        algorithm: &Algorithm,
        workspace: u64,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        self.point(at)?;
        let library = self.products.library;
        let adds = self.epilogue == Epilogue::Add;
        let beta: f32 = if self.accumulate || adds { 1.0 } else { 0.0 };
        let added = if adds { at.aux } else { at.out };
        let pointer = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: all handles live; the factors are read from the host before the call returns; no host
        // memory is written.
        let status = unsafe {
            (library.cublasLtMatmul)(
                self.products.handle,
                self.desc,
                (&raw const alpha).cast(),
                pointer(at.a),
                self.a,
                pointer(at.b),
                self.b,
                (&raw const beta).cast(),
                pointer(added),
                self.out,
                pointer(at.out),
                self.out,
                algorithm.words.as_ptr().cast(),
                pointer(workspace),
                algorithm.workspace,
                stream.stream.cast(),
            )
        };
        library.check("cublasLtMatmul", status)
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        let library = self.products.library;
        for layout in [self.a, self.b, self.out] {
            if !layout.is_null() {
                // SAFETY: it was created and not destroyed.
                unsafe { (library.cublasLtMatrixLayoutDestroy)(layout) };
            }
        }
        if !self.desc.is_null() {
            // SAFETY: it was created and not destroyed.
            unsafe { (library.cublasLtMatmulDescDestroy)(self.desc) };
        }
    }
}

/// The layout of a stored matrix of (rows, columns), or of a stack of them.
fn layout(
    library: &CublasLt,
    matrix: Matrix,
    (rows, cols): (u64, u64),
    count: u32,
) -> Result<cublasLtMatrixLayout_t, CudaError> {
    let mut layout = std::ptr::null_mut();
    // SAFETY: it writes one handle.
    let status = unsafe {
        (library.cublasLtMatrixLayoutCreate)(&mut layout, code(matrix.kind), rows, cols, matrix.stride as i64)
    };
    library.check("cublasLtMatrixLayoutCreate", status)?;
    if count > 1 {
        let (count, stack) = (count as i32, matrix.stack as i64);
        // SAFETY: the layout lives; the attributes are an int32 and an int64.
        let status = unsafe {
            let set = library.cublasLtMatrixLayoutSetAttribute;
            let batch = Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
            let offset = Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            match set(layout, batch, (&raw const count).cast(), size_of::<i32>()) {
                0 => set(layout, offset, (&raw const stack).cast(), size_of::<i64>()),
                failed => failed,
            }
        };
        if let Err(error) = library.check("cublasLtMatrixLayoutSetAttribute", status) {
            // SAFETY: it was created just now.
            unsafe { (library.cublasLtMatrixLayoutDestroy)(layout) };
            return Err(error);
        }
    }
    Ok(layout)
}

fn code(kind: Type) -> cudaDataType_t {
    match kind {
        Type::F32 => cudaDataType_t::CUDA_R_32F,
        Type::F16 => cudaDataType_t::CUDA_R_16F,
        Type::Bf16 => cudaDataType_t::CUDA_R_16BF,
    }
}

/// What the library's heuristic must respect.
struct Preferences {
    library: &'static CublasLt,
    handle: cublasLtMatmulPreference_t,
}

impl Preferences {
    fn new(library: &'static CublasLt) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe { (library.cublasLtMatmulPreferenceCreate)(&mut handle) };
        library.check("cublasLtMatmulPreferenceCreate", status)?;
        Ok(Self { library, handle })
    }

    fn set<T>(&self, attribute: Preference, value: &T) -> Result<(), CudaError> {
        // SAFETY: the handle lives; this many bytes are read from the value.
        let status = unsafe {
            (self.library.cublasLtMatmulPreferenceSetAttribute)(
                self.handle,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        self.library.check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preferences {
    fn drop(&mut self) {
        // SAFETY: it was created and not destroyed.
        unsafe { (self.library.cublasLtMatmulPreferenceDestroy)(self.handle) };
    }
}
