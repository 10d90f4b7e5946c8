//! Ranks that `mpirun` or `srun` started, with sums by MPI (cargo feature `mpi`).
//!
//! MPI moves the values. Messages and failures stay with [`Tcp`], because an MPI call that waits for a dead
//! process never returns. For the same reason MPI's calls are non-blocking here: they are polled until they
//! are done or a rank is lost. The library chooses the order of a sum, so results agree with those of other
//! implementations up to rounding. MPI also carries the secret by which the ranks know each other when they
//! meet by TCP.

use super::patience::Patience;
use super::{Comm, CommError, Joining, Secret, Tcp};
use mpi::Threading;
use mpi::collective::{CommunicatorCollectives, Root, SystemOperation};
use mpi::environment::{Universe, processor_name};
use mpi::request::{Request, StaticScope};
use mpi::topology::{Communicator, SimpleCommunicator};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Values moved at a time.
const BLOCK: usize = 1 << 20;
/// How often the other ranks are checked while MPI works.
const LOOK: Duration = Duration::from_millis(50);

/// One of the processes of an MPI job.
pub struct Mpi {
    control: Tcp,
    library: Mutex<Library>,
}

/// MPI and the buffers it works on. It needs buffers of its own, because a call that was given up may still
/// write to them.
struct Library {
    /// Finalizes MPI when dropped, which waits for all ranks; so it is leaked after a failure.
    universe: Option<Universe>,
    world: SimpleCommunicator,
    /// The buffers to send from and to receive in; `None` during a call, and for good after a call was given
    /// up.
    buffers: Option<[&'static mut [f32]; 2]>,
}

// SAFETY: MPI was initialized for calls from any thread, one at a time (`Threading::Serialized`), and the
// mutex around it ensures that there is one at a time.
unsafe impl Send for Library {}

impl Drop for Library {
    fn drop(&mut self) {
        if self.buffers.is_none() {
            // a rank is gone, and MPI would wait for it
            std::mem::forget(self.universe.take());
        }
    }
}

impl Mpi {
    /// Starts MPI and joins the other ranks within `timeout`. `warn` is told of processes that cannot take part.
    ///
    /// # Errors
    /// When MPI allows calls from the first thread only, or the ranks cannot reach each other by TCP.
    pub fn join(timeout: Duration, warn: &dyn Fn(&str)) -> Result<Self, CommError> {
        let failed = |what: &str| CommError::Failed(format!("MPI cannot be used: {what}"));
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| failed("it has been started before"))?;
        if threading < Threading::Serialized {
            return Err(failed("this library was built without support for threads"));
        }
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        let control = meet(&world, rank, size, timeout, warn)?;
        let buffers = [0, 1].map(|_| Vec::leak(vec![0.0; BLOCK]));
        let library = Library { universe: Some(universe), world, buffers: Some(buffers) };
        Ok(Self { control, library: Mutex::new(library) })
    }

    fn lock(&self) -> MutexGuard<'_, Library> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls a call until it is done, or the ranks cannot go on.
    fn finish<T: ?Sized>(&self, mut request: Request<'static, T, StaticScope>) -> Result<(), CommError> {
        let timeout = self.control.timeout();
        let (mut patience, mut looked) = (Patience::new(timeout), Instant::now());
        loop {
            request = match request.test() {
                Ok(_) => return Ok(()),
                Err(request) => request,
            };
            // the library moves values only while it is called
            std::thread::yield_now();
            if looked.elapsed() < LOOK {
                continue;
            }
            patience.waited(looked, LOOK);
            looked = Instant::now();
            let error = match self.control.check() {
                Ok(()) if !patience.is_over() => continue,
                // every rank that can still arrive does so here, and a rank that hangs is named; if all
                // arrive, MPI is to blame
                Ok(()) => self.control.barrier().err().unwrap_or_else(|| {
                    CommError::Failed(format!(
                        "MPI did not end a sum within {} s (distributed.timeout_s), though all ranks answer: \
                         is its network down?",
                        timeout.as_secs()
                    ))
                }),
                Err(error) => error,
            };
            // a request must not be dropped before it is done
            std::mem::forget(request);
            self.control.abandon("MPI did not end a sum");
            return Err(error);
        }
    }

    /// Moves the values in blocks, each by one MPI call with a buffer to send and one to receive. `bring`:
    /// whether the values are sent; `take`: whether they are received.
    fn blocks(
        &self,
        values: &mut [f32],
        [bring, take]: [bool; 2],
        call: impl Fn(
            &SimpleCommunicator,
            &'static [f32],
            &'static mut [f32],
        ) -> Request<'static, [f32], StaticScope>,
    ) -> Result<(), CommError> {
        let mut library = self.lock();
        for block in values.chunks_mut(BLOCK) {
            let Some([send, receive]) = library.buffers.take() else {
                return Err(CommError::Failed("a call of MPI was given up".to_owned()));
            };
            if bring {
                send[..block.len()].copy_from_slice(block);
            }
            let (sent, received): (*mut [f32], *mut [f32]) = (send, receive);
            // SAFETY: both came from leaked vectors, and nothing else uses them until the call is done,
            // because only then are they put back. If the call is given up they are never used again, so MPI
            // may still write to them.
            let (send, receive) = unsafe { (&(&*sent)[..block.len()], &mut (&mut *received)[..block.len()]) };
            self.finish(call(&library.world, send, receive))?;
            // SAFETY: the call is done, and the slices lent to it are gone.
            let (send, receive) = unsafe { (&mut *sent, &mut *received) };
            if take {
                block.copy_from_slice(&receive[..block.len()]);
            }
            library.buffers = Some([send, receive]);
        }
        Ok(())
    }
}

/// Connects the ranks by TCP: rank 0 listens, and MPI tells the others where.
fn meet(
    world: &SimpleCommunicator,
    rank: usize,
    size: usize,
    timeout: Duration,
    warn: &dyn Fn(&str),
) -> Result<Tcp, CommError> {
    const NAME: usize = 256;
    let failed = |what: String| CommError::Failed(format!("MPI's ranks cannot meet by TCP: {what}"));
    let host = processor_name().map_err(|_| failed("the machine's name is not valid UTF-8".to_owned()))?;
    let listener =
        (rank == 0).then(|| TcpListener::bind("0.0.0.0:0")).transpose().map_err(|e| failed(e.to_string()))?;
    let address =
        listener.as_ref().map(TcpListener::local_addr).transpose().map_err(|e| failed(e.to_string()))?;
    let mut port = [address.map_or(0, |address| address.port())];
    let mut name = [0u8; NAME];
    let length = host.len().min(NAME);
    name[..length].copy_from_slice(&host.as_bytes()[..length]);
    let first = world.process_at_rank(0);
    first.broadcast_into(&mut port[..]);
    first.broadcast_into(&mut name[..]);
    let mut secret = if rank == 0 { Secret::random().map_err(failed)? } else { Default::default() };
    first.broadcast_into(&mut secret[..]);
    let secret = Secret::new(secret.to_vec(), "from MPI").expect("long enough");
    let joining = Joining { secret: &secret, timeout, warn };
    match listener {
        Some(listener) => Tcp::host(size, listener, &joining),
        None => {
            let there = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
            // a machine's own name need not resolve to itself
            let there = if there == host { "127.0.0.1".to_owned() } else { there };
            Tcp::join(rank, size, &there, port[0], &joining)
        }
    }
}

impl Comm for Mpi {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn size(&self) -> usize {
        self.control.size()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.control.gather(mine)
    }

    fn broadcast(&self, message: &mut Vec<u8>) -> Result<(), CommError> {
        self.control.broadcast(message)
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommError> {
        // a rank that hangs is named here
        self.control.barrier()?;
        self.blocks(values, [true, true], |world, send, receive| {
            world.immediate_all_reduce_into(StaticScope, send, receive, SystemOperation::sum())
        })
    }

    fn reduce_scatter(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        self.control.barrier()?;
        for (rank, owner) in owners.iter().enumerate() {
            let mine = rank == self.rank();
            self.blocks(&mut values[owner.clone()], [true, mine], |world, send, receive| {
                let root = world.process_at_rank(rank as i32);
                match mine {
                    true => {
                        root.immediate_reduce_into_root(StaticScope, send, receive, SystemOperation::sum())
                    }
                    false => root.immediate_reduce_into(StaticScope, send, SystemOperation::sum()),
                }
            })?;
        }
        Ok(())
    }

    fn all_gather(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        self.control.barrier()?;
        for (rank, owner) in owners.iter().enumerate() {
            let mine = rank == self.rank();
            self.blocks(&mut values[owner.clone()], [mine, !mine], |world, send, receive| {
                if mine {
                    receive.copy_from_slice(send);
                }
                world.process_at_rank(rank as i32).immediate_broadcast_into(StaticScope, receive)
            })?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), CommError> {
        self.control.check()
    }

    fn abandon(&self, why: &str) {
        // so that MPI is not finalized in order either
        self.lock().buffers = None;
        self.control.abandon(why);
    }

    fn timeout(&self) -> Duration {
        self.control.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.control.set_timeout(timeout);
    }

    fn set_working(&self, working: bool) {
        self.control.set_working(working);
    }

    fn name(&self) -> &'static str {
        "mpi"
    }
}
