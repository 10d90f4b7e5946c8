//! Collectives among the devices of several ranks: NCCL on a stream of its own, with waits that always end.
//!
//! If a rank dies, its peers' NCCL calls never return, so the host must abort them. With other ranks, the
//! host therefore never blocks on its device: it polls, and checks the other ranks meanwhile; when one of
//! them is lost, it aborts NCCL. Events order the streams, in recordings as well.

use super::{Gpu, GraphState};
use crate::comm::patience::Patience;
use crate::comm::{self, Comm, CommError};
use crate::cuda::{Communicator, Context, CudaError, Event, Libraries, Memory, Number, Stream};
use crate::engine::EngineError;
use crate::engine::cuda::device::{Address, Collective, Device};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Polls of the device without a pause between them.
const QUICK: u32 = 100;
/// Pause between later polls.
const NAP: Duration = Duration::from_micros(20);
/// Time between two checks of the other ranks.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait for the message that names a lost rank: NCCL may notice the loss first.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for remaining work at the end of a run, whose results are not needed.
const DISCONNECTING: Duration = Duration::from_secs(10);

/// Why a wait ended early.
pub(super) enum Broken {
    Cuda(CudaError),
    Ranks(CommError),
}

impl From<CudaError> for Broken {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl From<CommError> for Broken {
    fn from(error: CommError) -> Self {
        Self::Ranks(error)
    }
}

/// What the host has to wait for.
pub(super) enum Awaits<'a> {
    Nothing,
    Stream,
    Event(&'a Event),
}

/// The connection to the other ranks' devices.
pub(super) struct NcclRanks {
    comm: Arc<dyn Comm>,
    communicator: Option<Communicator>,
    stream: Stream,
    /// Passed when the input of a collective is ready.
    before: Event,
    /// Passed when the collectives are done.
    after: Event,
    /// Whether a collective has begun that the main stream does not yet wait for.
    begun: bool,
    /// Whether several ranks share a process.
    neighbours: bool,
}

impl NcclRanks {
    /// Connects this rank's device to the others by NCCL.
    fn meet(libraries: &Libraries, context: &Rc<Context>, comm: Arc<dyn Comm>) -> Result<Self, Broken> {
        let mut id = if comm.rank() == 0 { Communicator::unique_id(libraries)? } else { Vec::new() };
        comm.broadcast(&mut id)?;
        // before any rank waits in NCCL for a rank that cannot come
        let communicator = Communicator::begin(libraries, context, &id, comm.rank(), comm.size())?;
        let mut ranks = Self {
            communicator: None,
            stream: Stream::new(context)?,
            before: Event::new(context)?,
            after: Event::new(context)?,
            begun: false,
            neighbours: share_a_process(&*comm)?,
            comm,
        };
        ranks.communicator = Some(communicator);
        ranks.settle()?;
        Ok(ranks)
    }

    fn communicator(&self) -> Result<&Communicator, CommError> {
        self.communicator.as_ref().ok_or_else(|| CommError::Failed("NCCL's work has been aborted".to_owned()))
    }

    /// Polls until `done`, a rank is lost or `limit` has passed.
    fn wait(&self, limit: Duration, mut done: impl FnMut() -> Result<bool, Broken>) -> Result<(), Broken> {
        let mut patience = Patience::new(limit);
        let (mut looked, mut asked) = (Instant::now(), 0);
        while !done()? {
            if looked.elapsed() >= LOOK {
                self.comm.check()?;
                self.ready()?;
                patience.waited(looked, LOOK);
                looked = Instant::now();
                if patience.is_over() {
                    return Err(self.late(limit).into());
                }
            }
            // NCCL's calls complete quickly, a step does not
            asked += 1;
            if asked < QUICK { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
        Ok(())
    }

    /// Waits for a stream.
    pub(super) fn wait_for(&self, stream: &Stream) -> Result<(), Broken> {
        self.wait(self.comm.timeout(), || Ok(stream.done()?))
    }

    /// Waits for an event.
    fn wait_until(&self, event: &Event) -> Result<(), Broken> {
        self.wait(self.comm.timeout(), || Ok(event.passed()?))
    }

    /// Waits until NCCL has queued its last call in the stream.
    fn settle(&self) -> Result<(), Broken> {
        self.wait(self.comm.timeout(), || self.ready())
    }

    fn ready(&self) -> Result<bool, Broken> {
        self.communicator()?.ready().map_err(|error| self.name(error))
    }

    /// Names the lost rank if it becomes known; otherwise returns NCCL's error.
    fn name(&self, error: CudaError) -> Broken {
        let began = Instant::now();
        while began.elapsed() < GRACE && self.comm.size() > 1 {
            if let Err(named) = self.comm.check() {
                return named.into();
            }
            std::thread::sleep(LOOK);
        }
        CommError::Failed(format!("rank {} of {}: {error}", self.comm.rank(), self.comm.size())).into()
    }

    fn late(&self, limit: Duration) -> CommError {
        CommError::Failed(format!(
            "rank {} of {} waited {} s for its device, and no rank is lost (distributed.timeout_s): a step takes \
             longer than that, or NCCL is stuck (NCCL_DEBUG=INFO in the environment may show where); the last \
             checkpoint is intact, and the same command resumes from it",
            self.comm.rank(),
            self.comm.size(),
            limit.as_secs()
        ))
    }

    /// Begins a collective after the main stream's earlier work.
    fn begin(&mut self, collective: &Collective, main: &Stream) -> Result<(), Broken> {
        self.before.record(main)?;
        self.stream.wait(&self.before)?;
        let (communicator, stream) = (self.communicator()?, &self.stream);
        let asked = match collective {
            &Collective::Sum { at, len } => communicator.sum(at.0, len, Number::F32, stream),
            &Collective::SumDoubles { at, len } => communicator.sum(at.0, len, Number::F64, stream),
            // shares differ in size, which NCCL's own scatter and gather do not support
            Collective::SumToOwners { at, owners } => communicator.group(|communicator| {
                let mut parts = owners.iter().enumerate().filter(|(_, owner)| !owner.is_empty());
                parts.try_for_each(|(root, owner)| {
                    communicator.sum_to(root, float(*at, owner.start), owner.len(), Number::F32, stream)
                })
            }),
            Collective::Gather { at, owners } => communicator.group(|communicator| {
                let mut parts = owners.iter().enumerate().filter(|(_, owner)| !owner.is_empty());
                parts.try_for_each(|(root, owner)| {
                    communicator.broadcast(root, float(*at, owner.start), owner.len(), Number::F32, stream)
                })
            }),
        };
        asked.map_err(|error| self.name(error))?;
        self.begun = true;
        self.settle()
    }

    /// Whether collectives may be recorded.
    pub(super) fn record(&self) -> bool {
        !self.neighbours
    }

    fn join(&mut self, main: &Stream) -> Result<(), CudaError> {
        if std::mem::take(&mut self.begun) {
            self.after.record(&self.stream)?;
            main.wait(&self.after)?;
        }
        Ok(())
    }

    /// Ends NCCL's work, even if it waits for a lost rank.
    pub(super) fn abort(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            communicator.abort();
        }
    }

    /// Waits until no work is left.
    fn idle(&self, main: &Stream) -> Result<(), Broken> {
        [main, &self.stream].iter().try_for_each(|stream| self.wait(DISCONNECTING, || Ok(stream.done()?)))
    }

    /// Disconnects from the other ranks.
    fn disconnect(&mut self) -> Result<(), Broken> {
        self.communicator()?.finalize()?;
        self.wait(DISCONNECTING, || self.ready())?;
        if let Some(communicator) = self.communicator.take() {
            communicator.destroy();
        }
        Ok(())
    }
}

/// The address of float number `element`.
fn float(at: Address, element: usize) -> u64 {
    at.offset(element * size_of::<f32>()).0
}

/// Whether several ranks share a process. NCCL warns that recordings of several devices in one process may
/// wait for each other forever (User Guide, Using NCCL with CUDA Graphs).
fn share_a_process(comm: &dyn Comm) -> Result<bool, CommError> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    // process ids are not enough: in containers each may be 1
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let all = comm.exchange(&process.to_le_bytes())?;
    Ok(all.iter().collect::<HashSet<_>>().len() < all.len())
}

impl Gpu {
    /// Connects this device to those of the other ranks by NCCL, even if there are no others. All ranks must
    /// call this together.
    ///
    /// Each collective is tried on a few known numbers, so that a link that does not work, or works wrongly,
    /// shows here.
    ///
    /// # Errors
    /// When NCCL is missing, or the ranks cannot be connected.
    pub fn join_ranks(&mut self, libraries: &Libraries, comm: Arc<dyn Comm>) -> Result<(), EngineError> {
        let met =
            NcclRanks::meet(libraries, &self.context, comm.clone()).map_err(|broken| self.give_up(broken));
        self.ranks = Some(met?);
        self.try_collectives(&*comm)
    }

    /// Runs each collective on numbers with a known result.
    fn try_collectives(&mut self, comm: &dyn Comm) -> Result<(), EngineError> {
        let (rank, size) = (comm.rank(), comm.size());
        let owners = comm::shares(24 * size, size);
        let len = 24 * size;
        let memory = Memory::new(&self.context, 8 * len, "a trial of NCCL")?;
        let at = Address(memory.address());
        // small numbers, so that no sum is rounded
        let of_rank = |rank: usize| (rank % 8 + 1) as f64;
        let (mine, sum) = (of_rank(rank), (0..size).map(of_rank).sum::<f64>());
        let floats = |value: &dyn Fn(usize) -> f64| -> Vec<u8> {
            (0..len).flat_map(|i| (value(i) as f32).to_ne_bytes()).collect()
        };
        let whole = 0..len;
        let mut try_one = |what: &str, collective, input: Vec<u8>, expected: Vec<u8>, seen: Range<usize>| {
            self.write(at, &input)?;
            self.collective(&collective)?;
            self.join()?;
            let mut output = vec![0; input.len()];
            self.read(at, &mut output)?;
            let width = input.len() / len;
            let seen = seen.start * width..seen.end * width;
            if output[seen.clone()] == expected[seen] {
                return Ok(());
            }
            Err(EngineError::from(CommError::Failed(format!(
                "NCCL's {what} over {size} ranks gives wrong numbers on rank {rank}: the devices cannot reach each \
                 other's memory as they should; NCCL_P2P_DISABLE=1 in the environment may help"
            ))))
        };
        try_one("sum", Collective::Sum { at, len }, floats(&|_| mine), floats(&|_| sum), whole.clone())?;
        let to_owners = Collective::SumToOwners { at, owners: owners.clone() };
        let scaled = |by: f64| move |i: usize| by * (i % 5 + 1) as f64;
        try_one("sum", to_owners, floats(&scaled(mine)), floats(&scaled(sum)), owners[rank].clone())?;
        let owned = |i: usize| owners[rank].contains(&i);
        let gather = Collective::Gather { at, owners: owners.clone() };
        let input = floats(&|i| if owned(i) { scaled(1.0)(i) } else { -1.0 });
        try_one("broadcast", gather, input, floats(&scaled(1.0)), whole.clone())?;
        let doubles = |value: f64| (0..len).flat_map(|_| value.to_ne_bytes()).collect();
        try_one("sum", Collective::SumDoubles { at, len }, doubles(mine), doubles(sum), whole)
    }

    /// Aborts NCCL's work and turns the reason into an error.
    pub(super) fn give_up(&mut self, broken: Broken) -> EngineError {
        // NCCL would wait for recordings that contain its calls
        self.recordings.clear();
        if let Some(ranks) = &mut self.ranks {
            ranks.abort();
        }
        match broken {
            Broken::Cuda(error) => self.blame(error),
            Broken::Ranks(error) => error.into(),
        }
    }

    /// Waits until the stream is idle, so that a blocking call on it returns at once; does nothing without
    /// other ranks.
    pub(super) fn settle(&mut self) -> Result<(), EngineError> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        ranks.wait_for(&self.stream).map_err(|broken| self.give_up(broken))
    }

    /// Waits for what `awaits` returns, so that a blocking call on it returns at once.
    pub(super) fn settle_for(&mut self, awaits: impl Fn(&Self) -> Awaits<'_>) -> Result<(), EngineError> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        let waited = match awaits(self) {
            Awaits::Nothing => Ok(()),
            Awaits::Stream => ranks.wait_for(&self.stream),
            Awaits::Event(event) => ranks.wait_until(event),
        };
        waited.map_err(|broken| self.give_up(broken))
    }

    /// Waits until all streams are idle.
    pub(super) fn settle_all(&mut self) -> Result<(), EngineError> {
        self.settle()?;
        let Some(ranks) = &self.ranks else { return Ok(()) };
        ranks.wait_for(&ranks.stream).map_err(|broken| self.give_up(broken))
    }

    /// Disconnects from the other ranks, before everything is freed.
    pub(super) fn disconnect(&mut self) {
        let Some(ranks) = &mut self.ranks else { return };
        let idle = ranks.idle(&self.stream);
        // NCCL waits for recordings that contain its calls
        self.recordings.clear();
        if idle.and_then(|()| ranks.disconnect()).is_err() {
            ranks.abort();
        }
    }

    pub(super) fn begin_collective(&mut self, collective: &Collective) -> Result<(), EngineError> {
        self.context.make_current()?;
        if self.state == GraphState::Spoilt {
            return Ok(());
        }
        self.start("a sum over ranks");
        let Some(ranks) = &mut self.ranks else {
            return Err(EngineError::Device("there are no other ranks".to_owned()));
        };
        ranks.begin(collective, &self.stream).map_err(|broken| self.give_up(broken))
    }

    pub(super) fn join_collectives(&mut self) -> Result<(), EngineError> {
        self.context.make_current()?;
        let Some(ranks) = &mut self.ranks else { return Ok(()) };
        if self.state == GraphState::Spoilt {
            ranks.begun = false;
            return Ok(());
        }
        ranks.join(&self.stream).map_err(|error| self.blame(error))
    }
}
