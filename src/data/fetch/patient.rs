//! Reading from servers that may send what is no part of the answer, without end.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 16;
/// Pieces that are read ahead.
const AHEAD: usize = 2;

/// The body of an answer, which a thread of its own reads. The sizes of chunks, their extensions and trailers
/// (RFC 9112, section 7.1) come over the wire as well and are none of it: a read may get such bytes for ever, and never
/// end.
pub(super) struct Patient {
    pieces: Receiver<io::Result<Vec<u8>>>,
    /// What [`start`] has returned.
    thread: Weak<()>,
}

/// Why no more bytes come.
#[derive(Debug)]
pub(super) enum Broken {
    /// None of the body has come for so long.
    Silent(Duration),
    /// The connection failed.
    Failed(io::Error),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Silent(patience) => write!(f, "no byte of the answer came for {} s", patience.as_secs()),
            Self::Failed(error) => write!(f, "the connection broke: {error}"),
        }
    }
}

/// Starts a thread that nobody waits for. What is returned can be upgraded as long as it lives.
///
/// # Errors
/// Those of a system that starts no more threads.
pub(super) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Weak<()>> {
    let held = Arc::new(());
    let alive = Arc::downgrade(&held);
    let work = move || {
        let _held = held;
        work();
    };
    thread::Builder::new().name(name.into()).spawn(work)?;
    Ok(alive)
}

impl Patient {
    /// # Errors
    /// Those of a system that starts no more threads.
    pub(super) fn new(mut body: impl Read + Send + 'static) -> io::Result<Self> {
        let (sender, pieces) = sync_channel(AHEAD);
        let read = move || {
            loop {
                let mut piece = vec![0; PIECE];
                let found = match body.read(&mut piece) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    found => found.map(|read| piece.truncate(read)),
                };
                let is_last = found.is_err() || piece.is_empty();
                if sender.send(found.map(|()| piece)).is_err() || is_last {
                    return;
                }
            }
        };
        Ok(Self { pieces, thread: start("answer", read)? })
    }

    /// Tells whether the thread that reads it still lives.
    pub(super) fn thread(&self) -> Weak<()> {
        self.thread.clone()
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// Those of the connection, and [`Broken::Silent`] after so long: then the thread that reads is left to itself.
    pub(super) fn next(&self, patience: Duration) -> Result<Vec<u8>, Broken> {
        match self.pieces.recv_timeout(patience) {
            Ok(found) => found.map_err(Broken::Failed),
            Err(RecvTimeoutError::Timeout) => Err(Broken::Silent(patience)),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Broken::Failed(io::Error::other("nobody reads any more")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_in_order_and_then_none() {
        let bytes: Vec<u8> = (0..1_000_000).map(|i| (i % 251) as u8).collect();
        let body = Patient::new(io::Cursor::new(bytes.clone())).expect("a thread");
        let mut found = Vec::new();
        loop {
            let piece = body.next(Duration::from_secs(600)).expect("no failure");
            if piece.is_empty() {
                break;
            }
            found.extend(piece);
        }
        assert_eq!(found, bytes);
    }

    #[test]
    fn a_failure_is_told_and_silence_is_one() {
        struct Silent(bool);
        impl Read for Silent {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                if self.0 {
                    return Err(ErrorKind::ConnectionReset.into());
                }
                loop {
                    thread::park();
                }
            }
        }
        let found = |fails: bool, patience: u64| {
            let body = Patient::new(Silent(fails)).expect("a thread");
            body.next(Duration::from_secs(patience)).expect_err("no byte").to_string()
        };
        assert_eq!(found(false, 1), "no byte of the answer came for 1 s");
        assert!(found(true, 600).starts_with("the connection broke: "));
    }
}
