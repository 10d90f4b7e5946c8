//! Starting from Hugging Face GPT-2 weights (`model.init_from`).
//!
//! Weights come in many forms: with or without the `transformer.` prefix, whole or in shards, in three precisions,
//! with buffers and a tied head that carry no information. Weights that almost fit would be worse than none, so every
//! difference from the model is reported, all of them at once.

use super::hf_config;
use super::tensors::{TensorFile, stored_range, unfit};
use super::{RunError, digest};
use crate::model::{Dims, ParamLayout};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
const HEAD: &str = "lm_head.weight";

/// Fills a flat buffer of `layout.len` fp32 elements with the weights at `path`: a `.safetensors` file, or a directory
/// with `model.safetensors` or its sharded form.
///
/// F16 and BF16 are widened. A position embedding longer than `block_size` is cropped to its first rows; rows that pad
/// the vocabulary become zero. Errors: [`RunError::Weights`] listing all that does not fit.
pub fn import(path: &Path, dims: &Dims, layout: &ParamLayout, out: &mut [f32]) -> Result<(), RunError> {
    assert_eq!(out.len(), layout.len, "a buffer has the layout's length");
    out.fill(0.0);
    fill(path, dims, layout, out).map_err(|problems| RunError::Weights { path: path.to_owned(), problems })
}

/// Checks whether [`import`] would accept the weights at `path`, without reading them all.
///
/// Errors: [`RunError::Weights`] listing all that does not fit.
pub fn check(path: &Path, dims: &Dims, layout: &ParamLayout) -> Result<(), RunError> {
    let checked = fitting(path, dims, layout).map(drop);
    checked.map_err(|problems| RunError::Weights { path: path.to_owned(), problems })
}

/// blake3 of the weight files at `path`, in order, as 64 hexadecimal digits: the same wherever they lie.
pub fn content_digest(path: &Path) -> Result<String, RunError> {
    let weights = |problems| RunError::Weights { path: path.to_owned(), problems };
    let mut hasher = blake3::Hasher::new();
    for file in files(path).map_err(weights)? {
        let found = fs::File::open(&file).and_then(digest::of_reader);
        let found =
            found.map_err(|error| weights(vec![format!("could not read `{}`: {error}", file.display())]))?;
        hasher.update(found.blake3.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn fill(path: &Path, dims: &Dims, layout: &ParamLayout, out: &mut [f32]) -> Result<(), Vec<String>> {
    let mut weights = fitting(path, dims, layout)?;
    for tensor in &layout.tensors {
        weights.read(&tensor.name, 0, &mut out[stored_range(dims, tensor)])?;
    }
    Ok(())
}

/// The weights at `path`, if they are those of the model.
fn fitting(path: &Path, dims: &Dims, layout: &ParamLayout) -> Result<Weights, Vec<String>> {
    let mut weights = Weights::open(path)?;
    let mut problems = config_problems(path, dims);
    problems.append(&mut weights.problems);
    let names = weights.places.keys().map(String::as_str).filter(|name| !carries_nothing(name));
    let tensors: Vec<_> = layout.tensors.iter().collect();
    problems.extend(unfit(dims, &tensors, true, names, |name| weights.info(name)));
    if problems.is_empty() {
        problems.extend(weights.head_problem()?);
    }
    if problems.is_empty() { Ok(weights) } else { Err(problems) }
}

/// The tensors of one or more files by their unprefixed names.
struct Weights {
    files: Vec<TensorFile>,
    /// Index of the file, and the name there.
    places: BTreeMap<String, (usize, String)>,
    problems: Vec<String>,
}

impl Weights {
    fn open(path: &Path) -> Result<Self, Vec<String>> {
        let mut weights = Self { files: Vec::new(), places: BTreeMap::new(), problems: Vec::new() };
        for path in files(path)? {
            let file = TensorFile::open(&path).map_err(one)?;
            for full in file.names() {
                let name = full.strip_prefix("transformer.").unwrap_or(&full).to_owned();
                if weights.places.contains_key(&name) {
                    weights.problems.push(format!("`{name}` is there twice"));
                }
                weights.places.insert(name, (weights.files.len(), full));
            }
            weights.files.push(file);
        }
        Ok(weights)
    }

    fn info(&self, name: &str) -> Option<&safetensors::tensor::TensorInfo> {
        let (file, full) = self.places.get(name)?;
        self.files[*file].info(full)
    }

    fn read(&mut self, name: &str, start: usize, out: &mut [f32]) -> Result<(), Vec<String>> {
        let (file, full) = &self.places[name];
        self.files[*file].read(full, start, out).map_err(one)
    }

    /// The head is tied here, so one that is not the token embedding would be lost.
    fn head_problem(&mut self) -> Result<Option<String>, Vec<String>> {
        let Some(head) = self.info(HEAD) else { return Ok(None) };
        let embedding = self.info("wte.weight").expect("a missing tensor was reported before");
        if head.shape != embedding.shape {
            let shapes = format!("{:?} is not that of `wte.weight`, {:?}", head.shape, embedding.shape);
            return Ok(Some(format!("`{HEAD}`: the shape {shapes}")));
        }
        let (len, chunk) = (head.shape.iter().product(), digest::CHUNK / 4);
        let (mut a, mut b) = (vec![0.0; chunk], vec![0.0; chunk]);
        for start in (0..len).step_by(chunk) {
            let n = chunk.min(len - start);
            self.read(HEAD, start, &mut a[..n])?;
            self.read("wte.weight", start, &mut b[..n])?;
            if a[..n].iter().zip(&b[..n]).any(|(a, b)| a.to_bits() != b.to_bits()) {
                let problem = "differs from `wte.weight`: only models with tied embeddings can be read";
                return Ok(Some(format!("`{HEAD}` {problem}")));
            }
        }
        Ok(None)
    }
}

/// The safetensors files that `path` stands for.
fn files(path: &Path) -> Result<Vec<PathBuf>, Vec<String>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    if path.join(MODEL).exists() {
        return Ok(vec![path.join(MODEL)]);
    }
    let index = path.join(INDEX);
    if !index.exists() {
        return Err(vec![format!("the directory has neither {MODEL} nor {INDEX}")]);
    }
    let index = json(&index)?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| vec![format!("{INDEX} has no table `weight_map`")])?;
    let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let names = names.ok_or_else(|| vec![format!("{INDEX}: `weight_map` should map names to files")])?;
    Ok(names.into_iter().map(|name| path.join(name)).collect())
}

/// A causal mask that old checkpoints carry along, or the head, which is looked at separately.
fn carries_nothing(name: &str) -> bool {
    let mask = |name: &str| {
        let (layer, buffer) = name.strip_prefix("h.")?.split_once('.')?;
        layer.parse::<usize>().ok()?;
        Some(matches!(buffer, "attn.bias" | "attn.masked_bias"))
    };
    name == HEAD || mask(name) == Some(true)
}

/// The problems that the configuration beside the weights shows, if there is one.
fn config_problems(path: &Path, dims: &Dims) -> Vec<String> {
    let is_model = path.file_name().is_some_and(|name| name == MODEL);
    let config = if is_model { path.with_file_name(CONFIG) } else { path.join(CONFIG) };
    if !config.is_file() {
        return Vec::new();
    }
    match json(&config) {
        Ok(config) => hf_config::unfit(dims, &config),
        Err(problems) => problems,
    }
}

fn json(path: &Path) -> Result<Value, Vec<String>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = fs::read(path).map_err(|error| vec![format!("could not read {name}: {error}")])?;
    serde_json::from_slice(&bytes).map_err(|error| vec![format!("{name} is malformed: {error}")])
}

fn one(error: RunError) -> Vec<String> {
    vec![error.to_string()]
}
