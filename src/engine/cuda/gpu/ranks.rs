//! What the devices of several ranks do together: NCCL on a stream of its own, and waiting that ends.
//!
//! A device that waits for a lost rank's waits for ever, and whoever waits for that device too. So with other ranks the host
//! asks the device again and again instead of waiting for it, and looks after the others meanwhile; when one of them is
//! lost, NCCL's work is aborted. Events tie the streams together, in recordings as well.

use super::{Gpu, State};
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

/// Questions to the device without a pause between them.
const QUICK: u32 = 100;
/// Between two later ones.
const NAP: Duration = Duration::from_micros(20);
/// Between two looks at the other ranks.
const LOOK: Duration = Duration::from_millis(50);
/// NCCL may notice that a rank is gone before its messages do, which tell which and why.
const GRACE: Duration = Duration::from_secs(2);
/// For what is still under way when a run has ended, which nobody wants any more.
const FAREWELL: Duration = Duration::from_secs(10);

/// Why waiting ended early.
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

/// What the host would wait for.
pub(super) enum Awaits<'a> {
    Nothing,
    Stream,
    Event(&'a Event),
}

/// The other ranks.
pub(super) struct Ranks {
    comm: Arc<dyn Comm>,
    communicator: Option<Communicator>,
    stream: Stream,
    /// Passed when what a collective works on is there.
    before: Event,
    /// Passed when collectives are done.
    after: Event,
    /// Begun, and not waited for by the main stream.
    begun: bool,
    /// Whether ranks share a process.
    neighbours: bool,
}

impl Ranks {
    /// Connects NCCL's communicator.
    fn meet(libraries: &Libraries, context: &Rc<Context>, comm: Arc<dyn Comm>) -> Result<Self, Broken> {
        let mut id = if comm.rank() == 0 { Communicator::unique_id(libraries)? } else { Vec::new() };
        comm.broadcast(&mut id)?;
        // before anybody waits in NCCL for a rank that cannot come
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

    /// Waits, as long as the other ranks are there and so much time has not passed.
    fn wait(&self, limit: Duration, mut done: impl FnMut() -> Result<bool, Broken>) -> Result<(), Broken> {
        let began = Instant::now();
        let (mut looked, mut asked) = (began, 0);
        while !done()? {
            if looked.elapsed() >= LOOK {
                self.comm.check()?;
                self.ready()?;
                looked = Instant::now();
                if began.elapsed() >= limit {
                    return Err(self.late(limit).into());
                }
            }
            // NCCL's calls are through in no time, a step is not
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

    /// Waits until NCCL has put into the stream what it was asked for last.
    fn settle(&self) -> Result<(), Broken> {
        self.wait(self.comm.timeout(), || self.ready())
    }

    fn ready(&self) -> Result<bool, Broken> {
        self.communicator()?.ready().map_err(|error| self.name(error))
    }

    /// Who is lost, if that becomes known; else what NCCL says.
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
            "rank {} of {} waited {} s for its device, and no rank is lost (distributed.timeout_s): a step takes longer than \
             that, or NCCL is stuck, of which NCCL_DEBUG=INFO in the environment may tell; the last checkpoint is intact, and \
             the same command resumes from it",
            self.comm.rank(),
            self.comm.size(),
            limit.as_secs()
        ))
    }

    /// Begins a collective after what the main stream has to do so far.
    fn begin(&mut self, collective: &Collective, main: &Stream) -> Result<(), Broken> {
        self.before.record(main)?;
        self.stream.wait(&self.before)?;
        let (communicator, stream) = (self.communicator()?, &self.stream);
        let asked = match collective {
            &Collective::Sum { at, len } => communicator.sum(at.0, len, Number::F32, stream),
            &Collective::SumDoubles { at, len } => communicator.sum(at.0, len, Number::F64, stream),
            // parts of different sizes, which NCCL's own operations on parts do not know
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

    /// Ends what NCCL does, also where it would wait for ever.
    pub(super) fn abort(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            communicator.abort();
        }
    }

    /// Waits until nothing is under way.
    fn idle(&self, main: &Stream) -> Result<(), Broken> {
        [main, &self.stream].iter().try_for_each(|stream| self.wait(FAREWELL, || Ok(stream.done()?)))
    }

    /// Takes leave of the others.
    fn part(&mut self) -> Result<(), Broken> {
        self.communicator()?.finalize()?;
        self.wait(FAREWELL, || self.ready())?;
        if let Some(communicator) = self.communicator.take() {
            communicator.destroy();
        }
        Ok(())
    }
}

/// Where an element of floats is.
fn float(at: Address, element: usize) -> u64 {
    at.offset(element * size_of::<f32>()).0
}

/// NCCL warns that recordings of several devices in one process may wait for each other for ever (User Guide, Using NCCL with
/// CUDA Graphs), so it must be known.
fn share_a_process(comm: &dyn Comm) -> Result<bool, CommError> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    // numbers of processes are not enough: in containers each may be number 1
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let all = comm.exchange(&process.to_le_bytes())?;
    Ok(all.iter().collect::<HashSet<_>>().len() < all.len())
}

impl Gpu {
    /// Connects this device with those of the other ranks, by NCCL also where there are none. All ranks call this together.
    ///
    /// Each collective is tried on a few known numbers: a link that does not work, or wrongly, shows here.
    ///
    /// # Errors
    /// When NCCL is missing, or the ranks cannot be connected.
    pub fn join_ranks(&mut self, libraries: &Libraries, comm: Arc<dyn Comm>) -> Result<(), EngineError> {
        let met = Ranks::meet(libraries, &self.context, comm.clone()).map_err(|broken| self.give_up(broken));
        self.ranks = Some(met?);
        self.try_collectives(&*comm)
    }

    /// Adds up and sends numbers of which it is known what must come out.
    fn try_collectives(&mut self, comm: &dyn Comm) -> Result<(), EngineError> {
        let (rank, size) = (comm.rank(), comm.size());
        let owners = comm::shares(24 * size, size);
        let len = 24 * size;
        let memory = Memory::new(&self.context, 8 * len, "a trial of NCCL")?;
        let at = Address(memory.address());
        // small, so that no sum is rounded
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
                "NCCL's {what} over {size} ranks gives wrong numbers on rank {rank}: the devices cannot reach each other's \
                 memory as they should; NCCL_P2P_DISABLE=1 in the environment may help"
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

    /// What went wrong among the ranks, as an error. NCCL's work is aborted.
    pub(super) fn give_up(&mut self, broken: Broken) -> EngineError {
        // it would wait for recordings that it is part of
        self.recordings.clear();
        if let Some(ranks) = &mut self.ranks {
            ranks.abort();
        }
        match broken {
            Broken::Cuda(error) => self.blame(error),
            Broken::Ranks(error) => error.into(),
        }
    }

    /// Before the host waits for the stream: waits here, where it can end.
    pub(super) fn settle(&mut self) -> Result<(), EngineError> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        ranks.wait_for(&self.stream).map_err(|broken| self.give_up(broken))
    }

    /// The same before it waits for what some part of this device waits for.
    pub(super) fn settle_for(&mut self, awaits: impl Fn(&Self) -> Awaits<'_>) -> Result<(), EngineError> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        let waited = match awaits(self) {
            Awaits::Nothing => Ok(()),
            Awaits::Stream => ranks.wait_for(&self.stream),
            Awaits::Event(event) => ranks.wait_until(event),
        };
        waited.map_err(|broken| self.give_up(broken))
    }

    /// The same for everything.
    pub(super) fn settle_all(&mut self) -> Result<(), EngineError> {
        self.settle()?;
        let Some(ranks) = &self.ranks else { return Ok(()) };
        ranks.wait_for(&ranks.stream).map_err(|broken| self.give_up(broken))
    }

    /// Before everything is freed.
    pub(super) fn part(&mut self) {
        let Some(ranks) = &mut self.ranks else { return };
        let idle = ranks.idle(&self.stream);
        // NCCL waits for recordings that it is part of
        self.recordings.clear();
        if idle.and_then(|()| ranks.part()).is_err() {
            ranks.abort();
        }
    }

    pub(super) fn begin_collective(&mut self, collective: &Collective) -> Result<(), EngineError> {
        self.context.make_current()?;
        if self.state == State::Spoilt {
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
        if self.state == State::Spoilt {
            ranks.begun = false;
            return Ok(());
        }
        ranks.join(&self.stream).map_err(|error| self.blame(error))
    }
}
