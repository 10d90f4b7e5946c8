//! Messages over one TCP connection.
//!
//! No call waits longer than its caller allows, in either direction, because a waiting rank must look after
//! the others too.

use super::CommError;
use super::incoming::{Incoming, Kind, Received, put};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long sending a failure may take.
const TELLING: Duration = Duration::from_millis(300);
/// The shortest timeout that a socket is given.
const SHORTEST: Duration = Duration::from_millis(1);
/// Bytes read at a time.
const READ: usize = 1 << 16;
/// Where so many bytes have not been asked for yet, no more are read: the peer has to wait.
const AHEAD: usize = 8 << 20;

/// One connection, with what has arrived and what is still to be sent.
pub(super) struct Frame {
    stream: TcpStream,
    incoming: Incoming,
    /// Bytes read so far.
    read: u64,
    /// Why nothing more will arrive.
    ended: Option<ErrorKind>,
    /// What is to be sent; the first `sent` bytes of it have been.
    outgoing: Vec<u8>,
    sent: usize,
}

impl Frame {
    /// A connection whose messages have at most `longest` bytes.
    pub(super) fn new(stream: TcpStream, longest: usize) -> io::Result<Self> {
        // the peer waits for small messages, so they must not be delayed
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        Ok(Self {
            stream,
            incoming: Incoming::new(longest),
            read: 0,
            ended: None,
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    /// Queues a message; [`flush`](Self::flush) sends it.
    pub(super) fn send(&mut self, message: &[u8]) {
        put(Kind::Data, message, &mut self.outgoing);
    }

    /// Sends a failure, if the peer takes it within a short time.
    pub(super) fn tell(&mut self, notice: &[u8]) {
        put(Kind::Notice, notice, &mut self.outgoing);
        // a peer that takes nothing will see the connection end
        let _ = self.flush(TELLING);
    }

    /// Sends a sign of life, unless the peer has not yet taken what was sent before.
    pub(super) fn show_life(&mut self) {
        if self.outgoing.is_empty() {
            put(Kind::SignOfLife, &[], &mut self.outgoing);
            // the next send or receive reports a connection that has ended
            let _ = self.flush(SHORTEST);
        }
    }

    /// Sends what is queued. Returns false if the peer takes nothing for as long as `wait`.
    pub(super) fn flush(&mut self, wait: Duration) -> io::Result<bool> {
        self.stream.set_write_timeout(Some(wait.max(SHORTEST)))?;
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if is_wait(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(true)
    }

    /// The next message that arrives before the deadline. A failure overtakes all other messages.
    pub(super) fn receive(&mut self, deadline: Instant) -> io::Result<Received> {
        loop {
            if let Some(message) = self.incoming.pop() {
                return Ok(message);
            }
            if let Some(kind) = self.ended {
                return Err(kind.into());
            }
            let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
            self.stream.set_read_timeout(Some(left))?;
            self.pull()?;
            // also where bytes arrive, one now and one then
            let is_late = Instant::now() >= deadline;
            if is_late && self.ended.is_none() && !self.incoming.is_whole() {
                return Ok(Received::Nothing);
            }
        }
    }

    /// Looks, without waiting, whether the peer has reported a failure; an error means that the peer is gone.
    pub(super) fn look(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.stream.set_nonblocking(true)?;
        let mut pulled = Ok(true);
        // a peer that never stops sending is looked at no longer than others
        for _ in 0..AHEAD / READ {
            if !matches!(pulled, Ok(true)) || self.incoming.held() >= AHEAD {
                break;
            }
            pulled = self.pull();
        }
        self.stream.set_nonblocking(false)?;
        pulled?;
        match (self.incoming.notice(), self.ended) {
            (Some(notice), _) => Ok(Some(notice)),
            (None, Some(kind)) => Err(kind.into()),
            (None, None) => Ok(None),
        }
    }

    /// Whether no byte of the next message had arrived at the last look.
    pub(super) fn is_silent(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Bytes that have arrived since the beginning.
    pub(super) fn arrived(&self) -> u64 {
        self.read
    }

    /// Whether a sign of life has arrived; removes it from what has arrived.
    pub(super) fn has_shown_life(&mut self) -> bool {
        self.incoming.has_shown_life()
    }

    /// Reads what is there, or arrives before the read timeout. Returns whether anything did.
    fn pull(&mut self) -> io::Result<bool> {
        if self.ended.is_some() {
            return Ok(false);
        }
        let mut buffer = [0; READ];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = Some(ErrorKind::UnexpectedEof),
            Ok(count) => {
                self.read += count as u64;
                let taken = self.incoming.take(&buffer[..count]);
                taken.map_err(|what| io::Error::new(ErrorKind::InvalidData, what))?;
                return Ok(true);
            }
            Err(error) if is_wait(&error) || error.kind() == ErrorKind::Interrupted => {}
            Err(error) => self.ended = Some(error.kind()),
        }
        Ok(false)
    }
}

/// Whether an operation failed only because its timeout passed.
pub(super) fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Encodes values as the contents of a message.
pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Decodes the values of a message that [`bytes`] made.
pub(super) fn fill(values: &mut [f32], bytes: &[u8]) -> Result<(), CommError> {
    let (words, rest) = bytes.as_chunks();
    if words.len() != values.len() || !rest.is_empty() {
        return Err(CommError::Failed("ranks passed values of different sizes".to_owned()));
    }
    values.iter_mut().zip(words).for_each(|(value, word)| *value = f32::from_le_bytes(*word));
    Ok(())
}
