//! What other processes send to a rank, in any bytes and any pieces: nobody is let in without the secret, nothing is held
//! that has not arrived, and what a failing rank says can be shown to people.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runner::comm::wire::{Greeting, Heard, Incoming, Received, decode, longest};
use runner::comm::{CommError, Secret};

const SIZE: usize = 4;
/// Bytes of a whole hello, the longest that a stranger's words are kept for.
const HELLO: usize = 54;
/// What a message takes besides its contents, and the bytes of its head.
const BESIDES: usize = size_of::<Received>();
const HEAD: usize = 9;

fuzz_target!(|data: &[u8]| {
    let Some((&cut, bytes)) = data.split_first() else { return };
    let cut = usize::from(cut).max(1);
    greeting(bytes, cut);
    messages(bytes, cut);
    notice(bytes);
});

fn greeting(bytes: &[u8], cut: usize) {
    let secret = Secret::new(b"a secret of sixteen bytes or more".to_vec(), "a test").expect("long enough");
    let mut greeting = Greeting::new([7; 32]);
    for piece in bytes.chunks(cut) {
        assert!((1..=HELLO).contains(&greeting.lacks()));
        match greeting.hear(&secret, piece) {
            Heard::Partial => {}
            Heard::Answer(answer) => assert!(answer.len() <= HELLO),
            Heard::Refused { answer, .. } => return assert!(answer.len() <= 200),
            Heard::Proved { .. } => panic!("somebody was let in who does not know the secret"),
        }
    }
}

fn messages(bytes: &[u8], cut: usize) {
    let mut incoming = Incoming::new(longest(SIZE));
    let mut arrived = 0;
    for piece in bytes.chunks(cut) {
        arrived += piece.len();
        if incoming.take(piece).is_err() {
            return;
        }
        assert!(incoming.held() <= arrived + arrived.div_ceil(HEAD) * BESIDES);
        // as a rank that asks for a message now and then
        if piece[0].is_multiple_of(3)
            && let Some(Received::Notice(contents)) = incoming.pop()
        {
            notice(&contents);
        }
    }
}

fn notice(bytes: &[u8]) {
    let error = decode(bytes, SIZE);
    match &error {
        CommError::Lost { rank, .. } => assert!(*rank < SIZE),
        CommError::Silent { ranks, .. } => {
            assert!(!ranks.is_empty() && ranks.iter().all(|rank| *rank < SIZE))
        }
        CommError::Failed(_) => {}
        CommError::Absent { .. } => panic!("nobody sends that"),
    }
    let text = error.to_string();
    assert!(text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()), "{text:?}");
}
