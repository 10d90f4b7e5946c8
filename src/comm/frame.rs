//! Messages over one TCP connection: one byte for the kind, eight for the length (little endian), then the
//! contents.
//!
//! No call waits longer than its caller allows, in either direction, because a waiting rank must look after
//! the others too.

use super::CommError;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const DATA: u8 = 0;
const NOTICE: u8 = 1;
const SIGN_OF_LIFE: u8 = 2;
const HEAD: usize = 9;
/// Longer messages cannot come from this program.
const LONGEST: u64 = 1 << 32;
/// How long sending a failure may take.
const TELLING: Duration = Duration::from_millis(300);
/// The shortest timeout that a socket is given.
const SHORTEST: Duration = Duration::from_millis(1);

/// What arrived on a connection.
#[derive(Debug)]
pub(super) enum Received {
    /// A message.
    Data(Vec<u8>),
    /// A failure that concerns all ranks.
    Notice(Vec<u8>),
    /// The peer is alive, but waits for others or does something slow.
    SignOfLife,
    /// No whole message arrived in time.
    Nothing,
}

/// One connection, with what has arrived and what is still to be sent.
pub(super) struct Frame {
    stream: TcpStream,
    /// The bytes of the message that is still arriving.
    partial: Vec<u8>,
    arrived: VecDeque<Received>,
    /// Why nothing more will arrive.
    ended: Option<ErrorKind>,
    /// What is to be sent; the first `sent` bytes of it have been.
    outgoing: Vec<u8>,
    sent: usize,
}

impl Frame {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        // the peer waits for small messages, so they must not be delayed
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            partial: Vec::new(),
            arrived: VecDeque::new(),
            ended: None,
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    /// Queues a message; [`flush`](Self::flush) sends it.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.put(DATA, message);
    }

    /// Sends a failure, if the peer takes it within a short time.
    pub(super) fn tell(&mut self, notice: &[u8]) {
        self.put(NOTICE, notice);
        // a peer that takes nothing will see the connection end
        let _ = self.flush(TELLING);
    }

    /// Sends a sign of life, unless the peer has not yet taken what was sent before.
    pub(super) fn show_life(&mut self) {
        if self.outgoing.is_empty() {
            self.put(SIGN_OF_LIFE, &[]);
            // the next send or receive reports a connection that has ended
            let _ = self.flush(SHORTEST);
        }
    }

    fn put(&mut self, kind: u8, message: &[u8]) {
        self.outgoing.push(kind);
        self.outgoing.extend((message.len() as u64).to_le_bytes());
        self.outgoing.extend(message);
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
            if let Some(notice) = self.notice() {
                return Ok(Received::Notice(notice));
            }
            if let Some(message) = self.arrived.pop_front() {
                return Ok(message);
            }
            if let Some(kind) = self.ended {
                return Err(kind.into());
            }
            let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
            self.stream.set_read_timeout(Some(left))?;
            if !self.pull()? && Instant::now() >= deadline {
                return Ok(Received::Nothing);
            }
        }
    }

    /// Looks, without waiting, whether the peer has reported a failure; an error means that the peer is gone.
    pub(super) fn look(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.stream.set_nonblocking(true)?;
        let pulled = loop {
            match self.pull() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.stream.set_nonblocking(false)?;
        pulled?;
        match (self.notice(), self.ended) {
            (Some(notice), _) => Ok(Some(notice)),
            (None, Some(kind)) => Err(kind.into()),
            (None, None) => Ok(None),
        }
    }

    /// Whether no byte of the next message had arrived at the last look.
    pub(super) fn is_silent(&self) -> bool {
        self.partial.is_empty() && self.arrived.is_empty()
    }

    /// Whether a sign of life has arrived; removes it from what has arrived.
    pub(super) fn has_shown_life(&mut self) -> bool {
        let before = self.arrived.len();
        self.arrived.retain(|message| !matches!(message, Received::SignOfLife));
        self.arrived.len() < before
    }

    fn notice(&mut self) -> Option<Vec<u8>> {
        let place = self.arrived.iter().position(|message| matches!(message, Received::Notice(_)))?;
        match self.arrived.remove(place) {
            Some(Received::Notice(notice)) => Some(notice),
            _ => None,
        }
    }

    /// Reads what is there, or arrives before the read timeout. Returns whether anything did.
    fn pull(&mut self) -> io::Result<bool> {
        if self.ended.is_some() {
            return Ok(false);
        }
        let mut buffer = [0; 1 << 16];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = Some(ErrorKind::UnexpectedEof),
            Ok(count) => {
                self.partial.extend_from_slice(&buffer[..count]);
                self.sort_out()?;
                return Ok(true);
            }
            Err(error) if is_wait(&error) || error.kind() == ErrorKind::Interrupted => {}
            Err(error) => self.ended = Some(error.kind()),
        }
        Ok(false)
    }

    /// Cuts whole messages from the bytes that have arrived.
    fn sort_out(&mut self) -> io::Result<()> {
        let invalid = |what| Err(io::Error::new(ErrorKind::InvalidData, what));
        let mut start = 0;
        while let Some(head) = self.partial.get(start..start + HEAD) {
            let length = head[1..].try_into().map_or(u64::MAX, u64::from_le_bytes);
            if length >= LONGEST {
                return invalid("a message of impossible length");
            }
            let (kind, end) = (head[0], start + HEAD + length as usize);
            let Some(message) = self.partial.get(start + HEAD..end) else { break };
            self.arrived.push_back(match kind {
                DATA => Received::Data(message.to_vec()),
                NOTICE => Received::Notice(message.to_vec()),
                SIGN_OF_LIFE => Received::SignOfLife,
                _ => return invalid("a message of an unknown kind"),
            });
            start = end;
        }
        self.partial.drain(..start);
        Ok(())
    }
}

/// Whether an operation failed only because its timeout passed.
fn is_wait(error: &io::Error) -> bool {
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
