//! Downloads data sets: by a name that this program knows, or any files of a data set on the Hugging Face hub.
//!
//! A file gets its name only when it is complete and its digest is right. Until then it lies in a directory
//! `.fetch` beside the others, so that a broken download goes on from its last byte, in this process or the next one,
//! and no recipe takes it for data.

mod catalogue;
mod client;
mod digest;
mod download;
mod ending;
mod error;
mod hub;
mod names;
mod patient;
mod version;

pub use catalogue::{CATALOGUE, Known, Source};
pub use digest::Digest;
pub use error::FetchError;

use super::progress::Task;
use super::{Progress, unfinished};
use crate::regular;
use client::Client;
use download::{Folder, PARTS};
use hub::Address;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is to be fetched, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// A name of [`CATALOGUE`] or `hf://datasets/OWNER/REPO[@REVISION][/PATTERN]`.
    pub what: String,
    /// The directory for the files; by default one below `datasets` that fits what is fetched.
    pub out: Option<PathBuf>,
    /// Take only the first this many files, those for validation not counted.
    pub shards: Option<usize>,
    /// Another address than the usual one, for names of a single file.
    pub from: Option<String>,
    /// How many files are downloaded at a time, at least 1.
    pub jobs: usize,
    /// How often a download is tried again without a further byte before it is given up.
    pub retries: u32,
    /// A connection on which nothing arrives for so long is given up.
    pub timeout: Duration,
}

/// What servers are asked, and with which rights.
#[derive(Clone)]
pub struct Settings {
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// A token of the hub, for data that are not public.
    pub token: Option<String>,
    /// A file of certificates, in PEM, to trust instead of Mozilla's.
    pub certificates: Option<PathBuf>,
}

impl Settings {
    /// The settings of `HF_ENDPOINT`, `HF_TOKEN` and `SSL_CERT_FILE`. Empty variables count as unset. Proxies of
    /// `HTTPS_PROXY` and its like are looked up when a connection is made.
    #[must_use]
    pub fn from_env() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| hub::ENDPOINT.to_owned());
        Self {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            token: set("HF_TOKEN").map(|token| token.trim().to_owned()),
            certificates: set("SSL_CERT_FILE").map(PathBuf::from),
        }
    }
}

/// A file to be downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Where it is.
    pub(super) url: String,
    /// Its path below the directory for the files.
    pub(super) name: PathBuf,
    /// Its size in bytes, where it is known beforehand.
    pub(super) size: Option<u64>,
    /// What it must contain, where that is known.
    pub(super) digest: Option<Digest>,
}

impl Wanted {
    /// What to do without this program.
    fn by_hand(&self, out: &Path) -> String {
        format!("download {} elsewhere and save it as `{}`", self.url, out.join(&self.name).display())
    }
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The directory of the files.
    pub out: PathBuf,
    /// The files that were asked for, all of which are there now.
    pub files: Vec<PathBuf>,
    /// How many of them were there before.
    pub present: usize,
    /// How many of them could be compared by size only, for want of a digest.
    pub unverified: usize,
    /// Files of which no size was known either.
    pub unmeasured: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Fetches the files of a request that are not there yet. `tell` is told which files and how many.
///
/// # Errors
/// The request makes no sense, a server cannot be reached or does not have what it should, a file cannot be written,
/// or another process fetches into the same directory. Files that are complete stay, and what has come of the others
/// is gone on with by the next call.
pub fn fetch(
    request: &Request,
    settings: &Settings,
    progress: &dyn Progress,
    tell: &dyn Fn(&str),
) -> Result<Fetched, FetchError> {
    let known = CATALOGUE.iter().find(|known| known.name == request.what);
    let address = match known {
        Some(known) => known.address(),
        None => Some(Address::parse(&request.what)?),
    };
    if request.from.is_some() && (address.is_some() || known.is_none()) {
        return Err(FetchError::From { what: request.what.clone() });
    }
    let from = request.from.as_deref().zip(known).filter(|(from, _)| client::has_password(from));
    if let Some((_, known)) = from {
        let out = request.out.clone().unwrap_or_else(|| known.out.into());
        let instead = known.single(None).by_hand(&out);
        return Err(FetchError::Password { what: "--from", instead });
    }
    if request.shards.is_some() && address.is_none() {
        return Err(FetchError::Shards { what: request.what.clone() });
    }
    let client = Client::new(settings, request.timeout)?;
    let out = match (&request.out, known, &address) {
        (Some(out), _, _) => out.clone(),
        (None, Some(known), _) => known.out.into(),
        (None, None, address) => Path::new("datasets").join(address.as_ref().map_or("", Address::name)),
    };
    let by_hand = |error: FetchError| {
        error.by_hand(match (known, &address) {
            (Some(known), None) => known.single(None).by_hand(&out),
            (_, Some(address)) => format!(
                "download the files of {} elsewhere and put them into `{}`",
                address.page(&settings.endpoint),
                out.display()
            ),
            (None, None) => String::new(),
        })
    };
    let wanted = match (known, &address) {
        (Some(known), None) => vec![known.single(request.from.as_deref())],
        (known, Some(address)) => {
            let files = address.files(&client, request.retries).map_err(by_hand)?;
            let files = match known {
                Some(known) => known.uniform(files, address)?,
                None => files,
            };
            take(files, request.shards, known.is_some())
        }
        (None, None) => Vec::new(),
    };
    names::check(&wanted, &out)?;
    if request.out.is_none() {
        warn_of_place(&out, tell);
    }
    // one hub need not have what another has
    let folder = Folder::open(&out, &format!("{} {} {:?}", settings.endpoint, request.what, request.shards))?;
    // seen by a preparation that begins now, which looks for the folder of this one
    if let Err(error) = check_preparations(&out, &wanted) {
        folder.close(&[]);
        return Err(error);
    }
    let missing = wanted.iter().filter(|wanted| !out.join(&wanted.name).exists());
    let result = missing.into_iter().try_for_each(|wanted| folder.check_way(wanted));
    let result =
        result.and_then(|()| all(request, &client, &folder, &wanted, progress, tell).map_err(by_hand));
    let is_in_place = folder.check();
    let lacks_others = folder.close(if result.is_ok() { &wanted } else { &[] });
    let fetched = result?;
    if lacks_others {
        let parts = out.join(PARTS);
        tell(&format!(
            "files of another download are missing there still, as `{}` shows: until they have come, or that \
             directory is removed, patterns for data that begin where one is missing are refused",
            parts.display()
        ));
    }
    is_in_place.map(|()| fetched)
}

/// Tells of a directory of another user into which files are fetched although nobody has named it.
fn warn_of_place(out: &Path, tell: &dyn Fn(&str)) {
    let way = out.ancestors().filter(|above| !above.as_os_str().is_empty());
    if let Some((path, user)) = regular::last_of_another(way) {
        tell(&format!(
            "warning: `{}` is not yours but user {user}'s, who can change what is fetched there: --out names a \
             directory of your own",
            path.display()
        ));
    }
}

/// Refuses to put files into a directory into which others are being prepared.
fn check_preparations(out: &Path, wanted: &[Wanted]) -> Result<(), FetchError> {
    let directories: BTreeSet<_> = wanted.iter().flat_map(|wanted| wanted.name.ancestors().skip(1)).collect();
    match directories.into_iter().find_map(|below| unfinished::preparation(&out.join(below))) {
        Some(by) => Err(match regular::another_maker(&by) {
            Some(user) => FetchError::OfAnother { dir: by, user },
            None => FetchError::Preparing { out: out.to_owned(), by },
        }),
        None => Ok(()),
    }
}

/// The first files; if shards have uniform names, those for validation do not count and are taken too.
fn take(all: Vec<Wanted>, most: Option<usize>, is_uniform: bool) -> Vec<Wanted> {
    let Some(most) = most else { return all };
    let is_val = |wanted: &Wanted| is_uniform && wanted.name.to_string_lossy().starts_with("val-");
    let (val, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_val);
    rest.into_iter().take(most).chain(val).collect()
}

/// Tells of files that were there and that another user can still change.
fn warn_of_others(folder: &Folder, there: &[&Wanted], tell: &dyn Fn(&str)) {
    let owned = there.iter().map(|wanted| folder.out().join(&wanted.name));
    let owned: Vec<_> = owned.filter_map(|path| Some((regular::another_maker(&path)?, path))).collect();
    if let Some((user, first)) = owned.first() {
        let others = match owned.len() {
            1 => String::new(),
            several => format!(", and {} more of other users", several - 1),
        };
        tell(&format!(
            "warning: `{}` is not yours but user {user}'s{others}: what was right when it was checked can be changed \
             since; fetch into a directory of your own with --out to rule that out",
            first.display()
        ));
    }
}

fn all(
    request: &Request,
    client: &Client,
    folder: &Folder,
    wanted: &[Wanted],
    progress: &dyn Progress,
    tell: &dyn Fn(&str),
) -> Result<Fetched, FetchError> {
    let (mut missing, mut there, mut bytes) = (Vec::new(), Vec::new(), 0);
    for wanted in wanted {
        match folder.present(wanted)? {
            Some(size) => {
                bytes += size;
                there.push(wanted);
            }
            None => missing.push(wanted),
        }
    }
    warn_of_others(folder, &there, tell);
    if !missing.is_empty() {
        let count = crate::wording::grouped(missing.len() as u64, "file");
        tell(&format!("{count} to fetch into {}", folder.out().display()));
        // those that are there have the contents that they should
        let was_known = folder.announce(wanted)?;
        if let Err(error) = check_preparations(folder.out(), wanted) {
            // the preparation would be refused because of it, and neither could end
            if !was_known {
                folder.withdraw();
            }
            return Err(error);
        }
    }
    let total = missing.iter().filter_map(|wanted| wanted.size).sum();
    let task = Task::start(progress, &format!("fetching {}", request.what), total);
    let (next, stop) = (Mutex::new(missing.iter()), AtomicBool::new(false));
    let retries = request.retries;
    let work = || {
        let mut done = 0;
        loop {
            let wanted = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(wanted) = wanted.filter(|_| !stop.load(Ordering::Relaxed)) else { return Ok(done) };
            let fetched = folder.fetch(client, wanted, retries, &stop, &|by| task.advance(by));
            done += fetched.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        }
    };
    let results: Vec<Result<u64, FetchError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..request.jobs.min(missing.len())).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    // a thread that was stopped has less to say than the one that stopped it
    let (mut failed, mut stopped) = (None, None);
    for result in results {
        match result {
            Ok(done) => bytes += done,
            Err(error @ FetchError::Stopped) => stopped = Some(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed.or(stopped) {
        Some(error) => Err(error),
        None => Ok(Fetched {
            out: folder.out().to_owned(),
            files: wanted.iter().map(|wanted| folder.out().join(&wanted.name)).collect(),
            present: there.len(),
            unverified: wanted.iter().filter(|wanted| wanted.digest.is_none()).count(),
            unmeasured: wanted
                .iter()
                .filter(|wanted| wanted.digest.is_none() && wanted.size.is_none())
                .count(),
            bytes,
        }),
    }
}
