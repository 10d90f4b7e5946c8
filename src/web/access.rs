//! Who may read: those that know the token, or on the loopback those that name it.

use super::request::{Refusal, Request};
use std::net::IpAddr;

/// What a request must have.
#[derive(Debug, Clone)]
pub struct Access {
    token: Option<String>,
}

/// A refusal, and what there is to say about it, if anything.
type Refused = (Refusal, Option<String>);

impl Access {
    /// For a listener that only this machine reaches. A page of another site may have its name lead here, which this
    /// server tells by the name: it must be `localhost` or an address. Tunnels change the port only.
    #[must_use]
    pub fn of_loopback() -> Self {
        Self { token: None }
    }

    /// For those whose address begins with this word.
    #[must_use]
    pub fn by_token(token: String) -> Self {
        Self { token: Some(token) }
    }

    /// The request without the token, if it may be answered.
    pub(super) fn admit(&self, mut request: Request) -> Result<Request, Refused> {
        match &self.token {
            None => {
                let host = request.host.as_deref().unwrap_or_default();
                if !is_literal(host) {
                    let why =
                        format!("a request for the host `{host}` was refused: use localhost or 127.0.0.1");
                    return Err((Refusal::Forbidden, Some(why)));
                }
            }
            Some(token) => {
                let given = request.path.strip_prefix('/').and_then(|path| path.split_once('/'));
                match given {
                    Some((word, rest)) if is_same(word, token) => request.path = format!("/{rest}"),
                    _ => return Err((Refusal::Forbidden, None)),
                }
            }
        }
        // a page of another site could not read an answer, and has no business to ask
        let (host, site) = (request.host.as_deref().unwrap_or_default(), request.fetch_site.as_deref());
        let is_foreign = site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
            || request.origin.as_deref().is_some_and(|origin| !is_of(origin, host));
        // but a link of it may lead to the page
        let is_link = request.fetch_mode.as_deref() == Some("navigate") && request.path == "/";
        if is_foreign && !is_link {
            return Err((Refusal::Forbidden, None));
        }
        if request.is_other { Err((Refusal::Method, None)) } else { Ok(request) }
    }
}

/// Whether two words are the same, in a time that does not tell where they differ: digests of both are compared, which
/// `blake3` does in constant time.
fn is_same(a: &str, b: &str) -> bool {
    blake3::hash(a.as_bytes()) == blake3::hash(b.as_bytes())
}

/// Whether an `Origin` is that of pages of this host. A tunnel may have another scheme.
fn is_of(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, from)| !host.is_empty() && from.eq_ignore_ascii_case(host))
}

/// Whether a `Host` is an address or `localhost`, with or without a port.
fn is_literal(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => (address, port),
            _ => return false,
        },
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let name = name.strip_suffix('.').unwrap_or(name);
    is_port && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_localhost() {
        for host in
            ["localhost", "LocalHost:8080", "127.0.0.1:1", "127.0.0.2", "[::1]:9", "[::1]", "10.1.2.3:80"]
        {
            assert!(is_literal(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:80",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1",
            "[x]:1",
        ] {
            assert!(!is_literal(host), "{host}");
        }
        assert!(!is_literal("127.0.0.1:x") && !is_literal("127.0.0.1:99999") && !is_literal("a:b:c"));
    }

    #[test]
    fn a_token_comes_first_in_the_path() {
        let access = Access::by_token("0123".into());
        let of = |path: &str| {
            access.admit(Request { path: path.into(), ..Request::default() }).map(|request| request.path).ok()
        };
        assert_eq!(of("/0123/"), Some("/".to_owned()));
        assert_eq!(of("/0123/events"), Some("/events".to_owned()));
        for path in ["", "/", "/0123", "/012/", "/01234/", "0123/", "//0123/", "/0124/events"] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn a_page_of_another_site_may_only_lead_here() {
        let access = Access::of_loopback();
        let to = |path: &str, site: &str, mode: &str| {
            let word = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let request = Request {
                path: path.to_owned(),
                host: word("localhost:1"),
                fetch_site: word(site),
                fetch_mode: word(mode),
                ..Request::default()
            };
            access.admit(request).is_ok()
        };
        let of = |site: &str, mode: &str| to("/", site, mode);
        assert!(!to("/compare", "cross-site", "navigate") && to("/compare", "same-origin", "cors"));
        assert!(
            of("", "") && of("none", "navigate") && of("same-origin", "cors") && of("cross-site", "navigate")
        );
        assert!(!of("cross-site", "cors") && !of("same-site", "no-cors") && !of("cross-site", ""));
        let from = |origin: &str| {
            let word = |text: &str| Some(text.to_owned());
            access
                .admit(Request { host: word("localhost:1"), origin: word(origin), ..Request::default() })
                .is_ok()
        };
        assert!(from("http://localhost:1") && from("https://LOCALHOST:1"));
        for origin in ["http://evil.example", "null", "", "http://localhost:2", "localhost:1"] {
            assert!(!from(origin), "{origin}");
        }
    }
}
