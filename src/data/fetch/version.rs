//! What tells a version of a file on a server from others.

use super::client::text;
use ureq::http::HeaderMap;

/// The beginning of a tag that two files of one meaning may share (RFC 9110, section 8.8.3).
const WEAK: &str = "W/";

/// What a server states of the version of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version {
    tag: Option<String>,
    /// When it was changed last.
    time: Option<String>,
}

impl Version {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let stated = |name| text(headers, name).map(str::to_owned);
        Self { tag: stated("etag"), time: stated("last-modified") }
    }

    /// The condition under which the rest of the file is of this version (RFC 9110, section 13.1.5). A weak tag is no
    /// condition, and beside a tag the time is none.
    pub(super) fn condition(&self) -> Option<&str> {
        match self.tag.as_deref() {
            Some(tag) => Some(tag).filter(|tag| !tag.starts_with(WEAK)),
            None => self.time.as_deref(),
        }
    }

    /// Why a part of which this was stated cannot be of the version that is known; `None` where it can. A tag comes
    /// with each part (RFC 9110, section 15.3.7), the time of the last change need not. Servers that share their files
    /// may have written them at several times under one strong tag.
    pub(super) fn is_other(&self, known: &Self) -> Option<&'static str> {
        const CHANGED: &str = "the file was changed on the server";
        match (known.meaning(), self.meaning()) {
            (Some(_), None) => {
                return Some("the server does not say any more which version of the file it sends");
            }
            (Some(known), Some(now)) if known != now => return Some(CHANGED),
            _ => {}
        }
        let is_strong = self.tag.as_ref().is_some_and(|tag| !tag.starts_with(WEAK)) && self.tag == known.tag;
        let is_later = self.time.as_ref().zip(known.time.as_ref()).is_some_and(|(now, known)| now != known);
        (is_later && !is_strong).then_some(CHANGED)
    }

    /// What was stated now, and what was known where nothing was.
    pub(super) fn or(self, known: Self) -> Self {
        Self { tag: self.tag.or(known.tag), time: self.time.or(known.time) }
    }

    /// The tag without whether it is weak.
    fn meaning(&self) -> Option<&str> {
        self.tag.as_deref().map(|tag| tag.strip_prefix(WEAK).unwrap_or(tag))
    }
}
