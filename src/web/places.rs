//! Who has a connection. Whether the other end of a stream reads cannot be told while all that waits for it fits into
//! the buffers of both systems, so nobody keeps a stream against somebody who asks: a browser whose stream is ended
//! opens another one.

use super::{LEFT_ALONE, MOST_CONNECTIONS};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The connections that are open.
#[derive(Default)]
pub(super) struct Places(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    all: Vec<Connection>,
    /// Connections so far, which number them.
    count: u64,
}

struct Connection {
    number: u64,
    stream: Arc<TcpStream>,
    /// When it became a stream of events.
    streams_since: Option<Instant>,
}

/// The place of a connection, which is free again when this is dropped, or taken from it before.
pub(super) struct Place {
    places: Places,
    number: u64,
}

impl Places {
    /// A place for a connection. Where all are taken, the oldest stream of events is ended for it. `None` if there is
    /// none that has been left alone for long enough.
    pub(super) fn take(&self, stream: &Arc<TcpStream>) -> Option<Place> {
        let mut taken = self.taken();
        if taken.all.len() >= MOST_CONNECTIONS {
            let since = |connection: &Connection| connection.streams_since;
            let streams = taken.all.iter().enumerate().filter_map(|(at, one)| Some((since(one)?, at)));
            let (since, oldest) = streams.min()?;
            if since.elapsed() < LEFT_ALONE {
                return None;
            }
            // its thread sees that at its next write
            let _ = taken.all.swap_remove(oldest).stream.shutdown(Shutdown::Both);
        }
        let number = taken.count;
        taken.count += 1;
        taken.all.push(Connection { number, stream: Arc::clone(stream), streams_since: None });
        Some(Place { places: Self(Arc::clone(&self.0)), number })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// From now on this is the place of a stream of events.
    pub(super) fn is_a_stream(&self) {
        let mut taken = self.places.taken();
        let mine = taken.all.iter_mut().find(|connection| connection.number == self.number);
        mine.into_iter().for_each(|connection| connection.streams_since = Some(Instant::now()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().all.retain(|connection| connection.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn a_stream_that_is_old_enough_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let connect = || Arc::new(TcpStream::connect(address).expect("it listens"));
        let places = Places::default();
        let mut held: Vec<Place> =
            (0..MOST_CONNECTIONS).map(|_| places.take(&connect()).expect("room")).collect();
        assert!(places.take(&connect()).is_none(), "requests keep their places");
        held[3].is_a_stream();
        assert!(places.take(&connect()).is_none(), "so does a new stream");
        let back = |at: usize| {
            let long_ago = Instant::now().checked_sub(LEFT_ALONE + Duration::from_secs(at as u64));
            places.taken().all[at].streams_since = Some(long_ago.expect("the machine runs for longer"));
        };
        [3, 5, 4].into_iter().for_each(back);
        let instead = places.take(&connect()).expect("the place of the oldest stream");
        assert!(places.taken().all.iter().all(|connection| connection.number != 5));
        assert_eq!(places.taken().all.len(), MOST_CONNECTIONS);
        // the end of one whose place was taken frees no other
        drop(held.remove(5));
        assert_eq!(places.taken().all.len(), MOST_CONNECTIONS);
        drop(instead);
        assert!(places.take(&connect()).is_some());
    }
}
