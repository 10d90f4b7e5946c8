//! Notes on runs of other users, who can write there what they like.

use super::super::runs::Run;
use crate::regular::another_owner;

/// Notes at each run of another user whose it is.
pub fn note_owners<'a>(runs: impl Iterator<Item = &'a mut Run>) {
    for run in runs {
        let owner = another_owner(&run.path);
        run.notes.extend(owner.map(|user| format!("of user {user}, who decides what is on record there")));
    }
}
