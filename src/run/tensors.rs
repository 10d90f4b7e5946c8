//! Safetensors files, streamed.
//!
//! A second copy of a model and its optimizer states may not fit in memory, so tensors go from the flat buffer
//! to the disk and back in chunks. The `safetensors` crate checks and writes the header.

use super::digest::{self, CHUNK, FileDigest, HashedFile};
use super::error::{Context, RunError};
use crate::model::{Dims, Tensor};
use crate::regular::{self, OpenDir};
use crate::weights::{self, ElementType, Place};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A safetensors file being written: the header first, then every tensor in its order.
#[derive(Debug)]
pub(super) struct TensorWriter {
    path: PathBuf,
    file: HashedFile,
}

impl TensorWriter {
    /// Creates the file and writes the header for fp32 tensors of these names and shapes.
    pub(super) fn create(
        dir: &OpenDir,
        name: &str,
        tensors: Vec<(String, Vec<usize>)>,
    ) -> Result<Self, RunError> {
        let path = &dir.join(name);
        let mut end = 0;
        let infos = tensors.into_iter().map(|(name, shape)| {
            let start = end;
            end += 4 * shape.iter().product::<usize>();
            (name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
        });
        // Without this entry the Hugging Face loader refuses the file.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), infos.collect()).expect("the offsets are contiguous");
        let mut header = serde_json::to_vec(&metadata).expect("names and numbers are valid JSON");
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = HashedFile::new(dir.create_file(name).context("create", path)?);
        file.write(&(header.len() as u64).to_le_bytes()).context("write", path)?;
        file.write(&header).context("write", path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends the next tensor's elements.
    pub(super) fn put(&mut self, values: &[f32]) -> Result<(), RunError> {
        self.file.write_f32(values).context("write", &self.path)
    }

    /// Makes the file durable.
    pub(super) fn finish(self) -> Result<FileDigest, RunError> {
        self.file.finish().context("write", &self.path)
    }
}

/// A file of tensors open for reading: safetensors, or one of those that [`weights`] knows.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    /// What the system says of the file before it is read.
    before: fs::Metadata,
    places: BTreeMap<String, Place>,
    /// What the file says of the model that GPT-2 does not have, one line each.
    pub(super) problems: Vec<String>,
}

impl TensorFile {
    /// Opens a file, and checks that all its tensors lie in it.
    pub(super) fn open(path: &Path) -> Result<Self, RunError> {
        let mut file = regular::open(path).context("open", path)?;
        let before = regular::dated(&file, || file.metadata()).context("read", path)?;
        let read = weights::contents(path, &mut file).and_then(|found| found.ok_or(weights::NONE.into()));
        let contents = read.map_err(|problem| RunError::malformed(path, problem))?;
        let (places, problems) = (contents.tensors, contents.problems);
        Ok(Self { path: path.to_owned(), file, before, places, problems })
    }

    /// The digest of the whole file that was opened.
    ///
    /// Errors: [`RunError::Malformed`] if it has been written to since.
    pub(super) fn digest(&mut self) -> Result<FileDigest, RunError> {
        self.file.rewind().context("read", &self.path)?;
        let digest = digest::of_reader(&self.file).context("read", &self.path)?;
        self.check_unchanged().map(|()| digest)
    }

    /// Checks that the file has not been written to since it was looked at.
    ///
    /// Errors: [`RunError::Malformed`] if it has.
    pub(super) fn check_unchanged(&self) -> Result<(), RunError> {
        let now = self.file.metadata().context("read", &self.path)?;
        let dates = |of: &fs::Metadata| (of.len(), of.mtime(), of.mtime_nsec());
        match dates(&now) == dates(&self.before) {
            true => Ok(()),
            false => Err(RunError::malformed(&self.path, "it was changed while it was read: start again")),
        }
    }

    /// Reads and checks the header of an open safetensors file. `before` is what the system said of it
    /// [before anything was read](regular::dated).
    pub(super) fn new(path: &Path, mut file: File, before: fs::Metadata) -> Result<Self, RunError> {
        let places = weights::safetensors(&mut file).map_err(|problem| RunError::malformed(path, problem))?;
        Ok(Self { path: path.to_owned(), file, before, places, problems: Vec::new() })
    }

    /// The tensors' names.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> + Clone {
        self.places.keys()
    }

    /// Type, shape and place of a tensor.
    pub(super) fn info(&self, name: &str) -> Option<&Place> {
        self.places.get(name)
    }

    /// Reads elements `[start, start + out.len())` of a tensor as fp32. The caller has checked that it has as many.
    ///
    /// Errors: [`RunError::Malformed`] for types other than F32, F16 and BF16.
    pub(super) fn read(&mut self, name: &str, start: usize, out: &mut [f32]) -> Result<(), RunError> {
        let place = self.places.get(name).expect("the caller found this name here");
        let Some(width) = place.elements.width() else {
            return Err(RunError::malformed(&self.path, format!("`{name}` has {}", unread(&place.elements))));
        };
        let first = place.offset + (start * width) as u64;
        self.file.seek(SeekFrom::Start(first)).context("read", &self.path)?;
        let mut bytes = vec![0; CHUNK.min(out.len() * width)];
        for values in out.chunks_mut(CHUNK / width) {
            let bytes = &mut bytes[..values.len() * width];
            self.file.read_exact(bytes).context("read", &self.path)?;
            match place.elements {
                ElementType::F16 => convert(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
                ElementType::Bf16 => convert(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
                _ => convert(bytes, values, f32::from_le_bytes),
            }
        }
        Ok(())
    }
}

fn unread(elements: &ElementType) -> String {
    let name = match elements {
        ElementType::Other(name) => name,
        _ => "of a strange width",
    };
    format!("type {name}, only F32, F16 and BF16 are read")
}

fn convert<const N: usize>(bytes: &[u8], values: &mut [f32], from: impl Fn([u8; N]) -> f32) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = from(*bytes);
    }
}

/// A tensor's shape in a file, which leaves out the padding rows of the embedding.
pub(super) fn stored_shape(dims: &Dims, tensor: &Tensor) -> Vec<usize> {
    let mut shape = tensor.shape.clone();
    if tensor.name == "wte.weight" {
        shape[0] = dims.vocab_size;
    }
    shape
}

/// The elements of a tensor that a file stores, its first ones: padding rows come last.
pub(super) fn stored_len(dims: &Dims, tensor: &Tensor) -> usize {
    stored_shape(dims, tensor).iter().product()
}

/// A tensor as a file has it, for [`unfit`].
#[derive(Debug, Clone)]
pub(super) struct Found<'a> {
    pub(super) elements: &'a ElementType,
    /// In the layout of the model.
    pub(super) shape: Vec<usize>,
}

/// What keeps a file from filling the tensors of a layout, one line for each tensor.
#[derive(Debug, Default)]
pub(super) struct Unfit {
    /// Tensors of the model that the file lacks.
    pub(super) missing: Vec<String>,
    /// Tensors of another shape, or of a type that is not converted.
    pub(super) different: Vec<String>,
    /// Tensors that the model does not have.
    pub(super) unknown: Vec<String>,
}

impl Unfit {
    /// All lines.
    pub(super) fn all(self) -> Vec<String> {
        [self.missing, self.different, self.unknown].concat()
    }
}

/// Compares a file with these tensors of a layout. `names` are the file's names as `info` knows them, without
/// prefixes. `accepts` may take a shape that is not the model's.
pub(super) fn unfit<'a>(
    dims: &Dims,
    tensors: &[&Tensor],
    names: impl Iterator<Item = &'a str>,
    info: impl Fn(&str) -> Option<Found<'a>>,
    accepts: impl Fn(&Tensor, &[usize]) -> bool,
) -> Unfit {
    let mut problems = Unfit::default();
    for tensor in tensors {
        let (name, expected) = (&tensor.name, stored_shape(dims, tensor));
        let Some(found) = info(name) else {
            problems.missing.push(format!("`{name}` {expected:?} is missing"));
            continue;
        };
        if found.shape != expected && !accepts(tensor, &found.shape) {
            problems.different.push(format!("`{name}` should be {expected:?} but is {:?}", found.shape));
        }
        if found.elements.width().is_none() {
            problems.different.push(format!("`{name}` has {}", unread(found.elements)));
        }
    }
    let known: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let unknown = names.filter(|name| !known.contains(name));
    problems.unknown.extend(unknown.map(|name| {
        let shape = info(name).map_or_else(Vec::new, |info| info.shape);
        format!("`{name}` {shape:?} is not part of the model")
    }));
    problems
}
