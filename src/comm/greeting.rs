//! What two ends of a new connection say to each other before either of them trusts the other.
//!
//! 1. The guest, a rank that has connected, says which version of this it speaks, which rank of how many it is, and a
//!    random number.
//! 2. The host, rank 0, answers with its version and a random number of its own.
//! 3. The guest proves that it knows the secret (HMAC-SHA256 over version, end, rank, number of ranks and both random
//!    numbers).
//! 4. The host says whether it does, and proves the same of itself.
//!
//! Every message has a fixed length, so a stranger costs no more than [`HELLO`] bytes. Who knows the secret proves it
//! before the host does: a stranger that connects gets no proof from which it could guess a short secret.

use super::secret::{End, PROOF, Secret};

/// The first bytes of both ends; the last of them is the version of everything that ranks send each other.
pub(super) const MAGIC: &[u8; 14] = b"runner ranks 3";
/// Bytes of a random number.
pub(super) const NONCE: usize = 32;
/// Bytes of what a guest says first: [`MAGIC`], its rank, the number of ranks, its random number.
pub(super) const HELLO: usize = MAGIC.len() + 8 + NONCE;
/// Bytes of the host's first answer: [`MAGIC`] and its random number.
pub(super) const CHALLENGE: usize = MAGIC.len() + NONCE;
/// Bytes of the host's second answer: a verdict and its own proof.
pub(super) const VERDICT: usize = 1 + PROOF;

/// Version 1 said hello in a message like those that follow the greeting.
const OLDER: &[u8] = b"\0\x16\0\0\0\0\0\0\0runner ranks ";
const WELCOME: u8 = 0;
const WRONG_SECRET: u8 = 1;

/// What a proof is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The random number of the rank that has connected.
    pub(super) of_guest: [u8; NONCE],
    /// The random number of rank 0.
    pub(super) of_host: [u8; NONCE],
}

/// Rank 0's side of one greeting. It knows nothing of connections: it is given bytes and returns bytes.
#[derive(Debug)]
pub struct Greeting {
    nonce: [u8; NONCE],
    /// What the guest has said in full.
    terms: Option<Terms>,
    /// The beginning of the message that is still arriving.
    partial: Vec<u8>,
}

/// What came of some bytes of a greeting.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The message is not complete.
    Partial,
    /// The answer to a whole message; the greeting goes on.
    Answer(Vec<u8>),
    /// The guest has proved that it belongs to this run. The greeting is over once it has the answer.
    Proved {
        /// The rank that it says it is, and the number of ranks that it was started with.
        rank: usize,
        /// That number.
        size: usize,
        /// What to send.
        answer: Vec<u8>,
    },
    /// The guest does not belong here. It gets the answer and no more.
    Refused {
        /// What to send, which may be nothing.
        answer: Vec<u8>,
        /// What is wrong with the guest.
        why: Refusal,
    },
}

/// Why a guest was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is no rank of this program.
    Stranger,
    /// It speaks another version.
    Version,
    /// It does not know the secret.
    Secret {
        /// The rank that it says it is.
        rank: usize,
        /// The number of ranks that it says it was started with.
        size: usize,
    },
}

impl Greeting {
    /// The side of a rank 0 with this random number, which must never be used again.
    pub fn new(nonce: [u8; 32]) -> Self {
        Self { nonce, terms: None, partial: Vec::new() }
    }

    /// How many bytes the message that is arriving still lacks: more must not be read from the guest.
    pub fn lacks(&self) -> usize {
        let whole = if self.terms.is_some() { PROOF } else { HELLO };
        whole - self.partial.len()
    }

    /// Whether the guest has said who it is, which no stranger does by chance.
    pub(super) fn is_begun(&self) -> bool {
        self.terms.is_some()
    }

    /// Takes bytes that have arrived. What exceeds [`lacks`](Self::lacks) is left out.
    pub fn hear(&mut self, secret: &Secret, bytes: &[u8]) -> Heard {
        self.partial.extend_from_slice(&bytes[..bytes.len().min(self.lacks())]);
        match self.terms {
            None => self.hello(),
            Some(_) if self.lacks() > 0 => Heard::Partial,
            Some(terms) => self.proof(secret, &terms),
        }
    }

    fn hello(&mut self) -> Heard {
        let begins = |whole: &[u8]| self.partial.iter().zip(whole).all(|(a, b)| a == b);
        let refused = |why, answer| Heard::Refused { answer, why };
        let named = MAGIC.len() - 1;
        if self.partial.len() >= OLDER.len() && begins(OLDER) {
            return refused(Refusal::Version, to_version_1());
        }
        if begins(&MAGIC[..named]) && self.partial.get(named).is_some_and(|version| *version != MAGIC[named])
        {
            // by which the guest sees the version
            return refused(Refusal::Version, self.challenge());
        }
        if !begins(MAGIC) && !begins(OLDER) {
            return refused(Refusal::Stranger, Vec::new());
        }
        if self.lacks() > 0 {
            return Heard::Partial;
        }
        let said = &self.partial[MAGIC.len()..];
        let number = |at: usize| u32::from_le_bytes([said[at], said[at + 1], said[at + 2], said[at + 3]]);
        let mut of_guest = [0; NONCE];
        of_guest.copy_from_slice(&said[8..]);
        self.terms = Some(Terms { rank: number(0), size: number(4), of_guest, of_host: self.nonce });
        self.partial.clear();
        Heard::Answer(self.challenge())
    }

    fn challenge(&self) -> Vec<u8> {
        [&MAGIC[..], &self.nonce].concat()
    }

    fn proof(&mut self, secret: &Secret, terms: &Terms) -> Heard {
        let proof = std::mem::take(&mut self.partial);
        let (rank, size) = (terms.rank as usize, terms.size as usize);
        if secret.is_proved(End::Guest, terms, &proof) {
            let own = secret.prove(End::Host, terms);
            return Heard::Proved { rank, size, answer: [&[WELCOME][..], &own].concat() };
        }
        let answer = [&[WRONG_SECRET][..], &[0; PROOF]].concat();
        Heard::Refused { answer, why: Refusal::Secret { rank, size } }
    }
}

/// Why a guest does not go on with what it has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It is not a rank 0 of this program.
    Stranger,
    /// It speaks another version.
    Version,
    /// It says that the guest does not know its secret.
    TurnedAway,
    /// It has not proved that it knows the secret.
    Unproved,
}

/// A guest's side of a greeting.
#[derive(Debug)]
pub(super) struct Introduction(Terms);

impl Introduction {
    /// Of rank `rank` of `size`, with a random number that must never be used again.
    pub(super) fn new(rank: usize, size: usize, nonce: [u8; NONCE]) -> Self {
        Self(Terms { rank: rank as u32, size: size as u32, of_guest: nonce, of_host: [0; NONCE] })
    }

    /// What the guest says first.
    pub(super) fn hello(&self) -> Vec<u8> {
        let Terms { rank, size, of_guest, .. } = &self.0;
        [&MAGIC[..], &rank.to_le_bytes(), &size.to_le_bytes(), of_guest].concat()
    }

    /// The guest's answer to the host's challenge.
    pub(super) fn answer(&mut self, secret: &Secret, challenge: &[u8; CHALLENGE]) -> Result<Vec<u8>, Doubt> {
        let named = MAGIC.len() - 1;
        if challenge[..named] != MAGIC[..named] {
            return Err(Doubt::Stranger);
        }
        if challenge[named] != MAGIC[named] {
            return Err(Doubt::Version);
        }
        self.0.of_host.copy_from_slice(&challenge[MAGIC.len()..]);
        Ok(secret.prove(End::Guest, &self.0).to_vec())
    }

    /// Whether the host's verdict is a welcome by one that knows the secret.
    pub(super) fn accept(&self, secret: &Secret, verdict: &[u8; VERDICT]) -> Result<(), Doubt> {
        match verdict[0] {
            WELCOME if secret.is_proved(End::Host, &self.0, &verdict[1..]) => Ok(()),
            WRONG_SECRET => Err(Doubt::TurnedAway),
            _ => Err(Doubt::Unproved),
        }
    }
}

/// A failure in the words and the framing of version 1, which ends such a rank at once.
fn to_version_1() -> Vec<u8> {
    const NOTICE: u8 = 1;
    let text =
        br#"{"Failed":"rank 0 speaks a newer version of this protocol: all ranks must be the same build of runner"}"#;
    [&[NOTICE][..], &(text.len() as u64).to_le_bytes(), text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(byte: u8) -> Secret {
        Secret::new(vec![byte; 16], "a test").expect("long enough")
    }

    /// What a host with secret `host` hears from a guest with secret `guest`, and what the guest makes of it.
    fn greet(host: &Secret, guest: &Secret) -> (Heard, Result<(), Doubt>) {
        let (mut greeting, mut mine) = (Greeting::new([7; NONCE]), Introduction::new(3, 5, [9; NONCE]));
        let Heard::Answer(challenge) = greeting.hear(host, &mine.hello()) else { panic!("a whole hello") };
        let challenge = challenge.try_into().expect("a challenge");
        let heard = greeting.hear(host, &mine.answer(guest, &challenge).expect("the same version"));
        let verdict = match &heard {
            Heard::Proved { answer, .. } | Heard::Refused { answer, .. } => answer.clone(),
            other => panic!("{other:?}"),
        };
        let accepted = mine.accept(guest, &verdict.try_into().expect("a verdict"));
        (heard, accepted)
    }

    #[test]
    fn who_knows_the_secret_is_let_in_by_who_knows_it() {
        let (heard, accepted) = greet(&secret(1), &secret(1));
        assert!(matches!(heard, Heard::Proved { rank: 3, size: 5, .. }) && accepted.is_ok());
        let (heard, accepted) = greet(&secret(1), &secret(2));
        assert!(matches!(heard, Heard::Refused { why: Refusal::Secret { rank: 3, size: 5 }, .. }));
        assert_eq!(accepted, Err(Doubt::TurnedAway));
    }

    #[test]
    fn a_false_rank_0_is_found_out() {
        let secret = secret(1);
        let mut mine = Introduction::new(1, 2, [9; NONCE]);
        let challenge = [&MAGIC[..], &[5; NONCE]].concat().try_into().expect("a challenge");
        let proof = mine.answer(&secret, &challenge).expect("the same version");
        // what it has heard, or what it makes up
        for made_up in [proof, vec![0; PROOF], vec![0xff; PROOF]] {
            let verdict = [&[WELCOME][..], &made_up].concat().try_into().expect("a verdict");
            assert_eq!(mine.accept(&secret, &verdict), Err(Doubt::Unproved));
        }
        assert_eq!(mine.answer(&secret, &[b'S'; CHALLENGE]), Err(Doubt::Stranger));
        let newer = [&b"runner ranks 4"[..], &[5; NONCE]].concat().try_into().expect("a challenge");
        assert_eq!(mine.answer(&secret, &newer), Err(Doubt::Version));
    }

    #[test]
    fn a_recorded_greeting_opens_no_other_door() {
        let secret = secret(1);
        let mut mine = Introduction::new(1, 2, [9; NONCE]);
        let mut first = Greeting::new([1; NONCE]);
        let Heard::Answer(challenge) = first.hear(&secret, &mine.hello()) else { panic!("a whole hello") };
        let proof = mine.answer(&secret, &challenge.try_into().expect("a challenge")).expect("one version");
        assert!(matches!(first.hear(&secret, &proof), Heard::Proved { .. }));
        let mut second = Greeting::new([2; NONCE]);
        assert!(matches!(second.hear(&secret, &mine.hello()), Heard::Answer(_)));
        assert!(matches!(second.hear(&secret, &proof), Heard::Refused { why: Refusal::Secret { .. }, .. }));
    }

    #[test]
    fn other_versions_are_told_so() {
        let older = [OLDER, b"1\x01\0\0\0\x02\0\0\0"].concat();
        let Heard::Refused { answer, why: Refusal::Version } =
            Greeting::new([1; NONCE]).hear(&secret(1), &older)
        else {
            panic!("an older hello")
        };
        let (head, text) = answer.split_at(9);
        assert_eq!((head[0], u64::from(head[1])), (1, text.len() as u64));
        let notice: serde_json::Value = serde_json::from_slice(text).expect("as version 1 wrote them");
        assert!(notice["Failed"].as_str().is_some_and(|text| text.contains("same build")));
        let Heard::Refused { answer, why: Refusal::Version } =
            Greeting::new([1; NONCE]).hear(&secret(1), b"runner ranks 4, and more")
        else {
            panic!("a newer hello")
        };
        assert!(answer.starts_with(MAGIC) && answer.len() == CHALLENGE);
    }

    proptest! {
        /// Whatever a stranger says, in whatever pieces: it is never let in, and no more than a hello is kept.
        #[test]
        fn strangers_are_not_let_in(
            rank in 0..2_u32, bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1..40_usize,
            begun in 0..=HELLO
        ) {
            let secret = secret(1);
            let hello = [&MAGIC[..], &rank.to_le_bytes(), &2_u32.to_le_bytes(), &[9; NONCE]].concat();
            let said = [&hello[..begun], &bytes].concat();
            let mut greeting = Greeting::new([1; NONCE]);
            let mut ended = false;
            for piece in said.chunks(cut) {
                prop_assert!((1..=HELLO).contains(&greeting.lacks()));
                let heard = greeting.hear(&secret, piece);
                prop_assert!(greeting.partial.len() <= HELLO);
                match heard {
                    Heard::Partial => prop_assert!(greeting.lacks() > 0),
                    Heard::Answer(answer) => prop_assert!(!ended && answer.len() == CHALLENGE),
                    Heard::Refused { answer, .. } => {
                        prop_assert!(answer.len() <= 128);
                        ended = true;
                        break;
                    }
                    Heard::Proved { .. } => prop_assert!(false, "let in"),
                }
            }
            prop_assert!(ended || said.len() < HELLO + PROOF + 2 * cut);
        }
    }
}
