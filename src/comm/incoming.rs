//! Messages between ranks as bytes: one byte for the kind, eight for the length (little endian), then the contents.
//!
//! Nothing is allocated by an announced length: what is held grows with the bytes that have arrived, and a length that
//! no rank would send is refused before they have.

use std::collections::VecDeque;

/// What a message is about, as its first byte says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Data = 0,
    Notice = 1,
    SignOfLife = 2,
}

/// Bytes before the contents of a message.
const HEAD: usize = 9;
/// The longest notice in bytes: one that names all ranks of the largest run fits.
const LONGEST_NOTICE: usize = 1 << 20;
/// What a message that has arrived takes besides its contents, in bytes.
const BESIDES: usize = size_of::<Received>();

/// What arrived on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Data(Vec<u8>),
    /// A failure that concerns all ranks.
    Notice(Vec<u8>),
    /// The peer is alive, but waits for others or does something slow.
    SignOfLife,
    /// No whole message arrived in time.
    Nothing,
}

/// The longest message that ranks of a run of `size` send each other, in bytes: values, or what all of them say of
/// themselves.
pub fn longest(size: usize) -> usize {
    (64 << 20) + size * (64 << 10)
}

/// Appends a message to what is to be sent.
pub(super) fn put(kind: Kind, contents: &[u8], into: &mut Vec<u8>) {
    into.push(kind as u8);
    into.extend((contents.len() as u64).to_le_bytes());
    into.extend(contents);
}

/// The messages that arrive on one connection.
#[derive(Debug)]
pub struct Incoming {
    /// The most bytes that a message may have.
    longest: usize,
    /// The bytes of the message that is still arriving.
    partial: Vec<u8>,
    arrived: VecDeque<Received>,
    /// The bytes that the messages which have arrived take.
    held: usize,
}

impl Incoming {
    /// Of a connection whose messages have at most `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self { longest, partial: Vec::new(), arrived: VecDeque::new(), held: 0 }
    }

    /// Takes bytes that have arrived.
    ///
    /// # Errors
    /// What is wrong with them, if no rank would send them. Nothing that follows can be understood then.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(head) = self.partial.get(start..start + HEAD) {
            let (kind, length) = self.announced(head)?;
            let end = start + HEAD + length;
            let Some(contents) = self.partial.get(start + HEAD..end) else { break };
            let message = match kind {
                Kind::Data => Received::Data(contents.to_vec()),
                Kind::Notice => Received::Notice(contents.to_vec()),
                Kind::SignOfLife => Received::SignOfLife,
            };
            // one tells as much as several
            if message != Received::SignOfLife || self.arrived.back() != Some(&Received::SignOfLife) {
                self.held += length + BESIDES;
                self.arrived.push_back(message);
            }
            start = end;
        }
        self.partial.drain(..start);
        Ok(())
    }

    /// The kind and the length that the head of a message announces.
    fn announced(&self, head: &[u8]) -> Result<(Kind, usize), &'static str> {
        let (kind, most) = match head[0] {
            0 => (Kind::Data, self.longest),
            1 => (Kind::Notice, self.longest.min(LONGEST_NOTICE)),
            2 => (Kind::SignOfLife, 0),
            _ => return Err("a message of an unknown kind"),
        };
        let length = head[1..].try_into().map_or(u64::MAX, u64::from_le_bytes);
        match usize::try_from(length) {
            Ok(length) if length <= most => Ok((kind, length)),
            _ => Err("a message of impossible length"),
        }
    }

    /// The next message. A notice overtakes all others.
    pub fn pop(&mut self) -> Option<Received> {
        self.notice().map(Received::Notice).or_else(|| {
            let message = self.arrived.pop_front()?;
            self.count_out(&message);
            Some(message)
        })
    }

    /// The next notice, which overtakes all other messages.
    pub(super) fn notice(&mut self) -> Option<Vec<u8>> {
        let place = self.arrived.iter().position(|message| matches!(message, Received::Notice(_)))?;
        let message = self.arrived.remove(place)?;
        self.count_out(&message);
        match message {
            Received::Notice(notice) => Some(notice),
            _ => None,
        }
    }

    /// Whether a sign of life has arrived; removes it from what has arrived.
    pub(super) fn has_shown_life(&mut self) -> bool {
        let before = self.arrived.len();
        self.arrived.retain(|message| *message != Received::SignOfLife);
        let gone = before - self.arrived.len();
        self.held -= gone * BESIDES;
        gone > 0
    }

    /// Whether a whole message has arrived.
    pub(super) fn is_whole(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether no byte of the next message has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty() && self.arrived.is_empty()
    }

    /// The bytes of memory that messages take, whole ones and the one that is arriving.
    pub fn held(&self) -> usize {
        self.held + self.partial.len()
    }

    fn count_out(&mut self, message: &Received) {
        let contents = match message {
            Received::Data(contents) | Received::Notice(contents) => contents.len(),
            Received::SignOfLife | Received::Nothing => 0,
        };
        self.held -= contents + BESIDES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = (Kind, Vec<u8>)> {
        let contents = || prop::collection::vec(any::<u8>(), 0..50);
        prop_oneof![
            contents().prop_map(|contents| (Kind::Data, contents)),
            contents().prop_map(|contents| (Kind::Notice, contents)),
            Just((Kind::SignOfLife, Vec::new())),
        ]
    }

    fn all(incoming: &mut Incoming) -> Vec<Received> {
        std::iter::from_fn(|| incoming.pop()).collect()
    }

    proptest! {
        #[test]
        fn messages_survive_any_cuts(
            messages in prop::collection::vec(message(), 0..12), cuts in prop::collection::vec(1..60_usize, 1..20)
        ) {
            let mut bytes = Vec::new();
            messages.iter().for_each(|(kind, contents)| put(*kind, contents, &mut bytes));
            let mut incoming = Incoming::new(50);
            let (mut rest, mut cuts) = (bytes.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().expect("endless")));
                prop_assert!(incoming.take(piece).is_ok());
                rest = after;
            }
            let of = |wanted: Kind| messages.iter().filter(move |(kind, _)| *kind == wanted);
            let notices = of(Kind::Notice).map(|(_, contents)| Received::Notice(contents.clone()));
            let data = of(Kind::Data).map(|(_, contents)| Received::Data(contents.clone()));
            let mut got = all(&mut incoming);
            let signs = of(Kind::SignOfLife).count();
            let before = got.len();
            got.retain(|message| *message != Received::SignOfLife);
            prop_assert!(before - got.len() <= signs && (signs == 0) == (before == got.len()));
            prop_assert_eq!(got, notices.chain(data).collect::<Vec<_>>());
            prop_assert!(incoming.is_empty() && incoming.held() == 0);
        }

        /// Whatever arrives in whatever pieces: what is held is no more than what has arrived, and the heads that it
        /// has cost.
        #[test]
        fn any_bytes_are_messages_or_refused(
            bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(2), 3..9_u8, any::<u8>()], 0..400),
            cut in 1..50_usize
        ) {
            let mut incoming = Incoming::new(1 << 20);
            let mut arrived = 0;
            for piece in bytes.chunks(cut) {
                arrived += piece.len();
                if incoming.take(piece).is_err() {
                    return Ok(());
                }
                prop_assert!(incoming.held() <= arrived + arrived.div_ceil(HEAD) * BESIDES);
                prop_assert!(incoming.partial.capacity() <= 2 * arrived.max(8));
            }
            let contents: usize = all(&mut incoming).iter().map(|message| match message {
                Received::Data(contents) | Received::Notice(contents) => contents.len(),
                _ => 0,
            }).sum();
            prop_assert!(contents <= bytes.len());
            prop_assert_eq!(incoming.held(), incoming.partial.len());
        }
    }

    #[test]
    fn a_length_that_no_rank_would_send_is_refused_before_its_bytes() {
        let longest = longest(2);
        for (kind, length) in [(0, 1 << 32), (0, u64::MAX), (0, longest as u64 + 1), (1, 1 << 21), (2, 1)] {
            let head = [&[kind][..], &length.to_le_bytes()].concat();
            assert!(Incoming::new(longest).take(&head).is_err(), "{kind} {length}");
        }
        let mut incoming = Incoming::new(longest);
        let head = [&[0][..], &(longest as u64).to_le_bytes()].concat();
        assert_eq!(incoming.take(&head), Ok(()));
        assert!(incoming.partial.capacity() < 100, "it is not allocated by what is announced");
        assert!(Incoming::new(9).take(&[9; HEAD]).is_err(), "an unknown kind");
    }
}
