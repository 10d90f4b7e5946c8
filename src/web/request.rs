//! Reading the head of a request, in bounded time and space.

use super::left;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::time::Instant;

/// Bytes of a head. Browsers send the cookies of all programs on a machine, whatever their port.
const MOST_HEAD: usize = 16 << 10;
/// Headers of a request.
const MOST_HEADERS: usize = 100;

/// A request, as far as it matters. A body is not read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The method is neither GET nor HEAD.
    pub(super) is_other: bool,
    /// Only the headers are asked for.
    pub(super) is_head: bool,
    /// The path behind the token, with the slash that it begins with.
    pub path: String,
    /// What comes behind the question mark; empty without one.
    pub query: String,
    /// The header `Host`; `None` if there is none or several.
    pub(super) host: Option<String>,
    /// The headers by which a browser says which page asks, and what for.
    pub(super) fetch_site: Option<String>,
    pub(super) fetch_mode: Option<String>,
    /// The header `Origin`, by which older browsers say it; empty if there are several.
    pub(super) origin: Option<String>,
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed,
    Forbidden,
    NotFound,
    Method,
    TooLong,
    Busy,
}

impl Refusal {
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::Method => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Busy => "503 Service Unavailable",
        }
    }
}

/// Reads up to the end of a request's head.
///
/// Errors: a connection that fails, ends, or is too slow.
pub(super) fn read_head(mut stream: &TcpStream, end: Instant) -> io::Result<Result<Request, Refusal>> {
    let mut bytes = Vec::with_capacity(1024);
    let mut buffer = [0; 2048];
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        let read = match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&buffer[..read]);
        match parse(&bytes) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Ok(None) if bytes.len() >= MOST_HEAD => return Ok(Err(Refusal::TooLong)),
            Ok(None) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// The request whose head begins the bytes; `None` if there is more to come.
fn parse(bytes: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) => return Ok(None),
        Ok(httparse::Status::Complete(length)) if length > MOST_HEAD => return Err(Refusal::TooLong),
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLong),
        Err(_) => return Err(Refusal::Malformed),
    }
    let method = parsed.method.unwrap_or_default();
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let header = |name: &str| {
        let mut found = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let value = std::str::from_utf8(found.next()?.value).ok()?;
        // a request with two of a kind means to confuse
        if found.next().is_some() { None } else { Some(value.trim().to_owned()) }
    };
    let is_there = |name: &str| parsed.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    Ok(Some(Request {
        is_other: !matches!(method, "GET" | "HEAD"),
        is_head: method == "HEAD",
        path: path.to_owned(),
        query: query.to_owned(),
        host: header("host"),
        fetch_site: header("sec-fetch-site"),
        fetch_mode: header("sec-fetch-mode"),
        origin: is_there("origin").then(|| header("origin").unwrap_or_default()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_whole_or_refused() {
        let text = "GET /a/b?c=d HTTP/1.1\r\nHost: localhost:1\r\nSec-Fetch-Site: none\r\n\r\n";
        let request = parse(text.as_bytes()).expect("fine").expect("whole");
        assert_eq!((request.path.as_str(), request.query.as_str()), ("/a/b", "c=d"));
        assert_eq!(request.host.as_deref(), Some("localhost:1"));
        assert!(!request.is_other && !request.is_head && request.fetch_mode.is_none());
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), Ok(None), "{end}");
        }
        let of = |text: &str| parse(text.as_bytes());
        assert_eq!(of("\u{1}\r\n\r\n"), Err(Refusal::Malformed));
        assert_eq!(of("GET / HTTP/9.9\r\n\r\n"), Err(Refusal::Malformed));
        assert_eq!(of(&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101))), Err(Refusal::TooLong));
        let twice = of("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n").expect("fine").expect("whole");
        assert_eq!((twice.host, twice.origin), (None, None));
        let origins = of("GET / HTTP/1.1\r\nOrigin: a\r\norigin: b\r\n\r\n").expect("fine").expect("whole");
        assert_eq!(origins.origin.as_deref(), Some(""));
        assert!(of("POST / HTTP/1.1\r\n\r\n").expect("fine").expect("whole").is_other);
    }
}
