//! Why data cannot be fetched. Each message says what to do about it.

use super::Digest;
use std::io;
use std::path::PathBuf;

/// A reason why data were not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Neither a known name nor an address on the hub.
    #[error(
        "`{what}` is no data set that is known by name{near}: `runner data fetch --list` shows those, and any other on \
         the Hugging Face hub is hf://datasets/OWNER/REPO/PATTERN"
    )]
    Unknown {
        /// What was asked for.
        what: String,
        /// A phrase with the nearest name, or nothing.
        near: String,
    },
    /// An address on the hub that is none.
    #[error("`{what}` {why}: write it as hf://datasets/OWNER/REPO[@REVISION][/PATTERN]")]
    Address {
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// An address with a password, which messages would show.
    #[error("{what} has a user or a password in it, which messages would show: {instead}")]
    Password {
        /// What the address was given as.
        what: &'static str,
        /// What to do instead.
        instead: String,
    },
    /// A token that no header of a request can hold.
    #[error("HF_TOKEN has a line break or another character that no token has: set it to the token alone")]
    Token,
    /// A proxy that cannot be used. Its address may have a password in it.
    #[error(
        "{variable} names no proxy that can be used: write it as http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT, \
         for a proxy that is spoken to by HTTP; or unset the variable to do without one"
    )]
    Proxy {
        /// The variable.
        variable: &'static str,
    },
    /// An address for what has one of its own.
    #[error("--from is for names of a single file; where `{what}` comes from, HF_ENDPOINT changes")]
    From {
        /// What was asked for.
        what: String,
    },
    /// A number of shards for what is one file.
    #[error("--shards is for data in several files; `{what}` is one")]
    Shards {
        /// What was asked for.
        what: String,
    },
    /// No file of a data set is meant.
    #[error("no file of {repo} matches `{pattern}`; it has {holds}")]
    NoMatch {
        /// The data set's page.
        repo: String,
        /// The pattern.
        pattern: String,
        /// Some of its files.
        holds: String,
    },
    /// A server cannot be reached.
    #[error(
        "`{url}` cannot be reached: {why}; if this machine is online, HTTPS_PROXY names a proxy and HF_ENDPOINT a \
         mirror of the hub; by hand, {by_hand}"
    )]
    Offline {
        /// The address.
        url: String,
        /// The last error.
        why: String,
        /// What to do without a connection.
        by_hand: String,
    },
    /// A server that is not who it says, as far as certificates tell.
    #[error(
        "the certificate of `{url}` was not accepted: {why}; if a proxy of yours stands between, SSL_CERT_FILE names \
         the file with its certificate"
    )]
    Certificate {
        /// The address.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A server that does not give what was asked for.
    #[error("`{url}` answers with status {status}: {help}")]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What to do about it.
        help: &'static str,
    },
    /// A server that sends an encrypted request on to an address where nothing is encrypted.
    #[error(
        "`{url}` sends the request on to `{to}`, where nothing is encrypted and anybody on the way could change the \
         file: fetch it yourself if you trust the way"
    )]
    Downgrade {
        /// The address.
        url: String,
        /// The other one.
        to: String,
    },
    /// A web page in place of a file.
    #[error(
        "`{url}` answers with a web page instead of the file: a proxy or a portal may want a login; open the \
         address in a browser"
    )]
    WebPage {
        /// The address.
        url: String,
    },
    /// A list of files that cannot be understood.
    #[error("`{url}` does not answer with a list of files: {why}; does HF_ENDPOINT name a hub?")]
    Listing {
        /// The address.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file of another size than the list says.
    #[error(
        "`{url}` has {found} bytes, but should have {expected}: it was changed, or a proxy gives another file"
    )]
    Size {
        /// The address.
        url: String,
        /// The right size.
        expected: u64,
        /// The size that the server states.
        found: u64,
    },
    /// A file with another digest than it should have, twice.
    #[error(
        "`{url}` was downloaded twice and has other contents than it should: {found}, not {expected}; it was changed, \
         or a proxy gives another file"
    )]
    Contents {
        /// The address.
        url: String,
        /// The right digest.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// Too many failures in a row.
    #[error(
        "`{url}` was given up after {tries} {} without a further byte: {why}. What has come is kept: the same \
         command goes on from there", if *.tries == 1 { "try" } else { "tries" }
    )]
    GaveUp {
        /// The address.
        url: String,
        /// How often it was tried.
        tries: u32,
        /// The last error.
        why: String,
    },
    /// Servers send on and on what is no part of their answers.
    #[error(
        "`{url}` was given up: {connections} connections send on without an end what is no part of a file; nothing is \
         wrong here, and what has come is kept"
    )]
    Endless {
        /// The last address.
        url: String,
        /// How many.
        connections: usize,
    },
    /// A file with the name is there and holds something else.
    #[error(
        "`{}` is there already with other contents ({what}): remove it, or name another directory with --out",
        path.display()
    )]
    Occupied {
        /// The file.
        path: PathBuf,
        /// In what it differs.
        what: String,
    },
    /// A preparation into the directory has not ended.
    #[error(
        "`{}` holds an unfinished preparation, as `{}` shows: finish it with the same `runner data prepare`, remove \
         both, or name another directory with --out",
        out.display(),
        by.display()
    )]
    Preparing {
        /// The directory.
        out: PathBuf,
        /// What shows it.
        by: PathBuf,
    },
    /// A directory inside the one that is fetched into, which another user has made, who may exchange what is in it.
    #[error(
        "`{}` belongs to user {user}, who can exchange what is fetched into it: choose another \
         directory with --out",
        dir.display()
    )]
    OfAnother {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        user: u32,
    },
    /// Another process fetches into the directory.
    #[error("another process fetches into `{}`: wait until it has ended", out.display())]
    Busy {
        /// The directory.
        out: PathBuf,
    },
    /// A name that leads out of the directory, or means something to programs that come by.
    #[error(
        "`{url}` has the name `{}`, which leads elsewhere than into --out, or means something to programs there: \
         nothing is fetched",
        name.display()
    )]
    Unsafe {
        /// The address.
        url: String,
        /// The name.
        name: PathBuf,
    },
    /// The system refused to read or write a file.
    #[error("could not write `{}`: {error}; check its directory's permissions and the free space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of certificates that cannot be used.
    #[error("SSL_CERT_FILE names `{}`, which {why}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another file failed.
    #[error("another file could not be fetched")]
    Stopped,
}

impl FetchError {
    /// The error with what to do without a connection, if that is what it is about.
    pub(super) fn by_hand(self, by_hand: String) -> Self {
        match self {
            Self::Offline { url, why, .. } => Self::Offline { url, why, by_hand },
            other => other,
        }
    }

    /// Whether what was asked for is at fault, and not a server, a disk or the way to them.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 400..=499),
            Self::Unknown { .. }
            | Self::Address { .. }
            | Self::Password { .. }
            | Self::Token
            | Self::Downgrade { .. }
            | Self::Proxy { .. }
            | Self::From { .. }
            | Self::Shards { .. }
            | Self::NoMatch { .. }
            | Self::Occupied { .. }
            | Self::Preparing { .. }
            | Self::OfAnother { .. }
            | Self::Certificates { .. } => true,
            _ => false,
        }
    }
}
