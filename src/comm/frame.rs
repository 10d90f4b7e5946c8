//! Messages over one connection: a byte for the kind, eight for the length, the contents.

use super::CommError;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const DATA: u8 = 0;
const NOTICE: u8 = 1;
const SIGN_OF_LIFE: u8 = 2;
const HEAD: usize = 9;
/// Longer messages are not ours.
const LONGEST: u64 = 1 << 32;
/// How long a peer may leave a message lying before it counts as hung: what is sent is small, or asked for.
const PATIENCE: Duration = Duration::from_secs(120);

/// What has arrived.
#[derive(Debug)]
pub(super) enum Received {
    /// A message.
    Data(Vec<u8>),
    /// A failure, for all.
    Notice(Vec<u8>),
    /// The peer waits for others.
    SignOfLife,
    /// Nothing whole, in time.
    Nothing,
}

/// One connection.
pub(super) struct Frame {
    stream: TcpStream,
    /// What has arrived of the message under way.
    partial: Vec<u8>,
}

impl Frame {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        // small messages are waited for
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, partial: Vec::new() })
    }

    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.write(DATA, message)
    }

    pub(super) fn send_notice(&mut self, message: &[u8]) -> io::Result<()> {
        self.write(NOTICE, message)
    }

    pub(super) fn send_sign_of_life(&mut self) -> io::Result<()> {
        self.write(SIGN_OF_LIFE, &[])
    }

    fn write(&mut self, kind: u8, message: &[u8]) -> io::Result<()> {
        // in one piece: the head alone would travel as a packet of its own
        let mut whole = Vec::with_capacity(HEAD + message.len());
        whole.push(kind);
        whole.extend((message.len() as u64).to_le_bytes());
        whole.extend(message);
        self.stream.write_all(&whole)
    }

    /// The next message, if it is there before the deadline.
    pub(super) fn receive(&mut self, deadline: Instant) -> io::Result<Received> {
        loop {
            let wanted = match self.length()? {
                None => HEAD,
                Some(length) => HEAD + length,
            };
            if self.partial.len() == wanted
                && wanted >= HEAD
                && self.length()?.is_some_and(|l| HEAD + l == wanted)
            {
                let message = self.partial.split_off(HEAD);
                let kind = self.partial[0];
                self.partial.clear();
                return match kind {
                    DATA => Ok(Received::Data(message)),
                    NOTICE => Ok(Received::Notice(message)),
                    SIGN_OF_LIFE => Ok(Received::SignOfLife),
                    _ => Err(io::Error::new(ErrorKind::InvalidData, "a message of an unknown kind")),
                };
            }
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left))?;
            let had = self.partial.len();
            self.partial.resize(wanted, 0);
            let read = self.stream.read(&mut self.partial[had..]);
            self.partial.truncate(had + read.as_ref().map_or(0, |n| *n));
            match read {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Received::Nothing);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The contents' length of the message under way, once its head is there.
    fn length(&self) -> io::Result<Option<usize>> {
        let Some(head) = self.partial.get(1..HEAD) else { return Ok(None) };
        let length = head.try_into().map_or(u64::MAX, u64::from_le_bytes);
        match length {
            ..LONGEST => Ok(Some(length as usize)),
            _ => Err(io::Error::new(ErrorKind::InvalidData, "a message of impossible length")),
        }
    }

    /// Without waiting: a failure that the peer reports, or an error if it is gone.
    pub(super) fn look(&mut self) -> io::Result<Option<Vec<u8>>> {
        if !self.partial.is_empty() {
            return Ok(None);
        }
        let mut kind = [DATA];
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut kind);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) if kind[0] == NOTICE => match self.receive(Instant::now() + Duration::from_secs(1))? {
                Received::Notice(notice) => Ok(Some(notice)),
                _ => Ok(None),
            },
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether nothing of the next message is here.
    pub(super) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let waiting = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut byte));
        let restored = self.stream.set_nonblocking(false);
        self.partial.is_empty() && restored.is_ok() && !matches!(waiting, Ok(1..))
    }
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
