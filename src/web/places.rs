//! Who has a connection. Whether the other end of a stream reads cannot be told while all that waits for it fits into
//! the buffers of both systems, so nobody keeps a stream against somebody who asks: a browser whose stream is ended
//! opens another one.

use super::{LEFT_ALONE, LONG_ENOUGH, MOST_CONNECTIONS};
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
    standing: Standing,
}

/// What a connection is, in the order in which they make room; those of a kind in the order of their age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// No request has come yet, which anyone can leave so.
    Asked { since: Instant },
    /// A stream of events.
    Streams { since: Instant },
    /// A request that is answered, which does not make room.
    Answered,
}

impl Standing {
    /// Whether it makes room where so many connections are without a request: of a flood of them, even new ones do, for
    /// a reader's request comes at once.
    fn makes_room(self, without: usize) -> bool {
        match self {
            Self::Asked { since } => without > MOST_CONNECTIONS / 2 || since.elapsed() >= LONG_ENOUGH,
            Self::Streams { since } => since.elapsed() >= LEFT_ALONE,
            Self::Answered => false,
        }
    }
}

/// The place of a connection, which is free again when this is dropped, or taken from it before.
pub(super) struct Place {
    places: Places,
    number: u64,
}

impl Places {
    /// A place for a connection. Where all are taken, the oldest one without a request is ended for it, or else the
    /// oldest stream of events. `None` if there is none that has been left alone for long enough.
    pub(super) fn take(&self, stream: &Arc<TcpStream>) -> Option<Place> {
        let mut taken = self.taken();
        if taken.all.len() >= MOST_CONNECTIONS {
            let is_without = |one: &&Connection| matches!(one.standing, Standing::Asked { .. });
            let without = taken.all.iter().filter(is_without).count();
            let standing = taken.all.iter().enumerate().map(|(at, one)| (one.standing, at));
            let (_, oldest) = standing.filter(|(standing, _)| standing.makes_room(without)).min()?;
            // its thread sees that at its next read or write
            let _ = taken.all.swap_remove(oldest).stream.shutdown(Shutdown::Both);
        }
        let number = taken.count;
        taken.count += 1;
        let standing = Standing::Asked { since: Instant::now() };
        taken.all.push(Connection { number, stream: Arc::clone(stream), standing });
        Some(Place { places: Self(Arc::clone(&self.0)), number })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// From now on this is the place of a request that may be answered.
    pub(super) fn is_answered(&self) {
        self.is(Standing::Answered);
    }

    /// From now on this is the place of a stream of events.
    pub(super) fn is_a_stream(&self) {
        self.is(Standing::Streams { since: Instant::now() });
    }

    fn is(&self, standing: Standing) {
        let mut taken = self.places.taken();
        let mine = taken.all.iter_mut().find(|connection| connection.number == self.number);
        mine.into_iter().for_each(|connection| connection.standing = standing);
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
        held[MOST_CONNECTIONS / 2..].iter().for_each(Place::is_answered);
        assert!(places.take(&connect()).is_none(), "a request may still come");
        held.iter().for_each(Place::is_answered);
        held[3].is_a_stream();
        assert!(places.take(&connect()).is_none(), "requests keep their places, and so does a new stream");
        let ago = |after: Duration, more: usize| {
            let long_ago = Instant::now().checked_sub(after + Duration::from_secs(more as u64));
            long_ago.expect("the machine runs for longer")
        };
        let back = |at: usize| held[at].is(Standing::Streams { since: ago(LEFT_ALONE, at) });
        [3, 5, 4].into_iter().for_each(back);
        let is_there = |number: u64| places.taken().all.iter().any(|connection| connection.number == number);
        held[7].is(Standing::Asked { since: ago(LONG_ENOUGH, 0) });
        let first = places.take(&connect()).expect("the place of one that asks for nothing");
        assert!(!is_there(7) && is_there(5));
        first.is_answered();
        // of a flood, one that has only just come
        let flood = &held[10..MOST_CONNECTIONS];
        flood.iter().for_each(|held| held.is(Standing::Asked { since: Instant::now() }));
        let second = places.take(&connect()).expect("a place of the flood");
        assert!(is_there(5), "a stream stays");
        flood.iter().for_each(Place::is_answered);
        second.is_answered();
        let instead = places.take(&connect()).expect("the place of the oldest stream");
        assert!(!is_there(5));
        assert_eq!(places.taken().all.len(), MOST_CONNECTIONS);
        // the end of one whose place was taken frees no other
        drop(held.remove(5));
        assert_eq!(places.taken().all.len(), MOST_CONNECTIONS);
        drop(instead);
        assert!(places.take(&connect()).is_some());
    }
}
