//! The fastest algorithm for each matrix product, and the faster way where there are two, remembered on disk.
//!
//! Timings vary from start to start, and algorithms sum in different orders, so choosing anew at each start
//! would change the bits of the results. Therefore the first choice on a machine is kept for good: the first
//! entry of a file wins, even over another process that measured at the same time. The file is text and may
//! be deleted.

use super::cache;
use crate::regular;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a choice depends on besides the shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of the GPU model.
    pub device: String,
    /// The number of multiprocessors; a slice of a device has fewer than the whole.
    pub multiprocessors: u32,
    /// The newest release of CUDA that the driver supports.
    pub driver: String,
    /// The release of cuBLASLt with its patch number, as the library tells it: 130100 for 13.1.0.
    pub cublaslt: usize,
}

/// Which of two ways of the same work was faster: one product with its epilogue fused, or the product alone and
/// a kernel after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// Whether the fused product is used.
    pub fused: bool,
    /// The time of the fused product when it was measured.
    pub fused_microseconds: f64,
    /// The time of the product and the kernel after it.
    pub separate_microseconds: f64,
}

/// The algorithm chosen for one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The algorithm's eight words, in hexadecimal.
    algorithm: String,
    /// The time of one product when it was chosen; 0 where memory was short for a trial.
    pub microseconds: f64,
}

impl Choice {
    /// Records an algorithm.
    pub fn new(words: [u64; 8], microseconds: f64) -> Self {
        let algorithm: Vec<String> = words.iter().map(|word| format!("{word:016x}")).collect();
        Self { algorithm: algorithm.join("-"), microseconds }
    }

    /// The algorithm's words; `None` if the text was not written by [`new`](Self::new).
    pub fn words(&self) -> Option<[u64; 8]> {
        let words: Result<Vec<u64>, _> =
            self.algorithm.split('-').map(|word| u64::from_str_radix(word, 16)).collect();
        words.ok()?.try_into().ok()
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    machine: Machine,
    #[serde(flatten)]
    known: Known,
}

/// What is remembered, by the shape of a product.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Known {
    products: BTreeMap<String, Choice>,
    #[serde(default)]
    ways: BTreeMap<String, Way>,
}

impl Known {
    /// Adds what another process has written; what was written first wins.
    fn merge(&mut self, stored: Self) {
        self.products.extend(stored.products);
        self.ways.extend(stored.ways);
    }
}

/// The choices for one machine.
#[derive(Debug)]
pub struct Choices {
    machine: Machine,
    path: PathBuf,
    known: Known,
}

impl Choices {
    /// Reads the choices that `directory` holds for this machine.
    pub fn open(directory: &Path, machine: Machine) -> Self {
        let identity = format!("{machine:?}");
        let name = format!("products-{}.json", &blake3::hash(identity.as_bytes()).to_hex()[..16]);
        let mut choices = Self { machine, path: directory.join(name), known: Known::default() };
        choices.known = choices.stored();
        choices
    }

    /// The choice for a shape, if there is one.
    pub fn get(&self, shape: &str) -> Option<&Choice> {
        self.known.products.get(shape)
    }

    /// The faster way for a shape with an epilogue, if it was measured.
    pub fn way(&self, shape: &str) -> Option<&Way> {
        self.known.ways.get(shape)
    }

    /// Stores the faster way unless another process was first. Returns the one that holds.
    pub fn keep_way(&mut self, shape: String, way: Way) -> Way {
        self.known.merge(self.stored());
        let kept = self.known.ways.entry(shape).or_insert(way).clone();
        self.write();
        kept
    }

    /// Stores a choice unless another process was first. Returns the choice that holds.
    pub fn keep(&mut self, shape: String, choice: Choice) -> Choice {
        // what is on disk was first
        self.known.merge(self.stored());
        let kept = self.known.products.entry(shape).or_insert(choice).clone();
        self.write();
        kept
    }

    /// Replaces a choice that cannot be used.
    pub fn replace(&mut self, shape: String, choice: Choice) {
        self.known.merge(self.stored());
        self.known.products.insert(shape, choice);
        self.write();
    }

    fn write(&self) {
        let file = File { machine: self.machine.clone(), known: self.known.clone() };
        if let Ok(text) = serde_json::to_string_pretty(&file) {
            // if writing fails, choices hold for this process only
            let _ = cache::replace(&self.path, &[text.as_bytes()]);
        }
    }

    /// The choices on disk. A file that is broken or belongs to another machine counts as empty.
    fn stored(&self) -> Known {
        let text = regular::read_within(&self.path, cache::LONGEST).ok();
        let file = text.and_then(|text| serde_json::from_slice::<File>(&text).ok());
        file.filter(|file| file.machine == self.machine).map(|file| file.known).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(device: &str) -> Machine {
        let driver = "13.0".to_owned();
        Machine { device: device.to_owned(), multiprocessors: 132, driver, cublaslt: 130_100 }
    }

    fn choice(word: u64) -> Choice {
        Choice::new([word, 2, 3, 4, 5, 6, 7, u64::MAX], word as f64)
    }

    #[test]
    fn the_first_choice_holds_for_every_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut first = Choices::open(dir.path(), machine("H200"));
        let mut second = Choices::open(dir.path(), machine("H200"));
        assert_eq!(first.keep("shape".to_owned(), choice(1)), choice(1));
        assert_eq!(second.keep("shape".to_owned(), choice(9)), choice(1), "another process was first");
        second.keep("other".to_owned(), choice(2));
        first.keep("third".to_owned(), choice(3));
        let again = Choices::open(dir.path(), machine("H200"));
        for (shape, word) in [("shape", 1), ("other", 2), ("third", 3)] {
            assert_eq!(again.get(shape), Some(&choice(word)), "{shape}");
        }
        assert_eq!(again.get("shape").and_then(Choice::words), Some([1, 2, 3, 4, 5, 6, 7, u64::MAX]));
        assert_eq!(Choices::open(dir.path(), machine("L4")).get("shape"), None);
        let way = |fused| Way { fused, fused_microseconds: 1.0, separate_microseconds: 2.0 };
        assert_eq!(first.way("shape"), None);
        assert_eq!(first.keep_way("shape".to_owned(), way(true)), way(true));
        assert_eq!(second.keep_way("shape".to_owned(), way(false)), way(true), "another process was first");
        assert_eq!(Choices::open(dir.path(), machine("H200")).way("shape"), Some(&way(true)));
        // a patch of the library may have other algorithms
        let patched = Machine { cublaslt: 130_101, ..machine("H200") };
        assert_eq!(Choices::open(dir.path(), patched).get("shape"), None);
        second.replace("shape".to_owned(), choice(7));
        assert_eq!(Choices::open(dir.path(), machine("H200")).get("shape"), Some(&choice(7)));
    }

    #[test]
    fn a_broken_file_counts_as_empty_and_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut choices = Choices::open(dir.path(), machine("H200"));
        choices.keep("shape".to_owned(), choice(1));
        std::fs::write(&choices.path, "{\"machine\":").expect("a file");
        let mut again = Choices::open(dir.path(), machine("H200"));
        assert_eq!(again.get("shape"), None);
        again.keep("shape".to_owned(), choice(2));
        assert_eq!(Choices::open(dir.path(), machine("H200")).get("shape"), Some(&choice(2)));
        let odd = Choice { algorithm: "12-zz".to_owned(), microseconds: 1.0 };
        assert_eq!(odd.words(), None);
    }
}
