//! What the ranks of a run know and nobody else does, and how one proves to another that it knows it.

use super::greeting::{MAGIC, NONCE, Terms};
use hmac::{Hmac, KeyInit, Mac};
use rand::RngCore;
use rand::rngs::OsRng;
use sha2::Sha256;
use std::fmt;

/// Bytes of a proof.
pub(super) const PROOF: usize = 32;

/// A secret that all ranks share. It never crosses the wire, and no message shows it.
pub struct Secret {
    bytes: Vec<u8>,
    origin: String,
}

/// Which end of a connection proves something. A proof of one end is none of the other, so none can be sent back.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The rank that has connected.
    Guest = 1,
    /// Rank 0.
    Host = 2,
}

impl Secret {
    /// The fewest bytes of a secret: a shorter one could be guessed from one recorded greeting.
    pub const SHORTEST: usize = 16;
    /// The bytes of a secret that the program makes.
    const MADE: usize = 32;

    /// A secret, and for people where it is from. `None` if it has fewer bytes than [`SHORTEST`](Self::SHORTEST).
    #[must_use]
    pub fn new(bytes: Vec<u8>, origin: impl Into<String>) -> Option<Self> {
        (bytes.len() >= Self::SHORTEST).then(|| Self { bytes, origin: origin.into() })
    }

    /// Random bytes for a new secret, from the operating system.
    ///
    /// # Errors
    /// Where the system has none.
    pub fn random() -> Result<[u8; Self::MADE], String> {
        random()
    }

    /// Where it is from, for people.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    fn mac(&self, end: End, terms: &Terms) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.bytes).expect("HMAC takes keys of any length");
        // every part has a fixed length, so no two terms make the same text
        mac.update(MAGIC);
        mac.update(&[end as u8]);
        mac.update(&terms.rank.to_le_bytes());
        mac.update(&terms.size.to_le_bytes());
        mac.update(&terms.of_guest);
        mac.update(&terms.of_host);
        mac
    }

    /// Proves at one end that it knows the secret.
    pub(super) fn prove(&self, end: End, terms: &Terms) -> [u8; PROOF] {
        self.mac(end, terms).finalize().into_bytes().into()
    }

    /// Whether the other end has proved it. The time that this takes does not tell where a proof is wrong.
    pub(super) fn is_proved(&self, end: End, terms: &Terms, proof: &[u8]) -> bool {
        self.mac(end, terms).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("Secret").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Random bytes that are used once.
///
/// # Errors
/// Where the system has none.
pub(super) fn nonce() -> Result<[u8; NONCE], String> {
    random()
}

fn random<const COUNT: usize>() -> Result<[u8; COUNT], String> {
    let mut bytes = [0; COUNT];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| format!("the system has no random numbers: {error}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(word: &str) -> Secret {
        Secret::new(word.as_bytes().to_vec(), "a test").expect("long enough")
    }

    #[test]
    fn a_proof_holds_for_its_terms_and_no_others() {
        let (mine, other) = (secret("0123456789abcdef"), secret("0123456789abcdeg"));
        let terms = Terms { rank: 1, size: 2, of_guest: [3; NONCE], of_host: [4; NONCE] };
        let proof = mine.prove(End::Guest, &terms);
        assert!(mine.is_proved(End::Guest, &terms, &proof));
        assert!(!other.is_proved(End::Guest, &terms, &proof));
        assert!(!mine.is_proved(End::Host, &terms, &proof), "it was sent back");
        assert!(
            !mine.is_proved(End::Guest, &terms, &proof[..31]) && !mine.is_proved(End::Guest, &terms, &[])
        );
        for changed in [
            Terms { rank: 2, ..terms },
            Terms { size: 3, ..terms },
            Terms { of_guest: [5; NONCE], ..terms },
            Terms { of_host: [3; NONCE], ..terms },
            Terms { of_guest: terms.of_host, of_host: terms.of_guest, ..terms },
        ] {
            assert!(!mine.is_proved(End::Guest, &changed, &proof));
        }
    }

    #[test]
    fn short_secrets_are_none_and_no_secret_is_shown() {
        assert!(Secret::new(vec![1; 15], "").is_none());
        let shown = format!("{:?}", secret("hush-hush-hush-hush"));
        assert!(shown.contains("a test") && !shown.contains("hush") && !shown.contains("104"), "{shown}");
        assert_ne!(Secret::random().expect("random"), Secret::random().expect("random"));
    }
}
