//! PyTorch's files: an archive with a pickle that describes tensors, and one entry for the bytes of each.
//!
//! nanoGPT saves a dictionary with the weights under `model` and the dimensions under `model_args`; Hugging Face and
//! many others save the weights themselves. Optimizer states, step counts and settings in such a file are left alone.

use super::pickle::{self, Id, Object, Pickle, View};
use super::{Contents, Place, Stated};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use zip::{CompressionMethod, ZipArchive};

/// Describing GPT-2's tensors and their moments takes a few hundred kilobytes.
const MAX_PICKLE: u64 = 16 << 20;

/// Bytes of the name of an entry at most: PyTorch numbers them.
const LONGEST_KEY: usize = 1 << 10;
/// Differences from GPT-2 that are listed.
const MOST_PROBLEMS: usize = 8;

/// Where files keep their weights beside other things.
const WEIGHTS: [&str; 2] = ["model", "state_dict"];
const ARGUMENTS: &str = "model_args";

/// What `torch.compile` and data-parallel training put before every name.
const PREFIXES: [&str; 2] = ["_orig_mod.", "module."];

/// Whether a file that begins so is an archive.
pub(super) fn is_archive(head: &[u8]) -> bool {
    head.starts_with(b"PK\x03\x04")
}

/// The entries of an archive.
struct Archive<'a> {
    zip: ZipArchive<&'a mut File>,
    /// Bytes of the file.
    length: u64,
    /// The directory in which all entries lie.
    root: String,
    /// Entries that were looked for, as offset and length.
    found: HashMap<String, (u64, u64)>,
}

impl<'a> Archive<'a> {
    fn open(file: &'a mut File) -> Result<Self, String> {
        let length = file.metadata().map_err(|error| format!("it could not be read: {error}"))?.len();
        let zip = ZipArchive::new(file).map_err(|error| format!("it is no whole archive: {error}"))?;
        let root = zip.file_names_raw().find_map(|name| str::from_utf8(name).ok()?.strip_suffix("data.pkl"));
        let root = root.ok_or("it is an archive without data.pkl, so PyTorch has not made it")?.to_owned();
        Ok(Self { zip, length, root, found: HashMap::new() })
    }

    /// Where an entry's bytes lie; `None` if there is no such entry.
    fn entry(&mut self, name: &str) -> Result<Option<(u64, u64)>, String> {
        if let Some(found) = self.found.get(name) {
            return Ok(Some(*found));
        }
        let Some(index) = self.zip.index_for_name(&format!("{}{name}", self.root)) else { return Ok(None) };
        let entry =
            self.zip.by_index_raw(index).map_err(|error| format!("its entry {name} is broken: {error}"))?;
        if entry.encrypted() || entry.compression() != CompressionMethod::Stored {
            return Err(format!("its entry {name} is compressed or encrypted, which PyTorch does not do"));
        }
        let (start, len) = (entry.data_start(), entry.size());
        let start = start.filter(|start| start.checked_add(len).is_some_and(|end| end <= self.length));
        let start = start.ok_or_else(|| format!("its entry {name} reaches beyond the end of the file"))?;
        drop(entry);
        self.found.insert(name.to_owned(), (start, len));
        Ok(Some((start, len)))
    }

    /// The bytes of a small entry.
    fn bytes(&mut self, name: &str, most: u64) -> Result<Option<Vec<u8>>, String> {
        let Some((_, len)) = self.entry(name)? else { return Ok(None) };
        if len > most {
            return Err(format!("its entry {name} has {len} bytes, at most {most} are read"));
        }
        let unreadable = |error: std::io::Error| format!("its entry {name} could not be read: {error}");
        let mut bytes = Vec::new();
        let index = self.zip.index_for_name(&format!("{}{name}", self.root)).expect("it was found");
        let entry =
            self.zip.by_index_raw(index).map_err(|error| format!("its entry {name} is broken: {error}"))?;
        entry.take(len).read_to_end(&mut bytes).map_err(unreadable)?;
        Ok(Some(bytes))
    }

    /// The place of a tensor.
    fn place(&mut self, view: View) -> Result<Place, String> {
        let View { elements: kind, key, stored, offset, shape, strides } = view;
        let elements = shape.iter().try_fold(1_u64, |all, &n| all.checked_mul(n)).ok_or("it is too large")?;
        let whole = elements.checked_add(offset).is_some_and(|end| end <= stored);
        if !whole {
            return Err("it reaches beyond its storage".into());
        }
        if !is_contiguous(&shape, &strides) {
            return Err(format!("it is a view with strides {strides:?}: save `tensor.contiguous()`"));
        }
        if key.len() > LONGEST_KEY {
            return Err("the name of its entry is too long".into());
        }
        let name = format!("data/{key}");
        let (start, bytes) = self.entry(&name)?.ok_or_else(|| format!("its entry {name} is missing"))?;
        let width = kind.width().unwrap_or(1) as u64;
        if stored.checked_mul(width).is_none_or(|needed| needed > bytes) {
            return Err(format!("its entry {name} has {bytes} bytes, too few for {stored} elements"));
        }
        Ok(Place {
            elements: kind,
            shape: shape.iter().map(|&n| n as usize).collect(),
            // what is not read has no width here, and its offset does not matter
            offset: start + offset * width,
        })
    }
}

fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1_u64;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(&n, &stride)| {
            let fits = n <= 1 || stride == expected;
            expected = expected.saturating_mul(n);
            fits
        })
}

/// Reads what an archive says.
pub(super) fn read(path: &Path, file: &mut File) -> Result<Contents, String> {
    let mut archive = Archive::open(file)?;
    if archive.bytes("byteorder", 16)?.is_some_and(|order| order != b"little") {
        return Err("its numbers are big-endian".into());
    }
    let text = archive.bytes("data.pkl", MAX_PICKLE)?.ok_or("its data.pkl is missing")?;
    let pickle = pickle::read(&text)?;
    let weights = WEIGHTS.iter().find_map(|name| pickle.get(pickle.root, name)).unwrap_or(pickle.root);
    let Object::Dict(items) = pickle.object(weights) else {
        return Err("it is no dictionary of tensors".into());
    };
    let mut tensors = BTreeMap::new();
    for (key, value) in items {
        let name = pickle.text(*key).ok_or("its weights have a name that is no text")?;
        let Object::Tensor(tensor) = pickle.object(*value) else {
            return Err(format!("`{}` is no tensor", shown(name)));
        };
        let place = pickle.view(*tensor).and_then(|view| archive.place(view));
        let place = place.map_err(|problem| format!("`{}`: {problem}", shown(name)))?;
        let name = PREFIXES.iter().fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
        if tensors.insert(name.to_owned(), place).is_some() {
            return Err(format!("`{}` is there twice", shown(name)));
        }
    }
    let arguments = pickle.get(pickle.root, ARGUMENTS);
    let problems = arguments.map_or_else(Vec::new, |id| unknown(&pickle, id));
    Ok(Contents { tensors, stated: arguments.map(|id| stated(path, &pickle, id)), problems })
}

fn stated(path: &Path, pickle: &Pickle, arguments: Id) -> Stated {
    let number = |name: &str| match pickle.object(pickle.get(arguments, name)?) {
        Object::Int(value) => u64::try_from(*value).ok(),
        _ => None,
    };
    Stated {
        file: path.to_owned(),
        n_layer: number("n_layer"),
        n_head: number("n_head"),
        n_embd: number("n_embd"),
        block_size: number("block_size"),
        vocab_size: number("vocab_size"),
    }
}

/// What the arguments turn on that GPT-2 does not have: a variant of nanoGPT has arguments of its own.
fn unknown(pickle: &Pickle, arguments: Id) -> Vec<String> {
    const KNOWN: [&str; 7] = ["n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout"];
    let Object::Dict(items) = pickle.object(arguments) else { return Vec::new() };
    let is_off = |id: Id| match pickle.object(id) {
        Object::None | Object::Bool(false) | Object::Int(0) => true,
        Object::Float(value) => *value == 0.0,
        _ => false,
    };
    let unknown = items.iter().filter(|(_, value)| !is_off(*value)).filter_map(|(key, _)| pickle.text(*key));
    unknown
        .filter(|name| !KNOWN.contains(name))
        .take(MOST_PROBLEMS)
        .map(|name| format!("{ARGUMENTS} sets `{}`, which GPT-2 does not have", shown(name)))
        .collect()
}

/// A name from the file, fit for a message.
fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_debug).collect()
}
