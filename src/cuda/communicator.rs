//! NCCL's communicators: sums and copies between the devices of several ranks.
//!
//! Communicators are non-blocking, which NCCL supports since 2.14 and recommends where a rank may be lost (User
//! Guide, Fault Tolerance). A call that would wait for other ranks returns at once, and no other call may follow until
//! [`Communicator::ready`]. Meanwhile the host can watch the other ranks and, if one is lost,
//! [abort](Communicator::abort).

use super::context::Context;
use super::nccl::{Config, IN_PROGRESS, Nccl};
use super::stream::Stream;
use super::{CudaError, Libraries};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::{c_char, c_int, c_void};
use std::rc::Rc;

/// The type of the numbers that are summed or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// fp32, 4 bytes.
    F32,
    /// fp64, 8 bytes.
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

/// One rank's end of NCCL's connection. All collectives work in place, and every rank must make the same
/// calls in the same order.
///
/// After each call, and after each [group](Self::group) of calls, wait until the communicator is
/// [`ready`](Self::ready).
pub struct Communicator {
    nccl: &'static Nccl,
    comm: ncclComm_t,
    context: Rc<Context>,
}

impl Communicator {
    /// Makes the identifier by which ranks find each other. One rank makes it and sends it to the others.
    pub fn unique_id(libraries: &Libraries) -> Result<Vec<u8>, CudaError> {
        let nccl = libraries.usable_nccl()?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: it writes one identifier.
        let status = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
        nccl.check("ncclGetUniqueId", status, std::ptr::null_mut())?;
        Ok(id.internal.iter().map(|&byte| byte as u8).collect())
    }

    /// Begins to connect this rank, on the context's device. The connection exists when it is
    /// [`ready`](Self::ready).
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
            return Err(CudaError::Unsupported(format!(
                "an identifier of {} bytes is not one of NCCL",
                id.len()
            )));
        }
        name.internal.iter_mut().zip(id).for_each(|(to, &byte)| *to = byte as c_char);
        // NCCL takes the device of the current context
        context.make_current()?;
        let mut comm = std::ptr::null_mut();
        let mut config = Config::non_blocking();
        let (ranks, rank) = (number(size)?, number(rank)?);
        // SAFETY: it copies the configuration, which states its own size, and writes one handle before it
        // returns.
        let status = unsafe { (nccl.init_rank_config)(&mut comm, ranks, name, rank, &mut config) };
        nccl.check("ncclCommInitRankConfig", status, std::ptr::null_mut())?;
        if comm.is_null() {
            return Err(CudaError::Unsupported("NCCL returned no communicator".to_owned()));
        }
        Ok(Self { nccl, comm, context: context.clone() })
    }

    /// Whether the last call has completed, that is, its work is queued in its stream (not necessarily done).
    /// Reports failures since the last call, on this rank or another.
    pub fn ready(&self) -> Result<bool, CudaError> {
        let mut state = 0;
        // SAFETY: the communicator lives, and it writes one number.
        let status = unsafe { (self.nccl.async_error)(self.comm, &mut state) };
        self.check("ncclCommGetAsyncError", status)?;
        self.check("NCCL", state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Sums `len` numbers at address `at` over all ranks.
    pub fn sum(&self, at: u64, len: usize, kind: Number, stream: &Stream) -> Result<(), CudaError> {
        let (from, to) = pointers(at);
        // SAFETY: the communicator and the stream live; only device memory is touched.
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

    /// Sums `len` numbers at address `at` over all ranks, on rank `root` only; on the others they are
    /// undefined afterwards.
    pub fn sum_to(
        &self,
        root: usize,
        at: u64,
        len: usize,
        kind: Number,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let ((from, to), root) = (pointers(at), number(root)?);
        // SAFETY: the communicator and the stream live; only device memory is touched.
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

    /// Copies `len` numbers at address `at` of rank `root` to all others.
    pub fn broadcast(
        &self,
        root: usize,
        at: u64,
        len: usize,
        kind: Number,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let ((from, to), root) = (pointers(at), number(root)?);
        // SAFETY: the communicator and the stream live; only device memory is touched.
        let status = unsafe {
            (self.nccl.ncclBroadcast)(from, to, len, kind.kind(), root, self.comm, stream.stream.cast())
        };
        self.check("ncclBroadcast", status)
    }

    /// Makes several calls as one, which begin together when all have been made.
    pub fn group(&self, calls: impl FnOnce(&Self) -> Result<(), CudaError>) -> Result<(), CudaError> {
        // SAFETY: the function takes no arguments.
        self.check("ncclGroupStart", unsafe { (self.nccl.ncclGroupStart)() })?;
        let called = calls(self);
        // also after a failure, or this thread's later calls would belong to the group
        // SAFETY: the function takes no arguments.
        let ended = self.check("ncclGroupEnd", unsafe { (self.nccl.ncclGroupEnd)() });
        called.and(ended)
    }

    /// Begins to disconnect: when it is [`ready`](Self::ready), no data is on its way to another rank.
    pub fn finalize(&self) -> Result<(), CudaError> {
        // SAFETY: the communicator lives.
        self.check("ncclCommFinalize", unsafe { (self.nccl.ncclCommFinalize)(self.comm) })
    }

    /// Frees a communicator that has been [finalized](Self::finalize).
    pub fn destroy(mut self) {
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        // SAFETY: the communicator lives and is not used again.
        unsafe { (self.nccl.ncclCommDestroy)(comm) };
    }

    /// Aborts everything under way, whether or not other ranks are still there, and frees the communicator.
    /// It waits for recordings that contain calls of NCCL, so these must have been dropped.
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

/// The source and the target of an operation in place.
fn pointers(at: u64) -> (*const c_void, *mut c_void) {
    let pointer = std::ptr::with_exposed_provenance_mut(at as usize);
    (pointer, pointer)
}

/// A number of ranks in NCCL's type.
fn number(count: usize) -> Result<c_int, CudaError> {
    c_int::try_from(count)
        .map_err(|_| CudaError::Unsupported(format!("{count} ranks are more than NCCL counts")))
}
