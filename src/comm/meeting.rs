//! How processes that were started together find each other by TCP: the others connect to rank 0, and both ends prove
//! that they know the secret of these ranks ([`greeting`](super::greeting)).
//!
//! Anybody may connect, so nobody is waited for: rank 0 goes round all connections that have not proved anything yet,
//! each of which has a few seconds and the bytes of one greeting.

use super::frame::{Frame, is_wait};
use super::greeting::{CHALLENGE, Doubt, Greeting, HELLO, Heard, Introduction, MAGIC, Refusal, VERDICT};
use super::incoming::{Received, longest};
use super::notice::{decode, encode};
use super::secret::nonce;
use super::{CommError, Joining};
use crate::wording::count;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause between two rounds of rank 0.
const ROUND: Duration = Duration::from_millis(5);
/// The shortest and the longest pause between two attempts of another rank.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// How long a greeting may take as a whole.
const GREETING: Duration = Duration::from_secs(5);
/// How long an attempt to connect may take.
const CONNECTING: Duration = Duration::from_secs(2);
/// How much longer the others wait for rank 0 than it waits for all, so that its verdict arrives first.
const GRACE: Duration = Duration::from_secs(5);
/// Connections, besides one for each rank, that may be in a greeting at the same time.
const STRANGERS: usize = 64;
/// Warnings about strangers.
const WARNINGS: usize = 8;
/// After how long a rank says that what it has reached hangs up on it.
const PUZZLED: Duration = Duration::from_secs(2);

/// A connection that has not proved anything.
struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    greeting: Greeting,
    deadline: Instant,
}

/// What became of a connection in one round.
enum Came {
    Waiting,
    Gone,
    Refused(Refusal),
    In { rank: usize, size: usize },
}

impl Guest {
    fn new(stream: TcpStream, from: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let greeting = Greeting::new(nonce().map_err(io::Error::other)?);
        Ok(Self { stream, from, greeting, deadline: Instant::now() + GREETING })
    }

    /// Takes what has arrived and answers it, without waiting.
    fn attend(&mut self, joining: &Joining) -> Came {
        loop {
            if Instant::now() > self.deadline {
                return Came::Gone;
            }
            let mut buffer = [0; HELLO];
            // no byte of what follows the greeting
            let room = self.greeting.lacks().min(HELLO);
            let bytes = match self.stream.read(&mut buffer[..room]) {
                Ok(0) => return Came::Gone,
                Ok(count) => &buffer[..count],
                Err(error) if is_wait(&error) => return Came::Waiting,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Came::Gone,
            };
            let heard = self.greeting.hear(joining.secret, bytes);
            let (Heard::Answer(answer) | Heard::Proved { answer, .. } | Heard::Refused { answer, .. }) =
                &heard
            else {
                continue;
            };
            // so few bytes always fit: a connection that does not take them is not waited for
            let sent = self.stream.write_all(answer);
            match heard {
                Heard::Refused { why, .. } => return Came::Refused(why),
                _ if sent.is_err() => return Came::Gone,
                Heard::Proved { rank, size, .. } => return Came::In { rank, size },
                _ => {}
            }
        }
    }
}

/// Tells about strangers: about each kind once, and no more than a few times.
struct Warnings<'a> {
    joining: &'a Joining<'a>,
    said: BTreeSet<(IpAddr, Option<usize>)>,
}

impl Warnings<'_> {
    fn of(&mut self, guest: &Guest, why: Refusal) {
        let from = guest.from.ip();
        let (rank, text) = match why {
            // port scanners are nothing to worry about
            Refusal::Stranger => return,
            Refusal::Version => (
                None,
                format!(
                    "a rank at {from} speaks another version of this protocol and was turned away: all ranks must be \
                     the same build of runner"
                ),
            ),
            Refusal::Secret { rank, size } => (
                Some(rank),
                format!(
                    "a process at {from} that says it is rank {rank} of {size} does not know the secret of these ranks \
                     (here {}) and was turned away: if it is one of yours, give all ranks the same secret by \
                     RUNNER_SECRET_FILE or RUNNER_SECRET",
                    self.joining.secret.origin()
                ),
            ),
        };
        if self.said.len() < WARNINGS && self.said.insert((from, rank)) {
            (self.joining.warn)(&text);
        }
    }
}

/// Rank 0: waits for all other ranks and returns their connections, in the order of ranks.
pub(super) fn host(
    size: usize,
    listeners: &[TcpListener],
    joining: &Joining,
) -> Result<Vec<Frame>, CommError> {
    let failed = |error: io::Error| CommError::Failed(format!("rank 0 cannot wait for the others: {error}"));
    listeners.iter().try_for_each(|listener| listener.set_nonblocking(true)).map_err(failed)?;
    let deadline = Instant::now() + joining.timeout;
    let mut warnings = Warnings { joining, said: BTreeSet::new() };
    let mut guests: Vec<Guest> = Vec::new();
    let mut ranks: Vec<Option<Frame>> = (1..size).map(|_| None).collect();
    while ranks.iter().any(Option::is_none) {
        for listener in listeners {
            accept(listener, &mut guests, STRANGERS + size).map_err(failed)?;
        }
        let mut waiting = Vec::new();
        for mut guest in guests {
            match guest.attend(joining) {
                Came::Waiting => waiting.push(guest),
                Came::Gone => {}
                Came::Refused(why) => warnings.of(&guest, why),
                Came::In { rank, size: theirs } => {
                    let Ok(frame) = Frame::new(guest.stream, longest(size)) else { continue };
                    seat(frame, (rank, theirs), size, &mut ranks)?;
                }
            }
        }
        guests = waiting;
        // one whose process has ended meanwhile may be started again
        for place in &mut ranks {
            if place.as_mut().is_some_and(|there| there.look().is_err()) {
                *place = None;
            }
        }
        if Instant::now() > deadline {
            let missing = (1..size).filter(|rank| ranks[rank - 1].is_none()).collect();
            let error = CommError::Absent { ranks: missing, size, seconds: joining.timeout.as_secs() };
            tell(&mut ranks, &error);
            return Err(error);
        }
        sleep(ROUND);
    }
    let mut ranks: Vec<Frame> = ranks.into_iter().flatten().collect();
    for rank in &mut ranks {
        rank.send(MAGIC);
        // a rank that has gone meanwhile is missed by the first message
        let _ = rank.flush(GREETING);
    }
    Ok(ranks)
}

/// Takes the connections that have been made. Where there are too many, those that have said the least and have been
/// there the longest make room.
fn accept(listener: &TcpListener, guests: &mut Vec<Guest>, most: usize) -> io::Result<()> {
    // so that a flood of them does not keep those from going on that are there
    for _ in 0..most {
        match listener.accept() {
            Ok((stream, from)) => {
                // one that is over already is no loss
                let Ok(guest) = Guest::new(stream, from) else { continue };
                if guests.len() >= most {
                    let first = (0..guests.len())
                        .min_by_key(|&i| (guests[i].greeting.is_begun(), guests[i].deadline));
                    first.map(|first| guests.remove(first));
                }
                guests.push(guest);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if is_of_this_process(&error) => return Err(error),
            // what befell the connection before it was taken: accept(2) asks to try again
            Err(_) => {}
        }
    }
    Ok(())
}

/// Whether accepting fails for want of something that this process needs, and not by what the other end does.
fn is_of_this_process(error: &io::Error) -> bool {
    const ERRORS: [i32; 6] =
        [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EBADF, libc::EINVAL];
    error.raw_os_error().is_some_and(|code| ERRORS.contains(&code))
}

/// Gives a rank that belongs to these its place, or tells it why it has none.
fn seat(
    mut frame: Frame,
    (rank, theirs): (usize, usize),
    size: usize,
    ranks: &mut [Option<Frame>],
) -> Result<(), CommError> {
    if theirs != size {
        let error = CommError::Failed(format!(
            "rank {rank} was started as one of {}, but the rank 0 that it reached as one of {size}",
            count(theirs, "rank")
        ));
        frame.tell(&encode(&error));
        return Ok(());
    }
    let Some(place) = rank.checked_sub(1).and_then(|place| ranks.get_mut(place)) else {
        frame.tell(&encode(&CommError::Failed(format!(
            "rank 0 is here already: {rank} of {size} has no place"
        ))));
        return Ok(());
    };
    // one that has ended since may have been started again
    let is_there = place.as_mut().is_some_and(|there| there.look().is_ok());
    if !is_there {
        *place = Some(frame);
        return Ok(());
    }
    // the same rank twice: two launches use one port
    let error = CommError::Failed(format!(
        "two processes say that they are rank {rank} of {size}: is another run using the same MASTER_ADDR and \
         MASTER_PORT?"
    ));
    frame.tell(&encode(&error));
    tell(ranks, &error);
    Err(error)
}

fn tell(ranks: &mut [Option<Frame>], error: &CommError) {
    ranks.iter_mut().flatten().for_each(|rank| rank.tell(&encode(error)));
}

/// Every other rank: connects to rank 0, which may not listen yet, or may not yet be known to the name
/// service.
pub(super) fn connect(
    rank: usize,
    size: usize,
    (host, port): (&str, u16),
    joining: &Joining,
) -> Result<Frame, CommError> {
    let place = format!("{host}:{port} (MASTER_ADDR, MASTER_PORT)");
    let deadline = Instant::now() + joining.timeout;
    let mut pause = PAUSE[0];
    let mut hung_up: Option<Instant> = None;
    let mut has_warned = false;
    loop {
        let mut why = "no answer".to_owned();
        let addresses = (host, port).to_socket_addrs().inspect_err(|error| why = error.to_string());
        for address in addresses.into_iter().flatten() {
            let connected = TcpStream::connect_timeout(&address, CONNECTING);
            let greeted = connected.and_then(|stream| greeted(stream, rank, size, joining));
            match greeted {
                Ok(Ok(frame)) => return gathered(frame, size, deadline + GRACE, joining.timeout),
                Ok(Err(Doubt::Stranger)) => why = "something else is listening there".to_owned(),
                Ok(Err(doubt)) => return Err(doubted(doubt, rank, &place, joining)),
                Err(error) => {
                    if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) {
                        let since = *hung_up.get_or_insert_with(Instant::now);
                        if since.elapsed() > PUZZLED && !std::mem::replace(&mut has_warned, true) {
                            (joining.warn)(&format!(
                                "rank {rank} reaches {place}, but what listens there hangs up: another program, or \
                                 rank 0 of an older version of runner; still trying"
                            ));
                        }
                    }
                    why = error.to_string();
                }
            }
        }
        if Instant::now() > deadline {
            return Err(CommError::Failed(format!(
                "rank {rank} cannot reach rank 0 at {place}: {why}; tried for {} s (RUNNER_JOIN_TIMEOUT_S)",
                joining.timeout.as_secs()
            )));
        }
        sleep(pause);
        pause = (pause * 5 / 4).min(PAUSE[1]);
    }
}

/// Why a rank does not go on with what listens at `place`.
fn doubted(doubt: Doubt, rank: usize, place: &str, joining: &Joining) -> CommError {
    let own = joining.secret.origin();
    CommError::Failed(match doubt {
        Doubt::TurnedAway => format!(
            "rank 0 at {place} has turned rank {rank} away, because the two do not have the same secret (that of rank \
             {rank} is {own}): give all ranks the same one by RUNNER_SECRET_FILE or RUNNER_SECRET; if another run is \
             listening there, choose another MASTER_PORT"
        ),
        Doubt::Unproved => format!(
            "what listens at {place} says that it is rank 0, but does not know the secret (that of rank {rank} is \
             {own}): rank {rank} has sent it nothing but its own proof; choose another MASTER_PORT, and give all ranks \
             the same secret by RUNNER_SECRET_FILE or RUNNER_SECRET"
        ),
        Doubt::Version | Doubt::Stranger => format!(
            "rank 0 at {place} speaks another version of this protocol than rank {rank}: all ranks must be the same \
             build of runner"
        ),
    })
}

/// The greeting, from the side of the rank that has connected.
fn greeted(
    mut stream: TcpStream,
    rank: usize,
    size: usize,
    joining: &Joining,
) -> io::Result<Result<Frame, Doubt>> {
    let deadline = Instant::now() + GREETING;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING))?;
    let mut introduction = Introduction::new(rank, size, nonce().map_err(io::Error::other)?);
    stream.write_all(&introduction.hello())?;
    let challenge: [u8; CHALLENGE] = exactly(&mut stream, deadline)?;
    let proof = match introduction.answer(joining.secret, &challenge) {
        Ok(proof) => proof,
        Err(doubt) => return Ok(Err(doubt)),
    };
    stream.write_all(&proof)?;
    let verdict: [u8; VERDICT] = exactly(&mut stream, deadline)?;
    match introduction.accept(joining.secret, &verdict) {
        Ok(()) => Frame::new(stream, longest(size)).map(Ok),
        Err(doubt) => Ok(Err(doubt)),
    }
}

/// So many bytes, if all arrive before the deadline.
fn exactly<const COUNT: usize>(stream: &mut TcpStream, deadline: Instant) -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let mut have = 0;
    while have < COUNT {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "what listens there does not answer"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "what listens there hangs up")),
            Ok(count) => have += count,
            Err(error) if is_wait(&error) || error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Waits until all ranks are there, which rank 0 says.
fn gathered(mut frame: Frame, size: usize, deadline: Instant, waited: Duration) -> Result<Frame, CommError> {
    let lost = |why: String| CommError::Lost { rank: 0, size, why };
    match frame.receive(deadline) {
        Ok(Received::Data(all)) if all == MAGIC => Ok(frame),
        Ok(Received::Notice(notice)) => Err(decode(&notice, size)),
        Ok(Received::Nothing) => Err(CommError::Absent { ranks: vec![0], size, seconds: waited.as_secs() }),
        Ok(_) => Err(lost("it does not say that all ranks are there".to_owned())),
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => Err(
            lost("its process ended, or the connection to it broke, before all ranks were there".to_owned()),
        ),
        Err(error) => Err(lost(format!("the connection to it failed: {error}"))),
    }
}
