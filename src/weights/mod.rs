//! Files of other trainers: what they say about the model and its tokens, and where their tensors lie.
//!
//! A run may begin from safetensors, from PyTorch's files (nanoGPT's `ckpt.pt`, Hugging Face's `pytorch_model.bin`) and
//! from llm.c's. They come from elsewhere, so nothing in them is executed and nothing is trusted: every length is held
//! against the file before it is used. Recipes take the dimensions from here, and imports the places of tensors.

mod config;
mod llmc;
mod meta;
mod named;
mod pickle;
mod safetensors;
mod shapes;
mod torch;

use crate::regular;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use config::{CONFIG, config_of, dir_of, json, other_kind};
pub use meta::{META, characters};
pub use named::{checkpoint_name, is_called_checkpoint, parts};
pub use safetensors::safetensors;
pub use shapes::shown;

/// Hugging Face's name of a model's weights.
pub const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// That of the older format, whose files are not read together.
const TORCH_INDEX: &str = "pytorch_model.bin.index.json";
/// In a directory without those: Hugging Face's older name, and nanoGPT's.
const TORCH: [&str; 2] = ["pytorch_model.bin", "ckpt.pt"];
/// What the hub calls OpenAI's models, which nanoGPT takes for `init_from`.
const HUB: [&str; 5] = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"];

/// The dimensions of a model as a file states them; what it leaves out is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stated {
    /// The file that states them.
    pub file: PathBuf,
    /// Transformer blocks.
    pub n_layer: Option<u64>,
    /// Attention heads per block.
    pub n_head: Option<u64>,
    /// Width of the residual stream.
    pub n_embd: Option<u64>,
    /// Context length in tokens.
    pub block_size: Option<u64>,
    /// Number of token ids.
    pub vocab_size: Option<u64>,
}

impl Stated {
    /// The numbers by their names in `[model]`.
    #[must_use]
    pub fn numbers(&self) -> [(&'static str, Option<u64>); 5] {
        [
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
            ("n_embd", self.n_embd),
            ("block_size", self.block_size),
            ("vocab_size", self.vocab_size),
        ]
    }
}

/// What the elements of a tensor are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Another, by name.
    Other(String),
}

impl ElementType {
    /// Bytes of an element; `None` for a type that is not read.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Other(_) => None,
        }
    }
}

/// Where a tensor lies in a file: row-major, little-endian, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The type of its elements.
    pub elements: ElementType,
    /// Its shape as the file has it.
    pub shape: Vec<usize>,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

/// A model file, read as far as its tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The tensors by name, without the prefixes that `torch.compile` and data-parallel training leave.
    pub tensors: BTreeMap<String, Place>,
    /// The dimensions that the file itself states.
    pub stated: Option<Stated>,
    /// What it says of the model that a GPT-2 does not have, one line each.
    pub problems: Vec<String>,
}

/// What is said of a file in which [`contents`] finds none.
pub const NONE: &str =
    "by its first bytes, it is no safetensors file, and none of PyTorch's or llm.c's weights";

/// Reads a file of safetensors, PyTorch or llm.c, which its first bytes tell apart; `None` for one that begins like
/// none of them.
///
/// # Errors
/// What is wrong with the file, without its name.
pub fn contents(path: &Path, file: &mut File) -> Result<Option<Contents>, String> {
    let unreadable = |error: std::io::Error| format!("it could not be read: {error}");
    let mut head = Vec::with_capacity(16);
    file.rewind().and_then(|()| Read::by_ref(file).take(16).read_to_end(&mut head)).map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;
    // first, for the length of its header may be the first bytes of a pickle
    if safetensors::begins(&head) {
        let tensors = safetensors(file)?;
        return Ok(Some(Contents { tensors, ..Contents::default() }));
    }
    if torch::is_archive(&head) {
        return torch::read(path, file).map(Some);
    }
    if llmc::is_model(&head) {
        return llmc::read(path, file).map(Some);
    }
    if llmc::is_data(&head) {
        return Err("it holds tokens in llm.c's format, not weights".into());
    }
    if pickle::begins(&head) {
        return Err(
            "it is in the format that PyTorch had before version 1.6: load it with `torch.load` and save it \
                    again with `torch.save`"
                .into(),
        );
    }
    Ok(None)
}

/// Refuses what another user has put beside weights that are not theirs, into a directory that is not theirs: it would
/// say what the weights are.
///
/// # Errors
/// What to do about it, without the name of `note`.
pub fn check_beside(note: &Path, weights: &Path) -> Result<(), String> {
    match regular::another_maker(note).filter(|_| regular::is_planted(note, weights)) {
        None => Ok(()),
        Some(user) => Err(format!(
            "it belongs to user {user}, and `{}` beside it does not: copy what you mean into a directory of your own",
            weights.display()
        )),
    }
}

/// The files of weights that a path stands for: itself, or those of a directory.
///
/// # Errors
/// Why there are none, one line each.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, Vec<String>> {
    if !path.is_dir() {
        return if path.exists() { Ok(vec![path.to_owned()]) } else { Err(vec![absent(path)]) };
    }
    let all: Vec<PathBuf> = [MODEL, INDEX]
        .iter()
        .chain(&TORCH)
        .map(|name| path.join(name))
        .filter(|path| path.exists())
        .collect();
    if let Some((first, others)) = all.split_first() {
        let name = first.file_name().unwrap_or_default().to_string_lossy();
        let config = Some(path.join(CONFIG)).filter(|config| config.exists());
        let refused = others.iter().chain(&config).find_map(|other| check_beside(first, other).err());
        refused.map_or(Ok(()), |problem| Err(vec![format!("{name}: {problem}")]))?;
    }
    let index = path.join(INDEX);
    match all.into_iter().next() {
        Some(first) if first == index => {}
        Some(first) => return Ok(vec![first]),
        None => {
            return Err(vec![match path.join(TORCH_INDEX).exists() {
                true => format!(
                    "`{TORCH_INDEX}` is of weights in several files of PyTorch, which are not read: load the model \
                     with transformers and save it with `model.save_pretrained(DIR, safe_serialization=True)`"
                ),
                false => format!("the directory has neither {MODEL} nor {INDEX}, {}", TORCH.join(" or ")),
            }]);
        }
    }
    let said = json(&index).map_err(|problem| vec![problem])?;
    let map = said.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| vec![format!("{INDEX} has no table `weight_map`")])?;
    let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let names = names.ok_or_else(|| vec![format!("{INDEX}: `weight_map` should map names to files")])?;
    if let Some(elsewhere) = names.iter().find(|name| !regular::is_beside(name)) {
        return Err(vec![format!("{INDEX}: `{elsewhere}` is no file beside it, and no other is read")]);
    }
    let files: Vec<_> = names.iter().map(|name| path.join(name)).collect();
    let refused =
        names.iter().zip(&files).find_map(|(name, file)| Some((name, check_beside(file, &index).err()?)));
    if let Some((name, problem)) = refused {
        return Err(vec![format!("{name}: {problem}")]);
    }
    match twice(&files) {
        Some((first, second)) => Err(vec![format!(
            "{INDEX} names one file twice: `{}` is also `{}`",
            second.display(),
            first.display()
        )]),
        None => Ok(files),
    }
}

/// Two of the paths that lead to one file. Any number of those would take no more place on the disk, but memory for
/// each.
fn twice(paths: &[PathBuf]) -> Option<(&Path, &Path)> {
    let mut seen = HashMap::new();
    paths.iter().find_map(|path| {
        // some file systems number no files
        let found = path.metadata().ok().filter(|found| found.ino() != 0)?;
        seen.insert((found.dev(), found.ino()), path.as_path()).map(|first| (first, path.as_path()))
    })
}

/// Why nothing lies at `path`, where its last part is a word that means something to other programs.
fn absent(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "scratch" => {
            "there is no such file; leave the key out, and training begins from random weights".to_owned()
        }
        "resume" => "there is no such file; leave the key out: a run that was interrupted goes on by itself"
            .to_owned(),
        _ if HUB.contains(&name) => format!(
            "there is no such file: the key names a file or a directory, not a model of the Hugging Face hub; download \
             `{CONFIG}` and `{MODEL}` of `{name}` into a directory and name that"
        ),
        _ => "there is no such file or directory".to_owned(),
    }
}

/// Why weights cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The file that cannot be read, or the directory that holds none.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// The dimensions that the weights at `path` come with: in the file itself, or in the `config.json` beside it. `None`
/// where there is neither.
///
/// # Errors
/// Why the first file of the weights, or the configuration, cannot be read.
pub fn stated(path: &Path) -> Result<Option<Stated>, Unreadable> {
    let unreadable = |file: &Path, problem: String| Unreadable { file: file.to_owned(), problem };
    let files = files(path).map_err(|problems| unreadable(path, problems.join("; ")))?;
    let Some(first) = files.first() else { return Ok(None) };
    let opened = regular::open(first).map_err(|error| format!("it could not be read: {error}"));
    let read = opened.and_then(|mut file| contents(first, &mut file)?.ok_or_else(|| NONE.into()));
    if let Some(stated) = read.map_err(|problem| unreadable(first, problem))?.stated {
        return Ok(Some(stated));
    }
    let config = config_of(first);
    if config.symlink_metadata().is_err() {
        return Ok(None);
    }
    check_beside(&config, first).map_err(|problem| unreadable(&config, problem))?;
    config::stated(&config).map(Some).map_err(|problem| unreadable(&config, problem))
}
