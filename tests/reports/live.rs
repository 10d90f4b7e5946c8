//! `runner watch --serve`: what a browser gets while runs train, and what strangers do not.

use crate::browser;
use crate::report_support;
use crate::support;

use browser::Page;
use report_support::{Fake, many};
use runner::regular::OpenDir;
use runner::run::lock::Lock;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use support::{Lab, Live, everything, wait};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server of the runs of a lab, and where it is.
struct Server {
    live: Live,
    /// Host and port.
    at: String,
    /// The path of the page, with slashes at both ends.
    path: String,
}

/// An answer.
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Server {
    fn start(lab: &Lab, args: &[&str]) -> Self {
        let mut live = lab.start([&["watch"][..], args].concat());
        let line = live.line();
        let rest = line.strip_prefix("http://").unwrap_or_else(|| panic!("no address: {line:?}"));
        let (at, path) = rest.split_once('/').expect("a path");
        Self { at: at.to_owned(), path: format!("/{path}"), live }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    /// Whether a request is answered with the page.
    fn has_room(&self) -> bool {
        let mut stream = self.connect();
        let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut answer = [0; 12];
        asked.is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"HTTP/1.1 200"
    }

    /// Sends bytes and reads all that comes back.
    fn send(&self, request: &str) -> Reply {
        let mut stream = self.connect();
        // a server that has refused may have closed before it has everything
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}: {request:?}"),
            _ => {}
        }
        let text = String::from_utf8(bytes).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Reply { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Asks for what is at a path below the page's.
    fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {}{path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.at))
    }

    fn events(&self) -> Events {
        let mut stream = self.connect();
        let request = format!("GET {}events HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.at);
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut events = Events(BufReader::new(stream));
        let head = events.block();
        assert!(
            head[0].contains(" 200 ") && head.iter().any(|line| line.contains("text/event-stream")),
            "{head:?}"
        );
        events
    }

    /// The keys by which the script knows the runs, by id.
    fn keys(&self) -> Vec<(String, u64)> {
        let runs = self.events().next("runs");
        let run = |run: &Value| {
            (run["id"].as_str().expect("an id").to_owned(), run["key"].as_u64().expect("a key"))
        };
        runs["runs"].as_array().expect("runs").iter().map(run).collect()
    }

    /// Ends it with a signal; its exit code.
    fn end(mut self, signal: &str) -> Option<i32> {
        self.live.signal(signal);
        let ended = self.live.end();
        assert_eq!(ended.stdout, "", "the address is all");
        ended.code
    }
}

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    /// The lines up to an empty one.
    fn block(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("an event in time");
            assert!(!line.is_empty(), "the stream has ended after {lines:?}");
            match line.trim_end() {
                "" if lines.is_empty() => {}
                "" => return lines,
                line => lines.push(line.to_owned()),
            }
        }
    }

    /// The data of the next event of this name.
    fn next(&mut self, name: &str) -> Value {
        loop {
            let lines = self.block();
            if lines[0] == format!("event: {name}") {
                let data = lines[1].strip_prefix("data: ").expect("data");
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }

    /// The next news of a run for which something holds.
    fn until(&mut self, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let news = self.next("run");
            if holds(&news) {
                return news;
            }
        }
    }
}

fn append(file: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(file).expect("a log");
    file.write_all(text.as_bytes()).expect("written");
}

/// A row of `train.csv` for a step.
pub(crate) fn row(step: u64, loss: f64) -> String {
    format!("{step},{},{loss},1e-3,1.5,0.1,1,0,256,1000,0.25,1048576,{}\n", (step + 1) * 256, step + 1)
}

/// A run that a process seems to train, which is this one.
pub(crate) fn training(lab: &Lab, id: &str) -> (std::path::PathBuf, Lock) {
    let run = Fake { status: "running", ..Fake::new(id, 1, 1e-3, 3.0) }.write(&lab.path("runs"));
    let lock = Lock::acquire(&OpenDir::open(&run).expect("open")).expect("free");
    (run, lock)
}

#[test]
fn the_address_is_on_stdout_and_the_page_may_load_nothing() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let server = Server::start(&lab, &["--serve"]);
    assert!(server.at.starts_with("127.0.0.1:") && server.path == "/", "{}{}", server.at, server.path);
    let page = server.get("");
    assert_eq!(page.status, 200);
    let nonce =
        page.body.split("<script nonce=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a nonce");
    for header in [
        "Content-Security-Policy: default-src 'none';",
        &format!("script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'"),
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
        "Cache-Control: no-store",
    ] {
        assert!(page.head.contains(header), "{header} is not in {}", page.head);
    }
    assert!(!page.head.to_lowercase().contains("access-control"), "{}", page.head);
    assert_eq!(
        page.body.matches("<script nonce").count(),
        page.body.matches("<script").count() - 1,
        "one holds data"
    );
    let addresses = page.body.matches("http://").count() + page.body.matches("https://").count();
    assert_eq!(addresses, page.body.matches("http://www.w3.org/").count(), "names of kinds of elements");
    assert!(!page.body.contains(" src=") && !page.body.contains("<link") && !page.body.contains("fake-1"));
    assert!(!server.get("").body.contains(nonce), "each answer has a nonce of its own");
    let head = server.send(&format!("HEAD / HTTP/1.1\r\nHost: {}\r\n\r\n", server.at));
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert!(head.head.contains(&format!("Content-Length: {}", page.body.len())), "{}", head.head);
    assert_eq!(server.get("nothing").status, 404);
    assert_eq!(server.end("INT"), Some(130));
    assert_eq!(Server::start(&lab, &["runs", "--serve", "127.0.0.1"]).end("TERM"), Some(143));
}

#[test]
fn rows_and_runs_arrive_as_they_are_written() {
    let lab = Lab::new();
    let (run, lock) = training(&lab, "fake-1");
    let server = Server::start(&lab, &["--serve"]);
    let mut events = server.events();
    assert_eq!(events.next("runs")["runs"][0]["id"], "fake-1");
    let first = events.next("run");
    assert_eq!((&first["status"], &first["train"]["from"]), (&"training".into(), &0.into()), "{first}");
    assert_eq!(first["train"]["columns"]["loss"], serde_json::json!([10, 8, 6, 3]));
    assert_eq!(first["val"]["columns"]["val_loss"], serde_json::json!([10.5, 3.5]));
    append(&run.join("train.csv"), &row(4, 2.5));
    let news = events.until(|news| !news["train"].is_null());
    assert_eq!(news["train"]["from"], 4, "only what is new: {news}");
    assert_eq!(news["train"]["columns"]["loss"], serde_json::json!([2.5]));
    assert!(news["val"].is_null(), "{news}");
    assert_eq!(news["cells"][1][0], "2.5000", "{news}");
    // half a row is none
    append(&run.join("train.csv"), "5,15");
    append(&run.join("val.csv"), "5,1280,3.25\n");
    let news = events.until(|news| !news["val"].is_null());
    assert!(news["train"].is_null() && news["val"]["from"] == 2, "{news}");
    // a run that starts again from a checkpoint takes rows back
    let log = fs::read_to_string(run.join("train.csv")).expect("a log");
    let kept: String = log.lines().take(3).map(|line| format!("{line}\n")).collect();
    let other = lab.write("other", kept);
    fs::rename(other, run.join("train.csv")).expect("renamed");
    let news = events.until(|news| !news["train"].is_null());
    assert_eq!(news["train"]["columns"]["loss"], serde_json::json!([10, 8]), "{news}");
    // another run
    Fake::new("fake-2", 1, 3e-3, 2.0).write(&lab.path("runs"));
    let runs = events.next("runs");
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(2), "{runs}");
    assert!(runs["runs"].as_array().expect("runs").iter().all(|run| run["chosen"] == true));
    events.until(|news| news["status"] == "finished");
    // the process is gone, and its record still says that it trains
    drop(lock);
    let news = events.until(|news| news["status"] != "training" && news["status"] != "finished");
    assert_eq!((&news["status"], &news["kind"]), (&"killed".into(), &"bad".into()));
    fs::remove_dir_all(lab.path("runs/fake-2")).expect("removed");
    assert_eq!(events.next("runs")["runs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_run_that_trains_is_followed_until_it_is_killed() {
    let lab = Lab::new();
    let server = Server::start(&lab, &["--serve"]);
    let mut events = server.events();
    let none = events.next("runs");
    assert_eq!(none["runs"], serde_json::json!([]), "no run yet");
    let run =
        lab.crash("runs", &["sample.every=5", "sample.tokens=4", "sample.prompt=!"], "csv.before_row:7");
    let id = run.file_name().expect("a name").to_string_lossy().into_owned();
    wait("the run", || events.next("runs")["runs"][0]["id"] == id.as_str());
    let news = events.until(|news| news["status"] == "killed");
    assert_eq!(news["cells"][0][0], format!("{} / 12", support::rows(&run)), "{news}");
    let key = server.keys()[0].1;
    let samples: Value =
        serde_json::from_str(&server.get(&format!("samples?runs={key}")).body).expect("JSON");
    assert_eq!(samples[0]["samples"].as_array().map(Vec::len), Some(1), "{samples}");
    assert_eq!(samples[0]["samples"][0]["step"], 0, "{samples}");
    let compared: Value =
        serde_json::from_str(&server.get(&format!("compare?runs={key}")).body).expect("JSON");
    let plan = compared["plan"].to_string();
    assert!(plan.contains("tokens_per_step") && plan.contains("interrupted"), "{plan}");
    // the same command goes on, and so does the page
    lab.train(&["sample.every=5", "sample.tokens=4", "sample.prompt=!"]);
    let news = events.until(|news| news["status"] == "finished");
    assert_eq!(news["cells"][0][0], "12 / 12", "{news}");
}

#[test]
fn what_is_named_is_shown_and_the_rest_can_be_chosen() {
    let lab = Lab::new();
    for (id, lr) in [("fake-1", 1e-3), ("fake-2", 2e-3), ("other-1", 3e-3)] {
        Fake::new(id, 1, lr, 3.0).write(&lab.path("runs"));
    }
    let server = Server::start(&lab, &["fake", "--serve=0", "--y", "lr", "--x", "tokens"]);
    let runs = server.events().next("runs");
    let chosen = |id: &str| {
        runs["runs"].as_array().expect("runs").iter().find(|run| run["id"] == id).expect("a run")["chosen"]
            .clone()
    };
    assert_eq!(
        [chosen("fake-1"), chosen("fake-2"), chosen("other-1")],
        [true.into(), true.into(), Value::from(false)]
    );
    let page = server.get("").body;
    assert!(page.contains("\"quantity\":\"lr\"") && page.contains("\"axis\":\"tokens\""), "{page}");
    let keys = server.keys();
    let two: Vec<String> = keys.iter().take(2).map(|(_, key)| key.to_string()).collect();
    let reply = server.get(&format!("compare?runs={},999,x", two.join(",")));
    let compared: Value = serde_json::from_str(&reply.body).expect("JSON");
    let differing = &compared["recipes"][0];
    assert_eq!(differing["title"], "What differs", "first: {compared:#}");
    assert_eq!(differing["rows"].as_array().map(Vec::len), Some(1), "{differing}");
    assert_eq!(differing["rows"][0][0][0], "optimizer.lr");
    assert_eq!(compared["recipes"][1]["title"], "The same in all");
    assert_eq!(compared["tables"][0]["rows"].as_array().map(Vec::len), Some(2), "{compared:#}");
    assert_eq!(server.get("compare?runs=").status, 404);
    assert_eq!(server.get("compare?runs=999").status, 404);
}

#[test]
fn what_is_left_out_of_many_sentences_is_said_and_what_to_know_of_them_stays() {
    let lab = Lab::new();
    many(&lab.path("runs"));
    let server = Server::start(&lab, &["--serve"]);
    let keys: Vec<String> = server.keys().iter().map(|(_, key)| key.to_string()).collect();
    let reply = server.get(&format!("compare?runs={}", keys.join(",")));
    let compared: Value = serde_json::from_str(&reply.body).expect("JSON");
    let of = |name: &str| -> Vec<String> {
        let list = compared[name].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a sentence").to_owned()).collect()
    };
    let (sentences, remarks) = (of("sentences"), of("remarks"));
    assert_eq!(sentences.len(), 12 + 1 + 2, "{sentences:?}");
    assert_eq!(sentences[12], "2 more: runner compare --format json");
    assert!(sentences[13].contains("(Holm)") && sentences[14].contains("14 runs"), "{sentences:?}");
    assert_eq!((remarks.len(), remarks[12].as_str()), (13, "2 more: runner compare"), "{remarks:?}");
}

#[test]
fn what_strangers_ask_is_refused_without_contents() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let server = Server::start(&lab, &["--serve"]);
    let get = |headers: &str| server.send(&format!("GET / HTTP/1.1\r\n{headers}\r\n"));
    let (_, port) = server.at.split_once(':').expect("a port");
    // a tunnel changes the port
    for host in [&server.at, "localhost:9999", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"] {
        assert_eq!(get(&format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    let foreign =
        ["", "Host: \r\n", &format!("Host: evil.example:{port}\r\n"), "Host: localhost.evil.example\r\n"];
    for headers in foreign.into_iter().chain(["Host: localhost\r\nHost: evil.example\r\n"]) {
        let reply = get(headers);
        assert_eq!((reply.status, reply.body.as_str()), (403, ""), "{headers}");
    }
    let page = |site: &str, mode: &str| {
        get(&format!("Host: localhost\r\nSec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\n")).status
    };
    assert_eq!(
        [page("cross-site", "cors"), page("same-site", "no-cors"), page("cross-site", "navigate")],
        [403, 403, 200]
    );
    let from = |origin: &str| get(&format!("Host: localhost:1\r\nOrigin: {origin}\r\n")).status;
    assert_eq!([from("http://evil.example"), from("null"), from("http://localhost:1")], [403, 403, 200]);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"] {
        let reply = server.send(&format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert_eq!((reply.status, reply.body.as_str()), (405, ""), "{method}");
        assert!(reply.head.contains("Allow: GET, HEAD"), "{}", reply.head);
    }
    for garbage in
        ["\u{1}\u{2}\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/3.0\r\n\r\n", "GET / HTTP/1.1\r\na b c\r\n\r\n"]
    {
        assert_eq!(server.send(garbage).status, 400, "{garbage:?}");
    }
    let long = "x".repeat(1 << 20);
    for headers in [format!("Host: localhost\r\nCookie: {long}\r\n"), "a: b\r\n".repeat(1000)] {
        assert_eq!(get(&headers).status, 431);
    }
    for path in ["/../../etc/passwd", "//", "/runs/fake-1/run.json", "/%2e%2e/", "/events/", "/?x=/../"] {
        let reply = server.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(reply.status == 404 || path.starts_with("/?"), "{path}");
    }
    let ended = {
        let Server { mut live, .. } = server;
        live.signal("INT");
        live.end()
    };
    ended.expect(130).says(&["a request for the host `", "use localhost or 127.0.0.1"]);
    assert_eq!(
        ended.stderr.matches("was refused").count(),
        1,
        "a stranger cannot fill the terminal: {}",
        ended.stderr
    );
}

#[test]
fn what_other_machines_reach_asks_for_the_token_of_the_address() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let mut server = Server::start(&lab, &["--serve", "0.0.0.0"]);
    let token = server.path.trim_matches('/').to_owned();
    assert!(token.len() == 32 && token.chars().all(|c| c.is_ascii_hexdigit()), "{token}");
    assert!(!server.at.starts_with("0.0.0.0"), "{}", server.at);
    let (_, port) = server.at.rsplit_once(':').expect("a port");
    server.at = format!("127.0.0.1:{port}");
    let wrong = format!("/{}0/", &token[..31]);
    let wrong = if wrong == server.path { format!("/{}1/", &token[..31]) } else { wrong };
    for path in [
        "/",
        "/events",
        &wrong,
        &format!("/{token}"),
        "/?token=",
        &format!("/x/{token}/"),
        &format!("//{token}/"),
    ] {
        let reply = server.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.at));
        assert_eq!((reply.status, reply.body.as_str()), (403, ""), "{path}");
        let other = server.send(&format!("POST {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.at));
        assert_eq!(other.status, 403, "{path}");
    }
    let page = server.send(&format!("GET {} HTTP/1.1\r\nHost: host.example\r\n\r\n", server.path));
    assert_eq!(page.status, 200);
    assert!(!page.body.contains(&token) && !page.body.contains("\"/"), "addresses are relative");
    assert_eq!(server.events().next("runs")["runs"][0]["id"], "fake-1");
    let other = Server::start(&lab, &["--serve", "0.0.0.0:0"]);
    assert_ne!(other.path, server.path, "each has a token of its own");
}

#[test]
fn slow_and_many_connections_keep_none_out_for_long() {
    let lab = Lab::new();
    let (run, _lock) = training(&lab, "fake-1");
    append(
        &run.join("train.csv"),
        &(4..20_000).map(|step| row(step, 1.0 + 1.0 / step as f64)).collect::<String>(),
    );
    let server = Server::start(&lab, &["--serve"]);
    // half a request, and readers that do not read
    let mut half = server.connect();
    half.write_all(b"GET / HTTP/1.1\r\nHost: loc").expect("it listens");
    let idle: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it listens");
            stream
        })
        .collect();
    assert_eq!(server.get("").status, 200);
    let mut events = server.events();
    let first = events.next("run");
    let points = first["train"]["columns"]["step"].as_array().expect("steps");
    assert!(points.len() <= 600, "{} points", points.len());
    // of the last 32 steps, for which it stands
    assert_eq!(points.last(), Some(&19_983.5.into()));
    assert_eq!(first["stride"], 64, "{}", first["stride"]);
    append(&run.join("train.csv"), &row(20_000, 1.0));
    let news = events.until(|news| !news["train"].is_null());
    assert_eq!(news["train"]["columns"]["step"].as_array().map(Vec::len), Some(1), "{news}");
    // more connections than there is room for
    let many: Vec<TcpStream> = (0..120).map(|_| server.connect()).collect();
    wait("room among those who ask for nothing", || server.has_room());
    drop((many, idle));
    wait("room", || server.has_room());
    // the half request is given up
    let mut rest = Vec::new();
    half.shutdown(Shutdown::Write).ok();
    assert!(half.read_to_end(&mut rest).is_err() || rest.is_empty());
    let mut slow = server.connect();
    slow.write_all(b"GET / HT").expect("it listens");
    assert_eq!(slow.read(&mut [0; 16]).unwrap_or(0), 0, "it is closed after a while");
}

/// What waits for a reader that takes nothing may all lie in the systems' buffers, where no write ever fails.
#[test]
fn readers_that_take_nothing_make_room() {
    let lab = Lab::new();
    let (run, _lock) = training(&lab, "fake-1");
    append(
        &run.join("train.csv"),
        &(4..2_000).map(|step| row(step, 1.0 + 1.0 / step as f64)).collect::<String>(),
    );
    let server = Server::start(&lab, &["--serve"]);
    let idle: Vec<TcpStream> = (0..64).map(|_| server.connect()).collect();
    for mut stream in &idle {
        let _ = stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    wait("room", || server.has_room());
    drop(idle);
}

#[test]
fn readers_who_wait_for_comparisons_leave_room_for_the_page() {
    let lab = Lab::new();
    let (run, _lock) = training(&lab, "fake-1");
    let rows = (4..100_000).map(|step| row(step, 1.0 + 1.0 / step as f64));
    append(&run.join("train.csv"), &rows.collect::<String>());
    let server = Server::start(&lab, &["--serve"]);
    assert!(server.has_room());
    // fewer than there may be connections, so that none is refused for its number
    let refused = || {
        let asking: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
        for mut stream in &asking {
            stream.write_all(b"GET /compare?runs=0 HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it listens");
        }
        let is_served = server.has_room();
        let status = |mut stream: &TcpStream| {
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).expect("an answer");
            String::from_utf8_lossy(&answer[9..]).into_owned()
        };
        let answers: Vec<String> = asking.iter().map(status).collect();
        assert!(is_served && answers.iter().all(|status| ["200", "503"].contains(&&**status)), "{answers:?}");
        answers.iter().filter(|status| *status == "503").count()
    };
    wait("some who are told to ask again", || refused() > 0);
}

/// A run whose texts are markup and script in every place that the page shows.
fn nasty(lab: &Lab) -> String {
    let id = "fake-<img src=x onerror=pwned=1>";
    let text = "</script><script>pwned=1</script><img src=x onerror=pwned=1>\u{202e}";
    let run = Fake { status: "failed", ..Fake::new(id, 1, 1e-3, 3.0) }.write(&lab.path("runs"));
    let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
    let recipe = recipe.replace("name = \"fake\"", &format!("name = \"{text}\""));
    fs::write(run.join("recipe.toml"), recipe + &format!("[novelty]\n\"{text}\" = \"{text}\"\n"))
        .expect("a file");
    let mut record: Value =
        serde_json::from_slice(&fs::read(run.join("run.json")).expect("a record")).expect("JSON");
    record["error"] = text.into();
    record["device"] = text.into();
    record["plan"] = serde_json::json!({ text: text, "__proto__": {"polluted": 1}, "bytes": [[text, 1]] });
    fs::write(run.join("run.json"), record.to_string()).expect("a file");
    let val = format!(
        "step,tokens,val_loss,__proto__,constructor,\"{text}\",loss\n0,0,10.5,1,2,3,4\n4,1024,3.5,2,3,4,5\n"
    );
    fs::write(run.join("val.csv"), val).expect("a file");
    fs::write(run.join("samples.txt"), format!("=== step 4 ===\n{text}\n=== step 4\n\n")).expect("a file");
    id.to_owned()
}

#[test]
fn names_and_texts_are_texts_and_the_directory_stays_as_it_is() {
    let lab = Lab::new();
    let id = nasty(&lab);
    // files that would hang or flood a careless reader
    let odd = Fake { status: "running", ..Fake::new("odd-1", 1, 2e-3, 2.0) }.write(&lab.path("runs"));
    fs::remove_file(odd.join("val.csv")).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(odd.join("val.csv")).status();
    assert!(made.expect("mkfifo is there").success());
    std::os::unix::fs::symlink("/dev/zero", odd.join("samples.txt")).expect("a link");
    let runs = |lab: &Lab| everything(&lab.path("runs").join(&id));
    let before = runs(&lab);
    let names = |run: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(run).expect("a run").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let names_before = names(&odd);
    let server = Server::start(&lab, &["--serve"]);
    let mut events = server.events();
    // any column of a log can be drawn
    wait("the columns", || {
        let listed = events.next("runs");
        listed["runs"].to_string().contains(&id) && listed["quantities"].to_string().contains("__proto__")
    });
    let news = events.until(|news| news["why"].as_str().is_some_and(|why| why.contains("val.csv")));
    assert_eq!(news["status"], "killed", "{news}");
    let keys: Vec<String> = server.keys().into_iter().map(|(_, key)| key.to_string()).collect();
    for path in ["", &format!("compare?runs={}", keys.join(",")), &format!("samples?runs={}", keys.join(","))]
    {
        let reply = server.get(path);
        assert_eq!(reply.status, 200);
        if path.is_empty() {
            assert!(!reply.body.contains("<img") && !reply.body.contains("pwned"), "the page has no names");
        } else {
            let value: Value = serde_json::from_str(&reply.body).expect("JSON");
            assert!(value.to_string().contains("<img src=x"), "{value}");
            assert!(reply.head.contains("application/json") && !reply.body.contains('\u{202e}'));
        }
    }
    assert_eq!(server.end("INT"), Some(130));
    assert!(runs(&lab) == before && names(&odd) == names_before, "nothing was written, not even a lock");
}

#[test]
fn what_a_run_is_exchanged_for_is_served_to_nobody() {
    let lab = Lab::new();
    let run = Fake::new("theirs-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let private = Fake { seed: 77, ..Fake::new("mine-2", 1, 1e-3, 3.0) }.write(&lab.path("private"));
    for (run, text) in [(&run, "known"), (&private, "secret")] {
        fs::write(run.join("samples.txt"), format!("=== step 1 ===\n{text}\n\n")).expect("samples");
    }
    let server = Server::start(&lab, &["--serve"]);
    let asked = ["samples?runs=0", "compare?runs=0"].map(|path| move |server: &Server| server.get(path).body);
    assert!(asked[0](&server).contains("known"), "{}", asked[0](&server));
    fs::rename(&run, lab.path("away")).expect("moved");
    std::os::unix::fs::symlink(&private, &run).expect("a link");
    // only root can give a link away
    if std::os::unix::fs::lchown(&run, Some(12345), None).is_ok() {
        for ask in asked {
            let body = ask(&server);
            assert!(!body.contains("secret") && !body.contains("77"), "{body}");
        }
        assert!(asked[0](&server).contains("link of another user"), "{}", asked[0](&server));
    }
    // one's own link says where the run is now
    fs::remove_file(&run).expect("removed");
    std::os::unix::fs::symlink(lab.path("away"), &run).expect("a link");
    assert!(asked[0](&server).contains("known"), "{}", asked[0](&server));
}

#[test]
fn mistakes_are_told_before_anything_is_served() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    lab.run(["watch"]).expect(2).says(&["RUN"]);
    lab.run(["watch", "nothing", "--serve"]).expect(2).says(&["`nothing` is not a run"]);
    lab.run(["watch", "--serve", "fake-1"]).expect(2).says(&["`fake-1` is no address", "127.0.0.1:8080"]);
    for address in ["65536", ":65536", "127.0.0.1:70000", "99999999999"] {
        lab.run(["watch", "--serve", address]).expect(2).says(&[address, "ports are 0 (any) to 65535"]);
    }
    lab.run(["watch", "--serve", "--y", "los"]).expect(2).says(&["`los` cannot be plotted", "grad_norm"]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (address.to_string(), taken)).expect("an address");
    let said = lab.run(["watch", "--serve", &taken.0]);
    said.expect(2).says(&[&taken.0, "cannot be listened on"]);
    assert_eq!(said.stdout, "");
}

#[test]
#[ignore = "needs Chromium or Chrome"]
fn in_a_browser_curves_grow_and_runs_appear() {
    let lab = Lab::new();
    let (run, lock) = training(&lab, "fake-1");
    let server = Server::start(&lab, &["--serve"]);
    let mut page = Page::open(&format!("http://{}{}", server.at, server.path), &lab.path("profile"));
    page.wait("document.getElementById('canvas')?.dataset.curves === '1'");
    page.wait("Number(canvas.dataset.x.split(' ')[1]) < 5");
    append(&run.join("train.csv"), &(4..40).map(|step| row(step, 2.0)).collect::<String>());
    page.wait("Number(canvas.dataset.x.split(' ')[1]) > 38");
    page.wait("document.querySelector('#panel tbody tr td:nth-child(3)')?.textContent.startsWith('40 /')");
    Fake::new("fake-2", 1, 3e-3, 2.0).write(&lab.path("runs"));
    page.wait("canvas.dataset.curves === '2' && document.querySelectorAll('#legend li').length === 2");
    page.wait("canvas.dataset.standing.includes('fake-2=finished')");
    assert!(page.value("canvas.dataset.standing").as_str().is_some_and(|s| s.contains("fake-1=training")));
    drop(lock);
    page.wait("canvas.dataset.standing.includes('fake-1=killed')");
    page.wait("document.querySelector('#legend').textContent.includes('killed')");
    // a click hides a run, and what is below follows
    page.value("document.querySelector('#legend button').click()");
    page.wait("canvas.dataset.curves === '1'");
    page.value("document.querySelector('#legend button').click()");
    page.value("document.querySelector('#tabs [data-tab=recipes]').click()");
    page.wait("document.querySelector('#panel h2')?.textContent === 'What differs'");
    page.wait("document.querySelector('#panel td').textContent === 'optimizer.lr'");
    page.value("document.querySelector('#tabs [data-tab=results]').click()");
    page.wait("document.querySelectorAll('#panel tbody tr').length === 2");
    page.value("document.querySelector('#legend button').click()");
    page.wait("document.querySelectorAll('#panel tbody tr').length === 1");
    assert_eq!(server.end("INT"), Some(130));
    page.wait("document.getElementById('link').textContent.startsWith('connection lost')");
}

#[test]
#[ignore = "needs Chromium or Chrome"]
fn in_a_browser_nothing_is_executed_that_a_run_contains() {
    let lab = Lab::new();
    nasty(&lab);
    Fake::new("fake-2", 1, 3e-3, 2.0).write(&lab.path("runs"));
    let server = Server::start(&lab, &["--serve"]);
    let mut page = Page::open(&format!("http://{}{}", server.at, server.path), &lab.path("profile"));
    page.wait("document.getElementById('canvas')?.dataset.curves === '2'");
    for tab in ["runs", "results", "recipes", "plan", "samples"] {
        page.value(&format!("document.querySelector('#tabs [data-tab={tab}]').click()"));
        page.wait(&format!("panel.dataset.tab === '{tab}' && panel.textContent.includes('<img src=x')"));
        page.value("for (const b of document.querySelectorAll('#panel th button')) b.click()");
    }
    let options = "[...document.querySelectorAll('#quantity option')].map((o) => o.value)";
    assert!(page.value(options).to_string().contains("proto"), "{}", page.value(options));
    let count = page.value("document.querySelectorAll('#quantity option').length").as_u64().expect("a count");
    for i in 0..count {
        page.value(&format!(
            "(() => {{ const s = document.getElementById('quantity'); s.selectedIndex = {i}; \
             s.dispatchEvent(new Event('change')); }})()"
        ));
        assert!(page.value("Number(canvas.dataset.curves)").as_u64() > Some(0), "quantity {i}");
    }
    assert_eq!(page.value("document.querySelectorAll('img').length"), 0);
    assert_eq!(page.value("typeof pwned"), "undefined");
    assert_eq!(page.value("typeof ({}).polluted"), "undefined");
    // and if a text became markup, it would not run
    page.value(
        "(() => { const s = document.createElement('script'); s.append('pwned = 1'); document.body.append(s); })()",
    );
    assert_eq!(page.value("typeof pwned"), "undefined");
}
