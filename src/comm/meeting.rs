//! How processes that were started together find each other by TCP: rank 0 listens, the others connect and
//! say who they are.

use super::CommError;
use super::frame::{Frame, Received};
use super::notice::{decode, encode};
use crate::wording::count;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a connected process may take for its part of the greeting.
const GREETING: Duration = Duration::from_secs(5);
/// The first bytes of a connection; they contain the version of this protocol.
const HELLO: &[u8] = b"runner ranks 1";

/// Rank 0's listening socket: on the loopback address if the others look for it there, otherwise on all
/// addresses, IPv4 and IPv6.
pub(super) fn listen(host: &str, port: u16) -> Result<TcpListener, CommError> {
    let listener = match host {
        "localhost" | "127.0.0.1" => TcpListener::bind(("127.0.0.1", port)),
        "::1" => TcpListener::bind(("::1", port)),
        // a machine without IPv6
        _ => TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))),
    };
    listener.map_err(|error| {
        CommError::Failed(format!(
            "rank 0 cannot listen on port {port} for the other ranks: {error}; choose another one with MASTER_PORT"
        ))
    })
}

/// Rank 0: waits for all other ranks and returns their connections, in the order of ranks.
pub(super) fn host(size: usize, listener: TcpListener, timeout: Duration) -> Result<Vec<Frame>, CommError> {
    let failed = |error: io::Error| CommError::Failed(format!("rank 0 cannot wait for the others: {error}"));
    listener.set_nonblocking(true).map_err(failed)?;
    let deadline = Instant::now() + timeout;
    let mut streams: Vec<Option<Frame>> = (1..size).map(|_| None).collect();
    while streams.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some((rank, stream)) = greet(stream, size) else { continue };
                // the same rank twice: two launches use one port
                if streams[rank - 1].replace(stream).is_some() {
                    let error = CommError::Failed(format!(
                        "two processes say that they are rank {rank} of {size}: is another run using the same \
                         MASTER_ADDR and MASTER_PORT?"
                    ));
                    streams.iter_mut().flatten().for_each(|stream| stream.tell(&encode(&error)));
                    return Err(error);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    let ranks = (1..size).filter(|rank| streams[rank - 1].is_none()).collect();
                    return Err(CommError::Silent { ranks, size, seconds: timeout.as_secs() });
                }
                sleep(PAUSE);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let mut streams: Vec<Frame> = streams.into_iter().flatten().collect();
    for stream in &mut streams {
        stream.send(HELLO);
        stream.flush(GREETING).map_err(failed)?;
    }
    Ok(streams)
}

/// The rank at the other end of a new connection; `None` if the peer is not a rank of this run.
fn greet(stream: TcpStream, size: usize) -> Option<(usize, Frame)> {
    stream.set_nonblocking(false).ok()?;
    let mut stream = Frame::new(stream).ok()?;
    let Ok(Received::Data(hello)) = stream.receive(Instant::now() + GREETING) else { return None };
    let (words, _) = hello.strip_prefix(HELLO)?.as_chunks();
    let [rank, theirs] = [words.first()?, words.get(1)?].map(|word| u32::from_le_bytes(*word) as usize);
    if theirs != size {
        let error = CommError::Failed(format!(
            "rank {rank} was started as one of {}, but the rank 0 that it reached as one of {size}",
            count(theirs, "rank")
        ));
        stream.tell(&encode(&error));
        return None;
    }
    (1..size).contains(&rank).then_some((rank, stream))
}

/// Every other rank: connects to rank 0, which may not listen yet, or may not yet be known to the name
/// service.
pub(super) fn connect(
    rank: usize,
    size: usize,
    host: &str,
    port: u16,
    timeout: Duration,
) -> Result<Frame, CommError> {
    let deadline = Instant::now() + timeout;
    loop {
        let mut why = "no answer".to_owned();
        let addresses = (host, port).to_socket_addrs().inspect_err(|error| why = error.to_string());
        for address in addresses.into_iter().flatten() {
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).and_then(Frame::new);
            match stream.and_then(|stream| greeted(stream, rank, size, deadline)) {
                Ok((Received::Data(answer), stream)) if answer == HELLO => return Ok(stream),
                Ok((Received::Notice(notice), _)) => return Err(decode(&notice, size)),
                Ok((Received::Nothing, _)) => {
                    return Err(CommError::Silent { ranks: vec![0], size, seconds: timeout.as_secs() });
                }
                Ok(_) => why = "something else is listening there".to_owned(),
                Err(error) => why = error.to_string(),
            }
        }
        if Instant::now() > deadline {
            return Err(CommError::Failed(format!(
                "rank {rank} cannot reach rank 0 at {host}:{port} (MASTER_ADDR, MASTER_PORT): {why}; tried for {} s",
                timeout.as_secs()
            )));
        }
        sleep(PAUSE);
    }
}

/// Sends this rank's number and waits for the answer, which comes when all ranks have arrived.
fn greeted(mut stream: Frame, rank: usize, size: usize, deadline: Instant) -> io::Result<(Received, Frame)> {
    let mut hello = HELLO.to_vec();
    hello.extend([rank as u32, size as u32].into_iter().flat_map(u32::to_le_bytes));
    stream.send(&hello);
    stream.flush(GREETING)?;
    Ok((stream.receive(deadline)?, stream))
}
