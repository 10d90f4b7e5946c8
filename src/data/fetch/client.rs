//! Requests over HTTP, and what their failures mean.

use super::patient::{Broken, Patient, start};
use super::version::Version;
use super::{FetchError, Settings};
use crate::{json, regular};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::WithoutBody;
use ureq::{Body, Error, Proxy, ProxyProtocol, RequestBuilder, Timeout};

/// A server may send a request on this often.
const REDIRECTS: u32 = 10;
/// A list of files that is longer is none.
const LONGEST_LIST: u64 = 64 << 20;
/// A list of files, and an answer that does not begin, is given up after this many times the patience with a connection
/// that sends nothing.
const LIST_PATIENCE: u32 = 10;
/// How long the end of a file is waited for of which all bytes have come.
const AT_END: Duration = Duration::from_secs(1);
/// Threads that read on by themselves at once before servers are given up that leave no end to what they send.
const MOST_LEFT: usize = 128;

/// A client of the hub and of other servers.
pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: String,
    token: Option<String>,
    /// How long a connection may send nothing.
    timeout: Duration,
    /// Threads that were left to themselves, and may have ended since.
    left: Mutex<Vec<Weak<()>>>,
}

/// What a request has come to.
pub(super) enum Fault {
    /// Trying again makes no sense.
    Final(FetchError),
    /// It may go better the next time.
    Passing {
        /// What went wrong.
        why: String,
        /// How long the server asks to wait.
        wait: Option<Duration>,
        /// Whether no server was reached at all.
        is_offline: bool,
    },
}

impl Fault {
    pub(super) fn passing(why: impl Into<String>) -> Self {
        Self::Passing { why: why.into(), wait: None, is_offline: false }
    }
}

/// The beginning of an answer with a part of a file.
pub(super) struct Answer {
    /// The byte of the file with which the body begins.
    pub(super) start: u64,
    /// The size of the whole file, where the server says it.
    pub(super) total: Option<u64>,
    /// Whether the body is a web page.
    pub(super) is_page: bool,
    /// Which version of the file this is, as far as the server says it.
    pub(super) version: Version,
    pub(super) body: Patient,
}

impl Client {
    pub(super) fn new(settings: &Settings, timeout: Duration) -> Result<Self, FetchError> {
        if has_password(&settings.endpoint) {
            let instead = "set HF_TOKEN to a token instead".to_owned();
            return Err(FetchError::Password { what: "HF_ENDPOINT", instead });
        }
        let is_graphic = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
        if !settings.token.as_ref().is_none_or(is_graphic) {
            return Err(FetchError::Token);
        }
        check_proxy()?;
        let roots = match &settings.certificates {
            Some(path) => certificates(path)?,
            None => RootCerts::WebPki,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(REDIRECTS)
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .user_agent(concat!("runner/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        let (endpoint, token) = (settings.endpoint.clone(), settings.token.clone());
        Ok(Self { agent: config.build().into(), endpoint, token, timeout, left: Mutex::default() })
    }

    /// Sends a request. The token goes to the hub only, and not along where the hub sends the request on. One that is
    /// encrypted is not sent on to where it is not.
    fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Response<Body>, Fault> {
        let is_encrypted = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        let mut request = self.agent.get(url).config().https_only(is_encrypted).build();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let is_hub = url.strip_prefix(&self.endpoint).is_some_and(|rest| rest.starts_with('/'));
        if let Some(token) = self.token.as_deref().filter(|_| is_hub) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = self.answer(url, request)?;
        match response.status().as_u16() {
            200 | 206 | 416 => Ok(response),
            status @ (408 | 425 | 429 | 500..=599) => Err(Fault::Passing {
                why: format!("the server answers with status {status}"),
                wait: number(response.headers(), "retry-after").map(Duration::from_secs),
                is_offline: false,
            }),
            status => {
                let help = match status {
                    401 | 403 => {
                        "the data are not public, or have terms to be accepted on their page: set HF_TOKEN to a \
                                  token of the hub that may read them"
                    }
                    404 => "there is nothing at this address: check the name and the revision",
                    _ => "check the address",
                };
                Err(Fault::Final(FetchError::Status { url: url.to_owned(), status, help }))
            }
        }
    }

    /// The beginning of what a server answers. It is given up after a while: what a server sends with a redirect is
    /// read to its end, which need not come.
    fn answer(&self, url: &str, request: RequestBuilder<WithoutBody>) -> Result<Response<Body>, Fault> {
        let (sender, answer) = sync_channel(1);
        let thread = start("request", move || drop(sender.send(request.call()))).map_err(no_thread)?;
        match answer.recv_timeout(self.patience()) {
            Ok(answer) => answer.map_err(|error| fault(url, error)),
            Err(_) => Err(self.leave(url, &Broken::Silent(self.patience()), thread)),
        }
    }

    /// What it means that a thread is left to itself, which may read from a server without an end.
    fn leave(&self, url: &str, broken: &Broken, thread: Weak<()>) -> Fault {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|thread| thread.strong_count() > 0);
        left.push(thread);
        match left.len() < MOST_LEFT {
            true => Fault::passing(broken.to_string()),
            false => Fault::Final(FetchError::Endless { url: url.to_owned(), connections: left.len() }),
        }
    }

    /// The next bytes of a file at `url`; none at its end. One of which all bytes have come has ended, whatever comes
    /// behind it, unless that goes on behind too many.
    pub(super) fn next_bytes(&self, url: &str, body: &Patient, is_whole: bool) -> Result<Vec<u8>, Fault> {
        // a little longer than a connection may send nothing, which has an error of its own
        let patience = if is_whole { AT_END } else { self.timeout + AT_END };
        match body.next(patience) {
            Ok(piece) => Ok(piece),
            Err(broken @ Broken::Silent(_)) => match self.leave(url, &broken, body.thread()) {
                Fault::Passing { .. } if is_whole => Ok(Vec::new()),
                fault => Err(fault),
            },
            Err(broken) => Err(Fault::passing(broken.to_string())),
        }
    }

    /// The file at `url`, from byte `from` on if the server can do that and the file is still of this `version`, else
    /// from its beginning (If-Range, RFC 9110, section 13.1.5). `None` if the file has no such byte.
    pub(super) fn file(&self, url: &str, from: u64, version: &Version) -> Result<Option<Answer>, Fault> {
        let range = format!("bytes={from}-");
        let mut headers = Vec::new();
        if from > 0 {
            headers.push(("Range", range.as_str()));
            headers.extend(version.condition().map(|version| ("If-Range", version)));
        }
        let response = self.get(url, &headers)?;
        let status = response.status().as_u16();
        let headers = response.headers();
        let is_page = text(headers, "content-type").is_some_and(|kind| kind.starts_with("text/html"));
        let version = Version::of(headers);
        let (start, total) = match status {
            200 => (0, number(headers, "content-length")),
            206 => {
                // bytes 100-199/200, or /* for an unknown size
                let said = text(headers, "content-range").and_then(|range| range.strip_prefix("bytes "));
                let place = said.and_then(|range| {
                    let (first, total) = (range.split_once('-')?.0, range.split_once('/')?.1);
                    Some((first.trim().parse().ok()?, total.trim().parse().ok()))
                });
                place.ok_or_else(|| {
                    Fault::passing("the server does not say which part of the file it sends")
                })?
            }
            _ => return Ok(None),
        };
        Ok(Some(Answer { start, total, is_page, version, body: body(response, u64::MAX)? }))
    }

    /// How long all pages of a list may take, without the waits for a server that asks for time.
    pub(super) fn patience(&self) -> Duration {
        self.timeout * LIST_PATIENCE
    }

    /// A page of a list of files in JSON, and the address at which it goes on. The list must be whole at `end`: a
    /// server that sends now and then a byte, or pages without end, could hold up the command for years.
    pub(super) fn list(&self, url: &str, end: Instant) -> Result<(serde_json::Value, Option<String>), Fault> {
        let response = self.get(url, &[("Accept", "application/json")])?;
        let next = text(response.headers(), "link").and_then(next_page).map(str::to_owned);
        let bytes = self.read_list(url, end, &body(response, LONGEST_LIST)?)?;
        // a page of the hub has a thousand files, of ten values each
        let parsed = json::value(&bytes);
        let why = |error: serde_json::Error| match super::super::appearance::looks_like(&bytes) {
            Some(what) if !error.is_data() => format!("it is {what}"),
            _ => error.to_string(),
        };
        let wrong = |error| Fault::Final(FetchError::Listing { url: url.to_owned(), why: why(error) });
        Ok((parsed.map_err(wrong)?, next))
    }

    /// Reads a page.
    fn read_list(&self, url: &str, end: Instant, body: &Patient) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match body.next(left) {
                Ok(piece) if piece.is_empty() => return Ok(bytes),
                Ok(piece) if !left.is_zero() => bytes.extend(piece),
                Err(broken @ Broken::Failed(_)) => return Err(Fault::passing(broken.to_string())),
                Ok(_) | Err(Broken::Silent(_)) => {
                    let patience = self.patience().as_secs();
                    let why = format!("it was not whole after {patience} s; --timeout waits longer");
                    return Err(Fault::Final(FetchError::Listing { url: url.to_owned(), why }));
                }
            }
        }
    }
}

/// The body of an answer, of at most so many bytes.
fn body(response: Response<Body>, limit: u64) -> Result<Patient, Fault> {
    let reader = response.into_body().into_with_config().limit(limit).reader();
    Patient::new(reader).map_err(no_thread)
}

fn no_thread(error: io::Error) -> Fault {
    Fault::passing(format!("no thread could be started: {error}"))
}

/// Whether an address names a user at its server, who mostly has a password.
pub(super) fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|authority| authority.contains('@'))
}

/// The address of the next page in a `Link` header, as in `<https://…>; rel="next"` (RFC 8288).
fn next_page(link: &str) -> Option<&str> {
    let links = link.split(", <").map(|link| link.trim_start_matches('<'));
    let mut pairs = links.filter_map(|link| link.split_once('>'));
    pairs.find(|(_, rest)| rest.contains("rel=\"next\"")).map(|(url, _)| url)
}

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// What a failure without an answer means.
fn fault(url: &str, error: Error) -> Fault {
    let why = error.to_string();
    match error {
        Error::RequireHttpsOnly(to) => Fault::Final(FetchError::Downgrade { url: url.to_owned(), to }),
        Error::Rustls(_) | Error::Tls(_) => {
            Fault::Final(FetchError::Certificate { url: url.to_owned(), why })
        }
        // rustls's errors within a handshake come as errors of reading
        Error::Io(error)
            if error.get_ref().is_some_and(|inner| inner.to_string().contains("certificate")) =>
        {
            Fault::Final(FetchError::Certificate { url: url.to_owned(), why })
        }
        Error::BadUri(_) | Error::Http(_) | Error::InvalidProxyUrl => {
            Fault::Final(FetchError::Status { url: url.to_owned(), status: 400, help: "this is no address" })
        }
        Error::HostNotFound
        | Error::ConnectionFailed
        | Error::ConnectProxyFailed(_)
        | Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
            Fault::Passing { why, wait: None, is_offline: true }
        }
        Error::Io(error) if is_unreachable(&error) => Fault::Passing { why, wait: None, is_offline: true },
        _ => Fault::passing(why),
    }
}

/// Whether no server was reached at all.
fn is_unreachable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable)
        // what the standard library says of a name without an address has no kind of its own
        || error.to_string().contains("lookup address")
}

/// Checks that the proxy of the environment can be used: the library looks for one in these variables, in this order,
/// and asks servers directly where it does not understand what it finds.
fn check_proxy() -> Result<(), FetchError> {
    const VARIABLES: [&str; 6] =
        ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
    let is_set = |value: &OsString| !value.to_string_lossy().trim().is_empty();
    let set = |name| Some((name, std::env::var_os(name).filter(is_set)?));
    let Some((variable, value)) = VARIABLES.into_iter().find_map(set) else { return Ok(()) };
    match value.to_str().and_then(|value| Proxy::new(value).ok()) {
        Some(proxy) if proxy.protocol() == ProxyProtocol::Http && has_sound_port(&proxy) => Ok(()),
        // the value may hold a password, which no message shows
        _ => Err(FetchError::Proxy { variable }),
    }
}

/// Whether a proxy's address has no port, or one that there is: another would be taken for the usual one.
fn has_sound_port(proxy: &Proxy) -> bool {
    let Some(authority) = proxy.uri().authority() else { return false };
    let place = authority.as_str().rsplit('@').next().unwrap_or_default();
    place == authority.host() || authority.port_u16().is_some_and(|port| port > 0)
}

/// The certificates in a file.
fn certificates(path: &Path) -> Result<RootCerts, FetchError> {
    let wrong = |why: String| FetchError::Certificates { path: path.into(), why };
    let pem = regular::read_within(path, regular::DOCUMENT)
        .map_err(|error| wrong(format!("could not be read: {error}")))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| wrong(format!("is damaged: {error}")))?
        {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(wrong("has no certificate in PEM".into()));
    }
    Ok(RootCerts::new_with_certs(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_server_sends_on_to_what_is_not_encrypted_is_said() {
        let Fault::Final(error) = fault("https://hub/x", Error::RequireHttpsOnly("http://other/x".into()))
        else {
            panic!("another try is no use");
        };
        assert!(error.is_usage());
        assert!(error.to_string().contains("`https://hub/x` sends the request on to `http://other/x`"));
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        let one = "<https://hub/api/x?cursor=a>; rel=\"next\"";
        assert_eq!(next_page(one), Some("https://hub/api/x?cursor=a"));
        let two = "<https://hub/first>; rel=\"first\", <https://hub/b>; rel=\"next\"";
        assert_eq!(next_page(two), Some("https://hub/b"));
        assert_eq!(next_page("<https://hub/first>; rel=\"first\""), None);
        assert_eq!(next_page("next"), None);
    }
}
