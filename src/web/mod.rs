//! HTTP/1.1 for one page that grows: as much of it as a browser needs, and limits for everyone else.
//!
//! One thread per connection and one request per connection, so a reader that is slow keeps waiting for itself only.
//! What a stream sends is asked for when its reader has taken the piece before, so nothing piles up for a reader that
//! does not read. The number of connections, the length of a request and the time that each step may take are limited,
//! and where all connections are taken, one without a request or a stream makes room for a new one. The module knows
//! nothing of runs: a [`Site`] has the contents.

mod access;
mod places;
mod request;

pub use access::Access;
pub use request::Request;

use places::{Place, Places};

use rand::RngCore;
use rand::rngs::OsRng;
use request::{Refusal, read_head};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connections at a time; a browser needs two for each page that is open.
pub const MOST_CONNECTIONS: usize = 64;
/// How long a stream is left alone before it may have to make room for another connection.
const LEFT_ALONE: Duration = Duration::from_secs(10);
/// How long a connection may be without a request before it may have to make room. A reader's comes with it.
const LONG_ENOUGH: Duration = Duration::from_millis(500);
/// How long a request may take to arrive, and a piece of an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of such a piece.
const PIECE: usize = 64 << 10;
/// Time between two signs of life on a stream without news, which notice readers that are gone.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// What is read and thrown away of a request that was refused, so that its sender gets the answer, and for how long.
const MOST_DRAINED: usize = 4 << 20;
const DRAINING: Duration = Duration::from_secs(1);
/// How long the listener waits after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// What is served.
pub trait Site: Send + Sync {
    /// The answer to a request that may be answered. `nonce` is a word for this answer alone, which its headers name:
    /// the browser runs only scripts that bear it.
    fn answer(&self, request: &Request, nonce: &str) -> Answer;

    /// A request was refused for this reason.
    fn refused(&self, why: &str);
}

/// The contents of an answer.
pub enum Answer {
    /// A page.
    Html(String),
    /// A JSON document.
    Json(String),
    /// Server-sent events.
    Events(Box<dyn Events>),
    /// There is nothing at this address.
    NotFound,
    /// Too many others wait for what is asked for.
    Busy,
}

/// A stream of events for one reader.
pub trait Events: Send {
    /// The next event, waiting for it as long as `patience`; `None` if there is none by then. The name has no line
    /// feeds, and neither has the text.
    fn next(&mut self, patience: Duration) -> Option<(&'static str, String)>;
}

/// Serves on a listener, on threads that live as long as the process.
///
/// # Errors
/// A thread that the system does not start.
pub fn serve(listener: TcpListener, access: Access, site: Arc<dyn Site>) -> io::Result<()> {
    let server = Arc::new(Server { access, site, places: Places::default() });
    thread::Builder::new().name("accept".to_owned()).spawn(move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => server.take(stream),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => thread::sleep(PAUSE),
            }
        }
    })?;
    Ok(())
}

/// A word of 128 random bits in hexadecimal digits.
#[must_use]
pub fn random_word() -> String {
    let mut bytes = [0; 16];
    OsRng.fill_bytes(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Server {
    access: Access,
    site: Arc<dyn Site>,
    places: Places,
}

impl Server {
    fn take(self: &Arc<Self>, stream: TcpStream) {
        let stream = Arc::new(stream);
        let Some(place) = self.places.take(&stream) else {
            // not worth waiting for: what does not fit into the system's buffer is lost
            let _ = stream
                .set_nonblocking(true)
                .and_then(|()| (&*stream).write_all(refused(Refusal::Busy).as_bytes()));
            return;
        };
        let server = self.clone();
        let spawned = thread::Builder::new().name("reader".to_owned()).spawn(move || {
            // a reader that is gone or too slow concerns no one else
            let _ = server.talk(&stream, &place);
        });
        // without a thread the connection is closed, which its other end sees
        drop(spawned);
    }

    fn talk(&self, stream: &TcpStream, place: &Place) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let request = match read_head(stream, Instant::now() + PATIENCE)? {
            Ok(request) => request,
            Err(refusal) => return refuse(stream, refusal),
        };
        let is_head = request.is_head;
        let request = match self.access.admit(request) {
            Ok(request) => request,
            Err((refusal, why)) => {
                why.iter().for_each(|why| self.site.refused(why));
                return refuse(stream, refusal);
            }
        };
        place.is_answered();
        let nonce = random_word();
        let (kind, body) = match self.site.answer(&request, &nonce) {
            Answer::Html(text) => ("text/html; charset=utf-8", text),
            Answer::Json(text) => ("application/json", text),
            Answer::NotFound => return refuse(stream, Refusal::NotFound),
            Answer::Busy => return refuse(stream, Refusal::Busy),
            Answer::Events(events) => {
                place.is_a_stream();
                return stream_events(stream, &nonce, events, is_head);
            }
        };
        let head = head("200 OK", kind, Some(body.len()), &nonce);
        write(stream, head.as_bytes())?;
        if !is_head {
            write(stream, body.as_bytes())?;
        }
        close(stream)
    }
}

/// Answers with a status and nothing else.
fn refuse(stream: &TcpStream, refusal: Refusal) -> io::Result<()> {
    write(stream, refused(refusal).as_bytes())?;
    close(stream)
}

/// An answer that is a status and nothing else.
fn refused(refusal: Refusal) -> String {
    let kind = match refusal {
        Refusal::Method => "text/plain\r\nAllow: GET, HEAD",
        Refusal::Busy => "text/plain\r\nRetry-After: 5",
        _ => "text/plain",
    };
    head(refusal.status(), kind, Some(0), &random_word())
}

/// The status and the headers of every answer. The page may load nothing, from nowhere, but what this server sends it;
/// no other page may read or frame it, and it tells no other where it is.
fn head(status: &str, kind: &str, length: Option<usize>, nonce: &str) -> String {
    let length = length.map_or_else(String::new, |length| format!("Content-Length: {length}\r\n"));
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}Connection: close\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'\r\n\
         X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\r\n"
    )
}

/// Sends events for as long as their reader takes them.
fn stream_events(
    stream: &TcpStream,
    nonce: &str,
    mut events: Box<dyn Events>,
    is_head: bool,
) -> io::Result<()> {
    write(stream, head("200 OK", "text/event-stream", None, nonce).as_bytes())?;
    if is_head {
        return close(stream);
    }
    write(stream, b"retry: 2000\n\n")?;
    loop {
        match events.next(HEARTBEAT) {
            Some((name, text)) => write(stream, format!("event: {name}\ndata: {text}\n\n").as_bytes())?,
            None => write(stream, b":\n\n")?,
        }
    }
}

/// Writes everything, piece by piece: a slow connection may take its time, one that stands still may not.
fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    for mut piece in bytes.chunks(PIECE) {
        let end = Instant::now() + PATIENCE;
        while !piece.is_empty() {
            stream.set_write_timeout(Some(left(end)?))?;
            match stream.write(piece) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => piece = &piece[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The time until then.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Ends a connection so that what was written arrives: one that is closed with something unread loses it.
fn close(mut stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let (end, mut drained, mut buffer) = (Instant::now() + DRAINING, 0, [0; 4096]);
    while drained < MOST_DRAINED {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut buffer)? {
            0 => break,
            read => drained += read,
        }
    }
    Ok(())
}
