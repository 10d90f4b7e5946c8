//! Failures as messages from rank to rank.

use super::CommError;
use crate::wording::tame;
use serde::{Deserialize, Serialize};

/// A [`CommError`] without the number of ranks, which both ends know.
#[derive(Serialize, Deserialize)]
enum Notice {
    Lost { rank: usize, why: String },
    Silent { ranks: Vec<usize>, seconds: u64 },
    Failed(String),
}

/// The most characters of a reason.
const LONGEST_REASON: usize = 8192;

/// Encodes a failure as JSON.
pub(super) fn encode(error: &CommError) -> Vec<u8> {
    let notice = match error {
        CommError::Lost { rank, why, .. } => Notice::Lost { rank: *rank, why: short(why) },
        CommError::Silent { ranks, seconds, .. } => {
            Notice::Silent { ranks: ranks.clone(), seconds: *seconds }
        }
        CommError::Absent { .. } | CommError::Failed(_) => Notice::Failed(short(&error.to_string())),
    };
    serde_json::to_vec(&notice).expect("numbers and texts are JSON")
}

/// Decodes a failure that another rank reports, in a run of `size` ranks. A broken message, or one that names ranks
/// which the run does not have, is a failure without a cause.
/// Texts are shown to people, so they cannot act on a terminal.
pub fn decode(message: &[u8], size: usize) -> CommError {
    match serde_json::from_slice(message) {
        Ok(Notice::Lost { rank, why }) if rank < size => CommError::Lost { rank, size, why: short(&why) },
        Ok(Notice::Silent { mut ranks, seconds })
            if (1..=size).contains(&ranks.len()) && ranks.iter().all(|rank| *rank < size) =>
        {
            ranks.sort_unstable();
            ranks.dedup();
            CommError::Silent { ranks, size, seconds }
        }
        Ok(Notice::Failed(why)) => CommError::Failed(short(&why)),
        _ => CommError::Failed("another rank failed".to_owned()),
    }
}

/// A reason that can be shown.
fn short(why: &str) -> String {
    tame(&why.chars().take(LONGEST_REASON).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_wire() {
        for error in [
            CommError::Lost { rank: 3, size: 5, why: "its disk is full".to_owned() },
            CommError::Silent { ranks: vec![0, 4], size: 5, seconds: 600 },
            CommError::Failed("no".to_owned()),
        ] {
            assert_eq!(decode(&encode(&error), 5), error);
        }
        assert!(matches!(decode(&[1, 2], 5), CommError::Failed(_)));
    }

    #[test]
    fn what_another_rank_says_names_ranks_that_there_are_and_leaves_the_terminal_alone() {
        let no_cause = CommError::Failed("another rank failed".to_owned());
        for notice in [
            r#"{"Lost":{"rank":5,"why":"no"}}"#,
            r#"{"Lost":{"rank":-1,"why":"no"}}"#,
            r#"{"Silent":{"ranks":[],"seconds":1}}"#,
            r#"{"Silent":{"ranks":[1,9],"seconds":1}}"#,
            r#"{"Silent":{"ranks":[0,0,0,0,0,0],"seconds":1}}"#,
            r#"{"Else":1}"#,
            "[[[[",
        ] {
            assert_eq!(decode(notice.as_bytes(), 5), no_cause, "{notice}");
        }
        let CommError::Lost { why, .. } =
            decode(br#"{"Lost":{"rank":1,"why":"\u001b[31mred\u009b\ntwo"}}"#, 5)
        else {
            panic!("a loss")
        };
        assert_eq!(why, "\u{fffd}[31mred\u{fffd}\ntwo");
        let long = CommError::Failed("é".repeat(1 << 20));
        assert!(encode(&long).len() <= 2 * LONGEST_REASON + 20);
    }
}
