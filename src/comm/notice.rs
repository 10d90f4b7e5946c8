//! Failures as messages from rank to rank.

use super::CommError;

/// Encodes a failure: its kind, the ranks and the seconds, then the words.
pub(super) fn encode(error: &CommError) -> Vec<u8> {
    let (kind, ranks, seconds, words) = match error {
        CommError::Lost { rank, why, .. } => (0u64, vec![*rank], 0, why.as_str()),
        CommError::Silent { ranks, seconds, .. } => (1, ranks.clone(), *seconds, ""),
        CommError::Failed(why) => (2, Vec::new(), 0, why.as_str()),
    };
    let numbers =
        [kind, seconds, ranks.len() as u64].into_iter().chain(ranks.into_iter().map(|rank| rank as u64));
    let mut message: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    message.extend(words.as_bytes());
    message
}

/// Decodes a failure that [`encode`] made, in a run of `size` ranks.
pub(super) fn decode(message: &[u8], size: usize) -> CommError {
    let broken = || CommError::Failed("another rank failed".to_owned());
    let number = |i: usize| message.get(8 * i..8 * i + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (Some(kind), Some(seconds), Some(count)) = (number(0), number(1), number(2)) else { return broken() };
    let Some(ranks) = (0..count.min(size as u64)).map(|i| Some(number(3 + i as usize)? as usize)).collect()
    else {
        return broken();
    };
    let ranks: Vec<usize> = ranks;
    let words =
        String::from_utf8_lossy(message.get(8 * (3 + ranks.len())..).unwrap_or_default()).into_owned();
    match (kind, ranks.first()) {
        (0, Some(&rank)) => CommError::Lost { rank, size, why: words },
        (1, Some(_)) => CommError::Silent { ranks, size, seconds },
        _ => CommError::Failed(words),
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
