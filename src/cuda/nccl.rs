//! NCCL: what the devices of several ranks add up.
//!
//! Communicators are non-blocking, which NCCL has since 2.14 and recommends where a rank may get lost (User Guide, Fault
//! Tolerance): a call that would wait for other ranks returns, [`Communicator::ready`] tells when it is through, and until
//! then nothing else may be asked of it. Only so can whoever waits look after the others, and [abort](Communicator::abort).

use super::context::Context;
use super::found::Version;
use super::stream::Stream;
use super::table::table;
use super::{CudaError, Libraries, c_text};
use cudarc::nccl::sys::{
    self, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::rc::Rc;

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
        /// Its last argument grows with every release; this is what it begins with.
        fn init_rank_config(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config) -> u32 = "ncclCommInitRankConfig";
        /// Writes a number here, for a status may be one that the header did not have.
        fn async_error(ncclComm_t, *mut u32) -> u32 = "ncclCommGetAsyncError";
        /// Takes a number here, likewise.
        fn error_string(u32) -> *const c_char = "ncclGetErrorString";
        /// Returns no status.
        fn last_error(ncclComm_t) -> *const c_char = "ncclGetLastError";
    }
}

/// `ncclConfig_t` as of NCCL 2.14. A library looks at `size` and `version` and takes the rest for undefined.
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
const IN_PROGRESS: u32 = ncclResult_t::ncclInProgress as u32;

impl Nccl {
    /// The library's version: major·10³ + minor·10² + patch up to 2.8, major·10⁴ + minor·10² + patch since (nccl.h).
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

    /// The error of a call that returned `status`; that it goes on is none.
    fn check(&self, call: &'static str, status: u32, comm: ncclComm_t) -> Result<(), CudaError> {
        if status == 0 || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both return pointers to strings that live on, the second an empty one where it has nothing to say.
        let (text, last) = unsafe { (c_text((self.error_string)(status)), c_text((self.last_error)(comm))) };
        let mut text = text.unwrap_or_else(|| format!("status {status}"));
        if let Some(last) = last.as_deref().map(str::trim).filter(|last| !last.is_empty()) {
            text += &format!(" ({last})");
        }
        text += "; NCCL_DEBUG=WARN in the environment makes NCCL say more";
        Err(CudaError::Call { call, status, text })
    }
}

/// What is added up or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// 4 bytes.
    F32,
    /// 8 bytes.
    F64,
}

impl Number {
    fn kind(self) -> ncclDataType_t {
        match self {
            Self::F32 => ncclDataType_t::ncclFloat32,
            Self::F64 => ncclDataType_t::ncclFloat64,
        }
    }
}

/// One rank's end of NCCL's connection. Everything is in place, and every rank asks for the same in the same order.
///
/// After each call, and after each [group](Self::group) of calls, wait until it is [`ready`](Self::ready).
pub struct Communicator {
    nccl: &'static Nccl,
    comm: ncclComm_t,
    context: Rc<Context>,
}

impl Communicator {
    /// A name under which ranks find each other. One of them makes it and tells the others.
    pub fn unique_id(libraries: &Libraries) -> Result<Vec<u8>, CudaError> {
        let nccl = libraries.usable_nccl()?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: it writes one identifier.
        let status = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
        nccl.check("ncclGetUniqueId", status, std::ptr::null_mut())?;
        Ok(id.internal.iter().map(|&byte| byte as u8).collect())
    }

    /// Begins to connect this rank, whose device is the context's. It is through when [`ready`](Self::ready).
    pub fn begin(
        libraries: &Libraries,
        context: &Rc<Context>,
        id: &[u8],
        rank: usize,
        size: usize,
    ) -> Result<Self, CudaError> {
        let nccl = libraries.usable_nccl()?;
        let mut name = ncclUniqueId { internal: [0; 128] };
        if id.len() != name.internal.len() {
            return Err(CudaError::Unsupported(format!("an identifier of NCCL's has {} bytes", id.len())));
        }
        name.internal.iter_mut().zip(id).for_each(|(to, &byte)| *to = byte as c_char);
        // NCCL takes the device of the context that is current
        context.make_current()?;
        let (size_of, mut comm) = (size_of::<Config>(), std::ptr::null_mut());
        let mut config = Config { size: size_of, magic: MAGIC, version: CONFIG_VERSION, blocking: 0 };
        let (ranks, rank) = (number(size)?, number(rank)?);
        // SAFETY: it copies the configuration, which says how large it is, and writes one handle before it returns.
        let status = unsafe { (nccl.init_rank_config)(&mut comm, ranks, name, rank, &mut config) };
        nccl.check("ncclCommInitRankConfig", status, std::ptr::null_mut())?;
        if comm.is_null() {
            return Err(CudaError::Unsupported("NCCL made no communicator".to_owned()));
        }
        Ok(Self { nccl, comm, context: context.clone() })
    }

    /// Whether the last call is through: what it asked for is in its stream, which need not have done it. Fails with what
    /// failed since, here or at another rank.
    pub fn ready(&self) -> Result<bool, CudaError> {
        let mut state = 0;
        // SAFETY: the communicator lives, and it writes one number.
        let status = unsafe { (self.nccl.async_error)(self.comm, &mut state) };
        self.check("ncclCommGetAsyncError", status)?;
        self.check("NCCL", state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Adds up `len` numbers at an address over all ranks.
    pub fn sum(&self, at: u64, len: usize, kind: Number, stream: &Stream) -> Result<(), CudaError> {
        let (from, to) = pointers(at);
        // SAFETY: the communicator and the stream live; device memory only is touched.
        let status = unsafe {
            (self.nccl.ncclAllReduce)(
                from,
                to,
                len,
                kind.kind(),
                ncclRedOp_t::ncclSum,
                self.comm,
                stream.stream.cast(),
            )
        };
        self.check("ncclAllReduce", status)
    }

    /// The same with the sums on rank `root` only; the other ranks' numbers are as good as lost.
    pub fn sum_to(
        &self,
        root: usize,
        at: u64,
        len: usize,
        kind: Number,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let ((from, to), root) = (pointers(at), number(root)?);
        // SAFETY: as above.
        let status = unsafe {
            (self.nccl.ncclReduce)(
                from,
                to,
                len,
                kind.kind(),
                ncclRedOp_t::ncclSum,
                root,
                self.comm,
                stream.stream.cast(),
            )
        };
        self.check("ncclReduce", status)
    }

    /// Brings rank `root`'s numbers to all others.
    pub fn broadcast(
        &self,
        root: usize,
        at: u64,
        len: usize,
        kind: Number,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let ((from, to), root) = (pointers(at), number(root)?);
        // SAFETY: as above.
        let status = unsafe {
            (self.nccl.ncclBroadcast)(from, to, len, kind.kind(), root, self.comm, stream.stream.cast())
        };
        self.check("ncclBroadcast", status)
    }

    /// Makes one of several calls, which begin together when all have been made.
    pub fn group(&self, calls: impl FnOnce(&Self) -> Result<(), CudaError>) -> Result<(), CudaError> {
        // SAFETY: neither takes anything.
        self.check("ncclGroupStart", unsafe { (self.nccl.ncclGroupStart)() })?;
        let called = calls(self);
        // also after a failure, or this thread's later calls would belong to the group
        // SAFETY: as above.
        let ended = self.check("ncclGroupEnd", unsafe { (self.nccl.ncclGroupEnd)() });
        called.and(ended)
    }

    /// Begins to say goodbye: when [`ready`](Self::ready), nothing is on its way to another rank.
    pub fn finalize(&self) -> Result<(), CudaError> {
        // SAFETY: the communicator lives.
        self.check("ncclCommFinalize", unsafe { (self.nccl.ncclCommFinalize)(self.comm) })
    }

    /// Frees what has been [finalized](Self::finalize).
    pub fn destroy(mut self) {
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        // SAFETY: the communicator lives and is not used again.
        unsafe { (self.nccl.ncclCommDestroy)(comm) };
    }

    /// Ends what is under way, whether or not other ranks are still there, and frees everything. It waits for the
    /// recordings that have calls of NCCL's in them: they must be gone.
    pub fn abort(self) {
        drop(self);
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), CudaError> {
        self.nccl.check(call, status, self.comm)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.comm.is_null() && self.context.make_current().is_ok() {
            // SAFETY: the communicator lives and is not used again.
            unsafe { (self.nccl.ncclCommAbort)(self.comm) };
        }
    }
}

/// In place: from and to.
fn pointers(at: u64) -> (*const c_void, *mut c_void) {
    let pointer = std::ptr::with_exposed_provenance_mut(at as usize);
    (pointer, pointer)
}

/// A rank as NCCL counts.
fn number(count: usize) -> Result<c_int, CudaError> {
    c_int::try_from(count)
        .map_err(|_| CudaError::Unsupported(format!("{count} ranks are more than NCCL counts")))
}
