//! Byte-pair encoding with GPT-2's vocabulary.
//!
//! A piece of text starts as bytes, and the neighbours that make the token of the lowest rank are merged, the leftmost
//! first, until no neighbours make one (Sennrich et al., 2016). Most pieces are words seen before: their tokens come
//! from a cache. A piece of megabytes is encoded in windows, so that its time is linear in its length.

use super::pieces::Pieces;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::LazyLock;

/// Bytes of a longest piece that is cached.
const CACHED: usize = 15;
/// The most tokens of a piece that is cached.
const IDS: usize = 7;
/// A cache has two to the power of this many places, 32 bytes each.
const CACHE_BITS: u32 = 15;
/// Pieces of up to this many bytes are merged by looking at all neighbours again and again.
const SHORT: usize = 64;
/// Bytes of a window of a long piece; many times the longest token, which has 128.
const WINDOW: usize = 4096;
/// No token.
const NONE: u32 = u32::MAX;

/// GPT-2's vocabulary with what encoding needs.
pub(super) struct Bpe {
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where each token begins in `bytes`, and the end of the last one.
    starts: Vec<u32>,
    /// Each byte's own token.
    singles: [u16; 256],
    /// Tokens by their bytes: open addressing, `NONE` for an empty place.
    ids: Vec<u32>,
    /// What two neighbouring tokens merge into: the pair's number above 16 bits, the token below; 0 for an empty place.
    pairs: Vec<u64>,
}

/// A place of the cache: a piece and its tokens.
#[derive(Clone, Copy)]
struct Place {
    /// The bytes, and in the highest one how many there are.
    key: u128,
    ids: [u16; IDS],
    len: u16,
}

thread_local! {
    static CACHE: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

fn mix(value: u64) -> u64 {
    let mixed = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum.rotate_left(23) ^ u64::from_le_bytes(word))
    })
}

impl Bpe {
    /// The vocabulary, built on first use.
    pub(super) fn gpt2() -> &'static Self {
        static GPT2: LazyLock<Bpe> = LazyLock::new(|| {
            let source = tiktoken_rs::r50k_base().expect("the vocabulary inside tiktoken-rs is well-formed");
            let token = |id: u32| source.decode_bytes(&[id]).expect("every rank has a token");
            Bpe::new((0..super::END_OF_TEXT).map(token))
        });
        &GPT2
    }

    /// A vocabulary of tokens in the order of their ranks, every single byte among them.
    fn new(tokens: impl Iterator<Item = Vec<u8>>) -> Self {
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for token in tokens {
            bytes.extend(token);
            starts.push(bytes.len() as u32);
        }
        let count = starts.len() - 1;
        let mut bpe = Self {
            bytes,
            starts,
            singles: [0; 256],
            ids: vec![NONE; (count * 2).next_power_of_two()],
            pairs: Vec::new(),
        };
        for id in 0..count {
            let mask = bpe.ids.len() - 1;
            let mut at = hash(bpe.token(id as u16)) as usize & mask;
            while bpe.ids[at] != NONE {
                at = (at + 1) & mask;
            }
            bpe.ids[at] = id as u32;
        }
        for byte in 0..=u8::MAX {
            bpe.singles[usize::from(byte)] = bpe.find(&[byte]).expect("every byte is a token");
        }
        let mut pairs = Vec::new();
        for id in 0..count {
            let token = bpe.token(id as u16);
            for cut in 1..token.len() {
                if let (Some(left), Some(right)) = (bpe.find(&token[..cut]), bpe.find(&token[cut..])) {
                    pairs.push((u64::from(left) << 32) | (u64::from(right) << 16) | id as u64);
                }
            }
        }
        bpe.pairs = vec![0; (pairs.len() * 2).next_power_of_two()];
        for pair in pairs {
            let mask = bpe.pairs.len() - 1;
            let mut at = mix(pair >> 16) as usize & mask;
            while bpe.pairs[at] != 0 {
                at = (at + 1) & mask;
            }
            bpe.pairs[at] = pair;
        }
        bpe
    }

    /// The bytes of a token; empty for an id that there is not.
    pub(super) fn token(&self, id: u16) -> &[u8] {
        match self.starts.get(usize::from(id)..usize::from(id) + 2) {
            Some(&[start, end]) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    /// The token that has these bytes.
    fn find(&self, bytes: &[u8]) -> Option<u16> {
        let mask = self.ids.len() - 1;
        let mut at = hash(bytes) as usize & mask;
        loop {
            match self.ids[at] {
                NONE => return None,
                id if self.token(id as u16) == bytes => return Some(id as u16),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The token that two neighbours merge into, which is also the rank of the merge; `NONE` where they do not.
    #[inline]
    fn merged(&self, left: u16, right: u16) -> u32 {
        let key = (u64::from(left) << 16) | u64::from(right);
        let mask = self.pairs.len() - 1;
        let mut at = mix(key) as usize & mask;
        loop {
            match self.pairs[at] {
                // no merge makes token 0, so no pair is 0
                0 => return NONE,
                pair if pair >> 16 == key => return (pair & 0xffff) as u32,
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The two tokens whose merge makes a token; `None` for a single byte.
    pub(super) fn parts(&self, id: u16) -> Option<(u16, u16)> {
        let token = self.token(id);
        let mut parts = self.bytes_of(token);
        // the last merge is the token's own, so without it two parts are left
        while parts.len() > 2 {
            self.merge_once(&mut parts, u32::from(id))?;
        }
        <[u16; 2]>::try_from(parts).ok().map(|[left, right]| (left, right))
    }

    fn bytes_of(&self, bytes: &[u8]) -> Vec<u16> {
        bytes.iter().map(|&byte| self.singles[usize::from(byte)]).collect()
    }

    /// Merges the first neighbours of the lowest rank below `limit`.
    fn merge_once(&self, parts: &mut Vec<u16>, limit: u32) -> Option<()> {
        let ranks = parts.windows(2).map(|pair| self.merged(pair[0], pair[1])).enumerate();
        let (at, rank) = ranks.min_by_key(|&(at, rank)| (rank, at)).filter(|&(_, rank)| rank < limit)?;
        parts[at] = rank as u16;
        parts.remove(at + 1);
        Some(())
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u16>) {
        CACHE.with_borrow_mut(|cache| {
            if cache.is_empty() {
                cache.resize(1 << CACHE_BITS, Place { key: 0, ids: [0; IDS], len: 0 });
            }
            for piece in Pieces::of(text) {
                self.piece(text.as_bytes(), piece, cache, out);
            }
        });
    }

    #[inline]
    fn piece(&self, text: &[u8], piece: std::ops::Range<usize>, cache: &mut [Place], out: &mut Vec<u16>) {
        let len = piece.len();
        if len > CACHED {
            return self.encode_piece(&text[piece], out);
        }
        let key = key(text, piece.start, len);
        let hashed = mix(key as u64 ^ mix((key >> 64) as u64));
        let place = &mut cache[(hashed >> (64 - CACHE_BITS)) as usize];
        if place.key == key {
            return out.extend_from_slice(&place.ids[..usize::from(place.len)]);
        }
        let before = out.len();
        self.encode_piece(&text[piece], out);
        let ids = &out[before..];
        if ids.len() <= IDS {
            *place = Place { key, ids: [0; IDS], len: ids.len() as u16 };
            place.ids[..ids.len()].copy_from_slice(ids);
        }
    }

    /// Appends the tokens of one piece.
    fn encode_piece(&self, piece: &[u8], out: &mut Vec<u16>) {
        match piece.len() {
            0..=SHORT => match self.find(piece) {
                Some(id) => out.push(id),
                None => self.merge_short(piece, out),
            },
            _ => self.encode_long(piece, out),
        }
    }

    /// Appends the tokens of a piece of at most `SHORT` bytes.
    fn merge_short(&self, piece: &[u8], out: &mut Vec<u16>) {
        let (mut ids, mut ranks) = ([0u16; SHORT], [NONE; SHORT]);
        let mut len = piece.len();
        for (id, byte) in ids.iter_mut().zip(piece) {
            *id = self.singles[usize::from(*byte)];
        }
        for at in 0..len.saturating_sub(1) {
            ranks[at] = self.merged(ids[at], ids[at + 1]);
        }
        while len > 1 {
            let (mut at, mut lowest) = (0, NONE);
            for (place, &rank) in ranks[..len - 1].iter().enumerate() {
                if rank < lowest {
                    (at, lowest) = (place, rank);
                }
            }
            if lowest == NONE {
                break;
            }
            ids[at] = lowest as u16;
            ids.copy_within(at + 2..len, at + 1);
            ranks.copy_within(at + 2..len, at + 1);
            len -= 1;
            ranks[len - 1] = NONE;
            if at + 1 < len {
                ranks[at] = self.merged(ids[at], ids[at + 1]);
            }
            if at > 0 {
                ranks[at - 1] = self.merged(ids[at - 1], ids[at]);
            }
        }
        out.extend_from_slice(&ids[..len]);
    }

    /// The tokens of a piece of any length, in time n log n and memory for all of it.
    fn merge(&self, piece: &[u8]) -> Vec<u16> {
        let mut ids = self.bytes_of(piece);
        // the place of the next token, and of the one before
        let mut next: Vec<u32> = (1..=ids.len() as u32).collect();
        let mut before: Vec<u32> = (0..ids.len() as u32).map(|at| at.wrapping_sub(1)).collect();
        let mut is_gone = vec![false; ids.len()];
        let pairs = ids.windows(2).enumerate().map(|(at, pair)| (self.merged(pair[0], pair[1]), at as u32));
        let mut heap: BinaryHeap<_> = pairs.filter(|(rank, _)| *rank != NONE).map(Reverse).collect();
        while let Some(Reverse((rank, left))) = heap.pop() {
            let at = left as usize;
            let right = next[at] as usize;
            // a pair that has changed since is in the heap once more, under its new rank
            if is_gone[at] || right >= ids.len() || self.merged(ids[at], ids[right]) != rank {
                continue;
            }
            ids[at] = rank as u16;
            is_gone[right] = true;
            next[at] = next[right];
            let after = next[at] as usize;
            if after < ids.len() {
                before[after] = left;
                let rank = self.merged(ids[at], ids[after]);
                heap.extend((rank != NONE).then_some(Reverse((rank, left))));
            }
            if before[at] != NONE {
                let rank = self.merged(ids[before[at] as usize], ids[at]);
                heap.extend((rank != NONE).then_some(Reverse((rank, before[at]))));
            }
        }
        let kept = ids.iter().zip(&is_gone).filter(|(_, is_gone)| !**is_gone);
        kept.map(|(id, _)| *id).collect()
    }

    /// Whether two tokens stay as they are beside each other.
    fn is_stable(&self, left: u16, right: u16) -> bool {
        self.merge(&[self.token(left), self.token(right)].concat()) == [left, right]
    }

    /// Appends the tokens of a long piece, window by window.
    ///
    /// Tokens are the encoding of their text exactly if all neighbours are stable: before the first merge across the
    /// border of two of them, what happens to the two is what happens to them alone. (The crate `bpe` of GitHub builds
    /// on the same law.) So a window's tokens are kept up to one that is stable beside the first of the next window.
    fn encode_long(&self, piece: &[u8], out: &mut Vec<u16>) {
        let before = out.len();
        let mut start = 0;
        let mut tokens = self.merge(&piece[..piece.len().min(WINDOW)]);
        while start + WINDOW < piece.len() {
            let Some((kept, bytes, following)) = self.next_window(&piece[start..], &tokens) else {
                // never seen: no token near the window's end is stable beside what follows it
                out.truncate(before);
                return out.extend(self.merge(piece));
            };
            out.extend_from_slice(&tokens[..kept]);
            start += bytes;
            tokens = following;
        }
        out.extend(tokens);
    }

    /// How many of a window's tokens are kept, how many bytes they have, and the tokens of the window behind them.
    fn next_window(&self, rest: &[u8], tokens: &[u16]) -> Option<(usize, usize, Vec<u16>)> {
        let mut bytes: usize = WINDOW;
        for kept in (1..tokens.len()).rev() {
            bytes -= self.token(tokens[kept]).len();
            // tokens at the very end are the most likely to change with what follows
            if bytes + WINDOW / 16 > WINDOW {
                continue;
            }
            if bytes < WINDOW / 2 {
                break;
            }
            let following = self.merge(&rest[bytes..rest.len().min(bytes + WINDOW)]);
            if self.is_stable(tokens[kept - 1], following[0]) {
                return Some((kept, bytes, following));
            }
        }
        None
    }
}

/// The bytes of a short piece as a number, with their count in the highest byte.
#[inline]
fn key(text: &[u8], start: usize, len: usize) -> u128 {
    let word = match text.get(start..start + 16) {
        Some(bytes) => u128::from_le_bytes(bytes.try_into().expect("sixteen bytes")),
        None => {
            let mut bytes = [0; 16];
            bytes[..len].copy_from_slice(&text[start..start + len]);
            u128::from_le_bytes(bytes)
        }
    };
    (word & ((1 << (8 * len)) - 1)) | ((len as u128) << 120)
}

#[cfg(test)]
mod tests;
