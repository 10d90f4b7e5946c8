//! Where rank 0 listens: on the addresses that the others look for it at, if they are this machine's.

use super::CommError;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

/// Rank 0's listening sockets.
///
/// An address that is written out is taken literally. The addresses of a name are taken unless they lead to the
/// loopback, as those of many machines do for their own name, and only for them. Where none is this machine's
/// (others reach it through another one that translates addresses), and for `0.0.0.0` and `::`, it listens on all
/// addresses.
pub(super) fn listen(host: &str, port: u16) -> Result<Vec<TcpListener>, CommError> {
    let failed = |error: std::io::Error| {
        CommError::Failed(format!(
            "rank 0 cannot listen on port {port} for the other ranks: {error}; choose another one with MASTER_PORT"
        ))
    };
    let mut listeners = Vec::new();
    for address in candidates(host, port) {
        match TcpListener::bind(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                return Err(failed(error));
            }
            // another machine's, or of a kind that this one does not have
            Err(_) => {}
        }
    }
    if listeners.is_empty() {
        // a machine without IPv6
        let all = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
        listeners.push(all.map_err(failed)?);
    }
    Ok(listeners)
}

/// The addresses to try.
fn candidates(host: &str, port: u16) -> Vec<SocketAddr> {
    let is_loopback_meant = host == "localhost" || host.parse::<IpAddr>().is_ok();
    let found = (host, port).to_socket_addrs().into_iter().flatten();
    let mut addresses: Vec<SocketAddr> = found
        .filter(|address| {
            !address.ip().is_unspecified() && (is_loopback_meant || !address.ip().is_loopback())
        })
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_where_the_others_look() {
        for host in ["127.0.0.1", "127.0.0.2", "127.9.8.7"] {
            let listeners = listen(host, 0).expect("the loopback");
            let at: Vec<String> = listeners
                .iter()
                .map(|listener| listener.local_addr().expect("an address").ip().to_string())
                .collect();
            assert_eq!(at, [host]);
        }
        let of = |host| listen(host, 0).expect("an address");
        assert!(of("localhost").iter().all(|one| one.local_addr().expect("an address").ip().is_loopback()));
        // an address of no machine (RFC 5737), and all addresses
        for host in ["192.0.2.1", "0.0.0.0", "::"] {
            let listeners = of(host);
            assert_eq!(listeners.len(), 1, "{host}");
            assert!(listeners[0].local_addr().expect("an address").ip().is_unspecified(), "{host}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_refused() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = taken.local_addr().expect("an address").port();
        let error = listen("127.0.0.1", port).expect_err("it is taken");
        assert!(error.to_string().contains("MASTER_PORT"), "{error}");
    }
}
