//! `--serve`: the runs as a page that grows, in a browser.
//!
//! Everything is looked at by one thread, and only while a page is open; each reader takes from what is known.

use super::super::exit::Exit;
use super::super::terminal::say;
use super::super::{axis, signals};
use crate::cli::WatchArgs;
use crate::regular;
use crate::report::live::{self, Live, PACE, Reader, View};
use crate::run::find;
use crate::session::{Ending, UsageError};
use crate::web::{self, Access, Answer, Events, Request, Site};
use crate::wording::count;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Keys that a request may name.
const MOST_KEYS: usize = 1000;
/// Readers who wait for a comparison at a time: most connections are left for the page and its events.
const MOST_WAITING: usize = 16;

/// What all readers share.
struct Shared {
    live: Mutex<Live>,
    changed: Condvar,
    /// Pages that are open.
    readers: AtomicUsize,
    /// A word for this server: a page of another one must be loaded anew.
    instance: String,
    has_complained: AtomicBool,
    /// Held while logs are read for a comparison: one at a time, however many are asked for.
    comparing: Mutex<()>,
    /// Readers who wait for one, or have it made.
    waiting: AtomicUsize,
}

/// Serves the runs until a signal comes.
pub(super) fn run(args: &WatchArgs, address: &str) -> anyhow::Result<Exit> {
    let address = resolved(address)?;
    // what a run is exchanged for while it is served may lead to what readers of the page must not see
    regular::confine();
    let paths = match args.runs.is_empty() {
        true => find::list(&args.dir.runs_dir)?,
        false => find::all(&args.dir.runs_dir, &args.runs, |_| {})?,
    };
    let quantity = super::super::plotted(&args.y, &paths)?;
    let title = format!("Runs of {}", args.dir.runs_dir.display());
    let view = View { axis: axis(args.x), quantity, title };
    let mut live = Live::new(&args.dir.runs_dir, &args.runs, view)?;
    let listener = TcpListener::bind(address).map_err(|error| {
        UsageError(format!("`{address}` cannot be listened on: {error}; name another address or port"))
    })?;
    let bound = listener.local_addr()?;
    let requests = signals::install()?;
    let _held = requests.hold();
    live.look(Instant::now());
    let runs = count(live.count(), "run");
    let shared = Arc::new(Shared {
        live: Mutex::new(live),
        changed: Condvar::new(),
        readers: AtomicUsize::new(0),
        instance: web::random_word(),
        has_complained: AtomicBool::new(false),
        comparing: Mutex::new(()),
        waiting: AtomicUsize::new(0),
    });
    let (access, path) = match bound.ip().is_loopback() {
        true => (Access::of_loopback(), String::new()),
        false => {
            let token = web::random_word();
            (Access::by_token(token.clone()), format!("{token}/"))
        }
    };
    web::serve(listener, access, Arc::new(Page(shared.clone())))?;
    super::super::print(&format!("http://{}/{path}\n", reachable(bound)))?;
    say(&format!("serving {runs} of `{}` until Ctrl-C{}", args.dir.runs_dir.display(), way_in(bound)));
    loop {
        if shared.readers.load(Ordering::SeqCst) > 0 && shared.live().look(Instant::now()) {
            shared.changed.notify_all();
        }
        if let Some(signal) = signals::wait(&requests, PACE, || Ok(()))? {
            return Ok(Ending::from(signal).into());
        }
    }
}

/// The address to listen on: an address or a name, a port, or both.
fn resolved(text: &str) -> Result<SocketAddr, UsageError> {
    let home = IpAddr::from(Ipv4Addr::LOCALHOST);
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    // to the system, a large number would be an address
    if is_number && port.parse::<u16>().is_err() && text.parse::<IpAddr>().is_err() {
        return Err(UsageError(format!(
            "--serve {text}: there is no port {port}; ports are 0 (any) to 65535"
        )));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let literal = bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0));
    let of_port = || text.trim_start_matches(':').parse().map(|port| SocketAddr::new(home, port));
    let named = || match text.contains(':') {
        true => text.to_socket_addrs().ok()?.next(),
        false => (text, 0).to_socket_addrs().ok()?.next(),
    };
    literal.or_else(|_| of_port()).ok().or_else(named).ok_or_else(|| {
        let example = "127.0.0.1:8080, a port, or 0.0.0.0:8080 for other machines";
        UsageError(format!(
            "--serve: `{text}` is no address; name one such as {example}, and runs before --serve"
        ))
    })
}

/// An address that a browser can go to, where the listener has all of the machine's.
fn reachable(bound: SocketAddr) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    // nothing is sent: the system says which of its addresses a packet would leave from
    let outwards = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        socket.local_addr().map(|address| address.ip())
    };
    let ip = match bound.ip() {
        IpAddr::V4(_) => outwards("0.0.0.0:0", "192.0.2.1:9").unwrap_or(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => {
            outwards("[::]:0", "[2001:db8::1]:9").unwrap_or(std::net::Ipv6Addr::LOCALHOST.into())
        }
    };
    SocketAddr::new(ip, bound.port())
}

/// How to open the page from elsewhere.
fn way_in(bound: SocketAddr) -> String {
    let port = bound.port();
    match bound.ip().is_loopback() {
        true => format!(
            "; from another machine: `ssh -N -L {port}:{bound} HOST` there, with this machine's name for HOST, then \
             the same address"
        ),
        false => {
            "; anyone with the address can read the runs, and the connection is not encrypted".to_owned()
        }
    }
}

impl Shared {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is at which address.
struct Page(Arc<Shared>);

impl Site for Page {
    fn answer(&self, request: &Request, nonce: &str) -> Answer {
        let shared = &self.0;
        match request.path.as_str() {
            "/" => Answer::Html(shared.live().page(nonce)),
            "/events" => Answer::Events(Box::new(Stream::new(shared.clone()))),
            "/compare" => {
                let chosen = || {
                    let chosen: Vec<_> = shared.live().paths(&keys(request));
                    chosen.into_iter().map(|(_, path)| path).collect::<Vec<_>>()
                };
                if chosen().is_empty() {
                    return Answer::NotFound;
                }
                let Some(_waiting) = Waiting::begin(&shared.waiting) else { return Answer::Busy };
                let _one = shared.comparing.lock().unwrap_or_else(PoisonError::into_inner);
                // some may have gone meanwhile
                let paths = chosen();
                if paths.is_empty() {
                    return Answer::NotFound;
                }
                let quantities = shared.live().quantities();
                let results = live::results(&paths, &quantities).unwrap_or_else(|error| {
                    json!({
                        "shared": crate::wording::tame(&error.to_string()), "tables": [], "notes": [],
                        "sentences": [], "remarks": [], "recipes": [], "plan": [],
                    })
                });
                Answer::Json(results.to_string())
            }
            "/samples" => {
                let chosen = shared.live().paths(&keys(request));
                Answer::Json(live::samples(&chosen).to_string())
            }
            _ => Answer::NotFound,
        }
    }

    fn refused(&self, why: &str) {
        // a stranger must not fill the terminal
        if !self.0.has_complained.swap(true, Ordering::SeqCst) {
            say(why);
        }
    }
}

/// A reader who waits for a comparison, or has it made.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    /// One more; `None` where there are enough.
    fn begin(all: &'a AtomicUsize) -> Option<Self> {
        let waiting = Self(all);
        (all.fetch_add(1, Ordering::SeqCst) < MOST_WAITING).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The keys of `runs=1,2,3`.
fn keys(request: &Request) -> Vec<u64> {
    let names = request.query.split('&').find_map(|part| part.strip_prefix("runs=")).unwrap_or_default();
    names.split(',').filter_map(|key| key.parse().ok()).take(MOST_KEYS).collect()
}

/// The news for one reader.
struct Stream {
    shared: Arc<Shared>,
    reader: Reader,
    has_begun: bool,
}

impl Stream {
    fn new(shared: Arc<Shared>) -> Self {
        shared.readers.fetch_add(1, Ordering::SeqCst);
        Self { shared, reader: Reader::default(), has_begun: false }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Events for Stream {
    fn next(&mut self, patience: Duration) -> Option<(&'static str, String)> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(("start", json!({"instance": self.shared.instance}).to_string()));
        }
        let end = Instant::now() + patience;
        let mut live = self.shared.live();
        loop {
            if let Some(news) = live.news(&mut self.reader) {
                drop(live);
                return Some((news.name, Value::to_string(&news.data)));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(live, left);
            live = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_wait_and_no_more_until_one_is_done() {
        let all = AtomicUsize::new(0);
        let mut waiting: Vec<Waiting> = (0..MOST_WAITING).filter_map(|_| Waiting::begin(&all)).collect();
        assert_eq!(waiting.len(), MOST_WAITING);
        assert!((0..3).all(|_| Waiting::begin(&all).is_none()));
        drop(waiting.pop());
        assert!(Waiting::begin(&all).is_some());
        drop(waiting);
        assert_eq!(all.load(Ordering::SeqCst), 0);
    }
}
