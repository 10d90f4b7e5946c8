//! Ranks as processes that reach each other by TCP: a star with rank 0 in its centre.
//!
//! What NCCL and MPI do not do is done here: messages on the host, and telling who is lost. A process that dies closes its
//! connection, which is seen at once; one that hangs is given up after the timeout. Sums of host memory go through rank 0
//! in the order of ranks: right anywhere, and fast enough for small models only.

use super::frame::{Frame, Received, bytes, fill};
use super::notice::{decode, encode};
use super::{Comm, CommError};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Values summed at a time.
const BLOCK: usize = 1 << 18;
/// How long the peers' silence is waited out before looking at something else.
const TICK: Duration = Duration::from_millis(100);
/// How often rank 0 says that it is waiting for others.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How much longer the others wait for rank 0 than it waits for them, so that its verdict arrives first.
const GRACE: Duration = Duration::from_secs(5);
/// What a connection begins with; the version of this protocol is part of it.
const HELLO: &[u8] = b"runner ranks 1";

/// One of several processes.
pub struct Tcp {
    rank: usize,
    size: usize,
    /// Rank 0: the others, in order. The others: rank 0.
    peers: Mutex<Peers>,
}

struct Peers {
    streams: Vec<Frame>,
    timeout: Duration,
    failed: Option<CommError>,
}

impl Tcp {
    /// Joins the ranks that meet at rank 0's `host` and `port`; returns when all are there.
    ///
    /// # Errors
    /// When rank 0 cannot listen there, cannot be reached, or not all have come within `timeout`.
    pub fn join(
        rank: usize,
        size: usize,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        match rank {
            0 => {
                let listener = TcpListener::bind((listening_host(host), port)).map_err(|error| {
                    CommError::Failed(format!(
                        "rank 0 cannot listen on port {port} for the other ranks: {error}; choose another one with MASTER_PORT"
                    ))
                })?;
                Self::host(size, listener, timeout)
            }
            _ => Self::connect(rank, size, host, port, timeout),
        }
    }

    /// Rank 0, on a port that is its own already.
    pub fn host(size: usize, listener: TcpListener, timeout: Duration) -> Result<Self, CommError> {
        let io =
            |error: std::io::Error| CommError::Failed(format!("rank 0 cannot wait for the others: {error}"));
        listener.set_nonblocking(true).map_err(io)?;
        let deadline = Instant::now() + timeout;
        let mut streams: Vec<Option<Frame>> = (1..size).map(|_| None).collect();
        while streams.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let Some((rank, stream)) = greet(stream, size) else { continue };
                    // the same rank twice: two launches meet at one port
                    if streams[rank - 1].replace(stream).is_some() {
                        return Err(CommError::Failed(format!(
                            "two processes say that they are rank {rank} of {size}: is another run using the same \
                             MASTER_ADDR and MASTER_PORT?"
                        )));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        let ranks = (1..size).filter(|rank| streams[rank - 1].is_none()).collect();
                        return Err(CommError::Silent { ranks, size, seconds: timeout.as_secs() });
                    }
                    sleep(TICK / 10);
                }
                Err(error) => return Err(io(error)),
            }
        }
        let mut streams: Vec<Frame> = streams.into_iter().flatten().collect();
        for stream in &mut streams {
            stream.send(HELLO).map_err(io)?;
        }
        Ok(Self::new(0, size, timeout, streams))
    }

    fn connect(
        rank: usize,
        size: usize,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        let deadline = Instant::now() + timeout;
        let failed = |why: String| {
            CommError::Failed(format!(
                "rank {rank} cannot reach rank 0 at {host}:{port} (MASTER_ADDR, MASTER_PORT): {why}"
            ))
        };
        loop {
            // not yet listening, or not yet known to the name service: it may still come up
            let mut why = "no answer".to_owned();
            let addresses = (host, port).to_socket_addrs().inspect_err(|error| why = error.to_string());
            for address in addresses.into_iter().flatten() {
                match TcpStream::connect_timeout(&address, Duration::from_secs(2)).and_then(Frame::new) {
                    Ok(mut stream) => {
                        let mut hello = HELLO.to_vec();
                        hello.extend([rank as u32, size as u32].into_iter().flat_map(u32::to_le_bytes));
                        stream.send(&hello).map_err(|error| failed(error.to_string()))?;
                        match stream.receive(deadline) {
                            Ok(Received::Data(answer)) if answer == HELLO => {
                                return Ok(Self::new(rank, size, timeout, vec![stream]));
                            }
                            Ok(Received::Nothing) => {
                                return Err(CommError::Silent {
                                    ranks: vec![0],
                                    size,
                                    seconds: timeout.as_secs(),
                                });
                            }
                            Ok(_) => return Err(failed("something else is listening there".to_owned())),
                            Err(error) => why = error.to_string(),
                        }
                    }
                    Err(error) => why = error.to_string(),
                }
            }
            if Instant::now() > deadline {
                return Err(failed(format!("{why}; tried for {} s", timeout.as_secs())));
            }
            sleep(TICK);
        }
    }

    fn new(rank: usize, size: usize, timeout: Duration, streams: Vec<Frame>) -> Self {
        Self { rank, size, peers: Mutex::new(Peers { streams, timeout, failed: None }) }
    }

    /// The connections; after a failure, the failure.
    fn peers(&self) -> Result<MutexGuard<'_, Peers>, CommError> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Makes a failure final, and rank 0 tells the others.
    fn fail(&self, peers: &mut Peers, error: CommError) -> CommError {
        if self.rank == 0 {
            let notice = encode(&error);
            for stream in &mut peers.streams {
                // whoever cannot be told sees the connection end
                let _ = stream.send_notice(&notice);
            }
        }
        peers.failed.get_or_insert(error).clone()
    }

    /// A message from a peer, waited for.
    fn receive(&self, peers: &mut Peers, from: usize) -> Result<Vec<u8>, CommError> {
        let patience = if self.rank == 0 { peers.timeout } else { peers.timeout + GRACE };
        let mut deadline = Instant::now() + patience;
        let mut sign = Instant::now() + SIGN_OF_LIFE;
        loop {
            match peers.streams[from].receive(Instant::now() + TICK) {
                Ok(Received::Data(message)) => return Ok(message),
                Ok(Received::Notice(notice)) => {
                    let error = decode(&notice, self.size);
                    return Err(self.fail(peers, error));
                }
                // it waits for somebody itself
                Ok(Received::SignOfLife) => deadline = Instant::now() + patience,
                Ok(Received::Nothing) => {}
                Err(error) => {
                    let error = self.ended(from, &error);
                    return Err(self.fail(peers, error));
                }
            }
            if Instant::now() > deadline {
                let ranks = (from..peers.streams.len())
                    .filter(|&stream| stream == from || peers.streams[stream].is_silent())
                    .map(|stream| self.at(stream))
                    .collect();
                let error = CommError::Silent { ranks, size: self.size, seconds: peers.timeout.as_secs() };
                return Err(self.fail(peers, error));
            }
            if self.rank == 0 && Instant::now() > sign {
                sign = Instant::now() + SIGN_OF_LIFE;
                self.look(peers)?;
                for stream in &mut peers.streams {
                    let _ = stream.send_sign_of_life();
                }
            }
        }
    }

    /// Whether all are still there, as far as can be told without waiting.
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

    fn send(&self, peers: &mut Peers, to: usize, message: &[u8]) -> Result<(), CommError> {
        if let Err(error) = peers.streams[to].send(message) {
            // it may have said why before it went
            self.look(peers)?;
            let error = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    let ranks = vec![self.at(to)];
                    CommError::Silent { ranks, size: self.size, seconds: peers.timeout.as_secs() }
                }
                _ => self.ended(to, &error),
            };
            return Err(self.fail(peers, error));
        }
        Ok(())
    }

    /// Sums blocks of values on rank 0; `keep` says what each rank gets back.
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
                // if rank 0 cannot be told, it sees the connection end
                let _ = peers.streams[0].send_notice(&encode(&error));
            }
            self.fail(&mut peers, error);
        }
    }

    fn timeout(&self) -> Duration {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).timeout
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

/// Where rank 0 listens: on this machine only, if the others are to find it there.
fn listening_host(host: &str) -> &'static str {
    if matches!(host, "localhost" | "127.0.0.1" | "::1") { "127.0.0.1" } else { "0.0.0.0" }
}

/// The rank at the other end of a new connection; `None` if it is none of ours.
fn greet(stream: TcpStream, size: usize) -> Option<(usize, Frame)> {
    stream.set_nonblocking(false).ok()?;
    let mut stream = Frame::new(stream).ok()?;
    let Ok(Received::Data(hello)) = stream.receive(Instant::now() + Duration::from_secs(2)) else {
        return None;
    };
    let numbers = hello.strip_prefix(HELLO)?;
    let (words, _) = numbers.as_chunks();
    let [rank, theirs] = [words.first()?, words.get(1)?].map(|word| u32::from_le_bytes(*word) as usize);
    (theirs == size && (1..size).contains(&rank)).then_some((rank, stream))
}
