//! Files that mean harm: whatever they say of themselves, reading them neither panics nor takes more than so many times
//! their size of memory. Held with an allocator that counts.

#[path = "bombs.rs"]
mod bombs;
#[path = "readers.rs"]
mod readers;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use readers::Reader;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    PEAK.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: everything is the system's allocator's work; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that a file may take for each of its own, and besides. `docs/guarantees.md` states them.
const TIMES: usize = 16;
const BESIDES: usize = 192 << 20;

/// The peak is that of the process, so only one test measures at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Bytes that are allocated at most while something is done, beyond those before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

fn check(what: &str, reader: Reader, dir: &Path, bytes: &[u8]) {
    let taken = peak_of(|| reader(dir, bytes));
    let allowed = TIMES * bytes.len() + BESIDES;
    assert!(taken <= allowed, "{what}: {taken} bytes were taken for a file of {}", bytes.len());
}

/// Numbers, words and characters that readers may stumble over.
const PIECES: [&[u8]; 20] = [
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\0\0\0\0\0\0\0\x80",
    b"\0",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"NaN",
    b"-0",
    b"1e999",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"[[[[[[[[",
    b"{\"a\":",
    b"null",
    b"\"\\ud800\"",
    b"\xc2\x9b\xe2\x80\xae",
    b"\x1b[2J",
    b"../../x",
    b"\n",
    b",",
    b"\xff",
];

/// A damaged copy of a file.
fn mutated(seed: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.gen_range(1..4) {
        let at = random.gen_range(0..=bytes.len());
        match random.gen_range(0..6) {
            0 => bytes.truncate(at),
            1 | 2 if at < bytes.len() => bytes[at] ^= 1 << random.gen_range(0..8),
            3 => {
                let piece = PIECES[random.gen_range(0..PIECES.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            4 => {
                let piece = PIECES[random.gen_range(0..PIECES.len())];
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece.iter().copied());
            }
            _ => {
                let end = random.gen_range(at..=bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

#[test]
fn damaged_files_are_read_or_refused() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, reader) in readers::ALL {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut paths: Vec<_> = std::fs::read_dir(seeds.join(name))
            .expect("every reader has seeds")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        for path in paths {
            let seed = std::fs::read(&path).expect("a seed");
            check(name, reader, dir.path(), &seed);
            for number in 0..100 {
                let bytes = mutated(&seed, &mut random);
                check(&format!("{} {number}", path.display()), reader, dir.path(), &bytes);
            }
        }
    }
}

#[test]
fn files_that_lie_take_little_memory() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    // what is made once and kept counts for nobody
    readers::task(dir.path(), b"{\"context\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 1}");
    for (name, reader, bytes) in bombs::all() {
        check(name, reader, dir.path(), &bytes);
    }
}

#[test]
fn everything_survives_what_is_no_file_of_its_kind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    for bytes in bombs::plain() {
        for (name, reader) in readers::ALL {
            // what another reader has left would be found beside a file
            let dir = dir.path().join(name);
            std::fs::create_dir_all(&dir).expect("a directory");
            check(name, reader, &dir, &bytes);
        }
    }
}
