//! What a source may make a preparation hold and do, whatever it says of itself.
//!
//! A few bytes that are packed can stand for a text of any length. So what is held is in proportion to the file, and so
//! is what is read.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The longest document of a line or a table, and the longest text without a place to cut it.
pub(super) const LONGEST: usize = 1 << 30;
/// What a packed file may unfold to: `FREE` bytes, and this many for each of its own. Deflate comes to 1032.
const UNFOLDS: u64 = 2048;
const FREE: u64 = 256 << 20;
/// What a document counts for besides its bytes: one without a text takes time too.
const DOCUMENT: u64 = 16;
/// Bytes of a batch that is encoded while no other is: a text that cannot be cut.
const LARGE: usize = 1 << 20;

/// Bytes of a document or an uncut text at most, of a packed file of `bytes` bytes. Some eight times as much is
/// held while it is encoded.
pub(super) fn longest(bytes: u64) -> usize {
    bound(bytes, 2, 16 << 20)
}

/// Bytes of a page of a table at most, of a file of `bytes` bytes: a whole table of a thousand long texts may be one.
pub(super) fn page(bytes: u64) -> usize {
    bound(bytes, 4, 32 << 20)
}

fn bound(bytes: u64, times: u64, more: u64) -> usize {
    bytes.saturating_mul(times).saturating_add(more).min(LONGEST as u64) as usize
}

/// The bound on a document, and what helps where it is that of a packed file.
pub(super) fn advice(longest: usize) -> String {
    let mib = longest >> 20;
    match longest {
        LONGEST => format!("{mib} MiB"),
        _ => format!("{mib} MiB, which is twice the size of the packed file and 16 MiB: unpack it first"),
    }
}

/// What is said of a page that is larger than this bound.
pub(super) fn of_a_page(page: usize) -> String {
    let mib = page >> 20;
    format!(
        "a page states more than {mib} MiB, which is four times the size of the file and 32 MiB: write the table with \
         smaller pages"
    )
}

/// What may still come out of a packed file, in bytes: a few bytes can state any number of rows, or repeat a text
/// without end, and nobody waits for that.
pub(super) struct Allowance(u64);

impl Allowance {
    /// That of a file of `bytes` bytes.
    pub(super) fn of(bytes: u64) -> Self {
        Self(bytes.saturating_mul(UNFOLDS).saturating_add(FREE))
    }

    /// Takes bytes from it.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(bytes as u64).ok_or_else(|| {
            format!("it unfolds to more than {UNFOLDS} times its size, as no text does: unpack it yourself to use it")
        })?;
        Ok(())
    }

    /// Takes what documents count for besides their bytes.
    pub(super) fn take_documents(&mut self, count: u64) -> Result<(), String> {
        self.take(usize::try_from(count.saturating_mul(DOCUMENT)).unwrap_or(usize::MAX))
    }
}

/// Counts the bytes of the batches that wait or are being worked on.
pub(super) struct Room {
    most: usize,
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    bytes: usize,
    is_closed: bool,
}

impl Room {
    /// Room for `most` bytes.
    pub(super) fn of(most: usize) -> Self {
        Self { most, held: Mutex::default(), changed: Condvar::new() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room; `None` once it is closed. A large batch has it for itself.
    pub(super) fn take(&self, bytes: usize) -> Option<Taken<'_>> {
        let bytes = if bytes > LARGE { self.most } else { bytes.min(self.most) };
        let is_full = |held: &mut Held| !held.is_closed && held.bytes + bytes > self.most;
        let mut held = self.changed.wait_while(self.held(), is_full).unwrap_or_else(PoisonError::into_inner);
        if held.is_closed {
            return None;
        }
        held.bytes += bytes;
        Some(Taken { room: self, bytes })
    }

    /// Waits until a large batch, which is in the room alone, has left it: what is read meanwhile could be as large.
    pub(super) fn settle(&self, bytes: usize) {
        if bytes > LARGE {
            let is_there = |held: &mut Held| !held.is_closed && held.bytes > 0;
            drop(self.changed.wait_while(self.held(), is_there));
        }
    }

    /// Lets nobody wait any more.
    pub(super) fn close(&self) {
        self.held().is_closed = true;
        self.changed.notify_all();
    }
}

/// A batch's part of a [`Room`], given back when it is dropped.
pub(super) struct Taken<'a> {
    room: &'a Room,
    bytes: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.held().bytes -= self.bytes;
        self.room.changed.notify_all();
    }
}

/// Closes a [`Room`] when it is dropped, also by a panic.
pub(super) struct Closing<'a>(pub(super) &'a Room);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_page_may_hold_many_documents() {
        // a thousand texts of 60 KB, as one page that gzip makes a third of
        let file = 20 << 20;
        assert!(page(file) > 61 << 20 && longest(file) < page(file), "{}", page(file));
        assert_eq!([longest(u64::MAX), page(u64::MAX)], [LONGEST; 2]);
    }

    #[test]
    fn a_large_batch_is_in_the_room_alone() {
        let room = Room::of(4 << 20);
        let first = room.take(LARGE).expect("open");
        let second = room.take(LARGE).expect("open");
        thread::scope(|scope| {
            let large = scope.spawn(|| room.take(LARGE + 1).map(|taken| (room.held().bytes, taken)));
            drop((first, second));
            let (held, taken) = large.join().expect("no panic").expect("open");
            assert_eq!(held, room.most);
            let waiting = scope.spawn(|| {
                room.settle(LARGE + 1);
                room.held().bytes
            });
            drop(taken);
            assert_eq!(waiting.join().expect("no panic"), 0);
        });
    }

    #[test]
    fn nobody_waits_in_a_closed_room() {
        let room = Room::of(1 << 20);
        let taken = room.take(1 << 20);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| room.take(1).is_none());
            drop(Closing(&room));
            assert!(waiting.join().expect("no panic"));
        });
        drop(taken);
        room.settle(usize::MAX);
    }
}
