//! Failures as messages from rank to rank.

use super::CommError;
use serde::{Deserialize, Serialize};

/// A [`CommError`] without the number of ranks, which both ends know.
#[derive(Serialize, Deserialize)]
enum Notice {
    Lost { rank: usize, why: String },
    Silent { ranks: Vec<usize>, seconds: u64 },
    Failed(String),
}

/// Encodes a failure as JSON.
pub(super) fn encode(error: &CommError) -> Vec<u8> {
    let notice = match error {
        CommError::Lost { rank, why, .. } => Notice::Lost { rank: *rank, why: why.clone() },
        CommError::Silent { ranks, seconds, .. } => {
            Notice::Silent { ranks: ranks.clone(), seconds: *seconds }
        }
        CommError::Failed(why) => Notice::Failed(why.clone()),
    };
    serde_json::to_vec(&notice).expect("numbers and texts are JSON")
}

/// Decodes a failure that [`encode`] made, in a run of `size` ranks. A broken message is a failure without a cause.
pub(super) fn decode(message: &[u8], size: usize) -> CommError {
    match serde_json::from_slice(message) {
        Ok(Notice::Lost { rank, why }) => CommError::Lost { rank, size, why },
        Ok(Notice::Silent { ranks, seconds }) if !ranks.is_empty() => {
            CommError::Silent { ranks, size, seconds }
        }
        Ok(Notice::Failed(why)) => CommError::Failed(why),
        _ => CommError::Failed("another rank failed".to_owned()),
    }
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
}
