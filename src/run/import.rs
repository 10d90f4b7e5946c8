//! Starting from weights that another trainer, or another run, has made (`model.init_from`).
//!
//! Weights come in many forms: with or without the `transformer.` prefix, whole or in shards, in three precisions,
//! linear layers as `[in, out]` or `[out, in]`, with buffers and a tied head that carry no information. Weights that
//! almost fit would be worse than none, so every difference from the model is reported, with the likely cause.

use super::digest::FileDigest;
use super::import_advice::{few, likely};
use super::tensors::{Found, TensorFile, Unfit, stored_len, unfit};
use super::{RunError, digest, hf_config};
use crate::model::{Dims, ParamLayout, Tensor};
use crate::regular;
use crate::weights::{self, CONFIG, Unreadable};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HEAD: &str = "lm_head.weight";

/// Fills a flat buffer of `layout.len` fp32 elements with the weights at `path`: a file in the format of safetensors,
/// PyTorch or llm.c, or a directory that holds one.
///
/// F16 and BF16 are widened. A position embedding longer than `block_size` is cropped to its first rows, and so is a
/// token embedding with the model's rows of padding; rows that pad the vocabulary become zero, and so do the biases of
/// a file that has none. The [digest](content_digest) of what is read has to be the `expected` one, if there is one:
/// somebody may have put another file in the place of the one that was found.
/// Errors: [`RunError::Weights`] listing what does not fit.
pub fn import(
    path: &Path,
    dims: &Dims,
    layout: &ParamLayout,
    expected: Option<&str>,
    out: &mut [f32],
) -> Result<(), RunError> {
    assert_eq!(out.len(), layout.len, "a buffer has the layout's length");
    out.fill(0.0);
    let filled = fill(path, dims, layout, out).and_then(|weights| weights.check(expected));
    filled.map_err(|problems| RunError::Weights { path: path.to_owned(), problems })
}

/// Checks that a model of these dimensions has its tensors in the weights at `path`, from their descriptions alone.
///
/// Errors: [`RunError::Weights`] listing what does not fit.
pub fn check_tensors(path: &Path, dims: &Dims, layout: &ParamLayout) -> Result<(), RunError> {
    let described = described(path, dims, layout).map(drop);
    described.map_err(|problems| RunError::Weights { path: path.to_owned(), problems })
}

/// Checks whether [`import`] would accept the weights at `path`, without reading them all; what it would leave out or
/// make up, one sentence each.
///
/// Errors: [`RunError::Weights`] listing what does not fit.
pub fn check(path: &Path, dims: &Dims, layout: &ParamLayout) -> Result<Vec<String>, RunError> {
    let checked = fitting(path, dims, layout).map(|weights| weights.notes(dims));
    checked.map_err(|problems| RunError::Weights { path: path.to_owned(), problems })
}

/// The dimensions of the model at `path`, as its file or the configuration beside it states them.
///
/// Errors: [`RunError::Malformed`] naming what is missing, or why it cannot be read.
pub fn dims(path: &Path) -> Result<Dims, RunError> {
    match weights::stated(path) {
        Ok(Some(stated)) => hf_config::dims_of(&stated),
        Ok(None) => Err(RunError::malformed(path, "its dimensions are stated in no config.json beside it")),
        Err(Unreadable { file, problem }) => Err(RunError::malformed(&file, problem)),
    }
}

/// blake3 of the weight files at `path`, in order, as 64 hexadecimal digits: the same wherever they lie.
pub fn content_digest(path: &Path) -> Result<String, RunError> {
    let weights_error = |problems| RunError::Weights { path: path.to_owned(), problems };
    let digest = |file: &PathBuf| {
        let unreadable = |error| weights_error(vec![format!("could not read `{}`: {error}", file.display())]);
        regular::open(file).and_then(|file| digest::of_weights(&file)).map_err(unreadable)
    };
    let files: Result<Vec<_>, _> = weights::files(path).map_err(weights_error)?.iter().map(digest).collect();
    Ok(digest_of_all(&files?))
}

/// The digest of weights in files that have these, in order.
pub(super) fn digest_of_all<'a>(files: impl IntoIterator<Item = &'a FileDigest>) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(file.blake3.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn fill(path: &Path, dims: &Dims, layout: &ParamLayout, out: &mut [f32]) -> Result<Weights, Vec<String>> {
    let mut weights = fitting(path, dims, layout)?;
    for tensor in &layout.tensors {
        let out = &mut out[tensor.offset..][..stored_len(dims, tensor)];
        if weights.info(&tensor.name).is_none() {
            // a bias that the file does not have
            continue;
        }
        if weights.is_transposed(&tensor.name) {
            weights.read_transposed(&tensor.name, tensor.shape[0], out)?;
        } else {
            weights.read(&tensor.name, 0, out)?;
        }
    }
    Ok(weights)
}

/// The weights at `path`, if they are those of the model.
fn fitting(path: &Path, dims: &Dims, layout: &ParamLayout) -> Result<Weights, Vec<String>> {
    let mut weights = described(path, dims, layout)?;
    match weights.head_problem()? {
        Some(problem) => Err(vec![problem]),
        None => Ok(weights),
    }
}

/// The weights at `path`, if their descriptions are those of the model's.
fn described(path: &Path, dims: &Dims, layout: &ParamLayout) -> Result<Weights, Vec<String>> {
    let config = config_beside(path).map_err(|problem| vec![problem])?;
    if let Some(other) = config.as_ref().and_then(weights::other_kind) {
        // of another architecture no tensor fits, which says nothing
        return Err(vec![format!("{CONFIG}: {other}")]);
    }
    let mut weights = Weights::open(path)?;
    let mut problems = config.map_or_else(Vec::new, |config| hf_config::unfit(dims, &config));
    problems.append(&mut weights.problems);
    let names = weights.places.keys().map(String::as_str).filter(|name| !carries_nothing(name));
    let tensors: Vec<_> = layout.tensors.iter().collect();
    let accepts = |tensor: &Tensor, found: &[usize]| is_cropped(dims, tensor, found);
    let mut unfit = unfit(dims, &tensors, names, |name| weights.info(name), accepts);
    if !weights.has_biases() {
        unfit.missing.retain(|problem| !problem.contains(".bias`"));
    }
    let likely = likely(dims, &unfit, |name| weights.info(name).map(|found| found.shape), &weights.names());
    let Unfit { missing, different, unknown } = unfit;
    problems.extend([missing, different, unknown].into_iter().flat_map(few));
    problems.extend(likely);
    if problems.is_empty() {
        problems.extend(weights.sharing());
    }
    if problems.is_empty() { Ok(weights) } else { Err(problems) }
}

/// Whether the first rows of a tensor of this shape are the model's: of a longer context, or of an embedding that has
/// the rows with which the model pads its own.
fn is_cropped(dims: &Dims, tensor: &Tensor, found: &[usize]) -> bool {
    let [rows, width] = found[..] else { return false };
    let crops = match tensor.name.as_str() {
        "wpe.weight" => rows > dims.block_size,
        "wte.weight" => rows == dims.padded_vocab,
        _ => false,
    };
    crops && width == dims.n_embd
}

/// The tensors of one or more files by their unprefixed names.
struct Weights {
    files: Vec<TensorFile>,
    /// Index of the file, and the name there.
    places: BTreeMap<String, (usize, String)>,
    problems: Vec<String>,
    /// Whether linear layers are `[out, in]`, as PyTorch's are, and not `[in, out]`, as in Hugging Face's GPT-2.
    out_in: bool,
}

impl Weights {
    fn open(path: &Path) -> Result<Self, Vec<String>> {
        let mut weights =
            Self { files: Vec::new(), places: BTreeMap::new(), problems: Vec::new(), out_in: false };
        for path in weights::files(path)? {
            let mut file = TensorFile::open(&path).map_err(one)?;
            weights.problems.append(&mut file.problems);
            let mut twice = Vec::new();
            for full in file.names() {
                let name = full.strip_prefix("transformer.").unwrap_or(full).to_owned();
                if weights.places.contains_key(&name) {
                    twice.push(format!("`{name}` is there twice"));
                }
                weights.places.insert(name, (weights.files.len(), full.clone()));
            }
            let is_further = !weights.files.is_empty() && !twice.is_empty();
            weights.problems.extend(few(twice));
            // each file after it may have as many
            if is_further {
                return Err(weights.problems);
            }
            weights.files.push(file);
        }
        // the one matrix that is never square
        let c_attn = weights.info("h.0.attn.c_attn.weight").map(|found| found.shape);
        weights.out_in = matches!(c_attn.as_deref(), Some([outputs, inputs]) if *outputs == 3 * inputs);
        Ok(weights)
    }

    /// Checks the files that were opened, whatever has their names by now, against the digest that they should have.
    fn check(mut self, expected: Option<&str>) -> Result<(), Vec<String>> {
        let Some(expected) = expected else { return Ok(()) };
        let files: Result<Vec<_>, _> = self.files.iter_mut().map(TensorFile::digest).collect();
        match digest_of_all(&files.map_err(one)?) == expected {
            true => Ok(()),
            false => Err(vec!["other weights were put in their place meanwhile: start again".to_owned()]),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.places.keys().map(String::as_str).collect()
    }

    /// A tensor with the shape that it has in the model's layout.
    fn info(&self, name: &str) -> Option<Found<'_>> {
        let (file, full) = self.places.get(name)?;
        let place = self.files[*file].info(full)?;
        let mut shape = place.shape.clone();
        if self.is_transposed(name) {
            shape.reverse();
        }
        Some(Found { elements: &place.elements, shape })
    }

    fn is_transposed(&self, name: &str) -> bool {
        let linear = ["c_attn.weight", "c_proj.weight", "c_fc.weight"];
        self.out_in && linear.iter().any(|end| name.ends_with(end))
    }

    /// Whether any tensor is a bias: nanoGPT's models may do without.
    fn has_biases(&self) -> bool {
        self.places.keys().any(|name| name.ends_with(".bias") && !carries_nothing(name))
    }

    fn read(&mut self, name: &str, start: usize, out: &mut [f32]) -> Result<(), Vec<String>> {
        let (file, full) = &self.places[name];
        self.files[*file].read(full, start, out).map_err(one)
    }

    /// Reads a matrix that the file has as `[out, in]` into `[in, out]`, some rows of the file at a time.
    fn read_transposed(&mut self, name: &str, inputs: usize, out: &mut [f32]) -> Result<(), Vec<String>> {
        let outputs = out.len() / inputs;
        let at_once = (digest::CHUNK / 4 / inputs).clamp(1, outputs);
        let mut rows = vec![0.0; at_once * inputs];
        for first in (0..outputs).step_by(at_once) {
            let rows = &mut rows[..at_once.min(outputs - first) * inputs];
            self.read(name, first * inputs, rows)?;
            for (row, values) in rows.chunks_exact(inputs).enumerate() {
                for (input, value) in values.iter().enumerate() {
                    out[input * outputs + first + row] = *value;
                }
            }
        }
        Ok(())
    }

    /// Two tensors in the same bytes. A small file could have any number of those, for a model that needs memory for
    /// each; only the head may be the embedding.
    fn sharing(&self) -> Option<String> {
        let extents =
            self.places.iter().filter(|(name, _)| !carries_nothing(name)).filter_map(|(name, at)| {
                let place = self.files[at.0].info(&at.1)?;
                let elements = place.shape.iter().product::<usize>() as u64;
                let end = place.offset + elements * place.elements.width()? as u64;
                Some((at.0, place.offset, end, name))
            });
        let mut extents: Vec<_> = extents.collect();
        extents.sort_unstable();
        let mut neighbours = extents.windows(2).filter(|two| two[0].0 == two[1].0 && two[0].2 > two[1].1);
        let shared = neighbours.next()?;
        let (a, b) = (shared[0].3, shared[1].3);
        Some(format!("`{a}` and `{b}` share bytes of the file, which only a head and its embedding may"))
    }

    /// What is left out of the weights, or made up, one sentence each.
    fn notes(&self, dims: &Dims) -> Vec<String> {
        let rows = |name: &str| self.info(name).and_then(|found| found.shape.first().copied()).unwrap_or(0);
        let mut notes = Vec::new();
        let beyond = rows("wte.weight").saturating_sub(dims.vocab_size);
        if beyond > 0 {
            let (size, all) = (dims.vocab_size, rows("wte.weight"));
            notes.push(format!(
                "{beyond} of the {all} rows of `wte.weight` lie beyond model.vocab_size = {size} and are left out"
            ));
        }
        if rows("wpe.weight") > dims.block_size {
            let (size, all) = (dims.block_size, rows("wpe.weight"));
            notes.push(format!(
                "`wpe.weight` has {all} positions, the first {size} are used (model.block_size)"
            ));
        }
        if !self.has_biases() {
            notes.push(
                "the weights have no biases: they begin at zero, which is the same model, and are trained"
                    .into(),
            );
        }
        notes
    }

    /// The head is tied here, so one that is not the token embedding would be lost.
    fn head_problem(&mut self) -> Result<Option<String>, Vec<String>> {
        let Some(head) = self.info(HEAD).map(|found| found.shape) else { return Ok(None) };
        let embedding = self.info("wte.weight").expect("a missing tensor was reported before").shape;
        if head != embedding {
            let shapes = format!("{head:?} is not that of `wte.weight`, {embedding:?}");
            return Ok(Some(format!("`{HEAD}`: the shape {shapes}")));
        }
        let (len, chunk) = (head.iter().product(), digest::CHUNK / 4);
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

/// A causal mask that old checkpoints carry along, or the head, which is looked at separately.
fn carries_nothing(name: &str) -> bool {
    let mask = |name: &str| {
        let (layer, buffer) = name.strip_prefix("h.")?.split_once('.')?;
        layer.parse::<usize>().ok()?;
        Some(matches!(buffer, "attn.bias" | "attn.masked_bias"))
    };
    name == HEAD || mask(name) == Some(true)
}

/// The configuration beside the weights, if there is one. Errors: why it cannot be read.
fn config_beside(path: &Path) -> Result<Option<Value>, String> {
    let config = weights::config_of(path);
    match config.symlink_metadata() {
        Ok(_) => {
            let first = weights::files(path).map_err(|problems| problems.join("; "))?;
            let checked = first.first().map_or(Ok(()), |first| weights::check_beside(&config, first));
            checked.map_err(|problem| format!("{}: {problem}", weights::CONFIG))?;
            weights::json(&config).map(Some)
        }
        Err(_) => Ok(None),
    }
}

fn one(error: RunError) -> Vec<String> {
    vec![error.to_string()]
}
