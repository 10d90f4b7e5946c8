//! Messages over one connection: a byte for the kind, eight for the length, the contents.
//!
//! Nothing here waits for longer than it is told, in neither direction: whoever waits looks after the other ranks meanwhile.

use super::CommError;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const DATA: u8 = 0;
const NOTICE: u8 = 1;
const SIGN_OF_LIFE: u8 = 2;
const HEAD: usize = 9;
/// Longer messages are not ours.
const LONGEST: u64 = 1 << 32;
/// How long a failure may take to be told.
const TELLING: Duration = Duration::from_millis(300);
/// The shortest wait that a connection knows.
const SHORTEST: Duration = Duration::from_millis(1);

/// What has arrived.
#[derive(Debug)]
pub(super) enum Received {
    /// A message.
    Data(Vec<u8>),
    /// A failure, for all.
    Notice(Vec<u8>),
    /// The peer waits for others, or works on something that takes its time.
    SignOfLife,
    /// Nothing whole, in time.
    Nothing,
}

/// One connection.
pub(super) struct Frame {
    stream: TcpStream,
    /// What has arrived of the message under way.
    partial: Vec<u8>,
    arrived: VecDeque<Received>,
    /// Why nothing more will come.
    ended: Option<ErrorKind>,
    /// What is to be sent, and how much of it has been.
    outgoing: Vec<u8>,
    sent: usize,
}

impl Frame {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        // small messages are waited for
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

    /// Puts a message in line; [`flush`](Self::flush) sends it.
    pub(super) fn send(&mut self, message: &[u8]) {
        self.put(DATA, message);
    }

    /// Tells a failure, if that can be done quickly.
    pub(super) fn tell(&mut self, notice: &[u8]) {
        self.put(NOTICE, notice);
        // whoever cannot be told sees the connection end
        let _ = self.flush(TELLING);
    }

    /// Shows that this rank lives, unless the peer has not even taken what came before.
    pub(super) fn show_life(&mut self) {
        if self.outgoing.is_empty() {
            self.put(SIGN_OF_LIFE, &[]);
            // a connection that has ended is noticed by whoever needs it
            let _ = self.flush(SHORTEST);
        }
    }

    fn put(&mut self, kind: u8, message: &[u8]) {
        self.outgoing.push(kind);
        self.outgoing.extend((message.len() as u64).to_le_bytes());
        self.outgoing.extend(message);
    }

    /// Sends what is in line; false if the peer takes nothing for as long as `wait`.
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

    /// The next message, if it is there before the deadline. A failure overtakes everything.
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

    /// Without waiting: a failure that the peer reports, or an error if it is gone.
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

    /// Whether nothing of the next message was here at the last look.
    pub(super) fn is_silent(&self) -> bool {
        self.partial.is_empty() && self.arrived.is_empty()
    }

    /// Whether a sign of life was among what has arrived; it is taken.
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

    /// Takes in what is there, or comes in time; whether anything did.
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

    /// Cuts whole messages from what has arrived.
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

/// Whether an operation only took too long.
fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Values as the contents of a message.
pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The values of a message that [`bytes`] made.
pub(super) fn fill(values: &mut [f32], bytes: &[u8]) -> Result<(), CommError> {
    let (words, rest) = bytes.as_chunks();
    if words.len() != values.len() || !rest.is_empty() {
        return Err(CommError::Failed("ranks brought values of different sizes".to_owned()));
    }
    values.iter_mut().zip(words).for_each(|(value, word)| *value = f32::from_le_bytes(*word));
    Ok(())
}
