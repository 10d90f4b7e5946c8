//! Ranks as processes that reach each other by TCP: a star with rank 0 in its centre.
//!
//! This is the control channel of every run with several processes: it carries messages between hosts, and
//! failures, which neither NCCL nor MPI report. A process that dies closes its connection, which is seen at
//! once; one that hangs is given up after the timeout. A rank that waits for another, or does something slow,
//! sends signs of life meanwhile, so that only the rank that hangs is blamed. Sums of host memory go through
//! rank 0 in the order of ranks, which works everywhere but is fast enough for small models only.

use super::frame::{Frame, bytes, fill};
use super::incoming::{Received, longest};
use super::listening::listen;
use super::meeting::{connect, host};
use super::notice::{decode, encode};
use super::patience::Patience;
use super::{Comm, CommError, Joining};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Values summed at a time.
const BLOCK: usize = 1 << 18;
/// How long to wait for a peer before looking at the others.
const TICK: Duration = Duration::from_millis(100);
/// How often a rank that waits or works sends a sign of life.
const SIGN_OF_LIFE: Duration = Duration::from_millis(250);
/// How much longer the others wait for rank 0 than it waits for them, so that its verdict arrives first.
const GRACE: Duration = Duration::from_secs(5);
/// One of several processes.
pub struct Tcp {
    rank: usize,
    size: usize,
    shared: Arc<Shared>,
}

struct Shared {
    /// On rank 0 the connections to the others, in order; on the others the connection to rank 0.
    peers: Mutex<Peers>,
    /// Whether this rank is doing something slow.
    working: AtomicBool,
}

struct Peers {
    streams: Vec<Frame>,
    timeout: Duration,
    failed: Option<CommError>,
}

impl Tcp {
    /// Joins the ranks that meet at `port` of `host_name`, rank 0's machine, and returns when all have
    /// arrived. A single rank listens nowhere.
    ///
    /// # Errors
    /// When rank 0 cannot listen there or cannot be reached, when either end does not know the other's secret, or
    /// when a rank has not arrived in time.
    pub fn join(
        rank: usize,
        size: usize,
        host_name: &str,
        port: u16,
        joining: &Joining,
    ) -> Result<Self, CommError> {
        let streams = match (rank, size) {
            (_, 1) => Vec::new(),
            (0, _) => host(size, &listen(host_name, port)?, joining)?,
            _ => vec![connect(rank, size, (host_name, port), joining)?],
        };
        Ok(Self::new(rank, size, joining.timeout, streams))
    }

    /// Rank 0, on a port that it listens on already; returns when all ranks have arrived.
    ///
    /// # Errors
    /// When a rank has not arrived in time, or two say that they are the same.
    pub fn host(size: usize, listener: TcpListener, joining: &Joining) -> Result<Self, CommError> {
        Ok(Self::new(0, size, joining.timeout, host(size, &[listener], joining)?))
    }

    fn new(rank: usize, size: usize, timeout: Duration, streams: Vec<Frame>) -> Self {
        let peers = Mutex::new(Peers { streams, timeout, failed: None });
        let shared = Arc::new(Shared { peers, working: AtomicBool::new(false) });
        let weak = Arc::downgrade(&shared);
        // without this thread, a rank that works for longer than the timeout would be given up
        let _ = thread::Builder::new().name("ranks".to_owned()).spawn(move || show_life(&weak));
        Self { rank, size, shared }
    }

    /// The connections, or the failure that ended them.
    fn peers(&self) -> Result<MutexGuard<'_, Peers>, CommError> {
        let peers = self.shared.lock();
        match &peers.failed {
            Some(failed) => Err(failed.clone()),
            None => Ok(peers),
        }
    }

    /// The rank at the other end of a connection.
    fn at(&self, stream: usize) -> usize {
        if self.rank == 0 { stream + 1 } else { 0 }
    }

    fn ended(&self, stream: usize, error: &std::io::Error) -> CommError {
        let why = match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "its process ended, or the connection to it broke".to_owned()
            }
            _ => format!("the connection to it failed: {error}"),
        };
        CommError::Lost { rank: self.at(stream), size: self.size, why }
    }

    /// Makes a failure final. Rank 0 also tells the others, the blamed ranks last, since they may take
    /// nothing.
    /// Another rank that gives rank 0 up tells it so: if rank 0 was only stopped, it blames nobody else when it
    /// goes on.
    fn fail(&self, peers: &mut Peers, error: CommError) -> CommError {
        if self.rank == 0 {
            let notice = encode(&error);
            let blamed = |rank: usize| match &error {
                CommError::Lost { rank: lost, .. } => *lost == rank,
                CommError::Silent { ranks, .. } => ranks.contains(&rank),
                CommError::Absent { .. } | CommError::Failed(_) => false,
            };
            let mut order: Vec<usize> = (0..peers.streams.len()).collect();
            order.sort_by_key(|stream| blamed(stream + 1));
            order.into_iter().for_each(|stream| peers.streams[stream].tell(&notice));
        } else if matches!(error, CommError::Silent { .. }) {
            peers.streams[0].tell(&encode(&error));
        }
        peers.failed.get_or_insert(error).clone()
    }

    fn silent(&self, ranks: Vec<usize>, peers: &Peers) -> CommError {
        CommError::Silent { ranks, size: self.size, seconds: peers.timeout.as_secs() }
    }

    /// How long this rank waits for another.
    fn patience(&self, peers: &Peers) -> Patience {
        Patience::new(if self.rank == 0 { peers.timeout } else { peers.timeout + GRACE })
    }

    /// Waits for a message from a peer.
    fn receive(&self, peers: &mut Peers, from: usize) -> Result<Vec<u8>, CommError> {
        let mut patience = self.patience(peers);
        let mut sign = Instant::now() + SIGN_OF_LIFE;
        loop {
            let (begun, arrived) = (Instant::now(), peers.streams[from].arrived());
            let received = peers.streams[from].receive(begun + TICK);
            patience.waited(begun, TICK);
            match received {
                Ok(Received::Data(message)) => return Ok(message),
                Ok(Received::Notice(notice)) => {
                    let error = decode(&notice, self.size);
                    return Err(self.fail(peers, error));
                }
                // it is alive, but waits for another rank or works
                Ok(Received::SignOfLife) => patience.renew(),
                // a long message
                Ok(Received::Nothing) if peers.streams[from].arrived() > arrived => patience.renew(),
                Ok(Received::Nothing) => {}
                Err(error) => {
                    let error = self.ended(from, &error);
                    return Err(self.fail(peers, error));
                }
            }
            if patience.is_over() {
                self.look(peers)?;
                let ranks = (from..peers.streams.len())
                    .filter(|&stream| stream == from || peers.streams[stream].is_silent())
                    .map(|stream| self.at(stream))
                    .collect();
                let error = self.silent(ranks, peers);
                return Err(self.fail(peers, error));
            }
            if self.rank == 0 {
                self.wait_visibly(peers, &mut sign)?;
            }
        }
    }

    /// Checks on all peers and sends them a sign of life, if one is due.
    fn wait_visibly(&self, peers: &mut Peers, sign: &mut Instant) -> Result<(), CommError> {
        if Instant::now() > *sign {
            *sign = Instant::now() + SIGN_OF_LIFE;
            self.look(peers)?;
            peers.streams.iter_mut().for_each(Frame::show_life);
        }
        Ok(())
    }

    /// Checks, without waiting, whether all peers are still there.
    fn look(&self, peers: &mut Peers) -> Result<(), CommError> {
        for stream in 0..peers.streams.len() {
            let error = match peers.streams[stream].look() {
                Ok(None) => continue,
                Ok(Some(notice)) => decode(&notice, self.size),
                Err(error) => self.ended(stream, &error),
            };
            return Err(self.fail(peers, error));
        }
        Ok(())
    }

    /// Sends a message and waits until the peer has taken it.
    fn send(&self, peers: &mut Peers, to: usize, message: &[u8]) -> Result<(), CommError> {
        if message.len() > longest(self.size) {
            let length = message.len();
            let error =
                CommError::Failed(format!("a message of {length} bytes is longer than ranks may send"));
            return Err(self.fail(peers, error));
        }
        let mut patience = self.patience(peers);
        let mut sign = Instant::now() + SIGN_OF_LIFE;
        peers.streams[to].send(message);
        loop {
            let begun = Instant::now();
            let sent = peers.streams[to].flush(TICK);
            patience.waited(begun, TICK);
            match sent {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    // it may have reported the reason before it went
                    self.look(peers)?;
                    let error = self.ended(to, &error);
                    return Err(self.fail(peers, error));
                }
            }
            if self.rank > 0 {
                self.look(peers)?;
                if peers.streams[0].has_shown_life() {
                    patience.renew();
                }
            } else {
                self.wait_visibly(peers, &mut sign)?;
            }
            if patience.is_over() {
                let error = self.silent(vec![self.at(to)], peers);
                return Err(self.fail(peers, error));
            }
        }
    }

    /// Sums `range` of `values` on rank 0, in blocks, and sends the sum to rank `to`, or to all ranks if that
    /// is `None`.
    fn reduce(&self, values: &mut [f32], range: Range<usize>, to: Option<usize>) -> Result<(), CommError> {
        let mut peers = self.peers()?;
        for block in values[range].chunks_mut(BLOCK) {
            if self.rank > 0 {
                self.send(&mut peers, 0, &bytes(block))?;
                if to.is_none_or(|to| to == self.rank) {
                    fill(block, &self.receive(&mut peers, 0)?)?;
                }
                continue;
            }
            for stream in 0..self.size - 1 {
                let theirs = self.receive(&mut peers, stream)?;
                let mut other = vec![0.0; block.len()];
                fill(&mut other, &theirs)?;
                block.iter_mut().zip(&other).for_each(|(sum, value)| *sum += value);
            }
            let sum = bytes(block);
            for stream in (0..self.size - 1).filter(|stream| to.is_none_or(|to| to == stream + 1)) {
                self.send(&mut peers, stream, &sum)?;
            }
        }
        Ok(())
    }
}

impl Comm for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let mut peers = self.peers()?;
        if self.rank > 0 {
            self.send(&mut peers, 0, mine)?;
            return Ok(Vec::new());
        }
        let mut all = vec![mine.to_vec()];
        for stream in 0..self.size - 1 {
            all.push(self.receive(&mut peers, stream)?);
        }
        Ok(all)
    }

    fn broadcast(&self, message: &mut Vec<u8>) -> Result<(), CommError> {
        let mut peers = self.peers()?;
        if self.rank > 0 {
            *message = self.receive(&mut peers, 0)?;
            return Ok(());
        }
        (0..self.size - 1).try_for_each(|stream| self.send(&mut peers, stream, message))
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommError> {
        let range = 0..values.len();
        self.reduce(values, range, None)
    }

    fn reduce_scatter(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        (0..self.size).try_for_each(|rank| self.reduce(values, owners[rank].clone(), Some(rank)))
    }

    fn all_gather(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        for (rank, owner) in owners.iter().enumerate() {
            for block in values[owner.clone()].chunks_mut(BLOCK) {
                let mut peers = self.peers()?;
                if rank > 0 && self.rank == rank {
                    self.send(&mut peers, 0, &bytes(block))?;
                } else if rank > 0 && self.rank == 0 {
                    fill(block, &self.receive(&mut peers, rank - 1)?)?;
                }
                drop(peers);
                let mut message = if self.rank == 0 { bytes(block) } else { Vec::new() };
                self.broadcast(&mut message)?;
                fill(block, &message)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), CommError> {
        let mut peers = self.peers()?;
        self.look(&mut peers)
    }

    fn abandon(&self, why: &str) {
        let error = CommError::Lost { rank: self.rank, size: self.size, why: why.to_owned() };
        if let Ok(mut peers) = self.peers() {
            if self.rank > 0 {
                peers.streams[0].tell(&encode(&error));
            }
            self.fail(&mut peers, error);
        }
    }

    fn timeout(&self) -> Duration {
        self.shared.lock().timeout
    }

    fn set_working(&self, working: bool) {
        self.shared.working.store(working, Ordering::SeqCst);
    }

    fn set_timeout(&self, timeout: Duration) {
        if let Ok(mut peers) = self.peers() {
            peers.timeout = timeout;
        }
    }

    fn name(&self) -> &'static str {
        "tcp"
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends signs of life while this rank does something slow; ends when the connections are dropped.
fn show_life(shared: &Weak<Shared>) {
    loop {
        thread::sleep(SIGN_OF_LIFE);
        let Some(shared) = shared.upgrade() else { return };
        // a call that holds the connections sends signs of life itself
        if shared.working.load(Ordering::SeqCst)
            && let Ok(mut peers) = shared.peers.try_lock()
            && peers.failed.is_none()
        {
            peers.streams.iter_mut().for_each(Frame::show_life);
        }
    }
}
