//! A server of HTTP on the loopback that answers as a test tells it, rightly or wrongly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Method and target, such as `GET /x`.
    pub(crate) line: String,
    /// The target.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The first byte that is asked for.
    pub(crate) fn first(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    /// What Content-Length says.
    length: usize,
    body: Vec<u8>,
    /// Bytes that are sent at a time.
    piece: usize,
    /// Waited after each piece.
    pause: Duration,
    /// Whether the body comes in chunks, with trailers behind it as long as the client is there.
    is_endless: bool,
    /// After the body the connection stays open, and silent, as long as this file exists.
    held: Option<PathBuf>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            length: body.len(),
            body,
            piece: usize::MAX,
            pause: Duration::ZERO,
            is_endless: false,
            held: None,
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// The part of a file that is asked for.
    pub(crate) fn part(file: &[u8], asked: &Asked) -> Self {
        match asked.first() {
            None => Self::new(200, file),
            Some(first) if first >= file.len() => Self::new(416, ""),
            Some(first) => {
                let range = format!("bytes {first}-{}/{}", file.len() - 1, file.len());
                Self::new(206, &file[first..]).with("Content-Range", range)
            }
        }
    }

    /// The same answer, of which only the first bytes are sent.
    pub(crate) fn cut(mut self, bytes: usize) -> Self {
        self.body.truncate(bytes);
        self
    }

    /// The same answer, in small pieces.
    pub(crate) fn trickling(mut self, piece: usize) -> Self {
        self.piece = piece;
        self
    }

    /// The same answer, with a pause after each piece.
    pub(crate) fn slowly(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// The same answer, of which nothing more comes while the file exists.
    pub(crate) fn held(mut self, gate: PathBuf) -> Self {
        self.held = Some(gate);
        self
    }

    /// The same answer in a chunk, with trailers behind it as long as the client is there.
    pub(crate) fn endless(mut self) -> Self {
        self.is_endless = true;
        self
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let length = match self.is_endless {
            true => "Transfer-Encoding: chunked".to_owned(),
            false => format!("Content-Length: {}", self.length),
        };
        let mut head = format!("HTTP/1.1 {} x\r\n{length}\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all((head + "Connection: close\r\n\r\n").as_bytes())?;
        if self.is_endless {
            let chunk = [format!("{:x}\r\n", self.body.len()).as_bytes(), &self.body, b"\r\n0\r\n"].concat();
            stream.write_all(&chunk)?;
            loop {
                stream.write_all(b"T: x\r\n")?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for piece in self.body.chunks(self.piece.max(1)) {
            stream.write_all(piece)?;
            stream.flush()?;
            std::thread::sleep(self.pause);
        }
        while self.held.as_ref().is_some_and(|gate| gate.exists()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// A server that lives as long as this.
pub(crate) struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server. `answer` gets a request and how often the same path was asked for before.
    pub(crate) fn start(answer: impl Fn(&Asked, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback");
        let address = listener.local_addr().expect("an address");
        let (asked, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let server = Self { address, asked: Arc::clone(&asked), is_over: Arc::clone(&is_over) };
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &asked, &*answer));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    /// The requests for a path.
    pub(crate) fn asked_for(&self, path: &str) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.path == path).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // wakes the thread that waits for connections
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, all: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked, usize) -> Reply) {
    let Ok(copy) = stream.try_clone() else { return };
    let mut lines = BufReader::new(copy).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
    let headers = headers.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_lowercase(), value.trim().to_owned()))
    });
    let asked = Asked { line: format!("{method} {path}"), path: path.to_owned(), headers: headers.collect() };
    let before = {
        let mut all = all.lock().expect("no panic");
        let before = all.iter().filter(|other| other.path == asked.path).count();
        all.push(asked.clone());
        before
    };
    // a client may have gone
    let _ = answer(&asked, before).send(&mut stream);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read(&mut [0]);
}
