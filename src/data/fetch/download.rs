//! One file at a time: from where it stands to its name, through broken connections.

use super::client::{Client, Fault};
use super::version::Version;
use super::{FetchError, Wanted};
use crate::data::unfinished::{FILES, part_end, short};
use crate::regular::{self, OFlags, OpenDir};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The directory for what is not complete, which no pattern for data reaches.
pub(super) use crate::data::unfinished::FETCH as PARTS;
/// Held by the process that writes there.
pub(super) const LOCK: &str = "lock";
/// The first wait after a failure; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// No wait is longer, whatever a server asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A directory that this process fetches into.
pub(super) struct Folder {
    pub(super) out: OpenDir,
    pub(super) parts: OpenDir,
    /// Whether this call has made the directory.
    pub(super) is_new: bool,
    /// The name of the list of what this call fetches.
    pub(super) list: String,
    /// Locked as long as this lives.
    pub(super) lock: File,
}

impl Folder {
    /// Prepares the directory `out`, which is created if missing, for what is fetched there.
    ///
    /// # Errors
    /// It cannot be written, or another process fetches into it.
    pub(super) fn open(out: &Path, what: &str) -> Result<Self, FetchError> {
        let is_new = !out.exists();
        let opened = OpenDir::make_all(out).map_err(write(out))?;
        // what is left over is removed at the end, and files that are none of ours may lie behind a link
        let parts = opened.make(PARTS).and_then(|_| opened.inside(PARTS));
        let parts = own(parts.map_err(write(&opened.join(PARTS)))?)?;
        let path = parts.join(LOCK);
        let lock = parts.open_file(LOCK, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND);
        let lock = lock.map_err(write(&path))?;
        match lock.try_lock() {
            // a process that has just ended takes its lock away
            Ok(()) if parts.is_named(LOCK, &lock).map_err(write(&path))? && is_named(&opened, &parts) => {
                Ok(Self { out: opened, parts, is_new, list: short(what.as_bytes()) + FILES, lock })
            }
            Ok(()) => Err(FetchError::Busy { out: out.into() }),
            Err(fs::TryLockError::WouldBlock) => Err(FetchError::Busy { out: out.into() }),
            Err(fs::TryLockError::Error(error)) => Err(write(&path)(error)),
        }
    }

    /// Checks that what was fetched lies where it was asked for.
    ///
    /// # Errors
    /// The directory was moved or replaced meanwhile.
    pub(super) fn check(&self) -> Result<(), FetchError> {
        let path = self.out.path();
        if self.out.is_in_place().map_err(write(path))? {
            return Ok(());
        }
        Err(write(path)(std::io::Error::other("its directory was moved or replaced meanwhile")))
    }

    /// The directory of the complete files.
    pub(super) fn out(&self) -> &Path {
        self.out.path()
    }

    /// The size of the file if it is there already.
    ///
    /// # Errors
    /// Something else is there under its name.
    pub(super) fn present(&self, wanted: &Wanted) -> Result<Option<u64>, FetchError> {
        let path = self.out.join(&wanted.name);
        let Ok(meta) = fs::metadata(&path) else { return Ok(None) };
        let occupied = |what: String| FetchError::Occupied { path: path.clone(), what };
        if !meta.is_file() {
            return Err(occupied("it is no file".into()));
        }
        if let Some(size) = wanted.size.filter(|size| *size != meta.len()) {
            return Err(occupied(format!("{} bytes, not {size}", meta.len())));
        }
        if let Some(digest) = wanted.digest {
            let found = regular::open(&path).and_then(|file| digest.of(file)).map_err(write(&path))?;
            if found != digest {
                return Err(occupied(format!("{found}, not {digest}")));
            }
        }
        Ok(Some(meta.len()))
    }

    /// Downloads a file, checks it and gives it its name; returns its size.
    ///
    /// `advance` is told of bytes that came, and of those that had come before.
    pub(super) fn fetch(
        &self,
        client: &Client,
        wanted: &Wanted,
        retries: u32,
        stop: &AtomicBool,
        advance: &dyn Fn(u64),
    ) -> Result<u64, FetchError> {
        let part = self.part(wanted);
        // what nothing can be held against may have been changed since
        if wanted.digest.is_none() {
            self.remove(&part)?;
        }
        advance(self.size(&part));
        let mut version = Version::default();
        let mut is_second = false;
        loop {
            // a server that begins anew each time has sent no further byte until it comes further than ever
            let furthest = std::cell::Cell::new(self.size(&part));
            let is_further = |_: &Fault| {
                let size = self.size(&part);
                size > furthest.replace(size.max(furthest.get()))
            };
            let attempt = || self.attempt(client, wanted, &part, &mut version, stop, advance);
            persist(&wanted.url, retries, attempt, is_further)?;
            let Some(digest) = wanted.digest else { break };
            let found = self.parts.open_file(&part, OFlags::RDONLY).and_then(|file| digest.of(file));
            let found = found.map_err(write(&self.parts.join(&part)))?;
            if found == digest {
                break;
            }
            self.remove(&part)?;
            if is_second {
                let (url, expected) = (wanted.url.clone(), digest);
                return Err(FetchError::Contents { url, expected, found });
            }
            is_second = true;
        }
        let path = self.out.join(&wanted.name);
        let name = path.file_name().unwrap_or_default();
        let inner = self.above(wanted, true)?;
        let publish = || -> io::Result<u64> {
            let file = self.parts.open_file(&part, OFlags::RDONLY)?;
            file.sync_all()?;
            let directory = inner.as_ref().unwrap_or(&self.out);
            self.parts.name_into(&part, directory, name)?;
            directory.sync()?;
            Ok(file.metadata()?.len())
        };
        publish().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => FetchError::Occupied {
                path: path.clone(),
                what: "it appeared while the file was fetched".to_owned(),
            },
            _ => write(&path)(error),
        })
    }

    /// Checks that no directory which another user has put into this one is on the way to a file.
    ///
    /// # Errors
    /// [`FetchError::OfAnother`], and those of the way.
    pub(super) fn check_way(&self, wanted: &Wanted) -> Result<(), FetchError> {
        self.above(wanted, false).map(drop)
    }

    /// The directory that a file is to lie in, made if missing; `None` for that of all files. Where nothing is made,
    /// the last one that there is on the way. No link on the way is followed: somebody may have put one there
    /// meanwhile.
    fn above(&self, wanted: &Wanted, makes: bool) -> Result<Option<OpenDir>, FetchError> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::InvalidInput => {
                FetchError::Unsafe { url: wanted.url.clone(), name: wanted.name.clone() }
            }
            _ => write(&self.out.join(&wanted.name))(error),
        };
        let mut inner: Option<OpenDir> = None;
        for part in wanted.name.parent().into_iter().flat_map(Path::components) {
            let directory = inner.as_ref().unwrap_or(&self.out);
            if makes && directory.make(part.as_os_str()).map_err(failed)? {
                directory.sync().map_err(failed)?;
            }
            match directory.inside(part.as_os_str()) {
                Err(error) if error.kind() == ErrorKind::NotFound && !makes => break,
                found => inner = Some(own(found.map_err(failed)?)?),
            }
        }
        Ok(inner)
    }

    /// The size in bytes of what has come of a file, 0 if there is nothing.
    fn size(&self, part: &str) -> u64 {
        let meta = self.parts.open_file(part, OFlags::RDONLY).and_then(|file| file.metadata());
        meta.map_or(0, |meta| meta.len())
    }

    fn remove(&self, part: &str) -> Result<(), FetchError> {
        match self.parts.remove_file(part) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(write(&self.parts.join(part))(error)),
            _ => Ok(()),
        }
    }

    /// The name of the file until it is complete: made after its contents, or its address, and after its name, for two
    /// files may have the same contents.
    fn part(&self, wanted: &Wanted) -> String {
        let key = match wanted.digest {
            Some(digest) => digest.to_string().replace(':', "-"),
            None => short(wanted.url.as_bytes()),
        };
        key + &part_end(&wanted.name)
    }

    /// Downloads what is missing, over one connection. `version` is what the server called the version
    /// of which there is a part.
    fn attempt(
        &self,
        client: &Client,
        wanted: &Wanted,
        part: &str,
        version: &mut Version,
        stop: &AtomicBool,
        advance: &dyn Fn(u64),
    ) -> Result<(), Fault> {
        let failed = |error| Fault::Final(write(&self.parts.join(part))(error));
        let mut held = self.size(part);
        if wanted.size == Some(held) && held > 0 {
            return Ok(());
        }
        if wanted.size.is_some_and(|size| held > size) {
            self.remove(part).map_err(Fault::Final)?;
            held = 0;
        }
        let Some(answer) = client.file(&wanted.url, held, version)? else {
            self.remove(part).map_err(Fault::Final)?;
            return Err(Fault::passing("the file is shorter than what had come of it"));
        };
        let url = || wanted.url.clone();
        if answer.is_page && wanted.name.extension().is_none_or(|extension| extension != "html") {
            return Err(Fault::Final(FetchError::WebPage { url: url() }));
        }
        if let (Some(expected), Some(found)) = (wanted.size, answer.total)
            && expected != found
        {
            return Err(Fault::Final(FetchError::Size { url: url(), expected, found }));
        }
        if answer.start != held {
            self.remove(part).map_err(Fault::Final)?;
            held = 0;
        }
        if answer.start != held {
            return Err(Fault::passing("the server sends another part of the file than it was asked for"));
        }
        // not every server heeds the condition
        let known = if held > 0 { std::mem::take(version) } else { Version::default() };
        if let Some(why) = answer.version.is_other(&known) {
            self.remove(part).map_err(Fault::Final)?;
            return Err(Fault::passing(why));
        }
        // a digest says at the end whether all parts are of one version, which servers may call by several names
        if wanted.digest.is_none() {
            *version = answer.version.or(known);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        let mut file = self.parts.open_file(part, flags).map_err(failed)?;
        let end = wanted.size.or(answer.total);
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Fault::Final(FetchError::Stopped));
            }
            let piece = client.next_bytes(&wanted.url, &answer.body, end == Some(held))?;
            if piece.is_empty() {
                break;
            }
            file.write_all(&piece).map_err(failed)?;
            held += piece.len() as u64;
            advance(piece.len() as u64);
            if let Some(expected) = end.filter(|end| held > *end) {
                self.remove(part).map_err(Fault::Final)?;
                return Err(Fault::Final(FetchError::Size { url: url(), expected, found: held }));
            }
        }
        match end {
            Some(end) if held < end => {
                Err(Fault::passing(format!("the connection ended after {held} of {end} bytes")))
            }
            _ => Ok(()),
        }
    }
}

/// Tries until it goes well, fails for good or has failed `retries` times in a row; a failure with `progress` counts as
/// the first. Waits longer and longer in between.
pub(super) fn persist<T>(
    url: &str,
    retries: u32,
    mut attempt: impl FnMut() -> Result<T, Fault>,
    progress: impl Fn(&Fault) -> bool,
) -> Result<T, FetchError> {
    let mut failures = 0;
    loop {
        let fault = match attempt() {
            Ok(done) => return Ok(done),
            Err(Fault::Final(error)) => return Err(error),
            Err(fault) => fault,
        };
        failures = if progress(&fault) { 1 } else { failures + 1 };
        let Fault::Passing { why, wait, is_offline } = fault else {
            unreachable!("what is final was returned")
        };
        if failures > retries {
            let url = url.to_owned();
            return Err(match is_offline {
                true => FetchError::Offline { url, why, by_hand: String::new() },
                false => FetchError::GaveUp { url, tries: failures, why },
            });
        }
        let usual = FIRST_WAIT * 2u32.saturating_pow((failures - 1).min(16));
        std::thread::sleep(wait.unwrap_or(usual).min(LONGEST_WAIT));
    }
}

/// Whether the directory for parts is still where it was opened: another process takes it away at its end.
pub(super) fn is_named(out: &OpenDir, parts: &OpenDir) -> bool {
    out.inside(PARTS).and_then(|found| found.is(parts)).unwrap_or(false)
}

/// The directory, unless another user has made it, who may exchange what is in it.
fn own(dir: OpenDir) -> Result<OpenDir, FetchError> {
    match dir.of_another().map_err(write(dir.path()))? {
        Some(user) => Err(FetchError::OfAnother { dir: dir.path().to_owned(), user }),
        None => Ok(dir),
    }
}

pub(super) fn write(path: &Path) -> impl Fn(std::io::Error) -> FetchError {
    let path = path.to_path_buf();
    move |error| FetchError::Write { path: path.clone(), error }
}
