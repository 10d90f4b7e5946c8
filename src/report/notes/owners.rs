//! Notes on runs of other users, who can write there what they like.

use super::super::runs::Run;
use crate::regular::another_owner;
use std::collections::BTreeSet;

/// Notes at each run of another user that it is, unless all runs belong to one user.
pub fn note_owners<'a>(runs: impl Iterator<Item = &'a mut Run>) {
    let owned: Vec<(Option<u32>, &mut Run)> = runs.map(|run| (another_owner(&run.path), run)).collect();
    let owners: BTreeSet<Option<u32>> = owned.iter().map(|(owner, _)| *owner).collect();
    for (owner, run) in owned.into_iter().filter(|_| owners.len() > 1) {
        run.notes
            .extend(owner.map(|user| format!("{OF_ANOTHER} {user}, who decides what is on record there")));
    }
}

const OF_ANOTHER: &str = "of user";

/// The runs at which that is noted.
pub(super) fn of_others(runs: &[Run]) -> impl Iterator<Item = &Run> {
    runs.iter().filter(|run| run.notes.iter().any(|note| note.starts_with(OF_ANOTHER)))
}
